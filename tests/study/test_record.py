"""Recordings block by block: kills, full disks, failures, other heads and machines lose and repeat nothing."""

import builtins
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import record_cells
from filelock import FileLock
from record_cells import blocks
from server import free_port

from specnb.growth import EAGLE_25, Pct, Static, chain, kary
from specnb.models import files, provenance
from study import record

TESTS = Path(__file__).parent.parent


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


@pytest.fixture(scope="module")
def cluster():
    """A real Dask cluster of two worker processes, which can import what they are asked to measure."""
    distributed = pytest.importorskip("distributed")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(TESTS)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client
    if before is None:
        del os.environ["PYTHONPATH"]


def measured(log) -> list[str]:
    return sorted(log.read_text().split()) if log.exists() else []


def rows(table) -> list[tuple]:
    return sorted(table[["depth", "branch", "product"]].itertuples(index=False, name=None))


def test_grid_is_the_product():
    assert record.grid(a=(1, 2), b="xy") == [{"a": a, "b": b} for a in (1, 2) for b in "xy"]
    with pytest.raises(ValueError, match="axis 'b' of the grid has no values"):
        record.grid(a=(1,), b=())


def test_all_executors_make_the_same_table(tmp_path, cluster, log):
    here = record.run("cell", record_cells.cell, blocks(log), tmp_path / "here.jsonl", command="me")
    with ProcessPoolExecutor(2) as pool:
        pooled = record.run("cell", record_cells.cell, blocks(log), tmp_path / "pool.jsonl", executor=pool)
    dask = record.run(
        "cell", record_cells.cell, blocks(log), tmp_path / "dask.jsonl", executor=cluster.get_executor()
    )  # fmt: skip
    assert rows(here) == rows(pooled) == rows(dask) == [(d, b, d * b) for d in range(1, 7) for b in (1, 2)]
    assert (here["status"] == "ok").all()
    assert set(here["name"]) == {"NA"}  # a text, not a missing number
    assert set(here["processor"]) == {provenance.processor()}
    assert set(here["command"]) == {"me"}


@pytest.mark.slow
@pytest.mark.model
def test_a_cluster_started_by_hand_as_the_docs_say(tmp_path):
    """Scheduler and worker are processes of their own; a race sends its block there."""
    pytest.importorskip("distributed")
    port = str(free_port())
    lines = (files.ROOT / "docs" / "cluster.md").read_text(encoding="utf-8").split("```")[1].strip()
    lines = lines.replace("8786", port).replace("HOST", "127.0.0.1").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    module = {"dask": [sys.executable, "-m", "dask"], "python": [sys.executable]}
    *servers, asked = [[*module[first], *rest] for first, *rest in commands]
    running = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) for command in servers]
    try:
        subprocess.run([*asked, "--prompts", "conversation-01"], cwd=tmp_path, check=True, timeout=300)
    finally:
        for server in running:
            server.terminate()
        for server in running:
            server.wait(60)
    assert record.load(tmp_path / "my_texts.jsonl")["same"].tolist() == [True]


def test_nothing_is_measured_twice(tmp_path, log):
    file = tmp_path / "r.jsonl"
    record.run("cell", record_cells.cell, blocks(log, (1, 2)), file)
    table = record.run("cell", record_cells.cell, blocks(log, (1, 2, 3)), file)
    assert len(table) == 6
    assert measured(log) == ["1", "2", "3"]
    again = record.run("cell", record_cells.slow, blocks(log, (3,)), file)  # the function may be called otherwise
    assert again["depth"].tolist() == [3, 3]  # only what was asked for
    assert len(record.load(file)) == 6
    assert measured(log) == ["1", "2", "3"]


