"""Invariant forwards: a dense model gives a node the same bits of logits in any tree, in float32 and 16 bits.

A sum of rounded numbers depends on its order, and kernels choose the order by the shapes they are given. So a tree's
forward and a plain one differ in their last bits, near ties flip, and texts part. Here no sum depends on the tree:

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

What kernels do no argument proves, so tests compare bits: that a row's result depends neither on the other rows'
contents nor on which row it is; that a product of a batch, an exponential, a sum do not depend on how much stands
beside them (blocks that other rows see; rows of a fuller tree). A batch of one product may be cut among threads, hence
two own rows at least; with a single key head a single shared block is still such a batch. And all texts that are
compared need one machine, one number of threads, one version of torch, and prompts read alike.
"""

from collections.abc import Sequence
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
    """Where rows find their keys. beyond: (blocks, rows, 1, 1) which shared blocks a row does not see; slots: (rows,
    BLOCK + depth) where the gathered ones lie behind start; hidden: (rows, 1, BLOCK + depth) which of them are none."""

    beyond: Tensor
    start: int
    slots: Tensor
    hidden: Tensor


def attention(
    module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, places: Places, **options
) -> tuple[Tensor, None]:
    """query (1, heads, rows, d), key and value (1, key heads, slots, d) → (1, rows, heads, d); sums in float32.

    Only own rows, which places tells, attend: those behind them are copies of the first.
    """
    if any(options.get(name) is not None for name in ("softcap", "s_aux", "position_bias")):
        raise ValueError(f"invariant attention knows no soft caps, sinks or biases, which {type(module).__name__} has")
    (own, columns), blocks = places.slots.shape, len(places.beyond)
    rows, (kept, _, width) = query.shape[2], key.shape[1:]
    q = (query[0].float() * scaling).view(kept, -1, rows, width).transpose(1, 2).contiguous()  # (…, rows, group, d)
    tails = (x[0, :, places.start :].float().index_select(1, places.slots.view(-1)) for x in (key, value))
    keys, values = (x.view(kept, own, columns, -1) for x in tails)
    scores = (q[:, :own] @ keys.mT).masked_fill_(places.hidden, -torch.inf)  # (key heads, own, group, columns)
    top = scores.amax(-1, keepdim=True)
    if blocks:
        first, rest = (x[0, :, : blocks * BLOCK].float().view(kept, blocks, BLOCK, -1) for x in (key, value))
        others = (q.view(kept, 1, -1, width) @ first.mT).view(kept, blocks, rows, -1, BLOCK)
        others = others[:, :, :own].masked_fill_(places.beyond, -torch.inf)  # (key heads, blocks, own, group, BLOCK)
        top = torch.maximum(top, others.amax((1, -1)).unsqueeze(-1))
        others = others.sub_(top[:, None]).exp_()
    weights = scores.sub_(top).exp_()
    mass, out = weights.sum(-1, keepdim=True), weights @ values
    if blocks:
        mass = sum(others.sum(-1, keepdim=True).unbind(1), mass)
        shared = F.pad(others, (0, 0, 0, 0, 0, rows - own)).flatten(2, 3) @ rest
        out = sum(shared.view(kept, blocks, rows, *out.shape[2:])[:, :, :own].unbind(1), out)
    out = (out / mass).transpose(0, 1).flatten(1, 2).to(query.dtype)
    return torch.cat([out, out[:1].expand(rows - own, -1, -1)])[None], None


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
        self.model, self.rows, self.depth = model, rows, depth

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
        n, start, places = ids.shape[1], cache.length, positions[0] - positions[0, 0]
        if (levels := int(places.max()) + 1) > self.depth:
            raise ValueError(f"a tree of {levels} levels: Invariant(model, depth={levels}) takes it")
        visible, found = (
            torch.ones(1, start + 1, dtype=torch.bool, device="cpu") if mask is None else mask[0, 0] == 0,
            [],
        )
        usual = self.model.config._attn_implementation
        try:
            self.model.config._attn_implementation = NAME
            for first in range(0, n, self.rows):
                nodes = torch.arange(first, first + self.rows, device="cpu")
                nodes[n - first :] = first  # copies
                own = nodes[: max(2, n - first)]  # two at least: a batch of one may be cut among threads
                seen = visible[own.to(visible.device), : start + first + self.rows]
                where = _places(seen, start + places[own], self.depth)
                found.append(self._run(cache, ids[:, nodes], positions[:, nodes], where, hidden_layers))
        finally:
            self.model.config._attn_implementation = usual
        logits, *hidden = (torch.cat(rows)[:n] for rows in zip(*found, strict=True))
        return logits, dict(zip(hidden_layers, hidden, strict=True))

    def _run(self, cache: TreeCache, ids: Tensor, positions: Tensor, places: Places, layers: Sequence[int]) -> tuple:
        device, slots = device_of(self.model), cache.length + cache.pending + self.rows
        inputs = {"input_ids": ids.to(device), "position_ids": positions.to(device), ARGUMENT: cache, "places": places}
        mask = torch.zeros(1, 1, self.rows, slots, dtype=self.model.dtype, device=device)  # not read
        out = self.model(**inputs, attention_mask=mask, use_cache=True, output_hidden_states=bool(layers))
        return out.logits[0], *(out.hidden_states[layer][0] for layer in layers)


def _places(visible: Tensor, last: Tensor, depth: int) -> Places:
    """visible: (rows, slots) bool; last: (rows,) int64, how many keys of the text stand before a row's own."""
    blocks = (last + 1 - depth).clamp_min(0) // BLOCK
    columns = blocks[:, None] * BLOCK + torch.arange(BLOCK + depth, device="cpu")
    ordered = (~visible).to(torch.uint8).argsort(dim=-1, stable=True)  # what is seen, in logical order, then the rest
    slots, start = ordered.gather(1, columns.clamp_max(visible.shape[1] - 1).to(ordered.device)), int(columns.min())
    beyond = (torch.arange(int(blocks.max()), device="cpu")[:, None] >= blocks)[..., None, None]
    return Places(beyond.to(slots.device), start, slots - start, (columns > last[:, None])[:, None].to(slots.device))
