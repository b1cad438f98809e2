"""Experiments: everything that is recorded in data/results, what each feeds, and how to record it.

A new experiment is a constant of this module, above ``TABLE``, and nothing else:

    TINY_RACE = Experiment(
        "tiny_race", RACE_CELL, feeds=["06"], minutes=2, prompts=["own:2"],
        settings={"methods": ["generate", "hass-salf"], "length": 48},
    )

``python -m study record tiny_race`` records it in data/results/tiny_race.jsonl (what is missing: it resumes), and
``recorded("tiny_race")`` or ``recorded(TINY_RACE)`` reads it. ``python -m study list`` prints all with their state.

Words of this module:
    block      the unit of recording: one prompt (or one setting) with all its methods and repetitions.
    cell       the function that measures a block and returns its rows.
    method     a key of ``methods.METHODS``, such as "hass-salf-6"; that module explains the names of heads and rules.
    pair       a target model with, for some targets, a draft model; head: a trained draft head for the target.
    plain      the method whose text the others are compared with; usually "generate", transformers' own.
    control    a method that also runs with an error built in, to show that the comparison can fail.
    wide       growth rules whose trees contain the trees of all rules to be replayed, so that only they are recorded.
    own:5-10   prompts 5 to 10 of each of the six domains of this project's own set; own:2 is the first two of each.
    humaneval:6, gsm100:6   the first six prompts of these public sets; dynatree: the set of DynaTree's public code.
    stale      a recording that was made with other heads than the committed ones, or that has other columns than its
               readers know. It can still be read: ``recorded(…).attrs["stale"]`` says why it is stale. ``stale()``
               lists all such recordings.

Own prompts 1 to 4 of each domain are for tuning, and results of tuned methods are reported on 5 to 10. One exception:
the defaults of the n-gram drafter were tuned on all own prompts at an earlier time. Minutes are estimates for two CPU
cores with bfloat16 kernels.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from specnb import heads, models
from specnb.growth import EAGLE_25, Cape, DynaTree, Eagle2, OptTree, Pct, Salf, SpecExec, chain, kary
from specnb.models import files, prompts
from study import weights
from study.measure import branches, race, replays
from study.measure.branches import alike_block
from study.measure.forwards import curves_block, shapes_block
from study.measure.laws import law_block
from study.measure.race import race_block
from study.measure.replays import rules_block
from study.measure.texts import texts_block
from study.measure.verifiers import verifiers_block
from study.methods import Method, Retrieval, method
from study.paper import EDD_PRICE_7B
from study.record import Block, Recorded, grid, identified, read, run, table
from training.__main__ import COMMANDS as TRAINING

RESULTS = files.DATA / "results"
TARGET = "target "  # a block records hashes by name: of heads, and of "target FOLDER" if the target is in a folder
REPORTED_BY = ("training", "specnb.training")  # the package that reports on trained heads, and its former name


# ---- cells ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cell:
    """The function that measures a block, under the name that recordings have for it."""

    name: str
    measure: Callable[..., object]
    columns: frozenset[str]  # of its rows, as readers know them, besides status and error


def _cell(name: str, measure: Callable[..., object], *columns: str) -> Cell:
    return Cell(name, measure, frozenset(columns))


RACE_CELL = _cell("race", race_block, *(name for name in race.ROW if name not in ("status", "error")))
TEXTS_CELL = _cell("texts", texts_block, "method", "positions", "equal", "first", "gap", "same")
RULES_CELL = _cell("rules", rules_block, *replays.COLUMNS)
VERIFIERS_CELL = _cell("verifiers", verifiers_block, "head", "shape", "verifier", "steps", "tau", "given", "nodes")
CURVES_CELL = _cell("curves", curves_block, "model", "nodes", "quartile", "median", "third quartile")
SHAPES_CELL = _cell("shapes", shapes_block, "model", "nodes", "quartile", "median", "third quartile")
LAW_CELL = _cell("law", law_block, "method", "heat", "outcomes", "p value")
ALIKE_CELL = _cell("alike", alike_block, *branches.COLUMNS)


# ---- what an experiment is ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Experiment:
    """What is recorded in one file: of data/results, or the file of a command.

    prompts and over are axes, and each combination of their values is a block. For example

        Experiment("tiny", RACE_CELL, prompts=["rag:2"], settings={"length": 48}, over={"temperature": [0.0, 1.0]})

    has the four blocks {"length": 48, "prompt": "rag-01", "temperature": 0.0}, the same with temperature 1.0, and both
    for "rag-02".
    """

    name: str  # of the file, without .jsonl
    cell: Cell  # measures the blocks
    feeds: Sequence[str] = ()  # numbers of the notebooks that read it; none if only a command shows it
    minutes: int = 0  # an estimate
    prompts: Sequence[str] = ()  # prompts or groups of them, as ``prompts.chosen`` understands them: "own:5-10"
    settings: Mapping[str, object] = field(default_factory=dict)  # arguments of the cell, the same for all blocks
    over: Mapping[str, Sequence] = field(default_factory=dict)  # further axes: argument of the cell → its values

    def blocks(self) -> list[dict]:
        """The arguments of the cell for every block. Raises ValueError on an unknown prompt."""
        axes = dict(self.over)
        if self.prompts:
            ids: list[str] = []
            for choice in self.prompts:
                ids += prompts.chosen(choice)
            axes = {"prompt": ids, **axes}
        return [{**self.settings, **block} for block in grid(**axes)]

    def heads(self) -> set[str]:
        """Names of the trained heads that its blocks use, read from the settings.

        Settings with "methods" use the heads of these methods. The setting "head" replaces them, but not the head of
        the plain method. Settings without methods name their heads themselves. Examples:

            {"methods": ["generate", "hass-salf", "ptd"]}               {"hass"}
            {"methods": ["hass-salf"], "head": "my/head"}               {"my/head"}
            {"methods": ["ptd"], "head": "my/head"}                     set(), for ptd has no head
            {"heads": ["vdm", "pair"]}                                  {"vdm"}, for "pair" is not a trained head
        """
        replacement = self.settings.get("head", "")
        if "methods" not in self.settings:
            names = {replacement, *self.settings.get("heads", ()), *self.over.get("head", ())}
            return names - {"", "pair"}
        method_names = [*self.settings["methods"]]
        if self.settings.get("control"):
            method_names.append(self.settings["control"])
        used = {self._trained_head(name, replacement) for name in method_names}
        if self.settings.get("plain"):
            used.add(self._trained_head(self.settings["plain"]))
        return used - {None, "pair"}

    def _trained_head(self, name: str, replacement: str = "") -> str | None:
        """The head whose weights a method needs: a trained head, "pair", or None.

        transformers' assistant needs the vdm, unless the pair has a draft model: see ``loading.assistant``.
        """
        needed_by = method(name, head=replacement)
        if not needed_by.assistant:
            return needed_by.head
        pair = self.settings.get("pair", models.EMBEDDED)
        _, draft = models.PAIRS.get(pair, (None, None))
        return "vdm" if draft is None else None

    def folder(self) -> Path | None:
        """The folder from which its target is loaded; None if the target is one of ``models.PAIRS`` or on the hub."""
        pair = str(self.settings.get("pair", models.EMBEDDED))
        if pair in models.PAIRS or not Path(pair).is_dir():
            return None
        return Path(pair)

    def weights(self) -> set[str]:
        """Names of all weights whose hashes a block records: the heads, and the target if it is loaded from a folder.

        Example: {"hass", "target models/my_target"}.
        """
        names = self.heads()
        folder = self.folder()
        if folder is not None:
            names.add(f"{TARGET}{folder}")
        return names

    def hashes(self) -> dict[str, str]:
        """Hashes of these weights as they are now, by name. Raises ValueError if a head has no file."""
        by_name = weights.hashes(self.heads())
        folder = self.folder()
        if folder is not None:
            by_name[f"{TARGET}{folder}"] = weights.folder_hash(folder)
        return by_name

    def keyed_blocks(self) -> list[Block]:
        """Its blocks with the keys under which they are recorded."""
        return identified(self.cell.name, self.cell.measure, self.blocks())

    def check(self) -> None:
        """Raise ValueError on blocks or heads that make no sense, before any model is loaded."""
        self.keyed_blocks()  # this and the next line are called only for their ValueErrors
        self.hashes()

    def blocks_in(self, file: Path) -> list[Recorded]:
        """Those of its blocks that a file has, with any hashes of heads."""
        return read(file, self.keyed_blocks())

    def measure_missing(
        self, file: Path, command: str, executor: Executor | None = None, retry: bool = False, plan: str = ""
    ) -> pd.DataFrame:
        """Measure the blocks that the file lacks; returns the table of all its blocks.

        command:  what was typed, which each block records.
        executor: where blocks are measured; here if None.
        retry:    whether blocks that failed are measured again.
        plan:     hashes of the claims that will judge it, ``claims.plan_of(name)``.
        See ``record.run`` for the errors that are raised.
        """
        options = {"command": command, "heads": self.hashes(), "executor": executor, "retry": retry, "plan": plan}
        return run(self.cell.name, self.cell.measure, self.blocks(), file, **options)


# ---- notebook 06: all methods beside each other ---------------------------------------------------------------------

PACKED = {"dtype": "bfloat16", "packed": True}  # seconds are measured so: weights packed for the CPU's kernels
RACE_SETTINGS = {"length": 96, **PACKED}

RACE = Experiment(
    "race", RACE_CELL, feeds=["06"], minutes=86, prompts=["own:5-10", "humaneval:6", "gsm100:6"],
    settings=RACE_SETTINGS | {
        "repetitions": 3,
        "methods": [
            "generate", "prompt lookup", "assistant", "undrafted", "auto", "n-gram tree", "retrieval", "self-draft",
            "ptd, 2 children, depth 4", "vdm-chain-3", "medusa-eagle2-12", "edd-pct", "hass-salf",
            "hass-salf + n-grams", "hass-salf-8 + retrieval",
        ],
    },
)  # fmt: skip

# Settings for transformers' prompt lookup (METHODS has them) are among the best of these on the tuning prompts.
LOOKUP = Experiment(
    "lookup", RACE_CELL, feeds=["06"], minutes=10, prompts=["own:4"],
    settings=RACE_SETTINGS | {
        "repetitions": 1,
        "methods": [
            "generate", "prompt lookup, 3 after 2", "prompt lookup, 5 after 2", "prompt lookup, 10 after 2",
            "prompt lookup, 20 after 2", "prompt lookup, 5 after 3", "prompt lookup, 10 after 3",
        ],
    },
)  # fmt: skip

# In the same way, settings for the race: of HASS's tree, and of the drafter whose paths are merged into it. The best
# one by the median over prompts was taken.
TUNED = Experiment(
    "tuned", RACE_CELL, feeds=["06"], minutes=12, prompts=["own:4"],
    settings=RACE_SETTINGS | {
        "repetitions": 1,
        "methods": [
            "generate", "hass-salf-6 + n-grams 4", "hass-salf-6 + n-grams 8", "hass-salf-8 + n-grams 4",
            "hass-salf-8 + n-grams 8", "hass-salf + n-grams", "hass-salf-14 + n-grams 2", "hass-eagle2-10 + n-grams 4",
            "hass-salf-4 + retrieval 12", "hass-salf-6 + retrieval 8", "hass-salf-8 + retrieval",
        ],
    },
)  # fmt: skip

# Does the forecast of notebook 06 hold in another dtype? It takes the counts of RACE and the prices of PRICES_FLOAT32,
# and is compared with this race.
RACE_FLOAT32 = Experiment(
    "race_float32", RACE_CELL, feeds=["06"], minutes=18, prompts=["own:5-5", "humaneval:1", "gsm100:1"],
    settings={
        "length": 96,
        "repetitions": 3,
        "methods": [
            "generate", "prompt lookup", "n-gram tree", "retrieval", "vdm-chain-3", "hass-salf", "hass-salf + n-grams",
        ],
    },
)  # fmt: skip

PRICES_FLOAT32 = Experiment(
    "prices_float32", CURVES_CELL, feeds=["06"], minutes=3,
    settings={"heads": ["vdm", "medusa", "edd", "hass"]},
    over={"prefix": [100, 300]},
)  # fmt: skip

# Different heads with the same rule, and different rules for the same head. All trees but those of chain and PCT have
# about 12 nodes without the root. Salf counts the root, Eagle2 and OptTree do not: hence 13 and 12.
EQUAL = Experiment(
    "equal", RULES_CELL, feeds=["06"], minutes=12, prompts=["own:5-7"],
    settings={
        "length": 64,
        "k": 4,
        "rules": [
            chain(4),
            kary(2, 3),
            DynaTree(depth=4, branch=3, threshold=0.000001, budget=12),
            Eagle2(12, depth=4, k=4),
            Salf(13, beam=3, threshold=0.0, width=4, fill=True),
            OptTree(12, threshold=0.0, depth=4, width=4),
            Pct(0.06, k=4, depth=4, leaf=0.04),
        ],
    },
    over={"head": ["vdm", "medusa", "edd", "eagle", "hass", "talf"]},
)  # fmt: skip

TEXTS = Experiment(
    "texts", TEXTS_CELL, feeds=["06"], minutes=60, prompts=["own"],
    settings={
        "length": 24,
        "control": "ptd",
        "methods": [
            "n-gram tree", "retrieval, 7 nodes", "self-draft", "lookahead", "ptd", "vdm-dynatree-32",
            "medusa-eagle2-12", "edd-pct", "eagle-eagle2-16", "talf-salf-6", "hass-salf-6", "hass-salf + n-grams",
            "hass-salf-6, in graphs", "hass-salf-8 + retrieval", "auto",
        ],
    },
)  # fmt: skip


# ---- notebook 08: bit for bit ---------------------------------------------------------------------------------------

# SAME_BITS compares methods with undrafted decoding, both with invariant forwards; USUAL_BITS does so with usual ones.
BIT_BY_BIT = ["n-gram tree", "ptd", "medusa-eagle2-12", "edd-pct", "hass-salf-6", "hass-eagle2-24",
              "hass-salf-6 + n-grams 8"]  # fmt: skip

SAME_BITS = Experiment(
    "same_bits", TEXTS_CELL, feeds=["08"], minutes=45, prompts=["own:2", "humaneval:3", "gsm100:3"],
    settings={
        "length": 48,
        "plain": "undrafted, invariant",
        "methods": [f"{name}, invariant" for name in BIT_BY_BIT],
    },
    over={"dtype": ["bfloat16", "float16"]},
)  # fmt: skip

USUAL_BITS = Experiment(
    "usual_bits", TEXTS_CELL, feeds=["08"], minutes=15, prompts=["own:1", "humaneval:3", "gsm100:3"],
    settings={"length": 48, "plain": "undrafted", "methods": BIT_BY_BIT},
    over={"dtype": ["bfloat16", "float16"]},
)  # fmt: skip

BITS_RACE = Experiment(
    "bits_race", RACE_CELL, feeds=["08"], minutes=12,
    prompts=[
        "conversation-05", "translation-05", "summarisation-05", "question_answering-05", "mathematics-05", "rag-05",
        "humaneval:6", "gsm100:6",
    ],
    settings=PACKED | {
        "length": 64,
        "repetitions": 3,
        "methods": [
            "undrafted", "undrafted, invariant", "n-gram tree, invariant", "hass-salf-6, invariant",
            "hass-salf-6 + n-grams 2", "hass-salf-6 + n-grams 2, invariant",
        ],
    },
)  # fmt: skip


# ---- what forwards cost, for several notebooks ----------------------------------------------------------------------

PRICES = Experiment(
    "prices", CURVES_CELL, feeds=["01", "03", "04", "06"], minutes=4,
    settings={"heads": ["vdm", "medusa", "edd", "eagle", "hass", "talf"], **PACKED},
    over={"prefix": [100, 300]},
)  # fmt: skip


# ---- notebook 01: PTD -----------------------------------------------------------------------------------------------

PTD = Experiment(
    "ptd", RACE_CELL, feeds=["01"], minutes=24, prompts=["own:5-10", "humaneval:24", "gsm100:24"],
    settings=RACE_SETTINGS | {
        "repetitions": 1,
        "methods": [
            "lookahead", "lookahead, no bonus", "self-draft", "self-draft, no bonus", "self-draft, corpus, no bonus",
            "ptd",
        ],
    },
)  # fmt: skip

PTD_SPEED = Experiment(
    "ptd_speed", RACE_CELL, feeds=["01"], minutes=16, prompts=["own:5-6", "humaneval:6", "gsm100:6"],
    settings=RACE_SETTINGS | {
        "repetitions": 3,
        "methods": ["generate", "vdm-chain-5", "lookahead", "self-draft", "ptd"],
    },
)  # fmt: skip

# Two of the methods have a broken verifier: does ROUGE notice them?
PTD_SAMPLED = Experiment(
    "ptd_sampled", RACE_CELL, feeds=["01"], minutes=26, prompts=["own:5-6", "humaneval:6", "gsm100:6"],
    settings=RACE_SETTINGS | {
        "repetitions": 3,
        "temperature": 0.5,
        "keep_ids": True,
        "methods": [
            "generate", "vdm-chain-5 iid", "lookahead", "self-draft", "ptd", "ptd as printed", "ptd as coded",
        ],
    },
)  # fmt: skip

PTD_SIZES = Experiment(
    "ptd_sizes", RACE_CELL, feeds=["01"], minutes=34, prompts=["own:5-10"],
    settings=RACE_SETTINGS | {
        "repetitions": 1,
        "methods": [
            "ptd", "ptd, chained", "ptd, no feedback", "ptd, from prompt",
            *(f"ptd, {children} children" for children in (1, 2, 3, 6, 8)),
            *(f"ptd, depth {depth}" for depth in (3, 4, 5, 8)),
            "ptd, top-k", "ptd, top-p", "lookahead, window 3", "lookahead, window 7", "lookahead",
        ],
    },
)  # fmt: skip

# Only PTD's public code refills its first level: with this rule, without it, and without the feedback, too.
PTD_REFILL = Experiment(
    "ptd_refill", RACE_CELL, feeds=["01"], minutes=9, prompts=["own:5-10"],
    settings=RACE_SETTINGS | {"methods": ["ptd", "ptd, no refill", "ptd, no refill, no feedback"]},
)  # fmt: skip

PTD_ALIKE = Experiment(
    "ptd_alike", ALIKE_CELL, feeds=["01"], minutes=7, prompts=["own:5-10"],
    settings={"methods": ["self-draft", "ptd", "ptd, chained"], "length": 64},
)  # fmt: skip


# ---- notebook 02: traversal verification ----------------------------------------------------------------------------

# Two verifiers on the same sampled trees, whose accepted tokens are computed as expectations.
TRAVERSAL_SETTINGS = {"length": 48, "temperature": 1.0, **PACKED}

TRAVERSAL = Experiment(
    "traversal", VERIFIERS_CELL, feeds=["02"], minutes=15, prompts=["own:5-10"],
    settings=TRAVERSAL_SETTINGS | {"heads": ["vdm", "hass"], "shapes": [chain(5), kary(2, 5), EAGLE_25]},
)  # fmt: skip

TRAVERSAL_DEPTHS = Experiment(
    "traversal_depths", VERIFIERS_CELL, feeds=["02"], minutes=15, prompts=["own:5-10"],
    settings=TRAVERSAL_SETTINGS | {
        "heads": ["hass"],
        "shapes": [chain(2), chain(4), chain(6), chain(8), kary(2, 2), kary(2, 3), kary(2, 4), kary(2, 5)],
    },
)  # fmt: skip

TRAVERSAL_HEAT = Experiment(
    "traversal_heat", VERIFIERS_CELL, feeds=["02"], minutes=20, prompts=["own:5-10"],
    settings={"heads": ["hass"], "shapes": [chain(5), EAGLE_25], "length": 48, **PACKED},
    over={"temperature": [0.2, 0.4, 0.6, 0.8, 1.0]},
)  # fmt: skip

# The same verifiers in real sampling, with seconds.
TRAVERSAL_RACE = Experiment(
    "traversal_race", RACE_CELL, feeds=["02"], minutes=40, prompts=["own:5-10"],
    settings=RACE_SETTINGS | {
        "repetitions": 3,
        "temperature": 1.0,
        "methods": [
            "generate", "hass-chain-5 iid, token-level", "hass-chain-5 iid, traversal", "hass-binary-5 swor, rrsw",
            "hass-binary-5 swor, traversal", "hass-sparse swor, rrsw", "hass-sparse swor, traversal",
        ],
    },
)  # fmt: skip


# ---- notebook 03: DynaTree ------------------------------------------------------------------------------------------

DYNATREE = Experiment(
    "dynatree", RACE_CELL, feeds=["03"], minutes=27, prompts=["own:5-10"],
    settings=RACE_SETTINGS | {
        "repetitions": 3,
        "methods": [
            "generate", "assistant", "vdm-chain-6", "vdm-chain-6, window 1024", "vdm-dynatree",
            "vdm-dynatree, depth 4", "vdm-dynatree, depth 3",
        ],
    },
)  # fmt: skip

THRESHOLDS = (0.01, 0.02, 0.03, 0.05, 0.1)  # those of the paper


def dynatrees(depths: Iterable[int], widths: Iterable[int], thresholds: Iterable[float]) -> list[DynaTree]:
    """DynaTree's rules with all combinations of these settings; the threshold changes from each rule to the next.

    >>> [(rule.branch, rule.threshold) for rule in dynatrees([3], [1, 2], [0.01, 0.1])]
    [(1, 0.01), (1, 0.1), (2, 0.01), (2, 0.1)]
    """
    sizes = grid(depth=depths, branch=widths, threshold=thresholds)
    return [DynaTree(**size) for size in sizes]


# With the draft of the race (vdm), and with one that is right more often (hass). The second serves no claim: it shows
# how the best settings move.
DYNATREE_RULES = Experiment(
    "dynatree_rules", RULES_CELL, feeds=["03"], minutes=24, prompts=["own:5-10"],
    settings={
        "length": 96,
        "k": 4,
        "wide": [
            DynaTree(depth=12, branch=4, threshold=0.01, budget=4000),
            DynaTree(threshold=0.000001),
            DynaTree(first=3),
            Pct(0.03, k=3, depth=9, leaf=0.0),
            chain(6),
        ],
        "rules": [
            *dynatrees(range(3, 9), range(1, 5), THRESHOLDS),
            *dynatrees([1, 2], [3], THRESHOLDS),
            *dynatrees([1, 2, 3, 4, 8], [3], [0.2, 0.3, 0.5]),
            *dynatrees([10, 12], [3], [0.01, 0.03]),
            chain(1),
            chain(6),
            DynaTree(threshold=0.000001),
            DynaTree(first=3),
            Pct(0.03, k=3, depth=9, leaf=0.0),
            Pct(0.03, k=3, depth=9, leaf=0.03),
        ],
    },
    over={"head": ["vdm", "hass"]},
)  # fmt: skip

# One text of 1000 tokens per prompt, of which the first 100, 200, … are counted. It goes on after its end token, as in
# the paper's public code.
DYNATREE_LENGTHS = Experiment(
    "dynatree_lengths", RULES_CELL, feeds=["03"], minutes=30, prompts=["dynatree", "own:5-6"],
    settings={
        "length": 1000,
        "lengths": [100, 200, 300, 500, 1000],
        "k": 4,
        "wide": [DynaTree(branch=4, threshold=0.01, budget=4000), chain(6)],
        "rules": [chain(6), *dynatrees(range(3, 9), range(2, 5), THRESHOLDS)],
    },
    over={"head": ["vdm"]},
)  # fmt: skip

DYNATREE_TEXTS = Experiment(
    "dynatree_texts", TEXTS_CELL, feeds=["03"], minutes=6, prompts=["own:5-10"],
    settings={"length": 48, "control": "vdm-dynatree", "methods": ["vdm-dynatree"]},
)  # fmt: skip


# ---- notebook 04: EDD and PCT ---------------------------------------------------------------------------------------

EDD = Experiment(
    "edd", RACE_CELL, feeds=["04"], minutes=32, prompts=["own:5-10"],
    settings=RACE_SETTINGS | {
        "repetitions": 3,
        "methods": [
            "generate", "vdm-chain-5", "medusa-chain-4", "eagle-chain-5", "edd-chain-5", "edd-eagle2-50",
            "edd-pct at .061", "edd-pct at .061, leaves kept",
        ],
    },
)  # fmt: skip

EDD_SAMPLED = Experiment(
    "edd_sampled", RACE_CELL, feeds=["04"], minutes=16, prompts=["own:5-10"],
    settings=RACE_SETTINGS | {
        "repetitions": 2,
        "temperature": 1.0,
        "methods": [
            "vdm-chain-5", "medusa-chain-4", "eagle-chain-5", "edd-chain-5", "edd-eagle2-50", "edd-pct at .0369",
        ],
    },
)  # fmt: skip

EDD_RULES = Experiment(
    "edd_rules", RULES_CELL, feeds=["04"], minutes=27, prompts=["own:5-10"],
    settings={
        "length": 64,
        "wide": [chain(10), Eagle2(50), Pct(0.01)],
        "rules": [
            chain(5), chain(10), kary(3, 5), Cape(), Eagle2(50), Eagle2(20),
            *(Pct(cost) for cost in (0.01, 0.02, 0.0279, EDD_PRICE_7B, 0.061, 0.1, 0.2, 0.3)),
            Pct(EDD_PRICE_7B, leaf=0.0),
        ],
    },
    over={"head": ["edd"]},
)  # fmt: skip

# Does EDD draft better trees with its logits divided by the temperature that calibrates it on the tuning prompts?
EDD_TEMPERATURE = Experiment(
    "edd_temperature", RULES_CELL, feeds=["04"], minutes=6, prompts=["own:5-10"],
    settings={"length": 64, "k": 5, "rules": [Eagle2(12, depth=6, k=5)]},
    over={"head": ["edd"], "softened": [1.0, 0.9]},
)  # fmt: skip

EDD_WIDTHS = Experiment(
    "edd_widths", RULES_CELL, feeds=["04"], minutes=15, prompts=["gsm100:24"],
    settings={
        "length": 64,
        "wide": [Eagle2(50), Pct(EDD_PRICE_7B, k=10)],
        "rules": [
            Eagle2(50),
            Pct(EDD_PRICE_7B),
            *(Pct(EDD_PRICE_7B, k=width) for width in (1, 2, 3, 4, 6, 8, 10)),
        ],
    },
    over={"head": ["edd"]},
)  # fmt: skip


# ---- notebook 05: SALF and TALF -------------------------------------------------------------------------------------

# Trees of sixty nodes, the root counted, by three rules, for three heads.
SALF = Experiment(
    "salf", RACE_CELL, feeds=["05"], minutes=70, prompts=["own:5-8", "humaneval:6", "gsm100:6"],
    settings=RACE_SETTINGS | {
        "repetitions": 3,
        "methods": [
            "generate", "eagle-beam-60", "eagle-optimal-60", "eagle-salf-60", "hass-beam-60", "hass-optimal-60",
            "hass-salf-60", "talf-beam-60", "talf-optimal-60", "talf-salf-60",
        ],
    },
)  # fmt: skip

SALF_SAMPLED = Experiment(
    "salf_sampled", RACE_CELL, feeds=["05"], minutes=16, prompts=["own:5-8", "humaneval:6", "gsm100:6"],
    settings=PACKED | {
        "length": 64,
        "repetitions": 3,
        "temperature": 1.0,
        "methods": ["generate", "eagle-beam-60", "hass-beam-60", "talf-salf-60"],
    },
)  # fmt: skip

TENTHS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

SALF_RULES = Experiment(
    "salf_rules", RULES_CELL, feeds=["05"], minutes=22, prompts=["own:5-8", "humaneval:6", "gsm100:6"],
    settings={
        "length": 64,
        "wide": [Salf(60, 10, 0.0, width=10), Salf(60, 10, 0.6, width=10), Eagle2(59, depth=8),
                 OptTree(60, 0.5, depth=8, width=10)],
        "rules": [
            *(Salf(60, 10, threshold, width=10) for threshold in TENTHS),
            *(Salf(60, 10, threshold, width=10, fill=True) for threshold in TENTHS),
            *(Eagle2(59, depth) for depth in range(1, 9)),
            *(Eagle2(28, depth) for depth in range(1, 6)),
            *(Eagle2(20, depth) for depth in range(1, 6)),
            OptTree(60, 0.5, depth=8, width=10),
        ],
    },
    over={"head": ["talf"]},
)  # fmt: skip

# How many children should an expanded node get: ten, or sixty, which is never too few for a tree of sixty nodes? And
# SpecExec's search. Salf counts the root, SpecExec and Eagle2 do not: hence 60 and 59.
SALF_SEARCH = Experiment(
    "salf_search", RULES_CELL, feeds=["05"], minutes=30, prompts=["own:5-8", "humaneval:6", "gsm100:6"],
    settings={
        "length": 64,
        "k": 60,
        "rules": [
            Salf(60, 10, 0.0, width=10), Salf(60, 10, 0.0, width=60),
            Salf(60, 10, 0.6, width=10), Salf(60, 10, 0.6, width=60),
            SpecExec(59, 10, width=10), SpecExec(59, 10, width=60),
        ],
    },
    over={"head": ["talf"]},
)  # fmt: skip

# Optimal search and beam search with the same number of nodes, for heads of three trainings; on prompts on which the
# two had not been compared before this test was written.
SALF_HEADS = Experiment(
    "salf_heads", RULES_CELL, feeds=["05"], minutes=30, prompts=["own:9-10", "humaneval:7-18", "gsm100:7-18"],
    settings={"length": 64, "k": 60, "rules": [Salf(60, 10, 0.0, width=60), Eagle2(59, depth=8)]},
    over={"head": ["eagle", "hass", "talf"]},
)  # fmt: skip


# ---- measured on a GPU, all by one command: python -m study gpu (minutes there; a CPU takes hours) ------------------

# The command prints the results. Only gpu_prices has been recorded, and notebook 06 reads it.
GPU_TEXTS = Experiment(
    "gpu_texts", TEXTS_CELL, minutes=1, prompts=["own:1"],
    settings={
        "length": 48,
        "control": "ptd",
        "methods": [
            "undrafted, in graphs", "n-gram tree, in graphs", "ptd, in graphs", "vdm-chain-3, in graphs",
            "medusa-eagle2-12, in graphs", "edd-pct, in graphs", "hass-salf-6", "hass-salf-6, in graphs",
        ],
    },
)  # fmt: skip

GPU_LAW = Experiment(
    "gpu_law", LAW_CELL, minutes=1, prompts=["conversation-01"],
    settings={
        "draws": 400,
        "temperature": 1.0,
        "methods": [
            "vdm-binary-2 swor, traversal, in graphs", "hass-binary-2 swor, rrsw, in graphs", "hass-salf-6, in graphs",
        ],
    },
)  # fmt: skip

GPU_PRICES = Experiment(
    "gpu_prices", CURVES_CELL, feeds=["06"], minutes=1,
    settings={
        "heads": ["vdm", "edd", "hass"],
        "dtype": "bfloat16",
        "repetitions": 7,
        "sizes": [1, 2, 4, 8, 16, 32, 64, 128],
    },
    over={"graphs": [False, True]},
)  # fmt: skip

GPU_RACE_SETTINGS = {"length": 96, "repetitions": 1, "dtype": "bfloat16"}

GPU_RACE = Experiment(
    "gpu_race", RACE_CELL, minutes=2, prompts=["own:2"],
    settings=GPU_RACE_SETTINGS | {
        "methods": [
            "generate", "undrafted, in graphs", "prompt lookup", "assistant", "n-gram tree, in graphs",
            "retrieval, in graphs", "edd-pct, in graphs", "hass-salf-6, in graphs",
            "hass-salf-6 + n-grams 8, in graphs",
        ],
    },
)  # fmt: skip

GPU_SAMPLED = Experiment(
    "gpu_sampled", RACE_CELL, minutes=1, prompts=["own:1"],
    settings=GPU_RACE_SETTINGS | {
        "temperature": 1.0,
        "methods": [
            "generate", "undrafted, in graphs", "prompt lookup", "vdm-binary-3 swor, traversal, in graphs",
            "hass-binary-3 swor, traversal, in graphs", "n-gram tree, in graphs", "hass-salf-6, in graphs",
            "hass-salf-6 + n-grams 8, in graphs",
        ],
    },
)  # fmt: skip

GPU_SIZES = Experiment(
    "gpu_sizes", RACE_CELL, minutes=1, prompts=["own:1"],
    settings=GPU_RACE_SETTINGS | {
        "methods": [
            "generate", "undrafted, in graphs",
            *(f"hass-beam-{nodes}, in graphs" for nodes in (7, 15, 31, 63, 127)),
        ],
    },
)  # fmt: skip

# Qwen2.5-7B and Qwen2.5-0.5B by their configurations, with random weights: forwards take as long as with trained ones.
GPU_SHAPES = Experiment(
    "gpu_shapes", SHAPES_CELL, minutes=1,
    settings={
        "repetitions": 5,
        "sizes": [1, 2, 4, 8, 16, 32, 64, 128],
        "target": {
            "model_type": "qwen2",
            "vocab_size": 152064,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": False,
        },
        "draft": {
            "model_type": "qwen2",
            "vocab_size": 151936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
        },
    },
    over={"graphs": [False, True]},
)  # fmt: skip


def for_pair(wanted: Experiment, pair: str, head: str = "") -> Experiment | None:
    """An experiment with another pair in the place of the embedded one, and another head in that of its trained heads.

    Where no head is given the pair's own draft model stands for the trained heads, which belong to the embedded model.
    Methods are left out that cannot run on the pair: those that look up what the embedded model wrote, those that need
    a draft where there is none, and one of two that differed in their heads alone.

    wanted: an experiment of ``TABLE``.
    pair:   as ``models.load_pair`` takes it.
    head:   a head for this pair, as ``study.weights`` names it; "" for none.
    Returns None if no method is left, and if the experiment measures shapes of models, and no pair.
    """
    if wanted.cell is SHAPES_CELL:
        return None
    _, draft = models.PAIRS.get(pair, (None, None))
    replacement = head or (weights.PAIR if draft else "")
    settings: dict[str, object] = {**wanted.settings, "pair": pair}
    if "heads" in settings:
        settings["heads"] = [replacement] if replacement else []
    if "methods" in settings:
        names = [name for name in settings["methods"] if _runs_on(method(name), pair, replacement)]
        settings["methods"] = _without_twins(names, replacement)
        settings["head"] = replacement
        if not settings["methods"]:
            return None
    return replace(wanted, settings=settings)


def _runs_on(wanted: Method, pair: str, replacement: str) -> bool:
    """Whether a method can run on a pair, where the replacement, if it is not "", stands for its trained head."""
    if isinstance(wanted.drafter, Retrieval) or isinstance(wanted.look_up, Retrieval):
        return pair == models.EMBEDDED
    if wanted.assistant and pair != models.EMBEDDED:
        return models.PAIRS.get(pair, (None, None))[1] is not None
    if wanted.head is None or pair == models.EMBEDDED:
        return True
    return bool(replacement)


def _without_twins(names: Sequence[str], replacement: str) -> list[str]:
    """Names of methods, in their order, without those that are an earlier one once the head is replaced."""
    kept: dict[str, Method] = {}
    for name in names:
        made = method(name, head=replacement)
        if made not in kept.values():
            kept[name] = made
    return list(kept)


# ---- the table ------------------------------------------------------------------------------------------------------


def table_of(constants: Iterable[object]) -> dict[str, Experiment]:
    """The experiments among some objects, by name. Raises ValueError if two have the same name."""
    by_name: dict[str, Experiment] = {}
    for constant in constants:
        if not isinstance(constant, Experiment):
            continue
        if constant.name in by_name:
            raise ValueError(f"two experiments have the name {constant.name!r}")
        by_name[constant.name] = constant
    return by_name


TABLE = table_of(list(globals().values()))  # every constant above


def experiment(wanted: str | Experiment) -> Experiment:
    """An experiment by its name; an Experiment is returned as it is. Raises ValueError, with all names, on another."""
    if isinstance(wanted, Experiment):
        return wanted
    if wanted not in TABLE:
        raise ValueError(f"unknown experiment {wanted!r}: known are {', '.join(TABLE)}")
    return TABLE[wanted]


def with_prompts(wanted: str | Experiment, only: Sequence[str] = ()) -> Experiment:
    """An experiment, cut to some of its prompts.

    only: the prompts, as ``prompts.chosen`` understands them; empty for all.
    Raises ValueError on a prompt that the experiment does not have.
    """
    complete = experiment(wanted)
    part = replace(complete, prompts=tuple(only)) if only else complete
    foreign = _prompt_ids(part) - _prompt_ids(complete)
    if foreign:
        known = ", ".join(complete.prompts)
        raise ValueError(f"{min(foreign)} is no prompt of {complete.name}, whose prompts are {known}")
    return part


def _prompt_ids(wanted: Experiment) -> set[str | None]:
    """The ids of its blocks' prompts; None if it has blocks without one."""
    return {block.get("prompt") for block in wanted.blocks()}


