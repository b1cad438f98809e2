"""Experiments: the table of everything that is recorded in data/results, what each feeds, and how to record it.

``python -m specnb.lab list`` prints the table with its state, ``python -m specnb.lab record NAME …`` records what is
missing (and resumes). A recording is stale if it was made with other heads than the committed ones, by a command that
is gone, or has other columns than its reader; ``stale()`` says which are.
"""

import json
import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from specnb import heads
from specnb.drafters import SelfDrafter
from specnb.lab import coinless, methods, metrics, prices, replay, run, sweep
from specnb.models import files, prompts
from specnb.training.__main__ import COMMANDS as TRAINING

RESULTS = files.DATA / "results"
KNOWN_STALE = RESULTS / "stale.txt"  # the first edition's recordings, until issues 16 to 20 of the plan replace them


def alike_block(prompt: str, methods: Sequence[str], length: int) -> list[dict[str, object]]:
    """How alike the branches of greedy self-drafters are, step by step (PTD's Figure 1b); one row a method.

    Per similarity and threshold: "steps", the share of steps in which at least two branches are that similar, and
    "share", that of branches with such a partner. Self-Draft's branches are taken without their prefixes. repeated:
    share of draft nodes whose token was drafted behind the same token in the same step before. Steps in which the
    window or tree may still fill are left out.
    """
    return [{"method": name, **_alike(name, prompt, length)} for name in methods]


SIMILARITIES = {"aligned": metrics.aligned, "overlap": metrics.overlap}
ALIKE = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def _alike(name: str, prompt: str, length: int) -> dict[str, float]:
    pair = run.loaded()
    drafter = methods.named(name, pair)
    out = run.decode(
        run.Target(pair.target), drafter, run.verifiers.greedy, pair.encode(prompts.text(prompt)),
        max_new_tokens=length, eos=(),
    )  # fmt: skip
    tail, full = (drafter.levels if isinstance(drafter, SelfDrafter) else None), out.steps[drafter.reach :]
    found = [metrics.branches(step.draft, tail) for step in full]
    row = {"branches": float(np.mean([len(step) for step in found]))}
    row["repeated"] = float(np.mean([metrics.repeated(step.draft) for step in full]))
    for kind, similarity in SIMILARITIES.items():
        best = [metrics.likeness(step, similarity) for step in found]
        for least in ALIKE:
            high = [values >= least - 1e-9 for values in best]
            row[f"steps {kind} {least}"] = float(np.mean([values.any() for values in high]))
            row[f"share {kind} {least}"] = float(np.mean(np.concatenate(high)))
    return row


# ---- the table --------------------------------------------------------------------------------------------------

COUNTS = ("rule", "steps", "nodes", "forwards", "fed", "everywhere", "ranks", "chains")
CELLS: dict[str, tuple[Callable, set[str]]] = {  # what a block measures, and the columns that readers know
    "race": (run.race_block, set(run.ROW)),
    "texts": (run.texts_block, {"method", "positions", "equal", "first", "gap", "same"}),
    "rules": (replay.rules_block, set(COUNTS)),
    "verifiers": (coinless.verifiers_block, {"method", "rule", "steps", "tau", "given", "nodes", "bug"}),
    "curves": (prices.curves_block, {"model", "nodes", "quartile", "median", "third quartile"}),
    "alike": (
        alike_block,
        {"method", "branches", "repeated"}
        | {f"{kind} {name} {least}" for kind in ("steps", "share") for name in SIMILARITIES for least in ALIKE},
    ),
}


