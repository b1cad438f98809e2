"""The site of ``make html``: a page per notebook and text, stills for widgets, no link that leads nowhere."""

import io
import json
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import build_site
import cut_down
import ipywidgets
import make_stills
import nbformat
import numpy as np
import pytest
from PIL import Image

from specnb import show


class Page(HTMLParser):
    """What a page leads to, and the places in it that can be led to."""

    def __init__(self, path: Path):
        super().__init__()
        self.leads, self.places = [], {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.places |= {found[name] for name in ("id", "name") if name in found}
        self.leads += [found[name] for name in ("href", "src") if found.get(name)]


def dead(folder: Path) -> list[str]:
    """Every local link of the site to a file or a place in a page that is not there."""
    pages, found = {path.resolve(): Page(path) for path in folder.rglob("*.html")}, []
    for path, page in pages.items():
        for lead in page.leads:
            url = urlsplit(lead)
            if url.scheme or url.netloc:
                continue
            to = (path.parent / unquote(url.path)).resolve() if url.path else path
            there = to.is_file() and (to not in pages or unquote(url.fragment) in pages[to].places)
            found += [] if there else [f"{path.relative_to(folder.resolve())}: {lead}"]
    return found


def test_there_is_a_page_for_every_notebook_and_text(site):
    assert len(build_site.NOTEBOOKS) == len(build_site.SOLUTIONS) + 1 == 10  # 07 has no exercises
    assert len(build_site.DOCS) >= 7
    for path in build_site.NOTEBOOKS + build_site.SOLUTIONS + build_site.DOCS:
        assert (site / path.relative_to(build_site.ROOT).with_suffix(".html")).exists()


def test_pages_lead_to_each_other_and_not_to_their_sources(site):
    assert "docs/install.html" in Page(site / "index.html").leads
    assert "../index.html" in Page(site / "docs" / "citing.html").leads
    assert not list(site.rglob("*.md.html"))


def test_a_page_gives_its_notebook_to_be_run(site):
    """The notebook as it is, widgets and all, and not the page's copy."""
    for path in build_site.NOTEBOOKS + build_site.SOLUTIONS:
        page = site / path.relative_to(build_site.ROOT).with_suffix(".html")
        (given,) = (lead for lead in Page(page).leads if "_downloads/" in lead)
        assert (page.parent / given).read_bytes() == path.read_bytes()


def test_no_link_leads_nowhere(site):
    assert dead(site) == []


def test_widgets_are_stills(site):
    """As many as the notebook has widgets, and nothing is left of their text."""
    for path in build_site.NOTEBOOKS:
        page = (site / path.relative_to(build_site.ROOT).with_suffix(".html")).read_text(encoding="utf-8")
        assert page.count('class="stills"') == page.count(build_site.STILL.strip("*")) == len(cut_down.cut(path)[1])
        assert "Explorer(children" not in page


def test_stills_are_small_and_every_file_has_a_widget():
    found = {path.stem: path.stat().st_size for path in make_stills.STILLS.glob("*.json")}
    assert sorted(found) == sorted(name for path in build_site.NOTEBOOKS for name in cut_down.cut(path)[1])
    assert max(found.values()) <= 300_000


def shown(still):
    """The pixels of a still."""
    return np.asarray(Image.open(io.BytesIO(b64decode(still["picture"]))).convert("RGB"), int)


def distance(a, b):
    """Mean difference of two pictures' pixels; pictures of two sizes are wholly different."""
    return np.abs(a - b).mean() if a.shape == b.shape else np.inf


@pytest.mark.parametrize("path", build_site.NOTEBOOKS, ids=lambda path: path.stem)
def test_stills_begin_with_the_picture_that_the_notebook_was_saved_with(path):
    """Else the cells, or what they read, have changed since: make stills. Negative control: another still differs."""
    for cell in nbformat.read(path, as_version=4).cells:
        for data in (output.get("data", {}) for output in cell.get("outputs", ())):
            if cut_down.WIDGET in data:
                name = cut_down.picture_name(path, cell.source)
                told = json.loads((make_stills.STILLS / f"{name}.json").read_text(encoding="utf-8"))
                saved, start = make_stills.still(b64decode(data["image/png"]), ""), told["start"]
                far = [distance(shown(saved), shown(each)) for each in told["stills"]]
                assert far[start] < 0.5, f"{name} is older than its notebook: make stills"
                assert max(far) > 0.5


def test_a_dead_link_is_found(tmp_path):
    (tmp_path / "index.html").write_text('<p id="here"></p><a href="other.html#there"></a><a href="#here"></a>')
    (tmp_path / "other.html").write_text('<a href="index.html#here"></a><img src="picture.png"><a href="http://x"></a>')
    assert sorted(dead(tmp_path)) == ["index.html: other.html#there", "other.html: picture.png"]


def test_a_link_to_a_folder_or_to_nothing_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError):
        build_site.paged("[figures](figures)", build_site.ROOT, tmp_path)
    with pytest.raises(FileNotFoundError):
        build_site.paged("[nowhere](nowhere.py)", build_site.ROOT, tmp_path)


