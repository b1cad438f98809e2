"""A cell of a race: one timed run of any method, transformers' own among them, and what its forwards were given."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace

import torch
from transformers import PreTrainedModel

from specnb import costs, heads, measures, methods, models, packing, prompts, verifiers
from specnb.decode import steps
from specnb.graphs import SIZES, Graphs
from specnb.racing import generate, sampling
from specnb.target import Target

RESULTS = (*measures.DECODED, "drafting", "looking", "trees", "frontiers", "peak")


@dataclass(frozen=True)
class Setting:
    """What all methods of a race share: the pair by name, its dtype, and whether its weights are packed."""

    pair: str
    dtype: str
    packed: bool


@cache
def loaded(setting: Setting) -> models.Pair:
    """A pair, once per process."""
    if setting.pair == models.EMBEDDED and not setting.packed:
        return measures.pair(setting.dtype)
    return models.load_pair(setting.pair, dtype=setting.dtype, packed=setting.packed)


def graphs(made: methods.Method, setting: Setting, tokens: int) -> Graphs | None:
    """Recorded forwards for texts of so many tokens, once per process and capacity; None for a method without."""
    whole = 256 * -(-(tokens + max(SIZES)) // 256)
    return _graphs(setting, whole) if made.graphs else None


@cache
def _graphs(setting: Setting, capacity: int) -> Graphs:
    return Graphs(loaded(setting).target, capacity=capacity, sizes=SIZES)


@cache
def draft_model(head: str, setting: Setting) -> costs.Watched:
    """A head or the pair's draft model, once per process, its forwards timed."""
    return costs.Watched(methods.draft_model(head, loaded(setting)))


@cache
def assistant(setting: Setting) -> PreTrainedModel:
    """What transformers' assisted generation drafts with: the pair's draft model or, without one, the trained vdm."""
    own = loaded(setting)
    found = own.draft or heads.as_causal_lm(*heads.load(heads.FOLDER / "vdm", own.target))
    return packing.pack(found) if setting.packed else found


def measure(
    method: str,
    prompt: str,
    temperature: float,
    length: int,
    repetition: int,
    pair: str,
    dtype: str,
    packed: bool,
    whole: bool,
) -> dict[str, object]:
    """One timed run of a method (``methods.method``); repetition is the seed, too.

    whole: end tokens are text. Results as ``measures.decoded`` says (phases: of transformers' own, the forwards alone),
    and drafting: seconds in the draft model's forwards after the first step; looking: a union's other seconds of
    drafting, where it needs no model; trees, frontiers: how many nodes the target's and the draft's forwards were
    given, as in "1:3 12:40" for three forwards over one node and forty over twelve; peak: MB that the run took beyond
    what was resident before it.
    """
    setting = Setting(pair, dtype, packed and method != "generate as shipped")
    with measures.ALONE:
        _warm(method, setting)
        ids = loaded(setting).encode(prompts.text(prompt))
        return _run(methods.method(method), setting, ids, temperature, length, repetition, whole)


@cache
def _warm(method: str, setting: Setting) -> None:
    """A first short run, whose forwards are slow."""
    _run(methods.method(method), setting, loaded(setting).encode("Good morning."), 0.0, 8, 0, True)


def _run(
    made: methods.Method, setting: Setting, ids: list[int], heat: float, length: int, seed: int, whole: bool
) -> dict[str, object]:
    own = loaded(setting)
    if made.options is not None:
        return _theirs(made, setting, ids, heat, length, seed, whole)
    watched = made.head and draft_model(made.head, setting)
    drafter, verifier = methods.build(made, own, watched), made.verifier if heat else verifiers.greedy
    recorded = graphs(made, setting, len(ids) + length)
    if recorded:
        recorded.prepare(drafter.hidden_layers)
    target = Target(own.target, window=made.window, graphs=recorded)
    options = {"max_new_tokens": length, "temperature": heat, "seed": seed, **({"eos": ()} if whole else {})}
    looked = costs.timing(drafter.other, "propose") if made.merged else []
    done, drafted, frontiers = [], [], Counter()
    if watched:
        watched.take()  # what a run before this one has left, if it failed
    before, began = costs.resident(), costs.now()
    for step in steps(target, drafter, verifier, ids, **options):
        seconds, sizes = watched.take() if watched else (0.0, [])
        done.append(step.light())
        drafted.append(seconds)
        frontiers.update(sizes)
    return {
        **measures.times(done, costs.now() - began),
        "drafting": sum(drafted[1:]),
        "looking": sum(looked[1:]),
        "trees": _spelt(Counter(len(step.draft.tree) for step in done)),
        "frontiers": _spelt(frontiers),
        "peak": costs.peak() - before,
    }


def _theirs(
    made: methods.Method, setting: Setting, ids: list[int], heat: float, length: int, seed: int, whole: bool
) -> dict[str, object]:
    own = loaded(setting)
    options = {**made.options, **sampling(heat), **({"eos_token_id": len(own.tokenizer)} if whole else {})}
    drafting = assistant(setting) if made.name == "assistant" else None
    options |= {"assistant_model": drafting} if drafting else {}
    method = generate(own.target, max_new_tokens=length, **options)
    torch.manual_seed(seed)
    before = costs.resident()
    with _forwards(own.target) as target, _forwards(drafting) as draft:
        tokens, seconds = costs.timed(partial(method, ids))
    first, *later = target.seconds
    trees = [target.sizes[0] - len(ids) + 1, *target.sizes[1:]]  # the first forward holds the prompt, too
    return {
        **dict.fromkeys(measures.DECODED, 0),
        "seconds": seconds,
        "tokens": len(tokens),
        "steps": len(target.sizes),
        "nodes": sum(trees) - len(trees),
        "depth": sum(trees) - len(trees),
        "prefill": first,
        "target": sum(later),
        "draft": sum(draft.seconds[1:]),
        "drafting": sum(draft.seconds[1:]),
        "looking": 0,
        "trees": _spelt(Counter(trees)),
        "frontiers": _spelt(Counter(draft.sizes[1:])),
        "peak": costs.peak() - before,
    }


@contextmanager
def _forwards(model: PreTrainedModel | None) -> Iterator[SimpleNamespace]:
    """Sizes and seconds of a model's forwards while the block runs."""
    seen, clock = SimpleNamespace(sizes=[], seconds=[]), []

    def before(_, args, kwargs) -> None:
        seen.sizes.append((args[0] if args else kwargs["input_ids"]).shape[-1])
        clock.append(costs.now())

    def after(*_) -> None:
        seen.seconds.append(costs.now() - clock.pop())

    hooks = []
    if model is not None:
        hooks = [model.register_forward_pre_hook(before, with_kwargs=True), model.register_forward_hook(after)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _spelt(sizes: Counter) -> str:
    return " ".join(f"{size}:{count}" for size, count in sorted(sizes.items()))


def same_greedy_text(method: str, prompt: str, length: int, positions: bool) -> dict[str, object]:
    """The greedy float32 text of a method of ours beside plain decoding's: see ``measures.compare_text``."""
    made, setting = methods.method(method), Setting(models.EMBEDDED, "float32", False)
    drafter = methods.build(made, loaded(setting), made.head and draft_model(made.head, setting))
    recorded = graphs(made, setting, len(measures.encoded(prompt, setting.dtype)) + length)
    return measures.compare_text(method, drafter, prompt, length, positions, window=made.window, graphs=recorded)
