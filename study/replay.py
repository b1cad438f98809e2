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
    """A draft's trees along a text: trees[i] hangs off the token before text[i], scores[i] its path probabilities (n,).

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

    def depth_left(self, place: int) -> int:
        """How deep a tree at this place may go: what is left of the text but its last token, or max_depth."""
        left = len(self.text) - place - 1
        if self.max_depth is None:
            return left
        return min(left, self.max_depth)


@dataclass(frozen=True)
class Turn:
    """One step of a replayed run.

    start: the place of its first token in the text. nodes: of the verified tree, root included. forwards: nodes that
    each draft forward expanded. accepted: draft tokens; the step commits one more.
    """

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
    hidden = target.prefill([*prompt, *text][:-1])  # by layer (T, d), a row for each of these tokens
    last_of_prompt = len(prompt) - 1  # its row; it is the root of the first tree
    before_root = {layer: rows[:last_of_prompt] for layer, rows in hidden.items()}
    drafter = TreeDrafter(draft_model, largest)
    drafter.begin(list(prompt), None, before_root)
    trees = []
    scores = []
    for place, token in enumerate(text):
        tokens_behind = len(text) - place - 1
        if isinstance(largest, Together):
            drafter.growth = replace(largest, left=tokens_behind)
        draft = drafter.propose(RandomCoins(), len(text))
        trees.append(draft.tree)
        scores.append(draft.scores)
        if tokens_behind > 0:
            root = last_of_prompt + place
            state_of_root = {layer: rows[root : root + 1] for layer, rows in hidden.items()}
            drafter.observe(draft, (), token, state_of_root, None)
    return Recording(tuple(text), tuple(trees), tuple(scores), draft_model.max_depth)


def turn_at(recording: Recording, place: int, rule: Growth) -> Turn:
    """The step that decoding greedily with this rule takes from a place of the recorded text."""
    tree = recording.trees[place]
    nodes, frontiers = regrow(tree, recording.scores[place], rule, recording.depth_left(place))
    accepted = agreed(tree, set(nodes), recording.text[place:-1])
    sizes = tuple(len(frontier) for frontier in frontiers)
    return Turn(place, len(nodes), sizes, accepted)


def agreed(tree: TokenTree, kept: set[int], text: Sequence[int]) -> int:
    """How many tokens of a text some path of a tree's kept nodes holds, from the root on.

    >>> tree = TokenTree([9, 5, 6, 7], [-1, 0, 1, 1])  # below the root 9 the paths 5, 6 and 5, 7
    >>> agreed(tree, {0, 1, 2, 3}, [5, 7, 8]), agreed(tree, {0, 1, 2}, [5, 7, 8])
    (2, 1)
    """
    node = 0
    for count, token in enumerate(text):
        kept_children = [child for child in tree.children[node] if child in kept]
        agreeing = [child for child in kept_children if tree.token_list[child] == token]
        if not agreeing:
            return count
        node = agreeing[0]
    return len(text)


def replay(recording: Recording, rule: Growth, start: int = 0) -> list[Turn]:
    """The steps that decoding greedily with this rule takes along the recorded text, from a place to its last token."""
    return walk(len(recording.text), lambda place: turn_at(recording, place, rule), start)


def walk(length: int, turn_from: Callable[[int], Turn], start: int = 0) -> list[Turn]:
    """The steps of a run from a place to the end of so many tokens, given the step that begins at a place.

    Example: where every step accepts two of its draft tokens, a run of seven tokens has steps from 0, 3 and 6.
    """
    turns = []
    place = start
    while place < length:
        turn = turn_from(place)
        turns.append(turn)
        place += turn.accepted + 1
    return turns


def along(recording: Recording, rule: Growth, lengths: Sequence[int]) -> dict[int, list[Turn]]:
    """A rule's steps along the first n tokens of a recorded text, for each of several n: ``replay`` of each cut.

    Steps whose recorded tree ends before a cut are the same for all n, and are replayed once. Only nearer to the cut
    trees go less deep, because no token may be drafted behind the text.
    """
    longest = replay(recording.cut(max(lengths)), rule)
    turns_by_length = {}
    for length in lengths:
        shared = []
        for turn in longest:
            depth = max(recording.trees[turn.start].depth_list)
            if turn.start + depth >= length:
                break
            shared.append(turn)
        committed = sum(turn.accepted + 1 for turn in shared)
        turns_by_length[length] = shared + replay(recording.cut(length), rule, start=committed)
    return turns_by_length


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
    """What became of the likeliest chain at one place.

    Example: the text goes on with the tokens 5, 6, 7, and the likeliest chain is 5, 6, 8, whose tokens the draft gave
    .9, .5 and .8. Two tokens are accepted, so the list is [2, 9000, 5000, 8000].
    """
    tree = recording.trees[place]
    scores = recording.scores[place]
    node = 0
    accepted = 0
    confidences: list[int] = []
    for token in recording.text[place:]:
        if not tree.children[node]:
            break
        likeliest = tree.children[node][0]
        all_above_accepted = accepted == len(confidences)
        if all_above_accepted and tree.token_list[likeliest] == token:
            accepted += 1
        confidences.append(_hundredths_of_a_per_cent(scores[likeliest], scores[node]))
        node = likeliest
    return [accepted, *confidences]


def _hundredths_of_a_per_cent(path: Tensor, path_above: Tensor) -> int:
    """A token's own probability, from that of the path down to it and of the path above; 0 if nothing leads there."""
    if path_above == 0:
        return 0
    return round(10_000 * float(path / path_above))


def chain_table(chains_by_prompt: Mapping[str, Sequence[Sequence[int]]]) -> pd.DataFrame:
    """What became of the likeliest chains (``chains`` by prompt): one row per prompt, place and depth.

    confidence: the draft's probability of the token, to four digits; path: that of the chain up to it; alive: whether
    everything before it agreed with the text; hit: whether it did too. EDD's Figure 3b is confidence against hit where
    alive, there at the places where steps begin, here at every place; what PCT thresholds is path against hit.
    """
    rows = []
    for prompt, places in chains_by_prompt.items():
        for place, (accepted, *confidences) in enumerate(places):
            path = 1.0
            for depth, hundredths in enumerate(confidences, start=1):
                confidence = hundredths / 10_000
                path *= confidence
                alive = depth <= accepted + 1
                hit = depth <= accepted
                rows.append((prompt, place, depth, confidence, path, alive, hit))
    return pd.DataFrame(rows, columns=["prompt", "place", "depth", "confidence", "path", "alive", "hit"])
