"""Token trees as pictures: a table of nodes with their states and places, and its drawing."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from torch import Tensor

from specnb.show.look import INK, LOOKS, Look, light
from specnb.tree import Draft, TokenTree, Trial, Verdict

Pieces = Callable[[Sequence[int]], Sequence[str]]  # token ids → texts, as Pair.pieces
Labels = Pieces | Sequence[str] | None
AROUND = 8  # tokens before others that settle how these read: whether a space comes first, whose character they end
LABEL = {"textcoords": "offset points", "parse_math": False, "zorder": 2}
LABEL["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
PLACES = {
    "under": {"ha": "center", "va": "top", "linespacing": 1.05},
    "side": {"ha": "left", "va": "center_baseline"},
    "turned": {"ha": "center", "va": "top", "rotation": 90},
}


def tree_table(
    draft: Draft,
    verdict: Verdict | None = None,
    *,
    p: Tensor | None = None,
    labels: Labels = None,
    upto: int | None = None,
) -> pd.DataFrame:
    """One row per node: node, parent, depth, token, label, state, x, y, p, q, trial_probability.

    upto: show the first upto trials only; None, or as many as there are, shows the whole verdict, with a last
    row for the next token: "bonus" if the path ended where nothing was left to try, else "recovered".
    p: (n, V); labels: token ids → texts (``Pair.pieces``), asked along each node's path, or one text per node.
    x, y: leaves one apart, parents centred, the next token right of its siblings; they do not depend on upto.
    Missing: nan.
    Raises ValueError on an upto outside 0..number of trials and on a wrong number of labels.
    """
    tree, whole, trials = draft.tree, draft.tree, () if verdict is None else verdict.trials
    if upto is not None and not 0 <= upto <= len(trials):
        raise ValueError(f"upto must be in 0..{len(trials)}, the number of trials, got {upto}")
    complete = verdict is not None and upto in (None, len(trials))
    states = _states(draft, trials[:upto], verdict.path if complete else None)
    if verdict is not None:
        whole = tree.grow(torch.tensor([verdict.next_token]), torch.tensor([(0, *verdict.path)[-1]]))
        states.append(next_kind(draft, verdict))
    tokens, parents, depth, x = whole.token_list, whole.parent_list, whole.depth_list, _across(whole)
    target, law, tried = (np.full(len(tokens), np.nan) for _ in range(3))
    if p is not None:
        target[1:] = p.cpu().double().numpy()[parents[1:], tokens[1:]]
    if draft.q is not None:
        law[1 : len(tree)] = draft.q.cpu().double().numpy()[tree.parent_list[1:], draft.columns.numpy()[1:]]
    for trial in trials[:upto]:
        tried[trial.node] = trial.probability
    table = pd.DataFrame({"node": range(len(tokens)), "parent": parents, "depth": depth, "token": tokens})
    table["label"], table["state"] = label_nodes(whole, labels, len(tree)), states
    table["x"], table["y"] = x, -table["depth"].astype(float)
    table["p"], table["q"], table["trial_probability"] = target, law, tried
    table.attrs["size"] = max(x) + 1, max(depth) + 1  # leaves, levels: the same for every upto
    return table if complete or verdict is None else table.iloc[:-1]


def next_kind(draft: Draft, verdict: Verdict) -> str:
    """What the next token is: "bonus" after a path that nothing could prolong, else "recovered"."""
    return "recovered" if draft.candidates[(0, *verdict.path)[-1]] else "bonus"


def label_nodes(tree: TokenTree, labels: Labels, n: int | None = None) -> list[str]:
    """Texts of nodes: their ids, or what labels says of their paths, or the given list; its last may be missing."""
    tokens = tree.token_list
    if labels is None:
        return [str(token) for token in tokens]
    if callable(labels):
        return [last_piece(tokens_to(tree, node), labels) for node in range(len(tree))]
    if len(labels) not in (len(tokens), n):
        raise ValueError(f"labels must hold one text for each of {n or len(tokens)} nodes, got {len(labels)}")
    return [*labels, *map(str, tokens[len(labels) :])]


def tokens_to(tree: TokenTree, node: int) -> list[int]:
    """The tokens from the root to a node, both included."""
    return [tree.token_list[0], *tree.path_tokens(node)]


def last_piece(tokens: Sequence[int], pieces: Pieces) -> str:
    """The last token's text as it reads behind the others; as it reads alone if it only begins a character."""
    return pieces(tokens)[-1] or pieces(tokens[-1:])[-1]


