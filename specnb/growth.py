"""Which nodes to expand and when to stop. A growth rule is two small pure functions over a growing tree.

``select(tree, scores)`` names the nodes to expand next, with the number of children each shall get; an empty
list stops. ``finish(tree, scores)`` names the nodes to keep, or None for all. scores: (n,) float64, the
drafter's probability of each node's path, 1 for the root.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor

from specnb.tree import TokenTree

Frontier = Sequence[tuple[int, int]]  # (node, number of children)


class Growth(Protocol):
    """A growth rule. ``prunes`` says that finish may drop drawn nodes, which only POINT trees survive unbiased."""

    prunes: bool

    def select(self, tree: TokenTree, scores: Tensor) -> Frontier: ...

    def finish(self, tree: TokenTree, scores: Tensor) -> Sequence[int] | None: ...


@dataclass(frozen=True)
class Static:
    """A fixed shape: one path of ranks per node (EAGLE-1's and Medusa's ``choices``; vLLM's token tree).

    A node's rank is its place among its siblings in drawing order. Where a law had too few tokens for a
    sibling, what would hang below it is left out.
    """

    paths: tuple[tuple[int, ...], ...]
    prunes = False

    def __post_init__(self):
        object.__setattr__(self, "paths", tuple(map(tuple, self.paths)))
        for path in self.paths:
            if path and path[-1] > 0 and (*path[:-1], path[-1] - 1) not in self.paths:
                raise ValueError(f"path {path} has no elder sibling {(*path[:-1], path[-1] - 1)}: ranks are 0, 1, …")
            if len(path) > 1 and path[:-1] not in self.paths:
                raise ValueError(f"path {path} has no parent {path[:-1]}")

    @cached_property
    def widths(self) -> dict[tuple[int, ...], int]:
        """Rank path of a node → its number of children."""
        widths: dict[tuple[int, ...], int] = {}
        for path in self.paths:
            if path:
                widths[path[:-1]] = widths.get(path[:-1], 0) + 1
        return widths

    def select(self, tree: TokenTree, scores: Tensor) -> Frontier:
        deepest = max(tree.depth_list)
        ranks: list[tuple[int, ...]] = [()]
        for node in range(1, len(tree)):
            parent = tree.parent_list[node]
            ranks.append((*ranks[parent], tree.children[parent].index(node)))
        level = (i for i, depth in enumerate(tree.depth_list) if depth == deepest)
        return [(i, self.widths[ranks[i]]) for i in level if ranks[i] in self.widths]

    def finish(self, tree: TokenTree, scores: Tensor) -> None:
        return None


def kary(k: int, depth: int) -> Static:
    """The full k-ary shape of the given depth: k + k² + … nodes. kary(2, d) is the papers' binary tree."""
    shape = TokenTree.kary(k, depth)
    return Static(tuple(shape.path_tokens(i) for i in range(1, len(shape))))


def chain(gamma: int) -> Static:
    """gamma tokens in a row: classic speculative decoding."""
    return kary(1, gamma)


@dataclass(frozen=True)
class DynaTree:
    """DynaTree's growth (Chen et al., Algorithm 1): width branch below the likeliest token, pruned by path probability.

    The draft's top token stands alone below the root; below it every node of a level whose path has at least the
    probability threshold gets branch children, for depth levels, until there are budget nodes (root not counted):
    the last children that fit are the likeliest of the node whose turn it is. A whole level is expanded at once;
    the paper feeds its draft one node at a time. first: children of the root, 1 in the paper. A tree's shape hangs
    on probabilities of nodes that are there already, so sampled trees stay unbiased. Raises ValueError on a
    threshold outside (0, 1), or on less than one level, child or node.
    """

    depth: int = 8
    branch: int = 3
    threshold: float = 0.03
    budget: int = 128
    first: int = 1
    prunes = False

    def __post_init__(self):
        for name in ("depth", "branch", "budget", "first"):
            if getattr(self, name) < 1:
                raise ValueError(f"DynaTree's {name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.threshold < 1:
            raise ValueError(f"DynaTree's threshold must lie in (0, 1), got {self.threshold}")

    def select(self, tree: TokenTree, scores: Tensor) -> Frontier:
        deepest, room, frontier = tree.depth_list[-1], self.budget - (len(tree) - 1), []
        if deepest > self.depth:
            return []
        for node in range(len(tree)):
            wanted = min(self.branch if node else self.first, room)
            if tree.depth_list[node] == deepest and scores[node] >= self.threshold and wanted > 0:
                frontier.append((node, wanted))
                room -= wanted
        return frontier

    def finish(self, tree: TokenTree, scores: Tensor) -> None:
        return None


def _paths(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(int, path)) for path in text.split())


# Public static trees, as lists of rank paths. EAGLE-1's default has 25 nodes although its name says 63; Medusa's
# (vicuna-7b, MC-Sim) has 63 and is a product tree: entry j at depth d is the j-th best token of head d.
EAGLE_25 = Static(_paths("0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"))
MEDUSA_63 = Static(
    _paths(
        "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003 40 21 004 005 "
        "0000 011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021 90 060 0001 16 070"
    )
)
BY_NAME = {"eagle_25": EAGLE_25, "medusa_63": MEDUSA_63}
