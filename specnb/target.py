"""Target: the model whose law must not change. One forward pass scores a whole tree."""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from operator import index
from threading import Lock
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specnb import masks
from specnb.cache import ARGUMENT, TreeCache
from specnb.tree import TokenTree


@dataclass(frozen=True)
class Scores:
    """What one forward pass says about n nodes.

    logits: (n, V) in the model's dtype, row i is the prediction *after* node i.
    hidden: layer index as in transformers' hidden_states (negative counts from the end) → (n, width).
    """

    logits: Tensor
    hidden: dict[int, Tensor] = field(default_factory=dict)


# Types whose forward is another on a tree than along its paths, for a reason that no general question finds.
ODD = {
    "diffusion_gemma": "it is no causal language model: it writes by diffusion",
    "kosmos-2.5": "its positions do not begin at 0",
    "moshi": "its own cache has a window that its layers do not apply",
    "paligemma": "its positions do not begin at 0",
    "xlm": "its forward takes no mask of a tree",
}


def context_length(model: PreTrainedModel) -> int:
    """Number of positions the model was made for.

    With LongRoPE (Phi-3's long contexts) only those of its short factors: one position further a plain forward rotates
    all its keys by the long factors, while those in the cache were rotated by the short ones.
    """
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return min(config.max_position_embeddings, rope["original_max_position_embeddings"])
    return config.max_position_embeddings


def refusal(model: PreTrainedModel) -> str | None:
    """Why a model cannot score a tree as it scores the tree's paths one by one; None for one that can."""
    kind = model.config.model_type
    if kind in ODD:
        return ODD[kind]
    if model.config.is_encoder_decoder:
        return "it is an encoder-decoder"
    if model._is_stateful:
        return (
            "models of its kind keep a state beside keys and values (recurrent, convolutional or compressed), which "
            "the branches of a tree would have to share"
        )
    if device_of(model).type == "meta":
        return "its weights are on no device ('meta'): load them"
    return _refused_inputs(model) or _refused_attention(model)


def _refused_inputs(model: PreTrainedModel) -> str | None:
    """Why a model cannot be given a tree's nodes; None if it can."""
    takes = forward_arguments(model)
    if not takes:
        return "its forward does not say what it takes: neither it nor a base class names its arguments"
    if ARGUMENT not in takes:
        return f"its forward names no cache ({ARGUMENT}) among its arguments"
    if "position_ids" not in takes:
        return (
            "its forward names no position_ids among its arguments, and siblings in a tree stand at the same position"
        )
    if not model.can_generate():
        return "it has no language-model head: load it with AutoModelForCausalLM"
    said, read = output_rows(model), input_rows(model)
    if said > read:
        return f"it says {said} tokens and can read {read}: resize both with model.resize_token_embeddings({said})"
    return None


def _refused_attention(model: PreTrainedModel) -> str | None:
    """Why a model's layers would not heed a tree mask; None if they do."""
    config = model.config.get_text_config()
    attention = config._attn_implementation
    unknown = set(masks.layer_kinds(model)) - {"full_attention", *masks.WINDOWS}
    if unknown:
        return f"it has layers of the kind {min(unknown)}, for which there is no tree mask here"
    if hasattr(model.base_model, "encoder") and not getattr(config, "is_decoder", True):
        return "it reads both ways: is_decoder is not set in its configuration"
    if "local" in (getattr(config, "attention_layers", None) or ()) or getattr(config, "alibi", False):
        return "its local layers, or ALiBi, count slots of the cache, not positions"
    if getattr(config, "attn_temperature_tuning", False):
        return (
            "it scales queries by slots of the cache, not by positions, from config.floor_scale tokens on; with "
            "config.attn_temperature_tuning = False it is taken, for shorter texts the same model"
        )
    if attention not in ("sdpa", "eager"):
        return f"its attention {attention!r} takes no tree mask: load it with attn_implementation='sdpa'"
    sizes = [name for name, _ in masks.WINDOWS.values() if getattr(config, name, None)]
    if sizes and not getattr(config, "layer_types", None) and not masks.owners(model):
        return (
            f"its configuration has a {sizes[0]}, and its code is not transformers': how it applies it cannot be told"
        )
    return None


def forward_arguments(model: PreTrainedModel) -> set[str]:
    """The names that a model's forward takes; where it takes any others, too (**kwargs), those of its base class's."""
    return _arguments_of(type(model))


