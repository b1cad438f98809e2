"""Explorers of small laws: move p, q and the shape of the tree, for all coins at once or along one draw of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import ipywidgets
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from specnb import exact, growth, verifiers
from specnb.decode import Generation, Step, Verifier
from specnb.sampling import RandomCoins
from specnb.show.explorers import Explorer, Picture, explorer, reach
from specnb.show.look import COLOURS, INK, bars, canvas, kinds, png
from specnb.show.stepper import describe, render_step
from specnb.tree import Drawn, TokenTree

Weights = tuple[float, ...]  # of a law, one a token; they need not sum to 1
LETTERS = "abc"  # the toy vocabulary: tokens 0, 1, 2
ROOT = 3  # a token behind it, which only the root has
CHAINS = {"chain of 2": growth.chain(2), "chain of 3": growth.chain(3)}
SHAPES = {
    **CHAINS,
    "two children each, one level": growth.kary(2, 1),
    "uneven: two, two below the first": exact.gallery.UNEVEN,
    "two children each, two levels": growth.kary(2, 2),
}
RULES: dict[str, Verifier] = {"token-level (RRSw)": verifiers.rrsw, "traversal": verifiers.traversal}
TARGET = (0.3, 0.4, 0.3)
DRAFTS = (TARGET, (0.6, 0.3, 0.1), (1.0, 0.0, 0.0))  # at mix 0, ½ and 1


# ---- exact numbers -----------------------------------------------------------------------------------------------


def outcome(p: Tensor, q: Tensor, shape: growth.Static, rule: Verifier) -> dict[str, float]:
    """Exact expected accepted tokens and total variation ("error") of the decoded text, every coin enumerated.

    p, q: the same law after every prefix, float64; trees are drawn SWOR.
    """

    def target(prefix: Sequence[int]) -> Tensor:
        return p

    drafter = exact.toy_drafter(lambda prefix: q, shape, Drawn.SWOR)
    depth = _depth(shape)
    accepted = exact.accepted_law(drafter, rule, target, depth=depth)
    text = exact.output_law(drafter, rule, target, depth=depth)
    error = exact.total_variation(text, exact.joint(target, depth + 1))
    return {"accepted": exact.expectation(accepted, float), "error": error}


def _depth(shape: growth.Static) -> int:
    """The number of a tree's levels below the root."""
    return max(map(len, shape.paths))


@lru_cache(maxsize=128)
def numbers(p: Weights, q: Weights, shape: str) -> dict[str, dict[str, float]]:
    """``outcome`` by rule. p, q: weights, normalised here.

    Raises ValueError on weights without mass and KeyError on an unknown shape.
    """
    target = normalised(p)
    draft = normalised(q)
    rules = dict(RULES)
    if shape in CHAINS:
        rules["block"] = verifiers.block
    return {name: outcome(target, draft, SHAPES[shape], rule) for name, rule in rules.items()}


def normalised(weights: Sequence[float]) -> Tensor:
    """Weights as a law, float64; ValueError if they have no mass. Example: 1, 2, 1 become 0.25, 0.5, 0.25."""
    if sum(weights) <= 0:
        raise ValueError(f"a law needs some mass, got weights {weights}")
    return torch.tensor(weights, dtype=torch.float64) / sum(weights)


# ---- the law explorer: all coins at once -------------------------------------------------------------------------


def law_explorer() -> Explorer:
    """Edit p, q and the shape of the tree; exact expected lengths and the exactness of the output follow.

    controls: p_a, p_b, p_c, q_a, q_b, q_c and shape.
    """
    return explorer(_sliders(), render_law, row=3)


def _sliders() -> dict[str, ipywidgets.Widget]:
    """p_a … q_c and shape, at the laws of the Traversal paper's example."""
    controls = {}
    for law, weights in {"p": TARGET, "q": DRAFTS[1]}.items():
        for letter, weight in zip(LETTERS, weights, strict=True):
            controls[f"{law}_{letter}"] = ipywidgets.FloatSlider(
                weight, min=0, max=1, step=0.05, description=f"{law}({letter})"
            )
    controls["shape"] = ipywidgets.Dropdown(
        options=list(SHAPES), value="uneven: two, two below the first", description="tree"
    )
    return controls


def _weights(law: str, values: Mapping[str, float]) -> Weights:
    """The weights of a law, "p" or "q", among the sliders' values: p_a, p_b, p_c."""
    return tuple(round(values[f"{law}_{letter}"], 6) for letter in LETTERS)


def laws_in_words(p: Sequence[float], q: Sequence[float]) -> str:
    """Words: that sliders are weights, and which laws they make."""
    return f"The sliders are weights, divided by their sum: p = {_masses(p)} · q = {_masses(q)}"


