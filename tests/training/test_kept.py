"""python -m training: what an interrupted command keeps and says, where it goes on, and what errors advise."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
from tiny import TEMPLATE, llama, tokenizer

from specnb import models
from training import __main__ as training
from training import corpus, evaluation, features, hints, loop, recipes, runs, writing

PROMPTS = pd.DataFrame(
    {
        "set": ["tuning", "own", "tuning", "humaneval", "own"],
        "id": ["rag-01", "rag-05", "translation-01", "HumanEval/0", "translation-05"],
        "text": ["Name three rivers.", "What is 2 + 2?", "Say yes.", "def one():", "Count to ten."],
    }
)
SETTINGS = writing.Settings


@pytest.fixture
def command(monkeypatch, tmp_path):
    """The command line for a tiny model in ./my model, with a corpus so small that it is written in a second."""
    monkeypatch.setenv("SPECNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(corpus, "SHARD", 100)
    monkeypatch.setattr(corpus, "held_out", set)
    short = {"longest_question": 60, "longest_answer": 24, "question_temperature": 3.0, "answer_temperature": 1.0}
    monkeypatch.setattr(writing, "Settings", lambda rows, **_: SETTINGS(rows=rows, **short))
    monkeypatch.setattr(evaluation, "held_out_prompts", PROMPTS.copy)
    made = tokenizer(template=TEMPLATE)
    target = llama(vocab_size=len(made), bos_token_id=0, eos_token_id=1, max_position_embeddings=2048)
    target.save_pretrained("my model")
    made.save_pretrained("my model")

    def call(what: str, *words: str) -> None:
        own = ["--pair", "my model", "--dtype", "float32"]
        monkeypatch.setattr(sys, "argv", ["training", what, *own, *words])
        training.main()

    return call


def interrupted(capsys, call, *words: str) -> str:
    """The last line of a command that ends by Ctrl-C, without a traceback and with a shell's exit status."""
    with pytest.raises(SystemExit) as end:
        call(*words)
    assert end.value.code == 130
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said.strip().splitlines()[-1]