@cache
def _arguments_of(kind: type) -> set[str]:
    names: set[str] = set()
    for base in kind.__mro__:
        if "forward" not in vars(base) or base is nn.Module:
            continue
        parameters = inspect.signature(base.forward).parameters.values()
        names |= {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
        if all(one.kind is not one.VAR_KEYWORD for one in parameters):
            break
    return names - {"self"}


def output_rows(model: PreTrainedModel) -> int:
    """The number of logits that a model gives: rows of its output matrix, which may be padded, quantised or packed."""
    layer = model.get_output_embeddings()
    weight = getattr(layer, "weight", None)
    if isinstance(weight, Tensor) and weight.dim() == 2 and weight.is_floating_point():
        return len(weight)
    rows = getattr(layer, "out_features", None)  # a quantised layer packs its weight or hides it in a method
    return rows or model.config.get_text_config().vocab_size


def input_rows(model: PreTrainedModel) -> int:
    """The number of token ids that a model can read."""
    rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    return rows or model.config.get_text_config().vocab_size


def device_of(model: PreTrainedModel) -> torch.device:
    """Where a model wants its inputs: where its weights lie, or, if accelerate offloads them, where it computes."""
    if model.device.type != "meta":
        return model.device
    for module in (model.get_input_embeddings(), model):
        hook = getattr(module, "_hf_hook", None)
        for one in getattr(hook, "hooks", [hook]):
            device = getattr(one, "execution_device", None)
            if device is not None:
                return torch.device(device)
    return model.device


class Forwards(Protocol):
    """Forwards of one model, done in another way than by calling it.

    ``models.Graphs`` replays recorded ones; those of ``models.Invariant`` have bits that do not depend on the tree.
    """

    model: nn.Module

    def empty(self) -> TreeCache:
        """The cache of a new generation."""

    def score(
        self, cache: TreeCache, rows: Tensor, positions: Tensor, mask: masks.Masks, hidden_layers: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]] | None:
        """Logits (n, V) and hidden states of the nodes of a tree behind all that is in the cache; see ``Graphs.score``.

        None for a tree that does not fit: the model is called instead.
        """


def of_model(forwards: Forwards | None, model: nn.Module) -> Forwards | None:
    """The forwards, or None; ValueError if they are those of another model."""
    if forwards is not None and forwards.model is not model:
        raise ValueError(f"these forwards are of another {type(forwards.model).__name__}: make them of the very model")
    return forwards


_BORROWED: WeakKeyDictionary = WeakKeyDictionary()  # models in evaluation mode for a while → users, modules in training
_LOCK = Lock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; a model in training gets each module's own mode back, from the last of its users.

    Several threads may compute with one model at a time.
    """
    with _LOCK:
        users, training = _BORROWED.get(model, (0, []))
        if model.training:
            training = [module for module in model.modules() if module.training]
            model.eval()
        _BORROWED[model] = users + 1, training
    try:
        yield
    finally:
        with _LOCK:
            users, training = _BORROWED.pop(model)
            if users > 1:
                _BORROWED[model] = users - 1, training
            else:
                for module in training:
                    module.training = True


def call_options(model: nn.Module, **options) -> dict:
    """Of these options of a forward those that the model takes; a mixture of experts is asked for no router's loss."""
    if not isinstance(model, PreTrainedModel):
        return options  # a trained head
    takes = forward_arguments(model)
    options["output_router_logits"] = False
    return {name: value for name, value in options.items() if name in takes}


def layers_dtype(model: PreTrainedModel) -> torch.dtype:
    """The dtype of a model's layers, in which their masks are; embedding and output matrix may have another."""
    outside: set[int] = set()  # ids of the parameters of embedding and output matrix
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        if module is not None:
            outside |= {id(parameter) for parameter in module.parameters()}
    sizes: dict[torch.dtype, int] = {}  # dtype → numbers that layers have of it
    for parameter in model.parameters():
        if parameter.is_floating_point() and id(parameter) not in outside:
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    if not sizes:
        return model.dtype
    return max(sizes, key=sizes.get)


