"""The papers' tables and figures redrawn: their printed points beside ours with intervals, on the papers' axes.

data/figures.toml says panel by panel what stands on the axes, which printed numbers and which recordings of ours.
"""

import textwrap
import tomllib
from collections.abc import Callable, Mapping
from itertools import product
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from specnb.models import files
from specnb.show.look import INK
from study import claims, paper

FIGURES = tomllib.loads(files.in_checkout(files.DATA / "figures.toml").read_text("utf-8"))


def paper_figure(name: str, item: str) -> Figure:
    """One of a paper's tables or figures ("Table 2", "Figure 5"), redrawn: ◇ is the paper's, ● ours with 95 %.

    The paper has a ◇ for every setting it prints, with its own error where it prints one. ValueError if it has no
    numbers of this name; those that are only drawn in the paper have no ◇.
    """
    if item not in FIGURES.get(name, {}):
        raise ValueError(f"{name} has no {item!r} to redraw: there are {', '.join(FIGURES.get(name, FIGURES))}")
    drawn, compared = panels(name, item), claims.reading()
    same = {key: len({str(panel[key]) for panel in drawn}) == 1 for key in ("y", "lines")}
    rows = 2 if len(drawn) > 4 else 1
    shape = {"figsize": (13, 4.6 * rows), "sharey": same["y"], "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(rows, len(drawn) // rows, **shape)
    tables = [points(name, item, panel, compared) for panel in drawn]
    for table, panel, ax in zip(tables, drawn, axes.flat, strict=True):
        _draw(table, panel, ax)
        if (lines := ax.get_legend_handles_labels()[0]) and not same["lines"]:
            ax.legend()
    printed = "paper" in {*pd.concat(tables)["whose"]}
    marks = [Line2D([], [], color=INK, marker="D", mfc="white", ls="", label="the paper")] * printed
    marks += [Line2D([], [], color=INK, marker="o", lw=2, label="ours, 95 % interval over prompts")]
    figure.legend(handles=marks + lines * same["lines"], loc="outside lower center", ncols=4)
    return figure


def panels(name: str, item: str) -> list[Mapping]:
    """The panels of one item, each with the fields that they share; ticks may be named, a table beside them."""
    found = [FIGURES[name][item] | panel for panel in FIGURES[name][item].get("panels", [{}])]
    return [panel | {"ticks": panel[t] if isinstance(t := panel["ticks"], str) else t} for panel in found]


def points(name: str, item: str, panel: Mapping, compared: Callable) -> pd.DataFrame:
    """All points of a panel: line, tick, x, whose ("paper" or "ours"), value, low, high; rows of ours once recorded.

    compared: see ``claims.reading``.
    """
    rows, ticks = [], _names(panel["ticks"])
    for line, (place, tick) in product(_names(panel["lines"]), enumerate(ticks)):
        at = {"line": line, "tick": tick, "x": float(tick) if _numeric(ticks) else float(place)}
        if chosen := asked(panel, "printed", line, tick):
            found = paper.select(name, chosen.pop("item", item), **chosen).dropna(subset="value")
            for value, error in zip(found["value"], found["error"].fillna(0), strict=True):
                rows.append(at | {"whose": "paper", "value": value, "low": value - error, "high": value + error})
        chosen = {"statistic": "mean", "rows": "", "at": "", "claim": item} | asked(panel, "ours", line, tick)
        row = SimpleNamespace(**chosen)
        if "methods" in chosen and (table := compared(row)) is not None:
            found = claims.measured(row, table)
            if "across" in chosen:
                row.value, row.statistic = row.across, "mean"
                at["x"] = claims.measured(row, table)["ours"]
            rows.append(at | {"whose": "ours", "value": found["ours"], "low": found["low"], "high": found["high"]})
    return pd.DataFrame(rows, columns=["line", "tick", "x", "whose", "value", "low", "high"])


def asked(panel: Mapping, side: str, line: str, tick: str) -> dict[str, str]:
    """What a panel asks of one side, "printed" or "ours", at a line and tick; {} if there is nothing."""
    which = 0 if side == "printed" else -1
    names = {"line": _names(panel["lines"])[line][which], "x": _names(panel["ticks"])[tick][which]}
    return {key: text.format(**names) for key, text in panel.get(side, {}).items() if all(names.values())}


def _names(given) -> dict[str, list[str]]:
    """What is drawn: [the printed name, ours] by label; from a list, or a table of labels."""
    return {str(label): [str(label)] for label in given} if isinstance(given, list) else given


def _numeric(ticks: Mapping) -> bool:
    return all(tick.replace(".", "", 1).isdigit() for tick in ticks)


def _draw(table: pd.DataFrame, panel: Mapping, ax: Axes) -> None:
    ticks, lines = _names(panel["ticks"]), list(_names(panel["lines"]))
    numeric, across = _numeric(ticks), "across" in panel.get("ours", {})
    step = 0 if numeric or across else 0.8 / len(lines)
    for number, (line, place) in enumerate(zip(lines, panel.get("colours", range(len(lines))), strict=True)):
        for whose, part in table[table["line"] == line].groupby("whose"):
            shift = step * (number - (len(lines) - 1) / 2) + step * (0.15 if whose == "ours" else -0.15)
            x, spread = part["x"] + shift, [part["value"] - part["low"], part["high"] - part["value"]]
            look = {"marker": "o"} if whose == "ours" else {"marker": "D", "mfc": "white", "alpha": 0.7, "lw": 1}
            joined = "-" if (numeric or across) and part["x"].is_unique and len(part) > 1 else ""
            ax.errorbar(x, part["value"], spread, color=f"C{place}", ls=joined, ms=6, elinewidth=2, **look)
        ax.plot([], [], "s", color=f"C{place}", label=line if len(lines) > 1 else None)
    if not across and not any("." in tick for tick in ticks):  # shares and thresholds: matplotlib's own ticks
        at = map(float, ticks) if numeric else range(len(ticks))
        size = 9 if len(ticks) > 6 or len(ax.figure.axes) > 3 else None
        ax.set_xticks(list(at), [textwrap.fill(tick, 12) for tick in ticks], fontsize=size)
    if panel["y"].startswith("speed-up"):
        ax.axhline(1, color=INK, lw=1, ls="--")
    lacking = "ours" in panel and "ours" not in set(table["whose"])
    title = panel.get("title", "") + lacking * "\n(ours: not recorded yet)"
    ax.set(xlabel=panel.get("x", ""), ylabel=panel["y"], title=title.strip())
