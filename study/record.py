"""Recordings: what was measured, block by block, in a file that survives interruptions.

A block is the unit of recording: one prompt (or one setting) with all its methods and repetitions. A cell is the
function that measures a block: it takes the block's settings as arguments and returns rows. For example

    def measure(depth, branch):
        return [{"method": "ptd", "tau": 1.5}, {"method": "dynatree", "tau": 2.5}]

    table = record.run("tau", measure, record.grid(depth=(3, 4), branch=(2, 3)), "results.jsonl")

records measure under the name "tau". There are four blocks, so ``measure(depth=3, branch=2)`` and three more calls are
made, and the table has eight rows. Run again, it measures nothing and returns the same table; after a kill it measures
what is missing. ``executor=ProcessPoolExecutor(4)`` or ``executor=Client(address).get_executor()`` (Dask) measures
elsewhere, where the function must be importable.

The file has JSON lines. For each block there is first the block's line: its key, its settings, how many rows follow,
where they come from (command, date, machine, versions, hashes of the heads) and the plan, which is hashes of the claims
that will be judged by it. Then there is one line for each row, which begins with the same key. A block is written at
once, with all its rows, or it does not count: ``kill -9`` at any moment loses at most the blocks that were being
measured.

The key of a block is a hash of its cell's name and of those settings that differ from the defaults of its cell
function. So a new optional setting changes no key. Growth rules are written as ``methods.label`` spells them.
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

WHERE = ("processor", "device", "torch")  # seconds from different ones of these cannot be compared
FIELDS = ("block", "cell", "settings", "heads", "plan", "rows", "error", *WHERE, "command", "date")  # of a block's line
BEGINNING = b'{"block": '  # of every line
SECOND_EDITION = "it is of the second edition: `python tools/rekey_recordings.py OLD_FOLDER NEW_FOLDER` writes it anew"

Settings = Mapping[str, object]


# ---- what is to be measured -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Block:
    """What one call of a cell function measures."""

    key: str  # 16 hexadecimal digits under which it is recorded
    arguments: Settings  # what the function is called with, its defaults included
    settings: Settings  # the same as it is written in the file, with growth rules by their labels


def grid(**axes: Iterable) -> list[dict]:
    """All combinations of the axes' values. The last axis changes from each combination to the next.

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
    """The blocks with their keys.

    cell:    the name under which measure is recorded.
    measure: the cell function.
    blocks:  its arguments, one mapping per block: numbers, texts, growth rules, and lists of these.
    Raises ValueError if there are no blocks, measure cannot take one of them, or two of them are equal.
    """
    if not blocks:
        raise ValueError("there are no blocks to measure")
    by_key: dict[str, Block] = {}
    for settings in blocks:
        try:
            block = _identify(cell, measure, settings)
        except TypeError as error:
            raise ValueError(f"{cell} cannot take the block {dict(settings)}: {error}") from error
        if block.key in by_key:
            raise ValueError(f"the same block stands twice: {block.settings}: tell repetitions apart by a setting")
        by_key[block.key] = block
    return list(by_key.values())


