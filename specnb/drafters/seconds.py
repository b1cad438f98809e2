"""The seconds of a forward on this machine, by its number of nodes: measured once and kept, for AutoDrafter.

For each of ten sizes the median of a few forwards counts. ``measured`` measures them. ``kept`` measures them once per
machine, target and draft model, and later reads the numbers from the user cache.
"""

import hashlib
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specnb import cache_dir
from specnb.decode import now
from specnb.drafters.draft_models import DraftModel
from specnb.models import files, provenance
from specnb.selfcheck import identity
from specnb.target import Target, context_length
from specnb.tree import TokenTree

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # numbers of nodes for which forwards are measured
TARGET_NODES = 32  # AutoDrafter's trees have this many nodes at most, the root included
DRAFT_NODES = 8  # the most nodes that one forward of the draft model expands there
REPETITIONS = 5  # forwards per size
PREFIX = 300  # number of tokens in the cache while forwards are measured


@dataclass(frozen=True)
class ForwardSeconds:
    """The seconds of one forward over 1, 2, 3, … nodes; entry [n - 1] is for n nodes."""

    target: tuple[float, ...]
    draft: tuple[float, ...]


def measured(target: Target, draft: DraftModel, prefix: int, *, quiet: bool = False) -> ForwardSeconds:
    """Measure the forwards of a target and a draft model.

    prefix: the number of tokens in the cache. quiet: whether to show no progress bar.

    Each of SIZES is measured REPETITIONS times. Between the sizes the seconds are interpolated (``rising``).
    """
    rows = timed(target, {"draft": draft}, prefix, REPETITIONS, SIZES, quiet=quiet)
    target_seconds = rising(_medians(rows, "target"), TARGET_NODES)
    draft_seconds = rising(_medians(rows, "draft"), DRAFT_NODES)
    return ForwardSeconds(target_seconds, draft_seconds)


def _medians(rows: Sequence["Timed"], model: str) -> list[float]:
    """Return the median seconds of one model's forwards at each of SIZES."""
    medians = []
    for nodes in SIZES:
        seconds = [row.seconds for row in rows if row.model == model and row.nodes == nodes]
        medians.append(float(np.median(seconds)))
    return medians


def rising(medians: Sequence[float], most: int) -> tuple[float, ...]:
    """Return the seconds over 1, 2, … most nodes, from the medians at SIZES.

    Example: medians (3, 1, 4, 5, …) at 1, 2, 3, 4 nodes fall from the first to the second, so both become their mean:
    (2, 2, 4, 5, …).

    Isotonic regression makes the medians never fall with size; between the sizes the seconds are linear.
    """
    seconds = isotonic_regression(np.asarray(medians, dtype=float)).x
    return tuple(np.interp(range(1, most + 1), SIZES, seconds).tolist())


def room_for_prefix(*models: PreTrainedModel | None) -> int:
    """The most tokens that a prefix may have: the shortest context of these models has room for one token more."""
    return min(context_length(model) for model in models if model is not None) - 1


@dataclass(frozen=True)
class Timed:
    """One measured forward."""

    turn: int  # the number of the repetition
    model: str  # "target" or the name of a draft model
    nodes: int
    seconds: float


def timed(
    target: Target,
    drafts: Mapping[str, DraftModel],
    prefix: int,
    repetitions: int,
    sizes: Sequence[int],
    *,
    quiet: bool = True,
) -> list[Timed]:
    """Measure the target over trees of n nodes, and draft models over frontiers of n nodes, for each n in sizes.

    drafts: name → draft model. prefix: the number of tokens in the cache. repetitions: measured turns. quiet: whether
    to show no progress bar.

    In each turn all sizes and models are measured once, so that a slow minute of the machine affects all of them. The
    first turn is a warm-up and is left out. The tokens are random, because a forward costs the same for any tokens.
    """
    target.hidden_layers = tuple(sorted({layer for draft in drafts.values() for layer in draft.hidden_layers}))
    generator = torch.Generator("cpu").manual_seed(0)
    random_ids = torch.randint(1000, 2000, (prefix,), generator=generator, device="cpu")
    tokens = (random_ids % target.vocabulary).tolist()
    rows = []
    for turn in tqdm(range(repetitions + 1), desc="timing forwards", leave=False, disable=quiet or files.QUIET):
        hidden = target.prefill(tokens[:-1])
        for nodes in sizes:
            below = torch.arange(1000, 1000 + nodes, device="cpu") % target.vocabulary
            tree = TokenTree([tokens[-1], *below.tolist()], [-1] + [0] * nodes)  # a root and its children
            for name, draft in drafts.items():
                draft.begin(tokens, hidden)
                draft.expand(tree, [0])
                began = now()
                draft.expand(tree, range(1, nodes + 1))
                rows.append(Timed(turn, name, nodes, now() - began))
            began = now()
            target.forward(TokenTree(tree.tokens[:nodes], tree.parents[:nodes]))
            rows.append(Timed(turn, "target", nodes, now() - began))
            target.cache.commit([])  # no node is kept, so that the next size has the same prefix
            target.tree = None
    return [row for row in rows if row.turn > 0]


def kept(target: Target, draft: DraftModel, draft_name: str, prefix: int, *, anew: bool = False) -> ForwardSeconds:
    """Return ``measured`` seconds, measured only once: they are kept in the user cache, in its folder seconds/.

    The key of the kept numbers is made of the processor or GPU, the number of threads, the versions of specnb, torch
    and transformers, the target, the draft model and the prefix.

    draft_name: identifies the draft model, such as a trained head's name with its hash.
    prefix: the number of tokens in the cache.
    anew: measure again and replace the kept numbers, for example if the machine was busy before.
    """
    where = provenance.facts("specnb.drafters.seconds.kept")
    marks = {name: where[name] for name in ("device", "machine", "processor", "specnb", "torch", "transformers")}
    marks |= {"target": identity(target.model), "draft": draft_name, "prefix": prefix}
    key = hashlib.sha256(json.dumps(marks, sort_keys=True).encode()).hexdigest()[:32]
    path = cache_dir() / "seconds" / f"{key}.json"
    if not anew:
        earlier = _read(path)
        if earlier is not None:
            return earlier
    print("measuring what forwards take on this machine, once …", file=sys.stderr, flush=True)
    seconds = measured(target, draft, prefix)
    lists = {"target seconds": seconds.target, "draft seconds": seconds.draft}
    _write(path, files.to_json({**marks, "date": where["date"], **lists}))
    return seconds


def _read(path: Path) -> ForwardSeconds | None:
    """Return the kept seconds; None if there is no file or it cannot be read, and then they are measured again."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        return ForwardSeconds(tuple(entry["target seconds"]), tuple(entry["draft seconds"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, text: str) -> None:
    """Write the kept seconds. If that is not possible, warn: the next process measures again."""
    try:
        files.write(path, text)
    except OSError as error:
        warnings.warn(f"what forwards take is not kept: {error}", stacklevel=3)
