"""What was accepted: the field's measures, from the steps of one or several generations.

draft tokens are proposed, accepted ones elected; every step commits accepted + 1. Names as in vLLM's metrics.
Steps whose draft was empty count as steps; auxiliary nodes are not draft tokens.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from specnb.decode import Generation, Step


def all_steps(generations: Generation | Iterable[Generation]) -> list[Step]:
    """The steps of one or several generations, in order."""
    if isinstance(generations, Generation):
        generations = [generations]
    return [step for generation in generations for step in generation.steps]


def accepted(steps: Sequence[Step]) -> np.ndarray:
    """(steps,) number of accepted draft tokens per step."""
    return np.array([len(step.verdict.path) for step in steps])


def drafted(steps: Sequence[Step]) -> np.ndarray:
    """(steps,) number of draft tokens per step: nodes but the root and the auxiliary ones."""
    auxiliary = (0 if step.draft.auxiliary is None else int(step.draft.auxiliary.sum()) for step in steps)
    return np.array([len(step.draft.tree) - 1 - a for step, a in zip(steps, auxiliary, strict=True)])


def tau(steps: Sequence[Step]) -> float:
    """Mean acceptance length τ = 1 + accepted / steps: tokens per target call, bonus included."""
    return 1 + accepted(steps).mean()


def acceptance_rate(steps: Sequence[Step]) -> float:
    """accepted / drafted tokens (vLLM's draft_acceptance_rate); nan if nothing was drafted."""
    total = drafted(steps).sum()
    return accepted(steps).sum() / total if total else float("nan")


def acceptance_rate_per_position(steps: Sequence[Step]) -> np.ndarray:
    """(deepest,) share of steps that accepted at least i + 1 tokens."""
    lengths = accepted(steps)
    return np.array([(lengths > i).mean() for i in range(max(lengths, default=0))])


def histogram(steps: Sequence[Step]) -> pd.Series:
    """Number of steps by number of accepted tokens."""
    return pd.Series(accepted(steps)).value_counts().sort_index().rename_axis("accepted").rename("steps")


def phases(steps: Sequence[Step]) -> pd.Series:
    """Median seconds per step and phase (the first step of a generation holds the prefill: left out)."""
    rows = [step.seconds for step in steps if step.index > 0]
    return pd.DataFrame(rows, columns=["draft", "target", "verify", "commit"]).median()


def summary(generations: Generation | Iterable[Generation]) -> dict[str, float]:
    """One row of the table every notebook prints."""
    steps = all_steps(generations)
    return {
        "tokens": sum(len(step.tokens) for step in steps),
        "target calls": len(steps),
        "tau": tau(steps),
        "draft tokens per step": drafted(steps).mean(),
        "acceptance rate": acceptance_rate(steps),
    }


def ece(confidence: np.ndarray, hit: np.ndarray, *, bins: int = 10) -> float:
    """Expected calibration error over bins of equal width: Σ share · |accuracy − mean confidence| (Guo et al. 2017).

    confidence: (n,) in 0..1; hit: (n,) 0 or 1.
    """
    place = np.minimum((np.asarray(confidence) * bins).astype(int), bins - 1)
    gap = np.bincount(place, np.asarray(hit) - np.asarray(confidence), bins)  # n · (accuracy − confidence) per bin
    return float(np.abs(gap).sum() / len(place))
