"""Losslessness as something to run: the exact law of any verifier, every outcome of every coin enumerated.

``enumeration`` has ``law(fn)`` and what is built on it (output laws, accepted lengths, whole generations);
``gallery`` has seventeen broken verifiers and how far each one's law is from the target's.
"""

from specnb.exact import gallery
from specnb.exact.enumeration import (
    Law, Model, accepted_given, accepted_law, engine_law, expectation, in_float64, joint, law, output_law, random_model,
    rows, sample, total_variation, toy_draft, toy_drafter, verify_once,
)  # fmt: skip
