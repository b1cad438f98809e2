"""The decorators that register a paper's claims, and the hash of a claim's test.

``@claim`` decorates a function from a table of ``quantities`` to the values that are compared; ``@checked`` one that
returns a truth value per case; ``@not_attempted`` one without a body. The function's name is the name of the claim. The
first paragraph of its docstring says what the paper claims, in our words. Its module has the name of the paper.
"""

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TypeVar

import pandas as pd

from study.experiments import Experiment
from study.prices import Prices
from study.quantities import Heads
from study.stats import Statistic

Compare = Callable[[pd.DataFrame], pd.Series]
Cases = Callable[[], list[bool]]
Function = TypeVar("Function", bound=Callable)


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper."""

    paper: str  # one of ``paper.PAPERS``
    name: str  # the claim's, given by us
    where: str  # in the paper, such as "Table 1"
    says: str  # what the paper claims, in our words
    effect: float | None  # the paper's number, in the statistic's unit; None if it prints none
    reason: str  # how our setting differs from the paper's, how the claim was read, or why it was not attempted
    before: str  # the row of data/claims/PAPER.csv from which the claim was converted; "" if none


@dataclass(frozen=True)
class Measured(Claim):
    """A claim that is judged by a test on a recording."""

    recording: Experiment | Heads  # an experiment, or ``quantities.HEADS``
    methods: tuple[str, ...]  # the methods that are compared, in order
    statistic: Statistic  # of the (prompts, methods) array of the compared values
    direction: str  # the statistic should be "above" or "below" the bound, or "within" ± the bound
    bound: float
    compare: Compare  # from the recording's ``quantities`` to the values that are compared
    differs: str = ""  # how the test differs from that of the row ``before``; "" if it does not

    @property
    def test(self) -> str:
        """A hash of the claim's test, in 16 hexadecimal digits.

        It is a hash of the recording's name, the methods, the statistic's name, the direction, the bound, and the body
        of the function with everything in its module that the body refers to. It does not cover names and docstrings of
        claims, nor how quantities and statistics are computed.
        """
        lines = [
            self.recording.name,
            *self.methods,
            self.statistic.name,
            *map(str, self.statistic.at),
            self.direction,
            str(float(self.bound)),
            *spelt(self.compare),
        ]
        text = "\n".join(lines)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Checked(Claim):
    """A claim that is checked exactly, case by case; all cases have to hold."""

    cases: Cases  # a function without arguments that returns a truth value per case


CLAIMS: dict[str, dict[str, Claim]] = {}  # paper → name → claim, in the order of the modules


def claim(
    *,
    where: str,
    recording: Experiment | Heads,
    methods: Sequence[str],
    statistic: Statistic,
    above: float | None = None,
    below: float | None = None,
    within: float | None = None,
    effect: float | None = None,
    reason: str = "",
    before: str = "",
    differs: str = "",
) -> Callable[[Function], Function]:
    """Register a function from a recording's ``quantities`` to the values that are compared, a Series.

    above, below, within: exactly one of these is given: the bound. The statistic should be above it, below it, or
    within ± the bound. For the other arguments see ``Claim`` and ``Measured``. Raises ValueError on a claim that makes
    no sense.
    """
    every_bound = {"above": above, "below": below, "within": within}
    bounds = {direction: bound for direction, bound in every_bound.items() if bound is not None}

    def register(compare: Function) -> Function:
        paper, name, says = told_by(compare)
        if len(bounds) != 1:
            raise ValueError(f"{paper}, {name}: one of above, below and within is the bound, got {bounds}")
        if not isinstance(recording, Experiment | Heads):
            raise ValueError(f"{paper}, {name}: recording is an object, experiments.X or HEADS, got {recording!r}")
        if isinstance(methods, str) or not methods:
            raise ValueError(f"{paper}, {name}: methods are names in a tuple, got {methods!r}")
        if len(methods) < statistic.needs:
            raise ValueError(f"{paper}, {name}: {statistic.name} compares {statistic.needs} methods, got {methods}")
        if statistic.at and len(statistic.at) != len(methods):
            raise ValueError(f"{paper}, {name}: a slope over {len(statistic.at)} numbers has {len(methods)} methods")
        if differs and not before:
            raise ValueError(f"{paper}, {name}: differs names an old row under before")
        ((direction, bound),) = bounds.items()
        sentence = (paper, name, where, says, effect, reason, before)
        add(Measured(*sentence, recording, tuple(methods), statistic, direction, bound, compare, differs))
        return compare

    return register


def checked(*, where: str, reason: str = "", before: str = "") -> Callable[[Function], Function]:
    """Register a function that returns a truth value per case, True if the case is as the paper says."""

    def register(cases: Function) -> Function:
        paper, name, says = told_by(cases)
        add(Checked(paper, name, where, says, None, reason, before, cases))
        return cases

    return register


def not_attempted(*, where: str, reason: str, before: str = "") -> Callable[[Function], Function]:
    """Register a claim that is not judged. reason: why. Its function has no body."""

    def register(empty: Function) -> Function:
        paper, name, says = told_by(empty)
        if not reason:
            raise ValueError(f"{paper}, {name}: it is not attempted for no reason")
        add(Claim(paper, name, where, says, None, reason, before))
        return empty

    return register


def told_by(function: Callable) -> tuple[str, str, str]:
    """A claim's paper, name and words, from its function. Raises ValueError if the docstring is empty."""
    _, _, paper = function.__module__.rpartition(".")
    docstring = inspect.cleandoc(function.__doc__ or "")
    first_paragraph, _, _ = docstring.partition("\n\n")
    if not first_paragraph:
        raise ValueError(f"{paper}, {function.__name__}: the docstring's first paragraph says what the paper claims")
    return paper, function.__name__, " ".join(first_paragraph.split())


def add(new: Claim) -> None:
    """Add a claim to CLAIMS. Raises ValueError if its paper has one of the same name."""
    of_paper = CLAIMS.setdefault(new.paper, {})
    if new.name in of_paper:
        raise ValueError(f"{new.paper} has two claims {new.name}")
    of_paper[new.name] = new


def spelt(function: FunctionType) -> list[str]:
    """The lines that are hashed for a function: its body, and the values and functions of its module that it uses.

    The docstring is left out. ``ast`` writes the code, so that spaces and comments do not matter.
    """
    source = textwrap.dedent(inspect.getsource(function))
    (definition,) = ast.parse(source).body
    body = definition.body
    if ast.get_docstring(definition) is not None:
        body = body[1:]
    lines = [ast.unparse(statement) for statement in body]
    for name in _names_in(body):
        value = function.__globals__.get(name)
        if isinstance(value, Prices | int | float | str | tuple):
            lines.append(f"{name} = {value!r}")
        is_neighbour = isinstance(value, FunctionType) and value.__module__ == function.__module__
        if is_neighbour and value is not function:
            lines += spelt(value)
    return lines


def _names_in(body: list[ast.stmt]) -> list[str]:
    """The names that statements use, sorted."""
    nodes = ast.walk(ast.Module(body, []))
    return sorted({node.id for node in nodes if isinstance(node, ast.Name)})


def plan_of(recording: str) -> str:
    """The plan of a recording: the hashes of all tests on it, sorted, with spaces between.

    Each block records the plan. A test whose hash is not in the plan was chosen after the data.
    """
    hashes = []
    for claims in CLAIMS.values():
        for one in claims.values():
            if isinstance(one, Measured) and one.recording.name == recording:
                hashes.append(one.test)
    return " ".join(sorted(hashes))
