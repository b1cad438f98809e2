"""The README: its worked examples run and print what it says, its links lead somewhere."""

import re
import subprocess
import sys

import links
import pytest

from specnb.models import files

ROOT = files.ROOT
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
EXAMPLES = EXAMPLE.findall(README.partition("## Extend it")[2].partition("\n## ")[0])


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr.partition("Traceback")[2]


def test_there_are_three_examples_of_extending():
    assert len(EXAMPLES) == 3


@pytest.mark.model
@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=["drafter", "growth", "verifier"])
def test_an_example_prints_what_the_readme_says(code, printed):
    assert run(code) == printed


def test_another_example_prints_something_else():
    """Negative control: the verifier's example with its threshold moved."""
    code, printed = EXAMPLES[2]
    assert code.count("enough=0.3") == 1
    assert run(code.replace("enough=0.3", "enough=0.05")) != printed


def test_every_link_leads_somewhere():
    assert len(links.local(README)) > 20
    assert links.dead(README, ROOT) == []


def test_every_room_stands_in_the_readme():
    section = README.partition("## The package")[2].partition("\n## ")[0]
    rooms = {path.name for path in (ROOT / "specnb").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert set(re.findall(r"\(specnb/(\w+)/__init__\.py\)", section)) == rooms
