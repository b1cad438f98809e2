"""Settings that must be in the environment before kernels and models start, and nbval's 5-second output trap."""

import os

os.environ.update(
    TQDM_DISABLE="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_VERBOSITY="error",
    TOKENIZERS_PARALLELISM="false",
)


def pytest_collection_modifyitems(items):
    """nbval waits only 5 s between two outputs of a cell (hard-coded); a model cell may be silent for longer."""
    for item in items:
        if hasattr(item, "output_timeout"):
            item.output_timeout = 600
