"""Prices: what a forward costs, and what a step or a run would cost by its counts of forwards and nodes.

``Prices`` is a flat list: one price per draft forward and one per verified node. The unit is a target call, the time of
a target forward over one token. A ``Curve`` gives measured seconds by the number of nodes, and ``Costs`` has two
curves, the target's and the draft's. ``roofline`` computes seconds from a machine's bandwidth and arithmetic alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.interpolate import make_interp_spline

from study import methods
from study.replay import Turn

Curve = Mapping[int, float]  # nodes of a forward → seconds
Forwards = Sequence[Sequence[int]]  # of a recorded run: pairs [nodes, number of forwards with this many nodes]


@dataclass(frozen=True)
class Prices:
    """A flat list of prices. The unit is a target call, the time of a target forward over one token.

    call:   the price of a draft forward.
    node:   the price of a verified node.
    fed:    the price of a node that is fed to the draft, for code that feeds nodes one by one.
    target: the price of the target's calls per step; 2 for code that runs the target twice.
    name:   in tables.

    >>> Prices(call=0.05).speed(pd.DataFrame([{"tau": 3.0, "forwards": 10, "drafted": 60, "auxiliary": 0}])).item()
    2.0
    """

    call: float = 0.0
    node: float = 0.0
    fed: float = 0.0
    target: float = 1.0
    name: str = ""

    def speed(self, counts: pd.DataFrame) -> pd.Series:
        """Tokens in the time of a target call, for each row of a table.

        counts: means over steps, in the columns tau, forwards, drafted and auxiliary, and in fed if that has a price;
                see ``quantities``.
        """
        nodes = counts["drafted"] + counts["auxiliary"]
        drafting = self.call * counts["forwards"]
        if self.fed:
            drafting = drafting + self.fed * counts["fed"]
        tokens = speed(counts["tau"], drafting, nodes, call=1.0, node=self.node, target=self.target)
        return tokens.rename(f"speed at {self.name}")


def speed(tau, forwards, nodes, *, call: float, node: float, target: float = 1.0):
    """Tokens in the time of a target call: τ / (target calls + call · draft forwards + node · nodes), all per step."""
    return tau / (target + call * forwards + node * nodes)


def interpolated(curve: Curve, sizes: Sequence[int]) -> np.ndarray:
    """(sizes,) seconds by a curve: linear between its points, and on with the outermost slopes beyond them."""
    known = sorted(curve)
    seconds = [curve[size] for size in known]
    return make_interp_spline(known, seconds, k=1)(np.asarray(sizes, float))


@dataclass(frozen=True, eq=False)
class Costs:
    """The curves of the target and of the draft."""

    target: Curve
    draft: Curve

    @classmethod
    def flat(cls, call: float, node: float = 0.0) -> "Costs":
        """Curves in target calls: ``call`` per draft forward; the target's are 1 and ``node`` per further node."""
        return cls({1: 1.0, 101: 1.0 + 100 * node}, {1: call, 2: call})

    def seconds(self, turns: Sequence[Turn]) -> float:
        """Seconds of a replayed run."""
        drafted = [size for turn in turns for size in turn.forwards]
        target = float(interpolated(self.target, [turn.nodes for turn in turns]).sum())
        return target + float(interpolated(self.draft, drafted).sum())


def count(forwards: Forwards | None) -> int:
    """The number of forwards of a recorded run; 0 for a failed one."""
    return sum(times for _, times in forwards or ())


def seconds(forwards: Forwards | None, curve: Curve) -> float:
    """Seconds of all forwards of a recorded run by a curve; 0 for a failed run."""
    if not forwards:
        return 0.0
    sizes = [size for size, _ in forwards]
    times = [times for _, times in forwards]
    return float(np.dot(interpolated(curve, sizes), times))


def head_of(name: str) -> str | None:
    """The head whose forwards a method makes: its name, "pair" for the pair's draft model, or None.

    For transformers' assistant it is the vdm.
    """
    made = methods.method(name)
    return "vdm" if made.assistant else made.head


