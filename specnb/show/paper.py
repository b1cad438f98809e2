"""Published numbers of the five papers, and ours beside them: quantity · paper · ours · Δ · verdict · why.

Every table and figure has rows, also those without printed numbers. Verdicts are computed, never typed.
"""

import math
from collections.abc import Mapping
from html import escape as html_escape
from itertools import combinations

import pandas as pd

from specnb import assets

PAPERS = ("ptd", "traversal", "dynatree", "edd_pct", "salf_talf")
SIGNS = {"matches": "✓", "same shape": "≈", "differs": "✗", "not attempted": "·"}
COLOURS = {"matches": "#2a9d4a", "same shape": "#3b7dd8", "differs": "#d1495b", "not attempted": "#888888"}
UNEQUAL = ("same shape", "differs")  # the verdicts that owe a why
NOISE = 1e-12  # of float arithmetic: 0.72 - 0.71 > 0.01


def load(paper: str | None = None) -> pd.DataFrame:
    """Published numbers of one paper or of all, one row each, in the order of print.

    Columns: paper, item ("Table 1", "Figure 3a", "Text"), setting ("key=value; …"), row, column, value and
    error (float, nan if not printed), unit, status, note, printed ("3.95 ± 0.03", "68,000" or "").
    """
    if paper is not None and paper not in PAPERS:
        raise ValueError(f"unknown paper {paper!r}: known are {', '.join(PAPERS)}")
    files = [assets.DATA / "paper" / f"{name}.csv" for name in (PAPERS if paper is None else (paper,))]
    raw = pd.concat([pd.read_csv(f, dtype=str, keep_default_na=False) for f in files], ignore_index=True)
    printed = [v + (f" ± {e}" if e else "") for v, e in zip(raw.value, raw.error, strict=True)]
    number = {name: [float(t.replace(",", "") or "nan") for t in raw[name]] for name in ("value", "error")}
    return raw.assign(**number, printed=printed)


def items(paper: str | None = None) -> pd.DataFrame:
    """One row per table or figure: how many rows it has here, and how many of them carry a printed number."""
    groups = load(paper).groupby(["paper", "item"], sort=False)
    return groups.agg(rows=("value", "size"), printed=("value", "count")).reset_index()


def select(paper: str, item: str, **contains) -> pd.DataFrame:
    """Rows of one item where row, column or a key of the setting equals the given value (or one of a list).

    ``select("ptd", "Table 1", dataset="MT-Bench", row=["AR", "PTD"])``; a key with a space goes in as
    ``**{"model label": "L-7B"}``. Raises ValueError naming what exists when nothing matches.
    """
    found = load(paper)
    if item not in set(found["item"]):
        raise ValueError(f"{paper} has no item {item!r}: it has {_listed(found['item'])}")
    found = found[found["item"] == item]
    for key, wanted in contains.items():
        there = pd.concat([found[["row", "column"]], _settings(found)], axis=1)
        if key not in there:
            raise ValueError(f"{paper}, {item} has no {key!r}: choose by {_listed(there.columns)}")
        choices = wanted if isinstance(wanted, list | tuple | set) else [wanted]
        hit = [any(_equal(have, choice) for choice in choices) for have in there[key]]
        if not any(hit):
            raise ValueError(f"{paper}, {item}: no {key} is {wanted!r}, there are {_listed(there[key])}")
        found = found[hit]
    return found


def table(paper: str, item: str, setting: Mapping[str, object] | None = None) -> pd.DataFrame:
    """An item as row × column of the numbers as printed ("–" for cells without one).

    setting narrows it as in select. Keys of the setting that still vary become column levels above.
    """
    found = select(paper, item, **(setting or {}))
    keys, levels = _settings(found), ["column"]
    frame = pd.concat([found[["row", "column"]], keys], axis=1)
    for key in keys.columns[keys.nunique() > 1]:
        if frame.duplicated(["row", *levels]).any():
            levels.insert(-1, key)
    cells: dict = {}
    for (row, *level), text in zip(frame[["row", *levels]].to_numpy(), found.printed, strict=True):
        cells.setdefault(tuple(level) if level[1:] else level[0], {})[row] = text or "–"
    wide = pd.DataFrame(cells, index=list(dict.fromkeys(found.row)), dtype=object)
    return wide.fillna("").rename_axis(columns=levels)


