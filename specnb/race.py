"""The drafting race: growth rules on one recorded step, side by side, a draft forward at a time."""

import html
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from specnb import figures, replay
from specnb.growth import Growth
from specnb.tree import Draft, TokenTree


def render_race(
    tree: TokenTree, scores: Tensor, labels: Sequence[str], rules: Mapping[str, Growth], forward: int
) -> tuple[bytes, str]:
    """PNG (1200 × 480) of growth rules side by side after so many draft forwards, and their queues in words.

    Ticked: in the tree if it ended here. Diamond: expanded by the next forward. Dashed: scored, but left out.
    """
    lines = []
    with plt.rc_context(figures.STYLE):
        figure = Figure(figsize=(12, 4.8), dpi=100)
        for i, (name, rule) in enumerate(rules.items()):
            found = replay.stages(tree, scores, rule)
            stage = found[min(forward, len(found) - 1)]
            texts = figures.scored_labels(labels, scores, stage.scored)
            drawn = figures.tree_table(Draft(tree.keep(stage.scored)), labels=texts)
            kept = ["accepted" if node in stage.kept else "unvisited" for node in stage.scored[1:]]
            states = ["root", *kept]
            for node in set(stage.next) - {0}:
                states[stage.scored.index(node)] = "recovered"
            ax = figure.add_axes((i / len(rules), 0, 1 / len(rules), 0.9))
            figures.draw_tree(drawn.assign(state=states), ax=ax)
            ended = " · ended" if forward >= len(found) - 1 else ""
            ax.set_title(f"{name}: {min(forward, len(found) - 1)} forwards{ended}")
            covers, mass = (float(scores[list(nodes)].sum()) for nodes in (stage.kept, stage.next))
            nodes = [node for node in stage.next if node] or [0]
            following = ", ".join(f"{html.escape(labels[node])} {float(scores[node]):.2f}" for node in nodes)
            then = f"next, S = {mass:.2f}: {following}" if stage.next else "nothing is expanded any more"
            lines.append(f"<b>{name}</b> would cover {covers:.2f} tokens; {then}")
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
