"""Widgets that recompute an exact law while you drag: plain ipywidgets over pure functions that return a PNG."""

from collections.abc import Sequence
from functools import lru_cache
from types import SimpleNamespace

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from specnb import exact, figures, growth, metrics, replay
from specnb.broken import UNEVEN
from specnb.figures import COLOURS
from specnb.growth import Growth
from specnb.traversal import block, traversal
from specnb.tree import Draft, Drawn, TokenTree
from specnb.verifiers import Verifier, rrsw

SHAPES = {
    "chain of 2": growth.chain(2),
    "chain of 3": growth.chain(3),
    "two children each, one level": growth.kary(2, 1),
    "uneven: two, two below the first": UNEVEN,
    "two children each, two levels": growth.kary(2, 2),
}
RULES: dict[str, Verifier] = {"token-level (RRSw)": rrsw, "traversal": traversal}
LETTERS = ("a", "b", "c")


@lru_cache(maxsize=128)
def numbers(p: tuple[float, ...], q: tuple[float, ...], shape: str) -> dict[str, dict[str, float]]:
    """Exact expected accepted tokens and total variation of the decoded text, by rule, every coin enumerated.

    p, q: the same law after every prefix, here as weights, normalised; trees are drawn SWOR. Raises ValueError on
    weights without mass and KeyError on an unknown shape.
    """
    laws = []
    for weights in (p, q):
        if sum(weights) <= 0:
            raise ValueError(f"a law needs some mass, got weights {weights}")
        laws.append(torch.tensor(weights, dtype=torch.float64) / sum(weights))
    depth = max(len(path) for path in SHAPES[shape].paths)
    drafter = exact.toy_drafter(lambda prefix: laws[1], SHAPES[shape], Drawn.SWOR)
    rules = {**RULES, **({"block": block} if shape.startswith("chain") else {})}
    found = {}
    for name, rule in rules.items():
        text = exact.output_law(drafter, rule, lambda prefix: laws[0], depth=depth)
        accepted = exact.accepted_law(drafter, rule, lambda prefix: laws[0], depth=depth)
        error = exact.total_variation(text, exact.joint(lambda prefix: laws[0], depth + 1))
        found[name] = {"accepted": exact.expectation(accepted, float), "error": error}
    return found


def render_law(p: tuple[float, ...], q: tuple[float, ...], shape: str) -> bytes:
    """PNG (1000 × 420): the two laws at left; at right what each verifier accepts, and how far its text is off."""
    found = numbers(p, q, shape)
    with plt.rc_context(figures.STYLE):
        figure = Figure(figsize=(10, 4.2), dpi=100)
        ax = figure.add_axes((0.07, 0.18, 0.36, 0.68))
        for shift, (name, weights) in zip((-0.2, 0.2), (("p", p), ("q", q)), strict=True):
            ax.bar(np.arange(len(weights)) + shift, np.array(weights) / sum(weights), 0.4, **figures.look(name))
        ax.set(xticks=range(len(p)), xticklabels=LETTERS[: len(p)], ylim=(0, 1.02), ylabel="probability")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2)
        side = figure.add_axes((0.66, 0.28, 0.3, 0.56))
        names, depth = list(found), max(len(path) for path in SHAPES[shape].paths)
        lengths = [found[name]["accepted"] for name in names]
        side.barh(names, lengths, color=[COLOURS["accepted"], COLOURS["bonus"], COLOURS["recovered"]][: len(names)])
        for i, value in enumerate(lengths):
            side.text(value + 0.02 * depth, i, f"{value:.4f}", va="center", fontsize=13)
        side.set(xlim=(0, depth * 1.25), xlabel=f"expected accepted tokens, depth {depth}")
        side.invert_yaxis()
        worst = max(row["error"] for row in found.values())
        said = "0 (below 1e-12)" if worst < 1e-12 else f"{worst:.1e}"
        figure.text(0.98, 0.02, f"total variation of the decoded text from the target: {said}", fontsize=13, ha="right")
        return figures.png(figure)


def law_explorer() -> ipywidgets.VBox:
    """Edit p, q and the shape of the tree; exact expected lengths and the exactness of the output follow.

    controls: p and q (three sliders each), shape, image, readout (says what is wrong with impossible weights).
    """
    start = {"p": (0.3, 0.4, 0.3), "q": (0.6, 0.3, 0.1)}
    sliders = {
        name: [
            ipywidgets.FloatSlider(
                value, min=0, max=1, step=0.05, description=f"{name}({letter})", continuous_update=False
            )
            for letter, value in zip(LETTERS, values, strict=True)
        ]
        for name, values in start.items()
    }
    shape = ipywidgets.Dropdown(
        options=list(SHAPES), value="uneven: two, two below the first", description="tree", layout={"width": "26em"}
    )
    image, readout = ipywidgets.Image(format="png"), ipywidgets.HTML()

    def redraw(change=None):
        p, q = (tuple(round(slider.value, 6) for slider in sliders[name]) for name in ("p", "q"))
        try:
            image.value, readout.value = render_law(p, q, shape.value), ""
        except ValueError as error:
            readout.value = str(error)

    for control in (*sliders["p"], *sliders["q"], shape):
        control.observe(redraw, "value")
    redraw()
    rows = [ipywidgets.HBox(sliders[name]) for name in ("p", "q")]
    box = ipywidgets.VBox([shape, *rows, readout, image])
    box.controls = SimpleNamespace(p=sliders["p"], q=sliders["q"], shape=shape, image=image, readout=readout)
    return box


