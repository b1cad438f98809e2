"""The second edition's keys and plans, as its code had them: frozen, to prove what was fixed before the data.

Its recordings carried two hashes in each block. ``old_plan`` is that of the tests by which claims on an experiment were
to be judged, rows of data/claims/PAPER.csv. ``old_keys`` are those of what was measured, from
data/claims/experiments.toml, the signatures of its cell functions and the heads. Both files are frozen, and so is this.
"""

import csv
import hashlib
import json
import tomllib
from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path

import pandas as pd

from specnb import growth
from specnb.models import files, prompts

FROZEN = files.DATA / "claims"
PAPERS = ("dynatree", "edd_pct", "ptd", "salf_talf", "traversal")  # the tables that there were, sorted
JUDGED_BY = ("claim", "rows", "value", "methods", "statistic", "at", "direction", "bound")

NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
OF_A_PAIR = {"pair": "smollm2-135m", "dtype": "float32"}
DEFAULTS = {  # of the cell functions, which belonged to the key
    "race": {
        "length": 96, "temperature": 0.0, "repetitions": 1, **OF_A_PAIR, "packed": False, "whole": False,
        "keep_ids": False,
    },
    "texts": {"control": "", **OF_A_PAIR, "plain": "generate"},
    "rules": {"k": 10, "pair": "smollm2-135m", "wide": (), "lengths": ()},
    "verifiers": {"temperature": 1.0, "seed": 0, **OF_A_PAIR, "packed": False},
    "curves": {"prefix": 300, "repetitions": 15, **OF_A_PAIR, "packed": False, "sizes": NODES, "graphs": False},
    "law": {"temperature": 1.0, **OF_A_PAIR},
    "shapes": {},
    "alike": {},
}  # fmt: skip
GROWTH = {
    "chain": growth.chain, "kary": growth.kary, "dynatree": growth.DynaTree, "eagle2": growth.Eagle2,
    "pct": growth.Pct, "salf": growth.Salf, "specexec": growth.SpecExec, "opt": growth.OptTree,
}  # fmt: skip
NAMED = {  # rules without numbers
    "vct": growth.kary(3, 5), "cape": growth.Cape(), "eagle2": growth.Eagle2(50, 6, 10), "eagle_25": growth.EAGLE_25,
}  # fmt: skip


@cache
def table() -> dict[str, dict]:
    """The experiments by name, as data/claims/experiments.toml has them."""
    return tomllib.loads((FROZEN / "experiments.toml").read_text("utf-8"))


@cache
def names() -> dict[tuple[str, str], str]:
    """The new name of each ("method", old name) and ("rule", old spelling)."""
    with open(FROZEN / "names.csv", encoding="utf-8", newline="") as file:
        return {(row["kind"], row["old"]): row["new"] for row in csv.DictReader(file)}


def old_plan(experiment: str, folder: Path = FROZEN) -> str:
    """The hash of the tests by which claims on an experiment were to be judged; empty if there were none."""
    tables = [pd.read_csv(folder / f"{paper}.csv", dtype=str, keep_default_na=False) for paper in PAPERS]
    rows = pd.concat([one.loc[one["experiment"] == experiment, [*JUDGED_BY]] for one in tables])
    return hashlib.sha256(rows.to_csv(index=False).encode()).hexdigest()[:16] if len(rows) else ""


def old_keys(experiment: str, heads: Mapping[str, str]) -> dict[str, dict]:
    """The settings of each block of an experiment, by its key with heads of these hashes."""
    wanted = table()[experiment]
    axes = dict(wanted.get("over", {}))
    if "prompts" in wanted:
        axes = {"prompt": [one for name in wanted["prompts"] for one in prompts.chosen(name)], **axes}
    found = {}
    for values in product(*axes.values()):
        block = {**DEFAULTS[wanted["cell"]], **wanted.get("settings", {}), **dict(zip(axes, values, strict=True))}
        text = json.dumps([wanted["cell"], block, sorted(heads.items())], sort_keys=True)
        found[hashlib.sha256(text.encode()).hexdigest()[:16]] = block
    return found


def spread(spelling: str) -> list[str]:
    """ "chain {1 6}" was short for "chain 1" and "chain 6", several braces for all combinations."""
    parts = spelling.replace("}", "{").split("{")
    choices = [part.split() if place % 2 else [part] for place, part in enumerate(parts)]
    return ["".join(chosen) for chosen in product(*choices)]


def old_rule(spelling: str) -> object:
    """The growth rule that a spelling stood for."""
    if spelling in NAMED:
        return NAMED[spelling]
    kind, _, numbers = spelling.partition(" ")
    return GROWTH[kind](*(float(text) if "." in text else int(text) for text in numbers.split(",") if numbers))


def in_new_words(block: Mapping[str, object]) -> dict[str, object]:
    """A block's settings with today's names of methods and rules, and a head's temperature as a setting of its own."""
    new = dict(block)
    for name in ("rules", "wide", "shapes"):
        if name in block:
            new[name] = [names()["rule", one] for spelling in block[name] for one in spread(spelling)]
    if "methods" in block:
        new["methods"] = [names()["method", one] for one in block["methods"]]
    for name in ("plain", "control"):
        if block.get(name):
            new[name] = names()["method", block[name]]
    if "head" in block:
        new["head"], _, temperature = block["head"].partition("@")
        new["softened"] = float(temperature or 1.0)
    return json.loads(json.dumps(new))  # tuples are lists in a file
