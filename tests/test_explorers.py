"""The law explorer: exact numbers behind it, and a picture that follows every control."""

import pytest

from specnb import explorers

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
    found = explorers.numbers(P, Q, shape)
    assert found["token-level (RRSw)"]["accepted"] == pytest.approx(token_level, abs=1e-12)
    assert found["traversal"]["accepted"] == pytest.approx(traversal, abs=1e-12)
    assert all(row["error"] < 1e-12 for row in found.values())
    assert ("block" in found) == shape.startswith("chain")


def test_every_control_moves_the_picture():
    box = explorers.law_explorer()
    controls, seen = box.controls, [box.controls.image.value]
    assert bytes(seen[0]).startswith(b"\x89PNG")
    controls.shape.value = "chain of 2"
    seen.append(controls.image.value)
    for slider, value in ((controls.p[0], 0.9), (controls.q[2], 0.7)):
        slider.value = value
        seen.append(controls.image.value)
    assert len({bytes(png) for png in seen}) == len(seen)


def test_impossible_weights_are_said_and_leave_the_picture():
    controls = explorers.law_explorer().controls
    controls.shape.value = "chain of 2"
    for slider in controls.q[:2]:
        slider.value = 0
    before = controls.image.value
    controls.q[2].value = 0
    assert "needs some mass" in controls.readout.value
    assert controls.image.value == before
    controls.q[1].value = 0.5
    assert controls.readout.value == ""
    assert controls.image.value != before
