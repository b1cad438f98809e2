"""The widgets in a real browser: JupyterLab runs the notebooks' own cells, a mouse moves every control."""

import os
from pathlib import Path

import build_site
import cut_down
import nbformat
import pytest

pytest.importorskip("playwright", reason="NO WIDGET WAS TRIED IN A BROWSER: the Python package playwright is missing")

import browser

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
PATHS = build_site.NOTEBOOKS + build_site.SOLUTIONS
NOTEBOOKS = [path for path in PATHS if cut_down.WIDGET in path.read_text(encoding="utf-8")]
SCREENS = os.environ.get("SPECNB_SCREENS")  # a folder for pictures of the widgets
LARGEST = 200_000  # bytes of a picture

# --- which cells a widget needs


def test_some_notebooks_have_widgets():
    assert len(NOTEBOOKS) >= 6


def test_a_cell_needs_who_last_bound_what_it_reads():
    sources = ["a = 1", "b = 2", "a = 3", "print(b)", "def f():\n    return [a for b in 'x']", "f()"]
    assert cut_down.needed(sources, [5]) == [2, 4, 5]


def test_a_cell_needs_who_changed_what_it_reads():
    sources = ["rows = {}", "other = {}", "rows['x'].y = 1", "other[1] = 2", "print(rows['x'])", "rows += 1", "rows"]
    assert cut_down.needed(sources, [4]) == [0, 2, 4]
    assert cut_down.needed(sources, [6]) == [0, 2, 5, 6]


def test_a_cell_does_not_need_what_it_binds_itself():
    sources = ["tree = 1", "from a import b", "tree = 2\nfor i in range(3):\n    print(tree, i)\nb = [b, tree]"]
    assert cut_down.needed(sources, [2]) == [1, 2]


def test_cells_that_several_widgets_need_are_kept_once():
    assert cut_down.needed(["a = 1", "x = a", "y = a", "z = 0"], [1, 2]) == [0, 1, 2]


# --- in the browser


@pytest.fixture(scope="module")
def lab(chromium, tmp_path_factory):
    """A JupyterLab of our own: its address and the folder of its notebooks."""
    folder = tmp_path_factory.mktemp("lab")
    with browser.jupyterlab(folder) as address:
        yield address, folder / "notebooks"


@pytest.fixture(scope="module")
def open_copy(chromium, lab):
    """Write a notebook into JupyterLab's folder, open it there and run it; the page."""
    address, folder = lab

    def opened(notebook, name):
        (folder / name).mkdir()
        nbformat.write(notebook, folder / name / f"{name}.ipynb")
        page = chromium.new_page(viewport={"width": 1280, "height": 800})
        browser.open_notebook(page, address, f"{name}/{name}.ipynb")
        return page

    return opened


@pytest.fixture(scope="module")
def open_next(open_copy):
    """The same in one kernel for all, emptied before each: its imports are made once."""
    before = []

    def opened(notebook, name):
        if before:
            page = before.pop()
            page.evaluate("() => session().session.kernel.requestExecute({code: '%reset -f'}).done.then(() => null)")
            page.evaluate("path => session().session.setPath(path)", f"{name}/{name}.ipynb")
            page.close()
        before.append(open_copy(notebook, name))
        return before[0]

    return opened


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_control_of_every_widget_changes_its_picture_or_readout(path, open_next):
    notebook, places = cut_down.cut(path)
    page = open_next(notebook, path.stem)
    for name, place in places.items():
        box = browser.box_of(page, place)
        browser.drive(page, box)
        if SCREENS:
            file = ROOT / SCREENS / f"{name}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            browser.photograph(page, box, file)
            assert file.stat().st_size < LARGEST


SETUP = """
import io, ipywidgets
from PIL import Image

def picture(red):
    Image.new("RGB", (40, 40), (25 * red, 0, 0)).save(file := io.BytesIO(), "png")
    return file.getvalue()

def widget(answer, **options):
    slider, image = ipywidgets.IntSlider(0, 0, 10, **options), ipywidgets.Image(value=picture(0))
    slider.observe(lambda change: answer(image, change["new"]), "value")
    return ipywidgets.VBox([slider, image])

def redraw(image, value):
    image.value = picture(value)

def fail(image, value):
    raise RuntimeError("callback failed")
"""
SOUND = "widget(redraw)"
OURS = ["stepper", "acceptance"]  # of test_explorers: a button, sliders of all kinds
SHOWN = f"import sys\nsys.path[:0] = [{str(TESTS)!r}, {str(TESTS / 'show')!r}]\nfrom test_explorers import WIDGETS"
FAULTS = {
    "widget(lambda image, value: None)": "nothing changes",
    "widget(fail)": "callback failed",
    "widget(lambda image, value: (redraw(image, value), fail(image, value)))": "callback failed",
    "widget(lambda image, value: print(value, file=__import__('sys').stderr))": "10",
    "ipywidgets.VBox([widget(redraw), ipywidgets.Button()])": "Press: nothing changes",
    "ipywidgets.VBox([widget(redraw), ipywidgets.Text()])": "nobody knows how to move",
    "widget(redraw, description='a long word to go before a slider')": "a label is cut off",
    "widget(redraw, disabled=True)": "no control to move",
    "ipywidgets.Image(value=picture(0))": "no control to move",
}


CELLS = [SETUP, SHOWN, SOUND, *(f"WIDGETS[{name!r}][0]()" for name in OURS), *FAULTS]


@pytest.fixture(scope="module")
def one_page(open_copy):
    """A page with a sound widget, some of ours on toys and, below them, one for each fault."""
    return open_copy(cut_down.assemble(CELLS), "one_page")


def box_of(page, cell: str):
    return browser.box_of(page, CELLS.index(cell))


def test_a_sound_widget_passes(one_page):
    assert browser.drive(one_page, box_of(one_page, SOUND)) == 1


@pytest.mark.parametrize("name", OURS)
def test_widgets_of_ours_are_moved_by_a_mouse(name, one_page):
    """On toys; each notebook's own, which takes minutes, above."""
    assert browser.drive(one_page, box_of(one_page, f"WIDGETS[{name!r}][0]()")) >= 2


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found(fault, one_page):
    with pytest.raises(AssertionError, match=FAULTS[fault]):
        browser.drive(one_page, box_of(one_page, fault))


@pytest.mark.slow
def test_a_notebook_that_raises_is_found(open_copy):
    with pytest.raises(AssertionError, match="division by zero"):
        open_copy(cut_down.assemble(["1 / 0"]), "raises")
