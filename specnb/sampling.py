"""From logits to probabilities (``Warp``), and from probabilities to tokens (``Coins``, ``draw``).

Coins are the only source of randomness of drafters and verifiers. A law is a probability distribution over the
vocabulary, (V,).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from numbers import Real
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from specnb.tree import Drawn

NEAR_ZERO = 1e-20  # temperatures below it, above 0, are handled with care
MINUS_INFINITY = -128  # the bits of bfloat16's -inf, read as int16


@dataclass(frozen=True)
class Warp:
    """Temperature, then top-k, then top-p, as in transformers; the same for p and for q.

    temperature: 0 <= temperature < inf; 0 puts all mass on the largest logit (the first one, if tied).
    top_k: at least 0; 0 is off.
    top_p: 0 < top_p <= 1; 1 is off.
    Raises ValueError if a setting is not a number or is out of its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        for name in ("temperature", "top_k", "top_p"):
            value = getattr(self, name)
            if not isinstance(value, Real):
                raise ValueError(f"{name} must be a number, got {value!r}")
        if not 0 <= self.temperature < torch.inf:
            raise ValueError(f"temperature must be at least 0 (0 is greedy) and finite, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0 (0 is off), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1] (1 is off), got {self.top_p}")

    def __call__(self, logits: Tensor) -> Tensor:
        """(..., V) logits → (..., V) probabilities, float32 (float64 if the logits are).

        Example: the logits of (.5, .3, .2) give (.66, .24, .11) at temperature .5, whose squares are .25, .09 and .04;
        with top_k=2 (.625, .375, 0), and with top_p=.7, which the first two reach, the same.
        """
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        if self.temperature == 0:
            return self._one_hot(logits, dtype)
        logits = self._divide_by_temperature(logits.to(dtype))
        if 0 < self.top_k < logits.shape[-1]:
            smallest_kept = logits.topk(self.top_k).values[..., -1:]
            logits = logits.masked_fill(logits < smallest_kept, -torch.inf)
        if self.top_p < 1:
            logits = logits.masked_fill(self._outside_nucleus(logits), -torch.inf)
        return logits.softmax(-1)

    def _one_hot(self, logits: Tensor, dtype: torch.dtype) -> Tensor:
        """All mass on the largest logit. If a logit is NaN, the mass is NaN, and verifiers refuse it."""
        best = likeliest(logits)[..., None]
        is_nan = logits.gather(-1, best).isnan()
        mass = torch.where(is_nan, torch.nan, 1.0).to(dtype)
        nothing = torch.zeros(logits.shape, dtype=dtype, device=logits.device)
        return nothing.scatter_(-1, best, mass)

    def _divide_by_temperature(self, logits: Tensor) -> Tensor:
        """logits / temperature, up to one constant per row, which does not change the softmax."""
        if self.temperature == 1:
            return logits
        if self.temperature < NEAR_ZERO:  # a quotient would overflow
            below_largest = logits - logits.amax(-1, keepdim=True)
            return below_largest / max(self.temperature, torch.finfo(logits.dtype).tiny)
        return logits / self.temperature

    def _outside_nucleus(self, logits: Tensor) -> Tensor:
        """(..., V) bool: the least likely tokens, of total mass 1 − top_p at most, but never the likeliest token."""
        rising, order = logits.sort(-1)
        is_tail = rising.softmax(-1).cumsum(-1) <= 1 - self.top_p
        is_tail[..., -1] = False
        return is_tail.scatter(-1, order, is_tail)  # back to the order of tokens


def likeliest(logits: Tensor) -> Tensor:
    """(..., V) logits → (...) int64: the token of the largest logit (the first, if tied); NaN counts as the largest."""
    if logits.device.type != "cpu" or type(logits) is not Tensor:
        return logits.argmax(-1)
    if logits.dtype == torch.bfloat16:
        best = _likeliest_by_bits(logits)
        if best is not None:
            return best
    numbers = logits if logits.dtype.itemsize >= 4 else logits.float()
    best = numbers.detach().numpy().argmax(-1)  # ten times as fast as torch's
    return torch.from_numpy(np.asarray(best))


def _likeliest_by_bits(logits: Tensor) -> Tensor | None:
    """``likeliest`` of bfloat16 logits, found by comparing their bits as int16 (faster); None if that may err.

    Positive bfloat16 numbers are in the same order as their bits. So the largest bits belong to the largest logit if
    two things hold: they are above 0, and no logit is a NaN with a minus sign, which must count as the largest. Such a
    NaN has bits between those of -inf and -1.
    """
    bits = logits.detach().view(torch.int16).numpy()
    best = bits.argmax(-1)
    largest_bits = np.take_along_axis(bits, best[..., None], -1)
    if (largest_bits <= 0).any():
        return None
    is_minus_nan = (bits > MINUS_INFINITY) & (bits < 0)
    if is_minus_nan.any():
        return None
    return torch.from_numpy(np.asarray(best))