def read_on(before: Sequence[int], tokens: Sequence[int], pieces: Pieces) -> list[str]:
    """Texts of tokens as they read behind others."""
    before = before[-AROUND:]
    return list(pieces([*before, *tokens]))[len(before) :]


def score_notes(scores: Tensor, nodes: Sequence[int]) -> list[str]:
    """Path probabilities of some nodes of a tree, to be written beside them; nothing for the root."""
    return [f"{float(scores[node]):.2f}".removeprefix("0") if node else "" for node in nodes]


def _states(draft: Draft, trials: Sequence[Trial], path: Sequence[int] | None) -> list[str]:
    """States after these trials; path: the accepted nodes once they are known."""
    flags = [False] * len(draft.tree) if draft.auxiliary is None else draft.auxiliary.tolist()
    states = ["auxiliary" if flag else "unvisited" for flag in flags]
    for trial in trials:
        states[trial.node] = "rejected"
    if path is None:  # a bottom-up verifier accepts a whole path at its leaf: a trial counts for the ancestors
        path = [node for trial in trials if trial.accepted for node in draft.tree.path(trial.node)]
    for node in path:
        states[node] = "accepted"
    return ["root", *states[1:]]


def _across(tree: TokenTree) -> list[float]:
    """x of every node: leaves 0, 1, … from the left, parents over the middle of their children."""
    x = {leaf: float(place) for place, leaf in enumerate(sorted(tree.leaves, key=tree.path))}
    for node in reversed(range(len(tree))):
        if below := tree.children[node]:
            x[node] = (x[below[0]] + x[below[-1]]) / 2
    return [x[node] for node in range(len(tree))]


def draw_tree(
    table: pd.DataFrame, *, ax: Axes | None = None, notes: Sequence[str] | None = None, highlight: int | None = None
) -> Axes:
    """Draw a ``tree_table``: root on top, first-drawn child left, labels clipped to the room there is.

    notes: a short text for each row; never clipped.
    highlight: a node to put a ring around.
    """
    texts = [drawable(label) for label in table["label"]]
    notes = [[note] if note else [] for note in notes or [""] * len(texts)]
    longest, extra = max(map(len, texts)), max(map(len, notes))
    columns, levels = table.attrs.get("size") or (table["x"].max() + 1, table["depth"].max() + 1)
    if ax is None:
        _, ax = plt.subplots(figsize=_tree_size(columns, levels, longest, extra))
        ax.set_position([0, 0, 1, 1])
    width, height = points(ax)
    across, down = width / columns, height / levels
    size = min(max(min(across, down * 0.6) * 0.6, 6), 22)
    beside = [sum(len(part) + 1 for part in note) for note in notes]  # characters, if written behind the label
    place, font, room = _place(across, down, size, longest, extra, max(beside))
    lead = size / across if place == "side" else 0.5  # labels beside their nodes: all the room is on the right
    ax.set(xlim=(-lead, columns - lead), ylim=(size * 0.8 / down - levels, size * 0.8 / down))
    ax.set_axis_off()
    where = table.set_index("node")[["x", "y"]]
    for state, group in table.groupby("state"):
        look = LOOKS[state]
        list(_mark(ax, group["x"], group["y"], look, size))
        for row in group[group["node"] > 0].itertuples():
            x, y = where.loc[row.parent]
            ax.plot([x, row.x], [y, row.y], look.edge, color=look.colour, lw=look.width, zorder=1)
    if highlight is not None:
        ax.plot(*where.loc[highlight], "o", ms=size * 1.6, mfc="none", mec=INK, mew=2, zorder=4)
    for row, text, note, width in zip(table.itertuples(), texts, notes, beside, strict=True):
        gap = size * (0.85 if row.node == highlight else 0.65) + 1
        left = max(room - (0 if place == "under" else width), 2)
        text = clip(text if left > 4 or len(text) <= left else text.removeprefix("␣"), left)
        words = ("\n" if place == "under" else " ").join([text, *note])
        offset = (gap, 0) if place == "side" else (0, -gap)
        ax.annotate(words, (row.x, row.y), offset, fontsize=font, **LABEL, **PLACES[place])
    return ax


