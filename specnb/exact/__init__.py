"""Losslessness as something to run: the exact law of any verifier, every outcome of every coin enumerated.

A law is a probability distribution, and a coin is a random decision.

- ``laws`` has ``law(fn)``, the exact law of any function of coins, and laws of toy models.
- For samplers that know nothing of coins, ``random_functions`` puts coins in place of what they draw (``symbols``:
  numbers that are not drawn). ``judgement`` says whether they are lossless in the small worlds of ``toy_worlds``, by
  ``scripts`` of coins; ``drafting`` says whether a drafter draws from the q that it reports; ``conventions`` says how
  those in use are called. From the shell it is ``python -m specnb.exact``. All these need torch and numpy only.
- ``enumeration`` has the exact laws of this project's own drafters, verifiers and loop. ``gallery`` has twenty broken
  verifiers, and how far each one's law is from the target's; ``newer`` has newer verifiers, to be compared.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from specnb.exact import conventions
from specnb.exact.drafting import judge_drafter
from specnb.exact.judgement import Convention, Judgement, assert_lossless, chain_step, judge, step_law, tree_step
from specnb.exact.laws import (
    Law,
    Model,
    completed,
    expectation,
    joint,
    law,
    random_model,
    rows,
    sample,
    total_variation,
)
from specnb.exact.random_functions import randomness
from specnb.exact.symbols import NotJudged, RandomnessError
from specnb.exact.toy_worlds import CHAINS, TREES, World, chains, worlds

if TYPE_CHECKING:
    from specnb.exact import gallery
    from specnb.exact.enumeration import (
        Argmax, accepted_given, accepted_law, engine_law, in_float64, output_law, toy_draft, toy_drafter, verify_once,
    )  # fmt: skip

_OF_ENUMERATION = {
    "Argmax", "accepted_given", "accepted_law", "engine_law", "in_float64", "output_law", "toy_draft", "toy_drafter",
    "verify_once",
}  # fmt: skip


def __getattr__(name: str):
    """What needs transformers is imported when it is first asked for: the judge of other people's samplers does not."""
    if name == "gallery":
        return import_module("specnb.exact.gallery")
    if name in _OF_ENUMERATION:
        return getattr(import_module("specnb.exact.enumeration"), name)
    raise AttributeError(f"module 'specnb.exact' has no attribute {name!r}")
