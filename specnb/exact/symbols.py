"""Random numbers that are not drawn: only what a sampler asks about one is decided, by tossing a coin.

A sampler calls ``torch.rand(1) < 0.3`` and gets True or False. Here the number is a ``Cell``, of which nothing is known
but that it is uniform on (0, 1). The comparison tosses a coin of probability .3, and from then on the cell's number is
known to lie in (0, .3), or in (.3, 1): asked again, it answers consistently.

What a sampler holds in place of the number u is an ``Expression`` of it: ``Uniform`` is a + b u, and ``Noise`` is
made of e = −log u, which is exponential. Samplers draw a token by an argmax over noisy scores: w / e, or log w + g with
Gumbel's g = −log e. Such an argmax is a race, and one draw decides it: the i-th score is the largest with probability
w_i / Σ w.
Noise that takes part in a second race, with other weights, has a joint law with the first winner, which
``second_winner`` works out.
Partial products u_1, u_1 u_2, … are ``Product``: their negative logarithms are sums of exponentials, whose joint law
``Arrivals`` works out.
"""

import contextlib
import math
import sys
import traceback
import unittest
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.polynomial import Polynomial

if TYPE_CHECKING:
    from specnb.sampling import Coins

ROUNDING = 1e-14  # a smaller probability is no outcome, but the rounding of a sum that should be 0 or 1
EPSILON = 1e-6  # what samplers add within a logarithm to keep it finite; it is taken as 0


class NotJudged(ValueError):
    """A sampler cannot be judged."""


REFUSALS: "list[RandomnessError]" = []  # all that were made: a sampler may catch one, and go on


class RandomnessError(NotJudged):
    """A sampler does with a random number what cannot be enumerated. Names the sampler's line."""

    def __init__(self, reason: str):
        super().__init__(reason + _where())
        REFUSALS.append(self)


def _where() -> str:
    """The sampler's line that runs now, in brackets; nothing if there is none."""
    asking = asking_line()
    if asking is None:
        return ""
    path, line = asking
    return f" ({called(path)}, line {line})"


def called(path: Path) -> str:
    """A file's name for readers. A notebook's cell has a number for one."""
    return "the cell" if path.stem.isdigit() else path.name


LOW_LEVEL = {"symbols.py", "random_functions.py", "scripts.py", "laws.py"}  # of ours, between a sampler and its coins
LIBRARIES = tuple(Path(module.__file__).parent for module in (torch, np, unittest))
CONTEXTLIB = Path(contextlib.__file__)


def asking_line() -> tuple[Path, int] | None:
    """The file and line of the sampler that runs now; None if what runs is ours, such as a convention."""
    frame = sys._getframe(1)
    while frame is not None:
        kind = _kind_of(frame.f_code.co_filename)
        if kind == "ours":
            return None
        if kind == "sampler":
            return Path(frame.f_code.co_filename), frame.f_lineno
        frame = frame.f_back
    return None


def raised_at(error: Exception) -> str:
    """The sampler's line in the traceback of an error, in brackets; nothing if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _kind_of(frame.filename) == "sampler":
            return f" ({called(Path(frame.filename))}, line {frame.lineno})"
    return ""


@cache
def _kind_of(file: str) -> str:
    """Whose code stands in a file: "ours", "between" a sampler and its coins, or the "sampler"'s."""
    path = Path(file)
    is_librarys = any(path.is_relative_to(folder) for folder in LIBRARIES) or path == CONTEXTLIB
    if is_librarys:
        return "between"
    if path.parent != Path(__file__).parent:
        return "sampler"
    return "between" if path.name in LOW_LEVEL else "ours"


@dataclass(eq=False)
class Race:
    """An argmax over noise that has been decided: which cells took part, with which weights, and which one won."""

    cells: "list[Cell]"
    weights: list[float]
    winner: int
    again: bool = False  # raced a second time, too


