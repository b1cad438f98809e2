"""House rules that a machine can check: one list of dependencies, no path of one machine, rooms in order."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from specnb import models
from specnb.models import files

ROOT = files.ROOT
LOOP = ("tree", "masks", "sampling", "cache", "target", "selfcheck", "decode", "hf")  # the files at the top of specnb/
# Each room imports only rooms to its left, and the loop: nothing imports show.
ROOMS = ("models", "verifiers", "growth", "drafters", "heads", "exact", "show")
FRONT = ("one_call", "__main__")  # what a newcomer calls: it stands above all rooms
MOVED = ("lab", "training")  # files that say where a room of the second edition went
KEPT = ".ipynb_checkpoints"  # where JupyterLab keeps copies of what was opened in it
BESIDE = {"study": ("specnb", "training"), "training": ("specnb",)}  # packages of the checkout, what each may import
MODULES = sorted(path for name in ("specnb", *BESIDE) for path in (ROOT / name).rglob("*.py") if KEPT not in path.parts)


# --- one list of dependencies


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def environment() -> list:
    return yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]


def pip_lines(environment: list) -> list[str]:
    return next(entry["pip"] for entry in environment if isinstance(entry, dict))


def pins(lines: list[str], package: str) -> set[str]:
    """The exact versions of a package in a list of requirements; "" for one that is not exact."""
    found = [Requirement(line).specifier for line in lines if re.match(rf"{package}\b(?!-)", line)]
    return {",".join(s.version if s.operator == "==" else "" for s in specifier) for specifier in found}


def extras(lines: list[str]) -> list[str]:
    """The extras of the one editable install."""
    (line,) = [line for line in lines if line.startswith("-e ")]
    path, _, names = line.removeprefix("-e ").rstrip("]").partition("[")
    assert path == "."
    return [name.strip() for name in names.split(",") if name.strip()]


def constraints() -> list[str]:
    """The lines of constraints.txt that are no comment."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def allowed(project: dict, package: str) -> SpecifierSet:
    """Which versions of a package pyproject.toml takes."""
    (wanted,) = [r for r in map(Requirement, project["dependencies"]) if r.name == package]
    return wanted.specifier


def test_torch_is_pinned_alike_and_the_pin_is_allowed(project, environment):
    ours, theirs = pins(constraints(), "torch"), pins(pip_lines(environment), "torch")
    assert ours == theirs
    (version,) = ours
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert version in allowed(project, "torch")
    assert pins(["torch>=2"], "torch") == pins(["torch"], "torch") == {""}  # a range is no pin
    assert pins(["torch==2.12.0"], "torch") != ours
    assert pins(["torchvision==1.0"], "torch") == set()


def test_the_package_takes_a_users_torch(project):
    """No pin and no upper end: another version that is there stays."""
    taken = allowed(project, "torch")
    assert all(version in taken for version in ("2.11.0", "2.13.0+cpu", "2.14.1", "3.0.0"))
    assert "2.10.0" not in taken


def test_transformers_are_those_that_were_tried(project):
    taken = allowed(project, "transformers")
    assert [v in taken for v in ("5.16.1", "5.17.0", "5.24.0", "5.25.0")] == [False, True, True, False]


def test_no_page_and_no_file_names_another_pin():
    """Commands to type and the site's workflow choose the torch of constraints.txt, by its number or by the file."""
    (version,) = pins(constraints(), "torch")
    readers = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / ".github").rglob("*.yml")]
    older = {"docs/install.md": {"2.11.0"}}  # a page that says how older ones are tried
    for path in readers:
        named = set(re.findall(r"torch==([\d.]+\d)", path.read_text(encoding="utf-8")))
        assert named <= {version} | older.get(str(path.relative_to(ROOT)), set()), path


# --- pip's own opinion of the pin


