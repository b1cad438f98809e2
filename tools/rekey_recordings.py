"""Rewrites recordings of the second edition as the third reads them; run once, kept to show what was done.

    python tools/rekey_recordings.py OLD_FOLDER NEW_FOLDER

Nothing is measured again and no number is touched. A method gets its new name and a growth rule its new spelling, both
from data/claims/names.csv; what stood in texts ("1:3 12:40", lists within JSON) becomes lists; a block becomes a line
of what it was and a line for each row. Every new file is then read again and compared with the old one, row by row and
value by value, by rules that are written the other way round (``check``).

The new key of a block is a hash of its cell and of the settings that differ from the cell's defaults, which stand here
as a table: the second edition's cells had other signatures. The old key stays in the line, where a test recomputes it.
"""

import csv
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

NAMES = Path(__file__).resolve().parents[1] / "data" / "claims" / "names.csv"
NODES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
PAIR = {"pair": "smollm2-135m", "dtype": "float32"}
DEFAULTS: dict[str, dict[str, object]] = {  # of the third edition's cells, at the time of the rewriting
    "race": {
        "length": 96, "temperature": 0.0, "repetitions": 1, **PAIR, "packed": False, "whole": False, "keep_ids": False,
    },
    "texts": {"control": "", **PAIR, "plain": "generate"},
    "rules": {"k": 10, "pair": "smollm2-135m", "wide": [], "lengths": [], "softened": 1.0},
    "verifiers": {"temperature": 1.0, "seed": 0, **PAIR, "packed": False},
    "curves": {"prefix": 300, "repetitions": 15, **PAIR, "packed": False, "sizes": NODES, "graphs": False},
    "law": {"temperature": 1.0, **PAIR},
    "shapes": {},
    "alike": {},
}  # fmt: skip
MACHINE = ("processor", "device", "machine", "python", "specnb", "torch", "transformers", "command", "date")

Names = Mapping[str, Mapping[str, str]]  # "method" or "rule" → old → new


