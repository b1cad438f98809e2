"""RetrievalDrafter: what followed in this text and in texts the target wrote before, as a law; no model drafts."""

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from specnb.drafters.pools import Reader
from specnb.growth import at_least_one
from specnb.models import files
from specnb.tree import Draft, TokenTree

MOST = 50  # places of a context that are counted, evenly spaced among all
TOP = 8  # continuations of a context that are kept
SHARDS = 11  # of the corpus in the store: it stays the same while the corpus grows


class Datastore:
    """Texts as one run of tokens, sorted by what precedes each place: any context of up to ``longest`` is one range.

    tokens: (n,) integers; where several texts stand behind each other, contexts reach across their ends.
    longest: 4 for token ids below 65,536, fewer for larger ones (3 below 2,097,152): a key has 64 bits.
    Memory: 18 bytes a token (20 with larger ids); a lookup is two binary searches.
    Raises ValueError on anything but a run of token ids from 0 to 2³² − 1.
    """

    def __init__(self, tokens: np.ndarray):
        tokens = np.asarray(tokens)
        odd = tokens.ndim != 1 or len(tokens) == 0 or tokens.dtype.kind not in "iu"
        if odd or tokens.min() < 0 or int(tokens.max()) >= 1 << 32:
            raise ValueError(f"a datastore takes a run of token ids below 2**32, got {tokens.dtype} {tokens.shape}")
        self.bits = max(16, int(tokens.max()).bit_length())  # of a token in a key
        self.longest = 64 // self.bits
        self.tokens, keys = tokens.astype(np.uint16 if self.bits == 16 else np.uint32), np.zeros(len(tokens), np.uint64)
        for back in range(self.longest):  # the nearest token in the highest bits
            shift = np.uint64(self.bits * (self.longest - 1 - back))
            keys[back:] |= self.tokens[: len(tokens) - back].astype(np.uint64) << shift
        self.order = np.argsort(keys, kind="stable")
        self.keys, self.order = keys[self.order], self.order + 1  # places of what comes next

    @classmethod
    def of_corpus(cls, folder: Path = files.DATA / "corpus", shards: int = SHARDS) -> "Datastore":
        """What the embedded target wrote for the training of the heads; no evaluation prompt is among it."""
        entries = json.loads(files.in_checkout(folder / "manifest.json").read_text(encoding="utf-8"))["shards"][:shards]
        return cls(np.concatenate([np.load(folder / entry["file"])["tokens"] for entry in entries]))

    def counts(self, context: tuple[int, ...]) -> tuple[list[tuple[int, int]], int]:
        """(token, count) of what most often followed a context, the commonest first, and the number of places."""
        if any(token >> self.bits for token in context):
            return [], 0  # larger than any in the store
        low = sum(token << self.bits * (self.longest - 1 - back) for back, token in enumerate(reversed(context)))
        high = low + (1 << self.bits * (self.longest - len(context))) - 1
        start, end = self.keys.searchsorted(np.uint64(low)), self.keys.searchsorted(np.uint64(high), "right")
        places = self.order[start : end : max(1, -(-int(end - start) // MOST))]
        places = places[(places >= len(context)) & (places < len(self.tokens))]  # nothing stands before the first token
        following = self.tokens[places].tolist()
        return Counter(following).most_common(TOP), len(following)


class RetrievalDrafter(Reader):
    """The likeliest paths by n-gram counts, best first; beyond the papers (retrieval: REST, He et al. 2024).

    The law after a context mixes its counts with that of the context one token shorter, as p = (counts + prior · p
    below) / (total + prior), a Dirichlet prior; an occurrence in the text itself counts weight times one in the store.
    The paths are chosen, not drawn: a POINT draft, lossless under ``one_hot``; scores are the path probabilities.
    budget, depth: most nodes, and levels. longest: most tokens of a context (the store has its own bound).
    """

    def __init__(
        self, store: Datastore | None = None, *, budget: int = 16, depth: int = 10, longest: int = 6,
        weight: int = 20, prior: int = 30,
    ):  # fmt: skip
        self.store, self.budget, self.depth, self.longest = store, budget, depth, longest
        self.weight, self.prior = weight, prior
        at_least_one(self, "budget", "depth", "longest", "weight", "prior")

    def begin(self, prefix, warp, hidden) -> None:
        self.text: list[int] = []
        self.after: dict[tuple[int, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.stored = lru_cache(maxsize=5_000)(self.store.counts) if self.store else None  # of this text alone
        self._read(prefix)

    def _read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            for n in range(1, min(self.longest, len(self.text)) + 1):
                self.after[tuple(self.text[-n:])][token] += 1
            self.text.append(token)

    def law(self, context: tuple[int, ...]) -> dict[int, float]:
        """token → probability after a context; sums to at most one: what is never seen has nothing."""
        law, left = defaultdict(float), 1.0
        for n in range(len(context), 0, -1):
            stored, places = self.stored(context[-n:]) if self.stored and n <= self.store.longest else ([], 0)
            own = self.after.get(context[-n:], {})
            total = places + self.weight * sum(own.values())
            if total:
                share = left / (total + self.prior)
                for token, count in stored:
                    law[token] += share * count
                for token, count in own.items():
                    law[token] += share * self.weight * count
                left *= self.prior / (total + self.prior)
        return law

    def propose(self, coins, max_depth) -> Draft:
        tokens, parents, scores = [], [], []
        # (−score, parent, token, level, context before it), the root first
        open_ = [(-1.0, -1, self.text[-1], 0, tuple(self.text[-self.longest - 1 : -1]))]
        while open_ and len(tokens) <= self.budget:
            score, parent, token, level, context = heapq.heappop(open_)
            if level < min(max_depth, self.depth) and len(tokens) < self.budget:
                context = (*context, token)[-self.longest :]
                for new, chance in self.law(context).items():
                    heapq.heappush(open_, (score * chance, len(tokens), new, level + 1, context))
            tokens.append(token)
            parents.append(parent)
            scores.append(-score)
        return Draft(TokenTree(tokens, parents), scores=torch.tensor(scores, dtype=torch.float64, device="cpu"))
