"""What forwards take: medians that never fall, kept once a machine, measured again where they are another's."""

import json

import pytest
import torch
from tiny import llama, near_copy

from specnb.drafters import CausalLMDraft, seconds
from specnb.target import Target

TARGET = llama()
DRAFT = CausalLMDraft(near_copy(TARGET))


@pytest.fixture
def count(monkeypatch, tmp_path) -> list[int]:
    """An empty cache, and a list that grows by one whenever something is measured."""
    monkeypatch.setenv("SPECNB_CACHE", str(tmp_path))
    measured = []
    original = seconds.measured

    def counted(*args, **kwargs):
        measured.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(seconds, "measured", counted)
    return measured


def kept(name: str = "near copy", **options) -> seconds.ForwardSeconds:
    return seconds.kept(Target(TARGET), DRAFT, name, 20, **options)


def test_seconds_never_fall_and_are_linear_between_sizes():
    medians = [3.0, 1.0, 4.0, 5.0, 7.0, 9.0, 9.0, 9.0, 9.0, 9.0]  # at 1, 2, 3, 4, 6, 8, … nodes
    assert seconds.rising(medians, 8) == (2.0, 2.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)


def test_every_size_of_target_and_draft_is_timed_once_a_turn():
    rows = seconds.timed(Target(TARGET), {"a": DRAFT}, 20, 2, (1, 3))
    assert len(rows) == 2 * 2 * 2
    assert {(row.turn, row.model, row.nodes) for row in rows} == {
        (turn, model, nodes) for turn in (1, 2) for model in ("target", "a") for nodes in (1, 3)
    }
    assert min(row.seconds for row in rows) > 0


def test_prices_are_measured_once_and_kept(count):
    first = kept()
    assert (len(first.target), len(first.draft)) == (32, 8)
    assert kept() == first
    assert len(count) == 1


def test_they_are_measured_anew_for_another_draft_another_machine_and_on_request(count, monkeypatch):
    kept()
    kept("another head")
    assert len(count) == 2
    monkeypatch.setattr(seconds.provenance, "processor", lambda: "another processor")
    kept()
    assert len(count) == 3
    kept(anew=True)
    assert len(count) == 4
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    kept()
    assert len(count) == 5


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"target seconds": [1]}', '{"target seconds": 1, "draft seconds": 2}']
)
def test_a_damaged_file_is_measured_again(text, count, tmp_path):
    kept()
    (path,) = (tmp_path / "seconds").iterdir()
    path.write_text(text, encoding="utf-8")
    found = kept()
    assert len(count) == 2
    assert json.loads(path.read_text(encoding="utf-8"))["target seconds"] == list(found.target)


def test_a_cache_that_cannot_be_written_is_no_obstacle(count, tmp_path, monkeypatch):
    (tmp_path / "seconds").write_text("a file where a folder should be", encoding="utf-8")
    with pytest.warns(UserWarning, match="what forwards take is not kept"):
        assert len(kept().target) == 32
