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


def additive(may_see: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a (rows, columns) bool table into the 4-D additive mask (1, 1, rows, columns) transformers takes.

    It is added to attention scores: 0 where a row may see a column, the smallest number of its dtype where not.
    """
    mask = torch.zeros(may_see.shape, dtype=dtype, device=may_see.device)
    mask.masked_fill_(~may_see, torch.finfo(dtype).min)
    return mask[None, None]


def visible(tree: TokenTree, prefix_length: int) -> Tensor:
    """(n, prefix_length + n) bool: each node sees the whole prefix, its ancestors and itself, nothing else."""
    prefix = torch.ones(len(tree), prefix_length, dtype=torch.bool, device="cpu")
    return torch.cat([prefix, tree.ancestors], dim=1)


def tree_mask(tree: TokenTree, prefix_length: int, *, dtype: torch.dtype, device="cpu") -> Tensor:
    """``visible`` as an additive mask behind a cached prefix: (1, 1, n, prefix_length + n)."""
    n = len(tree)
    mask = torch.zeros(1, 1, n, prefix_length + n, dtype=dtype, device=device)
    among_nodes = mask[..., prefix_length:]  # a view: (1, 1, n, n)
    among_nodes.masked_fill_(~tree.ancestors.to(device), torch.finfo(dtype).min)
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
    for kind, (setting, function) in WINDOWS.items():
        is_set = bool(getattr(config, setting, None))
        if is_set and any(hasattr(code, function) for code in owners(model)):
            return (kind,)
    return ("full_attention",)


def owners(model: PreTrainedModel) -> list[ModuleType]:
    """Transformers' modules that hold the code of a model's text layers; none for code from elsewhere."""
    text_type = model.config.get_text_config().model_type
    names: list[str] = []
    for part in model.modules():
        if not isinstance(part, PreTrainedModel):
            continue
        if part.config.get_text_config().model_type != text_type:
            continue  # a vision tower, for example
        names += [base.__module__ for base in type(part).__mro__]
    distinct = dict.fromkeys(names)
    return [sys.modules[name] for name in distinct if name.startswith("transformers.models.")]


def by_layer(mask: Tensor, model: nn.Module, rows: Tensor, columns: Tensor) -> Masks:
    """An additive mask within the window of each kind of a model's layers, by position; a dict where kinds differ.

    mask: (…, n, m); rows (…, n), columns (m,): positions of the nodes and of the slots they look at.
    """
    columns = columns.to(rows.device)
    by_kind: dict[str, Tensor] = {}
    for kind in layer_kinds(model):
        by_kind[kind] = mask
        if kind in WINDOWS:
            setting, _ = WINDOWS[kind]
            size = getattr(model.config.get_text_config(), setting)
            outside = _outside_window(kind, size, rows, columns)
            by_kind[kind] = mask.masked_fill(outside.to(mask.device), torch.finfo(mask.dtype).min)
    if len(by_kind) > 1:
        return by_kind
    (only,) = by_kind.values()
    return only


def _outside_window(kind: str, size: int, rows: Tensor, columns: Tensor) -> Tensor:
    """(…, n, m) bool: whether a position of rows (…, n) is kept from seeing one of columns (m,).

    A sliding layer sees the last size positions, a chunked one the chunk of size positions that a node stands in; that
    nothing sees what comes later is another mask's matter. Example: with size 4, position 6 is kept from 0 to 2 in a
    sliding layer, and from 0 to 3 in a chunked one.
    """
    rows = rows[..., None]
    if kind == "sliding_attention":
        return rows - columns >= size
    return rows // size != columns // size


def positions(tree: TokenTree, prefix_length: int) -> Tensor:
    """(1, n) int64 position ids: prefix length + depth, so siblings share a position."""
    return (prefix_length + tree.depth)[None]


def dual_block(block: Tensor) -> Tensor:
    """(n, 2n) bool, EDD's dual-block mask: columns are the target's states h_0…h_{n−1}, then the tokens t_0…t_{n−1}.

    block: (n,) int64, the first row of each row's block. Token row i sees h before its block and the tokens of its
    block up to itself. EDD (Zheng & Wang 2025), figure 3a and eq. 3 with h_{<jL}: h_{≤jL}, as printed, would show
    the target's state at the block's root, which does not exist yet when the root's successors are drafted.

    Example: four rows in blocks of two, block = (0, 0, 2, 2). Row 1 sees no state, and tokens 0 and 1; row 3 sees the
    states 0 and 1, and tokens 2 and 3.
    """
    n = len(block)
    column = torch.arange(n, device=block.device)[None, :]  # (1, n)
    row = column.T  # (n, 1)
    first = block[:, None]  # (n, 1), of the row's block
    sees_state = column < first
    sees_token = (column >= first) & (column <= row)
    return torch.cat([sees_state, sees_token], dim=1)
