"""Figures: data in, Axes out; one look and one colour code for all notebooks. Nothing here shows a figure.

Trees are drawn in ``tree_figure`` and offered here as well.
"""

import html
import io
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from specnb import assets, masks, metrics
from specnb.decode import Step
from specnb.tree import TokenTree
from specnb.tree_figure import (
    COLOURS,
    INK,
    LOOKS,
    Labels,
    clip,
    draw_tree,
    drawable,
    label_tokens,
    legend,
    light,
    next_kind,
    points,
    score_notes,
    tree_table,
)

__all__ = ["COLOURS", "INK", "LOOKS", "draw_tree", "drawable", "legend", "score_notes", "tree_table"]

TEXT_STYLE = "font-size:17px;line-height:1.8;white-space:pre-wrap;max-width:1100px"
HATCH = {"p": ("#9A9A9A", ""), "q": ("#CCBB44", "//")}
PHASES = {
    "draft": ("#CCBB44", "//"),
    "target": ("#66CCEE", ""),
    "verify": ("#555555", ".."),
    "commit": ("#DDDDDD", ""),
}
KINDS = (("#4477AA", ""), ("#CCBB44", "//"), ("#AA3377", ".."), ("#66CCEE", "xx"), ("#BBBBBB", ""))
STYLE = {
    "font.family": ["DejaVu Sans"],
    "font.size": 13,
    "axes.titlesize": 14,
    "axes.labelsize": 13,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "legend.fontsize": 12,
    "legend.frameon": False,
    "figure.figsize": (9.0, 4.5),
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "hatch.linewidth": 0.6,
    "axes.prop_cycle": cycler(color=["#4477AA", "#CCBB44", "#66CCEE", "#AA3377", "#228833", "#EE6677"]),
}


def use_style() -> None:
    """One look for all notebooks: readable on a projector, white, no frame lines that carry nothing."""
    plt.rcParams.update(STYLE)


# ---- masks, time, text, lengths -------------------------------------------------------------------------


def draw_mask(tree: TokenTree, prefix_length: int = 0, *, labels: Labels = None, ax: Axes | None = None) -> Axes:
    """Who sees whom: a row per node that asks, a column per prefix token (condensed to six) and node seen."""
    names = [clip(drawable(text), 10) for text in label_tokens(tree.token_list, labels)]
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


def timeline_table(steps: Sequence[Step]) -> pd.DataFrame:
    """One row per step: step, draft, target, verify, commit (ms), tokens committed."""
    rows = [{phase: 1000 * step.seconds.get(phase, 0.0) for phase in PHASES} for step in steps]
    table = pd.DataFrame(rows, columns=list(PHASES))
    table.insert(0, "step", [step.index for step in steps])
    return table.assign(tokens=[len(step.tokens) for step in steps])