def test_a_widget_without_stills_is_refused(tmp_path):
    cell = nbformat.v4.new_code_cell("new_explorer()")
    cell.outputs = [nbformat.v4.new_output("display_data", {cut_down.WIDGET: {}})]
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "09_new.ipynb")
    with pytest.raises(FileNotFoundError, match="09_new_explorer"):
        build_site.pictured(tmp_path / "09_new.ipynb")


# --- what is rendered for a page


def widget(controls, **options):
    """An explorer whose picture says its settings in shades of grey."""

    def render(**values):
        shade = sum((i + 1) * int(10 * value) for i, value in enumerate(values.values())) % 256
        Image.new("L", (8, 8), shade).save(file := io.BytesIO(), "png")
        return file.getvalue(), str(values)

    return show.explorer(controls, render, **options)


def sliders(names, top=100):
    return {name: ipywidgets.IntSlider(3, 0, top, description=name) for name in names}


def test_a_walk_is_followed_from_where_the_widget_stands():
    walk = [{"a": value} for value in (1, 2, 3, 4)]
    box = widget(sliders("a"), walk=walk)
    assert make_stills.settings(box, 3) == [{"a": 3}, {"a": 4}, {"a": 1}, {"a": 2}]


def test_a_walk_ends_where_there_is_no_more_room(monkeypatch):
    box = widget(sliders("a"), walk=[{"a": value} for value in (1, 2, 3, 4)])
    monkeypatch.setattr(make_stills, "LARGEST", 1.5 * len(make_stills.still(*box.answer(a=3))["picture"]))
    found = make_stills.stills(box)
    assert (found["start"], [still["at"] for still in found["stills"]]) == (0, [[0], [1]])
    assert found["controls"] == [{"name": "a", "values": ["3", "4"]}]


def test_few_controls_are_combined_and_many_are_moved_alone():
    combined = make_stills.settings(widget(sliders("ab")), 40)
    assert len(combined) == 36
    assert {"a": 3, "b": 3} in combined
    assert {"a": 100, "b": 0} in combined
    alone, now = make_stills.settings(widget(sliders("abcdef")), 40), dict.fromkeys("abcdef", 3)
    assert alone[0] == now
    assert 6 < len(alone) <= 40
    assert all(sum(values[name] != 3 for name in now) == 1 for values in alone[1:])


def test_options_are_all_there_and_a_slider_keeps_its_place():
    assert make_stills.choices(ipywidgets.Dropdown(options=["z", "a", "m"]), 2) == ["z", "a", "m"]
    assert make_stills.choices(ipywidgets.Dropdown(options=[*"abcdefghi"], value="i"), 2) == [*"adgi"]
    assert make_stills.choices(ipywidgets.IntSlider(3, 0, 9), 3) == [0, 3, 4, 9]
    assert make_stills.choices(ipywidgets.FloatSlider(0.5, min=0, max=1), 4) == [0.0, 0.3333, 0.5, 0.6667, 1.0]
    assert make_stills.choices(ipywidgets.Checkbox(True), 2) == [False, True]
    assert make_stills.choices(ipywidgets.IntSlider(0, 0, 1, disabled=True), 9) == [0]


