"""Verdicts, by rule, from the recordings: ``judged`` has a paper's, and ``summary`` counts them."""

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
    """By rule: reproduced if the interval lies on the paper's side of the bound, contradicted on the other, else
    undecided.

    direction: "above" or "below" the bound, or "within" ± so much for a claim of no difference.

    >>> verdict(1.1, 1.3, "above", 1.0), verdict(0.9, 1.3, "above", 1.0), verdict(-0.04, 0.02, "within", 0.05)
    ('reproduced', 'undecided', 'reproduced')
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
    """What our data say to a claim, and what it was compared on; nothing before there are data.

    value: the name of what is compared. planned: whether the test was fixed before the data were there. stale: why the
    recording is not up to date, if so. ours, low, high: our number and its 95 % interval; of an exact claim ours is how
    many cases hold. prompts: how many there are, or cases in all.
    """

    verdict: str
    value: str = ""
    planned: str = ""
    stale: str = ""
    ours: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    prompts: float = float("nan")


def measured(claim: Measured, runs: pd.DataFrame) -> Estimate:
    """What a recording's ``quantities`` say to a claim; ValueError where they lack its methods."""
    try:
        wide = stats.paired(runs, claim.compare(runs), claim.methods)
    except ValueError as error:
        raise ValueError(f"{claim.name}: in {claim.recording.name} {error}") from error
    except KeyError as error:
        columns = ", ".join(map(str, runs.columns))
        raise ValueError(f"{claim.name}: {claim.recording.name} has no column {error}, it has {columns}") from error
    return claim.statistic.estimate(wide)


def when_planned(claim: Measured, plans: list[str]) -> str:
    """Whether a test was fixed before the data: in the second edition's plan, or by the hash that every block carries.

    plans: those of the recorded blocks, see ``registry.plan_of``.
    """
    is_of_second_edition = bool(claim.before) and not claim.differs
    if is_of_second_edition or all(claim.test in plan.split() for plan in plans):
        return BEFORE
    return AFTER


def judge(claim: Claim, runs: pd.DataFrame | None = None) -> Judged:
    """The verdict on one claim. runs: the ``quantities`` of its recording, None until all of it is there."""
    if isinstance(claim, Checked):
        return judge_cases(claim)
    if isinstance(claim, Measured):
        return judge_measured(claim, runs)
    return Judged("not attempted")


def judge_measured(claim: Measured, runs: pd.DataFrame | None) -> Judged:
    """The verdict on a measured claim: where its interval lies."""
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
    """The verdict on an exact claim: all its cases have to hold."""
    cases = claim.cases()
    holds = "same setting" if all(cases) else "contradicted"
    return Judged(holds, ours=sum(cases), prompts=len(cases))


# ---- tables -------------------------------------------------------------------------------------------------------


def judged(paper: str) -> pd.DataFrame:
    """A paper's claims, one row each, with the verdict on each, from the recordings.

    Columns: claim, where, says, effect, reason, before, recording (a name, "heads", "exact", or "" if not attempted),
    methods (a tuple), statistic, direction, bound, and those of Judged. verdict: reproduced, contradicted, undecided,
    same setting (an exact claim all of whose cases hold, else contradicted), not attempted; "not recorded" until its
    recording is, as a whole. ValueError on a paper that is not known.
    """
    read_once = cache(complete)  # however many claims there are on a recording
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
    """A paper's claims by name, in the order in which they are written down; ValueError on one that is not known."""
    if paper not in PAPERS:
        raise ValueError(f"unknown paper {paper!r}: known are {', '.join(PAPERS)}")
    return CLAIMS[paper]


def _row(claim: Claim) -> dict[str, object]:
    """What is known of a claim without data."""
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
    """How many claims of each paper have which verdict.

    Exact and measured ones are counted apart, and among the latter those whose test was chosen after the data.
    tables: ``judged``, by paper.
    """
    every_claim = pd.concat(tables, names=["paper"]).reset_index("paper")
    kinds = [_kind(row.recording, row.planned) for row in every_claim.itertuples()]
    columns = [np.array(kinds), every_claim["verdict"]]
    counts = pd.crosstab(every_claim["paper"], columns, colnames=["kind", "verdict"])
    return counts.loc[[*tables]]


def _kind(recording: str, planned: str) -> str:
    """By which claims are counted apart."""
    if planned == AFTER:
        return "chosen after the data"
    if recording == "exact":
        return "exact"
    if recording == "":
        return ""
    return "measured"
