"""python -m specnb.lab: what it records and shows, and what it refuses in a line before anything is loaded."""

import sys

import pytest

from specnb.lab import __main__ as command
from specnb.lab import experiments, prices, run, sweep


@pytest.fixture
def lab(smollm2, monkeypatch, tmp_path):
    """The command line on the float32 model, writing to tmp_path."""
    for module in (run, prices):
        monkeypatch.setattr(module, "loaded", lambda *_: smollm2)
    run.draft_model.cache_clear()

    def call(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["lab", *words])
        command.main()

    return call


@pytest.mark.model
def test_a_race_is_recorded_and_shown(lab, tmp_path, capsys):
    words = ["--prompts", "rag-02", "rag-03", "--tokens", "4", "--repetitions", "2", "--out", str(tmp_path / "out")]
    lab("race", "generate", "edd:chain 2", *words)
    table = sweep.load(tmp_path / "out.jsonl")
    assert len(table) == 8
    assert set(table["cell"]) == {"race"}
    assert table["command"].str.startswith("python -m specnb.lab race generate 'edd:chain 2'").all()
    assert (table["heads"].str.len() > 20).all()
    said = capsys.readouterr().out
    assert "speed-up" in said
    assert "edd:chain 2" in said
    lab("race", "generate", "edd:chain 2", *words)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2  # nothing is measured twice


@pytest.mark.model
def test_failures_end_the_command_with_their_names(lab, tmp_path):
    words = ["--prompts", "rag-02", "--tokens", "3", "--temperature", "1", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="vdm:kary 2,2 swor rrs failed: ValueError: rrs is lossless"):
        lab("race", "generate", "vdm:kary 2,2 swor rrs", *words)
    assert sweep.load(tmp_path / "out.jsonl").groupby("method")["status"].first().to_dict() == {
        "generate": "ok",
        "vdm:kary 2,2 swor rrs": "failed",
    }


@pytest.mark.model
def test_texts_and_prices(lab, tmp_path, capsys):
    lab("race", "n-gram tree", "--texts", "--prompts", "rag-02", "--tokens", "4", "--out", str(tmp_path / "texts"))
    assert sweep.load(tmp_path / "texts.jsonl")["same"].tolist() == [True]
    lab("price", "edd", "--prefix", "10", "--repetitions", "1", "--out", str(tmp_path / "curves"))
    assert set(sweep.load(tmp_path / "curves.jsonl")["model"]) == {"target", "edd"}
    assert "nodes, ms" in capsys.readouterr().out


def test_the_list_names_every_experiment(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lab", "list"])
    command.main()
    said = capsys.readouterr().out
    assert all(name in said for name in experiments.EXPERIMENTS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("race", "magic"), "unknown method 'magic'"),
        (("race", "pair:chain 3"), "smollm2-135m has no draft model of its own"),
        (("race", "vdm:chain 3 iid"), "draws its tree: that needs a --temperature above 0"),
        (("race", "generate", "generate"), "'generate' stands twice"),
        (("race", "generate", "--prompts", "nowhere"), "has the prompt 'nowhere'"),
        (("race", "generate", "--pair", "magic"), "unknown pair 'magic': known are smollm2-135m, pythia-2.8b"),
        (("race", "generate", "--dtype", "int3"), "unknown dtype 'int3'"),
        (("race", "generate", "--packed"), "--packed needs bfloat16 and a CPU with its kernels, this is float32 on"),
        (("race", "generate", "--tokens", "0"), "--tokens and --repetitions must be at least 1"),
        (("price", "medusae"), "no trained head 'medusae'"),
        (("record", "rase"), "unknown experiment 'rase': known are race"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_loaded(words, message, monkeypatch, tmp_path, capsys):
    for module in (run, prices):
        monkeypatch.setattr(module, "loaded", lambda *_: pytest.fail("a model was loaded"))
    out = () if words[0] == "record" else ("--out", str(tmp_path / "out"))
    monkeypatch.setattr(sys, "argv", ["lab", *words, *out])
    with pytest.raises(SystemExit):
        command.main()
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
