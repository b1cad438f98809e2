"""The Makefile: what a reader installs, and that JupyterLab serves the whole repository."""

import os
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import server

from specnb.models import files

ROOT = files.ROOT


def commands(*words: str) -> list[str]:
    """What make would do."""
    outside = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, env=outside, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def installed(target: str, folder: Path) -> list[str]:
    """What a target asks pip for, given what the folder of the environment holds."""
    lines = [line for line in commands(target, f"VENV={folder}") if " -e " in line]
    return [line.split()[-1].strip('"') for line in lines]


@pytest.mark.parametrize("target", ["lab", "fetch", "readme"])
def test_a_reader_installs_what_a_reader_needs(target, tmp_path):
    assert installed(target, tmp_path) == [".[lab]"]


@pytest.mark.parametrize("target", ["test", "lint", "html", "slides", "figures", "stills", "screens", "train-smoke"])
def test_tests_and_site_install_the_rest(target, tmp_path):
    assert installed(target, tmp_path) == [".[lab]", ".[dev]"]


def test_what_is_there_is_not_installed_again(tmp_path):
    (tmp_path / ".lab").touch()
    assert installed("lab", tmp_path) == []
    assert installed("test", tmp_path) == [".[dev]"]


def test_an_environment_with_pip_is_kept(tmp_path):
    """Its torch may have been chosen."""
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (line,) = [line for line in commands("lab", f"VENV={tmp_path / '.venv'}", "PYTHON=false") if "-m venv" in line]
    for pip, kept in (("exit 0", True), ("exit 1", False)):
        python.write_text(f"#!/bin/sh\n{pip}\n", encoding="utf-8")
        python.chmod(0o755)
        assert (subprocess.run(line, shell=True, check=False).returncode == 0) is kept
        assert python.exists() is kept


def test_jupyterlab_serves_the_repository_and_opens_the_first_notebook(tmp_path):
    """So that links in notebooks to files beside them work."""
    (line,) = commands("-o", "fetch", "lab", f"BIN={Path(sys.executable).parent}")
    with server.running(shlex.split(line), tmp_path, ROOT) as address:
        assert urllib.request.urlopen(address).url == f"{address}/lab/tree/notebooks/00_start_here.ipynb"
        for name in ("README.md", "specnb/lab/methods.py", "notebooks/00_start_here.ipynb"):
            assert urllib.request.urlopen(f"{address}/api/contents/{name}?content=0").status == 200
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/api/contents/00_start_here.ipynb?content=0")


@pytest.mark.parametrize(("broken", "status"), [("tests", 2), ("--nbval", 2), ("nothing", 0)])
def test_notebooks_run_after_a_failed_test_and_all_fails_at_the_end(broken, status, tmp_path):
    """With a python that only writes down what it is asked to run, and fails at one of the two."""
    said, python, ruff = tmp_path / "said", tmp_path / "bin" / "python", tmp_path / "bin" / "ruff"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$@" >> {said}\ncase " $* " in *" {broken} "*) exit 1;; esac\n')
    ruff.write_text("#!/bin/sh\n")
    for program in (python, ruff):
        program.chmod(0o755)
    for mark in (".lab", ".dev"):
        (tmp_path / mark).touch()
    outside = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(["make", "test", f"VENV={tmp_path}"], cwd=ROOT, env=outside, capture_output=True, check=False)
    asked = said.read_text()
    assert done.returncode == status
    assert "-m pytest tests" in asked
    assert "-m pytest --nbval" in asked
