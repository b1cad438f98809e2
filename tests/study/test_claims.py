"""Claims: plans that make sense, verdicts by rule, values as recorded, and tests fixed before the data."""

import re
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from planned import known

from specnb.models import files
from study import __main__ as laboratory
from study import claims, experiments, sweep

PAPERS = claims.PAPERS
SCHEMES = {"edd_pct": {"Figure 1", "Figure 2", "Figure 4"}}  # figures without data


@pytest.mark.parametrize("paper", PAPERS)
def test_a_plan_is_complete(paper):
    table = claims.plan(paper)
    assert (table["says"] != "").all()
    assert (table["where"] != "").all()
    tested = table[~table["experiment"].isin(["", "exact"])]
    for row in tested.itertuples():
        bound, within = float(row.bound), row.direction == "within"
        none = {"ratio": 1, "share": 0.5}.get(row.statistic, 0)  # no effect
        assert within or bound == none or row.effect or row.reason, f"{row.claim}: why this size?"
        if row.statistic == "slope":
            assert len(row.at.split()) == len(row.methods.split(" ; "))
        assert set(row.methods.split(" ; ")) <= known(row.experiment), row.claim


@pytest.mark.parametrize("paper", PAPERS)
def test_every_item_of_the_paper_is_in_a_claim(paper):
    """Tables and figures of data/paper/PAPER.csv by their numbers (Figure 3b counts as Figure 3), but for schemes."""
    printed = pd.read_csv(files.DATA / "paper" / f"{paper}.csv")["item"].str.extract(r"^((?:Table|Figure) \d+)")
    said = set(claims.plan(paper)["where"].str.findall(r"(?:Table|Figure) \d+").explode())
    assert set(printed[0].dropna()) - SCHEMES.get(paper, set()) <= said


@pytest.mark.parametrize(
    ("low", "high", "direction", "bound", "expected"),
    [
        (1.1, 1.3, "above", 1, "reproduced"),
        (0.9, 1.3, "above", 1, "undecided"),
        (0.7, 0.9, "above", 1, "contradicted"),
        (1.1, 1.3, "above", 2, "contradicted"),
        (-0.3, -0.1, "below", 0, "reproduced"),
        (0.1, 0.3, "below", 0, "contradicted"),
        (-0.1, 0.1, "within", 0.2, "reproduced"),
        (-0.3, 0.1, "within", 0.2, "undecided"),
        (0.21, 0.4, "within", 0.2, "contradicted"),
        (1.0, 1.3, "above", 1, "undecided"),
        (float("nan"), float("nan"), "above", 1, "undecided"),
    ],
)
def test_verdicts_by_rule(low, high, direction, bound, expected):
    assert claims.verdict(low, high, direction, bound) == expected


X = np.array([[2.0, 1.0, 4.0], [3.0, 2.0, 1.0], [6.0, 4.0, 2.0]])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mean", 25 / 9), ("ratio", 1.5), ("per cent", 50.0), ("difference", 4 / 3), ("share", 1.0), ("lead", 4 / 3)],
)
def test_statistics_of_a_small_table(name, expected):
    assert claims.STATISTICS[name](X) == pytest.approx(expected)


def test_a_slope_is_over_the_settings():
    assert claims.STATISTICS["slope"](np.array([[1.0, 3.0, 7.0], [2.0, 4.0, 8.0]]), at=[1, 2, 4]) == pytest.approx(2.0)
    assert claims.STATISTICS["gain"](np.array([[5.0, 3.0, 2.0, 1.0]])) == pytest.approx(1.0)


@pytest.mark.parametrize("name", [path.stem for path in sorted(experiments.RESULTS.glob("*.jsonl"))])
def test_no_test_was_changed_after_its_data_were_there(name):
    """The hash of the plan stands in each recorded block."""
    assert set(sweep.load(experiments.RESULTS / f"{name}.jsonl")["plan"]) == {experiments.plan(name)}


def test_a_changed_test_is_noticed(tmp_path, monkeypatch):
    """Negative control: another bound, another hash; another sentence, the same."""
    table = claims.plan("ptd")
    name = table["experiment"][~table["experiment"].isin(["", "exact"])].iloc[0]
    monkeypatch.setattr(experiments, "CLAIMS", tmp_path)
    table.to_csv(tmp_path / "ptd.csv", index=False)
    before = experiments.plan(name)
    table.assign(says="x").to_csv(tmp_path / "ptd.csv", index=False)
    assert experiments.plan(name) == before
    table.assign(bound="7").to_csv(tmp_path / "ptd.csv", index=False)
    assert experiments.plan(name) != before


