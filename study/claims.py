"""Claims: what each paper says, by which test it is judged, and the verdict, by rule, from the recordings.

data/claims/PAPER.csv is the plan, one row a claim, written before its experiment is recorded: every recorded block
carries the hash of the rows that will judge it (``experiments.plan``). Columns:

claim: its name; where: in the paper; says: in our words; effect: the paper's, in the statistic's unit;
experiment: of data/experiments.toml, "heads" (data/results/heads_by_prompt.csv) or "exact"; none: not attempted;
rows: which of its rows, as a pandas query; value: what is compared, see ``values``; methods: in order, " ; " between;
statistic: of STATISTICS, of one value per prompt and method; slopes are over the numbers in the column at;
direction: above, below or within the bound; reason: why not attempted, or how our setting differs from the paper's.
An exact claim names a function of FACTS under methods, whose cases all have to hold.
"""

import json
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pandas as pd

from study import arithmetic, as_printed, experiments, stats, theorems
from study.paper import PAPERS
from study.values import priced, values

SHORT = tuple(f"{paper.partition('_')[0]}_" for paper in PAPERS)  # how the names of their functions begin
FACTS = {n: f for room in (theorems, as_printed, arithmetic) for n, f in vars(room).items() if n.startswith(SHORT)}
COLUMNS = (
    "claim", "where", "says", "effect", "experiment", "rows", "value", "methods", "statistic", "at", "direction",
    "bound", "reason",
)  # fmt: skip
DIRECTIONS = ("above", "below", "within")
STATISTICS: dict[str, Callable[[np.ndarray], float]] = {  # of (prompts, methods) values
    "mean": lambda x: x.mean(),  # over methods, too: seeds of one head
    "mean, %": lambda x: 100 * x.mean(),
    "ratio": lambda x: np.median(x[:, 0] / x[:, 1]),  # the median over prompts
    "per cent": lambda x: 100 * (np.median(x[:, 0] / x[:, 1]) - 1),  # the same, as a gain
    "difference": lambda x: (x[:, 0] - x[:, 1]).mean(),
    "share": lambda x: (x[:, 0] > x[:, 1]).mean(),  # of prompts on which the first is ahead
    "lead": lambda x: (x[:, :1] - x[:, 1:]).mean(0).min(),  # over the best of all others, judged rival by rival
    "gain": lambda x: (x[:, 0] - x[:, 1] - x[:, 2] + x[:, 3]).mean(),  # a difference of differences
    "slope": lambda x, at: np.polyfit(at, x.mean(0), 1)[0],
}


def plan(paper: str) -> pd.DataFrame:
    """A paper's claims and the tests that judge them, all columns texts; ValueError on a row that makes no sense."""
    if paper not in PAPERS:
        raise ValueError(f"unknown paper {paper!r}: known are {', '.join(PAPERS)}")
    table = pd.read_csv(experiments.CLAIMS / f"{paper}.csv", dtype=str, keep_default_na=False)
    if tuple(table.columns) != COLUMNS:
        raise ValueError(f"{paper}.csv has the columns {', '.join(table.columns)}, not {', '.join(COLUMNS)}")
    for row in table.itertuples():
        tested, exact = bool(row.experiment), row.experiment == "exact"
        known = row.experiment in ("", "exact", "heads", *experiments.EXPERIMENTS)
        if not known or (exact and row.methods not in FACTS) or (not tested and not row.reason):
            raise ValueError(f"{paper}, {row.claim}: no experiment, function or reason of that name: {row.experiment}")
        if tested and not exact and (row.statistic not in STATISTICS or row.direction not in DIRECTIONS):
            raise ValueError(f"{paper}, {row.claim}: no statistic or direction: {row.statistic}, {row.direction}")
    if twice := table["claim"][table["claim"].duplicated()].tolist():
        raise ValueError(f"{paper}.csv names two claims {twice[0]}")
    return table


