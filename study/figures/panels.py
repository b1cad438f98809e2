"""What a redrawn figure is made of, before anything is drawn: panels with the paper's points and ours.

A module a paper has one function for each of its tables and figures. ``figure`` puts it on the list, under the paper's
name and the item's, together with the recordings that it compares:

    @figure("dynatree", "Figure 2", experiments.DYNATREE)
    def figure_2(runs):
        panel = Panel("speed-up over plain decoding", ["DynaTree"], ["here"], runs)
        panel.printed("DynaTree", "here", paper.select("dynatree", "Table 1", row="DynaTree (ours)", column="Speedup"))
        panel.ours("DynaTree", "here", panel.estimate(RATIO, "speed", ["vdm-dynatree", "generate"]))
        return [panel]

The function is given the quantities of these recordings, in this order, each of them None until it is recorded.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import pandas as pd

from study.stats import Estimate, Statistic, paired

Runs = pd.DataFrame | None  # the quantities of a recording; None until it is recorded
Quantity = str | Callable[[pd.DataFrame], pd.Series]  # a column of the runs, or what computes one from them
Choice = Callable[[pd.DataFrame], pd.DataFrame]  # some rows of the runs


@dataclass(frozen=True)
class Point:
    """One mark: of which line, at which tick, where on the axis below, whose, and how high, with its interval."""

    line: str
    tick: str
    x: float
    whose: str  # "paper" or "ours"
    value: float
    low: float
    high: float


COLUMNS = tuple(Point.__dataclass_fields__)


@dataclass
class Panel:
    """One pair of axes: what stands on them, and the points.

    ylabel, xlabel, title: texts around it. lines: what has a colour each. ticks: what stands on the axis below, texts
    side by side or numbers at their own places. runs: what our points come from; the title says if they are stale.
    colours: which of the style's each line has (0, 1, … if not given). measured_x: whether our own points say where
    they stand on the axis below. own_legend: whether the lines are explained in this panel even if all panels of a
    figure have the same.
    """

    ylabel: str
    lines: Sequence[str]
    ticks: Sequence[str | float]
    runs: Runs
    title: str = ""
    xlabel: str = ""
    colours: Sequence[int] | None = None
    measured_x: bool = False
    own_legend: bool = False
    points: list[Point] = field(default_factory=list)

    def __post_init__(self):
        if self.colours is None:
            self.colours = range(len(self.lines))
        if len(self.colours) != len(self.lines):
            raise ValueError(f"{len(self.lines)} lines need as many colours, got {self.colours}")

    @property
    def numeric(self) -> bool:
        """Whether ticks are numbers, which stand at their own places."""
        return all(isinstance(tick, int | float) for tick in self.ticks)

    @property
    def note(self) -> str:
        """What a reader has to know about our points: that there are none, or that they are stale; "" if nothing."""
        if self.runs is None or not any(point.whose == "ours" for point in self.points):
            return "(ours: not recorded yet)"
        why = self.runs.attrs.get("stale", "")
        if why:
            return f"(ours are stale: {why})"
        return ""

    def printed(self, line: str, tick: str | float, rows: pd.DataFrame) -> None:
        """Add the paper's numbers: rows of ``paper.select``, each with its own error if it has one."""
        x = self._place(line, tick)
        rows = rows.dropna(subset="value")
        for value, error in zip(rows["value"], rows["error"].fillna(0), strict=True):
            self.points.append(Point(line, str(tick), x, "paper", value, value - error, value + error))

    def ours(self, line: str, tick: str | float, estimate: Estimate | None, at: Estimate | None = None) -> None:
        """Add our number, if it is there. at: what says where it stands on the axis below, if the tick does not."""
        x = self._place(line, tick)
        if at is not None:
            x = at.value
        if estimate is None:
            return
        self.points.append(Point(line, str(tick), x, "ours", estimate.value, estimate.low, estimate.high))

    def estimate(
        self, statistic: Statistic, quantity: Quantity, methods: Sequence[str], where: Choice | None = None
    ) -> Estimate | None:
        """A statistic of our runs over prompts, with its interval; None if runs of one of the methods are not there.

        quantity: a column of the runs or, for prices, a function that computes one from them (``Prices(…).speed``).
        where: chooses some of the runs (``domains.gsm``).
        """
        if self.runs is None:
            return None
        chosen = self.runs
        if where is not None:
            chosen = where(chosen)
        if not set(methods) <= set(chosen["method"]):
            return None
        values = quantity(chosen) if callable(quantity) else chosen[quantity]
        return statistic.estimate(paired(chosen, values, methods))

    def table(self) -> pd.DataFrame:
        """All points, one a row."""
        return pd.DataFrame([asdict(point) for point in self.points], columns=COLUMNS)

    def _place(self, line: str, tick: str | float) -> float:
        """Where a tick stands on the axis below; ValueError unless line and tick are this panel's."""
        if line not in self.lines:
            raise ValueError(f"the panel has no line {line!r}, only {', '.join(map(repr, self.lines))}")
        if tick not in self.ticks:
            raise ValueError(f"the panel has no tick {tick!r}, only {', '.join(map(repr, self.ticks))}")
        if self.numeric:
            return float(tick)
        return float(list(self.ticks).index(tick))


@dataclass(frozen=True)
class Redrawn:
    """One table or figure of a paper: the recordings whose quantities the function ``build`` makes panels of."""

    recordings: tuple[object, ...]
    build: Callable[..., list[Panel]]


FIGURES: dict[tuple[str, str], Redrawn] = {}  # by paper and item, in the order in which they are defined


def figure(paper: str, item: str, *recordings: object) -> Callable[[Callable], Callable]:
    """Put a function that makes an item's panels on the list. recordings: experiments, in its parameters' order."""

    def listed(build: Callable[..., list[Panel]]) -> Callable[..., list[Panel]]:
        if (paper, item) in FIGURES:
            raise ValueError(f"{item} of {paper} is redrawn twice, by {FIGURES[paper, item].build} and {build}")
        FIGURES[paper, item] = Redrawn(recordings, build)
        return build

    return listed


def labels(rows: Sequence[tuple]) -> list:
    """What stands first in each row of a small table: the label that is drawn."""
    return [row[0] for row in rows]
