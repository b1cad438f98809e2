"""Fixtures: the embedded model, loaded once, and one thread for everything tiny."""

import pytest
import torch

from specnb import models

THREADS = torch.get_num_threads()


@pytest.fixture(autouse=True)
def threads(request):
    """Toy tensors on several threads only wait for each other; the real model gets them all."""
    torch.set_num_threads(THREADS if request.node.get_closest_marker("model") else 1)


@pytest.fixture(scope="session")
def smollm2() -> models.Pair:
    """SmolLM2-135M-Instruct in float32 on the CPU."""
    return models.load_pair(dtype="float32", device="cpu")


@pytest.fixture
def one_size(monkeypatch):
    """Graphs record forwards of eight nodes only: on a CPU each takes seconds."""
    monkeypatch.setitem(models.Graphs.__init__.__kwdefaults__, "sizes", (8,))
