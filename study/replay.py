"""Replay: what any growth rule would have done along a greedy text, exactly and without a model.

Decoding greedily, the target's text does not depend on the draft. So the draft's largest tree is recorded once at
every place of a text; every smaller tree is a part of it, and says how far it would have been accepted. Time follows
from measured cost curves. Exactly means: to a real run that writes the same text (in float32 but for near ties; in
bfloat16 trees of other sizes round differently), and but for scores within rounding of a threshold.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

import pandas as pd
from torch import Tensor

from specnb import models
from specnb.drafters import DraftModel, TreeDrafter
from specnb.growth import Growth, Together, regrow
from specnb.models import prompts
from specnb.sampling import RandomCoins
from specnb.target import Target
from specnb.tree import TokenTree
from study import methods
from study.run import ALONE, draft_model, generate, loaded


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
    hidden, before = target.prefill([*prompt, *text][:-1]), len(prompt) - 1
    drafter = TreeDrafter(draft_model, largest)
    drafter.begin(list(prompt), None, {layer: rows[:before] for layer, rows in hidden.items()})
    trees, scores = [], []
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


def replay(recording: Recording, rule: Growth) -> list[Turn]:
    """The steps that decoding greedily with this rule takes along the recorded text, by its first to its last token."""
    return walk(len(recording.text), lambda at: turn(recording, at, rule))


def walk(length: int, step: Callable[[int], Turn], at: int = 0) -> list[Turn]:
    """The steps of a run from a place to the end of so many tokens, given the step that begins at a place."""
    turns = []
    while at < length:
        turns.append(step(at))
        at += turns[-1].accepted + 1
    return turns


def turn(recording: Recording, at: int, rule: Growth) -> Turn:
    """The step that decoding greedily with this rule takes from a place of the recorded text."""
    tree, scores, n = recording.trees[at], recording.scores[at], len(recording.text)
    nodes, frontiers = regrow(tree, scores, rule, min(n - at - 1, recording.max_depth or n))
    kept, node, accepted = set(nodes), 0, 0
    while node is not None:
        below = (c for c in tree.children[node] if c in kept and at + accepted < n - 1)
        node = next((c for c in below if tree.token_list[c] == recording.text[at + accepted]), None)
        accepted += node is not None
    return Turn(at, len(nodes), tuple(map(len, frontiers)), accepted)


def tau(turns: Sequence[Turn]) -> float:
    """Mean acceptance length: tokens per step, bonus included."""
    return sum(turn.accepted + 1 for turn in turns) / len(turns)


def along(recording: Recording, rule: Growth, lengths: Sequence[int]) -> dict[int, list[Turn]]:
    """A rule's steps along the first n tokens of a recorded text, for each of several n: ``replay`` of each cut.

    What comes long before a cut is the same for all: only there trees go less deep.
    """
    whole, found = replay(recording.cut(max(lengths)), rule), {}
    for n in lengths:
        part = recording.cut(n)
        shared = [*takewhile(lambda turn, n=n: turn.start + max(recording.trees[turn.start].depth_list) < n, whole)]
        done = sum(turn.accepted + 1 for turn in shared)
        found[n] = shared + walk(n, partial(turn, part, rule=rule), at=done)
    return found


COLUMNS = ("rule", "steps", "nodes", "forwards", "fed", "everywhere", "ranks", "chains")

# ---- a block of a recording -------------------------------------------------------------------------------------


def rules_block(
    prompt: str,
    head: str,
    rules: Sequence[str],
    length: int,
    k: int = 10,
    pair: str = models.EMBEDDED,
    wide: Sequence[str] = (),
    lengths: Sequence[int] = (),
) -> list[dict[str, object]]:
    """Every growth rule (``methods.rules``) replayed along the plain float32 text of one prompt; one row a rule.

    steps, nodes of the verified trees, draft forwards and nodes fed to the draft, in all steps; everywhere: tokens
    accepted from every place of the text, not only where steps begin; ranks: how many verified nodes were the first,
    second, … of their siblings. The row "chain" holds what became of the likeliest chain at every place
    (``chain_table``). "vct", whose 363 nodes no other rule wants, has a recording of its own.

    wide: the rules whose trees are recorded, where a few hold those of all others. lengths: instead, one row a rule and
    length, along the first so many tokens; what is counted at every place is left out.
    """
    found = loaded(pair, "float32")
    ids, draft = found.encode(prompts.text(prompt)), draft_model(head, found, 0)
    written = generate(found, ids, length, whole=True)
    named = methods.rules(rules)
    shared = [methods.rule(name) for name in wide] or [rule for name, rule in named.items() if name != "vct"]
    with ALONE:
        target = Target(found.target)
        common = record(target, draft, Together(tuple(shared), k=k), ids, written) if shared else None
        full = record(target, draft, named["vct"], ids, written) if "vct" in named else None
    if lengths:
        runs = [(name, n, run) for name, rule in named.items() for n, run in along(common, rule, lengths).items()]
        empty = {"everywhere": 0, "ranks": "", "chains": ""}
        return [{"rule": name, "length": n, **_sums(run), **empty} for name, n, run in runs]
    rows = [_counts(name, full if name == "vct" else common, rule) for name, rule in named.items()]
    chain = dict.fromkeys(rows[0], 0) | {"rule": "chain", "ranks": "", "chains": chains(common or full)}
    return [*(row | {"chains": ""} for row in rows), chain]


def _counts(name: str, recording: Recording, rule: Growth) -> dict[str, object]:
    turns = [turn(recording, at, rule) for at in range(len(recording.text))]
    run = walk(len(recording.text), turns.__getitem__)
    ranks = [0] * 10
    for each in run:
        tree, left = recording.trees[each.start], len(recording.text) - each.start - 1
        for node in regrow(tree, recording.scores[each.start], rule, min(left, recording.max_depth or left))[0][1:]:
            ranks[min(tree.children[tree.parent_list[node]].index(node), 9)] += 1
    return {"rule": name, **_sums(run), "everywhere": sum(each.accepted for each in turns), "ranks": json.dumps(ranks)}


def _sums(run: Sequence[Turn]) -> dict[str, int]:
    """steps, nodes, forwards and fed of a replayed run."""
    sizes = [each.forwards for each in run]
    nodes = sum(each.nodes - 1 for each in run)
    return {"steps": len(run), "nodes": nodes, "forwards": sum(map(len, sizes)), "fed": sum(map(sum, sizes))}


def chains(recording: Recording) -> str:
    """What became of the draft's likeliest chain at every place of a text, as JSON (``chain_table`` reads it).

    Per place the number of accepted tokens and every token's confidence in hundredths of a per cent.
    """
    found = []
    for place, (tree, scores) in enumerate(zip(recording.trees, recording.scores, strict=True)):
        node, accepted, confidences = 0, 0, []
        for token in recording.text[place:]:
            if not tree.children[node]:
                break
            above, node = node, tree.children[node][0]
            accepted += accepted == len(confidences) and tree.token_list[node] == token
            confidences.append(round(10_000 * float(scores[node] / scores[above])) if scores[above] else 0)
        found.append([accepted, *confidences])
    return json.dumps(found)


def chain_table(chains: Mapping[str, str]) -> pd.DataFrame:
    """What became of the likeliest chains (prompt → JSON of ``chains``): one row per prompt, place and depth.

    confidence: the draft's probability of the token, to four digits; path: that of the chain up to it; alive: whether
    everything before it agreed with the text; hit: whether it did too. EDD's Figure 3b is confidence against hit where
    alive, there at the places where steps begin, here at every place; what PCT thresholds is path against hit.
    """
    rows = []
    for prompt, packed in chains.items():
        for place, (accepted, *confidences) in enumerate(json.loads(packed)):
            path = 1.0
            for depth, confidence in enumerate(confidences, start=1):
                path *= confidence / 10_000
                fate = depth <= accepted + 1, depth <= accepted  # alive, hit
                rows.append((prompt, place, depth, confidence / 10_000, path, *fate))
    return pd.DataFrame(rows, columns=["prompt", "place", "depth", "confidence", "path", "alive", "hit"])
