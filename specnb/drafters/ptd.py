"""ProgressiveDrafter: Progressive Tree Drafting (PTD), a draft tree that the target grows while it decodes."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from specnb.drafters import textbook
from specnb.drafters.pools import Reader, Rows, Trie, TriePool, cut, size, subtrees, trie_of
from specnb.growth import at_least_one
from specnb.sampling import Warp, likeliest
from specnb.tree import Draft

EXPANSIONS = {  # how a node's draft token is drawn from the target's law; argmax draws nothing
    "argmax": None,
    "topk": Warp(1.0, top_k=8),
    "topp": Warp(1.0, top_p=0.1),
    "sample": Warp(1.0),
}


class ProgressiveDrafter(Reader):
    """Progressive Tree Drafting (PTD paper, Algorithm 1): the target expands a perturbed tree, a level each step.

    The draft tree T begins as two random tokens of the prompt, with at most one more below each, from a stream of its
    own (seed). In each step all its nodes ride the target's forward as auxiliary ones. Every node v gets the target's
    token d_v as a child (at most ``children`` of them), and first-level subtrees deeper than ``depth`` step. Every
    subtree of the expanded tree is merged into the pool under its root's token. The pool's tree behind the last
    token is the next step's candidate tree. d_v is the argmax, or drawn: see EXPANSIONS.

    chained: each first-level node sees those before it (the public code's mask), not only its own branch (the text,
    and the default).
    feedback: what the target says after each candidate is merged into the candidates' tree, as in the public code.
    As there, the pool takes the tree as expanded, before it steps and without the limit of its width. Unlike there,
    the pool takes it from the first step on, and nodes behind an end of text are not removed.
    from_prompt: n-grams of the prompt, and of the text as it grows, enter the pool, too (its PLD_INI: the prompt).
    refill: while the first level holds fewer than ``children`` nodes, the last one's draft token joins it, or, if there
    is none, the text's next token. This is a rule of the public code; the paper does not say how the first level is
    kept up.
    nodes, keys: bounds of the pool.
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
        self.reach = depth  # how far behind the text a draft node may lie
        if chained:
            self.reach += children - 1

    def begin(self, prefix, warp, hidden) -> None:
        rng = random.Random(self.seed)
        self.noise = None
        self.pool = TriePool(self.nodes, self.keys)
        self.text: list[int] = []  # its last tokens
        self._read(prefix)
        self.tree: Trie = {}
        known = sorted(set(prefix))
        count = min(2, self.children, len(known))
        for token in rng.sample(known, count):
            self.tree[token] = {}
            if self.depth > 1 and rng.random() < 0.5:
                self.tree[token] = {rng.choice(prefix): {}}

    def _read(self, tokens: Sequence[int]) -> None:
        """The text goes on; its last n-grams enter the pool if they are wanted."""
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
        # Rows: the root, candidates, draft nodes; nodes of each tree depth first
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

        expanded = textbook.expand(self.tree, d, self.nodes)  # for the pool, which has a limit of its own
        for key, below in subtrees(expanded):
            if below:
                self.pool.add(key, below)

        grown = textbook.expand(self.tree, d, self.children)
        if self.refill:
            grown = self._refilled(grown, d, next_token)
        self.tree = textbook.step_and_prune(grown, self.depth)

    def _draft_tokens(self, logits: Tensor, likely: list[int]) -> list[int]:
        """d_v of every draft node, from the target's unwarped logits (m, V); likely: the argmax of each."""
        warp = EXPANSIONS[self.expand]
        if warp is None:
            return likely
        if self.noise is None:
            self.noise = torch.Generator(logits.device).manual_seed(self.seed)
        drawn = torch.multinomial(warp(logits), 1, generator=self.noise)  # (m, 1)
        return drawn[:, 0].tolist()

    def _refilled(self, tree: Trie, d: dict[textbook.Path, int], next_token: int) -> Trie:
        """The tree with one node more on its first level, if there is room.

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
