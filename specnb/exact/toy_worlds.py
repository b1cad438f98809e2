"""Small worlds and small drafts, in which ``judgement`` and ``drafting`` try other people's samplers and drafters.

A *world* is a target law p and a draft law q over a few tokens. The worlds are flat, peaked, certain, tied, cut to the
likeliest tokens, with impossible tokens, with p = q and with nothing in common. A *shape* says how many draft tokens
there are, and which of them follow which.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from specnb.exact.laws import Model, random_model
from specnb.growth import Static, chain
from specnb.sampling import Coins, draw
from specnb.tree import Drawn, TokenTree

# --- worlds


@dataclass(frozen=True)
class World:
    """A target law p and a draft law q behind every text of at most a few tokens."""

    name: str
    vocabulary: int
    p: Model = field(repr=False)
    q: Model = field(repr=False)


def _changed(model: Model, change: Callable[[Tensor], Tensor]) -> Model:
    """A model whose laws are changed and normalised."""

    @cache
    def changed(prefix: tuple[int, ...]) -> Tensor:
        weights = change(model(prefix))
        return weights / weights.sum()

    return changed


def _top_k(law_of_token: Tensor, k: int = 2) -> Tensor:
    """Only the k largest."""
    smallest_kept = law_of_token.topk(k).values[-1]
    return law_of_token.where(law_of_token >= smallest_kept, 0.0)


def _without(token: int) -> Callable[[Tensor], Tensor]:
    """A change of a law that makes a token impossible."""

    def change(law_of_token: Tensor) -> Tensor:
        rest = law_of_token.clone()
        rest[token] = 0
        return rest

    return change


def _only(token: int) -> Callable[[Tensor], Tensor]:
    """A change of a law that makes a token certain."""

    def change(law_of_token: Tensor) -> Tensor:
        alone = torch.zeros_like(law_of_token)
        alone[token] = 1
        return alone

    return change


def _tied(law_of_token: Tensor) -> Tensor:
    """Small whole numbers as weights, so that tokens have equal probabilities."""
    return (law_of_token * 4).round() + 1


def _equal_on(token: int, p: Model, q: Model) -> Model:
    """The law q, changed so that it gives one token the probability that p gives it."""

    @cache
    def changed(prefix: tuple[int, ...]) -> Tensor:
        kept = p(prefix)[token]
        weights = q(prefix).clone()
        weights[token] = 0
        weights = (1 - kept) * weights / weights.sum()
        weights[token] = kept
        return weights

    return changed


def worlds(vocabulary: int = 3) -> list[World]:
    """The worlds in which ``judge`` tries a sampler, the plainest first."""
    if vocabulary < 3:
        raise ValueError(f"the worlds need three tokens or more, got {vocabulary}")
    first = random_model(vocabulary, seed=1)
    second = random_model(vocabulary, seed=2)
    flat = random_model(vocabulary, seed=3, sharpness=0.0)
    peaked = random_model(vocabulary, seed=4, sharpness=6.0)
    last = vocabulary - 1
    pairs = {
        "p and q differ": (first, second),
        "q is flat": (first, flat),
        "p is flat": (flat, second),
        "q is peaked": (first, peaked),
        "p is peaked": (peaked, second),
        "p = q": (first, first),
        "q misses a token": (first, _changed(second, _without(last))),
        "p misses a token": (_changed(first, _without(0)), second),
        "nothing in common": (_changed(first, _only(0)), _changed(second, _without(0))),
        "p is certain": (_changed(first, _only(1)), second),
        "q is certain": (first, _changed(second, _only(1))),
        "both miss a token": (_changed(first, _without(last)), _changed(second, _without(last))),
        "p = q at one token": (first, _equal_on(1, first, second)),
        "tied": (_changed(first, _tied), _changed(second, _tied)),
        "both cut to the top 2": (_changed(first, _top_k), _changed(second, _top_k)),
        "p cut to the top 2": (_changed(first, _top_k), second),
    }
    return [World(name, vocabulary, p, q) for name, (p, q) in pairs.items()]


# --- shapes of drafts


def chains(*lengths: int) -> tuple[Static, ...]:
    """The shapes of chains of these numbers of draft tokens; ValueError for less than one."""
    if any(length < 1 for length in lengths):
        raise ValueError(f"a draft has one token or more, got chains of {list(lengths)}")
    return tuple(Static(chain(length).paths, f"a chain of {length}") for length in lengths)


CHAINS = chains(1, 2)
SIBLINGS = Static(((0,), (1,)), "two siblings")
UNEVEN = Static(((0,), (1,), (0, 0)), "two siblings, and a third token below the first")
TREES = (*CHAINS, SIBLINGS, UNEVEN)


def depth_of(shape: Static) -> int:
    """The length of a shape's longest path."""
    return max(len(path) for path in shape.paths)


def draft_tree(q: Model, shape: Static, drawn: Drawn, coins: Coins) -> TokenTree:
    """A draft tree from the law q, whose root (token 0) stands for the empty text.

    drawn: how siblings are made: drawn independently (IID), drawn without replacement (SWOR), or chosen as the
        likeliest (POINT). Where q has too few tokens, nodes are left out.
    """
    tree = TokenTree.chain([0])
    while True:
        grown = tree
        for node, width in shape.select(tree, None):
            children = draw(q(tree.path_tokens(node)), width, drawn, coins)
            grown = grown.grow(torch.tensor(children), torch.full((len(children),), node))
        if len(grown) == len(tree):
            return tree
        tree = grown
