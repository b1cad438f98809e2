"""A race explained: what its counted forwards should have cost by measured curves, and would cost on other machines."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from specnb import methods, replay

Curve = Mapping[int, float]  # nodes of a forward → seconds


def counted(spelt: str | float) -> dict[int, int]:
    """ "1:3 12:40" of a race (``side_by_side.measure``) → {1: 3, 12: 40}; nothing for an empty entry."""
    words = spelt.split() if isinstance(spelt, str) else []
    return {int(size): int(count) for size, _, count in (word.partition(":") for word in words)}


def forwards(spelt: str | float, curve: Curve) -> float:
    """Seconds of all counted forwards by a curve, linear between its points."""
    sizes = counted(spelt)
    return float(np.dot(replay.interpolated(curve, list(sizes)), list(sizes.values()))) if sizes else 0.0


def head_of(method: str) -> str | None:
    """Whose forwards a method's frontiers were: a head's, "pair" or none; transformers' assistant is the vdm."""
    return "vdm" if method == "assistant" else methods.method(method).head


def predicted(race: pd.DataFrame, target: Curve, drafts: Mapping[str, Curve], *, prefill: bool = True) -> pd.DataFrame:
    """The race's rows with columns target s, draft s and predicted, the speed-up over "generate" on the same prompt.

    A run costs its counted forwards by the curves and nothing else: what is measured beyond that is the loop, and that
    forwards were slower than on the curves. prefill: add what generate's first forward took to every run.
    """
    plain, heads = race["method"] == "generate", {name: head_of(name) for name in race["method"].unique()}
    drafted = [
        forwards(spelt, drafts[heads[name]]) if heads[name] else 0.0
        for name, spelt in zip(race["method"], race["frontiers"], strict=True)
    ]
    found = race.assign(**{"target s": [forwards(spelt, target) for spelt in race["trees"]], "draft s": drafted})
    first = race[plain].set_index("prompt")["prefill"] * prefill
    rate = found["tokens"] / (found["target s"] + found["draft s"] + race["prompt"].map(first))
    baseline = rate[plain].set_axis(race.loc[plain, "prompt"])
    return found.assign(predicted=rate / race["prompt"].map(baseline))


def ideal(race: pd.DataFrame) -> pd.DataFrame:
    """Per method: τ, draft/target cost of a step, the ideal τ / (1 + that), and what share of it was reached.

    Medians over prompts; the speed is that behind the first step, whose prefill is no matter of drafting, against
    generate's. A step's target cost is generate's forward for one token: larger trees are part of what is lost.
    """
    later = race.assign(
        rate=(race["tokens"] - race["tokens"] / race["steps"]) / (race["seconds"] - race["prefill"]),
        tau=race["tokens"] / race["steps"],
        each=race["target"] / (race["steps"] - 1).clip(lower=1),
        draft=race["drafting"] / (race["steps"] - 1).clip(lower=1),
    )
    wide = {
        name: later.pivot_table(index="prompt", columns="method", values=name)
        for name in ("rate", "each", "draft", "tau")
    }
    speed = wide["rate"].div(wide["rate"]["generate"], axis=0)
    cost = wide["draft"].div(wide["each"]["generate"], axis=0)
    best = wide["tau"] / (1 + cost)
    table = {"tau": wide["tau"], "draft/target": cost, "ideal": best, "speed-up": speed, "reached": speed / best}
    return pd.DataFrame({name: values.median() for name, values in table.items()})


def roofline(parameters: float, bandwidth: float, operations: float, *, bytes_each: int = 2) -> dict[int, float]:
    """Seconds of a forward over n tokens on paper: all weights read once, or all multiplications, whichever is longer.

    parameters: number; bandwidth: bytes/s; operations: of the machine a second. A KV cache and kernels' own losses are
    left out: this is a prediction, not a measurement.
    """
    read = parameters * bytes_each / bandwidth
    return {n: max(read, 2 * parameters * n / operations) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)}
