"""Recordings: blocks of rows measured by a cell function, one JSON line a block, resumable, on any executor.

A block is the unit of recording: one prompt (or one setting) with all its methods and repetitions. Its line holds the
settings, the rows as columns, and where they come from (command, date, processor, versions, hashes of the heads). A
line is complete or it does not count: ``kill -9`` at any moment loses at most the blocks in flight.

    table = sweep.run("tau", measure, sweep.grid(depth=range(3, 9), branch=(2, 3, 4)), "results.jsonl")

runs ``measure(**block)`` for every block; ``executor=ProcessPoolExecutor(4)`` or
``executor=Client(address).get_executor()`` (Dask) runs them elsewhere, where measure must be importable.
"""

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, as_completed
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from specnb.models import files, provenance

Block = Mapping[str, object]
WHERE = "processor", "device", "torch"  # a recording of two of these mixes seconds that do not compare
FIELDS = ("key", "cell", "block", "heads", "plan", "rows", "error", "date", "command", *WHERE)  # of every line
BEGINNING = b'{"key": '  # of every line


def grid(**axes: Iterable) -> list[dict]:
    """All combinations of the axes' values, the last axis running fastest."""
    values = {name: [v.item() if isinstance(v, np.generic) else v for v in axis] for name, axis in axes.items()}
    if empty := [name for name, axis in values.items() if not axis]:
        raise ValueError(f"the axis {empty[0]!r} of the grid has no values")
    return [dict(zip(values, combination, strict=True)) for combination in product(*values.values())]


def run(
    cell: str,
    measure: Callable[..., object],
    blocks: Sequence[Block],
    file: str | Path,
    *,
    command: str = "",
    heads: Mapping[str, str] | None = None,
    plan: str = "",
    executor: Executor | None = None,
    retry: bool = False,
) -> pd.DataFrame:
    """Measure every block that the file does not hold yet; returns the table of all asked for, see ``load``.

    cell: the name under which measure is recorded, whatever the function is called. measure(**block) returns one row
    or several. heads: hash by name of what was used; a block counts as recorded only under the same hashes. plan: a
    hash of what will judge it, kept with it. A block that raises is recorded with its error and left alone by later
    runs unless retry. Raises ValueError, before any work, on bad blocks, a file in use or a file that is no recording;
    RuntimeError if a pool breaks (what was recorded stays, run again). A KeyboardInterrupt says what is recorded.
    """
    known = keys(cell, measure, blocks, heads or {})
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    said = {"cell": cell, "command": command, "heads": heads or {}, "plan": plan}
    try:
        with FileLock(file.with_name(f".{file.name}.lock"), timeout=0):
            _measure_missing(measure, known, file, said, executor, retry)
    except Timeout as error:
        raise ValueError(f"{file} is being written by another run") from error
    except KeyboardInterrupt as stop:
        count = len(known.keys() & _latest(file).keys())
        kept = f"{count} of {len(known)} blocks recorded in {file}; the same command goes on"
        raise KeyboardInterrupt(kept) from stop
    table = load(file, known)
    if missing := len(known) - table["key"].nunique():
        raise RuntimeError(f"{file} lacks {missing} of {len(known)} blocks after the run: was it changed meanwhile?")
    return table


def _measure_missing(
    measure: Callable, known: Mapping[str, Block], file: Path, said: Mapping, executor: Executor | None, retry: bool
) -> None:
    """Measure the blocks that a file lacks, and write each as it ends. said: what every line says besides."""
    done = _latest(file)
    _drop_torn_line(file)
    here = ", ".join(map(provenance.facts("").get, WHERE))
    others = {", ".join(map(line.get, WHERE)) for line in done.values()} - {here}
    if others:
        print(f"{file.name} has blocks of {'; '.join(sorted(others))}; this is {here}", file=sys.stderr)
    bad = {key for key, line in done.items() if line["error"] or "failed" in line["rows"].get("status", [])}
    left = {key: block for key, block in known.items() if key not in done or (retry and key in bad)}
    bar = {"total": len(known), "initial": len(known) - len(left), "unit": "block", "disable": files.QUIET}
    with tqdm(desc=file.stem, **bar) as progress:
        for key, outcome in _outcomes(measure, left, executor):
            facts = provenance.facts(said["command"]) | outcome.pop("where", {})
            begin = {"key": key, "cell": said["cell"], "block": left[key], "heads": said["heads"], "plan": said["plan"]}
            _append(file, {**begin, **facts, **outcome})
            progress.update()


def _drop_torn_line(file: Path) -> None:
    """Cut off the torn last line that a kill may have left; ValueError, and no cut, if that is no block's beginning."""
    if not file.exists():
        return
    data = file.read_bytes()
    whole = data.rfind(b"\n") + 1
    torn = data[whole:]
    if torn[: len(BEGINNING)] != BEGINNING[: len(torn)]:
        number = data.count(b"\n") + 1
        raise ValueError(f"{file}, line {number} is no recorded block: record into another file (--out)")
    os.truncate(file, whole)


