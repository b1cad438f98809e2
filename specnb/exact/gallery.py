"""A gallery of broken verifiers: mistakes that people have made. Exact enumeration finds every one of them.

None of them is lossless. ``table`` shows the total variation between the texts of each and the target's law (a law is a
probability distribution). Some are the textbook form of an algorithm with a piece of its source replaced (``spoiled``),
some are written as a function or class here. The others change the draft or the coins.

The rules in ``MEANT`` are no mistakes: they are made to change the law, for more tokens a step. ``table`` has their
price, too.
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

from specnb import exact
from specnb.decode import Drafter, Verifier
from specnb.exact import newer
from specnb.exact.enumeration import Argmax
from specnb.exact.symbols import second_winner
from specnb.growth import Growth, Static, chain
from specnb.sampling import Coins, Warp, residual
from specnb.target import Scores, Target
from specnb.tree import Draft, Drawn, TokenTree, Verdict
from specnb.verifiers import one_hot, rrs, rrsw, textbook, traversal

POINT, IID, SWOR = Drawn


# ---- ways to spoil an algorithm, a draft, the coins ---------------------------------------------------------


def spoiled(function: Callable, *changes: tuple[str, str]) -> Callable:
    """Return a function whose source has each old piece replaced by a new one; ValueError unless each occurs once."""
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
    """Return a drafter that applies ``change`` to each draft of another."""

    def propose(coins: Coins, max_depth: int) -> Draft:
        return change(drafter.propose(coins, max_depth))

    return SimpleNamespace(begin=drafter.begin, propose=propose)


def unchanged(draft: Draft) -> Draft:
    """Return the draft as it is."""
    return draft


def drawn_as(drawn: Drawn) -> Callable[[Draft], Draft]:
    """Return a change that misstates how a draft was drawn, so that a verifier does not refuse it."""
    return lambda draft: replace(draft, drawn=drawn)


def resorted(draft: Draft) -> Draft:
    """Sort siblings by falling draft probability, instead of drawing order."""
    tree = draft.tree
    order = [0]  # the nodes, parents first, in their new order
    for node in order:  # the list grows during the loop
        order += _by_probability(draft, node)
    parents = [-1] + [order.index(tree.parent_list[node]) for node in order[1:]]
    reordered = TokenTree(tree.tokens[order], torch.tensor(parents))
    return Draft(reordered, draft.q[order], draft.drawn)


def _by_probability(draft: Draft, node: int) -> list[int]:
    """Return a node's children, the one with the largest q first."""
    q = draft.q[node].tolist()
    tokens = draft.tree.token_list
    return sorted(draft.tree.children[node], key=lambda child: -q[tokens[child]])


def pruned(draft: Draft) -> Draft:
    """Drop drawn nodes whose path probability is below .2."""
    is_likely = draft.scores >= 0.2
    kept = is_likely.nonzero().flatten().tolist()
    return Draft(draft.tree.keep(kept), draft.q[kept], draft.drawn)


