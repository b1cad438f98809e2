"""Published numbers of the five papers. An item is a table, a figure, or "Text".

``load`` returns all numbers, ``rows`` those of some items, and ``select`` some of one item. Every table and figure has
rows, even if it has no printed numbers.
"""

from collections.abc import Iterable

import pandas as pd

from specnb.models import files

PAPERS = ("ptd", "traversal", "dynatree", "edd_pct", "salf_talf")
EDD_PRICE_7B = 0.0369  # a draft forward takes 1.1 ms, a target forward of the 7B model 29.8 ms (EDD, section 4.2)
LISTED = 20  # an error message lists at most this many choices


def load(paper: str | None = None) -> pd.DataFrame:
    """Published numbers of one paper or of all, one row each, in the order of print.

    Columns: paper, item ("Table 1", "Figure 3a", "Text"), setting ("key=value; …"), row, column, value and
    error (float, nan if not printed), unit, status, note, printed ("3.95 ± 0.03", "68,000" or "").
    """
    if paper is not None and paper not in PAPERS:
        raise ValueError(f"unknown paper {paper!r}: known are {', '.join(PAPERS)}")
    names = PAPERS if paper is None else (paper,)
    tables = []
    for name in names:
        path = files.in_checkout(files.DATA / "paper" / f"{name}.csv")
        tables.append(pd.read_csv(path, dtype=str, keep_default_na=False))
    texts = pd.concat(tables, ignore_index=True)
    printed = [_as_printed(value, error) for value, error in zip(texts["value"], texts["error"], strict=True)]
    values = [_number(text) for text in texts["value"]]
    errors = [_number(text) for text in texts["error"]]
    return texts.assign(value=values, error=errors, printed=printed)


def _as_printed(value: str, error: str) -> str:
    """A number and its error in one: "3.95" and "0.03" make "3.95 ± 0.03"."""
    if not error:
        return value
    return f"{value} ± {error}"


def _number(text: str) -> float:
    """A printed text as a number: "68,000" is 68000.0, and "" is nan."""
    if not text:
        return float("nan")
    return float(text.replace(",", ""))


def rows(paper: str, *items: str) -> pd.DataFrame:
    """The rows of some items. Each key of their settings is a further column, nan in rows without this key.

    Raises ValueError, with the paper's items, on an unknown item.
    """
    table = load(paper)
    unknown = set(items) - set(table["item"])
    if unknown:
        raise ValueError(f"{paper} has no item {min(unknown)!r}: it has {_listed(table['item'])}")
    table = table[table["item"].isin(items)]
    settings = [_setting(text) for text in table["setting"]]
    return table.join(pd.DataFrame(settings, index=table.index, dtype=object))


def _setting(text: str) -> dict[str, str]:
    """A setting as a dict: "tree=Chain; temperature=1.0" has two keys."""
    pairs = [part.split("=", 1) for part in text.split("; ") if part]
    return dict(pairs)


def select(paper: str, item: str, **contains) -> pd.DataFrame:
    """The rows of one item whose row, column or setting has a given value, or one of a list of values.

    Example: ``select("ptd", "Table 1", dataset="MT-Bench", row=["AR", "PTD"])``. A key with a space is passed as
    ``**{"model label": "L-7B"}``. Raises ValueError, with the values there are, if nothing matches.
    """
    table = rows(paper, item)
    for key, wanted in contains.items():
        if key not in table:
            raise ValueError(f"{paper}, {item} has no {key!r}: choose by {_listed(_keys(table))}")
        choices = wanted if isinstance(wanted, list | tuple | set) else [wanted]
        is_chosen = [_is_one_of(cell, choices) for cell in table[key]]
        if not any(is_chosen):
            raise ValueError(f"{paper}, {item}: no {key} is {wanted!r}, there are {_listed(table[key])}")
        table = table[is_chosen]
    return table


def _keys(table: pd.DataFrame) -> list[str]:
    """The keys by which rows can be selected: row, column, and those of the settings, which follow "printed"."""
    columns = list(table.columns)
    first_key = columns.index("printed") + 1
    return ["row", "column", *columns[first_key:]]


def _is_one_of(cell: str, choices: Iterable[object]) -> bool:
    """Whether a cell of the table equals one of the choices."""
    return any(_equal(cell, choice) for choice in choices)


def _equal(cell: str, wanted: object) -> bool:
    """Whether a cell and a value are the same number ("1.0" and 1) or the same text."""
    try:
        return float(cell) == float(wanted)
    except (TypeError, ValueError):
        return cell == str(wanted)


def _listed(values: Iterable[object]) -> str:
    """The distinct values, LISTED at most, for an error message."""
    names = list(dict.fromkeys(map(repr, values)))
    listed = ", ".join(names[:LISTED])
    more = len(names) - LISTED
    if more > 0:
        return f"{listed} and {more} more"
    return listed
