"""Paired statistics: by hand, intervals that cover as often as they say, prompts and not rows are resampled."""

import numpy as np
import pandas as pd
import pytest

from study import stats


def race(seconds: dict[str, list[list[float]]]) -> pd.DataFrame:
    """A race's rows from seconds by method, prompt and repetition; ten tokens in five steps each."""
    rows = [
        {"prompt": f"p{i}", "repetition": r, "method": name, "seconds": s, "tokens": 10, "steps": 5, "status": "ok"}
        for name, prompts in seconds.items()
        for i, runs in enumerate(prompts)
        for r, s in enumerate(runs)
    ]
    return pd.DataFrame(rows)


def test_ratios_are_paired_within_a_repetition():
    """The machine halves its speed in the second repetition: each run is compared with its own baseline."""
    table = race({"generate": [[2, 4], [2, 4], [4, 8]], "ours": [[1, 2], [1, 2], [1, 2]]})
    found = stats.speed_ups(table)
    assert found.loc["ours", "speed-up"] == 2.0  # of 2, 2 and 4
    assert found.loc["generate", ["speed-up", "low", "high"]].tolist() == [1, 1, 1]
    assert found.loc["ours", "prompts"] == 3
    assert found.loc["ours", "tau"] == 2.0


def test_tau_is_the_mean_over_prompts_as_in_claims():
    table = race({"generate": [[1], [1]]}).assign(tokens=[10, 30], steps=[10, 5])
    assert stats.speed_ups(table).loc["generate", "tau"] == 3.5  # 40 / 15 is 2.67


def test_a_difference_and_its_interval():
    values = pd.DataFrame({"prompt": list("abcd") * 2, "method": ["x"] * 4 + ["y"] * 4, "v": [3, 4, 5, 8, 1, 2, 3, 5]})
    found = stats.difference(values, "v", "x", "y")
    assert found["difference"] == pytest.approx(2.25)
    assert found["low"] <= 2.25 <= found["high"]
    assert found["prompts"] == 4


def test_a_method_that_failed_is_counted_not_dropped_in_silence():
    table = race({"generate": [[2], [2], [2]], "ours": [[1], [1], [1]]})
    table.loc[table.index[-1], "status"] = "failed"
    found = stats.speed_ups(table)
    assert found.loc["ours", ["prompts", "failed"]].tolist() == [2, 1]
    assert found.loc["generate", ["prompts", "failed"]].tolist() == [3, 0]
    table.loc[table["method"] == "ours", "status"] = "failed"
    assert stats.speed_ups(table).loc["ours", ["prompts", "failed"]].tolist() == [0, 3]


def test_a_baseline_without_a_run_is_named():
    table = race({"generate": [[2], [2]], "ours": [[1], [1]]})
    table.loc[table["method"] == "generate", "status"] = "failed"
    with pytest.raises(ValueError, match="there is no run of the baseline 'generate': generate, ours"):
        stats.speed_ups(table)


def coverage(method, count: int, trials: int = 150) -> float:
    rng, hits = np.random.default_rng(1), 0
    for _ in range(trials):
        low, high = method(rng.exponential(size=count))
        hits += low <= 1 <= high
    return hits / trials


def percentiles(values):
    rng = np.random.default_rng(0)
    draws = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(400)]
    return np.quantile(draws, [0.025, 0.975])


def test_bca_covers_more_often_than_percentiles(monkeypatch):
    """The mean of 12 skewed values: nominal .95; plain percentiles fall short of BCa."""
    monkeypatch.setattr(stats, "RESAMPLES", 400)
    bca = coverage(lambda values: stats.interval(values, np.mean), 12)
    plain = coverage(percentiles, 12)
    assert bca > plain
    assert bca > 0.85


def test_intervals_where_nothing_varies():
    assert stats.interval(np.ones(6), np.median) == (1, 1)
    assert np.isnan(stats.interval(np.ones(1), np.median)).all()
    low, high = stats.interval(np.array([1.0, 1, 1, 1, 1, 1, 9]), np.median)  # leaving one out changes nothing
    assert (low, high) == (1, 1)


def test_a_ratio_of_sums_over_prompts():
    """Rows of several columns are resampled together."""
    rows = np.array([[2.0, 2.2], [4.0, 4.4], [1.0, 1.1]])
    low, high = stats.interval(rows, lambda r: r[:, 1].sum() / r[:, 0].sum())
    assert (low, high) == pytest.approx((1.1, 1.1))


# ---- statistics of one value per prompt and method ----------------------------------------------------------------

X = np.array([[2.0, 1.0, 4.0], [3.0, 2.0, 1.0], [6.0, 4.0, 2.0]])


@pytest.mark.parametrize(
    ("statistic", "name", "expected"),
    [
        (stats.MEAN, "mean", 25 / 9),
        (stats.MEAN_PER_CENT, "mean, %", 2500 / 9),
        (stats.RATIO, "ratio", 1.5),
        (stats.PER_CENT, "per cent", 50.0),
        (stats.DIFFERENCE, "difference", 4 / 3),
        (stats.SHARE, "share", 1.0),
        (stats.LEAD, "lead", 4 / 3),
    ],
)
def test_statistics_of_a_small_table(statistic, name, expected):
    assert statistic.name == name
    assert statistic.of(X) == pytest.approx(expected)
    assert statistic.estimate(X).value == statistic.of(X)
    assert statistic.estimate(X).prompts == 3


def test_a_slope_is_over_the_settings():
    found = stats.slope([1, 2, 4])
    assert found.at == (1, 2, 4)
    assert found.of(np.array([[1.0, 3.0, 7.0], [2.0, 4.0, 8.0]])) == pytest.approx(2.0)
    assert stats.GAIN.of(np.array([[5.0, 3.0, 2.0, 1.0]])) == pytest.approx(1.0)


def test_an_estimate_has_the_statistics_own_interval():
    found = stats.RATIO.estimate(X)
    assert (found.low, found.high) == stats.interval(X, stats.RATIO.of)


def test_the_interval_of_a_lead_is_rival_by_rival():
    """Not that of the least of all leads, which is biased; at 97.5 % above, of two rivals."""
    found = stats.LEAD.estimate(X)
    pairs = [X[:, [0, 1]], X[:, [0, 2]]]
    assert found.low == min(stats.interval(pair, stats.DIFFERENCE.of)[0] for pair in pairs)
    assert found.high == min(stats.interval(pair, stats.DIFFERENCE.of, level=0.975)[1] for pair in pairs)
    assert (found.low, found.high) != stats.interval(X, stats.LEAD.of)


def test_pairs_are_medians_over_repetitions_on_the_prompts_that_have_all():
    runs = race({"a": [[1, 2, 9], [4, 4, 4]], "b": [[3, 3, 3]]})
    runs.loc[len(runs)] = {"prompt": "p2", "method": "a", "seconds": 7}
    assert stats.paired(runs, runs["seconds"], ["b", "a"]).tolist() == [[3, 2]]
    assert stats.paired(runs, runs["seconds"], ["a"]).tolist() == [[2], [4], [7]]


def test_pairs_of_some_rows():
    runs = race({"a": [[1, 2], [4, 5]], "b": [[3, 4], [6, 7]]})
    first = runs[runs["repetition"] == 0]
    assert stats.paired(runs, first["seconds"], ["a", "b"]).tolist() == [[1, 3], [4, 6]]


def test_methods_without_rows_are_named():
    runs = race({"a": [[1]], "b": [[2]]})
    with pytest.raises(ValueError, match="there are no rows of c, d: there are a, b"):
        stats.paired(runs, runs["seconds"], ["d", "a", "c"])
