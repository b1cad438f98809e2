"""SelfDrafter: Self-Draft, branches behind random prefixes that ride the target's own forward."""

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
    """n-grams of given texts: what followed the longest known ending of a text, up to ``most`` continuations.

    It stands in for Self-Draft's pickled corpus (OANC), which its code does not ship. The form is the same (keys of up
    to 4 tokens, 3 continuations), the texts are others. texts: token ids.
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
        """The commonest continuations of the longest known ending, as a trie; {} if there is none."""
        longest = min(self.longest_key, len(text))
        for n in range(longest, 0, -1):
            ending = tuple(text[-n:])
            if ending in self.after:
                counts = self.after[ending]
                commonest_first = sorted(counts, key=counts.get, reverse=True)
                return trie_of(commonest_first[: self.most])
        return {}


class Column(NamedTuple):
    """A branch: the prefix that leads it away from the text, and the tokens that the target has written behind it."""

    prefix: list[int]
    written: list[int]


class SelfDrafter(Reader):
    """Self-Draft (Gao et al., AAAI 2025): the target continues the text behind several random detours at once.

    There are branches columns, of ``length`` − 2 tokens each when the window is full. Column 0 follows the text; the
    others begin behind a random prefix of 1 or 2 tokens of the prompt (the perturbation). While the window fills,
    further columns have prefixes of one token; each step uses up one of them, by the text taking the prefix's place.
    Then every column slides: it loses its first token and gains one, so that after a few steps its prefix, too, is text
    that the target wrote (the public code's always_fwd_one).

    All (1 + gram)-grams of columns and text enter a pool (``grams`` latest per first token; gram is cut to length − 1,
    so that column 0 has some). Candidates are the pool's grams behind the last token and, with a corpus, its
    continuations. bonus=False cuts both to gram − 1 tokens, so that no step earns more than ``gram``, as in the public
    code, where no token follows a whole accepted gram. Defaults are that code's, where columns and prefixes come to
    about 30 auxiliary nodes. Unlike there, the pool is filled and asked from the first step on. The prefixes come from
    a stream of their own (seed).
    Raises ValueError for bounds below 1, and for length < 3.
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
        self.kept = max(self.gram + 1, longest_key)  # tokens of the text
        self.reach = length  # how far behind the text a draft node may lie

    def begin(self, prefix, warp, hidden) -> None:
        rng = random.Random(self.seed)
        used_up = [1] * self.levels  # lengths of the prefixes that the text replaces while the window fills
        staying = [rng.choice((1, 2)) for _ in range(self.branches - 1)]
        self.columns = []
        for prefix_length in [*used_up, *staying]:
            detour = [rng.choice(prefix) for _ in range(prefix_length)]
            self.columns.append(Column(detour, []))
        self.pool = GramPool(self.grams, self.keys)
        self.text: list[int] = []  # its last tokens
        self._read(prefix)

    def _read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.text = [*self.text, token][-self.kept :]
            self._note(self.text[-self.gram - 1 :])

    def _note(self, tokens: Sequence[int]) -> None:
        """Every key with the gram behind it enters the pool."""
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
        columns = [self._grown(column, token) for column, token in zip(self.columns, answers, strict=True)]
        if len(columns) > self.branches or columns[0].prefix:
            columns = _with_text_in_front(columns)
        self.columns = columns

    def _grown(self, column: Column, token: int) -> Column:
        """The column with one more token, and without its first one if it was full; its grams enter the pool."""
        whole = [*column.prefix, *column.written, token]
        root = self.text[-1]
        self._note(whole if column.prefix else [root, *whole])
        if len(column.written) == self.levels:
            whole = whole[1:]
        prefix_length = len(column.prefix)
        return Column(whole[:prefix_length], whole[prefix_length:])


def _with_text_in_front(columns: list[Column]) -> list[Column]:
    """While the window fills: the text takes the place of one more prefix of one token, whose column is the first then.

    In the first step that prefix is column 0's. From then on column 0 has none, and column 1 takes its place.
    """
    first, *others = columns
    if not first.prefix:
        first, *others = others
    return [Column([], first.written), *others]
