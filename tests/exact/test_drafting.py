"""Does a drafter draw from the q that it reports? Three honest drafters, three that are not, and this project's own."""

from dataclasses import replace

import foreign
import numpy as np
import pytest

from specnb import exact
from specnb.exact import conventions, drafting
from specnb.exact.__main__ import main
from specnb.exact.gallery import altered
from specnb.tree import Draft, Drawn


@pytest.mark.parametrize(
    "drafter", [foreign.draws_and_reports, foreign.chooses_and_reports_one_hot, foreign.draws_by_noise]
)
def test_an_honest_drafter(drafter):
    found = exact.judge_drafter(drafter, conventions.DRAFT)
    assert found.is_honest, str(found)
    assert found.judged == 2 * len(exact.worlds())


@pytest.mark.parametrize(
    ("drafter", "tokens_before"),
    [
        (foreign.reports_before_the_temperature, 0),
        (foreign.chooses_and_reports_softmax, 0),
        (foreign.reports_the_row_before, 1),
    ],
)
def test_one_that_reports_another_law(drafter, tokens_before):
    found = exact.judge_drafter(drafter, conventions.DRAFT)
    assert found.verdict == drafting.DISHONEST
    assert len(found.context.before) == tokens_before
    assert found.distance > 1e-3
    assert sum(found.drawn) == pytest.approx(1)
    by_hand = 0.5 * sum(abs(a - b) for a, b in zip(found.drawn, found.context.reported, strict=True))
    assert by_hand == pytest.approx(found.distance)
    assert "reports q = " in str(found)


def test_the_law_at_another_temperature_by_hand():
    found = exact.judge_drafter(foreign.reports_before_the_temperature, conventions.DRAFT)
    squared = np.square(found.context.reported)
    assert found.drawn == pytest.approx(squared / squared.sum())


@pytest.mark.parametrize("drawn", Drawn)
def test_our_own_drafters(drawn):
    found = exact.judge_drafter(lambda q, shape: exact.toy_drafter(q, shape, drawn), conventions.DRAFTER)
    assert found.is_honest, str(found)


def test_our_own_drafter_whose_siblings_are_misstated():
    """Drawn without replacement, and said to be independent."""

    def misstated(draft: Draft) -> Draft:
        return replace(draft, drawn=Drawn.IID)

    def make(q, shape):
        return altered(exact.toy_drafter(q, shape, Drawn.SWOR), misstated)

    found = exact.judge_drafter(make, conventions.DRAFTER)
    assert found.verdict == drafting.DISHONEST
    assert len(found.context.before) == 1  # the younger sibling's law


def test_a_law_that_does_not_add_up_is_none():
    def doubled(q, count):
        tokens, laws = foreign.draws_and_reports(q, count)
        return tokens, [2 * law for law in laws]

    assert exact.judge_drafter(doubled, conventions.DRAFT).verdict == drafting.DISHONEST


def test_an_honest_drafter_in_float32():
    def cast(q, count):
        return foreign.draws_by_noise(lambda text: q(text).float(), count)

    assert exact.judge_drafter(cast, conventions.DRAFT).is_honest


def test_too_many_coins_end_with_a_message(monkeypatch):
    monkeypatch.setattr(drafting, "MOST_SCRIPTS", 100)
    found = exact.judge_drafter(foreign.draws_and_reports, conventions.DRAFT, shapes=exact.chains(12))
    assert found.verdict == drafting.NOT_JUDGED
    assert "ask for shorter drafts" in found.reason


def test_what_is_hidden_is_not_judged():
    hidden = np.random.default_rng(0)

    def drafter(q, count):
        tokens = [int(hidden.integers(3)) for _ in range(count)]
        return tokens, [q(())] * count

    found = exact.judge_drafter(drafter, conventions.DRAFT)
    assert found.verdict == drafting.NOT_JUDGED
    assert not found.is_honest


def test_nothing_to_try_is_an_error():
    with pytest.raises(ValueError, match="nothing to try"):
        exact.judge_drafter(foreign.draws_and_reports, conventions.DRAFT, tried=[])


def test_the_command(capsys):
    assert main([f"{foreign.__file__}:draws_and_reports", "--as", "draft", "--lengths", "1"]) == 0
    assert capsys.readouterr().out.startswith("draws from the q that it reports")
    assert main([f"{foreign.__file__}:reports_the_row_before", "--as", "draft"]) == 1
    assert "does not draw from the q that it reports" in capsys.readouterr().out
