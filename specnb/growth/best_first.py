"""Growth rules that search for the likeliest nodes of any depth: SALF, SpecExec, OPT-Tree, and ``Paying``.

They have the methods of every growth rule (``levels.Growth``):
- ``select(tree, scores)`` returns the nodes that the draft model expands next, each with its number of children. An
  empty list ends drafting.
- ``finish(tree, scores)`` returns the nodes to keep, without the root.
scores: (n,) float64, the probability of each node's path, 1 for the root. ``prunes`` is True, because these rules drop
nodes by their probability. So their drafts must be POINT (chosen, not drawn).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specnb.growth.levels import Frontier, Growth, at_least_one, best, last_level
from specnb.tree import TokenTree


@dataclass(frozen=True)
class Salf:
    """SALF (SALF & TALF, Algorithm 2): a search for the likeliest nodes that stops when little more can be found.

    Example: a draft that gives its two tokens .6 and .4 everywhere, total=4, beam=1, threshold=.5, width=2. First the
    root is expanded (S = 1), then the node of .6 (S = .6). The open nodes are now .4, .36 and .24. The next beam is .4:
    S = .4 is below the threshold, and drafting stops with the popped nodes 1, .6 and .4. With fill=True .36 is kept,
    too.

    An open node has been scored but not expanded. For each forward the ``beam`` likeliest open nodes, of any depth, are
    popped. Of these the forward expands those that could still have children among the ``total`` likeliest nodes.
    Drafting stops when their probabilities sum to S < ``threshold``; the nodes popped by then are the tree. With
    ``threshold=0`` drafting goes on until no child can enter the tree: this is the tree of largest expected length.

    total: the most nodes of the tree, the root included, as in the paper.
    beam: the most nodes that one forward expands.
    threshold: the smallest S for which another forward is made.
    width: children of an expanded node. With less than ``total`` the search may miss a likely child, but the tree that
        is scored is smaller.
    fill: True keeps the ``total`` likeliest of all scored nodes, popped or not. This needs no further draft forward;
        the paper's text does not decide it.
    depth: nodes of this depth get no children and do not use up the beam; they are popped before less likely nodes.

    As printed, Algorithm 2 pushes the root twice and never ends at threshold 0; here an empty beam ends it. Raises
    ValueError on a ``threshold`` outside [0, 1) and on any other setting below 1.
    """

    total: int = 60
    beam: int = 10
    threshold: float = 0.6
    width: int = 60
    fill: bool = False
    depth: int = 1000  # in practice without limit
    prunes = True

    def __post_init__(self):
        at_least_one(self, "total", "beam", "width", "depth")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"Salf's threshold must lie in [0, 1), got {self.threshold}")

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier:
        kept, beam = self._pop_beam(tree, scores)
        epsilon = scores[kept].min() if len(kept) == self.total else 0.0  # the paper's ε
        beam = [node for node in beam if scores[node] > epsilon]  # a child is never likelier than its parent
        gain = scores[beam].sum()  # S_i of the paper: what a further forward can add at most
        if not beam or gain < self.threshold:
            return []
        return [(node, self.width) for node in beam]

    def _pop_beam(self, tree: TokenTree, scores: np.ndarray) -> tuple[list[int], list[int]]:
        """Pop the next beam; return (kept, beam).

        kept: the paper's G, the ``total`` likeliest of all nodes popped so far, the beam included.
        beam: the nodes popped last.
        """
        at_depth = tree.depth.numpy() >= self.depth  # (n,) bool: these will have no children
        popped = np.zeros(len(tree), bool)
        popped[tree.parents.numpy()[1:]] = True  # a node with children was popped before
        is_open = ~popped & ~at_depth
        beam = best(np.flatnonzero(is_open), scores, self.beam)
        popped[beam] = True
        least_of_beam = scores[beam].min() if beam else 0.0
        popped |= at_depth & (scores >= least_of_beam)
        kept = best(np.flatnonzero(popped), scores, self.total)
        return kept, beam

    def finish(self, tree: TokenTree, scores: np.ndarray) -> list[int]:
        if self.fill:
            kept = best(range(len(tree)), scores, self.total)
        else:
            kept, _ = self._pop_beam(tree, scores)
        return [node for node in kept if node > 0]


@dataclass(frozen=True)
class Paying:
    """A growth rule around a search: it expands fewer of the nodes that the search selects if they cost too much.

    Example: the search selects nodes of .5, .3 and .1, and the prices are (.2, .3, .6). Expanding one node gains
    .5 − .2 = .3, two nodes .8 − .3 = .5, three nodes .9 − .6 = .3: the two likeliest are expanded.

    In general it expands the n likeliest of the selected nodes, with the n that maximises their summed probability
    minus the price of n. If no n gains anything, drafting ends; the root is always expanded.

    search: the wrapped rule; its ``finish`` decides which nodes are kept.
    prices: [n - 1] is the price of expanding n nodes in one forward. There is one price for each allowed n. A price is
        in path probability, because that is what the expanded nodes are worth: the probability that a node is reached
        is proportional to the tokens that its children earn. ``AutoDrafter`` converts seconds to this unit.
    """

    search: Growth
    prices: Sequence[float]
    prunes = True

    def select(self, tree: TokenTree, scores: np.ndarray) -> Frontier:
        frontier = self.search.select(tree, scores)
        likeliest = sorted(frontier, key=lambda entry: -scores[entry[0]])  # entry: (node, number of children)
        likeliest = likeliest[: len(self.prices)]
        if not likeliest:
            return []
        nodes = [node for node, _ in likeliest]
        gains = scores[nodes].cumsum() - self.prices[: len(nodes)]  # [n - 1]: the gain of expanding the first n
        if gains.max() <= 0 and len(tree) > 1:
            return []
        count = 1 + gains.argmax()
        return likeliest[:count]

    def finish(self, tree: TokenTree, scores: np.ndarray) -> list[int]:
        return self.search.finish(tree, scores)


@dataclass(frozen=True)
class SpecExec:
    """SpecExec's search (Svirschevski et al. 2024): it has no threshold, and long paths count less.

    The weight of a node is its path probability times ``decay`` ** depth. Each forward expands the ``beam`` heaviest
    open nodes among the ``total`` heaviest nodes. Drafting ends when none of these is open. The public code looks only
    at the newest nodes, so it may end one forward earlier.

    total: the number of nodes kept, the root not counted.
    beam: the most nodes that one forward expands.
    width: children of an expanded node.
    decay: the factor per level, in (0, 1].
    depth: nodes of this depth get no children.

    Example: decay=.95, a node of probability .5 on level 1 and a node of .52 on level 2. Their weights are .475 and
    .52 · .9025 = .469: with beam=1 the first one is expanded.
    """

    total: int = 59
    beam: int = 32
    width: int = 32
    decay: float = 0.95
    depth: int = 1000  # in practice without limit
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
        """(n,) weights: path probability × decay ** depth."""
        return scores * self.decay ** tree.depth.numpy()

    def finish(self, tree: TokenTree, scores: np.ndarray) -> list[int]:
        return best(range(1, len(tree)), self._weights(tree, scores), self.total)


@dataclass(frozen=True)
class OptTree:
    """OPT-Tree (Wang et al. 2024): a search level by level that stops when a level adds too little.

    Example: total=3, and levels of (.6, .4) and (.36, .24, .24, .16). The expected number of accepted tokens is
    .6 + .4 = 1 with the first level and .6 + .4 + .36 = 1.36 with both. The second level added .36: at threshold .5
    drafting ends after it, at threshold .3 it goes on.

    In each level the ``total`` likeliest nodes get ``width`` children. The sum of the ``total`` largest path
    probabilities is the expected number of accepted tokens. Drafting stops when a level has raised it by at most
    ``threshold``.

    total: the number of nodes kept, the root not counted.
    threshold: in expected accepted tokens, at least 0.
    depth: the most levels.
    width: children of an expanded node.
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
        """Whether the tree has its full depth, or its last level added too little."""
        if tree.depth_list[-1] >= self.depth:
            return True
        with_level = self._expected(range(1, len(tree)), scores)
        without_level = self._expected(range(1, level[0]), scores)
        return with_level - without_level <= self.threshold

    def _expected(self, nodes: Sequence[int], scores: np.ndarray) -> float:
        """The expected number of accepted tokens of the ``total`` likeliest of these nodes."""
        return float(scores[best(nodes, scores, self.total)].sum())

    def finish(self, tree: TokenTree, scores: np.ndarray) -> list[int]:
        return best(range(1, len(tree)), scores, self.total)