def points(ax: Axes) -> tuple[float, float]:
    """Width and height of the axes in points."""
    box = ax.get_window_extent()
    return box.width * 72 / ax.figure.dpi, box.height * 72 / ax.figure.dpi


def _tree_size(columns: float, levels: int, longest: int, extra: int) -> tuple[float, float]:
    """Inches: as much as the labels ask for, at most what a projector shows."""
    beside = 0.7 * extra if levels > 8 else 0  # no room below the nodes of a deep tree
    wide = columns * (min(0.1 * longest, 1.1) + 0.2 + beside)
    tall = levels * (0.85 + 0.2 * extra + (0.25 if wide > 14 else 0))
    return min(max(wide, 4), 12), max(min(tall, max(7.2, levels * 0.24)), 1.6)


def legend(ax: Axes, states: Iterable[str] = LOOKS) -> None:
    """Explain the given states in one line below the axes."""
    handles = {state: tuple(_mark(ax, [], [], LOOKS[state], 15)) for state in states}
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": len(handles), "columnspacing": 1.2}
    ax.legend(handles.values(), handles, handletextpad=0.1, scatterpoints=1, **place)


def _mark(ax: Axes, x: float, y: float, look: Look, size: float) -> Iterable[PathCollection]:
    """Draw a node of the given size (points), then the sign inside it."""
    area, tint, lw = (size * look.scale) ** 2, [light(look.colour)], min(0.6 + size * 0.07, 1.8)
    yield ax.scatter(x, y, area, tint, look.marker, ec=look.colour, ls=look.outline, lw=lw, zorder=3)
    if look.sign:
        yield ax.scatter(x, y, area / 5, "none", look.sign, ec=look.colour, lw=lw, zorder=4)


def _place(across: float, down: float, size: float, longest: int, extra: int, beside: int) -> tuple[str, int, int]:
    """Where labels go, at the largest font at which enough of them fits: place, points, characters.

    across, down: points per leaf and per level; size: of a node; extra, beside: notes to write to the label, in lines
    below it or in characters behind it.
    """
    best, enough = ("under", 7, 0.0), min(longest, 5)
    for font in range(12, 6, -1):
        em, line = 0.62 * font, 1.3 * font
        under = across / em - 1 if down > size * 1.3 + line * (1 + extra) + 5 else 0
        side = (across - size) / em - 1 if down > line else 0
        turned = (down - size * 1.3 - 6) / em if across > line else 0
        for place, room, notes in (("under", under, 0), ("side", side, beside), ("turned", turned, beside)):
            if room >= enough + notes:
                return place, font, int(room)
            best = max(best, (place, font, room), key=lambda option: option[2])
    return best[0], best[1], int(best[2])


def clip(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"


@cache
def _glyphs() -> frozenset[int]:
    return frozenset(font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap())


def drawable(text: str) -> str:
    """The text with every character that the figures' font lacks replaced by a frame."""
    return "".join(c if ord(c) in _glyphs() and c.isprintable() else "▯" for c in text)
