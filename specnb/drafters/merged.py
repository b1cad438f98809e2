"""MergedDrafter: what a draft model drafts and what texts suggest, in one tree and one target forward."""

from collections import defaultdict

import torch

from specnb.drafters.ngram import NgramDrafter
from specnb.drafters.retrieval import RetrievalDrafter
from specnb.drafters.tree_drafter import TreeDrafter
from specnb.tree import Draft, Drawn, TokenTree


class MergedDrafter:
    """The trie union of a draft model's tree and of continuations that were looked up; beyond the papers.

    other: NgramDrafter (the default) or RetrievalDrafter. The draft model's nodes come first, as they are; the other's
    that it does not have follow. Both are chosen, not drawn, so the draft is POINT and lossless under ``one_hot``.
    Raises ValueError for a tree drafter that draws.
    """

    reach = 0

    def __init__(self, drafter: TreeDrafter, other: NgramDrafter | RetrievalDrafter | None = None):
        if drafter.drawn is not Drawn.POINT:
            raise ValueError(f"what is looked up has no q: the draft's tree must be POINT, got {drafter.drawn.name}")
        self.drafter, self.other = drafter, other or NgramDrafter()
        self.hidden_layers, self.vocabulary = drafter.hidden_layers, drafter.vocabulary

    def begin(self, prefix, warp, hidden) -> None:
        self.drafter.begin(prefix, warp, hidden)
        self.other.begin(prefix, warp, hidden)

    def propose(self, coins, max_depth) -> Draft:
        drafted = self.drafter.propose(coins, max_depth)
        looked_up = self.other.propose(coins, max_depth)
        tree = drafted.tree.merge(looked_up.tree)  # the first one's nodes keep their numbers
        added = drafted.sources.new_full((len(tree) - len(drafted.tree),), -1)
        sources = torch.cat([drafted.sources, added])
        return Draft(tree, scores=_scores(tree, drafted, looked_up), sources=sources, expansions=drafted.expansions)

    def observe(self, draft, path, next_token, hidden, logits) -> None:
        self.drafter.observe(draft, path, next_token, hidden, logits)
        self.other.observe(draft, path, next_token, hidden, logits)


def _scores(tree: TokenTree, *drafts: Draft) -> torch.Tensor | None:
    """The larger one of the probabilities that two drafts give each path; None if one of them gives none."""
    if any(draft.scores is None for draft in drafts):
        return None
    best: dict[tuple[int, ...], float] = defaultdict(float)
    for draft in drafts:
        for node, score in enumerate(draft.scores.tolist()):
            path = draft.tree.path_tokens(node)
            best[path] = max(best[path], score)
    scores = [best[tree.path_tokens(node)] for node in range(len(tree))]
    return torch.tensor(scores, dtype=torch.float64, device="cpu")
