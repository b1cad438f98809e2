"""The stepper: a recorded generation replayed, step by step and coin by coin."""

import html
from collections.abc import Sequence
from functools import partial

import ipywidgets
import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from specnb.decode import Generation, Step
from specnb.models import Pair
from specnb.show.charts import so_far, token_html, written
from specnb.show.explorers import Explorer, Picture, explorer, reach
from specnb.show.look import COLOURS, INK, LOOKS, bars, canvas, png
from specnb.show.trees import Pieces, draw_tree, drawable, last_piece, legend, read_on, tokens_to, tree_table


def stepper(generation: Generation, pair_or_pieces: Pair | Pieces) -> Explorer:
    """Replay a recorded generation: a slider over its steps, one over the trials of a step, and a button.

    pair_or_pieces: a Pair, or a function token ids → texts. controls: step, trial, next, readout, image; step
    counts from 0, as generation.steps does. Raises ValueError if no steps were recorded.
    """
    steps = generation.steps
    if not steps:
        raise ValueError("this generation holds no steps: decode with trace='light' or trace='full'")
    pieces = getattr(pair_or_pieces, "pieces", pair_or_pieces)
    trial_counts = [len(step.verdict.trials) for step in steps]
    step_slider = ipywidgets.IntSlider()
    trial_slider = ipywidgets.IntSlider()
    reach(step_slider, len(steps) - 1)
    reach(trial_slider, trial_counts[0])

    def render(step: int, trial: int) -> Picture:
        trial = min(trial, trial_counts[step])
        return render_step(steps, step, trial, pieces), describe(generation, step, trial, pieces)

    def enter(change) -> None:
        trial_slider.value = 0
        reach(trial_slider, trial_counts[step_slider.value])

    def advance(button) -> None:
        if trial_slider.value < trial_counts[step_slider.value]:
            trial_slider.value += 1
        elif step_slider.value < len(steps) - 1:
            step_slider.value += 1

    walk = []
    for i, count in enumerate(trial_counts):
        walk += [{"step": i, "trial": trial} for trial in range(count + 1)]
    box = explorer({"step": step_slider, "trial": trial_slider}, render, walk=walk)
    step_slider.observe(enter, "value")

    next_button = ipywidgets.Button(description="next", tooltip="the next trial, or the next step")
    next_button.on_click(advance)
    box.controls.next = next_button
    sliders, *below = box.children
    box.children = (ipywidgets.HBox([*sliders.children, next_button]), *below)
    return box


# ---- the picture -------------------------------------------------------------------------------------------------


def render_step(steps: Sequence[Step], index: int, trial: int, pieces: Pieces) -> bytes:
    """PNG (1200 × 560) of steps[index] after its first ``trial`` trials: the tree and, right, the last coin.

    With a full trace also p and q of the likeliest tokens where the node on trial hangs.
    Raises IndexError on an unknown step, ValueError on a trial outside 0..number of trials.
    """
    step = steps[index]
    pieces = _in_text(steps[:index], pieces)
    table = tree_table(step.draft, step.verdict, labels=pieces, upto=trial)
    on_trial = step.verdict.trials[trial - 1].node if trial else None
    states = list(LOOKS)
    if step.draft.auxiliary is None:
        states.remove("auxiliary")

    with canvas(12, 5.6) as figure:
        ax = figure.add_axes((0.01, 0.09, 0.66, 0.9))
        draw_tree(table, ax=ax, highlight=on_trial)
        legend(ax, states)
        if on_trial is None:
            figure.text(0.69, 0.9, outcome(step, 0), fontsize=13)
            return png(figure)
        above = figure.add_axes((0.72, 0.76, 0.26, 0.1))
        _draw_coin(above, step, trial, label=drawable(table["label"][on_trial])[:12])
        if step.p is not None:
            below = figure.add_axes((0.8, 0.1, 0.18, 0.4))
            _draw_laws(below, step, on_trial, pieces)
        return png(figure)


def _in_text(earlier: Sequence[Step], pieces: Pieces) -> Pieces:
    """Texts of tokens from a step's root on, as they read in the text; the last of the earlier tokens is the root."""
    before_root = written(earlier)[:-1]
    return partial(read_on, before_root, pieces=pieces)


