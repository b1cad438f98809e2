"""The stepper: a recorded generation replayed, step by step and coin by coin."""

import html
from collections.abc import Callable, Sequence

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specnb.decode import Generation, Step
from specnb.models import Pair
from specnb.show.charts import token_html
from specnb.show.explorers import Explorer, Picture, explorer
from specnb.show.look import COLOURS, INK, LOOKS, STYLE, bars, png
from specnb.show.trees import draw_tree, drawable, legend, tree_table

Pieces = Callable[[Sequence[int]], Sequence[str]]
TEXT = "font-size:16px;line-height:1.7"


# ---- one verification, trial by trial -------------------------------------------------------------------


def render_step(steps: Sequence[Step], index: int, trial: int, pieces: Pieces) -> bytes:
    """PNG (1200 × 560) of steps[index] after its first ``trial`` trials: the tree and, right, the last coin.

    With a full trace also p and q of the likeliest tokens where the node on trial hangs.
    Raises IndexError on an unknown step, ValueError on a trial outside 0..number of trials.
    """
    step = steps[index]
    with plt.rc_context(STYLE):
        figure = Figure(figsize=(12, 5.6), dpi=100)
        table = tree_table(step.draft, step.verdict, labels=pieces, upto=trial)
        on_trial = step.verdict.trials[trial - 1].node if trial else None
        tree = draw_tree(table, ax=figure.add_axes((0.01, 0.09, 0.66, 0.9)), highlight=on_trial)
        riding = step.draft.auxiliary is not None
        legend(tree, [state for state in LOOKS if state != "auxiliary" or riding])
        if trial:
            label = drawable(table["label"][on_trial])[:12]
            _draw_coin(figure.add_axes((0.72, 0.76, 0.26, 0.1)), step, trial, label)
        else:
            figure.text(0.69, 0.9, outcome(step, 0), fontsize=13)
        if trial and step.p is not None:
            _draw_laws(figure.add_axes((0.8, 0.1, 0.18, 0.4)), step, on_trial, pieces)
        return png(figure)


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
        ax.barh(np.arange(len(top)) + 0.38 * i, [float(law[token]) for token in top], 0.38, **bars(name))
    names = [("▸ " if token == drafted else "") + drawable(t)[:10] for token, t in zip(top, pieces(top), strict=True)]
    ax.set_yticks(np.arange(len(top)) + 0.19 * (len(laws) - 1), names, parse_math=False)
    ax.set(xlim=(0, 1.05), ylim=(len(top) - 0.3, -0.4), xticks=[0, 0.5, 1])
    after = drawable(pieces([tree.token_list[parent]])[0])[:12]
    ax.set_title(f"after “{after}”, before any rejection", fontsize=12, loc="right", parse_math=False)
    ax.legend(loc="lower right", fontsize=12)


def stepper(generation: Generation, pair_or_pieces: Pair | Pieces) -> Explorer:
    """Replay a recorded generation: a slider over its steps, one over the trials of a step, and a button.

    pair_or_pieces: a Pair, or a function token ids → texts. controls: step, trial, next, readout, image; step
    counts from 0, as generation.steps does. Raises ValueError if no steps were recorded.
    """
    steps = generation.steps
    if not steps:
        raise ValueError("this generation holds no steps: decode with trace='light' or trace='full'")
    pieces = getattr(pair_or_pieces, "pieces", pair_or_pieces)

    def render(step: int, trial: int) -> Picture:
        done = min(trial, len(steps[step].verdict.trials))  # a slider cannot have the range 0..0
        return render_step(steps, step, done, pieces), describe(generation, step, done, pieces)

    trials = len(steps[0].verdict.trials)
    box = explorer({"step": _slider(len(steps) - 1), "trial": _slider(trials)}, render)
    step, trial = box.controls.step, box.controls.trial
    box.controls.next = onward = ipywidgets.Button(description="next", tooltip="the next trial, or the next step")

    def enter(change):
        trial.value = 0
        count = len(steps[step.value].verdict.trials)
        trial.max, trial.disabled = max(count, 1), count == 0

    def advance(button):
        if trial.value < len(steps[step.value].verdict.trials):
            trial.value += 1
        elif step.value < len(steps) - 1:
            step.value += 1

    step.observe(enter, "value")
    onward.on_click(advance)
    box.children = (ipywidgets.HBox([*box.children[0].children, onward]), *box.children[1:])
    return box


def describe(generation: Generation, index: int, trial: int, pieces: Pieces) -> str:
    """The readout of the stepper: where we are, the coin, the text so far with this step's tokens marked."""
    steps, step = generation.steps, generation.steps[index]
    table = tree_table(step.draft, step.verdict, labels=pieces, upto=trial)
    chosen = table[table["state"].isin(["accepted", "recovered", "bonus"])].sort_values("depth")
    chosen = chosen.iloc[: len(step.tokens)]  # the last step may have been cut
    before = [token for earlier in steps[:index] for token in earlier.tokens]
    text = "".join(pieces(before[-60:])).replace("␣", " ").replace("⏎", "⏎\n")
    marked = "".join(map(token_html, chosen["label"], chosen["state"]))
    accepted = sum(len(s.verdict.path) for s in steps[:index]) + int((table["state"] == "accepted").sum())
    place = f"<b>steps[{index}]</b> of {len(steps)} · trial {trial} of {len(step.verdict.trials)}"
    place += f" · {accepted} draft tokens accepted so far · <b>{html.escape(outcome(step, trial))}</b>"
    return (
        f'<div style="{TEXT}">{place}'
        f'<div style="white-space:pre-wrap">{"…" * (len(before) > 60)}{html.escape(text)}{marked}</div></div>'
    )


def _slider(top: int) -> ipywidgets.IntSlider:
    """0..top. The browser's slider refuses an empty range, so one without a choice is 0..1 and disabled."""
    return ipywidgets.IntSlider(0, 0, max(top, 1), disabled=top == 0)
