"""A model's check of itself: what it catches, what it must not accuse, what it keeps, and what it leaves alone."""

import json
import warnings
from contextlib import contextmanager

import pytest
import torch
from tiny import COMMON, generated, llama, randomise, tokenizer
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)
from transformers.models.llama.modeling_llama import LlamaAttention

from specnb import models, selfcheck, verifiers
from specnb.cache import ARGUMENT
from specnb.drafters import NgramDrafter
from specnb.hf import speculative
from specnb.models import pack, packing
from specnb.target import Target

PROMPT = [7, 8, 9, 7, 8]
NO_ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SCORES = "scores a tree unlike the tree's paths"
GENERATES = "is scored by its own generate unlike by a plain forward"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache; returns where results are kept."""
    monkeypatch.setenv("SPECNB_CACHE", str(tmp_path))
    monkeypatch.delenv("SPECNB_CHECK", raising=False)
    return tmp_path / "checked"


def mistral(window: int | None = 6, kind=MistralForCausalLM, **changes) -> PreTrainedModel:
    sizes = {**COMMON, **NO_ENDS, "num_key_value_heads": 2, "num_hidden_layers": 2, "sliding_window": window}
    torch.manual_seed(0)
    return randomise(kind(MistralConfig(**sizes | changes)).eval(), 0.3)


def small(seed: int = 0, kind=LlamaForCausalLM, **changes) -> PreTrainedModel:
    model = llama(seed, **{"num_hidden_layers": 2, **changes})
    model.__class__ = kind
    return model


def through(**options):
    return speculative(NgramDrafter(), verifiers.by_draw, **options)


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """The list that grows by one with every forward of any model; the models themselves are left as they are."""
    found: list[int] = []
    embedding = torch.nn.functional.embedding

    def counting(*args, **kwargs):
        found.append(1)
        return embedding(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "embedding", counting)
    return found


@contextmanager
def silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# --- what it catches


class Unwindowed(MistralForCausalLM):
    """Switches its window off where nobody sees it."""

    def forward(self, *args, **kwargs):
        kept, self.config.sliding_window = self.config.sliding_window, None
        try:
            return super().forward(*args, **kwargs)
        finally:
            self.config.sliding_window = kept


class OwnWindow(LlamaForCausalLM):
    """Sees the last few tokens only, by a mask of its own, whenever it is given none."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, cache=None, **kwargs):
        given = cache if cache is not None else kwargs.get("past_key_values")
        before = given.get_seq_length() if given is not None else 0
        count, size = input_ids.shape[1], self.config.my_window
        if attention_mask is None or attention_mask.dim() == 2:
            rows, columns = torch.arange(before, before + count)[:, None], torch.arange(before + count)
            hidden = (columns > rows) | (columns <= rows - size)
            attention_mask = torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)[None, None]
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        return super().forward(**inputs, **{ARGUMENT: cache}, **kwargs)


def own_window(size: int) -> PreTrainedModel:
    model = small(kind=OwnWindow)
    model.config.my_window = size
    return model


class Rounding(LlamaForCausalLM):
    """Rounds what it writes to a cache, if it is given one: plain forwards do not show it."""

    def forward(self, *args, **kwargs):
        cache = kwargs.get(ARGUMENT)
        out = super().forward(*args, **kwargs)
        if cache is not None:
            for layer in cache.layers:
                for part in (layer.keys, layer.values):
                    part.copy_((part * 2).round() / 2)
        return out


class Unmasked(LlamaAttention):
    """Lets all see all that stands before them in the cache."""

    def forward(self, *args, attention_mask=None, **kwargs):
        return super().forward(*args, attention_mask=None, **kwargs)


def unmasked(dtype=torch.float32) -> PreTrainedModel:
    model = small().to(dtype)
    for layer in model.model.layers:
        layer.self_attn.__class__ = Unmasked
    return model


class LaterInputs(LlamaForCausalLM):
    """Prepares the first forward as usual, the next ones not."""

    def prepare_inputs_for_generation(self, *args, is_first_iteration=False, **kwargs):
        inputs = super().prepare_inputs_for_generation(*args, is_first_iteration=is_first_iteration, **kwargs)
        if not is_first_iteration:
            inputs["input_ids"] = inputs["input_ids"] * 0
        return inputs