def record(
    wanted: str | Experiment,
    *,
    only: Sequence[str] = (),
    folder: Path = RESULTS,
    executor: Executor | None = None,
    retry: bool = False,
    command: str = "",
    plan: str,
) -> pd.DataFrame:
    """Measure the blocks that an experiment lacks in its file; returns the table of all its blocks.

    wanted:   the experiment.
    only:     some of its prompts, see ``with_prompts``.
    folder:   where its file is.
    executor: where blocks are measured; here if None.
    retry:    whether blocks that failed are measured again.
    command:  what was typed, which each block records.
    plan:     hashes of the claims that will judge it, ``claims.plan_of(name)``, which each block records.
    """
    part = with_prompts(wanted, only)
    typed = command or f"python -m study record {part.name}"
    return part.measure_missing(_file(part, folder), typed, executor, retry, plan)


def _file(wanted: Experiment, folder: Path) -> Path:
    return folder / f"{wanted.name}.jsonl"


# ---- reading --------------------------------------------------------------------------------------------------------


def recorded(wanted: str | Experiment, folder: Path = RESULTS) -> pd.DataFrame:
    """The rows of a recorded experiment as a table, with a column domain added.

    Blocks with other settings than the present ones are left out. Reading needs no weights. attrs["stale"] of the table
    says in words why the recording is stale; it is empty if it is not. Raises ValueError on an unknown name, and if
    nothing is recorded.
    """
    known = experiment(wanted)
    blocks = known.blocks_in(_file(known, folder))
    if not blocks:
        raise ValueError(f"{known.name} is not recorded yet, as it is now: `python -m study record {known.name}`")
    runs = table(blocks)
    if "prompt" in runs:
        runs = runs.assign(domain=prompts.domains(runs["prompt"]))
    runs.attrs["stale"] = why_stale(blocks, known)
    return runs


