"""What all verifiers share: checks, accept coins, and laws over the columns of a draft's reduced vocabulary.

A law is a probability distribution over the vocabulary. A draft model with a reduced vocabulary gives q only V_d
columns, one for each token that it can draft. Rejections change the total mass of all other tokens, but never their
proportions. So residuals have V_d + 1 columns: those of the draft, and one for all other tokens together.
"""

import torch
from torch import Tensor

from specnb.sampling import Coins, wide
from specnb.tree import Draft, Drawn, Trial


def check(draft: Draft, p: Tensor) -> None:
    """ValueError unless p has one row per node of the draft and a column for every drafted token."""
    _check_rows(draft, p)
    _check_vocabulary(draft, p)


def _check_rows(draft: Draft, p: Tensor) -> None:
    n = len(draft.tree)
    needed_rows = draft.candidate_rows  # auxiliary nodes after the last candidate need no row
    has_rows = p.dim() == 2 and len(p) in (n, needed_rows)
    is_precise = p.is_floating_point() and p.dtype.itemsize >= 4
    if not (has_rows and is_precise):
        or_short = f" or ({needed_rows}, V)" if needed_rows < n else ""
        raise ValueError(f"p must be float32 or wider of shape ({n}, V){or_short}, got {p.dtype} {tuple(p.shape)}")


def _check_vocabulary(draft: Draft, p: Tensor) -> None:
    vocabulary = p.shape[1]
    largest = max(draft.tree.token_list)
    if largest >= vocabulary:
        raise ValueError(f"the draft holds token id {largest}, the target's vocabulary ends at {vocabulary - 1}")
    if draft.ids is not None and int(draft.ids[-1]) >= vocabulary:
        raise ValueError(f"the draft's ids reach {draft.ids[-1]}, the target's vocabulary ends at {vocabulary - 1}")
    if draft.q is None:
        return
    if draft.q.device != p.device:
        raise ValueError(f"q is on {draft.q.device} and p on {p.device}: draft and target must share a device")
    if draft.ids is None and draft.q.shape[1] != vocabulary:
        raise ValueError(
            f"q is over {draft.q.shape[1]} tokens and p over {vocabulary}: "
            f"a draft over a reduced vocabulary must name its ids"
        )


def is_chain(draft: Draft) -> bool:
    """Return whether no node has two or more candidates below it."""
    return all(len(below) <= 1 for below in draft.candidates)


def need(draft: Draft, drawn: Drawn, name: str, other: str) -> None:
    """ValueError unless the draft was drawn as a verifier needs it.

    drawn: what the verifier needs. name: the verifier's name. other: the verifier to use instead, for the error.
    """
    if not any(draft.candidates):
        return  # nothing was drafted, nothing can be wrong
    if draft.drawn is Drawn.POINT:
        raise ValueError(f"{name} needs a sampled draft and its q; this one is POINT (not drawn): use one_hot")
    if draft.drawn is not drawn and not is_chain(draft):
        raise ValueError(
            f"{name} is lossless for siblings drawn {drawn.name} only, these were drawn {draft.drawn.name}: use {other}"
        )


def toss(node: int, probability: float, coins: Coins, trials: list[Trial]) -> bool:
    """Toss a node's accept coin, append it to the trials, and return the outcome."""
    probability = min(probability, 1.0)
    accepted = coins.accept(probability)
    trials.append(Trial(node, probability, accepted))
    return accepted


def probabilities(draft: Draft, law: Tensor, name: str = "p") -> list[float]:
    """Return the probability of every node's token after the node's parent, up to the last candidate.

    law: p (n, V), or q (n, V_d) with the name "q".
    name: "p" or "q", for the columns and the error.
    The root's entry has no meaning. Raises ValueError if an entry is not a probability, such as NaN: later comparisons
    would treat NaN like a number.
    """
    nodes = slice(draft.candidate_rows)
    parents = draft.tree.parents[nodes].clamp_min(0)  # (c,); the root has no parent and gets itself
    columns = draft.tree.tokens if name == "p" else draft.columns  # (n,)
    chances = law[parents, columns[nodes]].tolist()  # one read off the device
    for chance in chances:
        if not 0 <= chance < 1.001:  # float32 may round slightly above 1
            raise ValueError(f"{name} holds {chance}, which is no probability: are there NaN in the logits?")
    return chances


def over_columns(draft: Draft, law: Tensor) -> Tensor:
    """Return a target law (V,) over the draft's columns and one for all other tokens: (V_d + 1,) float64.

    Example: the law (.1, .2, .3, .4) over the ids (1, 3) is (.2, .4, .4): tokens 0 and 2 share the last column.

    For a draft without ids the law stays (V,).
    """
    if draft.ids is None:
        return wide(law)
    columns = wide(law.index_select(0, draft.ids_there))  # twice as fast as law[draft.ids]
    others = wide(law.index_fill(0, draft.ids_there, 0.0)).sum()  # 1 − columns.sum() would be a rounding error
    return torch.cat([columns, others[None]])


def drawn_from(draft: Draft, node: int) -> Tensor:
    """Return the law that a node's children were drawn from: (V_d + 1,) float64 with 0 in the last column.

    For a draft without ids it is (V,).
    """
    q = wide(draft.q[node])
    if draft.ids is None:
        return q
    return torch.cat([q, q.new_zeros(1)])


def struck(law: Tensor, column: int) -> Tensor:
    """Return a copy of a law with one column set to zero.

    column: a Python int, because an index tensor would have to be on the law's device.
    """
    law = law.clone()
    law[column] = 0
    return law


def without(q: Tensor, column: int) -> Tensor:
    """Return q with one column set to zero, renormalised if any mass is left."""
    rest = struck(q, column)
    mass = rest.sum()
    return torch.where(mass > 0, rest / mass, rest)  # no read off the device


def choose(draft: Draft, law: Tensor, current: Tensor | None, coins: Coins) -> int:
    """Draw a step's last token.

    law: (V,), the target's law after the node.
    current: what rejections have left of it, over the draft's columns; None if nothing was rejected.
    """
    if current is None:
        return coins.choose(law)
    column = coins.choose(current)
    if draft.ids is None:
        return column
    if column < len(draft.ids):
        return int(draft.ids[column])
    others = wide(law).index_fill(0, draft.ids_there, 0.0)  # (V,) the last column's tokens, in their proportions
    return coins.choose(others)