def draw_timeline(steps: Sequence[Step], *, ax: Axes | None = None) -> Axes:
    """A bar of milliseconds per step, split by phase, with the number of committed tokens at its end.

    Up to about 40 steps stay readable. The first step of a generation holds the prefill.
    """
    table = timeline_table(steps)
    if ax is None:
        _, ax = plt.subplots(figsize=(9, min(max(0.28 * len(table), 1.5), 6.2) + 1), layout="constrained")
    end, rows = np.zeros(len(table)), np.arange(len(table))
    for phase, (colour, hatch) in PHASES.items():
        look = {"color": colour, "hatch": hatch, "edgecolor": "white", "lw": 0}
        bars = ax.barh(rows, table[phase], 0.75, end, label=phase, **look)
        end += table[phase].to_numpy()
    font = min(12, 400 / max(len(table), 1))
    ax.bar_label(bars, [f"+{tokens}" for tokens in table["tokens"]], padding=4, fontsize=font)
    every = -(-len(table) // 20)
    ax.set_yticks(rows[::every], table["step"][::every])
    ax.set(ylabel="step", xlabel="milliseconds (at the end of each bar: tokens committed)")
    ax.set_ylim(len(table) - 0.4, -0.6)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
    return ax


def draw_lengths(steps: Sequence[Step], *, ax: Axes | None = None) -> Axes:
    """Histogram of accepted draft tokens per step, with their mean τ − 1."""
    counts = metrics.histogram(steps)
    if ax is None:
        _, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    ax.bar(counts.index, counts, color=light(COLOURS["accepted"]), edgecolor=COLOURS["accepted"], lw=1.5)
    tau = metrics.tau(steps)
    ax.axvline(tau - 1, color=INK, ls="--", label=f"mean {tau - 1:.2f}, so τ = {tau:.2f}")
    ax.set_xticks(range(counts.index.max() + 1))
    ax.set(xlabel="accepted draft tokens in a step", ylabel="steps")
    ax.legend()
    return ax


def token_html(piece: str, state: str) -> str:
    """One token as HTML, tinted and underlined by its state. piece: as from ``Pair.pieces``."""
    look, tint = LOOKS[state], "#" + "".join(f"{round(255 * c):02x}" for c in light(LOOKS[state].colour))
    text = html.escape(piece).replace("␣", " ").replace("⏎", "⏎\n")
    style = f"color:#111;background-color:{tint};border-bottom:{look.underline} {look.colour}"
    return f'<span title="{state}" style="{style}">{text}</span>'


def draw_text(steps: Sequence[Step], pieces: Callable[[Sequence[int]], Sequence[str]]) -> str:
    """HTML of the generated text, each token marked by origin, a thin bar between steps.

    pieces: token ids → texts (``Pair.pieces``); everything is escaped.
    """
    parts = []
    for step in steps:
        states = ["accepted"] * len(step.verdict.path) + [next_kind(step.draft, step.verdict)]
        parts.append("".join(map(token_html, pieces(step.tokens), states)))  # tokens may be cut short at the end
    key = " ".join(token_html(state, state) for state in ("accepted", "bonus", "recovered"))
    bar = '<span style="color:#999">|</span>'
    return f'<div style="{TEXT_STYLE}"><div style="font-size:14px">{key}</div>{bar.join(parts)}</div>'


# ---- files ----------------------------------------------------------------------------------------------


def save(drawn: Axes | Figure, name: str, data: pd.DataFrame | pd.Series) -> Path:
    """Write figures/NAME.png and the numbers it was drawn from, figures/NAME.csv; the same bytes each time.

    An index other than 0, 1, … is written too. Returns the PNG's path. ValueError on a name with a folder.
    """
    if Path(name).name != name:
        raise ValueError(f"name must be a plain file name without a folder, got {name!r}")
    figure = drawn if isinstance(drawn, Figure) else drawn.figure
    index = not isinstance(data.index, pd.RangeIndex)
    csv = data.to_csv(index=index, float_format="%.6g", lineterminator="\n")
    assets.FIGURES.mkdir(exist_ok=True)
    _write(assets.FIGURES / f"{name}.csv", csv.encode())
    return _write(assets.FIGURES / f"{name}.png", _encode(figure, dpi=110, bbox_inches="tight"))


def png(figure: Figure) -> bytes:
    """The figure as PNG, at its own size; closes it."""
    data = _encode(figure, dpi=figure.dpi)
    plt.close(figure)
    return data


def _encode(figure: Figure, **options) -> bytes:
    buffer = io.BytesIO()
    # Software would write matplotlib's version, and so change the file without a change of the picture.
    figure.savefig(buffer, format="png", metadata={"Software": None}, **options)
    return buffer.getvalue()


def _write(path: Path, data: bytes) -> Path:
    """Write a file that is either complete or not there."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="part-") as folder:
        part = Path(folder) / path.name
        part.write_bytes(data)
        os.replace(part, path)
    return path


def look(name: str) -> dict:
    """How p and q are drawn: bar arguments."""
    colour, hatch = HATCH[name]
    return {"color": colour, "hatch": hatch, "edgecolor": "white", "lw": 0, "label": name}


def kinds(names: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """Colour, hatch and marker of up to five kinds, in the order of their first mention; ValueError for more."""
    names = list(dict.fromkeys(names))
    if len(names) > len(KINDS):
        raise ValueError(f"a figure tells {len(KINDS)} kinds apart, got {len(names)}: {', '.join(map(str, names))}")
    return {name: (*look, marker) for name, look, marker in zip(names, KINDS, "os^Dv", strict=False)}


def ranked(table: pd.DataFrame, value: str, label: str, kind: str | None = None, *, ax: Axes | None = None) -> Axes:
    """Horizontal bars of a table's values, largest first, one colour and hatch per kind (a column of up to five)."""
    ax = ax or plt.subplots(figsize=(11, 0.42 * len(table) + 1.2))[1]
    table = table.sort_values(value, ascending=False)
    looks = kinds(table[kind] if kind else [None])
    for i, row in enumerate(table.to_dict("records")):
        colour, hatch, _ = looks[row.get(kind)]
        ax.barh(i, row[value], 0.7, color=colour, hatch=hatch, edgecolor="white", lw=0)
        ax.text(row[value], i, f" {row[value]:.3f}", va="center", fontsize=13)
    ax.set_yticks(range(len(table)), table[label])
    ax.set(xlim=(0, 1.12 * table[value].max()), xlabel=value)
    ax.invert_yaxis()
    if kind is None:
        return ax
    handles = [Patch(facecolor=c, hatch=h, edgecolor="white", label=name) for name, (c, h, _) in looks.items()]
    ax.legend(handles=handles, loc="lower right", title=kind, frameon=True, framealpha=1, edgecolor="none")
    return ax


def intervals(table: pd.DataFrame, value: str, label: str, kind: str, *, ax: Axes | None = None) -> Axes:
    """A dot with its interval (columns low, high) per label and kind, labels downwards, kinds beside each other."""
    labels, looks = list(dict.fromkeys(table[label])), kinds(table[kind])
    ax = ax or plt.subplots(figsize=(11, 0.3 * len(labels) * len(looks) + 1.6), layout="constrained")[1]
    for i, (name, (colour, _, marker)) in enumerate(looks.items()):
        part = table[table[kind] == name]
        rows = np.array([labels.index(text) for text in part[label]]) + (i - (len(looks) - 1) / 2) * 0.7 / len(looks)
        reach = [part[value] - part["low"], part["high"] - part[value]]
        ax.errorbar(part[value], rows, xerr=reach, fmt=marker, color=colour, capsize=3, label=name)
    ax.axvline(0, color=INK, lw=1)
    ax.set_yticks(range(len(labels)), labels)
    ax.set(xlabel=value, ylim=(len(labels) - 0.5, -0.5))
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(looks), title=kind)
    return ax


def draw_reliability(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """``metrics.reliability`` against the diagonal: dots by bin, their area by the number of tokens in it."""
    ax = ax or plt.subplots(figsize=(5.5, 5), layout="constrained")[1]
    ax.plot([0, 1], [0, 1], ls="--", lw=1, color=INK, label="calibrated")
    ax.vlines(table["confidence"], table["confidence"], table["accuracy"], color=COLOURS["rejected"], lw=2, label="gap")
    size = 30 + 300 * table["count"] / table["count"].max()
    ax.scatter(table["confidence"], table["accuracy"], size, color=KINDS[0][0], zorder=3)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="share accepted")
    ax.legend(loc="upper left")
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
