"""What is loaded or measured once a process: pairs, draft models, drafters of methods, this machine's prices."""

import shlex
from copy import copy, deepcopy
from functools import cache

from transformers import PreTrainedModel

from specnb import heads, models
from specnb.decode import Drafter
from specnb.drafters import DraftModel, seconds
from specnb.drafters.seconds import PREFIX, ForwardSeconds, measured
from specnb.models import Graphs, Invariant, generate
from specnb.models.graphs import SIZES
from specnb.target import Target, context_length
from study import methods
from study.measure.clock import recorded_as_asked
from study.methods import IN_GRAPHS, INVARIANT, Auto, Method


def loaded(pair: str = models.EMBEDDED, dtype: str = "float32", packed: bool = False) -> models.Pair:
    """A pair, once per process, and warm: its first forwards are slow."""
    return _loaded(pair, dtype, packed)  # one spelling: a cache tells keywords from positions


@cache
def _loaded(name: str, dtype: str, packed: bool) -> models.Pair:
    pair = models.load_pair(name, dtype=dtype, packed=packed)
    generate(pair, pair.encode("Good morning."), 8)
    return pair


@cache
def assistant(pair: models.Pair, packed: bool) -> PreTrainedModel:
    """What transformers' assisted generation drafts with: the pair's draft model or, without one, the trained vdm.

    In a copy with as many rows as the target's vocabulary if it has others (Qwen2.5's): transformers asks for that.
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
    """The assistant's weights in an object of its own: generate may keep in it what it learnt from a text."""
    lent = copy(assistant(pair, packed))
    lent.generation_config = deepcopy(lent.generation_config)
    return lent


def draft_model(head: str, pair: models.Pair, capacity: int, temperature: float = 1.0) -> DraftModel:
    """``methods.draft_model``, once per process."""
    return _draft_model(head, pair, capacity, temperature)  # one spelling: a cache tells defaults from arguments


@cache
def _draft_model(head: str, pair: models.Pair, capacity: int, temperature: float) -> DraftModel:
    return methods.draft_model(head, pair, capacity, temperature)


@cache
def _graphs(pair: models.Pair, capacity: int) -> Graphs:
    return Graphs(pair.target, capacity=capacity)


def check_fit(name: str, made: Method, pair: models.Pair, packed: bool = False) -> None:
    """ValueError, before anything is measured, if what a method drafts with does not belong to this pair."""
    try:
        if made.assistant:
            assistant(pair, packed)
        if made.head is not None:
            draft_model(made.head, pair, 0, made.temperature)
        for build in (made.drafter, made.look_up):
            if build is not None:
                build(pair)
    except ValueError as error:
        head = made.head or "vdm"
        reason = str(error).replace("NAME --pair FOLDER_OR_NAME", f"{head} --pair {shlex.quote(pair.name)}")
        free = "'n-gram tree', 'ptd' and 'prompt lookup'"
        if pair.draft is not None:
            free = f"'pair-auto', {free}"
        raise ValueError(f"{name!r} does not fit {pair.name}: {reason}. Without a trained head race {free}") from error


def capacity_for(tokens: int) -> int:
    """Places that a cache of recorded forwards needs for a text of so many tokens: a multiple of 256."""
    needed = tokens + max(SIZES)
    return 256 * -(-needed // 256)


def built(made: Method, pair: models.Pair, tokens: int) -> tuple[Drafter, DraftModel | None, Graphs | Invariant | None]:
    """A method's drafter, its draft model and the target's special forwards, for texts of up to so many tokens."""
    capacity = capacity_for(tokens) if made.forwards == IN_GRAPHS else 0
    draft = None
    if made.head is not None:
        draft = draft_model(made.head, pair, capacity, made.temperature)
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
def machine(pair: models.Pair, head: str, capacity: int) -> ForwardSeconds:
    """What Auto is told of this machine (``drafters.seconds.measured``), measured anew in each process.

    Behind PREFIX tokens, or fewer where a context or the cache of forwards in graphs (capacity, 0 for none) has no
    room.
    """
    draft = draft_model(head, pair, capacity)
    prefix = measured_behind(pair)
    if not capacity:
        return measured(Target(pair.target), draft, prefix, quiet=True)
    largest = max(seconds.SIZES)
    prefix = min(prefix, capacity - 2 * largest - 16)  # room for two trees, and 16 places more
    with recorded_as_asked():
        graphs = Graphs(pair.target, capacity=prefix + 2 * largest)
        return measured(Target(pair.target, forwards=graphs), draft, prefix, quiet=True)
