"""Claims: every one makes sense, verdicts by rule, tests fixed before the data, the same as in the second edition."""

import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import second_edition_claims
from planned import known

from specnb.models import files
from study import __main__ as laboratory
from study import claims, experiments, quantities, stats
from study.claims import Checked, Claim, Measured, judging, registry
from study.claims.dynatree import AUTHORS
from study.prices import Prices
from study.quantities import HEADS

PAPERS = claims.PAPERS
SCHEMES = {"edd_pct": {"Figure 1", "Figure 2", "Figure 4"}}  # figures without data
MEASURED = [one for paper in PAPERS for one in claims.of_paper(paper).values() if isinstance(one, Measured)]
CONVERTED = [one for one in MEASURED if one.before]


def named(one: Claim) -> str:
    return f"{one.paper}-{one.name}"


# ---- the plan -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", MEASURED, ids=named)
def test_a_plan_is_complete(one):
    within, none = one.direction == "within", {"ratio": 1, "share": 0.5}.get(one.statistic.name, 0)  # no effect
    assert within or one.bound == none or one.effect is not None or one.reason, "why this size?"
    assert set(one.methods) <= known(one.recording)


@pytest.mark.parametrize("paper", PAPERS)
def test_all_claims_say_what_and_where_in_whole_sentences(paper):
    for one in claims.of_paper(paper).values():
        assert one.where
        assert one.says[0].isupper()
        assert one.says.endswith(".")
        assert one.paper == paper


@pytest.mark.parametrize("paper", PAPERS)
def test_every_item_of_the_paper_is_in_a_claim(paper):
    """Tables and figures of data/paper/PAPER.csv by their numbers (Figure 3b counts as Figure 3), but for schemes."""
    printed = pd.read_csv(files.DATA / "paper" / f"{paper}.csv")["item"].str.extract(r"^((?:Table|Figure) \d+)")
    said = {item for one in claims.of_paper(paper).values() for item in re.findall(r"(?:Table|Figure) \d+", one.where)}
    assert set(printed[0].dropna()) - SCHEMES.get(paper, set()) <= said


def test_an_unknown_paper_is_named():
    with pytest.raises(ValueError, match="unknown paper 'dyna': known are ptd, traversal"):
        claims.of_paper("dyna")


@pytest.fixture
def decorated(monkeypatch):
    """``claim`` on a function that says something, in a registry of its own."""
    monkeypatch.setattr(registry, "CLAIMS", {})
    given = {"where": "Table 1", "recording": experiments.PTD, "methods": ("ptd",), "statistic": stats.MEAN}

    def tau_is_high(runs):
        """It is high.

        We read: above two.
        """
        return runs["tau"]

    return lambda function=tau_is_high, **changes: claims.claim(**{**given, "above": 2, **changes})(function)


def test_a_claim_is_what_its_function_says(decorated):
    decorated()
    ((one,),) = (known.values() for known in registry.CLAIMS.values())
    assert (one.name, one.says, one.direction, one.bound) == ("tau_is_high", "It is high.", "above", 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"within": 1}, "one of above, below and within is the bound"),
        ({"above": None}, "one of above, below and within is the bound"),
        ({"methods": ()}, "methods are names in a tuple"),
        ({"methods": "ptd"}, "methods are names in a tuple, got 'ptd'"),
        ({"recording": "ptd"}, "recording is an object, experiments.X or HEADS, got 'ptd'"),
        ({"statistic": stats.RATIO}, "ratio compares 2 methods"),
        ({"statistic": stats.slope([1, 2])}, "a slope over 2 numbers has 1 methods"),
        ({"differs": "the bound"}, "differs names an old row"),
        ({"function": lambda runs: runs["tau"]}, "docstring's first paragraph"),
    ],
)
def test_a_claim_without_sense_is_refused(decorated, change, message):
    with pytest.raises(ValueError, match=message):
        decorated(**change)


def test_a_second_claim_of_a_name_is_refused(decorated):
    decorated()
    with pytest.raises(ValueError, match="has two claims tau_is_high"):
        decorated()


def test_what_is_not_attempted_has_a_reason(monkeypatch):
    monkeypatch.setattr(registry, "CLAIMS", {})
    with pytest.raises(ValueError, match="for no reason"):
        claims.not_attempted(where="Table 9", reason="")(tau)


# ---- verdicts -----------------------------------------------------------------------------------------------------


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


def tau(runs):
    """It says so."""
    return runs["tau"]


