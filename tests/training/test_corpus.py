"""The target writing dialogues: what comes out is its own law, once each, resumable, and never a held-out prompt."""

import json
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from tiny import llama

from specnb.drafters import Datastore, retrieval
from training import corpus, evaluation, openings, runs, writing

V = 9
SETTINGS = writing.Settings(rows=6, longest_question=7, longest_answer=10, shortest_question=2)
BEFORE, AFTER = [1, 3], [2, 4, 5]  # token 2 ends a turn


@pytest.fixture(autouse=True)
def tiny_template(monkeypatch):
    monkeypatch.setattr(writing, "template", lambda tokenizer: (BEFORE, AFTER))
    monkeypatch.setattr(corpus, "SHARD", 60)


@pytest.fixture(scope="module")
def model():
    model = llama(vocab_size=V, attn_implementation="specnb_grouped", initializer_range=0.3)
    model.generation_config.eos_token_id = 2
    return model


@pytest.fixture
def pair(model):
    """What the corpus needs of a pair: a target and a decoder, here one word per token."""
    words = [f"w{i}" for i in range(V)]
    return SimpleNamespace(
        name="tiny",
        target=model,
        tokenizer=lambda text, **_: {"input_ids": [words.index(word) for word in text.split()]},
        decode=lambda ids: " ".join(words[int(t)] for t in ids),
    )


def write(pair, folder, tokens: int, **options):
    return corpus.write(
        pair, tokens, command="test", folder=folder, settings=options.pop("settings", SETTINGS), **options
    )


@pytest.fixture
def no_held_out(monkeypatch):
    monkeypatch.setattr(corpus, "held_out", set)


def some(model, count: int, seed: int = 0, **options) -> list[writing.Dialogue]:
    return list(islice(writing.dialogues(model, None, SETTINGS, seed=seed, **options), count))


@pytest.mark.parametrize(("block", "every"), [(24, 32), (2, 3)])
def test_greedy_answers_are_generates(model, block, every, monkeypatch):
    """Rows of all lengths side by side, refilled at any time: each greedy answer is what generate writes alone."""
    monkeypatch.setattr(writing, "BLOCK", block)
    monkeypatch.setattr(writing, "SORT_EVERY", every)
    plain = llama(vocab_size=V, initializer_range=0.3)
    greedy = [d for d in some(model, 60) if d.greedy]
    assert len(greedy) > 15
    assert len({len(d.answer) for d in greedy}) > 1
    for d in greedy:
        prompt = torch.tensor([[*BEFORE, *d.question, *AFTER]])
        limits = {"max_new_tokens": SETTINGS.longest_answer, "eos_token_id": 2, "pad_token_id": 0}
        out = plain.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, **limits)
        assert out[0, prompt.shape[1] :].tolist() == list(d.answer)


def test_lengths_ends_and_turns(model):
    found = some(model, 80)
    for d in found:
        assert SETTINGS.shortest_question <= len(d.question) <= SETTINGS.longest_question
        assert 2 not in d.question
        assert d.answer[-1] == 2 or len(d.answer) == SETTINGS.longest_answer
        assert 2 not in d.answer[:-1]
    assert 0.3 < np.mean([d.greedy for d in found]) < 0.7


def test_the_same_seed_writes_the_same(model):
    assert some(model, 10) == some(model, 10)
    assert some(model, 10) != some(model, 10, seed=1)


def test_unwanted_questions_get_no_answer(model):
    def wanted(question):
        return question[0] % 2 == 0

    assert all(d.question[0] % 2 == 0 for d in some(model, 20, wanted=wanted))
    assert any(d.question[0] % 2 for d in some(model, 20))


