"""Widgets that recompute an exact law while you drag: plain ipywidgets over pure functions that return a PNG."""

from functools import lru_cache
from types import SimpleNamespace

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from specnb import exact, figures, growth
from specnb.broken import UNEVEN
from specnb.figures import COLOURS
from specnb.traversal import block, traversal
from specnb.tree import Drawn
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
        ax = figure.add_axes((0.07, 0.12, 0.36, 0.74))
        for shift, (name, weights) in zip((-0.2, 0.2), (("p", p), ("q", q)), strict=True):
            ax.bar(np.arange(len(weights)) + shift, np.array(weights) / sum(weights), 0.4, **figures.look(name))
        ax.set(xticks=range(len(p)), xticklabels=LETTERS[: len(p)], ylim=(0, 1.02), ylabel="probability")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2)
        side = figure.add_axes((0.66, 0.24, 0.3, 0.6))
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
    shape = ipywidgets.Dropdown(options=list(SHAPES), value="uneven: two, two below the first", description="tree")
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
