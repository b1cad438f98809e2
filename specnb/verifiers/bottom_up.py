"""Bottom-up verifiers: block verification of chains, and traversal verification of any tree.

A top-down verifier loses all nodes of a subtree when it rejects the subtree's first node. These verifiers start at the
leaves: a node is tried only when everything below it has been rejected. It is then accepted with its survival, the
probability that some path through it survives, given these rejections. A law is a probability distribution over the
vocabulary.
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

    For a chain x_1 … x_γ let p_0 = 1 and p_i = min(p_{i−1} · p(x_i)/q(x_i), 1). The prefix of length i is accepted
    with probability h_i: h_γ = p_γ, and for i < γ h_i = Z / (Z + 1 − p_i) with Z = Σ [p_i · p − q]_+. The longest
    accepted prefix counts, even if shorter ones were rejected. On a chain, traversal does the same from the longest
    prefix down, so this function calls it; an example is there.

    Lossless for chains drawn from q, and for POINT chains (where it accepts no more than ``one_hot``). Raises
    ValueError on a draft that branches.
    """
    if not is_chain(draft):
        raise ValueError("block verifies chains: this draft branches, use traversal")
    return traversal(draft, p, coins)


@dataclass
class Standing:
    """A node whose subtree is being traversed.

    node: its index in the tree.
    survival: the probability with which it is accepted once everything below it has been rejected.
    children: its children that have not been tried yet.
    p, q: what rejections have left of its laws, float64 over the draft's columns, not normalised; None before the first
        rejection. q stays None for a POINT draft, where the q of each child is one-hot.
    p_mass, q_mass: the sums of p and q.
    """

    node: int
    survival: float
    children: Iterator[int]
    p: Tensor | None = None
    q: Tensor | None = None
    p_mass: float = 1.0
    q_mass: float = 1.0

    def survival_of_child(self, column: int, ratio: float) -> float:
        """min(survival · p(x)/q(x), 1) with the current laws.

        column: the column of the child's token x. ratio: p(x)/q(x) with the laws before any rejection.
        """
        if self.p is not None:
            q_of_token = self.p.new_ones(()) if self.q is None else self.q[column]
            px, qx = torch.stack([self.p[column], q_of_token]).tolist()  # one read off the device
            ratio = _ratio(px * self.q_mass, qx * self.p_mass)
        return min(self.survival * ratio, 1.0)


def traversal(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Traversal verification (Weng et al. 2025, Algorithm 3): leaves first, in drawing order, then their parents.

    Example: p = (.3, .4, .3) and q = (.6, .3, .1) after every node, and a chain of tokens 0 and 1. The survival of
    token 0 is .3/.6 = 1/2, that of token 1 after it min(1/2 · .4/.3, 1) = 2/3. So both are accepted with probability
    2/3. If not, token 0 is a leaf now. p after it is norm([1/2 · p − q]_+) = (0, 0, 1) with S = .05, so token 0 is
    accepted alone with probability .05 / (.05 + 1/2) = 1/11. Token-level verification would accept both with
    probability 1/2 · 1 only.

    The survival of a node is min(survival of its parent · p(x)/q(x), 1). The first leaf is accepted, together with its
    path, with the probability of its survival. If it is rejected, it is removed from the tree, and its parent, with
    survival s, is updated: S = Σ [s·p − q]_+, p ← norm([s·p − q]_+), q loses the token, and s ← S / (S + 1 − s). A
    parent without children is a leaf.

    Lossless for any tree drawn IID (there q keeps the token) or SWOR, and for POINT trees (there q is one-hot, and as
    many tokens are accepted as by ``one_hot``).
    """
    check(draft, p)
    ratio = ratios(draft, p)
    columns = draft.columns.tolist()
    trials: list[Trial] = []
    stack = [Standing(0, 1.0, iter(draft.candidates[0]))]  # the path from the root to the current node
    while True:
        top = stack[-1]
        child = None
        if top.survival > 0:  # else nothing below it can be accepted
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
    """Return for each node the probability that it is on the accepted path.

    It is an average over what is drawn below the node and its siblings.

    Example: for the p, q and chain of the example of ``traversal``, (1, 1/2, 2/3) with the root first. At token level
    (1, 1/2, 1/2).

    token_level: False for ``traversal``; True for RRS and RRSw, where a node's children are reached only if it has been
        accepted, and start from survival 1.

    This is Lemma A.2 of the Traversal paper. If a node is reached with probability w and has survival s, the accepted
    path goes through it with w · s. Its next sibling is reached with w · (1 − s), and its first child with w.

    The sum over all nodes is an estimate of the accepted length. Averaged over drawn trees it equals the expected
    accepted length, like the exact expectation given each tree, but it varies far less from tree to tree. At depth 1
    both rules have the same value on every tree.
    """
    check(draft, p)
    ratio = ratios(draft, p)
    columns = draft.columns.tolist()
    n = len(columns)
    # One number per node, 0 except for the root. Auxiliary nodes keep 0, because they are never accepted.
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
    """Update a node's p, q and survival after the rejection of a child (Algorithm 3, lines 11 to 13).

    Example: a node of survival 1 with p = (.3, .4, .3), q = (.6, .3, .1), and a child of token 0. p becomes
    [p − q]_+ = (0, .1, .2) with mass .3, and q, without replacement, (0, .3, .1) with mass .4. The survival stays
    .3 / (.3 + 1 − 1) = 1.
    """
    node = standing.node
    law = over_columns(draft, p[node]) if standing.p is None else standing.p
    q = draft_law(draft, node, child, law) if standing.q is None else standing.q

    # s·p − q = (scale · law − q) / q_mass. With a scale of 0, p and s stay as they are: either s = 0, and no path
    # through the node can be accepted any more, or q has no mass to subtract.
    scale = standing.survival * standing.q_mass / standing.p_mass
    changes_p = scale > 1e-300  # not 0, and large enough that 1 / scale is finite
    if changes_p:
        rest = torch.sub(law, q, alpha=1 / scale).clamp_min_(0)  # the slowest line, hence in one pass over the columns
    else:
        rest = law

    is_last = child == draft.candidates[node][-1]  # after the last child q is not needed any more
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
    """S / (S + 1 − s), and 1 if that is 0 / 0 (S = 0 and s = 1): then p equals q.

    mass: S. survival: s.
    """
    rest = mass + (1 - survival)
    return mass / rest if rest > 0 else 1.0


def draft_law(draft: Draft, node: int, child: int, like: Tensor) -> Tensor:
    """Return the law that a child was drawn from, one-hot for a POINT draft; like: a law over the same columns."""
    if draft.drawn is not Drawn.POINT:
        return drawn_from(draft, node)
    law = torch.zeros_like(like)
    law[int(draft.columns[child])] = 1.0
    return law


def ratios(draft: Draft, p: Tensor) -> list[float]:
    """Return p(x)/q(x) of every node's token under its parent's laws before any rejection; p(x) for a POINT draft."""
    p_child = probabilities(draft, p)
    if draft.drawn is Drawn.POINT:
        return p_child
    q_child = probabilities(draft, draft.q, "q")
    return [_ratio(px, qx) for px, qx in zip(p_child, q_child, strict=True)]


def _ratio(px: float, qx: float) -> float:
    return px / qx if qx > 0 else 0.0
