"""The exact law of any function of coins, by enumeration. Needs torch and numpy only.

A law is a probability distribution, here a dict outcome → probability. ``law(fn)`` calls ``fn(coins)`` once for every
sequence of coin outcomes and adds up the probabilities in float64. So any drafter, verifier or sampler can be tested as
it is, without a second implementation.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from typing import TypeVar

import torch
from numpy.random import PCG64, Generator
from torch import Tensor

from specnb.sampling import Coins
from specnb.tree import Draft, TokenTree, Verdict

Outcome = TypeVar("Outcome", bound=Hashable)
Law = dict[Outcome, float]
Model = Callable[[tuple[int, ...]], Tensor]  # tokens so far → (V,) probabilities of the next one


class ScriptedCoins:
    """Coins that follow a given list of outcomes. After its end they note which other outcomes were possible.

    Example: with the outcomes [1], the first toss comes out as 1. A second toss, with probabilities [.5, 0, .5], is
    after the end of the list: it comes out as 0, and [1, 2] is noted as a list that still has to be played.
    """

    def __init__(self, outcomes: list[int]):
        self.outcomes = outcomes
        self.position = 0  # number of tosses so far
        self.probability = 1.0  # of all outcomes so far
        self.open: list[list[int]] = []  # lists of outcomes for the branches not taken
        self.uniforms: list[float] = []  # none: outcomes are enumerated, not drawn

    def _toss(self, probabilities: list[float]) -> int:
        if self.position == len(self.outcomes):
            possible = [i for i, probability in enumerate(probabilities) if probability > 0]
            taken = possible[0]
            self.open += [[*self.outcomes, other] for other in possible[1:]]
            self.outcomes = [*self.outcomes, taken]
        outcome = self.outcomes[self.position]
        self.position += 1
        self.probability *= probabilities[outcome]
        return outcome

    def accept(self, probability: float) -> bool:
        if not -1e-12 <= probability <= 1 + 1e-12:  # float64 may round slightly outside 0..1
            raise ValueError(f"an accept coin was given probability {probability}, outside 0..1")
        probability = min(max(probability, 0.0), 1.0)
        return bool(self._toss([1 - probability, probability]))

    def choose(self, probabilities: Tensor) -> int:
        weights = probabilities.double()
        if not weights.sum() > 0 or weights.min() < 0:
            raise ValueError("cannot choose from probabilities that are negative, without mass or not numbers")
        return self._toss((weights / weights.sum()).tolist())


def law(fn: Callable[[Coins], Outcome]) -> Law:
    """Return the exact law of fn's result, outcome → probability, by enumeration of all coin outcomes.

    fn must take all its randomness from the coins, and must start from the same state at each call.

    Example: ``law(lambda coins: coins.accept(0.5) + coins.accept(0.5))``, the number of heads of two coins, calls the
    function four times and is {0: 0.25, 1: 0.5, 2: 0.25}.
    """
    result: Law = defaultdict(float)
    scripts: list[list[int]] = [[]]  # lists of outcomes that still have to be played
    while scripts:
        coins = ScriptedCoins(scripts.pop())
        outcome = fn(coins)
        if coins.position < len(coins.outcomes):
            raise ValueError("fn tossed other coins than at its last call: it must start from the same state each time")
        result[outcome] += coins.probability
        scripts += coins.open
    return dict(result)


def total_variation(a: Law, b: Law) -> float:
    """½ Σ |a − b|: the largest difference between the probabilities that the two laws give an event."""
    outcomes = a.keys() | b.keys()
    differences = [abs(a.get(outcome, 0.0) - b.get(outcome, 0.0)) for outcome in outcomes]
    return sum(differences) / 2


def shown(probabilities: Sequence[float]) -> str:
    """Probabilities for readers. Example: (0.6490, 0.1563, 0.1947)."""
    return "(" + ", ".join(f"{probability:.4f}" for probability in probabilities) + ")"


def expectation(of: Law, value: Callable[[Outcome], float]) -> float:
    """Σ probability × value(outcome)."""
    return sum(probability * value(outcome) for outcome, probability in of.items())


def joint(model: Model, length: int) -> Law:
    """Return the model's law over token tuples of the given length."""
    return law(partial(sample, model, (), length))


def sample(model: Model, tokens: tuple[int, ...], length: int, coins: Coins) -> tuple[int, ...]:
    """Extend (or cut) tokens to the given length by sampling from the model."""
    while len(tokens) < length:
        tokens = (*tokens, coins.choose(model(tokens)))
    return tokens[:length]


def random_model(vocabulary: int, seed: int, *, sharpness: float = 2.0) -> Model:
    """Return a random language model: each prefix has its own law, (V,) float64, the same at every call."""

    @cache
    def model(prefix: tuple[int, ...]) -> Tensor:
        random = Generator(PCG64([seed, len(prefix), *prefix]))  # not default_rng: ``randomness`` replaces that
        logits = sharpness * random.standard_normal(vocabulary)
        return torch.from_numpy(logits).softmax(0)

    return model


def rows(model: Model, tree: TokenTree) -> Tensor:
    """(n, V): a model's law after every node of a tree whose root stands for the empty text."""
    paths = [tree.path_tokens(node) for node in range(len(tree))]
    return torch.stack([model(path) for path in paths])


def committed(draft: Draft, verdict: Verdict) -> tuple[int, ...]:
    """The tokens that a step commits: the accepted path and the next token."""
    accepted = [draft.tree.token_list[node] for node in verdict.path]
    return (*accepted, verdict.next_token)


def completed(beginnings: Law, p: Model, length: int) -> Law:
    """The law of texts of this length that begin by one law, of token tuples, and are continued by the model p."""
    result: Law = defaultdict(float)
    for tokens, mass in beginnings.items():
        continued = law(partial(sample, p, tokens, length))
        for text, chance in continued.items():
            result[text] += mass * chance
    return dict(result)
