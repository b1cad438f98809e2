"""One machine for all measurements: any method by name on a prompt, timed, or its greedy text compared.

``timed`` is one run; ``race_block`` and ``texts_block`` are blocks of a recording (one prompt, all its methods);
``race`` and ``texts`` do the same here and now for several prompts. How methods are spelt: ``methods``.
"""

import hashlib
import random
import shlex
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import cache, partial, wraps
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from scipy.optimize import isotonic_regression
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specnb import heads, models, verifiers
from specnb.decode import Drafter, decode, now, steps
from specnb.drafters import DraftModel
from specnb.exact.gallery import Unpositioned
from specnb.models import Graphs, Invariant, files, generate, prompts
from specnb.models.graphs import SIZES
from specnb.target import Target, context_length
from specnb.tree import TokenTree
from study import methods

PHASES = ("draft", "target", "verify", "commit")
ROW = (
    "method", "repetition", "order", "status", "error", "seconds", "tokens", "steps", "nodes", "auxiliary", "hits",
    "depth", "prefill", *PHASES, "drafting", "trees", "frontiers", "text", "ids",
)  # fmt: skip
PREFIX = 300  # tokens behind which forwards are measured
NEAR_TIE = 1e-3  # logits; float32 noise over 30 layers is a hundredth of that, ordinary gaps are tenths and more
ALONE = threading.Lock()  # drafts have a state and seconds are measured: one run at a time in a process


