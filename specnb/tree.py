"""TokenTree, Draft and Verdict: the data that drafters, masks and verifiers exchange.

A drafter proposes a Draft, which is a TokenTree with the draft model's probabilities. The attention mask is made from
the tree, and a verifier returns a Verdict. A law is a probability distribution over the vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TokenTree:
    """A token tree as two flat arrays. Node 0 is the root: the last committed token, which is not in the cache yet.

    Example: ``TokenTree([7, 5, 6, 5], [-1, 0, 0, 1])`` is the root 7, its children 5 (node 1) and 6 (node 2), and
    another 5 (node 3) below the first.

    tokens: (n,) int64, the token of each node.
    parents: (n,) int64, the parent of each node; parents[0] = -1 and parents[i] < i for every other node.

    Siblings are in the order in which they were drawn (or ranked), because verifiers try them by index. Raises
    ValueError on a second root, a parent after its child, a negative token id, arrays of different length, no node, or
    values that are not integers.
    """

    tokens: Tensor
    parents: Tensor

    def __post_init__(self):
        object.__setattr__(self, "tokens", _numbers("tokens", self.tokens))
        object.__setattr__(self, "parents", _numbers("parents", self.parents))
        n, parent_count = len(self.tokens), len(self.parents)
        if n != parent_count or n == 0:
            raise ValueError(f"tokens and parents must have the same length of at least 1, got {n} and {parent_count}")
        self._check_parents()
        smallest = self.tokens.numpy().min()
        if smallest < 0:
            raise ValueError(f"token ids must not be negative, got {smallest}")

    def _check_parents(self) -> None:
        parents = self.parents.numpy()
        if parents[0] != -1:
            raise ValueError(f"node 0 is the root and its parent must be -1, got {parents[0]}")
        comes_before = (parents >= 0) & (parents < np.arange(len(parents)))
        wrong = 1 + np.flatnonzero(~comes_before[1:])
        if len(wrong) == 0:
            return
        node = wrong[0]
        if parents[node] == -1:
            raise ValueError(f"node {node} is a second root: only node 0 may have parent -1")
        raise ValueError(f"node {node} has parent {parents[node]}: every parent must come before its child")

    def __len__(self) -> int:
        return len(self.tokens)

    # ---- derived, computed once -------------------------------------------------------------------------

    @cached_property
    def token_list(self) -> list[int]:
        return self.tokens.tolist()

    @cached_property
    def parent_list(self) -> list[int]:
        return self.parents.tolist()

    @cached_property
    def depth(self) -> Tensor:
        """(n,) int64: distance from the root."""
        depth = [0]
        for parent in self.parent_list[1:]:
            depth.append(depth[parent] + 1)
        return torch.tensor(depth, device="cpu")

    @cached_property
    def depth_list(self) -> list[int]:
        return self.depth.tolist()

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """children[i]: the nodes below i, in drawing order."""
        below: list[list[int]] = [[] for _ in self.parent_list]
        for node, parent in enumerate(self.parent_list[1:], start=1):
            below[parent].append(node)
        return tuple(map(tuple, below))

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        return tuple(node for node, below in enumerate(self.children) if not below)

    @cached_property
    def ancestors(self) -> Tensor:
        """(n, n) bool: ancestors[i, j] is True if j is i itself or an ancestor of i."""
        seen = np.eye(len(self), dtype=bool)
        for node, parent in enumerate(self.parent_list[1:], start=1):
            seen[node] |= seen[parent]
        return torch.from_numpy(seen)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the root (excluded) down to a node (included); () for the root."""
        self._check_in_tree([node])
        nodes = []
        while node > 0:
            nodes.append(node)
            node = self.parent_list[node]
        return tuple(reversed(nodes))

    def _check_in_tree(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            if not 0 <= node < len(self):
                raise ValueError(f"node {node} is not in this tree of {len(self)} nodes")

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """The tokens of the nodes of ``path(node)``."""
        return tuple(self.token_list[ancestor] for ancestor in self.path(node))

    # ---- constructors -----------------------------------------------------------------------------------

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]], *, root: int = 0) -> "TokenTree":
        """The trie of token paths: paths that begin alike share nodes.

        Example: [(4, 5), (4, 6)] makes a node 4 below the root, and 5 and 6 below it.
        """
        tokens = [root]
        parents = [-1]
        node_of = {(): 0}  # path → node
        for path in map(tuple, paths):
            for end in range(1, len(path) + 1):
                beginning = path[:end]
                if beginning in node_of:
                    continue
                node_of[beginning] = len(tokens)
                tokens.append(int(path[end - 1]))
                parents.append(node_of[path[: end - 1]])
        return cls(tokens, parents)

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> "TokenTree":
        """The tree with a single path; tokens[0] is the root."""
        parents = range(-1, len(tokens) - 1)
        return cls([int(token) for token in tokens], list(parents))

    # ---- new trees from old ones ------------------------------------------------------------------------

    def grow(self, tokens: Tensor, parents: Tensor) -> "TokenTree":
        """Return the tree with new nodes below existing ones. The depths of the old nodes are not computed again.

        tokens, parents: (m,) int64 each, of the new nodes; every parent is a node of this tree.
        """
        tree = TokenTree(torch.cat([self.tokens, tokens]), torch.cat([self.parents, parents]))
        new_depth = self.depth[parents] + 1
        tree.__dict__["depth"] = torch.cat([self.depth, new_depth])  # where cached_property looks for it
        return tree

    def keep(self, nodes: Iterable[int]) -> "TokenTree":
        """Return the tree of the root and these nodes, in index order; ValueError if a kept node lacks its parent."""
        kept = sorted({0, *nodes})
        self._check_in_tree(kept)
        new_number = {old: new for new, old in enumerate(kept)}
        parents = [-1]
        for node in kept[1:]:
            parent = self.parent_list[node]
            if parent not in new_number:
                raise ValueError(f"node {node} is kept but its parent {parent} is not")
            parents.append(new_number[parent])
        return TokenTree(self.tokens[kept], torch.tensor(parents, device="cpu"))

    def merge(self, other: "TokenTree") -> "TokenTree":
        """Return the trie union of two trees with the same root token; the nodes of this tree come first."""
        if self.token_list[0] != other.token_list[0]:
            raise ValueError(f"cannot merge trees with roots {self.token_list[0]} and {other.token_list[0]}")
        ours = [self.path_tokens(node) for node in range(len(self))]
        theirs = [other.path_tokens(node) for node in range(len(other))]
        return TokenTree.from_paths(ours + theirs, root=self.token_list[0])


