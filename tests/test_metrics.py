"""Acceptance measures on three steps counted by hand."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from specnb import metrics
from specnb.decode import Generation, Step
from specnb.tree import Draft, TokenTree
from specnb.verifiers import Verdict

TREE = TokenTree([1, 2, 3, 4], [-1, 0, 1, 0])
RIDING = torch.tensor([False, False, False, True])  # the last node is auxiliary


def step(index, path, draft):
    seconds = {"draft": 0.1, "target": 1.0 + index, "verify": 0.2, "commit": 0.1}
    return Step(index, 5, draft, None, Verdict(path, 9), (*(2, 3)[: len(path)], 9), seconds)


STEPS = (
    step(0, (1, 2), Draft(TREE)),
    step(1, (), Draft(TREE, auxiliary=RIDING)),
    step(2, (1,), Draft(TREE)),
)


def test_measures():
    assert metrics.accepted(STEPS).tolist() == [2, 0, 1]
    assert metrics.drafted(STEPS).tolist() == [3, 2, 3]  # without the root and the auxiliary node
    assert metrics.tau(STEPS) == 2.0
    assert metrics.acceptance_rate(STEPS) == 3 / 8
    assert metrics.acceptance_rate_per_position(STEPS).tolist() == pytest.approx([2 / 3, 1 / 3])
    assert metrics.histogram(STEPS).to_dict() == {0: 1, 1: 1, 2: 1}
    assert metrics.phases(STEPS)["target"] == 2.5  # the first step holds the prefill


def test_summary_of_several_generations():
    generation = Generation((1,), (2, 3, 9, 9, 2, 9), STEPS, "length")
    assert metrics.summary([generation, generation]) == {
        "tokens": 12,
        "target calls": 6,
        "tau": 2.0,
        "draft tokens per step": 8 / 3,
        "acceptance rate": 3 / 8,
    }


def test_nothing_drafted_has_no_rate():
    assert math.isnan(metrics.acceptance_rate([step(0, (), Draft(TokenTree([1], [-1])))]))


def test_ece_of_calibrated_and_of_sure_predictors():
    """The calibrated (.7, .3) predictor of algorithms.md 8: standard ECE 0, the SALF paper's own definition .30."""
    confidence, hit = np.repeat(0.7, 1000), np.repeat([1, 0], [700, 300])
    assert metrics.ece(confidence, hit) == pytest.approx(0, abs=1e-12)
    of_the_targets_token = np.repeat([0.7, 0.3], [700, 300])  # the paper's confidence: its argmax was right where .7
    assert metrics.ece(of_the_targets_token, hit) == pytest.approx(0.30)
    assert metrics.ece(np.ones(10), np.zeros(10)) == 1


# --- calibration


def predictor(n: int, power: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Confidences and what happened; power 1 is calibrated, above it happens less often than promised."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(size=n)
    return confidence, rng.uniform(size=n) < confidence**power


@pytest.mark.parametrize("equal", ["width", "count"])
def test_a_calibrated_predictor_has_no_error_and_an_overconfident_one_has(equal):
    """Calibrated: each bin's accuracy within three standard errors of its confidence; the ECE no larger than that."""
    confidence, hit = predictor(20_000)
    table = metrics.reliability(confidence, hit, equal=equal)
    spread = np.sqrt(table["confidence"] * (1 - table["confidence"]) / table["count"])
    assert ((table["accuracy"] - table["confidence"]).abs() <= 3 * spread).all()
    assert metrics.ece(confidence, hit, equal=equal) <= 3 * np.average(spread, weights=table["count"])
    assert metrics.ece(*predictor(20_000, power=2.0), equal=equal) > 0.1


def test_reliability_by_hand():
    table = metrics.reliability([0.1, 0.15, 0.95, 0.85, 1.0], [0, 1, 1, 0, 1], bins=2)
    assert table["count"].tolist() == [2, 3]
    assert table["confidence"].tolist() == pytest.approx([0.125, 2.8 / 3])
    assert table["accuracy"].tolist() == pytest.approx([0.5, 2 / 3])
    assert metrics.ece([0.1, 0.15, 0.95, 0.85, 1.0], [0, 1, 1, 0, 1], bins=2) == pytest.approx(
        0.4 * 0.375 + 0.6 * (2.8 / 3 - 2 / 3)
    )
    assert metrics.brier([0.5, 1.0], [1, 1]) == 0.125
    counts = metrics.reliability(np.linspace(0, 0.2, 10), np.zeros(10), bins=5, equal="count")["count"]
    assert counts.tolist() == [2] * 5


@pytest.mark.parametrize(
    ("confidence", "hit", "options", "message"),
    [
        ([0.5], [1, 0], {}, "of one length above 0, got 1 and 2"),
        ([], [], {}, "got 0 and 0"),
        ([1.5], [1], {}, r"confidence must lie in 0\.\.1"),
        ([0.5], [2], {}, "hit be 0 or 1"),
        ([0.5], [1], {"equal": "area"}, "equal must be 'width' or 'count', got 'area'"),
    ],
)
def test_reliability_refuses(confidence, hit, options, message):
    with pytest.raises(ValueError, match=message):
        metrics.reliability(confidence, hit, **options)


def test_interval_resamples_groups():
    """Rows of a group hang together: with one group there is no spread, with many it narrows."""
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"prompt": np.repeat(np.arange(40), 10), "x": np.repeat(rng.normal(size=40), 10)})

    def mean(rows):
        return rows["x"].mean()

    low, high = metrics.interval(mean, table, "prompt")
    assert low < table["x"].mean() < high
    assert high - low == pytest.approx(2 * 1.96 * table["x"].std() / np.sqrt(40), rel=0.25)  # not √400
    assert metrics.interval(mean, table.assign(prompt=0), "prompt") == pytest.approx((mean(table), mean(table)))
