"""What users of assisted generation reported elsewhere, tried on this loop; each test names the report."""

import copy
import io
import pickle
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import COMMON, TEMPLATE, generated, llama, near_copy, tokenizer
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from specnb import growth, models, verifiers
from specnb.decode import decode, eos_ids, ids_of
from specnb.drafters import CausalLMDraft, NgramDrafter, TreeDrafter
from specnb.models import packing
from specnb.sampling import Warp
from specnb.target import Target

PROMPT = [7, 8, 9, 7, 8, 9, 7, 8]


def written(model, drafter=None, length: int = 15) -> list[int]:
    """Our greedy text."""
    drafter = drafter or NgramDrafter()
    return list(decode(Target(model), drafter, verifiers.greedy, PROMPT, max_new_tokens=length, eos=()).tokens)


def own_tree(model) -> TreeDrafter:
    return TreeDrafter(CausalLMDraft(model), growth.kary(2, 2))


# --- models whose forward or matrices are not as usual


class WithoutLogitsToKeep(LlamaForCausalLM):
    """A forward that names what it takes, and takes nothing else (trl #2770)."""

    def forward(
        self, input_ids=None, attention_mask=None, position_ids=None, cache=None, past_key_values=None, use_cache=None,
        output_hidden_states=None, output_attentions=None, return_dict=None,
    ):  # fmt: skip
        given = {"cache": cache, "past_key_values": past_key_values}
        given = {name: value for name, value in given.items() if value is not None}
        return super().forward(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=use_cache,
            output_hidden_states=output_hidden_states, **given,
        )  # fmt: skip


def test_a_forward_need_not_take_logits_to_keep():
    torch.manual_seed(0)
    model = WithoutLogitsToKeep(LlamaConfig(**COMMON, num_key_value_heads=2)).eval()
    assert written(model) == generated(model, PROMPT, 15)
    assert written(llama(), own_tree(model)) == generated(llama(), PROMPT, 15)


def test_experts_are_not_asked_for_their_routers_loss():
    """transformers #29087: the loss is computed with the mask of a text, and ours is a tree's."""
    torch.manual_seed(0)
    sizes = {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
    model = MixtralForCausalLM(MixtralConfig(**COMMON, **sizes)).eval()
    assert written(model) == generated(model, PROMPT, 15)
    assert written(llama(), own_tree(model)) == generated(llama(), PROMPT, 15)


def resized(said: int, read: int) -> LlamaForCausalLM:
    """A model whose matrices were replaced by hand, while its configuration still says fifty tokens."""
    model = llama()
    torch.manual_seed(3)
    model.lm_head = nn.Linear(32, said, bias=False)
    model.model.embed_tokens = nn.Embedding(read, 32)
    nn.init.normal_(model.lm_head.weight)
    return model


def test_the_vocabulary_is_that_of_the_matrices():
    """transformers #29856."""
    model = resized(60, 60)
    with torch.no_grad():
        model.lm_head.weight[50:] *= 2
    text = generated(model, PROMPT, 15)
    assert max(text) >= 50
    assert written(model) == text


def test_a_model_that_says_what_it_cannot_read_is_refused():
    with pytest.raises(ValueError, match="it says 60 tokens and can read 50: resize both"):
        Target(resized(60, 50))
    model = resized(50, 60)  # tokens that are read and never said
    assert written(model) == generated(model, PROMPT, 15)


@pytest.mark.parametrize(("outside", "inside"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_masks_have_the_dtype_of_the_layers(outside, inside):
    """trl #1460: the embedding has another dtype, and a hook casts what it gives."""
    outside, inside = getattr(torch, outside), getattr(torch, inside)

    def mixed(model: LlamaForCausalLM) -> LlamaForCausalLM:
        model = model.to(inside)
        embedding = model.get_input_embeddings().to(outside)
        embedding.register_forward_hook(lambda module, args, out: out.to(inside))
        return model

    assert Target(mixed(llama())).dtype is inside
    assert len(written(mixed(llama()))) == 15
    assert written(llama(), own_tree(mixed(near_copy(llama())))) == generated(llama(), PROMPT, 15)


# --- how a model is used


def test_threads_share_a_model_in_training_mode():
    """transformers #32217: dropout must not come back while another thread computes."""
    model = llama(attention_dropout=0.5)
    right = generated(model, PROMPT, 40)
    model.train()
    model.model.layers[1].eval()
    before = [module.training for module in model.modules()]
    texts: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: texts.extend(written(model, length=40) for _ in range(3))) for _ in "abc"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [right] * 9
    assert [module.training for module in model.modules()] == before


@pytest.mark.skipif(not packing.possible(torch.float32), reason="this machine is no x86 with oneDNN")
def test_a_packed_model_under_autocast_writes_what_a_plain_one_does():
    """intel-extension-for-pytorch #748."""
    x, plain = torch.randn(3, 32), nn.Linear(32, 48)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(packing.PackedLinear(plain)(x), plain(x))
        assert packing.PackedLinear(plain)(x).dtype is torch.bfloat16


@pytest.mark.skipif(not packing.possible(torch.float32), reason="this machine is no x86 with oneDNN")
def test_a_packed_model_can_be_copied_and_saved():
    """ComfyUI #8347."""
    packed = models.pack(llama())
    right = written(packed)
    file = io.BytesIO()
    torch.save(packed, file)
    file.seek(0)
    for other in (copy.deepcopy(packed), pickle.loads(pickle.dumps(packed)), torch.load(file, weights_only=False)):
        assert written(other) == right
        with torch.no_grad():
            other.lm_head.weight.copy_(other.lm_head.weight.roll(1, 0))  # a copy of its own
        assert written(other) != right
    assert written(packed) == right


# --- what is loaded


@pytest.fixture
def folder(tmp_path):
    made = tokenizer(template=TEMPLATE)
    llama(vocab_size=len(made)).save_pretrained(tmp_path)
    made.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda name: None if "layers.1.mlp" in name else name, "lacks 3 of the model's weights, model.layers.1.mlp"),
        (lambda name: f"module.{name}", "lm_head.weight for example; it has module.lm_head.weight"),
    ],
    ids=["a part is missing", "another prefix"],
)
def test_a_checkpoint_that_lacks_weights_is_refused(folder, change, message):
    """transformers #12528: what is missing would be random, another model at every load."""
    models.load_pair(str(folder), dtype="float32")
    file = folder / "model.safetensors"
    kept = {change(name): weight for name, weight in load_file(file).items() if change(name)}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(OSError, match=message):
        models.load_pair(str(folder), dtype="float32")