def predicted(race: pd.DataFrame, target: Curve, drafts: Mapping[str, Curve], *, prefill: bool = True) -> pd.DataFrame:
    """Predict speed-ups of a recorded race from its counts of forwards and from measured curves.

    A run is taken to cost its forwards, by the curves, and nothing else. If it was slower, the loop between the
    forwards took the rest, or the forwards were slower than on the curves.

    race:    rows of a race, with runs of "generate".
    target:  the curve of the target.
    drafts:  the curves of heads, by name.
    prefill: whether the seconds of generate's first forward are added to every run.

    Returns the rows with three more columns: "target s" and "draft s", seconds, and predicted, the speed-up over
    generate on the same prompt, in the same repetition. Raises ValueError without runs of generate.
    """
    if not (race["method"] == "generate").any():
        raise ValueError(f"a forecast is over 'generate', got only {', '.join(race['method'].unique())}")
    keys = ["prompt", "repetition"] if "repetition" in race else ["prompt"]  # of the run of generate to compare with
    owner = {name: head_of(name) for name in race["method"].unique()}
    drafted = []
    for name, frontiers in zip(race["method"], race["frontiers"], strict=True):
        head = owner[name]
        drafted.append(seconds(frontiers, drafts[head]) if head else 0.0)
    verified = [seconds(trees, target) for trees in race["trees"]]
    priced = race.assign(**{"target s": verified, "draft s": drafted})
    plain = priced[priced["method"] == "generate"].set_index(keys)
    plain_prefill = plain["prefill"] * prefill  # 0 without
    plain_rate = plain["tokens"] / (plain["target s"] + plain_prefill)  # tokens a second
    plain_of_row = pd.MultiIndex.from_frame(race[keys]) if len(keys) > 1 else pd.Index(race["prompt"])
    row_prefill = plain_prefill.reindex(plain_of_row).to_numpy()
    rate = priced["tokens"] / (priced["target s"] + priced["draft s"] + row_prefill)
    return priced.assign(predicted=rate / plain_rate.reindex(plain_of_row).to_numpy())


def forecast(race: pd.DataFrame, curves: pd.DataFrame) -> pd.Series:
    """Forecast a race for larger models: each method's median speed-up over generate, the largest first.

    The forwards are those that were counted in the race, at the prices of the larger models. No text was written with
    these, and the time between forwards is left out. A vdm is taken to cost what the draft model costs, and any other
    head what an EAGLE head costs.

    race:   rows of a race. curves: of ``measure.forwards.shapes_block``, with or without graphs.
    Raises ValueError if curves has both.
    """
    if curves.duplicated(["model", "nodes"]).any():
        raise ValueError("curves has several prices of one model and size: choose those with or without graphs")
    price = {name: part.set_index("nodes")["median"].to_dict() for name, part in curves.groupby("model")}
    owners = {head_of(name) for name in race["method"].unique()} - {None}
    drafts = {head: price["pair" if head in ("vdm", "pair") else "eagle"] for head in owners}
    runs = predicted(race[race["status"] == "ok"], price["target"], drafts, prefill=False)
    return runs.groupby("method")["predicted"].median().sort_values(ascending=False)


def roofline(parameters: float, bandwidth: float, operations: float, *, bytes_each: int = 2) -> dict[int, float]:
    """Seconds of a forward over n tokens, computed and not measured, for several n.

    A forward reads all weights once, and multiplies and adds once per weight and token. It takes as long as the longer
    of the two. The KV cache, and the losses of real kernels, are left out.

    parameters: number of weights.
    bandwidth:  of the memory, in bytes per second.
    operations: additions and multiplications per second.
    bytes_each: of a weight.
    """
    read = parameters * bytes_each / bandwidth
    sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    return {n: max(read, 2 * parameters * n / operations) for n in sizes}