def _identify(cell: str, measure: Callable[..., object], block: Settings) -> Block:
    """A block with its key. Raises TypeError if measure does not take its arguments, or one cannot be written."""
    signature = inspect.signature(measure)
    bound = signature.bind(**block)
    bound.apply_defaults()  # defaults may change later: what they are now is written down
    settings = {name: written(value) for name, value in bound.arguments.items()}
    changed = {}  # settings that differ from their defaults; the key is made of these alone
    for name, value in settings.items():
        default = signature.parameters[name].default
        if default is inspect.Parameter.empty or written(default) != value:
            changed[name] = value
    text = json.dumps([cell, changed], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Block(key, bound.arguments, settings)


def written(value: object) -> object:
    """A setting as it is written in a file: a growth rule by its label, a tuple as a list.

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
        return {name: written(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [written(item) for item in value]
    return value


# ---- what is recorded -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Recorded:
    """A complete block of a file."""

    line: Mapping[str, object]  # the block's line, with the fields FIELDS
    rows: Sequence[Mapping[str, object]]  # without the block's key

    @property
    def empty(self) -> bool:
        """Whether nothing could be measured: there are no rows, or all of them failed."""
        return all(row.get("status", "ok") == "failed" for row in self.rows)

    @property
    def failed(self) -> bool:
        """Whether anything could not be measured: the block has an error, or a row failed."""
        return bool(self.line["error"]) or any(row.get("status", "ok") == "failed" for row in self.rows)

    def agrees(self, settings: Settings) -> bool:
        """Whether it was measured with these settings, those of a block with the same key.

        Example: a block was recorded with {"length": 96} when 96 was the default. Since then the default has become 64,
        and the cell has a new setting, seed. The block of today has {"length": 64, "seed": 0} and the same key, for a
        key leaves out what is at its default. The two do not agree, because they differ in length. The seed alone would
        be no reason: a setting that one of them lacks is not compared.
        """
        recorded = self.line["settings"]
        known_to_both = recorded.keys() & settings.keys()
        return all(recorded[name] == settings[name] for name in known_to_both)


def load(file: str | Path, only: Iterable[Block] | None = None, heads: Mapping[str, str] | None = None) -> pd.DataFrame:
    """The blocks that ``read`` returns, as a table with one row for each recorded row.

    Its columns are, in this order: the settings, without lists and mappings; heads (hashes by name, as JSON), status
    ("ok" or "failed") and error; the columns of the row itself; block (the key), cell, processor, device, torch, date,
    command and plan. For the arguments see ``read``.
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
    """The blocks of a file.

    If a block was recorded several times the last time counts, except that a time at which nothing could be measured
    does not replace an earlier one. A block without all its rows is left out.

    file:  of JSON lines; a missing file has no blocks.
    only:  the blocks that are wanted; all if None.
    heads: hashes by name; only blocks that were measured with exactly these heads are returned. None: with any.
    Raises ValueError on a file that is not a recording.
    """
    every_block, _ = _read(Path(file))
    by_key: dict[str, list[Recorded]] = {}  # a key has several blocks if a default was changed between them
    for recorded in every_block:
        if heads is not None and recorded.line["heads"] != heads:
            continue
        same_key = by_key.setdefault(recorded.line["block"], [])
        _add_or_replace(same_key, recorded)
    latest: list[Recorded] = []
    for records in by_key.values():
        latest += records
    if only is None:
        return latest
    settings = {block.key: block.settings for block in only}
    wanted: dict[str, Recorded] = {}
    for recorded in latest:
        key = recorded.line["block"]
        if key in settings and recorded.agrees(settings[key]):
            wanted[key] = recorded
    return list(wanted.values())


def _add_or_replace(records: list[Recorded], new: Recorded) -> None:
    """Add a block to those with the same key. If one of them has its settings, it is replaced, unless new is empty."""
    for index, old in enumerate(records):
        if old.agrees(new.line["settings"]):
            if not new.empty:
                records[index] = new
            return
    records.append(new)


def _table_rows(recorded: Recorded) -> list[dict[str, object]]:
    """A block's rows, each with the facts about the block. A block without rows becomes one row with status failed."""
    line = recorded.line
    rows = recorded.rows or [{"status": "failed"}]
    before = {name: value for name, value in line["settings"].items() if not isinstance(value, list | dict)}
    before |= {"heads": json.dumps(line["heads"], sort_keys=True), "status": "ok", "error": line["error"]}
    row_columns = rows[0].keys()  # they take precedence, and keep their place in the order
    before = {name: value for name, value in before.items() if name not in row_columns}
    after = {name: line[name] for name in ("block", "cell", *WHERE, "date", "command", "plan")}
    return [{**before, **row, **after} for row in rows]


# ---- a file ---------------------------------------------------------------------------------------------------------


def _read(file: Path) -> tuple[list[Recorded], int]:
    """The complete blocks of a file, in the order in which they were written, and the number of bytes they take.

    The bytes after these belong to a block that a kill has cut off. Raises ValueError on a line that does not belong to
    a recording.
    """
    data = file.read_bytes() if file.exists() else b""
    lines = data.split(b"\n")[:-1]  # the last item follows the last newline: it is empty, or a torn line
    blocks = []
    complete_bytes = 0
    index = 0  # of the block's line, counted from 0
    while index < len(lines):
        line = _parse(file, index, lines[index], _check_block)
        next_index = index + 1 + line["rows"]
        rows = []
        for row_index, text in enumerate(lines[index + 1 : next_index], start=index + 1):
            rows.append(_parse(file, row_index, text, _check_row))
        _check_together(file, index, line, rows)
        if len(rows) < line["rows"]:
            break
        blocks.append(Recorded(line, [_without_key(row) for row in rows]))
        complete_bytes += sum(len(text) + 1 for text in lines[index:next_index])
        index = next_index
    return blocks, complete_bytes


def _without_key(row: Mapping[str, object]) -> dict[str, object]:
    """A row without the key of its block."""
    return {name: value for name, value in row.items() if name != "block"}


def _parse(file: Path, index: int, text: bytes, check: Callable[[dict], None]) -> dict:
    """Parse and check a line. Raises ValueError, with the line's number, if it does not belong to a recording.

    index: of the line, counted from 0. Messages count lines from 1.
    """
    try:
        line = json.loads(text)
        if not isinstance(line, dict):
            raise ValueError(f"it is a {type(line).__name__}, no JSON object")
        check(line)
    except ValueError as error:
        raise ValueError(f"{file}, line {index + 1} is no recorded block: {error}") from error
    return line


def _check_block(line: Mapping) -> None:
    """Raise ValueError unless a line is the line of a block."""
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
    """Raise ValueError unless a line is the line of a row."""
    if "block" not in line:
        raise ValueError("it lacks 'block'")


def _check_together(file: Path, index: int, line: Mapping, rows: Sequence[Mapping]) -> None:
    """Raise ValueError unless the rows belong to the block of a line and have the same columns.

    index: of the block's line, counted from 0.
    """
    for number, row in enumerate(rows, start=index + 2):  # the number of the row's line, counted from 1
        if row["block"] != line["block"]:
            raise ValueError(f"{file}, line {number} is no recorded block: it is no row of the block {line['block']}")
        if row.keys() != rows[0].keys():
            raise ValueError(f"{file}, line {number} is no recorded block: its columns are not those of the row above")


def _cut_torn_block(file: Path) -> None:
    """Cut off the incomplete last block that a kill may have left.

    Raises ValueError, and cuts nothing, if the file's last line cannot be the beginning of a recorded line: the file
    may be something else. Lines that end with a newline are checked by ``_read``.
    """
    if not file.exists():
        return
    data = file.read_bytes()
    _, complete_bytes = _read(file)
    torn = data[data.rfind(b"\n") + 1 :]
    if torn[: len(BEGINNING)] != BEGINNING[: len(torn)]:
        number = data.count(b"\n") + 1
        raise ValueError(f"{file}, line {number} is no recorded block: record into another file (--out)")
    os.truncate(file, complete_bytes)


def _plain(value: object) -> object:
    """A NumPy number as a Python number, for JSON. Raises TypeError on any other object."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a row holds a {type(value).__name__}, which JSON cannot: {value!r}")


def _append(file: Path, lines: Sequence[Mapping]) -> None:
    """Append all lines or none. On an OSError, such as a full disk, the file is cut back to what it was."""
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
    """Measure every block that the file lacks; returns the table of all blocks asked for, see ``load``.

    cell:     the name under which measure is recorded, however the function is called.
    measure:  the cell function: measure(**block) returns one row or several.
    blocks:   its arguments, one mapping per block.
    file:     where they are recorded; it need not exist.
    command:  what was typed, which each block records.
    heads:    hashes by name of the heads that are used; a block recorded with other hashes is measured again.
    plan:     hashes of the claims that will be judged, which each block records.
    executor: where blocks are measured; here, one after the other, if None.
    retry:    whether blocks that failed are measured again. Without it a block that raised is left as it is recorded,
              with its error.

    Raises, before any work, ValueError on bad blocks, on a file in use and on a file that is not a recording. Raises
    RuntimeError if a pool breaks: what was recorded stays, and another run goes on. A KeyboardInterrupt is raised again
    with the number of recorded blocks in its message.
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
    """Measure the blocks that a file lacks, and write each one when it is ready.

    shared: the fields that the lines of all blocks have in common: cell, heads, plan and command.
    """
    _cut_torn_block(file)
    _warn_of_other_machines(file)
    done = {recorded.line["block"]: recorded for recorded in read(file, wanted, shared["heads"])}
    missing = []
    for block in wanted:
        is_to_repeat = retry and block.key in done and done[block.key].failed
        if block.key not in done or is_to_repeat:
            missing.append(block)
    finished = len(wanted) - len(missing)
    with tqdm(desc=file.stem, total=len(wanted), initial=finished, unit="block", disable=files.QUIET) as progress:
        for block, outcome in _outcomes(measure, missing, executor):
            _append(file, _lines(block, shared, outcome))
            progress.update()


def _warn_of_other_machines(file: Path) -> None:
    """Print a warning on stderr if a file has blocks that were measured on another machine than this one."""
    here = _machine(provenance.facts(""))
    others = {_machine(recorded.line) for recorded in read(file)} - {here}
    if others:
        print(f"{file.name} has blocks of {'; '.join(sorted(others))}; this is {here}", file=sys.stderr)


def _machine(facts: Mapping[str, str]) -> str:
    """The facts by which machines are told apart, in one line: processor, device and version of torch."""
    return ", ".join(facts[name] for name in WHERE)


@dataclass(frozen=True)
class Outcome:
    """The result of measuring a block."""

    rows: Sequence[Mapping[str, object]] = ()
    error: str = ""  # why there are no rows
    machine: Mapping[str, str] | None = None  # facts about the machine that measured it


def _lines(block: Block, shared: Mapping, outcome: Outcome) -> list[dict[str, object]]:
    """The lines to write for a block: its own and those of its rows. shared: see ``_measure_missing``."""
    line = {
        "block": block.key,
        "cell": shared["cell"],
        "settings": block.settings,
        "heads": shared["heads"],
        "plan": shared["plan"],
        "rows": len(outcome.rows),
        "error": outcome.error,
        **provenance.facts(shared["command"]),
        **(outcome.machine or {}),  # these replace the facts about this machine: the worker may run on another one
    }
    rows = [{"block": block.key, **row} for row in outcome.rows]
    return [line, *rows]


def _outcomes(measure: Callable, blocks: Sequence[Block], executor: Executor | None) -> Iterator[tuple[Block, Outcome]]:
    """Measure blocks; yield each with its outcome when it is ready."""
    if executor is None:
        for block in blocks:
            yield block, _measure_block(measure, block.arguments)
        return
    futures = {executor.submit(_measure_block, measure, block.arguments): block for block in blocks}
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


def _measure_block(measure: Callable, arguments: Settings) -> Outcome:
    """Measure a block in this process. An exception becomes the error of its outcome."""
    machine = {name: fact for name, fact in provenance.facts("").items() if name not in ("command", "date")}
    try:
        result = measure(**arguments)
        rows = [result] if isinstance(result, Mapping) else list(result)
        _check_columns(rows)
        json.dumps(rows, default=_plain)  # only for its TypeError: what cannot be written is this block's error
        return Outcome(rows, "", machine)
    except Exception as error:
        return Outcome((), _words(error), machine)


def _check_columns(rows: Sequence[Mapping[str, object]]) -> None:
    """Raise ValueError unless there are rows, and all have the same columns, none of them named "block"."""
    if not rows:
        raise ValueError("the cell function has returned no rows")
    columns = list(rows[0])
    if "block" in columns:
        raise ValueError("a column is called 'block', which is the name of the column with a block's key")
    for row in rows:
        if list(row) != columns:
            raise ValueError(f"rows of a block differ in their columns: {columns} and {list(row)}")


def _words(error: Exception) -> str:
    """An exception's type and message in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
