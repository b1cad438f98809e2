"""Sweeps: the same table from every executor; kills, failures and foreign files lose and repeat nothing."""

import os
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
from sweep_cells import RESULTS, cells

from specnb import grids, growth, measures, sweep
from specnb.decode import Step
from specnb.tree import Draft, TokenTree
from specnb.verifiers import Verdict

HERE = Path(__file__).parent


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


@pytest.fixture(scope="module")
def cluster():
    """A real Dask cluster of two worker processes, which can import what they are asked to measure."""
    distributed = pytest.importorskip("distributed")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(HERE)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client
    if before is None:
        del os.environ["PYTHONPATH"]


def measured(log) -> list[str]:
    return sorted(log.read_text().split()) if log.exists() else []


def expected(depths=range(1, 7)) -> list[str]:
    return sorted(f"{depth},{branch}" for depth in depths for branch in (1, 2))


def test_grid_is_the_product():
    assert sweep.grid(a=(1, 2), b="xy") == [{"a": a, "b": b} for a in (1, 2) for b in "xy"]
    with pytest.raises(ValueError, match="axis 'b' of the grid has no values"):
        sweep.grid(a=(1,), b=())


def test_all_executors_make_the_same_table(tmp_path, cluster, log):
    here = sweep.run(sweep_cells.cell, cells(log), tmp_path / "here.csv", results=RESULTS)
    with ProcessPoolExecutor(2) as pool:
        pooled = sweep.run(sweep_cells.cell, cells(log), tmp_path / "pool.csv", results=RESULTS, executor=pool)
    executor = cluster.get_executor()
    dask = sweep.run(sweep_cells.cell, cells(log), tmp_path / "dask.csv", results=RESULTS, executor=executor)
    pd.testing.assert_frame_equal(here, pooled)
    pd.testing.assert_frame_equal(here, dask)
    assert here["depth"].tolist() == [depth for depth in range(1, 7) for _ in (1, 2)]
    assert (here["product"] == here["depth"] * here["branch"]).all()
    assert (here["status"] == "ok").all()


def test_nothing_is_measured_twice(tmp_path, log):
    file = tmp_path / "r.csv"
    sweep.run(sweep_cells.cell, cells(log, (1, 2)), file, results=RESULTS)
    table = sweep.run(sweep_cells.cell, cells(log, (1, 2, 3)), file, results=RESULTS)
    assert len(table) == 6
    assert measured(log) == expected((1, 2, 3))
    again = sweep.run(sweep_cells.cell, cells(log, (3,)), file, results=RESULTS)
    assert again["depth"].tolist() == [3, 3]  # only what was asked for
    assert len(sweep.load(file)) == 6


