"""Counted forwards priced by curves; the ideal and what is reached of it; the widget by its traits."""

import io

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from specnb import cost_model, whatif

RACE = pd.DataFrame(
    [
        ("generate", "a", 10, 10, 11.0, 2.0, 9.0, 0.0, "1:10", None),
        ("edd:chain 3", "a", 10, 5, 7.0, 2.5, 4.4, 0.4, "4:5", "1:15"),
        ("n-gram tree", "a", 10, 4, 6.0, 2.2, 3.3, 0.0, "1:1 3:2 9:1", ""),
        ("generate", "b", 10, 10, 12.0, 3.0, 9.0, 0.0, "1:10", None),
        ("edd:chain 3", "b", 10, 10, 14.0, 3.0, 10.0, 0.8, "4:10", "1:30"),
        ("n-gram tree", "b", 10, 9, 12.0, 3.0, 8.0, 0.0, "1:9", ""),
    ],
    columns=["method", "prompt", "tokens", "steps", "seconds", "prefill", "target", "drafting", "trees", "frontiers"],
)


def test_counts_are_read_back():
    assert cost_model.counted("1:3 12:40") == {1: 3, 12: 40}
    assert cost_model.counted("") == cost_model.counted(float("nan")) == {}
    assert cost_model.forwards("1:3 12:40", {1: 1.0, 12: 12.0}) == 3 + 12 * 40
    assert cost_model.forwards("23:1", {1: 1.0, 12: 12.0}) == 23  # the last slope goes on


def test_whose_forwards():
    assert [cost_model.head_of(name) for name in ("assistant", "generate", "pair:chain 2", "talf:opt 9 + ngram")] == [
        "vdm", None, "pair", "talf",
    ]  # fmt: skip


def test_a_prediction_by_hand():
    found = cost_model.predicted(RACE, {1: 1.0, 11: 2.0}, {"edd": {1: 0.1, 2: 0.1}}).set_index(["prompt", "method"])
    assert found.loc[("a", "edd:chain 3"), ["target s", "draft s"]].tolist() == pytest.approx([5 * 1.3, 1.5])
    assert found.loc[("a", "n-gram tree"), "target s"] == pytest.approx(1 + 2 * 1.2 + 1.8)
    assert found.loc["a", "predicted"].tolist() == pytest.approx([1.0, (10 + 2) / (6.5 + 1.5 + 2), 12 / (5.2 + 2)])
    assert found.loc["b", "predicted"].tolist() == pytest.approx([1.0, 13 / (13 + 3 + 3), 13 / (9 + 3)])
    bare = cost_model.predicted(RACE, {1: 1.0, 11: 2.0}, {"edd": {1: 0.1, 2: 0.1}}, prefill=False)
    assert bare["predicted"].iloc[1] == pytest.approx(10 / 8)


def test_the_ideal_and_what_is_reached():
    table = cost_model.ideal(RACE)
    assert table.loc["generate", ["tau", "draft/target", "ideal", "speed-up", "reached"]].tolist() == [1, 0, 1, 1, 1]
    a = ((10 - 2) / 4.5) / (9 / 9), 2 / (1 + 0.1 / 1)
    b = ((10 - 1) / 11) / (9 / 9), 1 / (1 + (0.8 / 9) / 1)
    row = table.loc["edd:chain 3"]
    assert row["speed-up"] == pytest.approx((a[0] + b[0]) / 2)
    assert row["ideal"] == pytest.approx((a[1] + b[1]) / 2)
    assert row["reached"] == pytest.approx((a[0] / a[1] + b[0] / b[1]) / 2)


def test_a_roofline_is_flat_and_then_rises():
    curve = cost_model.roofline(7e9, 768e9, 155e12)
    assert curve[1] == curve[64] == 14e9 / 768e9
    assert curve[1024] == pytest.approx(2 * 7e9 * 1024 / 155e12)
    assert curve[1024] > curve[1]


def test_the_widget_moves():
    box = whatif.whatif_explorer(RACE, {"generate": "generate", "edd:chain 3": "EDD", "n-gram tree": "n-grams"})
    controls = box.controls
    first = controls.image.value
    assert plt.imread(io.BytesIO(first)).shape[:2] == (520, 1200)
    assert "n-grams" in controls.readout.value
    controls.draft.value = 0.0
    assert controls.image.value != first
    free = whatif.speed_ups(RACE, 0.0, 0.0)
    assert free["edd:chain 3"] == pytest.approx((2 + 1) / 2)
    controls.node.value = 0.05
    assert "node at 0.050" in controls.readout.value
    assert whatif.speed_ups(RACE, 0.6, 0.05)["edd:chain 3"] < free["edd:chain 3"]
