"""Inputs that once failed and that no other test holds, through the study's own ways: races, texts and prices of any
pair, whose vocabulary may be padded, whose weights may be quantised, and where a notebook may set a default device.
"""

import warnings

import pytest
import torch
from tiny import TEMPLATE, generated, llama, near_copy, tokenizer
from transformers import LlamaForCausalLM

from specnb import models
from specnb.drafters.seconds import ForwardSeconds
from specnb.models import prompts
from study.measure import clock, loading, race, texts
from study.methods import METHODS

PROMPT = [7, 8, 9, 10, 7, 8, 9]
CONTROL = "conversation-01"


@pytest.fixture(autouse=True)
def forgotten():
    """Nothing of a tiny pair stays loaded."""
    yield
    for cached in (loading._draft_model, loading.assistant, loading.machine, loading._graphs):
        cached.cache_clear()


# --- a vocabulary that is padded beyond the tokenizer's


def padded() -> models.Pair:
    """A model whose first row behind the tokenizer's comes at once, and always."""
    words = tokenizer(template=TEMPLATE)
    model = llama(vocab_size=len(words) + 20, max_position_embeddings=2048)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.weight[len(words)] = model.model.norm.weight
        model.model.embed_tokens.weight.fill_(1.0)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return models.Pair("padded", model, None, words)


def test_whole_texts_of_a_padded_vocabulary_are_equal_and_whole(monkeypatch):
    pair = padded()
    for module in (texts, race):
        monkeypatch.setattr(module, "loaded", lambda *_: pair)
    monkeypatch.setattr(race, "WARM", set())
    behind = len(pair.tokenizer)
    ids = pair.encode(prompts.text(CONTROL))
    for name in ("generate", "ptd", "n-gram tree"):
        assert texts.greedy_text(name, pair, ids, 20) == (behind,) * 20  # control: the id in question does come
    rows = texts.texts_block(CONTROL, ["ptd", "n-gram tree"], 20)
    assert [row["equal"] for row in rows] == [True, True]
    rows = race.race_block(CONTROL, ["generate", "prompt lookup", "ptd"], length=20, whole=True)
    assert {row["method"]: row["tokens"] for row in rows} == {"generate": 20, "prompt lookup": 20, "ptd": 20}


# --- pairs whose target tells its rows in another way, or has more of them than its draft


def quantised(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Weights in eight bits, in layers whose weight is a method."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's way to do it is old, and says so
        made = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    assert not isinstance(made.get_output_embeddings().weight, torch.Tensor)
    return made


PAIRS = {
    "plain": lambda: (llama(), near_copy(llama())),
    "a quantised target": lambda: (quantised(llama()), near_copy(llama())),
    "a quantised draft": lambda: (llama(), quantised(near_copy(llama()))),
    "both quantised": lambda: (quantised(llama()), quantised(near_copy(llama()))),
    "a draft with fewer rows": lambda: (llama(), llama(1, vocab_size=44)),
    "a draft with more rows": lambda: (llama(), llama(1, vocab_size=64)),
}
ROUNDING = ("a quantised target", "both quantised")  # what a token gets depends on those it is computed with
DRAFTING = ("pair-chain-5", "pair-eagle2-50", "pair-auto")
PRICES = ForwardSeconds(target=tuple(1 + nodes / 300 for nodes in range(32)), draft=(0.1,) * 8)


@pytest.mark.parametrize("name", PAIRS)
def test_the_draft_model_of_any_pair_drafts(name, monkeypatch):
    monkeypatch.setattr(loading, "machine", lambda *_: PRICES)
    target, draft = PAIRS[name]()
    pair = models.Pair(name, target, draft, tokenizer())
    right = generated(target, PROMPT, 12)
    for method in DRAFTING:
        loading.check_fit(method, METHODS[method], pair)
        row = race.timed(METHODS[method], PROMPT, pair, length=12, whole=True)
        assert row["tokens"] == 12
        assert row["nodes"] > 0  # control: it did draft
        if name not in ROUNDING:
            assert row["ids"] == right


# --- a default device, as notebooks set one: here one on which nothing can be computed


@pytest.fixture
def on_meta():
    def enter():
        torch.set_default_device("meta")

    yield enter
    torch.set_default_device(None)


RACED = (
    "generate", "assistant", "prompt lookup", "undrafted", "n-gram tree", "ptd", "lookahead", "self-draft",
    "pair-chain-5", "pair-eagle2-50",
)  # fmt: skip


def test_another_default_device_changes_no_race(on_meta):
    model = llama(max_position_embeddings=512)
    pair = models.Pair("tiny", model, near_copy(llama()), tokenizer())
    right = generated(model, PROMPT, 12)
    on_meta()
    with pytest.raises(NotImplementedError):
        torch.arange(3).tolist()  # control: what is made there cannot be read
    for name in RACED:
        assert race.timed(METHODS[name], PROMPT, pair, length=12, whole=True)["ids"] == right


def test_another_default_device_changes_no_price(on_meta):
    """What a race by ``pair-auto`` asks for first."""
    pair = models.Pair("tiny", llama(), near_copy(llama()), tokenizer())
    draft = loading.draft_model("pair", pair, 0)
    on_meta()
    rows = clock.curves(pair.target, {"pair": draft}, 20, 1, (1, 2), False)
    assert {(row["model"], row["nodes"]) for row in rows} == {("target", 1), ("target", 2), ("pair", 1), ("pair", 2)}
    assert race.timed(METHODS["pair-auto"], PROMPT, pair, length=12, whole=True)["tokens"] == 12
