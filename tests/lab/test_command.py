"""python -m specnb.lab: what it records and shows, and what it refuses in a line before anything is loaded."""

import sys

import pandas as pd
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
    words = ["--prompts", "conversation-01", "conversation-02", "--tokens", "4", "--repetitions", "2"]
    words += ["--out", str(tmp_path / "out")]
    lab("race", "generate", "edd:chain 2", *words)
    table = sweep.load(tmp_path / "out.jsonl")
    assert len(table) == 8
    assert set(table["cell"]) == {"race"}
    assert table["command"].str.startswith("python -m specnb.lab race generate 'edd:chain 2'").all()
    assert (table["heads"].str.len() > 20).all()
    said = capsys.readouterr().out
    assert "speed-up" in said
    assert "edd:chain 2" in said
    assert "only 2 of the 12 prompts that an interval needs at least: try --prompts own:4" in said
    lab("race", "generate", "edd:chain 2", *words)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2  # nothing is measured twice


@pytest.mark.model
def test_failures_end_the_command_with_their_names(lab, tmp_path):
    words = ["--prompts", "conversation-01", "--tokens", "3", "--temperature", "1", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="vdm:kary 2,2 swor rrs failed: ValueError: rrs is lossless"):
        lab("race", "generate", "vdm:kary 2,2 swor rrs", *words)
    assert sweep.load(tmp_path / "out.jsonl").groupby("method")["status"].first().to_dict() == {
        "generate": "ok",
        "vdm:kary 2,2 swor rrs": "failed",
    }


@pytest.mark.model
def test_texts_and_prices(lab, tmp_path, capsys):
    words = ["--texts", "--prompts", "conversation-01", "--tokens", "4", "--out", str(tmp_path / "texts")]
    lab("race", "n-gram tree", *words)
    assert sweep.load(tmp_path / "texts.jsonl")["same"].tolist() == [True]
    assert "n-gram tree: 1 of 1 texts are those of generate, 0 but for a near tie" in capsys.readouterr().out
    lab("price", "edd", "--prefix", "10", "--repetitions", "1", "--out", str(tmp_path / "curves"))
    assert set(sweep.load(tmp_path / "curves.jsonl")["model"]) == {"target", "edd"}
    assert "nodes, ms" in capsys.readouterr().out


