"""Build the browsable site: ``python tools/build_site.py build/html``, with Sphinx, from README, docs and notebooks.

Pages show saved outputs, nothing runs. A widget cannot live on a page: its stills of ``make stills`` stand in its
place, with controls that choose among them. Files that a text links to become pages too.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import links
import nbformat
from cut_down import WIDGET, picture_name

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(ROOT.glob("notebooks/[0-9]*.ipynb"))
SOLUTIONS = sorted(ROOT.glob("notebooks/solutions/[0-9]*.ipynb"))
DOCS = sorted(ROOT.glob("docs/*.md"))
STILLS = ROOT / "figures" / "stills"
RUN = "*Run it: {{download}}`this notebook </run/{name}>`, in the JupyterLab that the [README]({up}index.md) sets up.*"
STILL = "*Pictures rendered beforehand: run the notebook for every setting of the widget.*"


def build(folder: Path) -> None:
    """Write the site into a folder; CalledProcessError if a link leads nowhere or Sphinx finds any other fault."""
    with tempfile.TemporaryDirectory() as staged:
        stage(Path(staged))
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", str(ROOT / "docs")]
        subprocess.run([*command, "-b", "html", staged, str(folder)], check=True)


def stage(folder: Path) -> None:
    """Put together what the pages are made of."""
    for path in NOTEBOOKS + SOLUTIONS:
        notebook = pictured(path)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = paged(cell.source, path.parent, folder)
        up = "../" * len(path.parent.relative_to(ROOT).parts)
        notebook.cells.insert(1, nbformat.v4.new_markdown_cell(RUN.format(name=path.name, up=up)))
        write(folder / "run" / path.name, path.read_bytes())
        write(folder / path.relative_to(ROOT), nbformat.writes(notebook))
    for path in DOCS:
        write(folder / path.relative_to(ROOT), paged(path.read_text(encoding="utf-8"), path.parent, folder))
    text = paged((ROOT / "README.md").read_text(encoding="utf-8"), ROOT, folder)
    sides = {"Notebooks": NOTEBOOKS, "More": DOCS, "Solutions": SOLUTIONS}
    write(folder / "index.md", text + "".join(contents(title, paths) for title, paths in sides.items()))


def contents(title: str, paths: list[Path]) -> str:
    """A table of contents for the side of the page."""
    lines = [str(path.relative_to(ROOT).with_suffix("")) for path in paths]
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", *lines, "```", ""])


def pictured(path: Path) -> nbformat.NotebookNode:
    """A notebook with stills in the place of each widget; FileNotFoundError if ``make stills`` has not made them."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if any(WIDGET in output.get("data", {}) for output in cell.get("outputs", [])):
            stills = (STILLS / f"{picture_name(path, cell.source)}.json").read_text(encoding="utf-8")
            shown = {"text/html": played(stills)}, {"text/markdown": STILL}
            kept = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
            cell.outputs = [*kept, *(nbformat.v4.new_output("display_data", data) for data in shown)]
    return notebook


def played(stills: str) -> str:
    """The place of a widget on a page, with its stills as JSON; docs/_static/stills.js shows them."""
    inert = stills.replace("</", r"<\/")  # no tag of a still's words ends the script
    return f'<div><script type="application/json" class="stills">{inert}</script></div>'


def paged(text: str, here: Path, folder: Path) -> str:
    """A text whose links to other files lead to pages that show them; these, and linked pictures, are written."""
    for link in set(links.local(text)):
        linked = (here / link).resolve()
        place = folder / linked.relative_to(ROOT)
        if linked.suffix == ".ipynb" or linked in DOCS:
            continue  # a page already
        if linked == ROOT / "README.md":
            text = text.replace(f"]({link}", f"]({link.removesuffix('README.md')}index.md")
            continue
        write(place, linked.read_bytes())
        if linked.suffix != ".png":
            write(place.with_name(f"{place.name}.md"), show(linked))
            text = text.replace(f"]({link})", f"]({link}.md)")
    return text


def show(path: Path) -> str:
    """A page with the text of a file."""
    language = {".py": "python", ".toml": "toml"}.get(path.suffix, "text")
    title = f"---\norphan: true\n---\n\n# {path.relative_to(ROOT)}\n"
    return f"{title}\n```{{literalinclude}} {path.name}\n:language: {language}\n```\n"


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
