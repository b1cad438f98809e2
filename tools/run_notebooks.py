"""Execute notebooks on a fresh kernel, in place: ``python tools/run_notebooks.py notebooks/*.ipynb``.

The one way in which saved outputs come about: progress bars off, no widget state, metadata reduced to the kernel
``python3``. A notebook that raises is not written, and the command fails.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import nbformat
from nbclient import NotebookClient

import conftest  # noqa: F401  (sets the environment that kernels inherit)

KEPT = ("tags", "bits")  # of a cell's metadata: see conftest.py
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def execute(path: Path) -> None:
    """Run one notebook in its own folder and save it with its outputs, atomically."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    where = {"metadata": {"path": path.resolve().parent}}
    options = {"store_widget_state": False, "coalesce_streams": True}
    NotebookClient(notebook, timeout=1200, kernel_name="python3", resources=where, **options).execute()
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    for cell in notebook.cells:
        cell.metadata = {key: value for key, value in cell.metadata.items() if key in KEPT}
    part = path.with_suffix(".part")
    nbformat.write(notebook, part)
    os.replace(part, path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(name, flush=True)
        execute(Path(name))
