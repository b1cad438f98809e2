"""Render what the site shows of every widget: ``python tools/make_stills.py NOTEBOOK …`` writes figures/stills.

A page has no kernel, so it gets pictures at settings chosen here, one file of JSON a widget, and moves among them
with docs/_static/stills.js. The widgets are made by the notebooks' own cells.
"""

import io
import json
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from pathlib import Path

import ipywidgets
import numpy as np
from build_site import STILLS
from cut_down import cut
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image
from tqdm import tqdm

from specnb.models import files
from specnb.show.explorers import Explorer

LARGEST = 200_000  # bytes of a widget's file


def widgets(path: Path) -> Iterator[tuple[str, Explorer]]:
    """The widgets of a notebook by name, each as its cell shows it."""
    notebook, places = cut(path)
    shell, found = InteractiveShell.instance(), {place: name for name, place in places.items()}
    shell.reset(new_session=False)  # no name of another notebook
    for i, cell in enumerate(notebook.cells):
        done = shell.run_cell(cell.source)
        done.raise_error()
        if i in found:
            yield found[i], done.result


def choices(control: ipywidgets.Widget, count: int) -> list:
    """Values of a control to show: all options, or about count over its range, where it stands among them."""
    if getattr(control, "disabled", False):
        return [control.value]
    if isinstance(control, ipywidgets.Checkbox):
        return [False, True]
    if hasattr(control, "options"):
        every = range(0, len(control.options), -(-len(control.options) // (2 * count)))  # all of up to two a value
        return [o for i, o in enumerate(control.options) if i in every or o == control.value]
    if isinstance(control, ipywidgets.FloatLogSlider):
        even = control.base ** np.linspace(control.min, control.max, count)
    else:
        even = np.linspace(control.min, control.max, count)
    whole = isinstance(control, ipywidgets.IntSlider)
    return sorted({round(value) if whole else float(f"{value:.4g}") for value in even} | {control.value})


def settings(box: Explorer, now: dict, fit: int) -> list[dict]:
    """At most about fit settings: a walk where the widget is one, all combinations, or each control moved alone."""
    if box.walk:
        at = box.walk.index(now)
        return [*box.walk[at:], *box.walk[:at]][:fit]
    for count in range(9, 3, -1):
        axes = {name: choices(getattr(box.controls, name), count) for name in box.names}
        if prod(map(len, axes.values())) <= fit:
            return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    for count in range(9, 2, -1):
        axes = {name: choices(getattr(box.controls, name), count) for name in box.names}
        moved = [now | {name: value} for name, values in axes.items() for value in values if value != now[name]]
        if len(moved) < fit:
            break
    return [now, *moved]


def stills(box: Explorer) -> dict:
    """All that a page needs: controls with the values they take, and a picture with its words for each setting."""
    now = box.now()
    chosen = settings(box, now, LARGEST // len(still(box.answer(**now), [])["picture"]))
    controls = {name: getattr(box.controls, name) for name in box.names}
    axes = {name: sorted({s[name] for s in chosen}, key=order(control)) for name, control in controls.items()}
    rendered = tqdm(chosen, unit="still", disable=None)
    return {
        "controls": [{"name": controls[name].description, "values": [*map(label, axes[name])]} for name in axes],
        "start": chosen.index(now),
        "walk": bool(box.walk),
        "stills": [still(box.answer(**s), [axes[name].index(s[name]) for name in axes]) for s in rendered],
    }


def order(control: ipywidgets.Widget):
    """How the values of a control are sorted: as its options stand, or by size."""
    return list(control.options).index if hasattr(control, "options") else float


def label(value) -> str:
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else f"{value:.3g}"


def still(found: tuple[bytes, str], at: Sequence[int]) -> dict:
    """One picture, as lossless WebP, and its words."""
    png, words = found
    Image.open(io.BytesIO(png)).save(data := io.BytesIO(), "WEBP", lossless=True, method=6, quality=100)
    return {"at": [*at], "picture": b64encode(data.getvalue()).decode(), "words": words}


def main(paths: Sequence[str]) -> None:
    for path in map(Path, paths):
        for name, box in widgets(path):
            found = stills(box)
            text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
            files.write_all({STILLS / f"{name}.json": text})
            print(f"{name}: {len(found['stills'])} stills, {len(text.encode()) // 1000} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
