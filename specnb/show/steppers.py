"""Widgets: plain ipywidgets over pure functions that return a PNG. Nothing is shown but through their Image.

Every widget is a VBox with an attribute ``controls``: a namespace of its sliders, button, readout and image.
"""

import html
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import SimpleNamespace

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specnb import exact, figures, growth
from specnb.decode import Generation, Step
from specnb.draft_models import TableDraft
from specnb.drafters import TreeDrafter
from specnb.figures import COLOURS, INK, drawable
from specnb.models import Pair
from specnb.tree import Drawn
from specnb.verifiers import token_level

Pieces = Callable[[Sequence[int]], Sequence[str]]
TARGET = (0.3, 0.4, 0.3)
DRAFTS = (TARGET, (0.6, 0.3, 0.1), (1.0, 0.0, 0.0))  # at mix 0, ½ and 1
TEXT = "font-size:16px;line-height:1.7"


# ---- one verification, trial by trial -------------------------------------------------------------------


def render_step(steps: Sequence[Step], index: int, trial: int, pieces: Pieces) -> bytes:
    """PNG (1200 × 560) of steps[index] after its first ``trial`` trials: the tree and, right, the last coin.

    With a full trace also p and q of the likeliest tokens where the node on trial hangs.
    Raises IndexError on an unknown step, ValueError on a trial outside 0..number of trials.
    """
    step = steps[index]
    with plt.rc_context(figures.STYLE):
        figure = Figure(figsize=(12, 5.6), dpi=100)
        table = figures.tree_table(step.draft, step.verdict, labels=pieces, upto=trial)
        on_trial = step.verdict.trials[trial - 1].node if trial else None
        tree = figures.draw_tree(table, ax=figure.add_axes((0.01, 0.09, 0.66, 0.9)), highlight=on_trial)
        riding = step.draft.auxiliary is not None
        figures.legend(tree, [state for state in figures.LOOKS if state != "auxiliary" or riding])
        if trial:
            label = drawable(table["label"][on_trial])[:12]
            _draw_coin(figure.add_axes((0.72, 0.76, 0.26, 0.1)), step, trial, label)
        else:
            figure.text(0.69, 0.9, outcome(step, 0), fontsize=13)
        if trial and step.p is not None:
            _draw_laws(figure.add_axes((0.8, 0.1, 0.18, 0.4)), step, on_trial, pieces)
        return figures.png(figure)


def outcome(step: Step, trial: int) -> str:
    """What the trial-th trial (from 1) came to, in words."""
    if trial == 0:
        return "nothing tried yet" if step.verdict.trials else "nothing to try: the target's own token"
    threshold, coin = step.verdict.trials[trial - 1].probability, _coin(step, trial)
    said = "accepted" if step.verdict.trials[trial - 1].accepted else "rejected"
    if coin is None:
        return f"no coin, the target's choice: {said}"
    return f"coin {coin:.2f} {'<' if coin < threshold else '≥'} threshold {threshold:.2f}: {said}"


def _coin(step: Step, trial: int) -> float | None:
    """The number behind the trial-th trial; None if the verifier tossed no coins for its trials."""
    recorded = len(step.uniforms) == len(step.verdict.trials)
    return step.uniforms[trial - 1] if recorded and trial else None


def _draw_coin(ax: Axes, step: Step, trial: int, label: str) -> None:
    """The threshold as a bar on 0..1, the coin as a line: left of the bar's end means accepted."""
    now, coin = step.verdict.trials[trial - 1], _coin(step, trial)
    colour = COLOURS["accepted"]
    ax.barh(0, 1, 1, color="white", edgecolor=INK, lw=1)
    ax.barh(0, now.probability, 1, color=colour, alpha=0.3, edgecolor=colour, hatch="//", lw=1)
    if coin is not None:
        ax.axvline(coin, color=INK, lw=4)
    ax.set(xlim=(-0.01, 1.01), ylim=(-0.5, 0.5), yticks=[], xticks=[0, 0.5, 1])
    ax.spines[:].set_visible(False)
    where = f"trial {trial} of {len(step.verdict.trials)}: “{label}”"
    ax.set_title(f"{where}\nacceptance probability {now.probability:.2f}", parse_math=False)
    ax.set_xlabel(outcome(step, trial))


