"""Top-down verifiers: each node is accepted or rejected by itself, from the root downwards.

Each is ``verifier(draft, p, coins) -> Verdict`` with p: (n, V) float32 or wider, row i the target's law after node i;
rows of auxiliary nodes behind the last candidate may be missing. Arithmetic is float64. Siblings are tried in drawing
order; where a drawn draft is accepted nothing of the vocabulary's size is touched. A verifier refuses a draft for which
it would not be lossless. ``textbook`` has the rules that the papers print, as they print them.
"""

from collections.abc import Callable
from math import isnan

import torch
from torch import Tensor

from specnb.sampling import Coins, likeliest, residual, wide
from specnb.tree import Draft, Drawn, Trial, Verdict
from specnb.verifiers.base import check, choose, drawn_from, is_chain, need, over_columns, probabilities, toss, without

Judge = Callable[[int, list[Trial]], tuple[int | None, int | None]]


def greedy(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Follow the target's argmax through the tree: the T = 0 limit of every lossless verifier.

    Lossless for any draft when p is one-hot; ValueError when p is not.
    """
    check(draft, p)
    tops = likeliest(p)
    masses = p.gather(1, tops[:, None])[:, 0]
    tops, largest = torch.stack([wide(tops), wide(masses)]).tolist()  # one read

    def top(node: int) -> int:
        if isnan(largest[node]):
            raise ValueError("p holds nan, which is no probability: are there NaN in the logits?")
        if not largest[node] >= 1 - 1e-6:
            raise ValueError(
                f"greedy verification needs one-hot p (temperature 0), got a largest probability of "
                f"{largest[node]:.3f}: use one_hot, rrs, rrsw or sample_and_match"
            )
        return int(tops[node])

    return _follow(draft, top)


def sample_and_match(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Draw the target's own token at each node and follow the child that equals it, if there is one.

    Trivially lossless for any draft: the tokens are the target's draws. Also called naive (NSS) verification.
    """
    check(draft, p)
    return _follow(draft, lambda node: coins.choose(p[node]))


def one_hot(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Rejection with one-hot q: accept child x with what p still gives it, else strike x out and renormalise.

    Lossless for any tree chosen without looking at the target's coins: top-k trees (EAGLE-2, DynaTree, PCT,
    SALF), retrieval and self-drafting (PTD, Lookahead); on sampled trees too, though it then wastes q.
    """
    check(draft, p)

    def judge(node: int, trials: list[Trial]) -> tuple[int | None, int | None]:
        left, struck = 1.0, []
        for child in draft.candidates[node]:
            mass = 0.0 if draft.tree.token_list[child] in struck else float(chance[child])
            if toss(child, mass / left if left > 0 else 0.0, coins, trials):
                return child, None
            struck.append(draft.tree.token_list[child])
            left -= mass
        law = wide(p[node])
        if struck:
            law = law.clone()
            law[struck] = 0
        return None, coins.choose(torch.where(law.any(), law, p[node]))

    chance = probabilities(draft, p)
    return _descend(judge)


def rrs(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Recursive rejection sampling, siblings drawn with replacement (SpecInfer; Traversal paper, Algorithm 2).

    Accept child x with min(1, p(x)/q(x)); else p ← norm([p − q]_+) and the next sibling is tried against the
    same q. Needs an IID draft, or one with at most one child per node.
    """
    need(draft, Drawn.IID, "rrs", "rrsw")
    return _recursive_rejection(draft, p, coins, remove=False)


def rrsw(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Recursive rejection sampling without replacement (RRSw: Sequoia, EAGLE; Traversal paper, section 2.2).

    As ``rrs``, and a rejected token leaves q as well: q ← norm(q with q(x) = 0). Needs a SWOR draft, or one
    with at most one child per node.
    """
    need(draft, Drawn.SWOR, "rrsw", "rrs")
    return _recursive_rejection(draft, p, coins, remove=True)


def token_level(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Token-level verification of a chain (Leviathan et al. 2023; Traversal paper, Algorithm 1)."""
    if not is_chain(draft):
        raise ValueError("token_level verifies chains: this draft branches, use rrs, rrsw or one_hot")
    need(draft, Drawn.IID, "token_level", "rrsw")
    return _recursive_rejection(draft, p, coins, remove=False)


def _recursive_rejection(draft: Draft, p: Tensor, coins: Coins, *, remove: bool) -> Verdict:
    check(draft, p)
    if not any(draft.candidates):
        return Verdict((), coins.choose(p[0]))
    p_child, q_child, columns = probabilities(draft, p), probabilities(draft, draft.q, "q"), draft.columns.tolist()

    def judge(node: int, trials: list[Trial]) -> tuple[int | None, int | None]:
        law = q = None  # the current p and q of this node over columns; untouched until the first rejection
        for child in draft.candidates[node]:
            x = columns[child]
            px, qx = (p_child[child], q_child[child]) if law is None else torch.stack([law[x], q[x]]).tolist()
            if toss(child, px / qx if qx > 0 else 0.0, coins, trials):
                return child, None
            if law is None:
                law, q = over_columns(draft, p[node]), drawn_from(draft, node)
            law = residual(law, q)
            if remove:
                q = without(q, x)
        return None, choose(draft, p[node], law, coins)

    return _descend(judge)


def by_draw(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """The lossless top-down rule that fits how the draft was drawn: one_hot, rrs or rrsw."""
    return {Drawn.POINT: one_hot, Drawn.IID: rrs, Drawn.SWOR: rrsw}[draft.drawn](draft, p, coins)


def _descend(judge: Judge) -> Verdict:
    """Top-down walk: ``judge`` elects a child of the node, or none and then the next token."""
    path: list[int] = []
    trials: list[Trial] = []
    while True:
        child, token = judge(path[-1] if path else 0, trials)
        if child is None:
            return Verdict(tuple(path), token, tuple(trials))
        path.append(child)


def _follow(draft: Draft, say: Callable[[int], int]) -> Verdict:
    """Top-down walk along the target's tokens, say(node), while a candidate carries them; each looked at is a trial."""

    def match(node: int, trials: list[Trial]) -> tuple[int | None, int]:
        token = say(node)
        for child in draft.candidates[node]:
            equal = draft.tree.token_list[child] == token
            trials.append(Trial(child, float(equal), equal))
            if equal:
                return child, token
        return None, token

    return _descend(match)