def refused(capsys, call, *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        call(*words)
    assert end.value.code == 2
    return capsys.readouterr().err


def stop_at(monkeypatch, owner, name: str, count: int) -> None:
    """The count-th call of a function, and each after it, is interrupted instead."""
    plain, calls = getattr(owner, name), []

    def stopped(*args, **kwargs):
        calls.append(name)
        if len(calls) >= count:
            raise KeyboardInterrupt
        return plain(*args, **kwargs)

    monkeypatch.setattr(owner, name, stopped)


# ---- Ctrl-C


def test_an_interrupted_corpus_says_what_is_written_and_goes_on(command, monkeypatch, capsys):
    write = ["corpus", "--tokens", "300", "--rows", "8"]
    with monkeypatch.context() as patch:
        stop_at(patch, corpus, "save", 2)
        said = interrupted(capsys, command, *write)
    folder = Path("drafts_of_my model/corpus")
    first = corpus.load(folder)
    count = sum(len(dialogue.answer) for dialogue in first)
    assert said == f"interrupted: {count:,} of 300 answer tokens written in {folder}; the same command goes on"
    command(*write)
    whole = corpus.load(folder)
    assert whole[: len(first)] == first
    assert sum(len(dialogue.answer) for dialogue in whole) >= 300


def test_interrupted_training_says_its_last_checkpoint(command, monkeypatch, capsys):
    command("corpus", "--tokens", "500", "--rows", "8")
    train = ["train", "vdm", "--vocabulary", "64"]
    with monkeypatch.context() as patch:
        stop_at(patch, features, "_chunk", 1)
        said = interrupted(capsys, command, *train)
    assert said.startswith("interrupted: features of 0 of 1 chunks kept in ")
    plain = loop.Schedule
    with monkeypatch.context() as patch:
        patch.setattr(recipes, "Schedule", lambda **terms: plain(**terms, checkpoint_every=2))
        stop_at(patch, loop, "_descend", 4)
        said = interrupted(capsys, command, *train)
    assert said.startswith("interrupted: step 2 of ")
    assert said.endswith(".pt; the same command goes on")
    assert Path(said.partition(" kept in ")[2].partition(";")[0]).exists()


def test_an_interrupted_held_out_text_goes_on(command, monkeypatch, capsys):
    """All answers are those of a run in one go, each asked for once; answers of another model are not taken up."""
    asked, plain = [], models.pairs.generate

    def counted(pair, ids, length, **options):
        asked.append(tuple(ids))
        return plain(pair, ids, length, **options)

    command("held-out")
    text = Path("drafts_of_my model/corpus/held_out.npz")
    once = corpus.read(text)
    text.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(models.pairs, "generate", counted)
        with patch.context() as stopping:
            stop_at(stopping, models.pairs, "generate", 4)
            said = interrupted(capsys, command, "held-out")
        begun = Path("drafts_of_my model/corpus/held_out.begun.jsonl")
        assert said == f"interrupted: 3 of 5 answers kept in {begun}; the same command goes on"
        with open(begun, "a") as file:
            file.write('{"question": [1, 2')  # as a kill leaves it
        command("held-out")
    assert corpus.read(text) == once
    assert len(asked) == len(set(asked)) == 5
    assert not begun.exists()
    assert json.loads(text.with_suffix(".json").read_text())["prompts"] == 5


def test_answers_begun_by_another_model_are_not_taken_up(command, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stop_at(patch, models.pairs, "generate", 4)
        interrupted(capsys, command, "held-out")
    made = tokenizer(template=TEMPLATE)
    llama(3, vocab_size=len(made), max_position_embeddings=2048).save_pretrained("my model")
    with monkeypatch.context() as patch:
        stop_at(patch, models.pairs, "generate", 1)
        assert "interrupted: 0 of 5 answers kept" in interrupted(capsys, command, "held-out")


# ---- held-out: some prompts


def test_some_held_out_prompts_are_answered_and_reported(command):
    command("corpus", "--tokens", "500", "--rows", "8")
    command("held-out", "--prompts", "rag-05", "rag-01", "translation:1")
    facts = json.loads(Path("drafts_of_my model/corpus/held_out.json").read_text())
    assert facts["ids"] == ["rag-01", "rag-05", "translation-01"]  # in the table's order
    assert facts["prompts"] == 3
    command("train", "vdm", "--vocabulary", "64")
    command("report")
    tables = Path("drafts_of_my model/results/heads_by_prompt.csv")
    assert pd.read_csv(tables)["prompt"].tolist() == facts["ids"]
    command("report")
    assert pd.read_csv(tables)["prompt"].tolist() == facts["ids"]
    command("held-out")  # another text: what was measured on the first does not count any more
    command("report")
    assert pd.read_csv(tables)["prompt"].tolist() == PROMPTS["id"].tolist()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "has the prompt 'nowhere'"),
        (["rag-07"], "rag-07 is none of the prompts that drafts are measured on: own, humaneval, gsm100"),
        (["rag-01"], "choose some of both, for example own:6"),
        (["rag-05"], "choose some of both, for example own:6"),
    ],
)
def test_prompts_that_make_no_report_are_refused_before_anything_is_loaded(
    words, message, command, monkeypatch, capsys
):
    monkeypatch.setattr(models.pairs, "load_pair", lambda *_, **__: pytest.fail("a model was loaded"))
    assert message in refused(capsys, command, "held-out", "--prompts", *words)


# ---- hints


def test_commands_name_the_target():
    assert hints.command("corpus") == "`python -m training corpus`"
    assert hints.command("corpus", "--guided", pair="a b") == "`python -m training corpus --guided --pair 'a b'`"


def test_what_is_missing_is_told_with_commands_for_this_target(command, monkeypatch, capsys):
    """Followed word by word, each hint leads to the next, and none into the embedded model's files."""
    own = "--pair 'my model'`"
    assert f"run `python -m training corpus {own} first" in refused(capsys, command, "train", "hass")
    command("corpus", "--tokens", "500", "--rows", "8")
    said = refused(capsys, command, "train", "hass")
    assert "different tokens, 8192 were asked for: --vocabulary " in said
    said = refused(capsys, command, "train", "hass", "--vocabulary", "64")
    assert "train eagle first, the head to start from: `python -m training train eagle --out " in said
    assert f"--out 'drafts_of_my model/drafts' {own}" in said
    said = refused(capsys, command, "report")
    assert f"run `python -m training train NAME --out 'drafts_of_my model/drafts' {own} first" in said
    command("train", "vdm", "--vocabulary", "64")
    assert f"is missing or damaged: run `python -m training held-out {own}" in refused(capsys, command, "report")


def test_the_embedded_models_hints_stay_short(tmp_path):
    for message, call in (
        ("run `python -m training corpus` first", lambda: corpus.load(tmp_path)),
        ("run `python -m training corpus --guided` first", lambda: corpus.load(tmp_path / "guided")),
        ("run `python -m training held-out`", lambda: runs.held_out(tmp_path / "held_out.npz")),
    ):
        with pytest.raises(ValueError, match="run `python") as raised:
            call()
        assert message in str(raised.value)
