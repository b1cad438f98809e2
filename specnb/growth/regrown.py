"""What a growth rule would have drafted, told from a larger tree that was recorded: no draft model runs.

Every smaller tree is a part of the recorded one. ``regrow`` says which part, ``stages`` shows it forward by forward,
and ``Together`` is the rule that records what several rules need. Path probabilities are taken as drafts hold them
(``Draft.scores``, a tensor) and as growth rules are given them (an array).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specnb.growth.levels import Frontier, Growth, within
from specnb.tree import TokenTree


def regrow(
    tree: TokenTree, scores: Tensor | np.ndarray, rule: Growth, max_depth: int
) -> tuple[list[int], list[list[int]]]:
    """The nodes of a recorded tree that a rule would have drafted and kept, and those each draft forward expands.

    Raises ValueError where the rule wants a child that was not recorded.

    Example: the recorded nodes 1 and 2 are the root's children, 3 and 4 those of node 1. ``chain(2)`` would have
    drafted and kept [0, 1, 3], by two forwards that expand [[0], [1]].
    """
    scores = np.asarray(scores, dtype=np.float64)
    rule = within(rule, max_depth)
    moments = _whole(tree, scores, rule, max_depth)
    kept = _kept(rule, scores, moments[-1])
    expanded = [moment.next for moment in moments[:-1]]
    return kept, expanded


@dataclass(frozen=True)
class _Moment:
    """A rule at work on a recorded tree, before a draft forward.

    drafted: the recorded nodes that it has drafted so far; grown: their tree, of which node i is drafted[i]. next: the
    recorded nodes that it expands now. lacking: those of them whose children were not all recorded, with the number
    of children that the rule wants.
    """

    drafted: list[int]
    grown: TokenTree
    next: list[int]
    lacking: dict[int, int]


def _moments(tree: TokenTree, scores: np.ndarray, rule: Growth, max_depth: int) -> Iterator[_Moment]:
    """The moments before each draft forward; in the last one nothing is next, or something is lacking."""
    rule = within(rule, max_depth)
    drafted = [0]
    grown = TokenTree([0], [-1])
    while True:
        wanted = rule.select(grown, scores[drafted])
        frontier = [(node, k) for node, k in wanted if grown.depth_list[node] < max_depth]
        recorded = [(drafted[node], k) for node, k in frontier]  # the same, by the recorded tree's numbers
        lacking = {node: k for node, k in recorded if len(tree.children[node]) < k}
        yield _Moment(list(drafted), grown, [node for node, _ in recorded], lacking)
        if lacking or not frontier:
            return
        parent_list: list[int] = []
        for node, k in frontier:
            parent_list += [node] * k
        for node, k in recorded:
            drafted += tree.children[node][:k]
        parents = torch.tensor(parent_list, dtype=torch.int64, device="cpu")
        grown = grown.grow(torch.zeros_like(parents), parents)  # rules look at no token


def _whole(tree: TokenTree, scores: np.ndarray, rule: Growth, max_depth: int) -> list[_Moment]:
    """All moments; ValueError where the last lacks something."""
    moments = list(_moments(tree, scores, rule, max_depth))
    for node, k in moments[-1].lacking.items():
        raise ValueError(
            f"{rule} wants {k} children where the recording has {len(tree.children[node])}: "
            f"record with a wider, deeper or less pruned tree"
        )
    return moments


def _kept(rule: Growth, scores: np.ndarray, moment: _Moment) -> list[int]:
    """The recorded nodes that the rule keeps if drafting ends at this moment."""
    keep = rule.finish(moment.grown, scores[moment.drafted])
    if keep is None:
        return moment.drafted
    return [moment.drafted[i] for i in sorted({0, *keep})]


@dataclass(frozen=True)
class Stage:
    """A rule at work on a recorded tree: nodes scored so far, those expanded next, those kept if it ended here."""

    scored: tuple[int, ...]
    next: tuple[int, ...]
    kept: tuple[int, ...]


def stages(tree: TokenTree, scores: Tensor | np.ndarray, rule: Growth) -> list[Stage]:
    """A rule's draft forwards one by one, the last stage with nothing next; ValueError as in ``regrow``."""
    scores = np.asarray(scores, dtype=np.float64)
    result = []
    for moment in _whole(tree, scores, rule, len(tree)):
        kept = _kept(rule, scores, moment)
        result.append(Stage(tuple(moment.drafted), tuple(moment.next), tuple(kept)))
    return result


@dataclass(frozen=True)
class Together(Growth):
    """Everything that any of several rules would draft, k children to a node: one recording to replay them all.

    Near a text's end trees go less deep. Rules that go level by level just stop earlier then, but a search chooses
    other nodes: those that it would choose are drafted, too. left: how many levels there are before the text ends,
    which whoever records sets at each step; None if it may be any number.
    """

    rules: tuple[Growth, ...]
    k: int
    left: int | None = None

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier:
        """The nodes whose children some rule still lacks: first with levels without end, then with few."""
        wanted = self._lacking(tree, scores, len(tree))
        if not wanted:
            deepest = max(tree.depth_list)
            levels_left = range(1, deepest + 1) if self.left is None else [self.left]
            for levels in levels_left:
                wanted |= self._lacking(tree, scores, levels)
        unexpanded = [node for node in sorted(wanted) if not tree.children[node]]
        return [(node, self.k) for node in unexpanded]

    def _lacking(self, tree: TokenTree, scores: np.ndarray, max_depth: int) -> set[int]:
        """The nodes whose children any of the rules still needs if its trees have up to max_depth levels."""
        nodes: set[int] = set()
        for rule in self.rules:
            *_, last = _moments(tree, scores, rule, max_depth)
            nodes.update(last.lacking)
        return nodes
