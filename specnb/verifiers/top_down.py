"""Top-down verifiers: each node is accepted or rejected by itself, from the root downwards.

A law is a probability distribution over the vocabulary. Each function here is ``verifier(draft, p, coins) -> Verdict``.
p: (n, V) float32 or wider; row i is the target's law after node i. Rows of auxiliary nodes (which are never accepted)
may be left out after the last candidate. Arithmetic is float64.

Siblings are tried in drawing order. A verifier reads a node's laws, V numbers each, only after a rejection, or to draw
the last token. It refuses a draft for which it would not be lossless. ``textbook`` has the same rules as the papers
print them.
"""

from collections.abc import Callable
from math import isnan

import torch
from torch import Tensor

from specnb.sampling import Coins, likeliest, residual, wide
from specnb.tree import Draft, Drawn, Trial, Verdict
from specnb.verifiers.base import check, choose, drawn_from, is_chain, need, over_columns, probabilities, toss, without

# judge(node, trials) → (the accepted child, None), or (None, the step's last token). It appends each trial to the list.
Judge = Callable[[int, list[Trial]], tuple[int | None, int | None]]


def greedy(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Follow the target's argmax through the tree: what every lossless verifier does at temperature 0.

    Lossless for any draft if p is one-hot; ValueError if p is not.
    """
    check(draft, p)
    top = likeliest(p)  # (n,) the target's likeliest token after each node
    top_p = p.gather(1, top[:, None])[:, 0]  # (n,) its probability
    tokens, probability = torch.stack([wide(top), wide(top_p)]).tolist()  # one read off the device

    def argmax_after(node: int) -> int:
        largest = probability[node]
        if isnan(largest):
            raise ValueError("p holds nan, which is no probability: are there NaN in the logits?")
        if not largest >= 1 - 1e-6:  # float32 may round slightly below 1
            raise ValueError(
                f"greedy verification needs one-hot p (temperature 0), got a largest probability of "
                f"{largest:.3f}: use one_hot, rrs, rrsw or sample_and_match"
            )
        return int(tokens[node])

    return _follow(draft, argmax_after)


def sample_and_match(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Draw the target's own token at each node and follow the child that equals it, if there is one.

    Lossless for any draft, because all tokens are drawn from the target's law. Also called naive (NSS) verification.
    """
    check(draft, p)

    def draw_after(node: int) -> int:
        return coins.choose(p[node])

    return _follow(draft, draw_after)


def one_hot(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Rejection sampling with one-hot q: accept a child x with probability p(x); else set p(x) to 0 and renormalise p.

    Example: p is (.3, .4, .3) after the root, whose children have tokens 1 and 0. Token 1 is accepted with
    probability .4. After its rejection p is (.5, 0, .5), so token 0 is accepted with .3 / .6 = .5. After another
    rejection only token 2 is left, and it is drawn with certainty.

    Lossless for any tree that does not depend on the verifier's coins: top-k trees (EAGLE-2, DynaTree, PCT, SALF),
    retrieval and self-drafting (PTD, Lookahead). Lossless for sampled trees, too, but there a verifier that uses q
    accepts more.
    """
    check(draft, p)
    p_child = probabilities(draft, p)  # (c,): each node's token after its parent, up to the last candidate

    def judge(node: int, trials: list[Trial]) -> tuple[int | None, int | None]:
        struck = []  # rejected tokens
        remaining = 1.0  # the mass of all other tokens
        for child in draft.candidates[node]:
            token = draft.tree.token_list[child]
            mass = 0.0 if token in struck else p_child[child]
            acceptance = mass / remaining if remaining > 0 else 0.0
            if toss(child, acceptance, coins, trials):
                return child, None
            struck.append(token)
            remaining -= mass
        law = wide(p[node])
        if struck:
            law = law.clone()
            law[struck] = 0
        law = torch.where(law.any(), law, p[node])  # p itself where rounding left no mass
        return None, coins.choose(law)

    return _descend(judge)


def rrs(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Recursive rejection sampling, siblings drawn with replacement (SpecInfer; Traversal paper, Algorithm 2).

    A child x is accepted with probability min(1, p(x)/q(x)). After a rejection p ← norm([p − q]_+), and the next
    sibling is tried with the same q. Needs an IID draft, or one with at most one child per node.

    Example: p = (.3, .4, .3) and q = (.6, .3, .1) after the root, whose children have tokens 0 and 1. Token 0 is
    accepted with probability .3 / .6 = .5. After its rejection p is (0, 1/3, 2/3), and q stays. Now token 1 is accepted
    with certainty, because (1/3) / .3 is above 1. If the second child had token 0 again, it would be rejected.
    """
    need(draft, Drawn.IID, "rrs", "rrsw")
    return _recursive_rejection(draft, p, coins, remove=False)


def rrsw(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Recursive rejection sampling without replacement (RRSw: Sequoia, EAGLE; Traversal paper, section 2.2).

    It does what ``rrs`` does, and a rejected token x also leaves q: q ← norm(q with q(x) = 0). Needs a SWOR draft, or
    one with at most one child per node.

    Example: with the p and q of ``rrs``, after the rejection of token 0, q is (0, 3/4, 1/4). So token 1 would be
    accepted with probability (1/3) / (3/4) = 4/9, and token 2 with probability 1.
    """
    need(draft, Drawn.SWOR, "rrsw", "rrs")
    return _recursive_rejection(draft, p, coins, remove=True)


def token_level(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Token-level verification of a chain (Leviathan et al. 2023; Traversal paper, Algorithm 1): ``rrs`` on a chain.

    Raises ValueError on a draft that branches.
    """
    if not is_chain(draft):
        raise ValueError("token_level verifies chains: this draft branches, use rrs, rrsw or one_hot")
    need(draft, Drawn.IID, "token_level", "rrsw")
    return _recursive_rejection(draft, p, coins, remove=False)


def _recursive_rejection(draft: Draft, p: Tensor, coins: Coins, *, remove: bool) -> Verdict:
    """The common code of ``rrs`` and ``rrsw``; remove: whether a rejected token leaves q."""
    check(draft, p)
    if not any(draft.candidates):
        return Verdict((), coins.choose(p[0]))
    p_child = probabilities(draft, p)  # (c,): each node's token after its parent, up to the last candidate
    q_child = probabilities(draft, draft.q, "q")  # (c,)
    columns = draft.columns.tolist()

    def judge(node: int, trials: list[Trial]) -> tuple[int | None, int | None]:
        # What rejections have left of the node's p and q, over the draft's columns. None before the first rejection:
        # until then p_child and q_child have all numbers that are needed.
        law = None
        q = None
        for child in draft.candidates[node]:
            column = columns[child]
            if law is None:
                px = p_child[child]
                qx = q_child[child]
            else:
                px, qx = torch.stack([law[column], q[column]]).tolist()  # one read off the device
            acceptance = px / qx if qx > 0 else 0.0
            if toss(child, acceptance, coins, trials):
                return child, None
            if law is None:
                law = over_columns(draft, p[node])
                q = drawn_from(draft, node)
            law = residual(law, q)
            if remove:
                q = without(q, column)
        return None, choose(draft, p[node], law, coins)

    return _descend(judge)


def by_draw(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """The lossless top-down rule that fits how the draft was drawn: one_hot, rrs or rrsw."""
    rules = {Drawn.POINT: one_hot, Drawn.IID: rrs, Drawn.SWOR: rrsw}
    rule = rules[draft.drawn]
    return rule(draft, p, coins)


def _descend(judge: Judge) -> Verdict:
    """Walk from the root downwards, until ``judge`` accepts no child of a node and returns the last token."""
    path: list[int] = []
    trials: list[Trial] = []
    node = 0
    while True:
        child, token = judge(node, trials)
        if child is None:
            return Verdict(tuple(path), token, tuple(trials))
        path.append(child)
        node = child


def _follow(draft: Draft, token_after: Callable[[int], int]) -> Verdict:
    """Walk along the target's tokens, token_after(node), while a candidate has them. Each compared child is a trial."""

    def judge(node: int, trials: list[Trial]) -> tuple[int | None, int | None]:
        token = token_after(node)
        for child in draft.candidates[node]:
            is_equal = draft.tree.token_list[child] == token
            trials.append(Trial(child, float(is_equal), is_equal))
            if is_equal:
                return child, None
        return None, token

    return _descend(judge)
