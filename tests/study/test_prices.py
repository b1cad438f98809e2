"""Counted forwards priced by curves, forecasts by hand, measured curves."""

import pandas as pd
import pytest

from study import prices, replay
from study.measure import forwards

RACE = pd.DataFrame(
    [
        ("generate", "a", 10, 10, 11.0, 2.0, 9.0, 0.0, [[1, 10]], None),
        ("edd-chain-5", "a", 10, 5, 7.0, 2.5, 4.4, 0.4, [[4, 5]], [[1, 15]]),
        ("n-gram tree", "a", 10, 4, 6.0, 2.2, 3.3, 0.0, [[1, 1], [3, 2], [9, 1]], []),
        ("generate", "b", 10, 10, 12.0, 3.0, 9.0, 0.0, [[1, 10]], None),
        ("edd-chain-5", "b", 10, 10, 14.0, 3.0, 10.0, 0.8, [[4, 10]], [[1, 30]]),
        ("n-gram tree", "b", 10, 9, 12.0, 3.0, 8.0, 0.0, [[1, 9]], []),
    ],
    columns=["method", "prompt", "tokens", "steps", "seconds", "prefill", "target", "drafting", "trees", "frontiers"],
)


def test_forwards_are_counted_and_priced():
    assert prices.count([[1, 3], [12, 40]]) == 43
    assert prices.count([]) == prices.count(None) == 0
    assert prices.seconds([[1, 3], [12, 40]], {1: 1.0, 12: 12.0}) == 3 + 12 * 40
    assert prices.seconds([[23, 1]], {1: 1.0, 12: 12.0}) == 23  # the last slope goes on
    assert prices.seconds([], {1: 1.0, 12: 12.0}) == 0


def test_whose_forwards():
    names = ("assistant", "generate", "pair-chain-5", "hass-salf + n-grams")
    assert [prices.head_of(name) for name in names] == ["vdm", None, "pair", "hass"]


def test_a_flat_list_of_prices():
    counts = pd.DataFrame([{"tau": 2.5, "forwards": 0.75, "drafted": 1.5, "auxiliary": 1.0, "fed": 4.0}])
    assert prices.Prices().speed(counts).item() == 2.5
    assert prices.Prices(call=0.2, node=0.1).speed(counts).item() == pytest.approx(2.5 / (1 + 0.15 + 0.25))
    assert prices.Prices(fed=0.25, target=2.0).speed(counts).item() == pytest.approx(2.5 / 3)
    assert prices.Prices(call=0.2, name="the paper's").speed(counts).name == "speed at the paper's"
    without = counts.drop(columns="fed")  # races do not count what was fed
    assert prices.Prices(call=0.2).speed(without).item() == pytest.approx(2.5 / 1.15)


def test_a_prediction_by_hand():
    found = prices.predicted(RACE, {1: 1.0, 11: 2.0}, {"edd": {1: 0.1, 2: 0.1}}).set_index(["prompt", "method"])
    assert found.loc[("a", "edd-chain-5"), ["target s", "draft s"]].tolist() == pytest.approx([5 * 1.3, 1.5])
    assert found.loc[("a", "n-gram tree"), "target s"] == pytest.approx(1 + 2 * 1.2 + 1.8)
    assert found.loc["a", "predicted"].tolist() == pytest.approx([1.0, (10 + 2) / (6.5 + 1.5 + 2), 12 / (5.2 + 2)])
    assert found.loc["b", "predicted"].tolist() == pytest.approx([1.0, 13 / (13 + 3 + 3), 13 / (9 + 3)])
    bare = prices.predicted(RACE, {1: 1.0, 11: 2.0}, {"edd": {1: 0.1, 2: 0.1}}, prefill=False)
    assert bare["predicted"].iloc[1] == pytest.approx(10 / 8)


