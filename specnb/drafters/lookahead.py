"""LookaheadDrafter: lookahead decoding (LADE), a window of Jacobi iterations that rides the target's own forward."""

import random
from collections.abc import Sequence

from torch import Tensor

from specnb.drafters.pools import GramPool, Reader, Rows, cut, size
from specnb.growth import at_least_one
from specnb.sampling import likeliest
from specnb.tree import Draft


class LookaheadDrafter(Reader):
    """Lookahead decoding (Fu et al. 2024): guesses for the next positions are improved side by side, step after step.

    The window has W columns (window) and n-grams have N tokens (level). Level 0 holds guesses for the next W − 1
    positions, and each further level what the target said after the one before. Level 0 is a chain under the root, and
    level l of column i hangs under its level l − 1: the whole window is a tree of W (N − 1) − 1 auxiliary nodes. In
    each step every column of N tokens goes into a pool (up to ``guesses`` per first token), and the window moves on by
    one. Candidates are the pool's n-grams behind the last token, as a trie. The window takes N − 2 steps to fill; until
    then no columns enter the pool.

    from_prompt: n-grams of the prompt, and of the text as it grows, enter the pool, too (POOL_FROM_PROMPT).
    The window begins with random tokens of the prompt, from a stream of its own (seed). Unlike in the public code,
    guesses with a common beginning share its nodes, and a whole accepted n-gram is followed by the bonus token.
    bonus=False cuts the candidates by their last token, so that no step earns more than level − 1, as it does there.
    Raises ValueError for window < 1, guesses < 1 and level < 3 (there is no window below).
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
        self.reach = window + level - 3  # how far behind the text a draft node may lie

    def begin(self, prefix, warp, hidden) -> None:
        rng = random.Random(self.seed)
        self.pool = GramPool(self.guesses, self.keys)
        self.text: list[int] = []  # its last tokens, as many as an n-gram has
        # While the window fills, level 0 loses a token in each of the level − 2 steps: W − 1 are left then.
        count = self.window - 1 + self.level - 2
        first_level = [rng.choice(prefix) for _ in range(count)]
        self.levels = [first_level]
        self._read(prefix)

    def _read(self, tokens: Sequence[int]) -> None:
        """The text goes on; its last n-grams enter the pool if they are wanted."""
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

        ends = [0, *rows.add_chain(self.levels[0], 0)]  # the last row of every column so far; row 0 is the root
        if len(self.levels) == 1:
            ends = ends[1:]  # what the target says after the root is text, not a guess
        for level in self.levels[1:]:
            ends = [rows.add(token, above) for token, above in zip(level, ends, strict=True)]
        self.last = ends
        return rows.draft(size(candidates))

    def _learn(self, draft: Draft, next_token: int, logits: Tensor) -> None:
        new = likeliest(logits[self.last]).tolist()  # a token below every column
        if len(self.levels) == self.level - 1:
            self._pool_columns(new)
            _, second, *others = self.levels
            self.levels = [second[1:], *others, new]
        elif len(self.levels) == 1:
            self.levels = [self.levels[0][1:], new]
        else:  # filling: every column but the first goes on, and the text takes the first one's place
            shortened = [level[1:] for level in self.levels]
            self.levels = [*shortened, new[1:]]

    def _pool_columns(self, new: list[int]) -> None:
        """Every column enters the pool: its token on level 0 as key (the root for column 0), what is below as gram."""
        root = self.text[-1]
        keys = [root, *self.levels[0]]
        grams = zip(*self.levels[1:], new, strict=True)
        for key, gram in zip(keys, grams, strict=True):
            self.pool.add(key, gram)