class Drawn(Enum):
    """How the children of a node were made. Most verifiers are lossless for some of these only."""

    POINT = "point"  # chosen, not drawn (top-k, retrieval): each sibling's law is one-hot
    IID = "iid"  # drawn independently from q: duplicates may occur
    SWOR = "swor"  # drawn from q without replacement


@dataclass(frozen=True)
class Expansion:
    """One forward of a draft model.

    nodes: the number of expanded nodes.
    mass: the sum of their path probabilities (S_i in the SALF paper).
    seconds: wall-clock seconds, without waiting for a GPU to finish.
    """

    nodes: int
    mass: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Draft:
    """A token tree, with the laws that its nodes were drawn from.

    tree: the draft tree, its root first.
    q: (n, V) float32 or wider. q[i] is the law that the children of node i were drawn from; rows of leaves are not
        read. None for a POINT draft. With a reduced vocabulary q is (n, V_d).
    drawn: how children were made: POINT, IID or SWOR, the same for all nodes.
    ids: (V_d,) int64, rising: the token ids of q's columns with a reduced vocabulary; None for the full one.
    auxiliary: (n,) bool, True for a node that rides the target's forward pass but can never be accepted; None if all
        nodes are candidates. Only extra nodes may be auxiliary: if a child that was drawn from q could not be
        accepted, the output would be biased.
    scores: (n,) the drafter's probability of each path, for growth, figures and calibration.
    sources: (n,) int64, the index of each node in the tree that a draft model has grown, -1 for a node that it did not
        draft. None if no draft model was used. TreeDrafter finds its nodes by them when nodes were dropped or added.
    expansions: the forwards of the draft model that made this draft, in order; () if there were none.

    Raises ValueError on shapes or dtypes that do not fit, on a candidate below an auxiliary node, and on sources that
    cannot be indices of one tree: the root's must be 0, and a node that has one needs a parent that has one.
    """

    tree: TokenTree
    q: Tensor | None = None
    drawn: Drawn = Drawn.POINT
    ids: Tensor | None = None
    auxiliary: Tensor | None = None
    scores: Tensor | None = None
    sources: Tensor | None = None
    expansions: tuple[Expansion, ...] = ()

    def __post_init__(self):
        self._check_law()
        self._check_nodes()

    def _check_law(self) -> None:
        if self.q is None and self.drawn is not Drawn.POINT:
            raise ValueError(f"a draft drawn {self.drawn.name} needs q, the law its children were drawn from")
        if self.q is not None:
            self._check_q()
        if self.ids is not None:
            self._check_ids()

    def _check_q(self) -> None:
        n = len(self.tree)
        if self.q.dim() != 2 or len(self.q) != n:
            raise ValueError(f"q must be of shape ({n}, V), one row per node, got {_kind(self.q)}")
        if not self.q.is_floating_point() or self.q.dtype.itemsize < 4:
            raise ValueError(f"q must be float32 or wider, got {_kind(self.q)}")

    def _check_ids(self) -> None:
        columns = 0 if self.q is None else self.q.shape[1]
        if self.ids.dtype != torch.int64 or self.ids.dim() != 1:
            raise ValueError(f"ids must be int64 of shape (V_d,), got {_kind(self.ids)}")
        if len(self.ids) != columns:
            raise ValueError(f"ids must contain one token id per column of q ({columns}), got {len(self.ids)}")
        falls = self.ids.diff() <= 0
        if falls.any():
            column = int(falls.nonzero()[0])
            before, after = self.ids[column : column + 2].tolist()
            raise ValueError(f"ids must rise, got {before} before {after}")

    def _check_nodes(self) -> None:
        n = len(self.tree)
        if self.scores is not None and self.scores.shape != (n,):
            raise ValueError(f"scores must have shape ({n},), got {tuple(self.scores.shape)}")
        if self.auxiliary is not None:
            self._check_auxiliary()
        if self.sources is not None:
            self._check_sources()

    def _check_auxiliary(self) -> None:
        n = len(self.tree)
        if self.auxiliary.shape != (n,) or self.auxiliary.dtype != torch.bool:
            raise ValueError(f"auxiliary must be bool of shape ({n},), got {_kind(self.auxiliary)}")
        is_auxiliary = self.auxiliary.tolist()
        if is_auxiliary[0]:
            raise ValueError("the root cannot be auxiliary")
        for node, parent in enumerate(self.tree.parent_list[1:], start=1):
            if is_auxiliary[parent] and not is_auxiliary[node]:
                raise ValueError(f"node {parent} is auxiliary, so its child {node} must be, too: it cannot be elected")

    def _check_sources(self) -> None:
        n = len(self.tree)
        if self.sources.shape != (n,) or self.sources.dtype != torch.int64:
            raise ValueError(f"sources must be int64 of shape ({n},), got {_kind(self.sources)}")
        sources = self.sources.numpy()
        if sources[0] != 0:
            raise ValueError(f"the source of the root must be 0, got {sources[0]}")
        parents = self.tree.parents.numpy()
        has_source = sources >= 0
        is_orphan = has_source[1:] & ~has_source[parents[1:]]
        if is_orphan.any():
            node = 1 + int(np.flatnonzero(is_orphan)[0])
            raise ValueError(f"a node with a source needs a parent with one, got node {node} below {parents[node]}")

    @cached_property
    def candidates(self) -> tuple[tuple[int, ...], ...]:
        """candidates[i]: the children of node i that may be accepted, in drawing order; auxiliary ones are left out."""
        if self.auxiliary is None:
            return self.tree.children
        is_auxiliary = self.auxiliary.tolist()
        candidates = []
        for below in self.tree.children:
            acceptable = tuple(child for child in below if not is_auxiliary[child])
            candidates.append(acceptable)
        return tuple(candidates)

    @cached_property
    def candidate_rows(self) -> int:
        """The number of nodes up to the last candidate. Auxiliary nodes after it need no row of p."""
        if self.auxiliary is None:
            return len(self.tree)
        is_candidate = ~self.auxiliary
        return 1 + int(is_candidate.nonzero()[-1])

    @cached_property
    def columns(self) -> Tensor:
        """(n,) int64: the column of q that belongs to each node's token.

        Example: with ids (2, 5, 8), a node of token 5 has column 1. The root's token may be missing from ids; its entry
        has no meaning then. ValueError if another node's token is missing.
        """
        if self.ids is None:
            return self.tree.tokens
        tokens = self.tree.tokens
        columns = torch.searchsorted(self.ids, tokens).clamp_max(len(self.ids) - 1)
        is_missing = self.ids[columns] != tokens
        is_missing[0] = False  # the root is the target's token
        if is_missing.any():
            token = int(tokens[is_missing][0])
            raise ValueError(f"drafted token {token} is not among the {len(self.ids)} ids of the draft's vocabulary")
        return columns

    @cached_property
    def ids_there(self) -> Tensor:
        """The ids, on the device of q."""
        return self.ids.to(self.q.device)

    def keep(self, nodes: Iterable[int]) -> "Draft":
        """Return the POINT draft of the root and the given nodes, in index order.

        Raises ValueError if a kept node lacks its parent. Raises ValueError for a draft that was drawn: a verifier
        relies on seeing every child that was drawn.
        """
        if self.drawn is not Drawn.POINT:
            raise ValueError(f"nodes can be dropped from a POINT draft only, this one was drawn {self.drawn.name}")
        kept = sorted({0, *nodes})
        tree = self.tree.keep(kept)
        tables = {}
        for name in ("q", "auxiliary", "scores", "sources"):
            table = getattr(self, name)
            tables[name] = None if table is None else table[kept]
        return replace(self, tree=tree, **tables)

    def law(self, node: int, vocabulary: int) -> Tensor:
        """Return q of one node over the full vocabulary: (V,) float64 on the CPU, summing to one."""
        row = self.q[node].cpu().double()
        if self.ids is not None:
            nothing = torch.zeros(vocabulary, dtype=torch.float64, device="cpu")
            row = nothing.index_copy_(0, self.ids, row)
        return row / row.sum()