PARTS = (
    "{% for turn in messages %}<user>{% for part in turn['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)


@pytest.mark.parametrize("template", [TEMPLATE, PARTS], ids=["text", "parts"])
def test_a_chat_template_may_want_the_text_or_a_list_of_parts(template):
    """LiteRT-LM #3688: over a text, a template that loops over parts prints nothing."""
    made = tokenizer(template=template)
    pair = models.Pair("x", llama(vocab_size=len(made)), None, made)
    assert made.decode(pair.encode("What is a tree?")) == "<user>What is a tree?<bot>"


def test_a_chat_template_that_drops_the_text_is_refused():
    made = tokenizer(template="<user><bot>")
    with pytest.raises(ValueError, match="drops the user's text"):
        models.Pair("x", llama(vocab_size=len(made)), None, made).encode("What is a tree?")


# --- settings


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-45])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_temperature_near_zero_is_nearly_greedy(temperature, dtype):
    """vLLM #1623: a quotient that overflows is no number."""
    logits = torch.tensor([[1.0, 3.0, 2.0], [-5.0, -7.0, -6.0]], dtype=dtype)
    assert Warp(temperature)(logits).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert Warp(temperature, top_p=0.9)(logits).tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("setting", ["temperature", "top_k", "top_p"])
def test_a_setting_that_is_none_is_refused_by_name(setting):
    with pytest.raises(ValueError, match=f"{setting} must be a number, got None"):
        Warp(**{setting: None})


def test_end_ids_may_be_numbers_of_numpy_or_torch():
    for ends in (5, np.int64(5), torch.tensor(5), [5], np.array([5]), torch.tensor([5])):
        assert ids_of(ends) == {5}
    assert ids_of([np.int32(5), torch.tensor(6)]) == {5, 6}
    model = llama()
    model.generation_config.eos_token_id = torch.tensor([5, 6])
    assert eos_ids(model) == {5, 6}
    text = written(llama())
    ended = decode(Target(llama()), NgramDrafter(), verifiers.greedy, PROMPT, max_new_tokens=15, eos=np.int64(text[3]))
    assert list(ended.tokens) == text[: 1 + text.index(text[3])]
    assert ended.finish == "eos"
