"""One level, several drafts: K-SEQ, SpecHub and greedy multi-draft, beside what optimal transport allows at best.

Each rule draws its candidates from q and verifies them against p in one function of the coins: ``rule(p, q, coins)``
→ (accepted, token), whose token has the law p exactly. p, q: (V,) probabilities; arithmetic is float64. They serve
comparison with the tree verifiers' own first level; trees are verified with ``verifiers`` and ``traversal``.
"""

import math
from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor

from specnb.sampling import Coins, residual, wide

Elected = tuple[bool, int]


def k_seq(p: Tensor, q: Tensor, coins: Coins, *, k: int = 2) -> Elected:
    """K-SEQ (SpecTr, Sun et al. 2023, Algorithm 2): k independent drafts, each accepted with min(1, p / (ρ q)).

    ρ in [1, k] solves 1 − (1 − β)^k = ρ β with β = Σ min(p / ρ, q), found by bisection and rounded up, on the safe
    side. If all are rejected, the token comes from what p gives beyond the drafts: norm(p − min(p / ρ, q) · α / β),
    where α = 1 − (1 − β)^k is the probability that one of them is accepted.

    Example: p = (.3, .4, .3), q = (.6, .3, .1) and two drafts. ρ is 1.4: p / ρ is (.214, .286, .214), so β is
    .214 + .286 + .1 = .6, and both sides are .84, 1 − .4² and 1.4 · .6: the probability that a draft is accepted.
    """
    p = wide(p)
    q = wide(q)
    rho = _rho(p, q, k)
    for _ in range(k):
        x = coins.choose(q)
        acceptance = float(p[x] / (rho * q[x]))
        if coins.accept(min(1.0, acceptance)):
            return True, x

    each = torch.minimum(p / rho, q)  # (V,) that one draft is x and accepted
    beta = float(each.sum())
    rest = p
    if beta > 0:
        rest = (p - each * (_one_of(k, beta) / beta)).clamp_min(0)
    return False, _choose_left(rest, p, coins)


def _one_of(k: int, beta: float) -> float:
    """α: the probability that one of k independent drafts is accepted, each with β."""
    return 1 - (1 - beta) ** k


def _rho(p: Tensor, q: Tensor, k: int) -> float:
    """K-SEQ's ρ by bisection: what one of k drafts brings, α, must not exceed what p has for it, ρ β."""
    low = 1.0
    high = float(k)
    for _ in range(60):  # α − ρ β falls as ρ grows
        middle = (low + high) / 2
        beta = float(torch.minimum(p / middle, q).sum())
        if _one_of(k, beta) > middle * beta:
            low = middle
        else:
            high = middle
    return high


def _choose_left(rest: Tensor, p: Tensor, coins: Coins) -> int:
    """A token from the residual; from p itself where rounding is all that is left of it."""
    return coins.choose(rest if rest.sum() > 1e-15 else p)


def spec_hub(p: Tensor, q: Tensor, coins: Coins) -> Elected:
    """SpecHub (Sun et al. 2024): two drafts of which one is always a = argmax q, the hub.

    Draw x from q; beside another token stands a, beside a stands a token from the rest of q. Mass of the pairs is
    given to tokens in this order: (i, a) → i, (a, i) → i, (a, ·) → a, (·, a) → a; what p still lacks is the residual.

    Example: p = (.3, .4, .3) and q = (.6, .3, .1), so a = 0. The pairs (1, 0) and (2, 0) come with .3 and .1, all of it
    given to 1 and 2; (0, 1) and (0, 2) with .45 and .15, of which 1 takes .1 and 2 all. That leaves .35, and token 0
    takes the .3 that p has for it. The residual is the .05 that 2 still lacks: a draft is accepted with .95.
    """
    p = wide(p)
    q = wide(q)
    a = int(q.argmax())
    is_other = torch.arange(len(q), device=q.device) != a
    has_others = bool(q[a] < 1)

    # How likely each pair is, by its other token: (V,), nothing for a itself.
    other_first = torch.where(is_other, q, 0)  # (i, a)
    hub_first = torch.zeros_like(q)  # (a, i)
    if has_others:
        hub_first = torch.where(is_other, q * q[a] / (1 - q[a]), 0)

    # What of it the other token takes, and then the hub of what they leave.
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

    The drawn token x is accepted with min(1, p(x) / q'(x)); else the residual norm([p − q']_+) is drawn, which may
    be one of the likeliest tokens: accepted too.

    Example: p = (.3, .4, .3), q = (.6, .3, .1) and n = 2. The drafts are token 0 and one drawn from
    q' = (0, 3/4, 1/4): token 1 is accepted with .4 / .75, token 2 with certainty. What remains is [p − q']_+ =
    (.3, 0, .05), mostly token 0. So a draft is accepted with .4 + .25 + .3 = .95.
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
    """The best acceptance any rule can reach for a law of candidate sets: 1 + min_H (p(H) − Q(all drafts in H)).

    sets: set of drafted tokens → probability, see ``exact.law``. Hall's condition over all subsets H of the
    vocabulary: for toys (V up to about 12).

    Example: one draft from q = (.6, .3, .1), hence the sets {0}, {1}, {2}, and p = (.3, .4, .3). H = {0} has
    p(H) − Q(H) = .3 − .6, the least. So at most .7 is accepted, which is Σ min(p, q).
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
