"""What happened in one run of a sampler under given coins: its tosses, and what it committed.

``play`` runs a function twice with the same coins. If it does something else the second time, it takes randomness from
somewhere else, and is not judged.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from specnb.exact.laws import shown
from specnb.exact.symbols import NotJudged, asking_line
from specnb.sampling import Coins

Outcome = TypeVar("Outcome")
MOST_TOSSES = 1_000  # in one run


@dataclass(frozen=True)
class Toss:
    """One coin or choice: the probabilities of its outcomes, and which one it was."""

    probabilities: tuple[float, ...]
    outcome: int
    is_coin: bool
    by: str = ""  # which line of the sampler asked; "draft" for a draft token, "" for what a convention draws

    def __str__(self) -> str:
        if self.is_coin:
            answer = "yes" if self.outcome else "no"
            said = f"coin of {self.probabilities[1]:.4f}: {answer}"
        else:
            said = f"draw from {shown(self.probabilities)}: {self.outcome}"
        if not self.by:
            return said
        return f"{self.by}: {said}"


@dataclass(frozen=True)
class Script:
    """One way a step can go: its coins, and what it commits."""

    tosses: tuple[Toss, ...]
    committed: tuple[int, ...]

    @property
    def probability(self) -> float:
        """The product of its tosses' probabilities."""
        return math.prod(toss.probabilities[toss.outcome] for toss in self.tosses)

    def __str__(self) -> str:
        return " · ".join(map(str, self.tosses)) + f" → commits {list(self.committed)}"


class Noted:
    """Coins that keep what was tossed, and can play it once more."""

    def __init__(self, coins: Coins):
        self.coins = coins
        self.uniforms: list[float] = []
        self.tosses: list[Toss] = []
        self.replayed: int | None = None  # tosses played again so far; None at the first run
        self.drafting = False  # whether what is drawn now is the draft

    def _again(self, probabilities: tuple[float, ...], is_coin: bool) -> int | None:
        """The outcome that this toss had at the first run; None during the first run."""
        if self.replayed is None:
            return None
        earlier = self.tosses[self.replayed] if self.replayed < len(self.tosses) else None
        if earlier is None or earlier.is_coin != is_coin or earlier.probabilities != probabilities:
            raise NotJudged(
                "run twice with the same coins, the sampler did something else the second time: it keeps a state, or "
                "draws from a generator that was made before"
            )
        self.replayed += 1
        return earlier.outcome

    def _note(self, probabilities: tuple[float, ...], outcome: int, is_coin: bool) -> None:
        """Keep a toss; NotJudged if there are too many."""
        if len(self.tosses) == MOST_TOSSES:
            raise NotJudged(f"one run tosses more than {MOST_TOSSES} coins: a loop that ends by chance only, perhaps")
        self.tosses.append(Toss(probabilities, outcome, is_coin, self._asking()))

    def _asking(self) -> str:
        """Who asks now, for readers."""
        if self.drafting:
            return "draft"
        asking = asking_line()
        if asking is None:
            return ""
        _, line = asking
        return f"line {line}"

    def accept(self, probability: float) -> bool:
        probabilities = (1 - probability, probability)
        outcome = self._again(probabilities, True)
        if outcome is None:
            outcome = int(self.coins.accept(probability))
            self._note(probabilities, outcome, True)
        return bool(outcome)

    def choose(self, probabilities: Tensor) -> int:
        weights = probabilities.double()
        normalised = tuple((weights / weights.sum()).tolist())
        outcome = self._again(normalised, False)
        if outcome is None:
            outcome = self.coins.choose(probabilities)
            self._note(normalised, outcome, False)
        return outcome


@contextmanager
def drafting(coins: Coins) -> Iterator[None]:
    """What is drawn inside is called the draft."""
    coins.drafting = True
    yield
    coins.drafting = False


def play(fn: Callable[[Coins], Outcome], coins: Coins) -> tuple[tuple[Toss, ...], Outcome]:
    """Run fn twice with the same coins, and return its tosses and its result. NotJudged if it differs from itself."""
    noted = Noted(coins)
    first = fn(noted)
    noted.replayed = 0
    second = fn(noted)
    if second != first or noted.replayed != len(noted.tosses):
        raise NotJudged(
            f"run twice with the same coins, it gives {first} and then {second}, or tosses fewer coins: it keeps a "
            f"state, or draws from a generator that was made before"
        )
    return tuple(noted.tosses), first