def test_the_list_names_every_experiment(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lab", "list"])
    command.main()
    said = capsys.readouterr().out
    assert all(name in said for name in experiments.EXPERIMENTS)


SECONDS = {"clear": [2.0, 1.0], "level": [2.0, 2.1], "slower": [1.0, 2.0]}  # of generate and of the other method


@pytest.mark.parametrize(("other", "prompts"), [("clear", 12), ("clear", 11), ("level", 12), ("slower", 12)])
def test_a_race_says_which_differences_its_prompts_do_not_tell(other, prompts, monkeypatch, tmp_path, capsys):
    rows = [
        {"prompt": i, "repetition": 0, "method": name, "status": "ok", "error": "", "cell": "race", "steps": 5}
        | {"tokens": 10, "seconds": seconds * (1 + (i * k % 3) / 10)}
        for i in range(prompts)
        for k, (name, seconds) in enumerate(zip(("generate", "n-gram tree"), SECONDS[other], strict=True), start=1)
    ]
    monkeypatch.setattr(run, "loaded", lambda *_: None)
    monkeypatch.setattr(sweep, "run", lambda *_, **__: pd.DataFrame(rows))
    ids = ["own:1", "humaneval:6"] if prompts == 12 else ["own:1", "humaneval:5"]
    monkeypatch.setattr(
        sys, "argv", ["lab", "race", "generate", "n-gram tree", "--prompts", *ids, "--out", str(tmp_path / "out")]
    )
    command.main()
    said = capsys.readouterr().out
    assert said.split()[:5] == ["tau", "speed-up", "low", "high", "token/s"]
    assert ("not told from generate, the interval holds 1: n-gram tree" in said) == (other == "level")
    assert ("prompts that an interval needs" in said) == (prompts < 12)


@pytest.mark.parametrize(
    "words", [["race", "generate"], ["race", "n-gram tree", "--texts"], ["price"]], ids=["race", "texts", "price"]
)
def test_a_model_that_cannot_be_loaded_ends_the_command_before_its_first_cell(words, monkeypatch, tmp_path, capsys):
    def out_of_reach(*_):
        raise OSError("no/model: the hub does not give it")

    for module in (run, prices):
        monkeypatch.setattr(module, "loaded", out_of_reach)
    monkeypatch.setattr(sys, "argv", ["lab", *words, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit):
        command.main()
    assert "error: no/model: the hub does not give it" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_record_ends_with_a_word(monkeypatch, capsys):
    table = pd.DataFrame({"key": ["a", "a", "b"], "status": ["ok", "failed", "ok"], "error": ["", "why", ""]})
    recorded = []
    monkeypatch.setattr(experiments, "record", lambda name, **_: recorded.append(name) or table.assign(cell="race"))
    monkeypatch.setattr(sys, "argv", ["lab", "record", "race", "texts"])
    with pytest.raises(SystemExit, match="race failed: why"):
        command.main()
    assert capsys.readouterr().out == "race: 2 blocks, 1 failures\ntexts: 2 blocks, 1 failures\n"
    monkeypatch.setattr(sys, "argv", ["lab", "record", "race", "tests"])
    with pytest.raises(SystemExit):
        command.main()
    assert recorded == ["race", "texts"]  # a name that is none is found before the first hour is spent


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rase", "generate"), "invalid choice: 'rase'"),
        (("race", "n-gram tree", "--texts", "--dtype", "bfloat16"), "--texts compares greedy float32 texts"),
        (("record", "ptd", "salf_rules", "--prompts", "rag-10"), "rag-10 is no prompt of salf_rules"),
        (("race", "generate", "--promts", "own:1"), "unrecognized arguments: --promts own:1"),
        (("race", "generate", "--tokens", "0"), "argument --tokens: '0' is no whole number of at least 1"),
        (("race", "generate", "--tokens", "many"), "argument --tokens: 'many' is no whole number"),
        (("race", "generate", "--repetitions", "-1"), "argument --repetitions: '-1' is no whole number"),
        (("race", "generate", "--workers", "1.5"), "argument --workers: '1.5' is no whole number"),
        (("price", "--prefix", "0"), "argument --prefix: '0' is no whole number"),
        (
            ("race", "generate", "--temperature", "inf"),
            "temperature must be at least 0 (0 is greedy) and finite, got inf",
        ),
        (
            ("race", "generate", "--temperature", "nan"),
            "temperature must be at least 0 (0 is greedy) and finite, got nan",
        ),
        (
            ("race", "generate", "--temperature", "-1"),
            "temperature must be at least 0 (0 is greedy) and finite, got -1",
        ),
        (("race", "generate", "--prompts", "own:-4"), "'own:-4': behind the colon stands how many prompts"),
        (("race", "generate", "--prompts", "own:many"), "'own:many': behind the colon stands how many prompts"),
        (("record", "race", "--prompts", "own:-4"), "'own:-4': behind the colon stands how many prompts"),
        (("race", "generate", "--pair", "no/such/folder"), "unknown pair 'no/such/folder': known are smollm2-135m"),
        (("race", "generate", "--pair", "./folder"), "unknown pair './folder': known are smollm2-135m"),
        (("race", "magic"), "unknown method 'magic'"),
        (("race", "pair:chain 3"), "smollm2-135m has no draft model of its own"),
        (("race", "vdm:chain 3 iid"), "draws its tree: that needs a --temperature above 0"),
        (("race", "generate", "generate"), "'generate' stands twice"),
        (("race", "generate", "--prompts", "nowhere"), "has the prompt 'nowhere'"),
        (("race", "generate", "--pair", "magic"), "unknown pair 'magic': known are smollm2-135m, pythia-2.8b"),
        (("race", "generate", "--dtype", "int3"), "unknown dtype 'int3'"),
        (("race", "generate", "--dtype", "float64", "--packed"), "a CPU with kernels for packed weights of float64"),
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
