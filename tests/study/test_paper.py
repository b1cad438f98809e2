"""Published numbers: complete, and consistent with themselves."""

import csv

import numpy as np
import pandas as pd
import pytest

from specnb.models import files
from study import paper

HEADER = ["paper", "item", "setting", "row", "column", "value", "error", "unit", "status", "note"]
# Everything with a caption in the five papers, with the panels that have rows of their own.
ITEMS = {
    "ptd": {"Table": "1 2 3 4", "Figure": "1a 1b 2a 2b 2c 3 4 5 6 7 8"},
    "traversal": {"Table": "1 2 3 4", "Figure": "1 2 3"},
    "dynatree": {"Table": "1 2 3", "Figure": "1 2 3 3a 3b 3c 3d 3e 3f"},
    "edd_pct": {"Table": "1 2 3 4 5 6", "Figure": "1 2 3a 3b 4 5 6 7"},
    "salf_talf": {"Table": "1 2 3 4", "Figure": "1 2a 2b 3 4a 4b"},
}
TASKS = ["Multi-turn", "Translation", "Sum.", "QA", "Math", "RAG"]


def wide(found: pd.DataFrame, index=("setting", "row")) -> pd.DataFrame:
    return found.pivot(index=list(index), columns="column", values="value")


def as_printed(name: str, item: str) -> pd.DataFrame:
    """An item whose rows and columns alone tell its cells apart."""
    found = paper.select(name, item)
    return found.pivot(index="row", columns="column", values="printed").loc[
        found["row"].unique(), found["column"].unique()
    ]


def broken(found: pd.DataFrame, column: str, factor: float) -> pd.DataFrame:
    """A copy in which the first printed value of a column is wrong: the negative control of identities."""
    copy = found.copy()
    first = copy.index[(copy["column"] == column) & copy.value.notna()][0]
    copy.loc[first, "value"] *= factor
    return copy


def items(name):
    """One row per table or figure: how many rows it has, and how many of them carry a printed number."""
    groups = paper.load(name).groupby(["paper", "item"], sort=False)
    return groups.agg(rows=("value", "size"), printed=("value", "count")).reset_index()


# --- the files


@pytest.mark.parametrize("name", paper.PAPERS)
def test_every_table_and_figure_has_rows(name):
    found = items(name)
    expected = {f"{kind} {number}" for kind, numbers in ITEMS[name].items() for number in numbers.split()}
    assert set(found["item"]) - {"Text"} == expected
    assert (found.rows > 0).all()
    assert found.rows.sum() == len(paper.load(name))
    tables = found[found["item"].str.startswith("Table")]
    assert (tables.printed > 0).all()


def test_papers_and_files_agree():
    assert set(paper.PAPERS) == set(ITEMS) == {path.stem for path in (files.DATA / "paper").glob("*.csv")}
    assert list(paper.load().paper.unique()) == list(paper.PAPERS)
    assert len(paper.load()) == sum(len(paper.load(name)) for name in paper.PAPERS)


