"""The learnt threshold: its parts, from hand-made pasts."""

from dataclasses import replace

import pytest

from specnb.growth.adaptive import HIGHEST, Past, threshold


def pasts(call: float, steps=60, later_yield=0.5) -> list[Past]:
    """Steps of one and of three forwards at a price per forward; the later two expand .8 in all, every step."""
    found = []
    for i in range(steps):
        forwards, mass = (3, 1.8) if i % 2 else (1, 1.0)
        deep = later_yield * 0.8 * (i % 2)
        found.append(Past(1 + call * forwards, 1 + deep, forwards, mass))
    return found


def test_the_threshold_is_rate_times_price_over_yield():
    """With many steps the starting guess fades and the formula remains."""
    for call in (0.01, 0.05, 0.1):
        past = pasts(call, 2000)
        rate = sum(step.accepted + 1 for step in past) / sum(step.seconds for step in past)
        assert threshold(past, 0.6) == pytest.approx(rate * call / 0.5, rel=0.02)


def test_a_dearer_forward_and_a_worse_draft_stop_earlier():
    by_price = [threshold(pasts(call), 0.6) for call in (0.0, 0.02, 0.1, 0.3, 3.0)]
    assert by_price[0] == 0
    assert by_price == sorted(by_price)
    assert by_price[-1] == HIGHEST
    by_yield = [threshold(pasts(0.05, later_yield=share), 0.6) for share in (0.8, 0.4, 0.1)]
    assert by_yield == sorted(by_yield)
    assert by_yield[0] < by_yield[-1]


def test_it_waits_for_a_reason_to_move():
    """Four steps of patience, then ever longer drafts until there are steps to compare."""
    assert [threshold(pasts(0.1)[:n], 0.4) for n in range(4)] == [0.4] * 4
    assert threshold(pasts(0.1)[:4], 0.4) != 0.4
    alike = [step for step in pasts(0.1) if step.forwards == 1]
    assert [threshold(alike[:n], 0.4) for n in (3, 4, 5, 6, 30)] == [0.4, 0.2, 0.1, 0.05, 0.05]


def test_a_few_slow_steps_do_not_bend_it():
    past = pasts(0.05)
    slow = [replace(step, seconds=step.seconds + 5 * (i in (3, 21))) for i, step in enumerate(past)]
    faster = sum(step.seconds for step in slow) / sum(step.seconds for step in past)  # the rate itself does fall
    assert threshold(slow, 0.6) * faster == pytest.approx(threshold(past, 0.6), rel=1e-6)
