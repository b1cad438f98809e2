"""The papers' tables and figures redrawn: their printed points beside ours with intervals, on the papers' axes.

``paper_figure("dynatree", "Table 2")`` draws one, ``points`` returns its numbers as a table, and ``listing`` lists all.
The modules ``ptd``, ``traversal``, ``dynatree``, ``edd_pct`` and ``salf_talf`` have one function per table or figure.
``panels`` has the class ``Panel`` that these functions fill and the decorator ``figure`` that registers them;
``domains`` selects our prompts that stand for a paper's data set; ``draw`` draws.
"""

import pandas as pd
from matplotlib.figure import Figure

from study.experiments import Experiment
from study.figures import draw
from study.figures.panels import FIGURES, Panel, Redrawn, Runs, figure
from study.quantities import HEADS, Heads, complete

# Imported because each of these registers its functions in FIGURES, in the order of the papers.
from study.figures import ptd, traversal, dynatree, edd_pct, salf_talf  # noqa: F401  # isort: skip

__all__ = ["FIGURES", "Panel", "figure", "listing", "panels_of", "paper_figure", "points"]


def paper_figure(name: str, item: str) -> Figure:
    """Redraw one of a paper's tables or figures ("Table 2", "Figure 5").

    ◇ is a number that the paper prints, with the paper's error if it prints one. ● is ours with its 95 % interval.
    A panel's title says if ours is not recorded yet or comes from a stale recording. Raises ValueError on an item
    that is not redrawn.
    """
    return draw.drawn(panels_of(name, item))


def points(name: str, item: str) -> pd.DataFrame:
    """The numbers of a redrawn table or figure, one per row.

    Columns: panel (counted from 0), line, tick, x, whose ("paper" or "ours"), value, low, high.
    """
    tables = []
    for number, panel in enumerate(panels_of(name, item)):
        table = panel.table()
        table.insert(0, "panel", number)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def listing() -> pd.DataFrame:
    """What can be redrawn: paper, item, and the labels of the panels' y axes. Reads no recording."""
    rows = []
    for (name, item), redrawn in FIGURES.items():
        no_runs = [None] * len(redrawn.recordings)
        ylabels = [panel.ylabel for panel in redrawn.build(*no_runs)]
        different = dict.fromkeys(ylabels)  # without repetitions, in their order
        rows.append({"paper": name, "item": item, "axes": "; ".join(different)})
    return pd.DataFrame(rows)


def panels_of(name: str, item: str) -> list[Panel]:
    """The panels of a table or figure with all their points; each recording is read once."""
    redrawn = _redrawn(name, item)
    tables = [runs_of(recording) for recording in redrawn.recordings]
    return redrawn.build(*tables)


def _redrawn(name: str, item: str) -> Redrawn:
    """A registered item. Raises ValueError, with the paper's items or else all papers, on another."""
    if (name, item) in FIGURES:
        return FIGURES[name, item]
    known = [known_item for paper, known_item in FIGURES if paper == name]
    if not known:
        known = dict.fromkeys(paper for paper, _ in FIGURES)  # the papers
    raise ValueError(f"{name} has no {item!r} to redraw: there are {', '.join(known)}")


def runs_of(recording: Experiment | Heads) -> Runs:
    """A recording's quantities; attrs["stale"] says why they are stale. None until all of it is recorded."""
    runs = complete(recording)
    if runs is None or recording is not HEADS:
        return runs
    heads = list(HEADS.hashes)
    runs = runs[runs["method"].isin(heads)]
    runs.attrs["stale"] = HEADS.stale(heads)
    return runs