class Unplaced(LlamaForCausalLM):
    """Counts positions by the slots of its cache."""

    def forward(self, *args, position_ids=None, **kwargs):
        return super().forward(*args, **kwargs)


WRONG = {
    "a window switched off": (lambda: mistral(6, Unwindowed), SCORES),
    "a long window switched off": (lambda: mistral(60, Unwindowed), SCORES),
    "a window of its own": (lambda: own_window(4), SCORES),
    "a long window of its own": (lambda: own_window(60), SCORES),
    "a cache that rounds": (lambda: small(kind=Rounding), f"{SCORES}|{GENERATES}"),
    "attention without a mask": (unmasked, SCORES),
    "other inputs later": (lambda: small(kind=LaterInputs), GENERATES),
    "positions by slots": (lambda: small(kind=Unplaced), SCORES),
}


@pytest.mark.parametrize("name", WRONG)
def test_it_catches(name, folder):
    make, said = WRONG[name]
    for _ in range(2):  # a failure is not taken for a success later
        model = make()
        with pytest.raises(ValueError, match=said):
            selfcheck.check_once(model)
    with pytest.raises(ValueError, match=said):
        generated(model, PROMPT, 4, custom_generate=through())
    with pytest.raises(ValueError, match=said):
        Target(model).check()
    assert not list(folder.glob("*"))
    generated(model, PROMPT, 4, custom_generate=through(check=False))  # the check, not the loop, has refused it


def test_windows_as_they_should_be_pass():
    """Negative control of the test above."""
    for model in (mistral(6), mistral(60), mistral(None), small()):
        with silent():
            selfcheck.check_once(model)


def soft_prompt(model) -> None:
    usual = model.prepare_inputs_for_generation
    vectors = torch.randn(1, 3, model.config.hidden_size, generator=torch.Generator().manual_seed(5))

    def prepare(input_ids, *args, **kwargs):
        inputs = usual(input_ids, *args, **kwargs)
        cache = inputs.get(ARGUMENT)
        if cache is None or not cache.get_seq_length():
            text = model.get_input_embeddings()(inputs.pop("input_ids"))
            inputs["inputs_embeds"] = torch.cat([vectors.to(text.dtype), text], 1)
        inputs.pop("position_ids", None)
        inputs.pop("attention_mask", None)
        return inputs

    model.prepare_inputs_for_generation = prepare


def test_it_catches_a_soft_prompt_added_after_it_has_passed():
    model = small()
    selfcheck.check_once(model)
    soft_prompt(model)
    with pytest.raises(ValueError, match=GENERATES):
        selfcheck.check_once(model)
    fresh = small()  # of the same weights: what was kept is not of this model
    soft_prompt(fresh)
    with pytest.raises(ValueError, match=GENERATES):
        selfcheck.check_once(fresh)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fault", ["a soft prompt", "a replaced layer", "a hook", "a replaced forward"])
def test_in_half_precision_a_fault_is_not_taken_for_rounding(fault, dtype):
    """The copy in float32 has to have the same fault."""
    model = unmasked(dtype) if fault == "a replaced layer" else small().to(dtype)
    if fault == "a soft prompt":
        soft_prompt(model)
    if fault == "a hook":
        add_hook(model)
    if fault == "a replaced forward":
        replace_forward(model)
    with pytest.raises(ValueError, match=f"{SCORES}|{GENERATES}"):
        selfcheck.check_once(model)


def add_hook(model) -> None:
    """Adds to each token what stands beside it in the batch: a tree's siblings are no ancestors."""

    def mix(module, inputs, output):
        return output + output.cumsum(1)

    model.model.layers[0].mlp.register_forward_hook(mix)


def replace_forward(model) -> None:
    layer = model.model.layers[0].mlp
    usual = layer.forward
    layer.forward = lambda x: usual(x) + usual(x).cumsum(1)


def fails_at_first(monkeypatch) -> list[torch.dtype]:
    """The check fails where it is not in float32; returns the dtypes it was asked for."""
    asked, check = [], selfcheck.check

    def failing(target, **options):
        asked.append(target.model.dtype)
        if target.model.dtype.itemsize < 4:
            raise ValueError("logits differ by 12% of the largest one")
        return check(target, **options)

    monkeypatch.setattr(selfcheck, "check", failing)
    return asked


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_in_half_precision_is_said_and_no_error(dtype, monkeypatch):
    asked = fails_at_first(monkeypatch)
    with pytest.warns(UserWarning, match=r"12% of the largest one.* In float32 it is exact"):
        selfcheck.check_once(small().to(dtype))
    assert asked == [dtype, torch.float32]


