"""Where a recorded number comes from: device, processor, versions, command, date."""

import platform
import re
import shlex
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pandas as pd
import torch

from specnb.models import files, packing

CPU = Path("/proc/cpuinfo")  # Linux; elsewhere the standard library's word for it


def command(module: str) -> str:
    """The command line that runs now, as a reader would type it: python -m MODULE and its arguments."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def processor() -> str:
    """The CPU's name, the instructions that torch uses on it, and whether it has matrix kernels for bfloat16."""
    names = re.findall(r"model name\s*: (.+)", CPU.read_text()) if CPU.exists() else []
    kernels = f"{torch.backends.cpu.get_cpu_capability()} {'with' if packing.possible() else 'without'} bfloat16"
    return f"{names[0] if names else platform.processor()}, {kernels}"


def facts(command: str) -> dict[str, str]:
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


def write_table(out: str | Path, table: pd.DataFrame, command: str, **more) -> None:
    """Write OUT.csv, and OUT.json with the provenance and more facts: both or neither."""
    origin = files.to_json({**facts(command), **more})
    files.write_all({f"{out}.csv": table.to_csv(index=False, float_format="%.5g"), f"{out}.json": origin})
