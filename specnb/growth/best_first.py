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

    An open node is one that has been scored but not expanded. Each forward pops the ``beam`` likeliest open nodes, of
    any depth, and expands those that could still have children among the ``total`` likeliest. Drafting stops when the
    probabilities of these sum to less than threshold; what was popped by then is the tree. threshold=0 goes on until
    nothing can enter: the optimal tree, of largest expected length.

    total: nodes of the tree, the root among them, as in the paper.
    width: children asked of a node. Below total the search may miss a likely child, but scores fewer nodes.
    fill: True keeps the likeliest total of what was scored, popped or not, which costs no draft forward (the paper's
       text leaves it open).
    depth: nodes there have no children and no place in the beam; they are popped before whatever is less likely.

    Printed, Algorithm 2 pushes the root twice and never ends at threshold 0: an empty beam ends it here. Raises
    ValueError on a threshold outside [0, 1) or on less than one node.

    Example: a draft that gives its two tokens .6 and .4 everywhere, total=4, beam=1, threshold=.5, width=2. The root
    is expanded (S = 1), then the node of .6. Open are now .4, .36 and .24: S = .4 is too little, and drafting stops
    with the popped nodes 1, .6 and .4. With fill=True .36 is kept, too.
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
        kept, beam = self._popped(tree, scores)
        least_kept = scores[kept].min() if len(kept) == self.total else 0.0  # the paper's ε
        beam = [node for node in beam if scores[node] > least_kept]
        gain = scores[beam].sum()  # S_i of the paper: what a further forward can add at most
        if not beam or gain < self.threshold:
            return []
        return [(node, self.width) for node in beam]

    def _popped(self, tree: TokenTree, scores: np.ndarray) -> tuple[list[int], list[int]]:
        """The paper's G once the next beam is popped (the likeliest total of all popped nodes), and that beam."""
        at_depth = tree.depth.numpy() >= self.depth  # (n,) bool: these will have no children
        popped = np.zeros(len(tree), bool)
        popped[tree.parents.numpy()[1:]] = True  # whoever has children was popped before
        is_open = ~popped & ~at_depth
        beam = best(np.flatnonzero(is_open), scores, self.beam)
        popped[beam] = True
        least = scores[beam].min() if beam else 0.0
        popped |= at_depth & (scores >= least)
        kept = best(np.flatnonzero(popped), scores, self.total)
        return kept, beam

    def finish(self, tree: TokenTree, scores: np.ndarray) -> list[int]:
        if self.fill:
            kept = best(range(len(tree)), scores, self.total)
        else:
            kept, _ = self._popped(tree, scores)
        return [node for node in kept if node > 0]


@dataclass(frozen=True)
class Paying:
    """Of what a search would expand at once the likeliest nodes, as many as are worth most beyond their price.

    prices: of expanding 1, 2, … nodes at once, in path probability; as many prices as nodes may be expanded at once.
    Where no number is worth its price, drafting ends; the root is always expanded.

    Example: the search would expand nodes of .5, .3 and .1, and prices are (.2, .3, .6). Expanding one gains .5 − .2,
    two .8 − .3, three .9 − .6: two nodes are expanded.
    """

    search: Growth
    prices: Sequence[float]
    prunes = True

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier:
        frontier = self.search.select(tree, scores)
        likeliest = sorted(frontier, key=lambda pair: -scores[pair[0]])  # pair: node and width
        likeliest = likeliest[: len(self.prices)]
        if not likeliest:
            return []
        nodes = [node for node, _ in likeliest]
        gains = scores[nodes].cumsum() - self.prices[: len(nodes)]  # [i]: of expanding the first i + 1
        if gains.max() <= 0 and len(tree) > 1:
            return []
        count = 1 + gains.argmax()
        return likeliest[:count]

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
        heaviest = [0, *self.finish(tree, scores)]
        open_nodes = [node for node in heaviest if not tree.children[node] and tree.depth_list[node] < self.depth]
        beam = best(open_nodes, self._weights(tree, scores), self.beam)
        return [(node, self.width) for node in beam]

    def _weights(self, tree: TokenTree, scores: np.ndarray) -> np.ndarray:
        """(n,) path probability × decay^depth."""
        return scores * self.decay ** tree.depth.numpy()

    def finish(self, tree: TokenTree, scores: np.ndarray) -> list[int]:
        return best(range(1, len(tree)), self._weights(tree, scores), self.total)


@dataclass(frozen=True)
class OptTree:
    """OPT-Tree (Wang et al. 2024): level by level, until the best total nodes gain less than a threshold.

    Of each level the total likeliest nodes get width children. The sum of the total largest path probabilities is
    what the tree is expected to have accepted; drafting stops when a level raised it by at most threshold.

    Example: total=3, and levels of (.6, .4) and (.36, .24, .24, .16). The first is expected to have 1 token accepted,
    both 1.36: at threshold .5 drafting ends with them, at .3 it goes on.
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
        level = last_level(tree)
        if len(tree) > 1 and self._is_complete(tree, scores, level):
            return []
        return [(node, self.width) for node in best(level, scores, self.total)]

    def _is_complete(self, tree: TokenTree, scores: np.ndarray, level: list[int]) -> bool:
        """Whether the tree is as deep as it may be, or its last level brought too little."""
        if tree.depth_list[-1] >= self.depth:
            return True
        with_level = self._expected(range(1, len(tree)), scores)
        without_level = self._expected(range(1, level[0]), scores)
        return with_level - without_level <= self.threshold

    def _expected(self, nodes: Sequence[int], scores: np.ndarray) -> float:
        """The accepted length that is expected of the best total of these nodes."""
        return float(scores[best(nodes, scores, self.total)].sum())

    def finish(self, tree: TokenTree, scores: np.ndarray) -> list[int]:
        return best(range(1, len(tree)), scores, self.total)
