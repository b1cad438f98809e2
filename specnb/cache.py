"""TreeCache: a transformers Cache that takes in all nodes of a tree and keeps the accepted path.

A slot is the index of a token's key and value in a layer's buffers.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from inspect import signature

import torch
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.cache_utils import Cache, DynamicLayer

# The name of the cache argument in transformers' forwards: past_key_values, or cache from 5.24 on
ARGUMENT = "past_key_values"
if "cache" in signature(LlamaForCausalLM.forward).parameters:
    ARGUMENT = "cache"


def zeros(shape: Sequence[int], like: Tensor) -> Tensor:
    """Return zeros with the dtype and device of ``like``, which may be written to outside torch.inference_mode(), too.

    A tensor made inside inference mode could not be, and a cache may outlive the block.
    """
    with torch.inference_mode(False):
        return torch.zeros(shape, dtype=like.dtype, device=like.device)


class TreeLayer(DynamicLayer):
    """One layer's keys and values in two buffers that double when full: a step appends without copying the past.

    The first ``used`` slots of the buffers are valid; the others contain arbitrary numbers.
    capacity: the number of slots of the first buffers.
    """

    def __init__(self, capacity: int = 256):  # without super().__init__, which would set keys and values
        self.buffers = [torch.empty(0, device="cpu"), torch.empty(0, device="cpu")]  # keys, values
        self.used = 0
        self.is_initialized = False
        self.capacity = capacity

    @property
    def keys(self) -> Tensor:
        return self.buffers[0].narrow(-2, 0, self.used)

    @property
    def values(self) -> Tensor:
        return self.buffers[1].narrow(-2, 0, self.used)

    def lazy_initialization(self, key_states: Tensor, *_) -> None:
        self.dtype = key_states.dtype
        self.device = key_states.device
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_, **__) -> tuple[Tensor, Tensor]:
        """Append keys and values, (1, heads, n, head_dim) each; return all that are in use."""
        if not self.is_initialized:
            self.lazy_initialization(key_states)
        start = self.used
        self.used += key_states.shape[-2]
        for which, new in enumerate((key_states, value_states)):
            buffer = self.buffers[which]
            is_empty = buffer.dim() != 4
            if is_empty or buffer.shape[-2] < self.used:
                self.buffers[which] = self._larger(buffer, start, new)
            slots = self.buffers[which].narrow(-2, start, new.shape[-2])
            slots.copy_(new)
        return self.keys, self.values

    def _larger(self, buffer: Tensor, start: int, new: Tensor) -> Tensor:
        """Return a buffer with room for all slots in use, with the first ``start`` slots of the old one copied."""
        batch, heads, _, width = new.shape
        slots = self.capacity if self.used <= self.capacity else 2 * self.used
        larger = zeros((batch, heads, slots, width), new)
        if start > 0:
            larger[..., :start, :] = buffer[..., :start, :]
        return larger

    def drop(self, start: int, count: int) -> None:
        """Remove count slots from start on; the slots after them move up."""
        for buffer in self.buffers:
            later = buffer[..., start + count : self.used, :].clone()  # source and destination may overlap
            buffer[..., start : self.used - count, :] = later
        self.used -= count

    def get_seq_length(self) -> int:
        return self.used


class TreeCache(Cache):
    """Keys and values of the committed tokens, followed by those of a tree that is not verified yet (pending slots).

    Example: five tokens are committed and a tree of four nodes was fed, so slots 5 to 8 are pending; commit counts them
    from 0 to 3. ``commit([0, 2])`` leaves slot 5 as it is, copies slot 7 to slot 6, and drops the rest: seven tokens
    are committed, none is pending.

    ``length`` is the number of committed tokens. A forward pass appends its nodes after them, in the order in which
    they were fed. ``commit(slots)`` moves the accepted nodes next to the committed ones and drops the rest; nothing is
    computed again.

    capacity: the number of slots of the first buffers.
    fixed: True keeps the buffers at their addresses until they are full, for captured CUDA graphs. False lets all
        layers grow together a little earlier.
    """

    def __init__(self, capacity: int = 256, *, fixed: bool = False):
        self.fixed = fixed
        super().__init__(layer_class_to_replicate=partial(TreeLayer, capacity))
        self.length = 0
        self.stores: list[Tensor] = []  # the stacked buffers of all layers, see ``shared``

    @property
    def pending(self) -> int:
        """The number of slots in use after the committed ones."""
        used = self.layers[0].used if self.layers else 0
        return used - self.length

    @property
    def capacity(self) -> int:
        """The number of slots of a layer's buffers, 0 before the first forward."""
        return self.layers[0].buffers[0].shape[-2] if self.layers else 0

    def promote(self, count: int) -> None:
        """Commit the first count pending slots without moving them; the others stay pending."""
        if not 0 <= count <= self.pending:
            raise ValueError(f"cannot promote {count} of {self.pending} pending slots")
        self.length += count

    def commit(self, slots: Sequence[int]) -> None:
        """Keep the given pending slots (0: the root), in rising order, as the next committed tokens; drop the rest."""
        slots = list(slots)
        fed = self.pending
        is_rising = slots == sorted(set(slots))
        is_pending = all(0 <= slot < fed for slot in slots)
        if not (is_rising and is_pending):
            raise ValueError(f"slots must rise within 0..{fed - 1}, got {slots}")
        if len(slots) < fed:
            self._gather(slots)
            for layer in self.layers:
                layer.used = self.length + len(slots)
        if self.stores:
            self._make_room(fed)
        self.length += len(slots)

    def _gather(self, slots: list[int]) -> None:
        """In all layers, copy these pending slots to the first pending ones."""
        in_place = 0  # the number of first slots that need not move
        while in_place < len(slots) and slots[in_place] == in_place:
            in_place += 1
        sources = [self.length + slot for slot in slots[in_place:]]
        if not sources:
            return
        for store in self.shared():
            moved = store.index_select(-2, torch.tensor(sources, device=store.device))  # a copy: slots may overlap
            destination = store.narrow(-2, self.length + in_place, len(sources))
            destination.copy_(moved)

    def _make_room(self, fed: int) -> None:
        """Grow all layers together before a single one has to grow, unless they are fixed.

        If layers grew one by one, their old buffers would leave holes in memory. Room for about two more trees of this
        size must be left.
        """
        if not self.fixed and self.length + 3 * fed > self.capacity:
            self._stack(2 * self.capacity)
        else:
            self.shared()  # called to free stores that the layers have outgrown

    def shared(self) -> list[Tensor]:
        """Return all layers' buffers stacked, one tensor per device and shape, so that slots move in all at once."""
        if not self.stores or self.stores[0].shape[-2] != self.capacity:  # they have grown one by one
            self._stack(self.capacity)
        return self.stores

    def _stack(self, capacity: int) -> None:
        """Move all layers' buffers into new stores of this number of slots."""
        # (device, shape) → the buffers that have them, each as its layer and 0 for keys or 1 for values
        alike: dict[tuple, list[tuple[TreeLayer, int]]] = defaultdict(list)
        for layer in self.layers:
            for which, buffer in enumerate(layer.buffers):
                alike[buffer.device, buffer.shape].append((layer, which))
        self.stores = []
        for (_, shape), owners in alike.items():
            *front, slots, width = shape
            first_layer, which = owners[0]
            store = zeros((len(owners), *front, capacity, width), first_layer.buffers[which])
            self.stores.append(store)
            for (layer, which), larger in zip(owners, store, strict=True):
                larger[..., :slots, :] = layer.buffers[which]
                layer.buffers[which] = larger  # a view of the store
