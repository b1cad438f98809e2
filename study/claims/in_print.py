"""Printed numbers, and whether one follows from others within their rounding.

Printed numbers are rounded. A gain follows from two others if some numbers that round to those two give one that
rounds to it.
"""

import numpy as np
import pandas as pd

from study import paper

CLOSE = 1e-9  # far below every rounding


def numbers(name: str, *items: str) -> pd.DataFrame:
    """The printed numbers of a paper's tables, or of "Text", one a row, see ``paper.rows``."""
    return paper.rows(name, *items).dropna(subset="value")


def wide(rows: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """Printed numbers by these keys, one a row, and by column."""
    return rows.pivot(index=list(keys), columns="column", values="value")


def cases(*parts: object) -> list[bool]:
    """All truth values of several tables, columns and lists, one behind the other."""
    return np.concatenate([np.ravel(part) for part in parts]).tolist()


def follows(
    gain: pd.Series, new: pd.Series, old: pd.Series | float, rounding: float, within: float | np.ndarray
) -> pd.Series:
    """Whether a gain in per cent, printed ± rounding, can be that of new over old, both printed ± within."""
    least = 100 * ((new - within) / (old + within) - 1) - rounding
    most = 100 * ((new + within) / (old - within) - 1) + rounding
    return (least - CLOSE <= gain) & (gain <= most + CLOSE)
