"""What all verifiers share: checks, accept coins, and laws over the columns of a draft's reduced vocabulary.

A draft over a reduced vocabulary leaves the target's other tokens alone: rejections change their mass, never their
proportions. So residuals are kept over the draft's columns and one more, which holds all other tokens.
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
    enough = draft.candidate_rows  # auxiliary nodes behind the last candidate need no row
    has_rows = p.dim() == 2 and len(p) in (n, enough)
    is_precise = p.is_floating_point() and p.dtype.itemsize >= 4
    if not (has_rows and is_precise):
        or_short = f" or ({enough}, V)" if enough < n else ""
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
    """Whether no node has two candidates below it."""
    return all(len(below) <= 1 for below in draft.candidates)


def need(draft: Draft, drawn: Drawn, name: str, other: str) -> None:
    """ValueError unless the draft was drawn as a rule needs it; other: the rule for the other way."""
    if not any(draft.candidates):
        return  # nothing was drafted, nothing can be wrong
    if draft.drawn is Drawn.POINT:
        raise ValueError(f"{name} needs a sampled draft and its q; this one is POINT (not drawn): use one_hot")
    if draft.drawn is not drawn and not is_chain(draft):
        raise ValueError(
            f"{name} is lossless for siblings drawn {drawn.name} only, these were drawn {draft.drawn.name}: use {other}"
        )


def toss(node: int, probability: float, coins: Coins, trials: list[Trial]) -> bool:
    """Toss a node's accept coin and note it among the trials."""
    probability = min(probability, 1.0)
    accepted = coins.accept(probability)
    trials.append(Trial(node, probability, accepted))
    return accepted


def probabilities(draft: Draft, law: Tensor, name: str = "p") -> list[float]:
    """What p, or q, gives every node's token behind its parent, up to the last node that stands for election.

    law: p (n, V), or q (n, V_d) under the name "q". The root's own number means nothing. ValueError where one is no
    probability, such as NaN: comparisons would take it for a one.
    """
    nodes = slice(draft.candidate_rows)
    parents = draft.tree.parents[nodes].clamp_min(0)  # (c,); the root has none, and takes itself
    columns = draft.tree.tokens if name == "p" else draft.columns  # (n,)
    chances = law[parents, columns[nodes]].tolist()  # one read off the device
    for chance in chances:
        if not 0 <= chance < 1.001:
            raise ValueError(f"{name} holds {chance}, which is no probability: are there NaN in the logits?")
    return chances


def over_columns(draft: Draft, law: Tensor) -> Tensor:
    """A target law (V,) over the draft's columns and one for the rest, (V_d + 1,) float64; as it is without ids.

    Example: the law (.1, .2, .3, .4) over the ids (1, 3) is (.2, .4, .4): tokens 0 and 2 share the last column.
    """
    if draft.ids is None:
        return wide(law)
    columns = wide(law.index_select(0, draft.ids_there))  # twice as fast as law[draft.ids]
    others = wide(law.index_fill(0, draft.ids_there, 0.0)).sum()  # 1 − the rest would be noise
    return torch.cat([columns, others[None]])


def drawn_from(draft: Draft, node: int) -> Tensor:
    """The law a node's children were drawn from, likewise: (V_d + 1,) float64, nothing in the last column."""
    q = wide(draft.q[node])
    if draft.ids is None:
        return q
    return torch.cat([q, q.new_zeros(1)])


def struck(law: Tensor, column: int) -> Tensor:
    """A law with one column set to zero; the column is a number, since no index of ours lies on the law's device."""
    law = law.clone()
    law[column] = 0
    return law


def without(q: Tensor, column: int) -> Tensor:
    """q with one column struck out, renormalised if anything is left."""
    rest = struck(q, column)
    mass = rest.sum()
    return torch.where(mass > 0, rest / mass, rest)  # no read off the device


def choose(draft: Draft, law: Tensor, current: Tensor | None, coins: Coins) -> int:
    """A token from what is left of a target law (V,): current over columns, None if nothing was rejected."""
    if current is None:
        return coins.choose(law)
    column = coins.choose(current)
    if draft.ids is None:
        return column
    if column < len(draft.ids):
        return int(draft.ids[column])
    others = wide(law).index_fill(0, draft.ids_there, 0.0)  # (V,) the last column's tokens, in their proportions
    return coins.choose(others)
