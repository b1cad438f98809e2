"""The verifiers step by step, in the letters of the Traversal paper.

M_b: (n, V), the target's distribution after each node.
M_s: (n, V), the draft's distribution after each node (``draft.q``), positive for every drafted token.
coins.accept(h): the paper's η < h.
p(X): in ``block`` and ``traversal``, the probability with which the path down to X survives.

The formulas of Algorithm 3 are missing in our text of the paper, so they are restored from its description. The update
that it calls lines 11 to 13 is marked (1) to (3). A test enumerates every coin and compares each function with its fast
form in ``top_down`` or ``bottom_up``: both have the same law.
"""

from torch import Tensor

from specnb.sampling import Coins
from specnb.tree import Draft, Verdict
from specnb.verifiers.base import struck


def norm(law: Tensor, otherwise: Tensor) -> Tensor:
    """A distribution: law divided by its sum, or otherwise if the sum is 0."""
    mass = law.sum()
    return law / mass if mass > 0 else otherwise


def token_level(draft: Draft, M_b: Tensor, coins: Coins) -> Verdict:
    """Token-level verification of a chain (Leviathan et al. 2023; Traversal paper, Algorithm 1)."""
    tree = draft.tree
    M_b = M_b.double()
    M_s = draft.q.double()
    path = []
    for i in range(1, len(tree)):  # the draft tokens X_1 … X_γ
        v = tree.parent_list[i]
        x = tree.token_list[i]
        ratio = float(M_b[v, x] / M_s[v, x])
        if not coins.accept(min(1.0, ratio)):
            rest = (M_b[v] - M_s[v]).clamp(min=0)
            recovered = coins.choose(norm(rest, M_b[v]))
            return Verdict(tuple(path), recovered)
        path.append(i)
    bonus = coins.choose(M_b[-1])  # all accepted: one more token from the target
    return Verdict(tuple(path), bonus)


def rrs(draft: Draft, M_b: Tensor, coins: Coins) -> Verdict:
    """Recursive rejection sampling, siblings drawn with replacement (Traversal paper, Algorithm 2)."""
    tree = draft.tree
    node = 0
    path = []
    while True:
        p = M_b[node].double()
        q = draft.q[node].double()
        accepted = None
        for child in tree.children[node]:
            x = tree.token_list[child]
            ratio = float(p[x] / q[x])
            if coins.accept(min(1.0, ratio)):
                accepted = child
                break
            p = norm((p - q).clamp(min=0), p)
        if accepted is None:
            return Verdict(tuple(path), coins.choose(p))
        path.append(accepted)
        node = accepted


def rrsw(draft: Draft, M_b: Tensor, coins: Coins) -> Verdict:
    """RRSw: siblings drawn without replacement, so a rejected token leaves q too (Traversal paper, section 2.2)."""
    tree = draft.tree
    node = 0
    path = []
    while True:
        p = M_b[node].double()
        q = draft.q[node].double()
        accepted = None
        for child in tree.children[node]:
            x = tree.token_list[child]
            ratio = float(p[x] / q[x])
            if coins.accept(min(1.0, ratio)):
                accepted = child
                break
            p = norm((p - q).clamp(min=0), p)
            q = norm(struck(q, x), q)
        if accepted is None:
            return Verdict(tuple(path), coins.choose(p))
        path.append(accepted)
        node = accepted


def block(draft: Draft, M_b: Tensor, coins: Coins) -> Verdict:
    """Block verification of a chain (Sun et al. 2024, arXiv 2403.10444, Algorithm 2)."""
    X = draft.tree.token_list
    M_b = M_b.double()
    M_s = draft.q.double()
    gamma = len(X) - 1
    tau = 0
    p = [1.0]  # p_0 = 1
    for i in range(1, gamma + 1):
        ratio = float(M_b[i - 1, X[i]] / M_s[i - 1, X[i]])
        p.append(min(p[i - 1] * ratio, 1.0))
        h = p[i]  # h_γ = p_γ
        if i < gamma:
            Z = float((p[i] * M_b[i] - M_s[i]).clamp(min=0).sum())
            h = Z / (Z + 1 - p[i]) if Z + 1 - p[i] > 0 else 1.0
        if coins.accept(h):
            tau = i  # the last acceptance counts, whatever came before it
    law = M_b[tau]
    if tau < gamma:
        rest = (p[tau] * M_b[tau] - M_s[tau]).clamp(min=0)
        law = norm(rest, M_b[tau])
    path = range(1, tau + 1)
    return Verdict(tuple(path), coins.choose(law))


def traversal(draft: Draft, M_b: Tensor, coins: Coins) -> Verdict:
    """Traversal verification (Weng et al. 2025, Algorithm 3) of siblings drawn without replacement."""
    tree = draft.tree
    live = [list(below) for below in tree.children]  # the children that have not been rejected
    M_b = M_b.double().clone()
    M_s = draft.q.double().clone()
    p = {0: 1.0}  # the root: p(X_0) = 1

    def descend(v: int) -> None:
        for X in live[v]:  # p(X) = min(p(v) · M_b(X) / M_s(X), 1)
            x = tree.token_list[X]
            if M_s[v, x] > 0:
                ratio = float(M_b[v, x] / M_s[v, x])
                p[X] = min(p[v] * ratio, 1.0)
            else:
                p[X] = 0.0
            descend(X)

    descend(0)
    while True:
        X = 0
        while live[X]:  # the first leaf, first-drawn children first
            X = live[X][0]
        if X == 0 or coins.accept(p[X]):
            Y = coins.choose(M_b[X])  # from the current M_b
            return Verdict(tree.path(X), Y)  # the whole path
        v = tree.parent_list[X]
        x = tree.token_list[X]
        rest = (p[v] * M_b[v] - M_s[v]).clamp(min=0)
        S = float(rest.sum())
        M_b[v] = norm(rest, M_b[v])  # lines 11 to 13: (1)
        M_s[v] = norm(struck(M_s[v], x), M_s[v])  # (2)
        p[v] = S / (S + 1 - p[v]) if S + 1 - p[v] > 0 else 1.0  # (3)
        live[v].remove(X)
        descend(v)  # every p below v again, from the new p(v), M_b and M_s
