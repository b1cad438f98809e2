"""LookaheadDrafter: lookahead decoding (LADE), Jacobi iterations on auxiliary nodes of the target's own forward.

An auxiliary node is scored together with the candidates, but is never accepted.
"""

import random
from collections.abc import Sequence

from torch import Tensor

from specnb.drafters.pools import GramPool, Reader, Rows, cut, size
from specnb.growth import at_least_one
from specnb.sampling import likeliest
from specnb.tree import Draft


class LookaheadDrafter(Reader):
    """Lookahead decoding (Fu et al. 2024): guesses for the next positions are improved in parallel, step after step.

    The window is a table of guessed tokens with W columns, one per position, and N − 1 levels. Level 0 has random
    guesses for the next W − 1 positions. Each further level has what the target predicted after the level before. As a
    tree, level 0 is a chain below the root, and level l of a column is below its level l − 1. These are
    W (N − 1) − 1 auxiliary nodes.

    In each step the target predicts one more token for every column. A column is then an n-gram of N tokens and enters
    a pool, and the window moves on by one position. The candidates are the pool's n-grams after the last token, as a
    trie. The window needs N − 2 steps to fill; until then no column enters the pool.

    window: W, the number of columns.
    level: N, the length of the n-grams.
    guesses: the most n-grams in the pool per first token.
    from_prompt: whether n-grams of the prompt and of the growing text enter the pool, too (POOL_FROM_PROMPT).
    bonus: False cuts the candidates by their last token, so that no step commits more than N − 1 tokens, as in the
        public code. There, no bonus token follows a completely accepted n-gram.
    keys: the most first tokens in the pool.
    seed: decides the random tokens of the prompt with which the window begins.
    Unlike in the public code, candidates with a common beginning share its nodes.
    Raises ValueError for level < 3 (there would be no window) and for other numbers below 1.
    """

    def __init__(
        self,
        window: int = 15,
        level: int = 5,
        guesses: int = 15,
        *,
        from_prompt: bool = False,
        bonus: bool = True,
        keys: int = 4096,
        seed: int = 0,
    ):
        self.window = window
        self.level = level
        self.guesses = guesses
        self.from_prompt = from_prompt
        self.bonus = bonus
        self.keys = keys
        self.seed = seed
        at_least_one(self, "window", "guesses", "keys")
        if level < 3:
            raise ValueError(f"level, the length of the n-grams, must be at least 3, got {level}")
        self.reach = window + level - 3  # the depth of the deepest auxiliary node

    def begin(self, prefix, warp, hidden) -> None:
        rng = random.Random(self.seed)
        self.pool = GramPool(self.guesses, self.keys)
        self.text: list[int] = []  # its last N tokens
        # While the window fills, level 0 loses a token in each of the level − 2 steps: W − 1 are left then.
        count = self.window - 1 + self.level - 2
        first_level = [rng.choice(prefix) for _ in range(count)]
        self.levels = [first_level]
        self._read(prefix)

    def _read(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text; if from_prompt is set, its new n-grams enter the pool."""
        for token in tokens:
            self.text = [*self.text, token][-self.level :]
            if self.from_prompt and len(self.text) == self.level:
                self.pool.add(self.text[0], self.text[1:])

    def propose(self, coins, max_depth) -> Draft:
        root = self.text[-1]
        rows = Rows(root)
        deepest = max_depth if self.bonus else min(max_depth, self.level - 2)
        candidates = cut(self.pool.get(root), deepest)
        rows.add_trie(candidates, 0)

        ends = [0, *rows.add_chain(self.levels[0], 0)]  # the last node of every column so far; node 0 is the root
        if len(self.levels) == 1:
            ends = ends[1:]  # what the target predicts after the root is text, not a guess
        for level in self.levels[1:]:
            ends = [rows.add(token, end) for token, end in zip(level, ends, strict=True)]
        self.last = ends
        return rows.draft(size(candidates))

    def _learn(self, draft: Draft, next_token: int, logits: Tensor) -> None:
        new = likeliest(logits[self.last]).tolist()  # the next token of every column
        if len(self.levels) == self.level - 1:
            self._pool_columns(new)
            _, second, *others = self.levels
            self.levels = [second[1:], *others, new]
        elif len(self.levels) == 1:
            self.levels = [self.levels[0][1:], new]
        else:  # the window fills: the first column is dropped, because its position belongs to the text now
            shortened = [level[1:] for level in self.levels]
            self.levels = [*shortened, new[1:]]

    def _pool_columns(self, new: list[int]) -> None:
        """Add every column to the pool. The key is its token on level 0, or the root for column 0."""
        root = self.text[-1]
        keys = [root, *self.levels[0]]
        grams = zip(*self.levels[1:], new, strict=True)
        for key, gram in zip(keys, grams, strict=True):
            self.pool.add(key, gram)
