"""A gallery of broken verifiers: mistakes people have made, each named after its kind, for exact enumeration to catch.

Nothing here is lossless, and that is the point: ``table`` gives each its total variation. Some are the textbook form
of an algorithm with a piece of its source replaced (``spoiled``), some verifiers of their own; the others spoil the
draft or the coins.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import pandas as pd
import torch
from torch import Tensor

from specnb.decode import Drafter, Verifier
from specnb.exact import enumeration as exact
from specnb.exact.enumeration import Argmax
from specnb.growth import Growth, Static, chain
from specnb.sampling import Coins, Warp
from specnb.target import Scores, Target
from specnb.tree import Draft, Drawn, TokenTree, Verdict
from specnb.verifiers import one_hot, rrs, rrsw, textbook, traversal

POINT, IID, SWOR = Drawn


# ---- ways to spoil an algorithm, a draft, the coins ---------------------------------------------------------


def spoiled(function: Callable, *changes: tuple[str, str]) -> Callable:
    """A function whose source has each old piece replaced by a new one; ValueError unless each stands there once."""
    source = inspect.getsource(function)
    for old, new in changes:
        count = source.count(old)
        if count != 1:
            raise ValueError(f"{function.__name__} has {count} times {old!r}, once was expected")
        source = source.replace(old, new)
    namespace = dict(vars(inspect.getmodule(function)))
    exec(source, namespace)
    return namespace[function.__name__]


def altered(drafter: Drafter, change: Callable[[Draft], Draft]) -> SimpleNamespace:
    """A drafter whose drafts go through change."""

    def propose(coins: Coins, max_depth: int) -> Draft:
        return change(drafter.propose(coins, max_depth))

    return SimpleNamespace(begin=drafter.begin, propose=propose)


def unchanged(draft: Draft) -> Draft:
    """The draft as it is."""
    return draft


def drawn_as(drawn: Drawn) -> Callable[[Draft], Draft]:
    """Lie about how a draft was drawn, which gets it past the verifiers' refusals."""
    return lambda draft: replace(draft, drawn=drawn)


def resorted(draft: Draft) -> Draft:
    """Siblings by falling draft probability, not in drawing order."""
    tree = draft.tree
    order = [0]  # the nodes, parents first, in their new order
    for node in order:  # which grows meanwhile
        order += _by_probability(draft, node)
    parents = [-1] + [order.index(tree.parent_list[node]) for node in order[1:]]
    reordered = TokenTree(tree.tokens[order], torch.tensor(parents))
    return Draft(reordered, draft.q[order], draft.drawn)


def _by_probability(draft: Draft, node: int) -> list[int]:
    """A node's children, those of the largest q first."""
    q = draft.q[node].tolist()
    tokens = draft.tree.token_list
    return sorted(draft.tree.children[node], key=lambda child: -q[tokens[child]])


def pruned(draft: Draft) -> Draft:
    """Drawn nodes dropped by their joint draft probability."""
    is_likely = draft.scores >= 0.2
    kept = is_likely.nonzero().flatten().tolist()
    return Draft(draft.tree.keep(kept), draft.q[kept], draft.drawn)


class OneUniform:
    """Coins whose accepts all compare with one and the same uniform number.

    low and high are what is known of it: low <= uniform < high. Example: a first coin of probability .6 comes out as
    False, so the number lies in [.6, 1). A second one of .8 is then True with (.8 − .6) / (1 − .6) = 1/2, and a third
    one of .5 is False, whatever is tossed.
    """

    def __init__(self, coins: Coins):
        self.choose = coins.choose
        self.coins = coins
        self.low = 0.0
        self.high = 1.0

    def accept(self, probability: float) -> bool:
        cut = min(max(probability, self.low), self.high)
        is_below = False
        if self.high > self.low:
            share_below = (cut - self.low) / (self.high - self.low)
            is_below = self.coins.accept(share_below)
        if is_below:
            self.high = cut
        else:
            self.low = cut
        return is_below


