"""A test of losslessness: the exact output law of any function of Coins, by enumeration.

A law is a probability distribution, here a dict outcome → probability. ``law(fn)`` calls ``fn(coins)`` once for every
sequence of coin outcomes and adds up the probabilities in float64. So any drafter, verifier or sampler can be tested as
it is, without a second implementation.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specnb.decode import Drafter, Verifier, decode
from specnb.drafters import TableDraft, TreeDrafter
from specnb.growth import Growth
from specnb.sampling import Coins, RandomCoins, Warp
from specnb.target import Target
from specnb.tree import Draft, Drawn, TokenTree, Verdict

Outcome = TypeVar("Outcome", bound=Hashable)
Law = dict[Outcome, float]
Model = Callable[[tuple[int, ...]], Tensor]  # tokens so far → (V,) probabilities of the next one


class _Script:
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
        coins = _Script(scripts.pop())
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
        random = np.random.default_rng([seed, len(prefix), *prefix])
        logits = sharpness * random.standard_normal(vocabulary)
        return torch.from_numpy(logits).softmax(0)

    return model


def toy_drafter(q: Model, growth: Growth, drawn: Drawn) -> TreeDrafter:
    """Return a TreeDrafter with a toy model q that begins with the empty text, for the functions below."""
    table = TableDraft(lambda prefix: q(prefix[1:]))  # prefix[0] is the root, which stands for the empty text
    return TreeDrafter(table, growth, drawn)


def toy_draft(q: Model, growth: Growth, drawn: Drawn = Drawn.POINT) -> tuple[Draft, list[float]]:
    """Return a draft of ``toy_drafter`` after the empty text, and the path probability that each forward expanded."""
    drafter = toy_drafter(q, growth, drawn)
    drafter.begin((0,), Warp(), {})
    draft = drafter.propose(RandomCoins(), 99)  # deeper than any toy tree
    masses = [expansion.mass for expansion in draft.expansions]
    return draft, masses


def rows(model: Model, tree: TokenTree) -> Tensor:
    """(n, V): a model's law after every node of a tree whose root stands for the empty text."""
    paths = [tree.path_tokens(node) for node in range(len(tree))]
    return torch.stack([model(path) for path in paths])


def verify_once(
    drafter: Drafter, verifier: Verifier, p: Model, coins: Coins, *, depth: int, warp: Warp | None = None
) -> tuple[Draft, Verdict]:
    """Do one decoding step from the empty text: draft, score every node with p, verify.

    The root (token 0) stands for the empty text and is never shown to p.
    p: the target's law, with the warp already applied. warp: what the drafter is told to apply to q.
    """
    drafter.begin((0,), warp or Warp(), {})
    draft = drafter.propose(coins, depth)
    target_laws = rows(p, draft.tree)
    return draft, verifier(draft, target_laws, coins)


def output_law(drafter: Drafter, verifier: Verifier, p: Model, *, depth: int, warp: Warp | None = None) -> Law:
    """Return the law of the first depth + 1 tokens: one speculative step, then ordinary sampling from p.

    It equals ``joint(p, depth + 1)`` for every depth if and only if the verifier is lossless. One step is enough by
    Lemma A.1 of the Traversal paper.
    """

    def step(coins: Coins) -> tuple[int, ...]:
        draft, verdict = verify_once(drafter, verifier, p, coins, depth=depth, warp=warp)
        return committed(draft, verdict)

    return completed(law(step), p, depth + 1)


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


def accepted_law(drafter: Drafter, verifier: Verifier, p: Model, *, depth: int, warp: Warp | None = None) -> Law:
    """Return the law of the number of accepted draft tokens in one step (bonus not counted)."""

    def accepted(coins: Coins) -> int:
        _, verdict = verify_once(drafter, verifier, p, coins, depth=depth, warp=warp)
        return len(verdict.path)

    return law(accepted)


def engine_law(
    target: Target, drafter: Drafter, verifier: Verifier, prompt: Sequence[int], length: int, **options
) -> Law:
    """Return the law of a generation of ``length`` tokens by ``decode``, with cache and masks, at temperature 1.

    It equals ``joint`` of the target's law after the prompt if every part of decoding is lossless. Vocabulary and
    length must be small enough to enumerate. With models ``in_float64`` the law is exact to float64's rounding.
    options: the keyword arguments of ``decode``.
    """

    def text(coins: Coins) -> tuple[int, ...]:
        defaults = {"temperature": 1.0, "eos": (), "trace": "none", "coins": lambda seed, purpose: coins}
        settings = {**defaults, **options}
        generation = decode(target, drafter, verifier, prompt, max_new_tokens=length, **settings)
        return generation.tokens

    return law(text)


def in_float64(model: PreTrainedModel) -> PreTrainedModel:
    """Convert a model to float64 in place and return it, so that ``engine_law`` is exact to float64's rounding.

    ``model.double()`` alone is not enough, because transformers' RMSNorm always computes in float32. It is replaced by
    torch's.
    """
    model.double()
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if type(layer).__name__.endswith("RMSNorm") and hasattr(layer, "variance_epsilon"):
                exact_layer = nn.RMSNorm(layer.weight.shape, eps=layer.variance_epsilon, dtype=torch.float64)
                exact_layer.weight = layer.weight
                setattr(module, name, exact_layer)
    return model.eval()


class Argmax:
    """Coins that take the most probable token instead of drawing one."""

    def __init__(self, coins: Coins):
        self.accept = coins.accept

    def choose(self, probabilities: Tensor) -> int:
        return int(probabilities.argmax())


def accepted_given(draft: Draft, p: Tensor, verifier: Verifier) -> Law:
    """Return the law of the accepted path for one given draft and p, by enumeration of all accept coins.

    The next token does not influence which nodes are accepted, so ``Argmax`` replaces its draw by one outcome. This
    makes real vocabularies possible: n nodes take at most n + 1 runs, if no coin is tossed after the one that decides
    the step. Verifiers are compared by this law, on the same drafts. It is not for verifiers that accept by drawing
    tokens (sample_and_match).
    """

    def accepted_path(coins: Coins) -> tuple[int, ...]:
        verdict = verifier(draft, p, Argmax(coins))
        return verdict.path

    return law(accepted_path)
