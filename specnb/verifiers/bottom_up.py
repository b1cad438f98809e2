"""Bottom-up verifiers: block verification of chains, and traversal verification of any tree.

Top-down rules lose a whole subtree with its first node. These weigh a path as a whole: a node is on trial only when
everything below it has been rejected, with the probability that *something* through it should have survived.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specnb.sampling import Coins
from specnb.tree import Draft, Drawn, Trial, Verdict
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

    def survival_of_child(self, column: int, ratio: float) -> float:
        """min(survival · p(x)/q(x), 1) under the current laws; ratio: p(x)/q(x) under the untouched ones."""
        if self.p is not None:
            q_of_token = self.p.new_ones(()) if self.q is None else self.q[column]
            px, qx = torch.stack([self.p[column], q_of_token]).tolist()  # one read off the device
            ratio = _ratio(px * self.q_mass, qx * self.p_mass)
        return min(self.survival * ratio, 1.0)


def traversal(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Traversal verification (Weng et al. 2025, Algorithm 3): leaves first, in drawing order, then their parents.

    A node's survival is min(survival of its parent · p(x)/q(x), 1). The first leaf is accepted, with its whole path,
    with its survival; else it leaves the tree, and at its parent v (survival s) p ← norm([s·p − q]_+), q loses the
    token, and s ← S / (S + 1 − s) with S = Σ [s·p − q]_+. A parent without children is a leaf. Lossless for any tree
    drawn IID (where q stays) or SWOR, and for POINT trees (q one-hot, where it gains nothing over one_hot).

    Example: p = (.3, .4, .3) and q = (.6, .3, .1) after every node, and a chain of tokens 0 and 1. Token 0 survives
    with .3/.6 = 1/2, token 1 behind it with min(1/2 · .4/.3, 1) = 2/3: with 2/3 both are accepted. If not, token 0
    is a leaf, p behind it is norm([1/2 · p − q]_+) = (0, 0, 1) and S = .05, so that it is accepted alone with
    .05 / (.05 + 1/2) = 1/11. Token by token both would be accepted with 1/2 · 1 only.
    """
    check(draft, p)
    ratio = ratios(draft, p)
    columns = draft.columns.tolist()
    trials: list[Trial] = []
    stack = [Standing(0, 1.0, iter(draft.candidates[0]))]  # the path from the root to the node in hand
    while True:
        top = stack[-1]
        child = None
        if top.survival > 0:  # nothing below survives a dead node
            child = next(top.children, None)
        if child is not None:
            survival = top.survival_of_child(columns[child], ratio[child])
            stack.append(Standing(child, survival, iter(draft.candidates[child])))
            continue
        is_root = len(stack) == 1
        if is_root or toss(top.node, top.survival, coins, trials):
            path = tuple(standing.node for standing in stack[1:])
            token = choose(draft, p[top.node], top.p, coins)
            return Verdict(path, token, tuple(trials))
        stack.pop()
        _reject(draft, stack[-1], top.node, p)


def chances(draft: Draft, p: Tensor, *, token_level: bool = False) -> list[float]:
    """How likely each node is to be in the accepted path, on average over what is drawn below it and its siblings.

    By Lemma A.2 of the Traversal paper: if a node is reached with probability w and survives with s, the outcome
    runs through it with w · s; its next sibling is reached with w · (1 − s), its first child with w. At token level
    (RRSw, RRS) a node's children are reached only if it has been accepted, and start from survival 1. Summed over
    nodes and averaged over drawn trees this is the expected accepted length, as is the exact expectation given each
    tree, but it varies far less: at depth 1 both rules agree on every tree. Returns one probability per node.

    Example: p, q and the chain of ``traversal``'s example: 1 for the root, 1/2 and 2/3. Token by token: 1, 1/2, 1/2.
    """
    check(draft, p)
    ratio = ratios(draft, p)
    columns = draft.columns.tolist()
    n = len(columns)
    # One number a node, all 0 but the root's: auxiliary nodes keep it, since they do not stand for election.
    reached = [1.0] + [0.0] * (n - 1)
    survival = [1.0] + [0.0] * (n - 1)
    accepted = [1.0] + [0.0] * (n - 1)
    for node, children in enumerate(draft.candidates):
        if token_level:
            standing = Standing(node, 1.0, iter(()))
            next_reached = accepted[node]
        else:
            standing = Standing(node, survival[node], iter(()))
            next_reached = reached[node]
        for child in children:
            survival[child] = standing.survival_of_child(columns[child], ratio[child])
            reached[child] = next_reached
            accepted[child] = next_reached * survival[child]
            next_reached -= accepted[child]
            _reject(draft, standing, child, p)
    return accepted


def _reject(draft: Draft, standing: Standing, child: int, p: Tensor) -> None:
    """Update a node's p, q and survival when a child has been rejected (Algorithm 3, lines 11 to 13).

    Example: a node of survival 1 with p = (.3, .4, .3), q = (.6, .3, .1), and a child of token 0. What is left of p
    is [p − q]_+ = (0, .1, .2), of mass .3, and of q without replacement (0, .3, .1), of mass .4. The survival stays
    .3 / (.3 + 1 − 1) = 1.
    """
    node = standing.node
    law = over_columns(draft, p[node]) if standing.p is None else standing.p
    q = draft_law(draft, node, child, law) if standing.q is None else standing.q

    # s·p − q = (scale · law − q) / q_mass. A scale of 0 changes neither p nor s: a dead node (s = 0) stays dead, and
    # a q without mass takes nothing away.
    scale = standing.survival * standing.q_mass / standing.p_mass
    changes_p = scale > 1e-300
    if changes_p:
        rest = torch.sub(law, q, alpha=1 / scale).clamp_min_(0)  # most of the work, hence one pass
    else:
        rest = law

    is_last = child == draft.candidates[node][-1]  # behind the last child nobody asks for q
    loses_token = draft.drawn is Drawn.SWOR and not is_last
    q_left = struck(q, int(draft.columns[child])) if loses_token else q

    rest_mass, q_left_mass = torch.stack([rest.sum(), q_left.sum()]).tolist()  # one read off the device
    if changes_p:
        S = rest_mass * scale / standing.q_mass
        standing.survival = odds(S, standing.survival)
        if rest_mass > 0:
            standing.p = rest
            standing.p_mass = rest_mass
        else:
            standing.p = law
    if draft.drawn is not Drawn.POINT:
        standing.q = q_left
    if loses_token:
        standing.q_mass = q_left_mass


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
    p_child = probabilities(draft, p)
    if draft.drawn is Drawn.POINT:
        return p_child
    q_child = probabilities(draft, draft.q, "q")
    return [_ratio(px, qx) for px, qx in zip(p_child, q_child, strict=True)]


def _ratio(px: float, qx: float) -> float:
    return px / qx if qx > 0 else 0.0
