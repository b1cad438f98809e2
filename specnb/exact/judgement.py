"""Is a sampler lossless? ``judge`` works out its exact output law in small worlds; a wrong law is a counterexample.

A *world* is a target law p and a draft law q over a few tokens (``toy_worlds``). In a world drafts are drawn from q,
the sampler commits tokens, and p itself completes the text: the law of the text has to be p's own. The worlds are tried
from the plainest on, with small drafts first, and the first one that fails is shown. How a sampler is called, and with
drafts of which shapes, is said by a ``Convention`` (``conventions``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import torch
from torch import Tensor

from specnb.exact.laws import Law, completed, joint, law, rows, shown, total_variation
from specnb.exact.random_functions import randomness
from specnb.exact.scripts import Script, drafting, play
from specnb.exact.symbols import NotJudged
from specnb.exact.toy_worlds import CHAINS, World, depth_of, draft_tree, worlds
from specnb.growth import Static
from specnb.sampling import Coins
from specnb.tree import Drawn, TokenTree

EXACT = 1e-12  # largest distance of laws that are equal, in float64
ROUNDINGS = 2  # largest distance for a sampler that computes in lower precision, in units of its epsilon
SHOWN = 6  # sequences of coins that a counterexample prints
MOST_SCRIPTS = 20_000  # sequences of coins in one world
CONFIRMATIONS = 5  # further rounds over all sequences of coins, before a sampler is called wrong

LOSSLESS = "lossless"
ROUNDING = "lossless up to rounding"
LOSSY = "not lossless"
BY_DESIGN = "lossy by design"
NOT_JUDGED = "not judged"


# --- conventions: how a sampler is called


Step = Callable[[World, Static, Coins], tuple[int, ...]]  # world, shape of the draft, coins → the tokens of one step


@dataclass(frozen=True)
class Convention:
    """How a sampler is called."""

    name: str
    step: Callable[[Callable], Step]  # sampler → one step of decoding by it
    says: str  # the arguments and the result of such a sampler, for readers
    shapes: tuple[Static, ...] = CHAINS  # of the drafts to try, the smallest first


def chain_step(verify: Callable[[Tensor, Tensor, list[int]], Sequence[int]]) -> Step:
    """A step that draws a chain from q; verify(p (γ + 1, V), q (γ, V), drafted) returns what it commits.

    Whatever is random in verify is decided by the step's coins.
    """

    def as_chain(p: Tensor, q: Tensor, tree: TokenTree) -> Sequence[int]:
        drafted = tree.token_list[1:]
        return verify(p, q[:-1], drafted)

    return tree_step(as_chain, Drawn.IID)


def tree_step(verify: Callable[[Tensor, Tensor, TokenTree], Sequence[int]], drawn: Drawn) -> Step:
    """A step that drafts a tree; verify(p (n, V), q (n, V), tree) returns the tokens that it commits.

    The rows of p and q belong to the tree's nodes, and the tree's root is the last token of the text.
    Whatever is random in verify is decided by the step's coins.
    """

    def step(world: World, shape: Static, coins: Coins) -> tuple[int, ...]:
        with drafting(coins):
            tree = draft_tree(world.q, shape, drawn, coins)
        p = rows(world.p, tree)
        q = rows(world.q, tree)
        with randomness(coins):
            returned = verify(p, q, tree)
            _check_listed(returned)
            committed = tuple(int(token) for token in returned)
        return committed

    return step


def _check_listed(returned: object) -> None:
    """ValueError for what cannot be a list of the tokens that a sampler commits."""
    if returned is None:
        raise ValueError("the sampler returned None, not the tokens that it commits: is a return missing?")
    shape = getattr(returned, "shape", None)
    is_one_row = shape is None or len(shape) == 1
    if not is_one_row or not hasattr(returned, "__iter__"):
        what = f"{type(returned).__name__} {returned!r}"
        raise ValueError(f"the sampler returned a {what}, not a list of the tokens that it commits")


# --- the judgement


@dataclass(frozen=True)
class Counterexample:
    """A world in which a sampler's law is not the target's.

    Among all texts in that world it shows the one whose probability is most wrong.
    """

    world: World
    shape: Static  # of the draft
    tokens: tuple[int, ...]  # the text
    given: float  # its probability by the sampler
    right: float  # its probability by p
    laws: dict[tuple[int, ...], tuple[float, float]] = field(repr=False)  # every text → both probabilities
    scripts: tuple[Script, ...] = field(repr=False)  # all ways in which the step can go

    @property
    def leading(self) -> list[Script]:
        """Those that lead to the text, the likeliest first; where they commit its beginning, p completes it."""
        leading = [script for script in self.scripts if script.committed == self.tokens[: len(script.committed)]]
        return sorted(leading, key=lambda script: -script.probability)

    def __str__(self) -> str:
        text = list(self.tokens)
        lines = [
            f"In the world {self.world.name!r}, where the draft is {self.shape.name}, the text {text}",
            f"comes out with probability {self.given:.6f}; the target's own is {self.right:.6f}.",
            "",
            "after: p | q",
        ]
        depth = depth_of(self.shape)
        for length in range(depth + 1):
            for prefix in product(range(self.world.vocabulary), repeat=length):
                line = f"{list(prefix)}: {shown(self.world.p(prefix).tolist())}"
                if length < depth:
                    line += f" | {shown(self.world.q(prefix).tolist())}"
                lines.append(line)
        lines += ["", "text: by the sampler | by the target"]
        for tokens, (given, right) in sorted(self.laws.items()):
            mark = f" <- {given - right:+.1e}" if tokens == self.tokens else ""
            lines.append(f"{list(tokens)}: {given:.6f} | {right:.6f}{mark}")
        lines += ["", f"Ways that lead to {text}, each with its probability:"]
        leading = self.leading
        for script in leading[:SHOWN]:
            lines.append(f"{self._in_all(script)}: {script}")
        if len(leading) > SHOWN:
            lines.append(f"and {len(leading) - SHOWN} more")
        return "\n".join(lines)

    def _in_all(self, script: Script) -> str:
        """The probability of a way that leads to the text. Where it commits a beginning only, the target goes on."""
        by_target = 1.0
        for place in range(len(script.committed), len(self.tokens)):
            by_target *= float(self.world.p(self.tokens[:place])[self.tokens[place]])
        if len(script.committed) == len(self.tokens):
            return f"{script.probability:.6f}"
        in_all = script.probability * by_target
        return f"{script.probability:.6f} · {by_target:.6f} (the target goes on) = {in_all:.6f}"


@dataclass(frozen=True)
class Judgement:
    """What ``judge`` found."""

    verdict: str  # LOSSLESS, ROUNDING, LOSSY, BY_DESIGN or NOT_JUDGED
    distance: float  # the largest total variation between the two laws in what was tried
    judged: int  # pairs of a world and a draft's shape that were tried
    scripts: int  # sequences of coins that this took
    counterexample: Counterexample | None = None
    reason: str = ""  # why it was not judged, how large the rounding is, or what may explain a small distance

    @property
    def is_lossless(self) -> bool:
        return self.verdict in (LOSSLESS, ROUNDING)

    def __str__(self) -> str:
        effort = f"{self.judged} worlds and shapes of drafts, {self.scripts} sequences of coins"
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
    shapes: Sequence[Static] | None = None,
    dtype: torch.dtype = torch.float32,
    by_design: bool = False,
) -> Judgement:
    """Whether a sampler is lossless, by its exact output law in every world and with drafts of every shape.

    sampler: somebody's function, unchanged.
    convention: how it is called.
    tried: the worlds; None for all of ``worlds()``.
    shapes: of the drafts, such as ``chains(1, 2, 3)``; None for the convention's.
    dtype: in which the sampler computes. Nothing is cast; it bounds what may be called rounding, ROUNDINGS epsilons.
        Most samplers cast to float32; with torch.float64 any difference above 1e-12 is a fault.
    by_design: its authors mean it to be lossy, so that a difference is called that.

    Example: in the first world a sampler that draws the bonus token from q is told from one that draws it from p.

    Raises ValueError if there is nothing to try, or if the sampler's result is no step.
    """
    tried = list(worlds() if tried is None else tried)
    shapes = list(convention.shapes if shapes is None else shapes)
    if not tried or not shapes:
        raise ValueError(f"nothing to try: {len(tried)} worlds, {len(shapes)} shapes of drafts")
    step = convention.step(sampler)
    worst = 0.0
    where: tuple[World, Static] | None = None
    judged = 0
    scripts = 0
    for shape in shapes:
        for world in tried:
            right = joint(world.p, depth_of(shape) + 1)
            try:
                by_sampler = step_law(step, world, shape)
                distance = total_variation(by_sampler.texts, right)
                is_wrong = distance > allowed(dtype)
                if is_wrong:
                    _confirm(by_sampler, step, world, shape)
            except NotJudged as error:
                return Judgement(NOT_JUDGED, worst, judged, scripts, reason=str(error))
            judged += 1
            scripts += len(by_sampler.scripts)
            if is_wrong:
                verdict = BY_DESIGN if by_design else LOSSY
                refuted = counterexample(world, shape, by_sampler, right)
                return Judgement(verdict, distance, judged, scripts, refuted, _hint(distance))
            if distance > worst:
                worst = distance
                where = (world, shape)
    if worst <= EXACT:
        return Judgement(LOSSLESS, worst, judged, scripts)
    world, shape = where
    bound = allowed(dtype)
    reason = f"the largest distance, in the world {world.name!r} with {shape.name}, is below {bound:.1e}, "
    reason += f"{ROUNDINGS} epsilons of {dtype}; a fault smaller than that is not seen"
    return Judgement(ROUNDING, worst, judged, scripts, reason=reason)


def _hint(distance: float) -> str:
    """What else may explain a small distance."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        if distance <= allowed(dtype):
            return f"Does it compute in {dtype}? Then this may be rounding: judge it with dtype={dtype} (--dtype)."
    return ""


