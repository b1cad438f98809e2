"""Toy worlds small enough to enumerate: laws over three tokens after every prefix, and drafters for them."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from specnb import exact
from specnb.drafters import TreeDrafter
from specnb.exact import Model, toy_drafter
from specnb.exact.gallery import UNEVEN, altered  # noqa: F401
from specnb.growth import Growth, kary
from specnb.sampling import Warp
from specnb.tree import Draft, Drawn, TokenTree
from specnb.verifiers import Verifier

POINT, IID, SWOR = Drawn
BINARY = kary(2, 2)


def constant(*law: float) -> Model:
    """The same law at every node."""
    row = torch.tensor(law, dtype=torch.float64)
    return lambda prefix: row


def random_model(seed: int, zero: bool = False) -> Model:
    """A random law after every prefix of up to four tokens; zero: one token of each is impossible."""
    rng = np.random.default_rng(seed)
    rows = {}
    for length in range(5):
        for prefix in product(range(3), repeat=length):
            law = rng.dirichlet(np.ones(3))
            law[rng.integers(3)] *= not zero
            rows[prefix] = torch.tensor(law / law.sum())
    return rows.__getitem__


M_B, M_S = constant(0.3, 0.4, 0.3), constant(0.6, 0.3, 0.1)  # the Traversal paper's target and draft
RANDOM = [(random_model(2 * i), random_model(2 * i + 1)) for i in range(4)]
WORLDS = {
    "paper": (M_B, M_S),
    **{f"random {i}": world for i, world in enumerate(RANDOM)},
    "zeros in p": (random_model(10, zero=True), random_model(11)),
    "zeros in q": (random_model(12), random_model(13, zero=True)),
    "zeros in both": (random_model(14, zero=True), random_model(15, zero=True)),
}


def warped(model: Model, warp: Warp) -> Model:
    """The model under temperature, top-k, top-p."""
    return lambda prefix: warp(model(prefix).log())


def reduced(model: Model, ids: Sequence[int]) -> Model:
    """The model over a reduced vocabulary."""
    return lambda prefix: model(prefix)[list(ids)] / model(prefix)[list(ids)].sum()


def confined(model: Model, ids: Sequence[int]) -> Model:
    """The model over the whole vocabulary, without mass outside ids."""

    def law(prefix: tuple[int, ...]) -> Tensor:
        row = torch.zeros_like(model(prefix)).index_copy_(0, torch.tensor(ids), model(prefix)[list(ids)])
        return row / row.sum()

    return law


def tree_drafter(q: Model, shape: Growth, drawn: Drawn, ids: Sequence[int] | None = None) -> TreeDrafter:
    """TreeDrafter over q, which is not shown the root; with ids, over q restricted to them."""
    drafter = toy_drafter(q if ids is None else reduced(q, ids), shape, drawn)
    drafter.draft_model.ids = None if ids is None else torch.tensor(ids)
    return drafter


def table(model: Model, tree: TokenTree) -> Tensor:
    """(n, V): the model's law after every node."""
    return torch.stack([model(tree.path_tokens(node)) for node in range(len(tree))])


def bias(drafter: TreeDrafter, verifier: Verifier, p: Model, depth: int, warp: Warp | None = None) -> float:
    """Total variation between the output of speculative decoding and the target's own law."""
    return exact.total_variation(
        exact.output_law(drafter, verifier, p, depth=depth, warp=warp), exact.joint(p, depth + 1)
    )


def grow(rule: Growth, seed: int = 0) -> tuple[Draft, Model]:
    """The tree a growth rule makes of a random draft, and the draft's law."""
    law = exact.random_model(6, seed)
    return exact.toy_draft(law, rule)[0], law


tries = st.recursive(
    st.just({}), lambda below: st.dictionaries(st.integers(0, 5), below, max_size=4), max_leaves=12
)  # fmt: skip


def paths(trie, before=()):
    """Every node as its path from the root."""
    found = set()
    for token, below in trie.items():
        found |= {(*before, token)} | paths(below, (*before, token))
    return found