def ptd_as_printed(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """PTD's Algorithm 2 as printed: after a rejection p is renormalised over the candidates that remain.

    The last of several is then accepted with certainty, whatever the target thinks of it. Behind one that is alone and
    rejected the printed loop does not end; here the next token is drawn from the rest, so that only line 13 errs.
    """
    node = 0
    path = []
    while True:
        children = draft.candidates[node]
        tokens = draft.tree.tokens[list(children)]
        chances = p[node, tokens].tolist()
        accepted = None
        for i, child in enumerate(children):
            mass = sum(chances[i:]) if i > 0 else 1.0  # 13: of the candidates that remain, not of all tokens
            if mass > 0 and coins.accept(min(1.0, chances[i] / mass)):
                accepted = child
                break
        if accepted is None:
            rest = p[node].index_fill(0, tokens, 0.0)
            law = rest if rest.any() else p[node]
            return Verdict(tuple(path), coins.choose(law))
        path.append(accepted)
        node = accepted


def ptd_as_coded(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """PTD's public code: p is renormalised over the vocabulary, as it should be, but the last token is the argmax.

    A step without candidates draws it, as there.
    """
    if any(draft.candidates):
        coins = Argmax(coins)
    return one_hot(draft, p, coins)


def bonus_untempered(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """The bonus token drawn from the law at temperature 1; p here is at 0.5. Spec-Bench's copy of EAGLE's code."""
    verdict = rrsw(draft, p, coins)
    last = verdict.path[-1] if verdict.path else 0
    is_bonus = not draft.tree.children[last]
    if not is_bonus:
        return verdict
    at_temperature_1 = p[last] ** 0.5  # not normalised: coins do that
    return Verdict(verdict.path, coins.choose(at_temperature_1))


def rrsw_of_another_temperature(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """RRSw with q at temperature 2, although the draft was drawn at 1."""
    at_temperature_2 = Warp(2.0)
    other_q = at_temperature_2(draft.q.log())
    return rrsw(replace(draft, q=other_q), p, coins)


def rrsw_by_one_uniform(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """RRSw that draws one uniform number, and compares all its acceptance probabilities with that."""
    return rrsw(draft, p, OneUniform(coins))


class Unpositioned(Target):
    """A target that is told no position ids: tree nodes count on as if they stood in a row (DynaTree's first code).

    As there (Algorithm 1, line 6), accepted tokens are scored once more for the cache, in a row and so rightly: only
    a tree's own scores are bent.
    """

    def commit(self, path: Sequence[int]) -> None:
        tokens = self.tree.tokens[list(path)]
        super().commit(())
        if path:
            chain_of_accepted = TokenTree(tokens, torch.arange(len(path)) - 1)
            self.forward(chain_of_accepted)
            super().commit(tuple(range(1, len(path))))

    def _run(self, ids: Tensor, position_ids: Tensor, mask: Tensor | None, **kwargs) -> Scores:
        in_a_row = position_ids[:, :1] + torch.arange(ids.shape[1])
        return super()._run(ids, in_a_row, mask, **kwargs)


# ---- the gallery ----------------------------------------------------------------------------------------------

MakeDrafter = Callable[[exact.Model], Drafter]  # from the draft's law q
World = tuple[exact.Model, exact.Model]  # p and q
UNEVEN = Static(((0,), (1,), (0, 0), (0, 1)))  # two children, two more below the first


@dataclass(frozen=True)
class Bug:
    """A broken combination of drafter (from q) and verifier, and the right one that it is a mistake of."""

    kind: str
    drafter: MakeDrafter
    verifier: Verifier
    right: tuple[MakeDrafter, Verifier]
    warp: Warp | None = None


def drawn(shape: Growth, how: Drawn, change: Callable[[Draft], Draft] = unchanged) -> MakeDrafter:
    """Drafters of trees of a shape, drawn as is said, whose drafts go through change."""

    def make(q: exact.Model) -> Drafter:
        return altered(exact.toy_drafter(q, shape, how), change)

    return make


TREE = drawn(UNEVEN, SWOR)
INDEPENDENT = drawn(UNEVEN, IID)
TOP_K = drawn(UNEVEN, POINT)
TWO_IN_A_ROW = drawn(chain(2), SWOR)

RRSW = (TREE, rrsw)
RRS = (INDEPENDENT, rrs)
TRAVERSAL = (TREE, traversal)
ONE_HOT = (TOP_K, one_hot)

CLAIMED_IID = drawn(UNEVEN, SWOR, drawn_as(IID))
CLAIMED_SWOR = drawn(UNEVEN, IID, drawn_as(SWOR))
RESORTED = drawn(UNEVEN, SWOR, resorted)
PRUNED = drawn(UNEVEN, SWOR, pruned)


def claimed_drawn(q: exact.Model) -> Drafter:
    """Top-k trees that say they were drawn from q."""

    def with_law(draft: Draft) -> Draft:
        return Draft(draft.tree, exact.rows(q, draft.tree), SWOR)

    return altered(TOP_K(q), with_law)


SURVIVALS = spoiled(textbook.traversal, ("descend(v)  # every", "# every"))
DIVIDED = spoiled(
    textbook.traversal,
    ("M_s[v] = norm", "left = 1 - float(M_s[v, x]); M_s[v] = norm"),
    ("S / (S + 1 - p[v]) if S + 1 - p[v] > 0 else", "min(S / left, 1.0) if v and left > 0 else"),
)
RESIDUAL = spoiled(textbook.rrsw, ("norm((p - q).clamp(min=0), p)", "(p - q).clamp(min=0) if (p > q).any() else p"))
RECOVERED = spoiled(textbook.rrsw, ("coins.choose(p)", "coins.choose(M_b[node])"))

BUGS = {
    # the verifier takes q for another law than the one that was drawn from
    "rejected sibling stays in q (RRSw)": Bug("wrong law", CLAIMED_IID, rrs, RRSW),
    "rejected sibling stays in q (traversal)": Bug("wrong law", CLAIMED_IID, traversal, TRAVERSAL),
    "independent siblings struck from q": Bug("wrong law", CLAIMED_SWOR, rrsw, RRS),
    "top-k tree, q = softmax": Bug("wrong law", claimed_drawn, rrsw, ONE_HOT),
    "q of another temperature": Bug("wrong law", TREE, rrsw_of_another_temperature, RRSW),
    # the drawn values decide what is tried, or when
    "siblings re-sorted by q (RRSw)": Bug("selection", RESORTED, rrsw, RRSW),
    "siblings re-sorted by q (traversal)": Bug("selection", RESORTED, traversal, TRAVERSAL),
    "drawn nodes pruned by score (RRSw)": Bug("selection", PRUNED, rrsw, RRSW),
    "drawn nodes pruned by score (traversal)": Bug("selection", PRUNED, traversal, TRAVERSAL),
    # one formula is wrong
    "survivals not recomputed": Bug("arithmetic", TREE, SURVIVALS, TRAVERSAL),
    "divided by the remaining draft mass": Bug("arithmetic", TREE, DIVIDED, TRAVERSAL),
    "residual not renormalised": Bug("arithmetic", TREE, RESIDUAL, RRSW),
    "PTD's Algorithm 2 as printed": Bug("arithmetic", TOP_K, ptd_as_printed, ONE_HOT),
    # the token behind the accepted path has another law
    "recovered token drawn from p": Bug("last token", TREE, RECOVERED, RRSW),
    "last token by argmax (PTD's code)": Bug("last token", TOP_K, ptd_as_coded, ONE_HOT),
    "bonus drawn without the temperature": Bug(
        "last token", TWO_IN_A_ROW, bonus_untempered, (TWO_IN_A_ROW, rrsw), warp=Warp(0.5)
    ),
    # the coins are not independent
    "one uniform for all accept coins": Bug("coins", TREE, rrsw_by_one_uniform, RRSW),
}


def worlds(count: int = 4, vocabulary: int = 3) -> list[World]:
    """Random (p, q): every prefix with a law of its own."""
    model = partial(exact.random_model, vocabulary, sharpness=1.0)
    return [(model(2 * i), model(2 * i + 1)) for i in range(count)]


def bias(make: MakeDrafter, verifier: Verifier, p: exact.Model, q: exact.Model, warp: Warp | None = None) -> float:
    """Total variation between two accepted levels of decoded text and the target's own law; p under the warp."""
    decoded, right = _laws(make, verifier, p, q, warp)
    return exact.total_variation(decoded, right)


def _warped(p: exact.Model, warp: Warp | None) -> exact.Model:
    if warp is None:
        return p
    return lambda prefix: warp(p(prefix).log())


def _laws(
    make: MakeDrafter, verifier: Verifier, p: exact.Model, q: exact.Model, warp: Warp | None
) -> tuple[exact.Law, exact.Law]:
    """The laws of three tokens: of decoded text, and the target's own."""
    target = _warped(p, warp)
    decoded = exact.output_law(make(q), verifier, target, depth=2, warp=warp)
    return decoded, exact.joint(target, 3)


def _accepted(make: MakeDrafter, verifier: Verifier, p: exact.Model, q: exact.Model, warp: Warp | None) -> float:
    """Mean number of accepted draft tokens in a step."""
    law = exact.accepted_law(make(q), verifier, _warped(p, warp), depth=2, warp=warp)
    return exact.expectation(law, float)


def table(count: int = 4) -> pd.DataFrame:
    """Every bug over random worlds: columns bug, kind, TV (the largest total variation), likelier, longer.

    In that world, what other tests would see. likelier, one on the quality of texts: the mean log-probability under the
    target of the broken texts less that of its own, in nats. longer, one on speed: accepted draft tokens a step, less
    those of the right verifier on drafts as they were drawn.
    """
    rows = []
    for name, bug in BUGS.items():
        world, decoded, target = _worst(bug, count)
        distance = exact.total_variation(decoded, target)
        likelier = _likelier(decoded, target)
        accepted = _accepted(bug.drafter, bug.verifier, *world, bug.warp)
        rightly_accepted = _accepted(*bug.right, *world, bug.warp)
        rows.append((name, bug.kind, distance, likelier, accepted - rightly_accepted))
    return pd.DataFrame(rows, columns=["bug", "kind", "TV", "likelier", "longer"])


def _worst(bug: Bug, count: int) -> tuple[World, exact.Law, exact.Law]:
    """The one of count worlds where a bug shows most; there, the laws of the decoded text and of the target's own."""
    laws = {world: _laws(bug.drafter, bug.verifier, *world, bug.warp) for world in worlds(count)}
    worst = max(laws, key=lambda world: exact.total_variation(*laws[world]))
    decoded, target = laws[worst]
    return worst, decoded, target


def _likelier(decoded: exact.Law, target: exact.Law) -> float:
    """Mean log-probability under the target: that of decoded texts less that of the target's own, in nats."""
    gains = [(decoded.get(text, 0.0) - mass) * math.log(mass) for text, mass in target.items()]
    return sum(gains)
