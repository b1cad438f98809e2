"""Races: any method on a prompt, timed, with its forwards counted.

``timed`` is one run; ``race_block`` is a block of a recording (one prompt, all its methods); ``race`` does the same
here and now for several prompts.
"""

import hashlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import nn

from specnb import models, verifiers
from specnb.decode import Step, now, steps
from specnb.models import generate
from specnb.target import Target
from specnb.tree import Expansion
from study.measure import live
from study.measure.clock import ALONE, recorded_as_asked
from study.measure.loading import built, lent_assistant, loaded
from study.methods import USUAL, Method
from study.methods import method as method_named

PHASES = ("draft", "target", "verify", "commit")
ROW = (
    "method", "repetition", "order", "status", "error", "seconds", "tokens", "steps", "nodes", "auxiliary", "hits",
    "depth", "prefill", *PHASES, "drafting", "trees", "frontiers", "text", "ids",
)  # fmt: skip
Sizes = list[list[int]]  # [nodes, how many forwards had so many], …


@dataclass(frozen=True)
class Shape:
    """A step's tree: nodes with the root, auxiliary ones among them, and its depth."""

    nodes: int
    auxiliary: int
    depth: int

    @property
    def has_candidates(self) -> bool:
        """Whether any node but the root stands for election."""
        return self.nodes - 1 > self.auxiliary


@dataclass(frozen=True)
class Run:
    """One run of a method: seconds in all and by phase, new tokens, and a Shape per step.

    phases: seconds of PHASES in the steps behind the first, of the whole first step as "prefill", and of the draft
    model's forwards in the later steps as "drafting". frontiers: nodes of each draft forward.
    """

    seconds: float
    tokens: Sequence[int]
    shapes: Sequence[Shape]
    phases: dict[str, float]
    frontiers: Sequence[int]


def timed(
    method: Method,
    ids: Sequence[int],
    pair: models.Pair,
    *,
    temperature: float = 0.0,
    length: int,
    seed: int = 0,
    whole: bool = False,
    packed: bool = False,
) -> dict[str, object]:
    """One timed run of a method, ours or transformers' own: counts, seconds and the text, as columns of ROW.

    seconds: the whole run. prefill: of ours the whole first step, of transformers' the target's first forward. draft,
    target, verify, commit: seconds of the later steps; transformers' verify and commit are not told apart (0).
    drafting: seconds in the draft model's forwards, of ours those of later steps, of transformers' all but the first.
    nodes: drafted in all steps; auxiliary: those among them that only rode along. hits: steps with at least one
    candidate. depth: the sum of the trees' depths. trees, frontiers: sizes of the target's and the draft's forwards;
    [[1, 3], [12, 40]] are three forwards over one node and forty over twelve. text: a hash of the tokens. ids: the
    tokens. whole: end tokens are text. packed: whether transformers' assistant has packed weights.

    On a GPU only seconds waits until all is done; the other times count up to where the host has to wait.
    """
    with ALONE, recorded_as_asked():
        if method.ours:
            run = _ours(method, ids, pair, temperature, length, seed, whole)
        else:
            run = _theirs(method, ids, pair, temperature, length, seed, whole, packed)
    return {
        "seconds": run.seconds,
        "tokens": len(run.tokens),
        "steps": len(run.shapes),
        "nodes": sum(shape.nodes - 1 for shape in run.shapes),
        "auxiliary": sum(shape.auxiliary for shape in run.shapes),
        "hits": sum(shape.has_candidates for shape in run.shapes),
        "depth": sum(shape.depth for shape in run.shapes),
        **run.phases,
        "trees": counted([shape.nodes for shape in run.shapes]),
        "frontiers": counted(run.frontiers),
        "text": text_hash(run.tokens),
        "ids": [int(token) for token in run.tokens],
    }


def counted(sizes: Sequence[int]) -> Sizes:
    """How many forwards had how many nodes, by their nodes.

    >>> counted([3, 1, 3])  # one forward had one node, two had three
    [[1, 1], [3, 2]]
    """
    times_by_size = Counter(sizes)
    return [[size, times] for size, times in sorted(times_by_size.items())]


def text_hash(tokens: Sequence[int]) -> str:
    """A short hash of a text."""
    spelt = " ".join(map(str, tokens))
    return hashlib.sha256(spelt.encode()).hexdigest()[:16]


# ---- our loop -------------------------------------------------------------------------------------------------


def _ours(
    method: Method, ids: Sequence[int], pair: models.Pair, temperature: float, length: int, seed: int, whole: bool
) -> Run:
    """A run in our loop."""
    drafter, _, recorded = built(method, pair, len(ids) + length)
    verifier = method.verifier if temperature else verifiers.greedy
    target = Target(pair.target, window=method.window, forwards=recorded)
    options = {"max_new_tokens": length, "temperature": temperature, "seed": seed}
    if whole:
        options["eos"] = ()
    done: list[Step] = []
    began = now()
    for step in steps(target, drafter, verifier, ids, **options):
        done.append(step.light())
    taken = now() - began

    later = done[1:]
    phases = {}
    for phase in PHASES:
        phases[phase] = sum(step.seconds[phase] for step in later)
    phases["prefill"] = sum(done[0].seconds.values())
    phases["drafting"] = sum(forward.seconds for forward in _draft_forwards(later))
    tokens: list[int] = []
    for step in done:
        tokens.extend(step.tokens)
    shapes = [_shape(step) for step in done]
    frontiers = [forward.nodes for forward in _draft_forwards(done)]
    return Run(taken, tokens, shapes, phases, frontiers)


