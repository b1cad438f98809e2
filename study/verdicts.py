"""A paper's claims, as lines and as one picture: verdicts, our intervals, and the paper's effects beside them.

Both take the table that ``study.claims.judged`` makes, or some of its rows.
"""

import textwrap
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from specnb.show.look import COLOURS, INK

VERDICTS = {
    "reproduced": COLOURS["accepted"],
    "same setting": COLOURS["recovered"],
    "undecided": "#CCBB44",
    "contradicted": COLOURS["rejected"],
    "not attempted": "#BBBBBB",
    "not recorded": "#BBBBBB",
}
MARKS = {"the paper": "D", "the bound": "|"}
WIDTH = 120  # of the lines, of which the first so many columns are the verdict's and the number's
INDENT = " " * 37


def told(table: pd.DataFrame) -> str:
    """What was found, claim by claim: verdict, our number or the cases that hold, and its words.

    Behind the words stands what our number is, a statistic of one of ``study.quantities``, where it should lie, and
    the paper's effect, if it prints one. Below them: what is stale, whether the test was chosen after the data, and
    how our setting differs or how the claim was read.
    """
    lines = []
    for row in table.itertuples():
        sentence = row.says
        if np.isfinite(row.low):
            sentence += f" ({_asked(row)})"
        lines += _wrapped(f"{row.verdict:13} {_our_number(row):22} {sentence}")
        for note in _notes(row):
            lines += _wrapped(f"{INDENT}· {note}")
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=INDENT, break_on_hyphens=False)


def _asked(row: NamedTuple) -> str:
    """What our number is and where it should lie, and the paper's."""
    asked = f"{row.statistic} of {row.value} {row.direction} {row.bound:g}"
    if np.isfinite(row.effect):
        asked += f"; the paper {row.effect:.2f}"
    return asked


def _notes(row: NamedTuple) -> list[str]:
    """What stands below a claim."""
    notes = []
    if row.stale:
        notes.append(f"Stale: the recording was {row.stale}.")
    if row.planned == "after the data":
        notes.append("Its test was chosen after the data were there.")
    if row.reason:
        notes.append(row.reason)
    return notes


def _our_number(row: NamedTuple) -> str:
    """Our number with its interval, or how many cases hold; nothing before there is any.

    An interval wider than .05 is told to two digits, as in "0.52 [0.31, 0.68]", a narrower one to three.
    """
    if np.isfinite(row.low):
        digits = 2 if row.high - row.low > 0.05 else 3
        number = f"z.{digits}f"  # z: no minus before a zero
        return f"{row.ours:{number}} [{row.low:{number}}, {row.high:{number}}]"
    if np.isfinite(row.prompts):
        return f"{row.ours:.0f} of {row.prompts:.0f} hold"
    return ""


def picture(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """What was found, a row a claim: a line at the bound, the paper's effect, our 95 % interval.

    Every row has a scale of its own, so that its bound stands in the middle; numbers stand at the right. Shaded: where
    the claim holds. Exact claims say how many cases hold, claims from a stale recording that it is stale.
    """
    if ax is None:
        height = 0.5 * len(table) + 0.8  # inches
        figure = plt.figure(figsize=(13, height))
        ax = figure.add_axes((0.5, 0.6 / height, 0.24, 1 - 0.7 / height))  # words stand at both sides
    for y, row in enumerate(table.itertuples()):
        if np.isfinite(row.low):
            _draw_interval(ax, y, row)
        _write(ax, y, row)
    ax.set(xlim=(-1.04, 1.04), ylim=(len(table) - 0.4, -0.6), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    handles = _legend_handles(table)
    ax.figure.legend(handles=handles, loc="lower center", ncols=len(handles), fontsize=11)
    return ax


def _legend_handles(table: pd.DataFrame) -> list[Line2D]:
    """A line for each verdict that occurs, with how often, and the marks for the paper's effect and the bound."""
    handles = []
    for verdict, colour in VERDICTS.items():
        count = sum(table["verdict"] == verdict)
        if count:
            handles.append(Line2D([], [], c=colour, lw=5, label=f"{verdict}: {count}"))
    for name, marker in MARKS.items():
        handles.append(Line2D([], [], color=INK, marker=marker, mfc="white", ms=8, ls="", label=name))
    return handles


def _draw_interval(ax: Axes, y: int, row: NamedTuple) -> None:
    """A row's interval, our number and the paper's, and shaded where the claim holds, on a scale of the row's own."""
    middle, half_width = _scale(row)

    def place(number: float) -> float:
        """Where a number stands on the axis, from -1 to 1."""
        return (number - middle) / half_width

    holds = {"above": (0, 1), "below": (-1, 0), "within": (place(-row.bound), place(row.bound))}
    left, right = holds[row.direction]
    colour = VERDICTS[row.verdict]
    ax.barh(y, right - left, 0.8, left, color="#EEEEEE", lw=0)
    ax.plot([0, 0], [y - 0.4, y + 0.4], color=INK, lw=1)
    ax.plot([place(row.low), place(row.high)], [y, y], color=colour, lw=5, solid_capstyle="butt")
    ax.plot(place(row.ours), y, "o", color=colour, mec=INK, ms=7)
    ax.plot(place(row.effect), y, "D", mfc="white", mec=INK, ms=7)


def _scale(row: NamedTuple) -> tuple[float, float]:
    """The number in the middle of a row's scale, and the distance from there to its ends, a tenth more than is needed.

    In the middle is the bound, or 0 where the claim is of no difference, within ± the bound. Example: "above 1", an
    interval from .8 to 1.4 and the paper's 1.5. The paper's is farthest from 1, so the scale is 1 ± .55.
    """
    middle = 0.0 if row.direction == "within" else row.bound
    shown = [row.low, row.high, row.effect, row.bound]
    farthest = max(abs(number - middle) for number in shown if np.isfinite(number))
    if farthest == 0:
        return middle, 1.0
    return middle, 1.1 * farthest


def _write(ax: Axes, y: int, row: NamedTuple) -> None:
    """A row's claim at the left, and its numbers at the right."""
    sentence = textwrap.fill(f"{row.where}: {row.says}", 72, max_lines=2, placeholder=" …")
    ax.text(-1.1, y, sentence, ha="right", color=INK, va="center", fontsize=10)
    numbers = _our_number(row) or row.verdict
    if np.isfinite(row.effect):
        numbers += f"   (paper {row.effect:.2f})"
    if getattr(row, "stale", ""):  # a table made by hand need not say so
        numbers += "   stale"
    ax.text(1.2, y, numbers, color=INK, va="center", fontsize=11)
    ax.plot(1.12, y, "s", color=VERDICTS[row.verdict], ms=9, clip_on=False)
