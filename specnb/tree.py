"""TokenTree, Draft and Verdict: what drafters propose, masks are cut from, and verifiers walk and return."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TokenTree:
    """A token tree as two flat arrays; node 0 is the root, the last committed token, not yet in the cache.

    tokens:  (n,) int64; parents: (n,) int64, parents[0] = -1 and parents[i] < i for every other node.
    Siblings stand in the order in which they were drawn (or ranked): verifiers go by index.
    Raises ValueError on two roots, a parent after its child, arrays of different length or another dtype.

    Example: ``TokenTree([7, 5, 6, 5], [-1, 0, 0, 1])`` is the root 7, its children 5 (node 1) and 6 (node 2), and
    another 5 (node 3) below the first.
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
        """(n, n) bool: ancestors[i, j] says that j is i itself or lies on the path from the root to i."""
        seen = np.eye(len(self), dtype=bool)
        for node, parent in enumerate(self.parent_list[1:], start=1):
            seen[node] |= seen[parent]
        return torch.from_numpy(seen)

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the root (excluded) down to the given node (included); () for the root."""
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
        """Tokens along ``path(node)``."""
        return tuple(self.token_list[step] for step in self.path(node))

    # ---- constructors -----------------------------------------------------------------------------------

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]], *, root: int = 0) -> "TokenTree":
        """The trie of token paths: paths that begin alike share nodes.

        Example: [(4, 5), (4, 6)] is a node 4 below the root, and 5 and 6 below it. With ranks as tokens it is a static
        shape.
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
        """A single path; tokens[0] is the root."""
        parents = range(-1, len(tokens) - 1)
        return cls([int(token) for token in tokens], list(parents))

    # ---- new trees from old ones ------------------------------------------------------------------------

    def grow(self, tokens: Tensor, parents: Tensor) -> "TokenTree":
        """The tree with more leaves, below nodes it has; the depth of the old ones is not computed again."""
        tree = TokenTree(torch.cat([self.tokens, tokens]), torch.cat([self.parents, parents]))
        new_depth = self.depth[parents] + 1
        tree.__dict__["depth"] = torch.cat([self.depth, new_depth])  # where cached_property looks for it
        return tree

    def keep(self, nodes: Iterable[int]) -> "TokenTree":
        """The tree of the given nodes, in index order; ValueError if a kept node's parent is left out."""
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
        """The trie union of two trees with the same root token; this tree's nodes come first."""
        if self.token_list[0] != other.token_list[0]:
            raise ValueError(f"cannot merge trees with roots {self.token_list[0]} and {other.token_list[0]}")
        ours = [self.path_tokens(node) for node in range(len(self))]
        theirs = [other.path_tokens(node) for node in range(len(other))]
        return TokenTree.from_paths(ours + theirs, root=self.token_list[0])


class Drawn(Enum):
    """How the children of a node came about; a verifier is lossless for some of these only."""

    POINT = "point"  # chosen, not drawn (top-k, retrieval): each sibling's law is one-hot
    IID = "iid"  # drawn independently from q: duplicates may occur
    SWOR = "swor"  # drawn from q without replacement


@dataclass(frozen=True)
class Expansion:
    """One forward of a draft model: what it was given and how long it took.

    nodes: how many nodes were expanded. mass: the sum of their path probabilities, SALF's S_i. seconds: on the wall
    clock, without waiting for a GPU to finish.
    """

    nodes: int
    mass: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Draft:
    """A token tree together with the law it was drawn from.

    q: (n, V) float32 or wider, q[i] is the law node i's children were drawn from (rows of leaves are not read);
       None for a POINT draft. Over a reduced vocabulary q is (n, V_d) and ids (V_d,) int64, sorted, says which.
    auxiliary: (n,) bool, nodes that ride the forward pass but never stand for election. They must be extra nodes:
       to take a child that was drawn from q out of the election would bias the output.
    scores: (n,) the drafter's own probability of each path, for growth, figures and calibration.
    sources: (n,) int64, each node's number in the tree that a draft model has grown, -1 for a node that was not drafted
       by it; None where no draft model was asked. By them TreeDrafter finds its nodes again when some were dropped,
       or others added.
    expansions: the forwards of the draft model that made this draft, in their order; () where there were none.
    Raises ValueError on shapes that do not fit, on an elected node below an auxiliary one, and on sources that name
    no tree: of the root other than 0, or of a node whose parent has none.
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
            raise ValueError(f"ids must hold one token id per column of q ({columns}), got {len(self.ids)}")
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
        """children of every node, without auxiliary ones: those that stand for election, in drawing order."""
        if self.auxiliary is None:
            return self.tree.children
        is_auxiliary = self.auxiliary.tolist()
        candidates = []
        for below in self.tree.children:
            elected = tuple(child for child in below if not is_auxiliary[child])
            candidates.append(elected)
        return tuple(candidates)

    @cached_property
    def candidate_rows(self) -> int:
        """Number of rows up to the last candidate: the auxiliary nodes behind it need no law p."""
        if self.auxiliary is None:
            return len(self.tree)
        stands_for_election = ~self.auxiliary
        return 1 + int(stands_for_election.nonzero()[-1])

    @cached_property
    def columns(self) -> Tensor:
        """(n,) int64: the column of q in which each node's token stands.

        Example: with ids (2, 5, 8), a node of token 5 has column 1. The root's token need have no column; its number
        means nothing then. ValueError where another token has none.
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
        """ids on the device of q."""
        return self.ids.to(self.q.device)

    def keep(self, nodes: Iterable[int]) -> "Draft":
        """The draft of the given nodes and the root, in index order, for a POINT draft.

        Raises ValueError if a kept node's parent is left out, and for a draft that was drawn: verifiers take its
        children for all that were drawn.
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
        """q of one node over the whole vocabulary, (V,) float64 on the CPU, summing to one."""
        row = self.q[node].cpu().double()
        if self.ids is not None:
            nothing = torch.zeros(vocabulary, dtype=torch.float64, device="cpu")
            row = nothing.index_copy_(0, self.ids, row)
        return row / row.sum()


@dataclass(frozen=True)
class Trial:
    """One accept coin: the node on trial, its acceptance probability, the outcome."""

    node: int
    probability: float
    accepted: bool


@dataclass(frozen=True)
class Verdict:
    """What verification elects: the accepted nodes (root excluded) and the bonus or recovered token."""

    path: tuple[int, ...]
    next_token: int
    trials: tuple[Trial, ...] = ()


def _numbers(name: str, values: Tensor | Sequence[int] | np.ndarray) -> Tensor:
    """An (n,) int64 tensor of whole numbers however they come; ValueError for other numbers and other shapes."""
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
