"""NgramDrafter: prompt lookup that returns a tree of continuations instead of one chain."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice

from specnb.drafters.pools import Gram, Reader
from specnb.growth import at_least_one
from specnb.tree import Draft, TokenTree

# The most occurrences of a suffix that are looked at, the latest first. Without this limit, a text that repeats itself
# would have thousands with the same continuation, all looked at in every step. The limit hardly changes drafts: in
# 100,000 tokens of the corpus at most 18 occurrences without new nodes came before one with new nodes. It changes no
# recorded text, because a text of up to 512 tokens has no more occurrences (the longest has 394 tokens).
VISITS = 512


class NgramDrafter(Reader):
    """Look up the last tokens in the prompt and the text so far, and propose several continuations that followed them.

    Example: the text is 1 2 3 1 2 4 1 2. The suffix 1 2 was followed by 4 1 2 and before by 3 1 2 4 1 2; the draft has
    both continuations.

    Long suffixes are looked up first, and for each one its latest occurrences first. Each occurrence adds the tokens
    that followed it to a trie.

    max_ngram: the longest suffix that is looked up.
    length: the most tokens of a continuation.
    matches: the search stops when this number of occurrences has added a node.
    budget: the most nodes, the root not counted.
    short: the most tokens of a continuation of a suffix of one token, because such matches are often chance.

    The defaults were the best when greedy answers to our own prompts were replayed with a CPU's seconds. The draft is
    POINT (chosen, not drawn). With one match it is a chain, as in prompt lookup decoding (Saxena 2023), which takes the
    earliest occurrence.
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
        self.ends: dict[Gram, list[int]] = defaultdict(list)  # n-gram → indices of the text's tokens after it
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
                continue  # then all its beginnings are in paths, too
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
        """Yield what followed earlier occurrences of the text's suffixes: long suffixes first, then late ones."""
        longest = min(self.max_ngram, len(self.text))
        for n in range(longest, 0, -1):
            length = self.length if n > 1 else self.short
            length = min(max_depth, length)
            suffix = tuple(self.text[-n:])
            latest_first = reversed(self.ends[suffix])
            for end in islice(latest_first, 1, 1 + VISITS):  # the first of them is the suffix itself
                yield tuple(self.text[end : end + length])
