"""Verification of several drafts for one token: K-SEQ, SpecHub, greedy multi-draft, and the bound of optimal transport.

Each rule is ``rule(p, q, coins) → (accepted, token)``. It draws its drafts from q, verifies them against p, and returns
whether the token is one of the drafts. The token has exactly the law p. p, q: (V,) probabilities, used in float64.
The rules are here to be compared with the first level of the tree verifiers; decoding does not use them.
"""

import math
from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor

from specnb.sampling import Coins, residual, wide

Elected = tuple[bool, int]  # whether a draft was accepted, and the token


def k_seq(p: Tensor, q: Tensor, coins: Coins, *, k: int = 2) -> Elected:
    """K-SEQ (SpecTr, Sun et al. 2023, Algorithm 2): k independent drafts, each accepted with min(1, p / (ρ q)).

    β = Σ min(p / ρ, q) is the probability that one draft is accepted, α = 1 − (1 − β)^k that any of the k is. ρ in
    [1, k] solves α = ρ β; it is found by bisection and rounded up, because a smaller ρ would not be lossless. If all
    drafts are rejected, the token is drawn from norm(p − min(p / ρ, q) · α / β), the part of p that they do not cover.

    Example: p = (.3, .4, .3), q = (.6, .3, .1) and k = 2. ρ is 1.4: then p / ρ is (.214, .286, .214), so
    β = .214 + .286 + .1 = .6. Both α = 1 − .4² and ρ β = 1.4 · .6 are .84, the probability that a draft is accepted.
    """
    p = wide(p)
    q = wide(q)
    rho = _rho(p, q, k)
    for _ in range(k):
        x = coins.choose(q)
        acceptance = float(p[x] / (rho * q[x]))
        if coins.accept(min(1.0, acceptance)):
            return True, x

    accepted_mass = torch.minimum(p / rho, q)  # (V,) [x]: the probability that one draft is x and is accepted
    beta = float(accepted_mass.sum())
    rest = p
    if beta > 0:
        rest = (p - accepted_mass * (_one_of(k, beta) / beta)).clamp_min(0)
    return False, _choose_left(rest, p, coins)


def _one_of(k: int, beta: float) -> float:
    """α: the probability that any of k independent drafts is accepted, if each is accepted with probability beta."""
    return 1 - (1 - beta) ** k


def _rho(p: Tensor, q: Tensor, k: int) -> float:
    """K-SEQ's ρ by bisection: the smallest one for which α does not exceed ρ β."""
    low = 1.0
    high = float(k)
    for _ in range(60):  # halvings: enough for float64; α − ρ β falls as ρ grows
        middle = (low + high) / 2
        beta = float(torch.minimum(p / middle, q).sum())
        if _one_of(k, beta) > middle * beta:
            low = middle
        else:
            high = middle
    return high


def _choose_left(rest: Tensor, p: Tensor, coins: Coins) -> int:
    """Draw a token from the residual, or from p itself if the residual is only a rounding error."""
    has_mass = rest.sum() > 1e-15  # smaller sums are rounding errors of float64
    return coins.choose(rest if has_mass else p)


