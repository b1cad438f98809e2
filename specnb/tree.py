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
    """

    tokens: Tensor
    parents: Tensor

    def __post_init__(self):
        for name in ("tokens", "parents"):
            value = getattr(self, name)
            if not isinstance(value, Tensor):
                value = np.asarray(value if len(value) else np.zeros(0, np.int64))
                value = torch.from_numpy(value.astype(np.int64) if value.dtype.kind in "iu" else value)
            if value.dtype != torch.int64 or value.dim() != 1:
                raise ValueError(f"{name} must be int64 of shape (n,), got {_kind(value)}")
            object.__setattr__(self, name, value)
        sizes = len(self.tokens), len(self.parents)
        if sizes[0] != sizes[1] or not sizes[0]:
            raise ValueError("tokens and parents must have the same length of at least 1, got {} and {}".format(*sizes))
        tokens, parents = self.tokens.numpy(), self.parents.numpy()
        if parents[0] != -1:
            raise ValueError(f"node 0 is the root and its parent must be -1, got {parents[0]}")
        out_of_place = (parents >= np.arange(len(parents))) | (parents < 0)
        for i in np.flatnonzero(out_of_place[1:]) + 1:
            if parents[i] == -1:
                raise ValueError(f"node {i} is a second root: only node 0 may have parent -1")
            raise ValueError(f"node {i} has parent {parents[i]}: every parent must come before its child")
        if tokens.min() < 0:
            raise ValueError(f"token ids must not be negative, got {tokens.min()}")

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
        below = [[] for _ in self.parent_list]
        for i, parent in enumerate(self.parent_list[1:], start=1):
            below[parent].append(i)
        return tuple(map(tuple, below))

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        return tuple(i for i, below in enumerate(self.children) if not below)

    @cached_property
    def ancestors(self) -> Tensor:
        """(n, n) bool: ancestors[i, j] says that j is i itself or lies on the path from the root to i."""
        seen = np.eye(len(self), dtype=bool)
        for i, parent in enumerate(self.parent_list[1:], start=1):
            seen[i] |= seen[parent]
        return torch.from_numpy(seen)

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the root (excluded) down to the given node (included); () for the root."""
        self._check([node])
        nodes = []
        while node > 0:
            nodes.append(node)
            node = self.parent_list[node]
        return tuple(reversed(nodes))

    def _check(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            if not 0 <= node < len(self):
                raise ValueError(f"node {node} is not in this tree of {len(self)} nodes")

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """Tokens along ``path(node)``."""
        return tuple(self.token_list[i] for i in self.path(node))

    # ---- constructors -----------------------------------------------------------------------------------

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]], *, root: int = 0) -> "TokenTree":
        """The trie of token paths, e.g. [(0,), (0, 0), (1,)]; with ranks as tokens it is a static shape."""
        tokens, parents, index = [root], [-1], {(): 0}
        for path in map(tuple, paths):
            for end in range(1, len(path) + 1):
                if path[:end] not in index:
                    index[path[:end]] = len(tokens)
                    tokens.append(int(path[end - 1]))
                    parents.append(index[path[: end - 1]])
        return cls(tokens, parents)

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> "TokenTree":
        """A single path; tokens[0] is the root."""
        return cls(list(map(int, tokens)), list(range(-1, len(tokens) - 1)))

    # ---- new trees from old ones ------------------------------------------------------------------------

    def grow(self, tokens: Tensor, parents: Tensor) -> "TokenTree":
        """The tree with more leaves, below nodes it has; the depth of the old ones is not computed again."""
        tree = TokenTree(torch.cat([self.tokens, tokens]), torch.cat([self.parents, parents]))
        tree.__dict__["depth"] = torch.cat([self.depth, self.depth[parents] + 1])
        return tree

    def keep(self, nodes: Iterable[int]) -> "TokenTree":
        """The tree of the given nodes, in index order; ValueError if a kept node's parent is left out."""
        kept = sorted(set(nodes) | {0})
        self._check(kept)
        new = {old: i for i, old in enumerate(kept)}
        for old in kept[1:]:
            if self.parent_list[old] not in new:
                raise ValueError(f"node {old} is kept but its parent {self.parent_list[old]} is not")
        parents = [-1] + [new[self.parent_list[old]] for old in kept[1:]]
        return TokenTree(self.tokens[kept], torch.tensor(parents, device="cpu"))

    def merge(self, other: "TokenTree") -> "TokenTree":
        """The trie union of two trees with the same root token; this tree's nodes come first."""
        if self.token_list[0] != other.token_list[0]:
            raise ValueError(f"cannot merge trees with roots {self.token_list[0]} and {other.token_list[0]}")
        paths = (tree.path_tokens(i) for tree in (self, other) for i in range(len(tree)))
        return TokenTree.from_paths(paths, root=self.token_list[0])


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
        n = len(self.tree)
        if self.q is None and self.drawn is not Drawn.POINT:
            raise ValueError(f"a draft drawn {self.drawn.name} needs q, the law its children were drawn from")
        if self.q is not None and (self.q.shape[:1] != (n,) or self.q.dim() != 2 or not _wide(self.q)):
            raise ValueError(f"q must be float32 or wider of shape ({n}, V), one row per node, got {_kind(self.q)}")
        if self.ids is not None:
            columns = 0 if self.q is None else self.q.shape[1]
            if self.ids.dtype != torch.int64 or len(self.ids) != columns or (self.ids.diff() <= 0).any():
                raise ValueError(
                    f"ids must be int64, rising, one token id per column of q ({columns}), "
                    f"got {len(self.ids)} of {self.ids.dtype}"
                )

    def _check_nodes(self) -> None:
        n = len(self.tree)
        if self.scores is not None and self.scores.shape != (n,):
            raise ValueError(f"scores must have shape ({n},), got {tuple(self.scores.shape)}")
        if self.auxiliary is not None:
            if self.auxiliary.shape != (n,) or self.auxiliary.dtype != torch.bool:
                raise ValueError(f"auxiliary must be bool of shape ({n},), got {_kind(self.auxiliary)}")
            flags = self.auxiliary.tolist()
            if flags[0] or any(flags[parent] and not flags[i] for i, parent in enumerate(self.tree.parent_list) if i):
                raise ValueError("the root, and any node with an elected child, cannot be auxiliary")
        if self.sources is not None:
            if self.sources.shape != (n,) or self.sources.dtype != torch.int64:
                raise ValueError(f"sources must be int64 of shape ({n},), got {_kind(self.sources)}")
            sources = self.sources.numpy()
            drafted = sources >= 0
            above = drafted[self.tree.parents.numpy()[1:]]
            if sources[0] != 0 or (drafted[1:] & ~above).any():
                raise ValueError("the source of the root must be 0, and a node with a source needs a parent with one")

    @cached_property
    def candidates(self) -> tuple[tuple[int, ...], ...]:
        """children of every node, without auxiliary ones: those that stand for election, in drawing order."""
        if self.auxiliary is None:
            return self.tree.children
        flags = self.auxiliary.tolist()
        return tuple(tuple(c for c in below if not flags[c]) for below in self.tree.children)

    @cached_property
    def candidate_rows(self) -> int:
        """Number of rows up to the last candidate: the auxiliary nodes behind it need no law p."""
        if self.auxiliary is None:
            return len(self.tree)
        return 1 + int((~self.auxiliary).nonzero()[-1])

    @cached_property
    def columns(self) -> Tensor:
        """(n,) int64: the column of q in which each node's token stands."""
        if self.ids is None:
            return self.tree.tokens
        columns = torch.searchsorted(self.ids, self.tree.tokens).clamp_max(len(self.ids) - 1)
        missing = (self.ids[columns] != self.tree.tokens)[1:]
        if missing.any():
            bad = self.tree.token_list[1 + int(missing.nonzero()[0])]
            raise ValueError(f"drafted token {bad} is not among the {len(self.ids)} ids of the draft's vocabulary")
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
        parts = {}
        for name in ("q", "auxiliary", "scores", "sources"):
            rows = getattr(self, name)
            parts[name] = None if rows is None else rows[kept]
        return replace(self, tree=tree, **parts)

    def law(self, node: int, vocabulary: int) -> Tensor:
        """q of one node over the whole vocabulary, (V,) float64 on the CPU, summing to one."""
        row = self.q[node].cpu().double()
        if self.ids is not None:
            row = torch.zeros(vocabulary, dtype=torch.float64, device="cpu").index_copy_(0, self.ids, row)
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


def _kind(values: Tensor) -> str:
    return f"{values.dtype} {tuple(values.shape)}"


def _wide(values: Tensor) -> bool:
    return values.is_floating_point() and values.dtype.itemsize >= 4
