"""What self-drafters share: bounded pools of candidates, and a builder of trees with candidates and auxiliary nodes.

A candidate may be accepted; an auxiliary node is only scored with the target's forward. A trie is a nested dict,
token → trie of the tokens that follow; siblings are in the order in which they were first added.
"""

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from specnb.growth import at_least_one
from specnb.tree import Draft, TokenTree

Trie = dict[int, "Trie"]
Gram = tuple[int, ...]  # tokens in a row


def absorb(trie: Trie, other: Trie) -> int:
    """Add all paths of other to trie, in place (``textbook.merge``); return the number of new nodes.

    Example: {1: {2: {}}} that absorbs {1: {3: {}}, 4: {}} becomes {1: {2: {}, 3: {}}, 4: {}}; two nodes are new.

    New children come after the old ones. other is not changed.
    """
    new = 0
    for token, below in other.items():
        if token not in trie:
            trie[token] = {}
            new += 1
        new += absorb(trie[token], below)
    return new


def size(trie: Trie) -> int:
    """Return the number of nodes, the root not counted."""
    return len(trie) + sum(map(size, trie.values()))


def depth(trie: Trie) -> int:
    """Return the length of the longest path."""
    if not trie:
        return 0
    return 1 + max(map(depth, trie.values()))


def cut(trie: Trie, most: int) -> Trie:
    """Return the trie's first ``most`` levels."""
    if most <= 0:
        return {}
    return {token: cut(below, most - 1) for token, below in trie.items()}


def trie_of(paths: Iterable[Sequence[int]]) -> Trie:
    """Return the trie of several paths. Example: (5, 6) and (5, 7) make {5: {6: {}, 7: {}}}."""
    trie: Trie = {}
    for tokens in paths:
        node = trie
        for token in tokens:
            node = node.setdefault(token, {})
    return trie


def subtrees(trie: Trie) -> Iterator[tuple[int, Trie]]:
    """Yield every node's token with the trie below it, parents before children."""
    for token, below in trie.items():
        yield token, below
        yield from subtrees(below)


class Reader:
    """Base class of drafters without a draft model: they learn from the target's logits and from the text."""

    hidden_layers = ()
    reach = 0

    def observe(self, draft, path, next_token, hidden, logits) -> None:
        self._learn(draft, next_token, logits)
        accepted = [draft.tree.token_list[node] for node in path]
        self._read([*accepted, next_token])

    def _learn(self, draft: Draft, next_token: int, logits: Tensor) -> None:
        """Learn from the target's logits (n, V) after the draft's nodes; next_token: the token after the path."""

    def _read(self, tokens: Sequence[int]) -> None:
        """Append new tokens to the text."""


class TriePool:
    """PTD's candidate pool: for each key token a trie of tokens that may follow it.

    nodes: the most nodes of a trie (60 is MAX_N of the public code). A trie with more loses its oldest first-level
        subtrees; if a single one is left, its deepest levels.
    keys: the most tries. If there are more, the least recently used one is removed.
    """

    def __init__(self, nodes: int = 60, keys: int = 4096):
        self.nodes = nodes
        self.keys = keys
        at_least_one(self, "nodes", "keys")
        self.tries: dict[int, tuple[Trie, int]] = {}  # key → trie and its size

    def add(self, key: int, trie: Trie) -> None:
        """Merge a trie into the trie of the key."""
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
        """Return the trie of the key, which the caller must not change; {} if there is none."""
        if key not in self.tries:
            return {}
        entry = self.tries.pop(key)
        _put_last(self.tries, key, entry, self.keys)
        trie, _ = entry
        return trie


class GramPool:
    """Lookahead's and Self-Draft's pool: for each key token the latest n-grams (grams) that followed it.

    grams: the most n-grams of a key.
    keys: the most keys; the key that was added to least recently is removed first.
    """

    def __init__(self, grams: int, keys: int = 4096):
        self.grams = grams
        self.keys = keys
        at_least_one(self, "grams", "keys")
        self.lists: dict[int, dict[Gram, None]] = {}  # key → its grams, the latest last

    def add(self, key: int, gram: Sequence[int]) -> None:
        """Note that a gram followed the key; it becomes the latest one."""
        gram = tuple(gram)
        known = self.lists.pop(key, {})
        known.pop(gram, None)
        _put_last(known, gram, None, self.grams)
        _put_last(self.lists, key, known, self.keys)

    def get(self, key: int) -> Trie:
        """Return the grams of a key as a trie, the latest first; {} if there are none."""
        grams = self.lists.get(key, {})
        return trie_of(reversed(grams))


def _put_last(table: dict, key, value, most: int) -> None:
    """Add a new entry at a table's end; if there are more than ``most`` entries, remove the oldest."""
    table[key] = value
    if len(table) > most:
        oldest = next(iter(table))
        del table[oldest]


class Rows:
    """A tree under construction. A row is a node: its index in the lists of tokens and parents; row 0 is the root."""

    def __init__(self, root: int):
        self.tokens = [root]
        self.parents = [-1]

    def add(self, token: int, parent: int) -> int:
        """Add a token below a row; return its row."""
        self.tokens.append(token)
        self.parents.append(parent)
        return len(self.tokens) - 1

    def add_trie(self, trie: Trie, parent: int) -> list[int]:
        """Add a trie below a row, depth first; return the rows of its tokens."""
        rows = []
        for token, below in trie.items():
            row = self.add(token, parent)
            rows += [row, *self.add_trie(below, row)]
        return rows

    def add_chain(self, tokens: Sequence[int], parent: int) -> list[int]:
        """Add a chain of tokens below a row; return their rows."""
        rows = []
        for token in tokens:
            parent = self.add(token, parent)
            rows.append(parent)
        return rows

    def draft(self, candidates: int) -> Draft:
        """Return the draft. Its first ``candidates`` rows after the root are candidates, all later ones auxiliary."""
        tree = TokenTree(self.tokens, self.parents)
        rows = tree.parents.new_tensor(range(len(tree)))
        return Draft(tree, auxiliary=rows > candidates)
