"""What was fixed before the data stays provable: plans and keys of the second edition's recordings are recomputed.

Each block that was recorded then carries two hashes: of the tests by which it was to be judged, and of what was
measured. Here they come again from the frozen tables of data/claims and the frozen code of ``second_edition``.
"""

import json
import shutil
from functools import cache

import pandas as pd
import pytest
from second_edition import FROZEN, PAPERS, in_new_words, names, old_keys, old_plan, old_rule, table

from specnb import growth
from study import methods
from study.experiments import RESULTS, TABLE

CONVERTED = [name for name in table() if (RESULTS / f"{name}.jsonl").exists()]
CHANGED_SINCE: set[str] = set()  # experiments that have been given other settings than they had in the second edition


@cache
def converted(name: str) -> list[dict]:
    """The lines of the blocks that the second edition recorded; later ones have no old key."""
    texts = (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    lines = [json.loads(text) for text in texts]
    return [line for line in lines if "old key" in line]


def test_all_recordings_were_converted():
    """A control: the tests below look at 36 files and at all 1497 blocks that there were."""
    assert len(CONVERTED) == 36
    assert sum(len(converted(name)) for name in CONVERTED) == 1497
    assert sum(line["rows"] for name in CONVERTED for line in converted(name)) == 34_203


@pytest.mark.parametrize("name", CONVERTED)
def test_every_plan_is_that_of_the_frozen_tables(name):
    assert {line["plan"] for line in converted(name)} == {old_plan(name)}


def test_some_recordings_were_to_be_judged():
    """A control: a plan is not empty where a claim is made."""
    assert sum(bool(old_plan(name)) for name in CONVERTED) == 21


@pytest.mark.parametrize("name", CONVERTED)
def test_every_old_key_is_that_of_the_frozen_table(name):
    """And its settings in today's words are those that the block has now."""
    keys_with = {}  # by the heads that a block was made with: most blocks share them
    for line in converted(name):
        heads = json.dumps(line["heads"], sort_keys=True)
        if heads not in keys_with:
            keys_with[heads] = old_keys(name, line["heads"])
        known = keys_with[heads]
        assert line["old key"] in known
        assert line["settings"] == in_new_words(known[line["old key"]])
        assert line["cell"] == table()[name]["cell"]


@pytest.mark.parametrize("name", CONVERTED)
def test_every_frozen_block_is_recorded(name):
    """No block of the frozen table was left out."""
    lines = converted(name)
    assert {line["old key"] for line in lines} == set(old_keys(name, lines[0]["heads"]))


@pytest.mark.parametrize("name", table())
def test_what_was_to_be_measured_is_what_would_be_measured_now(name):
    """The constant of today has the frozen table's blocks: prompts, settings, and no block more or less.

    Settings that a cell has got since are left at what they are by default, or the key would be another: see
    test_experiments, where nothing is missing.
    """
    if name in CHANGED_SINCE:
        pytest.skip("it measures something else now, and is recorded again")
    frozen, now = table()[name], TABLE[name]
    words = [in_new_words(block) for block in old_keys(name, {}).values()]
    blocks = [{key: one.settings[key] for key in words[0]} for one in now.keyed_blocks()]
    assert sorted(json.dumps(one, sort_keys=True) for one in blocks) == sorted(
        json.dumps(one, sort_keys=True) for one in words
    )
    assert (now.minutes, now.cell.name) == (frozen["minutes"], frozen["cell"])


def test_experiments_are_in_the_frozen_order():
    assert [name for name in TABLE if name in table()] == list(table())


@pytest.mark.parametrize("column", ["bound", "direction", "methods", "statistic", "rows", "value", "at", "claim"])
def test_a_changed_test_has_another_hash(tmp_path, column):
    """Negative control: whatever decides a verdict is in the plan."""
    for paper in PAPERS:
        shutil.copy(FROZEN / f"{paper}.csv", tmp_path)
    assert old_plan("ptd", tmp_path) == old_plan("ptd")
    changed = pd.read_csv(FROZEN / "ptd.csv", dtype=str, keep_default_na=False)
    row = changed.index[changed["experiment"] == "ptd"][0]
    changed.loc[row, column] += "1"
    changed.to_csv(tmp_path / "ptd.csv", index=False)
    assert old_plan("ptd", tmp_path) != old_plan("ptd")
    assert old_plan("ptd_sizes", tmp_path) == old_plan("ptd_sizes")  # of another recording


@pytest.mark.parametrize("column", ["says", "effect", "reason", "where"])
def test_words_are_no_part_of_the_test(tmp_path, column):
    for paper in PAPERS:
        shutil.copy(FROZEN / f"{paper}.csv", tmp_path)
    changed = pd.read_csv(FROZEN / "ptd.csv", dtype=str, keep_default_na=False)
    changed[column] += "1"
    changed.to_csv(tmp_path / "ptd.csv", index=False)
    assert old_plan("ptd", tmp_path) == old_plan("ptd")


@pytest.mark.parametrize("setting", ["length", "methods", "dtype", "packed", "repetitions", "keep_ids"])
def test_a_changed_setting_has_another_key(monkeypatch, setting):
    """Negative control: also where the setting was the default."""
    heads = converted("race")[0]["heads"]
    before = set(old_keys("race", heads))
    changed = {**table()["race"], "settings": {**table()["race"]["settings"], setting: "another"}}
    monkeypatch.setitem(table(), "race", changed)
    assert not before & set(old_keys("race", heads))


def test_other_heads_have_another_key():
    heads = converted("race")[0]["heads"]
    assert not set(old_keys("race", heads)) & set(old_keys("race", {**heads, "hass": "another"}))


# ---- the new names --------------------------------------------------------------------------------------------------


def test_every_new_spelling_of_a_rule_is_the_same_rule():
    """Object by object: the new spelling, which is Python, makes what the old one stood for, and is its label."""
    rules = [old for kind, old in names() if kind == "rule"]
    assert len(rules) == 236
    for old in rules:
        new = names()["rule", old]
        made = eval(new, vars(growth))
        assert made == old_rule(old), old
        assert methods.label(made) == new
    assert old_rule("dynatree 3,1,0.01,128") != old_rule("dynatree 3,1,0.02,128")


def test_every_new_method_is_in_the_table():
    new = [other for (kind, _), other in names().items() if kind == "method"]
    assert len(new) == 122
    never_recorded = {"generate, unpacked"}  # no recording has it
    assert set(new) - set(methods.METHODS) == never_recorded
