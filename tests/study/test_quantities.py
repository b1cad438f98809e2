"""What claims and figures compare: from small tables, by hand."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from specnb import heads
from specnb.growth import EAGLE_25, Eagle2, chain, kary
from specnb.models import files
from study import experiments, paper, quantities, replay
from study.measure.race import ROW
from study.prices import Prices
from study.quantities import HEADS, chains_of, replayed, verified


@pytest.fixture
def recorded(monkeypatch):
    """A recording of one cell, put in the place of the file."""

    def put(cell: str, rows: list[dict], **settings) -> pd.DataFrame:
        table = pd.DataFrame(rows).assign(status="ok")
        table.attrs["stale"] = "made with other heads: edd"
        monkeypatch.setattr(experiments, "recorded", lambda experiment: table)
        return quantities.quantities(SimpleNamespace(cell=SimpleNamespace(name=cell), settings=settings))

    return put


def race(**changes) -> dict:
    """A run of ten tokens in four steps: six drafted nodes and four auxiliary ones, two hits, three draft forwards."""
    row = dict.fromkeys(ROW, 0) | {"prompt": "a", "method": "generate", "ids": [], "frontiers": [[1, 2], [3, 1]]}
    row |= {"tokens": 10, "steps": 4, "seconds": 2.0, "nodes": 10, "auxiliary": 4, "hits": 2, "depth": 8}
    return row | {"draft": 0.1, "target": 0.6, "verify": 0.3, "commit": 0.0} | changes


def test_quantities_of_a_race(recorded):
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
    assert Prices(call=0.2, node=0.1).speed(pd.DataFrame([row])).item() == pytest.approx(2.5 / (1 + 0.15 + 0.25))


def test_what_is_stale_is_said(recorded):
    assert recorded("race", [race()]).attrs["stale"] == "made with other heads: edd"
    assert recorded("texts", [{"method": "ptd"}]).attrs["stale"] == "made with other heads: edd"


def test_failed_runs_are_left_out(monkeypatch):
    failed = race() | {"status": "failed", "seconds": None, "frontiers": None, "ids": None, "tokens": None}
    table = pd.DataFrame([race() | {"status": "ok"}, failed])
    monkeypatch.setattr(experiments, "recorded", lambda experiment: table)
    assert len(quantities.quantities(experiments.PTD)) == 1


def test_rouge_is_against_other_seeds_of_plain_decoding(recorded):
    texts = {
        ("generate", 0): [1, 2, 3, 4],
        ("generate", 1): [1, 2, 5, 6],
        ("ptd", 0): [5, 6, 1, 2],
        ("ptd", 1): [7, 8, 9, 9],
    }
    rows = [race(method=name, repetition=seed, ids=ids) for (name, seed), ids in texts.items()]
    assert recorded("race", rows)["rouge"].tolist() == pytest.approx([0.5, 0.5, 1.0, 0.0])


def test_quantities_of_rules(recorded):
    row = {"prompt": "a", "head": "edd", "rule": "chain(2)", "length": 12, "steps": 4, "nodes": 8, "forwards": 8}
    row |= {"fed": 12, "everywhere": 6, "ranks": [6, 2], "chains": []}
    found = recorded("rules", [row, row | {"prompt": "b", "steps": 3, "nodes": 12}], lengths=[12])
    assert found["method"].tolist() == [replayed("edd", chain(2), 12)] * 2
    assert found["tau"].tolist() == [3.0, 4.0]
    assert found["drafted"].tolist() == [2.0, 4.0]
    assert found["first"].tolist() == [0.75, 0.75]
    assert found["everywhere"].tolist() == [0.5, 0.5]
    assert found["correlation of nodes and tau"].mean() == pytest.approx(1.0)  # of two prompts it is 1
    paid = [3 / (2 + 0.2 + 0.4 + 0.9), 4 / (2 + 0.8 / 3 + 0.8 + 1.2)]
    assert Prices(call=0.1, node=0.2, fed=0.3, target=2).speed(found).tolist() == pytest.approx(paid)


def test_shares_of_the_calibration_error_add_up_to_it(recorded):
    """Their mean over prompts is the pooled error, of tokens and of paths that are likely enough."""
    rng = np.random.default_rng(0)
    places = {}
    for prompt in "abcd":
        chains = []
        for _ in range(30):
            sure = rng.uniform(0.05, 1, size=4)
            alive = np.cumprod(rng.uniform(size=4) < sure**1.5)
            chains.append([int(alive.sum()), *(int(10_000 * x) for x in sure)])
        places[prompt] = chains
    empty = dict.fromkeys(("length", "steps", "nodes", "forwards", "fed", "everywhere"), 0) | {"ranks": []}
    rows = [{"prompt": p, "head": "edd", "rule": "chain", "chains": chains, **empty} for p, chains in places.items()]
    found = recorded("rules", rows).drop_duplicates("prompt")
    table = replay.chain_table(places)
    alive = table[table["alive"]]
    assert set(found["method"]) == {chains_of("edd")}
    assert found["ece"].mean() == pytest.approx(heads.ece(alive["confidence"], alive["hit"]))
    assert found["ece"].std() > 0
    above = table.groupby(["prompt", "place"])["path"].shift(fill_value=1.0)
    drafted = table[above >= paper.EDD_PRICE_7B]
    assert len(drafted) < len(table)
    assert found["ece of paths"].mean() == pytest.approx(heads.ece(drafted["path"], drafted["hit"]))


def test_lift_is_what_traversal_adds(recorded):
    row = {
        "prompt": "a",
        "head": "hass",
        "shape": "chain(5)",
        "temperature": 0.6,
        "tau": 2.0,
        "verifier": "token-level",
    }
    found = recorded("verifiers", [row, row | {"verifier": "traversal", "tau": 2.1}])
    assert found["lift"].tolist() == pytest.approx([5.0, 5.0])
    assert found["method"].tolist()[1] == verified("hass", chain(5), "traversal", 0.6)


def test_quantities_of_heads(monkeypatch, tmp_path):
    counts = {f"hits{d}": d for d in range(1, 6)} | {f"seen{d}": 10 for d in range(1, 6)}
    counts |= {f"rank{r}": r for r in range(1, 6)} | {f"sure{r}": 4.5 for r in range(1, 6)} | {"roots": 8}
    row = {"head": "hass", "set": "own", "prompt": "a", "tokens": 30, "steps": 10, **counts}
    (tmp_path / "results").mkdir()
    pd.DataFrame([row, row | {"set": "tuning"}]).to_csv(tmp_path / "results" / "heads_by_prompt.csv", index=False)
    monkeypatch.setattr(files, "DATA", tmp_path)
    (found,) = quantities.quantities(HEADS).to_dict("records")
    assert found["tau"] == 3
    assert found["depth5"] == 0.5
    assert found["rank4"] == 0.5
    assert found["lower"] == pytest.approx(3.5 / 8)
    assert found["over5"] == pytest.approx(-0.5 / 8)


def test_heads_that_are_others_now_are_named(monkeypatch):
    """By the hashes beside the counts, and those of the committed cards."""
    counted = {"hass": "1", "edd": "2", "talf-1": "3"}
    monkeypatch.setattr(quantities.Heads, "hashes", counted)
    monkeypatch.setattr(experiments, "known_hash", {"hass": "1", "edd": "0"}.get)
    assert HEADS.missing(["hass", "edd", "vdm"]) == ["vdm"]
    assert HEADS.stale(["hass", "edd"]) == "made with other heads: edd"
    assert HEADS.stale(["hass", "talf-1"]) == ""  # of one whose card is not there nothing is known


def test_names_in_tables():
    assert replayed("edd", Eagle2(12, k=5), softened=0.9) == "edd softened 0.9 by Eagle2(total=12, k=5)"
    assert chains_of("edd") == "edd, likeliest chains"
    assert chains_of("edd", 0.9) == "edd softened 0.9, likeliest chains"
    assert verified("hass", kary(2, 5), "token-level") == "hass on kary(2, 5), token-level, T = 1.0"
    assert verified("hass", EAGLE_25, "traversal", 1) == "hass on EAGLE_25, traversal, T = 1.0"


def test_softened_heads_have_names_of_their_own(recorded):
    row = {"prompt": "a", "head": "edd", "rule": "chain(2)", "length": 12, "steps": 4, "nodes": 8, "forwards": 8}
    row |= {"fed": 12, "everywhere": 6, "ranks": [6, 2], "chains": [], "softened": 1.0}
    found = recorded("rules", [row, row | {"softened": 0.9}])
    assert found["method"].tolist() == [replayed("edd", chain(2)), replayed("edd", chain(2), softened=0.9)]
