"""Paired statistics over prompts: medians of ratios, differences of two methods, with BCa bootstrap intervals.

The steps and repetitions of one prompt are not independent, so whole prompts are resampled. There are two ways to pair
methods. Claims take each method's median over repetitions (``paired``) and then a ``Statistic``; ``ratio`` and
``difference`` first compare two methods within each repetition. With a dozen prompts percentile intervals miss the
truth too often; BCa intervals (Efron 1987), which scipy has, are better.
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
    """The ends of a statistic's bootstrap interval (BCa): prompts are drawn again and again, with replacement.

    values:    (prompts, …) array, one row per prompt.
    statistic: a function from such an array to a number.
    seed:      of the draws.
    level:     how often the interval should contain the truth.

    The ends are nan with fewer than two prompts, and equal if all prompts are equal.

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
        """The statistic of each sample. prompts: (…, samples, prompts), the indices of the prompts that were drawn.

        scipy passes many samples at once, because its own loop over them takes longer than the statistics.
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
    """A number that was computed from our data, with its 95 % interval over prompts."""

    value: float
    low: float  # the lower end of the interval
    high: float  # the upper end
    prompts: int  # how many there are


@dataclass(frozen=True)
class Statistic:
    """A function from a (prompts, methods) array to a number."""

    name: str  # in tables
    of: Callable[[np.ndarray], float]  # the function
    rival_by_rival: bool = False  # whether its interval is found by ``lead_interval``
    at: tuple[float, ...] = ()  # of a slope: the x coordinates of the methods
    needs: int = 1  # how many methods it compares, at least

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
    """The mean over prompts and methods. There are several methods only if they are seeds of one head."""
    return wide.mean()


def mean_per_cent(wide: np.ndarray) -> float:
    """The mean in per cent."""
    return 100 * wide.mean()


def median_ratio(wide: np.ndarray) -> float:
    """The median over prompts of the first method over the second."""
    return np.median(wide[:, 0] / wide[:, 1])


def gain_per_cent(wide: np.ndarray) -> float:
    """``median_ratio`` as a gain in per cent."""
    return 100 * (np.median(wide[:, 0] / wide[:, 1]) - 1)


def mean_difference(wide: np.ndarray) -> float:
    """The mean over prompts of the first method less the second."""
    return (wide[:, 0] - wide[:, 1]).mean()


def share_ahead(wide: np.ndarray) -> float:
    """The share of prompts on which the first method is ahead of the second."""
    return (wide[:, 0] > wide[:, 1]).mean()


def least_lead(wide: np.ndarray) -> float:
    """The smallest of the first method's mean leads over the others, which is its lead over the best of them.

    >>> float(least_lead(np.array([[3.0, 1.0, 2.0], [5.0, 1.0, 2.0]])))  # 3 over the second method, 2 over the third
    2.0
    """
    leads = wide[:, :1] - wide[:, 1:]  # (prompts, rivals)
    return leads.mean(0).min()


def difference_of_differences(wide: np.ndarray) -> float:
    """The mean over prompts of (first − second) − (third − fourth).

    >>> float(difference_of_differences(np.array([[5.0, 1.0, 3.0, 2.0]])))  # (5 - 1) - (3 - 2)
    3.0
    """
    return (wide[:, 0] - wide[:, 1] - wide[:, 2] + wide[:, 3]).mean()


def lead_interval(wide: np.ndarray) -> tuple[float, float]:
    """The interval of ``least_lead``, computed for each rival, that is each method but the first.

    The best of several noisy rivals looks better than it is. So the lower end is the lowest lower end of the rivals'
    95 % intervals. The upper end is the lowest upper end of intervals whose level is corrected for their number.
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
    """The slope of a line through the methods' means. at: the x coordinate of each method.

    >>> float(slope([1, 2, 4]).of(np.array([[1.0, 3.0, 7.0]])).round(6))
    2.0
    """
    numbers = tuple(float(x) for x in at)

    def fitted(wide: np.ndarray) -> float:
        steepness, _ = np.polyfit(numbers, wide.mean(0), 1)
        return steepness

    return Statistic("slope", fitted, at=numbers)


def paired(runs: pd.DataFrame, values: pd.Series, methods: Sequence[str]) -> np.ndarray:
    """A (prompts, methods) array of medians over repetitions, for the prompts that have all methods.

    runs:    a table with the columns prompt and method.
    values:  a number for all of its rows, or for some.
    methods: the columns of the array, in this order.
    Raises ValueError naming the methods that have no rows.
    """
    with_values = runs.loc[values.index, ["prompt", "method"]].assign(value=values.astype(float))
    present = set(with_values["method"])
    missing = sorted(set(methods) - present)
    if missing:
        raise ValueError(f"there are no rows of {', '.join(missing)}: there are {', '.join(sorted(present))}")
    wide = with_values.pivot_table(index="prompt", columns="method", values="value", aggfunc="median")
    return wide[list(methods)].dropna().to_numpy()


# ---- two methods of a table ---------------------------------------------------------------------------------------


def _by_method(table: pd.DataFrame, value: str) -> pd.DataFrame:
    """The column ``value`` as a table with one row per prompt and repetition, and one column per method."""
    index = ["prompt"]
    if "repetition" in table:
        index.append("repetition")
    return table.pivot_table(index=index, columns="method", values=value, sort=False)


def _over_prompts(name: str, statistic: Callable, pairs: pd.Series) -> dict[str, float]:
    """A statistic over prompts, with its interval and the number of prompts.

    name:      the key of the statistic in the result.
    statistic: a function from a (prompts,) array to a number.
    pairs:     one number per prompt and repetition; each prompt counts by their median.
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
    """One row per method of a race, the fastest first, with these columns:

    tau:       mean of tokens per step.
    token/s:   median.
    speed-up:  over the baseline, with the ends of its interval, low and high.
    prompts:   how many prompts have both methods.
    failed:    how many runs failed. They are left out of the other columns.

    Raises ValueError if the baseline has no run that did not fail.
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
    summary = summary.reindex(table["method"].unique())  # adds methods that always failed, with nan
    summary = summary.assign(failed=table[~is_good].groupby("method").size())
    summary = summary.fillna({"prompts": 0, "failed": 0}).astype({"prompts": int, "failed": int})
    return summary.sort_values("speed-up", ascending=False).rename_axis("method")
