"""Prices: what forwards cost by their size, a step or a run by its counts, and forecasts made of these."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.interpolate import make_interp_spline

from specnb import models
from study import methods
from study.replay import Turn
from study.run import curves, draft_model, loaded

Curve = Mapping[int, float]  # nodes of a forward → seconds
NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # nodes at which curves are measured


def curves_block(
    heads: Sequence[str],
    prefix: int = 300,
    repetitions: int = 15,
    pair: str = models.EMBEDDED,
    dtype: str = "float32",
    packed: bool = False,
    sizes: Sequence[int] = NODES,
    graphs: bool = False,
) -> list[dict[str, object]]:
    """``curves`` of a pair's target and of heads by name. graphs: whether forwards are recorded, those of heads too."""
    used, capacity = loaded(pair, dtype, packed), (prefix + 2 * max(sizes)) if graphs else 0
    drafts = {name: draft_model(name, used, capacity) for name in heads}
    return curves(used.target, drafts, prefix, repetitions, sizes, graphs)


def interpolated(curve: Curve, sizes: Sequence[int]) -> np.ndarray:
    """A curve at the given sizes: linear between its points, the last slopes carried on beyond them."""
    x = sorted(curve)
    return make_interp_spline(x, [curve[size] for size in x], k=1)(np.asarray(sizes, float))


@dataclass(frozen=True, eq=False)
class Costs:
    """Seconds of a forward pass by number of nodes, for target and draft: between and beyond the points linear."""

    target: Curve
    draft: Curve

    @classmethod
    def flat(cls, call: float, node: float = 0.0) -> "Costs":
        """In target calls for one token: so much a draft forward, so much a verified node more."""
        return cls({1: 1.0, 101: 1.0 + 100 * node}, {1: call, 2: call})

    def seconds(self, turns: Sequence[Turn]) -> float:
        """Time of a replayed run."""
        drafted = [size for turn in turns for size in turn.forwards]
        target = float(interpolated(self.target, [turn.nodes for turn in turns]).sum())
        return target + float(interpolated(self.draft, drafted).sum())


def speed(tau, forwards, nodes, *, call: float, node: float, target: float = 1.0):
    """Tokens in the time of a target call: τ / (target calls + call · draft forwards + node · nodes), all per step."""
    return tau / (target + call * forwards + node * nodes)


def counted(spelt: str | None) -> dict[int, int]:
    """ "1:3 12:40" of a recorded run → {1: 3, 12: 40}; nothing for an empty entry."""
    words = spelt.split() if isinstance(spelt, str) else []
    return {int(size): int(count) for size, _, count in (word.partition(":") for word in words)}


def forwards(spelt: str | None, curve: Curve) -> float:
    """Seconds of all counted forwards by a curve, linear between its points."""
    sizes = counted(spelt)
    return float(np.dot(interpolated(curve, list(sizes)), list(sizes.values()))) if sizes else 0.0


def head_of(method: str) -> str | None:
    """Whose forwards a method's frontiers were: a head's, "pair" or none; transformers' assistant is the vdm."""
    return "vdm" if method == "assistant" else methods.method(method).head


def predicted(race: pd.DataFrame, target: Curve, drafts: Mapping[str, Curve], *, prefill: bool = True) -> pd.DataFrame:
    """The race's rows with columns target s, draft s and predicted, the speed-up over "generate" on the same prompt.

    A run costs its counted forwards by the curves and nothing else: what is measured beyond that is the loop, and that
    forwards were slower than on the curves. prefill: add what generate's first forward took to every run. Repetitions
    are matched with their own baseline.
    """
    at = ["prompt", "repetition"] if "repetition" in race else ["prompt"]
    owner = {name: head_of(name) for name in race["method"].unique()}
    runs = zip(map(owner.get, race["method"]), race["frontiers"], strict=True)
    drafted = [forwards(spelt, drafts[head]) if head else 0.0 for head, spelt in runs]
    found = race.assign(**{"target s": [forwards(spelt, target) for spelt in race["trees"]], "draft s": drafted})
    plain = found[found["method"] == "generate"].set_index(at)
    places = pd.MultiIndex.from_frame(race[at]) if len(at) > 1 else pd.Index(race["prompt"])
    first = plain["prefill"].reindex(places).to_numpy() * prefill
    rate = found["tokens"] / (found["target s"] + found["draft s"] + first)
    base = (plain["tokens"] / (plain["target s"] + plain["prefill"] * prefill)).reindex(places).to_numpy()
    return found.assign(predicted=rate / base)


def roofline(parameters: float, bandwidth: float, operations: float, *, bytes_each: int = 2) -> dict[int, float]:
    """Seconds of a forward over n tokens on paper: all weights read once, or all multiplications, whichever is longer.

    parameters: number; bandwidth: bytes/s; operations: of the machine a second. A KV cache and kernels' own losses are
    left out: this is a prediction, not a measurement.
    """
    read = parameters * bytes_each / bandwidth
    return {n: max(read, 2 * parameters * n / operations) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)}