def test_other_heads_are_measured_again(tmp_path, log):
    """Resuming with retrained heads measures again, and rows say with which they were measured: the last ones."""
    file = tmp_path / "r.jsonl"
    record.run("cell", record_cells.cell, blocks(log, (1,)), file, heads={"edd": "old"})
    table = record.run("cell", record_cells.cell, blocks(log, (1,)), file, heads={"edd": "new"})
    assert measured(log) == ["1", "1"]
    assert set(table["heads"]) == {'{"edd": "new"}'}
    assert len(file.read_text().splitlines()) == 6  # both records are kept
    assert set(record.load(file)["heads"]) == {'{"edd": "new"}'}
    assert set(record.load(file, heads={"edd": "old"})["heads"]) == {'{"edd": "old"}'}


def test_a_failure_with_new_heads_hides_no_rows_and_is_left_alone(tmp_path):
    file, measured = tmp_path / "r.jsonl", []

    def measure(depth):
        measured.append(depth)
        if len(measured) > 1:
            raise RuntimeError("out of memory")
        return {"v": depth}

    record.run("cell", measure, [{"depth": 1}], file, heads={"edd": "old"})
    for _ in range(2):
        table = record.run("cell", measure, [{"depth": 1}], file, heads={"edd": "new"})
        assert table["error"].tolist() == ["RuntimeError: out of memory"]
    assert measured == [1, 1]
    assert record.load(file)["v"].tolist() == [1]


