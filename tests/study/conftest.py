"""Fixtures: a tiny pair in the place of the embedded one, so that cells measure in moments what they would there."""

import zlib

import pytest
from tiny import llama, near_copy, tokenizer

from specnb import models
from study import methods
from study.measure import branches, laws, loading, race, replays, texts, verifiers

CACHED = (loading._draft_model, loading.assistant, loading.machine, loading._graphs)


class Toy(models.Pair):
    """A pair that reads every prompt as a few tokens, of which the first is the prompt's own."""

    def encode(self, text, *, chat=True):
        return [1 + zlib.crc32(text.encode()) % 40, 7, 30, 12, 5, 7, 30]


def layers(request) -> int:
    """How many a test wants of the toy's models."""
    marker = request.node.get_closest_marker("layers")
    return marker.args[0] if marker else 3


@pytest.fixture
def toy(monkeypatch, request) -> models.Pair:
    """A tiny target with a near copy of it as draft model, which every cell function takes for the pair it asks for."""
    target = llama(max_position_embeddings=2048, num_hidden_layers=layers(request))
    pair = Toy("toy", target, near_copy(target), tokenizer())
    for module in (branches, laws, loading, race, replays, texts, verifiers):
        monkeypatch.setattr(module, "loaded", lambda *_: pair)
    for cached in CACHED:
        cached.cache_clear()
    monkeypatch.setattr(race, "WARM", set())
    return pair


@pytest.fixture
def table(monkeypatch) -> dict[str, methods.Method]:
    """The table of methods, to which tests may add."""
    monkeypatch.setattr(methods, "METHODS", dict(methods.METHODS))
    return methods.METHODS
