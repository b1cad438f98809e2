"""The table of experiments: every block can be measured, every recording can be read."""

import json
import re
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache

import pandas as pd
import pytest

from specnb import heads
from specnb.growth import DynaTree, Eagle2, Growth, chain
from specnb.models import files
from specnb.tree import Drawn
from study import claims, experiments, figures, methods, record
from study.experiments import PTD, PTD_ALIKE, RESULTS, TABLE
from study.measure import branches


@pytest.mark.parametrize("name", TABLE)
def test_every_experiment_can_be_measured(name):
    """Its cell takes its blocks, its methods and rules exist, and it says what it feeds."""
    wanted = TABLE[name]
    assert len(wanted.keyed_blocks()) == len(wanted.blocks()) > 0
    numbers = {path.name[:2] for path in (files.ROOT / "notebooks").glob("*.ipynb")}
    assert set(wanted.feeds) <= numbers
    assert wanted.minutes > 0
    for rule in [
        *wanted.settings.get("rules", ()),
        *wanted.settings.get("wide", ()),
        *wanted.settings.get("shapes", ()),
    ]:
        assert callable(rule.select)
    assert len(set(map(methods.label, wanted.settings.get("rules", ())))) == len(wanted.settings.get("rules", ()))
    used = [methods.method(one) for one in wanted.settings.get("methods", ())]
    drawn = [one for one in used if one.drawn is not Drawn.POINT]
    assert not drawn or wanted.settings["temperature"] > 0


NOTEBOOKS = {"ptd": "01", "traversal": "02", "dynatree": "03", "edd_pct": "04", "salf_talf": "05"}  # by paper