@pytest.mark.parametrize("name", paper.PAPERS)
def test_rows_are_well_formed(name):
    with open(files.DATA / "paper" / f"{name}.csv", encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    assert header == HEADER
    assert all(len(line) == len(HEADER) for line in lines)
    assert not [line for line in lines for cell in line if cell != cell.strip()]
    raw = pd.DataFrame(lines, columns=HEADER)
    assert set(raw.paper) == {name}
    assert set(raw.status) <= {"printed", "not printed"}
    assert ((raw.value != "") == (raw.status == "printed")).all()
    assert (raw.value[raw.error != ""] != "").all()
    assert not raw.duplicated(["item", "setting", "row", "column"]).any()
    for setting in raw.setting[raw.setting != ""].unique():
        keys = [part.split("=", 1)[0] for part in setting.split("; ")]
        assert "=" in setting
        assert all(part.count("=") == 1 for part in setting.split("; ")), setting
        assert len(set(keys)) == len(keys), setting
        assert not {"paper", "item", "row", "column"} & set(keys)


def test_load_gives_numbers_and_what_was_printed():
    frame = paper.load()
    assert frame.value.dtype == frame.error.dtype == np.float64
    assert (frame.value.notna() == (frame.status == "printed")).all()
    assert ((frame.printed == "") == frame.value.isna()).all()
    assert np.isfinite(frame.value.dropna()).all()
    assert (frame.error.dropna() >= 0).all()
    text = frame.set_index("printed").value
    assert text["68,000"].item() == 68000
    assert text["3e-4"].item() == 3e-4
    assert text["3.95 ± 0.03"].item() == 3.95
    assert frame.error[frame.printed == "3.95 ± 0.03"].item() == 0.03


def test_unknown_paper_names_the_known_ones():
    for call in (paper.load, lambda name: paper.select(name, "Table 1")):
        with pytest.raises(ValueError, match="unknown paper 'eagle': known are ptd, traversal, dynatree"):
            call("eagle")


@pytest.mark.parametrize(
    ("name", "item", "row", "column", "where", "printed"),
    [
        ("ptd", "Table 1", "PTD", "TP", {"dataset": "MT-Bench", "model label": "L-7B"}, "65 ± 11.1"),
        ("ptd", "Table 4", "PTD", "DE", {"dataset": "MT-Bench", "model label": "L-7B"}, "2.23"),
        ("traversal", "Table 2", "Math", "Tra.V", {"tree": "Chain"}, "4.70 ± 0.03"),
        ("traversal", "Table 3", "Multi-turn", "Tok.V", {"tree": "Chain"}, "2.05 ± 0.05"),
        ("traversal", "Table 1", "drafted token a", "rejection probability", {}, "0.5"),
        ("dynatree", "Table 1", "DynaTree (ours)", "Speedup", {}, "1.62"),
        ("dynatree", "Table 3", "Length 500", "DynaTree", {"new_tokens": 500, "D": 8}, "221.4"),
        ("edd_pct", "Table 2", "PCT", "tau", {"dataset": "MT-bench", "model": "LLaMA2-Chat 7B"}, "3.99"),
        ("salf_talf", "Table 4", "th = 0.5", "Mean speedup", {"th": 0.5}, "2.62"),
        ("salf_talf", "Table 3", "TALF (top-4)", "GSM8K", {"k": 4}, "4.49"),
    ],
)
def test_spot_values(name, item, row, column, where, printed):
    found = paper.select(name, item, row=row, column=column, **where)
    assert len(found) == 1
    assert found.printed.item() == printed
    value, _, error = printed.partition(" ± ")
    assert found.value.item() == float(value)
    assert str(found.error.item()) == (error or "nan")


# --- identities that hold in print


def ptd_efficiency_gaps(found: pd.DataFrame) -> int:
    t = wide(found)
    gap = (t.DE - (t.HR * t.AL + 1 - t.HR)).abs()
    return int((gap > 0.005 * (1 + t.HR + (t.AL - 1))).sum())  # half a unit in the last place of DE, AL and HR


def improvement_gaps(found: pd.DataFrame, base: str, new: str, gain: str, index=("setting", "row")) -> list:
    """Where the printed gain in % cannot come from the two printed values, whatever was rounded away."""
    t = wide(found, index).dropna(subset=[base, new, gain])
    text = found.assign(text=found.printed.str.split(" ").str[0]).pivot(
        index=list(index), columns="column", values="text"
    )
    half = {name: 0.5 * 10.0 ** -text[name].str.partition(".")[2].str.len().reindex(t.index) for name in t}
    low = ((t[new] - half[new]) / (t[base] + half[base]) - 1) * 100 - half[gain]
    high = ((t[new] + half[new]) / (t[base] - half[base]) - 1) * 100 + half[gain]
    return list(t.index[(t[gain] < low - 1e-9) | (t[gain] > high + 1e-9)])


def test_ptd_decoding_efficiency_is_hits_times_length():
    found = paper.select("ptd", "Table 4")
    assert len(wide(found)) == 42
    assert ptd_efficiency_gaps(found) == 0
    for column in ("DE", "HR", "AL"):
        assert ptd_efficiency_gaps(broken(found, column, 1.05)) == 1


def ptd_throughput(item: str) -> pd.DataFrame:
    """TP of AR beside TP and Imp. of each method."""
    found = paper.select("ptd", item)
    baseline = found[found["row"] == "AR"].set_index("setting")
    methods = found[found["row"] != "AR"]
    extra = methods[methods["column"] == "TP"].assign(column="AR", value=lambda x: x.setting.map(baseline.value))
    return pd.concat([methods, extra.assign(printed=extra.setting.map(baseline.printed))], ignore_index=True)


def test_ptd_improvements_follow_from_throughput_but_for_one_misprint():
    assert improvement_gaps(ptd_throughput("Table 3"), "AR", "TP", "Imp.") == []
    (setting, row), *others = improvement_gaps(ptd_throughput("Table 1"), "AR", "TP", "Imp.")
    assert (others, row) == ([], "SpeDe")  # 24 → 36 token/s printed as 39 %
    assert "dataset=MT-Bench" in setting
    assert "model label=L-13B" in setting
    assert len(improvement_gaps(broken(ptd_throughput("Table 3"), "Imp.", 1.2), "AR", "TP", "Imp.")) == 1


@pytest.mark.parametrize("item", ["Table 2", "Table 3", "Table 4"])
def test_traversal_improvements(item):
    found = paper.select("traversal", item)
    assert improvement_gaps(found, "Tok.V", "Tra.V", "Improvement") == []
    assert len(improvement_gaps(broken(found, "Tra.V", 1.02), "Tok.V", "Tra.V", "Improvement")) == 1


@pytest.mark.parametrize("item", ["Table 2", "Table 3"])
def test_traversal_average_is_that_of_the_six_tasks(item):
    found = paper.select("traversal", item, column=["Tok.V", "Tra.V"], metric="acceptance length")

    def largest_gap(frame):
        t = frame.pivot(index="row", columns=["tree", "column"], values="value")
        return (t.loc[TASKS].mean() - t.loc["Avg. Accept."]).abs().max()

    found = found.assign(tree=found.setting.str.extract("tree=([^;]+)", expand=False))
    assert len(found) == 7 * 2 * 3
    assert largest_gap(found) < 0.005 + 0.005  # six roundings and the average's own
    assert largest_gap(broken(found, "Tra.V", 1.05)) > 0.01


def test_traversal_table_1_is_the_law_of_token_level_verification():
    t = wide(paper.select("traversal", "Table 1"), index=["row"])
    outcomes = t.loc[["output token a", "output token b", "output token c"]]
    drafted = ["drafted token a", "drafted token b", "drafted token c"]
    np.testing.assert_allclose(outcomes[drafted].sum(axis=1), outcomes["target probability"], atol=1e-12)
    np.testing.assert_allclose(outcomes[drafted].sum(), t.loc["draft probability", drafted], atol=1e-12)


def speedup_gaps(frame: pd.DataFrame) -> int:
    low, high = (frame.fast - 0.05) / (frame.slow + 0.05), (frame.fast + 0.05) / (frame.slow - 0.05)
    return int(((frame.printed < low - 0.005) | (frame.printed > high + 0.005)).sum())


def test_dynatree_speedups_are_ratios_of_throughput():
    one = wide(paper.select("dynatree", "Table 1"), index=["row"])
    three = wide(paper.select("dynatree", "Table 3"), index=["row"])
    slow = one.Throughput["AR (target-only)"]
    first = pd.DataFrame({"fast": one.Throughput, "slow": slow, "printed": one.Speedup})
    third = pd.DataFrame({"fast": three.DynaTree, "slow": three.Baseline, "printed": three.Speedup})
    assert speedup_gaps(first) == speedup_gaps(third) == 0
    assert speedup_gaps(third.assign(printed=third.printed * 1.02)) == len(third) == 5
    two = wide(paper.select("dynatree", "Table 2"), index=["row"])
    second = pd.DataFrame({"fast": two.Throughput, "slow": three.Baseline["Length 500"], "printed": two.Speedup})
    gaps = second.index[[bool(speedup_gaps(second.loc[[row]])) for row in second.index]]
    assert list(gaps) == ["Linear speculative"]  # that row comes from the other harness, with baseline 119.4


def test_edd_tau_over_alpha_is_the_depth_but_for_six_cells():
    def exceptions(frame):
        t = wide(frame).reset_index()
        return t[(t.tau / 5 - t.alpha).abs() > 0.005 + 0.001 + 1e-9]

    found = pd.concat([paper.select("edd_pct", item) for item in ("Table 1", "Table 4")])
    vct = pd.concat([paper.select("edd_pct", item, row="VCT") for item in ("Table 2", "Table 5")])
    frame = pd.concat([found, vct], ignore_index=True)
    assert len(wide(frame)) == 160
    gaps = exceptions(frame)
    assert sorted(gaps.row) == ["EDD", "MEDUSA-1", "MEDUSA-1", "VCT", "VDM", "VDM"]
    inconsistent = paper.load("edd_pct").note.str.startswith("inconsistent: tau/5")
    assert inconsistent.sum() == 2 * len(gaps) == 12  # the alpha and the tau of each are marked in the file
    assert len(exceptions(broken(frame, "tau", 1.1))) == 7


def test_salf_means_are_geometric_for_speedup():
    found = paper.select("salf_talf", "Table 1")
    t = wide(found)
    tasks = t[["MT-bench", "HumanEval", "GSM8K", "Alpaca", "CNN/DM"]]
    assert (np.exp(np.log(tasks).mean(axis=1)) - t.Mean).abs().max() < 0.01
    assert (tasks.mean(axis=1) - t.Mean).abs().max() > 0.015  # and not arithmetic


def test_tables_of_salf_agree_with_each_other():
    two, three, four = (as_printed("salf_talf", f"Table {n}") for n in (2, 3, 4))
    tasks = ["MT-bench", "HumanEval", "GSM8K"]
    for there, here in (("HASS", "HASS (top-1)"), ("TALF", "TALF (top-4)")):
        tau = two.loc[f"Optimal tree search + {there}", [f"{task} tau" for task in tasks]]
        assert list(tau) == list(three.loc[here, tasks])
    cells = [f"{task} {what}" for task in tasks for what in ("speedup", "tau")]
    assert list(two.loc["Optimal tree search + TALF", cells]) == list(four.loc["th = 0.0", cells])
    assert list(two.loc["SALF + TALF", cells]) == list(four.loc["th = 0.6", cells])


# --- select


def test_select_by_row_column_and_setting():
    found = paper.select("ptd", "Table 1", dataset="MT-Bench", row=["AR", "PTD"], column="TP", temperature=0.5)
    assert set(found["row"]) == {"AR", "PTD"}
    assert set(found.column) == {"TP"}
    assert found.setting.str.contains("dataset=MT-Bench; ").all()
    assert len(paper.select("salf_talf", "Table 4", th=0)) == 8  # printed as th=0.0
    assert len(paper.select("ptd", "Table 1", **{"model label": "L-7B"})) > 0


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"dataset": "MT-bench"}, "no dataset is 'MT-bench', there are 'MT-Bench', 'GSM-100', 'HumanEval'"),
        ({"row": "EAGLE"}, "no row is 'EAGLE', there are 'AR', 'SpeDe', 'LADE', 'Self-Draft', 'PTD'"),
        ({"row": "AR", "column": "Imp."}, "no column is 'Imp.', there are 'TP'"),
        ({"model_label": "L-7B"}, "has no 'model_label': choose by 'row', 'column', 'dataset'"),
        ({"dataset": "MT"}, "no dataset is 'MT'"),  # equality, not a part of the text
    ],
)
def test_select_without_a_hit_says_what_exists(where, message):
    with pytest.raises(ValueError, match=message):
        paper.select("ptd", "Table 1", **where)


