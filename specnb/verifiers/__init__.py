"""Verifiers accept a path of a draft tree and choose one more token, without changing the target's law.

A law is a probability distribution over the vocabulary. A verifier is lossless if its texts have the target's law.
- ``textbook`` has the papers' algorithms line by line: token-level, RRS, RRSw, block and traversal verification.
- ``top_down`` and ``bottom_up`` have the fast forms that decoding uses. Their output has the same law; they read the
  laws of a node only if one of its children was rejected.
- ``multidraft`` has rules for trees of one level, for comparison.
- ``base`` has what the verifiers share.
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
