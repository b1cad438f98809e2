"""Bottom-up verifiers: block verification of chains, and traversal verification of any tree.

Top-down rules lose a whole subtree with its first node. These weigh a path as a whole: a node is on trial only when
everything below it has been rejected, with the probability that *something* through it should have survived.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specnb.sampling import Coins
from specnb.tree import Draft, Drawn, Verdict
from specnb.verifiers.base import check, choose, drawn_from, is_chain, over_columns, probabilities, struck, toss


def block(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Block verification of a chain (Sun et al. 2024, arXiv 2403.10444, Algorithm 2).

    With p_i = min(p_{i−1} · p(x_i)/q(x_i), 1) and p_0 = 1 the prefix of length i is accepted with h_γ = p_γ and, for
    i < γ, h_i = Z / (Z + 1 − p_i), Z = Σ [p_i · p − q]_+; the longest accepted prefix counts, whatever shorter ones
    came to. On a chain traversal does just this, from the longest prefix down. Lossless for chains drawn from q, and
    for POINT chains (where it gains nothing). Raises ValueError on a draft that branches.
    """
    if not is_chain(draft):
        raise ValueError("block verifies chains: this draft branches, use traversal")
    return traversal(draft, p, coins)


@dataclass
class Standing:
    """A node whose subtree is being traversed: its survival, children not tried yet, and its current p and q.

    p and q are None until a child has been rejected: then what is left of them, float64 over the draft's columns and
    not normalised: p_mass and q_mass are their sums. A POINT draft has no q: each child's is one-hot.
    """

    node: int
    survival: float
    children: Iterator[int]
    p: Tensor | None = None
    q: Tensor | None = None
    p_mass: float = 1.0
    q_mass: float = 1.0

    def of_child(self, column: int, ratio: float) -> float:
        """min(survival · p(x)/q(x), 1) under the current laws; ratio: p(x)/q(x) under the untouched ones."""
        if self.p is not None:
            both = torch.stack([self.p[column], self.p.new_ones(()) if self.q is None else self.q[column]])
            px, qx = both.tolist()
            ratio = _ratio(px * self.q_mass, qx * self.p_mass)
        return min(self.survival * ratio, 1.0)


def traversal(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Traversal verification (Weng et al. 2025, Algorithm 3): leaves first, in drawing order, then their parents.

    A node's survival is min(survival of its parent · p(x)/q(x), 1). The first leaf is accepted, with its whole path,
    with its survival; else it leaves the tree, and at its parent v (survival s) p ← norm([s·p − q]_+), q loses the
    token, and s ← S / (S + 1 − s) with S = Σ [s·p − q]_+. A parent without children is a leaf. Lossless for any tree
    drawn IID (where q stays) or SWOR, and for POINT trees (q one-hot, where it gains nothing over one_hot).
    """
    check(draft, p)
    ratio, columns, trials = ratios(draft, p), draft.columns.tolist(), []
    stack = [Standing(0, 1.0, iter(draft.candidates[0]))]
    while True:
        top = stack[-1]
        child = next(top.children, None) if top.survival > 0 else None  # nothing below survives a dead node
        if child is not None:
            survival = top.of_child(columns[child], ratio[child])
            stack.append(Standing(child, survival, iter(draft.candidates[child])))
            continue
        if len(stack) == 1 or toss(top.node, top.survival, coins, trials):
            token = choose(draft, p[top.node], top.p, coins)
            return Verdict(tuple(standing.node for standing in stack[1:]), token, tuple(trials))
        stack.pop()
        _reject(draft, stack[-1], top.node, p)


def chances(draft: Draft, p: Tensor, *, token_level: bool = False) -> list[float]:
    """How likely each node is to be in the accepted path, on average over what is drawn below it and its siblings.

    By Lemma A.2 of the Traversal paper: if a node is reached with probability w and survives with s, the outcome
    runs through it with w · s; its next sibling is reached with w · (1 − s), its first child with w. At token level
    (RRSw, RRS) a node's children are reached only if it has been accepted, and start from survival 1. Summed over
    nodes and averaged over drawn trees this is the expected accepted length, as is the exact expectation given each
    tree, but it varies far less: at depth 1 both rules agree on every tree. Returns one probability per node.
    """
    check(draft, p)
    ratio, columns = ratios(draft, p), draft.columns.tolist()
    none = [0.0] * (len(columns) - 1)  # auxiliary nodes keep it: they do not stand for election
    reached, survival, found = [1.0, *none], [1.0, *none], [1.0, *none]
    for node, children in enumerate(draft.candidates):
        at = Standing(node, 1.0 if token_level else survival[node], iter(()))
        left = found[node] if token_level else reached[node]
        for child in children:
            survival[child] = at.of_child(columns[child], ratio[child])
            reached[child], found[child] = left, left * survival[child]
            left -= found[child]
            _reject(draft, at, child, p)
    return found


def _reject(draft: Draft, at: Standing, child: int, p: Tensor) -> None:
    """Equations of Algorithm 3, lines 11 to 13: what is left of p, q and survival when a child has been rejected."""
    law = over_columns(draft, p[at.node]) if at.p is None else at.p
    q = draft_law(draft, at.node, child, law) if at.q is None else at.q
    scale = at.survival * at.q_mass / at.p_mass  # s·p − q = (scale · law − q) / q_mass
    # most of the work, hence one pass:
    rest = torch.sub(law, q, alpha=1 / scale).clamp_min_(0) if scale > 1e-300 else law
    last = child == draft.candidates[at.node][-1]  # after it, q is done with
    left = struck(q, int(draft.columns[child])) if draft.drawn is Drawn.SWOR and not last else q
    mass, q_mass = torch.stack([rest.sum(), left.sum()]).tolist()  # one read off the device
    if scale > 1e-300:  # else nothing changes: a dead node (s = 0) stays dead, a spent q takes nothing away
        at.survival = odds(mass * scale / at.q_mass, at.survival)
        at.p, at.p_mass = (rest, mass) if mass > 0 else (law, at.p_mass)
    if draft.drawn is not Drawn.POINT:
        at.q, at.q_mass = left, at.q_mass if left is q else q_mass


def odds(mass: float, survival: float) -> float:
    """S / (S + 1 − s), one where both vanish: p and q agree and nothing is left to lose."""
    rest = mass + (1 - survival)
    return mass / rest if rest > 0 else 1.0


def draft_law(draft: Draft, node: int, child: int, like: Tensor) -> Tensor:
    """The law a child of node was drawn from, over the columns of a law like this one; one-hot for a POINT draft."""
    if draft.drawn is not Drawn.POINT:
        return drawn_from(draft, node)
    law = torch.zeros_like(like)
    law[int(draft.columns[child])] = 1.0
    return law


def ratios(draft: Draft, p: Tensor) -> list[float]:
    """p(x)/q(x) of every node's token under the untouched laws of its parent; p(x) for a POINT draft."""
    above = probabilities(draft, p)
    return above if draft.drawn is Drawn.POINT else [*map(_ratio, above, probabilities(draft, draft.q, "q"))]


def _ratio(px: float, qx: float) -> float:
    return px / qx if qx > 0 else 0.0
