"""Races: any method on a prompt, timed, with its forwards counted.

``timed`` is one run of one method. ``race_block`` measures a block, the unit of a recording: one prompt with all its
methods and repetitions. ``race`` does this for several prompts, without recording.

"Ours" are methods that run in our own loop (``decode.steps``); "theirs" are transformers' own, whose forwards are
watched by torch's hooks.
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
from torch.utils.hooks import RemovableHandle

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

PHASES = ("draft", "target", "verify", "commit")  # of a step, in this order

# The columns of a race's rows; the names are those of the recordings. All counts and sums are over all steps of a run.
ROW = (
    "method",  # its name
    "repetition",  # 0, 1, …; it is also the seed
    "order",  # the method's index in this repetition's random order
    "status",  # "ok" or "failed"
    "error",  # of a failed run
    "seconds",  # of the complete run
    "tokens",  # new tokens
    "steps",  # ours: of the loop; theirs: forwards of the target
    "nodes",  # drafted tokens
    "auxiliary",  # ours: drafted nodes that no verifier may accept, because they only serve the drafter; theirs: 0
    "hits",  # steps with at least one node that may be accepted
    "depth",  # the depths of the trees, added up
    "prefill",  # seconds: ours of the complete first step; theirs of the target's first forward
    *PHASES,  # seconds of each phase in the later steps; theirs: verify and commit are not told apart, so they are 0
    "drafting",  # seconds in the draft model's forwards: ours in the later steps; theirs in all but its first forward
    "trees",  # sizes of the target's forwards, as pairs: [[1, 3], [12, 40]] is 3 forwards over 1 node, 40 over 12
    "frontiers",  # sizes of the draft model's forwards, likewise: ours in all steps; theirs without its first one
    "text",  # a hash of the tokens
    "ids",  # the tokens; empty unless they are kept
)
Sizes = list[list[int]]  # pairs [nodes, number of forwards with this many nodes]


@dataclass(frozen=True)
class Shape:
    """The size of a step's tree."""

    nodes: int  # the root included
    auxiliary: int  # nodes that no verifier may accept, because they only serve the drafter
    depth: int  # tokens on the longest path, the root not counted

    @property
    def has_candidates(self) -> bool:
        """Whether any drafted node is a candidate: a node that a verifier may accept."""
        return self.nodes - 1 > self.auxiliary


@dataclass(frozen=True)
class Run:
    """What one run of a method has given."""

    seconds: float  # of the complete run
    tokens: Sequence[int]  # the new ones
    shapes: Sequence[Shape]  # one per step
    phases: dict[str, float]  # seconds by the columns of ROW: PHASES, "prefill" and "drafting"
    frontiers: Sequence[int]  # nodes of each draft forward


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
    """One timed run of a method, ours or transformers' own. Returns most columns of ROW, which are explained there.

    method:      what is run.
    ids:         token ids of the prompt.
    pair:        the loaded models.
    temperature: at which the text is sampled; 0 is greedy.
    length:      new tokens, at most.
    seed:        of the sampled text.
    whole:       whether the text goes on after an end token, up to its full length.
    packed:      whether transformers' assistant has weights packed for the CPU's kernels.

    On a GPU only "seconds" waits until all work is done; the other times end where the host has to wait for the GPU.
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
    """The sizes of forwards as sorted pairs [nodes, number of forwards with this many nodes].

    >>> counted([3, 1, 3])  # forwards over 3 nodes, 1 node and 3 nodes
    [[1, 1], [3, 2]]
    """
    times_by_size = Counter(sizes)
    return [[size, times] for size, times in sorted(times_by_size.items())]


def text_hash(tokens: Sequence[int]) -> str:
    """A short hash of a text, by which equal texts are found."""
    numbers = " ".join(map(str, tokens))
    digest = hashlib.sha256(numbers.encode()).hexdigest()
    return digest[:16]


# ---- our loop -------------------------------------------------------------------------------------------------


def _ours(
    method: Method, ids: Sequence[int], pair: models.Pair, temperature: float, length: int, seed: int, whole: bool
) -> Run:
    """A run in our loop."""
    drafter, _, forwards = built(method, pair, len(ids) + length)
    is_greedy = temperature == 0
    verifier = verifiers.greedy if is_greedy else method.verifier  # a method's own verifier is for sampled texts
    target = Target(pair.target, window=method.window, forwards=forwards)
    options = {"max_new_tokens": length, "temperature": temperature, "seed": seed}
    if whole:
        options["eos"] = ()
    done: list[Step] = []
    began = now()
    for step in steps(target, drafter, verifier, ids, **options):
        done.append(step.light())  # without its large tensors, which would pile up
    seconds = now() - began

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
    return Run(seconds, tokens, shapes, phases, frontiers)


def _draft_forwards(done: Sequence[Step]) -> list[Expansion]:
    """The draft model's forwards in several steps."""
    forwards: list[Expansion] = []
    for step in done:
        forwards.extend(step.draft.expansions)
    return forwards


