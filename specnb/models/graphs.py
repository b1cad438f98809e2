"""Graphs: a model's forward at a few fixed shapes, recorded once and replayed without Python in between.

A small model's forward is many short kernels, and on a GPU launching them takes longer than running them. A CUDA graph
launches all of them at once, if they find their inputs, and leave their outputs, where they did when it was recorded.
So trees are padded to the next of a few sizes, and keys and values stand in buffers of fixed capacity, of which the
mask shows what is in use. Whatever does not fit is scored as without graphs.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    """A recorded forward over n nodes. Inputs: numbers (3, n), their token ids, positions and slots; rows (1, n), these
    ids, or (1, n, width) vectors; and for each kind of layer a mask (1, 1, n, capacity).

    replay returns logits (n, V) and the hidden states asked for, always in the same memory.
    """

    numbers: Tensor
    rows: Tensor
    masks: dict[str, Tensor]
    replay: Call


class Graphs:
    """Scores trees with recorded forwards of one model: ``Target(model, forwards=Graphs(model))``; drafts with it, too.

    capacity: slots for committed tokens and a tree, of a cache that all generations share, one at a time. sizes:
    numbers of nodes to record at. record: how to record a call (None: ``captured`` on a GPU, ``taped`` on the CPU).
    width: of the rows, where they are vectors and not token ids (trained heads). A forward that cannot be recorded is
    scored without graphs from then on, with a warning that says why. Raises ValueError on a capacity or a size below 1.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        capacity: int = 2048,
        sizes: Sequence[int] = SIZES,
        record: Callable[[Call], Call] | None = None,
        width: int | None = None,
    ):
        if capacity < 1 or min(sizes, default=0) < 1:
            raise ValueError(f"capacity and sizes must be at least 1, got {capacity} and {tuple(sizes)}")
        self.model, self.capacity, self.sizes, self.width = model, capacity, sorted(sizes), width
        self.like = next(model.parameters())
        self.record = record or (captured if self.like.is_cuda else taped)
        self._forget()

    def _forget(self) -> None:
        """Begin without recordings, for the model as it is now."""
        self.made_of = parts(self.model)
        self.cache, self.home = TreeCache(self.capacity, fixed=True), None
        self.forwards, self.failed = {}, False

    def empty(self) -> TreeCache:
        """The cache for a new generation: in the recordings' buffers, also after one that has outgrown them.

        Recordings know the model's layers and tensors, not what has been put in their place: a model that was given
        others since (adapters, ``load_state_dict(assign=True)``) is recorded anew.
        """
        if not alike(self.made_of, parts(self.model)):
            self._forget()
        self._settle()
        fresh = TreeCache(self.capacity, fixed=True)
        if self.home:
            fresh.layers, (fresh.stores, buffers) = self.cache.layers, self.home
            for layer, own in zip(fresh.layers, buffers, strict=True):
                layer.buffers[:], layer.used = own, 0
        self.cache = fresh
        return fresh

    def _settle(self) -> None:
        """Move the buffers of all layers together, once: recordings know where they lie."""
        if not self.home and self.cache.capacity == self.capacity:
            self.home = self.cache.shared(), [[*layer.buffers] for layer in self.cache.layers]

    @torch.no_grad()
    def prepare(self, hidden_layers: Sequence[int] = ()) -> None:
        """Record forwards of all sizes now, not when a tree first needs one; empties the cache."""
        cache = self.empty()
        if not cache.layers:
            numbers = self._numbers(1)
            self._run(numbers, self._rows(numbers), None, cache, ())
            self.empty()
        for size in self.sizes:
            self._forward(0, size, tuple(hidden_layers))

    @torch.no_grad()
    def score(
        self, cache: TreeCache, rows: Tensor, positions: Tensor, mask: masks.Masks, hidden_layers: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]] | None:
        """Logits (n, V) and hidden states of nodes behind all that is in the cache, or None if they do not fit.

        rows: (1, n) int64 ids, or (1, n, width) vectors; positions: (1, n) int64; mask: additive, (1, 1, n, in use + n)
        by kind of layer where they differ, or None for a root that sees everything. Raises RuntimeError if the cache is
        not the one last given out.
        """
        if cache is not self.cache:
            raise RuntimeError("these graphs serve another generation by now: one at a time, or graphs for each")
        n, start, layers = rows.shape[1], cache.length + cache.pending, tuple(hidden_layers)
        forward = self._forward(start, n, layers)
        if forward is None:
            return None
        size = forward.numbers.shape[1]
        numbers = torch.zeros(3, size, dtype=torch.int64, device="cpu")  # filled here, moved at once
        numbers[1, :n] = positions
        numbers[2] = torch.arange(start, start + size, device="cpu")
        (numbers[:1] if self.width is None else forward.rows)[:, :n] = rows
        forward.numbers.copy_(numbers)
        for kind, own in forward.masks.items():
            own.fill_(torch.finfo(own.dtype).min)
            own.diagonal(start, -2, -1).fill_(0)  # what fills up sees itself, too: not a number would spread
            shown = mask[kind] if isinstance(mask, dict) else mask
            own[..., :n, : start + n] = 0 if shown is None else shown
        logits, *hidden = (rows[:n].clone() for rows in forward.replay())
        for layer in self.cache.layers:
            layer.used = start + n
        return logits, dict(zip(layers, hidden, strict=True))

    def _forward(self, start: int, n: int, layers: tuple[int, ...]) -> Forward | None:
        """The recorded forward that takes n nodes; None if there is none, or no room for it in the cache."""
        size = next((size for size in self.sizes if size >= n), None)
        if self.failed or size is None or not start + size <= self.cache.capacity == self.capacity:
            return None
        if (size, layers) not in self.forwards:
            try:
                self.forwards[size, layers] = self._recorded(start, size, layers)
            except Exception as error:  # a model that does what cannot be recorded can still be run
                warnings.warn(f"no graphs for {type(self.model).__name__}: {error}", stacklevel=4)
                self.failed = True
        return self.forwards.get((size, layers))

    def _recorded(self, start: int, size: int, layers: tuple[int, ...]) -> Forward:
        numbers = self._numbers(size)
        numbers[2] = torch.arange(start, start + size, device="cpu")  # what stands there is not in use
        rows = self._rows(numbers)
        shown = {kind: zeros((1, 1, size, self.capacity), self.like) for kind in masks.layer_kinds(self.model)}
        mask = shown if len(shown) > 1 else next(iter(shown.values()))
        self._settle()
        fixed = Cache(layers=[FixedLayer(layer.buffers, numbers[2]) for layer in self.cache.layers])
        return Forward(numbers, rows, shown, self.record(lambda: self._run(numbers, rows, mask, fixed, layers)))

    def _numbers(self, size: int) -> Tensor:
        """Room for the token ids, positions and slots of so many nodes."""
        return zeros((3, size), torch.empty(0, dtype=torch.int64, device=self.like.device))

    def _rows(self, numbers: Tensor) -> Tensor:
        return numbers[:1] if self.width is None else zeros((1, numbers.shape[1], self.width), self.like)

    def _run(self, numbers: Tensor, rows: Tensor, mask: masks.Masks, cache: Cache, layers: Sequence[int]) -> tuple:
        inputs = {"input_ids" if self.width is None else "inputs_embeds": rows, "attention_mask": mask}
        inputs |= {"position_ids": numbers[1:2], ARGUMENT: cache, "use_cache": True}
        with evaluating(self.model):
            out = self.model(**inputs, output_hidden_states=bool(layers), **call_options(self.model))
        return out.logits[0], *(out.hidden_states[layer][0] for layer in layers)


