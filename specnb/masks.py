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
    """``visible`` as an additive mask behind a cached prefix: (1, 1, n, prefix_length + n)."""
    mask = torch.zeros(1, 1, len(tree), prefix_length + len(tree), dtype=dtype, device=device)
    mask[..., prefix_length:].masked_fill_(~tree.ancestors.to(device), torch.finfo(dtype).min)
    return mask


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
