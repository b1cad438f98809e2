"""Target: the model whose law must not change. One forward pass scores all nodes of a tree.

A law is a probability distribution over the vocabulary. The root of a tree is the last committed token.
"""

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
    """The result of one forward pass over n nodes.

    logits: (n, V) in the model's dtype; row i predicts the token *after* node i.
    hidden: layer → (n, width) hidden states. A layer is an index into transformers' hidden_states; -1 is the last.
    """

    logits: Tensor
    hidden: dict[int, Tensor] = field(default_factory=dict)


# Model types that score a tree differently from its paths, for a reason that the checks below do not find.
ODD = {
    "diffusion_gemma": "it is no causal language model: it writes by diffusion",
    "kosmos-2.5": "its positions do not begin at 0",
    "moshi": "its own cache has a window that its layers do not apply",
    "paligemma": "its positions do not begin at 0",
    "xlm": "its forward takes no mask of a tree",
}


def context_length(model: PreTrainedModel) -> int:
    """Return the number of positions that the model was made for.

    With LongRoPE (Phi-3's long contexts) these are only the positions of its short factors. One position further, a
    plain forward rotates all keys by the long factors, while keys in the cache were rotated by the short ones.
    """
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        return min(config.max_position_embeddings, rope["original_max_position_embeddings"])
    return config.max_position_embeddings


def refusal(model: PreTrainedModel) -> str | None:
    """Return why a model cannot score a tree as it scores the tree's paths one by one; None if it can."""
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
    """Return why a model cannot be given a tree's nodes; None if it can."""
    takes = forward_arguments(model)
    if not takes:
        return "the arguments of its forward are unknown: neither it nor a base class names them"
    if ARGUMENT not in takes:
        return f"its forward names no cache ({ARGUMENT}) among its arguments"
    if "position_ids" not in takes:
        return (
            "its forward names no position_ids among its arguments, and siblings in a tree stand at the same position"
        )
    if not model.can_generate():
        return "it has no language-model head: load it with AutoModelForCausalLM"
    logit_count = output_rows(model)
    readable = input_rows(model)
    if logit_count > readable:
        return (
            f"it says {logit_count} tokens and can read {readable}: "
            f"resize both with model.resize_token_embeddings({logit_count})"
        )
    return None


def _refused_attention(model: PreTrainedModel) -> str | None:
    """Return why a model's layers would not apply a tree mask; None if they do."""
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
    """Return the names of the arguments of a model's forward. If it takes **kwargs, its base class's are included."""
    return _arguments_of(type(model))


@cache
def _arguments_of(kind: type) -> set[str]:
    names: set[str] = set()
    for base in kind.__mro__:
        if "forward" not in vars(base) or base is nn.Module:
            continue
        parameters = inspect.signature(base.forward).parameters.values()
        named_kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names |= {parameter.name for parameter in parameters if parameter.kind in named_kinds}
        takes_others = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        if not takes_others:
            break
    return names - {"self"}


def output_rows(model: PreTrainedModel) -> int:
    """Return the number of logits of a model: the rows of its output matrix, more than its tokens if it is padded."""
    layer = model.get_output_embeddings()
    weight = getattr(layer, "weight", None)
    if isinstance(weight, Tensor) and weight.dim() == 2 and weight.is_floating_point():
        return len(weight)
    rows = getattr(layer, "out_features", None)  # a quantised layer packs its weight or hides it in a method
    return rows or model.config.get_text_config().vocab_size


def input_rows(model: PreTrainedModel) -> int:
    """Return the number of token ids that a model can read: the rows of its embedding matrix."""
    rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    return rows or model.config.get_text_config().vocab_size


def device_of(model: PreTrainedModel) -> torch.device:
    """Return the device for a model's inputs: where its weights are or, if they are offloaded, where it computes."""
    if model.device.type != "meta":
        return model.device
    for module in (model.get_input_embeddings(), model):
        outer_hook = getattr(module, "_hf_hook", None)
        for hook in getattr(outer_hook, "hooks", [outer_hook]):  # accelerate may chain several in one
            device = getattr(hook, "execution_device", None)
            if device is not None:
                return torch.device(device)
    return model.device


class Forwards(Protocol):
    """Another way to compute a model's forwards than to call it.

    ``models.Graphs`` replays captured CUDA graphs. ``models.Invariant`` computes logits whose bits do not depend on the
    tree.
    """

    model: nn.Module

    def empty(self) -> TreeCache:
        """Return the empty cache of a new generation."""

    def score(
        self, cache: TreeCache, rows: Tensor, positions: Tensor, mask: masks.Masks, hidden_layers: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]] | None:
        """Score the nodes of a tree that follows everything in the cache; the arguments are those of ``Graphs.score``.

        Returns logits (n, V) and hidden states, layer → (n, width); or None for a tree that it cannot take, and then
        the model is called instead.
        """