class Target:
    """A causal language model with a TreeCache: prefill, forward(tree), commit(path).

    The cache holds every committed token except the last one, the root, whose key and value are written by the
    forward pass that scores its tree. hidden_layers names the hidden states that drafters ask for. window
    (``models.Window``): keep only attention sinks and recent tokens (StreamingLLM): bounded memory, and no longer the
    model's own text once something has been evicted; its evictor(model) is called with the cache after each commit.
    forwards: how this model's forwards are done, if not by calling it: recorded (``models.Graphs``), or so that their
    bits do not depend on the tree (``models.Invariant``). serving: the generation that has begun last with this target,
    set by ``decode.steps``, which lets no earlier one go on; None before the first.
    Raises ValueError on a model that cannot score trees.
    """

    serving: object | None = None

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        hidden_layers: Sequence[int] = (),
        window=None,
        forwards: Forwards | None = None,
    ):
        if not isinstance(model, PreTrainedModel):
            raise ValueError(f"Target takes a model of transformers (pair.target), got a {type(model).__name__}")
        why = refusal(model)
        if why is not None:
            raise ValueError(f"no trees with a {model.config.model_type} model ({type(model).__name__}): {why}")
        self.model = model
        self.window = window
        self.forwards = of_model(forwards, model)
        self.dtype = layers_dtype(model)
        self.windowed = masks.layer_kinds(model) != ("full_attention",)
        self.hidden_layers = tuple(hidden_layers)
        self.cache = TreeCache()
        self.evict = None  # the window's evictor, once a generation has begun
        self.tree: TokenTree | None = None  # scored, waiting for commit

    @property
    def vocabulary(self) -> int:
        """The number of its logits."""
        return output_rows(self.model)

    @property
    def readable(self) -> int:
        """The number of tokens that it can read; those of pictures, for example, are read and never said."""
        return input_rows(self.model)

    @property
    def context(self) -> int:
        return context_length(self.model)

    def prefill(self, tokens: Sequence[int]) -> dict[int, Tensor]:
        """Start over with these tokens in the cache (the prompt without its last token; may be empty).

        Returns the hidden states asked for, (len(tokens), width) each.
        """
        check_tokens(tokens, self.readable)
        if len(tokens) >= self.context:
            raise ValueError(f"{len(tokens)} tokens do not fit the context of {self.context}: shorten the prompt")
        self.cache = self.forwards.empty() if self.forwards else TreeCache()
        self.tree = None
        self.evict = self.window and self.window.evictor(self.model)
        if not len(tokens):
            return {}
        ids = torch.tensor([list(tokens)], device="cpu")
        places = torch.arange(len(tokens), device="cpu")
        scores = self._run(ids, places[None], None, logits_to_keep=1)
        self.cache.promote(len(tokens))
        if self.evict:
            self.evict(self.cache)
        return scores.hidden

    def forward(self, tree: TokenTree) -> Scores:
        """Score all nodes of a tree that hangs off the last committed token, in one pass."""
        if self.tree is not None:
            raise RuntimeError("the last tree has not been committed: call commit(path) before the next forward")
        check_tokens(tree.token_list, self.readable)
        length = self.cache.length
        if length + max(tree.depth_list) >= self.context:
            raise ValueError(
                f"{length} committed tokens and a tree of depth {max(tree.depth_list)} do not fit the context "
                f"of {self.context}: shorten the prompt, max_new_tokens or the tree"
            )
        evicted = self.evict.evicted if self.evict else 0
        places = masks.positions(tree, length + evicted)
        mask = None
        if len(tree) > 1 or (self.forwards and self.windowed):  # a root alone sees what a model lets it see
            mask = masks.tree_mask(tree, length, dtype=self.dtype, device=device_of(self.model))
            if self.windowed:
                columns = torch.cat([torch.arange(length, device="cpu"), places[0]])
                mask = masks.by_layer(mask, self.model, places[0], columns)
        scores = self._run(tree.tokens[None], places, mask)
        self.tree = tree
        return scores

    def commit(self, path: Sequence[int]) -> None:
        """Keep the root and the accepted path (nodes of the tree last scored, root excluded)."""
        if self.tree is None:
            raise RuntimeError("nothing to commit: call forward(tree) first")
        if path and tuple(path) != self.tree.path(path[-1]):
            raise ValueError(f"{tuple(path)} is not a path from the root of the scored tree")
        self.cache.commit([0, *path])
        self.tree = None
        if self.evict:
            self.evict(self.cache)

    def check(self, *, seed: int = 0) -> float:
        """Compare random trees with plain forwards over their paths, and a few steps with the model's ``generate``.

        Returns the largest error of a logit, as a share of the largest logit; ``selfcheck.check`` says more. Raises
        ValueError if it is more than rounding. Afterwards the cache holds what was scored: start with ``prefill``.
        """
        from specnb import selfcheck  # which imports this module

        return selfcheck.check(self, seed=seed)

    @torch.no_grad()
    def _run(self, ids: Tensor, position_ids: Tensor, mask: masks.Masks, **kwargs) -> Scores:
        if self.forwards and not kwargs:
            with evaluating(self.model):
                scored = self.forwards.score(self.cache, ids, position_ids, mask, self.hidden_layers)
            if scored is not None:
                logits, hidden = scored
                return Scores(logits, hidden)
        device = device_of(self.model)
        inputs = {"input_ids": ids.to(device), "position_ids": position_ids.to(device), "attention_mask": mask}
        inputs |= {ARGUMENT: self.cache, "use_cache": True, "output_hidden_states": bool(self.hidden_layers)}
        with evaluating(self.model):
            out = self.model(**inputs, **call_options(self.model, **kwargs))
        hidden = {layer: out.hidden_states[layer][0] for layer in self.hidden_layers}
        return Scores(logits=out.logits[0], hidden=hidden)


def token_ids(tokens: Iterable[int]) -> list[int]:
    """Token ids as a list; ValueError unless they are whole numbers (text, floats and batches are not)."""
    try:
        return [index(token) for token in tokens]
    except TypeError as error:
        raise ValueError(f"ids must be a list of ints, got {str(tokens)!r:.40}: use pair.encode(text)") from error


def check_tokens(tokens: Sequence[int], vocabulary: int) -> None:
    """ValueError unless all token ids lie in 0..vocabulary-1."""
    if not len(tokens):
        return
    if min(tokens) < 0 or max(tokens) >= vocabulary:
        bad = next(token for token in tokens if not 0 <= token < vocabulary)
        raise ValueError(f"token id {bad} is outside the model's vocabulary of {vocabulary}")
