"""What self-drafters share: pools of candidates, bounded in size, and rows of candidates and draft nodes in one tree.

A trie is a nested dict, token → trie of what follows; siblings stand in the order in which they were first added.
"""

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from specnb.growth import at_least_one
from specnb.tree import Draft, TokenTree

Trie = dict[int, "Trie"]
Gram = tuple[int, ...]  # tokens in a row


def absorb(trie: Trie, other: Trie) -> int:
    """PTD's merge (``textbook.merge``) in place: trie takes up other. Returns how many nodes were new to it.

    The trie's own children stand first; the other one is not changed.
    Example: {1: {2: {}}} that absorbs {1: {3: {}}, 4: {}} becomes {1: {2: {}, 3: {}}, 4: {}}; two nodes were new.
    """
    new = 0
    for token, below in other.items():
        if token not in trie:
            trie[token] = {}
            new += 1
        new += absorb(trie[token], below)
    return new


def size(trie: Trie) -> int:
    """Number of nodes, the root not counted."""
    return len(trie) + sum(map(size, trie.values()))


def depth(trie: Trie) -> int:
    """Length of the longest path."""
    if not trie:
        return 0
    return 1 + max(map(depth, trie.values()))


def cut(trie: Trie, most: int) -> Trie:
    """The trie without what lies deeper than ``most`` levels."""
    if most <= 0:
        return {}
    return {token: cut(below, most - 1) for token, below in trie.items()}


def trie_of(paths: Iterable[Sequence[int]]) -> Trie:
    """The trie of several paths, e.g. {5: {6: {}, 7: {}}} of (5, 6) and (5, 7)."""
    trie: Trie = {}
    for tokens in paths:
        node = trie
        for token in tokens:
            node = node.setdefault(token, {})
    return trie


def subtrees(trie: Trie) -> Iterator[tuple[int, Trie]]:
    """Every node's token with the trie below it, parents before children."""
    for token, below in trie.items():
        yield token, below
        yield from subtrees(below)


class Reader:
    """A drafter that goes by the text: after each step it learns from the target's logits and reads what is new."""

    hidden_layers = ()
    reach = 0

    def observe(self, draft, path, next_token, hidden, logits) -> None:
        self._learn(draft, next_token, logits)
        accepted = [draft.tree.token_list[node] for node in path]
        self._read([*accepted, next_token])

    def _learn(self, draft: Draft, next_token: int, logits: Tensor) -> None:
        """Take up what the target says after the draft's nodes; next_token: the text's next one after the path."""

    def _read(self, tokens: Sequence[int]) -> None:
        """The text goes on."""


class TriePool:
    """PTD's candidate pool: for each key token a trie of what may follow it.

    It holds at most ``keys`` tries of at most ``nodes`` nodes each (60 is MAX_N of the public code). A trie that grows
    too large loses its oldest first-level subtrees, and the last one its deepest levels. When there are too many tries,
    the one that was neither asked for nor added to for longest goes.
    """

    def __init__(self, nodes: int = 60, keys: int = 4096):
        self.nodes = nodes
        self.keys = keys
        at_least_one(self, "nodes", "keys")
        self.tries: dict[int, tuple[Trie, int]] = {}  # key → trie and its size

    def add(self, key: int, trie: Trie) -> None:
        """Merge a trie into that of the key."""
        known, count = self.tries.pop(key, ({}, 0))
        count += absorb(known, trie)
        while count > self.nodes and len(known) > 1:
            oldest = next(iter(known))
            subtree = known.pop(oldest)
            count -= 1 + size(subtree)
        while count > self.nodes:
            known = cut(known, depth(known) - 1)
            count = size(known)
        _put_last(self.tries, key, (known, count), self.keys)

    def get(self, key: int) -> Trie:
        """What may follow the key, not to be changed; {} if nothing is known."""
        if key not in self.tries:
            return {}
        entry = self.tries.pop(key)
        _put_last(self.tries, key, entry, self.keys)
        trie, _ = entry
        return trie


class GramPool:
    """Lookahead's and Self-Draft's pool: the ``keys`` latest tokens, each with its ``grams`` latest continuations."""

    def __init__(self, grams: int, keys: int = 4096):
        self.grams = grams
        self.keys = keys
        at_least_one(self, "grams", "keys")
        self.lists: dict[int, dict[Gram, None]] = {}  # key → its grams, the latest last

    def add(self, key: int, gram: Sequence[int]) -> None:
        """Note that a gram followed the key: it is the latest now."""
        gram = tuple(gram)
        known = self.lists.pop(key, {})
        known.pop(gram, None)
        _put_last(known, gram, None, self.grams)
        _put_last(self.lists, key, known, self.keys)

    def get(self, key: int) -> Trie:
        """The continuations as one trie, the latest first; {} if nothing is known."""
        grams = self.lists.get(key, {})
        return trie_of(reversed(grams))


def _put_last(table: dict, key, value, most: int) -> None:
    """Put a new entry at a table's end; beyond ``most`` entries the oldest goes."""
    table[key] = value
    if len(table) > most:
        oldest = next(iter(table))
        del table[oldest]


class Rows:
    """A tree under construction: rows of tokens and parents; row 0 is the root."""

    def __init__(self, root: int):
        self.tokens = [root]
        self.parents = [-1]

    def add(self, token: int, parent: int) -> int:
        """Hang a token under a row; returns its own row."""
        self.tokens.append(token)
        self.parents.append(parent)
        return len(self.tokens) - 1

    def add_trie(self, trie: Trie, parent: int) -> list[int]:
        """Hang a trie under a row, depth first; returns the rows of its tokens."""
        rows = []
        for token, below in trie.items():
            row = self.add(token, parent)
            rows += [row, *self.add_trie(below, row)]
        return rows

    def add_chain(self, tokens: Sequence[int], parent: int) -> list[int]:
        """Hang tokens under a row, one below the other; returns their rows."""
        rows = []
        for token in tokens:
            parent = self.add(token, parent)
            rows.append(parent)
        return rows

    def draft(self, candidates: int) -> Draft:
        """The draft whose first ``candidates`` rows behind the root stand for election; the others only ride along."""
        tree = TokenTree(self.tokens, self.parents)
        rows = tree.parents.new_tensor(range(len(tree)))
        return Draft(tree, auxiliary=rows > candidates)
