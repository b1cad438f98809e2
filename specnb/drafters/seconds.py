"""What forwards take on this machine by their number of nodes: what AutoDrafter wants to know, measured and kept.

A price is the median of a few forwards at each of ten sizes. ``measured`` measures; ``kept`` does so once a machine,
model and draft, and finds the numbers in the user cache from then on.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from tqdm.auto import tqdm

from specnb import cache_dir
from specnb.decode import now
from specnb.drafters.draft_models import DraftModel
from specnb.models import files, provenance
from specnb.selfcheck import identity
from specnb.target import Target
from specnb.tree import TokenTree

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # nodes of the forwards that are measured, of target and draft
TARGET_NODES = 32  # AutoDrafter's trees have this many nodes at most, the root included
DRAFT_NODES = 8  # and this many of them are expanded by one forward of the draft
REPETITIONS = 5
PREFIX = 300  # tokens behind which forwards are measured


@dataclass(frozen=True)
class ForwardSeconds:
    """Seconds of one forward over 1, 2, 3, … nodes: of the target, [n - 1] over n, and of the draft model."""

    target: tuple[float, ...]
    draft: tuple[float, ...]


def measured(target: Target, draft: DraftModel, prefix: int, *, quiet: bool = False) -> ForwardSeconds:
    """Measure a target and a draft model behind a prefix of so many tokens. quiet: without a progress bar.

    Each of SIZES is measured REPETITIONS times. Between the sizes seconds are linear, and they never fall with size.
    """
    rows = timed(target, {"draft": draft}, prefix, REPETITIONS, SIZES, quiet=quiet)
    target_seconds = rising(_medians(rows, "target"), TARGET_NODES)
    draft_seconds = rising(_medians(rows, "draft"), DRAFT_NODES)
    return ForwardSeconds(target_seconds, draft_seconds)


def _medians(rows: Sequence["Timed"], model: str) -> list[float]:
    """The median seconds of one model's forwards at each of SIZES."""
    medians = []
    for nodes in SIZES:
        seconds = [row.seconds for row in rows if row.model == model and row.nodes == nodes]
        medians.append(float(np.median(seconds)))
    return medians


def rising(medians: Sequence[float], most: int) -> tuple[float, ...]:
    """Seconds over 1 to most nodes, from medians at SIZES: never falling (isotonic regression), and linear between.

    Example: medians (3, 1, 4, 5, …) at 1, 2, 3, 4 nodes fall from the first to the second, so both become their mean:
    (2, 2, 4, 5, …).
    """
    seconds = isotonic_regression(np.asarray(medians, dtype=float)).x
    return tuple(np.interp(range(1, most + 1), SIZES, seconds).tolist())


@dataclass(frozen=True)
class Timed:
    """One measured forward. turn: which repetition; model: "target" or the name of a draft."""

    turn: int
    model: str
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
    """Forwards of a target over trees of n nodes, and of draft models over frontiers of n, for each n of sizes.

    Sizes and models take turns, so that a slow minute hits all of them alike; the first turn warms up and is left out.
    The trees hang off a prefix of so many tokens. Any token ids do: a forward costs the same whatever it reads.
    """
    target.hidden_layers = tuple(sorted({layer for draft in drafts.values() for layer in draft.hidden_layers}))
    generator = torch.Generator("cpu").manual_seed(0)
    drawn = torch.randint(1000, 2000, (prefix,), generator=generator, device="cpu")
    tokens = (drawn % target.vocabulary).tolist()
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
            target.cache.commit([])  # nothing of the tree is kept: the next size has the same prefix
            target.tree = None
    return [row for row in rows if row.turn > 0]


def kept(target: Target, draft: DraftModel, draft_name: str, prefix: int, *, anew: bool = False) -> ForwardSeconds:
    """``measured``, once a machine: the numbers are kept in the user cache, under seconds/.

    They are those of this processor or GPU, number of threads, versions of torch and transformers, target and draft:
    another one of these has its own. draft_name: what tells the draft model from others, a head's name with its hash.
    anew: measure again, and keep that: the machine was busy when it was measured, or is another one by now.
    """
    where = provenance.facts("specnb.drafters.seconds.kept")
    marks = {name: where[name] for name in ("device", "machine", "processor", "specnb", "torch", "transformers")}
    marks |= {"target": identity(target.model), "draft": draft_name, "prefix": prefix}
    key = hashlib.sha256(json.dumps(marks, sort_keys=True).encode()).hexdigest()[:32]
    path = cache_dir() / "seconds" / f"{key}.json"
    if not anew:
        found = _read(path)
        if found is not None:
            return found
    print("measuring what forwards take on this machine, once …", flush=True)
    seconds = measured(target, draft, prefix)
    lists = {"target seconds": seconds.target, "draft seconds": seconds.draft}
    _write(path, files.to_json({**marks, "date": where["date"], **lists}))
    return seconds


def _read(path: Path) -> ForwardSeconds | None:
    """What was kept; None if there is nothing, or nothing that can be read: then it is measured again."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return ForwardSeconds(tuple(found["target seconds"]), tuple(found["draft seconds"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, text: str) -> None:
    """Keep it; a cache that cannot be written only means that it is measured again by the next process."""
    try:
        files.write(path, text)
    except OSError as error:
        warnings.warn(f"what forwards take is not kept: {error}", stacklevel=3)
