"""TreeDrafter: a draft model gives the laws, a growth rule the shape."""

import numpy as np
import torch
from torch import Tensor

from specnb.drafters.draft_models import DraftModel
from specnb.growth import Growth, within
from specnb.sampling import Warp, draw_rows
from specnb.tree import Draft, Drawn, TokenTree


class TreeDrafter:
    """Grow a token tree level by level with a draft model (EAGLE, SpecInfer, Sequoia, … by choice of parts).

    drawn=POINT takes each node's top tokens by the unwarped q (scores stay the draft's confidence at any
    temperature); IID and SWOR draw children from q under the same warp as p, and keep that very q for the
    verifier. Of the last draft, scored: its nodes before any were dropped, root included; expansions: of each
    forward the number of nodes and their path probability, SALF's S_i. Raises ValueError for a sampled tree under a
    growth rule that prunes: dropping drawn nodes by their value biases the output.
    """

    reach = 0

    def __init__(self, draft_model: DraftModel, growth: Growth, drawn: Drawn = Drawn.POINT):
        if growth.prunes and drawn is not Drawn.POINT:
            raise ValueError(
                f"{type(growth).__name__} drops nodes by their value: a tree drawn {drawn.name} would be biased "
                f"by that, use drawn=Drawn.POINT"
            )
        self.draft_model, self.growth, self.drawn = draft_model, growth, drawn
        self.hidden_layers = draft_model.hidden_layers
        self.vocabulary = getattr(draft_model, "columns", None) if draft_model.ids is None else None

    def begin(self, prefix, warp, hidden) -> None:
        self.warp = Warp() if self.drawn is Drawn.POINT else warp
        self.root = prefix[-1]
        self.draft_model.begin(prefix, hidden)

    def propose(self, coins, max_depth) -> Draft:
        if self.draft_model.max_depth is not None:
            max_depth = max(0, min(max_depth, self.draft_model.max_depth))
        growth = within(self.growth, max_depth)
        tree, chances = TokenTree([self.root], [-1]), np.ones(1)  # each path's probability, float64
        expanded: set[int] = set()
        laws: list[tuple[list[int], Tensor]] = []
        self.expansions = []
        while True:
            wanted = growth.select(tree, torch.from_numpy(chances))
            frontier = [(node, k) for node, k in wanted if tree.depth_list[node] < max_depth]
            if not frontier:
                break
            nodes, counts = map(list, zip(*frontier, strict=True))
            if len(expanded | {*nodes}) < len(expanded) + len(nodes):
                raise ValueError(f"{type(self.growth).__name__} selected a node twice: {nodes}")
            expanded.update(nodes)
            self.expansions.append((len(nodes), float(chances[nodes].sum())))
            q = self.warp(self.draft_model.expand(tree, nodes))  # (m, V_d)
            laws.append((nodes, q))
            rows, columns, given = draw_rows(q, counts, self.drawn, coins)
            parents = np.array(nodes)[rows]
            chances = np.concatenate([chances, chances[parents] * given])
            ids = torch.from_numpy(columns)
            ids = ids if self.draft_model.ids is None else self.draft_model.ids[ids]
            tree = tree.grow(ids, torch.from_numpy(parents))
        self.grown, self.scored, self.kept = tree, len(tree), list(range(len(tree)))
        keep = growth.finish(tree, torch.from_numpy(chances))
        if keep is not None:
            self.kept = sorted({0, *keep})
            tree = tree.keep(self.kept)
        scores = torch.from_numpy(chances[self.kept])
        if self.drawn is Drawn.POINT or not laws:  # nothing was drawn
            return Draft(tree, scores=scores)
        table = laws[0][1].new_zeros(len(tree), laws[0][1].shape[1])  # rows of nodes never expanded stay zero
        for nodes, q in laws:
            table[nodes] = q
        return Draft(tree, table, self.drawn, self.draft_model.ids, scores=scores)

    def observe(self, draft, path, next_token, hidden, logits) -> None:
        self.draft_model.commit(self.grown, [self.kept[node] for node in path], next_token, hidden)
        self.root = next_token