def _draw_coin(ax: Axes, step: Step, trial: int, label: str) -> None:
    """The threshold as a bar on 0..1, the coin as a line: left of the bar's end means accepted."""
    threshold = step.verdict.trials[trial - 1].probability
    coin = _coin(step, trial)
    green = COLOURS["accepted"]
    ax.barh(0, 1, 1, color="white", edgecolor=INK, lw=1)
    ax.barh(0, threshold, 1, color=green, alpha=0.3, edgecolor=green, hatch="//", lw=1)
    if coin is not None:
        ax.axvline(coin, color=INK, lw=4)
    ax.set(xlim=(-0.01, 1.01), ylim=(-0.5, 0.5), yticks=[], xticks=[0, 0.5, 1])
    ax.spines[:].set_visible(False)
    title = f"trial {trial} of {len(step.verdict.trials)}: “{label}”\nacceptance probability {threshold:.2f}"
    ax.set_title(title, parse_math=False)
    ax.set_xlabel(outcome(step, trial))


def _draw_laws(ax: Axes, step: Step, node: int, pieces: Pieces) -> None:
    """p and, if there is one, q after the node's parent: the drafted token and the likeliest others."""
    tree = step.draft.tree
    parent = tree.parent_list[node]
    drafted = tree.token_list[node]
    laws = {"p": step.p[parent].cpu().double()}  # (V,)
    if step.draft.q is not None:
        laws["q"] = step.draft.law(parent, len(step.p[parent]))
    tokens = _likeliest(laws, drafted)

    places = np.arange(len(tokens))
    for i, (name, law) in enumerate(laws.items()):
        ax.barh(places + 0.38 * i, law[tokens].numpy(), 0.38, **bars(name))
    middle = 0.19 * (len(laws) - 1)  # of the bars of one token

    before = tokens_to(tree, parent)
    names = []
    for token in tokens:
        mark = "▸ " if token == drafted else ""
        text = drawable(last_piece([*before, token], pieces))
        names.append(mark + text[:10])
    ax.set_yticks(places + middle, names, parse_math=False)
    ax.set(xlim=(0, 1.05), ylim=(len(tokens) - 0.3, -0.4), xticks=[0, 0.5, 1])
    root = drawable(last_piece(before, pieces))[:12]
    ax.set_title(f"after “{root}”, before any rejection", fontsize=12, loc="right", parse_math=False)
    ax.legend(loc="lower right", fontsize=12)


def _likeliest(laws: dict[str, Tensor], drafted: int) -> list[int]:
    """The drafted token and up to four others to which one of the laws gives most, the likeliest first.

    Example: p = (.5, .3, .2, 0), q = (0, .1, .9, 0) give at most (.5, .3, .9, 0). With token 1 drafted it is 2, 0, 1:
    the last token is impossible under both.
    """
    most = torch.stack(list(laws.values())).amax(0)  # (V,)
    candidates = most.topk(min(5, len(most))).indices.tolist()
    others = [token for token in candidates if token != drafted and most[token] > 0]
    return sorted([drafted, *others[:4]], key=lambda token: -most[token])


# ---- the words ---------------------------------------------------------------------------------------------------


def outcome(step: Step, trial: int) -> str:
    """What the trial-th trial (from 1) came to, in words."""
    if trial == 0:
        return "nothing tried yet" if step.verdict.trials else "nothing to try: the target's own token"
    now = step.verdict.trials[trial - 1]
    coin = _coin(step, trial)
    decision = "accepted" if now.accepted else "rejected"
    if coin is None:
        return f"no coin, the target's choice: {decision}"
    sign = "<" if coin < now.probability else "≥"
    return f"coin {coin:.2f} {sign} threshold {now.probability:.2f}: {decision}"


def _coin(step: Step, trial: int) -> float | None:
    """The number behind the trial-th trial (from 1); None if the verifier tossed no coins for its trials."""
    if len(step.uniforms) != len(step.verdict.trials):
        return None
    return step.uniforms[trial - 1]


def describe(generation: Generation, index: int, trial: int, pieces: Pieces) -> str:
    """The readout of the stepper: where we are, the coin, the text so far with this step's tokens marked."""
    step = generation.steps[index]
    earlier = generation.steps[:index]
    table = tree_table(step.draft, step.verdict, upto=trial)
    accepted = sum(len(before.verdict.path) for before in earlier)
    accepted += int((table["state"] == "accepted").sum())
    words = " · ".join(
        [
            f"<b>steps[{index}]</b> of {len(generation.steps)}",
            f"trial {trial} of {len(step.verdict.trials)}",
            f"draft tokens accepted so far: {accepted}",
            f"<b>{html.escape(outcome(step, trial))}</b>",
        ]
    )

    elected = table[table["state"].isin(["accepted", "recovered", "bonus"])].sort_values("depth")
    elected = elected.iloc[: len(step.tokens)]  # the last step may have been cut
    tokens = elected["token"].tolist()
    texts = read_on(written(earlier), tokens, pieces)
    marked = "".join(map(token_html, texts, elected["state"]))
    return so_far(words, earlier, marked, pieces, tokens)
