"""Verdicts on claims, by rule, from the recordings: ``judged`` returns a paper's, and ``summary`` counts them."""

from dataclasses import asdict, dataclass
from functools import cache

import numpy as np
import pandas as pd

from study import stats
from study.claims.registry import CLAIMS, Checked, Claim, Measured
from study.paper import PAPERS
from study.quantities import HEADS, complete
from study.stats import Estimate

BEFORE = "before the data"
AFTER = "after the data"


def verdict(low: float, high: float, direction: str, bound: float) -> str:
    """The verdict on a claim by its interval.

    >>> verdict(1.1, 1.3, "above", 1.0), verdict(0.9, 1.3, "above", 1.0), verdict(-0.04, 0.02, "within", 0.05)
    ('reproduced', 'undecided', 'reproduced')

    It is "reproduced" if the interval from low to high is on the paper's side of the bound, "contradicted" if it is on
    the other side, and "undecided" if it contains the bound.

    direction: where the paper says that the number is: "above" or "below" the bound, or "within" ± the bound, for a
               claim of no difference.
    """
    if direction == "above":
        inside = low > bound
        outside = high < bound
    elif direction == "below":
        inside = high < bound
        outside = low > bound
    else:
        inside = -bound <= low and high <= bound
        outside = high < -bound or low > bound
    if inside:
        return "reproduced"
    if outside:
        return "contradicted"
    return "undecided"


# ---- one claim ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """The verdict on a claim, with the numbers that led to it."""

    verdict: str
    value: str = ""  # the name of the values that were compared
    planned: str = ""  # whether the test was fixed before the data were there: BEFORE or AFTER
    stale: str = ""  # why the recording is stale; "" if it is not
    ours: float = float("nan")  # our number; for a claim checked case by case, how many cases hold
    low: float = float("nan")  # the lower end of our number's 95 % interval
    high: float = float("nan")  # the upper end
    prompts: float = float("nan")  # how many prompts, or cases, there are


def measured(claim: Measured, runs: pd.DataFrame) -> Estimate:
    """Our number for a claim, from its recording's ``quantities``. Raises ValueError if they lack what it compares."""
    try:
        wide = stats.paired(runs, claim.compare(runs), claim.methods)
    except ValueError as error:
        raise ValueError(f"{claim.name}: in {claim.recording.name} {error}") from error
    except KeyError as error:
        columns = ", ".join(map(str, runs.columns))
        raise ValueError(f"{claim.name}: {claim.recording.name} has no column {error}, it has {columns}") from error
    return claim.statistic.estimate(wide)


def when_planned(claim: Measured, plans: list[str]) -> str:
    """Whether a test was fixed before the data: BEFORE or AFTER.

    It was if the claim is of the second edition, whose tests were all planned, or if every block's plan has its hash.

    plans: of the recorded blocks, see ``registry.plan_of``.
    """
    is_of_second_edition = bool(claim.before) and not claim.differs
    if is_of_second_edition or all(claim.test in plan.split() for plan in plans):
        return BEFORE
    return AFTER


def judge(claim: Claim, runs: pd.DataFrame | None = None) -> Judged:
    """The verdict on one claim. runs: the ``quantities`` of its recording; None if it is not complete."""
    if isinstance(claim, Checked):
        return judge_cases(claim)
    if isinstance(claim, Measured):
        return judge_measured(claim, runs)
    return Judged("not attempted")


def judge_measured(claim: Measured, runs: pd.DataFrame | None) -> Judged:
    """The verdict on a measured claim, by its interval."""
    of_heads = claim.recording is HEADS
    if runs is None or (of_heads and HEADS.missing(claim.methods)):
        return Judged("not recorded", planned=when_planned(claim, []))
    if of_heads:
        plans = [""]  # counts of heads carry no hashes of tests
        stale = HEADS.stale(claim.methods)
    else:
        plans = runs["plan"].unique().tolist()
        stale = runs.attrs["stale"]
    ours = measured(claim, runs)
    return Judged(
        verdict(ours.low, ours.high, claim.direction, claim.bound),
        value=claim.compare(runs).name,
        planned=when_planned(claim, plans),
        stale=stale,
        ours=ours.value,
        low=ours.low,
        high=ours.high,
        prompts=ours.prompts,
    )


def judge_cases(claim: Checked) -> Judged:
    """The verdict on a claim that is checked case by case: all its cases have to hold."""
    cases = claim.cases()
    its_verdict = "same setting" if all(cases) else "contradicted"
    return Judged(its_verdict, ours=sum(cases), prompts=len(cases))


# ---- tables -------------------------------------------------------------------------------------------------------


def judged(paper: str) -> pd.DataFrame:
    """A paper's claims as a table with one row per claim.

    Its columns are the fields of ``Claim`` (claim is the name), those of ``Measured``, and those of ``Judged``.
    recording is a recording's name, "heads", "exact" for claims that are checked case by case, or "" for those not
    attempted. verdict is one of
    reproduced, contradicted, undecided: by the interval, see ``verdict``.
    same setting:  a claim that is checked in the paper's own setting, all of whose cases hold; else contradicted.
    not attempted: a claim without a test.
    not recorded:  its recording is not complete yet.
    Raises ValueError on an unknown paper.
    """
    read_once = cache(complete)  # each recording is read once for all its claims
    rows = []
    for claim in of_paper(paper).values():
        runs = read_once(claim.recording) if isinstance(claim, Measured) else None
        rows.append(_row(claim) | asdict(judge(claim, runs)))
    order = (
        "claim", "where", "says", "effect", "recording", "value", "methods", "statistic", "direction", "bound",
        "reason", "before", "planned", "stale", "ours", "low", "high", "prompts", "verdict",
    )  # fmt: skip
    return pd.DataFrame(rows, columns=order).astype({"effect": float, "bound": float})


def of_paper(paper: str) -> dict[str, Claim]:
    """A paper's claims by name, in the order of its module. Raises ValueError on an unknown paper."""
    if paper not in PAPERS:
        raise ValueError(f"unknown paper {paper!r}: known are {', '.join(PAPERS)}")
    return CLAIMS[paper]


def _row(claim: Claim) -> dict[str, object]:
    """The columns of a claim that do not depend on data."""
    row = {
        "claim": claim.name,
        "where": claim.where,
        "says": claim.says,
        "effect": claim.effect,
        "reason": claim.reason,
        "before": claim.before,
        "recording": "",
        "methods": (),
        "statistic": "",
        "direction": "",
        "bound": None,
    }
    if isinstance(claim, Checked):
        row["recording"] = "exact"
    if isinstance(claim, Measured):
        row["recording"] = claim.recording.name
        row["methods"] = claim.methods
        row["statistic"] = claim.statistic.name
        row["direction"] = claim.direction
        row["bound"] = claim.bound
    return row


def summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """How many claims of each paper have which verdict: one row per paper, one column per kind and verdict.

    The kinds are exact, measured, and chosen after the data, which are measured claims whose test was not planned.

    tables: those of ``judged``, by paper.
    """
    every_claim = pd.concat(tables, names=["paper"]).reset_index("paper")
    kinds = [_kind(row.recording, row.planned) for row in every_claim.itertuples()]
    columns = [np.array(kinds), every_claim["verdict"]]
    counts = pd.crosstab(every_claim["paper"], columns, colnames=["kind", "verdict"])
    return counts.loc[[*tables]]


def _kind(recording: str, planned: str) -> str:
    """The kind of a claim, see ``summary``."""
    if planned == AFTER:
        return "chosen after the data"
    if recording == "exact":
        return "exact"
    if recording == "":
        return ""
    return "measured"