@contextmanager
def recorded_as_asked() -> Iterator[None]:
    """Forwards that are to be recorded are, or it is an error: else what was measured would be those without."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="no graphs for")
        yield


def loaded(pair: str = models.EMBEDDED, dtype: str = "float32", packed: bool = False) -> models.Pair:
    """A pair, once per process, and warm: its first forwards are slow."""
    return _loaded(pair, dtype, packed)  # one spelling: a cache tells keywords from positions


@cache
def _loaded(pair: str, dtype: str, packed: bool) -> models.Pair:
    found = models.load_pair(pair, dtype=dtype, packed=packed)
    generate(found, found.encode("Good morning."), 8)
    return found


@cache
def assistant(pair: models.Pair, packed: bool) -> PreTrainedModel:
    """What transformers' assisted generation drafts with: the pair's draft model or, without one, the trained vdm.

    In a copy with as many rows as the target's vocabulary if it has others (Qwen2.5's): transformers asks for that.
    """
    found = pair.draft or heads.as_causal_lm(*heads.load(heads.FOLDER / "vdm", pair.target))
    if Target(found).vocabulary != (size := Target(pair.target).vocabulary):
        found = deepcopy(found)
        found.resize_token_embeddings(size)
    return models.pack(found) if packed and not pair.draft else found


draft_model = cache(methods.draft_model)  # once per process
_graphs = cache(lambda pair, capacity: Graphs(pair.target, capacity=capacity))


def check_fit(name: str, pair: models.Pair, packed: bool = False) -> None:
    """ValueError, before anything is measured, if what a method drafts with does not belong to this pair."""
    made = methods.method(name)
    try:
        if made.name == "assistant":
            assistant(pair, packed)
        if made.head:
            draft_model(made.head, pair, 0)
        for drafter in filter(None, (made.alone, made.merged)):
            methods.named(drafter, pair)
    except ValueError as error:
        bare = (made.head or "vdm").partition("@")[0]
        reason = str(error).replace("NAME --pair FOLDER_OR_NAME", f"{bare} --pair {shlex.quote(pair.name)}")
        free = "'ngram', 'retrieval' and 'prompt lookup'"
        if pair.draft is not None:
            free = f"'pair:auto + retrieval', {free}"
        raise ValueError(f"{name!r} does not fit {pair.name}: {reason}. Without a trained head race {free}") from error


def built(made: methods.Method, pair: models.Pair, tokens: int) -> tuple[Drafter, DraftModel | None, Graphs | None]:
    """A method's drafter, its draft model and the target's special forwards, for texts of up to so many tokens."""
    capacity = 256 * -(-(tokens + max(SIZES)) // 256) if made.forwards == "in graphs" else 0
    draft, recorded = draft_model(made.head, pair, capacity) if made.head else None, None
    if made.forwards == "invariant":
        recorded = Invariant(pair.target)
    prices = machine(pair, made.head, capacity) if made.rule == "auto" else None
    drafter = methods.build(made, pair, draft, prices)
    if capacity:
        recorded = _graphs(pair, capacity)
        recorded.prepare(drafter.hidden_layers)
    return drafter, draft, recorded


@recorded_as_asked()
def curves(model, drafts, prefix: int, repetitions: int, sizes: Sequence[int], graphs: bool) -> list[dict[str, object]]:
    """Seconds of a target forward over a tree of n nodes, and of draft forwards over a frontier of n, for each n.

    model: the target, of transformers; drafts: DraftModels by name; graphs: whether the target's forwards are recorded.
    Behind a prefix of so many tokens; sizes and models take turns, and the first turn,
    which warms up, does not count. Rows: model ("target" or the draft's name), nodes, and seconds as quartile, median
    and third quartile.
    """
    layers, rows = sorted({layer for draft in drafts.values() for layer in draft.hidden_layers}), []
    recorded = Graphs(model, capacity=prefix + 2 * max(sizes)) if graphs else None
    target = Target(model, hidden_layers=layers, graphs=recorded)
    tokens = torch.randint(1000, 2000, (prefix,), generator=torch.Generator().manual_seed(0))
    tokens = (tokens % target.vocabulary).tolist()  # any ids do: a forward costs the same
    for turn in range(repetitions + 1):
        hidden = target.prefill(tokens[:-1])
        for n in sizes:
            below = torch.arange(1000, 1000 + n) % target.vocabulary
            tree = TokenTree([tokens[-1], *below.tolist()], [-1] + [0] * n)
            for name, draft in drafts.items():
                draft.begin(tokens, hidden)
                draft.expand(tree, [0])
                began = now()
                draft.expand(tree, range(1, n + 1))
                rows.append((turn, name, n, now() - began))
            began = now()
            target.forward(TokenTree(tree.tokens[:n], tree.parents[:n]))
            rows.append((turn, "target", n, now() - began))
            target.cache.commit([])  # the same prefix for the next size
            target.tree = None
    table = pd.DataFrame(rows, columns=["turn", "model", "nodes", "seconds"]).query("turn > 0")
    spread = table.groupby(["model", "nodes"], sort=False)["seconds"].quantile([0.25, 0.5, 0.75]).unstack()
    return spread.set_axis(["quartile", "median", "third quartile"], axis=1).reset_index().to_dict("records")


def measured_behind(pair: models.Pair, wanted: int | None = None) -> int:
    """The tokens behind which a pair's forwards are measured: as many as wanted, else PREFIX or what its contexts hold.

    ValueError if the contexts have no room for those that are wanted and one more.
    """
    contexts = [context_length(model) for model in (pair.target, pair.draft) if model is not None]
    room = min(contexts) - 1
    if wanted is None:
        return min(PREFIX, room)
    if wanted > room:
        raise ValueError(f"{pair.name} has a context of {room + 1}: measure behind {room} tokens at most, got {wanted}")
    return wanted


@cache
def machine(pair: models.Pair, head: str, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """What auto is told: seconds of a target forward over 1 to 32 nodes, and of a draft forward over 1 to 8.

    Ten sizes are measured, five times each, behind 300 tokens, or as many as the contexts have room for, and recorded
    forwards for texts of so many tokens; more nodes cost no less than fewer, whatever a clock says.
    """
    sizes, prefix = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), measured_behind(pair)
    if capacity:
        prefix = min(prefix, capacity - 80)
    drafts = {head: draft_model(head, pair, capacity)}
    found = pd.DataFrame(curves(pair.target, drafts, prefix, 5, sizes, bool(capacity)))
    median = found.set_index(["model", "nodes"])["median"]
    rising = {name: isotonic_regression(median[name].to_numpy()).x for name in ("target", head)}
    return np.interp(range(1, 33), sizes, rising["target"]), np.interp(range(1, 9), sizes, rising[head])


def text(tokens: Sequence[int]) -> str:
    """A short hash of a text."""
    return hashlib.sha256(" ".join(map(str, tokens)).encode()).hexdigest()[:16]


# ---- timing ---------------------------------------------------------------------------------------------------


@recorded_as_asked()
def timed(
    name: str,
    ids: Sequence[int],
    pair: models.Pair,
    *,
    temperature: float = 0.0,
    length: int,
    seed: int = 0,
    whole: bool = False,
    packed: bool = False,
) -> dict[str, object]:
    """One timed run of a method, ours or transformers' own: counts, seconds and the text; columns of ROW.

    seconds: the whole run. prefill: until the first token (all of the first step); draft, target, verify, commit:
    seconds of the later steps; drafting: those spent in the draft model's forwards. nodes: drafted in all steps, of
    which auxiliary ones only rode along; hits: steps with a candidate; depth: sum of the trees' depths. trees,
    frontiers: sizes of the target's and the draft's forwards, "1:3 12:40" for three over one node and forty over
    twelve. text: a hash of the tokens; ids: the tokens themselves. On a GPU only seconds waits until all is done:
    phases and drafting count what is queued where the host has to wait for it.
    """
    made = methods.method(name)
    run = _ours if made.options is None else _theirs
    with ALONE:
        seconds, tokens, shapes, phases, drafted = run(made, ids, pair, temperature, length, seed, whole, packed)
    sizes, riding, depths = zip(*shapes, strict=True)
    counts = {
        "tokens": len(tokens),
        "steps": len(sizes),
        "nodes": sum(sizes) - len(sizes),
        "auxiliary": sum(riding),
        "hits": sum(n - 1 > r for n, r in zip(sizes, riding, strict=True)),
        "depth": sum(depths),
    }
    forwards = {"trees": _spelt(sizes), "frontiers": _spelt(drafted)}
    written = {"text": text(tokens), "ids": " ".join(map(str, tokens))}
    return {"seconds": seconds, **counts, **phases, **forwards, **written}


# Each of the two ways to run gives: seconds, new tokens, (nodes with the root, auxiliary ones, depth) of each step,
# seconds by phase, sizes of the draft forwards


def _ours(made, ids, pair, temperature, length, seed, whole, packed) -> tuple:
    drafter, draft, recorded = built(made, pair, len(ids) + length)
    verifier = made.verifier if temperature else verifiers.greedy
    target = Target(pair.target, window=made.window, graphs=recorded)
    options = {"max_new_tokens": length, "temperature": temperature, "seed": seed, **({"eos": ()} if whole else {})}
    done, first = [], 0
    with _calls(draft, "expand", lambda tree, nodes: len(nodes)) as drafted:
        began = now()
        for step in steps(target, drafter, verifier, ids, **options):
            done.append(step.light())
            first = first if done[1:] else len(drafted.sizes)  # forwards of the first step
        taken = now() - began
    phases = {phase: sum(step.seconds[phase] for step in done[1:]) for phase in PHASES}
    phases |= {"prefill": sum(done[0].seconds.values()), "drafting": sum(drafted.seconds[first:])}
    riding = [len(step.draft.tree) - 1 - sum(map(len, step.draft.candidates)) for step in done]
    shapes = [(len(s.draft.tree), r, max(s.draft.tree.depth_list)) for s, r in zip(done, riding, strict=True)]
    return taken, [token for step in done for token in step.tokens], shapes, phases, drafted.sizes


def _theirs(made, ids, pair, temperature, length, seed, whole, packed) -> tuple:
    options = dict(made.options)
    if temperature:
        options |= {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    drafting = None
    if made.name == "assistant":
        drafting = copy(assistant(pair, packed))  # the same weights; generate may keep in it what it learnt from a text
        drafting.generation_config = deepcopy(drafting.generation_config)
        options["assistant_model"] = drafting
    torch.manual_seed(seed)
    with _calls(pair.target, "forward", _fed) as target, _calls(drafting, "forward", _fed) as draft:
        began = now()
        tokens = generate(pair, ids, length, whole=whole, **options)
        taken = now() - began
    later = sum(draft.seconds[1:])
    phases = dict.fromkeys(PHASES, 0.0) | {"draft": later, "target": sum(target.seconds[1:])}
    phases |= {"prefill": target.seconds[0], "drafting": later}
    sizes = [target.sizes[0] - len(ids) + 1, *target.sizes[1:]]  # the first forward holds the prompt, too
    return taken, tokens, [(size, 0, size - 1) for size in sizes], phases, draft.sizes[1:]


@contextmanager
def _calls(owner: object, name: str, size: Callable[..., int]) -> Iterator[SimpleNamespace]:
    """Sizes and seconds of the calls of an object's method while the block runs; no owner, no calls."""
    seen = SimpleNamespace(sizes=[], seconds=[])
    if owner is None:
        yield seen
        return
    inner = getattr(owner, name)

    @wraps(inner)
    def call(*args, **kwargs):
        began = time.perf_counter()  # not now(), which would hold a GPU up
        result = inner(*args, **kwargs)
        seen.seconds.append(time.perf_counter() - began)
        seen.sizes.append(size(*args, **kwargs))
        return result

    setattr(owner, name, call)
    try:
        yield seen
    finally:
        delattr(owner, name)


def _fed(input_ids: Tensor, *_, **__) -> int:
    return input_ids.shape[-1]


def _spelt(sizes: Sequence[int]) -> str:
    return " ".join(f"{size}:{count}" for size, count in sorted(Counter(sizes).items()))


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
) -> list[dict[str, object]]:
    """A prompt's race: every method, ``repetitions`` times, each time in another random order; one row a run.

    A method that fails is recorded as failed, and the others go on. The repetition is the seed.
    """
    rows = []
    loaded(pair, dtype, packed)  # what cannot be loaded is no failure of a method
    for repetition in range(repetitions):
        turns = random.Random(f"{prompt} {repetition}").sample(list(methods), len(methods))
        for order, name in enumerate(turns):
            row = dict.fromkeys(ROW) | {"method": name, "repetition": repetition, "order": order, "error": ""}
            try:
                used = packed and name != "generate as shipped"
                found, settings = loaded(pair, dtype, used), {"temperature": temperature, "packed": used}
                _warm(name, found, **settings)
                ids = found.encode(prompts.text(prompt))
                row |= timed(name, ids, found, length=length, seed=repetition, whole=whole, **settings)
                row["status"] = "ok"
            except Exception as error:  # becomes the row's record
                row |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
            rows.append(row if keep_ids else row | {"ids": ""})
    return rows


