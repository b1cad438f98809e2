"""Render what the site shows of every widget: ``python tools/make_stills.py NOTEBOOK …`` writes figures/stills.

A page has no kernel, so it gets pictures at settings chosen here, one file of JSON a widget, and moves among them
with docs/_static/stills.js. The widgets are made by the notebooks' own cells.
"""

import io
import json
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
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

LARGEST = 260_000  # bytes of a widget's file, about
WIDTH = 900  # pixels of a still, at most


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


def settings(box: Explorer, fit: int) -> list[dict]:
    """A walk where the widget is one; else at most about fit settings: all combinations, or controls moved alone."""
    now = box.now()
    if box.walk:
        at = box.walk.index(now)
        return [*box.walk[at:], *box.walk[:at]]
    grids = {n: {name: choices(getattr(box.controls, name), n) for name in box.names} for n in range(9, 1, -1)}
    for count, axes in grids.items():
        if count > 3 and prod(map(len, axes.values())) <= fit:
            return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    for axes in grids.values():
        moved = [now | {name: value} for name, values in axes.items() for value in values if value != now[name]]
        if len(moved) < fit:
            break
    return [now, *moved]


def stills(box: Explorer) -> dict:
    """All that a page needs: controls with the values they take, and a picture with its words for each setting."""
    controls, shown, size = {name: getattr(box.controls, name) for name in box.names}, [], 0
    chosen = settings(box, LARGEST // len(still(bytes(box.controls.image.value), "")["picture"]))
    for values in tqdm(chosen, unit="still", disable=None):
        shown.append(still(*box.answer(**values)))
        size += len(shown[-1]["picture"])
        if box.walk and size > LARGEST:  # a walk ends anywhere
            break
    chosen = chosen[: len(shown)]
    axes = {name: sorted({s[name] for s in chosen}, key=order(control)) for name, control in controls.items()}
    return {
        "controls": [{"name": controls[name].description, "values": [*map(label, axes[name])]} for name in axes],
        "start": chosen.index(box.now()),
        "walk": bool(box.walk),
        "stills": [
            {"at": [axes[name].index(values[name]) for name in axes], **one}
            for values, one in zip(chosen, shown, strict=True)
        ],
    }


def order(control: ipywidgets.Widget) -> Callable:
    """How the values of a control are sorted: as its options stand, or by size."""
    return list(control.options).index if hasattr(control, "options") else float


def label(value) -> str:
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else f"{value:.3g}"


def still(png: bytes, words: str) -> dict:
    """One picture, as WebP of 48 colours, and its words."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture = picture.resize((WIDTH, WIDTH * picture.height // picture.width)) if picture.width > WIDTH else picture
    picture = picture.quantize(48, Image.Quantize.MAXCOVERAGE).convert("RGB")
    picture.save(data := io.BytesIO(), "WEBP", lossless=True, method=4)
    return {"picture": b64encode(data.getvalue()).decode(), "words": words}


def main(paths: Sequence[str]) -> None:
    for path in map(Path, paths):
        for name, box in widgets(path):
            found = stills(box)
            text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
            files.write_all({STILLS / f"{name}.json": text})
            print(f"{name}: {len(found['stills'])} stills, {len(text.encode()) // 1000} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