def missing(wanted: str | Experiment, folder: Path = RESULTS) -> int:
    """How many blocks of an experiment still have to be recorded.

    A block counts as recorded if it is in the file with the present settings, no part of it failed, and its heads are
    the committed ones.
    """
    known = experiment(wanted)
    good = 0
    for block in known.blocks_in(_file(known, folder)):
        replaced = replaced_heads(block.line["heads"], known.weights())
        if not block.failed and not replaced:
            good += 1
    return len(known.blocks()) - good


def listing(folder: Path = RESULTS) -> pd.DataFrame:
    """One row per experiment: name, notebooks it feeds, cell, recorded blocks, all blocks, minutes, state."""
    reasons = stale(folder)
    rows = []
    for name, known in TABLE.items():
        count = len(known.blocks())
        done = count - missing(name, folder)
        state = reasons.get(f"{name}.jsonl") or _state(done, count)
        rows.append((name, " ".join(known.feeds), known.cell.name, done, count, known.minutes, state))
    return pd.DataFrame(rows, columns=["name", "notebooks", "cell", "recorded", "blocks", "minutes", "state"])


def _state(done: int, count: int) -> str:
    """How far a recording has come; done of its count blocks are recorded."""
    if done == count:
        return "complete"
    if done > 0:
        return "begun"
    return "to record"