def names() -> Names:
    """The new name of every old method and growth rule."""
    found: dict[str, dict[str, str]] = {"method": {}, "rule": {}}
    with open(NAMES, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found[row["kind"]][row["old"]] = row["new"]
    return found


# ---- settings of a block --------------------------------------------------------------------------------------------


def spread(spelling: str) -> list[str]:
    """ "chain {1 6}" was short for "chain 1" and "chain 6", several braces for all combinations.

    >>> spread("salf {6 8},3,{0.5 0.8}")
    ['salf 6,3,0.5', 'salf 6,3,0.8', 'salf 8,3,0.5', 'salf 8,3,0.8']
    """
    parts = spelling.replace("}", "{").split("{")
    choices = [part.split() if place % 2 else [part] for place, part in enumerate(parts)]
    return ["".join(chosen) for chosen in product(*choices)]


def settings(cell: str, old: Mapping[str, object], new_names: Names) -> dict[str, object]:
    """A block's settings as the new cell takes them, with its defaults."""
    found = {**old, **{name: value for name, value in DEFAULTS[cell].items() if name not in old}}
    method, rule = new_names["method"], new_names["rule"]
    for name in ("rules", "wide", "shapes"):
        if name in old:
            found[name] = [rule[one] for spelling in old[name] for one in spread(spelling)]
    if "methods" in old:
        found["methods"] = [method[one] for one in old["methods"]]
    for name in ("plain", "control"):
        if old.get(name):
            found[name] = method[old[name]]
    if "head" in old:
        head, at, temperature = old["head"].partition("@")
        found["head"] = head
        if at:
            found["softened"] = float(temperature)
    return found


def key(cell: str, given: Mapping[str, object]) -> str:
    """Under what a block is recorded: its cell and the settings that are not the default."""
    defaults = DEFAULTS[cell]
    own = {name: value for name, value in given.items() if name not in defaults or value != defaults[name]}
    return hashlib.sha256(json.dumps([cell, own], sort_keys=True).encode()).hexdigest()[:16]


# ---- rows -----------------------------------------------------------------------------------------------------------


def counts(spelt: str | None) -> list[list[int]] | None:
    """Sizes of forwards and how many there were of each, from "1:3 12:40"; none stays none."""
    if spelt is None:
        return None
    return [[int(number) for number in pair.split(":")] for pair in spelt.split()]


def numbers(spelt: str | None) -> list[int] | None:
    """Token ids from "12 7 9"; none stays none."""
    if spelt is None:
        return None
    return [int(number) for number in spelt.split()]


def unpacked(text: str) -> list:
    """What stood as JSON within JSON; nothing from an empty text."""
    return json.loads(text) if text else []


def row(cell: str, old: Mapping[str, object], new_names: Names) -> dict[str, object]:
    """A row as the new cell writes it."""
    method, rule = new_names["method"], new_names["rule"]
    if cell == "verifiers":
        head, _, shape = old["method"].partition(":")
        kept = {name: old[name] for name in ("steps", "tau", "given", "nodes")}
        return {"head": head, "shape": rule[shape], "verifier": old["rule"], **kept}
    new = dict(old)
    if "method" in old:
        new["method"] = method[old["method"]]
    if cell == "race":
        new |= {"trees": counts(old["trees"]), "frontiers": counts(old["frontiers"]), "ids": numbers(old["ids"])}
    if cell == "rules":
        # "chain" without a number is no rule: it holds what became of the likeliest chains
        new["rule"] = old["rule"] if old["rule"] == "chain" else rule[old["rule"]]
        new |= {"ranks": unpacked(old["ranks"]), "chains": unpacked(old["chains"])}
    return new


# ---- files ----------------------------------------------------------------------------------------------------------


def old_lines(file: Path) -> list[dict]:
    """The lines of a second-edition file; the first ones had no plan yet."""
    return [{"plan": "", **json.loads(text)} for text in file.read_text(encoding="utf-8").splitlines()]


def old_rows(line: Mapping) -> list[dict[str, object]]:
    """The rows of a second-edition line, which held them as columns."""
    columns = line["rows"]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def rewritten(line: Mapping, new_names: Names) -> list[dict[str, object]]:
    """The lines that a second-edition line becomes: the block's, and one for each row."""
    cell = line["cell"]
    given = settings(cell, line["block"], new_names)
    rows = [row(cell, one, new_names) for one in old_rows(line)]
    block = {
        "block": key(cell, given), "cell": cell, "settings": given, "heads": line["heads"], "plan": line["plan"],
        "old key": line["key"], "rows": len(rows), "error": line["error"], **{name: line[name] for name in MACHINE},
    }  # fmt: skip
    return [block, *({"block": block["block"], **one} for one in rows)]


def rewrite(old: Path, new: Path, new_names: Names) -> None:
    """Write a second-edition file anew."""
    lines = old_lines(old)
    written = [json.dumps(one, ensure_ascii=False) for line in lines for one in rewritten(line, new_names)]
    new.write_text("".join(f"{text}\n" for text in written), encoding="utf-8")


# ---- the check: what was written, spelt as before, is what was there ------------------------------------------------


def blocks(file: Path) -> Iterator[tuple[dict, list[dict]]]:
    """Each block of a new file and its rows."""
    lines = [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]
    at = 0
    while at < len(lines):
        block = lines[at]
        rows = lines[at + 1 : at + 1 + block["rows"]]
        assert [row["block"] for row in rows] == [block["block"]] * block["rows"], block["block"]
        yield block, [{name: value for name, value in row.items() if name != "block"} for row in rows]
        at += 1 + block["rows"]


def same(one: object, other: object) -> bool:
    """Whether two values are the same to the last digit, 0 and 0.0 being two."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def spelt_before(cell: str, column: str, value: object) -> object:
    """A value of a new row as the second edition wrote it, but for names."""
    if value is None:
        return None
    if cell == "race" and column in ("trees", "frontiers"):
        return " ".join(f"{size}:{count}" for size, count in value)
    if cell == "race" and column == "ids":
        return " ".join(map(str, value))
    if cell == "rules" and column in ("ranks", "chains"):
        return json.dumps(value) if value else ""
    return value


def check_row(cell: str, old: Mapping, new: Mapping, known: set[tuple[str, str, str]]) -> None:
    """AssertionError unless a new row says what the old one said. known: rows of names.csv."""
    if cell == "verifiers":
        head, shape = old["method"].split(":")
        assert new["head"] == head
        assert ("rule", shape, new["shape"]) in known
        assert new["verifier"] == old["rule"] in ("token-level", "traversal")
        assert list(new) == ["head", "shape", "verifier", *list(old)[2:]]
        compared = list(old)[2:]
    else:
        assert list(new) == list(old)
        named = [column for column in ("method", "rule") if column in old]
        for column in named:
            chains = (column, old[column], new[column]) == ("rule", "chain", "chain")
            assert chains or (column, old[column], new[column]) in known, (old[column], new[column])
        compared = [column for column in old if column not in named]
    for column in compared:
        assert same(spelt_before(cell, column, new[column]), old[column]), (column, old[column], new[column])


def check_settings(line: Mapping, block: Mapping, known: set[tuple[str, str, str]]) -> None:
    """AssertionError unless a new block's settings are the old ones, or defaults of settings that were not there."""
    cell, old, new = line["cell"], dict(line["block"]), dict(block["settings"])
    for name in ("rules", "wide", "shapes"):
        if name in old:
            pairs = zip((one for text in old.pop(name) for one in spread(text)), new.pop(name), strict=True)
            assert all(("rule", *pair) in known for pair in pairs), name
    if "methods" in old:
        assert all(("method", *pair) in known for pair in zip(old.pop("methods"), new.pop("methods"), strict=True))
    for name in ("plain", "control"):
        if name in old:
            pair = old.pop(name), new.pop(name)
            assert pair == ("", "") or ("method", *pair) in known, pair
    if "head" in old:
        softened = new.pop("softened")
        assert old.pop("head") == (new.pop("head") if softened == 1.0 else f"{new.pop('head')}@{softened:.2f}")
    for name, value in new.items():
        assert same(value, old.pop(name, DEFAULTS[cell].get(name))), name
    assert not old, old


def check(old: Path, new: Path, new_names: Names) -> tuple[int, int]:
    """AssertionError unless a new file has every block and row of the old one; how many blocks and rows that are."""
    known = {(kind, one, other) for kind, table in new_names.items() for one, other in table.items()}
    lines = old_lines(old)
    counted = 0
    for line, (block, rows) in zip(lines, blocks(new), strict=True):
        assert block["old key"] == line["key"]
        check_settings(line, block, known)
        for name in ("cell", "heads", "plan", "error", *MACHINE):
            assert same(block[name], line[name]), name
        for one, other in zip(old_rows(line), rows, strict=True):
            check_row(line["cell"], one, other, known)
        counted += len(rows)
    found = [block["block"] for block, _ in blocks(new)]
    assert len(set(found)) == len({line["key"] for line in lines}), "two blocks have come under one key"
    return len(lines), counted


def main() -> None:
    old_folder, new_folder = map(Path, sys.argv[1:])
    new_names = names()
    for old in sorted(old_folder.glob("*.jsonl")):
        new = new_folder / old.name
        rewrite(old, new, new_names)
        count, rows = check(old, new, new_names)
        print(f"{old.name:28} {count:4} blocks {rows:6} rows, every value as before")


if __name__ == "__main__":
    main()
