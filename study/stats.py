"""Paired statistics over prompts: medians of ratios, differences of two methods, with BCa bootstrap intervals.

A prompt's steps and repetitions hang together, so prompts are what is resampled. Claims compare each method's median
over repetitions (``paired``, then a ``Statistic``); ``ratio`` and ``difference`` pair repetitions within a prompt
first. Percentile intervals cover too seldom with a dozen prompts; BCa (Efron 1987) is what scipy offers.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

RESAMPLES = 2000


def interval(
    values: np.ndarray, statistic: Callable[[np.ndarray], float], *, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """BCa interval of a statistic of (prompts, …) values, 95 %; the statistic itself twice where nothing varies.

    nan with fewer than two prompts.
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        return float("nan"), float("nan")

    def each(rows: np.ndarray, axis: int) -> np.ndarray:  # scipy's own loop takes longer than the statistics
        drawn = rows.reshape(-1, rows.shape[axis])
        return np.reshape([statistic(values[some]) for some in drawn], rows.shape[:-1])

    prompts = np.arange(len(values))
    with warnings.catch_warnings(action="ignore"):  # where leaving one prompt out changes nothing BCa is not defined
        for method in ("BCa", "percentile"):
            found = stats.bootstrap(
                (prompts,), each, n_resamples=RESAMPLES, method=method, confidence_level=level, rng=seed
            )
            low = float(found.confidence_interval.low)
            high = float(found.confidence_interval.high)
            if np.isfinite([low, high]).all():
                break
    return low, high


# ---- statistics of one value per prompt and method ----------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """What our data say: a number, its 95 % interval over prompts, and how many prompts those are."""

    value: float
    low: float
    high: float
    prompts: int


@dataclass(frozen=True)
class Statistic:
    """One number of a (prompts, methods) array.

    name: what tables call it. of: the number of an array. rival_by_rival: whether its interval is that of the first
    method's lead over its closest rival; see ``lead_interval``. at: of a slope, the numbers behind the methods.
    needs: how many methods it compares at least.
    """

    name: str
    of: Callable[[np.ndarray], float]
    rival_by_rival: bool = False
    at: tuple[float, ...] = ()
    needs: int = 1

    def estimate(self, wide: np.ndarray) -> Estimate:
        """The number of an array, see ``paired``, and its interval.

        >>> MEAN.estimate(np.array([[1.0], [1.0], [1.0]]))
        Estimate(value=1.0, low=1.0, high=1.0, prompts=3)
        """
        low, high = lead_interval(wide) if self.rival_by_rival else interval(wide, self.of)
        return Estimate(float(self.of(wide)), low, high, len(wide))


def mean(wide: np.ndarray) -> float:
    """The mean over prompts, and over methods, too, where those are seeds of one head."""
    return wide.mean()


def mean_per_cent(wide: np.ndarray) -> float:
    """The mean in per cent."""
    return 100 * wide.mean()


def median_ratio(wide: np.ndarray) -> float:
    """The median over prompts of the first method over the second."""
    return np.median(wide[:, 0] / wide[:, 1])


def gain_per_cent(wide: np.ndarray) -> float:
    """The same, as a gain in per cent."""
    return 100 * (np.median(wide[:, 0] / wide[:, 1]) - 1)


def mean_difference(wide: np.ndarray) -> float:
    """The mean over prompts of the first method less the second."""
    return (wide[:, 0] - wide[:, 1]).mean()


def share_ahead(wide: np.ndarray) -> float:
    """The share of prompts on which the first method is ahead of the second."""
    return (wide[:, 0] > wide[:, 1]).mean()


def least_lead(wide: np.ndarray) -> float:
    """The mean lead of the first method over the best of all others."""
    return (wide[:, :1] - wide[:, 1:]).mean(0).min()


def difference_of_differences(wide: np.ndarray) -> float:
    """What the first method gains on the second, less what the third gains on the fourth: a mean over prompts."""
    return (wide[:, 0] - wide[:, 1] - wide[:, 2] + wide[:, 3]).mean()


def lead_interval(wide: np.ndarray) -> tuple[float, float]:
    """The interval of ``least_lead``, rival by rival.

    The best of several noisy rivals looks better than it is. So the lower end is the lowest of any rival's 95 %
    interval, and the upper end the lowest of their upper ends, at a level that is corrected for their number.
    """
    count = wide.shape[1] - 1
    pairs = [wide[:, [0, rival]] for rival in range(1, count + 1)]
    low = min(interval(pair, mean_difference)[0] for pair in pairs)
    high = min(interval(pair, mean_difference, level=1 - 0.05 / count)[1] for pair in pairs)
    return low, high


