"""python -m training --pair: from a folder with a model to a head that drafts for it, through the commands."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from tiny import FAMILIES, TEMPLATE, tokenizer
from tiny_heads import QUICK

from specnb import heads, models
from study import __main__ as laboratory
from study import record
from study.measure import loading
from training import __main__ as training
from training import corpus, evaluation, recipes, writing

CASES = {
    "qwen2 with a chat template": ("qwen2", {"template": TEMPLATE}),
    "llama without one": ("llama", {"bos": True}),
    "gpt_neox without one": ("gpt_neox", {}),
}


@pytest.fixture(params=CASES)
def case(request) -> str:
    return request.param


@pytest.fixture
def folder(case, tmp_path, monkeypatch) -> str:
    """A tiny random model with its tokenizer in ./tiny, and everything so short that it trains in seconds."""
    loading.forget()  # another test of this process may have loaded another model from a folder of this name
    monkeypatch.setenv("SPECNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(corpus, "SHARD", 200)
    monkeypatch.setattr(recipes.Recipe, "schedule", property(lambda recipe: replace(QUICK, seed=recipe.seed)))
    short = {"longest_question": 60, "longest_answer": 24, "question_temperature": 3.0, "answer_temperature": 1.0}
    monkeypatch.setattr(writing, "Settings", lambda rows, **_: SETTINGS(rows=rows, **short))
    texts = ["Name three rivers.", "What is 2 + 2?"]
    prompts = pd.DataFrame({"set": ["own", "tuning"], "id": ["rivers", "sum"], "text": texts})
    monkeypatch.setattr(evaluation, "held_out_prompts", lambda: prompts)
    family, options = CASES[case]
    made = tokenizer(**options)
    model = FAMILIES[family](vocab_size=len(made), bos_token_id=0, eos_token_id=1, max_position_embeddings=2048)
    model.save_pretrained("tiny")
    made.save_pretrained("tiny")
    return "tiny"


SETTINGS = writing.Settings


def call(module, monkeypatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["command", *words])
    module.main()


def test_a_target_of_ones_own_gets_heads_that_draft_for_it(folder, case, monkeypatch, capsys):
    own = ["--pair", folder, "--dtype", "float32"]
    call(training, monkeypatch, "corpus", *own, "--tokens", "400", "--rows", "8")
    call(training, monkeypatch, "corpus", *own, "--tokens", "200", "--rows", "8", "--guided")
    written = corpus.load(Path("drafts_of_tiny/corpus"), Path("drafts_of_tiny/corpus/guided"))
    assert sum(len(dialogue.answer) for dialogue in written) >= 600
    call(training, monkeypatch, "held-out", *own)
    names = ["eagle", "edd"]
    if "chat template" in case:  # once is enough for the others
        names += ["vdm", "medusa", "eagle3", "hass"]
    call(training, monkeypatch, "train", *names, *own, "--vocabulary", "64")
    call(training, monkeypatch, "report", *own)
    table = pd.read_csv("drafts_of_tiny/results/heads_held_out.csv")
    assert set(table["head"]) == set(names)
    assert (table["tau"] >= 1).all()
    target = models.load_pair(folder, dtype="float32").target
    assert heads.load("drafts_of_tiny/drafts/edd", target)[1].hidden_layer == -3  # no deeper than its layers
    asked = ["--pair", folder, "--prompts", "conversation-01", "--tokens", "9"]
    eagle = ["--head", "drafts_of_tiny/drafts/eagle", "--out", "eagle"]
    call(laboratory, monkeypatch, "texts", "eagle-chain-5", *asked, *eagle)
    edd = ["--head", "drafts_of_tiny/drafts/edd", "--softened", "1.5", "--out", "edd"]
    call(laboratory, monkeypatch, "texts", "edd-pct", *asked, *edd)
    for name in ("eagle", "edd"):
        assert record.load(f"{name}.jsonl")["same"].all()
        line = json.loads(Path(f"{name}.jsonl").read_text("utf-8").splitlines()[0])
        assert f"drafts_of_tiny/drafts/{name}" in line["heads"]


def test_a_head_of_another_target_is_refused_with_the_command_that_makes_one(tmp_path):
    target = FAMILIES["llama"]()
    with pytest.raises(ValueError, match=r"`python -m training train NAME --pair FOLDER_OR_NAME`"):
        heads.load("eagle", target)