@pytest.fixture
def reader(tmp_path) -> Path:
    """An environment with neither pip nor packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "environment"], check=True)
    return tmp_path / "environment"


def pip_says(environment: Path, *, there: str, options: list[str]) -> subprocess.CompletedProcess:
    """What pip, which reaches no index, makes of the package's torch where a version of it is there."""
    (packages,) = environment.glob("lib/python*/site-packages")
    information = packages / f"torch-{there}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {there}\n")
    (information / "INSTALLER").write_text("pip\n")
    command = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--dry-run"]
    offline = os.environ | {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        offline.pop(name, None)
    wanted = "torch" + str(allowed(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"], "torch"))
    return subprocess.run([*command, *options, wanted], cwd=ROOT, env=offline, capture_output=True, text=True)


@pytest.mark.parametrize("there", ["2.13.0", "2.13.0+cpu", "2.13.0+cu126", "2.13.0+rocm6.4"])
def test_make_keeps_any_build_of_the_pinned_torch(there, reader):
    done = pip_says(reader, there=there, options=["-c", "constraints.txt"])
    assert done.returncode == 0, done.stderr
    assert "Requirement already satisfied" in done.stdout
    assert there in done.stdout


@pytest.mark.parametrize("there", ["2.11.0+cpu", "2.15.0"])
def test_without_constraints_another_torch_is_kept(there, reader):
    done = pip_says(reader, there=there, options=[])
    assert done.returncode == 0, done.stderr
    assert "Requirement already satisfied" in done.stdout


@pytest.mark.parametrize(("there", "options"), [("2.12.0", ["-c", "constraints.txt"]), ("2.10.0", [])])
def test_pip_would_look_for_another_torch(there, options, reader):
    """Negative control: not the pinned one, and one that is too old."""
    done = pip_says(reader, there=there, options=options)
    assert done.returncode != 0
    assert re.search(r"Cannot install torch|No matching distribution found for torch", done.stderr)


def test_environment_installs_the_extras_that_exist(project, environment):
    names = extras(pip_lines(environment))
    assert names
    assert set(names) <= set(project["optional-dependencies"])
    assert {"lab", "test", "site"} <= set(names)
    assert extras(["-e .[lab, nosuch]"]) == ["lab", "nosuch"]
    assert len(pip_lines(environment)) == 2  # nothing but torch's pin and the package: pyproject.toml is the one list


def test_environment_offers_the_small_torch():
    """As a comment: without its # there is one more line for pip, an index."""
    text = (ROOT / "environment.yml").read_text(encoding="utf-8")
    opened = yaml.safe_load(text.replace("# - --extra-index-url", "- --extra-index-url"))
    closed = yaml.safe_load(text)
    assert set(pip_lines(opened["dependencies"])) - set(pip_lines(closed["dependencies"])) == {
        "--extra-index-url https://download.pytorch.org/whl/cpu"
    }


def test_the_site_is_built_with_the_small_torch():
    """Its machines have no GPU: the CPU build is there, in the environment that make keeps, before make runs."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/site.yml").read_text(encoding="utf-8"))
    runs = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    (made,) = [i for i, run in enumerate(runs) if run == "python -m venv .venv"]
    (chosen,) = [
        i for i, run in enumerate(runs) if run.endswith("torch --index-url https://download.pytorch.org/whl/cpu")
    ]
    assert "-c constraints.txt" in runs[chosen]
    assert made < chosen < runs.index(".ci/run")


def test_environment_python_is_allowed(project, environment):
    (python,) = [e for e in environment if isinstance(e, str) and e.startswith("python=")]
    version = python.removeprefix("python=").lstrip("=")
    assert version in SpecifierSet(project["requires-python"])
    assert "3.10" not in SpecifierSet(project["requires-python"])
    assert {"pip", f"python={version}"} == {entry for entry in environment if isinstance(entry, str)}


def test_makefile_installs_extras_that_exist(project):
    used = re.findall(r'"\.\[([\w,]+)\]"', (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert used
    assert {name for names in used for name in names.split(",")} <= set(project["optional-dependencies"])


# --- nothing that only exists on one machine

TEXT = {".py", ".md", ".yml", ".yaml", ".toml", ".ipynb"}
# (A path is not inside a word, a URL or a relative path. The pieces keep this file from finding itself.)
MACHINE = re.compile(r"(?<![\w./~$}-])/(?:" + "|".join(["root", "tmp", "work", r"(?:home|Users)/\w+"]) + r")(?![\w-])")


def tracked() -> list[Path]:
    """Text files that git tracks; without git, those in the repository's folders."""
    try:
        run = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
        names = run.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        folders = ("specnb", "tests", "tools", "notebooks", "data", "docs", ".")
        names = {p.relative_to(ROOT) for f in folders for p in (ROOT / f).glob("**/*" if f != "." else "*")}
    paths = [ROOT / name for name in sorted(map(str, names))]
    return [p for p in paths if p.is_file() and (p.suffix in TEXT or p.name == "Makefile")]


def machine_paths(text: str) -> list[str]:
    return [text[m.start() : m.start() + 40].splitlines()[0] for m in MACHINE.finditer(text)]


def test_no_path_of_one_machine():
    paths = tracked()
    assert {"files.py", "pyproject.toml", "environment.yml", "Makefile"} <= {path.name for path in paths}
    found = {str(p.relative_to(ROOT)): machine_paths(p.read_text(encoding="utf-8")) for p in paths}
    assert {name: hits for name, hits in found.items() if hits} == {}


@pytest.mark.parametrize("folder", ["root", "tmp", "work", "home/ada", "Users/ada"])
def test_a_path_of_one_machine_is_found(folder):
    for text in (f'open("/{folder}/x.csv")', f"SPECNB_CACHE=/{folder}", f"see /{folder}/main.", f'"File /{folder}"'):
        assert machine_paths(text), text


@pytest.mark.parametrize(
    "text", ["https://x.org/work/y", "draft/target", "data/tmp/x", "~/work", "./tmp", "/workspace", "a home/ada"]
)
def test_other_paths_are_left_alone(text):
    assert machine_paths(text) == []


# --- rooms


def imported(source: str, module: str) -> set[str]:
    """What of this project a source imports, also inside functions: rooms and files of specnb by their bare names.

    module: the importing file, "tree" or "growth.levels" in specnb, "study.replay" beside it.
    """
    beside = module.split(".")[0] in BESIDE
    package = module.split(".")[:-1] if beside else ["specnb", *module.split(".")[:-1]]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            names = [".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names]
        else:
            continue
        for parts in (name.split(".") for name in names):
            if parts[0] in BESIDE:
                found.add(parts[0])
            elif parts[0] == "specnb" and len(parts) > 1 and parts[1] in (*LOOP, *ROOMS):
                found.add(parts[1])
    return found


def violations(source: str, module: str) -> list[str]:
    """What is wrong with the imports of one module."""
    name = module.split(".")[0]
    others = sorted(imported(source, module) - {name})
    outside = [other for other in others if other in BESIDE]
    if name in BESIDE:
        return [f"{module} imports {other}" for other in outside if other not in BESIDE[name]]
    if outside:
        return [f"{module}, of the package, imports {other}" for other in outside]
    if name in ("__init__", *MOVED):
        return [f"specnb/{name}.py imports {other}" for other in others]
    if name in FRONT:
        return []
    if name in LOOP:
        return [f"{module}, of the loop, imports the room {other}" for other in others if other in ROOMS]
    if name not in ROOMS:
        return [f"{module} is in no room"]
    above = ROOMS[ROOMS.index(name) :]
    return [f"{module} imports {other}, a room above it" for other in others if other in above]


def dotted(path: Path) -> str:
    """Name under specnb, or of a file beside it; a package keeps its "__init__", so that relative imports resolve."""
    below = path.relative_to(ROOT / "specnb") if path.is_relative_to(ROOT / "specnb") else path.relative_to(ROOT)
    return ".".join(below.with_suffix("").parts)


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_no_room_imports_one_above_it(path):
    assert violations(path.read_text(encoding="utf-8"), dotted(path)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("target", "from specnb.models import Graphs"),
        ("target", "import specnb.models.graphs"),
        ("decode", "from specnb import verifiers"),
        ("decode", "from .drafters.ngram import NgramDrafter"),
        ("hf", "def f():\n    from specnb.verifiers import by_draw"),
        ("growth.levels", "from study.replay import turn"),
        ("verifiers.top_down", "from ..exact import law"),
        ("exact.gallery", "if True:\n    from study import run"),
        ("training.runs", "from study import metrics"),
        ("heads.files", "import training as t"),
        ("show.trees", "from study.replay import turn"),
        ("drafters.auto", "from specnb import show"),
        ("lab", "from specnb import tree"),
        ("__init__", "from specnb import tree"),
        ("unlisted", "import math"),
        ("attic.thing", "import math"),
    ],
)
def test_a_wrong_import_is_found(module, source):
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("decode", "from specnb import tree, masks\nimport specnb"),
        ("drafters.ngram", "from specnb.growth import Growth\nfrom . import pools\nfrom .pools import Rows"),
        ("study.methods", "from specnb.drafters import TreeDrafter\nfrom study import run\nimport training"),
        ("show.laws", "from specnb import exact\nfrom specnb.show.look import png"),
        ("tree", "import torch\nfrom decode import x\nimport mypkg.specnb.show"),
        ("tree", "from specnb import __version__"),
    ],
)
def test_a_right_import_is_not(module, source):
    assert violations(source, module) == []


def test_the_house_has_these_rooms_and_no_other():
    top = ROOT / "specnb"
    assert {p.name for p in top.iterdir() if p.is_dir() and p.name[0] not in "._"} == set(ROOMS)
    assert {p.stem for p in top.glob("*.py")} == {"__init__", *LOOP, *FRONT, *MOVED}


@pytest.mark.parametrize("room", [*(f"specnb/{room}" for room in ROOMS), *BESIDE])
def test_a_room_says_what_it_holds(room):
    """Its first docstring names each of its files."""
    folder = ROOT / room
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    names = {p.stem for p in folder.glob("*.py")} - {"__init__", "__main__"}
    assert {name for name in names if name not in said} == set()


# --- command lines


@pytest.mark.parametrize("room", ["specnb", "study", "specnb.models", "training"])
@pytest.mark.parametrize(("words", "status"), [(["--help"], 0), (["--hlep"], 2)])
def test_a_command_line_is_read_before_torch_is_loaded(room, words, status):
    script = (
        f"import runpy, sys\nsys.argv = ['{room}', *{words}]\ntry:\n    runpy.run_module('{room}', "
        f"run_name='__main__', alter_sys=True)\nexcept SystemExit as end:\n    print(end.code, 'torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == f"{status} False"
    usage = "usage: specnb" if room == "specnb" else f"usage: python -m {room}"
    assert usage in run.stdout + run.stderr


def test_every_name_of_a_room_whose_files_come_late_is_there():
    room = models
    names = [name for name in dir(room) if not name.startswith("_")]
    assert len(names) > 10
    assert all(getattr(room, name) is not None for name in names)
    with pytest.raises(AttributeError, match=f"module '{room.__name__}' has no attribute 'nothing'"):
        room.nothing  # noqa: B018


@pytest.mark.parametrize(("room", "place"), [("lab", "study"), ("training", "training")])
def test_a_room_that_has_moved_says_where_it_went(room, place):
    for words in (["-m", f"specnb.{room}", "list"], ["-c", f"import specnb.{room}"]):
        run = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
        assert run.returncode == 1
        assert f"specnb.{room} is now the package {place}, in a checkout" in run.stderr