def _shape(step: Step) -> Shape:
    """The size of a step's tree. Nodes other than the root that are no node's candidate children are auxiliary."""
    tree = step.draft.tree
    candidates = sum(len(children) for children in step.draft.candidates)
    auxiliary = len(tree) - 1 - candidates
    return Shape(len(tree), auxiliary, max(tree.depth_list))


# ---- transformers' own ----------------------------------------------------------------------------------------


class Watched:
    """A context in which torch's hooks note the size and the seconds of each of a module's forwards.

    module:  the module; with None nothing is noted.
    sizes:   tokens of each forward. seconds: of each forward.
    """

    def __init__(self, module: nn.Module | None):
        self.module = module
        self.sizes: list[int] = []
        self.seconds: list[float] = []
        self.hooks: list[RemovableHandle] = []  # while the context is open

    def __enter__(self) -> "Watched":
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
    if temperature:  # generate's default is greedy; sampled, it would otherwise cut to the 50 likeliest tokens
        options |= {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    assistant = None
    if method.assistant:
        assistant = lent_assistant(pair, packed)
        options["assistant_model"] = assistant
    torch.manual_seed(seed)
    with Watched(pair.target) as target, Watched(assistant) as draft:
        began = now()
        tokens = generate(pair, ids, length, whole=whole, **options)
        seconds = now() - began

    drafting = sum(draft.seconds[1:])
    phases = {
        "draft": drafting,
        "target": sum(target.seconds[1:]),
        "verify": 0.0,
        "commit": 0.0,
        "prefill": target.seconds[0],
        "drafting": drafting,
    }
    # The first forwards read the prompt, too. Of the target's first one its root is the prompt's last token; the
    # draft's first one is left out, because how much of the prompt it reads is transformers' to decide.
    first_nodes = target.sizes[0] - len(ids) + 1
    tree_sizes = [first_nodes, *target.sizes[1:]]
    shapes = [Shape(nodes, 0, nodes - 1) for nodes in tree_sizes]  # a chain: all nodes on one path
    return Run(seconds, tokens, shapes, phases, draft.sizes[1:])


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
    """A race on one prompt: every method is run ``repetitions`` times, each time in another random order.

    prompt:      the id of a prompt.
    methods:     names of methods.
    length:      new tokens, at most.
    temperature: at which texts are sampled; 0 is greedy.
    repetitions: how often every method is run; the repetition is the seed.
    pair, dtype, packed: which models are loaded, and how.
    whole:       whether texts go on after an end token.
    keep_ids:    whether the tokens are kept in the rows.
    head, softened, forwards: change the methods, see ``methods.method``.

    Returns one row per run, with the columns of ROW. A run that fails becomes a row that says so; the others go on.
    """
    ready = loaded(pair, dtype, packed)  # here, not below: a model that cannot be loaded is not a method's failure
    changes = {"head": head, "softened": softened, "forwards": forwards}
    raced = {name: method_named(name, **changes) for name in methods}
    settings = {"temperature": temperature, "length": length, "whole": whole, "packed": packed}
    rows = []
    for repetition in range(repetitions):
        shuffled = random.Random(f"{prompt} {repetition}").sample(list(methods), len(methods))
        for order, name in enumerate(shuffled):
            row = dict.fromkeys(ROW)
            row |= {"method": name, "repetition": repetition, "order": order, "error": ""}
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
    """``timed`` on a prompt by its id, after a short run that warms the method up."""
    _warm(method, pair, settings["temperature"], settings["packed"])
    ids = pair.encode(models.prompts.text(prompt))
    return timed(method, ids, pair, **settings)


# Methods that are warm, because they have run in this process: (method, model, temperature, packed). The first forwards
# are slow: kernels are chosen, memory is allocated, graphs are captured.
WARM: set[tuple[str, str, float, bool]] = set()


def _warm(method: Method, pair: models.Pair, temperature: float, packed: bool) -> None:
    """Run a method once on a short text, unless it is warm."""
    model = repr((pair.name, pair.target.dtype))
    key = (repr(method), model, temperature, packed)
    if key in WARM:
        return
    ids = pair.encode("Good morning.")
    timed(method, ids, pair, length=8, whole=True, temperature=temperature, packed=packed)
    WARM.add(key)


def race(prompts: Sequence[str], methods: Sequence[str], **settings: object) -> pd.DataFrame:
    """The rows of ``race_block`` on several prompts, measured now and not recorded. See also ``stats.speed_ups``.

    prompts: ids of prompts. methods: names of methods. settings: other arguments of ``race_block``. For example

        race(["conversation-01"], ["generate", "n-gram tree"], length=48)[["method", "tokens", "steps"]]

    returns a table with one row per method, in random order: both wrote the same 48 tokens (or fewer, if the text
    ended), plain "generate" in as many steps as tokens, the "n-gram tree" in fewer.
    """
    return live.on_prompts(race_block, prompts, methods=list(methods), **settings)
