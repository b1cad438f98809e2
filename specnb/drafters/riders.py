"""What self-drafters share: candidates and draft nodes side by side in one tree, and where they stand in it."""

from collections.abc import Sequence

from specnb.drafters.pools import Trie
from specnb.tree import Draft, TokenTree


class Rows:
    """A tree under construction: rows of tokens and parents; row 0 is the root."""

    def __init__(self, root: int):
        self.tokens, self.parents = [root], [-1]

    def add(self, token: int, parent: int) -> int:
        """Hang a token under a row; returns its own row."""
        self.tokens.append(token)
        self.parents.append(parent)
        return len(self.tokens) - 1

    def add_path(self, tokens: Sequence[int], parent: int) -> list[int]:
        """Hang a path under a row; returns the rows of its tokens."""
        rows = []
        for token in tokens:
            parent = self.add(token, parent)
            rows.append(parent)
        return rows

    def add_trie(self, trie: Trie, parent: int) -> None:
        """Hang a trie under a row, depth first."""
        for token, below in trie.items():
            self.add_trie(below, self.add(token, parent))

    def draft(self, candidates: int) -> Draft:
        """The draft whose first ``candidates`` rows behind the root stand for election; the others only ride along."""
        tree = TokenTree(self.tokens, self.parents)
        return Draft(tree, auxiliary=tree.parents.new_tensor(range(len(tree))) > candidates)