@dataclass(eq=False)
class Cell:
    """One uniform number, and all that is known of it: low < u < high, or the race in which it took part."""

    coins: "Coins"
    low: float = 0.0
    high: float = 1.0
    race: Race | None = None
    is_used_up: bool = False  # another cell stands for it now
    made: ClassVar[int] = 0  # how many cells there have been

    def __post_init__(self):
        Cell.made += 1

    @property
    def is_fresh(self) -> bool:
        """Whether nothing is known of it."""
        return self.race is None and self.low == 0.0 and self.high == 1.0 and not self.is_used_up

    def mirrored(self) -> "Cell":
        """A cell for 1 − u, which is uniform, too; this one cannot be asked any more. Only while nothing is known."""
        if not self.is_fresh:
            raise RandomnessError("1 − u is used after u was compared or took part in an argmax")
        self.is_used_up = True
        return Cell(self.coins)

    def below(self, threshold: float) -> bool:
        """Whether u < threshold: by what is known, else by a coin, after which more is known.

        Example: a fresh number is below .5 by a fair coin; if it is not, it is below .75 by another fair one.
        """
        if self.race is not None:
            raise RandomnessError("a number that took part in an argmax is compared with another one")
        if self.is_used_up:
            raise RandomnessError("u is compared after 1 − u or a product with u was used")
        if math.isnan(threshold):
            return False
        if threshold >= self.high - ROUNDING:
            return True
        if threshold <= self.low + ROUNDING:
            return False
        is_below = self.coins.accept((threshold - self.low) / (self.high - self.low))
        if is_below:
            self.high = threshold
        else:
            self.low = threshold
        return is_below


def refuse(self, *others):
    """In place of what has no meaning for an expression of random numbers."""
    raise RandomnessError(
        f"a random number ({type(self).__name__.lower()}) is used otherwise than in a comparison or an argmax"
    )


class Expression:
    """What a sampler holds in place of a random number. Whatever is not defined in a subclass is refused."""

    __hash__ = object.__hash__
    __str__ = __repr__ = __pos__ = __trunc__ = refuse
    __bool__ = __float__ = __int__ = __index__ = __abs__ = __pow__ = __rpow__ = __mod__ = __floordiv__ = refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = refuse
    log = exp = refuse
    certain: float | None = None  # its value, if it has only one

    def __round__(self, digits=None):
        refuse(self)

    def __format__(self, form):
        refuse(self)

    def bounded(self, low: float | None, high: float | None) -> "Expression":
        """The expression after a clamp; only clamps that keep a logarithm finite are let through."""
        refuse(self)


class Continuous(Expression):
    """An expression that equals a given number with probability 0, unless it has only one value."""

    __hash__ = object.__hash__

    def __eq__(self, number):
        return as_number(self, number) == self.certain

    def __ne__(self, number):
        return not self == number


@dataclass(frozen=True, eq=False, repr=False)
class Uniform(Continuous):
    """shift + scale · u."""

    cell: Cell
    scale: float = 1.0
    shift: float = 0.0

    def __add__(self, number):
        number = as_number(self, number)
        if not math.isfinite(number):
            return number
        return Uniform(self.cell, self.scale, self.shift + number)

    def __mul__(self, number):
        number = as_number(self, number)
        if number == 0:
            return 0.0
        if not math.isfinite(number):
            is_plain = self.scale > 0 and self.shift >= 0  # above 0, so that the product is what the factor is
            return number if is_plain else refuse(self)
        return Uniform(self.cell, self.scale * number, self.shift * number)

    def bounded(self, low, high):
        is_below_all = low is None or low <= EPSILON
        is_above_all = high is None or high >= 1 - EPSILON
        if self._is_u and is_below_all and is_above_all:
            return self
        return refuse(self)

    @property
    def _is_u(self) -> bool:
        """Whether it is u itself, up to an epsilon that keeps its logarithm finite."""
        return self.scale == 1 and 0 <= self.shift <= EPSILON

    @property
    def _is_mirrored(self) -> bool:
        """Whether it is 1 − u, likewise."""
        return self.scale == -1 and 1 <= self.shift <= 1 + EPSILON

    def __neg__(self):
        return Uniform(self.cell, -self.scale, -self.shift)

    def __sub__(self, number):
        return self + -as_number(self, number)

    def __rsub__(self, number):
        return -self + number

    def __truediv__(self, number):
        number = as_number(self, number)
        if number == 0:
            return refuse(self)
        return self * (1 / number)

    __radd__ = __add__
    __rmul__ = __mul__

    def __lt__(self, number):
        if is_vector(number):
            return for_each(number, lambda one: self < one)
        threshold = (as_number(self, number) - self.shift) / self.scale
        if self.scale > 0:
            return self.cell.below(threshold)
        return not math.isnan(threshold) and not self.cell.below(threshold)

    def __gt__(self, number):
        if is_vector(number):
            return for_each(number, lambda one: self > one)
        return -self < -as_number(self, number)

    __le__ = __lt__  # both are equal with probability 0
    __ge__ = __gt__

    def log(self):
        """log u = −e; log(1 − u) likewise, with a cell for 1 − u."""
        if self._is_u:
            return Noise(self.cell, 0.0, NEGATIVE)
        if self._is_mirrored:
            return Noise(self.cell.mirrored(), 0.0, NEGATIVE)
        return refuse(self)


