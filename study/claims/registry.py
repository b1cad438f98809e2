"""The decorators under which a paper's claims are written down, and the hash of a claim's test.

``@claim`` stands above a function from a table of ``quantities`` to what is compared, ``@checked`` above one that
returns a truth value a case, ``@not_attempted`` above one without a body. The function's name is the claim's, the
first paragraph of its docstring what the paper says in our words, its module the paper.
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
    """A sentence of a paper.

    paper: of ``paper.PAPERS``. name: ours. where: in the paper. says: what, in our words. effect: the paper's, in the
    statistic's unit, where it prints one. reason: how our setting differs from the paper's, how the claim was read, or
    why it was not attempted. before: the row of data/claims/PAPER.csv from which it was converted.
    """

    paper: str
    name: str
    where: str
    says: str
    effect: float | None
    reason: str
    before: str


@dataclass(frozen=True)
class Measured(Claim):
    """A claim that is judged by a test on a recording.

    recording: an experiment, or ``quantities.HEADS``. methods: which are compared, in order. statistic: of the array
    of one value per prompt and method. direction: "above", "below" or "within" the bound. compare: what is compared,
    of the recording's ``quantities``. differs: in what the test differs from that of the old row, if it does.
    """

    recording: Experiment | Heads
    methods: tuple[str, ...]
    statistic: Statistic
    direction: str
    bound: float
    compare: Compare
    differs: str = ""

    @property
    def test(self) -> str:
        """A hash of how the claim asks, in 16 hexadecimal digits.

        Of the recording's name, the methods, the statistic's name, the direction, the bound, and the function without
        its name and docstring, with what it refers to in its module. How quantities and statistics are computed is not
        in it, and sentences may change.
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
    """A claim that is judged exactly: by cases, all of which have to hold."""

    cases: Cases


CLAIMS: dict[str, dict[str, Claim]] = {}  # paper → name → claim, in the order in which they are written down


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
    """Register a function from a recording's ``quantities`` to what is compared, a Series.

    It names one bound: the statistic should lie above or below it, or within ± so much. For the others see Measured.
    Raises ValueError on a claim that makes no sense.
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
    """Register a function that returns a truth value a case, True where it is as the paper says."""

    def register(cases: Function) -> Function:
        paper, name, says = told_by(cases)
        add(Checked(paper, name, where, says, None, reason, before, cases))
        return cases

    return register


def not_attempted(*, where: str, reason: str, before: str = "") -> Callable[[Function], Function]:
    """Register a claim that is not judged, and why; its function has no body."""

    def register(empty: Function) -> Function:
        paper, name, says = told_by(empty)
        if not reason:
            raise ValueError(f"{paper}, {name}: it is not attempted for no reason")
        add(Claim(paper, name, where, says, None, reason, before))
        return empty

    return register


def told_by(function: Callable) -> tuple[str, str, str]:
    """Paper, name and words of a claim, from its function; ValueError if it says nothing."""
    _, _, paper = function.__module__.rpartition(".")
    docstring = inspect.cleandoc(function.__doc__ or "")
    first_paragraph, _, _ = docstring.partition("\n\n")
    if not first_paragraph:
        raise ValueError(f"{paper}, {function.__name__}: the docstring's first paragraph says what the paper claims")
    return paper, function.__name__, " ".join(first_paragraph.split())


def add(new: Claim) -> None:
    """Put a claim into CLAIMS; ValueError if its paper has one of that name."""
    of_paper = CLAIMS.setdefault(new.paper, {})
    if new.name in of_paper:
        raise ValueError(f"{new.paper} has two claims {new.name}")
    of_paper[new.name] = new


def spelt(function: FunctionType) -> list[str]:
    """A function's body without its docstring, and the prices, numbers and functions of its module it refers to.

    Written as ``ast`` writes it, so that neither spaces nor comments matter, nor the version of Python.
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
    """The plan of a recording: hashes of all tests on it, sorted, with spaces between. Each block that is recorded
    carries it, so that a test which was chosen after the data is told by its hash."""
    hashes = []
    for claims in CLAIMS.values():
        for one in claims.values():
            if isinstance(one, Measured) and one.recording.name == recording:
                hashes.append(one.test)
    return " ".join(sorted(hashes))
