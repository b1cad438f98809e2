"""Explorers of exact laws: the numbers behind them are the known ones, and the picture follows every control."""

import re

import make_stills
import numpy as np
import pytest

from specnb import show
from specnb.show import laws

P, Q = (0.3, 0.4, 0.3), (0.6, 0.3, 0.1)
WEIGHTS = ("p_a", "p_b", "p_c", "q_a", "q_b", "q_c")


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
    assert "needs some mass" not in controls.readout.value
    assert controls.image.value != before


@pytest.mark.parametrize("make", [show.law_explorer, show.trial_explorer])
def test_the_words_say_that_weights_are_normalised(make):
    controls = make().controls
    assert "divided by their sum: p = (0.300, 0.400, 0.300) · q = (0.600, 0.300, 0.100)" in controls.readout.value
    controls.shape.value = "chain of 2"
    controls.p_a.value, controls.p_b.value, controls.p_c.value = 0.5, 1, 0.5
    assert "p = (0.250, 0.500, 0.250)" in controls.readout.value  # not the weights 0.5, 1, 0.5


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


def trials(controls) -> int:
    """How many trials the shown draw has, by the readout."""
    return int(re.search(r"trial \d+ of (\d+)", controls.readout.value)[1])


def test_trials_of_a_draw_are_as_many_as_its_slider_offers():
    controls, seen = show.trial_explorer().controls, []
    for draw in range(5):
        controls.draw.value = draw
        assert controls.trial.max == trials(controls)
        controls.trial.value = 99
        assert f"trial {controls.trial.max} of {controls.trial.max}" in controls.readout.value
        assert controls.trial.value == controls.trial.max
        seen.append(controls.trial.max)
    assert len(set(seen)) > 1  # negative control: draws differ


@pytest.mark.parametrize(
    ("control", "value"), [("draw", 0), ("shape", "chain of 2"), ("p_a", 1.0)], ids=["draw", "tree", "weights"]
)
def test_the_shown_trial_is_never_behind_the_last(control, value):
    """Whatever makes the trials fewer takes the slider along: its number is the readout's, and so is the picture."""
    controls = show.trial_explorer().controls
    controls.draw.value = 24
    controls.trial.value = before = controls.trial.max
    getattr(controls, control).value = value
    shown = controls.trial.value
    assert f"trial {shown} of {controls.trial.max}" in controls.readout.value
    assert shown <= controls.trial.max < before
    values = {name: getattr(controls, name).value for name in ("shape", "draw", *WEIGHTS)}
    assert (controls.image.value, controls.readout.value) == laws.render_trial(trial=shown, **values)


def test_stills_of_the_site_name_the_trial_that_their_words_do():
    box = show.trial_explorer()
    chosen = make_stills.settings(box, 12)
    assert {0, box.controls.trial.max} <= {values["trial"] for values in chosen}
    for values in chosen:
        _, words = box.answer(**values)
        assert f"trial {values['trial']} of" in words


def test_weights_without_mass_leave_the_trials():
    controls = show.trial_explorer().controls
    for name in ("p_a", "p_b"):
        getattr(controls, name).value = 0
    before = controls.trial.max
    controls.p_c.value = 0
    assert "needs some mass" in controls.readout.value
    assert controls.trial.max == before


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