class OneUniform:
    """Coins whose accepts all compare with the same uniform number, instead of a new one each.

    Example: a first coin of probability .6 comes out as False, so the number is in [.6, 1). A second one of .8 is then
    True with probability (.8 − .6) / (1 − .6) = 1/2, and a third one of .5 is False for certain.

    The number itself is never drawn. low and high are what is known of it so far: low <= uniform < high.
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
    """PTD's Algorithm 2 as printed: after a rejection p is renormalised over the remaining candidates only.

    So the last of several candidates is accepted with certainty, even if p gives it almost nothing. If a single
    candidate is rejected, the printed loop does not end; here the next token is drawn from the rest of p, so that line
    13 is the only error.
    """
    node = 0
    path = []
    while True:
        children = draft.candidates[node]
        tokens = draft.tree.tokens[list(children)]
        chances = p[node, tokens].tolist()
        accepted = None
        for i, child in enumerate(children):
            mass = sum(chances[i:]) if i > 0 else 1.0  # 13: mass of the remaining candidates, not of all tokens
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
    """PTD's public code: p is renormalised over the vocabulary, which is right, but the last token is the argmax.

    In a step without candidates the last token is drawn, as in that code.
    """
    if any(draft.candidates):
        coins = Argmax(coins)
    return one_hot(draft, p, coins)


def bonus_untempered(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """RRSw that draws the bonus token at temperature 1, although p is at 0.5 (Spec-Bench's copy of EAGLE's code)."""
    verdict = rrsw(draft, p, coins)
    last = verdict.path[-1] if verdict.path else 0
    is_bonus = not draft.tree.children[last]
    if not is_bonus:
        return verdict
    at_temperature_1 = p[last] ** 0.5  # not normalised: coins.choose does that
    return Verdict(verdict.path, coins.choose(at_temperature_1))


def rrsw_of_another_temperature(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """RRSw that uses q at temperature 2, although the draft was drawn at 1."""
    at_temperature_2 = Warp(2.0)
    other_q = at_temperature_2(draft.q.log())
    return rrsw(replace(draft, q=other_q), p, coins)


def rrsw_by_one_uniform(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """RRSw that draws one uniform number and compares all acceptance probabilities with it."""
    return rrsw(draft, p, OneUniform(coins))


def draft_noise_again(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Token-level verification whose recovered token is drawn with the noise that drew the draft.

    Seen in vLLM's second model runner (github.com/vllm-project/vllm, pull requests 47386 and 54282, which mended it in
    August 2026). Samplers draw a token from q as the one with the smallest e / q, where e is exponential noise, one
    number per token. After a rejection the recovered token is the one with the smallest e / residual. If e is the same,
    the law is conditional on the first winner: the other tokens have lost, so their e are larger than fresh ones, and
    the more so the larger their q is. Tokens with a large q are recovered too seldom.
    """
    tree = draft.tree
    path = []
    for node in range(1, len(tree)):
        parent = tree.parent_list[node]
        token = tree.token_list[node]
        q = draft.q[parent]
        ratio = float(p[parent, token] / q[token])
        if not coins.accept(min(1.0, ratio)):
            rest = residual(p[parent], q)
            law = second_winner(q.numpy(), token, rest.numpy())  # fresh noise would have the law ``rest``
            return Verdict(tuple(path), coins.choose(torch.from_numpy(law)))
        path.append(node)
    return Verdict(tuple(path), coins.choose(p[-1]))


# HSD as coded: the whole draft is accepted by the ratio r(X_1:γ) instead of the capped one of Equation 16.
SCAN_AS_CODED = spoiled(newer.scan, ("min(1.0, r_star)", "min(1.0, r[gamma])"))


