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
    n = len(draft.tree)
    if p.dim() != 2 or len(p) not in (n, draft.candidate_rows) or not p.is_floating_point() or p.dtype.itemsize < 4:
        short = f" or ({draft.candidate_rows}, V)" if draft.candidate_rows < n else ""
        raise ValueError(f"p must be float32 or wider of shape ({n}, V){short}, got {p.dtype} {tuple(p.shape)}")
    if (bad := max(draft.tree.token_list)) >= p.shape[1]:
        raise ValueError(f"the draft holds token id {bad}, the target's vocabulary ends at {p.shape[1] - 1}")
    if draft.ids is not None and int(draft.ids[-1]) >= p.shape[1]:
        raise ValueError(f"the draft's ids reach {draft.ids[-1]}, the target's vocabulary ends at {p.shape[1] - 1}")
    if draft.q is not None and draft.q.device != p.device:
        raise ValueError(f"q is on {draft.q.device} and p on {p.device}: draft and target must share a device")
    if draft.q is not None and draft.ids is None and draft.q.shape[1] != p.shape[1]:
        raise ValueError(
            f"q is over {draft.q.shape[1]} tokens and p over {p.shape[1]}: "
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
        drawn, got = drawn.name, draft.drawn.name
        raise ValueError(f"{name} is lossless for siblings drawn {drawn} only, these were drawn {got}: use {other}")


def toss(node: int, probability: float, coins: Coins, trials: list[Trial]) -> bool:
    """Toss a node's accept coin and note it among the trials."""
    probability = min(probability, 1.0)
    accepted = coins.accept(probability)
    trials.append(Trial(node, probability, accepted))
    return accepted


def probabilities(draft: Draft, law: Tensor, name: str = "p") -> list[float]:
    """What p, or q, gives every node's token behind its parent, up to the last node that stands for election.

    ValueError where that is no probability, such as NaN: comparisons would take it for a one.
    """
    rows, columns = slice(draft.candidate_rows), draft.tree.tokens if name == "p" else draft.columns
    found = law[draft.tree.parents[rows].clamp_min(0), columns[rows]].tolist()
    if odd := [chance for chance in found if not 0 <= chance < 1.001]:
        raise ValueError(f"{name} holds {odd[0]}, which is no probability: are there NaN in the logits?")
    return found


def over_columns(draft: Draft, law: Tensor) -> Tensor:
    """A target law (V,) over the draft's columns and one for the rest, (V_d + 1,) float64; as it is without ids."""
    if draft.ids is None:
        return wide(law)
    columns = wide(law.index_select(0, draft.ids_there))  # twice as fast as law[draft.ids]
    others = wide(law.index_fill(0, draft.ids_there, 0.0)).sum()  # 1 − the rest would be noise
    return torch.cat([columns, others[None]])


def drawn_from(draft: Draft, node: int) -> Tensor:
    """The law a node's children were drawn from, likewise: (V_d + 1,) float64, nothing in the last column."""
    q = wide(draft.q[node])
    return q if draft.ids is None else torch.cat([q, q.new_zeros(1)])


def struck(law: Tensor, column: int) -> Tensor:
    """A law with one column set to zero; the column is a number, since no index of ours lies on the law's device."""
    law = law.clone()
    law[column] = 0
    return law


def without(q: Tensor, column: int) -> Tensor:
    """q with one column struck out, renormalised if anything is left."""
    q = struck(q, column)
    left = q.sum()
    return torch.where(left > 0, q / left, q)


def choose(draft: Draft, law: Tensor, current: Tensor | None, coins: Coins) -> int:
    """A token from what is left of a target law (V,): current over columns, None if nothing was rejected."""
    if current is None:
        return coins.choose(law)
    column = coins.choose(current)
    if draft.ids is None:
        return column
    if column < len(draft.ids):
        return int(draft.ids[column])
    return coins.choose(wide(law).index_fill(0, draft.ids_there, 0.0))
