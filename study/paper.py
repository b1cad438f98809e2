"""Published numbers of the five papers: ``load``, ``rows`` of some items, ``select`` among them, one as a ``table``.

Every table and figure has rows, also those without printed numbers.
"""

from collections.abc import Mapping

import pandas as pd

from specnb.models import files

PAPERS = ("ptd", "traversal", "dynatree", "edd_pct", "salf_talf")


def load(paper: str | None = None) -> pd.DataFrame:
    """Published numbers of one paper or of all, one row each, in the order of print.

    Columns: paper, item ("Table 1", "Figure 3a", "Text"), setting ("key=value; …"), row, column, value and
    error (float, nan if not printed), unit, status, note, printed ("3.95 ± 0.03", "68,000" or "").
    """
    if paper is not None and paper not in PAPERS:
        raise ValueError(f"unknown paper {paper!r}: known are {', '.join(PAPERS)}")
    paths = [files.in_checkout(files.DATA / "paper" / f"{name}.csv") for name in ([paper] if paper else PAPERS)]
    raw = pd.concat([pd.read_csv(path, dtype=str, keep_default_na=False) for path in paths], ignore_index=True)
    printed = [v + (f" ± {e}" if e else "") for v, e in zip(raw.value, raw.error, strict=True)]
    number = {name: [float(t.replace(",", "") or "nan") for t in raw[name]] for name in ("value", "error")}
    return raw.assign(**number, printed=printed)


def rows(paper: str, *items: str) -> pd.DataFrame:
    """The rows of some items, with the keys of their settings as further columns, nan where a row has none.

    Raises ValueError naming the items there are if one is not among them.
    """
    found = load(paper)
    if unknown := set(items) - set(found["item"]):
        raise ValueError(f"{paper} has no item {min(unknown)!r}: it has {_listed(found['item'])}")
    found = found[found["item"].isin(items)]
    settings = [dict(part.split("=", 1) for part in text.split("; ") if part) for text in found["setting"]]
    return found.join(pd.DataFrame(settings, index=found.index, dtype=object))


def select(paper: str, item: str, **contains) -> pd.DataFrame:
    """Rows of one item where row, column or a key of the setting equals the given value (or one of a list).

    ``select("ptd", "Table 1", dataset="MT-Bench", row=["AR", "PTD"])``; a key with a space goes in as
    ``**{"model label": "L-7B"}``. Raises ValueError naming what exists when nothing matches.
    """
    found = rows(paper, item)
    for key, wanted in contains.items():
        if key not in found:
            raise ValueError(f"{paper}, {item} has no {key!r}: choose by {_listed(_keys(found))}")
        choices = wanted if isinstance(wanted, list | tuple | set) else [wanted]
        hit = [any(_equal(have, choice) for choice in choices) for have in found[key]]
        if not any(hit):
            raise ValueError(f"{paper}, {item}: no {key} is {wanted!r}, there are {_listed(found[key])}")
        found = found[hit]
    return found


def table(paper: str, item: str, setting: Mapping[str, object] | None = None) -> pd.DataFrame:
    """An item as row × column of the numbers as printed ("–" for cells without one).

    setting narrows it as in select. Keys of the setting that still vary become column levels above.
    """
    found, levels = select(paper, item, **(setting or {})), ["column"]
    found = found.fillna(dict.fromkeys(_keys(found), ""))
    for key in _keys(found)[2:]:
        if found[key].nunique() > 1 and found.duplicated(["row", *levels]).any():
            levels.insert(-1, key)
    cells = found.assign(printed=found["printed"].replace("", "–"))
    wide = cells.pivot_table("printed", "row", levels, aggfunc="last", sort=False)
    return wide.fillna("").rename_axis(index=None)


def _keys(found: pd.DataFrame) -> list[str]:
    """What rows can be chosen by."""
    return ["row", "column", *found.columns[list(found.columns).index("printed") + 1 :]]


def _equal(have: str, wanted: object) -> bool:
    try:
        return float(have) == float(wanted)
    except (TypeError, ValueError):
        return have == str(wanted)


def _listed(values, most: int = 20) -> str:
    names = list(dict.fromkeys(map(repr, values)))
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")
