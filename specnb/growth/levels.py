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
    Raises ValueError on two equal paths, negative ranks, and a path whose parent or elder sibling is no path.

    Example: ``Static(((0,), (1,), (0, 0)))`` drafts two tokens, and one more below the first of them.
    """

    paths: tuple[tuple[int, ...], ...]
    name: str = field(default="", compare=False)

    def __post_init__(self):
        paths = tuple(tuple(path) for path in self.paths)
        object.__setattr__(self, "paths", paths)
        has_twins = len(set(paths)) < len(paths)
        has_negative_ranks = any(min(path, default=0) < 0 for path in paths)
        if has_twins or has_negative_ranks:
            raise ValueError(f"paths must differ, and their ranks be 0, 1, …, got {paths}")
        for path in paths:
            self._check_relatives(path)

    def _check_relatives(self, path: tuple[int, ...]) -> None:
        if not path:
            return
        *before, rank = path
        elder = (*before, rank - 1)
        if rank > 0 and elder not in self.paths:
            raise ValueError(f"path {path} has no elder sibling {elder}: ranks are 0, 1, …")
        parent = tuple(before)
        if parent and parent not in self.paths:
            raise ValueError(f"path {path} has no parent {parent}")

    @cached_property
    def widths(self) -> dict[tuple[int, ...], int]:
        """Rank path of a node → its number of children."""
        return Counter(path[:-1] for path in self.paths if path)

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier:
        paths: list[tuple[int, ...]] = [()]  # of ranks, one a node
        for node in range(1, len(tree)):
            parent = tree.parent_list[node]
            rank = tree.children[parent].index(node)
            paths.append((*paths[parent], rank))
        frontier = []
        for node in last_level(tree):
            width = self.widths.get(paths[node])
            if width is not None:
                frontier.append((node, width))
        return frontier


def kary(k: int, depth: int) -> Static:
    """The full k-ary shape of the given depth: k + k² + … nodes. kary(2, d) is the papers' binary tree."""
    if k < 1 or depth < 0:
        raise ValueError(f"a k-ary tree needs k >= 1 and depth >= 0, got k={k}, depth={depth}")
    paths: list[tuple[int, ...]] = []
    for length in range(1, depth + 1):
        paths += product(range(k), repeat=length)
    return Static(tuple(paths), f"kary({k}, {depth})")


def chain(gamma: int) -> Static:
    """gamma tokens in a row: classic speculative decoding."""
    return replace(kary(1, gamma), name=f"chain({gamma})")


@dataclass(frozen=True)
class DynaTree(Growth):
    """DynaTree's growth (Chen et al., Algorithm 1): width branch below the likeliest token, pruned by path probability.

    The draft's top token stands alone below the root. Below it, for depth levels, every node of a level whose path has
    at least the probability threshold gets branch children, until there are budget nodes (the root is not counted).
    The node whose turn it is then gets the children that still fit, the likeliest ones. A whole level is expanded at
    once; the paper feeds its draft node by node, even those that find no room. first: children of the root, 1 in the
    paper. The shape depends on probabilities of nodes that are there already, so sampled trees stay unbiased.
    Raises ValueError on a threshold outside (0, 1), or on less than one level, child or node.

    Example: a draft that gives its three tokens .6, .3 and .1 everywhere, depth=1, branch=2, threshold=.5. The root
    gets its top token, of .6, which is at least .5 and gets two children, of .36 and .18. There are depth levels below
    the top token, and growth ends. With threshold=.7 the top token stays alone.
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
        for node, score in enumerate(scores.tolist()):
            is_newest = tree.depth_list[node] == deepest
            if not (is_newest and score >= self.threshold):
                continue
            width = self.first if node == 0 else self.branch
            width = min(width, room)
            if width <= 0:
                break
            frontier.append((node, width))
            room -= width
        return frontier


@dataclass(frozen=True)
class Cape:
    """CAPE (GLIDE, Du et al. 2024): a greedy chain, with 7, 5, 3 or 1 more tokens beside each of its.

    How many is decided by the confidence of the chain's token there: in (0, .3], (.3, .6], (.6, .8], (.8, 1]. Only
    the likeliest token is expanded. The widths depend on the law that is being drafted from, so the widest is
    drafted and ``finish`` drops what is too many. GLIDE's code has these widths, the likeliest included 8, 6, 4
    and 2, at depth 4; EDD (section 4.1) takes depth 5 and calls 7, 5, 3, 1 the widths themselves.

    Example: behind the root the likeliest token has probability .7, behind that one .2. Then the first level keeps
    1 + 3 tokens and the second 1 + 7.
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
        if deepest >= self.depth:
            return []
        tip = tree.depth_list.index(deepest)  # the first of its level is the likeliest: only the chain was expanded
        return [(tip, 1 + max(self.extra))]

    def finish(self, tree: TokenTree, scores: np.ndarray) -> list[int]:
        keep = []
        node = 0
        while children := tree.children[node]:
            likeliest = children[0]
            confidence = scores[likeliest] / scores[node]
            edges_below = [edge for edge in self.edges if edge < confidence]
            extra = self.extra[len(edges_below)]
            keep += children[: 1 + extra]
            node = likeliest
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

    C(node) is the probability of its path. Every node of a level with C ≥ cost gets k children, for at most depth
    levels; cost is a draft call's share of a target call, s_d / s_t (equation 5). In the end leaves with C < leaf are
    removed; leaf=0 removes none. Since a level's C sum to at most 1, no more than 1 / cost nodes are expanded in a
    level. Raises ValueError unless 0 ≤ leaf ≤ cost ≤ 1.
    """

    cost: float = 0.1
    k: int = 5
    depth: int = 10
    leaf: float = 0.01
    prunes = True

    def __post_init__(self):
        if not 0 <= self.leaf <= self.cost <= 1:
            raise ValueError(f"Pct needs 0 ≤ leaf ≤ cost ≤ 1 (s_d / s_t), got leaf {self.leaf} and cost {self.cost}")
        at_least_one(self, "k", "depth")

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier:
        if tree.depth_list[-1] >= self.depth:
            return []
        return [(node, self.k) for node in last_level(tree) if scores[node] >= self.cost]

    def finish(self, tree: TokenTree, scores: np.ndarray) -> list[int]:
        return (1 + np.flatnonzero(scores[1:] >= self.leaf)).tolist()  # no expanded node lies below


def best(nodes: Iterable[int] | np.ndarray, scores: np.ndarray, count: int) -> list[int]:
    """The count nodes of highest score, elder ones first among equals, in index order.

    Example: of the nodes 1 to 4 with scores (1, .2, .5, .2, .1), the root's first, the best two are [1, 2]: nodes 1
    and 3 have the same score, and 1 is elder.
    """
    if not isinstance(nodes, np.ndarray):
        nodes = np.array(sorted(nodes), dtype=np.int64)
    by_score = np.argsort(-scores[nodes], kind="stable")  # stable: elder ones first among equals
    chosen = nodes[by_score[:count]]
    return np.sort(chosen).tolist()


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
    if depth >= getattr(rule, "depth", 0):  # 0: a rule without a depth of its own
        return rule
    return replace(rule, depth=max(1, depth))


def _shape(name: str, text: str) -> Static:
    """A static tree from its rank paths, one digit a rank."""
    paths = [tuple(map(int, digits)) for digits in text.split()]
    return Static(tuple(paths), name)


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
