"""Claims: what each paper says, by which test it is judged, and the verdict, by rule, from the recordings.

``ptd``, ``traversal``, ``dynatree``, ``edd_pct`` and ``salf_talf`` have a function for each claim, under a decorator of
``registry`` that says where it stands in the paper and by which test it is judged. A measured claim's test is written
before its recording is made: every block that the command line records carries the tests' hashes; claims that were
converted from the second edition name their row of data/claims/PAPER.csv. ``judging`` judges; ``toys`` and ``in_print``
are what several papers' checks share.
"""

from study.claims import dynatree, edd_pct, ptd, salf_talf, traversal
from study.claims.judging import AFTER, BEFORE, judge, judged, measured, of_paper, summary, verdict
from study.claims.registry import CLAIMS, Checked, Claim, Measured, checked, claim, not_attempted, plan_of
from study.paper import PAPERS

__all__ = [
    "AFTER", "BEFORE", "CLAIMS", "PAPERS", "Checked", "Claim", "Measured", "checked", "claim", "dynatree", "edd_pct",
    "judge", "judged", "measured", "not_attempted", "of_paper", "plan_of", "ptd", "salf_talf", "summary", "traversal",
    "verdict",
]  # fmt: skip