@dataclass(frozen=True)
class Experiment:
    """One recording: a cell by name, the prompts (``prompts.chosen``), what all blocks share, and what it feeds.

    over: settings of which each value makes blocks of its own. minutes: on two cores.
    """

    name: str
    cell: str
    feeds: tuple[str, ...]
    minutes: int
    prompts: tuple[str, ...] = ()
    settings: dict = None
    over: dict = None

    def blocks(self) -> list[dict]:
        axes = {"prompt": [one for name in self.prompts for one in prompts.chosen(name)]} if self.prompts else {}
        return [{**(self.settings or {}), **cell} for cell in sweep.grid(**axes, **(self.over or {}))]

    def heads(self) -> dict[str, str]:
        """Hashes of the trained heads that its blocks use."""
        used: set[str] = set()
        for block in self.blocks():
            used |= {methods.method(name).head for name in block.get("methods", ())} if self.cell != "alike" else set()
            used |= {"vdm"} if "assistant" in block.get("methods", ()) else set()
            used |= {*block.get("heads", ()), block.get("head")}
        return heads.hashes({name.partition("@")[0] for name in used - {None, "pair"}})


LOOKAHEAD = "lookahead window=15 level=5 guesses=15"
PTD = ["generate", "vdm:chain 5", LOOKAHEAD, "self_draft", "self_draft corpus=own", "ptd chained=True", "ptd"]
HASS, UNION = "hass:salf 6,3,0.8,10", "hass:salf 6,3,0.8,10 + ngram budget=8"
RETRIEVED = "hass:salf 4,3,0.8,10 + retrieval store=own budget=12"
RACE = [
    "generate", "prompt lookup", "assistant", "undrafted", "n-gram tree", "retrieval store=own budget=15",
    "self_draft", "ptd children=2 depth=4", "vdm:chain 3", "medusa:eagle2 12,4,4", "edd:pct 0.1,5,10,0.04", HASS,
    UNION, RETRIEVED,
]  # fmt: skip
SAMPLED = [
    "generate", "vdm:chain 3 iid token_level", "vdm:chain 3 iid block", "vdm:kary 2,3 swor rrsw",
    "vdm:kary 2,3 swor traversal", "hass:kary 2,3 swor rrsw", "hass:kary 2,3 swor traversal",
]  # fmt: skip
TEXTS = [
    "n-gram tree", "retrieval store=own budget=7", "self_draft", LOOKAHEAD, "ptd", "vdm:dynatree 4,2,0.1,32",
    "medusa:eagle2 12,4,4", "edd:pct 0.1,5,10,0.04", "eagle:eagle2 16,4,4", "talf:salf 6,3,0.8,10", HASS, UNION,
    f"{HASS} in graphs",
]  # fmt: skip
DYNATREE = ["generate", "assistant", "vdm:linear", "vdm:streaming 256", "vdm:dynatree", "vdm:dynatree 3,3,0.1,128"]
EDD_RULES = [
    "chain 5", "chain 10", "vct", "cape", "eagle2", "pct 0.061", "pct 0.061,5,10,0.0", "layer 0.061,0.0233",
    *(f"pct 0.061,{k}" for k in (1, 2, 3, 4, 6, 8, 10)),
]  # fmt: skip
SALF_RULES = [
    *(f"eagle2 59,{depth},10" for depth in range(3, 9)), *(f"salf 60,10,{th / 20},10" for th in range(20)),
    "specexec 59,10,10", "opt 59,0.5,10,10",
]  # fmt: skip
REPORT = ("own", "humaneval:12", "gsm100:12")  # tune on own 1 to 4 of each domain, report on the others
RACED = {"length": 96, "repetitions": 3}

EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment("race", "race", ("00", "06"), 180, REPORT, {"methods": RACE, **RACED}),
        Experiment("texts", "texts", ("01", "03", "04", "05", "06"), 60, ("own",),
                   {"methods": TEXTS, "length": 24, "control": "ptd"}),
        Experiment("prices", "curves", ("03", "04", "05", "06"), 4, (),
                   {"heads": ["vdm", "medusa", "edd", "eagle", "hass", "talf"]}, {"prefix": [100, 300]}),
        Experiment("memory", "race", ("06",), 12, ("rag-01",),
                   {"methods": ["undrafted", "retrieval store=own budget=7", HASS], "whole": True},
                   {"length": [500, 1000, 2000]}),
        Experiment("ptd", "race", ("01",), 120, REPORT, {"methods": PTD, **RACED}),
        Experiment("ptd_sampled", "race", ("01",), 60, ("conversation", "gsm100:6", "humaneval:6"),
                   {"methods": PTD, **RACED, "temperature": 0.5, "keep_ids": True}),
        Experiment("ptd_shapes", "race", ("01",), 120, ("own:2",),
                   {"methods": ["generate", *(f"ptd children={c} depth={d}" for c in (1, 2, 4, 6) for d in (2, 4, 6, 8))],
                    **RACED}),
        Experiment("ptd_budgets", "race", ("01",), 60, ("own:2",),
                   {"methods": ["generate", *(f"ptd expand={e}" for e in ("topk", "topp", "sample")),
                                *(f"lookahead window={n} level=5 guesses={n}" for n in (3, 5, 7, 10, 15)),
                                *(f"self_draft branches={n}" for n in (2, 4, 6, 10))], **RACED}),
        Experiment("ptd_alike", "alike", ("01",), 6, ("own:2",),
                   {"methods": ["self_draft", "ptd chained=False", "ptd chained=True"], "length": 64}),
        Experiment("traversal", "verifiers", ("02",), 90, ("own",),
                   {"heads": ["vdm", "eagle"], "shapes": ["chain 5", "kary 2,5", "eagle_25"], "length": 48},
                   {"temperature": [0.4, 0.7, 1.0]}),
        Experiment("sampled", "race", ("02", "06"), 90, REPORT, {"methods": SAMPLED, **RACED, "temperature": 1.0}),
        Experiment("dynatree", "race", ("03",), 60, ("own:2", "dynatree"), {"methods": DYNATREE, **RACED}),
        Experiment("edd", "race", ("04",), 120, REPORT,
                   {"methods": ["generate", "vdm:chain 5", "medusa:chain 5", "eagle:chain 5", "edd:chain 5", "edd:cape",
                                "edd:eagle2", "edd:pct 0.061", "edd:pct 0.1,5,10,0.04"], **RACED}),
        Experiment("edd_rules", "rules", ("04",), 90, ("own",), {"rules": EDD_RULES, "length": 64},
                   {"head": ["edd", "eagle", "vdm"]}),
        Experiment("salf", "race", ("05",), 120, REPORT,
                   {"methods": ["generate", *(f"{head}:{rule}" for head in ("eagle", "hass", "talf") for rule in
                                              ("eagle2 59,8,10", "salf 60,10,0.0,10", "salf 60,10,0.6,10")),
                                "talf:adaptive 60,10,0.6,10"], **RACED}),
        Experiment("salf_rules", "rules", ("05",), 90, ("own",), {"rules": SALF_RULES, "length": 64},
                   {"head": ["eagle", "hass", "talf"]}),
    )
}  # fmt: skip


def record(
    name: str,
    *,
    only: Sequence[str] = (),
    folder: Path = RESULTS,
    executor: Executor | None = None,
    retry: bool = False,
) -> pd.DataFrame:
    """Record what an experiment lacks; the table of all its blocks. only: prompts, by ``prompts.chosen``."""
    wanted = EXPERIMENTS[check(name)]
    wanted = replace(wanted, prompts=tuple(only)) if only else wanted
    options = {"command": shlex.join(["python", "-m", "specnb.lab", "record", name]), "heads": wanted.heads()}
    measure = CELLS[wanted.cell][0]
    return sweep.run(
        wanted.cell, measure, wanted.blocks(), folder / f"{name}.jsonl", executor=executor, retry=retry, **options
    )


def recorded(name: str, folder: Path = RESULTS) -> pd.DataFrame:
    """A recorded experiment, one row a run, with the column domain; ValueError if there is none of that name."""
    path = folder / f"{check(name)}.jsonl"
    if not path.exists():
        raise ValueError(f"{name} is not recorded yet: `python -m specnb.lab record {name}`")
    table = sweep.load(path)
    return table.assign(domain=prompts.domains(table["prompt"])) if "prompt" in table else table