def stale(folder: Path = RESULTS) -> dict[str, str]:
    """Why recordings are stale, by file name; those that are not stale are left out."""
    reasons = {path.name: _why_recording_is_stale(path) for path in folder.glob("*.jsonl")}
    reasons |= {path.name: _why_report_is_stale(path) for path in folder.glob("*.json")}
    return {name: reason for name, reason in sorted(reasons.items()) if reason}


def _why_recording_is_stale(path: Path) -> str:
    """Why a recording is stale; "" if it is not."""
    blocks = read(path)
    if path.stem not in TABLE:
        return "no experiment has this name"
    if not blocks:
        return "it has no whole block"
    return why_stale(blocks, TABLE[path.stem])


def _why_report_is_stale(path: Path) -> str:
    """Why a table about trained heads is stale; "" if it is not. path: of the JSON file with facts about the table."""
    facts = json.loads(path.read_text(encoding="utf-8"))
    runs = facts.get("runs", [facts])
    replaced: set[str] = set()
    for run_facts in runs:
        _, _, package, command, *_ = run_facts["command"].split()  # python -m training report …
        if package not in REPORTED_BY or command not in TRAINING:
            return "its command is gone"
    for run_facts in runs:
        hashes = run_facts.get("head_sha256", {})
        if not hashes:
            return "it names no heads"
        replaced |= replaced_heads(hashes)
    return stale_by_heads(replaced)


