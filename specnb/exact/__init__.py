"""Losslessness as something to run: the exact law of any verifier, every outcome of every coin enumerated.

``enumeration`` has ``law(fn)`` and what is built on it (output laws, accepted lengths, whole generations);
``gallery`` has seventeen broken verifiers and how far each one's law is from the target's. For samplers that know
nothing of coins, ``random_functions`` puts coins in place of what they draw (``symbols``: numbers that are not drawn),
``judgement`` says whether they are lossless, and ``conventions`` how those in use are called; from the shell it is
``python -m specnb.exact``.
"""

from specnb.exact import conventions, gallery
from specnb.exact.enumeration import (
    Law, Model, accepted_given, accepted_law, engine_law, expectation, in_float64, joint, law, output_law, random_model,
    rows, sample, total_variation, toy_draft, toy_drafter, verify_once,
)  # fmt: skip
from specnb.exact.judgement import Judgement, World, assert_lossless, judge, worlds
from specnb.exact.random_functions import randomness
from specnb.exact.symbols import NotJudged, RandomnessError
