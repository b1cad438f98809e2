"""How true a draft's confidence is: reliability diagrams and expected calibration error."""

import numpy as np
import pandas as pd


def reliability(confidence: np.ndarray, hit: np.ndarray, *, bins: int = 10, equal: str = "width") -> pd.DataFrame:
    """The table from which a reliability diagram is drawn: predictions in bins of similar confidence, with accuracies.

    Example: reliability([0.1, 0.3, 0.8, 0.9, 1.0], [0, 1, 1, 0, 1], bins=2). Two confidences are below .5: bin 0 has
    count 2, confidence .2 and accuracy .5. Three are not: bin 1 has count 3, confidence .9 and accuracy .667.

    confidence: (n,) in 0..1.
    hit: (n,), 1 where the prediction was right and 0 where it was wrong.
    bins: the number of bins.
    equal: bins of equal "width" (Guo et al. 2017; EDD, Figure 3b) or of equal "count". With "count" predictions of the
        same confidence may be in different bins; the earlier ones are in the lower bin.

    The columns are bin, count, confidence (the bin's mean) and accuracy (its share of hits); empty bins are left out.
    Raises ValueError on values outside 0..1, on lengths that differ and on other kinds of bins.
    """
    confidence = np.asarray(confidence, float)
    hit = np.asarray(hit, float)
    if confidence.shape != hit.shape or len(hit) == 0:
        raise ValueError(f"confidence and hit must be of one length above 0, got {len(confidence)} and {len(hit)}")
    inside = (confidence >= 0) & (confidence <= 1 + 1e-9)  # a softmax may sum to a little more than 1
    if not inside.all():
        raise ValueError(f"confidence must lie in 0..1, got {confidence[~inside][0]}")
    zero_or_one = np.isin(hit, (0, 1))
    if not zero_or_one.all():
        raise ValueError(f"hit must be 0 or 1, got {hit[~zero_or_one][0]}")

    if equal == "width":
        bin_of_each = _bins_of_equal_width(confidence, bins)
    elif equal == "count":
        bin_of_each = _bins_of_equal_count(confidence, bins)
    else:
        raise ValueError(f"equal must be 'width' or 'count', got {equal!r}")

    predictions = pd.DataFrame({"bin": bin_of_each, "confidence": confidence, "accuracy": hit})
    by_bin = predictions.groupby("bin")
    diagram = by_bin.mean()  # the mean of hits is the accuracy
    diagram["count"] = by_bin.size()
    return diagram.reset_index()[["bin", "count", "confidence", "accuracy"]]


def ece(confidence: np.ndarray, hit: np.ndarray, *, bins: int = 10, equal: str = "width") -> float:
    """Expected calibration error: the sum over all bins of share · |accuracy − mean confidence|, see ``reliability``.

    Example: of the five predictions in the example there, 2/5 are in a bin with confidence .2 and accuracy .5, and 3/5
    in a bin with .9 and .667. So the error is 2/5 · .3 + 3/5 · .233 = .26.
    """
    table = reliability(confidence, hit, bins=bins, equal=equal)
    gap = (table["accuracy"] - table["confidence"]).abs()
    return float(np.average(gap, weights=table["count"]))


def calibrated_ece(confidence: np.ndarray, *, share: float = 0.95, draws: int = 200, seed: int = 0) -> float:
    """The ECE that a perfectly calibrated draft would not exceed in this share of samples, in ten bins of equal width.

    Example: one prediction with confidence .5 is off by .5, right or wrong, so calibrated_ece([0.5]) is .5.

    A finite sample has an error even if the draft is perfectly calibrated. So samples of the same size are drawn
    (draws: how many), in which each prediction is right with the probability that its confidence states. The result is
    the quantile ``share`` of their errors. confidence: (n,) in 0..1.
    """
    confidence = np.asarray(confidence, float)
    bins = 10
    rng = np.random.default_rng(seed)
    hits = rng.random((draws, len(confidence))) < confidence  # (draws, n) bool
    surplus = hits - confidence  # (draws, n): actual minus expected hits
    is_in_bin = _bins_of_equal_width(confidence, bins)[:, None] == np.arange(bins)  # (n, bins) bool
    surplus_of_bin = surplus @ is_in_bin  # (draws, bins)
    # A bin's share of n, times the gap between its two means, is the gap between its two sums over n.
    errors = np.abs(surplus_of_bin).sum(1) / len(confidence)  # (draws,)
    return float(np.quantile(errors, share))


def _bins_of_equal_width(confidence: np.ndarray, bins: int) -> np.ndarray:
    """The bin (n,) of each confidence. With four bins, .3 is in bin 1 (.25 to .5), and 1 in the last one, bin 3."""
    return np.minimum(confidence * bins, bins - 1).astype(int)


def _bins_of_equal_count(confidence: np.ndarray, bins: int) -> np.ndarray:
    """The bin (n,) of each confidence, by its rank among all.

    Example: .9, .1, .5, .7 have the ranks 3, 0, 1, 2. Of two bins the first one takes the ranks 0 and 1, so their bins
    are 1, 0, 0, 1.
    """
    by_confidence = np.argsort(confidence, kind="stable")
    rank = np.argsort(by_confidence, kind="stable")
    return rank * bins // len(confidence)