def why_stale(blocks: Sequence[Recorded], known: Experiment) -> str:
    """Why the recorded blocks of an experiment are stale, in words; "" if they are not."""
    odd_columns: set[str] = set()
    for block in blocks:
        for row in block.rows[:1]:  # all rows of a block have the same columns
            in_one_of_both = row.keys() ^ known.cell.columns
            odd_columns |= in_one_of_both - {"status", "error"} - block.line["settings"].keys()
    if odd_columns:
        return f"unknown or missing columns {', '.join(sorted(odd_columns))}"
    present_keys = {block.key for block in known.keyed_blocks()}
    replaced: set[str] = set()
    for block in blocks:
        wanted = None  # a block with former settings may use methods that are gone, so only its own heads are checked
        if block.line["block"] in present_keys:
            wanted = known.weights()
        replaced |= replaced_heads(block.line["heads"], wanted)
    return stale_by_heads(replaced)


def stale_by_heads(names: Collection[str]) -> str:
    """The reason given for a recording whose heads of these names were replaced; "" if there are none."""
    if not names:
        return ""
    return f"made with other heads: {', '.join(sorted(names))}"


def replaced_heads(used: Mapping[str, str], wanted: Iterable[str] | None = None) -> set[str]:
    """The names of heads that a recording used and that have other files now.

    Example: a recording used {"hass": "12ab…", "vdm": "34cd…"}, and the hash of hass is "56ef…" now: {"hass"}. If it
    would use hass and edd now (wanted), vdm and edd are replaced, too: {"hass", "vdm", "edd"}.

    used:   hashes by name, as recorded. A head without a file now is taken for unchanged.
    wanted: names of what the same blocks would use now; None if that is not known.
    """
    replaced: set[str] = set()
    for name, digest in used.items():
        digest_now = known_hash(name)
        if digest_now is not None and digest_now != digest:
            replaced.add(name)
    if wanted is None:
        return replaced
    in_one_of_both = set(used) ^ set(wanted)
    return replaced | in_one_of_both


def known_hash(name: str) -> str | None:
    """The SHA-256 of the weights that a name stands for now; None if they are not there.

    A committed head or a variant of one has its hash in its card, the JSON file beside its weights. For the path of
    another head, for a head in a published format, and for "target FOLDER", the files themselves are hashed.
    """
    if name.startswith(TARGET):
        folder = Path(name.removeprefix(TARGET))
        return weights.folder_hash(folder) if folder.is_dir() else None
    if "/" in name:
        published = weights.folder_of(name)
        if published is not None:
            return weights.folder_hash(published)
        file = heads.path(name).with_suffix(".safetensors")
        return files.sha256(file) if file.exists() else None
    for card in (heads.FOLDER / f"{name}.json", heads.FOLDER / "variants" / f"{name}.json"):
        if card.exists():
            return json.loads(card.read_text(encoding="utf-8"))["sha256"]
    return None
