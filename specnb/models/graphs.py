"""Graphs: a model's forward at a few fixed shapes, captured once and replayed without Python in between.

A small model's forward is many short kernels, and on a GPU launching them takes longer than running them. A CUDA graph
launches all of them at once, if they find their inputs, and leave their outputs, where they did when it was captured.
So trees are padded to the next of a few sizes, and keys and values stand in buffers of fixed capacity, of which the
mask shows what is in use. Whatever does not fit is scored as without graphs.

Example: three tokens are committed, and a tree of three nodes is scored by the forward captured for four. The nodes'
keys are written to the slots 3, 4 and 5 of the buffers, those of one row of padding to slot 6. The mask shows a node
the slots 0 to 2 and its ancestors among 3 to 5, and the padding itself alone. Afterwards six slots are in use: the next
forward writes over slot 6.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from transformers.cache_utils import Cache, DynamicLayer

from specnb import masks
from specnb.cache import ARGUMENT, TreeCache, zeros
from specnb.selfcheck import around
from specnb.target import call_options, evaluating

PLAIN = (bool, int, float, str, list, tuple)  # settings of a module that are compared
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)

Call = Callable[[], tuple[Tensor, ...]]


class FixedLayer(DynamicLayer):
    """One layer of a TreeCache as a captured forward sees it: writes to given slots, reads the whole buffer."""

    def __init__(self, buffers: list[Tensor], slots: Tensor):
        super().__init__()
        self.buffers = buffers  # keys and values, (1, heads, capacity, head_dim) each
        self.slots = slots  # (n,) int64
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_, **__) -> tuple[Tensor, Tensor]:
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer.index_copy_(-2, self.slots, new)
        return tuple(self.buffers)


@dataclass(frozen=True)
class CapturedForward:
    """A captured forward over n nodes. Inputs: numbers (3, n), their token ids, positions and slots; rows (1, n), these
    ids, or (1, n, width) vectors; and for each kind of layer a mask (1, 1, n, capacity).

    replay returns logits (n, V) and the hidden states asked for, always in the same memory.
    """

    numbers: Tensor
    rows: Tensor
    masks: dict[str, Tensor]
    replay: Call


class Home(NamedTuple):
    """Where captured forwards find keys and values: a cache's stores, and each layer's two buffers in them."""

    stores: list[Tensor]
    buffers: list[list[Tensor]]


class Graphs:
    """Scores trees with captured forwards of one model: ``Target(model, forwards=Graphs(model))``; drafts with it, too.

    capacity: slots for committed tokens and a tree, of a cache that all generations share, one at a time. sizes:
    numbers of nodes to capture at. capture: how to capture a call (None: ``as_cuda_graph`` on a GPU, ``as_operations``
    on the CPU). width: of the rows, where they are vectors and not token ids (trained heads). A forward that cannot be
    captured is scored without graphs from then on, with a warning that says why. Raises ValueError on a capacity or a
    size below 1.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        capacity: int = 2048,
        sizes: Sequence[int] = SIZES,
        capture: Callable[[Call], Call] | None = None,
        width: int | None = None,
    ):
        if capacity < 1 or min(sizes, default=0) < 1:
            raise ValueError(f"capacity and sizes must be at least 1, got {capacity} and {tuple(sizes)}")
        self.model = model
        self.capacity = capacity
        self.sizes = sorted(sizes)
        self.width = width
        self.like = next(model.parameters())  # of the device and dtype that masks and rows have
        if capture is None:
            capture = as_cuda_graph if self.like.is_cuda else as_operations
        self.capture = capture
        self._forget()

    def _forget(self) -> None:
        """Begin without captured forwards, for the model as it is now."""
        self.made_of = parts(self.model)
        self.cache = TreeCache(self.capacity, fixed=True)
        self.home: Home | None = None
        self.forwards: dict[tuple[int, tuple[int, ...]], CapturedForward] = {}  # by size and hidden layers
        self.failed = False

    def empty(self) -> TreeCache:
        """The cache for a new generation: in the captured forwards' buffers, also after one that has outgrown them.

        Captured forwards know the model's layers and tensors, not what has been put in their place: a model that was
        given others since (adapters, ``load_state_dict(assign=True)``) is captured anew.
        """
        if not alike(self.made_of, parts(self.model)):
            self._forget()
        self._settle()
        fresh = TreeCache(self.capacity, fixed=True)
        if self.home is not None:
            fresh.layers = self.cache.layers
            fresh.stores = self.home.stores
            for layer, buffers in zip(fresh.layers, self.home.buffers, strict=True):
                layer.buffers[:] = buffers  # in place: captured forwards hold this very list
                layer.used = 0
        self.cache = fresh
        return fresh

    def _settle(self) -> None:
        """Move the buffers of all layers together, once: captured forwards know where they lie."""
        if self.home is None and self.cache.capacity == self.capacity:
            stores = self.cache.shared()
            self.home = Home(stores, [[*layer.buffers] for layer in self.cache.layers])

    @torch.no_grad()
    def prepare(self, hidden_layers: Sequence[int] = ()) -> None:
        """Capture forwards of all sizes now, not when a tree first needs one; empties the cache."""
        cache = self.empty()
        if not cache.layers:  # the first forward makes them
            numbers = self._numbers(1)
            self._run(numbers, self._rows(numbers), None, cache, ())
            self.empty()
        for size in self.sizes:
            self._forward(0, size, tuple(hidden_layers))

    @torch.no_grad()
    def score(
        self, cache: TreeCache, rows: Tensor, positions: Tensor, mask: masks.Masks, hidden_layers: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]] | None:
        """Logits (n, V) and hidden states of nodes behind all that is in the cache; None where they do not fit.

        rows: (1, n) int64 ids, or (1, n, width) vectors; positions: (1, n) int64; mask: additive, (1, 1, n, in use + n)
        by kind of layer where they differ, or None for a root that sees everything. Raises RuntimeError if the cache is
        not the one last given out.
        """
        if cache is not self.cache:
            raise RuntimeError("these graphs serve another generation by now: one at a time, or graphs for each")
        n = rows.shape[1]
        start = cache.length + cache.pending
        hidden_layers = tuple(hidden_layers)
        forward = self._forward(start, n, hidden_layers)
        if forward is None:
            return None
        self._fill_in(forward, start, rows, positions, mask)
        logits, *states = (result[:n].clone() for result in forward.replay())
        for layer in self.cache.layers:
            layer.used = start + n
        return logits, dict(zip(hidden_layers, states, strict=True))

    def _fill_in(
        self, forward: CapturedForward, start: int, rows: Tensor, positions: Tensor, mask: masks.Masks
    ) -> None:
        """Write a tree into a captured forward's inputs, which have room for as many nodes or more."""
        n = rows.shape[1]
        size = forward.numbers.shape[1]
        numbers = torch.zeros(3, size, dtype=torch.int64, device="cpu")  # filled here, moved at once
        if self.width is None:
            numbers[:1, :n] = rows
        else:
            forward.rows[:, :n] = rows
        numbers[1, :n] = positions
        numbers[2] = torch.arange(start, start + size, device="cpu")
        forward.numbers.copy_(numbers)
        for kind, its_mask in forward.masks.items():
            its_mask.fill_(torch.finfo(its_mask.dtype).min)
            its_mask.diagonal(start, -2, -1).fill_(0)  # padding sees itself, too: not a number would spread
            shown = mask[kind] if isinstance(mask, dict) else mask
            its_mask[..., :n, : start + n] = 0 if shown is None else shown

    def _forward(self, start: int, n: int, hidden_layers: tuple[int, ...]) -> CapturedForward | None:
        """The captured forward that takes n nodes; None if there is none, or no room for it in the cache."""
        size = next((size for size in self.sizes if size >= n), None)
        if self.failed or size is None:
            return None
        outgrown = self.cache.capacity != self.capacity
        if outgrown or start + size > self.capacity:
            return None
        if (size, hidden_layers) not in self.forwards:
            try:
                self.forwards[size, hidden_layers] = self._captured(start, size, hidden_layers)
            except Exception as error:  # a model that does what cannot be captured can still be run
                warnings.warn(f"no graphs for {type(self.model).__name__}: {error}", stacklevel=4)
                self.failed = True
        return self.forwards.get((size, hidden_layers))

    def _captured(self, start: int, size: int, hidden_layers: tuple[int, ...]) -> CapturedForward:
        numbers = self._numbers(size)
        numbers[2] = torch.arange(start, start + size, device="cpu")  # what stands there is not in use
        rows = self._rows(numbers)
        kinds = masks.layer_kinds(self.model)
        mask_of_kind = {kind: zeros((1, 1, size, self.capacity), self.like) for kind in kinds}
        mask = mask_of_kind if len(kinds) > 1 else mask_of_kind[kinds[0]]
        self._settle()
        cache = Cache(layers=[FixedLayer(layer.buffers, numbers[2]) for layer in self.cache.layers])
        replay = self.capture(lambda: self._run(numbers, rows, mask, cache, hidden_layers))
        return CapturedForward(numbers, rows, mask_of_kind, replay)

    def _numbers(self, size: int) -> Tensor:
        """Room for the token ids, positions and slots of so many nodes."""
        integers = torch.empty(0, dtype=torch.int64, device=self.like.device)
        return zeros((3, size), integers)

    def _rows(self, numbers: Tensor) -> Tensor:
        """The rows of a forward over these numbers: its token ids, or room for vectors."""
        if self.width is None:
            return numbers[:1]
        return zeros((1, numbers.shape[1], self.width), self.like)

    def _run(
        self, numbers: Tensor, rows: Tensor, mask: masks.Masks, cache: Cache, hidden_layers: Sequence[int]
    ) -> tuple[Tensor, ...]:
        """Call the model: logits (n, V), and the hidden states (n, width) asked for."""
        inputs = {"input_ids" if self.width is None else "inputs_embeds": rows, "attention_mask": mask}
        inputs |= {"position_ids": numbers[1:2], ARGUMENT: cache, "use_cache": True}
        with evaluating(self.model):
            out = self.model(**inputs, output_hidden_states=bool(hidden_layers), **call_options(self.model))
        states = [out.hidden_states[layer][0] for layer in hidden_layers]
        return (out.logits[0], *states)


