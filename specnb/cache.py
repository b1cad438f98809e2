"""TreeCache: a transformers Cache that takes a whole tree in and keeps one path of it."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from inspect import signature

import torch
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.cache_utils import Cache, DynamicLayer

# By what name models of transformers take a cache: past_key_values, or cache from 5.24 on
ARGUMENT = ({"cache", "past_key_values"} & {*signature(LlamaForCausalLM.forward).parameters}).pop()


def zeros(shape: Sequence[int], like: Tensor) -> Tensor:
    """Zeros of a tensor's dtype and device; if made in torch.inference_mode(), they can be written to outside, too."""
    with torch.inference_mode(False):
        return torch.zeros(shape, dtype=like.dtype, device=like.device)


class TreeLayer(DynamicLayer):
    """One layer's keys and values in two buffers that double when full: a step appends without copying the past.

    The first ``used`` slots of the buffers count, the others hold numbers without meaning. capacity: that of the first
    buffers.
    """

    def __init__(self, capacity: int = 256):  # not super's, which would set keys and values
        self.buffers = [torch.empty(0, device="cpu"), torch.empty(0, device="cpu")]  # keys, values
        self.used, self.is_initialized = 0, False
        self.capacity = capacity

    @property
    def keys(self) -> Tensor:
        return self.buffers[0].narrow(-2, 0, self.used)

    @property
    def values(self) -> Tensor:
        return self.buffers[1].narrow(-2, 0, self.used)

    def lazy_initialization(self, key_states: Tensor, *_) -> None:
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True

    def update(self, key_states: Tensor, value_states: Tensor, *_, **__) -> tuple[Tensor, Tensor]:
        """Append (1, heads, n, head_dim) keys and values behind those in use; return all in use."""
        if not self.is_initialized:
            self.lazy_initialization(key_states)
        start, self.used = self.used, self.used + key_states.shape[-2]
        for which, new in enumerate((key_states, value_states)):
            old = self.buffers[which]
            if old.dim() != 4 or old.shape[-2] < self.used:
                batch, heads, _, width = new.shape
                slots = self.capacity if self.used <= self.capacity else 2 * self.used
                grown = zeros((batch, heads, slots, width), new)
                if start:
                    grown[..., :start, :] = old[..., :start, :]
                self.buffers[which] = grown
            self.buffers[which].narrow(-2, start, new.shape[-2]).copy_(new)
        return self.keys, self.values

    def drop(self, start: int, count: int) -> None:
        """Forget count slots from start on; what stands behind them moves up."""
        for buffer in self.buffers:
            buffer[..., start : self.used - count, :] = buffer[..., start + count : self.used, :].clone()
        self.used -= count

    def get_seq_length(self) -> int:
        return self.used


class TreeCache(Cache):
    """Keys and values of the committed tokens, followed by those of a tree still standing for election.

    ``length`` counts committed tokens. A forward pass appends its nodes behind them, in the order in which they
    were fed; ``commit(slots)`` gathers the elected nodes into place (never crop and recompute) and drops the rest.
    capacity: slots of its buffers to begin with. fixed: they are kept until they are full, for those who have recorded
    where they lie; else they grow before, all layers at once.
    """

    def __init__(self, capacity: int = 256, *, fixed: bool = False):
        self.fixed = fixed
        super().__init__(layer_class_to_replicate=partial(TreeLayer, capacity))
        self.length = 0
        self.stores: list[Tensor] = []

    @property
    def pending(self) -> int:
        """Number of slots in use behind the committed ones."""
        return (self.layers[0].used if self.layers else 0) - self.length

    @property
    def capacity(self) -> int:
        """Slots of a layer's buffers, 0 before the first forward."""
        return self.layers[0].buffers[0].shape[-2] if self.layers else 0

    def promote(self, count: int) -> None:
        """Count the first pending slots as committed, where they stand; the others stay pending."""
        if not 0 <= count <= self.pending:
            raise ValueError(f"cannot promote {count} of {self.pending} pending slots")
        self.length += count

    def commit(self, slots: Sequence[int]) -> None:
        """Keep the given pending slots (0: the root), in rising order, as the next committed tokens; drop the rest."""
        slots, fed = list(slots), self.pending
        if slots != sorted(set(slots)) or (slots and not 0 <= slots[0] <= slots[-1] < self.pending):
            raise ValueError(f"slots must rise within 0..{self.pending - 1}, got {slots}")
        if len(slots) < fed:
            there = next((i for i, slot in enumerate(slots) if slot != i), len(slots))  # these stand where they should
            if moved := [self.length + slot for slot in slots[there:]]:
                for store in self.shared():
                    rows = store.index_select(-2, torch.tensor(moved, device=store.device))
                    store.narrow(-2, self.length + there, len(moved)).copy_(rows)
            for layer in self.layers:
                layer.used = self.length + len(slots)
        if self.stores and not self.fixed and self.length + 3 * fed > self.capacity:  # else holes in memory
            self._stack(2 * self.capacity)
        elif self.stores:
            self.shared()  # lets go of what the layers have outgrown
        self.length += len(slots)

    def shared(self) -> list[Tensor]:
        """All layers' buffers stacked, one tensor per device and shape, so that slots move in all of them at once."""
        if not self.stores or self.stores[0].shape[-2] != self.capacity:  # they have grown one by one
            self._stack(self.capacity)
        return self.stores

    def _stack(self, capacity: int) -> None:
        alike = defaultdict(list)
        for layer in self.layers:
            for which, buffer in enumerate(layer.buffers):
                alike[buffer.device, buffer.shape].append((layer.buffers, which))
        self.stores = []
        for places in alike.values():
            buffers, which = places[0]
            *front, _, width = buffers[which].shape
            self.stores.append(zeros((len(places), *front, capacity, width), buffers[which]))
            for (buffers, which), row in zip(places, self.stores[-1], strict=True):
                row[..., : buffers[which].shape[-2], :] = buffers[which]
                buffers[which] = row
