"""Invariant forwards: a dense model gives a node the same bits of logits in any tree, in float32 and 16 bits.

A sum of rounded numbers depends on its order: in float32 (1e8 + 1) - 1e8 is 0, and (1e8 - 1e8) + 1 is 1. Kernels choose
the order by the shapes they are given. So a tree's forward and a plain one differ in their last bits, near ties flip,
and the texts become different. Here no sum depends on the tree.

Example: BLOCK is 32, trees have four levels at most (depth is 4), and 40 tokens are committed. The root has position
40, and each of its children has position 41. A child sees 42 keys: those of the committed tokens, of the root, and its
own. At the deepest level of a tree three of the keys that a node sees are those of its ancestors in the tree, and one
is its own. So of the keys that a node at position 41 sees, 41 + 1 - 4 = 38 are committed in every tree it could be in.
38 // 32 is 1: the first 32 keys are a block that all nodes share. The ten others are gathered for this child alone.
Had the tree been a chain, or the child been the root of the next tree, its keys would have been cut at the same place.

The rule, for a model's every operation:

- *Products with weights.* Every forward has the same number of rows, one per node. If there are fewer nodes, the other
  rows are copies of the first one; a larger tree takes several forwards. So the shapes are fixed, and with them, we
  assume, the order in which an element is added up.
- *Norms, activations, rotations, residuals* work on one row, by its token and position.
- *Attention.* A node at position t sees t + 1 keys. At the deepest level depth - 1 of its ancestors are in the tree, so
  t + 1 - depth keys are committed for certain, wherever in a tree the node is. The first (t + 1 - depth) // BLOCK
  blocks of BLOCK keys are read where they are, once for all rows. The rest, at most BLOCK + depth keys, are gathered
  for each row in the order of its text. All products within a block have one shape, and so have all products with
  gathered keys. The largest score is subtracted from all scores; a maximum does not depend on the order. The sum then
  begins with the gathered keys, and the blocks are added to it one by one. Blocks that only another row sees come last
  and add exactly 0.

Copies that fill a forward up need no attention: they get the first row's result. Those rows that attend are called own
rows: the nodes, and one copy where a forward has a single node. The copy is there because a batch of a single product
may be cut among threads. (With a single key head, a single shared block is still such a batch.)

No argument can prove what kernels do, so tests compare bits. They check that a row's result depends neither on the
other rows' contents nor on which row it is. They also check that a product of a batch, an exponential and a sum do not
depend on how much else is computed with them: blocks that other rows see, or the rows of a fuller tree. Texts can only
be compared if they are made on one machine, with one number of threads and one version of torch, and if their prompts
are read alike.
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

BLOCK = 32  # keys that are read together; another number gives other bits
NAME = "specnb_invariant"  # the name by which transformers knows ``attention``


@dataclass(frozen=True)
class Places:
    """Where each own row of a forward finds its keys: in shared blocks first, then in slots that are gathered for it.

    ``attention`` gives a score of -inf to all keys that ``beyond`` and ``hidden`` mark.
    """

    beyond: Tensor  # (blocks, own, 1, 1) bool: the shared blocks that a row does not see
    start: int  # the first slot of the cache that any row gathers
    slots: Tensor  # (own, BLOCK + depth) int64: the slots that a row gathers, counted from start
    hidden: Tensor  # (own, 1, BLOCK + depth) bool: which of the gathered keys the row does not see


def attention(
    module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, places: Places, **options
) -> tuple[Tensor, None]:
    """query (1, heads, rows, d), key and value (1, key heads, slots, d) → (1, rows, heads, d); sums in float32.

    places has the own rows, which come first. The rows after them are copies of the first one, and get its result.
    mask is what transformers hands to every attention. It is not read: places says what a row sees.

    Example: a row sees a block of 32 keys with score 0 and value 1, and gathers one key with score ln 32
    and value 3. ln 32 is subtracted from all scores. The gathered key has weight 1, the block's weights
    of 1/32 sum to 1, too, and the result is (1 · 3 + 1 · 1) / (1 + 1) = 2.
    """
    if any(options.get(name) is not None for name in ("softcap", "s_aux", "position_bias")):
        raise ValueError(f"invariant attention knows no soft caps, sinks or biases, which {type(module).__name__} has")
    rows, d = query.shape[2:]
    key_heads = key.shape[1]  # each serves a group of heads
    own = len(places.slots)  # number of own rows
    blocks = len(places.beyond)
    q = query[0].float() * scaling
    q = q.view(key_heads, -1, rows, d).transpose(1, 2).contiguous()  # (key heads, rows, group, d)

    # The keys that each row gathers for itself
    keys = _gathered(key, places)
    values = _gathered(value, places)
    scores = q[:, :own] @ keys.mT  # (key heads, own, group, BLOCK + depth)
    scores.masked_fill_(places.hidden, -torch.inf)
    largest = scores.amax(-1, keepdim=True)  # (key heads, own, group, 1)

    # The blocks that rows share: multiplied with all rows, so that the shape does not depend on how many are own
    if blocks:
        block_keys = _shared(key, blocks)
        block_values = _shared(value, blocks)
        block_scores = q.view(key_heads, 1, -1, d) @ block_keys.mT
        block_scores = block_scores.view(key_heads, blocks, rows, -1, BLOCK)[:, :, :own]
        block_scores.masked_fill_(places.beyond, -torch.inf)  # (key heads, blocks, own, group, BLOCK)
        largest = torch.maximum(largest, block_scores.amax((1, -1)).unsqueeze(-1))

    # Sums in a fixed order: over the gathered keys first, then one block after another is added
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
    """The keys or values that own rows gather from x (1, key heads, slots, d): (key heads, own, BLOCK + depth, d)."""
    own, count = places.slots.shape
    from_start = x[0, :, places.start :].float()
    of_all_rows = from_start.index_select(1, places.slots.view(-1))  # (key heads, own · count, d)
    return of_all_rows.view(-1, own, count, x.shape[-1])


def _shared(x: Tensor, blocks: int) -> Tensor:
    """The first blocks of the keys or values x (1, key heads, slots, d): (key heads, blocks, BLOCK, d)."""
    first_slots = x[0, :, : blocks * BLOCK].float()
    return first_slots.view(-1, blocks, BLOCK, x.shape[-1])


AttentionInterface.register(NAME, attention)


class Invariant:
    """Scores trees by forwards whose bits do not depend on the tree: ``Target(model, forwards=Invariant(model))``.

    Drafted texts are then equal to those of plain decoding with the same forwards, also in bfloat16. Prompts are read
    by the usual forward.

    rows: nodes per forward. Each number gives bits of its own, so texts are compared at one number. With 1, every node
        takes a forward, of the same shapes in any tree, so that it needs no copy.
    depth: the most levels that a tree may have; the root is one of them.

    Raises ValueError on a model with windows or experts.
    """

    def __init__(self, model: PreTrainedModel, *, rows: int = 8, depth: int = 16):
        kind = model.config.model_type
        if masks.layer_kinds(model) != ("full_attention",):
            raise ValueError(f"invariant forwards see all that is committed: a {kind} has windows")
        if any(name.endswith("experts") for name, _ in model.named_modules()):
            raise ValueError(f"a {kind} is not dense: how many rows an expert gets depends on the other tokens")
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
        """Score n nodes that follow everything in the cache: logits (n, V), and the hidden states (n, width) asked for.

        The arguments are those of ``Graphs.score``; ids are always token ids, and there is one mask for all layers.
        Raises ValueError on a tree that is too deep.
        """
        n = ids.shape[1]
        start = cache.length
        depths = positions[0] - positions[0, 0]  # (n,), 0 for the root
        levels = int(depths.max()) + 1
        if levels > self.depth:
            raise ValueError(f"a tree of {levels} levels: Invariant(model, depth={levels}) takes it")
        # Index arithmetic is done on the CPU, also if torch's default device is another: it is many tiny operations.
        if mask is None:  # for a root alone, which sees everything
            visible = torch.ones(1, start + 1, dtype=torch.bool, device=device_of(self.model))
        else:
            visible = mask[0, 0] == 0  # (n, start + n)

        results = []
        with _invariant_attention(self.model):
            for first in range(0, n, self.rows):
                nodes = torch.arange(first, first + self.rows, device="cpu")  # (rows,) the node in each row
                nodes[n - first :] = first  # copies, where nodes are fewer than rows
                own = nodes[: max(2, n - first)]  # two if there are: see the module's docstring
                slots_in_use = start + first + self.rows
                visible_to_own = visible[own.to(visible.device), :slots_in_use]
                places = _places(visible_to_own, start + depths[own], self.depth)
                results.append(self._run(cache, ids[:, nodes], positions[:, nodes], places, hidden_layers))
        # One tuple per forward becomes one tensor per kind of result; the last forward's copies are cut off.
        logits, *states = (torch.cat(of_all_forwards)[:n] for of_all_forwards in zip(*results, strict=True))
        return logits, dict(zip(hidden_layers, states, strict=True))

    def _run(
        self, cache: TreeCache, ids: Tensor, positions: Tensor, places: Places, hidden_layers: Sequence[int]
    ) -> tuple[Tensor, ...]:
        """One forward over all rows: logits (rows, V), and the hidden states (rows, width) asked for."""
        device = device_of(self.model)
        slots = cache.length + cache.pending + self.rows
        # A mask of the right shape keeps transformers from making one; ``attention`` does not read it.
        mask = torch.zeros(1, 1, self.rows, slots, dtype=self.model.dtype, device=device)
        arguments = {
            "input_ids": ids.to(device),
            "position_ids": positions.to(device),
            "attention_mask": mask,
            "places": places,  # transformers hands it on to ``attention``
            ARGUMENT: cache,  # the name that this version of transformers has for a cache
            "use_cache": True,
            "output_hidden_states": bool(hidden_layers),
        }
        out = self.model(**arguments)
        states = [out.hidden_states[layer][0] for layer in hidden_layers]
        return (out.logits[0], *states)


@contextmanager
def _invariant_attention(model: PreTrainedModel) -> Iterator[None]:
    """Within this context, a model's layers attend by ``attention``."""
    usual = model.config._attn_implementation
    try:
        model.config._attn_implementation = NAME
        yield
    finally:
        model.config._attn_implementation = usual


