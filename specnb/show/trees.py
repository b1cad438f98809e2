"""Token trees as pictures: a table of nodes with their states and places, and its drawing."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import NamedTuple

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

# How ``Axes.annotate`` writes a label: anywhere, and at each of the places where labels may stand.
LABEL = {
    "textcoords": "offset points",
    "parse_math": False,
    "zorder": 2,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.4},
}
PLACES = {
    "under": {"ha": "center", "va": "top", "linespacing": 1.05},
    "side": {"ha": "left", "va": "center_baseline"},
    "turned": {"ha": "center", "va": "top", "rotation": 90},
}


# ---- the table ---------------------------------------------------------------------------------------------------


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
    trials = () if verdict is None else verdict.trials
    if upto is None:
        upto = len(trials)
    if not 0 <= upto <= len(trials):
        raise ValueError(f"upto must be in 0..{len(trials)}, the number of trials, got {upto}")
    complete = verdict is not None and upto == len(trials)
    states = _states(draft, trials[:upto], verdict.path if complete else None)

    tree = draft.tree
    if verdict is not None:  # the next token has a place from the start, so that no node moves when it is shown
        tree = _with_next_token(tree, verdict)
        states.append(next_kind(draft, verdict))
    x = _across(tree)

    table = pd.DataFrame(
        {
            "node": range(len(tree)),
            "parent": tree.parent_list,
            "depth": tree.depth_list,
            "token": tree.token_list,
            "label": label_nodes(tree, labels, len(draft.tree)),
            "state": states,
            "x": x,
            "y": -np.array(tree.depth_list, dtype=float),
            "p": _target_probabilities(tree, p),
            "q": _draft_probabilities(draft, len(tree)),
            "trial_probability": _trial_probabilities(trials[:upto], len(tree)),
        }
    )
    leaves = max(x) + 1
    levels = max(tree.depth_list) + 1
    table.attrs["size"] = leaves, levels  # the same for every upto
    if verdict is not None and not complete:
        return table.iloc[:-1]
    return table


def _with_next_token(tree: TokenTree, verdict: Verdict) -> TokenTree:
    """The tree with the verdict's next token as one more node, the last, below the accepted path."""
    parent = _end_of_path(verdict)
    return tree.grow(torch.tensor([verdict.next_token]), torch.tensor([parent]))


def _end_of_path(verdict: Verdict) -> int:
    """The last accepted node; the root, 0, if none was accepted."""
    return verdict.path[-1] if verdict.path else 0


def next_kind(draft: Draft, verdict: Verdict) -> str:
    """What the next token is: "bonus" after a path that nothing could prolong, else "recovered"."""
    could_go_on = draft.candidates[_end_of_path(verdict)]
    return "recovered" if could_go_on else "bonus"


def _states(draft: Draft, trials: Sequence[Trial], path: Sequence[int] | None) -> list[str]:
    """States of the draft's nodes after these trials; path: the accepted nodes once they are known."""
    states = ["unvisited"] * len(draft.tree)
    if draft.auxiliary is not None:
        for node in draft.auxiliary.nonzero().flatten().tolist():
            states[node] = "auxiliary"
    for trial in trials:
        states[trial.node] = "rejected"

    if path is None:  # a bottom-up verifier accepts a whole path at its leaf: a trial counts for the ancestors
        path = []
        for trial in trials:
            if trial.accepted:
                path += draft.tree.path(trial.node)
    for node in path:
        states[node] = "accepted"
    states[0] = "root"
    return states


def _across(tree: TokenTree) -> list[float]:
    """x of every node: leaves 0, 1, … from the left, parents over the middle of their outermost children.

    Example: the root 0 has children 1 and 2, node 1 has children 3 and 4. The leaves 3, 4, 2 stand at 0, 1, 2; node 1
    stands at 0.5 between its children, and the root at 1.25, between 0.5 and 2.
    """
    x = [0.0] * len(tree)
    from_the_left = sorted(tree.leaves, key=tree.path)
    for place, leaf in enumerate(from_the_left):
        x[leaf] = float(place)
    for node in reversed(range(len(tree))):
        children = tree.children[node]
        if children:
            x[node] = (x[children[0]] + x[children[-1]]) / 2
    return x


def _target_probabilities(tree: TokenTree, p: Tensor | None) -> np.ndarray:
    """(n,) p of each node's token behind its parent; nan for the root, and for all without p."""
    found = np.full(len(tree), np.nan)
    if p is not None:
        rows = p.cpu().double().numpy()  # (n, V)
        found[1:] = rows[tree.parent_list[1:], tree.token_list[1:]]
    return found


def _draft_probabilities(draft: Draft, count: int) -> np.ndarray:
    """(count,) q of each node's token behind its parent; nan for the root, undrafted nodes, and all without q."""
    found = np.full(count, np.nan)
    if draft.q is not None:
        rows = draft.q.cpu().double().numpy()  # (n, V_d)
        columns = draft.columns.numpy()
        found[1 : len(draft.tree)] = rows[draft.tree.parent_list[1:], columns[1:]]
    return found


