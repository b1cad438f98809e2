"""Charts into Axes: who sees whom, a text with its origins, ranked bars, trends."""

import html
import math
from collections.abc import Iterable, Sequence
from itertools import islice

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from specnb import masks
from specnb.decode import Step
from specnb.show.look import INK, LOOKS, TEXT_STYLE, kinds, light
from specnb.show.trees import Labels, Pieces, clip, drawable, label_nodes, next_kind, points, read_on
from specnb.tree import TokenTree

SHOWN = 60  # tokens of the text so far


def draw_mask(tree: TokenTree, prefix_length: int = 0, *, labels: Labels = None, ax: Axes | None = None) -> Axes:
    """Who sees whom: a row per node that asks, a column per prefix token (condensed to six) and node seen."""
    prefix = _prefix_names(prefix_length)
    nodes = [clip(drawable(text), 10) for text in label_nodes(tree, labels)]
    visible = masks.visible(tree, len(prefix)).numpy()  # (n, len(prefix) + n) bool
    rows, columns = visible.shape
    if ax is None:
        ax = _mask_axes(rows, columns)
    width, height = points(ax)
    pitch = min(width / columns, height / rows)  # points from one cell to the next

    shade_of_column = np.where(np.arange(columns) < len(prefix), 1, 2)  # of what is seen there
    seaborn.heatmap(
        np.where(visible, shade_of_column, 0),
        cmap=["white", "#DDDDDD", "#AFC6DC"],
        vmin=0,
        vmax=2,
        square=True,
        linewidths=0.5,
        linecolor="#D6D6D6",
        cbar=False,
        xticklabels=False,
        yticklabels=False,
        ax=ax,
    )
    row, column = np.nonzero(visible)
    ax.scatter(column + 0.5, row + 0.5, (pitch * 0.3) ** 2, INK, lw=0)
    if prefix:
        ax.axvline(len(prefix), color=INK, lw=2)

    # No name is smaller than 8 points: where rows are narrower, some have none.
    every = math.ceil(8 / (pitch * 0.9))
    look = {"fontsize": min(max(pitch * 0.9, 8), 12), "parse_math": False}
    names = [*prefix, *nodes]
    ax.set_xticks(np.arange(0, columns, every) + 0.5, names[::every], rotation=90, **look)
    ax.set_yticks(np.arange(0, rows, every) + 0.5, nodes[::every], **look)
    ax.tick_params(length=0)
    keys = "prefix positions, then nodes as keys" if prefix else "nodes as keys"
    ax.set(xlabel=keys, ylabel="nodes as queries")
    ax.xaxis.set_label_position("top")
    return ax


def _prefix_names(length: int) -> list[str]:
    """Names of the columns for the prefix: its positions; of more than six the first three, "…" and the last two."""
    positions = [str(position) for position in range(length)]
    if length > 6:
        return [*positions[:3], "…", *positions[-2:]]
    return positions


def _mask_axes(rows: int, columns: int) -> Axes:
    """Axes in a figure of their own, as large as a mask of so many cells asks for."""
    cell = min(max(6.0 / rows, 0.115), 0.4)  # inches
    left, right, below, above = 1.3, 0.2, 1.2, 0.4  # inches around the mask
    wide = left + columns * cell + right
    tall = below + rows * cell + above
    figure = plt.figure(figsize=(wide, tall))
    return figure.add_axes((left / wide, below / tall, 1 - (left + right) / wide, 1 - (below + above) / tall))


# ---- texts -------------------------------------------------------------------------------------------------------


def token_html(piece: str, state: str) -> str:
    """One token as HTML, tinted and underlined by its state. piece: as from ``Pair.pieces``."""
    look = LOOKS[state]
    tint = to_hex(light(look.colour))
    style = f"color:#111;background-color:{tint};border-bottom:{look.underline} {look.colour}"
    return f'<span title="{state}" style="{style}">{_plain(piece)}</span>'


def _plain(piece: str) -> str:
    """A piece of text as HTML in which its spaces are spaces, and its line ends are shown and break the line."""
    return html.escape(piece).replace("␣", " ").replace("⏎", "⏎\n")


