"""Warp against transformers' own warpers, residuals, coins and draws."""

from itertools import permutations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from specnb import exact
from specnb.sampling import RandomCoins, Warp, draw, draw_rows, likeliest, residual
from specnb.tree import Drawn

LOGITS = 3 * torch.randn(8, 200, generator=torch.Generator().manual_seed(0))
LAW = torch.tensor([0.1, 0.0, 0.4, 0.2, 0.3, 0.0], dtype=torch.float64)

# ---- Warp -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 20, 200, 500])
@pytest.mark.parametrize("top_p", [1e-9, 0.05, 0.8, 1.0])
def test_warp_equals_transformers(temperature, top_k, top_p, dtype):
    scores = TemperatureLogitsWarper(temperature)(None, LOGITS.to(dtype))
    scores = TopKLogitsWarper(top_k)(None, scores) if top_k else scores
    scores = TopPLogitsWarper(top_p)(None, scores) if top_p < 1 else scores
    ours, theirs = Warp(temperature, top_k, top_p)(LOGITS.to(dtype)), scores.softmax(-1)
    assert ours.dtype == dtype
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)
    assert torch.equal(ours > 0, theirs > 0)


def test_warp_does_not_change_its_input():
    before = LOGITS.clone()
    Warp(0.5, 3, 0.7)(LOGITS)
    assert torch.equal(LOGITS, before)


def test_warp_widens_half_precision():
    assert torch.equal(Warp(0.7, 20)(LOGITS.bfloat16()), Warp(0.7, 20)(LOGITS.bfloat16().float()))


def test_temperature_zero_is_one_hot_at_the_first_largest():
    assert Warp(0.0)(torch.tensor([[0.0, 2.0, 2.0], [5.0, 1.0, 4.0]])).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert torch.equal(Warp(0.0, 3, 0.5)(LOGITS), Warp(0.0)(LOGITS))
    assert torch.equal(Warp(0.0)(LOGITS).argmax(-1), LOGITS.argmax(-1))
    assert Warp(0.0)(LOGITS.bfloat16()).dtype == torch.float32


def test_temperature_zero_keeps_float64():
    assert Warp(0.0)(LOGITS.double()).dtype == torch.float64


def test_temperature_zero_is_the_limit():
    assert torch.allclose(Warp(1e-4)(LOGITS), Warp(0.0)(LOGITS), atol=1e-6)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"temperature": -0.1}, r"temperature must be at least 0 \(0 is greedy\) and finite, got -0.1"),
        ({"temperature": float("nan")}, "temperature must be at least 0 .* got nan"),
        ({"temperature": float("inf")}, "temperature must be at least 0 .* and finite, got inf"),
        ({"top_k": -1}, r"top_k must be at least 0 \(0 is off\), got -1"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\] \(1 is off\), got 0.0"),
        ({"top_p": 1.01}, r"top_p must be in \(0, 1\] .* got 1.01"),
    ],
)
def test_bad_warp(parameters, message):
    with pytest.raises(ValueError, match=message):
        Warp(**parameters)


# ---- residual -------------------------------------------------------------------------------------------


def test_residual():
    p, q = torch.tensor([0.3, 0.4, 0.3]).double(), torch.tensor([0.6, 0.3, 0.1]).double()
    assert residual(p, q).tolist() == pytest.approx([0, 1 / 3, 2 / 3])
    assert residual(q, p).tolist() == pytest.approx([1, 0, 0])


def test_residual_without_mass_is_p():
    assert torch.equal(residual(LAW, LAW), LAW)
    assert torch.equal(residual(LAW, 2 * LAW), LAW)


# ---- RandomCoins ----------------------------------------------------------------------------------------


def tosses(coins: RandomCoins, count: int = 50) -> tuple[list[bool], list[int]]:
    return [coins.accept(0.5) for _ in range(count)], [coins.choose(LAW) for _ in range(count)]


def test_coins_are_determined_by_seed_and_purpose():
    assert tosses(RandomCoins(3, 1)) == tosses(RandomCoins(3, 1))
    runs = [tosses(RandomCoins(seed, purpose)) for seed in range(3) for purpose in range(3)]
    assert len({tuple(accepts) for accepts, _ in runs}) == 9
    assert len({tuple(chosen) for _, chosen in runs}) == 9


def test_accept_and_choose_have_streams_of_their_own():
    accepts, chosen = tosses(RandomCoins(5))
    mixed = RandomCoins(5)
    pairs = [(mixed.accept(0.5), mixed.choose(LAW)) for _ in range(50)]
    assert pairs == list(zip(accepts, chosen, strict=True))
    only_choose, only_accept = RandomCoins(5), RandomCoins(5)
    assert [only_choose.choose(LAW) for _ in range(50)] == chosen
    assert [only_accept.accept(0.5) for _ in range(50)] == accepts


def test_streams_and_purposes_are_uncorrelated():
    even = torch.ones(1000)
    streams = []
    for purpose in (0, 1):
        coins = RandomCoins(7, purpose)
        streams.append([coins.choose(even) / 1000 for _ in range(2000) if coins.accept(0.5) or True])
        streams.append(list(coins.uniforms))
    assert np.abs(np.corrcoef(streams) - np.eye(4)).max() < 0.08


