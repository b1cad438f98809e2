"""The verdicts on a paper's claims, as lines of text (``told``) and as one picture (``picture``).

Both take the table that ``study.claims.judged`` makes, or some of its rows. It has one row per claim; these columns are
used here:

    where      the place in the paper, such as "Table 1"
    says       what the paper claims, in our words
    verdict    one of VERDICTS
    statistic, value   what our number is: "ratio" of "speed"
    direction, bound   the number should be "above" or "below" the bound, or "within" ± the bound
    ours, low, high    our number and its 95 % interval; low and high are NaN for claims that are checked case by case
    prompts    how many prompts the number comes from; for claims checked case by case the number of cases
    effect     the paper's number, in the same unit; NaN if it prints none
    reason     how our setting differs from the paper's, how the claim was read, or why it was not attempted
    planned    whether the test was fixed before the data: "after the data" is noted
    stale      why the recording is stale; "" if it is not
"""

import textwrap
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from specnb.show.look import COLOURS, INK

VERDICTS = {  # verdict → its colour; the verdicts are found in ``claims.judging``
    "reproduced": COLOURS["accepted"],  # the interval lies where the paper says
    "same setting": COLOURS["recovered"],  # checked in the paper's own setting: all cases hold
    "undecided": "#CCBB44",  # the interval contains the bound
    "contradicted": COLOURS["rejected"],  # the interval lies on the other side, or a case does not hold
    "not attempted": "#BBBBBB",
    "not recorded": "#BBBBBB",  # the recording is not complete yet
}
MARKS = {"the paper": "D", "the bound": "|"}  # matplotlib's markers
WIDTH = 120  # characters of a line
INDENT = " " * 37  # 13 characters for the verdict, 22 for our number, and a space after each


def told(table: pd.DataFrame) -> str:
    """The claims with their verdicts, as lines of text. An example of a claim with one note:

        undecided     1.04 [0.98, 1.11]      DynaTree is faster than a chain. (ratio of speed above 1; the paper 1.18)
                                             · Our texts have 96 tokens.

    A line has the verdict; our number with its interval, or how many cases hold; and the claim in our words. In
    parentheses follow what our number is (a statistic of one of ``study.quantities``), where it should lie, and the
    paper's number if it prints one. Notes below the line say why the recording is stale, whether the test was chosen
    after the data, and how our setting differs or how the claim was read.
    """
    lines = []
    for row in table.itertuples():
        sentence = row.says
        if np.isfinite(row.low):
            sentence += f" ({_test(row)})"
        lines += _wrap(f"{row.verdict:13} {_our_number(row):22} {sentence}")
        for note in _notes(row):
            lines += _wrap(f"{INDENT}· {note}")
    return "\n".join(lines)


def _wrap(text: str) -> list[str]:
    """A text as lines of at most WIDTH characters, indented from the second one on."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=INDENT, break_on_hyphens=False)


def _test(row: NamedTuple) -> str:
    """What our number is, where it should lie, and the paper's: "ratio of speed above 1; the paper 1.40"."""
    test = f"{row.statistic} of {row.value} {row.direction} {row.bound:g}"
    if np.isfinite(row.effect):
        test += f"; the paper {row.effect:.2f}"
    return test


def _notes(row: NamedTuple) -> list[str]:
    """The notes below a claim."""
    notes = []
    if row.stale:
        notes.append(f"Stale: the recording was {row.stale}.")
    if row.planned == "after the data":
        notes.append("Its test was chosen after the data were there.")
    if row.reason:
        notes.append(row.reason)
    return notes


def _our_number(row: NamedTuple) -> str:
    """Our number with its interval, or how many cases hold; "" if there are no data.

    An interval wider than .05 is written with two decimals, as in "0.52 [0.31, 0.68]", a narrower one with three.
    """
    if np.isfinite(row.low):
        digits = 2 if row.high - row.low > 0.05 else 3
        number = f"z.{digits}f"  # with z a small negative number is written as 0.00, not -0.00
        return f"{row.ours:{number}} [{row.low:{number}}, {row.high:{number}}]"
    if np.isfinite(row.prompts):
        return f"{row.ours:.0f} of {row.prompts:.0f} hold"
    return ""


def picture(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw one row per claim: the claim's words, our number with its 95 % interval, the paper's number, the verdict.

    Every row has its own scale. The vertical line is the bound, in the middle; for a claim of no difference ("within")
    it is 0. The shaded part is where the claim holds. The text at the right has the numbers, for exact claims how many
    cases hold, and whether the recording is stale.

    table: see the module. ax: axes to draw on; a new figure if None. Returns the axes.
    """
    if ax is None:
        height = 0.5 * len(table) + 0.8  # inches
        figure = plt.figure(figsize=(13, height))
        ax = figure.add_axes((0.5, 0.6 / height, 0.24, 1 - 0.7 / height))  # leaves room for words at both sides
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
    """One entry for each verdict that occurs, with its count, and one for each of MARKS."""
    handles = []
    for verdict, colour in VERDICTS.items():
        count = sum(table["verdict"] == verdict)
        if count:
            handles.append(Line2D([], [], c=colour, lw=5, label=f"{verdict}: {count}"))
    for name, marker in MARKS.items():
        handles.append(Line2D([], [], color=INK, marker=marker, mfc="white", ms=8, ls="", label=name))
    return handles


def _draw_interval(ax: Axes, y: int, row: NamedTuple) -> None:
    """Draw a row's interval, our number, the paper's number and the shaded part, on the row's own scale."""
    middle, half_width = _scale(row)

    def place(number: float) -> float:
        """The x coordinate of a number, from -1 to 1."""
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
    """The number in the middle of a row's scale, and the distance from there to its ends.

    Example: "above 1", an interval from .8 to 1.4 and the paper's 1.5. The bound is in the middle, 1.5 is the number
    farthest from it, and the scale gets a tenth more room: it is 1 ± .55. For a claim of no difference, "within" ± the
    bound, 0 is in the middle.
    """
    middle = 0.0 if row.direction == "within" else row.bound
    shown = [row.low, row.high, row.effect, row.bound]
    farthest = max(abs(number - middle) for number in shown if np.isfinite(number))
    if farthest == 0:
        return middle, 1.0
    return middle, 1.1 * farthest


def _write(ax: Axes, y: int, row: NamedTuple) -> None:
    """Write a row's claim at the left, and its numbers at the right."""
    sentence = textwrap.fill(f"{row.where}: {row.says}", 72, max_lines=2, placeholder=" …")
    ax.text(-1.1, y, sentence, ha="right", color=INK, va="center", fontsize=10)
    numbers = _our_number(row) or row.verdict
    if np.isfinite(row.effect):
        numbers += f"   (paper {row.effect:.2f})"
    if getattr(row, "stale", ""):  # a table made by hand may lack this column
        numbers += "   stale"
    ax.text(1.2, y, numbers, color=INK, va="center", fontsize=11)
    ax.plot(1.12, y, "s", color=VERDICTS[row.verdict], ms=9, clip_on=False)
