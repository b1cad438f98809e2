"""Growth rules that search for the likeliest nodes, wherever they are.

They are rules as in ``levels``; what differs is when they stop.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specnb.growth.levels import Frontier, Growth, at_least_one, best, last_level
from specnb.tree import TokenTree


@dataclass(frozen=True)
class Salf:
    """SALF (SALF & TALF, Algorithm 2): search for the likeliest nodes, stopped when little is left to be found.

    Each forward expands the beam likeliest open nodes, of any depth, that could still enter the best total. Drafting
    stops when their probabilities sum to less than threshold; what was popped by then is the tree. threshold=0 goes
    on until nothing can enter: the optimal tree, of largest expected length. fill=True keeps the likeliest total of
    what was scored, popped or not, which costs no draft forward (the paper's text leaves it open). total counts
    the root, as in the paper. width: children asked of a node; below total the search may miss a likely eleventh
    child, but scores a sixth of the nodes. Printed, Algorithm 2 pushes the root twice and never ends at threshold 0:
    an empty beam ends it here. depth: nodes there have no children and no place in the beam; they are popped before
    whatever is less likely. Raises ValueError on a threshold outside [0, 1) or on less than one node.
    """

    total: int = 60
    beam: int = 10
    threshold: float = 0.6
    width: int = 60
    fill: bool = False
    depth: int = 1000
    prunes = True

    def __post_init__(self):
        at_least_one(self, "total", "beam", "width", "depth")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"Salf's threshold must lie in [0, 1), got {self.threshold}")

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier:
        popped, beam = self._popped(tree, scores)
        bar = scores[popped].min() if len(popped) == self.total else 0.0
        beam = [node for node in beam if scores[node] > bar]
        gain = scores[beam].sum()  # S_i of the paper: what a further forward can add at most
        if not beam or gain < self.threshold:
            return []
        return [(node, self.width) for node in beam]

    def _popped(self, tree: TokenTree, scores: np.ndarray) -> tuple[list[int], list[int]]:
        """G once the next beam is popped, and that beam: open nodes are those that have no children yet but may."""
        last = tree.depth.numpy() >= self.depth
        closed = np.zeros(len(tree), bool)
        closed[tree.parents.numpy()[1:]] = True
        beam = best(np.flatnonzero(~closed & ~last), scores, self.beam)
        closed[beam] = True
        least = scores[beam].min() if beam else 0.0
        closed |= last & (scores >= least)
        return best(np.flatnonzero(closed), scores, self.total), beam

    def finish(self, tree: TokenTree, scores: np.ndarray) -> list[int]:
        found = best(range(len(tree)), scores, self.total) if self.fill else self._popped(tree, scores)[0]
        return [node for node in found if node]


@dataclass(frozen=True)
class Paying:
    """Of what a search would expand at once the likeliest nodes, as many as are worth most beyond their price.

    prices: of expanding 1, 2, … nodes, up to as many as may be, in path probability. Where no number is worth its
    price, drafting ends; the root is always expanded.
    """

    search: Growth
    prices: Sequence[float]
    prunes = True

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier:
        found = sorted(self.search.select(tree, scores), key=lambda wanted: -scores[wanted[0]])[: len(self.prices)]
        if not found:
            return []
        gains = scores[[node for node, _ in found]].cumsum() - self.prices[: len(found)]
        if gains.max() <= 0 and len(tree) > 1:
            return []
        return found[: 1 + gains.argmax()]

    def finish(self, tree: TokenTree, scores: np.ndarray) -> list[int]:
        return self.search.finish(tree, scores)


@dataclass(frozen=True)
class SpecExec:
    """SpecExec's search (Svirschevski et al. 2024): like Salf's without its stop, and with paths weighted by length.

    A node's weight is its path probability times decay^depth. Each forward expands the beam best open nodes that are
    among the best total, with width children each; it ends when none is, which may be a forward later than the
    public code, that looks at the newest nodes only. total counts draft tokens. depth: nodes there have no children.
    """

    total: int = 59
    beam: int = 32
    width: int = 32
    decay: float = 0.95
    depth: int = 1000
    prunes = True

    def __post_init__(self):
        at_least_one(self, "total", "beam", "width", "depth")
        if not 0 < self.decay <= 1:
            raise ValueError(f"SpecExec's decay must lie in (0, 1], got {self.decay}")

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier:
        among = (node for node in (0, *self.finish(tree, scores)) if tree.depth_list[node] < self.depth)
        still = [node for node in among if not tree.children[node]]
        return [(node, self.width) for node in best(still, self._weights(tree, scores), self.beam)]

    def _weights(self, tree: TokenTree, scores: np.ndarray) -> np.ndarray:
        return scores * self.decay ** tree.depth.numpy()

    def finish(self, tree: TokenTree, scores: np.ndarray) -> list[int]:
        return best(range(1, len(tree)), self._weights(tree, scores), self.total)


@dataclass(frozen=True)
class OptTree:
    """OPT-Tree (Wang et al. 2024): level by level, until the best total nodes gain less than a threshold.

    Of each level the total likeliest nodes get width children. The sum of the total largest path probabilities is
    what the tree is expected to have accepted; drafting stops when a level raised it by at most threshold.
    """

    total: int = 50
    threshold: float = 0.5
    depth: int = 10
    width: int = 50
    prunes = True

    def __post_init__(self):
        at_least_one(self, "total", "depth", "width")
        if not self.threshold >= 0:
            raise ValueError(f"OptTree's threshold must be at least 0, got {self.threshold}")

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier:
        deepest, level = tree.depth_list[-1], last_level(tree)
        gain = self._expected(range(1, len(tree)), scores) - self._expected(range(1, level[0]), scores)
        if deepest and (deepest >= self.depth or gain <= self.threshold):
            return []
        return [(node, self.width) for node in best(level, scores, self.total)]

    def _expected(self, nodes: Sequence[int], scores: np.ndarray) -> float:
        return float(scores[best(nodes, scores, self.total)].sum())

    def finish(self, tree: TokenTree, scores: np.ndarray) -> list[int]:
        return best(range(1, len(tree)), scores, self.total)
