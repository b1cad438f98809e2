"""One look: pictures have the same bytes whatever style a reader has set for the own figures."""

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from specnb import show
from specnb.models import files
from specnb.show import look
from specnb.tree import Draft, TokenTree

LATEX = {"text.usetex": True, "font.family": "serif"}  # drawing with it needs LaTeX, setting it does not
SIZES = {
    "lines.linewidth": 5,
    "lines.markersize": 20,
    "savefig.facecolor": "black",
    "axes.grid": True,
    "figure.dpi": 50,
}
READERS = {
    "dark_background": "dark_background",
    "ggplot": "ggplot",
    "seaborn": "seaborn-v0_8",
    "LaTeX": LATEX,
    "own": SIZES,
}


@pytest.fixture(autouse=True)
def _as_it_was():
    with plt.rc_context():
        yield
    plt.close("all")


def content(figure: plt.Figure) -> None:
    """Axes, words, a legend, lines, bars, hatches and a tree."""
    ax = figure.add_subplot(1, 2, 1)
    ax.plot([0, 1], [0, 1], "o-", label="a line")
    ax.bar([0, 1], [0.5, 0.2], **look.bars("q"))
    ax.set(title="a title", xlabel="x", ylabel="$y^2$")
    ax.legend()
    table = show.tree_table(Draft(TokenTree([7, 1, 2], [-1, 0, 0])))
    show.draw_tree(table, ax=figure.add_subplot(1, 2, 2))


def picture() -> bytes:
    with look.canvas(6, 3) as figure:
        content(figure)
        return look.png(figure)


def saved(folder, monkeypatch) -> bytes:
    """A notebook's figure, as its file."""
    monkeypatch.setattr(files, "FIGURES", folder)
    show.use_style()
    figure = plt.figure(figsize=(6, 3))
    content(figure)
    return show.save(figure, "drawn", pd.DataFrame({"a": [1]})).read_bytes()


@pytest.mark.parametrize("style", READERS.values(), ids=READERS)
def test_pictures_have_the_same_bytes_under_any_style(style, tmp_path, monkeypatch):
    plt.style.use("default")
    plain, explored = picture(), show.acceptance_explorer().controls.image.value
    with plt.rc_context():
        filed = saved(tmp_path, monkeypatch)
    plt.style.use(style)
    theirs = dict(plt.rcParams)
    assert picture() == plain
    assert show.acceptance_explorer().controls.image.value == explored
    assert dict(plt.rcParams) == theirs  # the reader's own figures stay the reader's
    assert saved(tmp_path, monkeypatch) == filed


@pytest.mark.parametrize("style", ["dark_background", "ggplot", "seaborn-v0_8", SIZES])
def test_that_comparison_notices_a_style(style, monkeypatch):
    monkeypatch.setattr(look, "WHOLE_STYLE", [look.STYLE])
    plt.style.use("default")
    plain = picture()
    plt.style.use(style)
    assert picture() != plain


def test_the_backend_is_left_alone():
    backend, interactive = matplotlib.get_backend(), plt.isinteractive()
    show.use_style()
    assert (matplotlib.get_backend(), plt.isinteractive()) == (backend, interactive)
