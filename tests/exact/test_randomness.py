"""Anybody's random functions under every coin: what is enumerated has its law, what is not is refused by its line."""

import math
import random
import threading
from random import random as imported_by_name

import numpy as np
import pytest
import torch

from specnb import exact
from specnb.exact import random_functions, symbols
from specnb.exact.symbols import NotJudged, RandomnessError, second_winner

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
NUMBERS = P.numpy()
OF_TORCH = torch.Generator().manual_seed(3)
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
    "a new Generator": lambda: np.random.default_rng().choice(3, p=NUMBERS),
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
    "a generator of before": lambda: torch.rand(1, generator=OF_TORCH) < 0.3,
    "dropout that is off": lambda: torch.rand(1) < torch.nn.functional.dropout(P[1:2], training=False),
    "a vector": lambda: bool((random.random() < torch.tensor([0.3, 0.3], dtype=torch.float64)).all()),
    "a named argument": lambda: torch.lt(input=torch.rand(1), other=0.3),
    "a named condition": lambda: torch.where(torch.tensor([True]), input=torch.rand(1), other=torch.ones(1)) < 0.3,
    "a plain number beside it": lambda: bool((_beside_a_third() < 0.3).all()),
    "after a cast": lambda: torch.rand(600).bfloat16()[599] < 0.3,
    "a mask in place": lambda: torch.rand(2).masked_fill_(torch.tensor([True, False]), 1.0)[1] < 0.3,
    "a mask": lambda: torch.rand(2).masked_fill(torch.tensor([True, False]), 1.0)[1] < 0.3,
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


def _beside_a_third() -> torch.Tensor:
    """Two numbers, of which the second is one third and stays so in float64."""
    third = torch.tensor(1 / 3, dtype=torch.float64)
    numbers = torch.rand(2, dtype=torch.float64) * torch.tensor([1.0, 0.0]) + torch.stack([0 * third, third])
    assert numbers[1].item() == 1 / 3
    return numbers[:1]


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


def test_an_undecided_number_equals_no_number():
    """Guards against a noise of 0 or ∞ are common; they never hold, but for a weight of 0."""

    def guarded():
        drawn = noise()
        safe = torch.where((drawn == 0) | torch.isinf(drawn) | ~torch.isfinite(drawn), 1e-10, drawn)
        return int((P / safe).argmax())

    assert law(guarded) == pytest.approx({0: 0.5, 1: 0.3, 2: 0.2}, abs=1e-12)
    weights = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert law(lambda: tuple((weights / noise()[:2] == 0).tolist())) == {(True, False): 1.0}
    assert law(lambda: tuple(torch.isinf(noise()[:2] / weights).tolist())) == {(True, False): 1.0}


def test_undecided_numbers_fill_a_tensor_and_have_another_type():
    def filled():
        numbers = torch.ones(2, dtype=torch.float64)
        numbers.fill_(torch.rand((), dtype=torch.float64))
        return tuple((numbers < 0.3).tolist())

    assert law(filled) == pytest.approx({(True, True): 0.3, (False, False): 0.7})
    of_whole_numbers = torch.zeros(1, dtype=torch.long)
    assert law(lambda: bool(torch.rand_like(of_whole_numbers, dtype=torch.float64) < 0.25)) == {True: 0.25, False: 0.75}
    assert law(lambda: bool(torch.bernoulli(torch.zeros(1), 0.25))) == {True: 0.25, False: 0.75}


# --- products of uniform numbers


def test_products_have_their_joint_law():
    """u1 u2 < b has probability b (1 − log b). Neither u1 < a nor u1 u2 < b: ∫_a^1 (1 − b / u) du."""
    a, b = 0.6, 0.3

    def both():
        products = torch.rand(2, dtype=torch.float64).cumprod(-1)
        return tuple((products < torch.tensor([a, b], dtype=torch.float64)).tolist())

    found = law(both)
    second = b * (1 - math.log(b))  # ∫ min(1, b / u) du
    neither = (1 - a) - b * -math.log(a)  # u1 > a, and u2 > b / u1
    assert found[True, True] + found[False, True] == pytest.approx(second, abs=1e-12)
    assert found[False, False] == pytest.approx(neither, abs=1e-12)
    assert found[True, True] + found[True, False] == pytest.approx(a, abs=1e-12)