@pytest.fixture
def toy():
    """Twenty prompts and four methods: "a" is .2 better than "b" on each, "c" and "d" are noise around "b"."""
    rng = np.random.default_rng(0)
    level = rng.normal(2, 0.3, size=20)
    methods = {"a": level + 0.2, "b": level, **{n: level + rng.normal(0, 0.1, size=20) for n in "cd"}}
    rows = [{"prompt": i, "method": n, "tau": x, "set": "own"} for n, xs in methods.items() for i, x in enumerate(xs)]

    def measured(**changes) -> dict:
        row = {"claim": "toy", "experiment": "toy", "rows": "", "value": "tau", "methods": "a ; b", "at": ""}
        return claims.measured(SimpleNamespace(**{**row, "statistic": "difference", **changes}), pd.DataFrame(rows))

    return measured


def test_what_is_measured(toy):
    found = toy()
    assert found["ours"] == pytest.approx(0.2)
    assert found["prompts"] == 20
    assert toy(methods="a ; b ; c ; d", statistic="lead")["ours"] < 0.2 + 1e-9
    assert toy(methods="b ; a", statistic="slope", at="1 2")["ours"] == pytest.approx(0.2)
    with pytest.raises(ValueError, match="toy has no rows of nobody"):
        toy(methods="a ; nobody")
    assert toy(rows="prompt < 5")["prompts"] == 5


def test_a_lead_is_corrected_for_the_number_of_rivals(toy):
    """Its upper end is that of the rival who is most ahead, at a level shared by all; its lower end is any rival's."""
    found, pairs = toy(methods="b ; c ; d ; a", statistic="lead"), [toy(methods=f"b ; {n}") for n in "cda"]
    assert found["low"] == min(pair["low"] for pair in pairs)
    assert found["high"] > min(pair["high"] for pair in pairs)
    assert claims.verdict(found["low"], found["high"], "above", 0) == "contradicted"  # "a" is ahead


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experiment": "nowhere"}, "no experiment"),
        ({"experiment": "exact", "methods": "no_such_fact"}, "no experiment, function"),
        ({"experiment": "", "reason": ""}, "no experiment, function or reason"),
        ({"statistic": "median"}, "no statistic or direction"),
        ({"direction": "up"}, "no statistic or direction"),
    ],
)
def test_a_plan_without_sense_is_refused(change, message, tmp_path, monkeypatch):
    table = claims.plan("ptd")
    at = table.index[table["statistic"] != ""][0]
    table.loc[at, list(change)] = list(change.values())
    table.to_csv(tmp_path / "ptd.csv", index=False)
    monkeypatch.setattr(experiments, "CLAIMS", tmp_path)
    with pytest.raises(ValueError, match=message):
        claims.plan("ptd")


def test_claims_are_counted_and_listed(monkeypatch, capsys):
    """The command prints what the rule gives: all of a paper's claims, and the exact ones judged."""
    monkeypatch.setattr(sys, "argv", ["lab", "claims"])
    laboratory.main()
    said = capsys.readouterr().out
    assert all(paper in said for paper in PAPERS)
    monkeypatch.setattr(sys, "argv", ["lab", "claims", "dynatree"])
    laboratory.main()
    said = capsys.readouterr().out
    assert all(claim in said for claim in claims.plan("dynatree")["claim"])
    assert re.search(r"greedy-theorem .* 36.0 +same setting", said)
    assert re.search(r"pruned-below-threshold .* contradicted", said)


def test_a_claim_is_judged_once_all_its_blocks_are_there(monkeypatch):
    """Not before, whatever a part of them says."""
    row = next(row for row in claims.plan("ptd").itertuples() if row.experiment == "ptd_speed")
    monkeypatch.setattr(claims, "values", lambda name: pd.DataFrame())
    monkeypatch.setattr(experiments, "missing", lambda name: 1)
    assert claims.reading()(row) is None
    monkeypatch.setattr(experiments, "missing", lambda name: 0)
    assert claims.reading()(row) is not None


def test_a_recording_is_read_once_for_all_claims_on_it(monkeypatch):
    read = []
    monkeypatch.setattr(claims, "values", lambda name: read.append(name) or pd.DataFrame())
    monkeypatch.setattr(experiments, "missing", lambda name: 0)
    rows, compared = [row for row in claims.plan("ptd").itertuples() if row.experiment == "ptd"], claims.reading()
    assert len(rows) > 1
    assert all(compared(row) is not None for row in rows)
    assert read == ["ptd"]
