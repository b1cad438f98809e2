"""Decks of slides from the notebooks: ``python tools/make_slides.py build/slides`` writes a reveal.js page for each.

The title and its answer come first; then every cell with the tag ``slide``, a text as it is, a figure, an algorithm or
a verdict below the heading of its section. No text is written for slides alone. Pages load reveal.js from the web, or
from a folder given as second argument.
"""

import re
import sys
from pathlib import Path

import nbformat
from build_site import NOTEBOOKS
from nbconvert.exporters import SlidesExporter

WIDTH, HEIGHT = 1280, 720
STYLE = """<style>
.reveal h1, .reveal h2 { font-size: 34px; margin: 0 0 12px; text-transform: none; }
.reveal h1 { font-size: 46px; }
.reveal .slides section { text-align: left; font-size: 24px; }
.reveal .jp-RenderedImage img { max-height: 600px; max-width: 1240px; width: auto; display: block; margin: 0 auto; }
.reveal pre, .reveal .highlight pre { font-size: 14px; line-height: 1.25; box-shadow: none; width: 100%; }
.reveal .jp-OutputArea-output pre { font-size: 15px !important; white-space: pre !important; }
.reveal table { font-size: 18px; }
</style></head>"""


def deck(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook's slides, as a notebook whose cells say where a slide begins."""
    title, answer, *_ = notebook.cells[0].source.split("\n\n")
    cells, heading = [slide(f"{title}\n\n{answer}")], title
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            heading = [heading, *re.findall(r"^#+ .+$", cell.source, re.MULTILINE)][-1]
        if "slide" not in cell.metadata.get("tags", []):
            continue
        if cell.cell_type == "markdown":
            cells.append(slide(cell.source))
        else:
            cell.metadata["slideshow"] = {"slide_type": "-"}  # below its heading
            cells += [slide("## " + heading.lstrip("# ")), cell]
    return nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata | {"title": title.lstrip("# ")})


def slide(text: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_markdown_cell(text, metadata={"slideshow": {"slide_type": "slide"}})


def main(folder: Path, reveal: str | None = None) -> None:
    exporter = SlidesExporter(exclude_input=True, exclude_output_prompt=True, reveal_scroll=True)
    exporter.reveal_width, exporter.reveal_height = str(WIDTH), str(HEIGHT)
    exporter.reveal_theme, exporter.reveal_url_prefix = "white", reveal or exporter.reveal_url_prefix
    folder.mkdir(parents=True, exist_ok=True)
    for path in NOTEBOOKS:
        shown = deck(nbformat.read(path, as_version=4))
        page, _ = exporter.from_notebook_node(shown)
        (folder / f"{path.stem}.html").write_text(page.replace("</head>", STYLE, 1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
