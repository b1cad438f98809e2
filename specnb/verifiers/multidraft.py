"""One level, several drafts: K-SEQ, SpecHub and greedy multi-draft, beside what optimal transport allows at best.

Each rule draws its candidates from q and verifies them against p in one function of the coins: ``rule(p, q, coins)``
→ (accepted, token), whose token has the law p exactly. p, q: (V,) probabilities; arithmetic is float64. They serve
comparison with the tree verifiers' own first level; trees are verified with ``verifiers`` and ``traversal``.
"""

from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor

from specnb.sampling import Coins, residual, wide

Elected = tuple[bool, int]


def k_seq(p: Tensor, q: Tensor, coins: Coins, *, k: int = 2) -> Elected:
    """K-SEQ (SpecTr, Sun et al. 2023, Algorithm 2): k independent drafts, each accepted with min(1, p / (ρ q)).

    ρ in [1, k] solves 1 − (1 − β)^k = ρ β with β = Σ min(p / ρ, q), found by bisection and rounded up, on the safe
    side.
    """
    p, q = wide(p), wide(q)

    def beta(rho: float) -> float:
        return float(torch.minimum(p / rho, q).sum())

    low, high = 1.0, float(k)
    for _ in range(60):  # 1 − (1 − β)^k − ρ β falls as ρ grows
        middle = (low + high) / 2
        if 1 - (1 - beta(middle)) ** k > middle * beta(middle):
            low = middle
        else:
            high = middle
    kept = torch.minimum(p / high, q)
    for _ in range(k):
        x = coins.choose(q)
        if coins.accept(min(1.0, float(p[x] / (high * q[x])))):
            return True, x
    b = float(kept.sum())
    rest = (p - kept * ((1 - (1 - b) ** k) / b)).clamp_min(0) if b > 0 else p
    return False, coins.choose(rest if rest.sum() > 1e-15 else p)


def spec_hub(p: Tensor, q: Tensor, coins: Coins) -> Elected:
    """SpecHub (Sun et al. 2024): two drafts of which one is always a = argmax q, the hub.

    Draw x from q; beside another token stands a, beside a stands a token from the rest of q. Mass of the pairs is
    given to tokens in this order: (i, a) → i, (a, i) → i, (a, ·) → a, (·, a) → a; what p still lacks is the residual.
    """
    p, q = wide(p), wide(q)
    a = int(q.argmax())
    others = torch.arange(len(q), device=q.device) != a
    with_a = torch.where(others, q, 0)  # mass of the pair (i, a)
    after_a = torch.where(others, q * q[a] / (1 - q[a]), 0) if q[a] < 1 else torch.zeros_like(q)  # of (a, i)
    first = torch.minimum(p * others, with_a)
    second = torch.minimum(p * others - first, after_a)
    left_after, left_with = float((after_a - second).sum()), float((with_a - first).sum())
    from_after = min(float(p[a]), left_after) if q[a] < 1 else float(p[a])
    from_with = min(float(p[a]) - from_after, left_with)
    rest = (p - first - second).clamp_min(0)
    rest[a] = max(float(p[a]) - from_after - from_with, 0.0)

    x = coins.choose(q)
    if x != a:
        other, share, a_share, left = x, float(first[x] / with_a[x]), from_with, left_with
    elif q[a] < 1:
        other = coins.choose(after_a)
        share, a_share, left = float(second[other] / after_a[other]), from_after, left_after
    else:
        other, share, a_share, left = a, 0.0, from_after, 1.0
    if coins.accept(min(1.0, share)):
        return True, other
    if coins.accept(min(1.0, a_share / left) if left > 0 else 0.0):
        return True, a
    return False, coins.choose(rest if rest.sum() > 1e-15 else p)


def greedy_multi_draft(p: Tensor, q: Tensor, coins: Coins, *, n: int = 2) -> Elected:
    """Greedy multi-draft (Hu et al. 2025): the n − 1 likeliest tokens of q, and one drawn from the rest of q.

    The drawn token x is accepted with min(1, p(x) / q'(x)); else the residual norm([p − q']_+) is drawn, which may
    be one of the likeliest tokens: accepted too.
    """
    p, q = wide(p), wide(q)
    top = q.topk(n - 1).indices
    rest = q.index_fill(0, top, 0.0)
    if not rest.sum() > 0:  # q has no token left to draw
        token = coins.choose(p)
        return token in top.tolist(), token
    rest = rest / rest.sum()
    x = coins.choose(rest)
    if coins.accept(min(1.0, float(p[x] / rest[x]))):
        return True, x
    token = coins.choose(residual(p, rest))
    return token in top.tolist(), token


def transport_bound(p: Tensor, sets: dict[frozenset[int], float]) -> float:
    """The best acceptance any rule can reach for a law of candidate sets: 1 + min_H (p(H) − Q(all drafts in H)).

    sets: set of drafted tokens → probability, see ``exact.law``. Hall's condition over all subsets H of the
    vocabulary: for toys (V up to about 12).
    """
    tokens = range(len(p))
    subsets = (frozenset(h) for size in range(len(p) + 1) for h in combinations(tokens, size))
    return 1 + min(float(p[list(h)].sum()) - sum(mass for drafts, mass in sets.items() if drafts <= h) for h in subsets)


RULES: dict[str, Callable[..., Elected]] = {f.__name__: f for f in (k_seq, spec_hub, greedy_multi_draft)}
