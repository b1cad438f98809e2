"""Explorers of small laws: move p, q and the shape of the tree, for all coins at once or along one draw of them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import ipywidgets
import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from specnb import exact, growth, verifiers
from specnb.decode import Generation, Step, Verifier
from specnb.sampling import RandomCoins
from specnb.show.explorers import Explorer, Picture, explorer, reach
from specnb.show.look import COLOURS, INK, bars, canvas, kinds, png
from specnb.show.stepper import describe, render_step
from specnb.tree import Drawn, TokenTree

CHAINS = {f"chain of {gamma}": growth.chain(gamma) for gamma in (2, 3)}
SHAPES = CHAINS | {
    "two children each, one level": growth.kary(2, 1),
    "uneven: two, two below the first": exact.gallery.UNEVEN,
    "two children each, two levels": growth.kary(2, 2),
}
RULES: dict[str, Verifier] = {"token-level (RRSw)": verifiers.rrsw, "traversal": verifiers.traversal}
TARGET = (0.3, 0.4, 0.3)
DRAFTS = (TARGET, (0.6, 0.3, 0.1), (1.0, 0.0, 0.0))  # at mix 0, ½ and 1


def outcome(p: Tensor, q: Tensor, shape: growth.Static, rule: Verifier) -> dict[str, float]:
    """Exact expected accepted tokens and total variation ("error") of the decoded text, every coin enumerated.

    p, q: the same law after every prefix, float64; trees are drawn SWOR.
    """
    setting = exact.toy_drafter(lambda prefix: q, shape, Drawn.SWOR), rule, lambda prefix: p
    depth = max(map(len, shape.paths))
    accepted, text = exact.accepted_law(*setting, depth=depth), exact.output_law(*setting, depth=depth)
    error = exact.total_variation(text, exact.joint(lambda prefix: p, depth + 1))
    return {"accepted": exact.expectation(accepted, float), "error": error}


@lru_cache(maxsize=128)
def numbers(p: tuple[float, ...], q: tuple[float, ...], shape: str) -> dict[str, dict[str, float]]:
    """``outcome`` by rule. p, q: weights, normalised here.

    Raises ValueError on weights without mass and KeyError on an unknown shape.
    """
    laws = normalised(p), normalised(q)
    rules = RULES | ({"block": verifiers.block} if shape in CHAINS else {})
    return {name: outcome(*laws, SHAPES[shape], rule) for name, rule in rules.items()}


def normalised(weights: Sequence[float]) -> Tensor:
    """Weights as a law, float64; ValueError if they have no mass."""
    if sum(weights) <= 0:
        raise ValueError(f"a law needs some mass, got weights {weights}")
    return torch.tensor(weights, dtype=torch.float64) / sum(weights)


def _of_sliders(values: dict[str, float]) -> list[tuple[float, ...]]:
    """The weights of p and q from the values of p_a, p_b, p_c, q_a, q_b, q_c."""
    return [tuple(round(values[f"{name}_{letter}"], 6) for letter in "abc") for name in "pq"]


def _sliders() -> dict[str, ipywidgets.Widget]:
    """p_a … q_c and shape, at the laws of the Traversal paper's example."""
    weights = {
        f"{name}_{letter}": ipywidgets.FloatSlider(value, min=0, max=1, step=0.05, description=f"{name}({letter})")
        for name, values in zip("pq", (TARGET, DRAFTS[1]), strict=True)
        for letter, value in zip("abc", values, strict=True)
    }
    tree = ipywidgets.Dropdown(options=list(SHAPES), value="uneven: two, two below the first", description="tree")
    return {**weights, "shape": tree}


def laws_in_words(p: Sequence[float], q: Sequence[float]) -> str:
    """Words: that sliders are weights, and which laws they make."""
    laws = []
    for name, weights in (("p", p), ("q", q)):
        masses = ", ".join(f"{mass:.3f}" for mass in normalised(weights).tolist())
        laws.append(f"{name} = ({masses})")
    return f"The sliders are weights, divided by their sum: {' · '.join(laws)}"


def render_law(shape: str, **weights: float) -> Picture:
    """PNG (1000 × 420): the two laws at left; at right what each verifier accepts, and how far its text is off.

    weights: p_a, p_b, p_c, q_a, q_b, q_c. With it words: the laws that these weights make.
    """
    p, q = _of_sliders(weights)
    found, depth = numbers(p, q, shape), max(map(len, SHAPES[shape].paths))
    with canvas(10, 4.2) as figure:
        ax = figure.add_axes((0.07, 0.18, 0.36, 0.68))
        _draw_laws(ax, np.array(p) / sum(p), np.array(q) / sum(q), "abc")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2)
        side = figure.add_axes((0.66, 0.28, 0.3, 0.56))
        lengths = [row["accepted"] for row in found.values()]
        shown = side.barh(list(found), lengths, color=[colour for colour, *_ in kinds(list(found)).values()])
        side.bar_label(shown, fmt="{:.4f}", padding=5, fontsize=13)
        side.set(xlim=(0, depth * 1.25), xlabel=f"expected accepted tokens, depth {depth}")
        side.invert_yaxis()
        worst = max(row["error"] for row in found.values())
        said = "0 (below 1e-12)" if worst < 1e-12 else f"{worst:.1e}"
        figure.text(0.98, 0.02, f"total variation of the decoded text from the target: {said}", fontsize=13, ha="right")
        return png(figure), laws_in_words(p, q)


