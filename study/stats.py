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
    """The ends of a statistic's bootstrap interval (BCa, 95 %): prompts are drawn again and again, with replacement.

    values: (prompts, …), one row a prompt. statistic: of such an array. level: how often the interval should hold the
    truth. The ends are nan with fewer than two prompts, and equal where all prompts are.

    >>> interval(np.array([3.0, 3.0, 3.0]), np.median)
    (3.0, 3.0)
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        return float("nan"), float("nan")
    low, high = _bootstrap(values, statistic, "BCa", level, seed)
    if not np.isfinite([low, high]).all():  # where leaving one prompt out changes nothing, BCa is not defined
        low, high = _bootstrap(values, statistic, "percentile", level, seed)
    return low, high


def _bootstrap(
    values: np.ndarray, statistic: Callable[[np.ndarray], float], method: str, level: float, seed: int
) -> tuple[float, float]:
    """An interval by one of scipy's methods; nan where the method is not defined."""

    def of_samples(prompts: np.ndarray, axis: int) -> np.ndarray:
        """The statistic of each sample. prompts: (…, samples, prompts), the numbers of those that were drawn.

        scipy asks for many samples at once: its own loop over them takes longer than the statistics.
        """
        samples = prompts.reshape(-1, prompts.shape[axis])
        numbers = [statistic(values[sample]) for sample in samples]
        return np.reshape(numbers, prompts.shape[:-1])

    every_prompt = np.arange(len(values))
    options = {"n_resamples": RESAMPLES, "method": method, "confidence_level": level, "rng": seed}
    with warnings.catch_warnings(action="ignore"):
        result = stats.bootstrap((every_prompt,), of_samples, **options)
    ends = result.confidence_interval
    return float(ends.low), float(ends.high)


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
        if self.rival_by_rival:
            low, high = lead_interval(wide)
        else:
            low, high = interval(wide, self.of)
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
    """The mean lead of the first method over the best of all others: over the one to which it is smallest.

    >>> float(least_lead(np.array([[3.0, 1.0, 2.0], [5.0, 1.0, 2.0]])))  # 3 over the second method, 2 over the third
    2.0
    """
    leads = wide[:, :1] - wide[:, 1:]  # (prompts, rivals)
    return leads.mean(0).min()


def difference_of_differences(wide: np.ndarray) -> float:
    """What the first method gains on the second, less what the third gains on the fourth: a mean over prompts.

    >>> float(difference_of_differences(np.array([[5.0, 1.0, 3.0, 2.0]])))  # (5 - 1) - (3 - 2)
    3.0
    """
    return (wide[:, 0] - wide[:, 1] - wide[:, 2] + wide[:, 3]).mean()


def lead_interval(wide: np.ndarray) -> tuple[float, float]:
    """The interval of ``least_lead``, rival by rival.

    The best of several noisy rivals looks better than it is. So the lower end is the lowest of any rival's 95 %
    interval, and the upper end the lowest of their upper ends, at a level that is corrected for their number.
    """
    rivals = range(1, wide.shape[1])
    corrected_level = 1 - 0.05 / len(rivals)
    lows = []
    highs = []
    for rival in rivals:
        pair = wide[:, [0, rival]]
        low, _ = interval(pair, mean_difference)
        _, high = interval(pair, mean_difference, level=corrected_level)
        lows.append(low)
        highs.append(high)
    return min(lows), min(highs)


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
        steepness, _ = np.polyfit(numbers, wide.mean(0), 1)
        return steepness

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


def _by_method(table: pd.DataFrame, value: str) -> pd.DataFrame:
    """A value with one row a prompt and repetition, and one column a method."""
    index = ["prompt"]
    if "repetition" in table:
        index.append("repetition")
    return table.pivot_table(index=index, columns="method", values=value, sort=False)


def _over_prompts(name: str, statistic: Callable, pairs: pd.Series) -> dict[str, float]:
    """A statistic over prompts of what was compared within pairs of runs: a prompt's repetitions count by their median.

    name: what the statistic is called in the result.
    """
    by_prompt = pairs.dropna().groupby("prompt").median().to_numpy()  # (prompts,)
    low, high = interval(by_prompt, statistic)
    return {name: float(statistic(by_prompt)), "low": low, "high": high, "prompts": len(by_prompt)}


def ratio(table: pd.DataFrame, value: str, first: str, second: str) -> dict[str, float]:
    """Median over prompts of first / second, with its interval and the number of prompts that have both."""
    wide = _by_method(table, value)
    return _over_prompts("ratio", np.median, wide[first] / wide[second])


def difference(table: pd.DataFrame, value: str, first: str, second: str) -> dict[str, float]:
    """Mean over prompts of first − second, with its interval and the number of prompts that have both."""
    wide = _by_method(table, value)
    return _over_prompts("difference", np.mean, wide[first] - wide[second])


def speed_ups(table: pd.DataFrame, baseline: str = "generate") -> pd.DataFrame:
    """Per method of a race: mean τ, median token/s, speed-up over the baseline with interval, prompts; fastest first.

    prompts: how many have both methods. Failed rows are left out there and counted in the column failed; a method that
    always failed has nothing else.
    """
    is_good = table["status"] == "ok"
    good = table[is_good]
    good = good.assign(**{"token/s": good["tokens"] / good["seconds"]})
    if not (good["method"] == baseline).any():
        raise ValueError(f"there is no run of the baseline {baseline!r}: {', '.join(table['method'].unique())}")
    rows = {}
    for name, runs in good.groupby("method", sort=False):
        speed_up = ratio(good, "token/s", name, baseline)
        rows[name] = {
            "tau": (runs["tokens"] / runs["steps"]).mean(),
            "token/s": runs["token/s"].median(),
            "speed-up": speed_up["ratio"],
            "low": speed_up["low"],
            "high": speed_up["high"],
            "prompts": speed_up["prompts"],
        }
    summary = pd.DataFrame(rows).T
    summary = summary.reindex(table["method"].unique())  # those that always failed, too
    summary = summary.assign(failed=table[~is_good].groupby("method").size())
    summary = summary.fillna({"prompts": 0, "failed": 0}).astype({"prompts": int, "failed": int})
    return summary.sort_values("speed-up", ascending=False).rename_axis("method")