def test_a_killed_driver_loses_only_the_block_in_flight(tmp_path, log):
    file = tmp_path / "r.jsonl"
    driver = subprocess.Popen([sys.executable, TESTS / "record_cells.py", file, log], stderr=subprocess.DEVNULL)
    while len(measured(log)) < 3:
        assert driver.poll() is None
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    before = record.load(file)
    assert 4 <= len(before) < 12
    assert before.groupby("block").size().eq(2).all()  # whole blocks
    table = record.run("cell", record_cells.slow, blocks(log), file)
    assert len(table) == 12
    assert len(measured(log)) <= 7  # the one in flight at most
    kept = table[table["block"].isin(before["block"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, before)


@pytest.mark.parametrize("share", np.linspace(0, 1, 26))
def test_a_torn_last_line_is_not_read_and_mended(tmp_path, log, share):
    """Readers leave it out, whatever is cut off: a number cut short is no number."""
    file = tmp_path / "r.jsonl"
    whole = record.run("cell", record_cells.cell, blocks(log, (1, 2)), file)
    second = b"".join(file.read_bytes().splitlines(keepends=True)[3:])
    cut = 1 + round(share * (len(second) - 2))  # within the line of the block, or one of its two rows
    file.write_bytes(file.read_bytes()[:-cut])
    assert record.load(file)["depth"].tolist() == [1, 1]
    again = record.run("cell", record_cells.cell, blocks(log, (1, 2)), file)
    assert rows(again) == rows(whole)
    assert measured(log) == ["1", "2", "2"]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, log, monkeypatch):
    """Half a line is written and the disk is full: the error is the disk's, and what was recorded is whole."""
    file = tmp_path / "r.jsonl"
    record.run("cell", record_cells.cell, blocks(log, (1,)), file)
    before, real = file.read_bytes(), builtins.open

    class Full:
        def __init__(self, inner):
            self.inner = inner

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.inner.close()

        def write(self, data):
            self.inner.write(data[: len(data) // 2])
            self.inner.flush()
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(
        builtins, "open", lambda f, mode="r", *a, **k: Full(real(f, mode, *a, **k)) if mode == "ab" else real(f, mode)
    )
    with pytest.raises(OSError, match="No space left"):
        record.run("cell", record_cells.cell, blocks(log, (1, 2)), file)
    monkeypatch.undo()
    assert file.read_bytes() == before
    assert len(record.run("cell", record_cells.cell, blocks(log, (1, 2)), file)) == 4


def test_a_block_that_vanishes_is_missed(tmp_path, log, monkeypatch):
    """What a run returns is counted: rows that somebody else took away are an error, not a shorter table."""
    file = tmp_path / "r.jsonl"
    monkeypatch.setattr(record, "_append", lambda *_: file.touch())
    with pytest.raises(RuntimeError, match="lacks 2 of 2 blocks after the run"):
        record.run("cell", record_cells.cell, blocks(log, (1, 2)), file)


def test_another_processor_is_said_and_kept_apart(tmp_path, log, monkeypatch, capsys):
    file, here = tmp_path / "r.jsonl", provenance.processor()
    with monkeypatch.context() as patch:
        patch.setattr(provenance, "processor", lambda: "Another CPU, AVX")
        record.run("cell", record_cells.cell, blocks(log, (1,)), file)
    capsys.readouterr()
    table = record.run("cell", record_cells.cell, blocks(log, (1, 2)), file)
    said = capsys.readouterr().err
    assert "has blocks of Another CPU, AVX, cpu, " in said
    assert f"; this is {here}, cpu, " in said
    assert table.groupby("depth")["processor"].agg(set).to_dict() == {1: {"Another CPU, AVX"}, 2: {here}}


def test_a_killed_cluster_worker_loses_nothing(tmp_path, log, cluster):
    file = tmp_path / "r.jsonl"
    table = record.run("cell", record_cells.deadly, blocks(log), file, executor=cluster.get_executor())
    assert Path(f"{log}.died").exists()
    assert (table["status"] == "ok").all()
    assert len(table) == len(record.load(file)) == 12
    assert set(measured(log)) == set("123456")


def test_a_killed_pool_worker_is_an_error_that_keeps_what_was_recorded(tmp_path, log):
    file = tmp_path / "r.jsonl"
    with ProcessPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="lost a worker: what was recorded stays"):
        record.run("cell", record_cells.deadly, blocks(log), file, executor=pool)
    with ProcessPoolExecutor(2) as pool:
        assert len(record.run("cell", record_cells.deadly, blocks(log), file, executor=pool)) == 12


def test_failures_are_recorded_and_left_alone_until_retried(tmp_path, log):
    file = tmp_path / "r.jsonl"
    table = record.run("cell", record_cells.fragile, blocks(log, (1, 2, 3)), file)
    failed = table[table["status"] == "failed"]
    assert failed["error"].tolist() == ["RuntimeError: depth 2 is broken"]
    Path(f"{log}.mended").touch()
    assert (record.run("cell", record_cells.fragile, blocks(log, (1, 2, 3)), file)["status"] == "failed").sum() == 1
    table = record.run("cell", record_cells.fragile, blocks(log, (1, 2, 3)), file, retry=True)
    assert (table["status"] == "ok").all()
    assert len(table) == 6
    assert measured(log) == ["1", "2", "3"]


def test_a_retry_that_fails_altogether_hides_nothing(tmp_path):
    """A block with one failed row is measured again, the whole block fails: the earlier rows stay what is read."""
    file, broken = tmp_path / "r.jsonl", []

    def measure(depth):
        if broken:
            raise RuntimeError("out of memory")
        return [{"method": "a", "status": "ok", "v": 1}, {"method": "b", "status": "failed", "v": None}]

    record.run("cell", measure, [{"depth": 1}], file)
    broken.append(True)
    table = record.run("cell", measure, [{"depth": 1}], file, retry=True)
    assert table["status"].tolist() == ["ok", "failed"]
    assert len(file.read_text().splitlines()) == 4  # a line and its two rows, and a line without rows
    failed = lambda depth: [{"method": name, "status": "failed", "v": None} for name in "ab"]  # noqa: E731
    assert record.run("cell", failed, [{"depth": 1}], file, retry=True)["status"].tolist() == ["ok", "failed"]


def test_a_file_in_use_is_refused(tmp_path, log):
    with FileLock(tmp_path / ".r.jsonl.lock"), pytest.raises(ValueError, match="is being written by another run"):
        record.run("cell", record_cells.cell, blocks(log), tmp_path / "r.jsonl")
    assert measured(log) == []


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([], "there are no blocks"),
        ([{"depth": 1}], "cell cannot take the block"),
        ([{"depth": 1, "branches": {1}, "log": "x"}], "cell cannot take the block"),
        ([{"depth": 1, "branches": [1], "log": "x"}] * 2, "the same block stands twice"),
    ],
)
def test_bad_blocks_are_refused_before_any_work(tmp_path, wanted, message):
    with pytest.raises(ValueError, match=message):
        record.run("cell", record_cells.cell, wanted, tmp_path / "r.jsonl")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["method,seconds\n", "method,seconds", "[1]\n", '{"block": "0"}\n', '{"a": 1}'])
