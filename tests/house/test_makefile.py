"""The Makefile: what a reader installs, and that JupyterLab serves the whole repository."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import environment
import pytest
import server

from specnb.models import files

ROOT = files.ROOT


def make(*words: str, **variables: str) -> subprocess.CompletedProcess:
    """Run make as from a shell of its own, with further environment variables."""
    ours = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ALL")  # of the make that may run this test
    outside = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(["make", *words], cwd=ROOT, env=outside | variables, capture_output=True, text=True)


def commands(*words: str, **variables: str) -> list[str]:
    """What make would do."""
    done = make("-n", *words, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def installs(target: str, folder: Path, *words: str) -> list[str]:
    """A target's calls of pip install, given what the folder of the environment holds."""
    return [line for line in commands(target, f"VENV={folder}", *words) if " -e " in line]


def installed(target: str, folder: Path) -> list[str]:
    """What a target asks pip for, given what the folder of the environment holds."""
    return list(dict.fromkeys(line.split()[-1].strip('"') for line in installs(target, folder)))  # test calls make


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


@pytest.mark.parametrize("target", ["lab", "test"])
def test_the_versions_of_the_recordings_are_installed_and_pip_says_what_it_does(target, tmp_path):
    lines = installs(target, tmp_path)
    assert lines
    for line in lines:
        words = shlex.split(line)
        assert words[words.index("-c") + 1] == "constraints.txt"
        assert not {"-q", "--quiet", "--progress-bar"} & set(words)  # gigabytes come: pip shows how many
    assert all("-c" not in shlex.split(line) for line in installs(target, tmp_path, "PINS="))


def test_before_the_download_its_size_is_said(tmp_path):
    lines = commands("lab", f"VENV={tmp_path}")
    (said,) = [i for i, line in enumerate(lines) if line.startswith("echo") and "GB" in line]
    assert said < lines.index(installs("lab", tmp_path)[0])


def test_an_environment_with_pip_is_kept(tmp_path):
    """Its torch may have been chosen."""
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    words = ("lab", f"VENV={tmp_path / '.venv'}", "PYTHON=false")
    (line,) = [line for line in commands(*words) if "tools/environment.py" in line]
    for pip, kept in (("exit 0", True), ("exit 1", False)):
        python.write_text(f"#!/bin/sh\n{pip}\n", encoding="utf-8")
        python.chmod(0o755)
        assert (subprocess.run(line, shell=True, check=False).returncode == 0) is kept
        assert python.exists()  # what make cannot use is not removed, either


@pytest.mark.parametrize(("user", "allowed"), [("0", True), ("1000", False)])
def test_root_may_run_jupyterlab(user, allowed, tmp_path):
    """In a container one is root, and JupyterLab does not start for root unless it is told to."""
    (tmp_path / "id").write_text(f"#!/bin/sh\necho {user}\n")
    (tmp_path / "id").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    (line,) = [line for line in commands("-o", "fetch", "lab", PATH=path) if "jupyter lab" in line]
    assert ("--allow-root" in shlex.split(line)) is allowed


@pytest.mark.parametrize("ours", [True, False])
def test_clean_removes_only_an_environment_that_make_made(ours, tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    folder = tmp_path / "environment"
    folder.mkdir()
    (folder / "mine").touch()
    (tmp_path / "build").mkdir()
    if ours:
        (folder / environment.MARK).touch()
    done = make("-C", str(tmp_path), "clean", "VENV=environment")
    assert done.returncode == 0
    assert folder.exists() is not ours
    assert ("environment was not made by make: it stays" in done.stdout) is not ours
    assert not (tmp_path / "build").exists()


def test_help_lists_every_target_with_words():
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split()
    lines = make("help").stdout.splitlines()
    listed = {line.split()[1]: line.split()[2:] for line in lines}
    assert set(listed) == set(phony)
    assert all(listed.values())
    assert {"lab", "test", "clean"} <= set(phony)


def test_jupyterlab_serves_the_repository_and_opens_the_first_notebook(tmp_path):
    """So that links in notebooks to files beside them work."""
    (line,) = commands("-o", "fetch", "lab", f"BIN={Path(sys.executable).parent}")
    with server.running(shlex.split(line), tmp_path, ROOT) as address:
        assert urllib.request.urlopen(address).url == f"{address}/lab/tree/notebooks/00_start_here.ipynb"
        for name in ("README.md", "study/methods.py", "notebooks/00_start_here.ipynb"):
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
    done = make("test", f"VENV={tmp_path}")
    asked = said.read_text()
    assert done.returncode == status
    assert "-m pytest tests" in asked
    assert "-m pytest --nbval" in asked


def test_what_is_slow_is_left_to_another_target():
    """``make test`` leaves out what is marked slow, and solutions; ``make test-all``, CI and ``make noise`` do not."""
    for words, whole in ((["test"], False), (["test-all"], True), (["noise"], True), (["test-code", "ALL=1"], True)):
        tests, notebooks = (" ".join(line for line in commands(*words) if mark in line) for mark in ("-rs", "--nbval"))
        assert tests
        assert ("not slow" not in tests) is whole
        assert ("solutions/" in notebooks) is (whole and words[0] != "test-code")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.findall(r"make test\S*(?: ALL=1)?", ci) == ["make test-all", "make test-code ALL=1"]
