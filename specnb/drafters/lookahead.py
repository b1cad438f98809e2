"""LookaheadDrafter: lookahead decoding (LADE), a window of Jacobi iterations that rides the target's own forward."""

import random
from collections.abc import Sequence

from torch import Tensor

from specnb.drafters.pools import GramPool, Reader, Rows, cut, size, trie_of
from specnb.growth import at_least_one
from specnb.sampling import likeliest
from specnb.tree import Draft


class LookaheadDrafter(Reader):
    """Lookahead decoding (Fu et al. 2024): guesses for the next positions are improved side by side, step after step.

    window W columns, level N: level 0 holds guesses for the next W − 1 positions; each further level holds what the
    target said after the one before. Level 0 is a chain under the root, level l of column i hangs under level l − 1
    of column i: the whole window is a tree of W (N − 1) − 1 auxiliary nodes. Each step every column of N tokens goes
    into a pool (up to ``guesses`` per first token), and the window moves on by one. Candidates: the pool's n-grams
    behind the last token, as a trie. While the window fills, N − 2 steps, no columns enter it.
    from_prompt: n-grams of the prompt, and of the text as it grows, enter the pool, too (POOL_FROM_PROMPT).
    The window begins with random tokens of the prompt, from a stream of its own (seed). Unlike in the public
    code, guesses with a common beginning share its nodes, and a whole accepted n-gram is followed by the bonus token;
    bonus=False cuts the candidates by their last token, so that no step earns more than level − 1, as it does there.
    Raises ValueError for window < 1, guesses < 1 and level < 3 (there is no window below).
    """

    def __init__(
        self, window: int = 15, level: int = 5, guesses: int = 15, *, from_prompt: bool = False, bonus: bool = True,
        keys: int = 4096, seed: int = 0,
    ):  # fmt: skip
        self.window, self.level, self.guesses = window, level, guesses
        self.from_prompt, self.bonus, self.keys, self.seed = from_prompt, bonus, keys, seed
        at_least_one(self, "window", "guesses", "keys")
        if level < 3:
            raise ValueError(f"level, the length of the n-grams, must be at least 3, got {level}")
        self.reach = window + level - 3  # how far behind the text a draft node may lie

    def begin(self, prefix, warp, hidden) -> None:
        rng = random.Random(self.seed)
        self.pool, self.text = GramPool(self.guesses, self.keys), []
        self.levels = [[rng.choice(prefix) for _ in range(self.window + self.level - 3)]]
        self._read(prefix)

    def _read(self, tokens: Sequence[int]) -> None:
        """The text goes on; its last n-grams enter the pool if they are wanted."""
        for token in tokens:
            self.text = [*self.text, token][-self.level :]
            if self.from_prompt and len(self.text) == self.level:
                self.pool.add(self.text[0], self.text[1:])

    def propose(self, coins, max_depth) -> Draft:
        rows = Rows(self.text[-1])
        candidates = cut(self.pool.get(self.text[-1]), max_depth if self.bonus else min(max_depth, self.level - 2))
        rows.add_trie(candidates, 0)
        column = [0, *rows.add_trie(trie_of(self.levels[:1]), 0)]  # the last row of every column
        for level in self.levels[1:]:
            column = [rows.add(token, above) for token, above in zip(level, column, strict=True)]
        self.last = column[1:] if len(self.levels) == 1 else column
        return rows.draft(size(candidates))

    def _learn(self, draft: Draft, next_token: int, logits: Tensor) -> None:
        new, root = likeliest(logits[self.last]).tolist(), self.text[-1]
        if len(self.levels) == self.level - 1:
            keys = [root, *self.levels[0]]
            for key, *gram in zip(keys, *self.levels[1:], new, strict=True):
                self.pool.add(key, gram)
            self.levels = [self.levels[1][1:], *self.levels[2:], new]
        else:  # filling: every column but the first goes on, and the text takes the first one's place
            above = [level[1:] for level in self.levels]
            self.levels = [*above, new if len(self.levels) == 1 else new[1:]]
