"""Plant known faults in a copy of the repository, one at a time, and see that tests notice each.

    python tools/plant_faults.py                 # all of them: make faults, about half an hour
    python tools/plant_faults.py top_p stream    # those that have one of these words in their name
    python tools/plant_faults.py --table         # the table of docs/testing.md

They stand in tests/faults.toml. A fault is a piece of a file and what takes its place. The piece must stand in the file
exactly once: where it is gone, the code has changed, and the fault has to be written anew. It is noticed if its tests
fail, without those that are marked slow. The program fails if a fault is not noticed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Fault:
    """What is planted, and the tests of which one at least has to fail.

    file: relative to the repository. old: a piece of it that stands there once. new: what takes its place. tests: what
    pytest is given, with spaces between.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str

    def planted(self, text: str) -> str:
        """The file's text with the fault; ValueError if the piece does not stand there exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has {text.count(self.old)} times {self.old!r}")
        return text.replace(self.old, self.new)


TABLE = ROOT / "tests" / "faults.toml"
FAULTS = [Fault(**fields) for fields in tomllib.loads(TABLE.read_text(encoding="utf-8"))["fault"]]


def copied(folder: Path) -> None:
    """Put a copy of all files that git knows, as they are now, into a folder."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def noticed(fault: Fault, folder: Path) -> str:
    """The first test that fails with the fault in the copy, which is mended afterwards; "" if all pass.

    RuntimeError if the tests could not be run.
    """
    path = folder / fault.file
    right = path.read_text(encoding="utf-8")
    path.write_text(fault.planted(right), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-m", "not slow"]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, *fault.tests.split()], cwd=folder, env=environment, capture_output=True, text=True
        )
    finally:
        path.write_text(right, encoding="utf-8")
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{fault.name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if done.returncode else ""


def table() -> str:
    """The faults as Markdown: what is planted, where, and which tests are asked."""
    rows = [f"| {fault.name} | {fault.file} | {fault.tests.removeprefix('tests/')} |" for fault in FAULTS]
    return "\n".join(["| fault | planted in | noticed by tests/… |", "|---|---|---|", *rows])


def main(words: Sequence[str]) -> int:
    """The number of faults that nothing notices."""
    if list(words) == ["--table"]:
        print(table())
        return 0
    chosen = [fault for fault in FAULTS if not words or any(word in fault.name for word in words)]
    missed = []
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        copied(folder)
        for fault in chosen:
            by = noticed(fault, folder)
            print(f"{fault.name}: {by or 'NOT NOTICED'}", flush=True)
            if not by:
                missed.append(fault.name)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults are noticed")
    return len(missed)


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
