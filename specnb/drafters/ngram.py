"""NgramDrafter: prompt lookup that returns a tree of continuations instead of one chain."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

from specnb.drafters.pools import Gram, Reader
from specnb.growth import at_least_one
from specnb.tree import Draft, TokenTree

# The most occurrences of a suffix that are looked at, the latest first. Those that add nodes come soon: in 100,000
# tokens of the corpus there were never more than 18 before them that added none. But a text that goes round has
# thousands that say the same, and all of them would be looked at in every step. A text of up to this length cannot have
# more, and is drafted as without the bound: so is every recorded text (they have up to 394 tokens).
VISITS = 512


class NgramDrafter(Reader):
    """Look the last tokens up in the prompt and the text so far; propose what followed, several ways at once.

    The longest suffix (max_ngram tokens, then fewer) goes first, and within it the most recent occurrence, up to the
    latest ``VISITS``. Each match adds its next ``length`` tokens to a trie, until ``matches`` of them have added a node
    or it has ``budget`` nodes besides the root. After a suffix of only one token the continuations are cut to ``short``
    tokens, because such matches are often chance. The defaults did best when the greedy answers to the own prompts were
    replayed under a CPU's cost curve.
    The draft is POINT: nothing is drawn. One match makes a chain, as in prompt lookup decoding (Saxena 2023), which
    takes the earliest occurrence.
    """

    def __init__(self, *, max_ngram: int = 4, length: int = 14, matches: int = 3, budget: int = 16, short: int = 3):
        self.max_ngram = max_ngram
        self.length = length
        self.matches = matches
        self.budget = budget
        self.short = short
        at_least_one(self, "max_ngram", "length", "matches", "budget", "short")

    def begin(self, prefix, warp, hidden) -> None:
        self.text: list[int] = []
        self.ends: dict[Gram, list[int]] = defaultdict(list)  # n-gram → where the text goes on
        self._read(prefix)

    def _read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.text.append(token)
            longest = min(self.max_ngram, len(self.text))
            for n in range(1, longest + 1):
                gram = tuple(self.text[-n:])
                self.ends[gram].append(len(self.text))

    def propose(self, coins, max_depth) -> Draft:
        paths: dict[Gram, None] = {}  # of all nodes, in the order in which they were found
        matches = 0
        for path in self._continuations(max_depth):
            if path in paths:
                continue  # and so are all that it begins with
            beginnings = [path[:end] for end in range(1, len(path) + 1)]
            new = [beginning for beginning in beginnings if beginning not in paths]
            room = self.budget - len(paths)
            paths |= dict.fromkeys(new[:room])
            if new:
                matches += 1
            if matches == self.matches or len(paths) == self.budget:
                break
        return Draft(TokenTree.from_paths(paths, root=self.text[-1]))

    def _continuations(self, max_depth: int) -> Iterator[Gram]:
        """What followed earlier occurrences of the text's suffixes: long suffixes first, then late occurrences."""
        longest = min(self.max_ngram, len(self.text))
        for n in range(longest, 0, -1):
            length = self.length if n > 1 else self.short
            length = min(max_depth, length)
            suffix = tuple(self.text[-n:])
            latest_first = reversed(self.ends[suffix])
            for end in islice(latest_first, 1, 1 + VISITS):  # the first of them is the suffix itself
                yield tuple(self.text[end : end + length])
