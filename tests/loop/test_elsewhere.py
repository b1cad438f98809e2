"""Everything runs where the model is: on a device whose tensors and the host's may not be mixed (tests/elsewhere.py).

The texts are those of the CPU. A GPU's kernels would round otherwise; what they would refuse is refused here.
"""

import copy

import elsewhere
import numpy as np
import pytest
import tiny_heads
import torch
from tiny import llama, near_copy, tokenizer

from specnb import decode as loop
from specnb import growth, heads, masks, models, verifiers
from specnb.drafters import (
    AutoDrafter,
    CausalLMDraft,
    LookaheadDrafter,
    MergedDrafter,
    NgramDrafter,
    ProgressiveDrafter,
    RetrievalDrafter,
    SelfDrafter,
    Tempered,
    TreeDrafter,
)
from specnb.exact import gallery
from specnb.models import Invariant, Window
from specnb.target import Target
from specnb.tree import Drawn
from study import replay
from study.measure import clock, laws, race, texts
from study.measure.verifiers import compare
from study.methods import METHODS

PROMPT = [7, 8, 9, 10, 7, 8, 9]
HERE = llama(max_position_embeddings=2048)


def there(model=HERE):
    """A copy of a model on the device."""
    return copy.deepcopy(model).to(elsewhere.DEVICE)


@pytest.fixture(autouse=True)
def _device():
    with elsewhere.on():
        yield


# ---- the device


def test_the_device_refuses_what_a_gpu_refuses():
    """Negative controls for all that follows."""
    x = torch.arange(3, device=elsewhere.DEVICE)
    assert x.device == elsewhere.DEVICE
    assert (x + 1).device == elsewhere.DEVICE
    for mixed in (
        lambda: x + torch.arange(3),
        lambda: torch.stack([x, torch.arange(3)]),
        lambda: torch.arange(3.0).index_fill(0, x, 1.0),
        lambda: x.gather(0, torch.tensor([1])),
        lambda: x.index_fill(0, torch.tensor([1]), 0),
        lambda: torch.where(x > 1, x, torch.arange(3)),
        lambda: torch.nn.functional.embedding(torch.tensor([1]), x[:, None].float()),
        lambda: x.__setitem__(torch.tensor([0, 1]), torch.arange(2)),
    ):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            mixed()
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        torch.arange(3)[x]
    for read in (lambda: x.numpy(), lambda: np.asarray(x), lambda: np.array([x])):
        with pytest.raises(TypeError, match=r"to numpy. Use Tensor.cpu\(\) first"):
            read()


def test_the_device_computes_what_a_gpu_computes():
    x = torch.tensor([1, 2, 3], device=elsewhere.DEVICE)
    x[1] = 7
    assert x.tolist() == [1, 7, 3]
    slot = torch.zeros(3, device=elsewhere.DEVICE)
    slot[:2] = torch.ones(2)  # a copy into a slice goes from one device to the other
    assert slot.tolist() == [1, 1, 0]
    assert x[torch.tensor([2, 0])].tolist() == [3, 1]  # an index of the host's is allowed
    assert (x * torch.tensor(2)).tolist() == [2, 14, 6]  # so is a single number
    for back in (x.cpu(), x.to("cpu"), x.to(torch.float32).cpu()):
        assert type(back) is torch.Tensor
        assert back.device.type == "cpu"
    assert torch.zeros(2).to(x).device == elsewhere.DEVICE
    assert x.cpu().numpy().sum() == 11
    model = there()
    assert model.device == elsewhere.DEVICE
    assert HERE.device.type == "cpu"
    with pytest.raises(RuntimeError, match="Expected all tensors"):
        model(torch.tensor([PROMPT]))


# ---- the loop


def head(kind: str, model, device: torch.device):
    made, spec, frozen = tiny_heads.make(model, *tiny_heads.KINDS[kind])
    return heads.draft_model(made.to(device), spec, frozen)