def parts(model: nn.Module) -> list[tuple]:
    """What a captured forward depends on: a model's modules with their plain settings, and its tensors.

    Pairs of an object (module, configuration or storage) and what may change of it. The tensors' storages are kept, so
    that no other tensor can come to lie in the same place.
    """
    pairs: list[tuple] = []
    for module in model.modules():
        settings = plain_settings(module)
        settings.pop("training")  # forwards are captured in evaluation mode
        pairs.append((module, (settings, type(module), *around(module))))
    config = getattr(model, "config", None)
    if config is not None:
        pairs.append((config, plain_settings(config)))
    for tensor in (*model.parameters(), *model.buffers()):
        version = None if tensor.is_inference() else tensor._version
        pairs.append((tensor.untyped_storage(), (tensor.data_ptr(), version)))
    return pairs


def plain_settings(owner) -> dict[str, str]:
    """Those settings of a module or configuration that are numbers, words, or collections of them."""
    settings = {}
    for name, value in vars(owner).items():
        if type(value) is dict:
            plain = all(isinstance(inner, PLAIN) for inner in value.values())
        else:
            plain = isinstance(value, PLAIN)
        if plain:
            settings[name] = repr(value)
    return settings


def alike(then: list[tuple], now: list[tuple]) -> bool:
    """Whether a model's parts are the very ones of before."""
    if len(then) != len(now):
        return False
    for (old, old_state), (new, new_state) in zip(then, now, strict=True):
        if not _same_object(old, new) or old_state != new_state:
            return False
    return True


def _same_object(old: object, new: object) -> bool:
    if isinstance(old, torch.UntypedStorage) and isinstance(new, torch.UntypedStorage):
        return old.data_ptr() == new.data_ptr()  # each call of untyped_storage makes another Python object
    return old is new


def as_cuda_graph(call: Call) -> Call:
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


def as_operations(call: Call) -> Call:
    """A call's operations as a list that runs by itself, on the same tensors: a CUDA graph's counterpart on the CPU.

    Like a CUDA graph it knows nothing of the Python that ran around the operations, and a call that reads a number off
    a tensor cannot be captured.
    """
    return make_fx(call)()
