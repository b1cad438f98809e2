"""Graphs: a model's forward is captured once at each of a few fixed sizes, and replayed without Python in between.

The forward of a small model is made of many short kernels, and on a GPU launching a kernel takes longer than running
it. A CUDA graph launches all of them at once. But a graph replays on fixed addresses: its inputs and outputs must lie
where they lay at capture. Therefore trees are padded to the next of a few sizes, and the keys and values of all tokens
are kept in buffers of fixed capacity, whose unused part the mask hides. A tree that is too large, or a text that is
too long, is scored by calling the model.

Example: three tokens are committed, and a tree of three nodes is scored by the forward that was captured for four. The
nodes' keys are written to the slots 3, 4 and 5 of the buffers, and those of the one padding row to slot 6. Each node
sees the slots 0 to 2, its ancestors' and its own; the padding row sees only itself. Afterwards six slots are in use,
and the next forward writes over slot 6.
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

PLAIN = (bool, int, float, str, list, tuple)  # types of the settings that ``plain_settings`` compares
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)  # numbers of nodes

Call = Callable[[], tuple[Tensor, ...]]  # a forward with all of its inputs bound; it returns logits and hidden states


class FixedLayer(DynamicLayer):
    """One layer of a TreeCache as a captured forward sees it: it writes to given slots and returns the full buffers."""

    def __init__(self, buffers: list[Tensor], slots: Tensor):
        super().__init__()
        self.buffers = buffers  # keys and values, (1, heads, capacity, head_dim) each
        self.slots = slots  # (n,) int64: a view of ids_positions_slots[2], which is filled anew before each replay
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_, **__) -> tuple[Tensor, Tensor]:
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer.index_copy_(-2, self.slots, new)
        return tuple(self.buffers)


@dataclass(frozen=True)
class CapturedForward:
    """A forward captured for n nodes. Its inputs are filled in before each replay, always in the same memory."""

    ids_positions_slots: Tensor  # (3, n) int64: the nodes' token ids, their positions, the slots their keys go to
    inputs: Tensor  # (1, n) token ids, a view of ids_positions_slots[:1]; or (1, n, width) vectors
    mask_of_kind: dict[str, Tensor]  # kind of layer → additive mask (1, 1, n, capacity)
    replay: Call  # returns logits (n, V) and the hidden states asked for, always in the same memory


class FixedBuffers(NamedTuple):
    """The memory in which captured forwards find keys and values; a cache that outgrows it gets other memory."""

    stores: list[Tensor]  # a TreeCache's stores: many layers' buffers stacked in one tensor
    buffers: list[list[Tensor]]  # for each layer, its keys and its values: views of the stores


class Graphs:
    """Scores trees with captured forwards of one model: ``Target(model, forwards=Graphs(model))``.

    Draft models take one, too. All generations share one cache, so that only one generation can run at a time.

    capacity: the slots of the cache, which have to contain the committed tokens and a tree.
    sizes: the numbers of nodes at which forwards are captured.
    capture: how a call is captured; None takes ``as_cuda_graph`` on a GPU and ``as_operations`` on the CPU.
    width: the width of the input vectors, for models that read vectors instead of token ids (trained draft heads).

    If a forward cannot be captured, a warning says why, and from then on the model is called. Raises ValueError on a
    capacity or a size below 1.
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
        self.like = next(model.parameters())  # masks and input vectors have its device and dtype
        if capture is None:
            capture = as_cuda_graph if self.like.is_cuda else as_operations
        self.capture = capture
        self._forget()

    def _forget(self) -> None:
        """Drop all captured forwards, and remember the model as it is now."""
        self.made_of = parts(self.model)
        self.cache = TreeCache(self.capacity, fixed=True)
        self.fixed_buffers: FixedBuffers | None = None  # set before the first capture
        self.forwards: dict[tuple[int, tuple[int, ...]], CapturedForward] = {}  # by size and hidden layers
        self.failed = False

    def empty(self) -> TreeCache:
        """Return a new cache for the next generation; the last one, whose memory it takes over, is stale from now on.

        The new cache starts in the buffers that captured forwards know, even if the last generation has outgrown them.
        A captured forward keeps using the modules and tensors it was captured with. So if the model has been given
        others since (adapters, ``load_state_dict(assign=True)``), all captures are dropped here and made anew later.
        """
        if not alike(self.made_of, parts(self.model)):
            self._forget()
        if not self.forwards:
            self.fixed_buffers = None  # nobody knows these buffers, and an interrupted first forward made only some
        fresh = TreeCache(self.capacity, fixed=True)
        if self.fixed_buffers is not None:
            fresh.layers = self.cache.layers
            fresh.stores = self.fixed_buffers.stores
            for layer, buffers in zip(fresh.layers, self.fixed_buffers.buffers, strict=True):
                layer.buffers[:] = buffers  # in place: captured forwards refer to this very list
                layer.used = 0
        self.cache = fresh
        return fresh

    def _settle(self) -> None:
        """Before the first capture, move the buffers of all layers into shared stores; later calls do nothing.

        ``TreeCache.commit`` would move them when it first copies slots, and captured forwards would go on using the old
        memory.
        """
        if self.fixed_buffers is None and self.cache.capacity == self.capacity:
            stores = self.cache.shared()
            buffers = [[*layer.buffers] for layer in self.cache.layers]
            self.fixed_buffers = FixedBuffers(stores, buffers)

    @torch.no_grad()
    def prepare(self, hidden_layers: Sequence[int] = ()) -> None:
        """Capture forwards of all sizes now, not when a tree first needs one; empties the cache."""
        cache = self.empty()
        if not cache.layers:  # a cache gets its layers in its first forward
            ids_positions_slots = self._room_for_numbers(1)
            inputs = self._room_for_inputs(ids_positions_slots)
            self._run(ids_positions_slots, inputs, None, cache, ())
            cache.commit([])  # drops the one node that was fed
        for size in self.sizes:
            self._forward(0, size, tuple(hidden_layers))

    @torch.no_grad()
    def score(
        self, cache: TreeCache, rows: Tensor, positions: Tensor, mask: masks.Masks, hidden_layers: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]] | None:
        """Score n nodes that follow everything in the cache: logits (n, V), and the hidden states (n, width) asked for.

        None for nodes that do not fit; the caller then calls the model.

        cache: the one that ``empty`` returned last.
        rows: (1, n) int64 token ids, or (1, n, width) vectors.
        positions: (1, n) int64.
        mask: additive, (1, 1, n, slots in use + n), or one such mask for each kind of layer; None for a root alone,
            which sees everything.
        hidden_layers: indices into transformers' hidden_states.

        Raises RuntimeError if the cache is an earlier one.
        """
        if cache is not self.cache:
            raise RuntimeError(
                "this cache is stale, its graphs serve another generation by now: Graphs serves one generation at a "
                "time; make another Graphs for each parallel one"
            )
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
        """Write a tree's n nodes into the inputs of a captured forward, which has room for n or more."""
        n = rows.shape[1]
        size = forward.ids_positions_slots.shape[1]
        ids_positions_slots = torch.zeros(3, size, dtype=torch.int64, device="cpu")  # filled here, copied once
        if self.width is None:
            ids_positions_slots[:1, :n] = rows
        else:
            forward.inputs[:, :n] = rows
        ids_positions_slots[1, :n] = positions
        ids_positions_slots[2] = torch.arange(start, start + size, device="cpu")
        forward.ids_positions_slots.copy_(ids_positions_slots)
        for kind, additive in forward.mask_of_kind.items():
            additive.fill_(torch.finfo(additive.dtype).min)
            # Each row sees itself, padding rows too. A row that sees nothing may come out as NaN, and so would its keys
            # and values in the next layer; there even a row that hides them would add 0 · NaN, which is NaN.
            additive.diagonal(start, -2, -1).fill_(0)
            of_tree = mask[kind] if isinstance(mask, dict) else mask
            additive[..., :n, : start + n] = 0 if of_tree is None else of_tree

    def _forward(self, start: int, n: int, hidden_layers: tuple[int, ...]) -> CapturedForward | None:
        """The captured forward that takes n nodes; None if there is none, or no room for it in the cache."""
        size = next((size for size in self.sizes if size >= n), None)
        if self.failed or size is None:
            return None
        # Before a cache's first forward its capacity is 0, so that one is not replayed either.
        has_other_buffers = self.cache.capacity != self.capacity
        if has_other_buffers or start + size > self.capacity:
            return None
        if (size, hidden_layers) not in self.forwards:
            try:
                self.forwards[size, hidden_layers] = self._capture_forward(start, size, hidden_layers)
            except Exception as error:  # a model that does what cannot be captured can still be called
                warnings.warn(f"no graphs for {type(self.model).__name__}: {error}", stacklevel=4)
                self.failed = True
        return self.forwards.get((size, hidden_layers))

    def _capture_forward(self, start: int, size: int, hidden_layers: tuple[int, ...]) -> CapturedForward:
        """Make the inputs of a forward over this many nodes, and capture the model's call on them.

        Capturing also executes the call. It writes meaningless keys and values, so it is given the slots from start on,
        which are not in use.
        """
        ids_positions_slots = self._room_for_numbers(size)
        ids_positions_slots[2] = torch.arange(start, start + size, device="cpu")
        inputs = self._room_for_inputs(ids_positions_slots)
        kinds = masks.layer_kinds(self.model)
        mask_of_kind = {kind: zeros((1, 1, size, self.capacity), self.like) for kind in kinds}
        mask = mask_of_kind if len(kinds) > 1 else mask_of_kind[kinds[0]]
        self._settle()
        cache = Cache(layers=[FixedLayer(layer.buffers, ids_positions_slots[2]) for layer in self.cache.layers])
        replay = self.capture(lambda: self._run(ids_positions_slots, inputs, mask, cache, hidden_layers))
        return CapturedForward(ids_positions_slots, inputs, mask_of_kind, replay)

    # Inputs are made by ``cache.zeros``: unlike torch.zeros, it makes tensors that can be written to outside of
    # torch.inference_mode() even when it is called inside.

    def _room_for_numbers(self, size: int) -> Tensor:
        """(3, size) zeros, for the token ids, positions and slots of this many nodes."""
        integers = torch.empty(0, dtype=torch.int64, device=self.like.device)
        return zeros((3, size), integers)

    def _room_for_inputs(self, ids_positions_slots: Tensor) -> Tensor:
        """What the model reads in a forward with these numbers: their token ids, as a view, or room for vectors."""
        if self.width is None:
            return ids_positions_slots[:1]
        return zeros((1, ids_positions_slots.shape[1], self.width), self.like)

    def _run(
        self, ids_positions_slots: Tensor, inputs: Tensor, mask: masks.Masks, cache: Cache, hidden_layers: Sequence[int]
    ) -> tuple[Tensor, ...]:
        """Call the model: logits (n, V), and the hidden states (n, width) asked for."""
        arguments = {
            "input_ids" if self.width is None else "inputs_embeds": inputs,
            "attention_mask": mask,
            "position_ids": ids_positions_slots[1:2],
            ARGUMENT: cache,  # the name that this version of transformers has for a cache
            "use_cache": True,
            "output_hidden_states": bool(hidden_layers),
        }
        with evaluating(self.model):
            out = self.model(**arguments, **call_options(self.model))
        states = [out.hidden_states[layer][0] for layer in hidden_layers]
        return (out.logits[0], *states)


