"""``source``: what is displayed is the code that runs, without its docstring."""

import inspect

import pytest

from specnb import verifiers
from specnb.show import source
from specnb.tree import TokenTree
from specnb.verifiers import textbook


def documented(x: int) -> int:
    """Not
    shown."""
    text = """shown"""  # as is this
    return len(text) + x


def bare(x):
    return x + 1


class Both:
    """Not shown."""

    first = 1

    def method(self):
        """Shown: a method's docstring in its class."""
        return self.first

    def only(self):
        """Not shown either."""


def test_a_function_is_shown_without_its_docstring():
    lines = ["def documented(x: int) -> int:", '    text = """shown"""  # as is this', "    return len(text) + x"]
    assert repr(source(documented)) == "\n".join(lines)
    assert repr(source(bare)) == "def bare(x):\n    return x + 1"


def test_a_class_and_a_method_stand_at_the_left_margin():
    text = repr(source(Both))
    assert text.startswith("class Both:\n")
    assert 'Not shown."' not in text
    assert "Shown: a method's docstring" in text
    assert repr(source(Both.method)) == "def method(self):\n    return self.first"
    assert repr(source(Both.only)) == "def only(self):"


@pytest.mark.parametrize("algorithm", [textbook.traversal, textbook.rrsw, verifiers.block, TokenTree, TokenTree.keep])
def test_algorithms_are_shown_as_they_run(algorithm):
    shown, lines = repr(source(algorithm)).splitlines(), inspect.getsource(algorithm).splitlines()
    assert {line.strip() for line in shown} <= {line.strip() for line in lines}
    assert algorithm.__doc__.splitlines()[0] not in "\n".join(shown)


def test_a_notebook_sees_colours_and_escaped_text():
    page = source(documented)._repr_html_()
    assert page.startswith("<div")
    assert "style=" in page
    assert "&gt;" in page  # of ->
    assert "shown" in page
    assert "Not" not in page
