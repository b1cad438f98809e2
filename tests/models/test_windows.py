"""StreamingLLM's window: no change until it is full; then the cache holds what the policy says, rightly turned."""

import pytest
import torch
from tiny import FAMILIES, VOCABULARY, llama
from transformers import CohereConfig, CohereForCausalLM, GPT2Config, GPT2LMHeadModel

from specnb import decode, growth, masks, verifiers
from specnb.drafters import CausalLMDraft, TreeDrafter
from specnb.models import Window
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
    torch.testing.assert_close(stream(model, Window(3, 7))[-1], expected, rtol=1e-4, atol=1e-4)
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
    torch.testing.assert_close(stream(model, Window(3, 7, shift=False)), expected, rtol=1e-4, atol=1e-4)


def test_speculation_under_a_window():
    """Full windows change nothing; smaller ones change the text, and the tree still agrees with plain decoding."""
    model = llama()
    drafter = TreeDrafter(CausalLMDraft(llama(seed=1)), growth.kary(2, 2))
    run = lambda target: decode.decode(target, drafter, verifiers.greedy, [1, 2, 3], max_new_tokens=60).tokens  # noqa: E731
    assert run(Target(model, window=Window(4, 100))) == run(Target(model))
    assert run(Target(model, window=Window(2, 6))) != run(Target(model))


def test_bad_windows_are_refused():
    with pytest.raises(ValueError, match="start >= 0 and recent >= 1 tokens, got -1 and 5"):
        Window(-1, 5)
    with pytest.raises(ValueError, match="start >= 0 and recent >= 1 tokens, got 4 and 0"):
        Window(4, 0)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
    with pytest.raises(ValueError, match="GPT2LMHeadModel has no rotary embedding"):
        Target(gpt2, window=Window()).prefill([1, 2])
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    cohere = CohereForCausalLM(CohereConfig(vocab_size=20, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes))
    with pytest.raises(ValueError, match="CohereForCausalLM's rotary embedding interleaves"):
        Target(cohere, window=Window()).prefill([1, 2])