@dataclass(frozen=True)
class Trial:
    """One accept coin: the node that is tried, its acceptance probability, and the outcome."""

    node: int
    probability: float
    accepted: bool


@dataclass(frozen=True)
class Verdict:
    """The result of a verification.

    path: the accepted nodes from the root (excluded) downwards.
    next_token: the token after them. It is called the bonus token if no draft token was rejected after the path, and
        the recovered token otherwise.
    trials: all accept coins, in the order in which they were tossed.
    """

    path: tuple[int, ...]
    next_token: int
    trials: tuple[Trial, ...] = ()


def _numbers(name: str, values: Tensor | Sequence[int] | np.ndarray) -> Tensor:
    """Return whole numbers, given in any form, as an (n,) int64 tensor; ValueError for other numbers or shapes."""
    if not isinstance(values, Tensor):
        array = np.asarray(values) if len(values) > 0 else np.zeros(0, np.int64)
        if array.dtype.kind in "iu":
            array = array.astype(np.int64)
        values = torch.from_numpy(array)
    if values.dtype != torch.int64 or values.dim() != 1:
        raise ValueError(f"{name} must be int64 of shape (n,), got {_kind(values)}")
    return values


def _kind(values: Tensor) -> str:
    return f"{values.dtype} {tuple(values.shape)}"
