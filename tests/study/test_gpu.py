"""What a GPU is asked, on a CPU: the command in a reduced form, and sampled laws with their control."""

import sys
from dataclasses import replace

import pytest
from tiny import llama, near_copy

from specnb import verifiers
from specnb.growth import Eagle2, chain, kary
from specnb.models import Pair, graphs
from specnb.tree import Drawn
from study import __main__ as command
from study import experiments, methods, record
from study.measure import branches, laws, loading, race, texts
from study.methods import IN_GRAPHS, METHODS, Method

DRAWN = Method(head="pair", grow=kary(2, 2), drawn=Drawn.SWOR, verifier=verifiers.traversal, forwards=IN_GRAPHS)
LAWFUL = {"drawn tree": DRAWN, "beam": Method(head="pair", grow=Eagle2(5, 2, 3), forwards=IN_GRAPHS)}


class Toy(Pair):
    """A pair that reads every prompt as the same few tokens."""

    def encode(self, text, *, chat=True):
        return [7, 30, 12, 5, 7, 30]


@pytest.fixture
def toy(monkeypatch):
    pair = Toy("toy", llama(), near_copy(llama()), None)
    for module in (race, laws):
        monkeypatch.setattr(module, "loaded", lambda *_: pair)
    pair_chain = Method(head="pair", grow=chain(2), forwards=IN_GRAPHS)
    monkeypatch.setattr(methods, "METHODS", METHODS | LAWFUL | {"pair-chain-2, in graphs": pair_chain})
    return pair


@pytest.mark.usefixtures("toy")
def test_laws_hold_and_the_control_fails():
    rows = laws.law_block("conversation-01", list(LAWFUL), draws=500)
    assert [(row["method"], row["heat"]) for row in rows] == [
        *((name, 1.0) for name in LAWFUL),
        ("drawn tree", laws.COOLER),
    ]
    assert min(row["p value"] for row in rows[:-1]) > 1e-3
    assert rows[-1]["p value"] < 1e-6
    assert rows[0]["outcomes"] > 3


@pytest.mark.usefixtures("toy")
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


def reduced(wanted: experiments.Experiment) -> experiments.Experiment:
    """An experiment on one prompt, with two methods, a few tokens and tiny models."""
    few = FEW | {"methods": wanted.settings.get("methods", ())[:2]}
    settings = {name: few.get(name, value) for name, value in wanted.settings.items()}
    return replace(wanted, prompts=wanted.prompts and ["conversation-01"], settings=settings)


@pytest.mark.model
@pytest.mark.usefixtures("one_size")
def test_the_command_in_a_reduced_form(smollm2, monkeypatch, tmp_path, capsys):
    for module in (race, texts, laws, branches, loading):
        monkeypatch.setattr(module, "loaded", lambda *_: smollm2)
    asked = {name: reduced(wanted) for name, wanted in experiments.TABLE.items() if name.startswith("gpu_")}
    monkeypatch.setattr(experiments, "TABLE", asked)
    monkeypatch.setattr(sys, "argv", ["lab", "gpu", "--out", str(tmp_path)])
    command.main()
    said = capsys.readouterr().out
    assert len(asked) == 7
    for name in asked:
        table = record.load(tmp_path / f"{name}.jsonl")
        assert set(table["status"]) == {"ok"}
        assert asked[name].cell.columns <= set(table)
        assert table["command"].str.startswith("python -m study gpu --out").all()
        assert f"\n{name} on " in said
    assert record.load(tmp_path / "gpu_texts.jsonl").set_index("method").loc["undrafted, in graphs", "same"]
    assert {"eagle", "pair", "target"} == set(record.load(tmp_path / "gpu_shapes.jsonl")["model"])
    assert "nodes, ms in graphs" in said
    assert "Forecast, not measured" in said
