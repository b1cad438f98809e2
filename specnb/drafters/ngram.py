"""NgramDrafter: prompt lookup that returns a tree of continuations instead of one chain."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice

from specnb.drafters.pools import Reader
from specnb.growth import at_least_one
from specnb.tree import Draft, TokenTree

# Most occurrences of a suffix that are looked at, the latest first. The few that add nodes come soon: in 100,000 tokens
# of the corpus there were never more than 18 before them that added none. But a text that goes round has thousands that
# say the same, and all of them would be looked at in every step. A text of up to this length cannot have more, and is
# drafted as without the bound: so is every recorded text (they have up to 394 tokens).
VISITS = 512


class NgramDrafter(Reader):
    """Look the last tokens up in the prompt and the text so far; propose what followed, several ways at once.

    The longest suffix (max_ngram tokens, then fewer) goes first, and within it the most recent occurrence, up to the
    latest ``VISITS``.
    Each match adds its next ``length`` tokens to a trie, until it has ``budget`` nodes besides the root. After
    a suffix of only one token the continuations are cut to ``short`` tokens: such matches are often chance.
    The defaults did best when the greedy answers to the own prompts were replayed under a CPU's cost curve.
    A POINT draft: nothing is drawn. One match makes a chain, as in prompt lookup decoding (Saxena 2023), which takes
    the earliest occurrence.
    """

    def __init__(self, *, max_ngram: int = 4, length: int = 14, matches: int = 3, budget: int = 16, short: int = 3):
        self.max_ngram, self.length, self.matches = max_ngram, length, matches
        self.budget, self.short = budget, short
        at_least_one(self, "max_ngram", "length", "matches", "budget", "short")

    def begin(self, prefix, warp, hidden) -> None:
        self.text: list[int] = []
        self.ends: dict[tuple[int, ...], list[int]] = defaultdict(list)  # n-gram → where the text goes on
        self._read(prefix)

    def _read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.text.append(token)
            for n in range(1, min(self.max_ngram, len(self.text)) + 1):
                self.ends[tuple(self.text[-n:])].append(len(self.text))

    def propose(self, coins, max_depth) -> Draft:
        paths: dict[tuple[int, ...], None] = {}  # of all nodes, in the order in which they were found
        used = 0
        for n in range(min(self.max_ngram, len(self.text)), 0, -1):
            length = min(max_depth, self.length if n > 1 else self.short)
            latest = reversed(self.ends[tuple(self.text[-n:])])
            for end in islice(latest, 1, 1 + VISITS):  # the first of them is the suffix itself
                if used == self.matches or len(paths) == self.budget:
                    break
                path = tuple(self.text[end : end + length])
                if path in paths:
                    continue  # and so are all that it begins with
                fresh = [path[: i + 1] for i in range(len(path)) if path[: i + 1] not in paths]
                paths |= dict.fromkeys(fresh[: self.budget - len(paths)])
                used += bool(fresh)
        return Draft(TokenTree.from_paths(paths, root=self.text[-1]))