def test_questions_begin_as_they_are_told(model):
    """Given first words stand in every question, and answers are still the target's to the whole of it."""
    begun, plain = [(6, 7, 6), (8,)], llama(vocab_size=V, initializer_range=0.3)
    found = some(model, 40, openings=begun)
    starts = [next((o for o in begun if d.question[: len(o)] == o), None) for d in found]
    assert None not in starts
    assert set(starts) == set(begun)
    assert len({d.question for d in found}) > 10  # a source that never sampled would give two
    assert any(d.question[:1] not in {(6,), (8,)} for d in some(model, 40))  # free questions begin otherwise
    for d in [d for d in found if d.greedy][:8]:
        prompt = torch.tensor([[*BEFORE, *d.question, *AFTER]])
        out = plain(torch.cat([prompt, torch.tensor([d.answer])], 1)).logits[0, prompt.shape[1] - 1 : -1].argmax(-1)
        assert out.tolist() == list(d.answer)


@pytest.mark.parametrize("top_p", [0.7, 1.0])
def test_sampling_is_the_nucleus(top_p):
    """20,000 draws against the nucleus's law, chi-square; the law without nucleus is caught."""
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
    p = (logits / 0.8).softmax(-1).double()
    law = p * (p.cumsum(0) - p < top_p)
    law = law / law.sum()
    draws = writing.sample(logits.expand(20_000, -1), 0.8, top_p, torch.Generator().manual_seed(0))
    counts = torch.bincount(draws, minlength=6).double()
    inside = law > 0
    assert counts[~inside].sum() == 0
    assert stats.chisquare(counts[inside].numpy(), (law * 20_000)[inside].numpy()).pvalue > 1e-3
    wrong = torch.full((6,), 1 / 6, dtype=torch.float64) * 20_000
    assert stats.chisquare(counts.numpy(), wrong.numpy()).pvalue < 1e-9


@pytest.mark.usefixtures("no_held_out")
def test_the_corpus_is_what_was_written(pair, tmp_path):
    manifest = write(pair, tmp_path, 150)
    dialogues = corpus.load(tmp_path)
    assert sum(len(d.answer) for d in dialogues) == sum(s["answer_tokens"] for s in manifest["shards"]) >= 150
    assert len({d.question for d in dialogues}) == len(dialogues)  # no question twice
    assert manifest["model"]["name"] == "tiny"
    assert {"seconds", "torch", "device", "date", "sha256"} <= manifest["shards"][0].keys()


