"""Recorded results: where they come from, and files that appear only when they are complete."""

import io
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from specnb import packing

CPU = Path("/proc/cpuinfo")  # Linux; elsewhere the standard library's word for it


def command(module: str) -> str:
    """The command line that runs now, as a reader would type it: python -m MODULE and its arguments."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def processor() -> str:
    """The CPU's name, the instructions that torch uses on it, and whether it has matrix kernels for bfloat16."""
    names = re.findall(r"model name\s*: (.+)", CPU.read_text()) if CPU.exists() else []
    kernels = f"{torch.backends.cpu.get_cpu_capability()} {'with' if packing.possible() else 'without'} bfloat16"
    return f"{names[0] if names else platform.processor()}, {kernels}"


def provenance(command: str) -> dict[str, str]:
    """Where a recorded number comes from: device, processor, versions, command, date."""
    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else f"cpu, {torch.get_num_threads()} threads",
        "machine": platform.machine(),
        "processor": processor(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("specnb", "torch", "transformers")},
        "command": command,
        "date": date.today().isoformat(),
    }


def write(path: str | Path, data: bytes | str) -> None:
    """Write a file in one move: a full disk or a kill leaves the earlier file as it was (OSError from the disk)."""
    write_all({path: data})


def write_all(files: Mapping[str | Path, bytes | str]) -> None:
    """``write`` for files that belong together: none is put in place before all are on the disk."""
    parts: dict[Path, Path] = {}
    try:
        for path, data in files.items():
            path = Path(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            parts[path] = path.with_name(f"{path.name}.part-{os.getpid()}")
            with open(parts[path], "wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
        for path, part in parts.items():
            os.replace(part, path)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """``write`` as a compressed .npz."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write(path, buffer.getvalue())


def write_table(out: str | Path, table: pd.DataFrame, command: str, **facts) -> None:
    """Write OUT.csv and, once it stands, OUT.json: the provenance and further facts."""
    write(f"{out}.csv", table.to_csv(index=False, float_format="%.5g"))
    write_json(f"{out}.json", {**provenance(command), **facts})


def add_run(path: str | Path, command: str, **facts) -> None:
    """Add a run to a sweep's provenance: {"runs": [provenance and facts of each command that wrote to its file]}."""
    path = Path(path)
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    write_json(path, {"runs": [*runs, {**provenance(command), **facts}]})


def to_json(content: dict) -> str:
    """Indented JSON text."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def write_json(path: str | Path, content: dict) -> None:
    """``write`` as indented JSON."""
    write(path, to_json(content))