def test_a_file_of_something_else_is_named(tmp_path, log, text):
    file = tmp_path / "r.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match="line 1 is no recorded block"):
        record.run("cell", record_cells.cell, blocks(log), file)
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        (1, {"settings": []}, "line 1 is no recorded block: 'settings' is a list, no JSON object"),
        (1, {"rows": "2"}, "line 1 is no recorded block: 'rows' is how many follow, got '2'"),
        (1, {"rows": 1}, "line 3 is no recorded block: it lacks 'cell'"),
        (2, {"block": "0"}, "line 2 is no recorded block: it is no row of the block"),
        (3, {"more": 1}, "line 3 is no recorded block: its columns are not those of the row above"),
    ],
)
def test_a_changed_line_is_named(tmp_path, log, line, change, message):
    """Whatever somebody has edited: what no longer fits together is not read."""
    file = tmp_path / "r.jsonl"
    record.run("cell", record_cells.cell, blocks(log, (1,)), file)
    lines = [json.loads(text) for text in file.read_text().splitlines()]
    lines[line - 1] |= change
    file.write_text("".join(json.dumps(one) + "\n" for one in lines))
    with pytest.raises(ValueError, match=message):
        record.load(file)


def test_a_recording_of_the_second_edition_is_told(tmp_path):
    file = tmp_path / "r.jsonl"
    file.write_text('{"key": "0123456789abcdef", "cell": "race", "block": {}, "rows": {"method": ["ptd"]}}\n')
    with pytest.raises(ValueError, match=r"line 1 .*it is of the second edition: `python tools/rekey_recordings.py"):
        record.load(file)


def test_numbers_of_numpy_are_recorded(tmp_path):
    def measure(depth):
        return {"value": np.float64(depth) / 3, "flag": np.bool_(True)}

    table = record.run("numpy", measure, [{"depth": 1}], tmp_path / "r.jsonl")
    assert table["value"].item() == 1 / 3
    line, row = map(json.loads, (tmp_path / "r.jsonl").read_text().splitlines())
    assert line["rows"] == 1
    assert row == {"block": line["block"], "value": 1 / 3, "flag": True}


def test_lists_in_rows_are_lists_in_the_file(tmp_path):
    trees = [[1, 3], [12, 40]]
    table = record.run("race", lambda depth: {"trees": trees, "ids": []}, [{"depth": 1}], tmp_path / "r.jsonl")
    assert table["trees"].item() == trees
    assert table["ids"].item() == []
    assert '"trees": [[1, 3], [12, 40]], "ids": []}' in (tmp_path / "r.jsonl").read_text()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "has returned no rows"),
        ([{"a": 1}, {"b": 1}], r"differ in their columns: \['a'\] and \['b'\]"),
        ([{"block": 1}], "a column is called 'block'"),
    ],
)
def test_rows_that_cannot_be_recorded_are_a_failure(tmp_path, rows, message):
    table = record.run("cell", lambda depth: rows, [{"depth": 1}], tmp_path / "r.jsonl")
    assert table["status"].tolist() == ["failed"]
    assert re.search(message, table["error"].item())


# ---- keys: what makes a block the same ------------------------------------------------------------------------------


