"""Panels: the content of a redrawn figure, with the paper's points and ours, before anything is drawn.

For each paper there is a module with one function for each of its tables and figures. The decorator ``figure``
registers the function under the names of paper and item, together with the recordings that it compares:

    @figure("dynatree", "Figure 2", experiments.DYNATREE)
    def figure_2(runs):
        panel = Panel("speed-up over plain decoding", ["DynaTree"], ["here"], runs)
        panel.printed("DynaTree", "here", paper.select("dynatree", "Table 1", row="DynaTree (ours)", column="Speedup"))
        panel.ours("DynaTree", "here", panel.estimate(RATIO, "speed", ["vdm-dynatree", "generate"]))
        return [panel]

The function's arguments are the quantities of these recordings, in this order; one that is not recorded is None.
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
    """One mark of a panel."""

    line: str  # one of the panel's lines
    tick: str  # one of the panel's ticks
    x: float  # the coordinate on the x axis
    whose: str  # "paper" or "ours"
    value: float  # the coordinate on the y axis
    low: float  # the lower end of the interval
    high: float  # the upper end


COLUMNS = tuple(Point.__dataclass_fields__)


@dataclass
class Panel:
    """One pair of axes with its points."""

    ylabel: str  # the label of the y axis
    lines: Sequence[str]  # names of the lines; each has its own colour
    ticks: Sequence[str | float]  # of the x axis: texts side by side, or numbers at their own coordinates
    runs: Runs  # the quantities from which our points come; the title says if they are stale
    title: str = ""
    xlabel: str = ""  # the label of the x axis
    colours: Sequence[int] | None = None  # of the lines: indices into the style's colours; 0, 1, … if None
    measured_x: bool = False  # whether the x coordinates of our points are measured, too
    own_legend: bool = False  # whether this panel has a legend even if all panels of the figure have the same lines
    points: list[Point] = field(default_factory=list)

    def __post_init__(self):
        if self.colours is None:
            self.colours = range(len(self.lines))
        if len(self.colours) != len(self.lines):
            raise ValueError(f"{len(self.lines)} lines need as many colours, got {self.colours}")

    @property
    def numeric(self) -> bool:
        """Whether the ticks are numbers, which are their own x coordinates."""
        return all(isinstance(tick, int | float) for tick in self.ticks)

    @property
    def note(self) -> str:
        """A note that our points are missing or stale; "" if neither."""
        if self.runs is None or not any(point.whose == "ours" for point in self.points):
            return "(ours: not recorded yet)"
        why = self.runs.attrs.get("stale", "")
        if why:
            return f"(ours are stale: {why})"
        return ""

    def printed(self, line: str, tick: str | float, rows: pd.DataFrame) -> None:
        """Add the paper's numbers: rows of ``paper.select``, each with its own error if it has one."""
        x = self._x_of(line, tick)
        rows = rows.dropna(subset="value")
        for value, error in zip(rows["value"], rows["error"].fillna(0), strict=True):
            self.points.append(Point(line, str(tick), x, "paper", value, value - error, value + error))

    def ours(self, line: str, tick: str | float, estimate: Estimate | None, at: Estimate | None = None) -> None:
        """Add our number; nothing if it is None. at: its x coordinate, if that is measured, too."""
        x = self._x_of(line, tick)
        if at is not None:
            x = at.value
        if estimate is None:
            return
        self.points.append(Point(line, str(tick), x, "ours", estimate.value, estimate.low, estimate.high))

    def estimate(
        self, statistic: Statistic, quantity: Quantity, methods: Sequence[str], where: Choice | None = None
    ) -> Estimate | None:
        """A statistic of our runs over prompts, with its interval; None if one of the methods has no runs.

        statistic: MEAN, RATIO or another of ``stats``.
        quantity:  a column of the runs or, for prices, a function that computes one from them (``Prices(…).speed``).
        methods:   the methods that the statistic compares, in order.
        where:     a function that selects some of the runs (``domains.gsm``).
        """
        if self.runs is None:
            return None
        runs = self.runs
        if where is not None:
            runs = where(runs)
        if not set(methods) <= set(runs["method"]):
            return None
        values = quantity(runs) if callable(quantity) else runs[quantity]
        return statistic.estimate(paired(runs, values, methods))

    def table(self) -> pd.DataFrame:
        """All points as a table, one row per point."""
        return pd.DataFrame([asdict(point) for point in self.points], columns=COLUMNS)

    def _x_of(self, line: str, tick: str | float) -> float:
        """The x coordinate of a tick. Raises ValueError unless line and tick are this panel's."""
        if line not in self.lines:
            raise ValueError(f"the panel has no line {line!r}, only {', '.join(map(repr, self.lines))}")
        if tick not in self.ticks:
            raise ValueError(f"the panel has no tick {tick!r}, only {', '.join(map(repr, self.ticks))}")
        if self.numeric:
            return float(tick)
        return float(list(self.ticks).index(tick))


@dataclass(frozen=True)
class Redrawn:
    """One redrawn table or figure of a paper."""

    recordings: tuple[object, ...]  # their quantities are the arguments of build
    build: Callable[..., list[Panel]]  # makes the panels


FIGURES: dict[tuple[str, str], Redrawn] = {}  # by paper and item, in the order in which they are defined


def figure(paper: str, item: str, *recordings: object) -> Callable[[Callable], Callable]:
    """Register a function that makes the panels of a paper's table or figure in FIGURES.

    recordings: experiments, or HEADS, in the order of the function's parameters.
    Raises ValueError if the item is registered already.
    """

    def register(build: Callable[..., list[Panel]]) -> Callable[..., list[Panel]]:
        if (paper, item) in FIGURES:
            raise ValueError(f"{item} of {paper} is redrawn twice, by {FIGURES[paper, item].build} and {build}")
        FIGURES[paper, item] = Redrawn(recordings, build)
        return build

    return register


def labels(rows: Sequence[tuple]) -> list:
    """The labels of a small table: the first item of each row."""
    return [row[0] for row in rows]