MODELS = {kind: (lambda model, kind=kind: head(kind, model, model.device)) for kind in tiny_heads.KINDS}
MODELS["causal"] = lambda model: CausalLMDraft(near_copy(HERE).to(model.device))
MODELS["tempered"] = lambda model: Tempered(MODELS["causal"](model), 1.5)
SHAPES = {
    "chain": growth.chain(3), "kary": growth.kary(2, 3), "dynatree": growth.DynaTree(4, 2, 0.01),
    "cape": growth.Cape(3), "eagle2": growth.Eagle2(8, 3, 3), "pct": growth.Pct(0.05, 3, 4),
    "salf": growth.Salf(6, 3, 0.1, 5, depth=4), "specexec": growth.SpecExec(6, 3, 3),
    "opt": growth.OptTree(6, 0.1, 3, 5), "together": growth.Together((growth.Pct(0.05, 3, 4), growth.chain(3)), k=3),
}  # fmt: skip
DRAFTERS = {name: (lambda model, name=name: TreeDrafter(MODELS[name](model), growth.kary(2, 2))) for name in MODELS}
DRAFTERS |= {
    name: (lambda model, shape=shape: TreeDrafter(MODELS["causal"](model), shape)) for name, shape in SHAPES.items()
}
DRAFTERS |= {
    "plain": lambda model: loop.PlainDrafter(),
    "n-grams": lambda model: NgramDrafter(),
    "retrieval": lambda model: RetrievalDrafter(),
    "ptd": lambda model: ProgressiveDrafter(),
    "ptd that samples": lambda model: ProgressiveDrafter(expand="sample"),
    "ptd by top-p": lambda model: ProgressiveDrafter(expand="topp"),
    "lookahead": lambda model: LookaheadDrafter(),
    "self-draft": lambda model: SelfDrafter(),
    "merged": lambda model: MergedDrafter(DRAFTERS["causal"](model), NgramDrafter()),
    "auto": lambda model: AutoDrafter(
        MODELS["causal"](model), [1.0 + 0.05 * n for n in range(12)], [0.1] * 4, RetrievalDrafter()
    ),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_texts_are_those_of_the_cpu(name):
    found = []
    for model in (HERE, there()):
        out = loop.decode(Target(model), DRAFTERS[name](model), verifiers.greedy, PROMPT, max_new_tokens=16)
        found.append((out.tokens, len(out.steps)))
    assert found[0] == found[1]


SAMPLED = {
    "rrs": Drawn.IID, "rrsw": Drawn.SWOR, "traversal": Drawn.SWOR, "block": Drawn.IID, "one_hot": Drawn.POINT,
    "sample_and_match": Drawn.POINT, "token_level": Drawn.IID, "by_draw": Drawn.SWOR,
}  # fmt: skip


@pytest.mark.parametrize("verifier", SAMPLED)
@pytest.mark.parametrize("kind", ["causal", "eagle", "medusa"])
def test_sampled_texts_are_those_of_the_cpu(verifier, kind):
    """With the same coins. Top-k and top-p are warps of the target's law and the draft's."""
    shape = growth.chain(3) if verifier in ("block", "token_level") else growth.kary(2, 2)
    found = []
    for model in (HERE, there()):
        drafter = TreeDrafter(MODELS[kind](model), shape, SAMPLED[verifier])
        options = {"max_new_tokens": 16, "temperature": 0.8, "seed": 5, "top_k": 20, "top_p": 0.9}
        out = loop.decode(Target(model), drafter, verifiers.BY_NAME[verifier], PROMPT, **options)
        found.append((out.tokens, len(out.steps)))
    assert found[0] == found[1]


@pytest.mark.parametrize("how", ["window", "invariant", "traced", "unpositioned"])
def test_other_ways_to_run_the_target(how):
    found = []
    for model in (HERE, there()):
        target, options = Target(model), {}
        if how == "window":
            target = Target(model, window=Window(2, 8))
        elif how == "invariant":
            target = Target(model, forwards=Invariant(model))
        elif how == "unpositioned":
            target = gallery.Unpositioned(model)
        else:
            options = {"trace": "full", "profile": False}
        drafter = DRAFTERS["eagle"](model)
        found.append(loop.decode(target, drafter, verifiers.greedy, PROMPT, max_new_tokens=16, **options).tokens)
    assert found[0] == found[1]


def test_a_target_checks_itself():
    assert Target(there()).check() < 1e-4


# ---- the study's own ways


def pair_of(model) -> models.Pair:
    return models.Pair("tiny", model, near_copy(HERE).to(model.device), tokenizer())


@pytest.mark.parametrize(
    "name",
    ["generate", "assistant", "prompt lookup", "undrafted", "n-gram tree", "ptd", "pair-chain-5", "pair-eagle2-50"],
)
def test_races(name):
    found = [
        race.timed(METHODS[name], PROMPT, pair_of(model), length=12, whole=True)["ids"] for model in (HERE, there())
    ]
    assert found[0] == found[1]


WIDE = growth.Together((growth.Pct(0.05, 3, 4, 0.0), growth.chain(3)), k=3)


def test_texts_laws_replays_and_prices():
    pair = pair_of(there())
    right = models.generate(pair, PROMPT, 12, whole=True)
    other = [*right[:4], (right[4] + 1) % 40, *right[5:]]
    assert texts.compare_texts(pair, PROMPT, right, other)["first"] == 4
    assert laws.two_tokens(pair.target, PROMPT, 1.0) == pytest.approx(laws.two_tokens(HERE, PROMPT, 1.0))
    rows = clock.curves(pair.target, {"pair": CausalLMDraft(pair.draft)}, 20, 1, (1, 2), False)
    assert len(rows) == 4
    recording = replay.record(Target(pair.target), CausalLMDraft(pair.draft), WIDE, PROMPT, right)
    assert replay.replay(recording, growth.chain(2))
    drafter = TreeDrafter(CausalLMDraft(pair.draft), growth.kary(2, 2), Drawn.SWOR)
    assert len(compare(Target(pair.target), drafter, PROMPT, max_new_tokens=12))


# ---- faults that a CPU would hide


def test_a_mask_that_stays_on_the_host_is_noticed(monkeypatch):
    tree_mask = masks.tree_mask
    monkeypatch.setattr(masks, "tree_mask", lambda *args, device, **more: tree_mask(*args, device="cpu", **more))
    with pytest.raises(RuntimeError, match="Expected all tensors"):
        loop.decode(Target(there()), NgramDrafter(), verifiers.greedy, PROMPT, max_new_tokens=4)


def test_an_index_that_stays_on_the_host_is_noticed(monkeypatch):
    """The first form of traversal, which ran on CPUs only."""
    fill = lambda law, column: law.index_fill(0, torch.tensor([int(column)]), 0.0)  # noqa: E731
    monkeypatch.setattr(verifiers.bottom_up, "struck", fill)
    drafter = TreeDrafter(MODELS["causal"](there()), growth.kary(3, 2), Drawn.SWOR)
    with pytest.raises(RuntimeError, match="index_fill"):
        loop.decode(Target(there()), drafter, verifiers.traversal, PROMPT, max_new_tokens=16, temperature=1.0)
