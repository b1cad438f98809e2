"""Does a drafter draw from the q that it reports? ``judge_drafter`` compares the two by enumeration.

A lossless sampler divides by q. So q has to be the very law that the draft token was drawn from, after temperature,
top-k and all else; if it is not, the text is biased although the sampler is right. Here a drafter is run under every
outcome of every random number that it draws. Wherever it reports the same laws and has drawn the same tokens before,
the next token's true law is compared with the reported one.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specnb.exact.judgement import NOT_JUDGED, allowed
from specnb.exact.laws import Law, Model, law, shown, total_variation
from specnb.exact.scripts import play
from specnb.exact.symbols import NotJudged
from specnb.exact.toy_worlds import CHAINS, World, worlds
from specnb.growth import Static
from specnb.sampling import Coins

MOST_SCRIPTS = 20_000  # sequences of coins in one world
DIGITS = 12  # to which reported laws are compared with each other

HONEST = "draws from the q that it reports"
DISHONEST = "does not draw from the q that it reports"


@dataclass(frozen=True)
class Drawing:
    """A drafted token, and the law that the drafter says it was drawn from."""

    token: int
    reported: tuple[float, ...]

    @staticmethod
    def of(token: int, reported: Tensor) -> "Drawing":
        """Rounded a little, so that equal laws are equal. ValueError for what is no law: not (V,), or not finite."""
        if reported.dim() != 1 or not reported.isfinite().all():
            raise ValueError(f"a reported law is (V,) finite numbers, the drafter gave {reported}")
        return Drawing(token, tuple(round(probability, DIGITS) for probability in reported.double().tolist()))


DraftStep = Callable[[Model, Static, Coins], tuple[Drawing, ...]]  # q, shape, coins → what was drawn, in order


@dataclass(frozen=True)
class DraftConvention:
    """How a drafter is called."""

    name: str
    step: Callable[[Callable], DraftStep]
    says: str  # the arguments and the result of such a drafter, for readers
    shapes: tuple[Static, ...] = CHAINS


@dataclass(frozen=True)
class Context:
    """What a drafter has drawn and reported before a token, and the law that it reports for that token."""

    before: tuple[Drawing, ...]
    reported: tuple[float, ...]


@dataclass(frozen=True)
class DraftJudgement:
    """What ``judge_drafter`` found."""

    verdict: str  # HONEST, DISHONEST or NOT_JUDGED
    distance: float  # the largest total variation between a reported law and the true one
    judged: int  # pairs of a world and a shape that were tried
    world: World | None = None  # where they differ
    context: Context | None = None
    drawn: tuple[float, ...] = ()  # the true law there
    reason: str = ""

    @property
    def is_honest(self) -> bool:
        return self.verdict == HONEST

    def __str__(self) -> str:
        if self.verdict == NOT_JUDGED:
            return f"{self.verdict}: {self.reason}"
        line = f"{self.verdict}: total variation {self.distance:.1e}, {self.judged} worlds and shapes of drafts"
        if self.context is None:
            return line
        before = [drawing.token for drawing in self.context.before]
        return "\n".join(
            [
                line,
                "",
                f"In the world {self.world.name!r}, after the draft tokens {before}, it",
                f"reports q = {shown(self.context.reported)}",
                f"draws by    {shown(self.drawn)}",
            ]
        )


def judge_drafter(
    drafter: Callable,
    convention: DraftConvention,
    *,
    tried: Sequence[World] | None = None,
    shapes: Sequence[Static] | None = None,
    dtype: torch.dtype = torch.float32,
) -> DraftJudgement:
    """Whether a drafter draws each token from the law that it reports for it.

    drafter, convention: somebody's function, and how it is called.
    tried, shapes: the worlds, of which only q is used, and the shapes of drafts; None for all, for the convention's.
    dtype: in which the drafter computes; two of its epsilons are allowed as rounding.

    A token that is chosen and not drawn has a one-hot law: a drafter that reports so is honest. A reported law is taken
    as it is: one that does not add up to 1 is not the law of anything.

    Raises ValueError if there is nothing to try.
    """
    tried = list(worlds() if tried is None else tried)
    shapes = list(convention.shapes if shapes is None else shapes)
    if not tried or not shapes:
        raise ValueError(f"nothing to try: {len(tried)} worlds, {len(shapes)} shapes of drafts")
    most = allowed(dtype) + 10.0**-DIGITS  # by which a reported law was rounded
    step = convention.step(drafter)
    worst = 0.0
    judged = 0
    for shape in shapes:
        for world in tried:
            try:
                laws = token_laws(partial(step, world.q, shape))
            except NotJudged as error:
                return DraftJudgement(NOT_JUDGED, worst, judged, reason=str(error))
            judged += 1
            for context, drawn in laws.items():
                reported = dict(enumerate(context.reported))
                distance = total_variation(drawn, reported)
                if distance > most:
                    true = tuple(drawn.get(token, 0.0) for token in reported)
                    return DraftJudgement(DISHONEST, distance, judged, world, context, true)
                worst = max(worst, distance)
    return DraftJudgement(HONEST, worst, judged)


def token_laws(fn: Callable[[Coins], tuple[Drawing, ...]]) -> dict[Context, Law]:
    """The true law of the next token in every context that a drafter can reach."""

    played = 0

    def drawn(coins: Coins) -> tuple[Drawing, ...]:
        nonlocal played
        played += 1
        if played > MOST_SCRIPTS:
            raise NotJudged(f"more than {MOST_SCRIPTS} sequences of coins: ask for shorter drafts")
        _, drawings = play(fn, coins)
        return drawings

    masses: dict[Context, Law] = defaultdict(lambda: defaultdict(float))
    for drawings, probability in law(drawn).items():
        for place, drawing in enumerate(drawings):
            context = Context(drawings[:place], drawing.reported)
            masses[context][drawing.token] += probability
    laws = {}
    for context, by_token in masses.items():
        total = sum(by_token.values())
        laws[context] = {token: mass / total for token, mass in by_token.items()}
    return laws