@cache
def code() -> dict[str, str]:
    """The code of each notebook, by its number."""
    found = {}
    for path in (files.ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        found[path.name[:2]] = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return found


@pytest.mark.parametrize("name", TABLE)
def test_a_notebook_that_an_experiment_feeds_reads_it(name):
    """By its name, or through its paper's claims or figures; and what no notebook reads feeds none."""
    known = TABLE[name]
    (constant,) = (word for word, value in vars(experiments).items() if value is known)
    spelt = re.compile(rf"experiments\.{constant}\b|['\"]{name}['\"]")
    readers = {number for number, text in code().items() if spelt.search(text)}
    for paper in NOTEBOOKS:
        judged = [one for one in claims.of_paper(paper).values() if getattr(one, "recording", None) is known]
        redrawn = [item for item, figure in figures.FIGURES.items() if item[0] == paper and known in figure.recordings]
        if judged or redrawn:
            readers.add(NOTEBOOKS[paper])
    assert set(known.feeds) <= readers
    assert bool(known.feeds) == bool(readers)


def test_constants_are_the_table():
    assert TABLE["dynatree_rules"] is experiments.DYNATREE_RULES
    assert [one.name for one in TABLE.values()] == list(TABLE)
    with pytest.raises(ValueError, match="two experiments have the name 'ptd'"):
        experiments.table_of([PTD, replace(PTD, minutes=1)])


def test_a_family_of_rules_is_in_order():
    """The order of rules is part of a recording's key."""
    family = experiments.dynatrees([1, 2], [3], [0.1, 0.2])
    assert family == [DynaTree(1, 3, 0.1), DynaTree(1, 3, 0.2), DynaTree(2, 3, 0.1), DynaTree(2, 3, 0.2)]
    rules = experiments.DYNATREE_RULES.settings["rules"]
    assert len(rules) == 155
    assert rules[0] == DynaTree(3, 1, 0.01)
    assert rules[149:151] == [chain(1), chain(6)]


def test_no_recording_is_stale():
    """Made with other heads, by a gone command, or with unknown columns."""
    assert experiments.stale() == {}


@pytest.mark.parametrize("name", [name for name in TABLE if (RESULTS / f"{name}.jsonl").exists()])
def test_nothing_is_missing_of_what_is_recorded(name):
    """Every block of the table is in its file, whole, and no other: as in the second edition."""
    assert experiments.missing(name) == 0
    known = {block.key for block in TABLE[name].keyed_blocks()}
    assert known == {one.line["block"] for one in record.read(RESULTS / f"{name}.jsonl")}


def test_what_a_gpu_has_not_been_asked_is_missing():
    """Negative control for the test above."""
    listing = experiments.listing().set_index("name")
    assert set(listing["state"]) == {"complete", "to record"}
    assert experiments.missing("gpu_race") == listing.loc["gpu_race", "blocks"] == 12


def test_every_result_belongs_to_a_recording():
    """A file of data/results is a recording, or of one that has its JSON beside it."""
    names = {path.stem for path in RESULTS.glob("*.json")}
    for path in RESULTS.glob("[!.]*"):
        if path.suffix in (".csv", ".npz"):
            assert any(path.stem.startswith(name) for name in names), path.name
        else:
            assert path.suffix in (".json", ".jsonl"), path.name


def asked(monkeypatch, columns=None):
    """The cell of ptd_alike without a model: what it returns, and the experiment under its name."""
    row = dict.fromkeys(columns or sorted(experiments.ALIKE_CELL.columns), 0.5) | {"method": "ptd"}
    measure = lambda prompt, methods, length: [row]  # noqa: E731
    toy = replace(PTD_ALIKE, cell=replace(experiments.ALIKE_CELL, measure=measure))
    monkeypatch.setitem(TABLE, "ptd_alike", toy)
    return toy


def record_one(folder, monkeypatch, columns=None):
    """A recording of one block without a model."""
    asked(monkeypatch, columns)
    plan = claims.plan_of("ptd_alike")
    return experiments.record("ptd_alike", only=["rag-05"], folder=folder, plan=plan)


def lines(path):
    return [json.loads(text) for text in path.read_text().splitlines()]


def write(path, *written):
    path.write_text("".join(json.dumps(line) + "\n" for line in written))


def test_a_recording_says_its_command_and_is_read_back(tmp_path, monkeypatch):
    record_one(tmp_path, monkeypatch)
    table = experiments.recorded("ptd_alike", tmp_path)
    assert table["command"].item() == "python -m study record ptd_alike"
    assert table["domain"].item() == "rag"
    assert table["heads"].item() == "{}"
    assert table["plan"].item() == claims.plan_of("ptd_alike") != ""
    assert table.attrs["stale"] == ""
    listing = experiments.listing(tmp_path).set_index("name")
    assert listing.loc["ptd_alike", ["recorded", "state"]].tolist() == [1, "begun"]
    assert experiments.stale(tmp_path) == {}
    with pytest.raises(ValueError, match="unknown experiment 'ptd_like': known are race"):
        experiments.recorded("ptd_like", tmp_path)
    with pytest.raises(ValueError, match=r"race is not recorded yet, as it is now: `python -m study record race`"):
        experiments.recorded("race", tmp_path)


def test_a_recording_is_read_by_name_or_by_constant():
    pd.testing.assert_frame_equal(experiments.recorded("ptd_alike"), experiments.recorded(PTD_ALIKE))


def test_a_block_that_failed_in_part_is_missing(tmp_path, monkeypatch):
    record_one(tmp_path, monkeypatch)
    path, every = tmp_path / "ptd_alike.jsonl", len(TABLE["ptd_alike"].blocks())
    assert experiments.missing("ptd_alike", tmp_path) == every - 1
    line, row = lines(path)
    good, bad = ({**row, "status": status, "error": error} for status, error in (("ok", ""), ("failed", "x")))
    write(path, {**line, "rows": 2}, good, bad)
    assert experiments.missing("ptd_alike", tmp_path) == every


def test_a_torn_recording_is_told(tmp_path):
    (tmp_path / "ptd_alike.jsonl").write_text('{"block"')
    assert experiments.stale(tmp_path) == {"ptd_alike.jsonl": "it has no whole block"}
    with pytest.raises(ValueError, match="ptd_alike is not recorded yet"):
        experiments.recorded("ptd_alike", tmp_path)


def test_what_no_claim_is_made_of_has_no_plan():
    assert claims.plan_of("") == ""
    assert claims.plan_of("race") == ""
    assert claims.plan_of("ptd")


def test_prompts_of_another_experiment_are_not_recorded(tmp_path):
    with pytest.raises(ValueError, match=r"rag-01 is no prompt of ptd_alike, whose prompts are own:5-10"):
        experiments.record("ptd_alike", only=["rag:2"], folder=tmp_path, plan="")
    assert not list(tmp_path.iterdir())


def test_only_the_present_blocks_are_read(tmp_path, monkeypatch):
    """Rows of other settings stand in the file and are not pooled with the present ones."""
    record_one(tmp_path, monkeypatch)
    path = tmp_path / "ptd_alike.jsonl"
    line, row = lines(path)
    other = {**line, "block": "0" * 16, "settings": {**line["settings"], "length": 7}, "heads": {"edd": "another"}}
    write(path, line, row, other, {**row, "block": "0" * 16})
    assert len(record.load(path)) == 2
    table = experiments.recorded("ptd_alike", tmp_path)
    assert table["length"].tolist() == [64]
    assert table.attrs["stale"] == ""
    assert experiments.stale(tmp_path) == {"ptd_alike.jsonl": "made with other heads: edd"}


def test_a_block_under_another_key_is_not_read(tmp_path, monkeypatch):
    record_one(tmp_path, monkeypatch)
    path = tmp_path / "ptd_alike.jsonl"
    line, row = lines(path)
    write(path, {**line, "block": "0" * 16}, {**row, "block": "0" * 16})
    with pytest.raises(ValueError, match="ptd_alike is not recorded yet"):
        experiments.recorded("ptd_alike", tmp_path)


@pytest.mark.parametrize("fault", ["heads", "columns", "name", "command"])
def test_each_fault_makes_a_recording_stale(tmp_path, monkeypatch, fault):
    """Negative controls for the test above: every kind of staleness is found."""
    path = tmp_path / "ptd_alike.jsonl"
    if fault == "columns":
        record_one(tmp_path, monkeypatch, [*sorted(experiments.ALIKE_CELL.columns), "surprise"])
    elif fault == "command":
        facts = {"command": "python -m specnb.bench --out x", "date": "2026-11-22"}
        (tmp_path / "old.json").write_text(json.dumps(facts))
        assert experiments.stale(tmp_path) == {"old.json": "its command is gone"}
        return
    else:
        record_one(tmp_path, monkeypatch)
    if fault == "heads":
        line, row = lines(path)
        other = {**line, "block": "0" * 16, "heads": {"edd": heads.hashes(["edd"])["edd"]}}
        write(path, other, {**row, "block": "0" * 16})
        assert experiments.stale(tmp_path) == {}
        write(path, {**line, "heads": {"edd": "another"}}, row)
    if fault == "name":
        shutil.move(path, path := tmp_path / "gone.jsonl")
    wanted = {
        "heads": "made with other heads: edd",
        "columns": "unknown or missing columns surprise",
        "name": "no experiment has this name",
    }[fault]
    assert experiments.stale(tmp_path) == {path.name: wanted}
    if fault in ("heads", "columns"):
        assert experiments.recorded("ptd_alike", tmp_path).attrs["stale"] == wanted


@pytest.mark.parametrize("module", ["training", "specnb.training"])
def test_a_report_of_heads_is_known_under_its_former_name(tmp_path, module):
    digest = heads.hashes(["edd"])["edd"]
    path = tmp_path / "heads_by_rank.json"
    path.write_text(json.dumps({"command": f"python -m {module} report --out x", "head_sha256": {"edd": digest}}))
    assert experiments.stale(tmp_path) == {}
    path.write_text(json.dumps({"command": f"python -m {module} report --out x", "head_sha256": {"edd": "another"}}))
    assert experiments.stale(tmp_path) == {path.name: "made with other heads: edd"}
    path.write_text(json.dumps({"command": f"python -m {module} reports --out x", "head_sha256": {"edd": digest}}))
    assert experiments.stale(tmp_path) == {path.name: "its command is gone"}
    path.write_text(json.dumps({"command": f"python -m {module} report --out x"}))
    assert experiments.stale(tmp_path) == {path.name: "it names no heads"}


# ---- recordings and heads -------------------------------------------------------------------------------------------


def test_a_recording_is_read_without_any_heads(tmp_path, monkeypatch):
    """Where data/drafts is not there nothing is known of heads: what they made is read, and nothing is called stale."""
    before = experiments.recorded("dynatree_rules")
    monkeypatch.setattr(heads, "FOLDER", tmp_path / "none")
    after = experiments.recorded("dynatree_rules")
    pd.testing.assert_frame_equal(before, after)
    assert after.attrs["stale"] == ""
    assert experiments.missing("dynatree_rules") == 0
    assert experiments.stale() == {}
    assert '"hass"' in after["heads"].iloc[0]  # and made with heads it was


def test_a_stale_recording_is_read_and_says_so(tmp_path, monkeypatch):
    """With the cards of other heads: the same rows, and in which heads they are not those of now."""
    before = experiments.recorded("dynatree_rules")
    cards = tmp_path / "drafts"
    shutil.copytree(heads.FOLDER, cards, ignore=shutil.ignore_patterns("*.safetensors", "*.csv"))
    card = json.loads((cards / "hass.json").read_text())
    (cards / "hass.json").write_text(json.dumps({**card, "sha256": "retrained"}))
    monkeypatch.setattr(heads, "FOLDER", cards)
    after = experiments.recorded("dynatree_rules")
    assert after.attrs["stale"] == "made with other heads: hass"
    pd.testing.assert_frame_equal(before, after)
    assert experiments.missing("dynatree_rules") == len(TABLE["dynatree_rules"].blocks())
    two = tmp_path / "results"
    two.mkdir()
    for name in ("dynatree_rules.jsonl", "dynatree.jsonl"):
        shutil.copy(RESULTS / name, two)
    assert experiments.stale(two) == {"dynatree_rules.jsonl": "made with other heads: hass"}


def with_cell_of(monkeypatch, name, measure):
    """The experiment, were its cell function this one."""
    changed = replace(TABLE[name], cell=replace(TABLE[name].cell, measure=measure))
    monkeypatch.setitem(TABLE, name, changed)


def test_a_new_optional_setting_makes_no_recording_stale(monkeypatch):
    before = experiments.recorded("dynatree_texts")

    def measure(prompt, methods, length, control="", pair="smollm2-135m", dtype="float32", plain="generate", window=0):
        """texts_block with a setting that it did not have when the recording was made."""

    with_cell_of(monkeypatch, "dynatree_texts", measure)
    assert experiments.missing("dynatree_texts") == 0
    pd.testing.assert_frame_equal(experiments.recorded("dynatree_texts"), before)
    changed = replace(TABLE["dynatree_texts"], settings={**TABLE["dynatree_texts"].settings, "window": 1})
    assert experiments.missing(changed) == 36  # a control: with the setting it is another experiment


def test_a_changed_default_makes_a_recording_another_one(monkeypatch):
    def measure(prompt, methods, length, control="", pair="smollm2-135m", dtype="float16", plain="generate"):
        """texts_block in another dtype: the experiment does not say in which."""

    with_cell_of(monkeypatch, "dynatree_texts", measure)
    assert experiments.missing("dynatree_texts") == 36
    with pytest.raises(ValueError, match="dynatree_texts is not recorded yet, as it is now"):
        experiments.recorded("dynatree_texts")


def test_a_method_that_drafts_with_another_head_now_makes_its_recordings_stale(monkeypatch):
    made = methods.METHODS["edd-chain-5"]
    monkeypatch.setitem(methods.METHODS, "edd-chain-5", replace(made, head="talf"))
    assert experiments.recorded("edd_sampled").attrs["stale"] == "made with other heads: talf"
    monkeypatch.setitem(methods.METHODS, "vdm-chain-5", replace(made, head="talf"))
    assert experiments.recorded("ptd_speed").attrs["stale"] == "made with other heads: talf, vdm"


def test_weights_of_ones_own_are_hashed(tmp_path):
    weights = tmp_path / "mine.safetensors"
    assert experiments.known_hash(str(tmp_path / "mine")) is None
    weights.write_bytes(b"weights")
    assert experiments.known_hash(str(tmp_path / "mine")) == files.sha256(weights)
    assert experiments.known_hash("edd") == heads.hashes(["edd"])["edd"]
    assert experiments.known_hash("edd_small-1") is not None  # a variant, of which there is only the card
    assert experiments.known_hash("no such head") is None


def test_what_makes_no_sense_is_told_before_anything_is_loaded():
    with pytest.raises(ValueError, match="unknown method 'hass-slaf': did you mean 'hass-salf'"):
        replace(PTD, settings={"methods": ["hass-slaf"]}).check()
    with pytest.raises(ValueError, match="race cannot take the block"):
        replace(PTD, settings={"method": "ptd"}).check()
    with pytest.raises(ValueError, match="no trained head 'edt'"):
        replace(experiments.PRICES, settings={"heads": ["edt"]}).check()
    PTD.check()


def test_heads_of_an_experiment():
    assert TABLE["race"].heads() == {"vdm", "medusa", "edd", "hass"}
    assert TABLE["dynatree"].heads() == {"vdm"}  # assistant's, too
    assert TABLE["equal"].heads() == {"vdm", "medusa", "edd", "eagle", "hass", "talf"}
    assert TABLE["edd_temperature"].heads() == {"edd"}
    assert TABLE["gpu_shapes"].heads() == TABLE["lookup"].heads() == set()
    dynatree = TABLE["dynatree"]
    assert replace(dynatree, settings={**dynatree.settings, "head": ""}).heads() == {"vdm"}
    assert replace(dynatree, settings={**dynatree.settings, "head": "my/head"}).heads() == {"vdm", "my/head"}
    assert replace(dynatree, settings={"methods": ["ptd"], "head": "my/head"}).heads() == set()


# ---- someone new adds an experiment ---------------------------------------------------------------------------------


def one_rule(prompt: str, rules: list[Growth]) -> list[dict[str, object]]:
    """A cell function of one's own."""
    return [{"rule": methods.label(rule), "tau": 1.0} for rule in rules]


def test_an_experiment_of_ones_own(tmp_path):
    """As the module's docstring says: a constant is all. Pools measure it, and it is read by the constant."""
    cell = experiments.Cell("mine", one_rule, frozenset({"rule", "tau"}))
    mine = experiments.Experiment(
        "mine", cell, feeds=["03"], minutes=1, prompts=["own:1"], settings={"rules": [DynaTree(), Eagle2(12)]}
    )
    with ProcessPoolExecutor(1) as pool:
        experiments.record(mine, folder=tmp_path, executor=pool, plan="")
    table = experiments.recorded(mine, tmp_path)
    assert set(table["command"]) == {"python -m study record mine"}
    assert set(table["rule"]) == {"DynaTree()", "Eagle2(total=12)"}
    assert experiments.missing(mine, tmp_path) == 0
    assert table.attrs["stale"] == ""


def test_the_docstrings_experiment_is_one(monkeypatch):
    text = experiments.__doc__
    code = text[text.index("    TINY_RACE") : text.index("\n\n``python -m study record")]
    namespace = dict(vars(experiments))
    exec("if True:\n" + code, namespace)
    tiny = namespace["TINY_RACE"]
    assert experiments.table_of(namespace.values())["tiny_race"] is tiny
    assert len(tiny.keyed_blocks()) == 12
    assert experiments.missing(tiny) == 12


@pytest.mark.usefixtures("toy")
def test_alike_looks_at_branches():
    rows = branches.alike_block("conversation-02", ["self-draft", "ptd"], 40)
    for row in rows:
        assert set(row) == experiments.ALIKE_CELL.columns
        assert 0 <= row["share overlap 0.8"] <= row["share overlap 0.5"] <= 1
        assert row["branches"] > 1
    assert pd.DataFrame(rows)["repeated"].between(0, 1).all()
