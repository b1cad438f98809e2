"""StreamingLLM as a cache policy: attention sinks and a recent window are kept, the rest is evicted. Not lossless."""

from dataclasses import dataclass
from inspect import signature

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specnb import masks
from specnb.cache import ARGUMENT, TreeCache
from specnb.target import device_of, evaluating


@dataclass(frozen=True)
class Window:
    """Which committed tokens a cache keeps: the first few (the attention sinks) and the last ones (Xiao et al. 2024).

    Example: Window(start=4, recent=100) of 110 committed tokens evicts the six after the first four.
    """

    start: int = 4  # number of attention sinks
    recent: int = 1020  # number of last tokens; with the sinks 1024
    # True, as in StreamingLLM: the sinks follow the window, so that all kept tokens have consecutive positions.
    # False: the sinks keep their positions, and their distance from the window grows.
    shift: bool = True

    def __post_init__(self):
        if self.start < 0 or self.recent < 1:
            raise ValueError(f"a window keeps start >= 0 and recent >= 1 tokens, got {self.start} and {self.recent}")

    def evictor(self, model: PreTrainedModel) -> "Evictor":
        """The object that keeps a cache of this model within the window; raises what ``Evictor`` raises."""
        return Evictor(self, model)


class Evictor:
    """Keeps a TreeCache within its window.

    ``evicted`` is the number of tokens dropped so far. Positions go on counting them: the next token's position is the
    length of its text. The sinks are rotated from their original keys each time, so that rounding does not add up.

    Raises ValueError for a model with windows of its own (sliding, chunked or local attention). If sinks shift, it also
    raises ValueError for a model whose keys are not rotated as those of Llama, Qwen2 and GPT-NeoX are. To find that
    out, real keys are compared, in two forwards of one token.
    """

    def __init__(self, window: Window, model: PreTrainedModel):
        self.window = window
        self.evicted = 0
        self.rotary = getattr(model.base_model, "rotary_emb", None)
        self.sinks: list[Tensor] = []  # each layer's original sink keys, (1, heads, start, head_dim)
        if masks.layer_kinds(model) != ("full_attention",):
            raise ValueError(f"{type(model).__name__} has layers with windows of their own: use window=None")
        if window.shift and not _keys_turn(model, self.rotary):
            raise ValueError(f"the keys of {type(model).__name__} do not turn as Llama's do: use shift=False")

    def __call__(self, cache: TreeCache) -> None:
        """Evict the committed tokens outside the window; the cache must not have a tree pending."""
        start = self.window.start
        surplus = cache.length - start - self.window.recent
        if surplus <= 0:
            return
        if not self.sinks:
            self.sinks = [layer.keys[..., :start, :].clone() for layer in cache.layers]
        for layer in cache.layers:
            layer.drop(start, surplus)
        cache.length -= surplus
        self.evicted += surplus
        if self.window.shift:
            for layer, original in zip(cache.layers, self.sinks, strict=True):
                layer.keys[..., :start, :] = turned(original, self.rotary, self.evicted)


def _keys_turn(model: PreTrainedModel, rotary: torch.nn.Module | None, by: int = 7) -> bool:
    """Whether ``turned`` takes a token's keys at position 0 to its keys at position ``by``, in every layer."""
    if rotary is None:
        return False
    parameters = list(signature(rotary.forward).parameters)
    if parameters != ["x", "position_ids"]:  # others ask for a kind of layer, too: each kind has its own rotation
        return False
    keys = _keys_at(0, model)
    eps = max(torch.finfo(keys[0].dtype).eps, torch.finfo(torch.float32).eps)  # angles are in float32 at most
    for key, expected in zip(keys, _keys_at(by, model), strict=True):
        error = (turned(key, rotary, by) - expected).norm()
        if not error < 8 * eps * expected.norm():  # written so that NaN is not a match
            return False
    return True


@torch.no_grad()
def _keys_at(position: int, model: PreTrainedModel) -> list[Tensor]:
    """Each layer's key (1, heads, 1, head_dim) for a text of one token at this position.

    The token sees only itself, so that nothing but the rotation of its keys depends on the position.
    """
    token = model.config.get_text_config().vocab_size // 2  # the first ones may be padding, whose keys are zero
    ids = torch.tensor([[token]], device=device_of(model))
    positions = torch.tensor([[position]], device=device_of(model))
    cache = TreeCache(1)
    with evaluating(model):
        model(ids, position_ids=positions, use_cache=True, **{ARGUMENT: cache})
    return [layer.keys for layer in cache.layers]


def turned(keys: Tensor, rotary: torch.nn.Module, by: int) -> Tensor:
    """Rotate keys (1, heads, n, head_dim) further, as if their tokens came ``by`` positions later.

    Example: with a head_dim of 2 a key is rotated by one radian per position, so (1, 0) becomes (cos by, sin by).

    rotary: the model's rotary embedding, with the rotate-half convention: entry i of the first half and entry i of the
    second half are a pair.
    """
    position = torch.tensor([[by]], device=keys.device)
    cos, sin = rotary(keys.float(), position)  # (1, 1, width) each; width is the rotary part of head_dim
    scale = getattr(rotary, "attention_scaling", 1.0)  # the original keys contain it already
    cos = cos.to(keys.device) / scale
    sin = sin.to(keys.device) / scale
    width = cos.shape[-1]
    rotary_part = keys[..., :width].float()
    first, second = rotary_part.chunk(2, -1)
    quarter_turn = torch.cat([-second, first], -1)
    rotated = rotary_part * cos + quarter_turn * sin
    return torch.cat([rotated.to(keys.dtype), keys[..., width:]], -1)
