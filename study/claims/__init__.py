"""Claims: what each paper says, the test by which it is judged, and the verdict from the recordings.

The modules ``ptd``, ``traversal``, ``dynatree``, ``edd_pct`` and ``salf_talf`` have one function per claim. A decorator
of ``registry`` says where the claim is in the paper and by which test it is judged. A measured claim's test is written
before its recording is made: every block that the command line records has the tests' hashes. Claims that were
converted from the second edition name their row of data/claims/PAPER.csv instead. ``judging`` finds the verdicts.
``toys`` and ``in_print`` have functions that several papers' checks use.
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
