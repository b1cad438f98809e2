"""Recordings block by block: kills, full disks, failures, other heads and machines lose and repeat nothing."""

import builtins
import json
import os
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
import sweep_cells
from filelock import FileLock
from server import free_port
from sweep_cells import blocks

from specnb.models import files, provenance
from study import sweep

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
    assert sweep.grid(a=(1, 2), b="xy") == [{"a": a, "b": b} for a in (1, 2) for b in "xy"]
    with pytest.raises(ValueError, match="axis 'b' of the grid has no values"):
        sweep.grid(a=(1,), b=())


def test_all_executors_make_the_same_table(tmp_path, cluster, log):
    here = sweep.run("cell", sweep_cells.cell, blocks(log), tmp_path / "here.jsonl", command="me")
    with ProcessPoolExecutor(2) as pool:
        pooled = sweep.run("cell", sweep_cells.cell, blocks(log), tmp_path / "pool.jsonl", executor=pool)
    dask = sweep.run(
        "cell", sweep_cells.cell, blocks(log), tmp_path / "dask.jsonl", executor=cluster.get_executor()
    )  # fmt: skip
    assert rows(here) == rows(pooled) == rows(dask) == [(d, b, d * b) for d in range(1, 7) for b in (1, 2)]
    assert (here["status"] == "ok").all()
    assert set(here["name"]) == {"NA"}  # a text, not a missing number
    assert set(here["processor"]) == {provenance.processor()}
    assert set(here["command"]) == {"me"}


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
    assert sweep.load(tmp_path / "my_texts.jsonl")["same"].tolist() == [True]


def test_nothing_is_measured_twice(tmp_path, log):
    file = tmp_path / "r.jsonl"
    sweep.run("cell", sweep_cells.cell, blocks(log, (1, 2)), file)
    table = sweep.run("cell", sweep_cells.cell, blocks(log, (1, 2, 3)), file)
    assert len(table) == 6
    assert measured(log) == ["1", "2", "3"]
    again = sweep.run("cell", sweep_cells.slow, blocks(log, (3,)), file)  # the function may be called otherwise
    assert again["depth"].tolist() == [3, 3]  # only what was asked for
    assert len(sweep.load(file)) == 6
    assert measured(log) == ["1", "2", "3"]


def test_other_heads_are_other_blocks(tmp_path, log):
    """Resuming with retrained heads measures again, and rows say under which they were measured."""
    file = tmp_path / "r.jsonl"
    sweep.run("cell", sweep_cells.cell, blocks(log, (1,)), file, heads={"edd": "old"})
    table = sweep.run("cell", sweep_cells.cell, blocks(log, (1,)), file, heads={"edd": "new"})
    assert measured(log) == ["1", "1"]
    assert set(table["heads"]) == {'{"edd": "new"}'}
    assert len(sweep.load(file)) == 4


