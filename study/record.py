"""Recordings: blocks of rows measured by a cell function, in a file that survives, resumable, on any executor.

A block is the unit of recording: one prompt (or one setting) with all its methods and repetitions.

    table = record.run("tau", measure, record.grid(depth=range(3, 9), branch=(2, 3, 4)), "results.jsonl")

runs ``measure(**settings)`` for every block and returns a table of their rows. ``executor=ProcessPoolExecutor(4)`` or
``executor=Client(address).get_executor()`` (Dask) runs them elsewhere, where measure must be importable.

A file has JSON lines. A block's line comes first: its key, its settings, how many rows follow, and where they come from
(command, date, machine, versions, hashes of the heads). Then comes a line for each row, which begins with the same key.
A block is written at once, with all its rows, or it does not count: ``kill -9`` at any moment loses at most the blocks
in flight.

The key of a block is a hash of its cell's name and of those settings that differ from the defaults of its cell
function: a new optional setting changes no key. Growth rules are written as ``methods.label`` spells them.
"""

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, as_completed
from dataclasses import dataclass, is_dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from specnb.models import files, provenance
from study import methods

WHERE = ("processor", "device", "torch")  # a recording of two of these mixes seconds that do not compare
FIELDS = ("block", "cell", "settings", "heads", "plan", "rows", "error", *WHERE, "command", "date")  # of a block's line
BEGINNING = b'{"block": '  # of every line
SECOND_EDITION = "it is of the second edition: `python tools/rekey_recordings.py OLD_FOLDER NEW_FOLDER` writes it anew"

Settings = Mapping[str, object]


# ---- what is to be measured -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Block:
    """What one call of a cell function measures.

    key: under which it is recorded. arguments: what the function is called with, its defaults included. settings: the
    same as they are written, growth rules by their labels.
    """

    key: str
    arguments: Settings
    settings: Settings


def grid(**axes: Iterable) -> list[dict]:
    """All combinations of the axes' values, the last axis running fastest.

    >>> grid(depth=(3, 4), branch=(1, 2))[:3]
    [{'depth': 3, 'branch': 1}, {'depth': 3, 'branch': 2}, {'depth': 4, 'branch': 1}]
    """
    values = {}
    for name, axis in axes.items():
        values[name] = [value.item() if isinstance(value, np.generic) else value for value in axis]
    for name, axis in values.items():
        if not axis:
            raise ValueError(f"the axis {name!r} of the grid has no values")
    return [dict(zip(values, combination, strict=True)) for combination in product(*values.values())]


def identified(cell: str, measure: Callable[..., object], blocks: Sequence[Settings]) -> list[Block]:
    """The blocks with their keys; ValueError on blocks that make no sense.

    They must fit measure's arguments, hold numbers, texts, growth rules, and lists of these, and differ from each
    other.
    """
    if not blocks:
        raise ValueError("there are no blocks to measure")
    by_key: dict[str, Block] = {}
    for settings in blocks:
        try:
            block = _identified(cell, measure, settings)
        except TypeError as error:
            raise ValueError(f"{cell} cannot take the block {dict(settings)}: {error}") from error
        if block.key in by_key:
            raise ValueError(f"the same block stands twice: {block.settings}: tell repetitions apart by a setting")
        by_key[block.key] = block
    return list(by_key.values())


