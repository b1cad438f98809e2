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
        self.window, self.evicted = window, 0
        self.rotary = getattr(model.base_model, "rotary_emb", None)
        self.sinks: list[Tensor] = []  # each layer's original sink keys
        if masks.layer_kinds(model) != ("full_attention",):
            raise ValueError(f"{type(model).__name__} has layers with windows of their own: use window=None")
        if window.shift and not _turns(model, self.rotary):
            raise ValueError(f"the keys of {type(model).__name__} do not turn as Llama's do: use shift=False")

    def __call__(self, cache: TreeCache) -> None:
        """Evict what the window does not hold; the cache must not have a tree pending."""
        start, surplus = self.window.start, cache.length - self.window.start - self.window.recent
        if surplus <= 0:
            return
        if not self.sinks:
            self.sinks = [layer.keys[..., :start, :].clone() for layer in cache.layers]
        for layer in cache.layers:
            layer.drop(start, surplus)
        cache.length -= surplus
        self.evicted += surplus
        if self.window.shift:
            for layer, keys in zip(cache.layers, self.sinks, strict=True):
                layer.keys[..., :start, :] = turned(keys, self.rotary, self.evicted)


@torch.no_grad()
def _turns(model: PreTrainedModel, rotary: torch.nn.Module | None, by: int = 7) -> bool:
    """Whether ``turned`` makes keys at 0 those at another position; a token alone sees itself only: no more differs."""
    if rotary is None or [*signature(rotary.forward).parameters] != ["x", "position_ids"]:  # one for each kind of layer
        return False
    token = model.config.get_text_config().vocab_size // 2  # the first ones may be padding, whose keys are zero
    caches = TreeCache(1), TreeCache(1)
    for cache, position in zip(caches, (0, by), strict=True):
        ids = torch.tensor([[token], [position]], device=device_of(model))
        with evaluating(model):
            model(ids[:1], position_ids=ids[1:], use_cache=True, **{ARGUMENT: cache})
    pairs = [[layer.keys for layer in layers] for layers in zip(*(cache.layers for cache in caches), strict=True)]
    eps = max(torch.finfo(pairs[0][0].dtype).eps, torch.finfo(torch.float32).eps)
    return all((turned(old, rotary, by) - new).norm() < 8 * eps * new.norm() for old, new in pairs)


def turned(keys: Tensor, rotary: torch.nn.Module, by: int) -> Tensor:
    """(1, heads, n, head_dim) rotary keys as if their tokens stood by positions later (rotate-half convention)."""
    cos, sin = rotary(keys.float(), torch.tensor([[by]], device=keys.device))  # (1, 1, rotary dims)
    scale = getattr(rotary, "attention_scaling", 1.0)  # is in the keys already
    cos, sin = (part.to(keys.device) / scale for part in (cos, sin))
    width = cos.shape[-1]
    part = keys[..., :width].float()
    half = torch.cat([-part[..., width // 2 :], part[..., : width // 2]], -1)
    return torch.cat([(part * cos + half * sin).to(keys.dtype), keys[..., width:]], -1)
