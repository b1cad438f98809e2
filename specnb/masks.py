"""The attention mask and the position ids of a tree: what each node may see, and which position it has."""

import sys
from types import ModuleType

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specnb.tree import TokenTree

Masks = Tensor | dict[str, Tensor] | None  # additive: one for all layers, one per kind of layer, or none (all visible)
# Kind of attention layer, by its name in transformers → (the setting with its window, transformers' function for it)
WINDOWS = {
    "sliding_attention": ("sliding_window", "create_sliding_window_causal_mask"),
    "chunked_attention": ("attention_chunk_size", "create_chunked_causal_mask"),
}


def additive(may_see: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a (rows, columns) bool table into the additive mask (1, 1, rows, columns) that transformers takes.

    The mask is added to attention scores: 0 where a row may see a column, else the smallest number of the dtype.
    """
    mask = torch.zeros(may_see.shape, dtype=dtype, device=may_see.device)
    mask.masked_fill_(~may_see, torch.finfo(dtype).min)
    return mask[None, None]


def visible(tree: TokenTree, prefix_length: int) -> Tensor:
    """(n, prefix_length + n) bool: each node sees all of the prefix, its ancestors and itself, nothing else."""
    prefix = torch.ones(len(tree), prefix_length, dtype=torch.bool, device="cpu")
    return torch.cat([prefix, tree.ancestors], dim=1)


def tree_mask(tree: TokenTree, prefix_length: int, *, dtype: torch.dtype, device="cpu") -> Tensor:
    """Return ``visible`` as an additive mask: (1, 1, n, prefix_length + n), for a tree after a cached prefix."""
    n = len(tree)
    mask = torch.zeros(1, 1, n, prefix_length + n, dtype=dtype, device=device)
    among_nodes = mask[..., prefix_length:]  # a view: (1, 1, n, n)
    among_nodes.masked_fill_(~tree.ancestors.to(device), torch.finfo(dtype).min)
    return mask


def layer_kinds(model: nn.Module) -> tuple[str, ...]:
    """The kinds of a model's attention layers: "full_attention", those of WINDOWS, or others, which take no tree.

    If the configuration does not name the kinds, all layers are of one kind. It is a kind of WINDOWS if the
    configuration has its setting and transformers' code of the model applies it (``owners``), else "full_attention".
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
    """The modules of transformers with the code of a model's text layers; none if the code is not transformers'.

    A subclass, or a wrapper such as a vision-language model, has the owners of the text model inside it.
    """
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
    """Hide also what is outside the window of each kind of layer. Returns a dict if a model has several kinds.

    mask: (…, n, m), the additive mask without windows.
    rows: (…, n), the position of each node.
    columns: (m,), the position of each cache slot that the nodes look at.
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
    """(…, n, m) bool: True where a column's position is outside the window of a row's position.

    Example: with size 4, position 6 sees positions 3 to 6 in a sliding layer, so 0 to 2 are outside. In a chunked layer
    the chunks are 0 to 3 and 4 to 7, so 0 to 3 are outside. Later positions are hidden by the causal mask, not here.
    """
    rows = rows[..., None]
    if kind == "sliding_attention":
        return rows - columns >= size
    return rows // size != columns // size


def positions(tree: TokenTree, prefix_length: int) -> Tensor:
    """(1, n) int64: the position id of each node is prefix length + depth, so siblings share a position."""
    return (prefix_length + tree.depth)[None]


def dual_block(block: Tensor) -> Tensor:
    """(n, 2n) bool, EDD's dual-block mask: columns are the target's states h_0…h_{n−1}, then the tokens t_0…t_{n−1}.

    Example: four tokens in blocks of two, block = (0, 0, 2, 2). Row 1 sees no state, and tokens 0 and 1; row 3 sees the
    states 0 and 1, and tokens 2 and 3.

    block: (n,) int64, the index of the first token of each token's block.

    Token i sees the states before its block, and the tokens of its block up to itself. This is figure 3a of EDD
    (Zheng & Wang 2025), and eq. 3 with h_{<jL}. As printed, with h_{≤jL}, the mask would show the target's state at the
    first token of the block. That state does not exist yet when the next tokens are drafted.
    """
    n = len(block)
    column = torch.arange(n, device=block.device)[None, :]  # (1, n)
    row = column.T  # (n, 1)
    first = block[:, None]  # (n, 1): where the row's block begins
    sees_state = column < first
    sees_token = (column >= first) & (column <= row)
    return torch.cat([sees_state, sees_token], dim=1)
