"""Packed weights: the same bits in bfloat16, the same but for rounding in float32; refused where they cannot be."""

import platform

import pytest
import torch
from tiny import llama
from torch import nn

from specnb import drafters, growth, heads, models, verifiers
from specnb.decode import decode
from specnb.models import packing, provenance
from specnb.target import Target
from specnb.tree import TokenTree

BITS = pytest.mark.bits("packed and plain weights are the same kernel's in bfloat16; this noise treats them as two")

needed = pytest.mark.skipif(not packing.possible(), reason="this CPU has no bfloat16 matrix kernels to pack for")


@BITS
@needed
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 16, 33])
def test_a_packed_layer_says_the_same_bits(bias, rows):
    torch.manual_seed(rows)
    layer = nn.Linear(48, 40, bias=bias, dtype=torch.bfloat16)
    x = torch.randn(1, rows, 48, dtype=torch.bfloat16)
    with torch.no_grad():
        assert torch.equal(packing.PackedLinear(layer)(x), layer(x))
        other = nn.Linear(48, 40, bias=bias, dtype=torch.bfloat16)
        assert not torch.equal(packing.PackedLinear(other)(x), layer(x))


@pytest.mark.skipif(not packing.possible(torch.float32), reason="this machine is no x86 with oneDNN")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 16, 33])
def test_in_float32_it_says_the_same_but_for_rounding(bias, rows):
    torch.manual_seed(rows)
    layer, other = nn.Linear(48, 40, bias=bias), nn.Linear(48, 40, bias=bias)
    x = torch.randn(1, rows, 48)
    with torch.no_grad():
        torch.testing.assert_close(packing.PackedLinear(layer)(x), layer(x), rtol=0, atol=1e-5)
        assert (packing.PackedLinear(other)(x) - layer(x)).abs().max() > 0.1


@pytest.mark.skipif(not packing.possible(torch.float32), reason="this machine is no x86 with oneDNN")
@pytest.mark.model
def test_packed_float32_writes_the_text_but_for_near_ties():
    """Model and head packed, against the model as loaded: near ties forgiven, as in a race of texts."""
    plain, packed = (models.load_pair(dtype="float32", packed=flag) for flag in (False, True))
    prompt = plain.encode("Name three rivers.")
    drafter = drafters.TreeDrafter(heads.load_draft("talf", packed.target), growth.chain(4))
    said = decode(Target(packed.target), drafter, verifiers.greedy, prompt, max_new_tokens=24).tokens
    with torch.no_grad():
        logits = plain.target(torch.tensor([[*prompt, *said]])).logits[0, len(prompt) - 1 : -1]
    chosen = logits[range(len(said)), said]
    assert (logits.max(dim=-1).values - chosen).max() < 1e-3
    others = logits[range(len(said)), [*said[1:], said[0]]]
    assert (logits.max(dim=-1).values - others).max() > 1


@needed
def test_packing_twice_is_packing_once_and_the_name_of_the_weights_stays():
    model = llama(0).to(torch.bfloat16)
    name, state = heads.fingerprint(model), set(model.state_dict())
    assert packing.pack(model) is model
    first = model.lm_head
    packing.pack(model)
    assert model.lm_head is first
    assert not [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert (heads.fingerprint(model), set(model.state_dict())) == (name, state)


@BITS
@needed
@pytest.mark.model
def test_the_real_model_and_its_heads_say_the_same_bits():
    plain, packed = (models.load_pair(dtype="bfloat16", packed=flag) for flag in (False, True))
    prompt = plain.encode("Name three rivers.")
    tree = TokenTree([prompt[-1], *range(1000, 1008)], [-1, 0, 0, 1, 1, 2, 3, 3, 6])
    said, drafted = [], []
    for pair in (plain, packed):
        drafts = [heads.load_draft(name, pair.target) for name in ("talf", "vdm")]
        target = Target(pair.target, hidden_layers=drafts[0].hidden_layers)
        hidden = target.prefill(prompt[:-1])
        said.append(target.forward(tree).logits)
        for draft in drafts:
            draft.begin(prompt, hidden)
            drafted.append(draft.expand(tree, [0]))
    assert torch.equal(*said)
    assert torch.equal(drafted[0], drafted[2])
    assert torch.equal(drafted[1], drafted[3])


def test_what_cannot_be_packed_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"no matrix kernels here take packed torch\.float64 weights on cpu"):
        packing.pack(llama(0).double())
    with pytest.raises(ValueError, match=r"no matrix kernels here take packed torch\.bfloat16 weights on meta"):
        packing.pack(llama(0).to(torch.bfloat16).to("meta"))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(ValueError, match=f"no matrix kernels here take packed {dtype}"):
            packing.pack(llama(0).to(dtype))


@pytest.mark.parametrize(
    ("machine", "onednn", "bf16", "known", "expected", "single"),
    [
        ("x86_64", True, False, False, False, True),  # AVX2 alone
        ("x86_64", True, True, False, False, True),  # AVX512 without instructions for bfloat16: oneDNN emulates them
        ("x86_64", True, True, True, True, True),
        ("AMD64", True, True, False, False, True),  # the same on Windows
        ("AMD64", True, True, True, True, True),
        ("aarch64", True, True, False, True, False),  # ARM servers: oneDNN looks for the instructions itself
        ("aarch64", True, False, False, False, False),
        ("arm64", False, True, False, False, False),  # macOS: torch without oneDNN
    ],
)
def test_kernels_are_there_only_with_their_instructions(machine, onednn, bf16, known, expected, single, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: onednn)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: known)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert packing.possible() is expected
    assert packing.possible(torch.float32) is single


@pytest.mark.parametrize(("kernels", "word"), [(True, "with bfloat16"), (False, "without bfloat16")])
def test_provenance_names_the_processor_and_its_kernels(kernels, word, monkeypatch, tmp_path):
    monkeypatch.setattr(packing, "possible", lambda: kernels)
    monkeypatch.setattr(provenance, "CPU", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n\nmodel name\t: Some CPU\n")
    found = provenance.facts("none")["processor"]
    assert found == f"Some CPU @ 3 GHz, {torch.backends.cpu.get_cpu_capability()} {word}"
    (tmp_path / "cpuinfo").unlink()
    assert provenance.facts("none")["processor"].endswith(word)