def render_growth(tree: TokenTree, scores: Tensor, labels: Sequence[str], rule: Growth) -> tuple[bytes, str]:
    """PNG of what a growth rule makes of a recorded tree, and its size in words. labels: one text per node."""
    nodes, frontiers = replay.regrow(tree, scores, rule, max_depth=len(tree))
    texts, notes = [labels[node] for node in nodes], figures.score_notes(scores, nodes)
    with plt.rc_context(figures.STYLE):
        figure = Figure(figsize=(11, 5.4), dpi=100)
        ax = figure.add_axes((0, 0, 1, 1))
        figures.draw_tree(figures.tree_table(Draft(tree.keep(nodes)), labels=texts), ax=ax, notes=notes)
        picture = figures.png(figure)
    covers = float(scores[nodes][1:].sum())
    gain = (
        f" · gains {covers - rule.cost * len(frontiers):.2f} target calls before verification"
        if isinstance(rule, growth.Pct)
        else ""
    )
    return picture, (
        f"{len(nodes) - 1} draft tokens · {len(frontiers)} draft forwards, a level at a time "
        f"({sum(map(len, frontiers))} if fed node by node) · covers {covers:.2f} expected tokens{gain}"
    )


def growth_explorer(
    tree: TokenTree, scores: Tensor, labels: Sequence[str], kind: type[Growth] = growth.DynaTree
) -> ipywidgets.VBox:
    """A growth rule's settings as sliders on a recorded step; the tree and its cost follow.

    tree, scores: of ``replay.record`` with a larger tree; labels: one text per node. kind: DynaTree (depth, branch,
    threshold, budget) or Pct (cost, leaf, k, depth). controls: the settings by name (thresholds are powers of ten),
    image, readout (says what is wrong with the settings, or where the recording is too small).
    """
    power = {"step": 0.1, "readout_format": ".3f"}
    sliders = {
        growth.DynaTree: {
            "depth": ipywidgets.IntSlider(8, min=1, max=8),
            "branch": ipywidgets.IntSlider(3, min=1, max=4),
            "threshold": ipywidgets.FloatLogSlider(0.03, min=-2, max=-0.3, **power),
            "budget": ipywidgets.IntSlider(40, min=1, max=128),
        },
        growth.Pct: {
            "cost": ipywidgets.FloatLogSlider(0.1, min=-2, max=0, **power),
            "leaf": ipywidgets.FloatLogSlider(0.01, min=-3, max=-0.5, **power),
            "k": ipywidgets.IntSlider(3, min=1, max=5),
            "depth": ipywidgets.IntSlider(10, min=1, max=10),
        },
    }[kind]
    image, readout = ipywidgets.Image(format="png"), ipywidgets.HTML()

    def redraw(change=None):
        try:
            rule = kind(**{name: slider.value for name, slider in sliders.items()})
            image.value, readout.value = render_growth(tree, scores, labels, rule)
        except ValueError as error:
            readout.value = str(error)

    for name, slider in sliders.items():
        slider.description, slider.continuous_update = name, False
        slider.observe(redraw, "value")
    redraw()
    box = ipywidgets.VBox([ipywidgets.HBox(list(sliders.values())[i : i + 2]) for i in (0, 2)] + [readout, image])
    box.controls = SimpleNamespace(**sliders, image=image, readout=readout)
    return box


def render_reliability(confidence: np.ndarray, hit: np.ndarray, bins: int, equal: str) -> tuple[bytes, str]:
    """PNG (900 × 420) of a reliability diagram with the number of tokens per bin, and its ECE and Brier score."""
    table = metrics.reliability(confidence, hit, bins=bins, equal=equal)
    with plt.rc_context(figures.STYLE):
        figure = Figure(figsize=(9, 4.2), dpi=100)
        ax, side = figure.add_axes((0.09, 0.15, 0.42, 0.78)), figure.add_axes((0.62, 0.15, 0.36, 0.78))
        figures.draw_reliability(table, ax=ax)
        side.bar(table["bin"], table["count"], color=COLOURS["recovered"])
        side.set(xlabel="bin", ylabel="tokens")
        picture = figures.png(figure)
    error = metrics.ece(confidence, hit, bins=bins, equal=equal)
    return picture, f"{len(hit)} tokens · ECE {error:.4f} · Brier {metrics.brier(confidence, hit):.4f}"


