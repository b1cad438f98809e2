"""What each node may see and where it stands: the attention mask and the position ids of a tree."""

import sys
from types import ModuleType

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specnb.tree import TokenTree

Masks = Tensor | dict[str, Tensor] | None  # additive: for all layers, by kind of layer, or nothing hidden
# Kinds of attention layers by transformers' names → the setting that says how far a layer sees, and what applies it.
WINDOWS = {
    "sliding_attention": ("sliding_window", "create_sliding_window_causal_mask"),
    "chunked_attention": ("attention_chunk_size", "create_chunked_causal_mask"),
}


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a (rows, columns) bool table into the 4-D additive mask (1, 1, rows, columns) transformers takes."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[None, None]


def visible(tree: TokenTree, prefix_length: int) -> Tensor:
    """(n, prefix_length + n) bool: each node sees the whole prefix, its ancestors and itself, nothing else."""
    prefix = torch.ones(len(tree), prefix_length, dtype=torch.bool, device="cpu")
    return torch.cat([prefix, tree.ancestors], dim=1)


def tree_mask(tree: TokenTree, prefix_length: int, *, dtype: torch.dtype, device="cpu") -> Tensor:
    """``visible`` as an additive mask behind a cached prefix: (1, 1, n, prefix_length + n)."""
    mask = torch.zeros(1, 1, len(tree), prefix_length + len(tree), dtype=dtype, device=device)
    mask[..., prefix_length:].masked_fill_(~tree.ancestors.to(device), torch.finfo(dtype).min)
    return mask


def layer_kinds(model: nn.Module) -> tuple[str, ...]:
    """The kinds of attention layers a model has: "full_attention", those of WINDOWS, or others, which take no tree.

    Where a configuration names no kinds, all layers have the window it has, if the code that owns the layers applies
    one: transformers' module of that model, whatever subclass or wrapper (a vision-language model) stands around it.
    """
    if not isinstance(model, PreTrainedModel):
        return ("full_attention",)  # a trained head
    config = model.config.get_text_config()
    named = getattr(config, "layer_types", None)
    if named:
        return tuple(sorted(set(named)))
    for kind, (size, rule) in WINDOWS.items():
        if getattr(config, size, None) and any(hasattr(code, rule) for code in owners(model)):
            return (kind,)
    return ("full_attention",)


def owners(model: PreTrainedModel) -> list[ModuleType]:
    """Transformers' modules that hold the code of a model's text layers; none for code from elsewhere."""
    kind = model.config.get_text_config().model_type
    found = []
    for part in model.modules():
        if not isinstance(part, PreTrainedModel) or part.config.get_text_config().model_type != kind:
            continue  # a vision tower, for example
        for base in type(part).__mro__:
            name = base.__module__
            code = sys.modules[name] if name.startswith("transformers.models.") else None
            if code is not None and code not in found:
                found.append(code)
    return found


def by_layer(mask: Tensor, model: nn.Module, rows: Tensor, columns: Tensor) -> Masks:
    """An additive mask within the window of each kind of a model's layers, by position; a dict where kinds differ.

    mask: (…, n, m); rows (…, n), columns (m,): positions of the nodes and of the slots they look at. A sliding layer
    sees the last sliding_window positions, a chunked one the chunk of attention_chunk_size that a node stands in.
    """
    found, columns = {}, columns.to(rows.device)
    for kind in layer_kinds(model):
        found[kind] = mask
        if kind in WINDOWS:
            size, row = getattr(model.config.get_text_config(), WINDOWS[kind][0]), rows[..., None]
            beyond = row - columns >= size if kind == "sliding_attention" else row // size != columns // size
            found[kind] = mask.masked_fill(beyond.to(mask.device), torch.finfo(mask.dtype).min)
    return found if len(found) > 1 else found.popitem()[1]


def positions(tree: TokenTree, prefix_length: int) -> Tensor:
    """(1, n) int64 position ids: prefix length + depth, so siblings share a position."""
    return (prefix_length + tree.depth)[None]


def dual_block(block: Tensor) -> Tensor:
    """(n, 2n) bool, EDD's dual-block mask: columns are the target's states h_0…h_{n−1}, then the tokens t_0…t_{n−1}.

    block: (n,) int64, the first row of each row's block. Token row i sees h before its block and the tokens of its
    block up to itself. EDD (Zheng & Wang 2025), figure 3a and eq. 3 with h_{<jL}: h_{≤jL}, as printed, would show
    the target's state at the block's root, which does not exist yet when the root's successors are drafted.
    """
    rows = torch.arange(len(block), device=block.device)
    hidden = rows[None, :] < block[:, None]
    tokens = (rows[None, :] >= block[:, None]) & (rows[None, :] <= rows[:, None])
    return torch.cat([hidden, tokens], 1)