def _draft_forwards(done: Sequence[Step]) -> list[Expansion]:
    """The draft model's forwards in several steps."""
    forwards: list[Expansion] = []
    for step in done:
        forwards.extend(step.draft.expansions)
    return forwards


def _shape(step: Step) -> Shape:
    tree = step.draft.tree
    candidates = sum(len(children) for children in step.draft.candidates)
    auxiliary = len(tree) - 1 - candidates
    return Shape(len(tree), auxiliary, max(tree.depth_list))


# ---- transformers' own ----------------------------------------------------------------------------------------


class Watched:
    """Sizes and seconds of a module's forwards while the block runs, by torch's hooks; none without a module."""

    def __init__(self, module: nn.Module | None):
        self.module = module
        self.sizes: list[int] = []
        self.seconds: list[float] = []

    def __enter__(self) -> "Watched":
        self.hooks = []
        if self.module is not None:
            before = self.module.register_forward_pre_hook(self._begin, with_kwargs=True)
            after = self.module.register_forward_hook(self._end, with_kwargs=True)
            self.hooks = [before, after]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _begin(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self.began = time.perf_counter()  # not now(), which would hold a GPU up

    def _end(self, module: nn.Module, args: tuple, kwargs: dict, output: object) -> None:
        self.seconds.append(time.perf_counter() - self.began)
        ids = args[0] if args else kwargs["input_ids"]
        self.sizes.append(ids.shape[-1])


def _theirs(
    method: Method,
    ids: Sequence[int],
    pair: models.Pair,
    temperature: float,
    length: int,
    seed: int,
    whole: bool,
    packed: bool,
) -> Run:
    """A run of transformers' generate, whose steps are the target's forwards."""
    options = dict(method.generate)
    if temperature:
        options |= {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    assistant = None
    if method.assistant:
        assistant = lent_assistant(pair, packed)
        options["assistant_model"] = assistant
    torch.manual_seed(seed)
    with Watched(pair.target) as target, Watched(assistant) as draft:
        began = now()
        tokens = generate(pair, ids, length, whole=whole, **options)
        taken = now() - began

    drafting = sum(draft.seconds[1:])
    phases = {
        "draft": drafting,
        "target": sum(target.seconds[1:]),
        "verify": 0.0,
        "commit": 0.0,
        "prefill": target.seconds[0],
        "drafting": drafting,
    }
    first_nodes = target.sizes[0] - len(ids) + 1  # the first forward holds the prompt, too
    shapes = [Shape(nodes, 0, nodes - 1) for nodes in (first_nodes, *target.sizes[1:])]
    return Run(taken, tokens, shapes, phases, draft.sizes[1:])


# ---- blocks ---------------------------------------------------------------------------------------------------


def race_block(
    prompt: str,
    methods: Sequence[str],
    length: int = 96,
    temperature: float = 0.0,
    repetitions: int = 1,
    pair: str = models.EMBEDDED,
    dtype: str = "float32",
    packed: bool = False,
    whole: bool = False,
    keep_ids: bool = False,
    head: str = "",
    softened: float = 1.0,
    forwards: str = USUAL,
) -> list[dict[str, object]]:
    """A prompt's race: every method, ``repetitions`` times, each time in another random order; one row a run.

    A method that fails is recorded as failed, and the others go on. The repetition is the seed. head, softened and
    forwards change the methods, see ``methods.method``.
    """
    ready = loaded(pair, dtype, packed)  # what cannot be loaded is no failure of a method
    changes = {"head": head, "softened": softened, "forwards": forwards}
    raced = {name: method_named(name, **changes) for name in methods}
    settings = {"temperature": temperature, "length": length, "whole": whole, "packed": packed}
    rows = []
    for repetition in range(repetitions):
        shuffled = random.Random(f"{prompt} {repetition}").sample(list(methods), len(methods))
        for order, name in enumerate(shuffled):
            row = dict.fromkeys(ROW) | {"method": name, "repetition": repetition, "order": order, "error": ""}
            try:
                row |= _run_of(raced[name], prompt, ready, seed=repetition, **settings)
                row["status"] = "ok"
            except Exception as error:  # becomes the row's record
                row |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
            if not keep_ids:
                row["ids"] = []
            rows.append(row)
    return rows


def _run_of(method: Method, prompt: str, pair: models.Pair, **settings) -> dict[str, object]:
    """``timed`` on a prompt by its id, behind a first short run, whose forwards are slow."""
    _warm(method, pair, settings["temperature"], settings["packed"])
    ids = pair.encode(models.prompts.text(prompt))
    return timed(method, ids, pair, **settings)


WARM: set[tuple[str, str, float, bool]] = set()  # what has run in this process


def _warm(method: Method, pair: models.Pair, temperature: float, packed: bool) -> None:
    """A method's first short run in this process."""
    model = repr((pair.name, pair.target.dtype))
    key = (repr(method), model, temperature, packed)
    if key in WARM:
        return
    ids = pair.encode("Good morning.")
    timed(method, ids, pair, length=8, whole=True, temperature=temperature, packed=packed)
    WARM.add(key)


def race(prompts: Sequence[str], methods: Sequence[str], **settings: object) -> pd.DataFrame:
    """Methods on several prompts, by their ids, here and now, not recorded. See ``stats.speed_ups``.

    settings: those of ``race_block``.

        race(["conversation-01"], ["generate", "n-gram tree"], length=48)[["method", "tokens", "steps"]]
    """
    return live.on_prompts(race_block, prompts, methods=list(methods), **settings)
