"""Growth rules that go level by level: which nodes of a draft tree to expand, when to stop, and which nodes to keep.

A growth rule is two pure functions over a growing tree:
- ``select(tree, scores)`` returns the nodes to expand next, each with its number of children. An empty list stops.
- ``finish(tree, scores)`` returns the nodes to keep, or None for all.
scores: (n,) float64 numpy array, the draft model's probability of each node's path, 1 for the root. A law is the draft
model's probability distribution over the next token.
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
    """The methods of a growth rule. A rule derived from this class keeps all nodes, unless it has its own ``finish``.

    prunes: whether ``finish`` may drop nodes. Then the tree must be POINT (chosen, not drawn): to drop drawn nodes
        would bias the output.
    """

    prunes: bool = False

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier: ...

    def finish(self, tree: TokenTree, scores: np.ndarray) -> Sequence[int] | None:
        return None


@dataclass(frozen=True)
class Static(Growth):
    """A fixed shape: one path of ranks per node (EAGLE-1's and Medusa's ``choices``; vLLM's token tree).

    Example: ``Static(((0,), (1,), (0, 0)))`` drafts two tokens, and one more below the first of them.

    paths: the paths of all nodes. The rank of a node is its index among its siblings, in drawing order. If a law has
        too few tokens for a node, the nodes below it are left out, too.
    name: for recordings and pictures; it does not change the rule.
    Raises ValueError on equal paths, negative ranks, and a path whose parent or elder sibling is missing.
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
        paths: list[tuple[int, ...]] = [()]  # the path of ranks of each node
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
    """Return the full k-ary shape of this depth, of k + k² + … nodes. kary(2, d) is the papers' binary tree."""
    if k < 1 or depth < 0:
        raise ValueError(f"a k-ary tree needs k >= 1 and depth >= 0, got k={k}, depth={depth}")
    paths: list[tuple[int, ...]] = []
    for length in range(1, depth + 1):
        paths += product(range(k), repeat=length)
    return Static(tuple(paths), f"kary({k}, {depth})")


def chain(gamma: int) -> Static:
    """Return the shape of gamma tokens in a row: classic speculative decoding."""
    return replace(kary(1, gamma), name=f"chain({gamma})")


@dataclass(frozen=True)
class DynaTree(Growth):
    """DynaTree's growth (Chen et al., Algorithm 1): a fixed width below the top token, pruned by path probability.

    Example: a draft that gives its three tokens .6, .3 and .1 everywhere, depth=1, branch=2, threshold=.5. The root
    gets its top token, of probability .6. This is at least .5, so it gets two children, of .36 and .18. Now there are
    ``depth`` levels below the top token, and growth ends. With threshold=.7 the top token has no children.

    depth: the number of levels below the first one.
    branch: children of an expanded node.
    threshold: a node is expanded if its path has at least this probability.
    budget: the most nodes, the root not counted. The last expanded node gets only the children that still fit, the
        likeliest ones.
    first: children of the root, 1 in the paper.

    All nodes of a level are expanded by one forward; the paper feeds its draft node by node, even nodes that get no
    children. The shape depends only on the probabilities of nodes that exist already, so sampled trees stay unbiased.
    Raises ValueError on a threshold outside (0, 1), and on any other setting below 1.
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
    """CAPE (GLIDE, Du et al. 2024): a greedy chain, with 7, 5, 3 or 1 more tokens beside each of its tokens.

    Example: after the root the likeliest token has probability .7, and after that one the likeliest has .2. Then the
    first level keeps 1 + 3 tokens and the second 1 + 7.

    depth: the length of the chain.
    extra: the numbers of more tokens, from low to high confidence.
    edges: the limits between them: extra[0] is for confidence in (0, .3], extra[1] for (.3, .6], and so on.

    The confidence is the probability of the chain's token. Only the chain is expanded. The width of a level is known
    only when its law is, so the widest is drafted first, and ``finish`` drops the tokens that are too many. GLIDE's
    code has these widths (8, 6, 4 and 2 with the chain's token) at depth 4. EDD (section 4.1) has depth 5, and takes 7,
    5, 3, 1 as the widths with the chain's token.
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
    """EAGLE-2's beam (Li et al. 2024): in each level the k likeliest nodes get k children; the best nodes are kept.

    total: the number of nodes kept, the root not counted.
    depth: the most tokens on a path.
    k: the nodes expanded per level, and the children of each.

    Among equally likely nodes the elder one is kept, so that no child is kept without its parent. EAGLE's code counts
    the root in its total and does not count the first level in its depth: its 60 and 5 are 59 and 6 here, the defaults.
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

    cost: the time of a draft call as a share of a target call, s_d / s_t (equation 5). A node is expanded if the
        probability of its path, C(node), is at least cost.
    k: children of an expanded node.
    depth: the most levels.
    leaf: in the end, leaves with C < leaf are removed; 0 removes none.

    Example: cost=.1 and a level with C = .5, .3, .08: the first two nodes are expanded. The C of a level sum to at most
    1, so at most 1 / cost = 10 nodes are expanded per level.

    Raises ValueError unless 0 ≤ leaf ≤ cost ≤ 1, and if k or depth is below 1.
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
        return (1 + np.flatnonzero(scores[1:] >= self.leaf)).tolist()  # keeps all expanded nodes, since leaf ≤ cost


def best(nodes: Iterable[int] | np.ndarray, scores: np.ndarray, count: int) -> list[int]:
    """Return the count nodes of highest score (the elder one among equals), in index order.

    Example: of the nodes 1 to 4 with scores (1, .2, .5, .2, .1), the root's first, the best two are [1, 2]: nodes 1
    and 3 have the same score, and 1 is elder.
    """
    if not isinstance(nodes, np.ndarray):
        nodes = np.array(sorted(nodes), dtype=np.int64)
    by_score = np.argsort(-scores[nodes], kind="stable")  # stable: elder ones first among equals
    best_nodes = nodes[by_score[:count]]
    return np.sort(best_nodes).tolist()


def last_level(tree: TokenTree) -> list[int]:
    """Return the nodes of the deepest level, in index order."""
    deepest = max(tree.depth_list)
    return [node for node, depth in enumerate(tree.depth_list) if depth == deepest]


def at_least_one(rule: object, *names: str) -> None:
    """ValueError unless each of these settings is a whole number, 1 or more."""
    for name in names:
        value = getattr(rule, name)
        if not isinstance(value, Integral):
            raise ValueError(f"{type(rule).__name__}'s {name} must be a whole number, got {value}")
        if value < 1:
            raise ValueError(f"{type(rule).__name__}'s {name} must be at least 1, got {value}")


def within(rule: Growth, depth: int) -> Growth:
    """Return the rule with its ``depth`` lowered to this one, if it has a larger one.

    A search must know how deep the tree can get, or it would go on popping nodes that cannot get children.
    """
    if depth >= getattr(rule, "depth", 0):  # 0: a rule without a depth of its own
        return rule
    return replace(rule, depth=max(1, depth))


def _shape(name: str, text: str) -> Static:
    """Return a static tree from a list of rank paths, one digit per rank."""
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
