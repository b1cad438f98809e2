"""Greedy texts beside those of plain decoding, by the near-tie rule."""

import pytest
import torch

from specnb.growth import Eagle2, chain, kary
from specnb.models import Window, generate
from study.measure import texts
from study.methods import IN_GRAPHS, Method, ngrams

LENGTH = 24
OWN = {
    "in a long window": Method(head="pair", grow=chain(6), window=Window(4, 100)),
    "in a short window": Method(head="pair", grow=chain(6), window=Window(4, 12)),
    "tree + n-grams": Method(head="pair", grow=kary(2, 3), look_up=ngrams()),
    "n-grams in graphs": Method(drafter=ngrams(budget=6), forwards=IN_GRAPHS),
    "beam": Method(head="pair", grow=Eagle2(20, 4, 4)),
}


@pytest.fixture
def one_model(toy, table):
    """A tiny pair stands for every other, and methods that draft with it are in the table."""
    table.update(OWN)
    return toy


@pytest.mark.usefixtures("one_model", "one_size")
def test_texts_by_name_and_a_target_without_positions():
    names = ["in a long window", "in a short window", "tree + n-grams", "n-grams in graphs"]
    rows = texts.texts_block("conversation-02", names, LENGTH, control="beam")
    same = {(row["method"], row["positions"]): row["same"] for row in rows}
    expected = {(name, True): name != "in a short window" for name in names}
    assert same == expected | {("beam", False): False}


def test_the_near_tie_rule_catches_a_wrong_text(one_model, monkeypatch):
    """Negative control: one token changed, and a text cut short, are not near ties."""
    ids = one_model.encode("Name three colours of the rainbow.")
    right = generate(one_model, ids, 12)
    assert texts.compare_texts(one_model, ids, right, right) == {
        "equal": True,
        "first": None,
        "gap": None,
        "same": True,
    }
    changed = texts.compare_texts(one_model, ids, right, [*right[:5], (right[5] + 1) % 50, *right[6:]])
    assert changed["first"] == 5
    assert not changed["same"]
    assert not texts.compare_texts(one_model, ids, right, right[:9])["same"]
    tie = [*ids, *right[:5]]
    first, second, third = one_model.target(torch.tensor([tie])).logits[0, -1].topk(3).indices.tolist()
    assert not texts.compare_texts(one_model, ids, right, [*right[:5], second, *right[6:]])["same"]
    monkeypatch.setattr(texts, "NEAR_TIE", 1e9)  # any gap is near now: still only the two likeliest tokens may stand
    assert first == right[5]
    assert texts.compare_texts(one_model, ids, right, [*right[:5], second, *right[6:]])["same"]
    assert not texts.compare_texts(one_model, ids, right, [*right[:5], third, *right[6:]])["same"]


@pytest.mark.usefixtures("one_model")
def test_live_tables_have_a_row_a_prompt_and_method():
    table = texts.texts(["conversation-01"], ["prompt lookup", "tree + n-grams"], length=8)
    assert table["method"].tolist() == ["prompt lookup", "tree + n-grams"]
    assert table["same"].all()


def test_the_assistant_drafts_in_texts_too(one_model, monkeypatch):
    """Else its text would be plain decoding beside plain decoding."""
    seen = []
    plain = texts.generate
    monkeypatch.setattr(texts, "generate", lambda *_, **options: seen.append(options) or plain(*_, **options))
    ids = one_model.encode("Name three colours.")
    assert texts.greedy_text("assistant", one_model, ids, 6) == texts.greedy_text("generate", one_model, ids, 6)
    assert "assistant_model" in seen[0]
    assert "assistant_model" not in seen[1]
    with pytest.raises(ValueError, match="a control runs in our loop, without position ids: 'generate' is"):
        texts.greedy_text("generate", one_model, ids, 6, positions=False)


def test_texts_of_the_table_need_their_heads(one_model):
    """Control: a head that was trained for another target is told, not drafted with."""
    with pytest.raises(ValueError, match="trained for a target with fingerprint"):
        texts.greedy_text("hass-salf-6", one_model, one_model.encode("Name three colours."), 6)
