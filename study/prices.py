"""Prices: what forwards cost by their size, what a step or a run costs by its counts, and forecasts made of these.

``Prices`` are flat, in target calls: so much a draft forward, so much a verified node. A ``Curve`` gives seconds by the
number of nodes, as measured, and ``Costs`` are two of them, the target's and the draft's. ``roofline`` is what a
machine's bandwidth and arithmetic allow on paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.interpolate import make_interp_spline

from study import methods
from study.replay import Turn

Curve = Mapping[int, float]  # nodes of a forward → seconds
Forwards = Sequence[Sequence[int]]  # of a recorded run: [nodes, how many forwards had so many], …


@dataclass(frozen=True)
class Prices:
    """A flat list of prices, in target calls for one token.

    call: of a draft forward. node: of a verified node. fed: of a node that is fed to the draft, where a loop feeds
    them one by one. target: of the target's own calls a step, 2 for a loop that runs the target twice. name: what
    tables call the list.

    >>> Prices(call=0.05).speed(pd.DataFrame([{"tau": 3.0, "forwards": 10, "drafted": 60, "auxiliary": 0}])).item()
    2.0
    """

    call: float = 0.0
    node: float = 0.0
    fed: float = 0.0
    target: float = 1.0
    name: str = ""

    def speed(self, counts: pd.DataFrame) -> pd.Series:
        """Tokens in the time of a target call, a row a method and prompt.

        counts: the columns tau, forwards, drafted and auxiliary, means over steps, and fed where that has a price;
        see ``quantities``.
        """
        nodes = counts["drafted"] + counts["auxiliary"]
        drafting = self.call * counts["forwards"]
        if self.fed:
            drafting = drafting + self.fed * counts["fed"]
        found = speed(counts["tau"], drafting, nodes, call=1.0, node=self.node, target=self.target)
        return found.rename(f"speed at {self.name}")


def speed(tau, forwards, nodes, *, call: float, node: float, target: float = 1.0):
    """Tokens in the time of a target call: τ / (target calls + call · draft forwards + node · nodes), all per step."""
    return tau / (target + call * forwards + node * nodes)


def interpolated(curve: Curve, sizes: Sequence[int]) -> np.ndarray:
    """A curve at the given sizes: linear between its points, the last slopes carried on beyond them."""
    known = sorted(curve)
    seconds = [curve[size] for size in known]
    return make_interp_spline(known, seconds, k=1)(np.asarray(sizes, float))


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


def count(forwards: Forwards | None) -> int:
    """How many forwards a recorded run had; none for a failed one."""
    return sum(times for _, times in forwards or ())


def seconds(forwards: Forwards | None, curve: Curve) -> float:
    """Seconds of all forwards of a recorded run by a curve, linear between its points."""
    if not forwards:
        return 0.0
    sizes = [size for size, _ in forwards]
    times = [times for _, times in forwards]
    return float(np.dot(interpolated(curve, sizes), times))


def head_of(name: str) -> str | None:
    """Whose forwards a method's frontiers were: a head's, "pair" or none; transformers' assistant is the vdm."""
    made = methods.method(name)
    return "vdm" if made.assistant else made.head


def predicted(race: pd.DataFrame, target: Curve, drafts: Mapping[str, Curve], *, prefill: bool = True) -> pd.DataFrame:
    """The race's rows with columns target s, draft s and predicted, the speed-up over "generate" on the same prompt.

    A run costs its counted forwards by the curves and nothing else: what is measured beyond that is the loop, and that
    forwards were slower than on the curves. prefill: add what generate's first forward took to every run. Repetitions
    are matched with their own baseline.
    """
    if not (race["method"] == "generate").any():
        raise ValueError(f"a forecast is over 'generate', got only {', '.join(race['method'].unique())}")
    at = ["prompt", "repetition"] if "repetition" in race else ["prompt"]
    owner = {name: head_of(name) for name in race["method"].unique()}
    drafted = []
    for name, frontiers in zip(race["method"], race["frontiers"], strict=True):
        head = owner[name]
        drafted.append(seconds(frontiers, drafts[head]) if head else 0.0)
    verified = [seconds(trees, target) for trees in race["trees"]]
    found = race.assign(**{"target s": verified, "draft s": drafted})
    plain = found[found["method"] == "generate"].set_index(at)
    places = pd.MultiIndex.from_frame(race[at]) if len(at) > 1 else pd.Index(race["prompt"])
    first = plain["prefill"].reindex(places).to_numpy() * prefill
    rate = found["tokens"] / (found["target s"] + found["draft s"] + first)
    base = (plain["tokens"] / (plain["target s"] + plain["prefill"] * prefill)).reindex(places).to_numpy()
    return found.assign(predicted=rate / base)


def forecast(race: pd.DataFrame, curves: pd.DataFrame) -> pd.Series:
    """Median speed-up over plain decoding if a race's forwards, as counted, had the prices of models' shapes.

    curves: of ``measure.forwards.shapes_block``. A forecast: no text was written at these prices, and what is done
    between forwards is left out. A vdm costs what the draft model does, any other head what EAGLE does.
    """
    if curves.duplicated(["model", "nodes"]).any():
        raise ValueError("curves has several prices of one model and size: choose those with or without graphs")
    price = {name: part.set_index("nodes")["median"].to_dict() for name, part in curves.groupby("model")}
    owners = {head_of(name) for name in race["method"].unique()} - {None}
    drafts = {head: price["pair" if head in ("vdm", "pair") else "eagle"] for head in owners}
    found = predicted(race[race["status"] == "ok"], price["target"], drafts, prefill=False)
    return found.groupby("method")["predicted"].median().sort_values(ascending=False)


def roofline(parameters: float, bandwidth: float, operations: float, *, bytes_each: int = 2) -> dict[int, float]:
    """Seconds of a forward over n tokens on paper: all weights read once, or all multiplications, whichever is longer.

    parameters: number; bandwidth: bytes/s; operations: of the machine a second. A KV cache and kernels' own losses are
    left out: this is a prediction, not a measurement.
    """
    read = parameters * bytes_each / bandwidth
    sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    return {n: max(read, 2 * parameters * n / operations) for n in sizes}
