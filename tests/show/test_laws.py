"""Explorers of exact laws: the numbers behind them are the known ones, and the picture follows every control."""

import numpy as np
import pytest

from specnb import show
from specnb.show import laws

P, Q = (0.3, 0.4, 0.3), (0.6, 0.3, 0.1)


@pytest.mark.parametrize(
    ("shape", "token_level", "traversal"),
    [
        ("chain of 2", 119 / 100, 5 / 4),
        ("chain of 3", 1533 / 1000, 213 / 125),
        ("uneven: two, two below the first", 119 / 80, 61 / 40),
        ("two children each, two levels", 105 / 64, 541 / 320),
    ],
)
def test_numbers_are_the_known_ones(shape, token_level, traversal):
    found = laws.numbers(P, Q, shape)
    assert found["token-level (RRSw)"]["accepted"] == pytest.approx(token_level, abs=1e-12)
    assert found["traversal"]["accepted"] == pytest.approx(traversal, abs=1e-12)
    assert all(row["error"] < 1e-12 for row in found.values())
    assert ("block" in found) == shape.startswith("chain")


def test_every_control_moves_the_picture():
    box = show.law_explorer()
    controls, seen = box.controls, [box.controls.image.value]
    assert bytes(seen[0]).startswith(b"\x89PNG")
    controls.shape.value = "chain of 2"
    seen.append(controls.image.value)
    for slider, value in ((controls.p_a, 0.9), (controls.q_c, 0.7)):
        slider.value = value
        seen.append(controls.image.value)
    assert len({bytes(png) for png in seen}) == len(seen)


def test_impossible_weights_are_said_and_leave_the_picture():
    controls = show.law_explorer().controls
    controls.shape.value = "chain of 2"
    for slider in (controls.q_a, controls.q_b):
        slider.value = 0
    before = controls.image.value
    controls.q_c.value = 0
    assert "needs some mass" in controls.readout.value
    assert controls.image.value == before
    controls.q_b.value = 0.5
    assert controls.readout.value == ""
    assert controls.image.value != before


# ---- one draw, coin by coin


def test_a_draw_is_the_verdict_of_its_coins():
    (step,) = laws.verified(P, Q, "uneven: two, two below the first", 5).steps
    assert [coin < trial.probability for coin, trial in zip(step.uniforms, step.verdict.trials, strict=True)] == [
        trial.accepted for trial in step.verdict.trials
    ]
    seeds = [laws.verified(P, Q, "two children each, two levels", seed).tokens for seed in range(300)]
    assert {tokens[0] for tokens in seeds} == {0, 1, 2}
    first = np.bincount([tokens[0] for tokens in seeds], minlength=3) / 300
    assert np.abs(first - P).max() < 0.1  # the first token follows p


def test_the_last_trial_stays_when_there_are_no_more():
    controls = show.trial_explorer().controls
    controls.trial.value = 6
    last = controls.image.value
    (step,) = laws.verified(P, Q, controls.shape.value, controls.draw.value).steps
    controls.trial.value = len(step.verdict.trials)
    assert controls.image.value == last


# ---- a chain, and how far its draft is from the target


@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize("mix", [0.0, 0.3, 0.5, 1.0])
def test_exact_numbers_agree_with_the_formula(mix, gamma):
    numbers = laws.acceptance(mix, gamma)
    alpha = np.minimum(laws.TARGET, laws.draft_law(mix)).sum()
    assert numbers["overlap"] == pytest.approx(alpha, abs=1e-12)
    assert numbers["distance"] == pytest.approx(1 - alpha, abs=1e-12)
    assert numbers["accepted"] == pytest.approx(sum(alpha**i for i in range(1, gamma + 1)), abs=1e-12)
    assert numbers["error"] < 1e-12


def test_draft_law_runs_from_the_target_to_one_hot():
    np.testing.assert_allclose(laws.draft_law(0), laws.TARGET)
    np.testing.assert_allclose(laws.draft_law(0.5), (0.6, 0.3, 0.1))
    np.testing.assert_allclose(laws.draft_law(0.75), (0.8, 0.15, 0.05))
    np.testing.assert_allclose(laws.draft_law(1), (1, 0, 0))


def test_acceptance_explorer_follows_its_sliders():
    box, seen = show.acceptance_explorer(), set()
    for box.controls.mix.value, box.controls.gamma.value in ((0.0, 1), (0.5, 1), (0.5, 2), (1.0, 2)):
        seen.add(box.controls.image.value)
    assert len(seen) == 4
    assert box.controls.image.value == laws.render_acceptance(1.0, 2)
    assert (box.controls.gamma.min, box.controls.gamma.max) == (1, 3)