def _trial_probabilities(trials: Sequence[Trial], count: int) -> np.ndarray:
    """(count,) the acceptance probability of each node that these trials tried; nan for the others."""
    found = np.full(count, np.nan)
    for trial in trials:
        found[trial.node] = trial.probability
    return found


# ---- texts -------------------------------------------------------------------------------------------------------


def label_nodes(tree: TokenTree, labels: Labels, drafted: int | None = None) -> list[str]:
    """Texts of nodes: their ids, or what labels says of their paths, or the given list.

    drafted: how many nodes were drafted, if there are more; a list may stop there, and the others get their ids.
    """
    tokens = tree.token_list
    if labels is None:
        return [str(token) for token in tokens]
    if callable(labels):
        return [last_piece(tokens_to(tree, node), labels) for node in range(len(tree))]
    if len(labels) not in (len(tokens), drafted):
        raise ValueError(f"labels must hold one text for each of {drafted or len(tokens)} nodes, got {len(labels)}")
    without_text = tokens[len(labels) :]
    return [*labels, *map(str, without_text)]


def tokens_to(tree: TokenTree, node: int) -> list[int]:
    """The tokens from the root to a node, both included."""
    return [tree.token_list[0], *tree.path_tokens(node)]


def last_piece(tokens: Sequence[int], pieces: Pieces) -> str:
    """The last token's text as it reads behind the others; as it reads alone if it only begins a character."""
    behind_others = pieces(tokens)[-1]
    return behind_others or pieces(tokens[-1:])[-1]


def read_on(before: Sequence[int], tokens: Sequence[int], pieces: Pieces) -> list[str]:
    """Texts of tokens as they read behind others."""
    before = before[-AROUND:]
    texts = pieces([*before, *tokens])
    return list(texts[len(before) :])


def score_notes(scores: Tensor, nodes: Sequence[int]) -> list[str]:
    """Path probabilities of some nodes of a tree, to be written beside them (".25"); nothing for the root."""
    notes = []
    for node in nodes:
        if node == 0:
            notes.append("")
        else:
            notes.append(f"{float(scores[node]):.2f}".removeprefix("0"))
    return notes


def clip(text: str, room: int) -> str:
    """The text in at most so many characters. Example: "photosynthesis" in 6 is "photo…"."""
    return text if len(text) <= room else text[: room - 1] + "…"


@cache
def _glyphs() -> frozenset[int]:
    """Code points of all characters that the figures' font has."""
    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    return frozenset(font.get_charmap())


def drawable(text: str) -> str:
    """The text with every character that the figures' font lacks replaced by a frame."""
    known = _glyphs()
    return "".join(char if ord(char) in known and char.isprintable() else "▯" for char in text)


# ---- the drawing -------------------------------------------------------------------------------------------------


class Labelling(NamedTuple):
    """How all labels of a drawing are written."""

    place: str  # a key of PLACES: where they stand by their nodes
    font: int  # points
    room: int  # characters that fit, a note beside the label included


def draw_tree(
    table: pd.DataFrame, *, ax: Axes | None = None, notes: Sequence[str] | None = None, highlight: int | None = None
) -> Axes:
    """Draw a ``tree_table``: root on top, first-drawn child left, labels clipped to the room there is.

    notes: a short text for each row; never clipped.
    highlight: a node to put a ring around.
    """
    texts = [drawable(label) for label in table["label"]]
    notes = notes or [""] * len(texts)
    longest = max(map(len, texts))
    note_lines = 1 if any(notes) else 0
    note_room = max(map(_note_room, notes))
    leaves, levels = _size(table)

    if ax is None:
        _, ax = plt.subplots(figsize=_tree_size(leaves, levels, longest, note_lines))
        ax.set_position([0, 0, 1, 1])
    width, height = points(ax)
    across = width / leaves  # points from one leaf to the next
    down = height / levels  # points from one level to the next
    size = min(max(min(across, down * 0.6) * 0.6, 6), 22)  # of a node, points
    labelling = _labelling(across, down, size, longest, note_lines, note_room)

    left = 0.5
    if labelling.place == "side":
        left = size / across  # labels stand right of their nodes: all the room is there
    top = size * 0.8 / down
    ax.set(xlim=(-left, leaves - left), ylim=(top - levels, top))
    ax.set_axis_off()

    _draw_nodes(table, ax, size)
    if highlight is not None:
        x, y = table.set_index("node").loc[highlight, ["x", "y"]]
        ax.plot(x, y, "o", ms=size * 1.6, mfc="none", mec=INK, mew=2, zorder=4)
    for row, text, note in zip(table.itertuples(), texts, notes, strict=True):
        radius = 0.85 if row.node == highlight else 0.65  # in sizes of a node
        gap = size * radius + 1
        offset = (gap, 0) if labelling.place == "side" else (0, -gap)
        words = _label(text, note, labelling)
        ax.annotate(words, (row.x, row.y), offset, fontsize=labelling.font, **LABEL, **PLACES[labelling.place])
    return ax


