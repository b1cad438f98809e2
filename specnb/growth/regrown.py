"""What a growth rule would have drafted, found in a larger tree that was recorded, without a draft model.

The tree of the rule is a part of the recorded one. ``regrow`` finds this part, ``stages`` shows it forward by forward,
and ``Together`` is a rule that records everything that several rules need. Path probabilities may be a tensor, as in
``Draft.scores``, or an array, as growth rules get them.
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
    """Return the recorded nodes that a rule would have kept, and the recorded nodes that each forward would expand.

    Example: the recorded nodes 1 and 2 are the root's children, 3 and 4 those of node 1. ``chain(2)`` would have kept
    [0, 1, 3], after two forwards that expand [[0], [1]].

    tree, scores: the recorded tree and its (n,) path probabilities. max_depth: the most levels of the rule's tree.
    Raises ValueError if the rule wants a child that was not recorded.
    """
    scores = np.asarray(scores, dtype=np.float64)
    rule = within(rule, max_depth)
    moments = _all_moments(tree, scores, rule, max_depth)
    kept = _nodes_kept(rule, scores, moments[-1])
    expanded = [moment.next for moment in moments[:-1]]
    return kept, expanded


@dataclass(frozen=True)
class _Moment:
    """The state of a rule on a recorded tree before a draft forward.

    drafted: the recorded nodes that it has drafted so far.
    grown: the tree of these nodes; its node i is the recorded node drafted[i].
    next: the recorded nodes that it expands now.
    lacking: recorded node → number of children that the rule wants, for those of next with fewer recorded children.
    """

    drafted: list[int]
    grown: TokenTree
    next: list[int]
    lacking: dict[int, int]


def _moments(tree: TokenTree, scores: np.ndarray, rule: Growth, max_depth: int) -> Iterator[_Moment]:
    """Yield the moment before each draft forward. In the last one next is empty, or lacking is not."""
    rule = within(rule, max_depth)
    drafted = [0]
    grown = TokenTree([0], [-1])
    while True:
        wanted = rule.select(grown, scores[drafted])
        frontier = [(node, k) for node, k in wanted if grown.depth_list[node] < max_depth]
        recorded_frontier = [(drafted[node], k) for node, k in frontier]  # with the recorded tree's node numbers
        lacking = {node: k for node, k in recorded_frontier if len(tree.children[node]) < k}
        yield _Moment(list(drafted), grown, [node for node, _ in recorded_frontier], lacking)
        if lacking or not frontier:
            return
        parent_list: list[int] = []
        for node, k in frontier:
            parent_list += [node] * k
        for node, k in recorded_frontier:
            drafted += tree.children[node][:k]
        parents = torch.tensor(parent_list, dtype=torch.int64, device="cpu")
        grown = grown.grow(torch.zeros_like(parents), parents)  # all tokens are 0, since rules do not read tokens


def _all_moments(tree: TokenTree, scores: np.ndarray, rule: Growth, max_depth: int) -> list[_Moment]:
    """Return all moments; ValueError if the last one lacks recorded children."""
    moments = list(_moments(tree, scores, rule, max_depth))
    for node, k in moments[-1].lacking.items():
        raise ValueError(
            f"{rule} wants {k} children where the recording has {len(tree.children[node])}: "
            f"record with a wider, deeper or less pruned tree"
        )
    return moments


def _nodes_kept(rule: Growth, scores: np.ndarray, moment: _Moment) -> list[int]:
    """Return the recorded nodes that the rule keeps if drafting ends at this moment."""
    keep = rule.finish(moment.grown, scores[moment.drafted])
    if keep is None:
        return moment.drafted
    return [moment.drafted[i] for i in sorted({0, *keep})]


@dataclass(frozen=True)
class Stage:
    """The state of a rule on a recorded tree, as recorded nodes."""

    scored: tuple[int, ...]  # scored by the draft model so far
    next: tuple[int, ...]  # expanded by the next forward
    kept: tuple[int, ...]  # kept if drafting ended now


def stages(tree: TokenTree, scores: Tensor | np.ndarray, rule: Growth) -> list[Stage]:
    """Return the stage before each draft forward of a rule, and a last one with an empty next.

    Raises ValueError as in ``regrow``.
    """
    scores = np.asarray(scores, dtype=np.float64)
    result = []
    for moment in _all_moments(tree, scores, rule, len(tree)):
        kept = _nodes_kept(rule, scores, moment)
        result.append(Stage(tuple(moment.drafted), tuple(moment.next), tuple(kept)))
    return result


@dataclass(frozen=True)
class Together(Growth):
    """A rule that drafts everything that any of several rules would draft, so that one recording serves all of them.

    rules: the rules.
    k: children of every expanded node.
    left: the number of levels until the text ends, set before each step by the code that records; None if it may be
        any number.

    Near the end of a text trees are less deep. A rule that goes level by level only stops earlier then, but a search
    selects other nodes; these are drafted, too.
    """

    rules: tuple[Growth, ...]
    k: int
    left: int | None = None

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier:
        """Select the nodes whose children some rule still lacks: first without a limit of levels, then with one."""
        wanted = self._lacking(tree, scores, len(tree))
        if not wanted:
            deepest = max(tree.depth_list)
            levels_left = range(1, deepest + 1) if self.left is None else [self.left]
            for levels in levels_left:
                wanted |= self._lacking(tree, scores, levels)
        unexpanded = [node for node in sorted(wanted) if not tree.children[node]]
        return [(node, self.k) for node in unexpanded]

    def _lacking(self, tree: TokenTree, scores: np.ndarray, max_depth: int) -> set[int]:
        """Return the nodes whose children any rule still needs, if its trees may have max_depth levels."""
        nodes: set[int] = set()
        for rule in self.rules:
            *_, last = _moments(tree, scores, rule, max_depth)
            nodes.update(last.lacking)
        return nodes