def test_the_copy_in_float32_draws_no_random_numbers_and_leaves_the_model_alone(monkeypatch):
    fails_at_first(monkeypatch)
    model = small().bfloat16()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with pytest.warns(UserWarning, match="In float32"):
        selfcheck.check_once(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.dtype == torch.bfloat16
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_copy_in_float32_stands_where_the_model_does(monkeypatch):
    fails_at_first(monkeypatch)
    model = small().bfloat16()
    torch.set_default_device("meta")
    try:
        with pytest.warns(UserWarning, match="In float32"):
            selfcheck.check_once(model)
    finally:
        torch.set_default_device(None)


@pytest.mark.skipif(not packing.possible(torch.bfloat16), reason="no kernels here take packed bfloat16 weights")
def test_packed_weights_in_half_precision_are_checked_in_float32(monkeypatch):
    asked = fails_at_first(monkeypatch)
    with pytest.warns(UserWarning, match="In float32"):
        selfcheck.check_once(pack(small().bfloat16()))
    assert asked[-1] == torch.float32


# --- what it must not accuse


@pytest.mark.parametrize("context", [2, 4, 8, 12, 16, 20])
@pytest.mark.parametrize("make", [small, mistral], ids=lambda make: make.__name__)
def test_a_short_context_is_no_fault(make, context):
    model = make(max_position_embeddings=context)
    assert generated(model, [1], 1, custom_generate=through()) == generated(model, [1], 1)


HABITS = [
    {"cache_implementation": "quantized"}, {"cache_implementation": "static"}, {"cache_implementation": "offloaded"},
    {"num_return_sequences": 3}, {"num_beams": 4}, {"stop_strings": ["a"]}, {"penalty_alpha": 0.6, "top_k": 4},
    {"do_sample": True, "temperature": 0.3, "top_k": 5}, {"dola_layers": "low"}, {"token_healing": True},
    {"repetition_penalty": 1.7}, {"eos_token_id": list(range(50))}, {"max_length": 2}, {"min_new_tokens": 9},
    {"use_cache": False}, {"prompt_lookup_num_tokens": 3}, {"guidance_scale": 1.5}, {"output_attentions": True},
    {"suppress_tokens": [1]}, {"return_dict_in_generate": True}, {"max_time": 0.0},
]  # fmt: skip


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: "-".join(habit))
def test_habits_of_a_generation_config_are_no_fault_of_the_model(habit):
    """It is the model that is checked: what a call of generate asks for is refused, or not, when it is made."""
    model = small()
    for name, value in habit.items():
        setattr(model.generation_config, name, value)
    before = model.generation_config.to_dict()
    with silent():
        selfcheck.check_once(model)
    assert model.generation_config.to_dict() == before


def test_a_model_in_training_is_checked_as_it_will_decode():
    model = small(attention_dropout=0.5).train()
    with silent():
        selfcheck.check_once(model)
    assert all(module.training for module in model.modules())


