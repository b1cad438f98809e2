"""Growth rules: which nodes of a draft tree to expand, when to stop, and which to keep.

- ``levels`` has rules that go level by level: chains and k-ary trees, DynaTree, CAPE, EAGLE-2, PCT.
- ``best_first`` has rules that search for the likeliest nodes: SALF, SpecExec, OPT-Tree.
- ``regrown`` finds what a rule would have drafted, in a larger tree that was recorded.
- ``textbook`` has SALF's and DynaTree's algorithms as printed.
"""

from specnb.growth import textbook
from specnb.growth.best_first import OptTree, Paying, Salf, SpecExec
from specnb.growth.levels import (
    EAGLE_25, MEDUSA_63, Cape, DynaTree, Eagle2, Frontier, Growth, Pct, Static, at_least_one, best,
    chain, kary, last_level, within,
)  # fmt: skip
from specnb.growth.regrown import Stage, Together, regrow, stages
