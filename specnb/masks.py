"""What each node may see and where it stands: the attention mask and the position ids of a tree."""

import torch
from torch import Tensor

from specnb.tree import TokenTree


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a (rows, columns) bool table into the 4-D additive mask (1, 1, rows, columns) transformers takes."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[None, None]


def visible(tree: TokenTree, prefix_length: int) -> Tensor:
    """(n, prefix_length + n) bool: each node sees the whole prefix, its ancestors and itself, nothing else."""
    prefix = torch.ones(len(tree), prefix_length, dtype=torch.bool)
    return torch.cat([prefix, tree.ancestors], dim=1)


def tree_mask(tree: TokenTree, prefix_length: int, *, dtype: torch.dtype, device="cpu") -> Tensor:
    """The additive ancestor mask of a tree behind a cached prefix: (1, 1, n, prefix_length + n)."""
    return additive(visible(tree, prefix_length).to(device), dtype)


def positions(tree: TokenTree, prefix_length: int) -> Tensor:
    """(1, n) int64 position ids: prefix length + depth, so siblings share a position."""
    return (prefix_length + tree.depth)[None]