def allowed(dtype: torch.dtype) -> float:
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

    @property
    def accepted(self) -> float:
        """The expected number of accepted draft tokens: of all that are committed but the last."""
        return sum(script.probability * (len(script.committed) - 1) for script in self.scripts)


def _run(step: Step, world: World, shape: Static, coins: Coins) -> Script:
    """One step under these coins."""
    tosses, committed = play(partial(step, world, shape), coins)
    _check_committed(committed, world, depth_of(shape))
    return Script(tosses, committed)


def _check_committed(committed: tuple[int, ...], world: World, depth: int) -> None:
    """ValueError for what is no step: nothing, too many tokens, tokens that do not exist."""
    if not 1 <= len(committed) <= depth + 1:
        raise ValueError(
            f"a step with a draft of depth {depth} commits 1 to {depth + 1} tokens, the sampler gave {list(committed)}"
        )
    if min(committed) < 0 or max(committed) >= world.vocabulary:
        raise ValueError(f"the sampler gave {list(committed)}, where token ids are 0 to {world.vocabulary - 1}")


def step_law(step: Step, world: World, shape: Static) -> StepLaw:
    """The exact law of texts that have one token more than the draft is deep.

    Raises NotJudged if more than MOST_SCRIPTS sequences of coins would have to be run.
    """
    scripts: list[Script] = []

    def committed(coins: Coins) -> tuple[int, ...]:
        if len(scripts) == MOST_SCRIPTS:
            raise NotJudged(
                f"more than {MOST_SCRIPTS} sequences of coins in the world {world.name!r}: ask for shorter drafts"
            )
        script = _run(step, world, shape, coins)
        scripts.append(script)
        return script.committed

    texts = completed(law(committed), world.p, depth_of(shape) + 1)
    return StepLaw(texts, tuple(scripts))


def _confirm(found: StepLaw, step: Step, world: World, shape: Static) -> None:
    """NotJudged if a sampler does anything else in CONFIRMATIONS further rounds over all sequences of coins.

    A sampler that hides randomness may by luck do the same twice, where few sequences are to be run. Before it is
    called wrong it has to be wrong in the same way again.
    """
    for _ in range(CONFIRMATIONS):
        if step_law(step, world, shape).scripts != found.scripts:
            raise NotJudged("run once more with the same coins, the sampler did something else: it keeps a state")


def counterexample(world: World, shape: Static, by_sampler: StepLaw, right: Law) -> Counterexample:
    """The text whose probability is most wrong, with all that leads to it. right: the target's own law of texts."""
    laws = {}
    for tokens in sorted({*by_sampler.texts, *right}):
        laws[tokens] = (by_sampler.texts.get(tokens, 0.0), right.get(tokens, 0.0))
    wrong = max(laws, key=lambda tokens: abs(laws[tokens][0] - laws[tokens][1]))
    return Counterexample(world, shape, wrong, *laws[wrong], laws, by_sampler.scripts)
