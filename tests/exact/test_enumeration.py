"""The enumeration itself: laws of small functions of coins, by hand."""

from itertools import product

import pytest
import torch
from toy import RANDOM, WORLDS, tree_drafter

from specnb.exact import accepted_law, expectation, joint, law, output_law, total_variation
from specnb.growth import kary
from specnb.tree import Drawn
from specnb.verifiers import one_hot


def test_law_of_a_biased_die():
    die = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)
    assert law(lambda coins: coins.choose(3 * die)) == pytest.approx({0: 0.5, 2: 0.3, 3: 0.2}, abs=1e-15)
    two = law(lambda coins: coins.choose(die) + coins.choose(die))
    assert two == pytest.approx({0: 0.25, 2: 0.3, 3: 0.2, 4: 0.09, 5: 0.12, 6: 0.04}, abs=1e-15)


def test_law_follows_coins_whose_use_depends_on_outcomes():
    def waits(coins):
        for turn in range(3):
            if coins.accept(0.25 + turn / 4):
                return turn
        return 3 + coins.choose(torch.tensor([0.5, 0.5]))

    expected = {0: 1 / 4, 1: 3 / 4 * 1 / 2, 2: 3 / 8 * 3 / 4, 3: 3 / 64, 4: 3 / 64}
    assert law(waits) == pytest.approx(expected, abs=1e-15)


def test_law_catches_a_function_that_tosses_until_it_likes_the_result():
    def fair(coins):
        return coins.accept(0.5)

    def vain(coins):
        return coins.accept(0.5) or coins.accept(0.5)  # a second coin only where the first came up tails

    assert total_variation(law(fair), {True: 0.5, False: 0.5}) == 0
    assert total_variation(law(vain), law(fair)) == pytest.approx(0.25)


def test_law_visits_only_what_is_possible():
    calls = []

    def certain(coins):
        calls.append(coins)
        return coins.accept(0.0), coins.accept(1.0), coins.choose(torch.tensor([0.0, 2.0]))

    assert law(certain) == {(False, True, 1): 1.0}
    assert len(calls) == 1


@pytest.mark.parametrize("drawn", Drawn)
def test_laws_sum_to_one(drawn):
    for p, q in WORLDS.values():
        drafter = tree_drafter(q, kary(2, 1), drawn)
        assert sum(output_law(drafter, one_hot, p, depth=2).values()) == pytest.approx(1, abs=1e-12)
        assert sum(accepted_law(drafter, one_hot, p, depth=2).values()) == pytest.approx(1, abs=1e-12)
        assert sum(joint(p, 3).values()) == pytest.approx(1, abs=1e-12)


def test_joint_is_the_product_of_conditionals():
    p = RANDOM[0][0]
    expected = {(x, y): float(p(())[x] * p((x,))[y]) for x, y in product(range(3), repeat=2)}
    assert joint(p, 2) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("probability", [-0.01, 1.01, float("nan")])
def test_law_refuses_probabilities_outside_zero_to_one(probability):
    with pytest.raises(ValueError, match=f"accept coin was given probability {probability}, outside 0..1"):
        law(lambda coins: coins.accept(probability))


def test_law_refuses_to_choose_without_mass():
    with pytest.raises(ValueError, match="without mass"):
        law(lambda coins: coins.choose(torch.zeros(3)))


def test_law_tolerates_rounding_at_the_ends():
    assert law(lambda coins: coins.accept(1 + 1e-13)) == {True: 1.0}
    assert law(lambda coins: coins.accept(-1e-13)) == {False: 1.0}


def test_total_variation_and_expectation():
    a, b = {"x": 0.5, "y": 0.5}, {"y": 0.25, "z": 0.75}
    assert total_variation(a, b) == total_variation(b, a) == 0.75
    assert total_variation(a, a) == 0
    assert expectation({1: 0.25, 3: 0.75}, lambda x: 10 * x) == 25
