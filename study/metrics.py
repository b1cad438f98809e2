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
    counts = []
    for step in steps:
        elected = len(step.verdict.path)
        counts.append(min(elected, len(step.tokens)))  # the text may end within the elected path
    return np.array(counts)


def drafted(steps: Sequence[Step]) -> np.ndarray:
    """(steps,) number of draft tokens per step: all nodes but the root and the auxiliary ones."""
    counts = []
    for step in steps:
        candidates_below = [len(children) for children in step.draft.candidates]
        counts.append(sum(candidates_below))
    return np.array(counts)


def tau(steps: Sequence[Step]) -> float:
    """Mean acceptance length τ: tokens per target call, bonus included.

    That is 1 + accepted / steps, unless a text ends within the accepted tokens and so without a bonus.
    """
    return float(committed(steps).mean())


def acceptance_rate(steps: Sequence[Step]) -> float:
    """accepted / drafted tokens (vLLM's draft_acceptance_rate); nan if nothing was drafted."""
    total = drafted(steps).sum()
    if total == 0:
        return float("nan")
    return accepted(steps).sum() / total


def branches(draft: Draft, tail: int | None = None) -> list[tuple[int, ...]]:
    """What a self-drafter is working on: the tokens of every auxiliary path from the root to a leaf, or its last few.

    A path of auxiliary nodes begins at the root. tail: only the last so many tokens (Self-Draft's branches without
    their random prefixes).
    """
    if draft.auxiliary is None:
        return []
    is_auxiliary = draft.auxiliary.tolist()
    paths = []
    for leaf in draft.tree.leaves:
        if not is_auxiliary[leaf]:
            continue
        path = draft.tree.path_tokens(leaf)
        if tail is not None:
            path = path[-tail:]
        paths.append(path)
    return paths


def repeated(draft: Draft) -> float:
    """Share of auxiliary nodes whose token stands behind the same token elsewhere in the tree: work done twice.

    Example: the root 9 has two auxiliary paths, 9 → 1 → 2 and 9 → 9 → 1. Of the pairs (9, 1), (1, 2), (9, 9), (9, 1)
    the last repeats the first, so it is a quarter.
    """
    if draft.auxiliary is None:
        return 0.0
    tree = draft.tree
    is_auxiliary = draft.auxiliary.tolist()
    pairs = []  # (token of the parent, token) of each auxiliary node
    for node in range(1, len(tree)):
        if is_auxiliary[node]:
            parent = tree.parent_list[node]
            pairs.append((tree.token_list[parent], tree.token_list[node]))
    if not pairs:
        return 0.0
    return 1 - len(set(pairs)) / len(pairs)


Similarity = Callable[[Sequence[int], Sequence[int]], float]  # of two branches, from 0 to 1


def aligned(a: Sequence[int], b: Sequence[int]) -> float:
    """Share of positions at which two branches hold the same token, of the longer one's.

    >>> aligned((1, 2, 3, 4), (1, 9, 3, 4)), aligned((1, 2, 3, 4), (2, 3, 4, 5))
    (0.75, 0.0)
    """
    same = sum(x == y for x, y in zip(a, b, strict=False))
    return same / max(len(a), len(b))


def overlap(a: Sequence[int], b: Sequence[int]) -> float:
    """2 · (tokens in matching blocks) / (both lengths), Ratcliff and Obershelp's measure, by difflib.

    Unlike ``aligned`` it sees that one branch is the other, one token later.

    >>> overlap((1, 2, 3, 4), (2, 3, 4, 5))  # three tokens match: 2 · 3 / 8
    0.75
    """
    return SequenceMatcher(None, a, b, autojunk=False).ratio()


def likeness(paths: Sequence[Sequence[int]], similarity: Similarity) -> np.ndarray:
    """(branches,) how similar each branch of a step is to the one most like it; 0 for a branch alone (Figure 1b).

    paths: of a step, see ``branches``.

    >>> likeness([(1, 2), (1, 2), (1, 5), (7, 8)], aligned)
    array([1. , 1. , 0.5, 0. ])
    """
    count = len(paths)
    if count < 2:
        return np.zeros(count)
    pairs = np.zeros((count, count))  # the diagonal stays 0: no branch is its own partner
    for i in range(count):
        for j in range(count):
            if i != j:
                pairs[i, j] = similarity(paths[i], paths[j])
    return pairs.max(axis=1)


SIMILARITIES: dict[str, Similarity] = {"aligned": aligned, "overlap": overlap}
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
ROUNDING = 1e-9  # a similarity that is a threshold but for rounding reaches it


def _alike_columns() -> tuple[str, ...]:
    """What ``alike`` measures by each similarity at each threshold: "steps aligned 0.5", "share aligned 0.5", …"""
    names = []
    for similarity in SIMILARITIES:
        for threshold in THRESHOLDS:
            names.append(f"steps {similarity} {threshold}")
            names.append(f"share {similarity} {threshold}")
    return tuple(names)


ALIKE = _alike_columns()


def alike(steps: Sequence[Step], tail: int | None = None) -> dict[str, float]:
    """How alike the branches of a self-drafter are, step by step (PTD's Figure 1b), by two similarities.

    Per similarity and threshold (ALIKE): "steps", the share of steps in which at least two branches are that similar,
    and "share", that of branches with such a partner. branches: their mean number; repeated: see there. tail: see
    ``branches``.

    Example: one step has the branches (1, 2) and (1, 2), another (1, 2) and (3, 4). At any threshold half of the steps
    have two branches that alike, and half of the four branches have a partner.
    """
    paths_by_step = [branches(step.draft, tail) for step in steps]
    counts = [len(paths) for paths in paths_by_step]
    found = {"branches": float(np.mean(counts)), "repeated": float(np.mean([repeated(step.draft) for step in steps]))}
    for name, similarity in SIMILARITIES.items():
        by_step = [likeness(paths, similarity) for paths in paths_by_step]  # (branches,) each
        for threshold in THRESHOLDS:
            have_partner = [closest >= threshold - ROUNDING for closest in by_step]
            found[f"steps {name} {threshold}"] = float(np.mean([step.any() for step in have_partner]))
            found[f"share {name} {threshold}"] = float(np.mean(np.concatenate(have_partner)))
    return found
