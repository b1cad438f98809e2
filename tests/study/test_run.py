"""The machine that times and compares: counts of real runs, failures as rows, texts by the near-tie rule."""

import numpy as np
import pytest
import torch
from tiny import generated, llama, near_copy

from specnb import models
from specnb.models import Window
from specnb.target import Target
from study import methods, run
from study.prices import counted

CHOSEN = ["generate", "prompt lookup", "assistant", "undrafted", "edd:chain 3", "talf:salf 6,3,0.8,10 + ngram"]


@pytest.fixture
def one_model(smollm2, monkeypatch):
    """The float32 model that the tests have loaded stands for every pair."""
    monkeypatch.setattr(run, "loaded", lambda *_: smollm2)
    run.draft_model.cache_clear()
    run.assistant.cache_clear()
    run._warm.cache_clear()
    return smollm2


@pytest.mark.model
@pytest.mark.usefixtures("one_model")
def test_a_block_counts_what_ran():
    rows = {row["method"]: row for row in run.race_block("rag-02", CHOSEN, length=12, whole=True)}
    assert set(rows) == set(CHOSEN)
    for name, row in rows.items():
        assert tuple(row) == run.ROW
        assert (row["status"], row["error"], row["tokens"]) == ("ok", "", 12)
        assert len({other["text"] for other in rows.values()}) == 1  # float32, greedy
        trees = counted(row["trees"])
        assert sum(trees.values()) == row["steps"] <= 12
        assert sum(n * count for n, count in trees.items()) == row["nodes"] + row["steps"]
        assert row["draft"] + row["target"] + row["verify"] + row["commit"] + row["prefill"] <= row["seconds"] * 1.01
        if name in ("generate", "undrafted"):
            assert row["trees"] == "1:12"
        if ":" in name:
            assert 0 < row["drafting"] < row["draft"]
            assert sum(counted(row["frontiers"]).values()) >= row["steps"] - 1
    assert max(counted(rows["edd:chain 3"]["trees"])) == 4
    assert max(counted(rows["prompt lookup"]["trees"])) == 6
    assert rows["prompt lookup"]["steps"] < 12
    assert counted(rows["assistant"]["frontiers"])


