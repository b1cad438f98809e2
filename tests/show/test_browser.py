"""The widgets in a real browser: JupyterLab runs the notebooks' own cells, a mouse moves every control."""

import os
from pathlib import Path

import build_site
import cut_down
import nbformat
import pytest

pytest.importorskip("playwright", reason="NO WIDGET WAS TRIED IN A BROWSER: the Python package playwright is missing")

import browser

ROOT = Path(__file__).resolve().parent.parent.parent
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


@pytest.fixture(scope="module")
def faulty(open_copy):
    """A page with a sound widget and, below it, one for each fault."""
    return open_copy(cut_down.assemble([SETUP, SOUND, *FAULTS]), "faulty")


def test_a_sound_widget_passes(faulty):
    assert browser.drive(faulty, browser.box_of(faulty, 1)) == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found(fault, faulty):
    with pytest.raises(AssertionError, match=FAULTS[fault]):
        browser.drive(faulty, browser.box_of(faulty, 2 + list(FAULTS).index(fault)))


def test_a_notebook_that_raises_is_found(open_copy):
    with pytest.raises(AssertionError, match="division by zero"):
        open_copy(cut_down.assemble(["1 / 0"]), "raises")
