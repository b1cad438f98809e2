"""Replay: what any growth rule would have done along a greedy text, exactly and without a model.

Decoding greedily, the target's text does not depend on the draft. So the draft's largest tree is recorded once at
every place of a text; every smaller tree is a part of it, and says how far it would have been accepted. Time follows
from measured cost curves. Exactly means: to a real run that writes the same text (in float32 but for near ties; in
bfloat16 trees of other sizes round differently), and but for scores within rounding of a threshold.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

import pandas as pd
import torch
from torch import Tensor

from specnb import models
from specnb.drafters import DraftModel, TreeDrafter
from specnb.growth import Frontier, Growth, within
from specnb.lab import methods
from specnb.lab.run import ALONE, draft_model, generate, loaded
from specnb.models import prompts
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


def regrow(tree: TokenTree, scores: Tensor, rule: Growth, max_depth: int) -> tuple[list[int], list[list[int]]]:
    """The nodes of a recorded tree that a rule would have drafted and kept, and those each draft forward expands.

    Raises ValueError where the rule wants a child that was not recorded.
    """
    rule = within(rule, max_depth)
    *before, last = _whole(tree, scores, rule, max_depth)
    return _kept(rule, scores, last), [[nodes[i] for i in frontier] for nodes, _, frontier, _ in before]


Before = tuple[list[int], TokenTree, list[int], dict[int, int]]


def _kept(rule: Growth, scores: Tensor, turn: Before) -> list[int]:
    """The recorded nodes that the rule keeps if drafting ends before this turn."""
    nodes, grown, _, _ = turn
    keep = rule.finish(grown, scores[nodes])
    return nodes if keep is None else [nodes[i] for i in sorted({0, *keep})]


def _turns(tree: TokenTree, scores: Tensor, rule: Growth, max_depth: int) -> Iterator[Before]:
    """Before each draft forward: recorded nodes drafted so far, their tree, the frontier (places in it), what it lacks.

    The last turn has an empty frontier, or lacks something.
    """
    rule, nodes, grown = within(rule, max_depth), [0], TokenTree([0], [-1])
    while True:
        wanted = rule.select(grown, scores[nodes])
        frontier = [(node, k) for node, k in wanted if grown.depth_list[node] < max_depth]
        short = {nodes[node]: k for node, k in frontier if len(tree.children[nodes[node]]) < k}
        yield list(nodes), grown, [node for node, _ in frontier], short
        if short or not frontier:
            return
        parents = torch.tensor([node for node, k in frontier for _ in range(k)])
        nodes += [child for node, k in frontier for child in tree.children[nodes[node]][:k]]
        grown = grown.grow(torch.zeros_like(parents), parents)


def _whole(tree: TokenTree, scores: Tensor, rule: Growth, max_depth: int) -> list[Before]:
    """All turns; ValueError where the last lacks something."""
    turns = list(_turns(tree, scores, rule, max_depth))
    for node, k in turns[-1][3].items():
        have = f"wants {k} children where the recording has {len(tree.children[node])}"
        raise ValueError(f"{rule} {have}: record with a wider, deeper or less pruned tree")
    return turns


@dataclass(frozen=True)
class Stage:
    """A rule at work on a recorded tree: nodes scored so far, those expanded next, those kept if it ended here."""

    scored: tuple[int, ...]
    next: tuple[int, ...]
    kept: tuple[int, ...]


def stages(tree: TokenTree, scores: Tensor, rule: Growth) -> list[Stage]:
    """A rule's draft forwards one by one, the last stage with nothing next; ValueError as in ``regrow``."""
    turns = _whole(tree, scores, rule, len(tree))
    return [Stage(tuple(t[0]), tuple(t[0][i] for i in t[2]), tuple(_kept(rule, scores, t))) for t in turns]


@dataclass(frozen=True)
class Together(Growth):
    """Everything that any of several rules would draft, k children to a node: one recording to replay them all.

    Near a text's end trees go less deep. That only shortens rules that go level by level; others then choose other
    nodes: those they would with ``left`` levels (``record`` sets it), or with any number of them, are drafted too.
    """

    rules: tuple[Growth, ...]
    k: int
    left: int | None = None

    def select(self, tree: TokenTree, scores: Tensor) -> Frontier:
        def lacking(cap: int) -> set[int]:
            return {node for rule in self.rules for node in [*_turns(tree, scores, rule, cap)][-1][3]}

        caps = range(1, max(tree.depth_list) + 1) if self.left is None else (self.left,)
        wanted = lacking(len(tree)) or set().union(*map(lacking, caps))
        return [(node, self.k) for node in sorted(wanted) if not tree.children[node]]


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
