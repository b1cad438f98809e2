"""What self-drafters share: pools of candidates, bounded in size, and rows of candidates and draft nodes in one tree.

A trie is a nested dict, token → trie of what follows; siblings stand in the order in which they were first added.
"""

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from specnb.growth import at_least_one
from specnb.tree import Draft, TokenTree

Trie = dict[int, "Trie"]


def absorb(trie: Trie, other: Trie) -> int:
    """PTD's merge (``textbook.merge``) in place: trie takes up other. Returns how many nodes were new to it.

    The trie's own children stand first; the other one is not changed.
    """
    new = 0
    for token, below in other.items():
        new += token not in trie
        new += absorb(trie.setdefault(token, {}), below)
    return new


def size(trie: Trie) -> int:
    """Number of nodes, the root not counted."""
    return len(trie) + sum(map(size, trie.values()))


def depth(trie: Trie) -> int:
    """Length of the longest path."""
    return 1 + max(map(depth, trie.values())) if trie else 0


def cut(trie: Trie, most: int) -> Trie:
    """The trie without what lies deeper than ``most`` levels."""
    return {token: cut(below, most - 1) for token, below in trie.items()} if most > 0 else {}


def trie_of(paths: Iterable[Sequence[int]]) -> Trie:
    """The trie of several paths."""
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

    hidden_layers, reach = (), 0

    def observe(self, draft, path, next_token, hidden, logits) -> None:
        self._learn(draft, next_token, logits)
        self._read([*(draft.tree.token_list[node] for node in path), next_token])

    def _learn(self, draft: Draft, next_token: int, logits: Tensor) -> None:
        """Take up what the target says after the draft's nodes; next_token: the text's next one after the path."""

    def _read(self, tokens: Sequence[int]) -> None:
        """The text goes on."""


class TriePool:
    """PTD's candidate pool: key token → trie of what may follow it, at most ``nodes`` in a trie and ``keys`` tries.

    A trie that grows too large loses its oldest first-level subtrees, and the last one its deepest levels; when
    there are too many, the one that was neither asked for nor added to longest goes.
    (``nodes`` 60: the public code's MAX_N.)
    """

    def __init__(self, nodes: int = 60, keys: int = 4096):
        self.nodes, self.keys = nodes, keys
        at_least_one(self, "nodes", "keys")
        self.tries: dict[int, tuple[Trie, int]] = {}  # with their sizes

    def add(self, key: int, trie: Trie) -> None:
        """Merge a trie into the key's own."""
        own, count = self.tries.pop(key, ({}, 0))
        count += absorb(own, trie)
        while count > self.nodes and len(own) > 1:
            count -= 1 + size(own.pop(next(iter(own))))
        while count > self.nodes:
            own = cut(own, depth(own) - 1)
            count = size(own)
        _latest(self.tries, key, (own, count), self.keys)

    def get(self, key: int) -> Trie:
        """What may follow the key, not to be changed; {} if nothing is known."""
        if key not in self.tries:
            return {}
        return _latest(self.tries, key, self.tries.pop(key), self.keys)[0]


class GramPool:
    """Lookahead's and Self-Draft's pool: the ``keys`` latest tokens, each with its ``grams`` latest continuations."""

    def __init__(self, grams: int, keys: int = 4096):
        self.grams, self.keys = grams, keys
        at_least_one(self, "grams", "keys")
        self.lists: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, key: int, gram: Sequence[int]) -> None:
        """Note that a gram followed the key: it is the latest now."""
        known = self.lists.pop(key, {})
        known.pop(tuple(gram), None)
        _latest(known, tuple(gram), None, self.grams)
        _latest(self.lists, key, known, self.keys)

    def get(self, key: int) -> Trie:
        """The continuations as one trie, the latest first; {} if nothing is known."""
        return trie_of(reversed(self.lists.get(key, {})))


def _latest(table: dict, key, value, most: int):
    """Put a new entry at a table's end; beyond ``most`` entries the oldest goes."""
    table[key] = value
    if len(table) > most:
        del table[next(iter(table))]
    return value


class Rows:
    """A tree under construction: rows of tokens and parents; row 0 is the root."""

    def __init__(self, root: int):
        self.tokens, self.parents = [root], [-1]

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

    def draft(self, candidates: int) -> Draft:
        """The draft whose first ``candidates`` rows behind the root stand for election; the others only ride along."""
        tree = TokenTree(self.tokens, self.parents)
        return Draft(tree, auxiliary=tree.parents.new_tensor(range(len(tree))) > candidates)
