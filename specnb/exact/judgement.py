"""Is a sampler lossless? ``judge`` works out its exact output law in small worlds; a wrong law is a counterexample.

A *world* is a target law p and a draft law q over a few tokens. In a world drafts are drawn from q, the sampler commits
tokens, and p itself completes the text: the law of the text has to be p's own. The worlds are flat, peaked, tied, cut
to the likeliest tokens, with impossible tokens, with p = q and with nothing in common. They are tried from the plainest
on, with short drafts first, and the first one that fails is shown. How a sampler is called is said by a ``Convention``
(``conventions``).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from specnb.exact.enumeration import Law, Model, completed, joint, law, random_model, rows, sample, total_variation
from specnb.exact.random_functions import randomness
from specnb.exact.symbols import NotJudged
from specnb.sampling import Coins
from specnb.tree import TokenTree

EXACT = 1e-12  # largest distance of laws that are equal, in float64
ROUNDINGS = 2  # largest distance for a sampler that computes in lower precision, in units of its epsilon
SHOWN = 6  # sequences of coins that a counterexample prints
MOST_SCRIPTS = 200_000  # sequences of coins in one world
CONFIRMATIONS = 5  # further rounds over all sequences of coins, before a sampler is called wrong

LOSSLESS = "lossless"
ROUNDING = "lossless up to rounding"
LOSSY = "not lossless"
BY_DESIGN = "lossy by design"
NOT_JUDGED = "not judged"


# --- worlds


@dataclass(frozen=True)
class World:
    """A target law p and a draft law q behind every text of at most a few tokens."""

    name: str
    vocabulary: int
    p: Model = field(repr=False)
    q: Model = field(repr=False)


def _changed(model: Model, change: Callable[[Tensor], Tensor]) -> Model:
    """A model whose laws are changed and normalised."""

    @cache
    def changed(prefix: tuple[int, ...]) -> Tensor:
        weights = change(model(prefix))
        return weights / weights.sum()

    return changed


def _top_k(law_of_token: Tensor, k: int = 2) -> Tensor:
    """Only the k largest."""
    smallest_kept = law_of_token.topk(k).values[-1]
    return law_of_token.where(law_of_token >= smallest_kept, 0.0)


def _without(token: int) -> Callable[[Tensor], Tensor]:
    """A change of a law that makes a token impossible."""

    def change(law_of_token: Tensor) -> Tensor:
        rest = law_of_token.clone()
        rest[token] = 0
        return rest

    return change


def _only(token: int) -> Callable[[Tensor], Tensor]:
    """A change of a law that makes a token certain."""

    def change(law_of_token: Tensor) -> Tensor:
        alone = torch.zeros_like(law_of_token)
        alone[token] = 1
        return alone

    return change


def _tied(law_of_token: Tensor) -> Tensor:
    """Small whole numbers as weights, so that tokens have equal probabilities."""
    return (law_of_token * 4).round() + 1


def worlds(vocabulary: int = 3) -> list[World]:
    """The worlds in which ``judge`` tries a sampler, the plainest first."""
    if vocabulary < 3:
        raise ValueError(f"the worlds need three tokens or more, got {vocabulary}")
    first = random_model(vocabulary, seed=1)
    second = random_model(vocabulary, seed=2)
    flat = random_model(vocabulary, seed=3, sharpness=0.0)
    peaked = random_model(vocabulary, seed=4, sharpness=6.0)
    last = vocabulary - 1
    pairs = {
        "p and q differ": (first, second),
        "q is flat": (first, flat),
        "p is flat": (flat, second),
        "q is peaked": (first, peaked),
        "p is peaked": (peaked, second),
        "p = q": (first, first),
        "q misses a token": (first, _changed(second, _without(last))),
        "p misses a token": (_changed(first, _without(0)), second),
        "nothing in common": (_changed(first, _only(0)), _changed(second, _without(0))),
        "tied": (_changed(first, _tied), _changed(second, _tied)),
        "both cut to the top 2": (_changed(first, _top_k), _changed(second, _top_k)),
        "p cut to the top 2": (_changed(first, _top_k), second),
    }
    return [World(name, vocabulary, p, q) for name, (p, q) in pairs.items()]


# --- conventions: how a sampler is called


Step = Callable[[World, int, Coins], tuple[int, ...]]  # world, draft tokens, coins → the tokens of one step


@dataclass(frozen=True)
class Convention:
    """How a sampler is called."""

    name: str
    step: Callable[[Callable], Step]  # sampler → one step of decoding by it
    says: str  # the arguments and the result of such a sampler, for readers
    lengths: tuple[int, ...] = (1, 2)  # numbers of draft tokens to try


def chain_step(verify: Callable[[Tensor, Tensor, list[int]], Sequence[int]]) -> Step:
    """A step that drafts a chain; verify(p (γ + 1, V), q (γ, V), drafted) returns what it commits.

    Whatever is random in verify is decided by the step's coins.
    """

    def step(world: World, length: int, coins: Coins) -> tuple[int, ...]:
        drafted = list(sample(world.q, (), length, coins))
        tree = TokenTree.chain([0, *drafted])  # the root stands for the empty text
        p = rows(world.p, tree)
        q = rows(world.q, tree)[:length]
        with randomness(coins):
            tokens = verify(p, q, drafted)
        return tuple(int(token) for token in tokens)

    return step


# --- the judgement


@dataclass(frozen=True)
class Counterexample:
    """A world in which a sampler's law is not the target's.

    Among all texts in that world it shows the one whose probability is most wrong.
    """

    world: World
    length: int  # of the draft
    tokens: tuple[int, ...]  # the text
    given: float  # its probability by the sampler
    right: float  # its probability by p
    laws: dict[tuple[int, ...], tuple[float, float]] = field(repr=False)  # every text → both probabilities
    scripts: "tuple[Script, ...]" = field(repr=False)  # all coins that lead to the text

    def __str__(self) -> str:
        text = list(self.tokens)
        lines = [
            f"In the world {self.world.name!r}, with {self.length} draft token(s), the text {text}",
            f"comes out with probability {self.given:.6f}; the target's own is {self.right:.6f}.",
            "",
            "after: p | q",
        ]
        for length in range(self.length + 1):
            prefix = self.tokens[:length]
            line = f"{list(prefix)}: {_shown(self.world.p(prefix))}"
            if length < self.length:
                line += f" | {_shown(self.world.q(prefix))}"
            lines.append(line)
        lines += ["", "text: by the sampler | by the target"]
        for tokens, (given, right) in sorted(self.laws.items()):
            mark = " <-" if tokens == self.tokens else ""
            lines.append(f"{list(tokens)}: {given:.6f} | {right:.6f}{mark}")
        lines += ["", f"Coins that lead to {text}, where the target completes what is committed:"]
        by_probability = sorted(self.scripts, key=lambda script: -script.probability)
        for script in by_probability[:SHOWN]:
            lines.append(f"{script.probability:.6f}: {script}")
        if len(by_probability) > SHOWN:
            lines.append(f"and {len(by_probability) - SHOWN} more")
        return "\n".join(lines)


def _shown(law_of_token: Tensor) -> str:
    return "(" + ", ".join(f"{number:.4f}" for number in law_of_token.tolist()) + ")"


@dataclass(frozen=True)
class Toss:
    """One coin or choice: the probabilities of its outcomes, and which one it was."""

    probabilities: tuple[float, ...]
    outcome: int
    is_coin: bool

    def __str__(self) -> str:
        if self.is_coin:
            answer = "yes" if self.outcome else "no"
            return f"coin of {self.probabilities[1]:.4f}: {answer}"
        shown = ", ".join(f"{number:.4f}" for number in self.probabilities)
        return f"draw from ({shown}): {self.outcome}"


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


@dataclass(frozen=True)
class Judgement:
    """What ``judge`` found."""

    verdict: str  # LOSSLESS, ROUNDING, LOSSY, BY_DESIGN or NOT_JUDGED
    distance: float  # the largest total variation between the two laws in what was tried
    judged: int  # pairs of a world and a draft length that were tried
    scripts: int  # sequences of coins that this took
    counterexample: Counterexample | None = None
    reason: str = ""  # why it was not judged, or how large the rounding is

    @property
    def is_lossless(self) -> bool:
        return self.verdict in (LOSSLESS, ROUNDING)

    def __str__(self) -> str:
        effort = f"{self.judged} worlds and draft lengths, {self.scripts} sequences of coins"
        if self.verdict == NOT_JUDGED:
            return f"{self.verdict}: {self.reason}\n({effort} before)"
        where = "at most" if self.is_lossless else "here"
        lines = [f"{self.verdict}: total variation {self.distance:.1e} {where}, {effort}"]
        if self.reason:
            lines.append(self.reason)
        if self.counterexample is not None:
            lines += ["", str(self.counterexample)]
        return "\n".join(lines)


def judge(
    sampler: Callable,
    convention: Convention,
    *,
    tried: Sequence[World] | None = None,
    lengths: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float64,
    by_design: bool = False,
) -> Judgement:
    """Whether a sampler is lossless, by its exact output law in every world and with every draft length.

    sampler: somebody's function, unchanged.
    convention: how it is called.
    tried: the worlds; None for all of ``worlds()``.
    lengths: numbers of draft tokens; None for the convention's.
    dtype: in which the sampler computes. Nothing is cast; it bounds what may be called rounding, ROUNDINGS epsilons.
    by_design: its authors mean it to be lossy, so that a difference is called that.

    Example: in the first world a sampler that draws the bonus token from q is told from one that draws it from p.

    Raises ValueError if there is nothing to try, or if the sampler's result is no step.
    """
    tried = list(worlds() if tried is None else tried)
    lengths = list(convention.lengths if lengths is None else lengths)
    if not tried or not lengths:
        raise ValueError(f"nothing to try: {len(tried)} worlds, draft lengths {lengths}")
    step = convention.step(sampler)
    worst = 0.0
    where: tuple[World, int] | None = None
    judged = 0
    scripts = 0
    for length in lengths:
        for world in tried:
            try:
                by_sampler = step_law(step, world, length)
            except NotJudged as error:
                return Judgement(NOT_JUDGED, worst, judged, scripts, reason=str(error))
            judged += 1
            scripts += len(by_sampler.scripts)
            right = joint(world.p, length + 1)
            distance = total_variation(by_sampler.texts, right)
            if distance > _allowed(dtype):
                try:
                    _confirm(by_sampler, step, world, length)
                except NotJudged as error:
                    return Judgement(NOT_JUDGED, worst, judged, scripts, reason=str(error))
                verdict = BY_DESIGN if by_design else LOSSY
                return Judgement(verdict, distance, judged, scripts, counterexample(world, length, by_sampler, right))
            if distance > worst:
                worst = distance
                where = (world, length)
    if worst <= EXACT:
        return Judgement(LOSSLESS, worst, judged, scripts)
    world, length = where
    bound = _allowed(dtype)
    reason = f"the largest distance, in the world {world.name!r} with {length} draft token(s), is below {bound:.1e}, "
    reason += f"{ROUNDINGS} epsilons of {dtype}"
    return Judgement(ROUNDING, worst, judged, scripts, reason=reason)


def _allowed(dtype: torch.dtype) -> float:
    """The largest distance that rounding may make."""
    if dtype == torch.float64:
        return EXACT
    return ROUNDINGS * torch.finfo(dtype).eps


def assert_lossless(sampler: Callable, convention: Convention, **settings) -> None:
    """AssertionError, with the counterexample, unless a sampler is lossless: for a test of your own."""
    found = judge(sampler, convention, **settings)
    if not found.is_lossless:
        raise AssertionError(str(found))


# --- one world


@dataclass(frozen=True)
class StepLaw:
    """The law of the texts that a step begins and the target completes, and all ways in which the step can go."""

    texts: Law
    scripts: tuple[Script, ...]


class _Noted:
    """Coins that keep what was tossed, and can play it once more."""

    def __init__(self, coins: Coins):
        self.coins = coins
        self.uniforms: list[float] = []
        self.tosses: list[Toss] = []
        self.replayed: int | None = None  # tosses played again so far; None at the first run

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

    def accept(self, probability: float) -> bool:
        probabilities = (1 - probability, probability)
        outcome = self._again(probabilities, True)
        if outcome is None:
            outcome = int(self.coins.accept(probability))
            self.tosses.append(Toss(probabilities, outcome, True))
        return bool(outcome)

    def choose(self, probabilities: Tensor) -> int:
        weights = probabilities.double()
        normalised = tuple((weights / weights.sum()).tolist())
        outcome = self._again(normalised, False)
        if outcome is None:
            outcome = self.coins.choose(probabilities)
            self.tosses.append(Toss(normalised, outcome, False))
        return outcome


def _run(step: Step, world: World, length: int, coins: Coins) -> Script:
    """A step, twice with the same coins: a difference means that something else is random, too."""
    noted = _Noted(coins)
    committed = step(world, length, noted)
    noted.replayed = 0
    again = step(world, length, noted)
    if again != committed or noted.replayed != len(noted.tosses):
        raise NotJudged(
            f"run twice with the same coins, the sampler commits {list(committed)} and then {list(again)}, or tosses "
            f"fewer coins: it keeps a state, or draws from a generator that was made before"
        )
    _check_committed(committed, world, length)
    return Script(tuple(noted.tosses), committed)


def _check_committed(committed: tuple[int, ...], world: World, length: int) -> None:
    """ValueError for what is no step: nothing, too many tokens, tokens that do not exist."""
    if not 1 <= len(committed) <= length + 1:
        raise ValueError(
            f"a step with {length} draft token(s) commits 1 to {length + 1} tokens, the sampler gave {list(committed)}"
        )
    if min(committed) < 0 or max(committed) >= world.vocabulary:
        raise ValueError(f"the sampler gave {list(committed)}, where token ids are 0 to {world.vocabulary - 1}")


def step_law(step: Step, world: World, length: int) -> StepLaw:
    """The exact law of texts of length + 1 tokens. NotJudged if more than MOST_SCRIPTS runs would be needed."""
    scripts: list[Script] = []

    def committed(coins: Coins) -> tuple[int, ...]:
        if len(scripts) == MOST_SCRIPTS:
            raise NotJudged(
                f"more than {MOST_SCRIPTS} sequences of coins in the world {world.name!r}: ask for shorter drafts"
            )
        script = _run(step, world, length, coins)
        scripts.append(script)
        return script.committed

    texts = completed(law(committed), world.p, length + 1)
    return StepLaw(texts, tuple(scripts))


def _confirm(found: StepLaw, step: Step, world: World, length: int) -> None:
    """NotJudged if a sampler does anything else in CONFIRMATIONS further rounds over all sequences of coins.

    A sampler that hides randomness may by luck do the same twice, where few sequences are to be run. Before it is
    called wrong it has to be wrong in the same way again.
    """
    for _ in range(CONFIRMATIONS):
        if step_law(step, world, length).scripts != found.scripts:
            raise NotJudged("run once more with the same coins, the sampler did something else: it keeps a state")


def counterexample(world: World, length: int, by_sampler: StepLaw, right: Law) -> Counterexample:
    """The text whose probability is most wrong, with all that leads to it. right: the target's own law of texts."""
    laws = {}
    for tokens in sorted({*by_sampler.texts, *right}):
        laws[tokens] = (by_sampler.texts.get(tokens, 0.0), right.get(tokens, 0.0))
    wrong = max(laws, key=lambda tokens: abs(laws[tokens][0] - laws[tokens][1]))
    leading = [script for script in by_sampler.scripts if script.committed == wrong[: len(script.committed)]]
    return Counterexample(world, length, wrong, *laws[wrong], laws, tuple(leading))
