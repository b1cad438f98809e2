"""What claims compare: from small tables, by hand."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from specnb import heads
from study import experiments, replay, run, values


@pytest.fixture
def recorded(monkeypatch):
    """A recording of one cell, put in the place of the file."""

    def put(cell: str, rows: list[dict], **settings) -> pd.DataFrame:
        monkeypatch.setitem(experiments.EXPERIMENTS, "toy", SimpleNamespace(cell=cell, settings=settings))
        table = pd.DataFrame(rows).assign(status="ok")
        monkeypatch.setattr(experiments, "recorded", lambda name: table)
        return values.values("toy")

    return put


def race(**changes) -> dict:
    """A run of ten tokens in four steps: six drafted nodes and four auxiliary ones, two hits, three draft forwards."""
    row = dict.fromkeys(run.ROW, 0) | {"prompt": "a", "method": "generate", "ids": "", "frontiers": "1:2 3:1"}
    row |= {"tokens": 10, "steps": 4, "seconds": 2.0, "nodes": 10, "auxiliary": 4, "hits": 2, "depth": 8}
    return row | {"draft": 0.1, "target": 0.6, "verify": 0.3, "commit": 0.0} | changes


def test_values_of_a_race(recorded):
    (row,) = recorded("race", [race()]).to_dict("records")
    expected = {
        "tau": 2.5,
        "speed": 5.0,
        "length": 4.0,
        "drafted": 1.5,
        "auxiliary": 1.0,
        "forwards": 0.75,
        "hits": 0.5,
    }
    expected |= {"depth": 2.0, "acceptance": 10 / 6, "verify ms": 100.0, "outside": 0.4, "log speed": np.log(5)}
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert np.isnan(row["rouge"])
    assert values.priced(pd.DataFrame([row]), "speed at 0.2,0.1").item() == pytest.approx(2.5 / (1 + 0.15 + 0.25))


def test_rouge_is_against_other_seeds_of_plain_decoding(recorded):
    texts = {("generate", 0): "1 2 3 4", ("generate", 1): "1 2 5 6", ("ptd", 0): "5 6 1 2", ("ptd", 1): "7 8 9 9"}
    rows = [race(method=name, repetition=seed, ids=ids) for (name, seed), ids in texts.items()]
    assert recorded("race", rows)["rouge"].tolist() == pytest.approx([0.5, 0.5, 1.0, 0.0])


def test_values_of_rules(recorded):
    row = {"prompt": "a", "head": "edd", "rule": "chain 2", "length": 12, "steps": 4, "nodes": 8, "forwards": 8}
    row |= {"fed": 12, "everywhere": 6, "ranks": json.dumps([6, 2]), "chains": ""}
    found = recorded("rules", [row, row | {"prompt": "b", "steps": 3, "nodes": 12}], lengths=[12])
    assert found["method"].tolist() == ["edd:chain 2 at 12"] * 2
    assert found["tau"].tolist() == [3.0, 4.0]
    assert found["drafted"].tolist() == [2.0, 4.0]
    assert found["first"].tolist() == [0.75, 0.75]
    assert found["everywhere"].tolist() == [0.5, 0.5]
    assert found["nodes with tau"].mean() == pytest.approx(1.0)  # two prompts: the correlation is 1
    paid = [3 / (2 + 0.2 + 0.4 + 0.9), 4 / (2 + 0.8 / 3 + 0.8 + 1.2)]
    assert values.priced(found, "speed at 0.1,0.2,0.3,2").tolist() == pytest.approx(paid)


def test_shares_of_the_calibration_error_add_up_to_it(recorded):
    """Their mean over prompts is the pooled error, of tokens and of paths that are likely enough."""
    rng = np.random.default_rng(0)
    spelt = {}
    for prompt in "abcd":
        chains = []
        for _ in range(30):
            sure = rng.uniform(0.05, 1, size=4)
            alive = np.cumprod(rng.uniform(size=4) < sure**1.5)
            chains.append([int(alive.sum()), *(int(10_000 * x) for x in sure)])
        spelt[prompt] = json.dumps(chains)
    empty = dict.fromkeys(("length", "steps", "nodes", "forwards", "fed", "everywhere"), 0) | {"ranks": ""}
    rows = [{"prompt": p, "head": "edd", "rule": "chain", "chains": text, **empty} for p, text in spelt.items()]
    found = recorded("rules", rows).drop_duplicates("prompt")
    table = replay.chain_table(spelt)
    alive = table[table["alive"]]
    assert found["ece"].mean() == pytest.approx(heads.ece(alive["confidence"], alive["hit"]))
    assert found["ece"].std() > 0
    above = table.groupby(["prompt", "place"])["path"].shift(fill_value=1.0)
    drafted = table[above >= values.PRICE]
    assert len(drafted) < len(table)
    assert found["path ece"].mean() == pytest.approx(heads.ece(drafted["path"], drafted["hit"]))


def test_lift_is_what_traversal_adds(recorded):
    row = {"prompt": "a", "method": "hass:chain 5", "temperature": 0.6, "tau": 2.0, "rule": "token-level"}
    found = recorded("verifiers", [row, row | {"rule": "traversal", "tau": 2.1}])
    assert found["lift"].tolist() == pytest.approx([5.0, 5.0])
    assert found["method"].tolist()[1] == "hass:chain 5 traversal at 0.6"


def test_values_of_heads(monkeypatch, tmp_path):
    counts = {f"hits{d}": d for d in range(1, 6)} | {f"seen{d}": 10 for d in range(1, 6)}
    counts |= {f"rank{r}": r for r in range(1, 6)} | {f"sure{r}": 4.5 for r in range(1, 6)} | {"roots": 8}
    row = {"head": "hass", "set": "own", "prompt": "a", "tokens": 30, "steps": 10, **counts}
    (tmp_path / "results").mkdir()
    pd.DataFrame([row, row | {"set": "tuning"}]).to_csv(tmp_path / "results" / "heads_by_prompt.csv", index=False)
    monkeypatch.setattr(values.files, "DATA", tmp_path)
    (found,) = values.values("heads").to_dict("records")
    assert found["tau"] == 3
    assert found["depth5"] == 0.5
    assert found["rank4"] == 0.5
    assert found["lower"] == pytest.approx(3.5 / 8)
    assert found["over5"] == pytest.approx(-0.5 / 8)
