"""Notebooks cut down to their widgets: the code cells that make a widget, and those which these need."""

import ast
import dis
import re
from collections.abc import Sequence
from pathlib import Path
from types import CodeType

import nbformat
from run_notebooks import KERNEL

WIDGET = "application/vnd.jupyter.widget-view+json"


def names(code: CodeType) -> tuple[set[str], set[str]]:
    """The global names that a compiled cell binds, and those it reads before it binds them."""
    bound, read = set(), set()
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            bound.add(step.argval)
        elif step.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
            read |= {step.argval} - bound
        elif isinstance(step.argval, CodeType):
            read |= names(step.argval)[1] - bound
    return bound, read


def changed(source: str) -> set[str]:
    """The names behind every ``name.attribute = …`` and ``name[…] = …`` of a cell."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            while isinstance(node, ast.Attribute | ast.Subscript):
                node = node.value
            found |= {node.id} if isinstance(node, ast.Name) else set()
    return found


def needed(sources: Sequence[str], wanted: Sequence[int]) -> list[int]:
    """Which cells must run for the wanted ones to run, in order: who last bound, or changed, what they read."""
    keep = set(wanted)
    for last in wanted:
        missing = names(compile(sources[last], "cell", "exec"))[1]
        for i in reversed(range(last)):
            bound, read = names(compile(sources[i], "cell", "exec"))
            if missing & (bound | changed(sources[i])):
                keep.add(i)
                missing = missing - bound | read
    return sorted(keep)


def cut(path: Path) -> tuple[nbformat.NotebookNode, dict[str, int]]:
    """The cells that were saved with a widget and what they need, without outputs; the widgets' names and places."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    wanted = [i for i, cell in enumerate(code) if any(WIDGET in output.get("data", {}) for output in cell.outputs)]
    kept = needed([cell.source for cell in code], wanted)
    places = {picture_name(path, code[i].source): kept.index(i) for i in wanted}
    assert len(places) == len(wanted), f"two widgets of one name in {path.name}"
    return assemble([code[i].source for i in kept]), places


def picture_name(path: Path, source: str) -> str:
    """What the picture of a cell's widget is called: the notebook's number and the function that makes the widget."""
    made = re.findall(r"(\w*(?:stepper|explorer))\(", source)
    return f"{path.stem[:2]}_{[*made, 'widget'][0]}"


def assemble(sources: Sequence[str]) -> nbformat.NotebookNode:
    """A notebook of code cells, none of them run."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
