"""What must be in the environment before kernels and models start, nbval's 5-second output trap, and noise."""

import os
import tempfile
from pathlib import Path

import pytest

os.environ.update(
    TQDM_DISABLE="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_VERBOSITY="error",
    TOKENIZERS_PARALLELISM="false",
)
NOISE = os.environ.get("SPECNB_NOISE")  # a seed: torch rounds like another processor (tests/noise.py)


def pytest_configure(config):
    config.addinivalue_line("markers", "bits(reason): the test's subject is bits, so it is skipped under SPECNB_NOISE")
    if not NOISE:
        return
    import noise

    noise.start(int(NOISE))
    if not hasattr(config, "workerinput"):  # the first process; those that run tests inherit what it sets
        folder = Path(tempfile.mkdtemp(prefix="specnb-noise-"))
        os.environ["IPYTHONDIR"] = str(noise.kernel_folder(folder / "ipython", int(NOISE)))
        os.environ["SPECNB_FIGURES"] = str(folder / "figures")  # not over those of the repository


def pytest_collection_modifyitems(items):
    for item in items:
        if hasattr(item, "output_timeout"):
            # nbval waits only 5 s between two outputs of a cell (hard-coded); a model cell may be silent for longer.
            item.output_timeout = 600
        if not NOISE:
            continue
        marker = item.get_closest_marker("bits")
        if marker:
            item.add_marker(pytest.mark.skip(reason=f"under noise: {marker.args[0]}"))
        cell = getattr(item, "cell", None)
        if cell is not None and "bits" in cell.metadata:
            # It runs, since later cells need its names; neither its output nor a failed assertion counts.
            item.options.update(check=False, check_exception=True)


def pytest_terminal_summary(terminalreporter):
    if NOISE:
        terminalreporter.write_line(f"SPECNB_NOISE={NOISE}: torch rounded like another processor")
