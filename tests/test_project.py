"""House rules that a machine can check: one list of dependencies, imports pointing downwards, short files."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from specnb import assets

ROOT = assets.ROOT
# Each module imports only modules to its left.
ORDER = [
    "assets", "packing", "records", "models", "prompts", "tree", "masks", "cache", "streaming", "graphs", "target",
    "sampling", "verifiers", "traversal", "multidraft", "draft_models", "layers", "heads", "head_drafts", "growth",
    "search", "drafters",
    "decode", "hf", "exact", "broken", "replay", "adaptive", "metrics", "training", "costs", "sweep", "methods",
    "racing", "measures", "self_drafting", "side_by_side", "cost_model", "bench", "studies", "grids", "paired", "paper",
    "recordings", "tree_figure", "figures", "widgets", "explorers", "race", "growing", "whatif",
]  # fmt: skip
WIDGETS = ("widgets", "explorers", "race", "growing", "whatif")
MODULES = sorted((ROOT / "specnb").rglob("*.py"))
MOST_LINES = 300


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


def test_torch_is_pinned_alike(project, environment):
    ours, theirs = pins(project["dependencies"], "torch"), pins(pip_lines(environment), "torch")
    assert ours == theirs
    (version,) = ours
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert pins(["torch>=2"], "torch") == pins(["torch"], "torch") == {""}  # a range is no pin
    assert pins(["torch==2.12.0"], "torch") != ours
    assert pins(["torchvision==1.0"], "torch") == set()


def test_environment_installs_the_extras_that_exist(project, environment):
    names = extras(pip_lines(environment))
    assert names
    assert set(names) <= set(project["optional-dependencies"])
    assert {"lab", "test"} <= set(names)
    assert extras(["-e .[lab, nosuch]"]) == ["lab", "nosuch"]
    assert len(pip_lines(environment)) == 2  # nothing but torch's pin and the package: pyproject.toml is the one list


def test_environment_python_is_allowed(project, environment):
    (python,) = [e for e in environment if isinstance(e, str) and e.startswith("python=")]
    version = python.removeprefix("python=").lstrip("=")
    assert version in SpecifierSet(project["requires-python"])
    assert "3.10" not in SpecifierSet(project["requires-python"])
    assert "pip" in environment


def test_makefile_installs_extras_that_exist(project):
    used = re.findall(r'-e "?\.\[([\w,]+)\]', (ROOT / "Makefile").read_text(encoding="utf-8"))
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
        folders = ("specnb", "tests", "notebooks", "data", ".")
        names = {p.relative_to(ROOT) for f in folders for p in (ROOT / f).glob("**/*" if f != "." else "*")}
    paths = [ROOT / name for name in sorted(map(str, names))]
    return [p for p in paths if p.is_file() and (p.suffix in TEXT or p.name == "Makefile")]


def machine_paths(text: str) -> list[str]:
    return [text[m.start() : m.start() + 40].splitlines()[0] for m in MACHINE.finditer(text)]


def test_no_path_of_one_machine():
    paths = tracked()
    assert {"assets.py", "pyproject.toml", "environment.yml", "Makefile"} <= {path.name for path in paths}
    found = {str(p.relative_to(ROOT)): machine_paths(p.read_text(encoding="utf-8")) for p in paths}
    assert {name: hits for name, hits in found.items() if hits} == {}


@pytest.mark.parametrize("folder", ["root", "tmp", "work", "home/ada", "Users/ada"])
def test_a_path_of_one_machine_is_found(folder):
    for text in (
        f'open("/{folder}/x.csv")',
        f"SPECNB_CACHE=/{folder}",
        f"see /{folder}/main.",
        f'"File /{folder}"',
    ):
        assert machine_paths(text), text


@pytest.mark.parametrize(
    "text",
    ["https://x.org/work/y", "draft/target", "data/tmp/x", "~/work", "./tmp", "/workspace", "a home/ada"],
)
def test_other_paths_are_left_alone(text):
    assert machine_paths(text) == []


# --- imports point downwards


def imported(source: str, module: str) -> set[str]:
    """Modules of specnb that a source imports, also inside functions. module: "tree", "drafters.base", …"""
    package = ["specnb", *module.split(".")[:-1]]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            names = [".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names]
        else:
            continue
        parts = [name.split(".") for name in names]
        found |= {part[1] for part in parts if part[0] == "specnb" and len(part) > 1}
    return found & set(ORDER)


def violations(source: str, module: str) -> list[str]:
    """What is wrong with the imports of one module."""
    name = module.split(".")[0]
    if name == "__init__":
        return [f"specnb/__init__.py imports {other}" for other in sorted(imported(source, module))]
    if name not in ORDER:
        return [f"{module} has no place in the order"]
    wrong = []
    for other in sorted(imported(source, module) - {name}):
        if other in WIDGETS or (other == "figures" and name not in WIDGETS):
            wrong.append(f"{module} imports {other}, which only notebooks do")
        elif ORDER.index(other) > ORDER.index(name):
            wrong.append(f"{module} imports {other}, which comes after it")
    return wrong


def dotted(path: Path) -> str:
    """Name under specnb; a package keeps its "__init__", so that relative imports in it resolve."""
    return ".".join(path.relative_to(ROOT / "specnb").with_suffix("").parts)


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_imports_point_downwards(path):
    assert violations(path.read_text(encoding="utf-8"), dotted(path)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tree", "from specnb import decode"),
        ("tree", "from specnb.decode import steps"),
        ("tree", "import specnb.decode"),
        ("tree", "import specnb.decode as d"),
        ("tree", "from . import math, decode"),
        ("tree", "from .decode import steps"),
        ("tree", "def f():\n    from specnb.decode import steps"),
        ("tree", "if True:\n    from specnb.drafters.base import Drafter"),
        ("drafters.base", "from specnb.decode import steps"),
        ("drafters.base", "from .. import decode"),
        ("drafters.base", "from ..decode import steps"),
        ("drafters.__init__", "from ..decode import steps"),
        ("hf", "from specnb import figures"),
        ("paper", "from specnb.widgets import player"),
        ("figures", "from specnb import widgets"),
        ("__init__", "from specnb import tree"),
        ("unlisted", "import math"),
    ],
)
def test_a_wrong_import_is_found(module, source):
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("decode", "from specnb import tree, masks\nfrom specnb.drafters import Drafter\nimport specnb"),
        (
            "drafters.base",
            "from specnb.growth import Growth\nfrom . import ngram\nfrom .ngram import NgramDrafter",
        ),
        ("drafters.__init__", "from specnb.drafters.base import Drafter\nfrom .base import Drafter"),
        ("widgets", "from specnb import figures, paper"),
        ("tree", "import torch\nfrom decode import x\nimport mypkg.specnb.decode"),
        ("tree", "from specnb import __version__"),
    ],
)
def test_a_right_import_is_not(module, source):
    assert violations(source, module) == []


# --- short files


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_files_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_the_order_lists_no_module_twice():
    assert len(set(ORDER)) == len(ORDER)
    assert {dotted(path).split(".")[0] for path in MODULES} - {"__init__"} <= set(ORDER)
