"""The site of ``make html``: a page per notebook and text, pictures for widgets, no link that leads nowhere."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import build_site
import cut_down
import nbformat
import pytest


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


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build_site.build(folder)
    return folder


def test_there_is_a_page_for_every_notebook_and_text(site):
    assert len(build_site.NOTEBOOKS) == len(build_site.SOLUTIONS) + 1 == 9  # 07 has no exercises
    assert len(build_site.DOCS) >= 7
    for path in build_site.NOTEBOOKS + build_site.SOLUTIONS + build_site.DOCS:
        assert (site / path.relative_to(build_site.ROOT).with_suffix(".html")).exists()


def test_pages_lead_to_each_other_and_not_to_their_sources(site):
    assert "docs/install.html" in Page(site / "index.html").leads
    assert "../index.html" in Page(site / "docs" / "citing.html").leads
    assert not list(site.rglob("*.md.html"))


def test_no_link_leads_nowhere(site):
    assert dead(site) == []


def test_widgets_are_pictures(site):
    """As many as the notebook has widgets, and nothing is left of their text."""
    for path in build_site.NOTEBOOKS:
        page = (site / path.relative_to(build_site.ROOT).with_suffix(".html")).read_text(encoding="utf-8")
        assert page.count(build_site.STILL.strip("*")) == len(cut_down.cut(path)[1])
        assert "VBox(children" not in page


def test_a_dead_link_is_found(tmp_path):
    (tmp_path / "index.html").write_text('<p id="here"></p><a href="other.html#there"></a><a href="#here"></a>')
    (tmp_path / "other.html").write_text('<a href="index.html#here"></a><img src="picture.png"><a href="http://x"></a>')
    assert sorted(dead(tmp_path)) == ["index.html: other.html#there", "other.html: picture.png"]


def test_a_link_to_a_folder_or_to_nothing_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError):
        build_site.paged("[figures](figures)", build_site.ROOT, tmp_path)
    with pytest.raises(FileNotFoundError):
        build_site.paged("[nowhere](nowhere.py)", build_site.ROOT, tmp_path)


def test_a_widget_without_a_picture_is_refused(tmp_path):
    cell = nbformat.v4.new_code_cell("new_explorer()")
    cell.outputs = [nbformat.v4.new_output("display_data", {cut_down.WIDGET: {}})]
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "09_new.ipynb")
    with pytest.raises(FileNotFoundError, match="09_new_explorer"):
        build_site.pictured(tmp_path / "09_new.ipynb")
