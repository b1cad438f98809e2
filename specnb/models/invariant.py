"""Invariant forwards: a dense model gives a node the same bits of logits in any tree, in float32 and 16 bits.

A sum of rounded numbers depends on its order: in float32 (1e8 + 1) - 1e8 is 0, and (1e8 - 1e8) + 1 is 1. Kernels choose
the order by the shapes they are given. So a tree's forward and a plain one differ in their last bits, near ties flip,
and texts part. Here no sum depends on the tree:

- *Products with weights.* Every forward has the same number of rows, copies of its first one where nodes are fewer; a
  larger tree takes several. Shapes are then fixed, and with them, we assume, the order in which an element is added up.
- *Norms, activations, rotations, residuals* work on one row, by its token and position.
- *Attention.* A node at place t (its ancestors in the tree and the committed tokens stand before it) sees t + 1 keys
  in logical order, wherever they lie. They are cut at fixed places: blocks of BLOCK keys, as many as are committed in
  every tree of this depth in which the node could stand, (t + 1 - depth) // BLOCK, are read where they lie, once for
  all rows; the others, BLOCK + depth at most, are gathered for the node alone. Within a block and within the gathered
  ones all products have one shape. All scores have their largest one subtracted, which no order changes; then the
  gathered ones come first and blocks are added to them in turn: those that only another row sees come last and add
  nothing.

Example: BLOCK is 32, trees have four levels at most, and 40 tokens are committed. A root stands at place 40 and each of
its children at place 41, so that a child sees 42 keys. (41 + 1 - 4) // 32 is 1: the first 32 keys are a shared block,
and the ten others are gathered, which are the keys of eight committed tokens, of the root and of the child itself. Had
the tree been a chain, or the child been the root of the next tree, its keys would have been cut at the same place.

What kernels do no argument proves, so tests compare bits: that a row's result depends neither on the other rows'
contents nor on which row it is; that a product of a batch, an exponential, a sum do not depend on how much stands
beside them (blocks that other rows see; rows of a fuller tree). A batch of one product may be cut among threads, hence
two own rows at least; with a single key head a single shared block is still such a batch. And all texts that are
compared need one machine, one number of threads, one version of torch, and prompts read alike.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from specnb import masks
from specnb.cache import ARGUMENT, TreeCache
from specnb.target import device_of

BLOCK = 32  # keys
NAME = "specnb_invariant"


@dataclass(frozen=True)
class Places:
    """Where rows find their keys.

    beyond: (blocks, rows, 1, 1) bool, the shared blocks that a row does not see. slots: (rows, BLOCK + depth) int64,
    where a row's gathered keys lie, counted from the slot start. hidden: (rows, 1, BLOCK + depth) bool, which of these
    are none of its keys.
    """

    beyond: Tensor
    start: int
    slots: Tensor
    hidden: Tensor


def attention(
    module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, places: Places, **options
) -> tuple[Tensor, None]:
    """query (1, heads, rows, d), key and value (1, key heads, slots, d) → (1, rows, heads, d); sums in float32.

    Only own rows, which places tells, attend: those behind them are copies of the first.

    Example: a row sees a block of 32 keys with score 0 and value 1, and gathers one key with score ln 32
    and value 3. ln 32 is subtracted from all scores. The gathered key has weight 1, the block's weights
    of 1/32 sum to 1, too, and the result is (1 · 3 + 1 · 1) / (1 + 1) = 2.
    """
    if any(options.get(name) is not None for name in ("softcap", "s_aux", "position_bias")):
        raise ValueError(f"invariant attention knows no soft caps, sinks or biases, which {type(module).__name__} has")
    rows, d = query.shape[2:]
    key_heads = key.shape[1]  # each serves a group of heads
    own = len(places.slots)
    blocks = len(places.beyond)
    q = query[0].float() * scaling
    q = q.view(key_heads, -1, rows, d).transpose(1, 2).contiguous()  # (key heads, rows, group, d)

    # The keys that each row gathers for itself
    keys = _gathered(key, places)
    values = _gathered(value, places)
    scores = q[:, :own] @ keys.mT  # (key heads, own, group, BLOCK + depth)
    scores.masked_fill_(places.hidden, -torch.inf)
    largest = scores.amax(-1, keepdim=True)

    # The blocks that rows share: products of all rows, whose shape does not tell how many are own
    if blocks:
        block_keys = _shared(key, blocks)
        block_values = _shared(value, blocks)
        block_scores = q.view(key_heads, 1, -1, d) @ block_keys.mT
        block_scores = block_scores.view(key_heads, blocks, rows, -1, BLOCK)[:, :, :own]
        block_scores.masked_fill_(places.beyond, -torch.inf)  # (key heads, blocks, own, group, BLOCK)
        largest = torch.maximum(largest, block_scores.amax((1, -1)).unsqueeze(-1))

    # Sums in a fixed order: over the gathered keys first, then each block's is added in turn
    weights = scores.sub_(largest).exp_()
    mass = weights.sum(-1, keepdim=True)
    out = weights @ values  # (key heads, own, group, d)
    if blocks:
        block_weights = block_scores.sub_(largest[:, None]).exp_()
        for mass_of_block in block_weights.sum(-1, keepdim=True).unbind(1):
            mass = mass + mass_of_block
        of_all_rows = F.pad(block_weights, (0, 0, 0, 0, 0, rows - own)).flatten(2, 3)
        block_out = (of_all_rows @ block_values).view(key_heads, blocks, rows, *out.shape[2:])
        for out_of_block in block_out[:, :, :own].unbind(1):
            out = out + out_of_block
    out = (out / mass).transpose(0, 1).flatten(1, 2).to(query.dtype)  # (own, heads, d)
    copies = out[:1].expand(rows - own, -1, -1)
    return torch.cat([out, copies])[None], None


def _gathered(x: Tensor, places: Places) -> Tensor:
    """Of keys or values x (1, key heads, slots, d) those that each row gathers: (key heads, own, BLOCK + depth, d)."""
    own, count = places.slots.shape
    behind = x[0, :, places.start :].float()
    rows_in_turn = behind.index_select(1, places.slots.view(-1))  # (key heads, own · count, d)
    return rows_in_turn.view(-1, own, count, x.shape[-1])


def _shared(x: Tensor, blocks: int) -> Tensor:
    """Of keys or values x (1, key heads, slots, d) the first blocks: (key heads, blocks, BLOCK, d)."""
    read = x[0, :, : blocks * BLOCK].float()
    return read.view(-1, blocks, BLOCK, x.shape[-1])


AttentionInterface.register(NAME, attention)


class Invariant:
    """Scores trees by forwards whose bits do not depend on the tree: ``Target(model, forwards=Invariant(model))``.

    Undrafted decoding with the same is the plain decoding that drafted texts then equal, also in bfloat16. Prompts are
    read as without. rows: nodes of a forward; depth: levels of a tree at most, its root among them. Raises ValueError
    on a model with windows or experts.
    """

    def __init__(self, model: PreTrainedModel, *, rows: int = 8, depth: int = 16):
        kind = model.config.model_type
        if masks.layer_kinds(model) != ("full_attention",):
            raise ValueError(f"invariant forwards see all that is committed: a {kind} has windows")
        if any(name.endswith("experts") for name, _ in model.named_modules()):
            raise ValueError(f"an expert has as many rows as tokens choose it: a {kind} is not dense")
        self.model = model
        self.rows = rows
        self.depth = depth

    def empty(self) -> TreeCache:
        """The cache for a new generation."""
        return TreeCache()

    @torch.no_grad()
    def score(
        self, cache: TreeCache, ids: Tensor, positions: Tensor, mask: Tensor | None, hidden_layers: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Logits (n, V) and hidden states of nodes behind all that is in the cache; arguments: see ``Graphs.score``.

        Raises ValueError on a tree that is too deep.
        """
        n = ids.shape[1]
        start = cache.length
        depths = positions[0] - positions[0, 0]  # (n,)
        levels = int(depths.max()) + 1
        if levels > self.depth:
            raise ValueError(f"a tree of {levels} levels: Invariant(model, depth={levels}) takes it")
        if mask is None:  # for a root alone, which sees everything
            visible = torch.ones(1, start + 1, dtype=torch.bool, device="cpu")
        else:
            visible = mask[0, 0] == 0  # (n, start + n)

        results = []
        with _invariant_attention(self.model):
            for first in range(0, n, self.rows):
                nodes = torch.arange(first, first + self.rows, device="cpu")
                nodes[n - first :] = first  # copies
                own = nodes[: max(2, n - first)]  # two at least: a batch of one may be cut among threads
                in_use = start + first + self.rows
                places = _places(visible[own.to(visible.device), :in_use], start + depths[own], self.depth)
                results.append(self._run(cache, ids[:, nodes], positions[:, nodes], places, hidden_layers))
        logits, *states = (torch.cat(of_all_forwards)[:n] for of_all_forwards in zip(*results, strict=True))
        return logits, dict(zip(hidden_layers, states, strict=True))

    def _run(
        self, cache: TreeCache, ids: Tensor, positions: Tensor, places: Places, hidden_layers: Sequence[int]
    ) -> tuple[Tensor, ...]:
        """One forward over all rows: logits (rows, V), and the hidden states (rows, width) asked for."""
        device = device_of(self.model)
        slots = cache.length + cache.pending + self.rows
        mask = torch.zeros(1, 1, self.rows, slots, dtype=self.model.dtype, device=device)  # not read
        inputs = {"input_ids": ids.to(device), "position_ids": positions.to(device), "attention_mask": mask}
        inputs |= {"places": places, ARGUMENT: cache, "use_cache": True}  # places are handed on to attention
        out = self.model(**inputs, output_hidden_states=bool(hidden_layers))
        states = [out.hidden_states[layer][0] for layer in hidden_layers]
        return (out.logits[0], *states)