def toy(**changes) -> Measured:
    """A claim on a recording of no cell."""
    recording = experiments.Experiment("toy", experiments.ALIKE_CELL)
    said = ("ptd", "toy", "Table 1", "It says so.", None, "", "")
    made = Measured(*said, recording, ("a", "b"), stats.DIFFERENCE, "above", 0, tau)
    return replace(made, **changes)


@pytest.fixture
def runs() -> pd.DataFrame:
    """Twenty prompts and four methods: "a" is .2 better than "b" on each, "c" and "d" are noise around "b"."""
    rng = np.random.default_rng(0)
    level = rng.normal(2, 0.3, size=20)
    methods = {"a": level + 0.2, "b": level, **{n: level + rng.normal(0, 0.1, size=20) for n in "cd"}}
    rows = [{"prompt": i, "method": n, "tau": x, "set": "own"} for n, xs in methods.items() for i, x in enumerate(xs)]
    table = pd.DataFrame(rows).assign(plan="")
    table.attrs |= {"stale": ""}
    return table


def test_what_is_measured(runs):
    def of(**changes):
        return claims.measured(toy(**changes), runs)

    assert of().value == pytest.approx(0.2)
    assert of().prompts == 20
    assert of(methods=("a", "b", "c", "d"), statistic=stats.LEAD).value < 0.2 + 1e-9
    assert of(methods=("b", "a"), statistic=stats.slope([1, 2])).value == pytest.approx(0.2)
    with pytest.raises(ValueError, match="toy: in toy there are no rows of nobody: there are a, b, c, d"):
        of(methods=("a", "nobody"))
    assert of(compare=lambda runs: runs[runs["prompt"] < 5]["tau"]).prompts == 5


def test_a_lead_is_corrected_for_the_number_of_rivals(runs):
    """Its upper end is that of the rival who is most ahead, at a level shared by all; its lower end is any rival's."""
    found = claims.measured(toy(methods=("b", "c", "d", "a"), statistic=stats.LEAD), runs)
    pairs = [claims.measured(toy(methods=("b", name)), runs) for name in "cda"]
    assert found.low == min(pair.low for pair in pairs)
    assert found.high > min(pair.high for pair in pairs)
    assert claims.verdict(found.low, found.high, "above", 0) == "contradicted"  # "a" is ahead


def test_a_verdict_and_what_it_was_compared_on(runs):
    found = claims.judge(toy(), runs)
    assert (found.verdict, found.value, found.stale, found.prompts) == ("reproduced", "tau", "", 20)


def test_a_claim_is_judged_once_all_its_blocks_are_there():
    """Not before, whatever a part of them says."""
    found = claims.judge(toy(), None)
    assert (found.verdict, found.value, found.planned) == ("not recorded", "", claims.BEFORE)
    assert np.isnan(found.ours)


def test_only_a_whole_recording_is_judged(monkeypatch):
    """Every block, and no row of any failed."""
    blocks = [SimpleNamespace(failed=False), SimpleNamespace(failed=False)]
    recording = SimpleNamespace(name="toy", blocks_in=lambda file: blocks, blocks=lambda: [{}, {}])
    monkeypatch.setattr(quantities, "quantities", lambda recording: "all of it")
    assert quantities.complete(recording) == "all of it"
    blocks[1].failed = True
    assert quantities.complete(recording) is None
    del blocks[1]
    assert quantities.complete(recording) is None


def test_heads_are_judged_once_they_are_counted(monkeypatch):
    one = next(one for one in MEASURED if one.recording is HEADS)
    monkeypatch.setattr(quantities.Heads, "hashes", {name: "0" for name in one.methods[1:]})
    assert claims.judge(one, pd.DataFrame()).verdict == "not recorded"


def test_a_recording_is_read_once_for_all_claims_on_it(monkeypatch):
    read = []
    monkeypatch.setattr(judging, "complete", read.append)
    claims.judged("ptd")
    assert len(read) == len(set(read))
    assert len(read) < sum(one.paper == "ptd" for one in MEASURED)


# ---- tests fixed before the data (the second edition's plans: test_frozen) ----------------------------------------


@cache
def edition(name: str) -> second_edition_claims.Edition:
    """A recording, under the second edition's columns."""
    recorded = HEADS.table if name == "heads" else experiments.recorded(name)
    return second_edition_claims.Edition(name, recorded)


@cache
def compared(recording) -> pd.DataFrame:
    """A recording, as claims compare it now."""
    return quantities.quantities(recording)


