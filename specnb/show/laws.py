"""Explorers of exact laws: move p, q and the shape of the tree; every coin is enumerated, nothing is sampled."""

from functools import lru_cache

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from specnb import exact, growth, verifiers
from specnb.decode import Verifier
from specnb.show.explorers import Explorer, Picture, explorer
from specnb.show.look import COLOURS, INK, STYLE, bars, png
from specnb.tree import Drawn

SHAPES = {
    "chain of 2": growth.chain(2),
    "chain of 3": growth.chain(3),
    "two children each, one level": growth.kary(2, 1),
    "uneven: two, two below the first": exact.gallery.UNEVEN,
    "two children each, two levels": growth.kary(2, 2),
}
RULES: dict[str, Verifier] = {"token-level (RRSw)": verifiers.rrsw, "traversal": verifiers.traversal}
TARGET = (0.3, 0.4, 0.3)
DRAFTS = (TARGET, (0.6, 0.3, 0.1), (1.0, 0.0, 0.0))  # at mix 0, ½ and 1


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
    rules = {**RULES, **({"block": verifiers.block} if shape.startswith("chain") else {})}
    found = {}
    for name, rule in rules.items():
        text = exact.output_law(drafter, rule, lambda prefix: laws[0], depth=depth)
        accepted = exact.accepted_law(drafter, rule, lambda prefix: laws[0], depth=depth)
        error = exact.total_variation(text, exact.joint(lambda prefix: laws[0], depth + 1))
        found[name] = {"accepted": exact.expectation(accepted, float), "error": error}
    return found


def render_law(p: tuple[float, ...], q: tuple[float, ...], shape: str) -> Picture:
    """PNG (1000 × 420): the two laws at left; at right what each verifier accepts, and how far its text is off."""
    found = numbers(p, q, shape)
    with plt.rc_context(STYLE):
        figure = Figure(figsize=(10, 4.2), dpi=100)
        ax = figure.add_axes((0.07, 0.18, 0.36, 0.68))
        for shift, (name, weights) in zip((-0.2, 0.2), (("p", p), ("q", q)), strict=True):
            ax.bar(np.arange(len(weights)) + shift, np.array(weights) / sum(weights), 0.4, **bars(name))
        ax.set(xticks=range(len(p)), xticklabels="abc"[: len(p)], ylim=(0, 1.02), ylabel="probability")
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
        return png(figure)


def law_explorer() -> Explorer:
    """Edit p, q and the shape of the tree; exact expected lengths and the exactness of the output follow.

    controls: p_a, p_b, p_c, q_a, q_b, q_c and shape.
    """
    start = {"p": TARGET, "q": DRAFTS[1]}
    sliders = {
        f"{name}_{letter}": ipywidgets.FloatSlider(value, min=0, max=1, step=0.05, description=f"{name}({letter})")
        for name, values in start.items()
        for letter, value in zip("abc", values, strict=True)
    }

    def render(shape: str, **weights: float) -> Picture:
        p, q = (tuple(round(weights[f"{name}_{letter}"], 6) for letter in "abc") for name in "pq")
        return render_law(p, q, shape)

    tree = ipywidgets.Dropdown(options=list(SHAPES), value="uneven: two, two below the first", description="tree")
    return explorer({**sliders, "shape": tree}, render, row=3)


def draft_law(mix: float) -> np.ndarray:
    """(3,) the draft law at mix 0 (the target's), ½ (.6, .3, .1), 1 (one-hot), straight lines between."""
    if not 0 <= mix <= 1:
        raise ValueError(f"mix must be in 0..1, got {mix}")
    return np.array([np.interp(mix, (0, 0.5, 1), values) for values in zip(*DRAFTS, strict=True)])


@lru_cache(maxsize=256)
def acceptance(mix: float, gamma: int) -> dict[str, float]:
    """Exact numbers of a chain of gamma tokens under token-level verification, by enumeration of all coins.

    overlap Σ min(p, q); accepted, the expected number of accepted tokens; distance, the total variation
    between q and p; error, that between the law of the decoded text (gamma + 1 tokens) and the target's own.
    """
    p, q = torch.tensor(TARGET, dtype=torch.float64), torch.tensor(draft_law(mix))
    setting = exact.toy_drafter(lambda prefix: q, growth.chain(gamma), Drawn.IID), verifiers.token_level, lambda _: p
    text = exact.output_law(*setting, depth=gamma)
    return {
        "overlap": float(torch.minimum(p, q).sum()),
        "accepted": exact.expectation(exact.accepted_law(*setting, depth=gamma), float),
        "distance": float((p - q).abs().sum() / 2),
        "error": exact.total_variation(text, exact.joint(lambda _: p, gamma + 1)),
    }


def render_acceptance(mix: float, gamma: int) -> Picture:
    """PNG (1000 × 420): p, q and their overlap at left, the exact numbers of ``acceptance`` at right."""
    mix = round(mix, 6)
    q, numbers = draft_law(mix), acceptance(mix, gamma)
    with plt.rc_context(STYLE):
        figure = Figure(figsize=(10, 4.2), dpi=100)
        ax = figure.add_axes((0.07, 0.12, 0.45, 0.74))
        at, low = np.arange(3), np.minimum(TARGET, q)
        ax.bar(at - 0.2, TARGET, 0.4, **bars("p"))
        ax.bar(at + 0.2, q, 0.4, **bars("q"))
        ax.bar(at, low, 0.86, color=COLOURS["accepted"], alpha=0.3, label="overlap min(p, q)")
        ax.hlines(low, at - 0.43, at + 0.43, color=COLOURS["accepted"], lw=3)
        ax.set(xticks=at, xticklabels=["A", "B", "C"], ylim=(0, 1.02), ylabel="probability")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=3)
        side = figure.add_axes((0.58, 0.2, 0.4, 0.1))
        side.barh(0, gamma, 1, color="white", edgecolor=INK)
        side.barh(0, numbers["accepted"], 1, color=COLOURS["accepted"], alpha=0.6, hatch="//")
        side.set(xlim=(-0.02, 3.02), xticks=range(gamma + 1), yticks=[])
        side.set_xlabel(f"expected accepted, of γ = {gamma}", loc="left")
        side.spines[:].set_visible(False)
        error = "0" if numbers["error"] < 1e-12 else f"{numbers['error']:.0e}"
        lines = (
            f"overlap α = Σ min(p, q) = {numbers['overlap']:.2f}",
            f"total variation of q from p = 1 − α = {numbers['distance']:.2f}",
            f"expected accepted = {' + '.join(('α', 'α²', 'α³')[:gamma])} = {numbers['accepted']:.2f}",
            f"total variation, decoded text from target: {error}",
        )
        for i, line in enumerate(lines):
            figure.text(0.58, 0.82 - 0.12 * i, line, fontsize=13)
        return png(figure)


def acceptance_explorer() -> Explorer:
    """Move the draft law away from the target's and see what is accepted: exact, no sampling.

    mix 0: q = p, ½: (.6, .3, .1), 1: one-hot; gamma: length of the chain.
    """
    mix = ipywidgets.FloatSlider(0.5, min=0, max=1, step=0.05, description="q far from p")
    return explorer({"mix": mix, "gamma": ipywidgets.IntSlider(2, 1, 3, description="γ")}, render_acceptance)
