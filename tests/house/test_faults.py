"""Planted faults: each can still be planted, its tests are there, and the page lists them. make faults plants them."""

import ast

import plant_faults
import pytest
from plant_faults import FAULTS, ROOT, Fault

PAGE = ROOT / "docs" / "testing.md"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted(fault):
    """Its piece stands once in the file; with the other in its place, the file is still one of Python."""
    text = fault.planted((ROOT / fault.file).read_text(encoding="utf-8"))
    if fault.file.endswith(".py"):
        ast.parse(text)
    paths = [word for word in fault.tests.split() if word.startswith("tests/")]
    assert paths
    assert all((ROOT / path).is_file() for path in paths)


def test_names_are_told_apart():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_a_piece_that_is_gone_or_stands_twice_is_told():
    fault = Fault("seven for six", "x.py", "= 6", "= 7", "tests/house")
    assert fault.planted("a = 6") == "a = 7"
    for text in ("a = 5", "a = 6; b = 6"):
        with pytest.raises(ValueError, match=f"seven for six: x.py has {text.count('= 6')} times '= 6'"):
            fault.planted(text)


def test_the_page_lists_every_fault():
    """python tools/plant_faults.py --table"""
    assert plant_faults.table() in PAGE.read_text(encoding="utf-8")


def test_one_is_noticed_and_a_harmless_change_is_not(tmp_path):
    """In a copy of two files: the smallest of repositories."""
    right = "def double(x):\n    return 2 * x  # twice\n"
    (tmp_path / "doubling.py").write_text(right)
    (tmp_path / "test_it.py").write_text(
        "from doubling import double\n\n\ndef test_six():\n    assert double(3) == 6\n"
    )
    wrong = Fault("thrice", "doubling.py", "2 * x", "3 * x", "test_it.py")
    harmless = Fault("words", "doubling.py", "# twice", "# two times", "test_it.py")
    assert plant_faults.noticed(wrong, tmp_path) == "test_it.py::test_six"
    assert plant_faults.noticed(harmless, tmp_path) == ""
    assert (tmp_path / "doubling.py").read_text() == right
    broken = Fault("no Python", "doubling.py", "def double", "def", "test_it.py")
    with pytest.raises(RuntimeError, match="no Python: "):
        plant_faults.noticed(broken, tmp_path)
