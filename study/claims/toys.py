"""Toy models on which algorithms and theorems are checked, and functions that several papers' checks use.

A law is a probability distribution over the vocabulary. A toy model is a function from a text to a law, or a random
transformer with three tokens. All numbers are float64, and probabilities of texts are found by enumeration.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from specnb import exact
from specnb.growth.textbook import Path
from specnb.target import Target
from specnb.tree import TokenTree

CLOSE = 1e-9  # our own float64 numbers count as equal if they differ by less than this


def equal(ours: object, due: object) -> list[bool]:
    """Whether two arrays are equal within rounding, number by number.

    >>> equal([1 / 3, 0.3], [0.3333333333333, 0.4])
    [True, False]
    """
    gaps = np.abs(np.subtract(ours, due))
    return np.ravel(gaps < CLOSE).tolist()


# ---- laws ---------------------------------------------------------------------------------------------------------


def fixed(*law: float, after: Mapping[Path, tuple[float, ...]] | None = None) -> exact.Model:
    """A model with the same law after every text, except after the texts of ``after``, which have their own.

    >>> model = fixed(0.5, 0.5, after={(1,): (0.9, 0.1)})
    >>> model(()).tolist(), model((1,)).tolist()
    ([0.5, 0.5], [0.9, 0.1])
    """
    exceptions = after or {}

    def model(text: Path) -> Tensor:
        return torch.tensor(exceptions.get(text, law), dtype=torch.float64)  # (V,)

    return model


def behind(model: exact.Model, text: tuple[int, ...]) -> exact.Model:
    """The model whose texts follow a given text: its law after a path is the model's after text and path."""
    return lambda path: model((*text, *path))


def greedy(model: exact.Model) -> Callable[[tuple[int, ...]], int]:
    """The model's likeliest token after a path."""
    return lambda path: int(model(path).argmax())


def children(model: exact.Model, texts: exact.Law) -> exact.Law:
    """All texts with one more token, and their probability.

    >>> children(fixed(0.75, 0.25), {(): 1.0, (1,): 0.5})
    {(0,): 0.75, (1,): 0.25, (1, 0): 0.375, (1, 1): 0.125}
    """
    longer = {}
    for text, mass in texts.items():
        for token, chance in enumerate(model(text).tolist()):
            longer[*text, token] = mass * chance
    return longer


def nodes(model: exact.Model, depth: int) -> exact.Law:
    """All texts of at most depth tokens, short ones first, and their probability.

    >>> nodes(fixed(0.75, 0.25), 1)
    {(): 1.0, (0,): 0.75, (1,): 0.25}
    """
    if depth == 0:
        return {(): 1.0}
    shorter = nodes(model, depth - 1)
    return shorter | children(model, shorter)


# ---- a random transformer -----------------------------------------------------------------------------------------


def random_llama() -> LlamaForCausalLM:
    """A random model of three tokens. Its weights are ten times as large as usual, so that attention matters."""
    config = LlamaConfig(vocab_size=3, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    config.initializer_range = 0.2
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        return exact.in_float64(LlamaForCausalLM(config))


@torch.no_grad()
def logits_after(model: LlamaForCausalLM, tokens: tuple[int, ...]) -> Tensor:
    """(V,) logits of a plain forward after the last of these tokens."""
    return model(torch.tensor([tokens])).logits[0, -1]


def as_alone(target: Target, text: tuple[int, ...], tree: TokenTree) -> list[bool]:
    """For each node of a tree after a text, whether a forward over the tree and a plain one over its path agree."""
    target.prefill(text[:-1])  # the last token is the tree's root
    alone = []
    for node in range(len(tree)):
        tokens = (*text, *tree.path_tokens(node))
        alone.append(logits_after(target.model, tokens))
    together = target.forward(tree).logits  # (n, V)
    gaps = (together - torch.stack(alone)).abs()
    return (gaps.amax(dim=1) < CLOSE).tolist()