def test_a_model_with_an_adapter_passes(calls):
    peft = pytest.importorskip("peft")
    model = small()
    selfcheck.check_once(model)
    options = {"target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options)).eval()
    del calls[:]
    with silent():
        selfcheck.check_once(model)
    assert calls  # checked again: other layers


# --- what is kept


def test_a_passed_check_is_kept_for_this_process_and_for_the_next(folder, calls):
    model = mistral()
    with silent():
        selfcheck.check_once(model)
    assert calls
    (kept,) = folder.iterdir()
    assert json.loads(kept.read_text(encoding="utf-8"))["model"] == "MistralForCausalLM"
    del calls[:]
    selfcheck.check_once(model)
    assert not calls
    again = mistral()  # as in another process
    selfcheck.check_once(again)
    assert not calls
    kept.unlink()
    third = mistral()
    selfcheck.check_once(third)
    assert calls  # control: it was the file that spared it


CHANGES = {
    "a weight": lambda model: model.lm_head.weight.data.mul_(1.5),
    "a configuration": lambda model: setattr(model.config, "sliding_window", 5),
    "another configuration": lambda model: setattr(model.config, "rms_norm_eps", 0.1),
    "a dtype": lambda model: model.double(),
    "a layer less": lambda model: model.model.layers.pop(1),
    "another layer": lambda model: setattr(model.model.layers[1], "mlp", torch.nn.Identity()),
    "an attention": lambda model: model.set_attn_implementation("eager"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_changes_the_identity(name):
    model = mistral()
    before = selfcheck.identity(model)
    assert selfcheck.identity(mistral()) == before
    CHANGES[name](model)
    assert selfcheck.identity(model) != before


def test_an_adapter_changes_the_identity():
    peft = pytest.importorskip("peft")
    found = {selfcheck.identity(mistral())}
    for rank in (2, 4):
        model = mistral()
        options = {"target_modules": ["q_proj"], "init_lora_weights": False, "r": rank}
        peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options)).eval()
        found.add(selfcheck.identity(model))
    assert len(found) == 3


def test_the_folder_a_model_came_from_is_not_in_its_identity(tmp_path):
    model = small()
    names = []
    for name in ("one", "two"):
        model.save_pretrained(tmp_path / name)
        names.append(selfcheck.identity(LlamaForCausalLM.from_pretrained(tmp_path / name).eval()))
    assert names[0] == names[1]


class Own(LlamaForCausalLM):
    """Of the user's own: its code may be another one in the next process."""


class OwnAttention(LlamaAttention):
    """Likewise, one layer."""


def with_own_layer(name: str = "OwnAttention") -> PreTrainedModel:
    model = small()
    kind = type(name, (OwnAttention,), {"__module__": __name__, "__qualname__": name})
    model.model.layers[0].self_attn.__class__ = kind
    return model


def with_own_forward() -> PreTrainedModel:
    model = small()
    usual = model.model.layers[0].mlp.forward
    model.model.layers[0].mlp.forward = lambda x: usual(x)
    return model


def with_own_hook() -> PreTrainedModel:
    model = small()
    model.model.layers[0].register_forward_hook(lambda module, inputs, output: output)
    return model


OWN = {
    "a subclass": lambda: small(kind=Own), "a layer": with_own_layer,
    "a layer of the same name": lambda: with_own_layer("LlamaAttention"),
    "a forward": with_own_forward, "a hook": with_own_hook,
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_code_of_the_users_own_is_kept_for_this_process_only(name, folder, calls):
    selfcheck.check_once(small())  # transformers' own model of the same weights has passed
    before = set(folder.iterdir())
    del calls[:]
    model = OWN[name]()
    selfcheck.check_once(model)
    assert calls
    assert set(folder.iterdir()) == before
    del calls[:]
    selfcheck.check_once(model)
    assert not calls


def unmasked_of_the_same_name(model) -> None:
    for layer in model.model.layers:
        layer.self_attn.__class__ = type("LlamaAttention", (Unmasked,), {"__module__": __name__})


LATER = {
    "a layer of the same name": unmasked_of_the_same_name,
    "a hook": add_hook,
    "a replaced forward": replace_forward,
    "a layer": lambda model: setattr(model.model.layers[0].self_attn, "__class__", Unmasked),
}


@pytest.mark.parametrize("name", LATER)
def test_a_model_that_is_changed_later_is_checked_again(name):
    model = small()
    selfcheck.check_once(model)
    LATER[name](model)
    with pytest.raises(ValueError, match=SCORES):
        selfcheck.check_once(model)


@pytest.mark.parametrize("content", ["", "{", "null", "\x00\x01"])
def test_a_damaged_file_does_no_harm(content, folder):
    selfcheck.check_once(small())
    (kept,) = folder.iterdir()
    kept.write_text(content, encoding="utf-8")
    with silent():
        selfcheck.check_once(small())


@pytest.mark.parametrize("name", ["checked", "."])
def test_a_cache_that_cannot_be_written_is_said_and_no_error(name, tmp_path, monkeypatch):
    """A file stands where the folder should be, or where the cache should be."""
    cache = tmp_path / "cache"
    blocked = cache if name == "." else cache / name
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("no folder", encoding="utf-8")
    monkeypatch.setenv("SPECNB_CACHE", str(cache))
    with pytest.warns(UserWarning, match="the result of the self-check is not kept"):
        selfcheck.check_once(small())


def test_a_cache_that_cannot_be_looked_at_is_said_and_no_error(tmp_path, monkeypatch):
    """Its name is too long, which is an error where one asks whether it exists; so is a folder one may not enter."""
    monkeypatch.setenv("SPECNB_CACHE", str(tmp_path / ("x" * 400)))
    with pytest.warns(UserWarning, match="the result of the self-check is not kept"):
        selfcheck.check_once(small())


# --- what is said, and how it is turned off


@pytest.mark.parametrize(("window", "context", "said"), [(513, 2000, True), (512, 600, False), (513, 400, False)])
def test_windows_that_are_too_long_to_check_are_said(window, context, said):
    model = mistral(window, max_position_embeddings=context)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        selfcheck.check_once(model)
    words = [str(one.message) for one in found if "are not checked by themselves" in str(one.message)]
    assert bool(words) is said
    assert all(f"its window of {window} tokens" in one for one in words)
    with silent():
        selfcheck.check_once(model)  # once


def test_the_longest_window_that_is_checked_is_checked():
    """A fault at the very bound; one token further it is a warning only."""
    options = {"num_hidden_layers": 1, "max_position_embeddings": 700}
    with pytest.raises(ValueError, match=SCORES):
        selfcheck.check_once(mistral(selfcheck.LONGEST, Unwindowed, **options))
    with pytest.warns(UserWarning, match="are not checked by themselves"):
        selfcheck.check_once(mistral(selfcheck.LONGEST + 1, Unwindowed, **options))


@pytest.mark.parametrize("value", ["0", "1", ""])
def test_the_environment_turns_it_off(value, monkeypatch, calls):
    model = unmasked()
    monkeypatch.setenv("SPECNB_CHECK", value)
    if value == "0":
        selfcheck.check_once(model)
        assert not calls
        return
    with pytest.raises(ValueError, match=SCORES):
        selfcheck.check_once(model)


def test_check_false_turns_it_off_for_one_call(calls):
    model = mistral()
    theirs = generated(model, PROMPT, 3)
    plain = len(calls)
    del calls[:]
    assert generated(model, PROMPT, 3, custom_generate=through(check=False)) == theirs
    assert len(calls) <= plain
    del calls[:]
    assert generated(model, PROMPT, 3, custom_generate=through()) == theirs
    assert len(calls) > 2 * plain


def test_loading_a_pair_checks_it_once(tmp_path, folder, monkeypatch, capsys):
    words = tokenizer()
    small(vocab_size=len(words)).save_pretrained(tmp_path / "own")
    words.save_pretrained(tmp_path / "own")
    asked, check = [], selfcheck.check
    monkeypatch.setattr(selfcheck, "check", lambda target, **options: asked.append(options) or check(target, **options))
    options = {"dtype": "float32", "device": "cpu"}
    models.load_pair(str(tmp_path / "own"), check=False, **options)
    assert not asked
    models.load_pair(str(tmp_path / "own"), **options)
    models.load_pair(str(tmp_path / "own"), **options)
    assert len(asked) == 1
    assert "exact to" not in capsys.readouterr().out
    models.load_pair(str(tmp_path / "own"), check=True, **options)
    assert len(asked) == 2
    assert asked[1].get("longest") is None  # asked for: any window
    assert "exact to" in capsys.readouterr().out


def test_a_generation_config_that_is_not_ours_to_follow_does_not_stop_loading(tmp_path):
    words, model = tokenizer(), small(vocab_size=260)
    model.generation_config.stop_strings = ["</end>"]
    model.save_pretrained(tmp_path / "own")
    words.save_pretrained(tmp_path / "own")
    assert models.load_pair(str(tmp_path / "own"), dtype="float32", device="cpu").target.config.vocab_size == 260


def test_the_check_leaves_random_numbers_modes_and_verbosity_alone():
    from transformers.utils import logging

    torch.manual_seed(2)
    state, loud = torch.get_rng_state(), logging.get_verbosity()
    model = Gemma2ForCausalLM(
        Gemma2Config(**{**COMMON, **NO_ENDS, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 2})
    )
    state = torch.get_rng_state()
    training = [module.training for module in model.modules()]
    selfcheck.check_once(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == training
    assert logging.get_verbosity() == loud


@pytest.mark.parametrize("inside", [False, True])
def test_it_passes_in_inference_mode_and_with_gradients(inside):
    with torch.inference_mode(inside), silent():
        selfcheck.check_once(mistral())
    with silent():
        selfcheck.check_once(mistral(5))