def differences(one: Measured) -> list[str]:
    """In what a claim's test is another than that of the old row which it names."""
    row = second_edition_claims.claims(one.paper).loc[one.before]
    old = edition(row.experiment)
    names, values, wide = old.compared(row)
    runs = compared(one.recording)
    asked = one.compare(runs)
    now = stats.paired(runs, asked, one.methods)
    same = {
        "recording": one.recording.name == row.experiment,
        "statistic": one.statistic.name == row.statistic,
        "direction": one.direction == row.direction,
        "bound": one.bound == float(row.bound),
        "rows": asked.index.equals(values.index),
        "methods": [of_old(runs, name) for name in one.methods] == [of_old(old.values, name) for name in names],
        "values": np.array_equal(asked.to_numpy(float), values.to_numpy(), equal_nan=True),
        "array": np.array_equal(now, wide),
        "number": now.shape == wide.shape and one.statistic.of(now) == second_edition_claims.statistic(row, wide),
    }
    return [what for what, is_same in same.items() if not is_same]


def of_old(table: pd.DataFrame, method: str) -> list[int]:
    """The rows of a recording that a method's name means."""
    return table.index[table["method"] == method].tolist()


@pytest.mark.parametrize("one", CONVERTED, ids=named)
def test_a_converted_claim_is_tested_as_before(one):
    """Statistic, direction, bound, rows, methods, values and the array of all are equal, or it says in what not."""
    assert bool(differences(one)) == bool(one.differs)


def test_all_old_rows_were_converted_once():
    for paper in PAPERS:
        rows = second_edition_claims.claims(paper)
        now = {one.before: one for one in claims.of_paper(paper).values() if one.before}
        assert [*now] == [*rows.index]
        for row in rows.itertuples():
            kinds = {"": Claim, "exact": Checked}
            assert type(now[row.claim]) is kinds.get(row.experiment, Measured)
            assert (now[row.claim].where, now[row.claim].says) == (row.where, row.says)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"statistic": stats.DIFFERENCE}, {"statistic"}),
        ({"direction": "below"}, {"direction"}),
        ({"bound": 0.01}, {"bound"}),
        ({"methods": 3}, {"methods", "array"}),
        ({"methods": -1}, {"methods", "array"}),
        ({"compare": lambda runs: AUTHORS.speed(runs[runs["domain"] != "rag"])}, {"rows", "array"}),
        ({"compare": Prices(fed=0.2, target=2.1).speed}, {"values", "array"}),
        ({"recording": experiments.DYNATREE_LENGTHS}, {"recording"}),
    ],
)
def test_another_test_is_noticed(change, what):
    """Negative control: what the second edition did not plan is told by what it is."""
    one = claims.of_paper("dynatree")["best_depth"]
    if isinstance(change.get("methods"), int):
        change = {"methods": (one.methods[change["methods"]], *one.methods[1:])}
    if "recording" in change:
        change |= {"methods": tuple(f"{name}, 500 tokens" for name in one.methods)}
    assert what <= set(differences(replace(one, **change)))


def test_a_claim_without_an_old_row_is_planned_by_its_hash(runs):
    one = toy()
    assert claims.judge(one, runs.assign(plan=f"abc {one.test}")).planned == claims.BEFORE
    assert claims.judge(replace(one, bound=1), runs.assign(plan=f"abc {one.test}")).planned == claims.AFTER
    torn = runs.assign(plan=["abc", *len(runs.index[1:]) * [one.test]])
    torn.attrs |= runs.attrs
    assert claims.judge(one, torn).planned == claims.AFTER


def test_counts_of_heads_carry_no_hashes():
    one = next(one for one in MEASURED if one.recording is HEADS)
    runs = quantities.quantities(HEADS)
    assert claims.judge(one, runs).planned == claims.BEFORE
    assert claims.judge(replace(one, before=""), runs).planned == claims.AFTER


def test_a_claim_that_differs_from_its_old_row_was_chosen_after_the_data(runs):
    old = {"before": "faster-when-sampled"}
    assert claims.judge(toy(**old), runs).planned == claims.BEFORE
    assert claims.judge(toy(**old, differs="the bound"), runs).planned == claims.AFTER


PRICE = Prices(call=0.1)


def paid(runs):
    """It says so."""
    return PRICE.speed(runs)


def test_a_hash_is_of_all_that_decides_the_verdict(monkeypatch):
    one = toy(compare=paid)
    changes = [
        {"methods": ("b", "a")}, {"statistic": stats.RATIO}, {"direction": "below"}, {"bound": 1},
        {"recording": experiments.PTD}, {"statistic": stats.slope([1, 2])}, {"statistic": stats.slope([1, 3])},
        {"compare": test_a_second_claim_of_a_name_is_refused},
    ]  # fmt: skip
    hashes = [one.test, *(replace(one, **change).test for change in changes)]
    monkeypatch.setitem(globals(), "PRICE", Prices(call=0.2))
    hashes.append(one.test)
    assert len(set(hashes)) == len(hashes)


