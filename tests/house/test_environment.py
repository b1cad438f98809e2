"""The environment that make installs into: made once, marked as make's own, and any other left as it is."""

import os
import subprocess
import sys
from pathlib import Path

import environment
import pytest

from specnb.models import files


def python_of(folder: Path) -> str:
    return str(folder / "bin" / "python")


@pytest.fixture
def without_pip(tmp_path) -> Path:
    """An environment as uv makes it."""
    folder = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


@pytest.fixture
def commands(monkeypatch) -> list[list[str]]:
    """Commands that are asked for; each is refused whose first words are in ``commands.refused``."""
    real = environment.works

    class Commands(list):
        refused = ()

    asked = Commands()

    def works(*command):
        asked.append([*map(str, command)])
        if any(words == tuple(command[1 : 1 + len(words)]) for words in asked.refused):
            return False
        return real(*command)

    monkeypatch.setattr(environment, "works", works)
    return asked


@pytest.mark.slow
def test_a_new_environment_has_pip_and_the_mark(tmp_path):
    pytest.importorskip("ensurepip")  # else pip would come from an index
    folder = tmp_path / "new"
    environment.main(str(folder))
    assert environment.has_pip(python_of(folder))
    assert (folder / environment.MARK).exists()


@pytest.mark.slow
def test_one_that_is_there_is_given_pip_and_no_mark(without_pip):
    pytest.importorskip("ensurepip")
    (without_pip / "mine").touch()
    assert not environment.has_pip(python_of(without_pip))
    environment.main(str(without_pip))
    assert environment.has_pip(python_of(without_pip))
    assert (without_pip / "mine").exists()
    assert not (without_pip / environment.MARK).exists()


def test_where_python_has_no_pip_of_its_own_another_pip_installs_it(tmp_path, commands, monkeypatch):
    """Debian without python3-venv: the system's pip installs into the new environment, not for system or user."""
    commands.refused = (("-m", "venv"), ("-m", "ensurepip"), ("-m", "pip", "--python"))
    monkeypatch.setattr(environment, "has_pip", lambda python: False)
    with pytest.raises(SystemExit, match="sudo apt install python3-venv"):
        environment.main(str(tmp_path / "new"))
    last = commands[-1]
    assert last == [sys.executable, "-m", "pip", "--python", python_of(tmp_path / "new"), "install", "pip"]
    assert not any("--user" in command for command in commands)
    assert not (tmp_path / "new").exists()  # nothing half made is left


def test_a_foreign_environment_without_any_way_to_pip_is_left_alone(without_pip, commands):
    commands.refused = (("-m", "ensurepip"), ("-m", "pip", "--python"))
    with pytest.raises(SystemExit, match="uv pip install --python"):
        environment.main(str(without_pip))
    assert os.path.exists(python_of(without_pip))


def test_a_folder_with_other_things_is_no_place_for_an_environment(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SystemExit, match="is not empty: remove it, or name another folder"):
        environment.main(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_old_python_is_told_which_one_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer, .* is 3\.10: make PYTHON=python3\.12"):
        environment.main(str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_the_oldest_python_is_that_of_the_package():
    said = (files.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'requires-python = ">={".".join(map(str, environment.OLDEST))}"' in said


# --- fetching


def test_fetching_without_pip_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECNB_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pip", None)  # as if it were not there
    with pytest.raises(OSError, match="pip, which downloads it, is not in this environment") as error:
        files.fetch(files.HUMANEVAL)
    assert f"`{sys.executable} -m ensurepip`, or `uv pip install pip`" in str(error.value)
    assert "\n" not in str(error.value)
