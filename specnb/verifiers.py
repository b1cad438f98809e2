"""Verifiers: given a draft and the target's laws, elect a path and one more token without changing the output.

Each is ``verifier(draft, p, coins) -> Verdict`` with p: (n, V) float32 or wider, row i the target's law after node i;
rows of auxiliary nodes behind the last one that stands for election may be missing. Arithmetic is float64. Siblings
are tried in drawing order; vocabulary-sized work happens only where a rejection needs a residual. A verifier refuses
a draft for which it would not be lossless.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specnb.sampling import Coins, likeliest, residual
from specnb.tree import Draft, Drawn


@dataclass(frozen=True)
class Trial:
    """One accept coin: the node on trial, its acceptance probability, the outcome."""

    node: int
    probability: float
    accepted: bool


@dataclass(frozen=True)
class Verdict:
    """What verification elects: the accepted nodes (root excluded) and the bonus or recovered token."""

    path: tuple[int, ...]
    next_token: int
    trials: tuple[Trial, ...] = ()


Verifier = Callable[[Draft, Tensor, Coins], Verdict]


def greedy(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Follow the target's argmax through the tree: the T = 0 limit of every lossless verifier.

    Lossless for any draft when p is one-hot; ValueError when p is not.
    """
    check(draft, p)

    def match(node: int, trials: list[Trial]) -> tuple[int | None, int]:
        best = int(likeliest(p[node]))
        if p[node, best] < 1 - 1e-6:
            raise ValueError(
                f"greedy verification needs one-hot p (temperature 0), got a largest probability of "
                f"{p[node, best]:.3f}: use one_hot, rrs, rrsw or sample_and_match"
            )
        return _follow(draft, node, best, trials), best

    return _descend(match)


