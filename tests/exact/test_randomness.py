"""Anybody's random functions under every coin: what is enumerated has its law, what is not is refused by its line."""

import math
import random
from random import random as imported_by_name

import numpy as np
import pytest
import torch

from specnb import exact
from specnb.exact import random_functions, symbols
from specnb.exact.symbols import RandomnessError, second_winner

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
NUMBERS = P.numpy()
GENERATOR = np.random.default_rng(1)


def law(function):
    """The exact law of a function that knows nothing of coins."""

    def with_coins(coins):
        with random_functions.randomness(coins):
            return function()

    return exact.law(with_coins)


def uniform() -> torch.Tensor:
    return torch.rand(3, dtype=torch.float64)


def noise() -> torch.Tensor:
    return torch.empty(3, dtype=torch.float64).exponential_()


# --- one draw from P, in the ways that samplers use

DRAWS = {
    "multinomial": lambda: torch.multinomial(P, 1),
    "p / e": lambda: (P / noise()).argmax(),
    "p.div(e) in place": lambda: P.clone().div_(noise()).argmax(dim=-1),
    "e / p": lambda: (noise() / P).argmin(),
    "log p + g": lambda: (P.log() - torch.log(-torch.log(uniform()))).argmax(),
    "log p + g, kept finite": lambda: (P.log() - torch.log(-torch.log(uniform() + 1e-20) + 1e-20)).argmax(),
    "log p + g, clamped": lambda: (P.log() - (-uniform().clamp_(1e-10, 1).log()).log()).argmax(),
    "log p − log e": lambda: (P.log() - noise().log()).max(dim=-1).indices,
    "largest 1": lambda: torch.topk(P / noise(), 1).indices,
    "cumulative > u": lambda: (P.cumsum(0) > torch.rand(())).int().argmax(),
    "searchsorted": lambda: torch.searchsorted(P.cumsum(0), torch.rand(1, dtype=torch.float64)),
    "Categorical": lambda: torch.distributions.Categorical(probs=P).sample(),
    "numpy's choice": lambda: np.random.choice(3, p=NUMBERS),
    "a new Generator": lambda: np.random.default_rng(7).choice(3, p=NUMBERS),
    "numpy's p / e": lambda: (NUMBERS / np.random.exponential(size=3)).argmax(),
    "numpy's log p + g": lambda: np.argmax(np.log(NUMBERS) + np.random.gumbel(size=3)),
    "numpy's −log(−log u)": lambda: (np.log(NUMBERS) - np.log(-np.log(np.random.rand(3)))).argmax(),
    "numpy's searchsorted": lambda: np.searchsorted(NUMBERS.cumsum(), np.random.random()),
    "random.choices": lambda: random.choices([0, 1, 2], weights=NUMBERS.tolist())[0],
    "p / −log(1 − u)": lambda: (P / -torch.log(1 - uniform())).argmax(),
    "log u / p": lambda: (uniform().log() / P).argmax(),
    "1 / (1 / (p / e))": lambda: (2 / (2 / (P / noise()))).argmax(),
    "a running minimum": lambda: min(range(3), key=(noise() / P).tolist().__getitem__),
    "a running maximum of logs": lambda: max(range(3), key=(uniform().log() / P).tolist().__getitem__),
    "a running maximum": lambda: max(range(3), key=(P / noise()).tolist().__getitem__),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_has_the_law_it_is_drawn_from(name):
    found = law(lambda: int(DRAWS[name]()))
    assert found == pytest.approx({0: 0.5, 1: 0.3, 2: 0.2}, abs=1e-12)


# --- one coin of .3

COINS = {
    "u < x": lambda: torch.rand(1, dtype=torch.float64) < 0.3,
    "x > u": lambda: torch.tensor(0.3, dtype=torch.float64) > torch.rand(1, dtype=torch.float64),
    "1 − u < x": lambda: 1 - torch.rand(1, dtype=torch.float64) < 0.3,
    "2 u + 1 < x": lambda: 2 * torch.rand(1, dtype=torch.float64) + 1 < 1.6,
    "log u < log x": lambda: torch.rand(1, dtype=torch.float64).log() < math.log(0.3),
    "not u >= x": lambda: ~(torch.rand(1, dtype=torch.float64) >= 0.3),
    "an item": lambda: torch.rand(1).item() < 0.3,
    "rand_like": lambda: torch.rand_like(P)[1] <= 0.3,
    "uniform_": lambda: torch.empty(2).uniform_(1, 2)[0] < 1.3,
    "a seeded generator": lambda: torch.rand(1, generator=torch.Generator().manual_seed(3)) < 0.3,
    "after a seed": lambda: (torch.manual_seed(0), torch.rand(1))[1] < 0.3,
    "bernoulli": lambda: torch.bernoulli(P)[1],
    "bernoulli_": lambda: torch.empty(1).bernoulli_(0.3),
    "an exponential": lambda: noise()[0] > -math.log(0.3),
    "random": lambda: random.random() < 0.3,
    "random.uniform": lambda: random.uniform(-1, 1) < -0.4,
    "numpy's rand": lambda: np.random.rand(2)[0] < 0.3,
    "numpy's uniform": lambda: np.random.default_rng().uniform(0, 10) < 3,
    "binomial": lambda: np.random.binomial(1, 0.3),
    "gathered": lambda: torch.rand(2, 2).gather(1, torch.tensor([[0], [1]]))[1] < 0.3,
    "concatenated": lambda: torch.cat([torch.rand(1), torch.ones(1)])[0] < 0.3,
    "stored": lambda: _stored() < 0.3,
}


def _stored() -> torch.Tensor:
    numbers = torch.ones(3)
    numbers[1] = torch.rand(())
    return numbers.view(3, 1)[1]


@pytest.mark.parametrize("name", COINS)
def test_a_comparison_is_a_coin(name):
    found = law(lambda: bool(COINS[name]()))
    assert found == pytest.approx({True: 0.3, False: 0.7}, abs=1e-7 if name in ("bernoulli_",) else 1e-12)


def test_a_ratio_of_zero_is_infinite_as_for_numbers():
    p = torch.tensor([0.0, 0.5], dtype=torch.float64)
    q = torch.tensor([0.5, 0.5], dtype=torch.float64)
    found = law(lambda: tuple((torch.rand(2, dtype=torch.float64) * (q / p) > 0.25).tolist()))
    assert found == pytest.approx({(True, True): 0.75, (True, False): 0.25})


def test_a_number_that_is_compared_twice_is_the_same_number():
    def both():
        number = torch.rand(())
        return bool(number < 0.5), bool(number < 0.75)

    assert law(both) == {(True, True): 0.5, (False, True): 0.25, (False, False): 0.25}


def test_only_what_is_asked_is_tossed():
    runs = []
    law(lambda: runs.append(1) or tuple((torch.rand(8) < torch.tensor([0.5, *[1.0] * 7])).tolist()))
    assert len(runs) == 2


def test_draws_without_replacement_and_batches():
    found = law(lambda: tuple(torch.multinomial(P, 2).tolist()))
    assert found[0, 1] == pytest.approx(0.5 * 0.3 / 0.5)
    assert found[2, 1] == pytest.approx(0.2 * 0.3 / 0.8)
    assert law(lambda: tuple(torch.topk(P.log() - noise().log(), 2).indices.tolist())) == pytest.approx(found)
    rows = torch.stack([P, P.flip(0)])
    pairs = law(lambda: tuple((rows / torch.empty_like(rows).exponential_()).argmax(-1).tolist()))
    assert pairs[0, 2] == pytest.approx(0.25)
    assert len(pairs) == 9


def test_randint_is_uniform():
    assert law(lambda: int(torch.randint(2, 5, (1,)))) == pytest.approx({2: 1 / 3, 3: 1 / 3, 4: 1 / 3})
    assert law(lambda: random.randint(1, 2)) == {1: 0.5, 2: 0.5}
    assert law(lambda: int(np.random.randint(2))) == {0: 0.5, 1: 0.5}


# --- noise that is raced twice


def test_noise_raced_twice_has_the_joint_law_of_both_winners():
    weights = torch.tensor([1.0, 1.0], dtype=torch.float64)
    again = torch.tensor([1.0, 3.0], dtype=torch.float64)

    def both():
        shared = torch.empty(2, dtype=torch.float64).exponential_()
        return int((weights / shared).argmax()), int((again / shared).argmax())

    assert law(both) == pytest.approx({(0, 0): 0.25, (0, 1): 0.25, (1, 1): 0.5})


def test_the_second_winner_beside_a_simulation():
    """Exactly what is asked, of 200,000 races: five standard errors."""
    draws = np.random.default_rng(0)
    for _ in range(4):
        first, second = draws.random((2, 4))
        second[draws.integers(4)] = 0
        noisy = draws.exponential(size=(200_000, 4))
        winners = (first / noisy).argmax(1)
        seconds = (second / noisy).argmax(1)
        for winner in range(4):
            among = seconds[winners == winner]
            right = second_winner(first, winner, second)
            assert right.sum() == pytest.approx(1, abs=1e-12)
            share = np.bincount(among, minlength=4) / len(among)
            error = np.sqrt(np.maximum(right * (1 - right), 1e-12) / len(among))
            assert (np.abs(share - right) <= 5 * error + 1e-9).all()


def test_a_third_race_is_not_worked_out():
    def thrice():
        shared = noise()
        return [int((P / shared).argmax()) for _ in range(3)]

    with pytest.raises(RandomnessError, match="raced more than twice"):
        law(thrice)


# --- what is refused

REFUSED = {
    "randn": lambda: torch.randn(1) > 0,
    "randn_like": lambda: torch.randn_like(P)[0] > 0,
    "normal_": lambda: P.clone().normal_()[0] > 0,
    "randperm": lambda: int(torch.randperm(3)[0]),
    "random_": lambda: int(torch.empty(1).random_()),
    "poisson": lambda: torch.poisson(P),
    "dropout": lambda: torch.nn.functional.dropout(P),
    "gumbel_softmax": lambda: torch.nn.functional.gumbel_softmax(P),
    "random.shuffle": lambda: random.shuffle([1, 2]),
    "random.gauss": lambda: random.gauss(0, 1) > 0,
    "numpy's normal": lambda: np.random.normal() > 0,
    "numpy's permutation": lambda: np.random.default_rng(0).permutation(3),
    "a sum": lambda: torch.rand(2).sum() < 1,
    "numpy's sum": lambda: np.random.rand(2).sum() < 1,
    "a square": lambda: torch.rand(1) ** 2 < 0.3,
    "equality": lambda: torch.rand(1) == 0.5,
    "two numbers compared": lambda: bool(torch.rand(1) < torch.rand(1)),
    "its value": lambda: float(torch.rand(1)),
    "a condition": lambda: bool(torch.rand(1)),
    "the largest uniform": lambda: int(torch.rand(3).argmax()),
    "the winner's value": lambda: float((P / noise()).max()),
    "a race after a comparison": lambda: _race_after_comparison(),
    "a clamped logarithm": lambda: bool(uniform()[0].log().clamp(min=0) > -1),
    "a clamp that changes": lambda: bool((2 * torch.rand(1)).clamp(max=1) < 0.3),
    "a score that is not a number": lambda: int((P * float("nan") / noise()).argmax()),
    "u after 1 − u": lambda: _both_ways(),
    "a function imported by name": lambda: imported_by_name() < 0.5,
}


def _race_after_comparison() -> int:
    number = uniform()
    if number[0] < 0.5:
        return 0
    return int((P / -number.log()).argmax())


def _both_ways() -> bool:
    number = torch.rand(1)
    noisy = -torch.log(1 - number)
    return bool(number < 0.5) and bool(noisy < 1)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_enumerated_is_refused(name):
    with pytest.raises(RandomnessError) as refused:
        law(REFUSED[name])
    assert "test_randomness.py, line " in str(refused.value)


def test_outside_everything_is_random_as_before():
    coins = exact.laws.ScriptedCoins([])
    with random_functions.randomness(coins):
        assert isinstance(random.random(), symbols.Uniform)
    assert isinstance(random.random(), float)
    assert isinstance(np.random.rand(), float)
    assert 0 <= float(torch.rand(1)) < 1
