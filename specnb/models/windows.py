"""StreamingLLM as a cache policy: attention sinks and a recent window, the rest evicted. Not lossless."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specnb.cache import TreeCache


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

    Rotary keys are turned from the originals each time, so rounding does not add up. For models whose rotary
    embedding turns halves (Llama, Qwen2, GPT-NeoX, …); when sinks shift, ValueError for models without one and for
    those whose embedding lays out its angles in pairs (Cohere).
    """

    def __init__(self, window: Window, model: PreTrainedModel):
        self.window, self.evicted = window, 0
        self.rotary = getattr(model.base_model, "rotary_emb", None)
        self.sinks: list[Tensor] = []  # each layer's original sink keys
        if window.shift and self.rotary is None:
            raise ValueError(f"{type(model).__name__} has no rotary embedding to shift sinks by: use shift=False")
        if window.shift and not _turns_halves(self.rotary):
            raise ValueError(f"{type(model).__name__}'s rotary embedding interleaves its angles: use shift=False")

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


def _turns_halves(rotary: torch.nn.Module) -> bool:
    cos, _ = rotary(torch.zeros(1), torch.tensor([[7]]))
    return torch.equal(*cos.chunk(2, -1))


def turned(keys: Tensor, rotary: torch.nn.Module, by: int) -> Tensor:
    """(1, heads, n, head_dim) rotary keys as if their tokens stood by positions later (rotate-half convention)."""
    cos, sin = rotary(keys.float(), torch.tensor([[by]], device=keys.device))  # (1, 1, rotary dims)
    scale = getattr(rotary, "attention_scaling", 1.0)  # is in the keys already
    cos, sin = (part.to(keys.device) / scale for part in (cos, sin))
    width = cos.shape[-1]
    part = keys[..., :width].float()
    half = torch.cat([-part[..., width // 2 :], part[..., : width // 2]], -1)
    return torch.cat([(part * cos + half * sin).to(keys.dtype), keys[..., width:]], -1)