def sample_and_match(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Draw the target's own token at each node and follow the child that equals it, if there is one.

    Trivially lossless for any draft: the tokens are the target's draws. Also called naive (NSS) verification.
    """
    check(draft, p)

    def match(node: int, trials: list[Trial]) -> tuple[int | None, int]:
        token = coins.choose(p[node])
        return _follow(draft, node, token, trials), token

    return _descend(match)


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
        law = p[node].double()
        if struck:
            law = law.clone()
            law[struck] = 0
        return None, coins.choose(law if law.any() else p[node])

    chance = probabilities(draft, p)
    return _descend(judge)


def rrs(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Recursive rejection sampling, siblings drawn with replacement (SpecInfer; Traversal paper, Algorithm 2).

    Accept child x with min(1, p(x)/q(x)); else p ← norm([p − q]_+) and the next sibling is tried against the
    same q. Needs an IID draft, or one with at most one child per node.
    """
    _need(draft, Drawn.IID, "rrs", "rrsw")
    return _recursive_rejection(draft, p, coins, remove=False)


def rrsw(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Recursive rejection sampling without replacement (RRSw: Sequoia, EAGLE; Traversal paper, section 2.2).

    As ``rrs``, and a rejected token leaves q as well: q ← norm(q with q(x) = 0). Needs a SWOR draft, or one
    with at most one child per node.
    """
    _need(draft, Drawn.SWOR, "rrsw", "rrs")
    return _recursive_rejection(draft, p, coins, remove=True)


def token_level(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """Token-level verification of a chain (Leviathan et al. 2023; Traversal paper, Algorithm 1)."""
    if not is_chain(draft):
        raise ValueError("token_level verifies chains: this draft branches, use rrs, rrsw or one_hot")
    _need(draft, Drawn.IID, "token_level", "rrsw")
    return _recursive_rejection(draft, p, coins, remove=False)


def _recursive_rejection(draft: Draft, p: Tensor, coins: Coins, *, remove: bool) -> Verdict:
    check(draft, p)
    if not any(draft.candidates):
        return Verdict((), coins.choose(p[0]))
    p_child = probabilities(draft, p)
    q_child = draft.q[draft.tree.parents.clamp_min(0), draft.columns].double().tolist()
    columns = draft.columns.tolist()

    def judge(node: int, trials: list[Trial]) -> tuple[int | None, int | None]:
        law = q = None  # the current p and q of this node over columns; untouched until the first rejection
        for child in draft.candidates[node]:
            x = columns[child]
            px, qx = (p_child[child], q_child[child]) if law is None else (float(law[x]), float(q[x]))
            if toss(child, min(1.0, px / qx) if qx > 0 else 0.0, coins, trials):
                return child, None
            if law is None:
                law, q = over_columns(draft, p[node]), q_over_columns(draft, node)
            law = residual(law, q)
            if remove:
                q = without(q, x)
        return None, choose(draft, p[node], law, coins)

    return _descend(judge)


def by_draw(draft: Draft, p: Tensor, coins: Coins) -> Verdict:
    """The lossless top-down rule that fits how the draft was drawn: one_hot, rrs or rrsw."""
    return {Drawn.POINT: one_hot, Drawn.IID: rrs, Drawn.SWOR: rrsw}[draft.drawn](draft, p, coins)


# ---- p and q over the draft's columns ---------------------------------------------------------------------
# A draft over a reduced vocabulary leaves the target's other tokens alone: rejections change their mass, never their
# proportions. So residuals are kept over the draft's columns and one more, which holds all other tokens.


def over_columns(draft: Draft, law: Tensor) -> Tensor:
    """A target law (V,) over the draft's columns and one for the rest, (V_d + 1,) float64; as it is without ids."""
    if draft.ids is None:
        return law.double()
    columns = torch.empty(len(draft.ids) + 1, dtype=torch.float64, device=law.device)
    columns[:-1] = law.index_select(0, draft.ids)  # twice as fast as law[draft.ids]
    columns[-1] = max(0.0, 1 - float(columns[:-1].sum()))
    return columns


def q_over_columns(draft: Draft, node: int) -> Tensor:
    """The law a node's children were drawn from, likewise: (V_d + 1,) float64, nothing in the last column."""
    q = draft.q[node].double()
    return q if draft.ids is None else torch.cat([q, q.new_zeros(1)])


def without(q: Tensor, column: int) -> Tensor:
    """q with one column struck out, renormalised if anything is left."""
    q = q.clone()
    q[column] = 0
    left = float(q.sum())
    return q.div_(left) if left > 0 else q


def choose(draft: Draft, law: Tensor, current: Tensor | None, coins: Coins) -> int:
    """A token from what is left of a target law (V,): current over columns, None if nothing was rejected."""
    if current is None:
        return coins.choose(law)
    column = coins.choose(current)
    if draft.ids is None:
        return column
    if column < len(draft.ids):
        return int(draft.ids[column])
    return coins.choose(law.double().index_fill(0, draft.ids, 0.0))


# ---- shared steps ---------------------------------------------------------------------------------------


def _descend(judge: Callable[[int, list[Trial]], tuple[int | None, int | None]]) -> Verdict:
    """Top-down walk: ``judge`` elects a child of the node, or none and then the next token."""
    path: list[int] = []
    trials: list[Trial] = []
    while True:
        child, token = judge(path[-1] if path else 0, trials)
        if child is None:
            return Verdict(tuple(path), token, tuple(trials))
        path.append(child)


def probabilities(draft: Draft, p: Tensor) -> list[float]:
    """What the target gives every node's token behind its parent, up to the last node that stands for election."""
    parents, tokens = draft.tree.parents[: draft.elected].clamp_min(0), draft.tree.tokens[: draft.elected]
    return p[parents, tokens].double().tolist()


def toss(node: int, probability: float, coins: Coins, trials: list[Trial]) -> bool:
    """Toss a node's accept coin and note it among the trials."""
    accepted = coins.accept(min(probability, 1.0))
    trials.append(Trial(node, probability, accepted))
    return accepted


def _follow(draft: Draft, node: int, token: int, trials: list[Trial]) -> int | None:
    """The first candidate below node that carries the token; every candidate looked at is a trial."""
    for child in draft.candidates[node]:
        equal = draft.tree.token_list[child] == token
        trials.append(Trial(child, float(equal), equal))
        if equal:
            return child
    return None


def is_chain(draft: Draft) -> bool:
    """Whether no node has two candidates below it."""
    return all(len(below) <= 1 for below in draft.candidates)


def _need(draft: Draft, drawn: Drawn, name: str, other: str) -> None:
    if not any(draft.candidates):
        return  # nothing was drafted, nothing can be wrong
    if draft.drawn is Drawn.POINT:
        raise ValueError(f"{name} needs a sampled draft and its q; this one is POINT (not drawn): use one_hot")
    if draft.drawn is not drawn and not is_chain(draft):
        raise ValueError(
            f"{name} is lossless for siblings drawn {drawn.name} only, these were drawn {draft.drawn.name}: use {other}"
        )


def check(draft: Draft, p: Tensor) -> None:
    """ValueError unless p has one row per node of the draft and a column for every drafted token."""
    n = len(draft.tree)
    if p.dim() != 2 or len(p) not in (n, draft.elected) or not p.is_floating_point() or p.dtype.itemsize < 4:
        short = f" or ({draft.elected}, V)" if draft.elected < n else ""
        raise ValueError(f"p must be float32 or wider of shape ({n}, V){short}, got {p.dtype} {tuple(p.shape)}")
    if max(draft.tree.token_list) >= p.shape[1]:
        bad = max(draft.tree.token_list)
        raise ValueError(f"the draft holds token id {bad}, the target's vocabulary ends at {p.shape[1] - 1}")
    if draft.ids is not None and int(draft.ids[-1]) >= p.shape[1]:
        raise ValueError(
            f"the draft's ids reach {int(draft.ids[-1])}, the target's vocabulary ends at {p.shape[1] - 1}"
        )
    if draft.q is not None and draft.ids is None and draft.q.shape[1] != p.shape[1]:
        raise ValueError(
            f"q is over {draft.q.shape[1]} tokens and p over {p.shape[1]}: "
            f"a draft over a reduced vocabulary must name its ids"
        )


BY_NAME: dict[str, Verifier] = {
    f.__name__: f for f in (greedy, sample_and_match, one_hot, rrs, rrsw, token_level, by_draw)
}