def load(file: str | Path, only: Collection[str] | None = None) -> pd.DataFrame:
    """The recorded rows: settings of the block, then the row, status ("ok" or "failed"), error and provenance.

    The last record of a block counts. A torn last line is left out. only: the keys of the blocks that are wanted.
    """
    records = []
    for key, line in _latest(Path(file)).items():
        if only is not None and key not in only:
            continue
        rows = line["rows"] or {"status": ["failed"]}
        fixed = {k: v for k, v in line["block"].items() if k not in rows and not isinstance(v, list | dict)}
        fixed |= {"heads": json.dumps(line["heads"], sort_keys=True), "status": "ok", "error": line["error"]}
        where = {name: line[name] for name in ("key", "cell", *WHERE, "date", "command", "plan")}
        records += [{**fixed, **dict(zip(rows, row, strict=True)), **where} for row in zip(*rows.values(), strict=True)]
    return pd.DataFrame(records) if records else pd.DataFrame(columns=["key", "status", "error"])


def keys(cell: str, measure: Callable, blocks: Sequence[Block], heads: Mapping[str, str]) -> dict[str, dict]:
    """Each block under a hash of the cell's name, the settings and the heads; ValueError on blocks that make no sense.

    Blocks must fit measure's arguments, be numbers, texts and lists of these, and differ from each other.
    """
    if not blocks:
        raise ValueError("there are no blocks to measure")
    found: dict[str, dict] = {}
    for block in map(dict, blocks):
        try:
            bound = inspect.signature(measure).bind(**block)
            bound.apply_defaults()  # what a default was when it was measured belongs to the record
            block = dict(bound.arguments)
            text = json.dumps([cell, block, sorted(heads.items())], sort_keys=True)
        except TypeError as error:
            raise ValueError(f"{cell} cannot take the block {block}: {error}") from error
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        if key in found:
            raise ValueError(f"the same block stands twice: {block}: tell repetitions apart by a setting")
        found[key] = block
    return found


def _latest(file: Path) -> dict[str, dict]:
    """By key, the last record of each block; one in which nothing could be measured hides no earlier one.

    Of complete lines only; ValueError on one that is no recorded block.
    """
    found: dict[str, dict] = {}
    complete = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    for number, text in enumerate(complete, start=1):
        try:
            line = _line(text)
        except ValueError as error:
            raise ValueError(f"{file}, line {number} is no recorded block: {error}") from error
        if line["key"] not in found or (line["rows"] and {*line["rows"].get("status", ["ok"])} != {"failed"}):
            found[line["key"]] = line
    return found


def _line(text: bytes) -> dict:
    """A line of a recording; ValueError if it has another shape."""
    line = json.loads(text)
    if not isinstance(line, dict):
        raise ValueError(f"it is a {type(line).__name__}, no JSON object")
    line = {"plan": ""} | line
    lacking = [name for name in FIELDS if name not in line]
    if lacking:
        raise ValueError(f"it lacks {', '.join(map(repr, lacking))}")
    for name in ("block", "heads", "rows"):
        if not isinstance(line[name], dict):
            raise ValueError(f"{name!r} is a {type(line[name]).__name__}, no JSON object")
    columns = line["rows"].values()
    if not all(isinstance(column, list) for column in columns) or len({len(column) for column in columns}) > 1:
        raise ValueError("the columns in 'rows' are no lists of one length")
    return line


def _append(file: Path, line: dict) -> None:
    """Add a line, all of it or nothing: where the disk is full the file is as it was (OSError)."""
    data = json.dumps(line, ensure_ascii=False, default=lambda value: value.item()).encode() + b"\n"
    size = file.stat().st_size if file.exists() else 0
    try:
        with open(file, "ab") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
    except OSError:
        os.truncate(file, size)
        raise


def _outcomes(measure: Callable, blocks: Mapping[str, Block], executor: Executor | None) -> Iterator[tuple[str, dict]]:
    """(key, rows and error) of each block as it ends."""
    if executor is None:
        for key, block in blocks.items():
            yield key, _one(measure, block)
        return
    futures = {executor.submit(_one, measure, block): key for key, block in blocks.items()}
    try:
        for future in as_completed(futures):
            try:
                outcome = future.result()
            except (BrokenExecutor, CancelledError) as error:
                raise RuntimeError("the pool has lost a worker: what was recorded stays, run again to go on") from error
            except Exception as error:  # the executor's own: a cluster gives up on a block that kills its workers
                outcome = {"rows": {}, "error": _words(error)}
            yield futures[future], outcome
    finally:
        for future in futures:
            future.cancel()


def _one(measure: Callable, block: Block) -> dict:
    """A block's rows as columns, and the machine that measured them; an exception becomes the block's record."""
    where = {name: value for name, value in provenance.facts("").items() if name not in ("command", "date")}
    try:
        rows = measure(**block)
        rows = [rows] if isinstance(rows, Mapping) else list(rows)
        columns = list(rows[0])
        if odd := [row for row in rows if list(row) != columns]:
            raise ValueError(f"rows of a block differ in their columns: {columns} and {list(odd[0])}")
        return {"rows": {name: [row[name] for row in rows] for name in columns}, "error": "", "where": where}
    except Exception as error:
        return {"rows": {}, "error": _words(error), "where": where}


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