@contextmanager
def _invariant_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let a model's layers attend by ``attention`` for a while."""
    usual = model.config._attn_implementation
    try:
        model.config._attn_implementation = NAME
        yield
    finally:
        model.config._attn_implementation = usual


def _places(visible: Tensor, last: Tensor, depth: int) -> Places:
    """visible: (rows, slots) bool; last: (rows,) int64, how many keys of the text stand before a row's own.

    Example: BLOCK is 32, depth 4, 40 tokens are committed to slots 0 to 39, and the tree's root (slot 40) has two
    children (41 and 42). The second child has last = 41 and sees slots 0 to 40 and 42. It shares one block, so it
    gathers what stands at places 32 to 67 of its text: slots 32 to 40, and 42; the other 26 places are hidden.
    """
    blocks = (last + 1 - depth).clamp_min(0) // BLOCK  # (rows,) shared ones that a row sees
    gathered = blocks[:, None] * BLOCK + torch.arange(BLOCK + depth, device="cpu")  # (rows, BLOCK + depth) places
    hidden = gathered > last[:, None]
    beyond = torch.arange(int(blocks.max()), device="cpu")[:, None] >= blocks  # (blocks, rows)
    start = int(gathered.min())

    # The slots in each row's logical order: those that it sees, which lie in the text's order, then the others
    slot_at = (~visible).to(torch.uint8).argsort(dim=-1, stable=True)  # (rows, slots)
    device = slot_at.device
    slots = slot_at.gather(1, gathered.clamp_max(visible.shape[1] - 1).to(device))
    return Places(beyond[..., None, None].to(device), start, slots - start, hidden[:, None].to(device))
