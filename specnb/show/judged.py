"""What a judge of samplers found, as pictures: all ways in which a step can go, and the law that they add up to."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache

import matplotlib.pyplot as plt
import pandas as pd
import seaborn
from matplotlib.axes import Axes

from specnb.exact.judgement import Counterexample
from specnb.exact.scripts import Script, Toss
from specnb.show.explorers import Explorer, Float, Picture, explorer
from specnb.show.look import COLOURS, INK, KINDS, canvas, png

LETTERS = "abcdefghijklmnopqrstuvwxyz"  # names of toy tokens
Outcomes = tuple[int, ...]  # of the first tosses of a script: a place in the picture


# ---- all ways in which a step can go ------------------------------------------------------------------------------


def draw_scripts(
    scripts: Sequence[Script], *, drafted: int = 1, marked: Sequence[int] = (), ax: Axes | None = None
) -> Axes:
    """A tree of decisions, from left to right: each fork is a toss, each end is what the step commits.

    scripts: all sequences of coins in one world (``StepLaw.scripts``), or some of them.
    drafted: how many of the first tosses draw the draft.
    marked: a text; the ends that lead to it are drawn in colour.
    ax: empty axes, if not those of a new figure.
    """
    ordered = sorted(scripts, key=_outcomes)
    if ax is None:
        _, ax = plt.subplots(figsize=(11, 0.55 * len(ordered) + 0.9))
    heights = _heights(ordered)
    deepest = max(len(script.tosses) for script in ordered)
    marked = tuple(marked)
    for script in ordered:
        is_marked = bool(marked) and script.committed == marked[: len(script.committed)]
        _draw_path(ax, script, heights, drafted, is_marked)
        _draw_end(ax, script, heights, deepest, is_marked)
    ax.set(xlim=(-0.05, deepest + 1.4), ylim=(len(ordered) - 0.4, -0.6))
    ax.axis("off")
    return ax


def _outcomes(script: Script) -> Outcomes:
    return tuple(toss.outcome for toss in script.tosses)


def _heights(ordered: Sequence[Script]) -> dict[Outcomes, float]:
    """Where each fork and each end stands: ends one below the other, a fork in the middle of what follows it."""
    ends_below: dict[Outcomes, list[int]] = defaultdict(list)
    for height, script in enumerate(ordered):
        outcomes = _outcomes(script)
        for length in range(len(outcomes) + 1):
            ends_below[outcomes[:length]].append(height)
    return {place: sum(heights) / len(heights) for place, heights in ends_below.items()}


def _draw_path(ax: Axes, script: Script, heights: dict[Outcomes, float], drafted: int, is_marked: bool) -> None:
    """The edges of one way, each with its outcome and probability."""
    outcomes = _outcomes(script)
    colour = COLOURS["bonus"] if is_marked else "#9A9A9A"
    for depth, toss in enumerate(script.tosses):
        start = heights[outcomes[:depth]]
        end = heights[outcomes[: depth + 1]]
        corner = depth + 0.3
        ax.plot(
            [depth, corner, depth + 1],
            [start, end, end],
            color=colour,
            lw=3 if is_marked else 1.2,
            zorder=2 if is_marked else 1,
        )
        ax.text(
            depth + 0.65, end, _said(toss, depth < drafted), ha="center", va="center", fontsize=14, zorder=3,
            color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 3},
        )  # fmt: skip


def _said(toss: Toss, is_draft: bool) -> str:
    """A toss in a few characters. Examples: "draft a .52", "no .30", "draw c .81"."""
    probability = f"{toss.probabilities[toss.outcome]:.3f}".removeprefix("0")
    if toss.is_coin:
        answer = "yes" if toss.outcome else "no"
        return f"{answer} {probability}"
    verb = "draft" if is_draft else "draw"
    return f"{verb} {LETTERS[toss.outcome]} {probability}"


def _draw_end(ax: Axes, script: Script, heights: dict[Outcomes, float], deepest: int, is_marked: bool) -> None:
    """What is committed, and the probability of it all, in a column at the right."""
    height = heights[_outcomes(script)]
    if len(script.tosses) < deepest:
        ax.plot([len(script.tosses), deepest + 0.15], [height, height], color="#CCCCCC", lw=0.8, ls=":", zorder=0)
    committed = "".join(LETTERS[token] for token in script.committed)
    probability = f"{script.probability:.4f}".removeprefix("0")
    weight = "bold" if is_marked else "normal"
    ax.text(deepest + 0.2, height, f"{committed}   {probability}", va="center", fontsize=16, weight=weight)


# ---- the law that they add up to ----------------------------------------------------------------------------------


def law_table(found: Counterexample) -> pd.DataFrame:
    """A row per text and law, text in letters: the probability by the sampler, and by the target."""
    rows = []
    for tokens, (given, right) in sorted(found.laws.items()):
        text = "".join(LETTERS[token] for token in tokens)
        rows.append((text, "by the sampler", given))
        rows.append((text, "by the target", right))
    return pd.DataFrame(rows, columns=["text", "law", "probability"])


def draw_laws(found: Counterexample, *, ax: Axes | None = None) -> Axes:
    """Bars: the law of the sampler's texts beside the target's own; a mark over the text that is most wrong."""
    table = law_table(found)
    if ax is None:
        _, ax = plt.subplots(figsize=(11, 3.6))
    seaborn.barplot(
        table,
        x="text",
        y="probability",
        hue="law",
        palette=[KINDS[0].colour, KINDS[4].colour],
        saturation=1,
        errorbar=None,  # a bar is one row
        ax=ax,
    )
    texts = list(dict.fromkeys(table["text"]))
    wrong = "".join(LETTERS[token] for token in found.tokens)
    ax.annotate(
        "most wrong",
        (texts.index(wrong), max(found.given, found.right)),
        xytext=(0, 40),
        textcoords="offset points",
        ha="center",
        fontsize=12,
        arrowprops={"arrowstyle": "->", "color": INK},
    )
    ax.set(xlabel="text", ylabel="probability")
    ax.legend(title="")
    if len(texts) > 12:
        ax.tick_params("x", labelrotation=90)
    return ax


# ---- a weight to drag: bias against speed -------------------------------------------------------------------------


def price_explorer(priced: Callable[[float], tuple[float, float]], weights: Sequence[float]) -> Explorer:
    """Drag a weight, and see what it buys and costs: the whole curve, and where the weight stands on it.

    priced: a weight → (accepted draft tokens a step, total variation from the target's law).
    weights: where the curve is computed, rising, evenly spaced; the slider goes from the first to the last.
    Raises ValueError unless they are two or more, and rise.
    """
    if len(weights) < 2 or list(weights) != sorted(set(weights)):
        raise ValueError(f"weights are two or more, rising, got {list(weights)}")
    remembered = lru_cache(maxsize=None)(priced)
    curve = pd.DataFrame([remembered(weight) for weight in weights], columns=["accepted", "distance"])
    curve["weight"] = weights

    def render(weight: float) -> Picture:
        return _render_price(curve, *remembered(round(weight, 6)))

    step = weights[1] - weights[0]
    slider = Float(weights[-1], min=weights[0], max=weights[-1], step=step, description="weight of the target")
    return explorer({"weight": slider}, render, walk=[{"weight": weight} for weight in weights])


def _render_price(curve: pd.DataFrame, accepted: float, distance: float) -> Picture:
    """PNG (900 × 420), and the two numbers in words."""
    with canvas(9, 4.2, layout="constrained") as figure:
        ax = figure.subplots()
        ax.plot(curve["accepted"], curve["distance"], "o-", color="#9A9A9A", lw=2, ms=5)
        for point in curve.itertuples():
            ax.annotate(f"{point.weight:.1f}", (point.accepted, point.distance), (6, -12), textcoords="offset points")
        below = curve[curve["accepted"] <= accepted + 1e-9].sort_values("accepted")
        ax.fill_between(below["accepted"], 0, below["distance"], color=COLOURS["bonus"], alpha=0.2, lw=0)
        ax.plot([accepted, accepted], [0, distance], color=COLOURS["bonus"], lw=3)
        ax.plot(accepted, distance, "o", ms=14, color=COLOURS["bonus"])
        ax.set(xlabel="accepted draft tokens a step", ylabel="total variation from the target's law")
        ax.set_title("numbers beside the curve: the weight", fontsize=12)
        ax.set_ylim(bottom=-0.02 * curve["distance"].max())
        picture = png(figure)
    words = f"{accepted:.3f} draft tokens are accepted a step; the law is {distance:.4f} away from the target's."
    return picture, words
