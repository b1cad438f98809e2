"""DFlash (Chen et al. 2026, arXiv 2602.06036): one forward of a few layers drafts a whole block of tokens.

The block is the root token and, behind it, mask tokens: placeholders for the tokens that are to be drafted. Each
row of the block attends to all rows of the block, in both directions, and to the text before the root. Of the text it
reads the target's hidden states: several of them per token are fused into one feature, whose keys and values every
layer makes by its own matrices. Row d of the block predicts the token at depth d, whatever stands at the depths
between. So the nodes of one depth share a law, as with Medusa, and a tree's paths are products of laws.

Published formats:

- z-lab (``z-lab/*-DFlash``), weights: ``fc.weight`` (W, m W) over the states of m layers of the target,
  ``hidden_norm.weight`` (W), ``layers.*`` as in Qwen3 with ``q_norm`` and ``k_norm``, ``norm.weight`` (W). Embedding
  and output rows are the target's. config.json is that of a Qwen3 with ``block_size`` (in newer files inside
  ``dflash_config``), ``num_target_layers``, and ``dflash_config`` {``target_layer_ids``, ``mask_token_id``}. A layer id
  counts from 0, so that its output is transformers' ``hidden_states[id + 1]``.
- speculators (``speculators_model_type`` "dflash"): the same weights. The Qwen3 configuration is inside
  ``transformer_layer_config``, and ``aux_hidden_state_layer_ids`` are indices of ``hidden_states`` themselves. With a
  reduced vocabulary there are ``lm_head.weight`` (V_d, W) and ``d2t`` (V_d): the token id of row i is i + d2t[i].

Sources: z-lab/dflash at commit 44947fb (``dflash/model.py``), speculators 0.9.0 (``models/dflash``,
``convert/dflash``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding, rotate_half

from specnb.cache import TreeCache
from specnb.drafters import first_is_root
from specnb.heads.folders import Checkpoint, checkpoint, fill
from specnb.heads.modules import final_norm
from specnb.target import input_rows, output_rows
from specnb.tree import TokenTree


@dataclass(frozen=True)
class Block:
    """What a DFlash checkpoint says of itself.

    qwen3: the configuration of its layers.
    size: the number of rows of a block, one more than the tokens that are drafted.
    mask_token: the id of the mask token, a row of the target's embedding.
    layers: the target's hidden states that it reads, as indices of transformers' hidden_states.
    target_layers: the number of the target's layers; None where the format does not say it.
    drafted: the size of its reduced vocabulary; None for the target's.
    """

    qwen3: Qwen3Config
    size: int
    mask_token: int
    layers: tuple[int, ...]
    target_layers: int | None
    drafted: int | None = None


class DFlash(nn.Module):
    """The layers of a DFlash block; a layer's parts are those of Qwen3, but its attention is called differently."""

    def __init__(self, block: Block):
        super().__init__()
        width, epsilon = block.qwen3.hidden_size, block.qwen3.rms_norm_eps
        self.fc = nn.Linear(len(block.layers) * width, width, bias=False)
        self.hidden_norm = Qwen3RMSNorm(width, epsilon)
        self.layers = nn.ModuleList(Qwen3DecoderLayer(block.qwen3, i) for i in range(block.qwen3.num_hidden_layers))
        self.norm = Qwen3RMSNorm(width, epsilon)
        self.head_width = block.qwen3.head_dim
        # In a tuple, where nn.Module does not see it: it has no weights, and its frequencies stay in float32.
        with torch.device("cpu"):
            self.rotary = (Qwen3RotaryEmbedding(block.qwen3),)

    def fuse(self, states: Sequence[Tensor]) -> Tensor:
        """m states (n, W) of the target → (n, W), one feature per token."""
        return self.hidden_norm(self.fc(torch.cat(list(states), -1)))

    def see(self, features: Tensor, cache: TreeCache) -> None:
        """Append the keys and values of committed tokens to the cache. features: (n, W)."""
        x = features[None]
        angles = self._angles(cache.length, x)
        for index, layer in enumerate(self.layers):
            keys, values = self._keys_values(layer, x, angles)
            cache.update(keys, values, index)
        cache.promote(len(features))

    def forward(self, x: Tensor, cache: TreeCache) -> Tensor:
        """The states (1, B, W) of a block, for the output rows. x: (1, B, W), its embeddings, the root's first.

        The block sees all that the cache contains, and itself. Its keys and values are not kept.
        """
        angles = self._angles(cache.length, x)
        for index, layer in enumerate(self.layers):
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            query = attention.q_norm(self._split(attention.q_proj(normed)))
            query = _rotate(query.transpose(1, 2), angles)
            keys, values = self._keys_values(layer, normed, angles)
            keys, values = cache.update(keys, values, index)
            attended = F.scaled_dot_product_attention(query, keys, values, enable_gqa=True)  # (1, heads, B, head_width)
            x = x + attention.o_proj(attended.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        cache.commit([])
        return self.norm(x)

    def _keys_values(self, layer: nn.Module, x: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """A layer's keys and values for rows x (1, n, W): (1, key heads, n, head_width) each."""
        attention = layer.self_attn
        keys = attention.k_norm(self._split(attention.k_proj(x)))
        keys = _rotate(keys.transpose(1, 2), angles)
        values = self._split(attention.v_proj(x)).transpose(1, 2)
        return keys, values

    def _split(self, x: Tensor) -> Tensor:
        """(1, n, heads · head_width) → (1, n, heads, head_width)."""
        return x.unflatten(-1, (-1, self.head_width))

    def _angles(self, start: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines (1, 1, n, head_width) for rows x (1, n, W) at the positions from start on."""
        positions = start + torch.arange(x.shape[1], device="cpu")
        (rotary,) = self.rotary
        like = torch.empty(0, dtype=x.dtype, device="cpu")
        cos, sin = rotary(like, positions[None])
        return cos[:, None].to(x.device), sin[:, None].to(x.device)


def _rotate(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of (1, heads, n, head_width)."""
    cos, sin = angles
    return x * cos + rotate_half(x) * sin


def dflash(target: PreTrainedModel, source: str | Path) -> "DFlashDraft":
    """A published DFlash checkpoint as a draft model for this target.

    source: a folder, or a name on the hub, with config.json and the weights in one of the formats at the top of this
        file; which one is recognised from config.json.

    Returns a draft model for ``TreeDrafter``, in the target's dtype.

    Raises ValueError if config.json fits neither format or lacks a setting, if the target has another width, another
    number of layers or another vocabulary, if a layer has a sliding window, and if a tensor is missing, unexpected or
    of another shape.

    Example::

        drafter = TreeDrafter(heads.dflash(model, "z-lab/Qwen3-4B-DFlash-b16"), growth.chain(15))
    """
    opened = checkpoint(source)
    block = described(opened)
    _check_target(opened, block, target)

    tensors = opened.read(opened.keys)
    ids, rows = _reduced_vocabulary(opened, block, tensors, target)
    _drop_targets_own(opened, tensors, target)
    with torch.device("meta"):  # without memory: its tensors are those of the checkpoint
        module = DFlash(block)
    device = target.get_output_embeddings().weight.device
    placed = {name: tensor.to(device, target.dtype) for name, tensor in tensors.items()}
    fill(module, placed, opened.name)
    return DFlashDraft(module, block, target, ids=ids, rows=rows)


def described(opened: Checkpoint) -> Block:
    """What a checkpoint's config.json says, in either format. ValueError if it fits none of them or lacks a setting."""
    config = opened.config
    kind = config.get("speculators_model_type")
    if kind == "dflash":
        layers = config.get("transformer_layer_config")
        own = config
        ids, offset = config.get("aux_hidden_state_layer_ids"), 0
        if config.get("sample_from_anchor"):
            raise ValueError(
                f"{opened.name} drafts from the root's own row (sample_from_anchor), which is another kind"
            )
    elif kind is None and "dflash_config" in config:
        layers = config
        own = {**config, **config["dflash_config"]}
        ids, offset = own.get("target_layer_ids"), 1
    else:
        found = f"speculators_model_type {kind!r}" if kind else f"architectures {config.get('architectures')}"
        raise ValueError(
            f"{opened.name} is no DFlash checkpoint: its config.json has {found}, and neither dflash_config nor "
            "speculators_model_type 'dflash'"
        )

    for name in ("block_size", "mask_token_id"):
        if own.get(name) is None:
            raise ValueError(f"{opened.name} does not say its {name}")
    if not ids or layers is None:
        raise ValueError(f"{opened.name} does not say which of the target's layers it reads, or of what its own are")
    if layers.get("model_type", "qwen3") != "qwen3":
        raise ValueError(f"{opened.name} has layers of the kind {layers['model_type']}, expected qwen3")
    qwen3 = Qwen3Config(**{name: value for name, value in layers.items() if name != "dflash_config"})
    if set(qwen3.layer_types) != {"full_attention"}:
        kinds = ", ".join(sorted(set(qwen3.layer_types)))
        raise ValueError(f"{opened.name} has layers of the kinds {kinds}, expected full_attention only")
    return Block(
        qwen3,
        size=own["block_size"],
        mask_token=own["mask_token_id"],
        layers=tuple(index + offset for index in ids),
        target_layers=config.get("num_target_layers"),
        drafted=config.get("draft_vocab_size"),
    )


def _check_target(opened: Checkpoint, block: Block, target: PreTrainedModel) -> None:
    """ValueError if a checkpoint does not fit this target."""
    config = target.config.get_text_config()
    if block.qwen3.hidden_size != config.hidden_size:
        raise ValueError(
            f"{opened.name} reads states of width {block.qwen3.hidden_size}, the target's have {config.hidden_size}"
        )
    layers = config.num_hidden_layers
    if block.target_layers not in (None, layers):
        raise ValueError(f"{opened.name} is for a target with {block.target_layers} layers, this one has {layers}")
    # hidden_states[layers] is after the final norm in transformers, and before it elsewhere, so it is not taken.
    if not all(0 <= index < layers for index in block.layers):
        raise ValueError(f"{opened.name} reads the hidden states {block.layers}, expected indices below {layers}")
    if block.mask_token >= input_rows(target):
        raise ValueError(
            f"{opened.name} has the mask token {block.mask_token}, but the target's embedding has only "
            f"{input_rows(target)} rows"
        )
    if block.qwen3.vocab_size != output_rows(target):
        raise ValueError(
            f"{opened.name} is for a vocabulary of {block.qwen3.vocab_size}, the target's has {output_rows(target)}"
        )
    if block.size < 2:
        raise ValueError(f"{opened.name} has blocks of {block.size}, expected the root and at least one mask token")


def _reduced_vocabulary(
    opened: Checkpoint, block: Block, tensors: dict[str, Tensor], target: PreTrainedModel
) -> tuple[Tensor | None, Tensor | None]:
    """The token ids (V_d,) of a reduced vocabulary and its output rows (V_d, W), taken out of ``tensors``; or None."""
    shift = tensors.pop("d2t", None)
    known = tensors.pop("t2d", None)
    if block.drafted in (None, output_rows(target)):
        return None, None
    rows = tensors.pop("lm_head.weight", None)
    if shift is None or rows is None:
        raise ValueError(f"{opened.name} has a reduced vocabulary of {block.drafted}, but lacks d2t or lm_head.weight")
    wanted = (block.drafted, block.qwen3.hidden_size)
    if len(shift) != block.drafted or tuple(rows.shape) != wanted:
        raise ValueError(
            f"{opened.name} has {len(shift)} entries of d2t and an lm_head.weight of shape {tuple(rows.shape)}, "
            f"expected {block.drafted} and {wanted}"
        )
    ids = torch.arange(block.drafted, device="cpu") + shift.long()
    if (ids.diff() <= 0).any() or ids[0] < 0 or ids[-1] >= output_rows(target):
        raise ValueError(f"{opened.name}: i + d2t[i] must rise within the target's {output_rows(target)} tokens")
    if known is not None and not torch.equal(known.bool().nonzero()[:, 0], ids):
        raise ValueError(f"{opened.name}: d2t and t2d name different tokens")
    return ids, rows


def _drop_targets_own(opened: Checkpoint, tensors: dict[str, Tensor], target: PreTrainedModel) -> None:
    """Take copies of the target's weights out of ``tensors``; ValueError if one is not this target's."""
    embedding, output = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    copies = {
        "embed_tokens.weight": embedding,
        "lm_head.weight": output,
        "verifier_lm_head.weight": output,
        "verifier_norm.weight": final_norm(target).weight,
    }
    for name, ours in copies.items():
        theirs = tensors.pop(name, None)
        if theirs is None or (name == "verifier_lm_head.weight" and theirs.shape != ours.shape):
            continue  # of a reduced vocabulary, and used in training only
        ours = ours.detach().cpu()
        if theirs.shape != ours.shape or not torch.equal(theirs.to(ours), ours):
            raise ValueError(f"{opened.name} is of another target: its {name} is not this target's")


class DFlashDraft:
    """Drafting with a DFlash block: one forward per step gives the laws of all depths.

    ids: the token ids of its reduced vocabulary, None for the target's. rows: its output rows, None for the target's.
    """

    def __init__(
        self, module: DFlash, block: Block, target: PreTrainedModel, *, ids: Tensor | None = None,
        rows: Tensor | None = None,
    ):  # fmt: skip
        self.module = module
        self.ids = ids
        self.columns = output_rows(target) if ids is None else len(ids)
        self.hidden_layers = block.layers
        self.max_depth = block.size - 1
        self.masks = [block.mask_token] * self.max_depth
        self.embedding = target.get_input_embeddings()
        self.output = target.get_output_embeddings()
        if rows is not None:
            self.output = nn.Linear(1, 1, bias=False)  # the smallest, as its weight is replaced
            self.output.weight = nn.Parameter(rows.to(module.fc.weight), requires_grad=False)

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        self.cache = TreeCache()
        self.unseen: list[dict[int, Tensor]] = [hidden] if hidden else []  # states whose features are not in the cache
        self._stand_at(prefix[-1])

    def _stand_at(self, root: int) -> None:
        self.root = root
        self.logits: Tensor | None = None  # (max_depth, V_d), computed when they are first needed

    @torch.no_grad()
    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        first_is_root(self.logits is not None, frontier)
        depth = tree.depth[list(frontier)]
        deepest = int(depth.max())
        if deepest >= self.max_depth:
            raise ValueError(f"a block of {self.max_depth + 1} drafts {self.max_depth} tokens deep, not {deepest + 1}")
        if self.logits is None:
            self.logits = self._block()
        return self.logits[depth.to(self.logits.device)]

    def _block(self) -> Tensor:
        """(max_depth, V_d): the logits of all rows of a block but the root's own."""
        weight = self.module.fc.weight
        for hidden in self.unseen:
            states = [hidden[layer].to(weight.device) for layer in self.hidden_layers]
            self.module.see(self.module.fuse(states), self.cache)
        self.unseen = []
        tokens = torch.tensor([self.root, *self.masks], device=self.embedding.weight.device)
        embedded = self.embedding(tokens).to(weight.device)
        states = self.module(embedded[None], self.cache)
        return self.output(states[0, 1:])

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        self.unseen.append({layer: hidden[layer] for layer in self.hidden_layers})
        self._stand_at(next_token)
