"""SelfDrafter: Self-Draft, branches behind random prefixes that ride the target's own forward."""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

from torch import Tensor

from specnb.drafters.pools import GramPool, Reader, Rows, Trie, absorb, cut, size, trie_of
from specnb.growth import at_least_one
from specnb.sampling import likeliest
from specnb.tree import Draft


class Corpus:
    """n-grams of given texts: what followed the longest known ending of a text, up to ``most`` continuations.

    A stand-in for Self-Draft's pickled corpus (OANC), which its code does not ship: same form (keys of up to 4 tokens,
    3 continuations), other texts. texts: token ids.
    """

    def __init__(self, texts: Iterable[Sequence[int]], *, longest_key: int = 4, length: int = 4, most: int = 3):
        self.longest_key, self.length, self.most = longest_key, length, most
        at_least_one(self, "longest_key", "length", "most")
        self.after: dict[tuple[int, ...], dict[tuple[int, ...], int]] = defaultdict(lambda: defaultdict(int))
        for text in texts:
            for end in range(1, len(text)):
                for start in range(max(0, end - longest_key), end):
                    self.after[tuple(text[start:end])][tuple(text[end : end + length])] += 1

    def get(self, text: Sequence[int]) -> Trie:
        """The commonest continuations of the longest known ending, as a trie; {} if there is none."""
        for n in range(min(self.longest_key, len(text)), 0, -1):
            if known := self.after.get(tuple(text[-n:])):
                return trie_of(sorted(known, key=known.get, reverse=True)[: self.most])
        return {}


class SelfDrafter(Reader):
    """Self-Draft (Gao et al., AAAI 2025): the target continues the text behind several random detours at once.

    branches columns of ``length`` − 2 tokens each. Column 0 follows the text; the others begin behind a random prefix
    of 1 or 2 tokens of the prompt (the perturbation). While the window fills, one-token prefixes are used up, one a
    step, by the text taking their place; then every column slides: it loses its first token and gains one, so that
    after a few steps its prefix, too, is text that the target wrote (the public code's always_fwd_one).
    All (1 + gram)-grams of columns and text enter a pool (``grams`` latest per first token; gram is cut to length − 1,
    so that column 0 has some). Candidates: the pool's grams behind the last token and, with a corpus, its
    continuations. bonus=False cuts both to gram − 1 tokens, so that no step earns more than ``gram``, as in the public
    code, where no token follows a whole accepted gram. Defaults are that code's, where columns and prefixes come to
    about 30 auxiliary nodes; unlike there, the pool is filled and asked from the first step on. The prefixes come
    from a stream of their own (seed).
    Raises ValueError for bounds below 1, and for length < 3.
    """

    def __init__(
        self, branches: int = 6, length: int = 6, *, gram: int = 4, grams: int = 10, corpus: Corpus | None = None,
        bonus: bool = True, keys: int = 4096, seed: int = 0,
    ):  # fmt: skip
        if length < 3:
            raise ValueError(f"length, of a branch with its prefix, must be at least 3, got {length}")
        self.branches, self.levels, self.gram, self.grams = branches, length - 2, min(gram, length - 1), grams
        self.corpus, self.bonus, self.keys, self.seed = corpus, bonus, keys, seed
        self.kept = max(self.gram + 1, corpus.longest_key if corpus else 0)  # tokens of the text
        at_least_one(self, "branches", "gram", "grams", "keys")
        self.reach = length  # how far behind the text a draft node may lie

    def begin(self, prefix, warp, hidden) -> None:
        rng = random.Random(self.seed)
        lengths = [1] * self.levels + [rng.choice((1, 2)) for _ in range(self.branches - 1)]
        self.columns = [([rng.choice(prefix) for _ in range(n)], []) for n in lengths]  # (prefix, levels)
        self.pool, self.text = GramPool(self.grams, self.keys), []
        self._read(prefix)

    def _read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.text = [*self.text, token][-self.kept :]
            self._note(self.text[-self.gram - 1 :])

    def _note(self, tokens: Sequence[int]) -> None:
        """Every key with the gram behind it enters the pool."""
        for start in range(len(tokens) - self.gram):
            self.pool.add(tokens[start], tokens[start + 1 : start + 1 + self.gram])

    def propose(self, coins, max_depth) -> Draft:
        rows, known = Rows(self.text[-1]), self.pool.get(self.text[-1])
        if self.corpus is not None:
            absorb(known, self.corpus.get(self.text))
        candidates = cut(known, max_depth if self.bonus else min(max_depth, self.gram - 1))
        rows.add_trie(candidates, 0)
        self.last = [[0, *rows.add_trie(trie_of([[*prefix, *levels]]), 0)][-1] for prefix, levels in self.columns]
        return rows.draft(size(candidates))

    def _learn(self, draft: Draft, next_token: int, logits: Tensor) -> None:
        root, grown = self.text[-1], []
        for (prefix, levels), token in zip(self.columns, likeliest(logits[self.last]).tolist(), strict=True):
            whole, n = [*prefix, *levels, token], len(prefix)
            self._note(whole if prefix else [root, *whole])
            whole = whole[1:] if len(levels) == self.levels else whole
            grown.append((whole[:n], whole[n:]))
        if len(grown) > self.branches or grown[0][0]:  # filling: the text takes the place of a prefix of one token
            gone = not grown[0][0]
            grown = [([], grown[gone][1]), *grown[gone + 1 :]]
        self.columns = grown