# --- the pages in a browser

PLAYED = """script => {  // the controls of a widget that can be moved, and what it shows
    const box = script.parentNode.querySelector("div.stills");
    return [...box.querySelectorAll("input:enabled, select:enabled, button")];
}"""
SHOWN = "e => [...e.closest('div.stills').querySelectorAll('.words, img')].map(e => e.src || e.innerHTML).join()"
DECODED = "e => e.closest('div.stills').querySelector('img').decode()"


def drive(page) -> int:
    """Move every control of every widget of a page by the keyboard; how many widgets there were.

    AssertionError if one changes nothing, if a picture cannot be shown, or if the page complains.
    """
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    scripts = page.query_selector_all("script.stills")
    for script in scripts:
        controls = script.evaluate_handle(PLAYED).get_properties().values()
        assert controls, "no control to move"
        for control in map(lambda handle: handle.as_element(), controls):
            before = control.evaluate(SHOWN)
            for key in ("End", "Home", "Enter"):
                control.press(key)
                control.evaluate(DECODED)
                if (changed := control.evaluate(SHOWN)) != before:
                    break
            assert changed != before, f"{control.inner_text() or control.evaluate('e => e.type')}: nothing changes"
    assert not complaints, "\n".join(complaints)
    return len(scripts)


@pytest.mark.parametrize("path", build_site.NOTEBOOKS, ids=lambda path: path.stem)
def test_every_control_of_a_page_changes_what_it_shows(path, site, chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 800})
    page.goto((site / path.relative_to(build_site.ROOT).with_suffix(".html")).as_uri())
    assert drive(page) == len(cut_down.cut(path)[1])
    page.close()


def test_pictures_lead_to_themselves_in_their_own_size(site, chromium):
    """On a phone they are drawn small."""
    page = chromium.new_page(viewport={"width": 390, "height": 800})
    page.goto((site / "notebooks" / "00_start_here.html").as_uri())
    pictures = [
        image for image in page.query_selector_all(".content img") if not image.evaluate("e => e.closest('.stills')")
    ]
    assert pictures
    for image in pictures:
        assert image.evaluate("e => e.parentElement.href === e.src")
    page.close()


def test_words_that_become_fewer_leave_their_place(site, chromium):
    """What stands below does not jump up when a still has fewer lines than the one before."""
    page = chromium.new_page(viewport={"width": 390, "height": 800})
    page.goto((site / "notebooks" / "02_traversal_verification.html").as_uri())
    words = page.query_selector(".stills .words")
    tall = words.evaluate("e => e.offsetHeight")
    control = page.query_selector(".stills input:enabled, .stills select:enabled")
    for key in ("End", "Home", "End"):
        control.press(key)
        height = words.evaluate("e => e.offsetHeight")
        assert height >= tall
        tall = height
    assert words.evaluate("e => (e.innerHTML = 'few', e.offsetHeight)") == tall
    assert words.evaluate("e => (e.style.minHeight = '', e.offsetHeight)") < tall  # else nothing was held
    page.close()


@pytest.mark.parametrize("fault", [None, "one still", "one picture", "no control"])
def test_a_page_whose_controls_change_nothing_is_found(fault, chromium, tmp_path):
    box = widget({} if fault == "no control" else sliders("ab"))
    played = make_stills.stills(box)
    if fault == "one still":
        played["stills"] = played["stills"][:1] * len(played["stills"])
    if fault == "one picture":
        played["stills"] = [dict(played["stills"][0], at=still["at"]) for still in played["stills"]]
    code = (build_site.ROOT / "docs" / "_static" / "stills.js").read_text(encoding="utf-8")
    inert = build_site.played(json.dumps(played))
    (tmp_path / "page.html").write_text(f"<!doctype html>{inert}<script>{code}</script>", encoding="utf-8")
    page = chromium.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    if fault is None:
        assert drive(page) == 1
    else:
        with pytest.raises(AssertionError, match="nothing changes" if fault.startswith("one") else fault):
            drive(page)
    page.close()
