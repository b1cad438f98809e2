"""The worked examples in the study's docstrings are true."""

import doctest
from importlib import import_module

import pytest

FILES = (
    "claims.judging", "claims.toys", "commands", "experiments", "measure.laws", "measure.race", "measure.texts",
    "methods", "metrics", "prices", "quantities", "record", "replay", "stats",
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_examples(name):
    done = doctest.testmod(import_module(f"study.{name}"))
    assert done.attempted > 0
    assert done.failed == 0
