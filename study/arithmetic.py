"""The papers' own arithmetic: whether printed numbers follow from each other, read from data/paper.

Printed numbers are rounded. A gain follows from two others if some numbers that round to those two give one that
rounds to it.
"""

import numpy as np
import pandas as pd

from specnb.growth import EAGLE_25
from study import paper

CLOSE = 1e-9  # far below every rounding
SALF_TASKS, SALF_RIVALS = ["MT-bench", "HumanEval", "GSM8K", "Alpaca", "CNN/DM"], ["EAGLE-2", "HASS"]
DEEPSEEK = "Deepseek-R1-Distill-Llama-8B"


def printed(name: str, *items: str) -> pd.DataFrame:
    """The printed numbers of a paper's tables, or of "Text", one a row, see ``paper.rows``."""
    return paper.rows(name, *items).dropna(subset="value")


def _wide(rows: pd.DataFrame, *keys: str) -> pd.DataFrame:
    return rows.pivot(index=list(keys), columns="column", values="value")


def _cases(*parts) -> list[bool]:
    return np.concatenate([np.ravel(part) for part in parts]).tolist()


def _follows(gain: pd.Series, new: pd.Series, old: pd.Series | float, rounding: float, within) -> pd.Series:
    """Whether a gain in per cent, printed ± rounding, can be that of new over old, both printed ± within."""
    low = 100 * ((new - within) / (old + within) - 1) - rounding
    high = 100 * ((new + within) / (old - within) - 1) + rounding
    return (low - CLOSE <= gain) & (gain <= high + CLOSE)


def traversal_printed_gains() -> list[bool]:
    """Traversal's gains follow from the printed means, and the text's range from the gains (Section 4.2, Tables 2-4).

    Cases: every gain; both rules' averages over tasks; Table 4 at temperature 1, which repeats Table 2; the text's
    least and largest average gain; throughput, which gains less than acceptance; EAGLE's sparse tree, as deep as said.
    """
    cells = _wide(printed("traversal", "Table 2", "Table 3", "Table 4"), "item", "tree", "metric", "row")
    within = np.where(cells.index.get_level_values("metric") == "throughput", 0.05, 0.005)
    follow = _follows(cells["Improvement"], cells["Tra.V"], cells["Tok.V"], 0.05, within)
    lengths = cells.xs("acceptance length", level="metric")
    means = lengths.xs("Avg. Accept.", level="row")
    tasks = lengths.loc[["Table 2", "Table 3"]].drop("Avg. Accept.", level="row").groupby(["item", "tree"]).mean()
    average = (tasks - means)[["Tok.V", "Tra.V"]].abs() <= 0.01 + CLOSE
    repeated = lengths.xs("Temp. 1.0", level="row").loc["Table 4"] == means.loc["Table 2"]
    gain, faster = means["Improvement"], cells["Improvement"].xs(("throughput", "Avg. Token/s"), level=(2, 3))
    text = printed("traversal", "Text").query("place == 'Section 4.2'").set_index("column")["value"]
    said = [gain.min() == text["minimum"], gain.max() == text["maximum"]]
    said.append(max(map(len, EAGLE_25.paths)) == text["depth"])
    return _cases(follow, average, repeated.all(axis=1), faster < gain, said)


def _ptd(*items: str) -> pd.DataFrame:
    return _wide(printed("ptd", *items), "item", "dataset", "model label", "row")


def ptd_tables_bear_out_text() -> list[bool]:
    """PTD's decoding efficiency is made of hit rate and accept length, and its gains are the largest (Section 4).

    Cases: every method and setting of Table 4, whose DE is HR · AL + 1 - HR; in Tables 1 and 3 every setting, where
    PTD gains most, and every model, where it gains more on GSM-100 than on MT-Bench, on MBPP-100 than on HumanEval.
    """
    counts = _ptd("Table 4")
    hits, length = counts["HR"], counts["AL"]
    cases = [(hits * length + 1 - hits - counts["DE"]).abs() <= 0.005 * (hits + length) + CLOSE]
    for item in ("Table 1", "Table 3"):
        gain = _ptd(item)["Imp."][item].unstack("row")
        ours = gain.pop("PTD")
        cases += [ours > gain.max(axis=1), ours["GSM-100"] > ours["MT-Bench"], ours["MBPP-100"] > ours["HumanEval"]]
    return _cases(*cases)


