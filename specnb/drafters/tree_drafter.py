"""TreeDrafter: a draft model gives the laws, a growth rule the shape."""

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specnb.drafters.draft_models import DraftModel
from specnb.growth import Growth, within
from specnb.sampling import Coins, Warp, draw_rows
from specnb.tree import Draft, Drawn, Expansion, TokenTree

Laws = list[tuple[list[int], Tensor]]  # of each forward: the nodes it expanded, and their laws (m, V_d)


class TreeDrafter:
    """Grow a token tree level by level with a draft model (EAGLE, SpecInfer, Sequoia, … by choice of parts).

    drawn=POINT takes each node's top tokens by the unwarped q (scores stay the draft's confidence at any
    temperature); IID and SWOR draw children from q under the same warp as p, and keep that very q for the
    verifier. growth: may be set to another rule between two steps. grown: the last step's tree as the draft model has
    expanded it, before any node was dropped; a draft's ``sources`` are numbers of its nodes. ``observe`` takes the
    draft that ``propose`` gave, or one made of it by dropping nodes or adding others.
    Raises ValueError for a sampled tree under a growth rule that prunes: dropping drawn nodes by their value biases the
    output; and in ``observe`` for a draft without sources.
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
        self.grown, chances, laws, expansions = self._grow(growth, coins, max_depth)
        keep = growth.finish(self.grown, chances)
        kept = list(range(len(self.grown))) if keep is None else sorted({0, *keep})
        tree = self.grown if keep is None else self.grown.keep(kept)
        came = {
            "scores": torch.from_numpy(chances[kept]),
            "sources": torch.tensor(kept, dtype=torch.int64, device="cpu"),
            "expansions": tuple(expansions),
        }
        if self.drawn is Drawn.POINT or not laws:  # nothing was drawn
            return Draft(tree, **came)
        table = laws[0][1].new_zeros(len(tree), laws[0][1].shape[1])  # rows of nodes never expanded stay zero
        for nodes, q in laws:
            table[nodes] = q
        return Draft(tree, table, self.drawn, self.draft_model.ids, **came)

    def _grow(
        self, growth: Growth, coins: Coins, max_depth: int
    ) -> tuple[TokenTree, np.ndarray, Laws, list[Expansion]]:
        """All that the growth rule lets the draft model expand: the tree, its paths' probabilities, laws, forwards."""
        tree = TokenTree([self.root], [-1])
        chances = np.ones(1)  # (n,) float64, each path's probability
        expanded: set[int] = set()
        laws: Laws = []
        expansions: list[Expansion] = []
        while True:
            wanted = growth.select(tree, chances)
            frontier = [(node, k) for node, k in wanted if tree.depth_list[node] < max_depth]
            if not frontier:
                return tree, chances, laws, expansions
            nodes, counts = map(list, zip(*frontier, strict=True))
            if len(expanded | {*nodes}) < len(expanded) + len(nodes):
                raise ValueError(f"{type(self.growth).__name__} selected a node twice: {nodes}")
            expanded.update(nodes)
            began = time.perf_counter()
            logits = self.draft_model.expand(tree, nodes)
            seconds = time.perf_counter() - began
            expansions.append(Expansion(len(nodes), float(chances[nodes].sum()), seconds))
            q = self.warp(logits)  # (m, V_d)
            laws.append((nodes, q))
            rows, columns, given = draw_rows(q, counts, self.drawn, coins)
            parents = np.array(nodes)[rows]
            chances = np.concatenate([chances, chances[parents] * given])
            ids = torch.from_numpy(columns)
            if self.draft_model.ids is not None:
                ids = self.draft_model.ids[ids]
            tree = tree.grow(ids, torch.from_numpy(parents))

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
        first = len(self.grown)
        added = list(range(first, first + len(others)))
        above = [nodes[-1] if nodes else 0, *added[:-1]]
        tokens = torch.cat([self.grown.tokens, draft.tree.tokens[others]])
        parents = torch.cat([self.grown.parents, torch.tensor(above, dtype=torch.int64, device="cpu")])
        return TokenTree(tokens, parents), nodes + added