@cache
def _warm(name: str, pair: models.Pair, **settings) -> None:
    """A method's first short run in this process, whose forwards are slow."""
    timed(name, pair.encode("Good morning."), pair, length=8, whole=True, **settings)


def texts_block(
    prompt: str,
    methods: Sequence[str],
    length: int,
    control: str = "",
    pair: str = models.EMBEDDED,
    dtype: str = "float32",
    plain: str = "generate",
) -> list[dict[str, object]]:
    """Greedy texts of methods of ours beside those of plain decoding, by the near-tie rule; one row a method.

    equal: token by token; else first, the place where they part, and gap, that of the two largest logits there. same:
    equal, or the gap is below rounding noise (NEAR_TIE). control: a method that also runs without position ids, which
    should part. The near-tie rule is float32's: in another dtype texts are equal or they are not.
    """
    found = loaded(pair, dtype)
    ids = found.encode(prompts.text(prompt))
    right = greedy_text(plain, found, ids, length)
    runs = [(name, True) for name in methods] + ([(control, False)] if control else [])
    return [
        {"method": name, "positions": told, **compared(found, ids, right, greedy_text(name, found, ids, length, told))}
        for name, told in runs
    ]


@recorded_as_asked()
def greedy_text(name: str, pair: models.Pair, ids: Sequence[int], length: int, told: bool = True) -> tuple[int, ...]:
    """What a method of ours writes greedily; end tokens are text. told: whether the target is told position ids."""
    made = methods.method(name)
    if made.options is not None:
        return tuple(generate(pair, ids, length, whole=True, **made.options))
    with ALONE:
        drafter, _, recorded = built(made, pair, len(ids) + length)
        target = (Target if told else Unpositioned)(pair.target, window=made.window, graphs=recorded)
        return decode(target, drafter, verifiers.greedy, ids, max_new_tokens=length, eos=(), trace="none").tokens


