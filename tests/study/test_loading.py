"""What is loaded once a process: prices of any pair, and what does not fit a pair is told with what does."""

import pytest
from tiny import llama

from specnb import drafters, models
from specnb.growth import chain
from specnb.target import Target
from study.measure import loading
from study.methods import METHODS, Auto, FromSettings, Method, Retrieval


def small(rows: int = 50, context: int = 128) -> models.Pair:
    """A pair of tiny models, of so many tokens and so long a context."""
    sizes = {"vocab_size": rows, "max_position_embeddings": context}
    return models.Pair(f"tiny {rows} {context}", llama(0, **sizes), llama(1, **sizes), None)


@pytest.mark.parametrize(("rows", "context"), [(40, 2048), (260, 2048), (2000, 128), (40, 20), (5000, 2048)])
def test_prices_of_a_small_vocabulary_or_a_short_context(rows, context, monkeypatch):
    """Token ids lie below the vocabulary, and all lengths below the context."""
    pair, seen = small(rows, context), []
    original = Target.forward

    def forward(target, tree):
        seen.append((max(tree.token_list), target.cache.length + max(tree.depth_list)))
        return original(target, tree)

    monkeypatch.setattr(Target, "forward", forward)
    found = loading.machine(pair, "pair", 0)
    assert (len(found.target), len(found.draft)) == (32, 8)
    assert min(*found.target, *found.draft) > 0
    assert max(token for token, _ in seen) < rows
    assert {place for _, place in seen} <= {min(300, context - 1), min(300, context - 1) - 1}


def test_forwards_are_measured_where_the_contexts_have_room():
    pair = small(context=128)
    assert loading.measured_behind(pair) == loading.measured_behind(pair, 127) == 127
    assert loading.measured_behind(small(context=2048)) == 300
    shorter = models.Pair("shorter draft", small(context=2048).target, pair.draft, None)
    assert loading.measured_behind(shorter) == 127
    with pytest.raises(ValueError, match="has a context of 128: measure behind 127 tokens at most, got 128"):
        loading.measured_behind(pair, 128)


RETRIEVAL = FromSettings(drafters.RetrievalDrafter)  # without a store: it looks up in the text so far
FREE = {
    name: METHODS[name]
    for name in ("generate", "prompt lookup", "n-gram tree", "ptd", "lookahead", "self-draft", "undrafted")
}
FREE["retrieval without a store"] = Method(drafter=RETRIEVAL)


@pytest.mark.parametrize(
    ("name", "made", "reason"),
    [
        ("auto", METHODS["auto"], "`python -m training train hass --pair 'tiny 50 128'`"),
        ("edd-pct", METHODS["edd-pct"], "`python -m training train edd --pair 'tiny 50 128'`"),
        ("assistant", METHODS["assistant"], "`python -m training train vdm --pair 'tiny 50 128'`"),
        (
            "retrieval",
            METHODS["retrieval"],
            "the corpus was written by smollm2-135m: it says nothing about tiny 50 128",
        ),
        ("pair-chain", Method(head="pair", grow=chain(3), look_up=Retrieval()), "has no draft model of its own"),
    ],
)
def test_what_does_not_fit_a_pair_is_told_with_what_does(name, made, reason):
    alone = models.Pair("tiny 50 128", llama(), None, None)
    with pytest.raises(ValueError, match=f"'{name}' does not fit tiny 50 128") as raised:
        loading.check_fit(name, made, alone)
    assert reason in str(raised.value)
    assert "Without a trained head race 'n-gram tree', 'ptd' and 'prompt lookup'" in str(raised.value)


def test_what_needs_no_head_fits_any_pair():
    alone = models.Pair("alone", llama(), None, None)
    pair = small()
    for name, made in FREE.items():
        loading.check_fit(name, made, alone)
    loading.check_fit("pair-auto", Method(head="pair", grow=Auto(), look_up=RETRIEVAL), pair)
    loading.check_fit("assistant", METHODS["assistant"], pair)
    with pytest.raises(ValueError, match="Without a trained head race 'pair-auto', 'n-gram tree'"):
        loading.check_fit("auto", METHODS["auto"], pair)


def test_a_draft_model_is_loaded_once_however_it_is_asked_for():
    pair = small()
    assert loading.draft_model("pair", pair, 0) is loading.draft_model("pair", pair, 0, 1.0)
    assert loading.draft_model("pair", pair, 0, 2.0) is not loading.draft_model("pair", pair, 0)