def _draw_laws(ax: Axes, step: Step, node: int, pieces: Pieces) -> None:
    """p and, if there is one, q after the node's parent: the drafted token and the likeliest others."""
    tree, parent = step.draft.tree, step.draft.tree.parent_list[node]
    laws = {"p": step.p[parent].double()}
    if step.draft.q is not None:
        laws["q"] = step.draft.law(parent, len(step.p[parent]))
    drafted, most = tree.token_list[node], torch.stack(list(laws.values())).amax(0)
    others = [token for token in most.topk(min(5, len(most))).indices.tolist() if token != drafted and most[token]]
    top = sorted([drafted, *others[:4]], key=lambda token: -most[token])
    for i, (name, law) in enumerate(laws.items()):
        ax.barh(np.arange(len(top)) + 0.38 * i, [float(law[token]) for token in top], 0.38, **figures.look(name))
    names = [("▸ " if token == drafted else "") + drawable(t)[:10] for token, t in zip(top, pieces(top), strict=True)]
    ax.set_yticks(np.arange(len(top)) + 0.19 * (len(laws) - 1), names, parse_math=False)
    ax.set(xlim=(0, 1.05), ylim=(len(top) - 0.3, -0.4), xticks=[0, 0.5, 1])
    after = drawable(pieces([tree.token_list[parent]])[0])[:12]
    ax.set_title(f"after “{after}”, before any rejection", fontsize=12, loc="right", parse_math=False)
    ax.legend(loc="lower right", fontsize=12)


def stepper(generation: Generation, pair_or_pieces: Pair | Pieces) -> ipywidgets.VBox:
    """Replay a recorded generation: a slider over its steps, one over the trials of a step, and a button.

    pair_or_pieces: a Pair, or a function token ids → texts. controls: step, trial, next, readout, image; step
    counts from 0, as generation.steps does. Raises ValueError if no steps were recorded.
    """
    steps = generation.steps
    if not steps:
        raise ValueError("this generation holds no steps: decode with trace='light' or trace='full'")
    pieces = getattr(pair_or_pieces, "pieces", pair_or_pieces)
    step = _slider("step", len(steps) - 1)
    trial = _slider("trial", len(steps[0].verdict.trials))
    onward = ipywidgets.Button(description="next", icon="step-forward", tooltip="the next trial, or the next step")
    readout, image = ipywidgets.HTML(), ipywidgets.Image(format="png")

    def redraw(change=None):
        done = min(trial.value, len(steps[step.value].verdict.trials))  # a slider cannot have the range 0..0
        image.value = render_step(steps, step.value, done, pieces)
        readout.value = describe(generation, step.value, done, pieces)

    def enter(change):
        if trial.value:
            trial.value = 0  # redraws
        else:
            redraw()
        count = len(steps[step.value].verdict.trials)
        trial.max, trial.disabled = max(count, 1), count == 0

    def advance(button):
        if trial.value < len(steps[step.value].verdict.trials):
            trial.value += 1
        elif step.value < len(steps) - 1:
            step.value += 1

    step.observe(enter, "value")
    trial.observe(redraw, "value")
    onward.on_click(advance)
    redraw()
    box = ipywidgets.VBox([ipywidgets.HBox([step, trial, onward]), readout, image])
    box.controls = SimpleNamespace(step=step, trial=trial, next=onward, readout=readout, image=image)
    return box


def describe(generation: Generation, index: int, trial: int, pieces: Pieces) -> str:
    """The readout of the stepper: where we are, the coin, the text so far with this step's tokens marked."""
    steps, step = generation.steps, generation.steps[index]
    table = figures.tree_table(step.draft, step.verdict, labels=pieces, upto=trial)
    chosen = table[table["state"].isin(["accepted", "recovered", "bonus"])].sort_values("depth")
    chosen = chosen.iloc[: len(step.tokens)]  # the last step may have been cut
    before = [token for earlier in steps[:index] for token in earlier.tokens]
    text = "".join(pieces(before[-60:])).replace("␣", " ").replace("⏎", "⏎\n")
    marked = "".join(map(figures.token_html, chosen["label"], chosen["state"]))
    accepted = sum(len(s.verdict.path) for s in steps[:index]) + int((table["state"] == "accepted").sum())
    place = f"<b>steps[{index}]</b> of {len(steps)} · trial {trial} of {len(step.verdict.trials)}"
    place += f" · {accepted} draft tokens accepted so far · <b>{html.escape(outcome(step, trial))}</b>"
    return (
        f'<div style="{TEXT}">{place}'
        f'<div style="white-space:pre-wrap">{"…" * (len(before) > 60)}{html.escape(text)}{marked}</div></div>'
    )