def compare(
    published: pd.DataFrame,
    ours: Mapping | pd.Series | pd.DataFrame,
    *,
    tolerance: float | Mapping[str, float],
    same_setting: bool,
    shape_holds: bool | None = None,
    why: str | Mapping[tuple[str, str], str] = "",
) -> pd.DataFrame:
    """Published rows beside ours: quantity, paper, ours, Δ, verdict, why.

    published: rows of load or select, each (row, column) once. ours: a number or None per (row, column), as a
    mapping, a Series with that index, or a DataFrame of rows × columns. tolerance: absolute, or {"rel": x} of
    the published value. shape_holds: what same_order, same_trend or same_optimum said; None if there is no
    such claim. why: one reason for all rows that owe one, or a mapping with one per (row, column).

    "not attempted" where ours is missing; "matches" for the same setting and |Δ| ≤ tolerance; otherwise
    "same shape" if shape_holds, else "differs". Raises ValueError where one of these two lacks its why, and
    for keys that are not published.
    """
    keys = list(zip(published["row"], published["column"], strict=True))
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ValueError(f"{twice[0]} is published more than once: select one item and one setting")
    ours = _keyed(ours)
    for given in (ours, why if isinstance(why, Mapping) else {}):
        if unknown := [key for key in given if key not in keys]:
            raise ValueError(f"{unknown[0]!r} is not among the published (row, column): {_listed(keys)}")
    rows = []
    for key, row in zip(keys, published.to_dict("records"), strict=True):
        paper, our = row["value"], ours.get(key)
        our = math.nan if pd.isna(our) else float(our)
        verdict = _verdict(key, paper, our, _limit(tolerance, paper), same_setting, shape_holds)
        reason = why.get(key, "") if isinstance(why, Mapping) else why if verdict in UNEQUAL else ""
        if verdict in UNEQUAL and not reason.strip():
            raise ValueError(f"{key}: {verdict!r} (paper {paper:g}, ours {our:g}) needs a why")
        unit = f"[{row['unit']}]" if row["unit"] else ""
        name = " · ".join(part for part in (row["item"], *key) if part)
        rows.append((f"{name} {unit}".strip(), paper, our, our - paper, verdict, reason))
    return pd.DataFrame(rows, columns=["quantity", "paper", "ours", "Δ", "verdict", "why"])


def same_order(paper_values, our_values, *, paper_error: float = 0.0, our_error: float = 0.0) -> bool:
    """Whether every pair that the paper separates by more than its error comes in the same order in ours.

    Ours must separate it by more than our_error. Values pair by key if both sides have keys, else by place.
    False if the paper separates no pair: that shows nothing.
    """
    pairs = combinations(_paired(paper_values, our_values), 2)
    told = [(b[0] - a[0], b[1] - a[1]) for a, b in pairs if abs(b[0] - a[0]) > paper_error + NOISE]
    return bool(told) and all(abs(o) > our_error + NOISE and (p > 0) == (o > 0) for p, o in told)


def same_trend(paper_values, our_values, *, paper_error: float = 0.0, our_error: float = 0.0) -> bool:
    """Whether both series rise and fall in the same sequence along x; lengths and turning points may differ.

    A movement counts once it leaves the last extreme by more than the error; flat agrees with flat.
    """
    return _moves(paper_values, paper_error) == _moves(our_values, our_error)


def same_optimum(paper_values, our_values, *, best=max, paper_error: float = 0.0, our_error: float = 0.0) -> bool:
    """Whether a common place holds the best value of both, ties within error; best is max or min.

    Values pair by key if both sides have keys, else by place. False if one side is flat within its error.
    """
    places = []
    sides = zip(*_paired(paper_values, our_values), strict=True)
    for side, error in zip(sides, (paper_error, our_error), strict=True):
        top = best(side)
        places.append({i for i, value in enumerate(side) if abs(value - top) <= error + NOISE})
    return len(paper_values) not in map(len, places) and bool(places[0] & places[1])


def render(comparison: pd.DataFrame, digits: int = 2, *, fold: str = "") -> "Rendered":
    """A comparison as a notebook table, numbers rounded; sign and word tell the verdict, not colour alone.

    fold: the title under which a long table is folded away until clicked.
    """
    shown, below = _rounded(comparison, digits), ""
    if len(shown) > 2 and shown["why"].nunique() == 1 and shown["why"].iloc[0]:  # one reason, said once
        below = f"<p>why, in every row: {html_escape(shown['why'].iloc[0])}</p>"
        shown = shown.drop(columns="why")
    html = shown.to_html(index=False, border=0, justify="left").replace("<table ", '<table cellpadding="5" ', 1) + below
    for verdict, colour in COLOURS.items():
        cell, style = (
            f"{SIGNS[verdict]} {verdict}</td>",
            f"border-left: 4px solid {colour}; white-space: nowrap",
        )
        html = html.replace(f"<td>{cell}", f'<td style="{style}">{cell}')
    if fold:
        html = f"<details><summary>{html_escape(fold)} ({len(comparison)})</summary>{html}</details>"
    return Rendered(html, to_text(comparison, digits))