def test_growth_rules_are_measured_as_objects_and_written_by_their_labels(tmp_path):
    seen = []

    def measure(rules, one):
        seen.extend([*rules, one])
        return {"v": 1}

    rules = [chain(6), kary(2, 3), EAGLE_25, Pct(0.06)]
    record.run("rules", measure, [{"rules": rules, "one": Pct()}], tmp_path / "r.jsonl")
    assert seen == [*rules, Pct()]
    line = json.loads((tmp_path / "r.jsonl").read_text().splitlines()[0])
    assert line["settings"] == {"rules": ["chain(6)", "kary(2, 3)", "EAGLE_25", "Pct(cost=0.06)"], "one": "Pct()"}
    with pytest.raises(ValueError, match=r"cell cannot take the block .*: a shape is recorded under its name"):
        record.identified("cell", measure, [{"rules": [Static(((0,),))], "one": Pct()}])


def test_a_new_optional_setting_changes_no_key_and_a_changed_default_is_another_block(tmp_path):
    """The file stays as it was; only the cell function's signature changes."""
    file, wanted = tmp_path / "r.jsonl", [{"depth": 1}, {"depth": 2}]

    def before(depth, k=4):
        return {"v": depth * k}

    def with_more(depth, k=4, softened=1.0):
        return {"v": 0}

    def with_another_default(depth, k=5):
        return {"v": depth * k}

    table = record.run("cell", before, wanted, file)
    again = record.run("cell", with_more, wanted, file)
    pd.testing.assert_frame_equal(again, table)
    softer = record.identified("cell", with_more, [{"depth": 1, "softened": 0.9}])
    assert record.load(file, softer).empty
    assert record.load(file, record.identified("cell", with_another_default, wanted)).empty
    other = record.run("cell", with_another_default, wanted, file)
    assert other["v"].tolist() == [5, 10]
    assert record.run("cell", before, wanted, file)["v"].tolist() == [4, 8]  # neither hides the other
    assert sorted(record.load(file)["v"]) == [4, 5, 8, 10]


def test_a_default_and_the_same_value_given_are_one_block():
    def measure(depth, sizes=(1, 2)):
        return {}

    (one,) = record.identified("cell", measure, [{"depth": 1}])
    (other,) = record.identified("cell", measure, [{"depth": 1, "sizes": [1, 2]}])
    assert one.key == other.key
    with pytest.raises(ValueError, match="the same block stands twice"):
        record.identified("cell", measure, [{"depth": 1}, {"depth": 1, "sizes": [1, 2]}])


def test_cells_and_settings_are_told_apart():
    def measure(depth, branch=2):
        return {}

    wanted = {"depth": 1}, {"depth": 2}, {"depth": 1, "branch": 1}
    keys = {record.identified(cell, measure, [block])[0].key for cell in ("a", "b") for block in wanted}
    assert len(keys) == 6


def test_an_interrupted_run_says_what_is_kept(tmp_path):
    def measure(depth):
        if depth == 3:
            raise KeyboardInterrupt
        return {"v": depth}

    file = tmp_path / "r.jsonl"
    with pytest.raises(KeyboardInterrupt, match=r"2 of 4 blocks recorded in .*r\.jsonl; the same command goes on"):
        record.run("cell", measure, record.grid(depth=range(1, 5)), file)
    assert record.load(file)["v"].tolist() == [1, 2]


def test_a_row_that_json_cannot_hold_is_that_blocks_error(tmp_path):
    """The other blocks go on, and what numpy counts is written as a number."""

    def odd(depth):
        return {"depth": np.int64(depth), "found": {1, 2} if depth == 2 else 0}

    table = record.run("cell", odd, record.grid(depth=(1, 2, 3)), tmp_path / "x.jsonl")
    assert table["status"].tolist() == ["ok", "failed", "ok"]
    assert "a row holds a set, which JSON cannot" in table["error"].tolist()[1]
    assert record.load(tmp_path / "x.jsonl")["depth"].tolist() == [1, 2, 3]
