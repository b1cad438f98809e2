"""Replay: what any growth rule would have done along a greedy text, exactly and without a model.

Decoding greedily, the target's text does not depend on the draft. So the draft's largest tree is recorded once at
every place of a text; every smaller tree is a part of it, and says how far it would have been accepted. Time follows
from measured cost curves. Exactly means: to a real run that writes the same text (in float32 but for near ties; in
bfloat16 trees of other sizes round differently), and but for scores within rounding of a threshold.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd
from torch import Tensor

from specnb.drafters import DraftModel, TreeDrafter
from specnb.growth import Growth, Together, regrow
from specnb.sampling import RandomCoins
from specnb.target import Target
from specnb.tree import TokenTree


@dataclass(frozen=True, eq=False)
class Recording:
    """A draft's trees along a text: trees[i] hangs off the token before text[i], scores[i] its path probabilities.

    max_depth: how deep the draft model can go (Medusa's heads), if it cannot go on.
    """

    text: tuple[int, ...]
    trees: tuple[TokenTree, ...]
    scores: tuple[Tensor, ...]
    max_depth: int | None = None

    def cut(self, length: int) -> "Recording":
        """The first length tokens of the text."""
        if not 1 <= length <= len(self.text):
            raise ValueError(f"a recording of {len(self.text)} tokens cannot be cut to {length}")
        return Recording(self.text[:length], self.trees[:length], self.scores[:length], self.max_depth)

    def depth_left(self, at: int) -> int:
        """How deep a tree at this place may go: what is left of the text but its last token, or max_depth."""
        left = len(self.text) - at - 1
        return left if self.max_depth is None else min(left, self.max_depth)


@dataclass(frozen=True)
class Turn:
    """One step of a replayed run: place of the next token in the text, nodes of the tree (root included), nodes
    expanded in each draft forward, and accepted draft tokens."""

    start: int
    nodes: int
    forwards: tuple[int, ...]
    accepted: int


def record(
    target: Target, draft_model: DraftModel, largest: Growth, prompt: Sequence[int], text: Sequence[int]
) -> Recording:
    """Let the draft grow its largest tree at every place of a text that the target wrote greedily after the prompt.

    Raises ValueError on a growth rule that drops nodes, whose trees hold less than was drafted.
    """
    if largest.prunes:
        raise ValueError(f"{type(largest).__name__} drops nodes: record with a rule that keeps all it drafts")
    target.hidden_layers = tuple(draft_model.hidden_layers)
    hidden = target.prefill([*prompt, *text][:-1])
    before = len(prompt) - 1
    drafter = TreeDrafter(draft_model, largest)
    drafter.begin(list(prompt), None, {layer: rows[:before] for layer, rows in hidden.items()})
    trees = []
    scores = []
    for i, token in enumerate(text):
        if isinstance(largest, Together):
            drafter.growth = replace(largest, left=len(text) - i - 1)
        draft = drafter.propose(RandomCoins(), len(text))
        trees.append(draft.tree)
        scores.append(draft.scores)
        if i + 1 < len(text):
            seen = {layer: rows[before + i : before + i + 1] for layer, rows in hidden.items()}
            drafter.observe(draft, (), token, seen, None)
    return Recording(tuple(text), tuple(trees), tuple(scores), draft_model.max_depth)


def turn_at(recording: Recording, at: int, rule: Growth) -> Turn:
    """The step that decoding greedily with this rule takes from a place of the recorded text."""
    tree = recording.trees[at]
    nodes, frontiers = regrow(tree, recording.scores[at], rule, recording.depth_left(at))
    accepted = agreed(tree, set(nodes), recording.text[at:-1])
    sizes = tuple(len(frontier) for frontier in frontiers)
    return Turn(at, len(nodes), sizes, accepted)


def agreed(tree: TokenTree, kept: set[int], text: Sequence[int]) -> int:
    """How many tokens of a text some path of a tree's kept nodes holds, from the root on."""
    node = 0
    for count, token in enumerate(text):
        agreeing = [child for child in tree.children[node] if child in kept and tree.token_list[child] == token]
        if not agreeing:
            return count
        node = agreeing[0]
    return len(text)


def replay(recording: Recording, rule: Growth) -> list[Turn]:
    """The steps that decoding greedily with this rule takes along the recorded text, by its first to its last token."""
    return walk(len(recording.text), lambda at: turn_at(recording, at, rule))


def walk(length: int, turn_from: Callable[[int], Turn], at: int = 0) -> list[Turn]:
    """The steps of a run from a place to the end of so many tokens, given the step that begins at a place."""
    turns = []
    while at < length:
        turn = turn_from(at)
        turns.append(turn)
        at += turn.accepted + 1
    return turns


def along(recording: Recording, rule: Growth, lengths: Sequence[int]) -> dict[int, list[Turn]]:
    """A rule's steps along the first n tokens of a recorded text, for each of several n: ``replay`` of each cut.

    What comes long before a cut is the same for all: only there trees go less deep.
    """
    whole = replay(recording.cut(max(lengths)), rule)
    found = {}
    for length in lengths:
        shared = []
        for turn in whole:
            if turn.start + max(recording.trees[turn.start].depth_list) >= length:
                break
            shared.append(turn)
        part = recording.cut(length)
        done = sum(turn.accepted + 1 for turn in shared)
        found[length] = shared + _rest(part, rule, done)
    return found


def _rest(recording: Recording, rule: Growth, at: int) -> list[Turn]:
    """The steps from a place to the end of a recording."""
    return walk(len(recording.text), lambda place: turn_at(recording, place, rule), at)


def tau(turns: Sequence[Turn]) -> float:
    """Mean acceptance length: tokens per step, bonus included."""
    return sum(turn.accepted + 1 for turn in turns) / len(turns)


# ---- the likeliest chains, of which calibration is told ----------------------------------------------------------


def chains(recording: Recording) -> list[list[int]]:
    """What became of the draft's likeliest chain at every place of a text; ``chain_table`` reads it.

    A place's list holds the number of accepted tokens, then every token's confidence in hundredths of a per cent.
    """
    return [_chain(recording, place) for place in range(len(recording.text))]


def _chain(recording: Recording, place: int) -> list[int]:
    tree = recording.trees[place]
    scores = recording.scores[place]
    node = 0
    accepted = 0
    confidences: list[int] = []
    for token in recording.text[place:]:
        if not tree.children[node]:
            break
        above = node
        node = tree.children[node][0]
        if accepted == len(confidences) and tree.token_list[node] == token:
            accepted += 1
        confidences.append(round(10_000 * float(scores[node] / scores[above])) if scores[above] else 0)
    return [accepted, *confidences]


def chain_table(chains: Mapping[str, Sequence[Sequence[int]]]) -> pd.DataFrame:
    """What became of the likeliest chains (prompt → ``chains``): one row per prompt, place and depth.

    confidence: the draft's probability of the token, to four digits; path: that of the chain up to it; alive: whether
    everything before it agreed with the text; hit: whether it did too. EDD's Figure 3b is confidence against hit where
    alive, there at the places where steps begin, here at every place; what PCT thresholds is path against hit.
    """
    rows = []
    for prompt, places in chains.items():
        for place, (accepted, *confidences) in enumerate(places):
            path = 1.0
            for depth, confidence in enumerate(confidences, start=1):
                path *= confidence / 10_000
                alive = depth <= accepted + 1
                hit = depth <= accepted
                rows.append((prompt, place, depth, confidence / 10_000, path, alive, hit))
    return pd.DataFrame(rows, columns=["prompt", "place", "depth", "confidence", "path", "alive", "hit"])