@pytest.mark.usefixtures("no_held_out")
def test_a_killed_run_goes_on_from_the_last_shard(pair, tmp_path, monkeypatch):
    first = write(pair, tmp_path, 60)
    before = (tmp_path / first["shards"][0]["file"]).read_bytes()

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(corpus, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            write(pair, tmp_path, 120)
    assert corpus.read_manifest(tmp_path) == first
    second = write(pair, tmp_path, 120)
    assert second["shards"][0] == first["shards"][0]
    assert (tmp_path / first["shards"][0]["file"]).read_bytes() == before
    dialogues = corpus.load(tmp_path)
    assert len({d.question for d in dialogues}) == len(dialogues)


@pytest.mark.usefixtures("no_held_out")
def test_other_terms_are_refused(pair, tmp_path):
    write(pair, tmp_path, 60)
    with pytest.raises(ValueError, match="was written with model"):
        write(SimpleNamespace(**{**vars(pair), "name": "other"}), tmp_path, 120)
    with pytest.raises(ValueError, match="was written with openings None"):
        write(pair, tmp_path, 120, openings=["w6 w7"])


@pytest.mark.usefixtures("no_held_out")
def test_each_shard_keeps_its_own_settings(pair, tmp_path):
    first = write(pair, tmp_path, 60)
    second = write(pair, tmp_path, 120, settings=replace(SETTINGS, longest_answer=5))
    assert [entry["settings"]["longest_answer"] for entry in second["shards"]] == [10, 5]
    assert second["shards"][0] == first["shards"][0]
    assert max(len(d.answer) for d in corpus.load(tmp_path)[first["shards"][0]["dialogues"] :]) == 5


@pytest.mark.usefixtures("no_held_out")
def test_corpora_are_mixed_shard_by_shard(pair, tmp_path):
    write(pair, tmp_path / "free", 150)
    write(pair, tmp_path / "guided", 60, openings=["w6 w7"])
    free, guided = (list(corpus.load(tmp_path / name)) for name in ("free", "guided"))
    assert all(pair.decode(d.question).startswith("w6 w7") for d in guided)
    first = corpus.load(tmp_path / "free", shards=1)
    assert corpus.load(tmp_path / "free", tmp_path / "guided") == [*first, *guided, *free[len(first) :]]
    assert corpus.load(tmp_path / "free", tmp_path / "guided", shards=1) == [*first, *guided]


@pytest.mark.usefixtures("no_held_out")
def test_damage_is_named(pair, tmp_path):
    manifest = write(pair, tmp_path, 60)
    shard = tmp_path / manifest["shards"][0]["file"]
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(ValueError, match=f"{shard.name} is missing or damaged"):
        corpus.load(tmp_path)
    with pytest.raises(ValueError, match="holds no corpus"):
        corpus.load(tmp_path / "nowhere")


@pytest.mark.usefixtures("no_held_out")
def test_a_damaged_manifest_destroys_nothing(pair, tmp_path):
    write(pair, tmp_path, 60)
    shard = tmp_path / "shard-000.npz"
    before = shard.read_bytes()
    (tmp_path / "manifest.json").write_text("<<<<<<< HEAD")
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        write(pair, tmp_path, 120)
    assert shard.read_bytes() == before


@pytest.mark.usefixtures("no_held_out")
def test_a_lost_shard_is_written_anew_beside_the_others(pair, tmp_path):
    """What the error message for a damaged shard advises: delete it and its entry, and go on."""
    manifest = write(pair, tmp_path, 180)
    files = [entry["file"] for entry in manifest["shards"]]
    assert len(files) >= 3
    (tmp_path / files[1]).unlink()
    del manifest["shards"][1]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    again = write(pair, tmp_path, 180)
    names = [entry["file"] for entry in again["shards"]]
    assert len(set(names)) == len(names)
    assert set(files) - {files[1]} < set(names)
    corpus.load(tmp_path)


THROWN = {
    "too long": {"longest_question": 2},
    "too short": {"shortest_question": 99, "longest_question": 99},
    "like a held-out prompt": {},
    "asked before": {},
}


@pytest.mark.parametrize("why", THROWN)
def test_the_bar_says_why_questions_are_thrown_away(why, pair, tmp_path, monkeypatch):
    """Where nothing is answered, it moves all the same: how many questions were thrown away so far, and why."""
    said = []

    def shown(bar, text):
        said.append(text)
        if len(said) == 4:
            raise KeyboardInterrupt  # as a reader would who sees it stand at 0

    now = iter(range(10**6))
    monkeypatch.setattr(corpus.time, "monotonic", lambda: float(next(now)))  # each call is a second later
    monkeypatch.setattr(corpus.tqdm, "set_postfix_str", shown)
    forbidden = {(f"w{i}",) for i in range(V)} if why == "like a held-out prompt" else set()
    monkeypatch.setattr(corpus, "held_out", lambda: forbidden)
    monkeypatch.setattr(corpus, "WINDOW", 1)
    if why == "asked before":
        monkeypatch.setattr(corpus, "words", lambda text: ["the", "same"])
    with pytest.raises(KeyboardInterrupt, match=r"^0 of 150 answer tokens written in .*; the same command goes on"):
        write(pair, tmp_path, 150, settings=replace(SETTINGS, **THROWN[why]))
    assert why in said[-1]
    if why != "asked before":
        assert said[-1].startswith("0 questions answered; thrown away: ")


@pytest.mark.usefixtures("no_held_out")
def test_a_corpus_is_written_whether_or_not_it_is_told_what_was_thrown_away(model):
    """Counting changes no draw; and each kind of length is counted as it is."""
    reasons = []
    assert some(model, 40, thrown=reasons.append) == some(model, 40)
    assert {writing.SHORT, writing.LONG} <= set(reasons) <= {writing.SHORT, writing.LONG, writing.ENDED}


def test_held_out_questions_never_enter(pair, tmp_path, monkeypatch):
    """A held-out prompt that the target would ask by itself is thrown away; without the rule it gets in."""
    monkeypatch.setattr(corpus, "WINDOW", 3)
    monkeypatch.setattr(corpus, "held_out", set)
    write(pair, tmp_path / "without", 150)
    asked = [pair.decode(d.question) for d in corpus.load(tmp_path / "without")]
    forbidden = corpus.windows(asked[0])
    monkeypatch.setattr(corpus, "held_out", lambda: forbidden)
    write(pair, tmp_path / "with", 150)
    assert not any(corpus.windows(pair.decode(d.question)) & forbidden for d in corpus.load(tmp_path / "with"))


def test_windows():
    assert corpus.windows("One, two") == {("one", "two")}
    long = "a b c d e f g h i"
    assert corpus.windows(long) == {tuple("abcdefgh"), tuple("bcdefghi")}


# --- what is committed


@pytest.mark.parametrize("folder", [corpus.FOLDER, corpus.GUIDED], ids=["free", "guided"])
def test_the_committed_corpus_loads_and_is_clean(smollm2, folder):
    """Every shard is whole, no question shares eight words in a row with a held-out prompt, none is asked twice."""
    dialogues, forbidden = corpus.load(folder), corpus.held_out()
    manifest = corpus.read_manifest(folder)
    assert len(dialogues) == sum(s["dialogues"] for s in manifest["shards"])
    questions = [smollm2.decode(d.question) for d in dialogues]
    assert not any(corpus.windows(q) & forbidden for q in questions)
    assert len({tuple(corpus.words(q)) for q in questions}) == len(questions)


def test_guided_questions_begin_with_an_opening(smollm2):
    begun = tuple(openings.openings())
    questions = [smollm2.decode(d.question) for d in corpus.load(corpus.GUIDED)]
    assert all(q.startswith(begun) for q in questions)
    assert not all(
        q.startswith(begun) for q in map(smollm2.decode, (d.question for d in corpus.load(corpus.FOLDER, shards=1)))
    )
    assert sum("```python\ndef" in q for q in questions) > 0.2 * len(questions)


def test_openings_are_nobodys_prompt():
    """The same every time, of many kinds, and no eight words in a row are a held-out prompt's."""
    found = openings.openings()
    assert found == openings.openings()
    assert found != openings.openings(seed=1)
    assert len(set(found)) > 3000
    assert not any(text.endswith(" ") for text in found)
    forbidden = corpus.held_out()
    assert not any(corpus.windows(text) & forbidden for text in found)


def test_the_committed_held_out_text_answers_the_prompts(smollm2, monkeypatch):
    dialogues, table = runs.held_out(), evaluation.held_out_prompts()
    assert len(dialogues) == len(table) == 324
    monkeypatch.undo()
    for (prompt, answer), text in zip(runs.sequences(smollm2, dialogues), table["text"], strict=True):
        assert prompt == smollm2.encode(text)
        assert 0 < len(answer) <= 128


def test_a_datastore_of_the_corpus_is_the_texts_of_its_first_shards():
    """The store's run of tokens: every dialogue of the first eleven shards, in order; one shard less is another."""
    store = Datastore.of_corpus()
    texts = [np.array([*d.question, *d.answer]) for d in corpus.load(corpus.FOLDER, shards=retrieval.SHARDS)]
    assert retrieval.SHARDS == 11
    assert len(corpus.read_manifest()["shards"]) >= 11
    assert np.array_equal(store.tokens, np.concatenate(texts))
    assert len(store.tokens) > 1_000_000
    fewer = Datastore.of_corpus(shards=10)
    assert len(fewer.tokens) < len(store.tokens)
    assert np.array_equal(fewer.tokens, store.tokens[: len(fewer.tokens)])
