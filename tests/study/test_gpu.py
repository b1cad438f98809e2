"""What a GPU is asked, on a CPU: the command in a reduced form, and sampled laws with their control."""

import sys
from dataclasses import replace

import pytest

from specnb import verifiers
from specnb.growth import Eagle2, chain, kary
from specnb.models import graphs
from specnb.tree import Drawn
from study import __main__ as command
from study import experiments, record
from study.measure import laws, loading, race, texts
from study.methods import IN_GRAPHS, METHODS, Method

DRAWN = Method(head="pair", grow=kary(2, 2), drawn=Drawn.SWOR, verifier=verifiers.traversal, forwards=IN_GRAPHS)
LAWFUL = {"drawn tree": DRAWN, "beam": Method(head="pair", grow=Eagle2(5, 2, 3), forwards=IN_GRAPHS)}


@pytest.fixture
def of_the_pair(toy, table):
    """Methods that draft with the tiny pair's own draft model."""
    table.update(LAWFUL)
    table["pair-chain-2, in graphs"] = Method(head="pair", grow=chain(2), forwards=IN_GRAPHS)


@pytest.mark.layers(1)
@pytest.mark.usefixtures("of_the_pair", "one_size")
def test_laws_hold_and_the_control_fails():
    heat = 0.5  # of these, the one at which the control is told by the fewest draws
    rows = laws.law_block("conversation-01", list(LAWFUL), draws=250, temperature=heat)
    assert [(row["method"], row["heat"]) for row in rows] == [
        *((name, heat) for name in LAWFUL),
        ("drawn tree", laws.COOLER * heat),
    ]
    assert min(row["p value"] for row in rows[:-1]) > 1e-3
    assert rows[-1]["p value"] < 1e-6
    assert rows[0]["outcomes"] > 3


@pytest.mark.usefixtures("of_the_pair", "one_size")
@pytest.mark.parametrize("name", ["undrafted, in graphs", "pair-chain-2, in graphs"])
def test_a_method_whose_forwards_cannot_be_captured_fails(name, monkeypatch):
    """Else its seconds would be those without graphs, under the name of those with."""

    def cannot(call):
        raise RuntimeError("no such device")

    assert race.race_block("conversation-01", [name], length=6)[0]["status"] == "ok"
    loading._graphs.cache_clear()
    loading._draft_model.cache_clear()
    race.WARM.clear()
    monkeypatch.setattr(graphs, "as_operations", cannot)
    (row,) = race.race_block("conversation-01", [name], length=6)
    assert row["status"] == "failed"
    assert "no graphs for LlamaForCausalLM: no such device" in row["error"]


TINY = {"model_type": "qwen2", "vocab_size": 2048, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2}
FEW = {"length": 8, "repetitions": 1, "sizes": [1, 4], "draws": 2, "heads": ["hass"], "target": TINY, "draft": TINY}


def reduced(wanted: experiments.Experiment, **few) -> experiments.Experiment:
    """An experiment on one prompt, with two methods, a few tokens and tiny models."""
    few = FEW | few | {"methods": wanted.settings.get("methods", ())[:2]}
    settings = {name: few.get(name, value) for name, value in wanted.settings.items()}
    return replace(wanted, prompts=wanted.prompts and ["conversation-01"], settings=settings)


@pytest.mark.usefixtures("one_size")
@pytest.mark.parametrize("which", ["toy", pytest.param("smollm2", marks=[pytest.mark.model, pytest.mark.slow])])
def test_the_command_in_a_reduced_form(which, request, monkeypatch, tmp_path, capsys, table):
    """On a tiny pair, whose own draft model stands for each head; and, which is slow, on the embedded model."""
    pair, few = request.getfixturevalue(which), {}
    for module in (race, texts, laws, loading):
        monkeypatch.setattr(module, "loaded", lambda *_: pair)
    if which == "toy":
        few["heads"] = ["pair"]
        table.update({name: replace(made, head="pair") for name, made in METHODS.items() if made.head})
    asked = {name: reduced(wanted, **few) for name, wanted in experiments.TABLE.items() if name.startswith("gpu_")}
    monkeypatch.setattr(experiments, "TABLE", asked)
    monkeypatch.setattr(sys, "argv", ["lab", "gpu", "--out", str(tmp_path)])
    command.main()
    said = capsys.readouterr().out
    assert len(asked) == 7
    for name in asked:
        recorded = record.load(tmp_path / f"{name}.jsonl")
        assert set(recorded["status"]) == {"ok"}
        assert asked[name].cell.columns <= set(recorded)
        assert recorded["command"].str.startswith("python -m study gpu --out").all()
        assert f"\n{name} on " in said
    assert record.load(tmp_path / "gpu_texts.jsonl").set_index("method").loc["undrafted, in graphs", "same"]
    assert {"eagle", "pair", "target"} == set(record.load(tmp_path / "gpu_shapes.jsonl")["model"])
    assert "nodes, ms in graphs" in said
    assert "Forecast, not measured" in said
