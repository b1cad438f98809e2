"""Provenance: where a recorded number comes from. Device, processor, versions, command and date are saved with it."""

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

CPU = Path("/proc/cpuinfo")  # exists on Linux; elsewhere platform.processor() is asked for the name


def command(module: str) -> str:
    """The command line of this process, as a reader would type it: python -m MODULE and its arguments."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def processor() -> str:
    """The CPU's name, the instructions that torch uses on it, and whether it has matrix kernels for bfloat16."""
    name = platform.processor()
    if CPU.exists():
        listed = re.findall(r"model name\s*: (.+)", CPU.read_text())  # one entry per core
        name = listed[0] if listed else name
    instructions = torch.backends.cpu.get_cpu_capability()
    with_or_without = "with" if packing.possible() else "without"
    return f"{name}, {instructions} {with_or_without} bfloat16"


def facts(command_line: str) -> dict[str, str]:
    """The provenance of a number recorded now: device, processor, versions, command and date."""
    device = f"cpu, {torch.get_num_threads()} threads"
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    return {
        "device": device,
        "machine": platform.machine(),
        "processor": processor(),
        "python": platform.python_version(),
        "specnb": version("specnb"),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "command": command_line,
        "date": date.today().isoformat(),
    }


def write_table(out: str | Path, table: pd.DataFrame, command_line: str, **more) -> None:
    """Write OUT.csv, and OUT.json with the provenance and more facts; if one cannot be written, neither is."""
    numbers = table.to_csv(index=False, float_format="%.5g")
    origin = files.to_json({**facts(command_line), **more})
    files.write_all({f"{out}.csv": numbers, f"{out}.json": origin})