def test_products_beside_a_simulation():
    """Three products against three thresholds, in 200,000 draws: five standard errors."""
    thresholds = np.array([0.5, 0.35, 0.1])

    def answers():
        products = torch.rand(3, dtype=torch.float64).cumprod(-1)
        return tuple((torch.from_numpy(thresholds) >= products).tolist())

    found = law(answers)
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    drawn = thresholds >= np.random.default_rng(0).random((200_000, 3)).cumprod(-1)
    for outcome in np.ndindex(2, 2, 2):
        share = float((drawn == np.array(outcome, dtype=bool)).all(-1).mean())
        right = found.get(tuple(map(bool, outcome)), 0.0)
        assert abs(share - right) <= 5 * math.sqrt(right * (1 - right) / 200_000) + 1e-9


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


def test_a_race_that_nobody_reads_is_not_run():
    """As where an engine draws a recovered token for every place with the same noise, and takes one of them."""
    runs = []

    def engine():
        runs.append(1)
        shared = noise()
        rows = torch.stack([P, P.flip(0), P.roll(1), P.roll(2)])
        recovered = (rows / shared).argmax(-1)  # four races on the same noise
        placed = torch.full((1, 5), -1, dtype=torch.int32)
        placed[0, 2] = recovered[1]
        return placed.tolist()[0][2]

    assert law(engine) == pytest.approx({0: 0.2, 1: 0.3, 2: 0.5})
    assert len(runs) == 3


def test_two_of_many_races_have_their_joint_law():
    def of_two(indices):
        def engine():
            shared = noise()
            rows = torch.stack([P, P.flip(0), P.roll(1)])
            recovered = (rows / shared).argmax(-1)
            return tuple(recovered[indices].tolist())

        return engine

    found = law(of_two([0, 1]))
    for first in range(3):
        then = second_winner(P.numpy(), first, P.flip(0).numpy())
        for second in range(3):
            assert found.get((first, second), 0.0) == pytest.approx(float(P[first]) * then[second], abs=1e-12)


def test_an_elected_place_as_an_index_a_condition_and_a_number():
    def used():
        place = (P / noise()).argmax()
        copied = place.clone().reshape(1)
        number = float(P[place])  # an index decides
        same = bool((copied == int(place)).all())
        kept = torch.where(torch.tensor(True), place, torch.tensor(7))
        return number, same, kept.item(), P.gather(0, copied).item() == number

    found = law(used)
    assert found == pytest.approx({(0.5, True, 0, True): 0.5, (0.3, True, 1, True): 0.3, (0.2, True, 2, True): 0.2})


def test_a_mask_of_minus_infinity_among_scores():
    def masked():
        scores = torch.where(torch.tensor([True, False, True]), P / noise(), -torch.inf)
        return int(scores.argmax())

    assert law(masked) == pytest.approx({0: 0.5 / 0.7, 2: 0.2 / 0.7})


def test_a_refusal_that_is_swallowed_is_raised_at_the_end():
    def swallowing():
        try:
            return int(torch.randperm(3)[0])
        except Exception:
            return int(torch.multinomial(P, 1))

    with pytest.raises(RandomnessError, match="randperm"):
        law(swallowing)


def test_an_error_of_the_sampler_names_its_line():
    def failing():
        torch.rand(1)
        return {}["nothing"]

    with pytest.raises(NotJudged, match=r"the sampler raised KeyError: 'nothing' \(test_randomness.py, line \d+\)"):
        law(failing)

    def failing_before_anything_is_drawn():
        return {}["nothing"]

    with pytest.raises(KeyError):
        law(failing_before_anything_is_drawn)


