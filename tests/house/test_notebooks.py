"""Guards on the notebook files: what nbval would silently not compare, and what a reader should never meet."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import build_site
import links
import nbformat
import pytest

from specnb.models import files

ROOT = files.ROOT
NOTEBOOKS = build_site.NOTEBOOKS + build_site.SOLUTIONS


def problems(path: Path) -> list[str]:
    """Everything that is wrong with a notebook file, in words."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    found = wrong_outputs([cell for cell in notebook.cells if cell.cell_type == "code"])
    if set(notebook.metadata) != {"kernelspec", "language_info"} or notebook.metadata.kernelspec.name != "python3":
        found.append("metadata is not just the kernel python3")
    if not notebook.cells[0].source.startswith("# "):
        found.append("the first cell is not a title")
    if path.stat().st_size > 1_000_000:
        found.append(f"{path.stat().st_size} bytes")
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    found += [f"dead link {link}" for link in links.dead(text, path.parent)]
    return found


def wrong_outputs(code: list) -> list[str]:
    """What nbval would not compare in code cells or should not, and what a reader should not see."""
    ignored = [cell for cell in code if "nbval-ignore-output" in cell.metadata.get("tags", [])]
    compared = [cell for cell in code if cell not in ignored and cell.outputs]
    outputs = [output for cell in code for output in cell.outputs]
    found = []
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        found.append("execution counts are not 1..n: nbval would not compare cells without one")
    if any(output.output_type == "error" for output in outputs):
        found.append("an error is saved")
    if any(output.get("name") == "stderr" for output in outputs):
        found.append("stderr is saved")
    said = "\n".join(map(json.dumps, (cell.outputs for cell in compared)))
    if noise := re.findall(r"(?<!below )(?<!to )(?<!< )\b\d+(?:\.\d+)?e-[1-9]\d\b", said):
        found.append(f"rounding noise is compared: {noise[0]}")
    if len(compared) < 5:
        found.append(f"only {len(compared)} cells are compared")
    if any(re.search("NBVAL_", cell.source) for cell in code):
        found.append("nbval comments: use tags")
    if re.search(r"/(?:home|root|Users|tmp|work)/", json.dumps(outputs)):
        found.append("an absolute path of a machine is saved")
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_sound(path):
    assert problems(path) == []


NUMBERS = ("00", "01", "02", "03", "04", "05", "06", "07", "09")
LECTURES = [path for path in NOTEBOOKS if path.stem[:2] in NUMBERS and path.parent.name == "notebooks"]
QUOTED = {"paper", "parameter", "by-hand"}  # cells whose decimals are the paper's, settings, or computed in view


