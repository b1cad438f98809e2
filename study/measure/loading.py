"""Loading, once per process: pairs, draft models, drafters of methods, and this machine's prices.

A pair is a target model with, for some targets, a draft model. A head is a trained draft head for the target.
"""

import gc
import shlex
from copy import copy, deepcopy
from functools import cache

import torch
from transformers import PreTrainedModel

from specnb import heads, models
from specnb.decode import Drafter
from specnb.drafters import DraftModel, seconds
from specnb.drafters.seconds import PREFIX, ForwardSeconds, measured
from specnb.models import Graphs, Invariant, generate
from specnb.models.graphs import SIZES
from specnb.target import Target
from study import methods
from study.measure.clock import recorded_as_asked
from study.methods import IN_GRAPHS, INVARIANT, Auto, Method


def loaded(pair: str = models.EMBEDDED, dtype: str = "float32", packed: bool = False) -> models.Pair:
    """Load a pair, once per process, and run a few forwards, because the first ones are slow."""
    return _loaded(pair, dtype, packed)  # always by position: the cache takes f(x) and f(pair=x) for two calls


@cache
def _loaded(name: str, dtype: str, packed: bool) -> models.Pair:
    pair = models.load_pair(name, dtype=dtype, packed=packed)
    generate(pair, pair.encode("Good morning."), 8)
    return pair


@cache
def assistant(pair: models.Pair, packed: bool) -> PreTrainedModel:
    """The model with which transformers' assisted generation drafts.

    It is the pair's draft model or, without one, the trained vdm. transformers requires that both models have the same
    vocabulary size. If they do not (Qwen2.5's are padded differently), a copy with a resized output matrix is returned.
    """
    model = pair.draft
    if model is None:
        model = heads.as_causal_lm(*heads.load(heads.FOLDER / "vdm", pair.target))
    size = Target(pair.target).vocabulary
    if Target(model).vocabulary != size:
        model = deepcopy(model)
        model.resize_token_embeddings(size)
    if packed and pair.draft is None:
        return models.pack(model)
    return model


def lent_assistant(pair: models.Pair, packed: bool) -> PreTrainedModel:
    """A new object around the assistant's weights: generate adapts its settings to a text, and would keep them."""
    lent = copy(assistant(pair, packed))
    lent.generation_config = deepcopy(lent.generation_config)
    return lent


def draft_model(head: str, pair: models.Pair, capacity: int, head_temperature: float = 1.0) -> DraftModel:
    """``methods.draft_model``, once per process."""
    return _draft_model(head, pair, capacity, head_temperature)  # always with all arguments, as in ``loaded``


@cache
def _draft_model(head: str, pair: models.Pair, capacity: int, head_temperature: float) -> DraftModel:
    return methods.draft_model(head, pair, capacity, head_temperature)


def forget() -> None:
    """Drop all models that are loaded, so that the memory is free for those that are loaded next.

    A pair in float32 and the same pair in bfloat16 would both stay, six bytes a parameter.
    """
    kept = (_loaded, assistant, _draft_model, _graphs, machine, methods.corpus, methods.datastore)
    for function in kept:
        function.cache_clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@cache
def _graphs(pair: models.Pair, capacity: int) -> Graphs:
    return Graphs(pair.target, capacity=capacity)


def check_fit(name: str, made: Method, pair: models.Pair, packed: bool = False) -> None:
    """Raise ValueError if a method's draft model or drafter does not belong to this pair. Nothing is measured.

    name: of the method, for the message. made: the method.
    """
    try:
        # These calls are made for their ValueErrors; what they load is kept for the measurement.
        if made.assistant:
            assistant(pair, packed)
        if made.head is not None:
            draft_model(made.head, pair, 0, made.head_temperature)
        for build in (made.drafter, made.look_up):
            if build is not None:
                build(pair)
    except ValueError as error:
        head = made.head or "vdm"
        trained_as = "NAME" if "/" in head else head  # the name of a path is not the name of a recipe
        reason = str(error).replace("NAME --pair FOLDER_OR_NAME", f"{trained_as} --pair {shlex.quote(pair.name)}")
        without_head = "'n-gram tree', 'ptd' and 'prompt lookup'"
        if pair.draft is not None:
            without_head = f"'pair-auto', {without_head}"
        message = f"{name!r} does not fit {pair.name}: {reason}. Without a trained head race {without_head}"
        raise ValueError(message) from error


def capacity_for(tokens: int) -> int:
    """The capacity, in tokens, of a cache for captured forwards over a text of this many tokens.

    It has room for the largest tree, too, and is rounded up to a multiple of 256, so that texts of similar length
    share their graphs.
    """
    needed = tokens + max(SIZES)
    multiples = -(-needed // 256)  # rounded up
    return 256 * multiples


def built(made: Method, pair: models.Pair, tokens: int) -> tuple[Drafter, DraftModel | None, Graphs | Invariant | None]:
    """Load what runs a method of ours.

    made:   the method.
    pair:   the loaded models.
    tokens: of the longest text, the prompt included.

    Returns the drafter, its draft model (None without a head), and the target's special forwards (None for the usual
    ones).
    """
    capacity = capacity_for(tokens) if made.forwards == IN_GRAPHS else 0
    draft = None
    if made.head is not None:
        draft = draft_model(made.head, pair, capacity, made.head_temperature)
    prices = None
    if isinstance(made.grow, Auto):
        prices = machine(pair, made.head, capacity)
    drafter = methods.build(made, pair, draft, prices)
    if made.forwards == INVARIANT:
        return drafter, draft, Invariant(pair.target)
    if made.forwards == IN_GRAPHS:
        graphs = _graphs(pair, capacity)
        graphs.prepare(drafter.hidden_layers)
        return drafter, draft, graphs
    return drafter, draft, None


def measured_behind(pair: models.Pair, wanted: int | None = None) -> int:
    """How many tokens of text there are before the forwards that are timed.

    wanted: this number; if None it is PREFIX, or less if a model's context is too short for that.
    Raises ValueError if the contexts have no room for the wanted tokens and one more.
    """
    room = seconds.room_for_prefix(pair.target, pair.draft)
    if wanted is None:
        return min(PREFIX, room)
    if wanted > room:
        raise ValueError(f"{pair.name} has a context of {room + 1}: measure behind {room} tokens at most, got {wanted}")
    return wanted


@cache
def machine(pair: models.Pair, head: str, capacity: int) -> ForwardSeconds:
    """Seconds of forwards on this machine, which Auto needs (``drafters.seconds.measured``); once per process.

    They are measured after PREFIX tokens of text, or after fewer if a context or the cache has no room for them.

    capacity: of the cache for captured forwards; 0 if they are not captured.
    """
    draft = draft_model(head, pair, capacity)
    prefix = measured_behind(pair)
    if not capacity:
        return measured(Target(pair.target), draft, prefix, quiet=True)
    largest = max(seconds.SIZES)
    prefix = min(prefix, capacity - 2 * largest - 16)  # room for two trees, and 16 tokens to spare
    with recorded_as_asked():
        graphs = Graphs(pair.target, capacity=prefix + 2 * largest)
        return measured(Target(pair.target, forwards=graphs), draft, prefix, quiet=True)