# The forms of noise: when it arrives in a race (exponential_), the scores whose largest wins (p / e), their logarithms
# (log p + g), and the negatives of arrivals and logarithms.
ARRIVAL = "e / w"
SCORE = "w / e"
GUMBEL = "log w − log e"
NEGATIVE_GUMBEL = "log e − log w"
NEGATIVE = "− e / w"
LARGEST_WINS = (SCORE, GUMBEL, NEGATIVE)  # of the two others the smallest does


@dataclass(frozen=True, eq=False, repr=False)
class Noise(Continuous):
    """Exponential noise e = −log u with a weight w, in one of five forms. log_weight: log w, −inf for a weight of 0."""

    cell: Cell
    log_weight: float
    form: str

    @property
    def certain(self) -> float | None:
        """Its value for a weight of 0 or ∞; None for any other weight."""
        if not math.isinf(self.log_weight):
            return None
        at_zero = {ARRIVAL: math.inf, SCORE: 0.0, GUMBEL: -math.inf, NEGATIVE_GUMBEL: math.inf, NEGATIVE: -math.inf}
        at_infinity = {ARRIVAL: 0.0, SCORE: math.inf, GUMBEL: math.inf, NEGATIVE_GUMBEL: -math.inf, NEGATIVE: 0.0}
        values = at_zero if self.log_weight < 0 else at_infinity
        return values[self.form]

    def _turned(self, forms: dict[str, str], change: float = 0.0) -> "Noise":
        """The same noise in another form, its log weight changed; refused for a form that is not listed."""
        if self.form not in forms:
            refuse(self)
        return Noise(self.cell, self.log_weight + change, forms[self.form])

    def __neg__(self):
        return self._turned({GUMBEL: NEGATIVE_GUMBEL, NEGATIVE_GUMBEL: GUMBEL, NEGATIVE: ARRIVAL, ARRIVAL: NEGATIVE})

    def log(self):
        return self._turned({ARRIVAL: NEGATIVE_GUMBEL, SCORE: GUMBEL})

    def exp(self):
        return self._turned({GUMBEL: SCORE, NEGATIVE_GUMBEL: ARRIVAL})

    def bounded(self, low, high):
        if self.form == ARRIVAL and high is None and low is not None:
            self._check_small(max(low, 0.0))
            return self
        return refuse(self)

    def __add__(self, number):
        number = as_number(self, number)
        if math.isnan(number):
            return number
        if self.form == SCORE:
            return self._masked(number)
        if self.form in (ARRIVAL, NEGATIVE):
            self._check_small(number)
            return self
        if self.form == GUMBEL:
            return self._turned({GUMBEL: GUMBEL}, number)
        return self._turned({NEGATIVE_GUMBEL: NEGATIVE_GUMBEL}, -number)

    def _masked(self, number: float) -> "Noise":
        """A score to which 0 was added, or −∞, which makes it a loser."""
        if number == 0:
            return self
        if number == -math.inf:
            return Noise(self.cell, -math.inf, self.form)
        return refuse(self)

    def _check_small(self, number: float) -> None:
        """Refuse to take a number for 0 that is not small beside e, in whose scale this is e / w."""
        weight = math.exp(min(self.log_weight, 700.0))
        if abs(number) * weight > EPSILON:
            refuse(self)

    def __sub__(self, number):
        return self + -as_number(self, number)

    def __rsub__(self, number):
        return -self + number

    def __mul__(self, number):
        log_factor = log_of(self, number)
        if self.form in (ARRIVAL, NEGATIVE):
            if log_factor == -math.inf:
                return 0.0
            return self._turned({ARRIVAL: ARRIVAL, NEGATIVE: NEGATIVE}, -log_factor)
        return self._turned({SCORE: SCORE}, log_factor)

    def __truediv__(self, number):
        log_factor = log_of(self, number)
        if self.form in (ARRIVAL, NEGATIVE):
            return self._turned({ARRIVAL: ARRIVAL, NEGATIVE: NEGATIVE}, log_factor)
        return self._turned({SCORE: SCORE}, -log_factor)

    def __rtruediv__(self, number):
        """c / (e / w) = c w / e, and c / (w / e) = e / (w / c)."""
        log_factor = log_of(self, number)
        if self.form == ARRIVAL:
            return self._turned({ARRIVAL: SCORE}, log_factor)
        return self._turned({SCORE: ARRIVAL}, -log_factor)

    __radd__ = __add__
    __rmul__ = __mul__

    def __lt__(self, other):
        if isinstance(other, Noise):
            return other > self
        return self._below(as_number(self, other))

    def __gt__(self, other):
        if isinstance(other, Noise):
            return self._is_larger(other)
        threshold = as_number(self, other)
        return not math.isnan(threshold) and not self._below(threshold)

    __le__ = __lt__
    __ge__ = __gt__

    def _below(self, threshold: float) -> bool:
        """A comparison with a number, as one of u: e < x is u > exp(−x)."""
        if math.isnan(threshold):
            return False
        weight = math.exp(self.log_weight)
        if self.form == ARRIVAL:  # e / w < x
            return not self.cell.below(math.exp(-max(threshold, 0.0) * weight))
        if self.form == NEGATIVE:  # −e / w < x
            return self.cell.below(math.exp(min(threshold, 0.0) * weight))
        return refuse(self)

    def _is_larger(self, other: "Noise") -> bool:
        """A race of two: what a running maximum asks. A winner can race once more, as after any race."""
        if self.form != other.form or self.cell is other.cell:
            return refuse(self)
        if self.log_weight == other.log_weight == -math.inf:
            return False  # both are 0, or both infinite
        wins = elect(self.cell.coins, [self, other]) == 0
        return wins if self.form in LARGEST_WINS else not wins


