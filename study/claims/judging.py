"""Verdicts, by rule, from the recordings: ``judged``, and ``summary`` and ``plan`` of what it found."""

from dataclasses import asdict, dataclass
from functools import cache

import pandas as pd

from study import stats
from study.claims.registry import CLAIMS, Checked, Claim, Measured
from study.paper import PAPERS
from study.quantities import HEADS, complete
from study.stats import Estimate

BEFORE, AFTER = "before the data", "after the data"


def verdict(low: float, high: float, direction: str, bound: float) -> str:
    """By rule: reproduced if the interval lies on the paper's side of the bound, contradicted on the other, else
    undecided; within ± the bound for a claim of no difference."""
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
    return "contradicted" if outside else "undecided"


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

    plans: those of the recorded blocks, hashes with spaces between.
    """
    if claim.before and not claim.differs:
        return BEFORE
    return BEFORE if all(claim.test in plan.split() for plan in plans) else AFTER


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
    found = measured(claim, runs)
    return Judged(
        verdict(found.low, found.high, claim.direction, claim.bound),
        value=claim.compare(runs).name,
        planned=when_planned(claim, plans),
        stale=stale,
        ours=found.value,
        low=found.low,
        high=found.high,
        prompts=found.prompts,
    )


def judge_cases(claim: Checked) -> Judged:
    """The verdict on an exact claim: all its cases have to hold."""
    cases = claim.cases()
    return Judged("same setting" if all(cases) else "contradicted", ours=sum(cases), prompts=len(cases))


# ---- tables -------------------------------------------------------------------------------------------------------


def judged(paper: str) -> pd.DataFrame:
    """A paper's claims, one row each, with the verdict on each, from the recordings.

    Columns: claim, where, says, effect, reason, before, recording (a name, "heads", "exact", or "" if not attempted),
    methods (a tuple), statistic, direction, bound, and those of Judged. verdict: reproduced, contradicted, undecided,
    same setting (an exact claim all of whose cases hold, else contradicted), not attempted; "not recorded" until its
    recording is, as a whole. ValueError on a paper that is not known.
    """
    read = cache(complete)  # each recording once, however many claims there are on it
    rows = []
    for claim in of_paper(paper).values():
        runs = read(claim.recording) if isinstance(claim, Measured) else None
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
    row = {"claim": claim.name, "where": claim.where, "says": claim.says, "effect": claim.effect}
    row |= {"reason": claim.reason, "before": claim.before}
    row |= {"recording": "", "methods": (), "statistic": "", "direction": "", "bound": None}
    if isinstance(claim, Checked):
        row["recording"] = "exact"
    if isinstance(claim, Measured):
        row["recording"] = claim.recording.name
        row |= {"methods": claim.methods, "statistic": claim.statistic.name}
        row |= {"direction": claim.direction, "bound": claim.bound}
    return row


def in_words(row) -> str:
    """A row of ``judged``: what has to lie where, for the claim to hold.

    >>> from types import SimpleNamespace
    >>> in_words(SimpleNamespace(recording="race", statistic="ratio", value="speed", direction="above", bound=1.0))
    'ratio of speed above 1'
    """
    if row.recording == "exact":
        return "all cases hold"
    if not row.statistic:
        return ""
    of = f" of {row.value}" if row.value else ""
    return f"{row.statistic}{of} {row.direction} {row.bound:g}"


def plan(paper: str) -> pd.DataFrame:
    """A paper's claims as readers see them: claim, where, says, effect, test (in words), methods, reason, verdict."""
    table = judged(paper)
    words = [in_words(row) for row in table.itertuples()]
    methods = [" ; ".join(names) for names in table["methods"]]
    told = table.assign(test=words, methods=methods)
    return told[["claim", "where", "says", "effect", "test", "methods", "reason", "verdict"]]


def summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """How many claims of each paper have which verdict, exact and measured ones apart, and among the latter those whose
    test was chosen after the data. tables: ``judged``, by paper."""
    found = pd.concat(tables, names=["paper"]).reset_index("paper")
    kind = pd.Series("measured", index=found.index)
    kind[found["recording"] == "exact"] = "exact"
    kind[found["recording"] == ""] = ""
    kind[found["planned"] == AFTER] = "chosen after the data"
    columns = [kind.to_numpy(), found["verdict"]]
    return pd.crosstab(found["paper"], columns, colnames=["kind", "verdict"]).loc[[*tables]]
