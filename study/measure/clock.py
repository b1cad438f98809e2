"""The clock: what one forward takes by its size, and what keeps measurements apart."""

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pandas as pd
import torch
from transformers import PreTrainedModel

from specnb.decode import now
from specnb.drafters import DraftModel
from specnb.models import Graphs
from specnb.target import Target
from specnb.tree import TokenTree

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
        rows = _timed(model, drafts, prefix, repetitions, sizes, graphs)
    table = pd.DataFrame(rows, columns=["turn", "model", "nodes", "seconds"])
    table = table[table["turn"] > 0]
    spread = table.groupby(["model", "nodes"], sort=False)["seconds"].quantile([0.25, 0.5, 0.75]).unstack()
    spread.columns = ["quartile", "median", "third quartile"]
    return spread.reset_index().to_dict("records")


def _timed(model, drafts, prefix, repetitions, sizes, graphs) -> list[tuple[int, str, int, float]]:
    """(turn, model, nodes, seconds) of every forward."""
    layers = sorted({layer for draft in drafts.values() for layer in draft.hidden_layers})
    recorded = Graphs(model, capacity=prefix + 2 * max(sizes)) if graphs else None
    target = Target(model, hidden_layers=layers, forwards=recorded)
    drawn = torch.randint(1000, 2000, (prefix,), generator=torch.Generator("cpu").manual_seed(0), device="cpu")
    tokens = (drawn % target.vocabulary).tolist()  # any ids do: a forward costs the same
    rows = []
    for turn in range(repetitions + 1):
        hidden = target.prefill(tokens[:-1])
        for nodes in sizes:
            below = torch.arange(1000, 1000 + nodes, device="cpu") % target.vocabulary
            tree = TokenTree([tokens[-1], *below.tolist()], [-1] + [0] * nodes)
            for name, draft in drafts.items():
                draft.begin(tokens, hidden)
                draft.expand(tree, [0])
                began = now()
                draft.expand(tree, range(1, nodes + 1))
                rows.append((turn, name, nodes, now() - began))
            began = now()
            target.forward(TokenTree(tree.tokens[:nodes], tree.parents[:nodes]))
            rows.append((turn, "target", nodes, now() - began))
            target.cache.commit([])  # the same prefix for the next size
            target.tree = None
    return rows