def parts(model: nn.Module) -> list[tuple]:
    """List everything that a captured forward depends on, for ``alike`` to compare with the same list at another time.

    Each entry is a pair. First comes an object: a module, the configuration, or the storage of a tensor. Then comes its
    state: a module's plain settings, type and hooks; the configuration's plain settings; a tensor's address and
    version. The list refers to the storages, so that their memory is not freed and given to another tensor.
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
        # torch adds 1 to a version when a tensor is changed in place. A capture may have copied what was in it then.
        version = None if tensor.is_inference() else tensor._version
        pairs.append((tensor.untyped_storage(), (tensor.data_ptr(), version)))
    return pairs


def plain_settings(owner) -> dict[str, str]:
    """Those settings of a module or configuration that are numbers, words, or collections of them."""
    settings = {}
    for name, value in vars(owner).items():
        if type(value) is dict:
            is_plain = all(isinstance(inner, PLAIN) for inner in value.values())
        else:
            is_plain = isinstance(value, PLAIN)
        if is_plain:
            settings[name] = repr(value)
    return settings


def alike(then: list[tuple], now: list[tuple]) -> bool:
    """Whether two lists of ``parts`` contain the same objects in the same state."""
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
    """Capture the kernels of a call as one CUDA graph.

    As torch asks for, the call is first run a few times as a warm-up, on a stream of its own: its first runs allocate
    memory, which must not become part of the graph.
    """
    warm_up_stream = torch.cuda.Stream()
    warm_up_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_up_stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(warm_up_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()

    def replay() -> tuple[Tensor, ...]:
        graph.replay()
        return results

    return replay


def as_operations(call: Call) -> Call:
    """Capture the operations of a call as a list that runs by itself on the same tensors: a CUDA graph for the CPU.

    Like a CUDA graph, the list does not contain the Python that ran around the operations. A call that reads a number
    off a tensor cannot be captured.
    """
    trace = make_fx(call)
    return trace()  # the traced call, not its result
