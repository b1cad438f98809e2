"""Races: counts of real runs, failures as rows, and what transformers' own methods are given."""

import numpy as np
import pytest
import torch
from tiny import generated, llama, near_copy

from specnb import drafters, models, verifiers
from specnb.drafters.seconds import ForwardSeconds
from specnb.growth import chain, kary
from specnb.tree import Drawn
from study import methods
from study.measure import loading, race
from study.methods import METHODS, Auto, Method, ngrams

METHODS_OF_A_BLOCK = {
    "generate": METHODS["generate"],
    "prompt lookup": METHODS["prompt lookup"],
    "assistant": METHODS["assistant"],
    "undrafted": METHODS["undrafted"],
    "chain": Method(head="pair", grow=chain(3)),
    "salf + n-grams": Method(head="pair", grow=METHODS["talf-salf-6"].grow, look_up=ngrams()),
}
BROKEN = Method(head="pair", grow=kary(2, 2), drawn=Drawn.SWOR, verifier=verifiers.rrs)  # which wants IID siblings


@pytest.mark.usefixtures("toy")
def test_a_block_counts_what_ran(table):
    table.update(METHODS_OF_A_BLOCK)
    names = list(METHODS_OF_A_BLOCK)
    rows = {row["method"]: row for row in race.race_block("rag-02", names, length=40, whole=True)}
    assert list(rows) != names  # in random order
    assert set(rows) == set(names)
    for name, row in rows.items():
        assert tuple(row) == race.ROW
        assert (row["status"], row["error"], row["tokens"]) == ("ok", "", 40)
        assert len({other["text"] for other in rows.values()}) == 1  # float32, greedy
        trees = dict(row["trees"])
        assert sum(trees.values()) == row["steps"] <= 40
        assert sum(n * count for n, count in trees.items()) == row["nodes"] + row["steps"]
        assert row["draft"] + row["target"] + row["verify"] + row["commit"] + row["prefill"] <= row["seconds"] * 1.01
        if name in ("generate", "undrafted"):
            assert row["trees"] == [[1, 40]]
        if METHODS_OF_A_BLOCK[name].head is not None:
            assert 0 < row["drafting"] < row["draft"]
            assert sum(count for _, count in row["frontiers"]) >= row["steps"] - 1
    assert max(dict(rows["chain"]["trees"])) == 4
    assert max(dict(rows["prompt lookup"]["trees"])) == 6
    assert rows["prompt lookup"]["steps"] < 40
    assert rows["chain"]["steps"] < 30
    assert rows["assistant"]["frontiers"]