def _slider(name: str, top: int) -> ipywidgets.IntSlider:
    """0..top. The browser's slider refuses an empty range, so one without a choice is 0..1 and disabled."""
    return ipywidgets.IntSlider(0, 0, max(top, 1), description=name, disabled=top == 0)


# ---- how much of q is accepted --------------------------------------------------------------------------


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
    setting = (
        TreeDrafter(TableDraft(lambda prefix: q), growth.chain(gamma), Drawn.IID),
        token_level,
        lambda _: p,
    )
    accepted = exact.accepted_law(*setting, depth=gamma)
    text = exact.output_law(*setting, depth=gamma)
    return {
        "overlap": float(torch.minimum(p, q).sum()),
        "accepted": exact.expectation(accepted, float),
        "distance": float((p - q).abs().sum() / 2),
        "error": exact.total_variation(text, exact.joint(lambda _: p, gamma + 1)),
    }


def render_acceptance(mix: float, gamma: int) -> bytes:
    """PNG (1000 × 420): p, q and their overlap at left, the exact numbers of ``acceptance`` at right."""
    q, numbers = draft_law(mix), acceptance(mix, gamma)
    with plt.rc_context(figures.STYLE):
        figure = Figure(figsize=(10, 4.2), dpi=100)
        ax = figure.add_axes((0.07, 0.12, 0.45, 0.74))
        at, low = np.arange(3), np.minimum(TARGET, q)
        ax.bar(at - 0.2, TARGET, 0.4, **figures.look("p"))
        ax.bar(at + 0.2, q, 0.4, **figures.look("q"))
        ax.bar(at, low, 0.86, color=COLOURS["accepted"], alpha=0.3, label="overlap min(p, q)")
        ax.hlines(low, at - 0.43, at + 0.43, color=COLOURS["accepted"], lw=3)
        ax.set(xticks=at, xticklabels=["A", "B", "C"], ylim=(0, 1.02), ylabel="probability")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=3)
        side = figure.add_axes((0.58, 0.2, 0.4, 0.1))
        side.barh(0, gamma, 1, color="white", edgecolor=INK)
        side.barh(0, numbers["accepted"], 1, color=COLOURS["accepted"], alpha=0.6, hatch="//")
        side.set(
            xlim=(-0.02, 3.02),
            xticks=range(gamma + 1),
            yticks=[],
        )
        side.set_xlabel(f"expected accepted, of γ = {gamma}", loc="left")
        side.spines[:].set_visible(False)
        error = "0" if numbers["error"] < 1e-12 else f"{numbers['error']:.0e}"
        power = " + ".join(("α", "α²", "α³")[:gamma])
        lines = (
            f"overlap α = Σ min(p, q) = {numbers['overlap']:.2f}",
            f"total variation of q from p = 1 − α = {numbers['distance']:.2f}",
            f"expected accepted = {power} = {numbers['accepted']:.2f}",
            f"total variation, decoded text from target: {error}",
        )
        for i, line in enumerate(lines):
            figure.text(0.58, 0.82 - 0.12 * i, line, fontsize=13)
        return figures.png(figure)


def acceptance_explorer() -> ipywidgets.VBox:
    """Move the draft law away from the target's and see what is accepted: exact, no sampling.

    controls: mix (0: q = p, ½: the book example (.6, .3, .1), 1: one-hot), gamma (1..3), image.
    """
    mix = ipywidgets.FloatSlider(0.5, min=0, max=1, step=0.05, description="q far from p", continuous_update=False)
    gamma = ipywidgets.IntSlider(2, 1, 3, description="γ", continuous_update=False)
    image = ipywidgets.Image(format="png")

    def redraw(change=None):
        image.value = render_acceptance(round(mix.value, 6), gamma.value)

    for slider in (mix, gamma):
        slider.observe(redraw, "value")
    redraw()
    box = ipywidgets.VBox([ipywidgets.HBox([mix, gamma]), image])
    box.controls = SimpleNamespace(mix=mix, gamma=gamma, image=image)
    return box
