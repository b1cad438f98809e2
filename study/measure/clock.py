"""The clock: seconds of forwards by their size, and a lock that keeps measurements apart."""

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

# Held during a run, so that there is one run at a time in a process: draft models are shared and have a state, and
# seconds of two runs at once would be too long.
ALONE = threading.Lock()


@contextmanager
def recorded_as_asked() -> Iterator[None]:
    """Make it an error if forwards that should be captured in graphs cannot be.

    Otherwise this is a warning ("no graphs for …"), the forwards run without graphs, and what is measured would be
    called by a wrong name.
    """
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
    """Seconds of target forwards over trees of n nodes, and of draft forwards over frontiers of n nodes, for each n.

    model:       the target, of transformers.
    drafts:      draft models by name.
    prefix:      tokens of the text before the tree.
    repetitions: how often each size is timed. Sizes and models take turns; the first turn warms up and does not count.
    sizes:       the values of n.
    graphs:      whether the target's forwards are captured and replayed.

    Returns one row per model and size: model ("target" or the draft's name), nodes, and the seconds' quartile, median
    and third quartile.
    """
    with recorded_as_asked():
        forwards = Graphs(model, capacity=prefix + 2 * max(sizes)) if graphs else None
        rows = timed(Target(model, forwards=forwards), drafts, prefix, repetitions, sizes)
    table = pd.DataFrame(rows)
    spread = table.groupby(["model", "nodes"], sort=False)["seconds"].quantile([0.25, 0.5, 0.75]).unstack()
    spread.columns = ["quartile", "median", "third quartile"]
    return spread.reset_index().to_dict("records")
