"""One look for all figures: colours of states and kinds, style, and files with the same bytes at every run.

Accepted green, rejected red, recovered blue, bonus purple, unvisited and auxiliary grey; marker, edge and underline
styles say the same without colour.
"""

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.path import Path as Outline
from PIL import Image

from specnb.models import files

INK = "#222222"

# Signs inside nodes, as outlines in a square from -1 to 1.
TICK = Outline([(-0.9, 0.0), (-0.25, -0.7), (0.95, 0.75)])
CROSS = Outline([(-1, -1), (1, 1), (-1, 1), (1, -1)], [1, 2, 1, 2])  # move, line, move, line


@dataclass(frozen=True)
class Look:
    """How one state looks: node (marker, outline, a sign inside), edge to the parent, text underline."""

    colour: str
    marker: str = "o"
    outline: str = "-"
    sign: Outline | None = None
    scale: float = 1.0  # of the marker
    edge: str = "-"
    width: float = 1.2  # of the edge, points
    underline: str = "solid"


# Hues of Paul Tol's "bright" scheme, made for colour-blind readers; the greys are darker than his.
LOOKS = {
    "root": Look(INK, scale=0.8),
    "accepted": Look("#228833", sign=TICK, width=5, underline="3px solid"),
    "rejected": Look("#EE6677", "s", sign=CROSS, scale=0.9, edge="--", width=1.6),
    "recovered": Look("#4477AA", "D", scale=0.85, width=2.5, underline="3px dashed"),
    "bonus": Look("#AA3377", "*", scale=1.45, width=2.5, underline="5px double"),
    "unvisited": Look("#8A8A8A", outline="--"),
    "auxiliary": Look("#8A8A8A", outline=":", scale=0.55, edge=":"),
}
COLOURS = {state: look.colour for state, look in LOOKS.items()}
TEXT_STYLE = "font-size:17px;line-height:1.8;white-space:pre-wrap;max-width:1100px"  # CSS


class Kind(NamedTuple):
    """How one of several kinds looks in a chart: bars have the colour and hatch, lines the colour and marker."""

    colour: str
    hatch: str
    marker: str


KINDS = (
    Kind("#4477AA", "", "o"),
    Kind("#CCBB44", "//", "s"),
    Kind("#AA3377", "..", "^"),
    Kind("#66CCEE", "xx", "D"),
    Kind("#BBBBBB", "", "v"),
)
LAW_BARS = {"p": ("#9A9A9A", ""), "q": ("#CCBB44", "//")}  # colour and hatch

STYLE = {
    "font.family": ["DejaVu Sans"],
    "font.size": 13,
    "axes.titlesize": 14,
    "axes.labelsize": 13,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "legend.fontsize": 12,
    "legend.frameon": False,
    "figure.figsize": (9.0, 4.5),
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "hatch.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=["#4477AA", "#CCBB44", "#66CCEE", "#AA3377", "#228833", "#EE6677"]),
}
# matplotlib's defaults first: a reader's matplotlibrc or dark style may set what STYLE does not name.
WHOLE_STYLE = ["default", STYLE]


def use_style() -> None:
    """One look for all notebooks: readable on a projector, white, no frame lines that carry nothing.

    All other settings are matplotlib's defaults, as when the notebooks' figures were drawn, not the reader's own.
    """
    plt.style.use(WHOLE_STYLE)


@contextmanager
def canvas(width: float, height: float, **options) -> Iterator[Figure]:
    """An empty figure of so many hundred pixels, in our style alone while it is drawn; for ``png``."""
    with plt.style.context(WHOLE_STYLE):
        yield Figure(figsize=(width, height), dpi=100, **options)


def light(colour: str) -> tuple[float, ...]:
    """A light tint of a colour as red, green, blue in 0..1. Example: "black" becomes (0.8, 0.8, 0.8)."""
    return tuple(0.8 + 0.2 * part for part in to_rgb(colour))


def bars(name: str) -> dict:
    """How the bars of a law look, "p" or "q": arguments of ``Axes.bar`` and ``Axes.barh``."""
    colour, hatch = LAW_BARS[name]
    return {"color": colour, "hatch": hatch, "edgecolor": "white", "lw": 0, "label": name}


def kinds(names: Iterable[str]) -> dict[str, Kind]:
    """Colour, hatch and marker of up to five kinds, in the order of their first mention; ValueError for more."""
    different = list(dict.fromkeys(names))
    if len(different) > len(KINDS):
        listed = ", ".join(map(str, different))
        raise ValueError(f"a figure tells {len(KINDS)} kinds apart, got {len(different)}: {listed}")
    return dict(zip(different, KINDS, strict=False))


def save(drawn: Axes | Figure, name: str, data: pd.DataFrame | pd.Series) -> Path:
    """Write figures/NAME.png and the numbers it was drawn from, figures/NAME.csv; the same bytes each time.

    An index other than 0, 1, … is written too. Returns the PNG's path. ValueError on a name with a folder.
    """
    if Path(name).name != name:
        raise ValueError(f"name must be a plain file name without a folder, got {name!r}")
    figure = drawn if isinstance(drawn, Figure) else drawn.figure
    picture = io.BytesIO()
    # Software would write matplotlib's version, and so change the file without a change of the picture.
    figure.savefig(picture, format="png", dpi=110, bbox_inches="tight", metadata={"Software": None})

    index = not isinstance(data.index, pd.RangeIndex)
    csv = data.to_csv(index=index, float_format="%.6g", lineterminator="\n")
    path = files.FIGURES / f"{name}.png"
    files.write_all({path.with_suffix(".csv"): csv, path: picture.getvalue()})
    return path


def png(figure: Figure) -> bytes:
    """The figure as PNG, at its own size, in 128 colours (a third of the bytes); closes it."""
    agg = FigureCanvasAgg(figure)
    agg.draw()
    pixels = Image.fromarray(np.asarray(agg.buffer_rgba())).convert("RGB")
    encoded = io.BytesIO()
    pixels.quantize(128).save(encoded, "PNG")
    plt.close(figure)
    return encoded.getvalue()
