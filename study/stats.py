"""Paired statistics over prompts: medians of ratios, differences of two methods, with BCa bootstrap intervals.

A prompt's steps and repetitions hang together, so prompts are what is resampled. Repetitions are paired within a
prompt first (verdicts on claims compare each method's median over repetitions). Percentile intervals cover too seldom
with a dozen prompts; BCa (Efron 1987) is what scipy offers.
"""

import warnings
from collections.abc import Callable

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
        return np.reshape([statistic(values[some]) for some in rows.reshape(-1, rows.shape[axis])], rows.shape[:-1])

    with warnings.catch_warnings(action="ignore"):  # where leaving one prompt out changes nothing BCa is not defined
        for method in ("BCa", "percentile"):
            found = stats.bootstrap(
                (np.arange(len(values)),), each, n_resamples=RESAMPLES, method=method, confidence_level=level, rng=seed
            )
            low, high = map(float, found.confidence_interval)
            if np.isfinite([low, high]).all():
                break
    return low, high


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
    rows = {}
    if not (good["method"] == baseline).any():
        raise ValueError(f"there is no run of the baseline {baseline!r}: {', '.join(table['method'].unique())}")
    for name, part in good.groupby("method", sort=False):
        lead = ratio(good, "token/s", name, baseline)
        tau = (part["tokens"] / part["steps"]).mean()
        rows[name] = {"tau": tau, "token/s": part["token/s"].median(), "speed-up": lead.pop("ratio"), **lead}
    failed = table[table["status"] != "ok"].groupby("method").size()
    found = pd.DataFrame(rows).T.reindex(table["method"].unique()).assign(failed=failed)
    found = found.fillna({"prompts": 0, "failed": 0}).astype({"prompts": int, "failed": int})
    return found.sort_values("speed-up", ascending=False).rename_axis("method")