@dataclass(eq=False)
class Arrivals:
    """What is known of S_1 = e_1, S_2 = e_1 + e_2, …, the negative logarithms of u_1, u_1 u_2, …

    S_k is asked for rising k. Its density, cut to what the answers so far leave, is a polynomial times e^−s on each of
    a few intervals. As S_k+1 = S_k + e, the next density at t is e^−t times the integral of the polynomials up to t.

    Example: S_1 has the density e^−s, and S_2 that of s e^−s. Given S_1 > a it is (s − a) e^−s for s > a, times e^a.
    """

    coins: "Coins"
    place: int = 1  # k, of the sum that is known
    pieces: list[tuple[float, float, Polynomial]] = field(default_factory=lambda: [(0.0, math.inf, Polynomial([1.0]))])

    def exceeds(self, place: int, threshold: float) -> bool:
        """Whether S_place > threshold, by a coin if it is open."""
        if place < self.place:
            raise RandomnessError("a product of random numbers is compared after a longer product was")
        while self.place < place:
            self._advance()
        above = _cut(self.pieces, threshold, math.inf)
        below = _cut(self.pieces, 0.0, threshold)
        mass = _mass(above) + _mass(below)
        share = _mass(above) / mass
        if share <= ROUNDING:
            return False
        if share >= 1 - ROUNDING:
            return True
        exceeded = self.coins.accept(share)
        self.pieces = above if exceeded else below
        return exceeded

    def _advance(self) -> None:
        """From S_k to S_k+1."""
        advanced = []
        before = 0.0  # the integral up to where the next piece begins
        reached = 0.0
        for low, high, polynomial in self.pieces:
            if low > reached:
                advanced.append((reached, low, Polynomial([before])))
            integral = polynomial.integ()
            advanced.append((low, high, integral - integral(low) + before))
            reached = high
            if not math.isinf(high):
                before += integral(high) - integral(low)
        if not math.isinf(reached):
            advanced.append((reached, math.inf, Polynomial([before])))
        self.pieces = advanced
        self.place += 1


