"""Published numbers of the five papers: ``load`` them, ``rows`` of some items, or ``select`` some of one item.

Every table and figure of a paper has rows, also those without printed numbers.
"""

from collections.abc import Iterable

import pandas as pd

from specnb.models import files

PAPERS = ("ptd", "traversal", "dynatree", "edd_pct", "salf_talf")
EDD_PRICE_7B = 0.0369  # of a draft forward in target calls, in EDD's section 4.2: 1.1 ms beside 29.8 ms with 7B
LISTED = 20  # of the choices that an error names


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
    """The number that is printed: 68000.0 of "68,000", nan where there is none."""
    if not text:
        return float("nan")
    return float(text.replace(",", ""))


def rows(paper: str, *items: str) -> pd.DataFrame:
    """The rows of some items, with the keys of their settings as further columns, nan where a row has none.

    Raises ValueError naming the items there are if one is not among them.
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
    """Rows of one item where row, column or a key of the setting equals the given value (or one of a list).

    ``select("ptd", "Table 1", dataset="MT-Bench", row=["AR", "PTD"])``; a key with a space goes in as
    ``**{"model label": "L-7B"}``. Raises ValueError naming what exists when nothing matches.
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
    """What rows can be chosen by: row, column, and the keys of the settings, whose columns stand behind "printed"."""
    columns = list(table.columns)
    first_key = columns.index("printed") + 1
    return ["row", "column", *columns[first_key:]]


def _is_one_of(cell: str, choices: Iterable[object]) -> bool:
    return any(_equal(cell, choice) for choice in choices)


def _equal(cell: str, wanted: object) -> bool:
    """Whether two are the same number ("1.0" and 1) or the same text."""
    try:
        return float(cell) == float(wanted)
    except (TypeError, ValueError):
        return cell == str(wanted)


def _listed(values: Iterable[object]) -> str:
    """The different ones of some values, as many as LISTED, for an error."""
    names = list(dict.fromkeys(map(repr, values)))
    listed = ", ".join(names[:LISTED])
    more = len(names) - LISTED
    if more > 0:
        return f"{listed} and {more} more"
    return listed
