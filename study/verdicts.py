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
        asked = f" ({_asked(row)})" if np.isfinite(row.low) else ""
        lines += _wrapped(f"{row.verdict:13} {_found(row):22} {row.says}{asked}")
        for note in _notes(row):
            lines += _wrapped(f"{INDENT}· {note}")
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=INDENT, break_on_hyphens=False)


def _asked(row: NamedTuple) -> str:
    """What our number is and where it should lie, and the paper's."""
    effect = f"; the paper {row.effect:.2f}" if np.isfinite(row.effect) else ""
    return f"{row.statistic} of {row.value} {row.direction} {row.bound:g}{effect}"


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


def _found(row: NamedTuple) -> str:
    """Our number with its interval, or how many cases hold; nothing before there is any."""
    if np.isfinite(row.low):
        d = 2 if row.high - row.low > 0.05 else 3  # digits; z: no minus before a zero
        return f"{row.ours:z.{d}f} [{row.low:z.{d}f}, {row.high:z.{d}f}]"
    return f"{row.ours:.0f} of {row.prompts:.0f} hold" if np.isfinite(row.prompts) else ""


def picture(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """What was found, a row a claim: a line at the bound, the paper's effect, our 95 % interval.

    Every row has a scale of its own, so that its bound stands in the middle; numbers stand at the right. Shaded: where
    the claim holds. Exact claims say how many cases hold, claims from a stale recording that it is stale.
    """
    if ax is None:
        tall = 0.5 * len(table) + 0.8
        ax = plt.figure(figsize=(13, tall)).add_axes((0.5, 0.6 / tall, 0.24, 1 - 0.7 / tall))
    for y, row in enumerate(table.itertuples()):
        if np.isfinite(row.low):
            _draw_interval(ax, y, row)
        _write(ax, y, row)
    ax.set(xlim=(-1.04, 1.04), ylim=(len(table) - 0.4, -0.6), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    key = []
    for verdict, colour in VERDICTS.items():
        count = sum(table["verdict"] == verdict)
        if count:
            key.append(Line2D([], [], c=colour, lw=5, label=f"{verdict}: {count}"))
    for name, marker in MARKS.items():
        key.append(Line2D([], [], color=INK, marker=marker, mfc="white", ms=8, ls="", label=name))
    ax.figure.legend(handles=key, loc="lower center", ncols=len(key), fontsize=11)
    return ax


def _draw_interval(ax: Axes, y: int, row: NamedTuple) -> None:
    """A row's interval, our number and the paper's, on a scale with the bound, or no difference, in the middle."""
    within = row.direction == "within"
    middle = 0.0 if within else row.bound
    margin = row.bound if within else 0.0
    seen = [abs(x - middle) for x in (row.low, row.high, row.effect, middle + margin) if np.isfinite(x)]
    scale = 1.1 * max(seen) or 1.0
    low, ours, high, paper = ((x - middle) / scale for x in (row.low, row.ours, row.high, row.effect))
    sides = {"above": (0, 1), "below": (-1, 0), "within": (-margin / scale, margin / scale)}
    left, right = sides[row.direction]
    colour = VERDICTS[row.verdict]
    ax.barh(y, right - left, 0.8, left, color="#EEEEEE", lw=0)
    ax.plot([0, 0], [y - 0.4, y + 0.4], color=INK, lw=1)
    ax.plot([low, high], [y, y], color=colour, lw=5, solid_capstyle="butt")
    ax.plot(ours, y, "o", color=colour, mec=INK, ms=7)
    ax.plot(paper, y, "D", mfc="white", mec=INK, ms=7)


def _write(ax: Axes, y: int, row: NamedTuple) -> None:
    """A row's claim at the left, and its numbers at the right."""
    said = textwrap.fill(f"{row.where}: {row.says}", 72, max_lines=2, placeholder=" …")
    ax.text(-1.1, y, said, ha="right", color=INK, va="center", fontsize=10)
    words = _found(row) or row.verdict
    if np.isfinite(row.effect):
        words += f"   (paper {row.effect:.2f})"
    if getattr(row, "stale", ""):  # a table made by hand need not say so
        words += "   stale"
    ax.text(1.2, y, words, color=INK, va="center", fontsize=11)
    ax.plot(1.12, y, "s", color=VERDICTS[row.verdict], ms=9, clip_on=False)