def _masses(weights: Sequence[float]) -> str:
    """The law that weights make, in brackets. Example: 1, 2, 1 are (0.250, 0.500, 0.250)."""
    masses = ", ".join(f"{mass:.3f}" for mass in normalised(weights).tolist())
    return f"({masses})"


def render_law(shape: str, **weights: float) -> Picture:
    """PNG (1000 × 420): the two laws at left; at right what each verifier accepts, and how far its text is off.

    weights: p_a, p_b, p_c, q_a, q_b, q_c. With it words: the laws that these weights make.
    """
    p = _weights("p", weights)
    q = _weights("q", weights)
    by_rule = numbers(p, q, shape)
    with canvas(10, 4.2) as figure:
        left = figure.add_axes((0.07, 0.18, 0.36, 0.68))
        _draw_laws(left, np.array(p) / sum(p), np.array(q) / sum(q))
        left.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2)

        right = figure.add_axes((0.66, 0.28, 0.3, 0.56))
        lengths = {rule: row["accepted"] for rule, row in by_rule.items()}
        _draw_lengths(right, lengths, _depth(SHAPES[shape]))

        worst = max(row["error"] for row in by_rule.values())
        error = "0 (below 1e-12)" if worst < 1e-12 else f"{worst:.1e}"
        words = f"total variation of the decoded text from the target: {error}"
        figure.text(0.98, 0.02, words, fontsize=13, ha="right")
        return png(figure), laws_in_words(p, q)


def _draw_laws(ax: Axes, p: Sequence[float], q: Sequence[float]) -> None:
    """p and q as bars side by side, token by token."""
    places = np.arange(len(LETTERS))
    ax.bar(places - 0.2, p, 0.4, **bars("p"))
    ax.bar(places + 0.2, q, 0.4, **bars("q"))
    ax.set(xticks=places, xticklabels=LETTERS, ylim=(0, 1.02), ylabel="probability")


def _draw_lengths(ax: Axes, lengths: Mapping[str, float], depth: int) -> None:
    """Expected accepted tokens as bars, one a rule. depth: the most that there can be."""
    colours = [look.colour for look in kinds(lengths).values()]
    drawn = ax.barh(list(lengths), list(lengths.values()), color=colours)
    ax.bar_label(drawn, fmt="{:.4f}", padding=5, fontsize=13)
    ax.set(xlim=(0, depth * 1.25), xlabel=f"expected accepted tokens, depth {depth}")
    ax.invert_yaxis()


# ---- the trial explorer: one draw of the coins -------------------------------------------------------------------


def trial_explorer() -> Explorer:
    """Traversal verification coin by coin (Figure 2), for any p, q, shape of the tree and draw.

    controls: those of ``law_explorer``, draw (other tokens and coins) and trial, which goes up to the number of trials
    of the draw that is shown.
    """
    chosen = {**_sliders(), "draw": ipywidgets.IntSlider(28, 0, 30)}
    trial = ipywidgets.IntSlider(1)

    def follow(change=None) -> None:
        values = {name: control.value for name, control in chosen.items()}
        p = _weights("p", values)
        q = _weights("q", values)
        if min(sum(p), sum(q)) <= 0:  # refused in words by render_trial; the picture stays, and so does its range
            return
        (step,) = verified(p, q, values["shape"], values["draw"]).steps
        reach(trial, len(step.verdict.trials))

    for control in chosen.values():
        control.observe(follow, "value")  # before the explorer's own observer: the range first, then the picture
    follow()
    return explorer({**chosen, "trial": trial}, render_trial, row=3)


@lru_cache(maxsize=128)
def verified(p: Weights, q: Weights, shape: str, draw: int) -> Generation:
    """One step: a tree drawn SWOR from q and verified by traversal. p, q: weights; draw: seed of tokens and coins."""
    target = normalised(p)
    law = normalised(q)
    coins = RandomCoins(draw)
    drafter = exact.toy_drafter(lambda prefix: law, SHAPES[shape], Drawn.SWOR)
    draft, verdict = exact.verify_once(
        drafter, verifiers.traversal, lambda prefix: target, coins, depth=_depth(SHAPES[shape])
    )
    accepted = [draft.tree.token_list[node] for node in verdict.path]
    tokens = (*accepted, verdict.next_token)
    shown = TokenTree([ROOT, *draft.tree.token_list[1:]], draft.tree.parent_list)
    step = Step(
        index=0,
        start=1,
        draft=replace(draft, tree=shown),
        p=target.expand(len(shown), -1),
        verdict=verdict,
        tokens=tokens,
        seconds={},
        uniforms=tuple(coins.uniforms),
        finish="length",
    )
    return Generation((ROOT,), tokens, (step,), "length")


