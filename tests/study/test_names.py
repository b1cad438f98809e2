"""Mistyped methods: told at once, with the name that may be meant and every known name once."""

import subprocess
import sys

import pytest

from specnb import heads
from study import methods, names


def test_the_names_are_those_of_the_tables():
    """What is read from the text of methods.py is what stands in its tables."""
    assert names.written() == {table: tuple(getattr(methods, table)) for table in names.TABLES}
    assert heads.FOLDER == names.HEADS


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Auto", "auto"),
        ("genrate", "generate"),
        ("prompt-lookup", "prompt lookup"),
        ("n-gramm tree", "n-gram tree"),
        ("retreival store=own", "retrieval"),
        ("hass", "hass:auto"),
        ("auto in graph", "auto"),
    ],
)
def test_the_close_match_is_said(name, meant):
    with pytest.raises(ValueError, match=f"unknown method '{name}': did you mean '{meant}'"):
        methods.method(name)


def test_what_is_like_nothing_gets_no_hint():
    with pytest.raises(ValueError, match="unknown method 'xyzzy 42': known are auto, generate"):
        methods.method("xyzzy 42")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Hass:chain 3", "there is no trained head 'Hass': did you mean 'hass'"),
        ("edd:chian 3", "unknown growth rule 'chian 3': did you mean 'chain'"),
        ("edd:chain 3 swor traversl", "unknown verifier 'traversl': did you mean 'traversal'"),
    ],
)
def test_parts_of_a_name_get_one_too(name, message):
    with pytest.raises(ValueError, match=message):
        methods.method(name)


def test_every_known_name_stands_once():
    with pytest.raises(ValueError, match="unknown method") as raised:
        methods.method("xyzzy")
    alone, _, with_a_head = str(raised.value).partition("known are ")[2].partition(", and HEAD:RULE with HEAD of ")
    trained, _, rules = with_a_head.partition(", or a path, and RULE of ")
    for listed in (alone.split(", "), trained.split(", "), rules.split(", ")):
        assert len(listed) == len(set(listed)) > 5
    assert {"auto", *methods.THEIRS, "n-gram tree", *methods.DRAFTERS} == set(alone.split(", "))
    assert {"pair", "hass", "edd", "vdm"} <= set(trained.split(", "))
    assert {"auto", *methods.GROWTH, *methods.NAMED, *methods.WINDOWS} == set(rules.split(", "))


IMPORTED = """
import sys
from study import __main__ as command
sys.argv = ["lab", *sys.argv[1:]]
try:
    command.main()
finally:
    print("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("words", "imported"),
    [
        (["race", "generate", "Auto"], False),
        (["race", "hasss:chain 3"], False),
        (["price", "hasss"], False),
        (["race", "generate", "--prompts", "nowhere"], True),  # negative control: a right name goes on
    ],
)
def test_a_mistyped_method_is_refused_before_torch_is_there(words, imported, tmp_path):
    line = [sys.executable, "-c", IMPORTED, *words, "--out", str(tmp_path / "out")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert done.stdout == f"{imported}\n"