def test_a_killed_driver_loses_only_what_was_in_flight(tmp_path, log):
    file = tmp_path / "r.csv"
    driver = subprocess.Popen([sys.executable, HERE / "sweep_cells.py", file, log], stderr=subprocess.DEVNULL)
    while len(measured(log)) < 4:
        assert driver.poll() is None
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    before = sweep.load(file)
    assert 3 <= len(before) < 12
    table = sweep.run(sweep_cells.slow, cells(log), file, results=RESULTS)
    assert len(table) == 12
    assert len(measured(log)) <= 13  # the one in flight at most
    kept = table[table["key"].isin(before["key"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, before)


def test_a_torn_last_line_is_cut_off(tmp_path, log):
    file = tmp_path / "r.csv"
    whole = sweep.run(sweep_cells.cell, cells(log, (1, 2)), file, results=RESULTS)
    file.write_bytes(file.read_bytes()[:-7])
    pd.testing.assert_frame_equal(sweep.run(sweep_cells.cell, cells(log, (1, 2)), file, results=RESULTS), whole)
    assert len(measured(log)) == 5


def test_a_killed_cluster_worker_loses_nothing(tmp_path, log, cluster):
    file = tmp_path / "r.csv"
    table = sweep.run(sweep_cells.deadly, cells(log), file, results=RESULTS, executor=cluster.get_executor())
    assert Path(f"{log}.died").exists()
    assert (table["status"] == "ok").all()
    assert len(table) == len(sweep.load(file)) == 12
    assert set(measured(log)) == set(expected())


def test_a_killed_pool_worker_is_an_error_that_keeps_what_was_recorded(tmp_path, log):
    file = tmp_path / "r.csv"
    with ProcessPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="lost a worker: what was recorded stays"):
        sweep.run(sweep_cells.deadly, cells(log), file, results=RESULTS, executor=pool)
    assert sweep.load(file)["depth"].tolist() == [1, 1]
    with ProcessPoolExecutor(1) as pool:
        table = sweep.run(sweep_cells.deadly, cells(log), file, results=RESULTS, executor=pool)
    assert (table["status"] == "ok").all()
    assert measured(log) == expected()


def test_failures_are_recorded_and_retried_on_request(tmp_path, log):
    file, ask = tmp_path / "r.csv", {"results": RESULTS}
    table = sweep.run(sweep_cells.fragile, cells(log, (1, 2, 3)), file, **ask)
    assert table["status"].tolist() == ["ok", "ok", "failed", "failed", "ok", "ok"]
    assert table["error"][2] == "RuntimeError: depth 2 is broken"
    assert table["product"].isna().tolist() == [False, False, True, True, False, False]
    Path(f"{log}.mended").touch()
    assert (sweep.run(sweep_cells.fragile, cells(log, (1, 2, 3)), file, **ask)["status"] == "failed").sum() == 2
    table = sweep.run(sweep_cells.fragile, cells(log, (1, 2, 3)), file, retry=True, **ask)
    assert (table["status"] == "ok").all()
    assert measured(log) == expected((1, 2, 3))
    table = sweep.run(sweep_cells.wrong, cells(log, (1,)), tmp_path / "w.csv", **ask)
    assert table["error"][0] == "ValueError: measured ['something'], expected ['product', 'ratio']"


def check(depth, branch, log):
    growth.DynaTree(depth, branch)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: [], "there are no cells to measure"),
        (lambda c: [*c, c[0]], "the same cell stands twice"),
        (lambda c: [{**c[0], "width": 3}], "cannot take the cell .*unexpected keyword argument 'width'"),
        (lambda c: [{"depth": 1, "log": "x"}], "cannot take the cell .*missing a required argument: 'branch'"),
        (lambda c: [c[0], {"branch": 1, "depth": 9, "log": "x"}], "cells differ in their columns"),
        (lambda c: [*c, {**c[0], "depth": 0}], "cell .*'depth': 0.*DynaTree's depth must be at least 1, got 0"),
    ],
)
def test_bad_grids_are_refused_before_any_work(change, message, tmp_path, log):
    with pytest.raises(ValueError, match=message):
        sweep.run(sweep_cells.cell, change(cells(log)), tmp_path / "r.csv", results=RESULTS, check=check)
    assert measured(log) == []
    assert not (tmp_path / "r.csv").exists()


def test_a_file_of_another_sweep_is_refused_untouched(tmp_path, log):
    file = tmp_path / "r.csv"
    sweep.run(sweep_cells.cell, cells(log, (1,)), file, results=RESULTS)
    before = file.read_bytes()
    with pytest.raises(ValueError, match="is of another sweep: it has the columns key, status"):
        sweep.run(sweep_cells.wrong, cells(log, (1,)), file, results=("something",))
    assert file.read_bytes() == before
    foreign = tmp_path / "notes.txt"
    foreign.write_text("no line end")
    with pytest.raises(ValueError, match="is of another sweep: it has the columns nothing"):
        sweep.run(sweep_cells.cell, cells(log, (1,)), foreign, results=RESULTS)
    assert foreign.read_text() == "no line end"


