"""A paper's claims, as lines and as one picture: verdicts, our intervals, and the paper's effects beside them."""

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
    **dict.fromkeys(("not attempted", "not recorded"), "#BBBBBB"),
}
MARKS = {"the paper": "D", "the bound": "|"}


def told(table: pd.DataFrame) -> str:
    """What ``study.claims.judged`` found, claim by claim: verdict, our number or the cases that hold, and its words.

    Behind the words stands what our number is, a statistic of a value of ``study.values``, where it should lie, and the
    paper's effect, if it prints one; below them how our setting differs or how the claim was read.
    """
    lines, style = [], {"width": 120, "subsequent_indent": " " * 37, "break_on_hyphens": False}
    for row in table.itertuples():
        effect = f"; the paper {float(row.effect):.2f}" if row.effect else ""
        asked = f" ({row.statistic} of {row.value} {row.direction} {row.bound}{effect})" if np.isfinite(row.low) else ""
        lines += textwrap.wrap(f"{row.verdict:13} {_found(row):22} {row.says}{asked}", **style)
        lines += textwrap.wrap(row.reason and f"· {row.reason}", initial_indent=style["subsequent_indent"], **style)
    return "\n".join(lines)


def _found(row: NamedTuple) -> str:
    """Our number with its interval, or how many cases hold; nothing before there is any."""
    if np.isfinite(row.low):
        d = 2 if row.high - row.low > 0.05 else 3  # digits; z: no minus before a zero
        return f"{row.ours:z.{d}f} [{row.low:z.{d}f}, {row.high:z.{d}f}]"
    return f"{row.ours:.0f} of {row.prompts:.0f} hold" if np.isfinite(row.prompts) else ""


def claims(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """What ``study.claims.judged`` found, a row a claim: a line at the bound, the paper's effect, our 95 % interval.

    Every row has a scale of its own, so that its bound stands in the middle; numbers stand at the right. Shaded: where
    the claim holds. Exact claims say how many cases hold.
    """
    if ax is None:
        tall = 0.5 * len(table) + 0.8
        ax = plt.figure(figsize=(13, tall)).add_axes((0.5, 0.6 / tall, 0.24, 1 - 0.7 / tall))
    for y, row in enumerate(table.itertuples()):
        colour, effect = VERDICTS[row.verdict], float(row.effect or "nan")
        words, bold = _found(row) or row.verdict, {"color": INK, "va": "center", "fontsize": 11}
        if np.isfinite(row.low):
            bound, within = float(row.bound), row.direction == "within"
            middle = 0.0 if within else bound
            seen = [x - middle for x in (row.low, row.high, effect, middle + bound * within) if np.isfinite(x)]
            scale = 1.1 * max(map(abs, seen)) or 1.0
            low, ours, high, paper = ((x - middle) / scale for x in (row.low, row.ours, row.high, effect))
            sides = {"above": (0, 1), "below": (-1, 0), "within": (-bound / scale, bound / scale)}
            left, right = sides[row.direction]
            ax.barh(y, right - left, 0.8, left, color="#EEEEEE", lw=0)
            ax.plot([0, 0], [y - 0.4, y + 0.4], color=INK, lw=1)
            ax.plot([low, high], [y, y], color=colour, lw=5, solid_capstyle="butt")
            ax.plot(ours, y, "o", color=colour, mec=INK, ms=7)
            ax.plot(paper, y, "D", mfc="white", mec=INK, ms=7)
        said = textwrap.fill(f"{row.where}: {row.says}", 72, max_lines=2, placeholder=" …")
        ax.text(-1.1, y, said, ha="right", **bold | {"fontsize": 10})
        ax.text(1.2, y, words + (f"   (paper {effect:.2f})" if np.isfinite(effect) else ""), **bold)
        ax.plot(1.12, y, "s", color=colour, ms=9, clip_on=False)
    ax.set(xlim=(-1.04, 1.04), ylim=(len(table) - 0.4, -0.6), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    key = [Line2D([], [], c=c, lw=5, label=f"{v}: {n}") for v, c in VERDICTS.items() if (n := sum(table.verdict == v))]
    key += [Line2D([], [], color=INK, marker=m, mfc="white", ms=8, ls="", label=n) for n, m in MARKS.items()]
    ax.figure.legend(handles=key, loc="lower center", ncols=len(key), fontsize=11)
    return ax