def test_uniforms_are_the_numbers_behind_accept():
    coins = RandomCoins(1)
    accepted = [coins.accept(0.3) for _ in range(20)]
    assert [u < 0.3 for u in coins.uniforms] == accepted


def test_accept_frequencies_and_certainty():
    coins = RandomCoins(2)
    assert sum(coins.accept(0.3) for _ in range(10_000)) == pytest.approx(3000, abs=4 * 46)
    assert all(coins.accept(1.0) for _ in range(1000))
    assert not any(coins.accept(0.0) for _ in range(1000))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_choose_frequencies(dtype):
    coins, law = RandomCoins(3), 7 * LAW.to(dtype)  # choose normalises
    counts = np.bincount([coins.choose(law) for _ in range(10_000)], minlength=6)
    possible = LAW.numpy() > 0
    assert not counts[~possible].any()
    assert chisquare(counts[possible], 10_000 * LAW.numpy()[possible]).pvalue > 1e-3


@pytest.mark.parametrize("u", [0.0, 0.1, 0.5, 1 - 2**-53])
def test_choose_never_returns_an_impossible_index(u):
    coins = RandomCoins()
    coins._choose = SimpleNamespace(random=lambda: u)
    for law in permutations([0.0, 0.0, 1e-30, 0.1, 0.7]):
        assert law[coins.choose(torch.tensor(law, dtype=torch.float64))] > 0
    assert coins.choose(torch.tensor([0.0, 5e-324, 0.0], dtype=torch.float64)) == 1  # u times mass may be the mass


def test_choose_without_mass():
    for law in (torch.zeros(3), torch.tensor([0.5, float("nan")])):
        with pytest.raises(ValueError, match="cannot choose from probabilities without mass"):
            RandomCoins().choose(law)


# ---- draw -----------------------------------------------------------------------------------------------


def test_draw_point_takes_the_largest_without_coins():
    assert draw(LAW, 3, Drawn.POINT, None) == LAW.topk(3).indices.tolist() == [2, 4, 3]
    assert sorted(draw(LAW, 9, Drawn.POINT, None)) == [0, 1, 2, 3, 4, 5]


def test_draw_iid_is_the_product_law():
    drawn = exact.law(lambda coins: tuple(draw(LAW, 2, Drawn.IID, coins)))
    expected = {(x, y): float(LAW[x] * LAW[y]) for x, y in product([0, 2, 3, 4], repeat=2)}
    assert drawn == pytest.approx(expected, abs=1e-15)


def test_draw_swor_is_the_sequential_law():
    drawn = exact.law(lambda coins: tuple(draw(LAW, 3, Drawn.SWOR, coins)))
    q = LAW.tolist()
    expected = {
        (x, y, z): q[x] * q[y] / (1 - q[x]) * q[z] / (1 - q[x] - q[y]) for x, y, z in permutations([0, 2, 3, 4], 3)
    }
    assert drawn == pytest.approx(expected, abs=1e-15)


def test_draw_swor_stops_when_the_mass_is_used_up():
    for seed in range(20):
        before = LAW.clone()
        assert sorted(draw(LAW, 6, Drawn.SWOR, RandomCoins(seed))) == [0, 2, 3, 4]
        assert torch.equal(LAW, before)
    assert draw(torch.tensor([0.0, 1.0, 0.0]), 3, Drawn.SWOR, RandomCoins()) == [1]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "row", [[-2.0, 3.0, 1.0, 3.0], [-3.0, -0.5, -2.0], [-1.0, -0.0, 0.0], [-1.0, 0.0, -0.0], [7.0]]
)
def test_the_likeliest_is_the_first_largest_whatever_its_sign(row, kind):
    logits = torch.tensor([row, row[::-1]], dtype=kind)
    assert likeliest(logits).tolist() == [line.index(max(line)) for line in (row, row[::-1])]
    assert likeliest(logits[0]).shape == ()


def test_the_likeliest_of_many_bfloat16_rows():
    logits = torch.randn(50, 999, generator=torch.Generator().manual_seed(0)).bfloat16() - 2  # some rows below zero
    logits[::5] -= 9
    assert likeliest(logits).tolist() == logits.float().numpy().argmax(-1).tolist()
    bits = logits.view(torch.int16).numpy().argmax(-1)  # negative control: the order of bits alone is not enough
    assert bits.tolist() != likeliest(logits).tolist()


@pytest.mark.parametrize("drawn", Drawn)
def test_rows_are_drawn_as_they_are_one_by_one(drawn):
    laws, counts = torch.randn(4, 9, generator=torch.Generator().manual_seed(1)).softmax(-1), [3, 1, 12, 2]
    alone = RandomCoins(5)
    expected = [draw(law, count, drawn, alone) for law, count in zip(laws, counts, strict=True)]
    rows, tokens, chances = draw_rows(laws, counts, drawn, RandomCoins(5))
    assert [tokens[rows == row].tolist() for row in range(4)] == [list(tokens) for tokens in expected]
    assert chances.tolist() == laws[rows, tokens].tolist()