def first_edition(name: str) -> pd.DataFrame:
    """A recording of the first edition (data/results/NAME.csv), with a line that says when and where it was made.

    Made with earlier heads, one run a cell, and by commands that are gone: see ``stale``.
    """
    facts = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    last = facts.get("runs", [facts])[-1]
    print(f"{name}: of the first edition, {last['date']}, {last.get('processor', 'processor not named')}")
    table = pd.read_csv(RESULTS / f"{name}.csv", dtype={"key": str})
    table = table.drop_duplicates("key", keep="last", ignore_index=True) if "key" in table else table
    return table.assign(domain=prompts.domains(table["prompt"])) if "prompt" in table else table


def check(name: str) -> str:
    """The name of an experiment; ValueError naming the known ones otherwise."""
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}: known are {', '.join(EXPERIMENTS)}")
    return name


def listing(folder: Path = RESULTS) -> pd.DataFrame:
    """One row an experiment: name, notebooks it feeds, cell, blocks recorded and in all, minutes, state."""
    problems, rows = stale(folder), []
    for name, wanted in EXPERIMENTS.items():
        known = sweep.keys(wanted.cell, CELLS[wanted.cell][0], wanted.blocks(), wanted.heads())
        path = folder / f"{name}.jsonl"
        done = len(set(sweep.load(path)["key"]) & set(known)) if path.exists() else 0
        state = problems.get(path.name) or ("complete" if done == len(known) else "begun" if done else "to record")
        rows.append((name, " ".join(wanted.feeds), wanted.cell, done, len(known), wanted.minutes, state))
    return pd.DataFrame(rows, columns=["name", "notebooks", "cell", "recorded", "blocks", "minutes", "state"])


def stale(folder: Path = RESULTS) -> dict[str, str]:
    """Why recordings of a folder cannot be read as they are, by file name: other heads, a gone command, other columns."""
    found = {}
    for path in sorted((*folder.glob("*.jsonl"), *folder.glob("*.json"))):
        if path.suffix == ".jsonl":
            table = sweep.load(path)
            if path.stem not in EXPERIMENTS:
                reason = "no experiment has this name"
            elif odd := _columns(table) - CELLS[EXPERIMENTS[path.stem].cell][1]:
                reason = f"unknown columns {', '.join(sorted(odd))}"
            else:
                reason = _heads([json.loads(text) for text in set(table["heads"])])
        else:
            facts = json.loads(path.read_text(encoding="utf-8"))
            runs = facts.get("runs", [facts])
            gone = [r for r in runs if r["command"].split()[2:3] != ["specnb.training"]
                    or r["command"].split()[3] not in TRAINING]  # fmt: skip
            reason = "its command is gone" if gone else _heads([run.get("head_sha256", {}) for run in runs])
        if reason:
            found[path.name] = reason
    return found


def _columns(table: pd.DataFrame) -> set[str]:
    """The columns that a cell measured: not the block's settings, nor where it was measured."""
    own = {"heads", "key", "cell", "processor", "device", "torch", "date", "command", "status", "error"}
    settings = {name for e in EXPERIMENTS.values() for name in (*(e.settings or {}), *(e.over or {}), "prompt")}
    return set(table.columns) - own - settings


def _heads(used: Sequence[dict[str, str]]) -> str:
    """In words, which heads are other files now; nothing if all are the committed ones."""
    names = {name for each in used for name in each}
    there = {name for name in names if (heads.FOLDER / f"{name.partition('@')[0]}.safetensors").exists()}
    now = heads.hashes(there)
    other = sorted({name for each in used for name, digest in each.items() if now.get(name) != digest})
    return f"made with other heads: {', '.join(other)}" if other else ""
