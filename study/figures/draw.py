"""Panels drawn: ◇ is the paper's, ● ours with 95 % over prompts, one colour a line."""

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
NOTE_LETTERS = 96  # of the panels' notes side by side


def drawn(panels: Sequence[Panel]) -> Figure:
    """All panels of a table or figure, in two rows if there are more than four, with what the marks mean below."""
    rows = 2 if len(panels) > 4 else 1
    columns = len(panels) // rows
    same_y = len({panel.ylabel for panel in panels}) == 1
    figure, axes = plt.subplots(
        rows, columns, figsize=(13, 4.6 * rows), sharey=same_y, squeeze=False, layout="constrained"
    )
    same_lines = _have_one_legend(panels)
    for panel, ax in zip(panels, axes.flat, strict=True):
        draw_panel(panel, ax, NOTE_LETTERS // columns)
        lines, _ = ax.get_legend_handles_labels()
        if lines and not same_lines:
            ax.legend()

    handles = []
    if any(point.whose == "paper" for panel in panels for point in panel.points):
        handles.append(Line2D([], [], color=INK, marker="D", mfc="white", ls="", label="the paper"))
    handles.append(Line2D([], [], color=INK, marker="o", lw=2, label="ours, 95 % interval over prompts"))
    if same_lines:
        handles += lines
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _have_one_legend(panels: Sequence[Panel]) -> bool:
    """Whether one legend below explains the lines of all panels."""
    if any(panel.own_legend for panel in panels):
        return False
    return len({tuple(panel.lines) for panel in panels}) == 1


def draw_panel(panel: Panel, ax: Axes, letters: int) -> None:
    """One panel: lines beside each other where ticks are texts, joined where they are numbers.

    letters: how many fit in a line of the note above it.
    """
    table = panel.table()
    beside = not panel.numeric and not panel.measured_x
    step = 0.8 / len(panel.lines) if beside else 0
    for number, (line, colour) in enumerate(zip(panel.lines, panel.colours, strict=True)):
        shift = step * (number - (len(panel.lines) - 1) / 2)
        marks = table[table["line"] == line]
        _draw_marks(ax, marks[marks["whose"] == "ours"], shift + step * 0.15, colour, OURS, join=not beside)
        _draw_marks(ax, marks[marks["whose"] == "paper"], shift - step * 0.15, colour, PAPERS, join=not beside)
        ax.plot([], [], "s", color=f"C{colour}", label=line if len(panel.lines) > 1 else None)

    if not panel.measured_x:
        _set_ticks(panel, ax)
    if panel.ylabel.startswith("speed-up"):
        ax.axhline(1, color=INK, lw=1, ls="--")
    title = f"{panel.title}\n{textwrap.fill(panel.note, letters)}"
    ax.set(xlabel=panel.xlabel, ylabel=panel.ylabel, title=title.strip())


def _draw_marks(ax: Axes, marks: pd.DataFrame, shift: float, colour: int, look: dict, join: bool) -> None:
    """One line's marks of one side, with their intervals. join: whether a line joins them, if no two share a place."""
    if marks.empty:
        return
    intervals = [marks["value"] - marks["low"], marks["high"] - marks["value"]]
    joined = join and marks["x"].is_unique and len(marks) > 1
    style = "-" if joined else ""
    ax.errorbar(marks["x"] + shift, marks["value"], intervals, color=f"C{colour}", ls=style, ms=6, elinewidth=2, **look)


def _set_ticks(panel: Panel, ax: Axes) -> None:
    """Name the ticks; shares and thresholds, which lie close together, keep matplotlib's own."""
    if any(isinstance(tick, float) for tick in panel.ticks):
        return
    places = panel.ticks if panel.numeric else range(len(panel.ticks))
    names = [textwrap.fill(str(tick), 12) for tick in panel.ticks]
    crowded = len(panel.ticks) > 6 or len(ax.figure.axes) > 3
    ax.set_xticks(list(places), names, fontsize=9 if crowded else None)
