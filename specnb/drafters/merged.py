"""MergedDrafter: the tree of a draft model and looked-up continuations, united in one draft."""

import torch

from specnb.drafters.ngram import NgramDrafter
from specnb.drafters.pools import Gram
from specnb.drafters.retrieval import RetrievalDrafter
from specnb.drafters.tree_drafter import TreeDrafter
from specnb.tree import Draft, Drawn, TokenTree


class MergedDrafter:
    """The trie union of a draft model's tree and of continuations that were looked up. It is not from a paper.

    drafter: a TreeDrafter. Its nodes come first in the union, with their old numbers.
    other: a NgramDrafter (the default) or a RetrievalDrafter. The nodes that only its tree has come after them.

    All nodes are chosen, not drawn, so the draft is POINT, and lossless with ``one_hot``. Raises ValueError for a tree
    drafter that draws its nodes.
    """

    reach = 0

    def __init__(self, drafter: TreeDrafter, other: NgramDrafter | RetrievalDrafter | None = None):
        if drafter.drawn is not Drawn.POINT:
            raise ValueError(f"what is looked up has no q: the draft's tree must be POINT, got {drafter.drawn.name}")
        self.drafter = drafter
        self.other = other or NgramDrafter()
        self.hidden_layers = drafter.hidden_layers
        self.vocabulary = drafter.vocabulary

    def begin(self, prefix, warp, hidden) -> None:
        self.drafter.begin(prefix, warp, hidden)
        self.other.begin(prefix, warp, hidden)

    def propose(self, coins, max_depth) -> Draft:
        drafted = self.drafter.propose(coins, max_depth)
        looked_up = self.other.propose(coins, max_depth)
        tree = drafted.tree.merge(looked_up.tree)  # drafted nodes keep their numbers

        added_nodes = len(tree) - len(drafted.tree)
        no_source = drafted.sources.new_full((added_nodes,), -1)
        sources = torch.cat([drafted.sources, no_source])  # (n,)
        scores = _merge_scores(tree, drafted, looked_up)
        return Draft(tree, scores=scores, sources=sources, expansions=drafted.expansions)

    def observe(self, draft, path, next_token, hidden, logits) -> None:
        self.drafter.observe(draft, path, next_token, hidden, logits)
        self.other.observe(draft, path, next_token, hidden, logits)


def _merge_scores(tree: TokenTree, drafted: Draft, looked_up: Draft) -> torch.Tensor | None:
    """(n,) float64: for each node of the union the larger one of the two drafts' path probabilities.

    None if one of the drafts has no probabilities.
    """
    if drafted.scores is None or looked_up.scores is None:
        return None
    best: dict[Gram, float] = {}  # path as tokens → probability
    for draft in (drafted, looked_up):
        for node, score in enumerate(draft.scores.tolist()):
            path = draft.tree.path_tokens(node)
            best[path] = max(best.get(path, 0.0), score)
    paths = map(tree.path_tokens, range(len(tree)))
    scores = [best[path] for path in paths]
    return torch.tensor(scores, dtype=torch.float64, device="cpu")
