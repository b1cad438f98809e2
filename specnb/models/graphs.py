"""Graphs: the target's forward at a few fixed shapes, recorded once and replayed without Python in between.

A small model's forward is many short kernels, and on a GPU launching them takes longer than running them. A CUDA graph
launches all of them at once, if they find their inputs, and leave their outputs, where they did when it was recorded.
So trees are padded to the next of a few sizes, and keys and values stand in buffers of fixed capacity, of which the
mask shows what is in use. Whatever does not fit is scored as without graphs.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from specnb import masks
from specnb.cache import TreeCache

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)

Call = Callable[[], tuple[Tensor, ...]]


class FixedLayer(DynamicLayer):
    """One layer of a TreeCache as a recorded forward sees it: writes to given slots, reads the whole buffer."""

    def __init__(self, buffers: list[Tensor], slots: Tensor):
        super().__init__()
        self.buffers, self.slots, self.is_initialized = buffers, slots, True

    def update(self, key_states: Tensor, value_states: Tensor, *_, **__) -> tuple[Tensor, Tensor]:
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer.index_copy_(-2, self.slots, new)
        return tuple(self.buffers)


@dataclass(frozen=True)
class Forward:
    """A recorded forward over n nodes. Inputs: ids, positions (1, n), slots (n,), and for each kind of layer a mask
    (1, 1, n, capacity).

    replay returns logits (n, V) and the hidden states asked for, always in the same memory.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    masks: dict[str, Tensor]
    replay: Call


class Graphs:
    """Scores trees with recorded forwards of one model: ``Target(model, graphs=Graphs(model))``.

    capacity: slots for committed tokens and a tree, of a cache that all generations share, one at a time. sizes:
    numbers of nodes to record at. record: how to record a call (None: ``captured`` on a GPU, ``taped`` on the CPU). A
    forward that cannot be recorded is scored without graphs from then on, with a warning that says why. Raises
    ValueError on a capacity or a size below 1.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        capacity: int = 2048,
        sizes: Sequence[int] = SIZES,
        record: Callable[[Call], Call] | None = None,
    ):
        if capacity < 1 or min(sizes, default=0) < 1:
            raise ValueError(f"capacity and sizes must be at least 1, got {capacity} and {tuple(sizes)}")
        self.model, self.capacity, self.sizes = model, capacity, sorted(sizes)
        self.record = record or (captured if model.device.type == "cuda" else taped)
        self.cache, self.forwards, self.failed = TreeCache(capacity, fixed=True), {}, False

    def empty(self) -> TreeCache:
        """The cache for a new generation: in the last one's buffers, or in others if it has outgrown them."""
        fresh = TreeCache(self.capacity, fixed=True)
        if self.cache.capacity == self.capacity:
            fresh.layers, fresh.stores = self.cache.layers, self.cache.stores
            for layer in fresh.layers:
                layer.used = 0
        else:
            self.forwards = {}
        self.cache = fresh
        return fresh

    @torch.no_grad()
    def prepare(self, hidden_layers: Sequence[int] = ()) -> None:
        """Record forwards of all sizes now, not when a tree first needs one; empties the cache."""
        cache = self.empty()
        if not cache.layers:
            root = torch.zeros(1, 1, dtype=torch.int64, device=self.model.device)
            self.model(root, past_key_values=cache, use_cache=True)
            self.empty()
        for size in self.sizes:
            self._forward(size, tuple(hidden_layers))

    @torch.no_grad()
    def score(
        self, cache: TreeCache, ids: Tensor, positions: Tensor, mask: masks.Masks, hidden_layers: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]] | None:
        """Logits (n, V) and hidden states of a tree behind the cache's committed tokens, or None if it does not fit.

        ids, positions: (1, n) int64; mask: additive, (1, 1, n, committed + n), by kind of layer where they differ, or
        None for a root that sees everything. Raises RuntimeError if the cache is not the one last given out.
        """
        if cache is not self.cache:
            raise RuntimeError("these graphs serve another generation by now: one at a time, or graphs for each")
        n, start, layers = ids.shape[1], cache.length, tuple(hidden_layers)
        forward = self._forward(n, layers)
        if forward is None:
            return None
        size = len(forward.slots)
        forward.ids[:, :n] = ids
        forward.positions[:, :n] = positions
        forward.slots.copy_(torch.arange(start, start + size))
        for kind, own in forward.masks.items():
            own.fill_(torch.finfo(own.dtype).min)
            own.diagonal(start, -2, -1).fill_(0)  # what fills up sees itself, too: not a number would spread
            shown = mask[kind] if isinstance(mask, dict) else mask
            own[..., :n, : start + n] = 0 if shown is None else shown
        logits, *hidden = (rows[:n].clone() for rows in forward.replay())
        for layer in self.cache.layers:
            layer.used = start + n
        return logits, dict(zip(layers, hidden, strict=True))

    def _forward(self, n: int, layers: tuple[int, ...]) -> Forward | None:
        """The recorded forward that takes n nodes; None if there is none, or no room for it in the cache."""
        size = next((size for size in self.sizes if size >= n), None)
        if self.failed or size is None or not self.cache.length + size <= self.cache.capacity == self.capacity:
            return None
        if (size, layers) not in self.forwards:
            try:
                self.forwards[size, layers] = self._recorded(size, layers)
            except Exception as error:  # a model that does what cannot be recorded can still be run
                warnings.warn(f"no graphs for {type(self.model).__name__}: {error}", stacklevel=4)
                self.failed = True
        return self.forwards.get((size, layers))

    def _recorded(self, size: int, layers: tuple[int, ...]) -> Forward:
        device, whole = self.model.device, {"dtype": torch.int64, "device": self.model.device}
        ids, positions, slots = torch.zeros(1, size, **whole), torch.zeros(1, size, **whole), torch.zeros(size, **whole)
        slots.copy_(torch.arange(self.cache.length, self.cache.length + size))  # what stands there is not in use
        table = torch.zeros(1, 1, size, self.capacity, dtype=self.model.dtype, device=device)
        shown = {kind: table.clone() for kind in masks.layer_kinds(self.model)}
        mask = shown if len(shown) > 1 else next(iter(shown.values()))
        self.cache.shared()  # moves the buffers, for the last time
        fixed = Cache(layers=[FixedLayer(layer.buffers, slots) for layer in self.cache.layers])

        def call() -> tuple[Tensor, ...]:
            inputs = {"position_ids": positions, "attention_mask": mask, "past_key_values": fixed, "use_cache": True}
            out = self.model(ids, **inputs, output_hidden_states=bool(layers))
            return out.logits[0], *(out.hidden_states[layer][0] for layer in layers)

        return Forward(ids, positions, slots, shown, self.record(call))


def captured(call: Call) -> Call:
    """A call's kernels as one CUDA graph. Its first runs, which allocate, stay outside, on a stream of their own."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()

    def replay() -> tuple[Tensor, ...]:
        graph.replay()
        return results

    return replay


def taped(call: Call) -> Call:
    """A call's operations as a list that runs by itself, on the same tensors: a CUDA graph's counterpart on the CPU.

    Like a CUDA graph it knows nothing of the Python that ran around the operations, and a call that reads a number off
    a tensor cannot be recorded.
    """
    return make_fx(call)()
