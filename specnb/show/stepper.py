"""The stepper: a recorded generation replayed, step by step and coin by coin."""

import html
from collections.abc import Sequence
from functools import partial

import ipywidgets
import numpy as np
import torch
from matplotlib.axes import Axes

from specnb.decode import Generation, Step
from specnb.models import Pair
from specnb.show.charts import so_far, token_html, written
from specnb.show.explorers import Explorer, Picture, explorer, reach
from specnb.show.look import COLOURS, INK, LOOKS, bars, canvas, png
from specnb.show.trees import Pieces, draw_tree, drawable, last_piece, legend, read_on, tokens_to, tree_table


def render_step(steps: Sequence[Step], index: int, trial: int, pieces: Pieces) -> bytes:
    """PNG (1200 × 560) of steps[index] after its first ``trial`` trials: the tree and, right, the last coin.

    With a full trace also p and q of the likeliest tokens where the node on trial hangs.
    Raises IndexError on an unknown step, ValueError on a trial outside 0..number of trials.
    """
    step, pieces = steps[index], _in_text(steps[:index], pieces)
    with canvas(12, 5.6) as figure:
        table = tree_table(step.draft, step.verdict, labels=pieces, upto=trial)
        on_trial = step.verdict.trials[trial - 1].node if trial else None
        ax = draw_tree(table, ax=figure.add_axes((0.01, 0.09, 0.66, 0.9)), highlight=on_trial)
        legend(ax, [state for state in LOOKS if state != "auxiliary" or step.draft.auxiliary is not None])
        if not trial:
            figure.text(0.69, 0.9, outcome(step, 0), fontsize=13)
            return png(figure)
        label = drawable(table["label"][on_trial])[:12]
        _draw_coin(figure.add_axes((0.72, 0.76, 0.26, 0.1)), step, trial, label)
        if step.p is not None:
            _draw_laws(figure.add_axes((0.8, 0.1, 0.18, 0.4)), step, on_trial, pieces)
        return png(figure)


def _in_text(earlier: Sequence[Step], pieces: Pieces) -> Pieces:
    """Texts of tokens from a step's root on, as they read in the text; the last of the earlier tokens is the root."""
    return partial(read_on, written(earlier)[:-1], pieces=pieces)


def outcome(step: Step, trial: int) -> str:
    """What the trial-th trial (from 1) came to, in words."""
    if trial == 0:
        return "nothing tried yet" if step.verdict.trials else "nothing to try: the target's own token"
    now, coin = step.verdict.trials[trial - 1], _coin(step, trial)
    said = "accepted" if now.accepted else "rejected"
    if coin is None:
        return f"no coin, the target's choice: {said}"
    return f"coin {coin:.2f} {'<' if coin < now.probability else '≥'} threshold {now.probability:.2f}: {said}"


def _coin(step: Step, trial: int) -> float | None:
    """The number behind the trial-th trial (from 1); None if the verifier tossed no coins for its trials."""
    return step.uniforms[trial - 1] if len(step.uniforms) == len(step.verdict.trials) else None


def _draw_coin(ax: Axes, step: Step, trial: int, label: str) -> None:
    """The threshold as a bar on 0..1, the coin as a line: left of the bar's end means accepted."""
    now, coin, colour = step.verdict.trials[trial - 1], _coin(step, trial), COLOURS["accepted"]
    ax.barh(0, 1, 1, color="white", edgecolor=INK, lw=1)
    ax.barh(0, now.probability, 1, color=colour, alpha=0.3, edgecolor=colour, hatch="//", lw=1)
    if coin is not None:
        ax.axvline(coin, color=INK, lw=4)
    ax.set(xlim=(-0.01, 1.01), ylim=(-0.5, 0.5), yticks=[], xticks=[0, 0.5, 1])
    ax.spines[:].set_visible(False)
    title = f"trial {trial} of {len(step.verdict.trials)}: “{label}”\nacceptance probability {now.probability:.2f}"
    ax.set_title(title, parse_math=False)
    ax.set_xlabel(outcome(step, trial))


def _draw_laws(ax: Axes, step: Step, node: int, pieces: Pieces) -> None:
    """p and, if there is one, q after the node's parent: the drafted token and the likeliest others."""
    tree, parent = step.draft.tree, step.draft.tree.parent_list[node]
    laws = {"p": step.p[parent].cpu().double()}
    if step.draft.q is not None:
        laws["q"] = step.draft.law(parent, len(step.p[parent]))
    drafted, most = tree.token_list[node], torch.stack(list(laws.values())).amax(0)
    others = [token for token in most.topk(min(5, len(most))).indices.tolist() if token != drafted and most[token]]
    top = sorted([drafted, *others[:4]], key=lambda token: -most[token])
    for i, (name, law) in enumerate(laws.items()):
        ax.barh(np.arange(len(top)) + 0.38 * i, [float(law[token]) for token in top], 0.38, **bars(name))
    before = tokens_to(tree, parent)
    texts = [drawable(last_piece([*before, token], pieces))[:10] for token in top]
    names = [("▸ " if token == drafted else "") + text for token, text in zip(top, texts, strict=True)]
    ax.set_yticks(np.arange(len(top)) + 0.19 * (len(laws) - 1), names, parse_math=False)
    ax.set(xlim=(0, 1.05), ylim=(len(top) - 0.3, -0.4), xticks=[0, 0.5, 1])
    after = drawable(last_piece(before, pieces))[:12]
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

    counts = [len(step.verdict.trials) for step in steps]

    def render(step: int, trial: int) -> Picture:
        done = min(trial, counts[step])
        return render_step(steps, step, done, pieces), describe(generation, step, done, pieces)

    def enter(change) -> None:
        trial.value = 0
        reach(trial, counts[step.value])

    def advance(button) -> None:
        if trial.value < counts[step.value]:
            trial.value += 1
        elif step.value < len(steps) - 1:
            step.value += 1

    step, trial = ipywidgets.IntSlider(), ipywidgets.IntSlider()
    reach(step, len(steps) - 1)
    reach(trial, counts[0])
    walk = [{"step": i, "trial": done} for i, count in enumerate(counts) for done in range(count + 1)]
    box = explorer({"step": step, "trial": trial}, render, walk=walk)
    box.controls.next = onward = ipywidgets.Button(description="next", tooltip="the next trial, or the next step")
    step.observe(enter, "value")
    onward.on_click(advance)
    box.children = (ipywidgets.HBox([*box.children[0].children, onward]), *box.children[1:])
    return box


def describe(generation: Generation, index: int, trial: int, pieces: Pieces) -> str:
    """The readout of the stepper: where we are, the coin, the text so far with this step's tokens marked."""
    steps, step = generation.steps, generation.steps[index]
    table = tree_table(step.draft, step.verdict, upto=trial)
    chosen = table[table["state"].isin(["accepted", "recovered", "bonus"])].sort_values("depth")
    chosen = chosen.iloc[: len(step.tokens)]  # the last step may have been cut
    accepted = sum(len(s.verdict.path) for s in steps[:index]) + int((table["state"] == "accepted").sum())
    words = f"<b>steps[{index}]</b> of {len(steps)} · trial {trial} of {len(step.verdict.trials)}"
    words += f" · draft tokens accepted so far: {accepted} · <b>{html.escape(outcome(step, trial))}</b>"
    tokens = chosen["token"].tolist()
    texts = read_on(written(steps[:index]), tokens, pieces)
    return so_far(words, steps[:index], "".join(map(token_html, texts, chosen["state"])), pieces, tokens)
