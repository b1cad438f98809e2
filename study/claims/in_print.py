"""Printed numbers, and whether one of them follows from others.

Printed numbers are rounded. A printed gain follows from two other numbers if there are unrounded numbers that round to
these two and whose gain rounds to the printed one.
"""

import numpy as np
import pandas as pd

from study import paper

FLOAT_ERROR = 1e-9  # more than arithmetic adds to printed numbers, and far below their last digits


def numbers(name: str, *items: str) -> pd.DataFrame:
    """The printed numbers of a paper's tables, or of "Text", one per row, see ``paper.rows``."""
    return paper.rows(name, *items).dropna(subset="value")


def wide(rows: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """Printed numbers as a table with one row per combination of keys, and one column per printed column."""
    return rows.pivot(index=list(keys), columns="column", values="value")


def cases(*parts: object) -> list[bool]:
    """All truth values of several tables, columns and lists, in one list."""
    flat = [np.ravel(part) for part in parts]
    return np.concatenate(flat).tolist()


def follows(
    gain: pd.Series, new: pd.Series, old: pd.Series | float, rounding: float, within: float | np.ndarray
) -> pd.Series:
    """Whether a gain in per cent can be that of new over old, given how all three were rounded.

    rounding: half a unit of the gain's last printed digit. within: the same for new and old.

    Example: 2.10 over 2.00, printed to two digits (within .005). Unrounded, new / old is between 2.095 / 2.005 and
    2.105 / 1.995, so the gain is between 4.49 and 5.51 per cent. Printed to one digit (rounding .05) it may read 4.5,
    5.0 or 5.5, but not 5.6.
    """
    least_ratio = (new - within) / (old + within)
    most_ratio = (new + within) / (old - within)
    least_printed = 100 * (least_ratio - 1) - rounding
    most_printed = 100 * (most_ratio - 1) + rounding
    return (least_printed - FLOAT_ERROR <= gain) & (gain <= most_printed + FLOAT_ERROR)
