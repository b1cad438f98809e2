"""Heads by their names: of this project, in a folder, on the hub; and commands that let them draft for another pair.

What a published format holds is the loader's affair (tests/heads). Here a near copy of the target stands for every head
that it would load, so that the texts are right and drafts are accepted.
"""

import json
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from tiny import TEMPLATE, llama, near_copy, tokenizer

from specnb import heads, models
from specnb.drafters import CausalLMDraft
from specnb.models import files
from study import __main__ as command
from study import commands, experiments, methods, record, weights
from study.measure import loading, race, texts

HUB = "owner/EAGLE3-Model-8B"


def folder(path: Path, content: str = "weights") -> Path:
    """A folder that looks like a published head."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text("{}")
    (path / "pytorch_model.bin").write_text(content)
    return path


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    """A function that puts the head HUB into a hub's cache of this test's own."""
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))

    def fetch(content: str = "weights") -> Path:
        kept = cache / "models--owner--EAGLE3-Model-8B"
        (kept / "refs").mkdir(parents=True, exist_ok=True)
        (kept / "refs" / "main").write_text("c0ffee")
        return folder(kept / "snapshots" / "c0ffee", content)

    return fetch


# ---- names


def test_a_name_without_a_slash_is_a_committed_head():
    assert weights.folder_of("hass") is None
    assert weights.hash_of("hass") == heads.hashes(["hass"])["hass"]
    with pytest.raises(ValueError, match="no trained head 'hasss'"):
        weights.hash_of("hasss")


def test_a_folder_is_known_by_all_its_files(tmp_path, monkeypatch):
    head = folder(tmp_path / "mine")
    assert weights.folder_of(str(head)) == head
    before = weights.hash_of(str(head))
    (head / "notes.pdf").write_text("not a part of it")
    assert weights.hash_of(str(head)) == before
    (head / "medusa_lm_head.pt").write_text("more weights")
    assert weights.hash_of(str(head)) != before
    monkeypatch.chdir(tmp_path)
    assert weights.hash_of("./mine") == weights.hash_of(str(head))
    assert weights.hash_of("mine") == weights.hash_of(str(head))
    with pytest.raises(ValueError, match="no trained head 'yours'"):
        weights.hash_of("yours")


def test_a_head_of_this_project_elsewhere_is_not_taken_for_one_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("drafts").mkdir()
    Path("drafts/mine.safetensors").write_bytes(b"weights")
    Path("drafts/mine.json").write_text("{}")
    assert weights.folder_of("drafts/mine") is None
    assert weights.hash_of("drafts/mine") == files.sha256(Path("drafts/mine.safetensors"))
    with pytest.raises(ValueError, match="no trained head 'nine' in drafts: known are mine"):
        weights.hash_of("drafts/nine")  # the folder drafts is here, so that this is a slip and no OWNER/NAME


@pytest.mark.parametrize("name", ["a/b/c", "./none", "/no/such/folder"])
def test_a_path_to_nothing_is_refused(name):
    with pytest.raises(ValueError, match="no trained head"):
        weights.hash_of(name)


def test_a_head_of_the_hub_is_known_by_its_name_until_it_is_fetched(fetched):
    assert weights.folder_of(HUB) is None
    assert weights.hash_of(HUB) == f"not fetched: {HUB}"
    assert experiments.known_hash(HUB) is None  # so that what was recorded with it counts as it is
    kept = fetched()
    assert weights.folder_of(HUB) == kept
    before = weights.hash_of(HUB)
    assert before == experiments.known_hash(HUB) == weights.folder_hash(kept)
    fetched("another version")
    assert weights.hash_of(HUB) != before


# ---- methods


def test_a_head_takes_the_place_of_trained_heads_alone():
    for name, head in {"hass-salf": HUB, "edd-pct": HUB, "pair-chain-5": "pair", "ptd": None, "generate": None}.items():
        assert methods.method(name, head=HUB).head == head
    assert methods.method("hass-binary-5 swor, traversal", head="pair").head == "pair"


# ---- commands

MEASURING = (loading, race, texts)


@pytest.fixture
def tiny_lab(monkeypatch, tmp_path):
    """The command line in an empty folder with a tiny model, ./tiny, and a head that fits it in a folder, ./my/head."""
    monkeypatch.chdir(tmp_path)
    made = tokenizer(template=TEMPLATE)
    llama(vocab_size=len(made), max_position_embeddings=2048).save_pretrained("tiny")
    made.save_pretrained("tiny")
    folder(Path("my/head"))
    loading.forget()
    race.WARM.clear()
    asked = []

    def stand_in(name, target, *, capacity=0):
        asked.append(str(name))
        if str(name) not in ("my/head", HUB):
            raise ValueError(f"{name} has 3 layers, found 2")
        model = near_copy(target)
        return CausalLMDraft(model, graphs=models.Graphs(model, capacity=capacity) if capacity else None)

    monkeypatch.setattr(heads, "load_draft", stand_in)

    def call(*words: str) -> list[str]:
        """Runs a command; returns the names of the heads that it loaded."""
        asked.clear()
        monkeypatch.setattr(sys, "argv", ["study", *words])
        command.main()
        return list(asked)

    yield call
    loading.forget()


TINY = ("--pair", "tiny", "--prompts", "translation:1", "--tokens", "8", "--out", "x")
FLOAT32 = ("--dtype", "float32")


@pytest.mark.parametrize("head", ["my/head", HUB])
def test_a_published_head_drafts_in_a_race(head, tiny_lab, fetched):
    fetched()
    raced = ("race", "generate", "hass-salf-6", "eagle-chain-5", *TINY, *FLOAT32, "--head", head)
    assert set(tiny_lab(*raced)) == {head}
    table = record.load("x.jsonl").set_index("method")
    assert table["status"].tolist() == ["ok"] * 3
    assert table.loc["eagle-chain-5", "steps"] < table.loc["generate", "steps"]  # drafts are accepted
    assert table["text"].nunique() == 1
    assert (table["head"] == head).all()
    (used,) = {tuple(names.items()) for names in map(dict, (line["heads"] for line in lines("x.jsonl")))}
    assert dict(used)[head] == weights.hash_of(head)


def lines(file: str) -> list[dict]:
    """What each recorded block says of itself, also those that were measured again."""
    found = [json.loads(line) for line in Path(file).read_text("utf-8").splitlines()]
    return [line for line in found if "cell" in line]


def test_a_changed_head_is_measured_again(tiny_lab):
    words = ("texts", "hass-salf-6", *TINY, "--head", "my/head")
    counts = []
    for content in ("weights", "weights", "other weights"):
        folder(Path("my/head"), content)
        tiny_lab(*words)
        counts.append(len(lines("x.jsonl")))
    assert counts == [1, 1, 2]
    assert record.load("x.jsonl")["same"].all()


def test_prices_of_a_published_head(tiny_lab):
    words = ("price", "--pair", "tiny", "--prefix", "20", "--repetitions", "1", *FLOAT32, "--out", "x")
    tiny_lab(*words, "--head", "my/head")
    assert set(record.load("x.jsonl")["model"]) == {"target", "my/head"}
    assert tiny_lab("price", "my/head", *words[1:]) == []  # the same question in other words: it is recorded already
    assert len(lines("x.jsonl")) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("race", "generate", "ptd", *TINY, "--head", "my/head"), "no trained head drafts in 'generate', 'ptd'"),
        (("race", "pair-chain-5", *TINY, "--head", "my/head"), "no trained head drafts in 'pair-chain-5'"),
        (("texts", "hass-salf", *TINY, "--head", "my/hed"), "no trained head 'hed' in my"),
        (("race", "hass-salf", *TINY, "--head", "pair"), "'hass-salf': tiny has no draft model of its own"),
        (("price", "my/head", "--head", "my/head", "--out", "x"), "'my/head' stands twice among the heads"),
        (("gpu", "--pair", "tiny"), "another pair or head needs a folder of its own: --out FOLDER"),
        (("gpu", "--head", "hass"), "another pair or head needs a folder of its own: --out FOLDER"),
        (("gpu", "--pair", "magic", "--out", "x"), "unknown pair 'magic'"),
        (("gpu", "--pair", "tiny", "--head", "medusae", "--out", "x"), "no trained head 'medusae'"),
    ],
)
def test_wrong_heads_are_refused_before_anything_is_loaded(words, message, tiny_lab, monkeypatch, capsys):
    for module in MEASURING:
        monkeypatch.setattr(module, "loaded", lambda *_: pytest.fail("a model was loaded"))
    with pytest.raises(SystemExit):
        tiny_lab(*words)
    assert message in capsys.readouterr().err
    assert not list(Path().glob("x*"))


@pytest.mark.parametrize("what", ["race", "texts", "price", "gpu"])
def test_a_head_that_does_not_fit_is_told_before_anything_is_measured(what, tiny_lab, capsys):
    folder(Path("my/other"))
    words = {
        "race": ("race", "undrafted", "hass-salf", *TINY, *FLOAT32),
        "texts": ("texts", "hass-salf", *TINY),
        "price": ("price", "--pair", "tiny", *FLOAT32, "--out", "x"),
        "gpu": ("gpu", "--pair", "tiny", "--out", "x"),
    }
    with pytest.raises(SystemExit):
        tiny_lab(*words[what], "--head", "my/other")
    said = capsys.readouterr().err
    assert "my/other has 3 layers, found 2" in said
    if what in ("race", "texts"):
        assert "'hass-salf' does not fit tiny: my/other has" in said
        assert "Without a trained head race 'n-gram tree'" in said
    assert not list(Path().rglob("*.jsonl"))


# ---- all that is measured on a GPU, for another pair


def of_pair(name: str, pair: str, head: str = "") -> dict:
    return experiments.for_pair(experiments.TABLE[name], pair, head).settings


def test_for_a_pair_with_a_draft_model_it_drafts_in_the_heads_place():
    raced = of_pair("gpu_race", "llama3.1-8b")
    assert (raced["pair"], raced["head"], raced["dtype"]) == ("llama3.1-8b", "pair", "bfloat16")
    assert "hass-salf-6, in graphs" in raced["methods"]
    assert "assistant" in raced["methods"]
    assert "retrieval, in graphs" not in raced["methods"]  # it looks up what the embedded model wrote
    assert of_pair("gpu_prices", "llama3.1-8b")["heads"] == ["pair"]
    sampled = of_pair("gpu_sampled", "llama3.1-8b")["methods"]
    assert "vdm-binary-3 swor, traversal, in graphs" in sampled
    assert "hass-binary-3 swor, traversal, in graphs" not in sampled  # the same, now that their heads are
    assert experiments.for_pair(experiments.TABLE["gpu_shapes"], "llama3.1-8b") is None


def test_a_pair_without_a_draft_model_is_raced_without_heads_or_with_the_one_that_is_given():
    bare = of_pair("gpu_race", "owner/model")
    assert bare["methods"] == ["generate", "undrafted, in graphs", "prompt lookup", "n-gram tree, in graphs"]
    assert bare["head"] == ""
    assert of_pair("gpu_prices", "owner/model")["heads"] == []
    with_head = of_pair("gpu_race", "owner/model", HUB)
    assert {"edd-pct, in graphs", "hass-salf-6, in graphs"} < set(with_head["methods"])
    assert with_head["head"] == HUB
    assert of_pair("gpu_prices", "owner/model", HUB)["heads"] == [HUB]


def test_every_experiment_of_a_gpu_can_be_asked_of_any_pair():
    """No setting is one that its cell function does not take, and none has lost its methods."""
    for name, wanted in experiments.TABLE.items():
        if not name.startswith("gpu_"):
            continue
        for pair, head in (("llama3.1-8b", ""), ("llama3.1-8b", HUB), ("owner/model", ""), ("owner/model", HUB)):
            changed = experiments.for_pair(wanted, pair, head)
            if changed is None:
                assert name == "gpu_shapes" or (name, pair, head) == ("gpu_law", "owner/model", "")
            else:
                assert changed.keyed_blocks()
                assert changed.settings.get("methods", ["none are asked for"])
    of_race = of_pair("gpu_race", "llama3.1-8b")
    wrong = experiments.Experiment("", experiments.LAW_CELL, prompts=["rag:1"], settings=of_race)
    with pytest.raises(ValueError, match="cannot take the block"):  # control: settings of another cell
        wrong.keyed_blocks()


def test_the_committed_experiments_are_asked_for_without_another_pair():
    options = Namespace(pair=models.EMBEDDED, head="", out=None)
    assert commands.gpu_experiments(options) == {
        name: wanted for name, wanted in experiments.TABLE.items() if name.startswith("gpu_")
    }


@pytest.mark.usefixtures("one_size")
def test_the_command_for_another_pair_with_a_published_head(tiny_lab, monkeypatch, capsys):
    few = {"length": 6, "repetitions": 1, "sizes": [1, 2], "draws": 2}
    asked = {"gpu_shapes": experiments.TABLE["gpu_shapes"]}
    for name in ("gpu_texts", "gpu_law", "gpu_race", "gpu_sampled", "gpu_sizes"):  # gpu_prices takes seconds here
        wanted = experiments.TABLE[name]
        settings = {setting: few.get(setting, value) for setting, value in wanted.settings.items()}
        settings["methods"] = wanted.settings["methods"][-2:]
        asked[name] = replace(wanted, prompts=["conversation-01"], settings=settings)
    monkeypatch.setattr(experiments, "TABLE", asked)
    forgotten = []
    monkeypatch.setattr(loading, "forget", lambda: forgotten.append(1))
    assert set(tiny_lab("gpu", "--pair", "tiny", "--head", "my/head", "--out", "x")) == {"my/head"}
    said = capsys.readouterr()
    assert "tiny: in the place of all trained heads drafts my/head" in said.err
    assert "gpu_shapes: left out, it has nothing that this pair can run" in said.err
    assert {path.stem for path in Path("x").glob("*.jsonl")} == {
        "gpu_texts", "gpu_law", "gpu_race", "gpu_sampled", "gpu_sizes",
    }  # fmt: skip
    for path in Path("x").glob("*.jsonl"):
        assert set(record.load(path)["status"]) == {"ok"}
    assert forgotten == [1]  # between float32 and bfloat16


@pytest.mark.parametrize(("tau", "is_said"), [(1.01, True), (1.6, False)])
def test_a_race_says_that_a_head_hardly_ever_hits(tau, is_said, monkeypatch, capsys):
    names = ["generate", "undrafted", "eagle-chain-5"]
    table = pd.DataFrame({"tau": [1.0, 1.0, tau]}, index=names)
    for column in ("speed-up", "low", "high", "token/s", "prompts", "failed"):
        table[column] = 1.0
    monkeypatch.setattr(commands.stats, "speed_ups", lambda runs, baseline: table)
    runs = pd.DataFrame({"status": "ok", "method": names, "prompt": range(3)})
    commands.show_race(runs, "generate")
    said = capsys.readouterr().out
    assert ("hardly any drafted token was accepted: eagle-chain-5." in said) == is_said
    assert "undrafted." not in said