@pytest.mark.model
@pytest.mark.usefixtures("one_model")
def test_the_order_changes_with_the_repetition_and_the_seed_with_it():
    names = ["undrafted", "n-gram tree", "retrieval"]
    rows = run.race_block("conversation-01", names, length=4, temperature=1.0, repetitions=4, keep_ids=True)
    orders = [[row["method"] for row in rows if row["repetition"] == r] for r in range(4)]
    assert all(sorted(order) == sorted(names) for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    assert [row["order"] for row in rows] == [0, 1, 2] * 4
    texts = [row["ids"] for row in rows if row["method"] == "undrafted"]
    assert len(set(texts)) > 1
    assert all(len(ids.split()) == 4 for ids in texts)


@pytest.mark.model
@pytest.mark.usefixtures("one_model")
def test_a_method_that_fails_is_a_row_and_the_rest_goes_on():
    names = ["generate", "vdm:kary 2,2 swor rrs", "n-gram tree"]
    rows = {row["method"]: row for row in run.race_block("conversation-01", names, length=4, temperature=1.0)}
    failed = rows.pop("vdm:kary 2,2 swor rrs")
    assert failed["status"] == "failed"
    assert failed["error"].startswith("ValueError: rrs is lossless for siblings drawn IID only")
    assert all(row["status"] == "ok" for row in rows.values())


@pytest.mark.model
def test_self_drafting_rows_have_ptds_counts(one_model):
    """Dft and Ver of PTD are auxiliary / steps and candidates / steps, HR is hits / steps."""
    ids = one_model.encode("Count from one to ten, then again.")
    row = run.timed("ptd children=2", ids, one_model, length=16, whole=True)
    assert 0 < row["auxiliary"] <= row["nodes"]
    assert 0 <= row["hits"] <= row["steps"]
    plain = run.timed("undrafted", ids, one_model, length=4, whole=True)
    assert (plain["nodes"], plain["auxiliary"], plain["hits"]) == (0, 0, 0)


@pytest.mark.model
@pytest.mark.usefixtures("one_model", "one_size")
def test_texts_by_name_and_a_target_without_positions(monkeypatch):
    monkeypatch.setitem(methods.WINDOWS, "streaming 256", Window(4, 20))
    names = ["vdm:streaming 1024", "vdm:streaming 256", "talf:kary 2,3 + ngram", "ngram budget=6 in graphs"]
    rows = run.texts_block("conversation-02", names, 12, control="vdm:eagle2 20,4,4")
    same = {(row["method"], row["positions"]): row["same"] for row in rows}
    assert same == {(name, True): name != "vdm:streaming 256" for name in names} | {("vdm:eagle2 20,4,4", False): False}


@pytest.mark.model
def test_the_near_tie_rule_catches_a_wrong_text(one_model, monkeypatch):
    """Negative control: one token changed, and a text cut short, are not near ties."""
    ids = one_model.encode("Name three colours of the rainbow.")
    right = run.generate(one_model, ids, 12)
    assert run.compared(one_model, ids, right, right) == {"equal": True, "first": None, "gap": None, "same": True}
    changed = run.compared(one_model, ids, right, [*right[:5], (right[5] + 1) % 49152, *right[6:]])
    assert changed["first"] == 5
    assert not changed["same"]
    assert not run.compared(one_model, ids, right, right[:9])["same"]
    tie = [*ids, *right[:5]]
    first, second = one_model.target(torch.tensor([tie])).logits[0, -1].topk(2).indices.tolist()
    monkeypatch.setattr(run, "NEAR_TIE", 1e9)  # any gap is near now: still only the two likeliest tokens may stand
    assert first == right[5]
    assert run.compared(one_model, ids, right, [*right[:5], second, *right[6:]])["same"]
    assert not run.compared(one_model, ids, right, [*right[:5], (right[5] + 1) % 49152, *right[6:]])["same"]


@pytest.mark.model
def test_live_tables_have_a_row_a_prompt_and_method(one_model):
    table = run.race(["conversation-01", "conversation-02"], ["generate", "n-gram tree"], length=3)
    assert sorted(zip(table["prompt"], table["method"], strict=True)) == [
        (prompt, name) for prompt in ("conversation-01", "conversation-02") for name in ("generate", "n-gram tree")
    ]
    texts = run.texts(["conversation-01"], ["prompt lookup", "hass:chain 2"], length=8)
    assert texts["same"].all()
    assert np.isfinite(table["seconds"].astype(float)).all()
    assert one_model.name == "smollm2-135m"


# ---- any model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["generate", "undrafted"])
@pytest.mark.parametrize("ids", ["Good morning", [1.5, 2.5], torch.tensor([[1, 2]])])
def test_what_is_no_list_of_token_ids_is_refused_by_theirs_and_ours(name, ids):
    with pytest.raises(ValueError, match="ids must be a list of ints"):
        run.timed(name, ids, models.Pair("tiny", llama(), None, None), length=4)


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
    theirs, ours = (run.timed(name, prompt, pair, length=12)["ids"] for name in ("generate", "undrafted"))
    assert theirs == ours
    assert theirs != " ".join(map(str, generated(model, prompt, 12)))  # negative control: the penalty does something
    assert model.generation_config.to_dict() == before


@pytest.mark.parametrize("rows", [44, 50, 64])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_assistant_may_have_another_number_of_rows_than_the_target(rows, temperature):
    """Qwen2.5-7B has 152,064 rows and its draft 151,936, for one tokenizer; transformers refuses such a pair."""
    target, draft = llama(), llama(seed=1, vocab_size=rows)
    pair = models.Pair("tiny", target, draft, None)
    row = run.timed("assistant", [3, 1, 4], pair, length=12, temperature=temperature)
    assert row["tokens"] == 12
    assert row["nodes"] > 0
    if not temperature:
        assert row["ids"] == " ".join(map(str, generated(target, [3, 1, 4], 12)))
    assert draft.lm_head.weight.shape[0] == draft.config.vocab_size == rows  # its own rows stay


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
    target, draft = run.machine(pair, "pair", 0)
    assert (len(target), len(draft)) == (32, 8)
    assert min(*target, *draft) > 0
    assert max(token for token, _ in seen) < rows
    assert {place for _, place in seen} <= {min(300, context - 1), min(300, context - 1) - 1}


def test_forwards_are_measured_where_the_contexts_have_room():
    pair = small(context=128)
    assert run.measured_behind(pair) == run.measured_behind(pair, 127) == 127
    assert run.measured_behind(small(context=2048)) == 300
    shorter = models.Pair("shorter draft", small(context=2048).target, pair.draft, None)
    assert run.measured_behind(shorter) == 127
    with pytest.raises(ValueError, match="has a context of 128: measure behind 127 tokens at most, got 128"):
        run.measured_behind(pair, 128)


SEEDED = ["undrafted", "n-gram tree", "retrieval", "ptd", "lookahead", "self_draft", "pair:kary 2,2 swor",
          "pair:auto + retrieval", "assistant", "prompt lookup"]  # fmt: skip


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_gives_the_same_text_whatever_was_written_before(name, monkeypatch):
    """Drafters are made anew for each text, and what transformers' assistant learns of a text stays with that text."""
    target = llama()
    pair = models.Pair("tiny", target, near_copy(target), None)
    learning = {"num_assistant_tokens": 3, "num_assistant_tokens_schedule": "heuristic"}
    pair.draft.generation_config.update(**learning, assistant_confidence_threshold=0.0)
    monkeypatch.setattr(run, "machine", lambda *_: (np.linspace(1, 2, 32), np.linspace(0.1, 0.2, 8)))
    run.draft_model.cache_clear()

    def written(seed: int) -> tuple:
        row = run.timed(name, [3, 1, 4, 1, 5, 3, 1, 4], pair, length=24, temperature=1.0, seed=seed)
        return row["ids"], row["nodes"], row["steps"]

    first = written(0)
    for other in ([9, 2, 6], [5, 3, 5, 8, 9, 7, 9]):
        run.timed(name, other, pair, length=30, temperature=0.0)
    assert written(0) == first
    assert written(1)[0] != first[0]  # negative control: the seed does something


FREE = ["generate", "prompt lookup", "n-gram tree", "ngram", "retrieval", "ptd", "lookahead", "self_draft", "undrafted"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("auto", "`python -m training train hass --pair 'tiny 50 128'`"),
        ("edd@1.3:chain 3", "`python -m training train edd --pair 'tiny 50 128'`"),
        ("assistant", "`python -m training train vdm --pair 'tiny 50 128'`"),
        ("retrieval store=own", "the corpus was written by smollm2-135m: it says nothing about tiny 50 128"),
        ("pair:chain 3 + retrieval store=own", "has no draft model of its own"),
    ],
)
def test_what_does_not_fit_a_pair_is_told_with_what_does(name, reason):
    alone = models.Pair("tiny 50 128", llama(), None, None)
    with pytest.raises(ValueError, match="does not fit tiny 50 128") as raised:
        run.check_fit(name, alone)
    assert reason in str(raised.value)
    assert "Without a trained head race 'ngram', 'retrieval' and 'prompt lookup'" in str(raised.value)


def test_what_needs_no_head_fits_any_pair():
    alone, pair = models.Pair("alone", llama(), None, None), small()
    for name in FREE:
        run.check_fit(name, alone)
    run.check_fit("pair:auto + retrieval", pair)
    run.check_fit("assistant", pair)
    with pytest.raises(ValueError, match=r"Without a trained head race 'pair:auto \+ retrieval', 'ngram'"):
        run.check_fit("auto", pair)
