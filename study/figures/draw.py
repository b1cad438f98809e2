"""Draws panels: ◇ is the paper's, ● ours with its 95 % interval over prompts, one colour per line."""

import math
import textwrap
from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specnb.show.look import INK
from study.figures.panels import Panel

PAPERS = {"marker": "D", "mfc": "white", "alpha": 0.7, "lw": 1}
OURS = {"marker": "o"}
NOTE_LETTERS = 96  # letters that fit beside each other across a figure, shared by the notes of its panels
GROUP = 0.8  # width of all marks above one text tick; ticks are 1 apart
PAIR = 0.3  # distance from the paper's mark to ours, as a share of the distance to the next line's marks


def drawn(panels: Sequence[Panel]) -> Figure:
    """Draw all panels of a table or figure, in two rows if there are more than four, with one legend of the marks."""
    rows = 2 if len(panels) > 4 else 1
    columns = math.ceil(len(panels) / rows)
    same_y = len({panel.ylabel for panel in panels}) == 1
    figure, axes = plt.subplots(
        rows, columns, figsize=(13, 4.6 * rows), sharey=same_y, squeeze=False, layout="constrained"
    )
    for unused in axes.flat[len(panels) :]:  # an odd number of panels in two rows leaves one
        unused.remove()

    one_legend = _have_one_legend(panels)
    for panel, ax in zip(panels, figure.axes, strict=True):
        draw_panel(panel, ax, NOTE_LETTERS // columns)
        if len(panel.lines) > 1 and not one_legend:
            ax.legend()

    handles = _handles_of_marks(panels)
    if one_legend:
        lines, _ = figure.axes[0].get_legend_handles_labels()
        handles += lines
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _have_one_legend(panels: Sequence[Panel]) -> bool:
    """Whether one legend below explains the lines of all panels."""
    if any(panel.own_legend for panel in panels):
        return False
    return len({tuple(panel.lines) for panel in panels}) == 1


def _handles_of_marks(panels: Sequence[Panel]) -> list[Line2D]:
    """The legend's entries for marks: the paper's, if it prints any number, and ours."""
    ours = Line2D([], [], color=INK, marker="o", lw=2, label="ours, 95 % interval over prompts")
    whose = pd.concat([panel.table()["whose"] for panel in panels])
    if "paper" not in set(whose):
        return [ours]
    papers = Line2D([], [], color=INK, marker="D", mfc="white", ls="", label="the paper")
    return [papers, ours]


def draw_panel(panel: Panel, ax: Axes, letters: int) -> None:
    """Draw one panel. Above text ticks the lines' marks are side by side; at number ticks a line's marks are joined.

    letters: how many fit in a line of the note above the panel.
    """
    table = panel.table()
    beside = not panel.numeric and not panel.measured_x
    step = GROUP / len(panel.lines) if beside else 0  # from one line's marks to the next's
    middle = (len(panel.lines) - 1) / 2
    for number, (line, colour) in enumerate(zip(panel.lines, panel.colours, strict=True)):
        shift = step * (number - middle)
        apart = step * PAIR / 2
        marks = table[table["line"] == line]
        ours = marks[marks["whose"] == "ours"]
        papers = marks[marks["whose"] == "paper"]
        _draw_marks(ax, ours, shift + apart, colour, OURS, join=not beside)
        _draw_marks(ax, papers, shift - apart, colour, PAPERS, join=not beside)
        if len(panel.lines) > 1:
            ax.plot([], [], "s", color=f"C{colour}", label=line)

    if not panel.measured_x:
        _set_ticks(panel, ax)
    if panel.ylabel.startswith("speed-up"):
        ax.axhline(1, color=INK, lw=1, ls="--")
    note = textwrap.fill(panel.note, letters)
    title = f"{panel.title}\n{note}".strip()
    ax.set(xlabel=panel.xlabel, ylabel=panel.ylabel, title=title)


def _draw_marks(ax: Axes, marks: pd.DataFrame, shift: float, colour: int, look: dict, join: bool) -> None:
    """Draw the marks of one line, either the paper's or ours, with their intervals.

    shift: added to the x coordinates. look: of the marks. join: whether a line joins them, unless two have the same x.
    """
    if marks.empty:
        return
    below = marks["value"] - marks["low"]
    above = marks["high"] - marks["value"]
    joined = join and len(marks) > 1 and marks["x"].is_unique
    ax.errorbar(
        marks["x"] + shift,
        marks["value"],
        yerr=[below, above],
        color=f"C{colour}",
        ls="-" if joined else "",
        ms=6,
        elinewidth=2,
        **look,
    )


def _set_ticks(panel: Panel, ax: Axes) -> None:
    """Label the ticks. If they are floats, such as thresholds, they are close together: matplotlib chooses others."""
    if any(isinstance(tick, float) for tick in panel.ticks):
        return
    places = panel.ticks if panel.numeric else range(len(panel.ticks))
    names = [textwrap.fill(str(tick), 12) for tick in panel.ticks]
    crowded = len(panel.ticks) > 6 or len(ax.figure.axes) > 3
    ax.set_xticks(list(places), names, fontsize=9 if crowded else None)
