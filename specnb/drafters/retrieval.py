"""RetrievalDrafter: it drafts from counts of n-grams in this text and in texts that the target wrote before.

A context is the last few tokens before a position. A law is a probability distribution over the next token.
"""

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from specnb.drafters.pools import Gram, Reader
from specnb.growth import at_least_one
from specnb.models import files
from specnb.tree import Draft, TokenTree

MOST = 50  # the most occurrences of a context that are counted, evenly spaced among all
TOP = 8  # the most continuations of a context that are returned
SHARDS = 11  # files of the corpus in the store: a fixed number, so that the store stays the same while the corpus grows

Counts = list[tuple[int, int]]  # (token, how often it followed)


class Datastore:
    """An index of a long text. It finds all occurrences of a context of up to ``longest`` tokens by binary search.

    Each position of the text has a key: the tokens before the position, packed into 64 bits, the nearest in the highest
    bits. The keys are sorted, so all positions after the same context are one range.

    tokens: (n,) integers from 0 to 2³² − 1. If several texts are concatenated, contexts cross their ends.
    longest: an attribute, the most tokens of a context: 4 for token ids below 65,536, fewer for larger ones (3 below
        2,097,152), because a key has 64 bits.

    The index takes 18 bytes per token (20 with larger ids). Raises ValueError for other tokens.
    """

    def __init__(self, tokens: np.ndarray):
        tokens = np.asarray(tokens)
        _check_run(tokens)
        largest = int(tokens.max())
        self.bits = max(16, largest.bit_length())  # bits of one token in a key
        self.longest = 64 // self.bits
        narrow = np.uint16 if self.bits == 16 else np.uint32
        self.tokens = tokens.astype(narrow)
        keys = self._keys()
        order = np.argsort(keys, kind="stable")
        self.keys = keys[order]
        self.positions = order + 1  # (n,) int64: the position that each key precedes

    @classmethod
    def of_corpus(cls, folder: Path = files.DATA / "corpus", shards: int = SHARDS) -> "Datastore":
        """Return the store of the texts that the embedded target wrote for training; no evaluation prompt is in it."""
        manifest_file = files.in_checkout(folder / "manifest.json")
        manifest = json.loads(manifest_file.read_text(encoding="utf-8"))
        entries = manifest["shards"][:shards]
        texts = [np.load(folder / entry["file"])["tokens"] for entry in entries]
        return cls(np.concatenate(texts))

    def _keys(self) -> np.ndarray:
        """(n,) uint64: the key of each token, made of the token and those before it.

        Example: of tokens (7, 8, 9), 16 bits each, the last has the key 0x0009_0008_0007_0000.
        """
        n = len(self.tokens)
        keys = np.zeros(n, np.uint64)
        for back in range(self.longest):
            shift = np.uint64(self._shift(back))
            keys[back:] |= self.tokens[: n - back].astype(np.uint64) << shift
        return keys

    def _shift(self, back: int) -> int:
        """Return by how many bits a token is shifted in a key; back: 0 for the nearest token, 1 for the one before."""
        return self.bits * (self.longest - 1 - back)

    def counts(self, context: Gram) -> tuple[Counts, int]:
        """Return what followed a context most often, and the number of occurrences that were counted.

        The former is a list of (token, count), the commonest first. Of more than ``MOST`` occurrences, not all are
        counted.
        """
        if any(token >> self.bits for token in context):
            return [], 0  # larger than any in the store
        # Keys with this context have its tokens in the highest bits; the other bits may be anything.
        low = 0
        for back, token in enumerate(reversed(context)):
            low += token << self._shift(back)
        other_bits = self.bits * (self.longest - len(context))
        high = low + (1 << other_bits) - 1
        start = int(self.keys.searchsorted(np.uint64(low)))
        end = int(self.keys.searchsorted(np.uint64(high), "right"))

        step = max(1, -(-(end - start) // MOST))  # rounded up
        positions = self.positions[start:end:step]
        positions = positions[positions >= len(context)]  # nearer to the start, a key's zeros are not tokens
        positions = positions[positions < len(self.tokens)]  # nothing follows the last token
        following = self.tokens[positions].tolist()
        return Counter(following).most_common(TOP), len(following)


def _check_run(tokens: np.ndarray) -> None:
    """ValueError unless tokens are (n,) token ids of at most 32 bits, at least one."""
    if tokens.ndim != 1 or len(tokens) == 0 or tokens.dtype.kind not in "iu":
        raise ValueError(f"a datastore takes a run of token ids below 2**32, got {tokens.dtype} {tokens.shape}")
    least, largest = int(tokens.min()), int(tokens.max())
    if least < 0 or largest >= 1 << 32:
        raise ValueError(
            f"a datastore takes a run of token ids below 2**32, got {tokens.dtype} from {least} to {largest}"
        )


class RetrievalDrafter(Reader):
    """It drafts the likeliest paths by n-gram counts. The rule is not from a paper (retrieval: REST, He et al. 2024).

    store: a Datastore, or None to count in the text only.
    budget: the most nodes, the root not counted.
    depth: the most levels.
    longest: the most tokens of a context in the text; the store has its own limit.
    weight: one occurrence in the text counts like this number of occurrences in the store.
    prior: the weight of the shorter context, see ``law``.

    The paths are chosen, not drawn, so the draft is POINT, and lossless with ``one_hot``. Its scores are the path
    probabilities by ``law``.
    """

    def __init__(
        self,
        store: Datastore | None = None,
        *,
        budget: int = 16,
        depth: int = 10,
        longest: int = 6,
        weight: int = 20,
        prior: int = 30,
    ):
        self.store = store
        self.budget = budget
        self.depth = depth
        self.longest = longest
        self.weight = weight
        self.prior = prior
        at_least_one(self, "budget", "depth", "longest", "weight", "prior")

    def begin(self, prefix, warp, hidden) -> None:
        self.text: list[int] = []
        # context → token → how often it followed in this text
        self.after: dict[Gram, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.stored = None  # Datastore.counts with a cache for this text
        if self.store is not None:
            self.stored = lru_cache(maxsize=5_000)(self.store.counts)
        self._read(prefix)

    def _read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            longest = min(self.longest, len(self.text))
            for n in range(1, longest + 1):
                context = tuple(self.text[-n:])
                self.after[context][token] += 1
            self.text.append(token)

    def law(self, context: Gram) -> dict[int, float]:
        """Return token → probability after a context. The sum may be below one: tokens never seen are not in it.

        Example, with prior 2 and weight 3: the text is 3 1 4 1 5 3 1, the store 1 5 1 5, the context (3, 1). In the
        text 4 followed it once, so 4 gets 3 / (3 + 2) = .6, and .4 is left for the shorter context (1,). That was
        followed by 4 and by 5 in the text, and by 5 twice in the store: its total is 3 + 3 + 2 = 8. Of the .4 that is
        left, 4 gets 3 / (8 + 2) and 5 gets 5 / (8 + 2). So p(4) = .6 + .12 = .72 and p(5) = .2.

        In general p = (counts + prior · p') / (total + prior), where p' is the law after the context that is one token
        shorter (a Dirichlet prior).
        """
        law: dict[int, float] = defaultdict(float)
        remaining = 1.0  # the probability that longer contexts have left
        for n in range(len(context), 0, -1):
            ending = context[-n:]
            in_store, occurrences = self._in_store(ending)
            in_text = self.after.get(ending, {})
            total = occurrences + self.weight * sum(in_text.values())
            if total == 0:
                continue
            share = remaining / (total + self.prior)
            for token, count in in_store:
                law[token] += share * count
            for token, count in in_text.items():
                law[token] += share * self.weight * count
            remaining *= self.prior / (total + self.prior)
        return law

    def _in_store(self, context: Gram) -> tuple[Counts, int]:
        """Return ``Datastore.counts``; no counts without a store, or for a context that is too long for it."""
        if self.stored is None or len(context) > self.store.longest:
            return [], 0
        return self.stored(context)

    def propose(self, coins, max_depth) -> Draft:
        deepest = min(max_depth, self.depth)
        # One entry per node, the root first
        tokens: list[int] = []
        parents: list[int] = []
        score_list: list[float] = []
        # A heap of nodes that may be added: (−score, parent, token, level, context before it)
        before_root = tuple(self.text[-self.longest - 1 : -1])
        open_nodes = [(-1.0, -1, self.text[-1], 0, before_root)]
        while open_nodes and len(tokens) <= self.budget:
            negative_score, parent, token, level, before = heapq.heappop(open_nodes)
            node = len(tokens)
            tokens.append(token)
            parents.append(parent)
            score_list.append(-negative_score)
            if level < deepest and node < self.budget:
                context = (*before, token)[-self.longest :]
                for child, probability in self.law(context).items():
                    heapq.heappush(open_nodes, (negative_score * probability, node, child, level + 1, context))
        scores = torch.tensor(score_list, dtype=torch.float64, device="cpu")
        return Draft(TokenTree(tokens, parents), scores=scores)
