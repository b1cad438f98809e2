"""Replay: what any growth rule would have done along a greedy text, exactly and without a model.

In greedy decoding the target's text does not depend on the draft. So the draft's largest tree is recorded once at every
position of a text. The tree of any smaller rule is a part of it, and comparing it with the text shows how many tokens
would have been accepted. Seconds follow from measured cost curves (``study.prices``).

"Exactly" has two limits. A real run with the rule writes the same text only up to rounding: in float32 near ties can
differ, and in bfloat16 trees of different sizes round differently. And a score within rounding of a rule's threshold
can fall on either side of it.
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
    """A draft's trees along a text."""

    text: tuple[int, ...]
    trees: tuple[TokenTree, ...]  # the root of trees[i] is the token before text[i]
    scores: tuple[Tensor, ...]  # scores[i] are the path probabilities of trees[i], (n,)
    max_depth: int | None = None  # the most levels that the draft model can draft (Medusa's heads); None: no limit

    def cut(self, length: int) -> "Recording":
        """The recording of the first ``length`` tokens of the text."""
        if not 1 <= length <= len(self.text):
            raise ValueError(f"a recording of {len(self.text)} tokens cannot be cut to {length}")
        return Recording(self.text[:length], self.trees[:length], self.scores[:length], self.max_depth)

    def depth_left(self, position: int) -> int:
        """How deep a tree at this position may be: up to the end of the text, less the bonus token, or max_depth."""
        rest = len(self.text) - position - 1
        if self.max_depth is None:
            return rest
        return min(rest, self.max_depth)


@dataclass(frozen=True)
class Turn:
    """One step of a replayed run."""

    start: int  # the index of its first token in the text
    nodes: int  # of the verified tree, the root included
    forwards: tuple[int, ...]  # how many nodes each draft forward expanded
    accepted: int  # draft tokens; the step commits one more


def record(
    target: Target, draft_model: DraftModel, largest: Growth, prompt: Sequence[int], text: Sequence[int]
) -> Recording:
    """Let the draft grow its largest tree at every position of a text.

    target:      the target model.
    draft_model: the draft model.
    largest:     the growth rule, whose trees contain those of all rules to be replayed.
    prompt:      token ids.
    text:        what the target wrote greedily after the prompt.
    Raises ValueError on a growth rule that drops nodes, because its trees lack nodes that were drafted.
    """
    if largest.prunes:
        raise ValueError(f"{type(largest).__name__} drops nodes: record with a rule that keeps all it drafts")
    target.hidden_layers = tuple(draft_model.hidden_layers)
    hidden = target.prefill([*prompt, *text][:-1])  # for each layer the states of these tokens, (T, d)
    last_of_prompt = len(prompt) - 1  # the index of the first tree's root
    before_root = {layer: rows[:last_of_prompt] for layer, rows in hidden.items()}
    drafter = TreeDrafter(draft_model, largest)
    drafter.begin(list(prompt), None, before_root)
    trees = []
    scores = []
    for position, token in enumerate(text):
        tokens_after = len(text) - position - 1
        if isinstance(largest, Together):
            drafter.growth = replace(largest, left=tokens_after)
        draft = drafter.propose(RandomCoins(), len(text))
        trees.append(draft.tree)
        scores.append(draft.scores)
        if tokens_after > 0:
            root = last_of_prompt + position
            state_of_root = {layer: rows[root : root + 1] for layer, rows in hidden.items()}
            drafter.observe(draft, (), token, state_of_root, None)
    return Recording(tuple(text), tuple(trees), tuple(scores), draft_model.max_depth)


def turn_at(recording: Recording, position: int, rule: Growth) -> Turn:
    """The step that greedy decoding with this rule takes from a position of the recorded text."""
    tree = recording.trees[position]
    nodes, frontiers = regrow(tree, recording.scores[position], rule, recording.depth_left(position))
    accepted = agreed(tree, set(nodes), recording.text[position:-1])
    sizes = tuple(len(frontier) for frontier in frontiers)
    return Turn(position, len(nodes), sizes, accepted)


def agreed(tree: TokenTree, kept: set[int], text: Sequence[int]) -> int:
    """How many tokens of a text, from its first on, are a path of kept nodes below the root of a tree.

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
    """The steps that greedy decoding with this rule takes along the recorded text, from ``start`` to its end."""
    return walk(len(recording.text), lambda position: turn_at(recording, position, rule), start)


def walk(length: int, turn_from: Callable[[int], Turn], start: int = 0) -> list[Turn]:
    """The steps of a run along a text.

    Example: if every step accepts two draft tokens, a run along seven tokens has steps that begin at 0, 3 and 6.

    length:    tokens of the text.
    turn_from: returns the step that begins at a position.
    start:     the position of the first step.
    """
    turns = []
    position = start
    while position < length:
        turn = turn_from(position)
        turns.append(turn)
        position += turn.accepted + 1
    return turns


def along(recording: Recording, rule: Growth, lengths: Sequence[int]) -> dict[int, list[Turn]]:
    """A rule's steps along the first n tokens of a recorded text, for each n of lengths.

    The result is that of ``replay`` on each cut recording, but steps whose recorded tree ends before the cut are
    replayed once for all n. Near the cut trees are less deep, because no token may be drafted after the text.
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


# ---- the likeliest chains, from which calibration is measured -----------------------------------------------------


def chains(recording: Recording) -> list[list[int]]:
    """For every position of a text, how the draft's likeliest chain agreed with it; ``chain_table`` reads this.

    Each list has the number of accepted tokens, and then every token's confidence in hundredths of a per cent.
    """
    return [_chain(recording, position) for position in range(len(recording.text))]


def _chain(recording: Recording, position: int) -> list[int]:
    """The list of one position.

    Example: the text goes on with the tokens 5, 6, 7, and the likeliest chain is 5, 6, 8, whose tokens the draft gave
    .9, .5 and .8. Two tokens are accepted, so the list is [2, 9000, 5000, 8000].
    """
    tree = recording.trees[position]
    scores = recording.scores[position]
    node = 0
    accepted = 0
    confidences: list[int] = []
    for token in recording.text[position:]:
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
    """A token's probability: its path's over that of the path without it; 0 if the latter is 0."""
    if path_above == 0:
        return 0
    return round(10_000 * float(path / path_above))


def chain_table(chains_by_prompt: Mapping[str, Sequence[Sequence[int]]]) -> pd.DataFrame:
    """The likeliest chains as a table with one row per prompt, place and depth, for EDD's Figure 3b.

    The figure compares confidence with hit at the positions at which steps begin; here are all positions.

    chains_by_prompt: for each prompt the lists of ``chains``. The columns are
    prompt:     the prompt.
    place:      the position in the text.
    depth:      of the token in the chain, from 1.
    confidence: the draft's probability of the token, to four decimals.
    path:       the probability of the chain up to this token, which PCT compares with its threshold.
    alive:      whether all tokens before this one agree with the text. The figure has only these.
    hit:        whether this one agrees, too.
    """
    rows = []
    for prompt, lists in chains_by_prompt.items():
        for place, (accepted, *confidences) in enumerate(lists):
            path = 1.0
            for depth, hundredths in enumerate(confidences, start=1):
                confidence = hundredths / 10_000
                path *= confidence
                alive = depth <= accepted + 1
                hit = depth <= accepted
                rows.append((prompt, place, depth, confidence, path, alive, hit))
    return pd.DataFrame(rows, columns=["prompt", "place", "depth", "confidence", "path", "alive", "hit"])