def test_a_killed_driver_loses_only_the_block_in_flight(tmp_path, log):
    file = tmp_path / "r.jsonl"
    driver = subprocess.Popen([sys.executable, TESTS / "sweep_cells.py", file, log], stderr=subprocess.DEVNULL)
    while len(measured(log)) < 3:
        assert driver.poll() is None
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    before = sweep.load(file)
    assert 4 <= len(before) < 12
    assert before.groupby("key").size().eq(2).all()  # whole blocks
    table = sweep.run("cell", sweep_cells.slow, blocks(log), file)
    assert len(table) == 12
    assert len(measured(log)) <= 7  # the one in flight at most
    kept = table[table["key"].isin(before["key"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, before)


@pytest.mark.parametrize("cut", range(1, 400, 23))
def test_a_torn_last_line_is_not_read_and_mended(tmp_path, log, cut):
    """Readers leave it out, whatever is cut off: a number cut short is no number."""
    file = tmp_path / "r.jsonl"
    whole = sweep.run("cell", sweep_cells.cell, blocks(log, (1, 2)), file)
    file.write_bytes(file.read_bytes()[:-cut])
    assert sweep.load(file)["depth"].tolist() == [1, 1]
    again = sweep.run("cell", sweep_cells.cell, blocks(log, (1, 2)), file)
    assert rows(again) == rows(whole)
    assert measured(log) == ["1", "2", "2"]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, log, monkeypatch):
    """Half a line is written and the disk is full: the error is the disk's, and what was recorded is whole."""
    file = tmp_path / "r.jsonl"
    sweep.run("cell", sweep_cells.cell, blocks(log, (1,)), file)
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
        sweep.run("cell", sweep_cells.cell, blocks(log, (1, 2)), file)
    monkeypatch.undo()
    assert file.read_bytes() == before
    assert len(sweep.run("cell", sweep_cells.cell, blocks(log, (1, 2)), file)) == 4


def test_a_block_that_vanishes_is_missed(tmp_path, log, monkeypatch):
    """What a run returns is counted: rows that somebody else took away are an error, not a shorter table."""
    file = tmp_path / "r.jsonl"
    monkeypatch.setattr(sweep, "_append", lambda *_: file.touch())
    with pytest.raises(RuntimeError, match="lacks 2 of 2 blocks after the run"):
        sweep.run("cell", sweep_cells.cell, blocks(log, (1, 2)), file)


def test_another_processor_is_said_and_kept_apart(tmp_path, log, monkeypatch, capsys):
    file, here = tmp_path / "r.jsonl", provenance.processor()
    with monkeypatch.context() as patch:
        patch.setattr(provenance, "processor", lambda: "Another CPU, AVX")
        sweep.run("cell", sweep_cells.cell, blocks(log, (1,)), file)
    capsys.readouterr()
    table = sweep.run("cell", sweep_cells.cell, blocks(log, (1, 2)), file)
    said = capsys.readouterr().err
    assert "has blocks of Another CPU, AVX, cpu, " in said
    assert f"; this is {here}, cpu, " in said
    assert table.groupby("depth")["processor"].agg(set).to_dict() == {1: {"Another CPU, AVX"}, 2: {here}}


def test_a_killed_cluster_worker_loses_nothing(tmp_path, log, cluster):
    file = tmp_path / "r.jsonl"
    table = sweep.run("cell", sweep_cells.deadly, blocks(log), file, executor=cluster.get_executor())
    assert Path(f"{log}.died").exists()
    assert (table["status"] == "ok").all()
    assert len(table) == len(sweep.load(file)) == 12
    assert set(measured(log)) == set("123456")


def test_a_killed_pool_worker_is_an_error_that_keeps_what_was_recorded(tmp_path, log):
    file = tmp_path / "r.jsonl"
    with ProcessPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="lost a worker: what was recorded stays"):
        sweep.run("cell", sweep_cells.deadly, blocks(log), file, executor=pool)
    with ProcessPoolExecutor(2) as pool:
        assert len(sweep.run("cell", sweep_cells.deadly, blocks(log), file, executor=pool)) == 12


def test_failures_are_recorded_and_left_alone_until_retried(tmp_path, log):
    file = tmp_path / "r.jsonl"
    table = sweep.run("cell", sweep_cells.fragile, blocks(log, (1, 2, 3)), file)
    failed = table[table["status"] == "failed"]
    assert failed["error"].tolist() == ["RuntimeError: depth 2 is broken"]
    Path(f"{log}.mended").touch()
    assert (sweep.run("cell", sweep_cells.fragile, blocks(log, (1, 2, 3)), file)["status"] == "failed").sum() == 1
    table = sweep.run("cell", sweep_cells.fragile, blocks(log, (1, 2, 3)), file, retry=True)
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

    sweep.run("cell", measure, [{"depth": 1}], file)
    broken.append(True)
    table = sweep.run("cell", measure, [{"depth": 1}], file, retry=True)
    assert table["status"].tolist() == ["ok", "failed"]
    assert len(file.read_text().splitlines()) == 2
    failed = lambda depth: [{"method": name, "status": "failed", "v": None} for name in "ab"]  # noqa: E731
    assert sweep.run("cell", failed, [{"depth": 1}], file, retry=True)["status"].tolist() == ["ok", "failed"]


def test_a_file_in_use_is_refused(tmp_path, log):
    with FileLock(tmp_path / ".r.jsonl.lock"), pytest.raises(ValueError, match="is being written by another run"):
        sweep.run("cell", sweep_cells.cell, blocks(log), tmp_path / "r.jsonl")
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
        sweep.run("cell", sweep_cells.cell, wanted, tmp_path / "r.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_file_of_something_else_is_named(tmp_path, log):
    file = tmp_path / "r.jsonl"
    file.write_text("method,seconds\n")
    with pytest.raises(ValueError, match="line 1 is no recorded block"):
        sweep.run("cell", sweep_cells.cell, blocks(log), file)
    assert file.read_text() == "method,seconds\n"


def test_numbers_of_numpy_are_recorded(tmp_path):
    def measure(depth):
        return {"value": np.float64(depth) / 3, "flag": np.bool_(True)}

    table = sweep.run("numpy", measure, [{"depth": 1}], tmp_path / "r.jsonl")
    assert table["value"].item() == 1 / 3
    assert json.loads((tmp_path / "r.jsonl").read_text())["rows"] == {"value": [1 / 3], "flag": [True]}