def ptd_improvements() -> list[bool]:
    """Every improvement is the throughput over that of plain decoding (PTD, Tables 1 and 3).

    A case is a method in a setting. One fails: speculative decoding of L-13B on MT-Bench in Table 1, whose improvement
    is printed too low.
    """
    cells = _ptd("Table 1", "Table 3").unstack("row")
    speed = cells.pop("TP")
    gains = [gain.dropna() for _, gain in cells["Imp."].items()]
    return _cases(*(_follows(g, speed.loc[g.index, g.name], speed.loc[g.index, "AR"], 0.5, 0.5) for g in gains))


def ptd_forward_cost() -> list[bool]:
    """PTD adds no noticeable latency (Section 4.2.1); we read: a step costs at most a tenth more than a plain one.

    A case is a setting: a step's cost is its tokens (Table 4) over the speed-up (Table 3). All fail: it costs about a
    third more.
    """
    ours = _ptd("Table 3", "Table 4").xs("PTD", level="row")
    return _cases(ours["DE"]["Table 4"] / (1 + ours["Imp."]["Table 3"] / 100) <= 1.1)


def dynatree_printed_speed_ups() -> list[bool]:
    """Every speed-up is the throughput over the baseline of the same harness (DynaTree, Tables 1 to 3).

    A case is a row; the baseline of Table 2, from the sweep, is Table 3's at 500 tokens. Table 2's linear row fails:
    it is Table 1's, where the baseline is another.
    """
    one, two, three = (_wide(printed("dynatree", item), "row") for item in ("Table 1", "Table 2", "Table 3"))
    plain, swept = one["Throughput"]["AR (target-only)"], three["Baseline"]["Length 500"]
    rows = [(one, "Throughput", plain), (two, "Throughput", swept), (three, "DynaTree", three["Baseline"])]
    return _cases(*(_follows(100 * (t["Speedup"] - 1), t[new], old, 0.5, 0.05) for t, new, old in rows))


def dynatree_harnesses_agree() -> list[bool]:
    """The two harnesses differ in absolute throughput only (DynaTree, Section 4.5).

    Cases: speed-up and acceptance rate at 500 tokens in Tables 1 and 3. Both fail; acceptance is a count, which no
    warm-up changes.
    """
    cells = _wide(printed("dynatree", "Table 1", "Table 3"), "row")[["Speedup", "Acceptance rate"]]
    return _cases((cells.loc["DynaTree (ours)"] - cells.loc["Length 500"]).abs() <= 0.01 + CLOSE)


def _edd(*items: str) -> pd.DataFrame:
    return _wide(printed("edd_pct", *items), "item", "model", "dataset", "row")


def edd_alpha_is_share_accepted() -> list[bool]:
    """The acceptance rate α is the average share of draft tokens that are accepted (EDD, Section 4.1, Tables 1 and 4).

    A case is a method, model and data set: α should be (τ - 1) / 5, since one of a step's τ tokens was not drafted and
    five were. All fail: the printed α is τ / 5, apart from a few misprints.
    """
    cells = _edd("Table 1", "Table 4")
    return _cases((cells["alpha"] - (cells["tau"] - 1) / 5).abs() <= 0.006 + CLOSE)


def edd_headlines() -> list[bool]:
    """The speed-ups in the text follow from Table 2 (EDD with PCT, Sections 1 and 4.2).

    Cases: the range, its lower end on CNN/DM and its upper on HumanEval; both 13B models on MT-bench; in each family,
    13B faster than 7B on average; and the reason given for this, a lower price of drafting.
    """
    speed = _edd("Table 2")["Speedup"].xs("PCT", level="row")["Table 2"]
    text = printed("edd_pct", "Text")
    said, bench = text.set_index("column")["value"], text.query("section == '1'").set_index("model")["value"]
    extremes = [speed.min() == said["Speedup, lowest"], speed.max() == said["Speedup, highest"]]
    extremes += [speed.idxmin()[1] == "CNN/DM", speed.idxmax()[1] == "HumanEval"]
    mean, time = speed.groupby("model").mean(), _wide(text.query("unit == 'ms'"), "model")
    larger = [mean[f"{family} 13B"] > mean[f"{family} 7B"] for family in ("LLaMA2-Chat", "Vicuna1.5")]
    price = time["time per forward pass, s_d"] / time["time per forward pass, s_t"]
    return _cases(extremes, speed[:, "MT-bench"][bench.index] == bench, larger, price["13B"] < price["7B"])


def edd_dozen_iterations() -> list[bool]:
    """EDD with PCT writes nearly 100 tokens in a dozen iterations (Appendix A.2, Table 6); we read: at least 90.

    A case is a model and data set, with its acceptance length from Table 2. All fail, by far.
    """
    return _cases(12 * _edd("Table 2")["tau"].xs("PCT", level="row") >= 90)


