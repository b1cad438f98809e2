"""A race on another machine, to drag: what a draft forward and a node more would have to cost for whom to win."""

from collections.abc import Mapping
from types import SimpleNamespace

import ipywidgets
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from specnb import cost_model, figures


def speed_ups(race: pd.DataFrame, draft: float, node: float) -> pd.Series:
    """Per method, the median predicted speed-up over "generate", best first, if a draft forward cost so much.

    draft: of a draft forward over any frontier, node: of each node more in a tree, both as shares of a target forward
    over one token. Counts (``cost_model.predicted``) are the race's; prefills are left out.
    """
    target = {1: 1.0, 101: 1.0 + 100 * node}
    heads = {cost_model.head_of(name) for name in race["method"].unique()} - {None}
    found = cost_model.predicted(race, target, {head: {1: draft, 2: draft} for head in heads}, prefill=False)
    return found.groupby("method", sort=False)["predicted"].median().sort_values(ascending=False)


def render(race: pd.DataFrame, labels: Mapping[str, str], draft: float, node: float) -> tuple[bytes, str]:
    """PNG (1200 × 520) of the ranked speed-ups, and the winner in words. labels: what methods are called, and which."""
    speeds = speed_ups(race[race["method"].isin(labels)], draft, node)
    table = pd.DataFrame({"method": [labels[name] for name in speeds.index], "predicted speed-up": speeds.to_numpy()})
    drafted = [cost_model.head_of(name) is not None for name in speeds.index]
    table["draft"] = ["a model drafts" if flag else "no draft model" for flag in drafted]
    with plt.rc_context(figures.STYLE):
        figure = Figure(figsize=(12, 5.2), dpi=100, layout="constrained")
        ax = figures.ranked(table, "predicted speed-up", "method", "draft", ax=figure.subplots())
        ax.axvline(1, color="0.4", lw=1, ls="--")
        first = table.iloc[0]
        words = (
            f"A draft forward at {draft:.2f} and a node at {node:.3f} of a target forward: "
            f"<b>{first['method']}</b> is first with {first['predicted speed-up']:.2f} times generate."
        )
        return figures.png(figure), words


def whatif_explorer(race: pd.DataFrame, labels: Mapping[str, str]) -> ipywidgets.VBox:
    """Who would win where drafting and verifying cost something else. controls: draft, node, image, readout."""
    slider = {"continuous_update": False, "style": {"description_width": "11em"}, "layout": {"width": "32em"}}
    draft = ipywidgets.FloatSlider(0.1, min=0, max=0.6, step=0.02, description="a draft forward costs", **slider)
    node = ipywidgets.FloatSlider(
        0.015, min=0, max=0.3, step=0.005, readout_format=".3f", description="a node more costs", **slider
    )
    image, readout = ipywidgets.Image(format="png"), ipywidgets.HTML()

    def redraw(change=None):
        image.value, readout.value = render(race, labels, draft.value, node.value)

    for control in (draft, node):
        control.observe(redraw, "value")
    redraw()
    box = ipywidgets.VBox([draft, node, readout, image])
    box.controls = SimpleNamespace(draft=draft, node=node, image=image, readout=readout)
    return box
