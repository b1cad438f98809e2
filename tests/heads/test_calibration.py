"""Reliability and ECE: by hand, on calibrated and on overconfident predictors."""

import numpy as np
import pytest

from specnb import heads
from specnb.heads import calibration


def test_ece_of_calibrated_and_of_sure_predictors():
    """The calibrated (.7, .3) predictor of algorithms.md 8: standard ECE 0, the SALF paper's own definition .30."""
    confidence, hit = np.repeat(0.7, 1000), np.repeat([1, 0], [700, 300])
    assert heads.ece(confidence, hit) == pytest.approx(0, abs=1e-12)
    of_the_targets_token = np.repeat([0.7, 0.3], [700, 300])  # the paper's confidence: its argmax was right where .7
    assert heads.ece(of_the_targets_token, hit) == pytest.approx(0.30)
    assert heads.ece(np.ones(10), np.zeros(10)) == 1


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
    table = heads.reliability(confidence, hit, equal=equal)
    spread = np.sqrt(table["confidence"] * (1 - table["confidence"]) / table["count"])
    assert ((table["accuracy"] - table["confidence"]).abs() <= 3 * spread).all()
    assert heads.ece(confidence, hit, equal=equal) <= 3 * np.average(spread, weights=table["count"])
    assert heads.ece(*predictor(20_000, power=2.0), equal=equal) > 0.1


def test_a_calibrated_draft_stays_below_its_band_as_often_as_is_said_and_an_overconfident_one_does_not():
    samples = [predictor(400, seed=seed) for seed in range(100)]
    below = sum(heads.ece(*sample) <= heads.calibrated_ece(sample[0]) for sample in samples)
    assert 88 <= below <= 99  # 95 ± three standard errors of 2.2, and 1 for the band's own draws
    boastful = predictor(400, power=2.0)
    assert heads.ece(*boastful) > heads.calibrated_ece(boastful[0])


def test_reliability_by_hand():
    table = heads.reliability([0.1, 0.15, 0.95, 0.85, 1.0], [0, 1, 1, 0, 1], bins=2)
    assert table["count"].tolist() == [2, 3]
    assert table["confidence"].tolist() == pytest.approx([0.125, 2.8 / 3])
    assert table["accuracy"].tolist() == pytest.approx([0.5, 2 / 3])
    assert heads.ece([0.1, 0.15, 0.95, 0.85, 1.0], [0, 1, 1, 0, 1], bins=2) == pytest.approx(
        0.4 * 0.375 + 0.6 * (2.8 / 3 - 2 / 3)
    )
    counts = heads.reliability(np.linspace(0, 0.2, 10), np.zeros(10), bins=5, equal="count")["count"]
    assert counts.tolist() == [2] * 5


def test_worked_examples_are_right():
    confidence, hit = [0.1, 0.3, 0.8, 0.9, 1.0], [0, 1, 1, 0, 1]
    table = heads.reliability(confidence, hit, bins=2)
    assert table["count"].tolist() == [2, 3]
    assert table["confidence"].tolist() == pytest.approx([0.2, 0.9])
    assert table["accuracy"].tolist() == pytest.approx([1 / 2, 2 / 3])
    assert heads.ece(confidence, hit, bins=2) == pytest.approx(0.26)
    assert heads.calibrated_ece([0.5]) == 0.5
    assert calibration._bins_of_equal_width(np.array([0.3, 1.0]), 4).tolist() == [1, 3]
    assert calibration._bins_of_equal_count(np.array([0.9, 0.1, 0.5, 0.7]), 2).tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("confidence", "hit", "options", "message"),
    [
        ([0.5], [1, 0], {}, "of one length above 0, got 1 and 2"),
        ([], [], {}, "got 0 and 0"),
        ([0.3, 1.5], [1, 0], {}, r"confidence must lie in 0\.\.1, got 1\.5"),
        ([0.5, 0.6], [0, 2], {}, r"hit must be 0 or 1, got 2\.0"),
        ([0.5], [1], {"equal": "area"}, "equal must be 'width' or 'count', got 'area'"),
    ],
)
def test_reliability_refuses(confidence, hit, options, message):
    with pytest.raises(ValueError, match=message):
        heads.reliability(confidence, hit, **options)