def spec_hub(p: Tensor, q: Tensor, coins: Coins) -> Elected:
    """SpecHub (Sun et al. 2024): two drafts of which one is always a = argmax q, the hub.

    The first draft x is drawn from q. If x is a, the second one is drawn from the other tokens of q; else it is a. So
    each pair (first, second) has a probability. It is distributed over the two tokens of the pair in four rounds, until
    a token has all that p gives it: (i, a) → i, then (a, i) → i, (a, ·) → a, (·, a) → a. What a token lacks of p after
    these rounds is the residual.

    Example: p = (.3, .4, .3) and q = (.6, .3, .1), so a = 0. The pairs (1, 0) and (2, 0) have probabilities .3 and .1;
    tokens 1 and 2 take all of that. The pairs (0, 1) and (0, 2) have .45 and .15; token 1 takes the .1 that it lacks,
    token 2 takes .15. The remaining .35 is offered to token 0, which takes the .3 that p gives it. Token 2 still lacks
    .05: this is the residual, so a draft is accepted with probability .95.
    """
    p = wide(p)
    q = wide(q)
    a = int(q.argmax())
    is_other = torch.arange(len(q), device=q.device) != a
    has_others = bool(q[a] < 1)

    # (V,) [i]: the probability of the pair of i and a, 0 for a itself
    other_first = torch.where(is_other, q, 0)  # (i, a)
    hub_first = torch.zeros_like(q)  # (a, i)
    if has_others:
        hub_first = torch.where(is_other, q * q[a] / (1 - q[a]), 0)

    # The part of each pair's probability that its other token takes; the hub takes from what is left.
    p_other = p * is_other
    p_hub = float(p[a])
    taken_other_first = torch.minimum(p_other, other_first)
    taken_hub_first = torch.minimum(p_other - taken_other_first, hub_first)
    left_other_first = float((other_first - taken_other_first).sum())
    left_hub_first = float((hub_first - taken_hub_first).sum())
    hub_takes_hub_first = min(p_hub, left_hub_first) if has_others else p_hub
    hub_takes_other_first = min(p_hub - hub_takes_hub_first, left_other_first)

    rest = (p - taken_other_first - taken_hub_first).clamp_min(0)
    rest[a] = max(p_hub - hub_takes_hub_first - hub_takes_other_first, 0.0)

    x = coins.choose(q)
    if x != a:
        other = x
        other_share = float(taken_other_first[other] / other_first[other])
        hub_takes = hub_takes_other_first
        left = left_other_first
    elif has_others:
        other = coins.choose(hub_first)
        other_share = float(taken_hub_first[other] / hub_first[other])
        hub_takes = hub_takes_hub_first
        left = left_hub_first
    else:  # a alone: q has no other token
        other = a
        other_share = 0.0
        hub_takes = hub_takes_hub_first
        left = 1.0
    if coins.accept(min(1.0, other_share)):
        return True, other
    hub_share = min(1.0, hub_takes / left) if left > 0 else 0.0
    if coins.accept(hub_share):
        return True, a
    return False, _choose_left(rest, p, coins)


def greedy_multi_draft(p: Tensor, q: Tensor, coins: Coins, *, n: int = 2) -> Elected:
    """Greedy multi-draft (Hu et al. 2025): the n − 1 likeliest tokens of q, and one drawn from the rest of q.

    q' is q without the n − 1 likeliest tokens, renormalised. The token x drawn from it is accepted with probability
    min(1, p(x) / q'(x)). After a rejection the token is drawn from the residual norm([p − q']_+). If it is one of the
    n − 1 likeliest tokens, it counts as accepted, too.

    Example: p = (.3, .4, .3), q = (.6, .3, .1) and n = 2. The drafts are token 0 and one drawn from
    q' = (0, 3/4, 1/4): token 1 is accepted with probability .4 / .75, token 2 with certainty. The residual is
    [p − q']_+ = (.3, 0, .05), mostly token 0. So a draft is accepted with probability .4 + .25 + .3 = .95.
    """
    p = wide(p)
    q = wide(q)
    top = q.topk(n - 1).indices
    rest = q.index_fill(0, top, 0.0)
    if not rest.sum() > 0:  # q has no token left to draw
        token = coins.choose(p)
        return token in top.tolist(), token
    rest = rest / rest.sum()  # q'
    x = coins.choose(rest)
    acceptance = float(p[x] / rest[x])
    if coins.accept(min(1.0, acceptance)):
        return True, x
    token = coins.choose(residual(p, rest))
    return token in top.tolist(), token


def transport_bound(p: Tensor, sets: dict[frozenset[int], float]) -> float:
    """The largest acceptance probability that any rule can reach: 1 + min_H (p(H) − Q(all drafts are in H)).

    Example: one draft from q = (.6, .3, .1), hence the sets {0}, {1}, {2}, and p = (.3, .4, .3). H = {0} has
    p(H) − Q(H) = .3 − .6, the smallest difference. So at most .7 is accepted, which is Σ min(p, q).

    p: (V,). sets: set of drafted tokens → its probability Q, from ``exact.law``. The minimum is over all subsets H of
    the vocabulary (Hall's condition), so V must be small, up to about 12.
    """
    least = math.inf
    for size in range(len(p) + 1):
        for subset in combinations(range(len(p)), size):
            H = frozenset(subset)
            p_of_H = float(p[list(H)].sum())
            Q_of_H = sum(mass for drafts, mass in sets.items() if drafts <= H)
            least = min(least, p_of_H - Q_of_H)
    return 1 + least


RULES: dict[str, Callable[..., Elected]] = {
    "k_seq": k_seq,
    "spec_hub": spec_hub,
    "greedy_multi_draft": greedy_multi_draft,
}