def step_html(step: Step, pieces: Pieces, before: Sequence[int] = ()) -> str:
    """A step's tokens as HTML, each marked by its origin, as they read behind those before."""
    return _marked(step, read_on(before, step.tokens, pieces))


def _marked(step: Step, texts: Sequence[str]) -> str:
    """The texts of a step's tokens as HTML, each marked by its origin."""
    states = ["accepted"] * len(step.verdict.path)
    states.append(next_kind(step.draft, step.verdict))
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
    parts = []
    for step in steps:
        texts_of_step = list(islice(texts, len(step.tokens)))
        parts.append(_marked(step, texts_of_step))
    text = '<span style="color:#999">|</span>'.join(parts)
    return f'<div style="{TEXT_STYLE}"><div style="font-size:14px">{key}</div>{text}</div>'


def so_far(words: str, steps: Sequence[Step], marked: str, pieces: Pieces, after: Sequence[int] = ()) -> str:
    """HTML: some words, and below them the end of what the steps wrote, then marked tokens (HTML too).

    after: the marked tokens' ids; a character that the text begins and they complete is theirs.
    """
    tokens = written(steps)
    left_out = tokens[:-SHOWN]
    shown = tokens[-SHOWN:]
    texts = read_on(left_out, [*shown, *after], pieces)
    text = _plain("".join(texts[: len(shown)]))
    if left_out:
        text = "…" + text
    return f'<div style="{TEXT_STYLE}">{words}<div>{text}{marked}</div></div>'


# ---- tables ------------------------------------------------------------------------------------------------------


def ranked(table: pd.DataFrame, value: str, label: str, kind: str | None = None, *, ax: Axes | None = None) -> Axes:
    """Horizontal bars of a table's values, largest first, one colour and hatch per kind (a column of up to five).

    ax: empty axes, if not those of a new figure.
    """
    if ax is None:
        _, ax = plt.subplots(figsize=(11, 0.42 * len(table) + 1.2))
    table = table.sort_values(value, ascending=False, ignore_index=True)
    kind_of_row = pd.Series("", table.index) if kind is None else table[kind]
    looks = kinds(kind_of_row)
    colours = {name: look.colour for name, look in looks.items()}
    seaborn.barplot(
        x=table[value],
        y=table.index,  # a row has its own place, though others may have the same label
        hue=kind_of_row,
        hue_order=list(looks),
        palette=colours,
        saturation=1,
        orient="y",
        width=0.7,
        edgecolor="white",
        linewidth=0,
        errorbar=None,  # a bar is one row
        legend=False,
        ax=ax,
    )
    for (name, look), bars in zip(looks.items(), ax.containers, strict=True):
        plt.setp(bars.patches, hatch=look.hatch)
        bars.set_label(name)
        ax.bar_label(bars, fmt=" {:.3f}", fontsize=13)
    ax.set_yticks(range(len(table)), table[label])
    ax.set(xlim=(0, 1.12 * table[value].max()), xlabel=value, ylabel="")
    if kind is not None:
        ax.legend(loc="lower right", title=kind, frameon=True, framealpha=1, edgecolor="none")
    return ax


def trend(table: pd.DataFrame, x: str, value: str, kind: str, *, ax: Axes | None = None) -> Axes:
    """Lines of value over x, one per kind, with a band between the columns low and high where a row has them.

    A line goes past rows without a value to the next that has one.
    """
    if ax is None:
        _, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
    looks = kinds(table[kind])
    colours = {name: look.colour for name, look in looks.items()}
    markers = {name: look.marker for name, look in looks.items()}
    seaborn.lineplot(
        table,
        x=x,
        y=value,
        hue=kind,
        hue_order=list(looks),
        palette=colours,
        style=kind,
        style_order=list(looks),
        markers=markers,
        dashes=False,
        markersize=8,
        estimator=None,  # every row is drawn: nothing is averaged, no interval is made up
        ax=ax,
    )
    if {"low", "high"} <= set(table):
        for name, colour in colours.items():
            part = table[table[kind] == name].sort_values(x)
            ax.fill_between(part[x], part["low"], part["high"], color=colour, alpha=0.15, lw=0)
    ax.set(xticks=sorted(set(table[x])))
    return ax