def render_trial(shape: str, draw: int, trial: int, **weights: float) -> Picture:
    """PNG (1200 × 560) of ``verified`` after so many trials, see ``render_step``; and where it stands, in words.

    A trial behind the draw's last is the last.
    """
    p = _weights("p", weights)
    q = _weights("q", weights)
    story = verified(p, q, shape, draw)
    trial = min(trial, len(story.steps[0].verdict.trials))
    where = describe(story, 0, trial, _letters)
    return render_step(story.steps, 0, trial, _letters), f"<div>{laws_in_words(p, q)}</div>{where}"


def _letters(tokens: Sequence[int]) -> list[str]:
    """Texts of toy tokens."""
    texts = (*LETTERS, "root")
    return [texts[token] for token in tokens]


# ---- the acceptance explorer: a chain, and how far its draft is from the target ----------------------------------


def acceptance_explorer() -> Explorer:
    """Move the draft law away from the target's and see what is accepted: exact, no sampling.

    mix 0: q = p, ½: (.6, .3, .1), 1: one-hot; gamma: length of the chain.
    """
    mix = ipywidgets.FloatSlider(0.5, min=0, max=1, step=0.05, description="q far from p")
    gamma = ipywidgets.IntSlider(2, 1, 3, description="γ")
    return explorer({"mix": mix, "gamma": gamma}, render_acceptance)


def draft_law(mix: float) -> np.ndarray:
    """(3,) the draft law at mix 0 (the target's), ½ (.6, .3, .1), 1 (one-hot), straight lines between.

    Example: at mix 0.75 it is (.8, .15, .05), halfway from (.6, .3, .1) to (1, 0, 0).
    """
    by_token = zip(*DRAFTS, strict=True)
    return np.array([np.interp(mix, (0, 0.5, 1), masses) for masses in by_token])


@lru_cache(maxsize=256)
def acceptance(mix: float, gamma: int) -> dict[str, float]:
    """Exact numbers of a chain of gamma tokens under token-level verification, by enumeration of all coins.

    overlap Σ min(p, q); accepted, the expected number of accepted tokens; distance, the total variation
    between q and p; error, that between the law of the decoded text (gamma + 1 tokens) and the target's own.
    """
    p = torch.tensor(TARGET, dtype=torch.float64)
    q = torch.tensor(draft_law(mix))
    overlap = torch.minimum(p, q).sum()
    distance = (p - q).abs().sum() / 2
    enumerated = outcome(p, q, growth.chain(gamma), verifiers.token_level)
    return {"overlap": float(overlap), "distance": float(distance), **enumerated}


def render_acceptance(mix: float, gamma: int) -> Picture:
    """PNG (1000 × 420): p, q and their overlap at left, the exact numbers of ``acceptance`` at right."""
    mix = round(mix, 6)
    exact_numbers = acceptance(mix, gamma)
    with canvas(10, 4.2) as figure:
        _draw_overlap(figure.add_axes((0.07, 0.12, 0.45, 0.74)), draft_law(mix))
        _draw_accepted(figure.add_axes((0.58, 0.2, 0.4, 0.1)), exact_numbers["accepted"], gamma)
        _write_acceptance(figure, exact_numbers, gamma)
        return png(figure)


def _draw_overlap(ax: Axes, q: np.ndarray) -> None:
    """The target's law and q as bars, and over each pair the lower of the two."""
    _draw_laws(ax, TARGET, q)
    places = np.arange(len(LETTERS))
    lower = np.minimum(TARGET, q)
    ax.bar(places, lower, 0.86, color=COLOURS["accepted"], alpha=0.3, label="overlap min(p, q)")
    ax.hlines(lower, places - 0.43, places + 0.43, color=COLOURS["accepted"], lw=3)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=3)


def _draw_accepted(ax: Axes, accepted: float, gamma: int) -> None:
    """The expected number of accepted tokens as a bar in a frame as long as the chain."""
    ax.barh(0, gamma, 1, color="white", edgecolor=INK)
    ax.barh(0, accepted, 1, color=COLOURS["accepted"], alpha=0.6, hatch="//")
    ax.set(xlim=(-0.02, 3.02), xticks=range(gamma + 1), yticks=[])
    ax.set_xlabel(f"expected accepted, of γ = {gamma}", loc="left")
    ax.spines[:].set_visible(False)


def _write_acceptance(figure: Figure, exact_numbers: Mapping[str, float], gamma: int) -> None:
    """The numbers of ``acceptance`` in words, a line each."""
    powers = " + ".join(("α", "α²", "α³")[:gamma])
    error = "0" if exact_numbers["error"] < 1e-12 else f"{exact_numbers['error']:.0e}"
    lines = (
        f"overlap α = Σ min(p, q) = {exact_numbers['overlap']:.2f}",
        f"total variation of q from p = 1 − α = {exact_numbers['distance']:.2f}",
        f"expected accepted = {powers} = {exact_numbers['accepted']:.2f}",
        f"total variation, decoded text from target: {error}",
    )
    for i, line in enumerate(lines):
        figure.text(0.58, 0.82 - 0.12 * i, line, fontsize=13)
