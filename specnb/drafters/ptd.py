"""ProgressiveDrafter: Progressive Tree Drafting (PTD), a draft tree that the target grows while it decodes.

An auxiliary node is scored with the target's forward, but is never accepted. A candidate may be accepted.
"""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from specnb.drafters import textbook
from specnb.drafters.pools import Reader, Rows, Trie, TriePool, cut, size, subtrees, trie_of
from specnb.growth import at_least_one
from specnb.sampling import Warp, likeliest
from specnb.tree import Draft

EXPANSIONS = {  # name → the warp under which a node's draft token is drawn from the target's law; argmax draws nothing
    "argmax": None,
    "topk": Warp(1.0, top_k=8),
    "topp": Warp(1.0, top_p=0.1),
    "sample": Warp(1.0),
}


class ProgressiveDrafter(Reader):
    """Progressive Tree Drafting (PTD paper, Algorithm 1): the target expands a tree of random beginnings step by step.

    The draft tree T begins as two random tokens of the prompt, with at most one more below each. In each step:
    - All nodes of T are auxiliary nodes of the target's forward. The target predicts a token d_v after each node v.
    - d_v becomes a child of v. A first-level subtree that is too deep is replaced by that of a child (``textbook``).
    - For every node of the expanded tree, the tree below it is merged into the pool under the node's token.
    - The pool's tree of the text's last token is the candidate tree of the next step.

    children: the most children of a node of T.
    depth: the most levels of T.
    expand: whether d_v is the argmax, or how it is drawn: see EXPANSIONS.
    chained: True lets each first-level node see the first-level nodes before it, as in the public code. False lets it
        see only its own branch, as in the paper's text.
    feedback: whether what the target predicts after each candidate is merged into the pool, as in the public code.
    from_prompt: whether n-grams of the prompt and of the growing text enter the pool, too (the public code's PLD_INI
        takes those of the prompt).
    refill: if the first level has fewer than ``children`` nodes, the draft token of its last node joins it; if the
        level is empty, the text's next token. The public code does this; the paper does not say how the first level is
        refilled.
    nodes, keys: the bounds of the pool, see ``TriePool``.
    seed: decides the random tokens.

    As in the public code, the pool gets the tree as expanded, before it is pruned and without the limit on children.
    Unlike in the public code, the pool gets it from the first step on, and nodes after an end of text are not removed.
    Raises ValueError for bounds below 1 and an unknown expansion.
    """

    def __init__(
        self,
        children: int = 4,
        depth: int = 6,
        *,
        expand: str = "argmax",
        chained: bool = False,
        feedback: bool = True,
        from_prompt: bool = False,
        refill: bool = True,
        nodes: int = 60,
        keys: int = 4096,
        seed: int = 0,
    ):
        if expand not in EXPANSIONS:
            raise ValueError(f"expand must be one of {', '.join(EXPANSIONS)}, got {expand!r}")
        self.children = children
        self.depth = depth
        self.expand = expand
        self.chained = chained
        self.feedback = feedback
        self.from_prompt = from_prompt
        self.refill = refill
        self.nodes = nodes
        self.keys = keys
        self.seed = seed
        at_least_one(self, "children", "depth", "nodes", "keys")
        self.reach = depth  # the depth of the deepest auxiliary node
        if chained:
            self.reach += children - 1

    def begin(self, prefix, warp, hidden) -> None:
        rng = random.Random(self.seed)
        self.noise = None
        self.pool = TriePool(self.nodes, self.keys)
        self.text: list[int] = []  # its last depth + 1 tokens
        self._read(prefix)
        self.tree: Trie = {}
        known = sorted(set(prefix))
        count = min(2, self.children, len(known))
        for token in rng.sample(known, count):
            self.tree[token] = {}
            if self.depth > 1 and rng.random() < 0.5:
                self.tree[token] = {rng.choice(prefix): {}}

    def _read(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text; if from_prompt is set, its new n-grams enter the pool."""
        for token in tokens:
            self.text = [*self.text, token][-self.depth - 1 :]
            if self.from_prompt and len(self.text) > self.depth:
                gram = trie_of([self.text[1:]])
                self.pool.add(self.text[0], gram)
        self.root = self.text[-1]

    def propose(self, coins, max_depth) -> Draft:
        known = self.pool.get(self.root)
        self.candidates = cut(known, max_depth)
        rows = Rows(self.root)
        rows.add_trie(self.candidates, 0)
        above = 0
        for token, below in self.tree.items():
            first_level_row = rows.add(token, above)
            rows.add_trie(below, first_level_row)
            if self.chained:
                above = first_level_row
        return rows.draft(size(self.candidates))

    def _learn(self, draft: Draft, next_token: int, logits: Tensor) -> None:
        # The rows of logits are the root, the candidates, the nodes of T; both trees are depth first, as textbook.nodes
        first_draft_row = draft.candidate_rows
        likely = likeliest(logits[1:]).tolist()
        after_candidates = likely[: first_draft_row - 1]
        after_draft_nodes = likely[first_draft_row - 1 :]

        draft_tokens = self._draft_tokens(logits[first_draft_row:], after_draft_nodes)
        d = dict(zip(textbook.nodes(self.tree), draft_tokens, strict=True))
        if self.feedback and self.candidates:
            answers = dict(zip(textbook.nodes(self.candidates), after_candidates, strict=True))
            answered = textbook.expand(self.candidates, answers, self.nodes)
            self.pool.add(self.root, answered)

        expanded = textbook.expand(self.tree, d, self.nodes)  # for the pool, which has its own limit of nodes
        for key, below in subtrees(expanded):
            if below:
                self.pool.add(key, below)

        grown = textbook.expand(self.tree, d, self.children)
        if self.refill:
            grown = self._refill(grown, d, next_token)
        self.tree = textbook.step_and_prune(grown, self.depth)

    def _draft_tokens(self, logits: Tensor, likely: list[int]) -> list[int]:
        """Return d_v of every node of T. logits: (m, V), the target's, without a warp; likely: their argmax."""
        warp = EXPANSIONS[self.expand]
        if warp is None:
            return likely
        if self.noise is None:
            self.noise = torch.Generator(logits.device).manual_seed(self.seed)
        drawn = torch.multinomial(warp(logits), 1, generator=self.noise)  # (m, 1)
        return drawn[:, 0].tolist()

    def _refill(self, tree: Trie, d: dict[textbook.Path, int], next_token: int) -> Trie:
        """Return the tree with one more node on its first level, if there is room.

        Example: {1: {2: {}, 5: {}}, 3: {6: {}}}, where d_3 is 6, becomes {1: {2: {}, 5: {}}, 3: {}, 6: {}}.
        """
        if not tree:
            return {next_token: {}}
        if len(tree) >= self.children:
            return tree
        last = list(tree)[-1]
        new = d[(last,)]
        if new in tree:
            return tree
        others_below_last = {token: below for token, below in tree[last].items() if token != new}
        return {**tree, last: others_below_last, new: {}}
