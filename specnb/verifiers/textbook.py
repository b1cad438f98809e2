"""The verifiers step by step, in the Traversal paper's letters. The fast forms have the same laws.

M_b is the target's distribution and M_s the draft's, one row per node; coins.accept(h) is the paper's η < h. In the
bottom-up rules p(X) is the probability that a path up to X survives. Algorithm 3 is restored: its formulas are missing
in the text we have, which cites lines 11 to 13 for the update that is marked (1) to (3) here. q(x) > 0 for every
drafted x. A test enumerates every coin and finds each function equal to its fast form (``top_down``, ``bottom_up``).
"""

from torch import Tensor

from specnb.sampling import Coins
from specnb.tree import Draft, Verdict
from specnb.verifiers.base import struck


def norm(law: Tensor, otherwise: Tensor) -> Tensor:
    """A law divided by its mass; the other one if it has none."""
    return law / law.sum() if law.sum() > 0 else otherwise


def token_level(draft: Draft, M_b: Tensor, coins: Coins) -> Verdict:
    """Token-level verification of a chain (Leviathan et al. 2023; Traversal paper, Algorithm 1)."""
    tree, M_b, M_s, path = draft.tree, M_b.double(), draft.q.double(), []
    for i in range(1, len(tree)):  # the draft tokens X_1 … X_γ
        v, x = tree.parent_list[i], tree.token_list[i]
        if not coins.accept(min(1.0, float(M_b[v, x] / M_s[v, x]))):
            return Verdict(tuple(path), coins.choose(norm((M_b[v] - M_s[v]).clamp(min=0), M_b[v])))
        path.append(i)
    return Verdict(tuple(path), coins.choose(M_b[-1]))  # all accepted: one more token from the target


def rrs(draft: Draft, M_b: Tensor, coins: Coins) -> Verdict:
    """Recursive rejection sampling, siblings drawn with replacement (Traversal paper, Algorithm 2)."""
    tree, node, path = draft.tree, 0, []
    while True:
        p, q = M_b[node].double(), draft.q[node].double()
        for child in tree.children[node]:
            x = tree.token_list[child]
            if coins.accept(min(1.0, float(p[x] / q[x]))):
                break
            p = norm((p - q).clamp(min=0), p)
        else:
            return Verdict(tuple(path), coins.choose(p))
        path.append(child)
        node = child


def rrsw(draft: Draft, M_b: Tensor, coins: Coins) -> Verdict:
    """RRSw: siblings drawn without replacement, so a rejected token leaves q too (Traversal paper, section 2.2)."""
    tree, node, path = draft.tree, 0, []
    while True:
        p, q = M_b[node].double(), draft.q[node].double()
        for child in tree.children[node]:
            x = tree.token_list[child]
            if coins.accept(min(1.0, float(p[x] / q[x]))):
                break
            p = norm((p - q).clamp(min=0), p)
            q = norm(struck(q, x), q)
        else:
            return Verdict(tuple(path), coins.choose(p))
        path.append(child)
        node = child


def block(draft: Draft, M_b: Tensor, coins: Coins) -> Verdict:
    """Block verification of a chain (Sun et al. 2024, arXiv 2403.10444, Algorithm 2)."""
    X, M_b, M_s = draft.tree.token_list, M_b.double(), draft.q.double()
    gamma, tau, p = len(X) - 1, 0, [1.0]  # p_0 = 1
    for i in range(1, gamma + 1):
        p.append(min(p[i - 1] * float(M_b[i - 1, X[i]] / M_s[i - 1, X[i]]), 1.0))
        h = p[i]  # h_γ = p_γ
        if i < gamma:
            Z = float((p[i] * M_b[i] - M_s[i]).clamp(min=0).sum())
            h = Z / (Z + 1 - p[i]) if Z + 1 - p[i] > 0 else 1.0
        if coins.accept(h):
            tau = i  # the last acceptance counts, whatever came before it
    law = M_b[tau] if tau == gamma else norm((p[tau] * M_b[tau] - M_s[tau]).clamp(min=0), M_b[tau])
    return Verdict(tuple(range(1, tau + 1)), coins.choose(law))


def traversal(draft: Draft, M_b: Tensor, coins: Coins) -> Verdict:
    """Traversal verification (Weng et al. 2025, Algorithm 3) of siblings drawn without replacement."""
    tree, live = draft.tree, [list(below) for below in draft.tree.children]
    M_b, M_s, p = M_b.double().clone(), draft.q.double().clone(), {0: 1.0}  # the root: p(X_0) = 1

    def descend(v: int) -> None:
        for X in live[v]:  # p(X) = min(p(v) · M_b(X) / M_s(X), 1)
            x = tree.token_list[X]
            p[X] = min(p[v] * float(M_b[v, x] / M_s[v, x]), 1.0) if M_s[v, x] > 0 else 0.0
            descend(X)

    descend(0)
    while True:
        X = 0
        while live[X]:  # the first leaf, first-drawn children first
            X = live[X][0]
        if X == 0 or coins.accept(p[X]):
            return Verdict(tree.path(X), coins.choose(M_b[X]))  # the whole path, and Y from the current M_b
        v = tree.parent_list[X]
        rest = (p[v] * M_b[v] - M_s[v]).clamp(min=0)
        S = float(rest.sum())
        M_b[v] = norm(rest, M_b[v])  # lines 11 to 13: (1)
        M_s[v] = norm(struck(M_s[v], tree.token_list[X]), M_s[v])  # (2)
        p[v] = S / (S + 1 - p[v]) if S + 1 - p[v] > 0 else 1.0  # (3)
        live[v].remove(X)
        descend(v)  # every p below v again, from the new p(v), M_b and M_s