def _places(visible: Tensor, positions: Tensor, depth: int) -> Places:
    """Where own rows find their keys, given what they see.

    visible: (own, slots) bool. positions: (own,) int64, each row's position in its text, that is, the number of keys
    before its own key.

    Example: BLOCK is 32, depth is 4, 40 tokens are committed to slots 0 to 39, and the tree's root (slot 40) has two
    children (41 and 42). The second child has position 41 and sees slots 0 to 40 and 42. It shares one block, so it
    gathers the keys with positions 32 to 67 of its text: slots 32 to 40, and 42. The other 26 keys are hidden.
    """
    blocks = (positions + 1 - depth).clamp_min(0) // BLOCK  # (own,) number of shared blocks that a row sees
    gathered = blocks[:, None] * BLOCK + torch.arange(BLOCK + depth, device="cpu")  # (own, BLOCK + depth) positions
    hidden = gathered > positions[:, None]
    beyond = torch.arange(int(blocks.max()), device="cpu")[:, None] >= blocks  # (blocks, own)
    start = int(gathered.min())  # its slot, too: committed tokens have slots equal to their positions

    # Each row's slots in the order of its text. Those that it sees come first: rising slots are in the text's order.
    slot_of_position = (~visible).to(torch.uint8).argsort(dim=-1, stable=True)  # (own, slots)
    device = slot_of_position.device
    slots = slot_of_position.gather(1, gathered.clamp_max(visible.shape[1] - 1).to(device))
    return Places(beyond[..., None, None].to(device), start, slots - start, hidden[:, None].to(device))