def test_a_hash_is_not_of_words(monkeypatch):
    def spoken(runs):
        """It says so, in other words."""

        return PRICE.speed(runs)  # in the same way

    one = toy(compare=paid)
    changes = {"says": "Something else.", "reason": "None.", "effect": 2.0, "where": "Table 2", "compare": spoken}
    assert replace(one, **changes).test == one.test
    assert re.fullmatch("[0-9a-f]{16}", one.test)


def test_what_a_block_will_carry():
    tests = claims.plan_of("edd_widths").split()
    assert tests == sorted(one.test for one in MEASURED if one.recording is experiments.EDD_WIDTHS)
    assert len(tests) == 3
    assert claims.plan_of("texts") == ""


# ---- stale recordings ---------------------------------------------------------------------------------------------


def test_a_claim_from_a_stale_recording_says_so(monkeypatch):
    """Another EDD stands in the committed card than the recording was made with."""
    known_hash = experiments.known_hash
    fresh = claims.judged("edd_pct").set_index("claim")
    assert set(fresh["stale"]) == {""}
    monkeypatch.setattr(experiments, "known_hash", lambda name: "0" if name == "edd" else known_hash(name))
    table = claims.judged("edd_pct").set_index("claim")
    says = table.loc[["pct_fastest_tree", "twice_as_fast", "edd_accepted_longest"], "stale"]
    assert set(says) == {"made with other heads: edd"}
    assert table.loc["kl_helps", "stale"] == table.loc["break_even", "stale"] == ""  # edd_small, and no recording
    pd.testing.assert_frame_equal(table.drop(columns="stale"), fresh.drop(columns="stale"))


# ---- tables -------------------------------------------------------------------------------------------------------


once = cache(claims.judged)


@pytest.fixture
def judged(monkeypatch):
    """Each paper is judged once for all tests that only look at its table."""
    for module in (claims, judging):
        monkeypatch.setattr(module, "judged", once)


def test_claims_are_counted_apart_where_their_test_is_later():
    table = pd.DataFrame({"recording": ["ptd", "exact", "", "ptd"], "verdict": ["undecided"] * 4, "planned": [""] * 4})
    table.loc[3, "planned"] = claims.AFTER
    assert claims.summary({"ptd": table}).loc["ptd"].to_dict() == {
        ("", "undecided"): 1,
        ("chosen after the data", "undecided"): 1,
        ("exact", "undecided"): 1,
        ("measured", "undecided"): 1,
    }


@pytest.mark.usefixtures("judged")
def test_claims_are_counted_and_listed(monkeypatch, capsys):
    """The command prints what the rule gives: all of a paper's claims, and the exact ones judged."""
    monkeypatch.setattr(claims, "PAPERS", ("dynatree", "salf_talf"))  # notebook 07 prints all five
    monkeypatch.setattr(sys, "argv", ["study", "claims"])
    laboratory.main()
    said = capsys.readouterr().out
    assert all(paper in said for paper in claims.PAPERS)
    monkeypatch.setattr(sys, "argv", ["study", "claims", "dynatree"])
    laboratory.main()
    said = capsys.readouterr().out
    assert all(name in said for name in claims.of_paper("dynatree"))
    assert re.search(r"greedy_theorem .* 36.0 +same setting", said)
    assert re.search(r"pruned_below_threshold .* contradicted", said)


def test_nothing_of_the_data_is_read_at_import():
    """Neither by claims nor by the table of experiments; with a control: reading a claim's recording is noticed."""
    watch = """
import sys
from pathlib import Path
opened = []
sys.addaudithook(lambda event, details: opened.append(str(details[0])) if event == "open" else None)
from specnb.models import files
from study import claims, commands, experiments, figures, quantities, stats, verdicts
assert experiments.TABLE
def read(): return sorted({Path(name).name for name in opened if name.startswith(str(files.DATA))})
print(read())
quantities.quantities(quantities.HEADS)
print(read())
"""
    done = subprocess.run([sys.executable, "-c", watch], cwd=files.DATA.parent, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[]", "['heads_by_prompt.csv']"], done.stderr


def test_a_column_that_is_not_there_is_told_with_the_claim(runs):
    one = replace(claims.of_paper("dynatree")["faster_than_plain"], compare=lambda runs: runs["tua"])
    with pytest.raises(ValueError, match="faster_than_plain: dynatree has no column 'tua', it has"):
        claims.measured(one, runs)