def of_model(forwards: Forwards | None, model: nn.Module) -> Forwards | None:
    """Return the forwards, or None if there are none; ValueError if they belong to another model."""
    if forwards is not None and forwards.model is not model:
        raise ValueError(f"these forwards are of another {type(forwards.model).__name__}: make them of the very model")
    return forwards


# model that ``evaluating`` has put into evaluation mode → (number of its users, the modules that were in training mode)
_BORROWED: WeakKeyDictionary = WeakKeyDictionary()
_LOCK = Lock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode within a with block.

    Several threads may do so with one model at a time. When the last of them leaves its block, each module gets back
    the mode that it had before.
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
    """Return those options that the model's forward takes."""
    if not isinstance(model, PreTrainedModel):
        return options  # a trained draft head, which takes them all
    takes = forward_arguments(model)
    options["output_router_logits"] = False  # a mixture of experts need not compute its router's loss
    return {name: value for name, value in options.items() if name in takes}


def layers_dtype(model: PreTrainedModel) -> torch.dtype:
    """Return the dtype of a model's layers, which their masks must have. Embedding and output matrix may differ."""
    outside: set[int] = set()  # ids of the parameters of embedding and output matrix
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        if module is not None:
            outside |= {id(parameter) for parameter in module.parameters()}
    sizes: dict[torch.dtype, int] = {}  # dtype → number of the layers' weights that have it
    for parameter in model.parameters():
        if parameter.is_floating_point() and id(parameter) not in outside:
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    if not sizes:
        return model.dtype
    return max(sizes, key=sizes.get)


class Target:
    """A causal language model with a TreeCache: prefill, forward(tree), commit(path).

    The cache contains every committed token except the last one, the root. The root's key and value are written by the
    forward pass that scores its tree.

    model: a causal language model of transformers.
    hidden_layers: the layers whose hidden states each forward returns, for drafters that read them.
    window: None, or a ``models.Window``: the cache keeps only the first and the latest tokens (StreamingLLM). Memory is
        bounded, but once a token has been evicted the text is no longer the model's own.
    forwards: None to call the model, or another way to compute its forwards: ``models.Graphs`` or ``models.Invariant``.
    serving: an attribute that ``decode.steps`` sets to a mark of the generation that began last with this target, to
        stop any earlier one; None before the first.
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
        """The number of the model's logits."""
        return output_rows(self.model)

    @property
    def readable(self) -> int:
        """The number of token ids that the model can read; picture tokens, for example, are read but not predicted."""
        return input_rows(self.model)

    @property
    def context(self) -> int:
        return context_length(self.model)

    def prefill(self, tokens: Sequence[int]) -> dict[int, Tensor]:
        """Start over with these tokens in the cache.

        tokens: the prompt without its last token; may be empty.
        Returns the hidden states of ``hidden_layers``, layer → (len(tokens), width).
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
        positions = torch.arange(len(tokens), device="cpu")
        scores = self._run(ids, positions[None], None, logits_to_keep=1)
        self.cache.promote(len(tokens))
        if self.evict:
            self.evict(self.cache)
        return scores.hidden

    def forward(self, tree: TokenTree) -> Scores:
        """Score all nodes of a tree, whose root is the last committed token, in one forward pass."""
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
        positions = masks.positions(tree, length + evicted)  # (1, n)
        mask = None
        if len(tree) > 1 or (self.forwards and self.windowed):  # the model itself masks a root alone correctly
            mask = masks.tree_mask(tree, length, dtype=self.dtype, device=device_of(self.model))
            if self.windowed:
                columns = torch.cat([torch.arange(length, device="cpu"), positions[0]])
                mask = masks.by_layer(mask, self.model, positions[0], columns)
        scores = self._run(tree.tokens[None], positions, mask)
        self.tree = tree
        return scores

    def commit(self, path: Sequence[int]) -> None:
        """Keep the root and the accepted path in the cache; drop the tree's other nodes.

        path: nodes of the tree scored last, from the root (excluded) downwards.
        """
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

        Returns the largest error of a logit, as a share of the largest logit; see ``selfcheck.check``. Raises
        ValueError if the error is more than rounding. Afterwards the cache contains the tested tokens: call ``prefill``
        before the next use.
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
    """Return token ids as a list; ValueError unless they are whole numbers (text, floats and batches are not)."""
    try:
        return [index(token) for token in tokens]
    except TypeError as error:
        raise ValueError(f"ids must be a list of ints, got {str(tokens)!r:.40}: use pair.encode(text)") from error


def check_tokens(tokens: Sequence[int], vocabulary: int) -> None:
    """ValueError unless all token ids are in 0..vocabulary-1."""
    if not len(tokens):
        return
    if min(tokens) < 0 or max(tokens) >= vocabulary:
        bad = next(token for token in tokens if not 0 <= token < vocabulary)
        raise ValueError(f"token id {bad} is outside the model's vocabulary of {vocabulary}")