def hsd_as_coded(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """HSD (``newer.hsd``) as its public code has it: the cap is missing where the whole draft is tried.

    Seen in github.com/ZhouYuxuanYX/Hierarchical-Speculative-Decoding, transformers/generation/utils.py, and in Listing
    2 of the paper. Their function, enumerated, has this law (commit f3adf7f; Python cannot parse the file of later
    ones, but with tabs read as four spaces it has the same). Algorithm 1 accepts the whole draft that often, too, but
    after a rejection it draws all further tokens from residuals. Algorithm 2 draws a single one, and has the cap to
    make up for it. The code takes the coin of the first and the rest of the second.

    Example: if the first token's ratio is 2 and the second one's 1/2, the draft is accepted for certain instead of with
    probability 1/2. So its second token comes too often.
    """
    X = draft.tree.token_list[1:]
    tau, law = SCAN_AS_CODED(X, p.double(), draft.q.double(), coins)
    return Verdict(tuple(range(1, tau + 1)), coins.choose(law))


def typical_acceptance(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Medusa's typical acceptance (Cai et al. 2024, section 2.3.1), for trees of chosen candidates.

    A candidate is accepted if its probability exceeds min(ε, δ exp(−H)), H being the entropy of p there, with Medusa's
    ε = .09 and δ = .3. Of all paths that are accepted whole, the longest is taken, or the likeliest of several. No coin
    is tossed for this. The next token is drawn from p here; Medusa's code takes the most probable one.
    """
    entropy = torch.special.entr(p).sum(-1)  # (n,)
    threshold = (0.3 * (-entropy).exp()).clamp(max=0.09)
    accepted = {0: (0, 1.0)}  # node → depth and probability of its path
    for node in range(1, len(draft.tree)):
        parent = draft.tree.parent_list[node]
        chance = float(p[parent, draft.tree.token_list[node]])
        if parent in accepted and chance > float(threshold[parent]):
            depth, path_probability = accepted[parent]
            accepted[node] = (depth + 1, path_probability * chance)
    last = max(accepted, key=accepted.get)
    return Verdict(draft.tree.path(last), coins.choose(p[last]))


def ensemble(weight: float) -> Verifier:
    """Return token-level verification against weight · p + (1 − weight) · q instead of p.

    This is transformers' ``assistant_ensemble_weight`` (generation/utils.py, after DIVERSE, arXiv 2604.07622). A token
    is accepted with probability 1 − weight + weight · p / q. The residual is that of p, since what the mixture has
    above q is proportional to what p has above q. The bonus is drawn from p.
    """

    def verifier(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
        tree = draft.tree
        path = []
        for node in range(1, len(tree)):
            parent = tree.parent_list[node]
            token = tree.token_list[node]
            ratio = float(p[parent, token] / draft.q[parent, token])
            if not coins.accept(min(1.0, 1 - weight + weight * ratio)):
                return Verdict(tuple(path), coins.choose(residual(p[parent], draft.q[parent])))
            path.append(node)
        return Verdict(tuple(path), coins.choose(p[-1]))

    return verifier


class Unpositioned(Target):
    """A target without the position ids of a tree: its nodes get consecutive positions (DynaTree's first code).

    As in that code (Algorithm 1, line 6), accepted tokens are scored again for the cache. They are a chain then, so
    their positions are right: only the scores of trees are wrong.
    """

    def commit(self, path: Sequence[int]) -> None:
        tokens = self.tree.tokens[list(path)]
        super().commit(())
        if path:
            chain_of_accepted = TokenTree(tokens, torch.arange(len(path)) - 1)
            self.forward(chain_of_accepted)
            super().commit(tuple(range(1, len(path))))

    def _run(self, ids: Tensor, position_ids: Tensor, mask: Tensor | None, **kwargs) -> Scores:
        consecutive = position_ids[:, :1] + torch.arange(ids.shape[1])  # (1, n)
        return super()._run(ids, consecutive, mask, **kwargs)


# ---- the gallery ----------------------------------------------------------------------------------------------

MakeDrafter = Callable[[exact.Model], Drafter]  # from the draft's law q
World = tuple[exact.Model, exact.Model]  # p and q
UNEVEN = Static(((0,), (1,), (0, 0), (0, 1)))  # two children, two more below the first


@dataclass(frozen=True)
class Bug:
    """A broken combination of drafter and verifier."""

    kind: str  # the kind of mistake
    drafter: MakeDrafter
    verifier: Verifier
    right: tuple[MakeDrafter, Verifier]  # the lossless combination that was meant
    warp: Warp | None = None  # applied to p and q; None for temperature 1


def drawn(shape: Growth, how: Drawn, change: Callable[[Draft], Draft] = unchanged) -> MakeDrafter:
    """Return a function that makes drafters from q: trees of a shape, drawn in one way, and then changed."""

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
CHAIN = (TWO_IN_A_ROW, rrsw)
HSD = (TWO_IN_A_ROW, newer.hsd)

CLAIMED_IID = drawn(UNEVEN, SWOR, drawn_as(IID))
CLAIMED_SWOR = drawn(UNEVEN, IID, drawn_as(SWOR))
RESORTED = drawn(UNEVEN, SWOR, resorted)
PRUNED = drawn(UNEVEN, SWOR, pruned)


def claimed_drawn(q: exact.Model) -> Drafter:
    """Return a drafter of top-k trees that claim to be drawn from q without replacement."""

    def with_law(draft: Draft) -> Draft:
        return Draft(draft.tree, exact.rows(q, draft.tree), SWOR)

    return altered(TOP_K(q), with_law)


def claimed_uncut(q: exact.Model) -> Drafter:
    """Return a drafter of chains that were drawn from q under the top-k, and claim to be drawn from the whole q.

    Seen in transformers' candidate generators for MTP and DFlash (github.com/huggingface/transformers, issue 47932 of
    August 2026, mended in pull request 48007). The verifier divides by a q that is too small, so it accepts too often,
    and takes mass off the residual for tokens that the drafter cannot draw.
    """

    def with_uncut_law(draft: Draft) -> Draft:
        return Draft(draft.tree, exact.rows(q, draft.tree), SWOR)

    return altered(TWO_IN_A_ROW(q), with_uncut_law)


SURVIVALS = spoiled(textbook.traversal, ("descend(v)  # every", "# every"))
DIVIDED = spoiled(
    textbook.traversal,
    ("M_s[v] = norm", "left = 1 - float(M_s[v, x]); M_s[v] = norm"),
    ("S / (S + 1 - p[v]) if S + 1 - p[v] > 0 else", "min(S / left, 1.0) if v and left > 0 else"),
)
RESIDUAL = spoiled(textbook.rrsw, ("norm((p - q).clamp(min=0), p)", "(p - q).clamp(min=0) if (p > q).any() else p"))
RECOVERED = spoiled(textbook.rrsw, ("coins.choose(p)", "coins.choose(M_b[node])"))

BUGS = {
    # the verifier's q is not the law that the draft was drawn from
    "rejected sibling stays in q (RRSw)": Bug("wrong law", CLAIMED_IID, rrs, RRSW),
    "rejected sibling stays in q (traversal)": Bug("wrong law", CLAIMED_IID, traversal, TRAVERSAL),
    "independent siblings struck from q": Bug("wrong law", CLAIMED_SWOR, rrsw, RRS),
    "top-k tree, q = softmax": Bug("wrong law", claimed_drawn, rrsw, ONE_HOT),
    "q of another temperature": Bug("wrong law", TREE, rrsw_of_another_temperature, RRSW),
    "q before the top-k (transformers)": Bug("wrong law", claimed_uncut, rrsw, CHAIN, warp=Warp(top_k=2)),
    # the drawn tokens decide which nodes are tried, or in which order
    "siblings re-sorted by q (RRSw)": Bug("selection", RESORTED, rrsw, RRSW),
    "siblings re-sorted by q (traversal)": Bug("selection", RESORTED, traversal, TRAVERSAL),
    "drawn nodes pruned by score (RRSw)": Bug("selection", PRUNED, rrsw, RRSW),
    "drawn nodes pruned by score (traversal)": Bug("selection", PRUNED, traversal, TRAVERSAL),
    # one formula is wrong
    "survivals not recomputed": Bug("arithmetic", TREE, SURVIVALS, TRAVERSAL),
    "divided by the remaining draft mass": Bug("arithmetic", TREE, DIVIDED, TRAVERSAL),
    "residual not renormalised": Bug("arithmetic", TREE, RESIDUAL, RRSW),
    "PTD's Algorithm 2 as printed": Bug("arithmetic", TOP_K, ptd_as_printed, ONE_HOT),
    "whole draft without the cap (HSD's code)": Bug("arithmetic", TWO_IN_A_ROW, hsd_as_coded, HSD),
    # the token after the accepted path has a wrong law
    "recovered token drawn from p": Bug("last token", TREE, RECOVERED, RRSW),
    "last token by argmax (PTD's code)": Bug("last token", TOP_K, ptd_as_coded, ONE_HOT),
    "bonus drawn without the temperature": Bug("last token", TWO_IN_A_ROW, bonus_untempered, CHAIN, warp=Warp(0.5)),
    # the coins are not independent
    "one uniform for all accept coins": Bug("coins", TREE, rrsw_by_one_uniform, RRSW),
    "the draft's noise again (vLLM)": Bug("coins", TWO_IN_A_ROW, draft_noise_again, CHAIN),
}

MEANT = {  # made so: more tokens a step for another law
    "ensemble of .9 p and .1 q (transformers)": Bug("meant", TWO_IN_A_ROW, ensemble(0.9), CHAIN),
    "ensemble of .5 p and .5 q (transformers)": Bug("meant", TWO_IN_A_ROW, ensemble(0.5), CHAIN),
    "typical acceptance (Medusa)": Bug("meant", TOP_K, typical_acceptance, ONE_HOT),
}


def worlds(count: int = 4, vocabulary: int = 3) -> list[World]:
    """Return random pairs of models (p, q)."""
    model = partial(exact.random_model, vocabulary, sharpness=1.0)
    return [(model(2 * i), model(2 * i + 1)) for i in range(count)]


def bias(make: MakeDrafter, verifier: Verifier, p: exact.Model, q: exact.Model, warp: Warp | None = None) -> float:
    """Return the total variation between decoded texts of three tokens and the target's law, both with the warp."""
    decoded, right = _laws(make, verifier, p, q, warp)
    return exact.total_variation(decoded, right)


def _apply_warp(p: exact.Model, warp: Warp | None) -> exact.Model:
    """Return the model p with the warp applied."""
    if warp is None:
        return p
    return lambda prefix: warp(p(prefix).log())


def _laws(
    make: MakeDrafter, verifier: Verifier, p: exact.Model, q: exact.Model, warp: Warp | None
) -> tuple[exact.Law, exact.Law]:
    """Return two laws over texts of three tokens: of decoded texts, and of the target."""
    target = _apply_warp(p, warp)
    decoded = exact.output_law(make(q), verifier, target, depth=2, warp=warp)
    return decoded, exact.joint(target, 3)


def _accepted(make: MakeDrafter, verifier: Verifier, p: exact.Model, q: exact.Model, warp: Warp | None) -> float:
    """Return the mean number of accepted draft tokens per step."""
    law = exact.accepted_law(make(q), verifier, _apply_warp(p, warp), depth=2, warp=warp)
    return exact.expectation(law, float)


def table(count: int = 4, bugs: dict[str, Bug] | None = None) -> pd.DataFrame:
    """Return a table of bugs, one row per bug: of all in ``BUGS``, or of those given. A world is a random pair (p, q).

    bug, kind: its name and the kind of mistake.
    TV: the largest total variation in ``count`` worlds. The next columns are for that world, and show what two other
        tests would see.
    likelier: a test of quality. The mean log-probability of the broken texts under the target, minus that of the
        target's own texts, in nats.
    longer: a test of speed. Accepted draft tokens per step, minus those of the right combination.
    """
    rows = []
    for name, bug in (BUGS if bugs is None else bugs).items():
        world, decoded, target = _worst(bug, count)
        distance = exact.total_variation(decoded, target)
        likelier = _likelier(decoded, target)
        accepted = _accepted(bug.drafter, bug.verifier, *world, bug.warp)
        rightly_accepted = _accepted(*bug.right, *world, bug.warp)
        rows.append((name, bug.kind, distance, likelier, accepted - rightly_accepted))
    return pd.DataFrame(rows, columns=["bug", "kind", "TV", "likelier", "longer"])


def _worst(bug: Bug, count: int) -> tuple[World, exact.Law, exact.Law]:
    """Return the world with the largest total variation, and its two laws: of decoded texts, and of the target."""
    laws = {world: _laws(bug.drafter, bug.verifier, *world, bug.warp) for world in worlds(count)}
    worst = max(laws, key=lambda world: exact.total_variation(*laws[world]))
    decoded, target = laws[worst]
    return worst, decoded, target


def _likelier(decoded: exact.Law, target: exact.Law) -> float:
    """Return the mean log-probability of decoded texts under the target, minus that of its own texts, in nats."""
    gains = [(decoded.get(text, 0.0) - mass) * math.log(mass) for text, mass in target.items()]
    return sum(gains)
