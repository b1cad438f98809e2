"""The usual measures of speculative decoding, computed from the steps of one or several generations.

In each step draft tokens are proposed, some of them are accepted, and accepted + 1 tokens are committed to the text.
The names are those of vLLM's metrics. A step with an empty draft counts as a step. Auxiliary nodes, which no verifier
may accept, are not draft tokens. Tokens after the end of the text are neither accepted nor committed, so the last step
of a text may commit fewer tokens than its verdict has.
"""

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher

import numpy as np

from specnb.decode import Step
from specnb.tree import Draft


def committed(steps: Sequence[Step]) -> np.ndarray:
    """(steps,) number of tokens that each step adds to the text: the accepted ones and one more, up to its end."""
    return np.array([len(step.tokens) for step in steps])


def accepted(steps: Sequence[Step]) -> np.ndarray:
    """(steps,) number of accepted draft tokens of each step that are part of the text."""
    counts = []
    for step in steps:
        path_length = len(step.verdict.path)
        counts.append(min(path_length, len(step.tokens)))  # the text may end within the accepted path
    return np.array(counts)


def drafted(steps: Sequence[Step]) -> np.ndarray:
    """(steps,) number of draft tokens of each step: all nodes but the root and the auxiliary ones."""
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
    """Accepted tokens over drafted tokens (vLLM's draft_acceptance_rate); nan if nothing was drafted."""
    drafted_tokens = drafted(steps).sum()
    if drafted_tokens == 0:
        return float("nan")
    return accepted(steps).sum() / drafted_tokens


def branches(draft: Draft, tail: int | None = None) -> list[tuple[int, ...]]:
    """The branches on which a self-drafter works: for each auxiliary leaf the tokens of its path below the root.

    tail: if given, only the last ``tail`` tokens of each path. Self-Draft's branches begin with random tokens, which
          are left out in this way.
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
    """The share of auxiliary nodes that repeat another one: the same token after the same parent token.

    Example: the root 9 has two auxiliary paths, 9 → 1 → 2 and 9 → 9 → 1. Of the pairs (9, 1), (1, 2), (9, 9), (9, 1)
    the last repeats the first, so the share is a quarter.
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
    """The number of positions at which two branches have the same token, over the length of the longer one.

    >>> aligned((1, 2, 3, 4), (1, 9, 3, 4)), aligned((1, 2, 3, 4), (2, 3, 4, 5))
    (0.75, 0.0)
    """
    same = sum(x == y for x, y in zip(a, b, strict=False))
    return same / max(len(a), len(b))


def overlap(a: Sequence[int], b: Sequence[int]) -> float:
    """2 · (tokens in matching runs) / (sum of both lengths): Ratcliff and Obershelp's measure, by difflib.

    Unlike ``aligned`` it finds that one branch is the other one shifted by a token.

    >>> overlap((1, 2, 3, 4), (2, 3, 4, 5))  # three tokens match: 2 · 3 / 8
    0.75
    """
    return SequenceMatcher(None, a, b, autojunk=False).ratio()


def likeness(paths: Sequence[Sequence[int]], similarity: Similarity) -> np.ndarray:
    """(branches,) similarity of each branch of a step to the other branch that is most like it (PTD's Figure 1b).

    A single branch has similarity 0. paths: the branches of a step, see ``branches``.

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
ROUNDING = 1e-9  # a similarity may be below a threshold by this much and still reach it


def _alike_columns() -> tuple[str, ...]:
    """The keys of ``alike`` for all similarities and thresholds: "steps aligned 0.5", "share aligned 0.5", …"""
    names = []
    for similarity in SIMILARITIES:
        for threshold in THRESHOLDS:
            names.append(f"steps {similarity} {threshold}")
            names.append(f"share {similarity} {threshold}")
    return tuple(names)


ALIKE = _alike_columns()


def alike(steps: Sequence[Step], tail: int | None = None) -> dict[str, float]:
    """Measure how alike the branches of a self-drafter are in each step (PTD's Figure 1b), by two similarities.

    Example: one step has the branches (1, 2) and (1, 2), another (1, 2) and (3, 4). At any threshold half of the steps
    have two branches that are this alike, and half of the four branches have such a partner.

    tail: see ``branches``. The keys of the result are:
    branches:  mean number of branches per step.
    repeated:  mean share of repeated nodes, see ``repeated``.
    "steps SIMILARITY THRESHOLD": the share of steps in which at least two branches are this similar.
    "share SIMILARITY THRESHOLD": the share of branches that have a partner this similar.
    """
    paths_by_step = [branches(step.draft, tail) for step in steps]
    counts = [len(paths) for paths in paths_by_step]
    repeated_shares = [repeated(step.draft) for step in steps]
    measures = {"branches": float(np.mean(counts)), "repeated": float(np.mean(repeated_shares))}
    for name, similarity in SIMILARITIES.items():
        by_step = [likeness(paths, similarity) for paths in paths_by_step]  # (branches,) each
        for threshold in THRESHOLDS:
            have_partner = [closest >= threshold - ROUNDING for closest in by_step]
            measures[f"steps {name} {threshold}"] = float(np.mean([step.any() for step in have_partner]))
            measures[f"share {name} {threshold}"] = float(np.mean(np.concatenate(have_partner)))
    return measures
