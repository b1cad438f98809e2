"""Installed without its checkout (``pip install .``), specnb does what needs no file of it, and says what does."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specnb.models import files

ROOT = files.ROOT
SAID = "specnb is installed without its checkout"

# Each line is run where the package is, but not the repository; what it raises, or "fine".
WORKS = {
    "every room": "from specnb import drafters, exact, growth, heads, models, show, verifiers",
    "a generation": (
        "import tiny\n"
        "from specnb import decode, drafters, target, verifiers\n"
        "text = decode.decode(target.Target(tiny.llama()), drafters.NgramDrafter(), verifiers.greedy, [1, 2, 1], "
        "max_new_tokens=8, eos=())\n"
        "assert len(text.tokens) == 8"
    ),
    "an exact law": (
        "from specnb import exact\n"
        "law = exact.law(lambda coins: coins.accept(0.25))\n"
        "assert abs(law[True] - 0.25) < 1e-12"
    ),
    "a figure": (
        "import pandas as pd, matplotlib.pyplot as plt\n"
        "from specnb import show\n"
        "show.save(plt.subplots()[0], 'mine', pd.Series([1.0]))"
    ),
}
NEEDS_THE_CHECKOUT = {
    "a head of the repository": "from specnb import heads\nheads.load('hass', None)",
    "its hash": "from specnb import heads\nheads.hashes(['hass'])",
    "prompts of our own": "from specnb.models import prompts\nprompts.own()",
    "the corpus": "from specnb.drafters import Datastore\nDatastore.of_corpus()",
}
ANOTHER_ERROR = {"a head of one's own": "from specnb import heads\nheads.load('./mine', None)"}

SCRIPT = """
import json, sys
found = {}
for name, code in json.loads(sys.argv[1]).items():
    try:
        exec(code, {})
        found[name] = "fine"
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder to work in, beside one that holds nothing of the repository but the package."""
    home = tmp_path_factory.mktemp("home")
    shutil.copytree(ROOT / "specnb", home.parent / "site" / "specnb", ignore=shutil.ignore_patterns("__pycache__"))
    return home


@pytest.fixture(scope="module")
def found(home) -> dict[str, str]:
    codes = WORKS | NEEDS_THE_CHECKOUT | ANOTHER_ERROR
    places = [str(home.parent / "site"), str(ROOT / "tests")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places), "MPLBACKEND": "agg"}
    environment.pop("SPECNB_FIGURES", None)
    command = [sys.executable, "-c", SCRIPT, json.dumps(codes)]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKS)
def test_what_needs_no_checkout_works(name, found):
    assert found[name] == "fine"


@pytest.mark.slow
def test_figures_are_written_where_one_works(found, home):
    assert (home / "figures" / "mine.png").exists()
    assert not (home.parent / "site" / "figures").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS_THE_CHECKOUT)
def test_what_needs_the_checkout_says_so(name, found):
    assert found[name].startswith(f"FileNotFoundError: {SAID}")
    assert "git clone" in found[name]
    assert "pip install -e ." in found[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ANOTHER_ERROR)
def test_a_file_of_ones_own_that_is_missing_is_another_matter(name, found):
    assert found[name].startswith("ValueError: no trained head 'mine'")


def test_in_a_checkout_a_missing_head_is_named_with_those_that_are_there():
    path = files.DATA / "drafts" / "nosuch"
    assert files.in_checkout(path) == path


def test_the_package_holds_python_only():
    """So that a copy of its modules, as here, is what pip installs."""
    others = {path.suffix for path in (ROOT / "specnb").rglob("*") if path.is_file()} - {".py", ".pyc"}
    assert others == set()
