"""How true a draft's confidence is: reliability diagrams and expected calibration error."""

import numpy as np
import pandas as pd


def reliability(confidence: np.ndarray, hit: np.ndarray, *, bins: int = 10, equal: str = "width") -> pd.DataFrame:
    """Reliability diagram: per bin of confidence how many there are, their mean confidence and their share of hits.

    confidence: (n,) in 0..1; hit: (n,) 0 or 1. equal: bins of equal "width" (Guo et al. 2017; EDD, Figure 3b) or of
    equal "count" (equal confidences may part, in the order of the rows). Columns: bin, count, confidence, accuracy;
    empty bins are left out. Raises ValueError on values outside 0..1, on lengths that differ and on other bins.
    """
    confidence, hit = np.asarray(confidence, float), np.asarray(hit, float)
    if confidence.shape != hit.shape or not len(hit):
        raise ValueError(f"confidence and hit must be of one length above 0, got {len(confidence)} and {len(hit)}")
    if not ((confidence >= 0) & (confidence <= 1 + 1e-9)).all() or not np.isin(hit, (0, 1)).all():
        raise ValueError("confidence must lie in 0..1, and hit be 0 or 1")
    if equal == "width":
        place = _by_width(confidence, bins)
    elif equal == "count":
        place = np.argsort(np.argsort(confidence, kind="stable"), kind="stable") * bins // len(confidence)
    else:
        raise ValueError(f"equal must be 'width' or 'count', got {equal!r}")
    rows = pd.DataFrame({"bin": place, "confidence": confidence, "accuracy": hit}).groupby("bin")
    return rows.mean().assign(count=rows.size()).reset_index()[["bin", "count", "confidence", "accuracy"]]


def ece(confidence: np.ndarray, hit: np.ndarray, *, bins: int = 10, equal: str = "width") -> float:
    """Expected calibration error, Σ share · |accuracy − mean confidence| over the bins of ``reliability``."""
    table = reliability(confidence, hit, bins=bins, equal=equal)
    return float(np.average((table["accuracy"] - table["confidence"]).abs(), weights=table["count"]))


def calibrated_ece(confidence: np.ndarray, *, share: float = 0.95, draws: int = 200, seed: int = 0) -> float:
    """What the ECE of a perfectly calibrated draft stays below in such a share of samples as large as this one.

    Drawn: at each of the confidences (n,) it is right as often as it says.
    """
    confidence = np.asarray(confidence, float)
    gap = (np.random.default_rng(seed).random((draws, len(confidence))) < confidence) - confidence  # (draws, n)
    sums = gap @ (_by_width(confidence, 10)[:, None] == np.arange(10))  # (draws, bins)
    return float(np.quantile(np.abs(sums).sum(1) / len(confidence), share))


def _by_width(confidence: np.ndarray, bins: int) -> np.ndarray:
    return np.minimum(confidence * bins, bins - 1).astype(int)