def _cut(pieces: list, low: float, high: float) -> list:
    """The parts of pieces between two bounds."""
    parts = []
    for start, end, polynomial in pieces:
        begins = max(start, low)
        ends = min(end, high)
        if begins < ends:
            parts.append((begins, ends, polynomial))
    return parts


def _mass(pieces: list) -> float:
    """Σ ∫ polynomial(s) e^−s ds: the integral from s on is e^−s times the sum of all derivatives at s."""
    mass = 0.0
    for low, high, polynomial in pieces:
        derivatives = [polynomial.deriv(order) for order in range(polynomial.degree() + 1)]
        mass += math.exp(-low) * sum(derivative(low) for derivative in derivatives)
        if not math.isinf(high):
            mass -= math.exp(-high) * sum(derivative(high) for derivative in derivatives)
    return mass


@dataclass(frozen=True, eq=False)
class Product(Continuous):
    """u_1 u_2 … u_k, of numbers of which nothing is known but their products."""

    arrivals: Arrivals
    place: int  # k

    def __lt__(self, number):
        threshold = as_number(self, number)
        if math.isnan(threshold) or threshold <= 0:
            return False
        if threshold >= 1:
            return True
        return self.arrivals.exceeds(self.place, -math.log(threshold))

    def __gt__(self, number):
        threshold = as_number(self, number)
        return not math.isnan(threshold) and not self < threshold

    __le__ = __lt__
    __ge__ = __gt__


def partial_products(numbers: Sequence) -> list[Product]:
    """u_1, u_1 u_2, …, of uniform numbers of which nothing is known yet; they are asked no more themselves."""
    for number in numbers:
        if not isinstance(number, Uniform) or number.scale != 1 or number.shift != 0 or not number.cell.is_fresh:
            raise RandomnessError("products are enumerated for uniform numbers that were not used before, only")
        number.cell.is_used_up = True  # at once, so that no number comes twice
    arrivals = Arrivals(numbers[0].cell.coins)
    return [Product(arrivals, place) for place in range(1, 1 + len(numbers))]


class Spent(Expression):
    """The value of a number that won an argmax: it has no law that is worked out here, and any use is refused."""


def certain(number) -> float:
    """A plain number itself, and the value of an expression that has only one; .5 in place of any other value.

    It is for questions whose answer is the same for all finite numbers, such as whether a number is infinite.
    """
    if not isinstance(number, Expression):
        return number
    if isinstance(number, Spent):
        return refuse(number)
    return 0.5 if number.certain is None else number.certain


def is_vector(number) -> bool:
    """Whether it is a tensor of other than one number."""
    return isinstance(number, torch.Tensor) and number.numel() != 1


def for_each(numbers: torch.Tensor, ask: Callable[[float], bool]) -> torch.Tensor:
    """The answers for each element of a tensor."""
    answers = [ask(number) for number in numbers.flatten().tolist()]
    return torch.tensor(answers).reshape(numbers.shape)


def as_number(expression: Expression, number) -> float:
    """A plain number; another random one is refused."""
    if isinstance(number, torch.Tensor | np.ndarray) and math.prod(number.shape) != 1:
        raise RandomnessError(
            "one random number is used with a whole array at once: write torch.rand(1) for random.random(), or a loop"
        )
    if isinstance(number, Expression):
        raise RandomnessError("two random numbers are added, multiplied or compared with each other")
    try:
        return float(number)
    except (TypeError, ValueError):
        return refuse(expression)


def log_of(expression: Expression, number) -> float:
    """The logarithm of a factor of at least 0, −inf for 0."""
    number = as_number(expression, number)
    if number < 0 or math.isnan(number):
        refuse(expression)
    if number == 0:
        return -math.inf
    return math.log(number)


# --- races


class Election(Expression):
    """The place of the first of several noisy scores. It is elected when it is asked for: most are never read."""

    def __init__(self, coins: "Coins", scores: Sequence[Noise]):
        self.coins = coins
        self.scores = scores
        self.elected: int | None = None

    @property
    def winner(self) -> int:
        """The place."""
        if self.elected is None:
            self.elected = elect(self.coins, self.scores)
        return self.elected