@torch.no_grad()
def compared(pair: models.Pair, ids: Sequence[int], right: Sequence[int], other: Sequence[int]) -> dict[str, object]:
    """Two greedy texts behind a prompt by the near-tie rule: see ``texts_block``."""
    right, other = list(right), list(other)
    first = next((j for j, (a, b) in enumerate(zip(right, other, strict=False)) if a != b), None)
    gap, tie = None, False
    if first is not None:
        tokens = torch.tensor([[*ids, *right[:first]]], device=pair.target.device)
        top, two = pair.target(tokens).logits[0, -1].float().topk(2)
        gap = float(top[0] - top[1])
        noise = NEAR_TIE if pair.target.dtype == torch.float32 else 0.0
        tie = gap < noise and {right[first], other[first]} == set(two.tolist())
    equal = right == other
    return {"equal": equal, "first": first, "gap": gap, "same": equal or tie}


def _live(block: Callable, names: Sequence[str], methods: Sequence[str], **settings) -> pd.DataFrame:
    bar = tqdm(names, unit="prompt", disable=files.QUIET)
    return pd.DataFrame([{"prompt": name, **row} for name in bar for row in block(name, list(methods), **settings)])


# for several prompts (ids) here and now, not recorded: race(prompts, methods, length=…), see ``stats.speed_ups``
race, texts = partial(_live, race_block), partial(_live, texts_block)
