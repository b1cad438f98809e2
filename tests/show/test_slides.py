"""Slides of ``make slides``: the notebook's title and its tagged cells, each below its heading, nothing else."""

import build_site
import make_slides
import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output


def tagged(cell):
    cell.metadata["tags"] = ["slide"]
    return cell


def test_a_deck_is_the_title_and_the_tagged_cells_below_their_headings():
    figure, again = (tagged(new_code_cell(f"draw({i})", outputs=[new_output("stream", text="x")])) for i in range(2))
    said, other = tagged(new_markdown_cell("## Two\n\nwords")), new_code_cell("no_slide()")
    notebook = new_notebook(cells=[new_markdown_cell("# Title\n\n**Answer.**\n\nMore."), figure, other, said, again])
    shown = make_slides.deck(notebook).cells
    assert [cell.source for cell in shown] == [
        "# Title\n\n**Answer.**", "## Title", "draw(0)", "## Two\n\nwords", "## Two", "draw(1)",
    ]  # fmt: skip
    begins = [cell.metadata["slideshow"]["slide_type"] for cell in shown]
    assert begins == ["slide", "slide", "-", "slide", "slide", "-"]


@pytest.fixture(scope="module")
def decks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slides")
    make_slides.main(folder)
    return folder


@pytest.mark.parametrize("path", build_site.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_lecture_has_a_deck_with_all_that_is_tagged(path, decks):
    page = BeautifulSoup((decks / f"{path.stem}.html").read_text(encoding="utf-8"), "html.parser")
    slides = page.select("div.slides > section > section")
    chosen = [cell for cell in nbformat.read(path, as_version=4).cells if "slide" in cell.metadata.get("tags", [])]
    drawn = [sum("image/png" in output.get("data", {}) for output in cell.get("outputs", [])) for cell in chosen]
    assert len(slides) == len(chosen) + 1 >= 5
    assert [len(slide.find_all("img")) for slide in slides[1:]] == drawn
    text = page.get_text()
    assert "Explorer(children" not in text  # a widget is its picture
    for cell in chosen:
        assert cell.cell_type == "markdown" or cell.source.splitlines()[0] not in text  # outputs, not inputs