def test_two_threads_leave_the_modules_as_they_were():
    before = random.random, np.random.rand, torch.manual_seed
    threads = [threading.Thread(target=lambda: law(lambda: bool(torch.rand(1) < 0.3))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (random.random, np.random.rand, torch.manual_seed) == before


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
    "numpy's permutation": lambda: np.random.default_rng().permutation(3),
    "a sum": lambda: torch.rand(2).sum() < 1,
    "numpy's sum": lambda: np.random.rand(2).sum() < 1,
    "a square": lambda: torch.rand(1) ** 2 < 0.3,
    "equality of two": lambda: torch.rand(1) == torch.rand(1),
    "the winner's equality": lambda: (P / noise()).max() == 0.5,
    "a product with a number again": lambda: _product_and_number(),
    "products of one number": lambda: torch.rand(1).repeat(2).cumprod(0) < 0.3,
    "products out of order": lambda: _products_out_of_order(),
    "its memory": lambda: torch.rand(1).data_ptr(),
    "its storage": lambda: torch.rand(1).untyped_storage(),
    "its bits": lambda: torch.rand(1).view(torch.int32),
    "its whole number": lambda: torch.rand(1).to(torch.long),
    "its truth": lambda: torch.rand(1).to(torch.bool),
    "stored as a whole number": lambda: torch.zeros(1, dtype=torch.long).copy_(torch.rand(1)),
    "an item of whole numbers": lambda: _stored_as_whole_number(),
    "written elsewhere": lambda: torch.add(torch.rand(1), 1, out=torch.zeros(1)),
    "drawn elsewhere": lambda: torch.rand(1, out=torch.zeros(1)),
    "a comparison in place": lambda: torch.full((1,), 0.5).lt_(torch.rand(1)),
    "a seed": lambda: torch.manual_seed(0),
    "numpy's seed": lambda: np.random.default_rng(1),
    "numpy's old seed": lambda: np.random.seed(1),
    "random's seed": lambda: random.seed(1),
    "random's state": lambda: random.setstate(random.getstate()),
    "torch's state": lambda: torch.set_rng_state(torch.get_rng_state()),
    "a generator that is made": lambda: torch.Generator(),
    "a generator that is seeded": lambda: _seeded_between(),
    "a factor by name": lambda: torch.sub(torch.rand(1), 0.3, alpha=2) < 0,
    "rounding by name": lambda: torch.div(torch.rand(1), 0.3, rounding_mode="floor") < 1,
    "an addend that is not small": lambda: int((P / (torch.empty_like(P).exponential_(1e9) + 1e-6)).argmax()),
    "a clamp that is not small": lambda: int((P / (noise() * 1e-9).clamp_min(1e-6)).argmax()),
    "a score with an addend": lambda: int((P / noise() + torch.tensor([0, 1e-7, 0])).argmax()),
    "its copy in a new tensor": lambda: P.new_tensor(torch.rand(1)),
    "a tensor filled with it": lambda: torch.full_like(P, torch.rand(())),
    "the smallest of topk": lambda: torch.topk(P / noise(), 1, largest=False),
    "its text": lambda: str(random.random()),
    "its formatted text": lambda: f"{random.random():.2f}",
    "a large range": lambda: torch.randint(0, 2**40, (1,)),
    "python's large range": lambda: random.randrange(10**6),
    "numpy's out": lambda: np.random.default_rng().random(out=np.zeros(1)),
    "a compiled function": lambda: compiled_comparison(torch.rand(1), 0.3),
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


@torch.jit.script
def compiled_comparison(number: torch.Tensor, threshold: float) -> torch.Tensor:
    return number < threshold


def _product_and_number() -> bool:
    numbers = torch.rand(2)
    products = numbers.cumprod(0)
    return bool(products[0] < 0.5) and bool(numbers[0] < 0.5)


def _products_out_of_order() -> bool:
    products = torch.rand(2).cumprod(0)
    return bool(products[1] < 0.5) and bool(products[0] < 0.5)


def _stored_as_whole_number() -> torch.Tensor:
    places = torch.zeros(2, dtype=torch.long)
    places[0] = torch.rand(())
    return places


def _seeded_between() -> None:
    torch.rand(1, generator=OF_TORCH)
    before = OF_TORCH.get_state()
    OF_TORCH.manual_seed(7)
    try:
        torch.rand(1, generator=OF_TORCH)
    finally:
        OF_TORCH.set_state(before)


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
