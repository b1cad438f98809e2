"""What was accepted: the field's measures, from the steps of one or several generations.

draft tokens are proposed, accepted ones elected; every step commits accepted + 1. Names as in vLLM's metrics.
Steps whose draft was empty count as steps; auxiliary nodes are not draft tokens. What a step elects behind the end of
the text is neither accepted nor committed: the last step of a text may commit less than its verdict says.
"""

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher

import numpy as np

from specnb.decode import Step
from specnb.tree import Draft


def committed(steps: Sequence[Step]) -> np.ndarray:
    """(steps,) number of tokens that a step adds to the text: accepted ones and the next, cut where the text ends."""
    return np.array([len(step.tokens) for step in steps])


def accepted(steps: Sequence[Step]) -> np.ndarray:
    """(steps,) number of accepted draft tokens per step that are part of the text."""
    return np.array([min(len(step.verdict.path), len(step.tokens)) for step in steps])


def drafted(steps: Sequence[Step]) -> np.ndarray:
    """(steps,) number of draft tokens per step: nodes but the root and the auxiliary ones."""
    return np.array([sum(map(len, step.draft.candidates)) for step in steps])


def tau(steps: Sequence[Step]) -> float:
    """Mean acceptance length τ: tokens per target call, bonus included.

    That is 1 + accepted / steps, unless a text ends within the accepted tokens and so without a bonus.
    """
    return float(committed(steps).mean())


def acceptance_rate(steps: Sequence[Step]) -> float:
    """accepted / drafted tokens (vLLM's draft_acceptance_rate); nan if nothing was drafted."""
    total = drafted(steps).sum()
    return accepted(steps).sum() / total if total else float("nan")


def branches(draft: Draft, tail: int | None = None) -> list[tuple[int, ...]]:
    """What a self-drafter is working on: the tokens of every auxiliary path from the root to a leaf, or its last few.

    A path of auxiliary nodes begins at the root. tail: only the last so many tokens (Self-Draft's branches without
    their random prefixes).
    """
    if draft.auxiliary is None:
        return []
    flags = draft.auxiliary.tolist()
    paths = (draft.tree.path_tokens(leaf) for leaf in draft.tree.leaves if flags[leaf])
    return [path if tail is None else path[-tail:] for path in paths]


def repeated(draft: Draft) -> float:
    """Share of auxiliary nodes whose token stands behind the same token elsewhere in the tree: work done twice."""
    if draft.auxiliary is None:
        return 0.0
    tree, flags = draft.tree, draft.auxiliary.tolist()
    pairs = [(tree.token_list[tree.parent_list[i]], tree.token_list[i]) for i in range(1, len(tree)) if flags[i]]
    return 1 - len(set(pairs)) / len(pairs) if pairs else 0.0


def aligned(a: Sequence[int], b: Sequence[int]) -> float:
    """Share of positions at which two branches hold the same token, of the longer one's."""
    return sum(x == y for x, y in zip(a, b, strict=False)) / max(len(a), len(b))


def overlap(a: Sequence[int], b: Sequence[int]) -> float:
    """2 · (tokens in matching blocks) / (both lengths), Ratcliff and Obershelp's measure, by difflib.

    Unlike ``aligned`` it sees that one branch is the other, one token later.
    """
    return SequenceMatcher(None, a, b, autojunk=False).ratio()


def likeness(found: Sequence[Sequence[int]], similarity: Callable[[Sequence[int], Sequence[int]], float]) -> np.ndarray:
    """(branches,) how similar each branch of a step is to the one most like it; 0 for a branch alone (Figure 1b)."""
    pairs = np.array([[similarity(a, b) if i != j else 0.0 for j, b in enumerate(found)] for i, a in enumerate(found)])
    return pairs.max(axis=1) if len(found) > 1 else np.zeros(len(found))


SIMILARITIES = {"aligned": aligned, "overlap": overlap}
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
ALIKE = tuple(f"{of} {name} {least}" for name in SIMILARITIES for least in THRESHOLDS for of in ("steps", "share"))


def alike(steps: Sequence[Step], tail: int | None = None) -> dict[str, float]:
    """How alike the branches of a self-drafter are, step by step (PTD's Figure 1b), by two similarities.

    Per similarity and threshold (ALIKE): "steps", the share of steps in which at least two branches are that similar,
    and "share", that of branches with such a partner. branches: their mean number; repeated: see there. tail: see
    ``branches``.
    """
    found = [branches(step.draft, tail) for step in steps]
    values = [float(np.mean([len(step) for step in found])), float(np.mean([repeated(s.draft) for s in steps]))]
    for similarity in SIMILARITIES.values():
        best = [likeness(step, similarity) for step in found]
        for least in THRESHOLDS:
            high = [closest >= least - 1e-9 for closest in best]
            values += [float(np.mean([some.any() for some in high])), float(np.mean(np.concatenate(high)))]
    return dict(zip(("branches", "repeated", *ALIKE), values, strict=True))