def test_a_roofline_is_flat_and_then_rises():
    curve = prices.roofline(7e9, 768e9, 155e12)
    assert curve[1] == curve[64] == 14e9 / 768e9
    assert curve[1024] == pytest.approx(2 * 7e9 * 1024 / 155e12)
    assert curve[1024] > curve[1]


def test_repetitions_have_baselines_of_their_own():
    """Twice the race is the same forecast twice (a duplicate index crashed here once)."""
    twice = pd.concat([RACE.assign(repetition=0), RACE.assign(repetition=1, prefill=RACE["prefill"] * 2)])
    found = prices.predicted(twice, {1: 1.0, 11: 2.0}, {"edd": {1: 0.1, 2: 0.1}})
    once = prices.predicted(RACE, {1: 1.0, 11: 2.0}, {"edd": {1: 0.1, 2: 0.1}})
    assert found[found["repetition"] == 0]["predicted"].tolist() == once["predicted"].tolist()
    assert found[found["repetition"] == 1]["predicted"].tolist() != once["predicted"].tolist()


def test_seconds_are_sums_over_the_curves():
    turns = [replay.Turn(0, 3, (1, 2), 1), replay.Turn(2, 9, (1,), 0)]
    costs = prices.Costs(target={1: 1.0, 5: 3.0}, draft={1: 0.1, 3: 0.3})
    assert costs.seconds(turns) == pytest.approx((2.0 + 5.0) + (0.1 + 0.2 + 0.1))
    flat = prices.Costs.flat(0.1, 0.01)
    assert flat.seconds(turns) == pytest.approx(2 + 0.01 * (2 + 8) + 3 * 0.1)
    assert prices.speed(2.0, 3, 10, call=0.1, node=0.01) == pytest.approx(2 / (1 + 0.3 + 0.1))


@pytest.mark.usefixtures("toy")
def test_measured_curves():
    rows = forwards.curves_block(["pair"], prefix=20, repetitions=2, sizes=(1, 2))
    assert {(row["model"], row["nodes"]) for row in rows} == {
        (model, n) for n in (1, 2) for model in ("pair", "target")
    }
    assert len(rows) == 4
    assert all(0 < row["quartile"] <= row["median"] <= row["third quartile"] for row in rows)


def test_a_forecast_by_hand():
    race = pd.DataFrame(
        [
            ("generate", "a", 10, 2.0, [[1, 10]], None, "ok"),
            ("vdm-chain-3", "a", 10, 2.0, [[4, 5]], [[1, 15]], "ok"),
            ("hass-salf", "a", 10, 2.0, [[4, 5]], [[1, 15]], "ok"),
            ("hass-salf-6", "a", 10, 2.0, None, None, "failed"),
        ],
        columns=["method", "prompt", "tokens", "prefill", "trees", "frontiers", "status"],
    )
    median = {("target", 1): 1.0, ("target", 4): 1.2, ("pair", 1): 0.2, ("pair", 4): 0.2, ("eagle", 1): 0.1}
    curves = pd.DataFrame([(*at, seconds) for at, seconds in median.items()], columns=["model", "nodes", "median"])
    curves.loc[len(curves)] = ("eagle", 4, 0.1)
    assert prices.forecast(race, curves).to_dict() == pytest.approx(
        {"generate": 1.0, "vdm-chain-3": 10 / (5 * 1.2 + 15 * 0.2), "hass-salf": 10 / (5 * 1.2 + 15 * 0.1)}
    )


def test_a_forecast_without_its_baseline_or_at_two_prices_is_refused():
    with pytest.raises(ValueError, match="a forecast is over 'generate', got only n-gram tree"):
        prices.predicted(RACE[RACE["method"] == "n-gram tree"], {1: 1.0, 11: 2.0}, {})
    curves = pd.DataFrame([("target", 1, 1.0), ("target", 1, 2.0)], columns=["model", "nodes", "median"])
    with pytest.raises(ValueError, match="several prices of one model and size: choose those with or without graphs"):
        prices.forecast(RACE.assign(status="ok"), curves)