def parts(model: nn.Module) -> list[tuple]:
    """What a recorded forward depends on: a model's modules with their plain settings, and its tensors.

    The tensors' storages are kept, so that no other tensor can come to lie in the same place.
    """
    found: list[tuple] = []
    for module in model.modules():
        settings = plain_settings(module)
        settings.pop("training")  # recordings are made in evaluation mode
        found.append((module, (settings, type(module), *around(module))))
    config = getattr(model, "config", None)
    if config is not None:
        found.append((config, plain_settings(config)))
    for tensor in (*model.parameters(), *model.buffers()):
        version = None if tensor.is_inference() else tensor._version
        found.append((tensor.untyped_storage(), (tensor.data_ptr(), version)))
    return found


def plain_settings(owner) -> dict[str, str]:
    """Those settings of a module or configuration that are numbers, words, or collections of them."""
    found = {}
    for name, value in vars(owner).items():
        inside = value.values() if type(value) is dict else ()
        if isinstance(value, PLAIN) or (type(value) is dict and all(isinstance(one, PLAIN) for one in inside)):
            found[name] = repr(value)
    return found


def alike(then: list[tuple], now: list[tuple]) -> bool:
    """Whether a model's parts are the very ones of before."""
    if len(then) != len(now):
        return False
    for (old, old_facts), (new, new_facts) in zip(then, now, strict=True):
        tensors = isinstance(old, torch.UntypedStorage) and isinstance(new, torch.UntypedStorage)
        same = old.data_ptr() == new.data_ptr() if tensors else old is new
        if not same or old_facts != new_facts:
            return False
    return True


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