@pytest.mark.usefixtures("toy")
def test_the_order_changes_with_the_repetition_and_the_seed_with_it():
    names = ["undrafted", "n-gram tree", "ptd"]
    rows = race.race_block("conversation-01", names, length=4, temperature=1.0, repetitions=4, keep_ids=True)
    orders = [[row["method"] for row in rows if row["repetition"] == r] for r in range(4)]
    assert all(sorted(order) == sorted(names) for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    assert [row["order"] for row in rows] == [0, 1, 2] * 4
    texts = [row["ids"] for row in rows if row["method"] == "undrafted"]
    assert len({tuple(ids) for ids in texts}) > 1
    assert all(len(ids) == 4 for ids in texts)


@pytest.mark.usefixtures("toy")
def test_a_method_that_fails_is_a_row_and_the_rest_goes_on(table):
    table["broken"] = BROKEN
    names = ["generate", "broken", "n-gram tree"]
    rows = {row["method"]: row for row in race.race_block("conversation-01", names, length=4, temperature=1.0)}
    failed = rows.pop("broken")
    assert failed["status"] == "failed"
    assert failed["error"].startswith("ValueError: rrs is lossless for siblings drawn IID only")
    assert all(row["status"] == "ok" for row in rows.values())


def test_self_drafting_rows_have_ptds_counts(toy):
    """Dft and Ver of PTD are auxiliary / steps and candidates / steps, HR is hits / steps."""
    row = race.timed(METHODS["ptd, 2 children"], toy.encode("Count."), toy, length=16, whole=True)
    assert 0 < row["auxiliary"] <= row["nodes"]
    assert 0 <= row["hits"] <= row["steps"]
    plain = race.timed(METHODS["undrafted"], toy.encode("Count."), toy, length=4, whole=True)
    assert (plain["nodes"], plain["auxiliary"], plain["hits"]) == (0, 0, 0)


def test_live_tables_have_a_row_a_prompt_and_method(toy):
    table = race.race(["conversation-01", "conversation-02"], ["generate", "n-gram tree"], length=3)
    assert sorted(zip(table["prompt"], table["method"], strict=True)) == [
        (prompt, name) for prompt in ("conversation-01", "conversation-02") for name in ("generate", "n-gram tree")
    ]
    assert np.isfinite(table["seconds"].astype(float)).all()


def test_forwards_are_counted_without_touching_the_model():
    """Hooks count transformers' own forwards, and are gone afterwards."""
    model = llama()
    before = dict(vars(model))
    with race.Watched(model) as seen:
        generated(model, [3, 1, 4], 5)
    assert seen.sizes == [3, 1, 1, 1, 1]
    assert len(seen.seconds) == 5
    assert min(seen.seconds) > 0
    assert set(vars(model)) == set(before)
    assert len(model._forward_hooks) == len(model._forward_pre_hooks) == 0
    generated(model, [3, 1, 4], 2)
    assert len(seen.sizes) == 5
    with race.Watched(None) as nothing:
        generated(model, [3, 1, 4], 2)
    assert nothing.sizes == []


# ---- any model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["generate", "undrafted"])
@pytest.mark.parametrize("ids", ["Good morning", [1.5, 2.5], torch.tensor([[1, 2]])])
def test_what_is_no_list_of_token_ids_is_refused_by_theirs_and_ours(name, ids):
    with pytest.raises(ValueError, match="ids must be a list of ints"):
        race.timed(METHODS[name], ids, models.Pair("tiny", llama(), None, None), length=4)


@pytest.mark.parametrize(
    "own",
    [
        {"repetition_penalty": 4.0},
        {"no_repeat_ngram_size": 1},
        {"suppress_tokens": list(range(0, 50, 2))},
        {"min_new_tokens": 12, "eos_token_id": list(range(50))},
    ],
    ids=lambda own: next(iter(own)),
)
def test_their_baseline_decodes_by_the_law_that_ours_decodes_by(own):
    """A model's own penalties (Qwen2.5: repetition_penalty) are left out of generate, as they are of our loop."""
    model = llama()
    model.generation_config.update(**own)
    before = model.generation_config.to_dict()
    pair, prompt = models.Pair("tiny", model, None, None), [3, 1, 4]
    theirs, ours = (race.timed(METHODS[n], prompt, pair, length=12)["ids"] for n in ("generate", "undrafted"))
    assert theirs == ours
    assert theirs != list(generated(model, prompt, 12))  # negative control: the penalty does something
    assert model.generation_config.to_dict() == before


@pytest.mark.parametrize("rows", [44, 50, 64])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_assistant_may_have_another_number_of_rows_than_the_target(rows, temperature):
    """Qwen2.5-7B has 152,064 rows and its draft 151,936, for one tokenizer; transformers refuses such a pair."""
    target, draft = llama(), llama(seed=1, vocab_size=rows)
    pair = models.Pair("tiny", target, draft, None)
    row = race.timed(METHODS["assistant"], [3, 1, 4], pair, length=12, temperature=temperature)
    assert row["tokens"] == 12
    assert row["nodes"] > 0
    if not temperature:
        assert row["ids"] == list(generated(target, [3, 1, 4], 12))
    assert draft.lm_head.weight.shape[0] == draft.config.vocab_size == rows  # its own rows stay


SEEDED = {
    name: METHODS[name]
    for name in ("undrafted", "n-gram tree", "ptd", "lookahead", "self-draft", "assistant", "prompt lookup")
}
SEEDED["a drawn tree"] = Method(head="pair", grow=kary(2, 2), drawn=Drawn.SWOR)
SEEDED["sized by prices"] = Method(head="pair", grow=Auto(), look_up=methods.FromSettings(drafters.RetrievalDrafter))
SEEDED["retrieval without a store"] = Method(drafter=methods.FromSettings(drafters.RetrievalDrafter))


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_gives_the_same_text_whatever_was_written_before(name, monkeypatch):
    """Drafters are made anew for each text, and what transformers' assistant learns of a text stays with that text."""
    target = llama()
    pair = models.Pair("tiny", target, near_copy(target), None)
    learning = {"num_assistant_tokens": 3, "num_assistant_tokens_schedule": "heuristic"}
    pair.draft.generation_config.update(**learning, assistant_confidence_threshold=0.0)
    seconds = ForwardSeconds(tuple(np.linspace(1, 2, 32)), tuple(np.linspace(0.1, 0.2, 8)))
    monkeypatch.setattr(loading, "machine", lambda *_: seconds)
    loading._draft_model.cache_clear()

    def written(seed: int) -> tuple:
        row = race.timed(SEEDED[name], [3, 1, 4, 1, 5, 3, 1, 4], pair, length=24, temperature=1.0, seed=seed)
        return row["ids"], row["nodes"], row["steps"]

    first = written(0)
    for other in ([9, 2, 6], [5, 3, 5, 8, 9, 7, 9]):
        race.timed(SEEDED[name], other, pair, length=30, temperature=0.0)
    assert written(0) == first
    assert written(1)[0] != first[0]  # negative control: the seed does something