MEAN = Statistic("mean", mean)
MEAN_PER_CENT = Statistic("mean, %", mean_per_cent)
RATIO = Statistic("ratio", median_ratio, needs=2)
PER_CENT = Statistic("per cent", gain_per_cent, needs=2)
DIFFERENCE = Statistic("difference", mean_difference, needs=2)
SHARE = Statistic("share", share_ahead, needs=2)
LEAD = Statistic("lead", least_lead, rival_by_rival=True, needs=2)
GAIN = Statistic("gain", difference_of_differences, needs=4)


def slope(at: Sequence[float]) -> Statistic:
    """The slope of the methods' means over these numbers, one a method.

    >>> float(slope([1, 2, 4]).of(np.array([[1.0, 3.0, 7.0]])).round(6))
    2.0
    """
    numbers = tuple(float(x) for x in at)

    def fitted(wide: np.ndarray) -> float:
        return np.polyfit(numbers, wide.mean(0), 1)[0]

    return Statistic("slope", fitted, at=numbers)


def paired(runs: pd.DataFrame, values: pd.Series, methods: Sequence[str]) -> np.ndarray:
    """A (prompts, methods) array of values: medians over repetitions, on the prompts that have all methods.

    runs: a table with the columns prompt and method. values: numbers of all its rows, or of some. methods: in order.
    Raises ValueError naming the methods that have no rows.
    """
    chosen = runs.loc[values.index, ["prompt", "method"]].assign(value=values.astype(float))
    present = set(chosen["method"])
    missing = sorted(set(methods) - present)
    if missing:
        raise ValueError(f"there are no rows of {', '.join(missing)}: there are {', '.join(sorted(present))}")
    wide = chosen.pivot_table(index="prompt", columns="method", values="value", aggfunc="median")
    return wide[list(methods)].dropna().to_numpy()


# ---- two methods of a table ---------------------------------------------------------------------------------------


def _over_prompts(name: str, statistic: Callable, apart: Callable, table: pd.DataFrame, value: str) -> dict[str, float]:
    """A statistic of two methods' distance over prompts: repetitions are paired, and their median counts."""
    index = ["prompt", "repetition"] if "repetition" in table else ["prompt"]
    wide = table.pivot_table(index=index, columns="method", values=value, sort=False)
    each = apart(wide).dropna().groupby("prompt").median().to_numpy()
    low, high = interval(each, statistic)
    return {name: float(statistic(each)), "low": low, "high": high, "prompts": len(each)}


def ratio(table: pd.DataFrame, value: str, first: str, second: str) -> dict[str, float]:
    """Median over prompts of first / second, with its interval and the number of prompts that have both."""
    return _over_prompts("ratio", np.median, lambda wide: wide[first] / wide[second], table, value)


def difference(table: pd.DataFrame, value: str, first: str, second: str) -> dict[str, float]:
    """Mean over prompts of first − second, with its interval and the number of prompts that have both."""
    return _over_prompts("difference", np.mean, lambda wide: wide[first] - wide[second], table, value)


def speed_ups(table: pd.DataFrame, baseline: str = "generate") -> pd.DataFrame:
    """Per method of a race: mean τ, median token/s, speed-up over the baseline with interval, prompts; fastest first.

    prompts: how many have both methods. Failed rows are left out there and counted in the column failed; a method that
    always failed has nothing else.
    """
    good = table[table["status"] == "ok"].assign(**{"token/s": lambda runs: runs["tokens"] / runs["seconds"]})
    if not (good["method"] == baseline).any():
        raise ValueError(f"there is no run of the baseline {baseline!r}: {', '.join(table['method'].unique())}")
    rows = {}
    for name, part in good.groupby("method", sort=False):
        lead = ratio(good, "token/s", name, baseline)
        tau = (part["tokens"] / part["steps"]).mean()
        rows[name] = {"tau": tau, "token/s": part["token/s"].median(), "speed-up": lead.pop("ratio"), **lead}
    failed = table[table["status"] != "ok"].groupby("method").size()
    found = pd.DataFrame(rows).T.reindex(table["method"].unique()).assign(failed=failed)
    found = found.fillna({"prompts": 0, "failed": 0}).astype({"prompts": int, "failed": int})
    return found.sort_values("speed-up", ascending=False).rename_axis("method")