def reliability_explorer(chains: pd.DataFrame) -> ipywidgets.VBox:
    """Reliability diagrams of ``replay.outcomes``: of tokens or of whole paths, by number and kind of bins, by depth.

    chains: the columns confidence, path, alive, hit and depth. controls: of ("token": where everything before was
    accepted; "path": everywhere), bins, equal, depth (the deepest shown), image, readout.
    """
    controls = {
        "of": ipywidgets.Dropdown(options=["token", "path"], description="of a"),
        "bins": ipywidgets.IntSlider(10, min=2, max=30, description="bins"),
        "equal": ipywidgets.Dropdown(options=["width", "count"], description="equal"),
        "depth": ipywidgets.IntSlider(int(chains["depth"].max()), min=1, max=int(chains["depth"].max())),
    }
    controls["depth"].description = "up to depth"
    image, readout = ipywidgets.Image(format="png"), ipywidgets.HTML()

    def redraw(change=None):
        rows = chains[chains["depth"] <= controls["depth"].value]
        rows = rows[rows["alive"]] if controls["of"].value == "token" else rows
        values = rows["confidence" if controls["of"].value == "token" else "path"]
        settings = controls["bins"].value, controls["equal"].value
        image.value, readout.value = render_reliability(values.to_numpy(), rows["hit"].to_numpy(), *settings)

    for control in controls.values():
        control.observe(redraw, "value")
    redraw()
    places = list(controls.values())
    box = ipywidgets.VBox([ipywidgets.HBox(places[:2]), ipywidgets.HBox(places[2:]), readout, image])
    box.controls = SimpleNamespace(**controls, image=image, readout=readout)
    return box


def render_sweep(table: pd.DataFrame, axes: Sequence[str], value: str, at: Sequence[float]) -> bytes:
    """PNG (1000 × 420) of a sweep around a setting: value over the first two axes at the third's, and along the third.

    axes: three columns; at: a value of each. A ring marks the setting, a star the best cell of each picture.
    """
    first, second, third = axes
    slab = table[table[third] == at[2]].pivot_table(index=second, columns=first, values=value)
    line = table[(table[first] == at[0]) & (table[second] == at[1])].groupby(third)[value].mean()
    with plt.rc_context(figures.STYLE):
        figure = Figure(figsize=(10, 4.2), dpi=100)
        ax, side = figure.add_axes((0.08, 0.15, 0.45, 0.72)), figure.add_axes((0.66, 0.15, 0.32, 0.72))
        shade = ax.imshow(slab, cmap="viridis", aspect="auto", vmin=table[value].min(), vmax=table[value].max())
        place = list(slab.columns).index(at[0]), list(slab.index).index(at[1])
        for (row, column), number in np.ndenumerate(slab.to_numpy()):
            best = "★ " if number == np.nanmax(slab.to_numpy()) else ""
            ink = figures.INK if shade.norm(number) > 0.6 else "white"  # on bright cells and on dark ones
            ax.text(column, row, f"{best}{number:.2f}", ha="center", va="center", color=ink, fontsize=12)
            if (column, row) == place:
                ax.plot(*place, "o", ms=44, mfc="none", mec=ink, mew=2)
        ax.set(xticks=range(slab.shape[1]), xticklabels=slab.columns, xlabel=first)
        ax.set(
            yticks=range(slab.shape[0]), yticklabels=slab.index, ylabel=second, title=f"{value} at {third} {at[2]:g}"
        )
        side.plot(range(len(line)), line, "o-", color=COLOURS["recovered"])
        side.plot(list(line.index).index(at[2]), line[at[2]], "o", ms=16, mfc="none", mec=figures.INK, mew=2)
        side.plot(int(np.nanargmax(line)), line.max(), "*", ms=16, color=COLOURS["bonus"])
        side.set(xticks=range(len(line)), xticklabels=[f"{x:g}" for x in line.index], xlabel=third, ylabel=value)
        return figures.png(figure)


def sweep_explorer(table: pd.DataFrame, axes: Sequence[str], value: str) -> ipywidgets.VBox:
    """Walk through a recorded sweep: one slider for each of three axes, the value around the setting.

    table: one or more rows per setting, averaged. Raises ValueError unless axes are three columns of the table.
    controls: sliders by column name, image.
    """
    if len(axes) != 3 or any(name not in table for name in (*axes, value)):
        raise ValueError(f"axes must be three columns of {list(table)}, beside the value: got {axes} and {value!r}")
    sliders = {
        name: ipywidgets.SelectionSlider(options=sorted(table[name].unique()), description=name) for name in axes
    }
    image = ipywidgets.Image(format="png")

    def redraw(change=None):
        image.value = render_sweep(table, axes, value, [slider.value for slider in sliders.values()])

    for slider in sliders.values():
        slider.observe(redraw, "value")
    redraw()
    box = ipywidgets.VBox([ipywidgets.HBox(list(sliders.values())), image])
    box.controls = SimpleNamespace(sliders=sliders, image=image)
    return box
