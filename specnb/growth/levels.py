"""Which nodes to expand and when to stop. A growth rule is two small pure functions over a growing tree.

``select(tree, scores)`` names the nodes to expand next, with the number of children each shall get; an empty
list stops. ``finish(tree, scores)`` names the nodes to keep, or None for all. scores: a numpy array (n,) of float64,
the drafter's probability of each node's path, 1 for the root.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from numbers import Integral
from typing import Protocol

import numpy as np

from specnb.tree import TokenTree

Frontier = Sequence[tuple[int, int]]  # (node, number of children)


class Growth(Protocol):
    """A growth rule; one that is derived from this class keeps all that it drafts, unless it says otherwise.

    ``prunes`` says that finish may drop drawn nodes, which only POINT trees survive unbiased.
    """

    prunes: bool = False

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier: ...

    def finish(self, tree: TokenTree, scores: np.ndarray) -> Sequence[int] | None:
        return None


@dataclass(frozen=True)
class Static(Growth):
    """A fixed shape: one path of ranks per node (EAGLE-1's and Medusa's ``choices``; vLLM's token tree).

    A node's rank is its place among its siblings in drawing order. Where a law had too few tokens for a
    sibling, what would hang below it is left out. name: what recordings and pictures call it; it makes no difference.
    """

    paths: tuple[tuple[int, ...], ...]
    name: str = field(default="", compare=False)

    def __post_init__(self):
        object.__setattr__(self, "paths", tuple(map(tuple, self.paths)))
        if len({*self.paths}) < len(self.paths) or any(rank < 0 for path in self.paths for rank in path):
            raise ValueError(f"paths must differ, and their ranks be 0, 1, …, got {self.paths}")
        for path in self.paths:
            if path and path[-1] > 0 and (*path[:-1], path[-1] - 1) not in self.paths:
                raise ValueError(f"path {path} has no elder sibling {(*path[:-1], path[-1] - 1)}: ranks are 0, 1, …")
            if len(path) > 1 and path[:-1] not in self.paths:
                raise ValueError(f"path {path} has no parent {path[:-1]}")

    @cached_property
    def widths(self) -> dict[tuple[int, ...], int]:
        """Rank path of a node → its number of children."""
        return Counter(path[:-1] for path in self.paths if path)

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier:
        ranks: list[tuple[int, ...]] = [()]
        for node in range(1, len(tree)):
            parent = tree.parent_list[node]
            ranks.append((*ranks[parent], tree.children[parent].index(node)))
        return [(i, self.widths[ranks[i]]) for i in last_level(tree) if ranks[i] in self.widths]


def kary(k: int, depth: int) -> Static:
    """The full k-ary shape of the given depth: k + k² + … nodes. kary(2, d) is the papers' binary tree."""
    if k < 1 or depth < 0:
        raise ValueError(f"a k-ary tree needs k >= 1 and depth >= 0, got k={k}, depth={depth}")
    paths = tuple(path for level in range(depth) for path in product(range(k), repeat=level + 1))
    return Static(paths, f"kary({k}, {depth})")


def chain(gamma: int) -> Static:
    """gamma tokens in a row: classic speculative decoding."""
    return replace(kary(1, gamma), name=f"chain({gamma})")


@dataclass(frozen=True)
class DynaTree(Growth):
    """DynaTree's growth (Chen et al., Algorithm 1): width branch below the likeliest token, pruned by path probability.

    The draft's top token stands alone below the root; below it every node of a level whose path has at least the
    probability threshold gets branch children, for depth levels, until there are budget nodes (root not counted):
    the last children that fit are the likeliest of the node whose turn it is. A whole level is expanded at once;
    the paper feeds its draft node by node, in vain those that find no room. first: children of the root, 1 in the
    paper. A tree's shape hangs on probabilities of nodes that are there already, so sampled trees stay unbiased.
    Raises ValueError on a threshold outside (0, 1), or on less than one level, child or node.
    """

    depth: int = 8
    branch: int = 3
    threshold: float = 0.03
    budget: int = 128
    first: int = 1

    def __post_init__(self):
        at_least_one(self, "depth", "branch", "budget", "first")
        if not 0 < self.threshold < 1:
            raise ValueError(f"DynaTree's threshold must lie in (0, 1), got {self.threshold}")

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier:
        deepest = tree.depth_list[-1]
        if deepest > self.depth:
            return []
        room = self.budget - (len(tree) - 1)
        frontier = []
        for node, chance in enumerate(scores.tolist()):
            wanted = min(self.branch if node else self.first, room)
            if tree.depth_list[node] == deepest and chance >= self.threshold and wanted > 0:
                frontier.append((node, wanted))
                room -= wanted
        return frontier


@dataclass(frozen=True)
class Cape:
    """CAPE (GLIDE, Du et al. 2024): a greedy chain, with 7, 5, 3 or 1 more tokens beside each of its.

    How many is decided by the confidence of the chain's token there: in (0, .3], (.3, .6], (.6, .8], (.8, 1]. Only
    the likeliest token is expanded. The widths depend on the law that is being drafted from, so the widest is
    drafted and ``finish`` drops what is too many. GLIDE's code has these widths, the likeliest included 8, 6, 4
    and 2, at depth 4; EDD (section 4.1) takes depth 5 and calls 7, 5, 3, 1 the widths themselves.
    """

    depth: int = 5
    extra: tuple[int, ...] = (7, 5, 3, 1)
    edges: tuple[float, ...] = (0.3, 0.6, 0.8)
    prunes = True

    def __post_init__(self):
        if self.depth < 1 or len(self.extra) != len(self.edges) + 1:
            raise ValueError(f"Cape needs a depth of at least 1 and one width more than edges, got {self}")

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier:
        deepest = tree.depth_list[-1]
        tip = tree.depth_list.index(deepest)  # the first of its level is the likeliest: only the chain was expanded
        return [(tip, 1 + max(self.extra))] if deepest < self.depth else []

    def finish(self, tree: TokenTree, scores: np.ndarray) -> list[int]:
        keep = []
        node = 0
        while children := tree.children[node]:
            confidence = scores[children[0]] / scores[node]
            extra = self.extra[sum(confidence > edge for edge in self.edges)]
            keep += children[: 1 + extra]
            node = children[0]
        return keep


@dataclass(frozen=True)
class Eagle2:
    """EAGLE-2's beam (Li et al. 2024): of each level the k likeliest paths get k children; the best total nodes stay.

    total: draft tokens kept; depth: tokens on the longest path. Ties go to the elder node, so that no child outlives
    its parent. EAGLE's code counts the root in its total and the first level not in its depth: its scripts' 60 and 5
    are the defaults here.
    """

    total: int = 59
    depth: int = 6
    k: int = 10
    prunes = True

    def __post_init__(self):
        at_least_one(self, "total", "depth", "k")

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier:
        if tree.depth_list[-1] >= self.depth:
            return []
        return [(node, self.k) for node in best(last_level(tree), scores, self.k)]

    def finish(self, tree: TokenTree, scores: np.ndarray) -> list[int]:
        return best(range(1, len(tree)), scores, self.total)


@dataclass(frozen=True)
class Pct:
    """The pruned candidate tree of EDD (section 3.2): a node is expanded only if its path probability is worth a call.

    Every node of a level with C(node) ≥ cost gets k children, for at most depth levels; cost is a draft call's share
    of a target call, s_d / s_t (equation 5). In the end leaves below ``leaf`` go. Since a level's C sum to at most
    1, no more than 1 / cost nodes are expanded in a level. leaf=0 removes none.
    """

    cost: float = 0.1
    k: int = 5
    depth: int = 10
    leaf: float = 0.01
    prunes = True

    def __post_init__(self):
        if not 0 <= self.cost <= 1 or not 0 <= self.leaf <= self.cost:
            raise ValueError(f"Pct needs 0 ≤ leaf ≤ cost ≤ 1 (s_d / s_t), got leaf {self.leaf} and cost {self.cost}")
        at_least_one(self, "k", "depth")

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier:
        if tree.depth_list[-1] >= self.depth:
            return []
        return [(node, self.k) for node in last_level(tree) if scores[node] >= self.cost]

    def finish(self, tree: TokenTree, scores: np.ndarray) -> list[int]:
        return (1 + np.flatnonzero(scores[1:] >= self.leaf)).tolist()  # no expanded node lies below


def best(nodes: Iterable[int] | np.ndarray, scores: np.ndarray, count: int) -> list[int]:
    """The count nodes of highest score, elder ones first among equals, in index order."""
    nodes = nodes if isinstance(nodes, np.ndarray) else np.array(sorted(nodes), dtype=np.int64)
    order = np.argsort(-scores[nodes], kind="stable")[:count]
    return np.sort(nodes[order]).tolist()


def last_level(tree: TokenTree) -> list[int]:
    """The nodes of the deepest level, in index order."""
    deepest = max(tree.depth_list)
    return [node for node, depth in enumerate(tree.depth_list) if depth == deepest]


def at_least_one(rule: object, *names: str) -> None:
    """ValueError unless a setting of that name is a whole number, 1 or more."""
    for name in names:
        value = getattr(rule, name)
        if not isinstance(value, Integral):
            raise ValueError(f"{type(rule).__name__}'s {name} must be a whole number, got {value}")
        if value < 1:
            raise ValueError(f"{type(rule).__name__}'s {name} must be at least 1, got {value}")


def within(rule: Growth, depth: int) -> Growth:
    """A rule that knows that no node goes deeper: a search must not wait for nodes that will have no children."""
    return replace(rule, depth=max(1, depth)) if depth < getattr(rule, "depth", 0) else rule


def _shape(name: str, text: str) -> Static:
    return Static(tuple(tuple(map(int, path)) for path in text.split()), name)


# Public static trees, as lists of rank paths. EAGLE-1's default has 25 nodes although its name says 63; Medusa's
# (vicuna-7b, MC-Sim) has 63 and is a product tree: entry j at depth d is the j-th best token of head d.
EAGLE_25 = _shape(
    "EAGLE_25", "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
)
MEDUSA_63 = _shape(
    "MEDUSA_63",
    "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003 40 21 004 005 "
    "0000 011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021 90 060 0001 16 070",
)
