"""Fixtures: the embedded model, loaded once per dtype."""

import pytest

from specnb import models


@pytest.fixture(scope="session")
def smollm2() -> models.Pair:
    """SmolLM2-135M-Instruct in float32 on the CPU."""
    return models.load_pair(dtype="float32", device="cpu")
