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
        if source.count(old) != 1:
            raise ValueError(f"{function.__name__} has {source.count(old)} times {old!r}, once was expected")
        source = source.replace(old, new)
    namespace = dict(vars(inspect.getmodule(function)))
    exec(source, namespace)
    return namespace[function.__name__]


def altered(drafter: Drafter, change: Callable[[Draft], Draft]) -> SimpleNamespace:
    """A drafter whose drafts go through change."""
    return SimpleNamespace(begin=drafter.begin, propose=lambda coins, depth: change(drafter.propose(coins, depth)))


def drawn_as(drawn: Drawn) -> Callable[[Draft], Draft]:
    """Lie about how a draft was drawn, which gets it past the verifiers' refusals."""
    return lambda draft: replace(draft, drawn=drawn)


def resorted(draft: Draft) -> Draft:
    """Siblings by falling draft probability, not in drawing order."""
    tree, order = draft.tree, [0]
    for node in order:
        order += sorted(tree.children[node], key=lambda c, node=node: -draft.q[node, tree.tokens[c]])
    parents = [-1] + [order.index(tree.parent_list[node]) for node in order[1:]]
    return Draft(TokenTree(tree.tokens[order], torch.tensor(parents)), draft.q[order], draft.drawn)


def pruned(draft: Draft) -> Draft:
    """Drawn nodes dropped by their joint draft probability."""
    kept = (draft.scores >= 0.2).nonzero().flatten().tolist()
    return Draft(draft.tree.keep(kept), draft.q[kept], draft.drawn)


class OneUniform:
    """Coins whose accepts all compare with one and the same uniform number."""

    def __init__(self, coins: Coins):
        self.choose, self.coins, self.low, self.high = coins.choose, coins, 0.0, 1.0

    def accept(self, probability: float) -> bool:
        cut = min(max(probability, self.low), self.high)  # what is known: low <= uniform < high
        below = self.coins.accept((cut - self.low) / (self.high - self.low)) if self.high > self.low else False
        self.low, self.high = (self.low, cut) if below else (cut, self.high)
        return below


