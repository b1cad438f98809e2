"""The table of experiments: every block can be measured, every recording can be read."""

import json
import shutil

import pandas as pd
import pytest

from specnb import heads
from specnb.models import files
from study import experiments, methods, run, sweep
from study.experiments import EXPERIMENTS, RESULTS


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_measured(name):
    """Its cell takes its blocks, its methods and rules exist, and it says what it feeds."""
    wanted = EXPERIMENTS[name]
    measure, _ = experiments.CELLS[wanted.cell]
    assert len(sweep.keys(wanted.cell, measure, wanted.blocks(), wanted.heads())) == len(wanted.blocks()) > 0
    numbers = {path.name[:2] for path in (files.ROOT / "notebooks").glob("*.ipynb")}
    assert set(wanted.feeds) <= numbers
    assert wanted.minutes > 0
    assert len(methods.rules(wanted.settings.get("rules", ()))) >= len(wanted.settings.get("rules", ()))
    drawn = [n for n in wanted.settings.get("methods", ()) if " swor" in n or " iid" in n]
    assert not drawn or wanted.settings["temperature"] > 0


def test_no_recording_is_stale():
    """Made with other heads, by a gone command, or with unknown columns."""
    assert experiments.stale() == {}


def test_every_result_belongs_to_a_recording():
    """A file of data/results is a recording, or of one that has its JSON beside it."""
    names = {path.stem for path in RESULTS.glob("*.json")}
    for path in RESULTS.glob("[!.]*"):
        if path.suffix in (".csv", ".npz"):
            assert any(path.stem.startswith(name) for name in names), path.name
        else:
            assert path.suffix in (".json", ".jsonl"), path.name


def record_one(folder, monkeypatch, columns=None, name="ptd_alike"):
    """A recording of one block without a model."""
    row = dict.fromkeys(columns or sorted(experiments.CELLS["alike"][1]), 0.5) | {"method": "ptd"}
    measure = lambda prompt, methods, length: [row]  # noqa: E731
    monkeypatch.setitem(experiments.CELLS, "alike", (measure, experiments.CELLS["alike"][1]))
    return experiments.record(name, only=["rag-05"], folder=folder)


def test_a_recording_says_its_command_and_is_read_back(tmp_path, monkeypatch):
    record_one(tmp_path, monkeypatch)
    table = experiments.recorded("ptd_alike", tmp_path)
    assert table["command"].item() == "python -m study record ptd_alike"
    assert table["domain"].item() == "rag"
    assert table["heads"].item() == "{}"
    listing = experiments.listing(tmp_path).set_index("name")
    assert listing.loc["ptd_alike", ["recorded", "state"]].tolist() == [1, "begun"]
    assert experiments.stale(tmp_path) == {}
    with pytest.raises(ValueError, match="unknown experiment 'ptd_like': known are race"):
        experiments.recorded("ptd_like", tmp_path)
    with pytest.raises(ValueError, match=r"race is not recorded yet, as it is now: `python -m study record race`"):
        experiments.recorded("race", tmp_path)


def test_a_block_that_failed_in_part_is_missing(tmp_path, monkeypatch):
    record_one(tmp_path, monkeypatch)
    path, every = tmp_path / "ptd_alike.jsonl", len(experiments.EXPERIMENTS["ptd_alike"].keys())
    assert experiments.missing("ptd_alike", tmp_path) == every - 1
    line = json.loads(path.read_text())
    rows = {name: values * 2 for name, values in line["rows"].items()} | {
        "status": ["ok", "failed"],
        "error": ["", "x"],
    }
    path.write_text(json.dumps(line | {"rows": rows}) + "\n")
    assert experiments.missing("ptd_alike", tmp_path) == every


def test_a_torn_recording_is_told(tmp_path):
    (tmp_path / "ptd_alike.jsonl").write_text('{"key"')
    assert experiments.stale(tmp_path) == {"ptd_alike.jsonl": "it has no whole block"}
    with pytest.raises(ValueError, match="ptd_alike is not recorded yet"):
        experiments.recorded("ptd_alike", tmp_path)


def test_what_stands_in_no_table_has_no_plan():
    assert experiments.plan("") == ""
    assert experiments.plan("ptd")


def test_prompts_of_another_experiment_are_not_recorded(tmp_path):
    with pytest.raises(ValueError, match=r"rag-01 is no prompt of ptd_alike, whose prompts are own:5-10"):
        experiments.record("ptd_alike", only=["rag:2"], folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_only_the_present_blocks_are_read(tmp_path, monkeypatch):
    """Rows of other settings, or of other heads, stand in the file and are not pooled with the present ones."""
    record_one(tmp_path, monkeypatch)
    path = tmp_path / "ptd_alike.jsonl"
    line = json.loads(path.read_text())
    other = line | {"key": "0" * 16, "block": line["block"] | {"length": 7}, "heads": {"edd": "another"}}
    path.write_text("".join(json.dumps(one) + "\n" for one in (line, other)))
    assert len(sweep.load(path)) == 2
    assert experiments.recorded("ptd_alike", tmp_path)["length"].tolist() == [64]
    assert experiments.stale(tmp_path) == {"ptd_alike.jsonl": "made with other heads: edd"}


def test_blocks_of_heads_that_have_been_replaced_are_not_read(tmp_path, monkeypatch):
    record_one(tmp_path, monkeypatch)
    path = tmp_path / "ptd_alike.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"key": "0" * 16}) + "\n")
    with pytest.raises(ValueError, match="ptd_alike is not recorded yet"):
        experiments.recorded("ptd_alike", tmp_path)


@pytest.mark.parametrize("fault", ["heads", "columns", "name", "command"])
def test_each_fault_makes_a_recording_stale(tmp_path, monkeypatch, fault):
    """Negative controls for the test above: every kind of staleness is found."""
    path = tmp_path / "ptd_alike.jsonl"
    if fault == "columns":
        record_one(tmp_path, monkeypatch, [*sorted(experiments.CELLS["alike"][1]), "surprise"])
    elif fault == "command":
        facts = {"command": "python -m specnb.bench --out x", "date": "2026-11-22"}
        (tmp_path / "old.json").write_text(json.dumps(facts))
        assert experiments.stale(tmp_path) == {"old.json": "its command is gone"}
        return
    else:
        record_one(tmp_path, monkeypatch)
    if fault == "heads":
        line = json.loads(path.read_text())
        path.write_text(json.dumps(line | {"heads": {"edd": heads.hashes(["edd"])["edd"]}}) + "\n")
        assert experiments.stale(tmp_path) == {}
        path.write_text(json.dumps(line | {"heads": {"edd": "another"}}) + "\n")
    if fault == "name":
        shutil.move(path, path := tmp_path / "gone.jsonl")
    wanted = {
        "heads": "made with other heads: edd",
        "columns": "unknown or missing columns surprise",
        "name": "no experiment has this name",
    }[fault]
    assert experiments.stale(tmp_path) == {path.name: wanted}


@pytest.mark.model
def test_alike_looks_at_branches(smollm2, monkeypatch):
    monkeypatch.setattr(run, "loaded", lambda *_: smollm2)
    rows = experiments.alike_block("conversation-02", ["self_draft", "ptd chained=False"], 16)
    for row in rows:
        assert set(row) == experiments.CELLS["alike"][1]
        assert 0 <= row["share overlap 0.8"] <= row["share overlap 0.5"] <= 1
        assert row["branches"] > 1
    assert pd.DataFrame(rows)["repeated"].between(0, 1).all()