def wide(numbers: Tensor) -> Tensor:
    """Return the same numbers in float64, or in float32 on a device without float64, such as Apple's GPU."""
    try:
        return numbers.double()
    except TypeError:
        return numbers.float()


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm([p − q]_+), the law of the recovered token after a rejection; p itself if [p − q]_+ is zero.

    p, q: (V,) float64. Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, eq. 3.

    Example: p = (.3, .4, .3) and q = (.6, .3, .1) give [p − q]_+ = (0, .1, .2), and so (0, 1/3, 2/3).
    """
    rest = (p - q).clamp_min(0)
    mass = rest.sum()
    return torch.where(mass > 0, rest / mass, p)  # no read off the device


class Coins(Protocol):
    """The source of all randomness of a drafter or a verifier. ``exact.law`` replaces it by every outcome in turn.

    uniforms: for display, the uniform number of each accept coin since the list was last cleared; may stay empty.
    """

    uniforms: list[float]

    def accept(self, probability: float) -> bool:
        """Return True with this probability."""

    def choose(self, probabilities: Tensor) -> int:
        """Return an index drawn from (V,) probabilities. They need not sum to 1."""


class RandomCoins:
    """Pseudo-random coins of a seed. Each purpose has independent streams, one for accept and one for choose.

    decode gives the drafter purpose 0 and the verifier purpose 1: if they shared a stream, decoding would not be
    lossless.
    """

    def __init__(self, seed: int = 0, purpose: int = 0):
        sequence = np.random.SeedSequence(seed, spawn_key=(purpose,))
        for_accept, for_choose = sequence.spawn(2)
        self._accept = np.random.default_rng(for_accept)
        self._choose = np.random.default_rng(for_choose)
        self.uniforms: list[float] = []

    def accept(self, probability: float) -> bool:
        uniform = self._accept.random()
        self.uniforms.append(uniform)
        return uniform < probability

    def choose(self, probabilities: Tensor) -> int:
        cumulative = wide(probabilities).cumsum(0)  # (V,)
        if cumulative.dtype != torch.float64:  # no float64 on this device: add up on the CPU
            cumulative = probabilities.cpu().double().cumsum(0)
        total = cumulative[-1:]
        threshold = self._choose.random() * total
        index = torch.searchsorted(cumulative, threshold, right=True)
        last = torch.searchsorted(cumulative, total)  # the last index with mass: rounding may go beyond it
        index, last, mass = torch.cat([index, last, total]).tolist()  # one read off the device
        if not mass > 0:
            raise ValueError("cannot choose from probabilities without mass (all zero or not a number)")
        return int(min(index, last))


def draw(probabilities: Tensor, count: int, drawn: Drawn, coins: Coins) -> Sequence[int]:
    """Return up to count tokens for the children of a node, in drawing order.

    probabilities: (V,), the law of the node. POINT takes the most probable tokens. IID draws with replacement. SWOR
    draws without replacement, and stops early when the law has no mass left.
    """
    if drawn is Drawn.POINT:
        return probabilities.topk(min(count, len(probabilities))).indices.tolist()
    if drawn is Drawn.IID:
        return [coins.choose(probabilities) for _ in range(count)]
    remaining = probabilities.clone()
    possible = int(remaining.count_nonzero())
    tokens: list[int] = []
    for _ in range(min(count, possible)):
        token = coins.choose(remaining)
        tokens.append(token)
        remaining[token] = 0
    return tokens


def draw_rows(
    laws: Tensor, counts: Sequence[int], drawn: Drawn, coins: Coins
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Apply ``draw`` to each of (m, V) laws. Returns the law's row, the token and the probability of every child.

    Example: POINT, the laws (.5, .3, .2) and (.1, .2, .7), counts (2, 1): rows (0, 0, 1), tokens (0, 1, 2) and
    probabilities (.5, .3, .7).

    For POINT the laws are read off the device at once.
    """
    if drawn is Drawn.POINT:
        return _top_rows(laws, counts)
    tokens_by_row = [draw(law, count, drawn, coins) for law, count in zip(laws, counts, strict=True)]
    drawn_counts = [len(tokens) for tokens in tokens_by_row]
    rows = np.repeat(np.arange(len(tokens_by_row)), drawn_counts)
    tokens = np.array(list(chain.from_iterable(tokens_by_row)), dtype=np.int64)
    probabilities = laws[rows, tokens].cpu().double().numpy()
    return rows, tokens, probabilities


def _top_rows(laws: Tensor, counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``draw_rows`` for POINT: the count most probable tokens of each row."""
    widest = min(max(counts), laws.shape[1])
    top = laws.topk(widest)
    both = torch.stack([wide(top.indices), wide(top.values)])  # (2, m, widest)
    tokens, probabilities = both.cpu().numpy()  # one read off the device
    is_wanted = np.arange(widest) < np.array(counts)[:, None]  # (m, widest)
    rows, _ = is_wanted.nonzero()
    return rows, tokens[is_wanted].astype(np.int64), probabilities[is_wanted]
