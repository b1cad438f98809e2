"""Invariant forwards: a node gets the same bits of logits whatever tree it stands in, in any dtype.

A sum of rounded numbers depends on its order, and kernels choose the order by the shapes they are given. So a tree's
forward and a plain one differ in their last bits, near ties flip, and texts part. Here no sum depends on the tree:

- *Products with weights.* Every forward has the same number of rows, copies of the first one where nodes are fewer; a
  larger tree takes several. A kernel adds up each element of its result over the same dimension in the same order.
- *Norms, activations, rotations, residuals* work on one row, by its token and position.
- *Attention.* A node at place t (its ancestors in the tree and the committed tokens stand before it) sees t + 1 keys
  in logical order, wherever they lie. They are cut at fixed places: blocks of BLOCK keys, as many as are committed in
  every tree of ROWS nodes in which the node could stand, (t + 1 - ROWS) // BLOCK, are read where they lie, once for all
  rows; the others, BLOCK + ROWS at most, are gathered for the node alone. Within a block and within the gathered ones
  all products have one shape. Blocks are combined one after the other by their largest scores (log-sum-exp); blocks
  that only another row sees come last and add nothing.

What a kernel does with one row must not depend on the others: that no text proves, so tests compare bits.
"""

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from specnb import masks
from specnb.cache import ARGUMENT, TreeCache

ROWS, BLOCK = 16, 32
NAME = "specnb_invariant"


@dataclass(frozen=True)
class Places:
    """Where rows find their keys. blocks: (ROWS,) how many shared ones; most: their largest number; slots, hidden:
    (ROWS, BLOCK + ROWS) where the gathered ones lie, and which of these are none."""

    blocks: Tensor
    most: int
    slots: Tensor
    hidden: Tensor


def attention(
    module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, places: Places, **options
) -> tuple[Tensor, None]:
    """query (1, heads, ROWS, d), key and value (1, key heads, slots, d) → (1, ROWS, heads, d); sums in float32."""
    if any(options.get(name) is not None for name in ("softcap", "s_aux", "position_bias")):
        raise ValueError(f"invariant attention knows no soft caps, sinks or biases, which {type(module).__name__} has")
    (keys, values), kept = (x[0].float() for x in (key, value)), key.shape[1]
    q = (query[0].float() * scaling).unflatten(0, (kept, -1)).transpose(1, 2)  # (key heads, ROWS, group, d)
    own = _block(q, keys[:, places.slots], values[:, places.slots], places.hidden[:, None])
    shared = [x[:, : places.most * BLOCK].unflatten(1, (places.most, BLOCK)) for x in (keys, values)]
    top, mass, out = _block(q.flatten(1, 2)[:, None], *shared)  # (key heads, blocks, ROWS · group, …)
    top, mass, out = (x.unflatten(2, q.shape[1:3]) for x in (top, mass, out))
    beyond = torch.arange(places.most, device=q.device)[:, None] >= places.blocks
    top = torch.cat([own[0][:, None], top.masked_fill(beyond[..., None, None], -torch.inf)], 1)
    weight = (top - top.amax(1, keepdim=True)).exp()
    mass, out = (
        (weight * torch.cat([first[:, None], rest], 1)).cumsum(1)[:, -1]  # one after the other
        for first, rest in ((own[1], mass), (own[2], out))
    )
    return (out / mass).transpose(0, 1).flatten(1, 2)[None].to(query.dtype), None


def _block(q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(…, n, d) queries over (…, m, d) keys: largest scores (…, n, 1), sums of exponentials, values so weighted."""
    scores = q @ keys.transpose(-1, -2)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp()
    return top, weights.sum(-1, keepdim=True), weights @ values


AttentionInterface.register(NAME, attention)


class Invariant:
    """Scores trees by forwards whose bits do not depend on the tree: ``Target(model, graphs=Invariant(model))``.

    Undrafted decoding with the same is the plain decoding that drafted texts then equal, also in bfloat16. Prompts are
    read as without. Raises ValueError on a model with windows.
    """

    def __init__(self, model: PreTrainedModel):
        if masks.layer_kinds(model) != ("full_attention",):
            raise ValueError(f"invariant forwards see all that is committed: a {model.config.model_type} has windows")
        self.model = model

    def empty(self) -> TreeCache:
        """The cache for a new generation."""
        return TreeCache()

    def score(
        self, cache: TreeCache, ids: Tensor, positions: Tensor, mask: Tensor | None, hidden_layers: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Logits (n, V) and hidden states of nodes behind all that is in the cache; arguments: see ``Graphs.score``."""
        n, start = ids.shape[1], cache.length
        visible = torch.ones(1, start + 1, dtype=torch.bool) if mask is None else mask[0, 0] == 0
        found = []
        with as_invariant(self.model):
            for first in range(0, n, ROWS):
                nodes = torch.arange(first, first + ROWS)
                nodes[n - first :] = first  # copies
                seen = visible[nodes.to(visible.device), : start + first + ROWS]
                places = _places(seen, start + positions[0, nodes] - positions[0, 0])
                found.append(self._run(cache, ids[:, nodes], positions[:, nodes], places, hidden_layers))
        logits, *hidden = (torch.cat(rows)[:n] for rows in zip(*found, strict=True))
        return logits, dict(zip(hidden_layers, hidden, strict=True))

    @torch.no_grad()
    def _run(self, cache: TreeCache, ids: Tensor, positions: Tensor, places: Places, layers: Sequence[int]) -> tuple:
        device, slots = self.model.device, cache.length + cache.pending + ROWS
        inputs = {"input_ids": ids.to(device), "position_ids": positions.to(device), ARGUMENT: cache, "places": places}
        mask = torch.zeros(1, 1, ROWS, slots, dtype=self.model.dtype, device=device)  # not read
        out = self.model(**inputs, attention_mask=mask, use_cache=True, output_hidden_states=bool(layers))
        return out.logits[0], *(out.hidden_states[layer][0] for layer in layers)


def _places(visible: Tensor, last: Tensor) -> Places:
    """visible: (ROWS, slots) bool; last: (ROWS,) int64, how many keys of the text stand before a row's own."""
    blocks = (last + 1 - ROWS).clamp_min(0) // BLOCK
    columns = blocks[:, None] * BLOCK + torch.arange(BLOCK + ROWS)
    ordered = (~visible).to(torch.uint8).argsort(dim=-1, stable=True)  # what is seen, in logical order, then the rest
    slots = ordered.gather(1, columns.clamp_max(visible.shape[1] - 1).to(ordered.device))
    return Places(blocks.to(slots.device), int(blocks.max()), slots, (columns > last[:, None]).to(slots.device))


@contextmanager
def as_invariant(model: PreTrainedModel):
    """The model's attention is ``attention`` for a while."""
    usual = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(usual)
