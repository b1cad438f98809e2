"""Experiments: the table of everything that is recorded in data/results, what each feeds, and how to record it.

``python -m study list`` prints the table with its state, ``python -m study record NAME …`` records what is
missing (and resumes). A recording is stale if it was made with other heads than the committed ones, by a command that
is gone, or has other columns than its reader; ``stale()`` says which are.
"""

import hashlib
import inspect
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pandas as pd

from specnb import heads, models, verifiers
from specnb.decode import decode
from specnb.drafters import SelfDrafter
from specnb.models import files, prompts
from specnb.target import Target
from study import coinless, gpu, metrics, prices, replay, run, sweep
from study.methods import named
from training.__main__ import COMMANDS as TRAINING

RESULTS, CLAIMS = files.DATA / "results", files.DATA / "claims"
JUDGED_BY = ("claim", "rows", "value", "methods", "statistic", "at", "direction", "bound")


def alike_block(prompt: str, methods: Sequence[str], length: int) -> list[dict[str, object]]:
    """How alike the branches of greedy self-drafters are (``metrics.alike``, PTD's Figure 1b); one row a method.

    Self-Draft's branches are taken without their prefixes. Steps in which the window or tree may still fill are left
    out.
    """
    pair, rows = run.loaded(), []
    ids = pair.encode(prompts.text(prompt))
    for name in methods:
        drafter = named(name, pair)
        out = decode(Target(pair.target), drafter, verifiers.greedy, ids, max_new_tokens=length, eos=())
        tail = drafter.levels if isinstance(drafter, SelfDrafter) else None
        rows.append({"method": name, **metrics.alike(out.steps[drafter.reach :], tail)})
    return rows


# ---- what was measured ------------------------------------------------------------------------------------------

MODEL_FILES = (".safetensors", ".bin", ".json", ".jinja", ".model", ".txt", ".gguf", ".py")


def folder_hash(folder: Path) -> str:
    """A hash of the files in a folder that make a model and its tokenizer, so that a changed model is another one."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in MODEL_FILES:
            facts = path.stat()
            digest.update(f"{path.name} {_file_hash(path, facts.st_size, facts.st_mtime_ns)}\n".encode())
    return digest.hexdigest()


@cache
def _file_hash(path: Path, size: int, changed: int) -> str:
    """A file's SHA-256, taken once while its size and its time of change stay."""
    return files.sha256(path)


# ---- the table --------------------------------------------------------------------------------------------------

CELLS: dict[str, tuple[Callable, set[str]]] = {  # what a block measures, and the columns that readers know
    "race": (run.race_block, set(run.ROW)),
    "texts": (run.texts_block, {"method", "positions", "equal", "first", "gap", "same"}),
    "rules": (replay.rules_block, set(replay.COLUMNS)),
    "verifiers": (coinless.verifiers_block, {"method", "rule", "steps", "tau", "given", "nodes"}),
    "curves": (prices.curves_block, {"model", "nodes", "quartile", "median", "third quartile"}),
    "law": (gpu.law_block, {"method", "heat", "outcomes", "p value"}),
    "shapes": (gpu.shapes_block, {"model", "nodes", "quartile", "median", "third quartile"}),
    "alike": (alike_block, {"method", "branches", "repeated", *metrics.ALIKE}),
}


@dataclass(frozen=True)
class Experiment:
    """One recording of the table data/experiments.toml, which says what the fields mean, or one of a command's own."""

    name: str
    cell: str
    feeds: Sequence[str] = ()
    minutes: int = 0
    prompts: Sequence[str] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    over: Mapping[str, Sequence] = field(default_factory=dict)

    def blocks(self) -> list[dict]:
        """The settings of every block; ValueError on a prompt that is not known."""
        axes = {"prompt": [one for name in self.prompts for one in prompts.chosen(name)]} if self.prompts else {}
        return [{**self.settings, **cell} for cell in sweep.grid(**axes, **self.over)]

    def keys(self) -> dict[str, dict]:
        """Its blocks by the keys under which they are recorded with the committed heads."""
        return sweep.keys(self.cell, CELLS[self.cell][0], self.blocks(), self.heads())

    def heads(self) -> dict[str, str]:
        """Hashes of the trained heads that its blocks use, those behind methods by name and heads by name, and of a
        target that is loaded from a folder."""
        used = {prices.head_of(name) for name in self.settings.get("methods", ())}
        used |= {*self.settings.get("heads", ()), *self.over.get("head", ())}
        found = heads.hashes({name.partition("@")[0] for name in used - {None}} - {"pair"})
        folder = Path(self.settings.get("pair", models.EMBEDDED))
        if str(folder) not in models.PAIRS and folder.is_dir():
            found[f"target {folder}"] = folder_hash(folder)
        return found

    def measure(self, file: Path, command: str, executor: Executor | None = None, retry: bool = False) -> pd.DataFrame:
        """Measure the blocks that the file lacks; the table of all of them, see ``sweep.run``."""
        options = {"command": command, "heads": self.heads(), "executor": executor, "retry": retry}
        options["plan"] = plan(self.name)
        return sweep.run(self.cell, CELLS[self.cell][0], self.blocks(), file, **options)


TABLE = tomllib.loads(files.in_checkout(files.DATA / "experiments.toml").read_text("utf-8"))
EXPERIMENTS = {name: Experiment(name, **row) for name, row in TABLE.items()}


