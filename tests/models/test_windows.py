"""StreamingLLM's window: no change until it is full; then the cache holds what the policy says, rightly turned."""

import math

import pytest
import torch
import transformers
from rounding import same
from tiny import COMMON, FAMILIES, VOCABULARY, llama
from transformers import GPT2Config, GPT2LMHeadModel

from specnb import decode, growth, masks, verifiers
from specnb.cache import ARGUMENT, TreeCache
from specnb.drafters import CausalLMDraft, TreeDrafter
from specnb.models import Window
from specnb.models.windows import turned
from specnb.target import Target
from specnb.tree import TokenTree

TEXT = torch.randint(VOCABULARY, (30,), generator=torch.Generator().manual_seed(1)).tolist()


def stream(model, window: Window) -> torch.Tensor:
    """(len(TEXT) − 1, V) logits of a text fed token by token."""
    target = Target(model, window=window)
    target.prefill(TEXT[:1])
    rows = []
    for token in TEXT[1:]:
        rows.append(target.forward(TokenTree([token], [-1])).logits[0])
        target.commit(())
    assert target.cache.length <= window.start + window.recent
    return torch.stack(rows)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_window_of_one_layer_is_a_short_text(family):
    """In one layer keys know no context, so the last token must see exactly sinks + recent tokens, side by side."""
    model = FAMILIES[family]()
    model.base_model.layers = model.base_model.layers[:1]
    model.config.num_hidden_layers = 1
    kept = [*TEXT[:3], *TEXT[-8:]]  # what is in the cache before the last token, and the token itself
    expected = model(torch.tensor([kept])).logits[0, -1]
    assert same(stream(model, Window(3, 7))[-1], expected)
    unshifted = stream(model, Window(3, 7, shift=False))[-1]
    assert (unshifted - expected).abs().max() > 1e-3  # negative control


@torch.no_grad()
def test_without_shift_it_is_a_mask():
    """All layers: each token sees the sinks and the recent tokens where they really stood."""
    model, n = llama(), len(TEXT)
    rows, columns = torch.arange(n)[:, None], torch.arange(n)
    visible = (columns <= rows) & ((columns < 3) | (columns > rows - 8))
    mask = masks.additive(visible, torch.float32)
    expected = model(torch.tensor([TEXT]), attention_mask=mask).logits[0, 1:]
    assert same(stream(model, Window(3, 7, shift=False)), expected)


def test_speculation_under_a_window():
    """Full windows change nothing; smaller ones change the text, and the tree still agrees with plain decoding."""
    model = llama()
    drafter = TreeDrafter(CausalLMDraft(llama(seed=1)), growth.kary(2, 2))
    run = lambda target: decode.decode(target, drafter, verifiers.greedy, [1, 2, 3], max_new_tokens=60).tokens  # noqa: E731
    assert run(Target(model, window=Window(4, 100))) == run(Target(model))
    assert run(Target(model, window=Window(2, 6))) != run(Target(model))


def test_a_key_of_two_entries_is_turned_by_a_radian_a_position():
    """The worked example of ``turned``."""
    rotary = llama(hidden_size=8, num_attention_heads=4).base_model.rotary_emb
    key = torch.tensor([[[[1.0, 0.0]]]])
    assert same(turned(key, rotary, 3), torch.tensor([[[[math.cos(3), math.sin(3)]]]]), products=3)


def test_bad_windows_are_refused():
    with pytest.raises(ValueError, match="start >= 0 and recent >= 1 tokens, got -1 and 5"):
        Window(-1, 5)
    with pytest.raises(ValueError, match="start >= 0 and recent >= 1 tokens, got 4 and 0"):
        Window(4, 0)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
    with pytest.raises(ValueError, match="the keys of GPT2LMHeadModel do not turn as Llama's do: use shift=False"):
        Target(gpt2, window=Window()).prefill([1, 2])


def made(name: str, **changes):
    """A tiny random model of an architecture of transformers."""
    torch.manual_seed(0)
    config = getattr(transformers, name.replace("Gemma3", "Gemma3Text").replace("Llama4", "Llama4Text") + "Config")
    common = {**COMMON, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
    return getattr(transformers, f"{name}ForCausalLM")(config(**{**common, **changes})).eval()


EXPERTS = {"num_experts_per_tok": 1, "num_local_experts": 2, "n_routed_experts": 4, "moe_intermediate_size": 16}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
DEEPSEEK = {**EXPERTS, **LATENT, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4, "head_dim": 4}
FULL = {"layer_types": ["full_attention"] * 3}
OTHERWISE = {
    "Cohere": {},
    "Glm": {},
    "Helium": {},
    "Ernie4_5": {},
    "DeepseekV3": DEEPSEEK,
    "GptOss": {**EXPERTS, **FULL, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "Gemma3": FULL,
    "SmolLM3": {"no_rope_layers": [1, 0, 1]},
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_keys_that_turn_otherwise_are_refused_in_one_line(name):
    """Angles in pairs, latents, other halves, a rotary embedding for each kind of layer, layers without one."""
    model = made(name, **OTHERWISE[name])
    with pytest.raises(ValueError, match=f"^the keys of {name}ForCausalLM do not turn as Llama's do: use shift=False$"):
        Window().evictor(model)
    Window(shift=False).evictor(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["Llama", "Qwen2", "GPTNeoX", "Phi", "Qwen3"])
@torch.no_grad()
def test_keys_that_turn_as_llamas_do_stand_where_they_should(name, dtype):
    """In every dtype; and looking whether they do changes nothing for a text that is being generated."""
    model = made(name, **({"num_key_value_heads": 4} if name == "Phi" else {})).to(dtype)
    text, alone, sink = Target(model), TreeCache(), Target(model, window=Window(1, 3))
    text.prefill(TEXT[:3])
    sink.prefill(TEXT[:9])  # its evictor is made here
    assert sink.evict.evicted == 5
    model(torch.tensor([TEXT[:1]]), position_ids=torch.tensor([[5]]), **{ARGUMENT: alone})
    # A key is one product; turned once more it is rounded once more. Norms and turns are in float32 at most.
    coarse = max(dtype, torch.float32, key=lambda kind: torch.finfo(kind).eps)
    assert same(sink.cache.layers[0].keys[..., :1, :], alone.layers[0].keys, products=3, dtype=coarse)
    fresh = Target(model)
    fresh.prefill(TEXT[:3])
    root = TokenTree(TEXT[3:4], [-1])
    assert torch.equal(text.forward(root).logits, fresh.forward(root).logits)


OWN = {
    "Mistral": {"sliding_window": 16},
    "Qwen2": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    "Gemma3": {"sliding_window": 16},
    "Llama4": {"attention_chunk_size": 16, "intermediate_size_mlp": 16, "num_local_experts": 2},
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("shift", [True, False])
def test_a_model_with_windows_of_its_own_is_refused(name, shift):
    with pytest.raises(ValueError, match=f"^{name}ForCausalLM has layers with windows of their own: use window=None$"):
        Window(shift=shift).evictor(made(name, **OWN[name]))
