"""TreeDrafter: a draft model gives the laws, a growth rule the shape."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from specnb.drafters.draft_models import DraftModel
from specnb.growth import Growth, within
from specnb.sampling import Coins, Warp, draw_rows
from specnb.tree import Draft, Drawn, Expansion, TokenTree


@dataclass
class Grown:
    """A tree as a draft model grows it, forward by forward.

    chances: (n,) float64, each path's probability, 1 for the root. laws: of each forward the nodes that it expanded,
    with their laws q (m, V_d). expansions: what each forward was given and how long it took.
    """

    tree: TokenTree
    chances: np.ndarray
    laws: list[tuple[list[int], Tensor]] = field(default_factory=list)
    expansions: list[Expansion] = field(default_factory=list)


class TreeDrafter:
    """Grow a token tree level by level with a draft model (EAGLE, SpecInfer, Sequoia, … by choice of parts).

    drawn=POINT takes each node's top tokens by the unwarped q, so that scores stay the draft's confidence at any
    temperature. IID and SWOR draw children from q under the same warp as p, and keep that very q for the verifier.
    growth: it may be set to another rule between two steps. grown: the last step's tree as the draft model has expanded
    it, before any node was dropped; a draft's ``sources`` are numbers of its nodes. ``observe`` takes the draft that
    ``propose`` gave, or one made of it by dropping nodes or adding others.

    Raises ValueError for a sampled tree under a growth rule that prunes, because to drop drawn nodes by their value
    would bias the output; and in ``observe`` for a draft without sources.
    """

    reach = 0

    def __init__(self, draft_model: DraftModel, growth: Growth, drawn: Drawn = Drawn.POINT):
        self.draft_model = draft_model
        self.drawn = drawn
        self.growth = growth
        self.hidden_layers = draft_model.hidden_layers
        self.vocabulary = None  # where the draft names its tokens' ids
        if draft_model.ids is None:
            self.vocabulary = getattr(draft_model, "columns", None)

    @property
    def growth(self) -> Growth:
        return self._growth

    @growth.setter
    def growth(self, rule: Growth) -> None:
        if rule.prunes and self.drawn is not Drawn.POINT:
            raise ValueError(
                f"{type(rule).__name__} drops nodes by their value: a tree drawn {self.drawn.name} would be biased "
                f"by that, use drawn=Drawn.POINT"
            )
        self._growth = rule

    def begin(self, prefix, warp, hidden) -> None:
        self.warp = Warp() if self.drawn is Drawn.POINT else warp
        self.root = prefix[-1]
        self.draft_model.begin(prefix, hidden)

    def propose(self, coins, max_depth) -> Draft:
        if self.draft_model.max_depth is not None:
            max_depth = max(0, min(max_depth, self.draft_model.max_depth))
        growth = within(self.growth, max_depth)
        grown = self._grow(growth, coins, max_depth)
        self.grown = grown.tree

        keep = growth.finish(grown.tree, grown.chances)
        if keep is None:
            kept = list(range(len(grown.tree)))
            tree = grown.tree
        else:
            kept = sorted({0, *keep})
            tree = grown.tree.keep(kept)

        origin = {
            "scores": torch.from_numpy(grown.chances[kept]),
            "sources": torch.tensor(kept, dtype=torch.int64, device="cpu"),
            "expansions": tuple(grown.expansions),
        }
        if self.drawn is Drawn.POINT or not grown.laws:  # nothing was drawn
            return Draft(tree, **origin)
        # A rule that drops nodes was refused, so nodes have the same numbers in both trees.
        q = _table(grown.laws, len(tree))  # (n, V_d)
        return Draft(tree, q, self.drawn, self.draft_model.ids, **origin)

    def _grow(self, growth: Growth, coins: Coins, max_depth: int) -> Grown:
        """All that the growth rule lets the draft model expand."""
        root_alone = TokenTree([self.root], [-1])
        grown = Grown(root_alone, chances=np.ones(1))
        expanded: set[int] = set()
        while True:
            nodes = []
            counts = []  # of children, node by node
            for node, count in growth.select(grown.tree, grown.chances):
                if grown.tree.depth_list[node] < max_depth:
                    nodes.append(node)
                    counts.append(count)
            if not nodes:
                return grown
            already = len(expanded)
            expanded.update(nodes)
            if len(expanded) < already + len(nodes):
                raise ValueError(f"{type(self.growth).__name__} selected a node twice: {nodes}")
            self._expand(grown, nodes, counts, coins)

    def _expand(self, grown: Grown, nodes: list[int], counts: list[int], coins: Coins) -> None:
        """One forward of the draft model over some nodes; so many children are drawn below each of them."""
        began = time.perf_counter()
        logits = self.draft_model.expand(grown.tree, nodes)
        seconds = time.perf_counter() - began
        mass = float(grown.chances[nodes].sum())
        grown.expansions.append(Expansion(len(nodes), mass, seconds))

        q = self.warp(logits)  # (m, V_d)
        grown.laws.append((nodes, q))

        # Of each child: its parent's row in q, its token's column there, and q's entry
        rows, columns, probabilities = draw_rows(q, counts, self.drawn, coins)
        parents = np.array(nodes)[rows]
        chances = grown.chances[parents] * probabilities
        grown.chances = np.concatenate([grown.chances, chances])
        tokens = torch.from_numpy(columns)
        if self.draft_model.ids is not None:
            tokens = self.draft_model.ids[tokens]
        grown.tree = grown.tree.grow(tokens, torch.from_numpy(parents))

    def observe(self, draft, path, next_token, hidden, logits) -> None:
        tree, nodes = self._with_path(draft, path)
        self.draft_model.commit(tree, nodes, next_token, hidden)
        self.root = next_token

    def _with_path(self, draft: Draft, path: Sequence[int]) -> tuple[TokenTree, list[int]]:
        """The grown tree with the accepted path in it, and the path's nodes there.

        Nodes that the draft model did not draft come last on a path. They are added as nodes that were never expanded.
        """
        if draft.sources is None:
            raise ValueError("this draft does not say which nodes the draft model grew: hand its sources on")
        sources = draft.sources.tolist()
        nodes = [sources[node] for node in path if sources[node] >= 0]
        others = list(path[len(nodes) :])
        if not others:
            return self.grown, nodes

        size = len(self.grown)
        added = list(range(size, size + len(others)))
        last_drafted = nodes[-1] if nodes else 0
        parents_of_added = torch.tensor([last_drafted, *added[:-1]], dtype=torch.int64, device="cpu")
        tokens = torch.cat([self.grown.tokens, draft.tree.tokens[others]])
        parents = torch.cat([self.grown.parents, parents_of_added])
        return TokenTree(tokens, parents), nodes + added


def _table(laws: list[tuple[list[int], Tensor]], node_count: int) -> Tensor:
    """(n, V_d) laws of all nodes; the rows of nodes that were never expanded are zero."""
    _, first_q = laws[0]
    table = first_q.new_zeros(node_count, first_q.shape[1])
    for nodes, q in laws:
        table[nodes] = q
    return table
