"""Sweeps: a grid of independent cells on any ``concurrent.futures`` executor, recorded as they end, resumable.

    cells = sweep.grid(depth=range(3, 9), branch=(2, 3, 4))
    table = sweep.run(measure, cells, "results.csv", results=("seconds", "tau"))

runs in this process; ``executor=ProcessPoolExecutor(4)`` or ``executor=Client(address).get_executor()`` (Dask) runs
the same cells elsewhere. ``measure`` and its arguments must be importable there.
"""

import csv
import hashlib
import inspect
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, as_completed
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from specnb import assets, records

Cell = Mapping[str, object]
OWN = ("key", "status", "error")  # columns before those of the cell and its results


def grid(**axes: Iterable) -> list[dict]:
    """All combinations of the axes' values, the last axis running fastest."""
    values = {name: [v.item() if isinstance(v, np.generic) else v for v in axis] for name, axis in axes.items()}
    if empty := [name for name, axis in values.items() if not axis]:
        raise ValueError(f"the axis {empty[0]!r} of the grid has no values")
    return [dict(zip(values, combination, strict=True)) for combination in product(*values.values())]


def run(
    measure: Callable[..., Mapping],
    cells: Sequence[Cell],
    file: str | Path,
    *,
    results: Sequence[str],
    check: Callable[..., object] | None = None,
    executor: Executor | None = None,
    retry: bool = False,
) -> pd.DataFrame:
    """Measure every cell that the file does not hold yet; returns the file as a table, in the order of the cells.

    measure(**cell) returns a mapping with the names in results. check(**cell) raises ValueError on cells that make
    no sense, and is asked about all of them first. A cell that raises is recorded with its error and left alone by
    later runs, unless retry. Each row is on the disk before the next is waited for: a killed run loses at most the
    cells in flight. Raises ValueError, before any work, on bad cells or a file of other columns or in use by another
    sweep; RuntimeError if a pool breaks (what was recorded stays, run again).
    """
    cells = _checked(measure, cells, check)
    file, columns = Path(file), [*OWN, *cells[0], *results]
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise ValueError(f"the column {twice[0]!r} stands twice among {columns}: rename the axis or the result")
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(file.with_name(f".{file.name}.lock"), timeout=0):
            done = _open(file, columns)
            left = {key: cell for key, cell in cells_by_key(measure, cells).items() if done.get(key) != "ok"}
            left = {key: cell for key, cell in left.items() if retry or key not in done}
            bar = {"total": len(cells), "initial": len(cells) - len(left), "unit": "cell", "disable": assets.QUIET}
            with open(file, "ab", buffering=0) as out, tqdm(desc=file.stem, **bar) as progress:
                for key, outcome in _outcomes(measure, left, results, executor):
                    row = {"key": key, **left[key], **outcome}
                    out.write(_line([row.get(column, "") for column in columns]))
                    os.fsync(out.fileno())
                    progress.update()
    except Timeout as error:
        raise ValueError(f"{file} is being written by another sweep") from error
    asked = pd.DataFrame([{"key": key, **cell} for key, cell in cells_by_key(measure, cells).items()])
    return asked.merge(load(file)[[*OWN, *results]], on="key")[columns]


def load(file: str | Path) -> pd.DataFrame:
    """The recorded cells, the last row of each: key, status ("ok" or "failed"), error, the cell, its results."""
    return pd.read_csv(file, dtype={"key": str}).drop_duplicates("key", keep="last", ignore_index=True)


def cells_by_key(measure: Callable, cells: Sequence[Cell]) -> dict[str, Cell]:
    """Each cell under a hash of what is measured (a function's name, wherever it lives) and its settings."""
    try:
        texts = [json.dumps([measure.__qualname__, cell], sort_keys=True) for cell in cells]
    except (TypeError, AttributeError) as error:
        raise ValueError(f"a sweep measures a named function on numbers and texts: {error}") from error
    return {hashlib.sha256(t.encode()).hexdigest()[:16]: cell for t, cell in zip(texts, cells, strict=True)}


def _checked(measure: Callable, cells: Sequence[Cell], check: Callable | None) -> list[dict]:
    cells = [dict(cell) for cell in cells]
    if not cells:
        raise ValueError("there are no cells to measure")
    for cell in cells:
        if list(cell) != list(cells[0]):
            raise ValueError(f"cells differ in their columns: {list(cells[0])} and {list(cell)}")
        try:
            inspect.signature(measure).bind(**cell)
        except TypeError as error:
            raise ValueError(f"{measure.__qualname__} cannot take the cell {cell}: {error}") from error
        if check is not None:
            try:
                check(**cell)
            except ValueError as error:
                raise ValueError(f"cell {cell}: {error}") from error
    if len(cells_by_key(measure, cells)) < len(cells):
        raise ValueError("the same cell stands twice in the grid: tell repetitions apart by a column")
    return cells


def _open(file: Path, columns: Sequence[str]) -> dict[str, str]:
    """Status by key of what is recorded; a new file gets its header, a torn last line is cut off."""
    if not file.exists():
        records.write(file, _line(columns))
    data = file.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    rows = list(csv.reader(io.StringIO(whole.decode())))
    if not rows or rows[0] != list(columns):
        there = ", ".join(rows[0]) if rows else "nothing"
        raise ValueError(f"{file} is of another sweep: it has the columns {there}, this one {', '.join(columns)}")
    if whole != data:
        records.write(file, whole)
    return {row[0]: row[1] for row in rows[1:]}


def _line(values: Sequence[object]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(values)
    return out.getvalue().encode()


def _outcomes(
    measure: Callable, cells: Mapping[str, Cell], results: Sequence[str], executor: Executor | None
) -> Iterator[tuple[str, dict]]:
    """(key, status and results) of each cell as it ends."""
    if executor is None:
        for key, cell in cells.items():
            yield key, _one(measure, cell, results)
        return
    futures = {executor.submit(_one, measure, cell, tuple(results)): key for key, cell in cells.items()}
    try:
        for future in as_completed(futures):
            try:
                outcome = future.result()
            except (BrokenExecutor, CancelledError) as error:
                raise RuntimeError("the pool has lost a worker: what was recorded stays, run again to go on") from error
            except Exception as error:  # the executor's own: a cluster gives up on a cell that kills its workers
                outcome = _failed(error)
            yield futures[future], outcome
    finally:
        for future in futures:
            future.cancel()


def _one(measure: Callable, cell: Cell, results: Sequence[str]) -> dict:
    try:
        found = dict(measure(**cell))
        if set(found) != set(results):
            raise ValueError(f"measured {sorted(found)}, expected {sorted(results)}")
    except Exception as error:  # becomes the cell's record
        return _failed(error)
    return {"status": "ok", "error": "", **found}


def _failed(error: Exception) -> dict:
    return {"status": "failed", "error": " ".join(f"{type(error).__name__}: {error}".split())}