def test_keys_and_cells_keep_their_type(tmp_path):
    """A key of digits alone, texts that look like numbers or like nothing, an error of several lines."""

    def echo(a):
        raise RuntimeError("10%\r20%\n30%")

    for text in ("001", "NA", "None"):
        table = sweep.run(echo, [{"a": text}], tmp_path / f"{text}.csv", results=("b",))
        assert table["a"].tolist() == [text]
        assert table["error"].tolist() == ["RuntimeError: 10% 20% 30%"]
    whole = sweep.grid(a=range(4000))
    digits = [cell for key, cell in sweep.cells_by_key(echo, whole).items() if key.isdigit()]
    assert digits
    table = sweep.run(echo, digits[:1], tmp_path / "digits.csv", results=("b",))
    assert table["a"].tolist() == [digits[0]["a"]]


def test_names_that_clash_are_refused(tmp_path):
    with pytest.raises(ValueError, match="the column 'depth' stands twice"):
        sweep.run(sweep_cells.cell, cells("x"), tmp_path / "r.csv", results=("depth",))
    with pytest.raises(ValueError, match="a sweep measures a named function on numbers and texts"):
        sweep.run(sweep_cells.cell, [{"depth": {1}, "branch": 1, "log": "x"}], tmp_path / "r.csv", results=RESULTS)
    assert sweep.grid(a=np.arange(2)) == [{"a": 0}, {"a": 1}]


def test_two_sweeps_do_not_write_one_file(tmp_path, log):
    file = tmp_path / "r.csv"
    driver = subprocess.Popen([sys.executable, HERE / "sweep_cells.py", file, log], stderr=subprocess.DEVNULL)
    while not measured(log):
        time.sleep(0.02)
    with pytest.raises(ValueError, match=r"r.csv is being written by another sweep"):
        sweep.run(sweep_cells.slow, cells(log), file, results=RESULTS)
    assert driver.wait() == 0
    assert len(sweep.load(file)) == 12


# --- the papers' grids


def test_a_run_is_all_its_beginnings():
    """Lengths in the middle of a step count up to its end; sums are those of the steps."""
    draft = Draft(TokenTree([0, 1, 2, 3], [-1, 0, 1, 2]))
    run = [
        Step(i, 0, draft, None, Verdict((), 0), tokens=(1,) * size, seconds={"draft": 0.1, "target": 0.2 * i})
        for i, size in enumerate((3, 1, 2))
    ]
    assert measures.after(run, 3) == pytest.approx({"seconds": 0.1, "tokens": 3, "steps": 1, "nodes": 3})
    assert measures.after(run, 5) == pytest.approx({"seconds": 0.9, "tokens": 6, "steps": 3, "nodes": 9})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": 1.0}, r"threshold must lie in \(0, 1\), got 1.0"),
        ({"budget": 0}, "budget must be at least 1, got 0"),
        ({"branch": 8193}, "branch 8193 exceeds the draft's vocabulary of 8192"),
    ],
)
def test_a_dynatree_grid_without_sense_is_refused(change, message, tmp_path):
    cell = {"draft_name": "vdm", "depth": 3, "branch": 2, "threshold": 0.1, "budget": 8, "prompt": "paper"}
    cells = [{**cell, "repetition": 0}, {**cell, **change, "repetition": 1}]
    options = {"results": measures.DYNATREE_RESULTS, "check": grids.check_dynatree}
    with pytest.raises(ValueError, match=message):
        sweep.run(measures.dynatree, cells, tmp_path / "r.csv", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.model
def test_dynatree_grid_on_the_model(tmp_path, monkeypatch):
    """Two real cells: the same text, counts that agree with each other."""
    monkeypatch.setattr(measures, "LENGTHS", (8, 24))
    names = tuple(f"{name} {n}" for n in (8, 24) for name in ("seconds", "tokens", "steps", "nodes"))
    cells = sweep.grid(
        draft_name=["vdm"], depth=[3], branch=[2], threshold=[0.05, 0.9], budget=[20], prompt=["paper"], repetition=[0]
    )
    table = sweep.run(measures.dynatree, cells, tmp_path / "r.csv", results=names, check=grids.check_dynatree)
    assert (table["status"] == "ok").all(), table["error"].tolist()
    assert (table["tokens 24"] == 24).all()
    assert (table["seconds 24"] > table["seconds 8"]).all()
    assert table["nodes 24"][0] > table["nodes 24"][1]
