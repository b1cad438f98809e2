"""Prompt lookup: what it looks at in long texts, and that looking at less drafts the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specnb.drafters import NgramDrafter, ngram


class Watched(list):
    """A text that counts how often a continuation is taken out of it."""

    continuations = 0

    def __getitem__(self, key):
        self.continuations += isinstance(key, slice) and key.stop is not None
        return super().__getitem__(key)


def proposed(text: list[int], **settings) -> tuple[list[tuple[int, ...]], int]:
    """The drafted nodes as paths, in their order, and how many occurrences were looked at."""
    drafter = NgramDrafter(**settings)
    drafter.begin(text, None, {})
    drafter.text = watched = Watched(drafter.text)
    tree = drafter.propose(None, 100).tree
    return [tree.path_tokens(node) for node in range(1, len(tree))], watched.continuations


@pytest.mark.parametrize("period", [7, 20])
def test_a_text_that_goes_round_is_not_read_through_at_every_step(period):
    cycle = list(range(period))
    most = NgramDrafter().max_ngram * ngram.VISITS
    length = 5 * most * period  # five times as many occurrences of every suffix
    text = (cycle * length)[:length]
    paths, visits = proposed(text)
    assert visits <= most
    assert paths[-1] == tuple((cycle * 14)[:14])  # the text ends where a cycle does: it goes on with another
    assert paths == [paths[-1][: i + 1] for i in range(len(paths))]


def test_that_count_notices_a_drafter_without_a_bound(monkeypatch):
    text, rounds = list(range(20)) * 600, 600
    monkeypatch.setattr(ngram, "VISITS", len(text))
    assert proposed(text)[1] == NgramDrafter().max_ngram * (rounds - 1) > NgramDrafter().max_ngram * 512


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 4), st.integers(1, 16))
def test_a_text_no_longer_than_the_bound_is_drafted_as_without_one(text, matches, budget):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram, "VISITS", len(text))
        bounded = proposed(text, matches=matches, budget=budget)
        patch.setattr(ngram, "VISITS", 10_000)
        assert bounded == proposed(text, matches=matches, budget=budget)


def test_every_occurrence_up_to_the_bound_counts(monkeypatch):
    oldest, between = [1, 2, 3, 9], [1, 2, 3, 4]
    text = [*oldest, *between * 5, 1, 2, 3]
    assert proposed(text, length=1, short=1)[0] == [(4,), (9,)]
    monkeypatch.setattr(ngram, "VISITS", 5)
    assert proposed(text, length=1, short=1)[0] == [(4,)]


def test_all_nodes_of_ordinary_texts_are_found_as_before():
    """The first matches that add something, by the definition: suffixes from long to short, the latest first."""
    text = [5, 1, 2, 3, 7, 1, 2, 4, 8, 2, 6, 1, 2]
    paths, _ = proposed(text, length=2, short=1, matches=4)
    assert paths == [(4,), (4, 8), (3,), (3, 7), (6,)]