def _size(table: pd.DataFrame) -> tuple[float, int]:
    """Leaves and levels of a table's tree: those that ``tree_table`` has noted, if it was not made otherwise."""
    if "size" in table.attrs:
        return table.attrs["size"]
    return table["x"].max() + 1, table["depth"].max() + 1


def _draw_nodes(table: pd.DataFrame, ax: Axes, size: float) -> None:
    """The nodes of a table in their looks, each with the edge to its parent. size: of a node, points."""
    places = table.set_index("node")[["x", "y"]]
    for state, group in table.groupby("state"):
        look = LOOKS[state]
        _mark(ax, group["x"], group["y"], look, size)
        for row in group.itertuples():
            if row.node == 0:  # the root has no edge
                continue
            x, y = places.loc[row.parent]
            ax.plot([x, row.x], [y, row.y], look.edge, color=look.colour, lw=look.width, zorder=1)


def _mark(ax: Axes, x: Sequence[float], y: Sequence[float], look: Look, size: float) -> list[PathCollection]:
    """Draw nodes of the given size (points), then the signs inside them; what was drawn."""
    area = (size * look.scale) ** 2
    tint = [light(look.colour)]
    edge = {"ec": look.colour, "lw": min(0.6 + size * 0.07, 1.8)}
    nodes = ax.scatter(x, y, area, tint, look.marker, ls=look.outline, zorder=3, **edge)
    if look.sign is None:
        return [nodes]
    signs = ax.scatter(x, y, area / 5, "none", look.sign, zorder=4, **edge)
    return [nodes, signs]


def legend(ax: Axes, states: Iterable[str] = LOOKS) -> None:
    """Explain the given states in one line below the axes."""
    handles = {}
    for state in states:
        handles[state] = tuple(_mark(ax, [], [], LOOKS[state], size=15))
    ax.legend(
        handles.values(),
        handles.keys(),
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=len(handles),
        columnspacing=1.2,
        handletextpad=0.1,
        scatterpoints=1,
    )


def points(ax: Axes) -> tuple[float, float]:
    """Width and height of the axes in points."""
    box = ax.get_window_extent()
    return box.width * 72 / ax.figure.dpi, box.height * 72 / ax.figure.dpi


def _tree_size(leaves: float, levels: int, longest: int, note_lines: int) -> tuple[float, float]:
    """Width and height in inches: as much as the labels ask for, at most what a projector shows.

    longest: characters of a label; note_lines: 1 if there are notes, else 0.
    """
    inches_a_leaf = 0.2 + min(0.1 * longest, 1.1)
    if levels > 8:  # no room below the nodes of a deep tree: notes stand beside the labels
        inches_a_leaf += 0.7 * note_lines
    wide = leaves * inches_a_leaf

    inches_a_level = 0.85 + 0.2 * note_lines
    if wide > 14:
        inches_a_level += 0.25
    tall = levels * inches_a_level
    tallest = max(7.2, levels * 0.24)
    return min(max(wide, 4), 12), max(min(tall, tallest), 1.6)


def _labelling(across: float, down: float, size: float, longest: int, note_lines: int, note_room: int) -> Labelling:
    """Where labels go, at the largest font at which enough of them fits; else where most fits.

    across, down: points per leaf and per level; size: of a node, points; longest: characters of a label.
    Notes are written to the label, in lines below it or in characters behind it: note_lines, note_room.
    """
    enough = min(longest, 5)
    best = Labelling("under", 7, 0)
    for font in range(12, 6, -1):
        for place, room in _rooms(font, across, down, size, note_lines).items():
            needed = enough if place == "under" else enough + note_room
            labelling = Labelling(place, font, room)
            if room >= needed:
                return labelling._replace(room=int(room))
            if room > best.room:
                best = labelling
    return best._replace(room=int(best.room))


def _rooms(font: int, across: float, down: float, size: float, note_lines: int) -> dict[str, float]:
    """How many characters of a font fit at each place by a node; 0 where not even one line fits."""
    letter = 0.62 * font  # points, about
    line = 1.3 * font
    rooms = {"under": 0, "side": 0, "turned": 0}
    if down > size * 1.3 + line * (1 + note_lines) + 5:
        rooms["under"] = across / letter - 1
    if down > line:
        rooms["side"] = (across - size) / letter - 1
    if across > line:
        rooms["turned"] = (down - size * 1.3 - 6) / letter
    return rooms


def _note_room(note: str) -> int:
    """Characters that a note takes behind its label, the space between them included."""
    return len(note) + 1 if note else 0


def _label(text: str, note: str, labelling: Labelling) -> str:
    """What is written to a node: its text, clipped to the room there is, and the whole note.

    Example: "␣photosynthesis" with the note ".25" in a room of 10 characters is "␣photosyn…" and ".25" in the line
    below it if labels stand under their nodes, and "␣phot… .25" in one line if they stand beside.
    """
    room = labelling.room
    separator = "\n"
    if labelling.place != "under":
        room -= _note_room(note)
        separator = " "
    room = max(room, 2)
    if room <= 4 and len(text) > room:  # too little to spend a character on a space
        text = text.removeprefix("␣")
    text = clip(text, room)
    return text + separator + note if note else text
