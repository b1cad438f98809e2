"""How far two kernels' results may lie apart: bounds from the dtype and the number of terms, not from what passed."""

import torch
from torch import Tensor

BFLOAT16 = torch.finfo(torch.bfloat16).eps  # relative; twice the error of a number that is kept in bfloat16

# A tiny model of tests/tiny.py: three layers of seven matrix products and two of attention, and the output matrix.
PRODUCTS, TERMS = 28, 48


def rounding(scale: Tensor, *, products: int = PRODUCTS, terms: int = TERMS, dtype: torch.dtype | None = None) -> float:
    """The largest difference that the order of summation explains, for results as large as ``scale``.

    A sum of n terms is off by about sqrt(n) units in the last place of its largest partial sum, in another way by every
    kernel; along a chain of products these errors add up. dtype: of the arithmetic, where it is not scale's.
    """
    eps = torch.finfo(dtype or scale.dtype).eps
    return products * terms**0.5 * eps * float(scale.abs().max())


def same(ours: Tensor, theirs: Tensor, **chain) -> bool:
    """Whether two results of a chain of products are the same but for rounding; chain: as for ``rounding``."""
    assert ours.shape == theirs.shape, f"{tuple(ours.shape)} is compared with {tuple(theirs.shape)}"
    apart, allowed = float((ours - theirs).abs().max()), rounding(theirs, **chain)
    assert apart <= allowed, f"{apart:.2e} apart, {allowed:.2e} would be rounding"
    return True
