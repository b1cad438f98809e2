"""What a growth rule would have drafted, told from a larger tree that was recorded: no draft model runs.

Every smaller tree is a part of the recorded one. ``regrow`` says which part, ``stages`` shows it forward by forward,
and ``Together`` is the rule that records what several rules need.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specnb.growth.levels import Frontier, Growth, within
from specnb.tree import TokenTree


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
