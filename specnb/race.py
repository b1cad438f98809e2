"""When to stop drafting, to drag: growth rules racing forward by forward, and a threshold on its curve."""

import html
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import ipywidgets
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from specnb import figures, replay
from specnb.growth import Growth
from specnb.tree import Draft, TokenTree


def render_race(
    tree: TokenTree, scores: Tensor, labels: Sequence[str], rules: Mapping[str, Growth], forward: int
) -> tuple[bytes, str]:
    """PNG (1200 × 620) of growth rules side by side after so many draft forwards, and their queues in words.

    Ticked: in the tree if it ended here. Diamond: expanded by the next forward. Dashed: scored, but left out. Nodes
    whose path probability rounds to .00 are counted, not drawn.
    """
    lines = []
    with plt.rc_context(figures.STYLE):
        figure = Figure(figsize=(12, 6.2), dpi=100)
        for i, (name, rule) in enumerate(rules.items()):
            found = replay.stages(tree, scores, rule)
            stage = found[min(forward, len(found) - 1)]
            nodes = [node for node in stage.scored if scores[node] >= 0.005]
            texts, notes = [labels[node] for node in nodes], figures.score_notes(scores, nodes)
            drawn = figures.tree_table(Draft(tree.keep(nodes)), labels=texts)
            kept = ["accepted" if node in stage.kept else "unvisited" for node in nodes[1:]]
            states = ["root", *kept]
            for node in set(stage.next) & set(nodes[1:]):
                states[nodes.index(node)] = "recovered"
            ax = figure.add_axes((i / len(rules), 0, 1 / len(rules), 0.92))
            figures.draw_tree(drawn.assign(state=states), ax=ax, notes=notes)
            ended = " · ended" if forward >= len(found) - 1 else ""
            ax.set_title(f"{name}: {min(forward, len(found) - 1)} forwards{ended}")
            covers, mass = (float(scores[list(nodes)].sum()) for nodes in (stage.kept, stage.next))
            likely = [node for node in stage.next if node] or [0]
            following = ", ".join(f"{html.escape(labels[node])} {float(scores[node]):.2f}" for node in likely)
            then = f"next, S = {mass:.2f}: {following}" if stage.next else "nothing is expanded any more"
            more = len(stage.scored) - len(nodes)
            unseen = f"; {more} more {'node' if more == 1 else 'nodes'} below .005" if more else ""
            lines.append(f"<b>{name}</b> would cover {covers:.2f} tokens{unseen}; {then}")
        return figures.png(figure), "<br>".join(lines)


def race_explorer(
    tree: TokenTree, scores: Tensor, labels: Sequence[str], rules: Mapping[str, Growth]
) -> ipywidgets.VBox:
    """Growth rules racing on one recorded step, a draft forward at a time (SALF's figures 3 and 4).

    tree, scores: of ``replay.record`` with a larger tree; labels: one text per node. controls: forward, image,
    readout. Raises ValueError where the recording is too small for a rule.
    """
    most = max(len(replay.stages(tree, scores, rule)) for rule in rules.values()) - 1
    forward = ipywidgets.IntSlider(0, min=0, max=most, description="forward")
    image, readout = ipywidgets.Image(format="png"), ipywidgets.HTML()

    def redraw(change=None):
        image.value, readout.value = render_race(tree, scores, labels, rules, forward.value)

    forward.observe(redraw, "value")
    redraw()
    box = ipywidgets.VBox([forward, readout, image])
    box.controls = SimpleNamespace(forward=forward, image=image, readout=readout)
    return box


def render_threshold(table: pd.DataFrame, call: float, node: float, at: float) -> tuple[bytes, str]:
    """PNG (1000 × 420) of speed and τ over SALF's threshold at given prices, and the numbers at one of them.

    table: per threshold (index), a step's mean tokens ("τ"), draft "forwards" and "nodes" (root not counted).
    call, node: of a draft forward and of a verified node, as shares of a target call for one token.
    """
    speed = table["τ"] / (1 + call * table["forwards"] + node * table["nodes"])
    top = speed.idxmax()
    with plt.rc_context(figures.STYLE):
        figure = Figure(figsize=(10, 4.2), dpi=100)
        axes = figure.add_axes((0.08, 0.15, 0.4, 0.78)), figure.add_axes((0.58, 0.15, 0.4, 0.78))
        for ax, values, name in zip(axes, (speed, table["τ"]), ("tokens per target call's time", "τ"), strict=True):
            ax.plot(values.index, values, "o-")
            ax.plot(at, values[at], "o", ms=16, mfc="none", mec=figures.INK, mew=2)
            ax.set(xlabel="threshold", ylabel=name)
        axes[0].plot(top, speed[top], "*", ms=18, color=figures.COLOURS["bonus"])
        row = table.loc[at]
        return figures.png(figure), (
            f"threshold {at:.2f}: {row['forwards']:.2f} forwards, {row['nodes']:.1f} nodes, τ {row['τ']:.2f}, "
            f"speed {speed[at]:.2f}; best at {top:.2f}: {speed[top]:.2f}"
        )


def threshold_explorer(table: pd.DataFrame) -> ipywidgets.VBox:
    """SALF's threshold on a replayed curve, under any price of a draft forward and of a node.

    table: as in ``render_threshold``. controls: threshold, call, node, image, readout.
    """
    sliders = {
        "threshold": ipywidgets.SelectionSlider(options=list(table.index), description="threshold"),
        "call": ipywidgets.FloatSlider(0.1, min=0, max=0.5, step=0.01, description="a forward"),
        "node": ipywidgets.FloatSlider(0.0, min=0, max=0.05, step=0.002, readout_format=".3f", description="a node"),
    }
    image, readout = ipywidgets.Image(format="png"), ipywidgets.HTML()

    def redraw(change=None):
        prices = sliders["call"].value, sliders["node"].value
        image.value, readout.value = render_threshold(table, *prices, sliders["threshold"].value)

    for slider in sliders.values():
        slider.observe(redraw, "value")
    redraw()
    box = ipywidgets.VBox([ipywidgets.HBox(list(sliders.values())), readout, image])
    box.controls = SimpleNamespace(**sliders, image=image, readout=readout)
    return box
