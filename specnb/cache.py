"""TreeCache: a transformers Cache that takes a whole tree in and keeps one path of it."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class TreeLayer(DynamicLayer):
    """One layer's keys and values in a buffer that doubles when full: a step appends without copying the past."""

    def __init__(self):
        super().__init__()
        self.used = 0

    def lazy_initialization(self, key_states: Tensor, *_) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.buffers = [torch.empty(0), torch.empty(0)]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_, **__) -> tuple[Tensor, Tensor]:
        """Append (1, heads, n, head_dim) keys and values behind those in use; return all in use."""
        if not self.is_initialized:
            self.lazy_initialization(key_states)
        start, self.used = self.used, self.used + key_states.shape[-2]
        for which, new in enumerate((key_states, value_states)):
            old = self.buffers[which]
            if old.dim() != 4 or old.shape[-2] < self.used:
                batch, heads, _, width = new.shape
                grown = new.new_empty(batch, heads, max(2 * self.used, 256), width)
                if start:
                    grown[..., :start, :] = old[..., :start, :]
                self.buffers[which] = grown
            self.buffers[which].narrow(-2, start, new.shape[-2]).copy_(new)
        self._show()
        return self.keys, self.values

    def keep(self, start: int, slots: Tensor) -> None:
        """Move the given slots (rising, none before start) to start, start + 1, …; forget the rest."""
        self.used = start + len(slots)
        if len(slots):
            for buffer in self.buffers:
                buffer.narrow(-2, start, len(slots)).copy_(buffer.index_select(-2, slots))
        self._show()

    def drop(self, start: int, count: int) -> None:
        """Forget count slots from start on; what stands behind them moves up."""
        for buffer in self.buffers:
            buffer[..., start : self.used - count, :] = buffer[..., start + count : self.used, :].clone()
        self.used -= count
        self._show()

    def _show(self) -> None:
        keys, values = self.buffers
        self.keys, self.values = keys.narrow(-2, 0, self.used), values.narrow(-2, 0, self.used)

    def get_seq_length(self) -> int:
        return self.used


class TreeCache(Cache):
    """Keys and values of the committed tokens, followed by those of a tree still standing for election.

    ``length`` counts committed tokens. A forward pass appends its nodes behind them, in the order in which they
    were fed; ``commit(slots)`` gathers the elected nodes into place (never crop and recompute) and drops the rest.
    """

    def __init__(self):
        super().__init__(layer_class_to_replicate=TreeLayer)
        self.length = 0

    @property
    def pending(self) -> int:
        """Number of slots in use behind the committed ones."""
        return (self.layers[0].used if self.layers else 0) - self.length

    @property
    def nbytes(self) -> int:
        """Bytes of all layers' buffers, in use or not."""
        return sum(buffer.nbytes for layer in self.layers for buffer in layer.buffers)

    def promote(self, count: int) -> None:
        """Count the first pending slots as committed, where they stand; the others stay pending."""
        if not 0 <= count <= self.pending:
            raise ValueError(f"cannot promote {count} of {self.pending} pending slots")
        self.length += count

    def commit(self, slots: Sequence[int]) -> None:
        """Keep the given pending slots, in rising order, as the next committed tokens; drop the others."""
        slots = list(slots)
        if slots != sorted(set(slots)) or (slots and not 0 <= slots[0] <= slots[-1] < self.pending):
            raise ValueError(f"slots must rise within 0..{self.pending - 1}, got {slots}")
        if len(slots) < self.pending:
            there = next((i for i, slot in enumerate(slots) if slot != i), len(slots))  # these stand where they should
            moved = torch.tensor(slots[there:], dtype=torch.int64) + self.length
            for layer in self.layers:
                layer.keep(self.length + there, moved.to(layer.device))
        self.length += len(slots)
