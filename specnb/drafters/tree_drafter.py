"""TreeDrafter: a draft model gives the probabilities of a draft tree, a growth rule its shape."""

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
    """A tree that a draft model grows, forward by forward."""

    tree: TokenTree
    chances: np.ndarray  # (n,) float64, the probability of each node's path, 1 for the root
    laws: list[tuple[list[int], Tensor]] = field(default_factory=list)  # per forward: expanded nodes, q (m, V_d)
    expansions: list[Expansion] = field(default_factory=list)  # one per forward


class TreeDrafter:
    """It grows a token tree with a draft model and a growth rule: EAGLE, SpecInfer, Sequoia, … by choice of the parts.

    draft_model: gives the law q of each expanded node, its probability distribution over the next token.
    growth: the rule that decides which nodes are expanded. It may be set to another rule between two steps.
    drawn: POINT takes the top tokens of each node by q without a warp, so that scores are the draft's confidence at any
        temperature. IID and SWOR draw children from q with the same warp as p, and keep this q for the verifier.
    grown: an attribute, the tree of the last step before any node was dropped. The ``sources`` of a draft are indices
        of its nodes.

    ``observe`` takes the draft that ``propose`` returned, or one with nodes dropped or added.

    Raises ValueError for a sampled tree with a growth rule that prunes, because to drop drawn nodes by their
    probability would bias the output. ``observe`` raises ValueError for a draft without sources.
    """

    reach = 0

    def __init__(self, draft_model: DraftModel, growth: Growth, drawn: Drawn = Drawn.POINT):
        self.draft_model = draft_model
        self.drawn = drawn
        self.growth = growth
        self.hidden_layers = draft_model.hidden_layers
        self.vocabulary = None  # with a reduced vocabulary the draft has ids instead
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
        # A sampled tree is never pruned, so nodes have the same indices in both trees.
        q = _table(grown.laws, len(tree))  # (n, V_d)
        return Draft(tree, q, self.drawn, self.draft_model.ids, **origin)

    def _grow(self, growth: Growth, coins: Coins, max_depth: int) -> Grown:
        """Let the draft model expand all nodes that the growth rule selects."""
        root_alone = TokenTree([self.root], [-1])
        grown = Grown(root_alone, chances=np.ones(1))
        expanded: set[int] = set()
        while True:
            nodes = []
            counts = []  # the number of children of each of them
            for node, count in growth.select(grown.tree, grown.chances):
                if grown.tree.depth_list[node] < max_depth:
                    nodes.append(node)
                    counts.append(count)
            if not nodes:
                return grown
            expanded_before = len(expanded)
            expanded.update(nodes)
            if len(expanded) < expanded_before + len(nodes):
                raise ValueError(f"{type(self.growth).__name__} selected a node twice: {nodes}")
            self._expand(grown, nodes, counts, coins)

    def _expand(self, grown: Grown, nodes: list[int], counts: list[int], coins: Coins) -> None:
        """Do one forward of the draft model over some nodes, and draw children below them: counts[i] below nodes[i]."""
        began = time.perf_counter()
        logits = self.draft_model.expand(grown.tree, nodes)
        seconds = time.perf_counter() - began
        mass = float(grown.chances[nodes].sum())
        grown.expansions.append(Expansion(len(nodes), mass, seconds))

        q = self.warp(logits)  # (m, V_d)
        grown.laws.append((nodes, q))

        # For each child: the row of its parent in q, the column of its token, and the entry of q
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
        """Return the grown tree, with the accepted path in it, and the path's nodes there.

        Nodes that the draft model did not draft are at the end of a path. They are added to the tree as nodes that were
        never expanded.
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
    """(n, V_d): the laws of all nodes; rows of nodes that were never expanded are zero."""
    _, first_q = laws[0]
    table = first_q.new_zeros(node_count, first_q.shape[1])
    for nodes, q in laws:
        table[nodes] = q
    return table