def reading() -> Callable:
    """A function from a claim's row to the ``values`` it is judged by, or None until all it compares is recorded: every
    block of its experiment, or the heads by name, as they are now. It reads each recording once, however many rows."""
    read, missing, facts = cache(values), cache(experiments.missing), experiments.RESULTS / "heads_by_prompt.json"
    known = json.loads(facts.read_text(encoding="utf-8"))["head_sha256"] if facts.exists() else {}

    def compared(row) -> pd.DataFrame | None:
        if row.experiment != "heads":
            return None if missing(row.experiment) else read(row.experiment)
        names = row.methods.split(" ; ")
        there = set(names) <= known.keys() and not experiments.replaced([{name: known[name] for name in names}])
        return read("heads") if there else None

    return compared


def measured(row, table: pd.DataFrame) -> dict[str, float]:
    """What our data, a table of ``values``, say to a claim: ours, its 95 % interval over prompts, and their number."""
    table, value, names = table.query(row.rows) if row.rows else table, row.value, row.methods.split(" ; ")
    if value.startswith("speed at "):
        table = table.assign(**{value: priced(table, value)})
    if missing := set(names) - set(table["method"]):
        raise ValueError(f"{row.claim}: {row.experiment} has no rows of {', '.join(sorted(missing))}")
    table = table.assign(value=table[value].astype(float))
    wide = table.pivot_table(index="prompt", columns="method", values="value", aggfunc="median")
    wide = wide[names].dropna().to_numpy()
    at = [float(x) for x in row.at.split()]
    statistic = partial(STATISTICS["slope"], at=at) if row.statistic == "slope" else STATISTICS[row.statistic]
    if row.statistic == "lead":  # the best of several noisy rivals looks better than it is: corrected for their number
        rivals, differs = [wide[:, [0, i]] for i in range(1, len(names))], STATISTICS["difference"]
        low = min(stats.interval(pair, differs)[0] for pair in rivals)
        high = min(stats.interval(pair, differs, level=1 - 0.05 / len(rivals))[1] for pair in rivals)
    else:
        low, high = stats.interval(wide, statistic)
    return {"ours": float(statistic(wide)), "low": low, "high": high, "prompts": len(wide)}


def verdict(low: float, high: float, direction: str, bound: float) -> str:
    """By rule: reproduced if the interval lies on the paper's side of the bound, contradicted on the other, else
    undecided; within ± the bound for a claim of no difference."""
    if direction == "within":
        inside, outside = -bound <= low and high <= bound, high < -bound or low > bound
    else:
        inside, outside = (low > bound, high < bound) if direction == "above" else (high < bound, low > bound)
    return "reproduced" if inside else "contradicted" if outside else "undecided"


def judged(paper: str) -> pd.DataFrame:
    """The plan with the columns ours, low, high, prompts and verdict: of a paper's claims, from the recordings.

    verdict: reproduced, contradicted, undecided, same setting (an exact claim all of whose cases hold, else
    contradicted), not attempted; "not recorded" until its experiment is, as a whole.
    """
    claimed, rows, compared = plan(paper), [], reading()
    for row in claimed.itertuples():
        if not row.experiment:
            rows.append({"verdict": "not attempted"})
        elif row.experiment == "exact":
            cases = FACTS[row.methods]()
            word = "same setting" if all(cases) else "contradicted"
            rows.append({"ours": sum(cases), "prompts": len(cases), "verdict": word})
        elif (table := compared(row)) is None:
            rows.append({"verdict": "not recorded"})
        else:
            found = measured(row, table)
            rows.append(found | {"verdict": verdict(found["low"], found["high"], row.direction, float(row.bound))})
    return claimed.join(pd.DataFrame(rows, columns=["ours", "low", "high", "prompts", "verdict"]))


def summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """How many claims of each paper have which verdict, exact and measured ones apart. tables: ``judged``, by paper."""
    found = pd.concat(tables, names=["paper"]).reset_index("paper")
    kind = found["experiment"].map(lambda name: "exact" if name == "exact" else "measured" if name else "")
    return pd.crosstab(found["paper"], [kind, found["verdict"]]).loc[[*tables]]