def _salf_trees() -> pd.DataFrame:
    """Table 2 by tree and training loss."""
    rows = printed("salf_talf", "Table 2")
    return _wide(rows.assign(loss=rows["row"].str.split(" + ", regex=False).str[1]), "tree", "loss")


def salf_words_and_tables() -> list[bool]:
    """The ranges, percentages and comparisons in the text follow from the tables (SALF and TALF, Sections 1 to 4).

    Cases: Table 1's means, which are geometric, and its gains; the ranges of the abstract, of Section 4.2 and of the
    introduction; larger gains with the stronger target, DeepSeek; Section 4.3's percentages; Table 4's best threshold.
    Three fail: the introduction's lower end, and over EAGLE-2 Llama 3 gains more than DeepSeek, at both temperatures.
    """
    one, text = _wide(printed("salf_talf", "Table 1"), "target", "temperature", "row"), printed("salf_talf", "Text")
    low, high = (np.exp(np.log(one[SALF_TASKS] + error).mean(axis=1)) + error for error in (-0.005, 0.005))
    cases = [(low - CLOSE <= one["Mean"]) & (one["Mean"] <= high + CLOSE)]
    means, gains = one["Mean"].unstack("row"), one["Improvement of SALF & TALF over this row (Mean)"].unstack("row")
    abstract, ratios = (_wide(text[text["place"] == place], "row") for place in ("Abstract", "Section 4.2"))
    for rival in SALF_RIVALS:
        gain = gains[rival]
        cases.append(_follows(gain, means["SALF & TALF"], means[rival], 0.05, 0.005))
        ends = pd.Series({"maximum": gain.max(), "minimum": gain.min()})
        cases.append((abstract.loc[f"Improvement of SALF & TALF over {rival}"] == ends).all())
        ratio = ratios.loc[f"SALF & TALF relative to {rival}"]
        cases.append((100 * (ratio - 1) - ends).abs().max() <= 0.55 + CLOSE)
        cases += [gain[DEEPSEEK] > gain["Llama2-7B"], gain[DEEPSEEK] > gain["Llama3-8B"]]
    ours = one[SALF_TASKS].xs("SALF & TALF", level="row")
    ends = text.query("place == 'Introduction' and row == 'SALF & TALF'").set_index("column")["value"]
    cases.append([ours.min(axis=None) == ends["minimum"], ours.max(axis=None) == ends["maximum"]])
    best, speeds = "th = 0.5", _wide(printed("salf_talf", "Table 4"), "row").filter(like="speedup")
    return _cases(*cases, *_salf_percentages(), speeds.loc[best] > speeds.drop(best).max())


def _salf_percentages() -> list[pd.Series]:
    """Section 4.3: what TALF adds to every tree's length, and what SALF's stop does to length and speed, by loss."""
    text, trees = printed("salf_talf", "Text").query("place == 'Section 4.3'"), _salf_trees()
    gains, tau = text.dropna(subset="tree").pivot(index="tree", columns="row", values="value"), trees["Mean tau"]
    talf = tau.xs("TALF", level="loss")
    cases = [_follows(gains[f"TALF over {r}"], talf, tau.xs(r, level="loss"), 0.05, 0.005) for r in SALF_RIVALS]
    stop = _wide(text[text["tree"].isna()], "row").rename(index=lambda row: row.split("loss ")[1])
    stopped, full = trees.loc["SALF"], trees.loc["optimal tree search"]
    cases.append(_follows(-stop["tau decrease"], stopped["Mean tau"], full["Mean tau"], 0.05, 0.005))
    return [*cases, _follows(stop["speedup increase"], stopped["Mean speedup"], full["Mean speedup"], 0.05, 0.005)]


def salf_beam_baselines() -> list[bool]:
    """Table 1's EAGLE-2 and HASS draft by beam search (SALF and TALF), so Table 2's beam rows repeat their speed-ups.

    Cases: both methods on five tasks and on average, DeepSeek at temperature 0. All fail: Table 1 repeats the rows of
    the optimal tree search.
    """
    one = _wide(printed("salf_talf", "Table 1"), "target", "temperature", "row").loc[DEEPSEEK, "0"]
    beam = _salf_trees().loc["beam search"].filter(like="speedup").rename(columns=lambda name: name.split()[0])
    return _cases(one.loc[SALF_RIVALS, beam.columns] == beam.loc[SALF_RIVALS])