def plan(name: str) -> str:
    """A hash of the tests by which claims on an experiment will be judged; empty if there are none, or it has no name.

    Each recorded block carries it, so that it shows if a test was changed after the data were there.
    """
    tables = [pd.read_csv(path, dtype=str, keep_default_na=False) for path in sorted(CLAIMS.glob("*.csv"))]
    rows = pd.concat([table.loc[table["experiment"] == name, [*JUDGED_BY]] for table in tables])
    return hashlib.sha256(rows.to_csv(index=False).encode()).hexdigest()[:16] if name and len(rows) else ""


def chosen(name: str, only: Sequence[str] = ()) -> Experiment:
    """An experiment, or some of its prompts, by ``prompts.chosen``; ValueError on what it has not."""
    known = EXPERIMENTS[check(name)]
    wanted = replace(known, prompts=tuple(only)) if only else known
    if foreign := {b.get("prompt") for b in wanted.blocks()} - {b.get("prompt") for b in known.blocks()}:
        raise ValueError(f"{min(foreign)} is no prompt of {name}, whose prompts are {', '.join(known.prompts)}")
    return wanted


def record(
    name: str,
    *,
    only: Sequence[str] = (),
    folder: Path = RESULTS,
    executor: Executor | None = None,
    retry: bool = False,
) -> pd.DataFrame:
    """Record what an experiment lacks; the table of all its blocks.

    only: see ``chosen``.
    """
    wanted = chosen(name, only)
    workers = f" --workers {executor._max_workers}" if isinstance(executor, ProcessPoolExecutor) else ""
    return wanted.measure(folder / f"{name}.jsonl", f"python -m study record {name}{workers}", executor, retry)


def recorded(name: str, folder: Path = RESULTS) -> pd.DataFrame:
    """A recorded experiment, one row a run, with the column domain; ValueError if there is none of that name.

    Only its own blocks, recorded with the committed heads and the present settings.
    """
    table = sweep.load(folder / f"{check(name)}.jsonl")
    table = table[table["key"].isin(EXPERIMENTS[name].keys())].reset_index(drop=True)
    if table.empty:
        raise ValueError(f"{name} is not recorded yet, as it is now: `python -m study record {name}`")
    return table.assign(domain=prompts.domains(table["prompt"])) if "prompt" in table else table


def check(name: str) -> str:
    """The name of an experiment; ValueError naming the known ones otherwise."""
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}: known are {', '.join(EXPERIMENTS)}")
    return name


def missing(name: str, folder: Path = RESULTS) -> int:
    """How many blocks of an experiment are not recorded, with the committed heads and the present settings, or failed
    in part."""
    table, known = sweep.load(folder / f"{name}.jsonl"), EXPERIMENTS[check(name)].keys()
    return len(set(known) - (set(table["key"]) - set(table["key"][table["status"] == "failed"])))


def listing(folder: Path = RESULTS) -> pd.DataFrame:
    """One row an experiment: name, notebooks it feeds, cell, blocks recorded and in all, minutes, state."""
    problems, rows = stale(folder), []
    for name, wanted in EXPERIMENTS.items():
        count = len(wanted.blocks())
        done = count - missing(name, folder)
        state = problems.get(f"{name}.jsonl") or ("complete" if done == count else "begun" if done else "to record")
        rows.append((name, " ".join(wanted.feeds), wanted.cell, done, count, wanted.minutes, state))
    return pd.DataFrame(rows, columns=["name", "notebooks", "cell", "recorded", "blocks", "minutes", "state"])


def stale(folder: Path = RESULTS) -> dict[str, str]:
    """Why recordings cannot be read as they are, by file name: other heads, a gone command, other columns."""
    found = {}
    for path in sorted((*folder.glob("*.jsonl"), *folder.glob("*.json"))):
        if path.suffix == ".jsonl":
            table = sweep.load(path)
            if path.stem not in EXPERIMENTS:
                reason = "no experiment has this name"
            elif table.empty:
                reason = "it has no whole block"
            elif odd := _columns(table) ^ (CELLS[EXPERIMENTS[path.stem].cell][1] - {"status", "error"}):
                reason = f"unknown or missing columns {', '.join(sorted(odd))}"
            else:
                reason = replaced([json.loads(text) for text in set(table["heads"])])
        else:
            facts = json.loads(path.read_text(encoding="utf-8"))
            runs = facts.get("runs", [facts])
            gone = [r for r in runs if r["command"].split()[2:3] != ["training"]
                    or r["command"].split()[3] not in TRAINING]  # fmt: skip
            used = [run.get("head_sha256", {}) for run in runs]
            reason = "its command is gone" if gone else replaced(used) if all(used) else "it names no heads"
        if reason:
            found[path.name] = reason
    return found


def _columns(table: pd.DataFrame) -> set[str]:
    """The columns that a cell measured: not the block's settings, nor where it was measured."""
    own = {"heads", "key", "cell", "processor", "device", "torch", "date", "command", "plan", "status", "error"}
    cells = set(table["cell"]) & set(CELLS)
    settings = {name for cell in cells for name in inspect.signature(CELLS[cell][0]).parameters}
    return set(table.columns) - own - settings


def replaced(used: Sequence[dict[str, str]]) -> str:
    """In words, which heads are other files now; nothing if all are those of the committed cards, variants' too."""
    cards = {card.stem: card for folder in ("variants", ".") for card in (heads.FOLDER / folder).glob("*.json")}
    names = {name for each in used for name in each if name.partition("@")[0] in cards}
    now = {name: json.loads(cards[name.partition("@")[0]].read_text("utf-8"))["sha256"] for name in names}
    other = sorted({name for each in used for name, digest in each.items() if now.get(name) != digest})
    return f"made with other heads: {', '.join(other)}" if other else ""
