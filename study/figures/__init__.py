"""The papers' tables and figures redrawn: their printed points beside ours with intervals, on the papers' axes.

``paper_figure("dynatree", "Table 2")`` draws one, ``points`` gives its numbers as a table, ``listing`` says which there
are. Each of the modules ``ptd``, ``traversal``, ``dynatree``, ``edd_pct`` and ``salf_talf`` has one function a table or
figure. ``panels`` has the ``Panel`` that they fill and the decorator ``figure`` that puts them on the list; ``domains``
says which of our prompts stand for a paper's; ``draw`` draws.
"""

import pandas as pd
from matplotlib.figure import Figure

from study.experiments import Experiment
from study.figures import draw
from study.figures.panels import FIGURES, Panel, Redrawn, Runs, figure
from study.quantities import HEADS, Heads, complete

# Each of these puts its functions on the list: in the papers' order.
from study.figures import ptd, traversal, dynatree, edd_pct, salf_talf  # noqa: F401  # isort: skip

__all__ = ["FIGURES", "Panel", "figure", "listing", "panels_of", "paper_figure", "points"]


def paper_figure(name: str, item: str) -> Figure:
    """One of a paper's tables or figures ("Table 2", "Figure 5"), redrawn: ◇ is the paper's, ● ours with 95 %.

    The paper has a ◇ for every setting it prints, with its own error where it prints one; what is only drawn in the
    paper has no ◇. A panel's title says what is not recorded yet, and what is drawn from a stale recording.
    ValueError if there is no such item to redraw.
    """
    return draw.drawn(panels_of(name, item))


def points(name: str, item: str) -> pd.DataFrame:
    """The numbers of a redrawn table or figure, one a row.

    Columns: panel (counted from 0), line, tick, x, whose ("paper" or "ours"), value, low, high.
    """
    tables = []
    for number, panel in enumerate(panels_of(name, item)):
        table = panel.table()
        table.insert(0, "panel", number)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def listing() -> pd.DataFrame:
    """What can be redrawn: paper, item, and what stands on the axes of its panels. Reads no recording."""
    rows = []
    for (name, item), redrawn in FIGURES.items():
        no_runs = [None] * len(redrawn.recordings)
        ylabels = [panel.ylabel for panel in redrawn.build(*no_runs)]
        different = dict.fromkeys(ylabels)  # a set in their order
        rows.append({"paper": name, "item": item, "axes": "; ".join(different)})
    return pd.DataFrame(rows)


def panels_of(name: str, item: str) -> list[Panel]:
    """The panels of a table or figure with all their points; each recording is read once."""
    redrawn = _redrawn(name, item)
    tables = [runs_of(recording) for recording in redrawn.recordings]
    return redrawn.build(*tables)


def _redrawn(name: str, item: str) -> Redrawn:
    """What is on the list; ValueError naming what there is."""
    if (name, item) in FIGURES:
        return FIGURES[name, item]
    there = [known for paper, known in FIGURES if paper == name]
    if not there:
        there = dict.fromkeys(paper for paper, _ in FIGURES)  # the papers
    raise ValueError(f"{name} has no {item!r} to redraw: there are {', '.join(there)}")


def runs_of(recording: Experiment | Heads) -> Runs:
    """A recording's quantities, with what is stale about them in its attrs; None until all of it is recorded."""
    runs = complete(recording)
    if runs is None or recording is not HEADS:
        return runs
    heads = list(HEADS.hashes)
    runs = runs[runs["method"].isin(heads)]
    runs.attrs["stale"] = HEADS.stale(heads)
    return runs
