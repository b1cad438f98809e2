"""Notebooks on a device beside the host's memory (tests/elsewhere.py): their live cells mix no tensors of both.

With their outputs compared: what is printed does not depend on where the model is.
"""

import os
import subprocess
import sys

import elsewhere
import nbformat
import pytest

from specnb.models import files

ROOT = files.ROOT


def run(notebook, tmp_path) -> str:
    """What pytest says of a notebook whose kernel starts on the device."""
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider", "--tb=short"]
    folder = elsewhere.kernel_folder(tmp_path / "ipython")
    figures = str(tmp_path / "figures")  # not over those of the repository
    variables = {**os.environ, "IPYTHONDIR": str(folder), "SPECNB_FIGURES": figures, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [*command, str(notebook)], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    return ended.stdout


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("name", ["01_ptd_branch_similarity", "03_dynatree_sweeps", "05_salf_talf_thresholds"])
def test_a_notebook_runs_there(name, tmp_path):
    said = run(ROOT / "notebooks" / f"{name}.ipynb", tmp_path)
    assert "failed" not in said
    assert " passed" in said


FIRST = """import torch
from specnb import models
ours = torch.ones(2, device=models.best_device())
print(ours.sum().item())"""


@pytest.mark.parametrize(
    ("code", "failed"), [("ours + 1", False), ("ours + torch.ones(2)", True), ("ours.numpy()", True)]
)
def test_a_cell_that_mixes_or_reads_is_noticed(code, failed, tmp_path):
    """Negative control: on a CPU each of the three runs."""
    cells = [nbformat.v4.new_code_cell(source) for source in (FIRST, f"_ = {code}")]
    for count, cell in enumerate(cells, start=1):
        cell.execution_count = count
    cells[0].outputs = [nbformat.v4.new_output("stream", name="stdout", text="2.0\n")]
    notebook = tmp_path / "small.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), notebook)
    said = run(notebook, tmp_path)
    assert ("1 failed, 1 passed" in said) == failed
    assert ("2 passed" in said) != failed