def _draw_laws(ax: Axes, p: Sequence[float], q: Sequence[float], letters: str) -> None:
    at = np.arange(len(p))
    ax.bar(at - 0.2, p, 0.4, **bars("p"))
    ax.bar(at + 0.2, q, 0.4, **bars("q"))
    ax.set(xticks=at, xticklabels=letters, ylim=(0, 1.02), ylabel="probability")


def law_explorer() -> Explorer:
    """Edit p, q and the shape of the tree; exact expected lengths and the exactness of the output follow.

    controls: p_a, p_b, p_c, q_a, q_b, q_c and shape.
    """
    return explorer(_sliders(), render_law, row=3)


@lru_cache(maxsize=128)
def verified(p: tuple[float, ...], q: tuple[float, ...], shape: str, draw: int) -> Generation:
    """One step: a tree drawn SWOR from q and verified by traversal. p, q: weights; draw: seed of tokens and coins."""
    law, drafted, coins, tree = normalised(p), normalised(q), RandomCoins(draw), SHAPES[shape]
    drafter, depth = exact.toy_drafter(lambda prefix: drafted, tree, Drawn.SWOR), max(map(len, tree.paths))
    draft, verdict = exact.verify_once(drafter, verifiers.traversal, lambda prefix: law, coins, depth=depth)
    tokens = (*(draft.tree.token_list[node] for node in verdict.path), verdict.next_token)
    draft = replace(draft, tree=TokenTree([3, *draft.tree.token_list[1:]], draft.tree.parent_list))  # 3: see _letters
    step = Step(0, 1, draft, law.expand(len(draft.tree), -1), verdict, tokens, {}, tuple(coins.uniforms), "length")
    return Generation((3,), tokens, (step,), "length")


def render_trial(shape: str, draw: int, trial: int, **weights: float) -> Picture:
    """PNG (1200 × 560) of ``verified`` after so many trials, see ``render_step``; and where it stands, in words.

    A trial behind the draw's last is the last.
    """
    p, q = _of_sliders(weights)
    story = verified(p, q, shape, draw)
    done = min(trial, len(story.steps[0].verdict.trials))
    words = f"<div>{laws_in_words(p, q)}</div>{describe(story, 0, done, _letters)}"
    return render_step(story.steps, 0, done, _letters), words


def _letters(tokens: Sequence[int]) -> list[str]:
    return [("a", "b", "c", "root")[token] for token in tokens]


def trial_explorer() -> Explorer:
    """Traversal verification coin by coin (Figure 2), for any p, q, shape of the tree and draw.

    controls: those of ``law_explorer``, draw (other tokens and coins) and trial, which goes up to the number of trials
    of the draw that is shown.
    """
    chosen = {**_sliders(), "draw": ipywidgets.IntSlider(28, 0, 30)}
    trial = ipywidgets.IntSlider(1)

    def follow(change=None) -> None:
        values = {name: control.value for name, control in chosen.items()}
        shape, draw = values.pop("shape"), values.pop("draw")
        p, q = _of_sliders(values)
        if min(sum(p), sum(q)) <= 0:  # refused in words by render_trial; the picture stays, and so does its range
            return
        reach(trial, len(verified(p, q, shape, draw).steps[0].verdict.trials))

    for control in chosen.values():
        control.observe(follow, "value")  # before the explorer's own observer: the range first, then the picture
    follow()
    return explorer({**chosen, "trial": trial}, render_trial, row=3)


def draft_law(mix: float) -> np.ndarray:
    """(3,) the draft law at mix 0 (the target's), ½ (.6, .3, .1), 1 (one-hot), straight lines between."""
    return np.array([np.interp(mix, (0, 0.5, 1), values) for values in zip(*DRAFTS, strict=True)])


@lru_cache(maxsize=256)
def acceptance(mix: float, gamma: int) -> dict[str, float]:
    """Exact numbers of a chain of gamma tokens under token-level verification, by enumeration of all coins.

    overlap Σ min(p, q); accepted, the expected number of accepted tokens; distance, the total variation
    between q and p; error, that between the law of the decoded text (gamma + 1 tokens) and the target's own.
    """
    p, q = torch.tensor(TARGET, dtype=torch.float64), torch.tensor(draft_law(mix))
    overlap, distance = float(torch.minimum(p, q).sum()), float((p - q).abs().sum() / 2)
    return {"overlap": overlap, "distance": distance, **outcome(p, q, growth.chain(gamma), verifiers.token_level)}


def render_acceptance(mix: float, gamma: int) -> Picture:
    """PNG (1000 × 420): p, q and their overlap at left, the exact numbers of ``acceptance`` at right."""
    q, numbers = draft_law(round(mix, 6)), acceptance(round(mix, 6), gamma)
    at, low = np.arange(3), np.minimum(TARGET, q)
    with canvas(10, 4.2) as figure:
        ax = figure.add_axes((0.07, 0.12, 0.45, 0.74))
        _draw_laws(ax, TARGET, q, "abc")
        ax.bar(at, low, 0.86, color=COLOURS["accepted"], alpha=0.3, label="overlap min(p, q)")
        ax.hlines(low, at - 0.43, at + 0.43, color=COLOURS["accepted"], lw=3)
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
