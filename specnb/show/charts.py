"""Charts into Axes: who sees whom, a text with its origins, ranked bars, trends."""

import html
import math
from collections.abc import Iterable, Sequence
from itertools import islice

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_hex

from specnb import masks
from specnb.decode import Step
from specnb.show.look import INK, LOOKS, TEXT_STYLE, kinds, light
from specnb.show.trees import Labels, Pieces, clip, drawable, label_nodes, next_kind, points, read_on
from specnb.tree import TokenTree


def draw_mask(tree: TokenTree, prefix_length: int = 0, *, labels: Labels = None, ax: Axes | None = None) -> Axes:
    """Who sees whom: a row per node that asks, a column per prefix token (condensed to six) and node seen."""
    names = [clip(drawable(text), 10) for text in label_nodes(tree, labels)]
    prefix = list(map(str, range(prefix_length)))
    if prefix_length > 6:
        prefix = [*prefix[:3], "…", *prefix[-2:]]
    seen, cut = masks.visible(tree, len(prefix)).numpy(), len(prefix)
    rows, columns = seen.shape
    if ax is None:
        cell = min(max(6.0 / rows, 0.115), 0.4)
        wide, tall = columns * cell + 1.5, rows * cell + 1.6
        ax = plt.figure(figsize=(wide, tall)).add_axes((1.3 / wide, 1.2 / tall, 1 - 1.5 / wide, 1 - 1.6 / tall))
    shade = np.where(seen, np.where(np.arange(columns) < cut, 1, 2), 0)
    ax.imshow(shade, cmap=ListedColormap(["white", "#DDDDDD", "#AFC6DC"]), vmin=0, vmax=2)
    width, height = points(ax)
    pitch = min(width / columns, height / rows)
    y, x = np.nonzero(seen)
    ax.scatter(x, y, (pitch * 0.3) ** 2, INK, lw=0)
    ax.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="#D0D0D0", lw=0.5)
    ax.axvline(cut - 0.5, color=INK, lw=2 if cut else 0)
    every = math.ceil(8 / (pitch * 0.9))  # no name is smaller than 8 points: where rows are narrower, some have none
    plain = {"fontsize": min(max(pitch * 0.9, 8), 12), "parse_math": False}
    ax.set_xticks(range(0, columns, every), [*prefix, *names][::every], rotation=90, **plain)
    ax.set_yticks(range(0, rows, every), names[::every], **plain)
    ax.tick_params(which="both", length=0)
    ax.set(xlabel=("prefix positions, then " if cut else "") + "nodes as keys", ylabel="nodes as queries")
    ax.xaxis.set_label_position("top")
    ax.spines[:].set_visible(False)
    return ax


def token_html(piece: str, state: str) -> str:
    """One token as HTML, tinted and underlined by its state. piece: as from ``Pair.pieces``."""
    look, tint = LOOKS[state], to_hex(light(LOOKS[state].colour))
    text = html.escape(piece).replace("␣", " ").replace("⏎", "⏎\n")
    style = f"color:#111;background-color:{tint};border-bottom:{look.underline} {look.colour}"
    return f'<span title="{state}" style="{style}">{text}</span>'


def step_html(step: Step, pieces: Pieces, before: Sequence[int] = ()) -> str:
    """A step's tokens as HTML, each marked by its origin, as they read behind those before."""
    return _marked(step, read_on(before, step.tokens, pieces))


def _marked(step: Step, texts: Sequence[str]) -> str:
    """The texts of a step's tokens as HTML, each marked by its origin."""
    states = ["accepted"] * len(step.verdict.path) + [next_kind(step.draft, step.verdict)]
    return "".join(map(token_html, texts, states))  # tokens may be cut short at the end


def written(steps: Iterable[Step]) -> list[int]:
    """The tokens that steps wrote, one step after the other."""
    return [token for step in steps for token in step.tokens]


def draw_text(steps: Sequence[Step], pieces: Pieces) -> str:
    """HTML of the generated text, each token marked by origin, a thin bar between steps.

    pieces: token ids → texts (``Pair.pieces``); everything is escaped.
    """
    key = " ".join(token_html(state, state) for state in ("accepted", "bonus", "recovered"))
    texts = iter(pieces(written(steps)))  # of all at once: a character may be spread over steps
    parts = [_marked(step, list(islice(texts, len(step.tokens)))) for step in steps]
    text = '<span style="color:#999">|</span>'.join(parts)
    return f'<div style="{TEXT_STYLE}"><div style="font-size:14px">{key}</div>{text}</div>'


def so_far(words: str, steps: Sequence[Step], marked: str, pieces: Pieces, after: Sequence[int] = ()) -> str:
    """HTML: some words, and below them the end of what the steps wrote, then marked tokens (HTML too).

    after: the marked tokens' ids; a character that the text begins and they complete is theirs.
    """
    tokens = written(steps)
    earlier, shown = tokens[:-60], tokens[-60:]
    texts = read_on(earlier, [*shown, *after], pieces)[: len(shown)]
    text = html.escape("".join(texts)).replace("␣", " ").replace("⏎", "⏎\n")
    return f'<div style="{TEXT_STYLE}">{words}<div>{"…" * (len(tokens) > 60)}{text}{marked}</div></div>'


def ranked(table: pd.DataFrame, value: str, label: str, kind: str | None = None, *, ax: Axes | None = None) -> Axes:
    """Horizontal bars of a table's values, largest first, one colour and hatch per kind (a column of up to five)."""
    ax = ax or plt.subplots(figsize=(11, 0.42 * len(table) + 1.2))[1]
    table = table.sort_values(value, ascending=False, ignore_index=True)
    of = table[kind] if kind else pd.Series("", table.index)
    for name, (colour, hatch, _) in kinds(of).items():
        part = table[value][of == name]
        bars = ax.barh(part.index, part, 0.7, color=colour, hatch=hatch, edgecolor="white", lw=0, label=name)
        ax.bar_label(bars, fmt=" {:.3f}", fontsize=13)
    ax.set_yticks(range(len(table)), table[label])
    ax.set(xlim=(0, 1.12 * table[value].max()), xlabel=value)
    ax.invert_yaxis()
    if kind:
        ax.legend(loc="lower right", title=kind, frameon=True, framealpha=1, edgecolor="none")
    return ax


def trend(table: pd.DataFrame, x: str, value: str, kind: str, *, ax: Axes | None = None) -> Axes:
    """Lines of value over x, one per kind, with a band between the columns low and high where a row has them."""
    ax = ax or plt.subplots(figsize=(7, 4.5), layout="constrained")[1]
    for name, (colour, _, marker) in kinds(table[kind]).items():
        part = table[table[kind] == name].sort_values(x)
        ax.plot(part[x], part[value], marker=marker, color=colour, label=name)
        if {"low", "high"} <= set(part):
            ax.fill_between(part[x], part["low"], part["high"], color=colour, alpha=0.15, lw=0)
    ax.set(xlabel=x, ylabel=value, xticks=sorted(set(table[x])))
    ax.legend()
    return ax
