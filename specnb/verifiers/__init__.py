"""Verifiers elect a path of a draft tree and one more token, without changing the target's law.

``textbook`` has the papers' algorithms line by line: token-level, RRS, RRSw, block and traversal verification.
``top_down`` and ``bottom_up`` are the fast forms that decoding uses (the same laws, vocabulary rows touched only
where a rejection needs them); ``multidraft`` compares rules for one level; ``base`` holds what they share.
"""

from specnb.decode import Verifier
from specnb.tree import Trial, Verdict
from specnb.verifiers import textbook
from specnb.verifiers.base import without
from specnb.verifiers.bottom_up import block, chances, traversal
from specnb.verifiers.top_down import by_draw, greedy, one_hot, rrs, rrsw, sample_and_match, token_level

BY_NAME: dict[str, Verifier] = {
    "greedy": greedy,
    "sample_and_match": sample_and_match,
    "one_hot": one_hot,
    "rrs": rrs,
    "rrsw": rrsw,
    "token_level": token_level,
    "by_draw": by_draw,
    "block": block,
    "traversal": traversal,
}
