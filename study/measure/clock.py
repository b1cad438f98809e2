"""The clock: what one forward takes by its size, and what keeps measurements apart."""

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pandas as pd
from transformers import PreTrainedModel

from specnb.drafters import DraftModel
from specnb.drafters.seconds import timed
from specnb.models import Graphs
from specnb.target import Target

ALONE = threading.Lock()  # drafts have a state and seconds are measured: one run at a time in a process


@contextmanager
def recorded_as_asked() -> Iterator[None]:
    """Forwards that are to be recorded are, or it is an error: else what was measured would be those without."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="no graphs for")
        yield


def curves(
    model: PreTrainedModel,
    drafts: Mapping[str, DraftModel],
    prefix: int,
    repetitions: int,
    sizes: Sequence[int],
    graphs: bool,
) -> list[dict[str, object]]:
    """Seconds of a target forward over a tree of n nodes, and of draft forwards over a frontier of n, for each n.

    model: the target, of transformers; drafts: by name; graphs: whether the target's forwards are recorded. Behind a
    prefix of so many tokens; sizes and models take turns, and the first turn, which warms up, does not count. Rows:
    model ("target" or the draft's name), nodes, and seconds as quartile, median and third quartile.
    """
    with recorded_as_asked():
        recorded = Graphs(model, capacity=prefix + 2 * max(sizes)) if graphs else None
        rows = timed(Target(model, forwards=recorded), drafts, prefix, repetitions, sizes)
    table = pd.DataFrame(rows)
    spread = table.groupby(["model", "nodes"], sort=False)["seconds"].quantile([0.25, 0.5, 0.75]).unstack()
    spread.columns = ["quartile", "median", "third quartile"]
    return spread.reset_index().to_dict("records")
