"""StreamingLLM as a cache policy: attention sinks and a recent window, the rest evicted. Not lossless."""

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
    """What a cache keeps: the first start tokens (the attention sinks) and the last recent ones (Xiao et al. 2024).

    shift: let the sinks follow the window, as StreamingLLM does: every key stands where it would if the evicted
    tokens had never been; otherwise sinks stay where they were and grow ever more distant.

    Example: Window(start=4, recent=100) of 110 committed tokens evicts the six behind the first four.
    """

    start: int = 4
    recent: int = 1020
    shift: bool = True

    def __post_init__(self):
        if self.start < 0 or self.recent < 1:
            raise ValueError(f"a window keeps start >= 0 and recent >= 1 tokens, got {self.start} and {self.recent}")

    def evictor(self, model: PreTrainedModel) -> "Evictor":
        """What keeps a cache of this model within the window; errors as ``Evictor``."""
        return Evictor(self, model)


class Evictor:
    """Keeps a TreeCache within its window. ``evicted`` counts the tokens dropped: positions go on counting them.

    Rotary keys are turned from the originals each time, so rounding does not add up. ValueError for a model with
    windows of its own (sliding, chunked, local attention); and, when sinks shift, for one whose keys do not turn as
    Llama's, Qwen2's and GPT-NeoX's do: real keys are compared, in two forwards of one token.
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
        """Evict what the window does not hold; the cache must not have a tree pending."""
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
    """Whether ``turned`` makes a token's keys at position 0 those at another position, in every layer."""
    if rotary is None:
        return False
    if list(signature(rotary.forward).parameters) != ["x", "position_ids"]:  # one embedding for each kind of layer
        return False
    keys = _keys_at(0, model)
    eps = max(torch.finfo(keys[0].dtype).eps, torch.finfo(torch.float32).eps)  # angles are in float32 at most
    for key, expected in zip(keys, _keys_at(by, model), strict=True):
        error = (turned(key, rotary, by) - expected).norm()
        if not error < 8 * eps * expected.norm():  # not a number is no match either
            return False
    return True


@torch.no_grad()
def _keys_at(position: int, model: PreTrainedModel) -> list[Tensor]:
    """Each layer's key (1, heads, 1, head_dim) of one token at this position.

    Alone it sees itself only, so that its keys differ with the position by their rotation and by nothing else.
    """
    token = model.config.get_text_config().vocab_size // 2  # the first ones may be padding, whose keys are zero
    ids = torch.tensor([[token]], device=device_of(model))
    positions = torch.tensor([[position]], device=device_of(model))
    cache = TreeCache(1)
    with evaluating(model):
        model(ids, position_ids=positions, use_cache=True, **{ARGUMENT: cache})
    return [layer.keys for layer in cache.layers]


def turned(keys: Tensor, rotary: torch.nn.Module, by: int) -> Tensor:
    """(1, heads, n, head_dim) rotary keys as if their tokens stood by positions later (rotate-half convention).

    Example: with a head_dim of 2 a key is turned by one radian a position, so (1, 0) becomes (cos by, sin by).
    """
    position = torch.tensor([[by]], device=keys.device)
    cos, sin = rotary(keys.float(), position)  # (1, 1, width) each: width, the rotary part of head_dim
    scale = getattr(rotary, "attention_scaling", 1.0)  # is in the keys already
    cos = cos.to(keys.device) / scale
    sin = sin.to(keys.device) / scale
    width = cos.shape[-1]
    rotary_part = keys[..., :width].float()
    first, second = rotary_part.chunk(2, -1)
    quarter_turn = torch.cat([-second, first], -1)
    rotated = rotary_part * cos + quarter_turn * sin
    return torch.cat([rotated.to(keys.dtype), keys[..., width:]], -1)