def typed_numbers(notebook) -> list[str]:
    """Decimals and percentages in a lecture's text that a cell should print."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type != "markdown" or QUOTED & {*cell.metadata.get("tags", [])}:
            continue
        said = re.sub(r"\]\([^)]*\)|`[^`]*`", "", cell.source)
        found += re.findall(r"(?<![\w.])\d*\.\d+|\d+ ?%", said)
    return found


@pytest.mark.parametrize("path", LECTURES, ids=lambda path: path.stem)
def test_no_measured_number_is_typed(path):
    assert typed_numbers(nbformat.read(path, as_version=4)) == []


@pytest.mark.parametrize("said", ["It is .87 of it.", "That is 12 % more."])
def test_a_typed_number_is_noticed(said):
    spoiled = broken(lambda notebook, code: notebook.cells.append(nbformat.v4.new_markdown_cell(said)))
    assert len(typed_numbers(spoiled)) == 1


# ---- one place for the target and the head

CHOSEN = {"loaded": {"PAIR", "EMBEDDED"}, "load_draft": {"HEAD"}, "draft_model": {"HEAD"}}  # names in a first argument


def loads_something_else(notebook) -> list[str]:
    """Calls that load a target or a draft that the first code cell's PAIR and HEAD do not choose.

    Where the committed heads or their training texts are a section's subject, it loads the EMBEDDED target in words.
    """
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    trees = [ast.parse("\n".join(line for line in cell.splitlines() if not line.startswith("%"))) for cell in cells]
    found = []
    for tree in trees:
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in CHOSEN:
                names = (
                    {node.id for node in ast.walk(call.args[0]) if isinstance(node, ast.Name)} if call.args else set()
                )
                if not names & CHOSEN[call.func.attr]:
                    found.append(ast.unparse(call))
    assigned = [node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)
                and isinstance(node.ctx, ast.Store) and node.id in ("PAIR", "HEAD")]  # fmt: skip
    found += [f"{name} is set more than once" for name in {*assigned} if assigned.count(name) > 1]
    if "PAIR" in assigned and "PAIR = " not in cells[0]:
        found.append("PAIR is not set in the first code cell")
    return found


MAIN = [path for path in NOTEBOOKS if path.parent.name == "notebooks"]


@pytest.mark.parametrize("path", MAIN, ids=lambda path: path.stem)
def test_target_and_head_are_chosen_in_one_place(path):
    notebook = nbformat.read(path, as_version=4)
    assert loads_something_else(notebook) == []
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert "*Another model:*" in text  # and it is said what changes


@pytest.mark.parametrize(
    "code", ["loading.loaded(dtype='float32')", "heads.load_draft('eagle', pair.target)", "HEAD = 'hass'", "PAIR = 1"]
)
def test_another_place_is_noticed(code):
    spoiled = broken(lambda notebook, cells: notebook.cells.append(nbformat.v4.new_code_cell(code)))
    assert len(loads_something_else(spoiled)) == 1


def test_every_notebook_has_solutions():
    mains = {path.stem for path in NOTEBOOKS if path.parent.name == "notebooks"} - {"07_claims"}  # has no exercises
    solutions = {path.stem for path in NOTEBOOKS if path.parent.name == "solutions"}
    assert mains
    assert solutions == {f"{name}_solutions" for name in mains}


def broken(change):
    """A copy of the first notebook with one change."""
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    change(notebook, [cell for cell in notebook.cells if cell.cell_type == "code"])
    return notebook


def uncount(notebook, code):
    code[3].execution_count = None


def unlink(notebook, code):
    notebook.cells[0].source += "\n[nowhere](no_such_file.ipynb)"


def complain(notebook, code):
    code[0].outputs = [nbformat.v4.new_output("stream", name="stderr", text="warning")]


def rename_kernel(notebook, code):
    notebook.metadata.kernelspec.name = "specnb-gpu"


def leak_path(notebook, code):
    code[0].outputs = [nbformat.v4.new_output("stream", name="stdout", text="/" + "home/me/specnb")]


def leave_noise(notebook, code):
    compared = next(
        cell for cell in code if cell.outputs and "nbval-ignore-output" not in cell.metadata.get("tags", [])
    )
    compared.outputs = [nbformat.v4.new_output("stream", name="stdout", text="below 1e-12: True\nworst 7.1e-17")]


@pytest.mark.parametrize("change", [uncount, unlink, complain, rename_kernel, leak_path, leave_noise])
def test_each_guard_can_fail(change, tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for linked in (ROOT / "notebooks").iterdir():
        (folder / linked.name).symlink_to(linked)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    path = folder / "copy.ipynb"
    nbformat.write(broken(change), path)
    assert len(problems(path)) == 1


def test_nbval_notices_a_changed_number(tmp_path):
    """Negative control for the checker itself: notebook 00's three tokens pass, and fail with one digit flipped."""
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    title = next(i for i, cell in enumerate(notebook.cells) if cell.source.startswith("## 4 "))
    notebook.cells = [nbformat.v4.new_code_cell("import torch"), notebook.cells[title + 1]]
    nbformat.write(notebook, tmp_path / "as_it_is.ipynb")
    printed = notebook.cells[1].outputs[0]
    printed.text = printed.text.replace("0.5", "0.6", 1)
    nbformat.write(notebook, tmp_path / "flipped.ipynb")
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider", "--tb=no"]
    run = subprocess.run([*command, "-rA", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "1 failed, 3 passed" in run.stdout
    assert re.search(r"^FAILED .*flipped\.ipynb::Cell 1", run.stdout, re.MULTILINE)
