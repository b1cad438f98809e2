"""A stopping threshold that follows machine and text: what SALF & TALF leave as future work (section 4.4).

Decoding is a renewal process: steps follow each other, each earns tokens and costs time, and the speed R in the long
run is the ratio of the two sums. One more draft forward pays as long as it earns more tokens than R times the seconds
it costs. A forward that expands nodes of path probability S in all earns about yield · S, hence drafting should stop
where S falls below R · (seconds of a forward) / yield. All three are measured on the steps so far:

R: tokens by seconds; the seconds of a forward: the slope of a step's seconds over its forwards, which holds what
verification pays for a larger tree too; yield: tokens accepted below depth 1 by probability expanded below the root,
which every step expands anyway. An overconfident draft has a low yield and stops early. The rule looks one forward
ahead: where a second forward earns little and a third much, it does not find the third.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import siegelslopes

HIGHEST, TRIAL = 0.99, 4


@dataclass(frozen=True)
class Past:
    """A step as the threshold sees it: its seconds, accepted tokens, draft forwards and expanded probability."""

    seconds: float
    accepted: int
    forwards: int
    mass: float


def threshold(past: Sequence[Past], first: float) -> float:
    """Where drafting should stop after these steps, in [0, 0.99]: R · seconds of a forward / yield.

    first: the answer for the first four steps. While none differs in its number of forwards there is nothing to
    compare, and an eighth of it is reached by halves: so also where all that is remembered was alike, which finds out
    anew. The slope is the repeated median, which a few slow steps do not bend; the yield starts as one token from two.
    """
    forwards = [step.forwards for step in past]
    if len(past) < TRIAL or len(set(forwards)) == 1:
        return first / 2 ** min(max(len(past) - TRIAL + 1, 0), 3)
    seconds = [step.seconds for step in past]
    rate = sum(step.accepted + 1 for step in past) / sum(seconds)
    earned = 1 + sum(max(step.accepted - 1, 0) for step in past)
    expanded = 2 + sum(max(step.mass - 1, 0) for step in past)
    found = rate * float(siegelslopes(seconds, forwards).slope) * expanded / earned
    return min(max(found, 0.0), HIGHEST)
