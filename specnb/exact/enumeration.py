"""A test of losslessness: the exact output laws of this project's drafters, verifiers and decoding loop.

``laws`` has ``law(fn)``, which enumerates every outcome of every coin. Here it is applied to one step of decoding
(``output_law``, ``accepted_law``), to a whole generation by real models (``engine_law``), and to one given draft
(``accepted_given``).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specnb.decode import Drafter, Verifier, decode
from specnb.drafters import TableDraft, TreeDrafter
from specnb.exact.laws import Law, Model, committed, completed, law, rows
from specnb.growth import Growth
from specnb.sampling import Coins, RandomCoins, Warp
from specnb.target import Target
from specnb.tree import Draft, Drawn, Verdict


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