def test_the_price_that_methods_and_claims_take_is_printed():
    forwards = paper.select("edd_pct", "Text", model="7B", unit="ms").set_index("column")["value"]
    draft, target = (forwards[f"time per forward pass, {name}"] for name in ("s_d", "s_t"))
    assert round(draft / target, 4) == paper.EDD_PRICE_7B


def test_unknown_item_names_the_known_ones():
    with pytest.raises(ValueError, match="traversal has no item 'Table 9': it has 'Table 1', 'Table 2'"):
        paper.rows("traversal", "Table 9")


def test_numbers_are_kept_as_they_are_printed():
    one = as_printed("dynatree", "Table 1")
    assert list(one.columns) == ["Throughput", "Speedup", "Acceptance rate"]
    assert list(one.index)[-1] == "DynaTree (ours)"
    assert one.loc["DynaTree (ours)"].to_list() == ["193.4", "1.62", "0.30"]  # 0.30, not 0.3
    assert one.loc["AR (target-only)", "Acceptance rate"] == ""
    speed = paper.select("traversal", "Table 2", tree="Binary Tree", row="Avg. Token/s")
    assert speed["printed"].to_list() == ["54.0 ± 0.6", "54.9 ± 1.2", "1.7"]
    assert speed["value"].to_list() == [54.0, 54.9, 1.7]
    assert speed["error"].dropna().to_list() == [0.6, 1.2]


@pytest.mark.parametrize("name", paper.PAPERS)
def test_no_cell_stands_twice(name):
    cells = paper.load(name).duplicated(["item", "setting", "row", "column"])
    assert not cells.any()
