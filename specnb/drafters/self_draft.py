"""SelfDrafter: Self-Draft, branches after random prefixes that are auxiliary nodes of the target's own forward.

An auxiliary node is scored together with the candidates, but is never accepted.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from specnb.drafters.pools import Gram, GramPool, Reader, Rows, Trie, absorb, cut, size, trie_of
from specnb.growth import at_least_one
from specnb.sampling import likeliest
from specnb.tree import Draft


class Corpus:
    """n-grams of some texts: it finds the longest ending of a text that occurs in them, and what followed it there.

    It replaces Self-Draft's pickled corpus (OANC), which is not part of the public code. The form is the same (keys of
    up to 4 tokens, 3 continuations), the texts are different.

    texts: lists of token ids.
    longest_key: the most tokens of an ending.
    length: the most tokens of a continuation.
    most: the most continuations of an ending.
    """

    def __init__(self, texts: Iterable[Sequence[int]], *, longest_key: int = 4, length: int = 4, most: int = 3):
        self.longest_key = longest_key
        self.length = length
        self.most = most
        at_least_one(self, "longest_key", "length", "most")
        # key → continuation → how often it followed
        self.after: dict[Gram, dict[Gram, int]] = defaultdict(lambda: defaultdict(int))
        for text in texts:
            for end in range(1, len(text)):
                continuation = tuple(text[end : end + length])
                for start in range(max(0, end - longest_key), end):
                    key = tuple(text[start:end])
                    self.after[key][continuation] += 1

    def get(self, text: Sequence[int]) -> Trie:
        """Return the commonest continuations of the text's longest known ending, as a trie; {} if none is known."""
        longest = min(self.longest_key, len(text))
        for n in range(longest, 0, -1):
            ending = tuple(text[-n:])
            if ending in self.after:
                counts = self.after[ending]
                commonest_first = sorted(counts, key=counts.get, reverse=True)
                return trie_of(commonest_first[: self.most])
        return {}


class Column(NamedTuple):
    """A branch: a random prefix and the tokens that the target has written after it."""

    prefix: list[int]
    written: list[int]


class SelfDrafter(Reader):
    """Self-Draft (Gao et al., AAAI 2025): the target continues the text after several random prefixes at once.

    The window has ``branches`` columns, with ``length`` − 2 written tokens each when it is full. Column 0 follows the
    text. Each other column begins with a random prefix of 1 or 2 tokens of the prompt (the perturbation). In each step
    the target adds one token to every column.
    - While the window fills there are more columns, with prefixes of one token. In each step the text takes the place
      of one of these prefixes.
    - When the window is full, every column loses its first token in each step. So after a few steps its prefix, too, is
      text that the target wrote (always_fwd_one in the public code).

    All sequences of 1 + gram tokens in columns and text enter a pool, by their first token. The candidates are the
    pool's grams after the last token and, with a corpus, its continuations.

    branches: the number of columns.
    length: 2 + the number of written tokens of a full column.
    gram: the number of tokens of a gram, cut to length − 1 so that column 0 has some.
    grams: the latest grams in the pool per first token.
    corpus: a Corpus, or None.
    bonus: False cuts candidates to gram − 1 tokens, so that no step commits more than ``gram`` tokens, as in the public
        code. There, no bonus token follows a completely accepted gram.
    keys: the most first tokens in the pool.
    seed: decides the random prefixes.

    The defaults are those of the public code, with about 30 auxiliary nodes. Unlike in that code, the pool is filled
    and used from the first step on. Raises ValueError for length < 3 and for other numbers below 1.
    """

    def __init__(
        self,
        branches: int = 6,
        length: int = 6,
        *,
        gram: int = 4,
        grams: int = 10,
        corpus: Corpus | None = None,
        bonus: bool = True,
        keys: int = 4096,
        seed: int = 0,
    ):
        if length < 3:
            raise ValueError(f"length, of a branch with its prefix, must be at least 3, got {length}")
        self.branches = branches
        self.levels = length - 2  # tokens of a column, its prefix not counted
        self.gram = min(gram, length - 1)
        self.grams = grams
        self.corpus = corpus
        self.bonus = bonus
        self.keys = keys
        self.seed = seed
        at_least_one(self, "branches", "gram", "grams", "keys")
        longest_key = corpus.longest_key if corpus else 0
        self.kept = max(self.gram + 1, longest_key)  # the number of last tokens of the text that are needed
        self.reach = length  # the depth of the deepest auxiliary node

    def begin(self, prefix, warp, hidden) -> None:
        rng = random.Random(self.seed)
        replaced_lengths = [1] * self.levels  # of the prefixes that the text replaces while the window fills
        staying_lengths = [rng.choice((1, 2)) for _ in range(self.branches - 1)]
        self.columns = []
        for prefix_length in [*replaced_lengths, *staying_lengths]:
            random_prefix = [rng.choice(prefix) for _ in range(prefix_length)]
            self.columns.append(Column(random_prefix, []))
        self.pool = GramPool(self.grams, self.keys)
        self.text: list[int] = []  # its last tokens
        self._read(prefix)

    def _read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.text = [*self.text, token][-self.kept :]
            self._note(self.text[-self.gram - 1 :])

    def _note(self, tokens: Sequence[int]) -> None:
        """Add every token that is followed by a gram to the pool, as the gram's key."""
        for start in range(len(tokens) - self.gram):
            gram = tokens[start + 1 : start + 1 + self.gram]
            self.pool.add(tokens[start], gram)

    def propose(self, coins, max_depth) -> Draft:
        root = self.text[-1]
        rows = Rows(root)
        candidates = self.pool.get(root)
        if self.corpus is not None:
            absorb(candidates, self.corpus.get(self.text))
        deepest = max_depth if self.bonus else min(max_depth, self.gram - 1)
        candidates = cut(candidates, deepest)
        rows.add_trie(candidates, 0)

        self.last = []  # the last row of every column
        for column in self.columns:
            column_rows = rows.add_chain([*column.prefix, *column.written], 0)
            self.last.append(column_rows[-1])
        return rows.draft(size(candidates))

    def _learn(self, draft: Draft, next_token: int, logits: Tensor) -> None:
        answers = likeliest(logits[self.last]).tolist()
        columns = [self._grow_column(column, token) for column, token in zip(self.columns, answers, strict=True)]
        if len(columns) > self.branches or columns[0].prefix:
            columns = _with_text_in_front(columns)
        self.columns = columns

    def _grow_column(self, column: Column, token: int) -> Column:
        """Return the column with one more token, and without its first one if it was full; its grams enter the pool."""
        tokens = [*column.prefix, *column.written, token]
        root = self.text[-1]
        self._note(tokens if column.prefix else [root, *tokens])
        if len(column.written) == self.levels:
            tokens = tokens[1:]
        prefix_length = len(column.prefix)
        return Column(tokens[:prefix_length], tokens[prefix_length:])


def _with_text_in_front(columns: list[Column]) -> list[Column]:
    """While the window fills: let the text replace one more prefix of one token, and make its column the first one.

    In the first step this is the prefix of column 0. After that column 0 has no prefix any more: it is dropped, and
    column 1 takes its place.
    """
    first, *others = columns
    if not first.prefix:
        first, *others = others
    return [Column([], first.written), *others]