def ptd_as_printed(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """PTD's Algorithm 2 as printed: after a rejection p is renormalised over the candidates that remain.

    The last of several is then accepted with certainty, whatever the target thinks of it. Behind one that is alone and
    rejected the printed loop does not end; here the next token is drawn from the rest, so that only line 13 errs.
    """
    node, path = 0, []
    while True:
        tokens = draft.tree.tokens[list(draft.candidates[node])]
        left = p[node, tokens].tolist()
        for i, child in enumerate(draft.candidates[node]):
            mass = sum(left[i:]) if i else 1.0
            if mass > 0 and coins.accept(min(1.0, left[i] / mass)):
                node = child
                break
        else:
            rest = p[node].index_fill(0, tokens, 0.0)
            return Verdict(tuple(path), coins.choose(rest if rest.any() else p[node]))
        path.append(node)


def ptd_as_coded(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """PTD's public code: p is renormalised over the vocabulary, as it should be, but the last token is the argmax.

    A step without candidates draws it, as there.
    """
    return one_hot(draft, p, Argmax(coins) if any(draft.candidates) else coins)


def bonus_untempered(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """The bonus token drawn from the law at temperature 1; p here is at 0.5. Spec-Bench's copy of EAGLE's code."""
    verdict = rrsw(draft, p, coins)
    leaf = verdict.path[-1] if verdict.path else 0
    return verdict if draft.tree.children[leaf] else Verdict(verdict.path, coins.choose(p[leaf] ** 0.5))


class Unpositioned(Target):
    """A target that is told no position ids: tree nodes count on as if they stood in a row (DynaTree's first code).

    As there (Algorithm 1, line 6), accepted tokens are scored once more for the cache, in a row and so rightly: only
    a tree's own scores are bent.
    """

    def commit(self, path: Sequence[int]) -> None:
        tokens = self.tree.tokens[list(path)]
        super().commit(())
        if path:
            self.forward(TokenTree(tokens, torch.arange(len(path)) - 1))
            super().commit(tuple(range(1, len(path))))

    def _run(self, ids: Tensor, position_ids: Tensor, mask: Tensor | None, **kwargs) -> Scores:
        return super()._run(ids, position_ids[:, :1] + torch.arange(ids.shape[1]), mask, **kwargs)


# ---- the gallery ----------------------------------------------------------------------------------------------

UNEVEN = Static(((0,), (1,), (0, 0), (0, 1)))
MakeDrafter = Callable[[exact.Model], Drafter]


@dataclass(frozen=True)
class Bug:
    """A broken combination of drafter (from q) and verifier, and the right one that it is a mistake of."""

    kind: str
    drafter: MakeDrafter
    verifier: Verifier
    right: tuple[MakeDrafter, Verifier]
    warp: Warp | None = None


def drawn(shape: Growth, how: Drawn, change: Callable[[Draft], Draft] = lambda draft: draft) -> MakeDrafter:
    return lambda q: altered(exact.toy_drafter(q, shape, how), change)


TREE, TOP_K = drawn(UNEVEN, SWOR), drawn(UNEVEN, POINT)
CLAIMED, RESORTED, PRUNED = (drawn(UNEVEN, SWOR, change) for change in (drawn_as(IID), resorted, pruned))
SURVIVALS = spoiled(textbook.traversal, ("descend(v)  # every", "# every"))
DIVIDED = spoiled(
    textbook.traversal,
    ("M_s[v] = norm", "left = 1 - float(M_s[v, tree.token_list[X]]); M_s[v] = norm"),
    ("S / (S + 1 - p[v]) if S + 1 - p[v] > 0 else", "min(S / left, 1.0) if v and left > 0 else"),
)
RESIDUAL = spoiled(textbook.rrsw, ("norm((p - q).clamp(min=0), p)", "(p - q).clamp(min=0) if (p > q).any() else p"))
RRSW, TRAVERSAL, ONE_HOT = (TREE, rrsw), (TREE, traversal), (TOP_K, one_hot)
RECOVERED = spoiled(textbook.rrsw, ("coins.choose(p)", "coins.choose(M_b[node])"))
BUGS = {
    "rejected sibling stays in q (RRSw)": Bug("wrong law", CLAIMED, rrs, RRSW),
    "rejected sibling stays in q (traversal)": Bug("wrong law", CLAIMED, traversal, TRAVERSAL),
    "independent siblings struck from q": Bug(
        "wrong law", drawn(UNEVEN, IID, drawn_as(SWOR)), rrsw, (drawn(UNEVEN, IID), rrs)),
    "top-k tree, q = softmax": Bug("wrong law", lambda q: altered(
        TOP_K(q), lambda draft: Draft(draft.tree, exact.rows(q, draft.tree), SWOR)), rrsw, ONE_HOT),
    "q of another temperature": Bug(
        "wrong law", TREE, lambda draft, p, coins: rrsw(replace(draft, q=Warp(2.0)(draft.q.log())), p, coins), RRSW),
    "siblings re-sorted by q (RRSw)": Bug("selection", RESORTED, rrsw, RRSW),
    "siblings re-sorted by q (traversal)": Bug("selection", RESORTED, traversal, TRAVERSAL),
    "drawn nodes pruned by score (RRSw)": Bug("selection", PRUNED, rrsw, RRSW),
    "drawn nodes pruned by score (traversal)": Bug("selection", PRUNED, traversal, TRAVERSAL),
    "survivals not recomputed": Bug("arithmetic", TREE, SURVIVALS, TRAVERSAL),
    "divided by the remaining draft mass": Bug("arithmetic", TREE, DIVIDED, TRAVERSAL),
    "residual not renormalised": Bug("arithmetic", TREE, RESIDUAL, RRSW),
    "PTD's Algorithm 2 as printed": Bug("arithmetic", TOP_K, ptd_as_printed, ONE_HOT),
    "recovered token drawn from p": Bug("last token", TREE, RECOVERED, RRSW),
    "last token by argmax (PTD's code)": Bug("last token", TOP_K, ptd_as_coded, ONE_HOT),
    "bonus drawn without the temperature": Bug(
        "last token", drawn(chain(2), SWOR), bonus_untempered, (drawn(chain(2), SWOR), rrsw), warp=Warp(0.5)),
    "one uniform for all accept coins": Bug(
        "coins", TREE, lambda draft, p, coins: rrsw(draft, p, OneUniform(coins)), RRSW),
}  # fmt: skip


def worlds(count: int = 4, vocabulary: int = 3) -> list[tuple[exact.Model, exact.Model]]:
    """Random (p, q): every prefix with a law of its own."""
    model = partial(exact.random_model, vocabulary, sharpness=1.0)
    return [(model(2 * i), model(2 * i + 1)) for i in range(count)]


def bias(make: MakeDrafter, verifier: Verifier, p: exact.Model, q: exact.Model, warp: Warp | None = None) -> float:
    """Total variation between two accepted levels of decoded text and the target's own law; p under the warp."""
    return exact.total_variation(*_laws(make, verifier, p, q, warp))


def _model(p: exact.Model, warp: Warp | None) -> exact.Model:
    return p if warp is None else lambda prefix: warp(p(prefix).log())


def _laws(make: MakeDrafter, verifier: Verifier, p: exact.Model, q: exact.Model, warp: Warp | None) -> tuple:
    model = _model(p, warp)
    return exact.output_law(make(q), verifier, model, depth=2, warp=warp), exact.joint(model, 3)


def _accepted(make: MakeDrafter, verifier: Verifier, p: exact.Model, q: exact.Model, warp: Warp | None) -> float:
    return exact.expectation(exact.accepted_law(make(q), verifier, _model(p, warp), depth=2, warp=warp), float)


def table(count: int = 4) -> pd.DataFrame:
    """Every bug over random worlds: columns bug, kind, TV (the largest total variation), likelier, longer.

    In that world, what other tests would see. likelier, one on the quality of texts: the mean log-probability under the
    target of the broken texts less that of its own, in nats. longer, one on speed: accepted draft tokens a step, less
    those of the right verifier on drafts as they were drawn.
    """
    rows = []
    for name, bug in BUGS.items():
        laws = {world: _laws(bug.drafter, bug.verifier, *world, bug.warp) for world in worlds(count)}
        world = max(laws, key=lambda world: exact.total_variation(*laws[world]))
        law, right = laws[world]
        likelier = sum((law.get(text, 0.0) - mass) * math.log(mass) for text, mass in right.items())
        longer = _accepted(bug.drafter, bug.verifier, *world, bug.warp) - _accepted(*bug.right, *world, bug.warp)
        rows.append((name, bug.kind, exact.total_variation(law, right), likelier, longer))
    return pd.DataFrame(rows, columns=["bug", "kind", "TV", "likelier", "longer"])