def elect(coins: "Coins", scores: Sequence[Noise]) -> int:
    """Which of several noisy scores is the first: the i-th with probability w_i / Σ w.

    If their noise has decided one race before, the law is conditional on that winner.
    """
    log_weights = np.array([score.log_weight for score in scores])
    largest = log_weights.max()
    if largest == -math.inf:
        return 0  # all scores are 0, or −inf: argmax takes the first
    weights = np.exp(log_weights - largest)
    cells = [score.cell for score in scores]
    if len(set(map(id, cells))) < len(cells):
        raise RandomnessError("one random number stands in two places of an argmax")
    earlier = {id(cell.race): cell.race for cell in cells if cell.race is not None}
    if any(cell.low > 0 or cell.high < 1 or cell.is_used_up for cell in cells):
        raise RandomnessError("a number that was compared with another one takes part in an argmax, too")
    if len(earlier) > 1 or any(race.again for race in earlier.values()):
        raise RandomnessError("noise is raced more than twice")
    if not earlier:
        winner = coins.choose(torch.from_numpy(weights))
        race = Race(cells, weights.tolist(), winner)
        for cell in cells:
            cell.race = race
        return winner
    (race,) = earlier.values()
    race.again = True
    return coins.choose(torch.from_numpy(_conditional(race, cells, weights)))


def _conditional(race: Race, cells: Sequence[Cell], weights: np.ndarray) -> np.ndarray:
    """The law of the winner among cells by new weights, given who won the race that some of them took part in."""
    everyone = list(race.cells)
    everyone += [cell for cell in cells if cell.race is None]  # their weight in the first race was 0
    place = {id(cell): index for index, cell in enumerate(everyone)}
    first = np.zeros(len(everyone))
    first[: len(race.weights)] = race.weights
    second = np.zeros(len(everyone))
    for cell, weight in zip(cells, weights, strict=True):
        second[place[id(cell)]] = weight
    law = second_winner(first, race.winner, second)
    for cell in everyone:
        cell.race = race
    return np.array([law[place[id(cell)]] for cell in cells])


def second_winner(first: np.ndarray, winner: int, second: np.ndarray) -> np.ndarray:
    """(n,) the law of argmin e / second, given that argmin e / first is the winner, over the same exponential noise e.

    In a race number k arrives at e_k / weight_k, and the earliest arrival wins. Let t be the first race's earliest
    arrival; it is exponential with rate W = Σ first. Every other number arrived later, so that its e is first_k · t
    plus a fresh exponential number. In the second race it therefore arrives at a_k t plus an exponential number of rate
    second_k, with a_k = first_k / second_k. The first winner arrives at a t exactly, a being its own such ratio.

    It wins again if nobody arrives before. Given t that has the probability exp(−Σ_k second_k max(r − a_k, 0) t) at
    r = a, and the mean over t is W / (W + Σ_k second_k max(a − a_k, 0)). Number j wins instead by arriving at r t for
    some r between a_j and a, with the density second_j W / (W + Σ_k second_k max(r − a_k, 0))². The sum is linear in r
    between two neighbouring a_k, where the integral is elementary.

    Example: with the same weights in both races the same one wins. With first (1, 1), winner 0 and second (1, 3), the
    a are 1 and 1/3, so that 0 wins again with probability 2 / (2 + 3 · 2/3) = 1/2.
    """
    first = np.asarray(first, dtype=float)
    second = np.asarray(second, dtype=float)
    total = first.sum()
    runs = np.flatnonzero((second > 0) & (np.arange(len(second)) != winner))
    starts = first[runs] / second[runs]  # a_k

    def reached(r: float) -> float:
        """W + Σ_k second_k (r − a_k)_+"""
        return float(total + (second[runs] * np.maximum(r - starts, 0.0)).sum())

    law = np.zeros(len(second))
    end = math.inf
    if second[winner] > 0:
        end = first[winner] / second[winner]
        law[winner] = total / reached(end)
    for j, start in zip(runs, starts, strict=True):
        knots = [start, *sorted(a for a in set(starts) if start < a < end)]
        edges = [*knots, end]
        for low, high in pairwise(edges):
            if high <= low:
                continue
            at_low = reached(low)
            slope = float(second[runs][starts <= low].sum())
            at_high = at_low + slope * (high - low)
            inverse = 0.0 if math.isinf(at_high) else 1 / at_high
            law[j] += second[j] * total * (1 / at_low - inverse) / slope
    return law