def to_text(comparison: pd.DataFrame, digits: int = 2) -> str:
    """A comparison as plain text in aligned columns, numbers rounded: for cells that nbval compares."""
    rows = [list(comparison), *_rounded(comparison, digits).itertuples(index=False, name=None)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join(f"{{:{align}{width}}}" for align, width in zip("<>>><<", widths, strict=True))
    return "\n".join(form.format(*row).rstrip() for row in rows)


class Rendered:
    """An HTML table in a notebook, text in a terminal: the same bytes at every run, so nbval may compare."""

    def __init__(self, html: str, text: str):
        self.html, self.text = html, text

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def _verdict(key, paper: float, our: float, limit: float, same_setting: bool, shape: bool | None) -> str:
    if math.isnan(our):
        return "not attempted"
    if math.isnan(paper) and shape is None:
        raise ValueError(f"{key}: the paper prints no number, only a shape can be compared: say shape_holds")
    if same_setting and abs(our - paper) <= limit + NOISE * max(1.0, abs(paper)):
        return "matches"
    return "same shape" if shape else "differs"


def _limit(tolerance, paper: float) -> float:
    relative = isinstance(tolerance, Mapping) and set(tolerance) == {"rel"}
    size = tolerance["rel"] if relative else tolerance
    if isinstance(size, Mapping) or not 0 <= size < math.inf:
        raise ValueError(f'tolerance is a number ≥ 0 or {{"rel": number}}, got {tolerance!r}')
    return size * abs(paper) if relative else size


def _keyed(ours: Mapping | pd.Series | pd.DataFrame) -> dict:
    if isinstance(ours, pd.DataFrame):
        ours = ours.T.unstack()
    if isinstance(ours, pd.Series) and ours.index.has_duplicates:
        raise ValueError(f"ours has {ours.index[ours.index.duplicated()][0]!r} more than once")
    return dict(ours.items())


def _paired(paper_values, our_values) -> list[tuple[float, float]]:
    if hasattr(paper_values, "keys") and hasattr(our_values, "keys"):
        paper_keys, our_keys = list(paper_values.keys()), list(our_values.keys())
        if set(paper_keys) != set(our_keys):
            raise ValueError(f"ours has {_listed(our_keys)}, the paper {_listed(paper_keys)}")
        our_values = [our_values[key] for key in paper_keys]
    paper_values, our_values = _numbers(paper_values), _numbers(our_values)
    if len(paper_values) != len(our_values):
        raise ValueError(f"the paper has {len(paper_values)} values, ours {len(our_values)}")
    return list(zip(paper_values, our_values, strict=True))


def _numbers(values) -> list[float]:
    numbers = [float(value) for value in (values.values() if isinstance(values, Mapping) else values)]
    if len(numbers) < 2 or any(map(math.isnan, numbers)):
        raise ValueError(f"a shape needs two numbers or more and no gaps, got {numbers}")
    return numbers


def _moves(values, error: float) -> list[str]:
    values, moves = _numbers(values), [""]
    low = high = values[0]
    for value in values:
        low, high = min(low, value), max(high, value)
        for move, distance in (("rise", value - low), ("fall", high - value)):
            if moves[-1] != move and distance > error + NOISE:
                moves.append(move)
                low = high = value
                break
    return moves[1:]


def _rounded(comparison: pd.DataFrame, digits: int) -> pd.DataFrame:
    def number(x: float, sign: str = "") -> str:
        text = f"{x:{sign}z.{digits}f}"
        return "–" if math.isnan(x) else text.rstrip("0").rstrip(".") if "." in text else text

    cells = {name: [number(x, "+" if name == "Δ" else "") for x in comparison[name]] for name in ("paper", "ours", "Δ")}
    return comparison.assign(verdict=[f"{SIGNS[v]} {v}" for v in comparison.verdict], **cells)


def _settings(rows: pd.DataFrame) -> pd.DataFrame:
    parsed = [dict(part.split("=", 1) for part in text.split("; ") if part) for text in rows["setting"]]
    return pd.DataFrame(parsed, index=rows.index, dtype=object).fillna("")


def _equal(have: str, wanted: object) -> bool:
    try:
        return float(have) == float(wanted)
    except (TypeError, ValueError):
        return have == str(wanted)


def _listed(values, most: int = 20) -> str:
    names = list(dict.fromkeys(map(repr, values)))
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")
