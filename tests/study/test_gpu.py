"""What a GPU is asked, on a CPU: the command in a reduced form, sampled laws with their control, a forecast by hand."""

import sys
from dataclasses import replace

import pandas as pd
import pytest
from tiny import llama, near_copy

from specnb.models import Pair, graphs
from study import __main__ as command
from study import experiments, gpu, prices, run, sweep

LAWFUL = ["pair:kary 2,2 swor traversal in graphs", "pair:eagle2 5,2,3 in graphs"]


class Toy(Pair):
    """A pair that reads every prompt as the same few tokens."""

    def encode(self, text, *, chat=True):
        return [7, 30, 12, 5, 7, 30]


@pytest.fixture
def toy(monkeypatch):
    pair = Toy("toy", llama(), near_copy(llama()), None)
    for module in (run, gpu):
        monkeypatch.setattr(module, "loaded", lambda *_: pair)
    return pair


@pytest.mark.usefixtures("toy")
def test_laws_hold_and_the_control_fails():
    rows = gpu.law_block("conversation-01", LAWFUL, draws=500)
    assert [(row["method"], row["heat"]) for row in rows] == [
        *((name, 1.0) for name in LAWFUL),
        (LAWFUL[0], gpu.COOLER),
    ]
    assert min(row["p value"] for row in rows[:-1]) > 1e-3
    assert rows[-1]["p value"] < 1e-6
    assert rows[0]["outcomes"] > 3


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("name", ["undrafted in graphs", "pair:chain 2 in graphs"])
def test_a_method_whose_forwards_cannot_be_recorded_fails(name, monkeypatch):
    """Else its seconds would be those without graphs, under the name of those with."""

    def cannot(call):
        raise RuntimeError("no such device")

    assert run.race_block("conversation-01", [name], length=6)[0]["status"] == "ok"
    run._graphs.cache_clear(), run.draft_model.cache_clear(), run._warm.cache_clear()
    monkeypatch.setattr(graphs, "taped", cannot)
    (row,) = run.race_block("conversation-01", [name], length=6)
    assert row["status"] == "failed"
    assert "no graphs for LlamaForCausalLM: no such device" in row["error"]


def test_a_forecast_by_hand():
    race = pd.DataFrame(
        [
            ("generate", "a", 10, 2.0, "1:10", None, "ok"),
            ("vdm:chain 3", "a", 10, 2.0, "4:5", "1:15", "ok"),
            ("hass:chain 3", "a", 10, 2.0, "4:5", "1:15", "ok"),
            ("hass:chain 4", "a", 10, 2.0, "", "", "failed"),
        ],
        columns=["method", "prompt", "tokens", "prefill", "trees", "frontiers", "status"],
    )
    median = {("target", 1): 1.0, ("target", 4): 1.2, ("pair", 1): 0.2, ("pair", 4): 0.2, ("eagle", 1): 0.1}
    curves = pd.DataFrame([(*at, seconds) for at, seconds in median.items()], columns=["model", "nodes", "median"])
    curves.loc[len(curves)] = ("eagle", 4, 0.1)
    assert gpu.forecast(race, curves).to_dict() == pytest.approx(
        {"generate": 1.0, "vdm:chain 3": 10 / (5 * 1.2 + 15 * 0.2), "hass:chain 3": 10 / (5 * 1.2 + 15 * 0.1)}
    )


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
    for module in (run, prices, gpu):
        monkeypatch.setattr(module, "loaded", lambda *_: smollm2)
    asked = {name: reduced(wanted) for name, wanted in experiments.EXPERIMENTS.items() if name.startswith("gpu_")}
    monkeypatch.setattr(experiments, "EXPERIMENTS", asked)
    monkeypatch.setattr(sys, "argv", ["lab", "gpu", "--out", str(tmp_path)])
    command.main()
    said = capsys.readouterr().out
    assert len(asked) == 7
    for name in asked:
        table = sweep.load(tmp_path / f"{name}.jsonl")
        assert set(table["status"]) == {"ok"}
        assert experiments._columns(table) == experiments.CELLS[asked[name].cell][1] - {"status", "error"}
        assert table["command"].str.startswith("python -m study record gpu_").all()
        assert f"\n{name} on " in said
    assert sweep.load(tmp_path / "gpu_texts.jsonl").set_index("method").loc["undrafted in graphs", "same"]
    assert {"eagle", "pair", "target"} == set(sweep.load(tmp_path / "gpu_shapes.jsonl")["model"])
    assert "nodes, ms in graphs" in said
    assert "Forecast, not measured" in said