def _identified(cell: str, measure: Callable[..., object], block: Settings) -> Block:
    """One block; TypeError if measure cannot be called so, or a value cannot be written."""
    signature = inspect.signature(measure)
    bound = signature.bind(**block)
    bound.apply_defaults()  # what a default was when it was measured belongs to the record
    settings = {name: written(value) for name, value in bound.arguments.items()}
    changed = {}  # from the defaults: only these are in the key
    for name, value in settings.items():
        default = signature.parameters[name].default
        if default is inspect.Parameter.empty or written(default) != value:
            changed[name] = value
    text = json.dumps([cell, changed], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Block(key, bound.arguments, settings)


def written(value: object) -> object:
    """A setting as it is written: a growth rule by its label, a tuple as a list.

    >>> from specnb.growth import Pct, chain
    >>> written({"rules": (chain(6), Pct(0.06)), "length": 64})
    {'rules': ['chain(6)', 'Pct(cost=0.06)'], 'length': 64}
    """
    if is_dataclass(value):
        label = methods.label(value)
        if not label:
            raise TypeError(f"a shape is recorded under its name, and this one has none: {value}")
        return label
    if isinstance(value, Mapping):
        return {name: written(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [written(one) for one in value]
    return value


# ---- what is recorded -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Recorded:
    """A whole block of a file: its line, with the fields FIELDS, and its rows."""

    line: Mapping[str, object]
    rows: Sequence[Mapping[str, object]]

    @property
    def empty(self) -> bool:
        """Whether nothing could be measured."""
        return all(row.get("status", "ok") == "failed" for row in self.rows)

    @property
    def failed(self) -> bool:
        """Whether anything could not be measured."""
        return bool(self.line["error"]) or any(row.get("status", "ok") == "failed" for row in self.rows)

    def agrees(self, settings: Settings) -> bool:
        """Whether it was measured with these settings, those of another block of the same key.

        A key leaves out what was at its default. So blocks of one key can differ: in a setting whose default was
        changed between the two, and then they do not agree; or one of them has a setting that the cell function did
        not have when the other was measured, which counts for nothing.

        Example: a block was recorded with {"length": 96}, then the default. The default is 64 now, and there is a new
        setting seed. The block does not agree with {"length": 64, "seed": 0}, though both have the same key: the
        length differs, and the seed counts for nothing.
        """
        recorded = self.line["settings"]
        known_to_both = recorded.keys() & settings.keys()
        return all(recorded[name] == settings[name] for name in known_to_both)


def load(file: str | Path, only: Iterable[Block] | None = None, heads: Mapping[str, str] | None = None) -> pd.DataFrame:
    """The blocks that ``read`` gives as a table, one row a row.

    Columns: the settings, but for lists; heads (JSON), status ("ok" or "failed"), error; the row's own; block (the
    key), cell, processor, device, torch, date, command, plan.
    """
    return table(read(file, only, heads))


def table(blocks: Iterable[Recorded]) -> pd.DataFrame:
    """Recorded blocks as a table: see ``load``."""
    rows: list[dict[str, object]] = []
    for recorded in blocks:
        rows += _table_rows(recorded)
    if not rows:
        return pd.DataFrame(columns=["block", "status", "error"])
    return pd.DataFrame(rows)


def read(
    file: str | Path, only: Iterable[Block] | None = None, heads: Mapping[str, str] | None = None
) -> list[Recorded]:
    """The last record of each block, but one in which nothing could be measured hides no earlier one.

    A block that is not there with all its rows is left out. only: the blocks that are wanted. heads: only what was
    measured with heads of these hashes. ValueError on a file that is no recording.
    """
    every_block, _ = _read(Path(file))
    by_key: dict[str, list[Recorded]] = {}  # several of one key differ in defaults that have changed
    for recorded in every_block:
        if heads is not None and recorded.line["heads"] != heads:
            continue
        of_this_key = by_key.setdefault(recorded.line["block"], [])
        _add_or_replace(of_this_key, recorded)
    kept: list[Recorded] = []
    for records in by_key.values():
        kept += records
    if only is None:
        return kept
    settings = {block.key: block.settings for block in only}
    wanted: dict[str, Recorded] = {}
    for recorded in kept:
        key = recorded.line["block"]
        if key in settings and recorded.agrees(settings[key]):
            wanted[key] = recorded
    return list(wanted.values())


def _add_or_replace(records: list[Recorded], new: Recorded) -> None:
    """Put a record in the place of that one of its key which it repeats, if it measured anything; else behind them."""
    for place, old in enumerate(records):
        if old.agrees(new.line["settings"]):
            if not new.empty:
                records[place] = new
            return
    records.append(new)


def _table_rows(recorded: Recorded) -> list[dict[str, object]]:
    """A block's rows with what is known of the block; one row, which says so, where nothing was measured."""
    line = recorded.line
    rows = recorded.rows or [{"status": "failed"}]
    before = {name: value for name, value in line["settings"].items() if not isinstance(value, list | dict)}
    before |= {"heads": json.dumps(line["heads"], sort_keys=True), "status": "ok", "error": line["error"]}
    own_columns = rows[0].keys()
    before = {name: value for name, value in before.items() if name not in own_columns}
    after = {name: line[name] for name in ("block", "cell", *WHERE, "date", "command", "plan")}
    return [{**before, **row, **after} for row in rows]


# ---- a file ---------------------------------------------------------------------------------------------------------


def _read(file: Path) -> tuple[list[Recorded], int]:
    """The whole blocks of a file, in the order in which they were written, and how many bytes they take.

    What is behind these was cut off. ValueError on a line that is none of a recording.
    """
    data = file.read_bytes() if file.exists() else b""
    lines = data.split(b"\n")[:-1]  # behind the last newline is nothing, or a torn line
    blocks = []
    whole_bytes = 0
    place = 0  # of a block's line
    while place < len(lines):
        line = _parsed(file, place, lines[place], _check_block)
        next_place = place + 1 + line["rows"]
        rows = []
        for number, text in enumerate(lines[place + 1 : next_place], start=place + 1):
            rows.append(_parsed(file, number, text, _check_row))
        _check_together(file, place, line, rows)
        if len(rows) < line["rows"]:
            break
        blocks.append(Recorded(line, [_without_key(row) for row in rows]))
        whole_bytes += sum(len(text) + 1 for text in lines[place:next_place])
        place = next_place
    return blocks, whole_bytes


def _without_key(row: Mapping[str, object]) -> dict[str, object]:
    """A row without the key of its block."""
    return {name: value for name, value in row.items() if name != "block"}


def _parsed(file: Path, place: int, text: bytes, check: Callable[[dict], None]) -> dict:
    """A line, checked; ValueError with its number, which is its place and one, if it is none of a recording."""
    try:
        line = json.loads(text)
        if not isinstance(line, dict):
            raise ValueError(f"it is a {type(line).__name__}, no JSON object")
        check(line)
    except ValueError as error:
        raise ValueError(f"{file}, line {place + 1} is no recorded block: {error}") from error
    return line


def _check_block(line: Mapping) -> None:
    """ValueError unless a line is a block's."""
    if "key" in line and "settings" not in line:
        raise ValueError(SECOND_EDITION)
    lacking = [name for name in FIELDS if name not in line]
    if lacking:
        raise ValueError(f"it lacks {', '.join(map(repr, lacking))}")
    for name in ("settings", "heads"):
        if not isinstance(line[name], dict):
            raise ValueError(f"{name!r} is a {type(line[name]).__name__}, no JSON object")
    if not isinstance(line["rows"], int) or line["rows"] < 0:
        raise ValueError(f"'rows' is how many follow, got {line['rows']!r}")


def _check_row(line: Mapping) -> None:
    """ValueError unless a line is a row's."""
    if "block" not in line:
        raise ValueError("it lacks 'block'")


def _check_together(file: Path, place: int, line: Mapping, rows: Sequence[Mapping]) -> None:
    """ValueError unless rows belong to the block of a line and have the same columns."""
    for number, row in enumerate(rows, start=place + 2):
        if row["block"] != line["block"]:
            raise ValueError(f"{file}, line {number} is no recorded block: it is no row of the block {line['block']}")
        if row.keys() != rows[0].keys():
            raise ValueError(f"{file}, line {number} is no recorded block: its columns are not those of the row above")


def _cut_torn_block(file: Path) -> None:
    """Cut off the torn last block that a kill may have left; ValueError, and no cut, if that is no block's beginning.

    Whole lines have been checked when they were read.
    """
    if not file.exists():
        return
    data = file.read_bytes()
    _, whole = _read(file)
    torn = data[data.rfind(b"\n") + 1 :]
    if torn[: len(BEGINNING)] != BEGINNING[: len(torn)]:
        number = data.count(b"\n") + 1
        raise ValueError(f"{file}, line {number} is no recorded block: record into another file (--out)")
    os.truncate(file, whole)


def _plain(value: object) -> object:
    """A number of numpy as Python's own; TypeError on what JSON cannot hold."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a row holds a {type(value).__name__}, which JSON cannot: {value!r}")


def _append(file: Path, lines: Sequence[Mapping]) -> None:
    """Add lines, all of them or nothing: where the disk is full the file is as it was (OSError)."""
    texts = [json.dumps(line, ensure_ascii=False, default=_plain) for line in lines]
    data = "".join(f"{text}\n" for text in texts).encode()
    size = file.stat().st_size if file.exists() else 0
    try:
        with open(file, "ab") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
    except OSError:
        os.truncate(file, size)
        raise


# ---- measuring ------------------------------------------------------------------------------------------------------


def run(
    cell: str,
    measure: Callable[..., object],
    blocks: Sequence[Settings],
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
    or several. heads: hash by name of what was used; a block that is recorded with others is measured again. plan:
    hashes of what will judge it, kept with it. A block that raises is recorded with its error and left alone by later
    runs unless retry. Raises ValueError, before any work, on bad blocks, a file in use or a file that is no recording;
    RuntimeError if a pool breaks (what was recorded stays, run again). A KeyboardInterrupt says what is recorded.
    """
    wanted = identified(cell, measure, blocks)
    heads = dict(heads or {})
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    shared = {"cell": cell, "heads": heads, "plan": plan, "command": command}
    lock = file.with_name(f".{file.name}.lock")
    try:
        with FileLock(lock, timeout=0):
            _measure_missing(measure, wanted, file, shared, executor, retry)
    except Timeout as error:
        raise ValueError(f"{file} is being written by another run") from error
    except KeyboardInterrupt as stop:
        count = len(read(file, wanted, heads))
        kept = f"{count} of {len(wanted)} blocks recorded in {file}; the same command goes on"
        raise KeyboardInterrupt(kept) from stop
    blocks_of_file = read(file, wanted, heads)
    missing = len(wanted) - len(blocks_of_file)
    if missing:
        raise RuntimeError(f"{file} lacks {missing} of {len(wanted)} blocks after the run: was it changed meanwhile?")
    return table(blocks_of_file)


def _measure_missing(
    measure: Callable, wanted: Sequence[Block], file: Path, shared: Mapping, executor: Executor | None, retry: bool
) -> None:
    """Measure the blocks that a file lacks, and write each as it ends.

    shared: what the lines of all blocks say: cell, heads, plan and command.
    """
    _cut_torn_block(file)
    _tell_other_machines(file)
    done = {recorded.line["block"]: recorded for recorded in read(file, wanted, shared["heads"])}
    missing = [block for block in wanted if block.key not in done or (retry and done[block.key].failed)]
    finished = len(wanted) - len(missing)
    with tqdm(desc=file.stem, total=len(wanted), initial=finished, unit="block", disable=files.QUIET) as progress:
        for block, outcome in _outcomes(measure, missing, executor):
            _append(file, _lines(block, shared, outcome))
            progress.update()


def _tell_other_machines(file: Path) -> None:
    """Say it, on stderr, if a file has blocks of another machine than this one."""
    here = _machine(provenance.facts(""))
    others = {_machine(recorded.line) for recorded in read(file)} - {here}
    if others:
        print(f"{file.name} has blocks of {'; '.join(sorted(others))}; this is {here}", file=sys.stderr)


def _machine(facts: Mapping[str, str]) -> str:
    """What tells machines apart, in a line: processor, device and torch."""
    return ", ".join(facts[name] for name in WHERE)


@dataclass(frozen=True)
class Outcome:
    """What came of a block: its rows, or an error; and facts about the machine that measured it."""

    rows: Sequence[Mapping[str, object]] = ()
    error: str = ""
    machine: Mapping[str, str] | None = None


def _lines(block: Block, shared: Mapping, outcome: Outcome) -> list[dict[str, object]]:
    """What is written of a block: its line and its rows. shared: see ``_measure_missing``."""
    line = {
        "block": block.key,
        "cell": shared["cell"],
        "settings": block.settings,
        "heads": shared["heads"],
        "plan": shared["plan"],
        "rows": len(outcome.rows),
        "error": outcome.error,
        **provenance.facts(shared["command"]),
        **(outcome.machine or {}),  # of a worker elsewhere
    }
    rows = [{"block": block.key, **row} for row in outcome.rows]
    return [line, *rows]


def _outcomes(measure: Callable, blocks: Sequence[Block], executor: Executor | None) -> Iterator[tuple[Block, Outcome]]:
    """Each block and what came of it, as it ends."""
    if executor is None:
        for block in blocks:
            yield block, _measured(measure, block.arguments)
        return
    futures = {executor.submit(_measured, measure, block.arguments): block for block in blocks}
    try:
        for future in as_completed(futures):
            try:
                outcome = future.result()
            except (BrokenExecutor, CancelledError) as error:
                raise RuntimeError("the pool has lost a worker: what was recorded stays, run again to go on") from error
            except Exception as error:  # the executor's own: a cluster gives up on a block that kills its workers
                outcome = Outcome(error=_words(error))
            yield futures[future], outcome
    finally:
        for future in futures:
            future.cancel()


def _measured(measure: Callable, arguments: Settings) -> Outcome:
    """What comes of a block, here; an exception becomes the block's record."""
    machine = {name: fact for name, fact in provenance.facts("").items() if name not in ("command", "date")}
    try:
        result = measure(**arguments)
        rows = [result] if isinstance(result, Mapping) else list(result)
        _check_columns(rows)
        json.dumps(rows, default=_plain)  # what cannot be written is this block's error, and the others go on
        return Outcome(rows, "", machine)
    except Exception as error:
        return Outcome((), _words(error), machine)


def _check_columns(rows: Sequence[Mapping[str, object]]) -> None:
    """ValueError unless there are rows, of the same columns, none of which is called "block"."""
    if not rows:
        raise ValueError("the cell function has returned no rows")
    columns = list(rows[0])
    if "block" in columns:
        raise ValueError("a column is called 'block', which is the name of the column with a block's key")
    for row in rows:
        if list(row) != columns:
            raise ValueError(f"rows of a block differ in their columns: {columns} and {list(row)}")


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
