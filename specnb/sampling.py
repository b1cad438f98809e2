"""From logits to probabilities to tokens: warps, residuals, and Coins, through which all randomness goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from numbers import Real
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from specnb.tree import Drawn

NEAR_ZERO = 1e-20  # temperatures below it
MINUS_INFINITY = -128  # the bits of bfloat16's -inf, read as int16


@dataclass(frozen=True)
class Warp:
    """Temperature, then top-k, then top-p, as in transformers; the same for p and for q.

    temperature 0 is the one-hot limit: all mass on the largest logit (the first one, if tied).
    top_k 0 and top_p 1 are off. Raises ValueError outside 0 <= temperature < inf, top_k >= 0, 0 < top_p <= 1.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        for name in ("temperature", "top_k", "top_p"):
            if not isinstance(getattr(self, name), Real):
                raise ValueError(f"{name} must be a number, got {getattr(self, name)!r}")
        if not 0 <= self.temperature < torch.inf:
            raise ValueError(f"temperature must be at least 0 (0 is greedy) and finite, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0 (0 is off), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1] (1 is off), got {self.top_p}")

    def __call__(self, logits: Tensor) -> Tensor:
        """(..., V) logits → (..., V) probabilities, float32 (float64 if the logits are)."""
        kind = torch.float64 if logits.dtype == torch.float64 else torch.float32
        if self.temperature == 0:
            best = likeliest(logits)[..., None]
            mass = torch.where(logits.gather(-1, best).isnan(), torch.nan, 1.0).to(kind)  # verifiers refuse NaN
            out = torch.zeros(logits.shape, dtype=kind, device=logits.device)
            return out.scatter_(-1, best, mass)
        logits = logits.to(kind)
        if self.temperature < NEAR_ZERO:  # a quotient would overflow; softmax does not see what is subtracted
            logits = (logits - logits.amax(-1, keepdim=True)) / max(self.temperature, torch.finfo(kind).tiny)
        elif self.temperature != 1:
            logits = logits / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            kth = logits.topk(self.top_k).values[..., -1:]
            logits = logits.masked_fill(logits < kth, -torch.inf)
        if self.top_p < 1:
            rising, order = logits.sort(-1)
            tail = rising.softmax(-1).cumsum(-1) <= 1 - self.top_p  # what the nucleus leaves out
            tail[..., -1] = False
            logits = logits.masked_fill(tail.scatter(-1, order, tail), -torch.inf)
        return logits.softmax(-1)


def likeliest(logits: Tensor) -> Tensor:
    """(..., V) logits → (...) int64, the token with the largest one (the first, if tied); NaN counts as the largest."""
    if logits.device.type != "cpu" or type(logits) is not Tensor:
        return logits.argmax(-1)
    if logits.dtype == torch.bfloat16:
        # Above zero these numbers are ordered as their bits are. A NaN with a minus has bits between those of -inf and
        # of the largest whole number, -1: without one, what is largest in bits is so in value.
        bits = logits.detach().view(torch.int16).numpy()
        best = bits.argmax(-1)
        above_zero = (np.take_along_axis(bits, best[..., None], -1) > 0).all()
        if above_zero and not ((bits > MINUS_INFINITY) & (bits < 0)).any():
            return torch.from_numpy(np.asarray(best))
    full = logits if logits.dtype.itemsize >= 4 else logits.float()
    return torch.from_numpy(np.asarray(full.detach().numpy().argmax(-1)))  # ten times as fast as torch's


def wide(numbers: Tensor) -> Tensor:
    """The same numbers in float64; in float32 on a device that has no float64, as Apple's GPU."""
    try:
        return numbers.double()
    except TypeError:
        return numbers.float()


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm([p − q]_+), the law of the recovered token after a rejection; p itself if no mass is left.

    p, q: (V,) float64. Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, eq. 3.
    """
    rest = (p - q).clamp_min(0)
    mass = rest.sum()
    return torch.where(mass > 0, rest / mass, p)


class Coins(Protocol):
    """All randomness of a drafter or verifier. ``exact.law`` replaces it by every outcome in turn.

    uniforms: the numbers behind the accept coins since the list was last cleared, for display; may stay empty.
    """

    uniforms: list[float]

    def accept(self, probability: float) -> bool:
        """True with this probability."""

    def choose(self, probabilities: Tensor) -> int:
        """An index drawn from (V,) probabilities, which are normalised here."""


class RandomCoins:
    """Pseudo-random coins; accept and choose have streams of their own, as have different purposes.

    A drafter and a verifier that shared a stream would break losslessness: decode gives them purpose 0 and 1.
    ``uniforms`` keeps the numbers behind the accept coins since it was last cleared, for display.
    """

    def __init__(self, seed: int = 0, purpose: int = 0):
        sequence = np.random.SeedSequence(seed, spawn_key=(purpose,))
        self._accept, self._choose = (np.random.default_rng(s) for s in sequence.spawn(2))
        self.uniforms: list[float] = []

    def accept(self, probability: float) -> bool:
        self.uniforms.append(self._accept.random())
        return self.uniforms[-1] < probability

    def choose(self, probabilities: Tensor) -> int:
        cumulative = wide(probabilities).cumsum(0)
        if cumulative.dtype != torch.float64:  # only the index that is chosen goes back to the device
            cumulative = probabilities.cpu().double().cumsum(0)
        total = cumulative[-1:]
        index = torch.searchsorted(cumulative, self._choose.random() * total, right=True)
        last = torch.searchsorted(cumulative, total)  # rounding may reach past the last mass
        index, last, total = torch.cat([index, last, total]).tolist()  # one read off the device
        if not total > 0:
            raise ValueError("cannot choose from probabilities without mass (all zero or not a number)")
        return int(min(index, last))


def draw(probabilities: Tensor, count: int, drawn: Drawn, coins: Coins) -> Sequence[int]:
    """Up to count children of one node from its (V,) law, in drawing order.

    POINT takes the most probable tokens; IID draws with replacement; SWOR without, and stops early when the
    law has no mass left.
    """
    if drawn is Drawn.POINT:
        return probabilities.topk(min(count, len(probabilities))).indices.tolist()
    if drawn is Drawn.IID:
        return [coins.choose(probabilities) for _ in range(count)]
    left, tokens = probabilities.clone(), []
    for _ in range(min(count, int(left.count_nonzero()))):
        tokens.append(coins.choose(left))
        left[tokens[-1]] = 0
    return tokens


def draw_rows(
    laws: Tensor, counts: Sequence[int], drawn: Drawn, coins: Coins
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``draw`` for each of (m, V) laws and m counts: every child's row, token and probability, read at once."""
    if drawn is Drawn.POINT:
        top = laws.topk(min(max(counts), laws.shape[1]))
        tokens, chances = torch.stack([wide(top.indices), wide(top.values)]).cpu().numpy()
        kept = np.arange(tokens.shape[1]) < np.array(counts)[:, None]
        return kept.nonzero()[0], tokens[kept].astype(np.int64), chances[kept]
    found = [draw(law, count, drawn, coins) for law, count in zip(laws, counts, strict=True)]
    rows, tokens = np.repeat(np.arange(len(found)), [*map(len, found)]), np.array(list(chain(*found)), dtype=np.int64)
    return rows, tokens, laws[rows, tokens].cpu().double().numpy()
