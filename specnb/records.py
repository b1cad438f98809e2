"""Recorded results: where they come from, and files that appear only when they are complete."""

import json
import os
import platform
from datetime import date
from importlib.metadata import version
from pathlib import Path

import torch


def provenance(command: str) -> dict[str, str]:
    """Where a recorded number comes from: device, versions, command, date."""
    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else f"cpu, {torch.get_num_threads()} threads",
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("specnb", "torch", "transformers")},
        "command": command,
        "date": date.today().isoformat(),
    }


def write(path: str | Path, data: bytes | str) -> None:
    """Write a file in one move: a full disk or a kill leaves the earlier file as it was (OSError from the disk)."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part-{os.getpid()}")
    try:
        with open(part, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: str | Path, content: dict) -> None:
    """``write`` as indented JSON."""
    write(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
