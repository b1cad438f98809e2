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

# judge(node, trials) → (the accepted child, None), or (None, the step's last token). It notes each trial in the list.
Judge = Callable[[int, list[Trial]], tuple[int | None, int | None]]


def greedy(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Follow the target's argmax through the tree: the T = 0 limit of every lossless verifier.

    Lossless for any draft when p is one-hot; ValueError when p is not.
    """
    check(draft, p)
    top = likeliest(p)  # (n,) the target's likeliest token after each node
    top_p = p.gather(1, top[:, None])[:, 0]  # (n,) its probability
    tokens, probability = torch.stack([wide(top), wide(top_p)]).tolist()  # one read off the device

    def argmax_after(node: int) -> int:
        largest = probability[node]
        if isnan(largest):
            raise ValueError("p holds nan, which is no probability: are there NaN in the logits?")
        if not largest >= 1 - 1e-6:
            raise ValueError(
                f"greedy verification needs one-hot p (temperature 0), got a largest probability of "
                f"{largest:.3f}: use one_hot, rrs, rrsw or sample_and_match"
            )
        return int(tokens[node])

    return _follow(draft, argmax_after)


def sample_and_match(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Draw the target's own token at each node and follow the child that equals it, if there is one.

    Trivially lossless for any draft: the tokens are the target's draws. Also called naive (NSS) verification.
    """
    check(draft, p)

    def draw_after(node: int) -> int:
        return coins.choose(p[node])

    return _follow(draft, draw_after)


def one_hot(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Rejection with one-hot q: accept child x with what p still gives it, else strike x out and renormalise.

    Lossless for any tree chosen without looking at the target's coins: top-k trees (EAGLE-2, DynaTree, PCT,
    SALF), retrieval and self-drafting (PTD, Lookahead); on sampled trees too, though it then wastes q.

    Example: p is (.3, .4, .3) after the root, whose children carry tokens 1 and 0. Token 1 is accepted with
    probability .4. After its rejection p is (.5, 0, .5), so token 0 is accepted with .3 / .6 = .5. After another
    rejection only token 2 is left, and comes with certainty.
    """
    check(draft, p)
    p_child = probabilities(draft, p)  # of every node's token behind its parent

    def judge(node: int, trials: list[Trial]) -> tuple[int | None, int | None]:
        struck = []  # rejected tokens
        remaining = 1.0  # the mass that p gives to all others
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

    Accept child x with min(1, p(x)/q(x)); else p ← norm([p − q]_+) and the next sibling is tried against the
    same q. Needs an IID draft, or one with at most one child per node.

    Example: p = (.3, .4, .3) and q = (.6, .3, .1) after the root, whose children carry tokens 0 and 1. Token 0 is
    accepted with .3 / .6 = .5. After its rejection p is (0, 1/3, 2/3), while q stays: token 1 is accepted with
    certainty, as (1/3) / .3 is above 1; a second token 0 would be rejected.
    """
    need(draft, Drawn.IID, "rrs", "rrsw")
    return _recursive_rejection(draft, p, coins, remove=False)


def rrsw(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Recursive rejection sampling without replacement (RRSw: Sequoia, EAGLE; Traversal paper, section 2.2).

    As ``rrs``, and a rejected token leaves q as well: q ← norm(q with q(x) = 0). Needs a SWOR draft, or one
    with at most one child per node.

    Example: with the p and q of ``rrs``, and token 0 rejected, q is (0, 3/4, 1/4). So token 1 is accepted with
    (1/3) / (3/4) = 4/9, and token 2 with 1.
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
    """The walk of ``rrs`` and ``rrsw``; remove says whether a rejected token leaves q."""
    check(draft, p)
    if not any(draft.candidates):
        return Verdict((), coins.choose(p[0]))
    p_child = probabilities(draft, p)  # of every node's token behind its parent
    q_child = probabilities(draft, draft.q, "q")
    columns = draft.columns.tolist()

    def judge(node: int, trials: list[Trial]) -> tuple[int | None, int | None]:
        # What rejections have left of the node's p and q, over the draft's columns. While there was none, both are
        # untouched, and p_child and q_child say all that is needed.
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
    """Walk from the root downwards: ``judge`` accepts a child of the node, or none and says the last token."""
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
    """Walk along the target's tokens, token_after(node), while a candidate carries them; each looked at is a trial."""

    def judge(node: int, trials: list[Trial]) -> tuple[int | None, int | None]:
        token = token_after(node)
        for child in draft.candidates[node]:
            is_equal = draft.tree.token_list[child] == token
            trials.append(Trial(child, float(is_equal), is_equal))
            if is_equal:
                return child, None
        return None, token

    return _descend(judge)
