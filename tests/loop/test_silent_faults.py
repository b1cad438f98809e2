"""Faults that once wrote a wrong text without a word, or lost one: each kind with several instances of it.

What is right is ``generate``'s own text, or a refusal that names what it refuses. Negative controls show that a text
would differ if the thing in question were dropped.
"""

import queue
import threading
import warnings
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tiny import COMMON, generated, llama, randomise, tokenizer
from torch import Tensor
from transformers import (
    CLIPVisionConfig,
    DynamicCache,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LogitsProcessor,
    LogitsProcessorList,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
    StaticCache,
    TextIteratorStreamer,
)
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from specnb import growth, models, sampling, verifiers
from specnb.cache import ARGUMENT
from specnb.decode import PlainDrafter, decode, steps
from specnb.drafters import (
    AutoDrafter,
    CausalLMDraft,
    Corpus,
    Datastore,
    LookaheadDrafter,
    MergedDrafter,
    NgramDrafter,
    ProgressiveDrafter,
    RetrievalDrafter,
    SelfDrafter,
    Tempered,
    TreeDrafter,
)
from specnb.hf import speculative
from specnb.models import Graphs, Invariant, Window
from specnb.target import Target
from specnb.tree import Drawn
from specnb.verifiers import multidraft

PROMPT = [7, 8, 9, 10, 11, 12, 7, 8, 9, 10]
PRICES = [1 + 0.01 * n for n in range(16)]  # seconds of forwards over 1, 2, … nodes


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(folder, monkeypatch):
    """Models leave nothing of their self-checks in the reader's cache."""
    monkeypatch.setenv("SPECNB_CACHE", str(folder))


def small(seed: int = 0, **changes) -> LlamaForCausalLM:
    """One layer is enough where drafters and verifiers are the subject."""
    return llama(seed, **{"num_hidden_layers": 1, **changes})


def near(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """The model, a little disturbed: a draft that is right often enough."""
    draft, generator = deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return draft


def ngram(**options):
    return speculative(NgramDrafter(), verifiers.by_draw, **options)


def written(model, prompt=PROMPT, count=20, *, drafter=None, **options) -> list[int]:
    """The loop's own greedy text, end tokens being text."""
    out = decode(
        Target(model, **options), drafter or NgramDrafter(), verifiers.greedy, prompt, max_new_tokens=count, eos=()
    )
    return list(out.tokens)


# --- windows, which belong to the code that owns the layers

WINDOWED = {
    "mistral": (MistralConfig, MistralForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
    "starcoder2": (Starcoder2Config, Starcoder2ForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
}
NO_ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def settings(name: str, window: int | None) -> dict:
    found = {**COMMON, **NO_ENDS, "num_key_value_heads": 2, "num_hidden_layers": 2, "sliding_window": window}
    if name == "qwen2":
        found |= {"use_sliding_window": window is not None, "max_window_layers": 1}
    if name == "mixtral":
        found |= {"num_local_experts": 2}
    return found


def windowed(name: str, window: int | None, kind=lambda base: base) -> PreTrainedModel:
    """A model with a window; kind: what a user makes of its class."""
    config, base = WINDOWED[name]
    torch.manual_seed(0)
    return randomise(kind(base)(config(**settings(name, window))).eval(), 0.3)


def subclass(base):
    return type("Mine", (base,), {"__module__": __name__})


def of_a_subclass(base):
    return subclass(subclass(base))


def mixed(base):
    class Logged:
        """A mixin without layers, first in the order of classes."""

        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    return type("Mine", (Logged, base), {"__module__": __name__})


def of_a_module_that_is_gone(base):
    """As of a script that ran by ``runpy``, or of a notebook's namespace: its module cannot be looked up."""
    return type("Mine", (base,), {"__module__": "a_module_that_is_gone"})


KINDS = [subclass, of_a_subclass, mixed, of_a_module_that_is_gone]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WINDOWED)
def test_a_subclass_keeps_its_window(name, kind):
    model = windowed(name, 6, kind)
    theirs = generated(model, PROMPT, 20)
    assert theirs != generated(windowed(name, None), PROMPT, 20)  # negative control: the window moves the text
    assert written(model) == theirs
    assert generated(model, PROMPT, 20, custom_generate=ngram()) == theirs
    assert Target(model).check() < 1e-3


@pytest.mark.parametrize("window", [2, 6, len(PROMPT), 100, None])
def test_windows_shorter_and_longer_than_the_text(window):
    for name in ("mistral", "starcoder2"):
        model = windowed(name, window, subclass)
        assert written(model) == generated(model, PROMPT, 20)
        assert written(model, drafter=TreeDrafter(CausalLMDraft(model), growth.kary(2, 3))) == written(model)


def llava(name: str, window: int | None) -> PreTrainedModel:
    """A vision-language model whose text layers are another module's."""
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8
    )
    text = WINDOWED[name][0](**settings(name, window))
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(LlavaConfig(text_config=text, vision_config=vision, image_token_index=49))
    return randomise(model.eval(), 0.3)


@pytest.mark.parametrize("name", ["mistral", "phi3", "starcoder2", "qwen2"])
def test_a_vision_language_model_keeps_the_window_of_its_text(name):
    model = llava(name, 6)
    theirs = generated(model, PROMPT, 20, pad_token_id=0)
    assert theirs != generated(llava(name, None), PROMPT, 20, pad_token_id=0)  # negative control
    assert written(model) == theirs
    assert generated(model, PROMPT, 20, pad_token_id=0, custom_generate=ngram()) == theirs
    model.__class__ = subclass(type(model))
    assert written(model) == theirs


class OwnConfig(MistralConfig):
    model_type = "own"


@pytest.mark.parametrize("config", [OwnConfig, MistralConfig])
def test_a_model_type_of_the_users_own_keeps_its_window(config):
    torch.manual_seed(0)
    model = randomise(subclass(MistralForCausalLM)(config(**settings("mistral", 6))).eval(), 0.3)
    assert written(model) == generated(model, PROMPT, 20)


class Foreign(PreTrainedModel):
    """Layers of the user's own: no code of transformers' models in it, and a window in its configuration."""

    config_class = MistralConfig
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.embed = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        return self.lm_head

    def can_generate(self):
        return True

    def forward(self, input_ids=None, position_ids=None, attention_mask=None, cache=None, past_key_values=None, **_):
        return CausalLMOutputWithPast(logits=self.lm_head(self.embed(input_ids)))


def test_foreign_code_with_a_window_is_refused():
    model = Foreign(MistralConfig(**settings("mistral", 6)))
    with pytest.raises(ValueError, match="has a sliding_window, and its code is not transformers'"):
        Target(model)
    with pytest.raises(ValueError, match="has a sliding_window, and its code is not transformers'"):
        CausalLMDraft(model)
    assert Target(Foreign(MistralConfig(**settings("mistral", None))))  # control: only the window is in question


# --- what generate honours


class SoftPrompt:
    """What PEFT's prompt tuning does: vectors before the text's own, put in where the inputs are prepared."""

    def __init__(self, model, count: int = 3):
        self.model, self.usual = model, model.prepare_inputs_for_generation
        width = model.config.hidden_size
        self.vectors = torch.randn(1, count, width, generator=torch.Generator().manual_seed(5))

    def __call__(self, input_ids, *args, **kwargs):
        inputs = self.usual(input_ids, *args, **kwargs)
        cache = inputs.get(ARGUMENT)
        if cache is None or not cache.get_seq_length():
            text = self.model.get_input_embeddings()(inputs.pop("input_ids"))
            inputs["inputs_embeds"] = torch.cat([self.vectors, text], 1)
        inputs.pop("position_ids", None)
        inputs.pop("attention_mask", None)
        return inputs


def test_soft_prompts_are_refused():
    model = llama()
    bare = generated(model, PROMPT, 15)
    model.prepare_inputs_for_generation = SoftPrompt(model)
    assert generated(model, PROMPT, 15) != bare  # negative control: generate honours it
    for check in (True, False):
        with pytest.raises(ValueError, match=r"prepare_inputs_for_generation gives it: .*inputs_embeds"):
            generated(model, PROMPT, 15, custom_generate=ngram(check=check))


CHANGED_INPUTS = {
    "other tokens": lambda inputs: {"input_ids": inputs["input_ids"].flip(1)},
    "another position": lambda inputs: {"position_ids": torch.arange(5, 5 + inputs["input_ids"].shape[1])[None]},
    "a mask": lambda inputs: {"attention_mask": torch.zeros(1, 1, len(PROMPT), len(PROMPT))},
    "another input": lambda inputs: {"adapter_scale": 2.0},
}


@pytest.mark.parametrize("change", CHANGED_INPUTS.values(), ids=CHANGED_INPUTS)
def test_inputs_that_a_subclass_prepares_otherwise_are_refused(change):
    class Mine(LlamaForCausalLM):
        def prepare_inputs_for_generation(self, *args, **kwargs):
            inputs = super().prepare_inputs_for_generation(*args, **kwargs)
            return inputs | change(inputs)

    with pytest.raises(ValueError, match="what this Mine's prepare_inputs_for_generation gives it"):
        generated(Mine(llama().config).eval(), PROMPT, 5, custom_generate=ngram())


def test_inputs_that_a_subclass_prepares_as_usual_are_taken():
    class Mine(LlamaForCausalLM):
        def prepare_inputs_for_generation(self, *args, **kwargs):
            return super().prepare_inputs_for_generation(*args, **kwargs)

    model = Mine(llama().config).eval()
    model.load_state_dict(llama().state_dict())
    assert generated(model, PROMPT, 15, custom_generate=ngram()) == generated(llama(), PROMPT, 15)


@dataclass
class Tuned:
    """A model with an adapter of PEFT's around it."""

    model: object

    def text(self, **options) -> list[int]:
        ids = torch.tensor([PROMPT])
        mask = torch.ones_like(ids)
        out = self.model.generate(input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=12, **options)
        return out[0, len(PROMPT) :].tolist()


def tuned(name: str, **options) -> Tuned:
    peft = pytest.importorskip("peft")
    base = llama()
    torch.manual_seed(1)
    model = peft.get_peft_model(base, getattr(peft, name)(task_type="CAUSAL_LM", **options)).eval()
    with torch.no_grad():
        for part, parameter in model.named_parameters():
            if "prompt_encoder" in part:
                parameter.normal_()
    return Tuned(model)


@pytest.mark.parametrize("name", ["PromptTuningConfig", "PromptEncoderConfig", "PrefixTuningConfig"])
def test_pefts_soft_prompts_are_refused(name):
    model = tuned(name, num_virtual_tokens=4)
    with pytest.raises(ValueError, match="prepare_inputs_for_generation gives it"):
        model.text(custom_generate=ngram())


@pytest.mark.parametrize("name", ["LoraConfig", "IA3Config"])
def test_pefts_adapters_give_generates_text(name):
    modules = {"target_modules": ["q_proj", "v_proj", "down_proj"]}
    options = {"init_lora_weights": False, "lora_alpha": 32} if name == "LoraConfig" else {"init_ia3_weights": False}
    options |= {"feedforward_modules": ["down_proj"]} if name == "IA3Config" else {}
    model = tuned(name, **modules, **options)
    theirs = model.text()
    assert model.text(custom_generate=ngram()) == theirs
    with model.model.disable_adapter():
        bare = model.text()
        assert model.text(custom_generate=ngram()) == bare
    assert bare == generated(llama(), PROMPT, 12)
    assert bare != theirs or name == "IA3Config"  # negative control


def filled(kind=DynamicCache) -> Cache:
    cache = kind(config=llama().config)
    llama()(torch.tensor([[4, 5]]), **{ARGUMENT: cache})
    return cache


class OwnCache(DynamicCache):
    """Of the user's own: what it does is not known."""


def test_an_empty_cache_and_a_static_one_are_taken():
    model = llama()
    theirs = generated(model, PROMPT, 15)
    caches = [DynamicCache(), DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=64)]
    for cache in caches:
        assert generated(model, PROMPT, 15, custom_generate=ngram(), **{ARGUMENT: cache}) == theirs
    for name in ("static", "dynamic", None):
        model.generation_config.cache_implementation = name
        assert generated(model, PROMPT, 15, custom_generate=ngram()) == theirs


def quantised(config) -> Cache:
    """A cache of transformers' quantised type, made without the packages that quantise."""
    from transformers import QuantizedCache

    cache = QuantizedCache.__new__(QuantizedCache)
    Cache.__init__(cache, layers=[])
    return cache


CACHES = {
    "a filled": lambda config: filled(),
    "a QuantizedCache": quantised,
    "a OwnCache": lambda config: OwnCache(config=config),
    "an offloaded": lambda config: DynamicCache(config=config, offloading=True),
}


@pytest.mark.parametrize("name", CACHES)
def test_other_caches_are_refused_by_name(name):
    model = llama()
    with pytest.raises(ValueError, match=f"does not honour {name}"):
        generated(model, PROMPT, 5, custom_generate=ngram(), **{ARGUMENT: CACHES[name](model.config)})


@pytest.mark.parametrize(
    ("name", "said"), [("quantized", "QuantizedCache|quanto"), ("offloaded", "an offloaded cache")]
)
def test_caches_that_the_generation_config_asks_for_are_refused(name, said, monkeypatch):
    from transformers.generation import utils

    monkeypatch.setattr(utils, "QuantizedCache", lambda backend, config: quantised(config))
    model = llama()
    model.generation_config.cache_implementation = name
    with pytest.raises(ValueError, match=said):
        generated(model, PROMPT, 5, custom_generate=ngram())


GIVEN = {
    "inputs_embeds": {"inputs_embeds": torch.zeros(1, len(PROMPT), 32)},
    "position_ids": {"position_ids": torch.arange(1, 1 + len(PROMPT))[None]},
    "padded": {"attention_mask": torch.tensor([[0] + [1] * (len(PROMPT) - 1)])},
}


@pytest.mark.parametrize("name", GIVEN)
def test_what_says_more_than_plain_text_is_refused(name):
    ids = torch.tensor([PROMPT])
    with pytest.raises(ValueError, match=name):
        llama().generate(ids, custom_generate=ngram(), max_new_tokens=5, **GIVEN[name])


@pytest.mark.parametrize("shape", [(1, 1), (1, 4)])
def test_masks_of_four_dimensions_are_refused(shape):
    """By generate itself, or by us, in whatever version."""
    size = len(PROMPT)
    mask = torch.ones(*shape, size, size, dtype=torch.bool).tril()
    model = llama()
    for given in (mask, torch.ones_like(mask)):
        with pytest.raises(ValueError, match="attention_mask"):
            model.generate(torch.tensor([PROMPT]), attention_mask=given, custom_generate=ngram(), max_new_tokens=5)


def gemma3() -> PreTrainedModel:
    text = {**COMMON, **NO_ENDS, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 2, "sliding_window": 6}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 16, "patch_size": 8}
    torch.manual_seed(0)
    config = Gemma3Config(text_config=text, vision_config=vision, image_token_index=49, **NO_ENDS)
    return randomise(Gemma3ForConditionalGeneration(config).eval(), 0.3)


def test_text_alone_goes_through_generate_with_vision_language_models():
    for model in (gemma3(), llava("mistral", 6)):
        theirs = generated(model, PROMPT, 12, pad_token_id=0)
        assert generated(model, PROMPT, 12, pad_token_id=0, custom_generate=ngram()) == theirs


def test_kinds_of_tokens_are_refused_unless_all_are_text():
    model, ids = gemma3(), torch.tensor([PROMPT])
    options = {"custom_generate": ngram(), "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    theirs = generated(model, PROMPT, 8, pad_token_id=0)
    out = model.generate(ids, token_type_ids=torch.zeros_like(ids), **options)
    assert out[0, len(PROMPT) :].tolist() == theirs
    kinds = torch.zeros_like(ids)
    kinds[0, 2:5] = 1
    with pytest.raises(ValueError, match="token_type_ids"):
        model.generate(ids, token_type_ids=kinds, **options)


HABITS = [{"output_hidden_states": True}, {"output_attentions": True}, {"return_dict": True}]


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: next(iter(habit)))
def test_outputs_that_a_models_configuration_asks_for_are_no_request(habit):
    model = llama(attn_implementation="eager", **habit)
    theirs = model.generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=8)
    theirs = getattr(theirs, "sequences", theirs)
    ours = model.generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=8, custom_generate=ngram())
    assert getattr(ours, "sequences", ours).tolist() == theirs.tolist()


class Passing(LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class Naming(LlamaForCausalLM):
    def forward(self, input_ids=None, **kwargs):
        return super().forward(input_ids=input_ids, **kwargs)


@pytest.mark.parametrize("kind", [Passing, Naming, type("Deeper", (Passing,), {"__module__": __name__})])
def test_a_forward_that_hands_everything_on_is_taken(kind):
    model = kind(llama().config).eval()
    model.load_state_dict(llama().state_dict())
    assert written(model) == generated(llama(), PROMPT, 20)
    assert generated(model, PROMPT, 20, custom_generate=ngram()) == generated(llama(), PROMPT, 20)


class Grammar(LogitsProcessor):
    """A processor of constrained decoding, with all that it holds."""

    def __init__(self):
        self.vocabulary = {f"token {i}": i for i in range(20_000)}
        self.allowed, self.strength = list(range(20_000)), 2.5

    def __call__(self, input_ids, scores):
        return scores


class Slim:
    """Without a __dict__."""

    __slots__ = ()

    def __call__(self, input_ids, scores):
        return scores


class Weighted(Grammar):
    """Its settings are numbers, and many."""

    def __init__(self):
        vars(self).update({f"weight_{i}": float(i) for i in range(2_000)})


@pytest.mark.parametrize("processor", [Grammar(), Slim(), Weighted()], ids=lambda one: type(one).__name__)
def test_a_refused_processor_is_named_shortly(processor):
    given = LogitsProcessorList([processor])
    with pytest.raises(ValueError, match=type(processor).__name__) as caught:
        generated(llama(), PROMPT, 5, custom_generate=ngram(), logits_processor=given)
    assert len(str(caught.value)) < 1000


# --- streamers and torch's random numbers


def fails_at(number: int):
    """A drafter that fails in one of its steps."""

    class Failing(NgramDrafter):
        def propose(self, coins, max_depth):
            if len(self.text) >= len(PROMPT) + number:
                raise RuntimeError("a fault of the drafter")
            return super().propose(coins, max_depth)

    return Failing()


@pytest.mark.parametrize("after", [0, 4])
def test_the_reader_of_a_streamer_is_told_of_an_end_by_an_exception(after):
    words, model, caught = tokenizer(), llama(vocab_size=260), []
    streamer = TextIteratorStreamer(words, skip_prompt=True, timeout=20)
    through = speculative(fails_at(after), verifiers.by_draw, streamer=streamer)

    def work():
        try:
            generated(model, PROMPT, 20, custom_generate=through)
        except RuntimeError as error:
            caught.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        "".join(streamer)
    except queue.Empty:
        pytest.fail("the reader was never told of the end")
    thread.join()
    assert caught == ["a fault of the drafter"]


def test_a_streamer_ends_after_a_refusal():
    ended = []

    class Recorder:
        def put(self, value):
            pass

        def end(self):
            ended.append(True)

    through = ngram(streamer=Recorder())
    with pytest.raises(ValueError, match="one text at a time"):
        llama().generate(torch.tensor([[1, 2], [3, 4]]), custom_generate=through, max_new_tokens=3)
    assert ended == [True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_decoding_leaves_torchs_random_numbers_alone(dtype):
    """At the first use of a model, too, when it checks itself."""
    model = llama().to(dtype)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    generated(model, PROMPT, 5, custom_generate=ngram())
    assert torch.equal(torch.get_rng_state(), state)
    options = {"do_sample": True, "custom_generate": ngram(), "max_new_tokens": 5}
    model.generate(torch.tensor([PROMPT]), **options)
    assert not torch.equal(torch.get_rng_state(), state)  # control: samples do draw


# --- numbers that are none

NO_NUMBER = r"not a number|NaN"
BAD_BITS = {torch.float16: (0x7E00, 0xFE00), torch.bfloat16: (0x7FC0, 0xFFC0), torch.float32: (0x7FC00000, 0xFFC00000)}


class Spoiled(Target):
    """A target whose logits hold a NaN from some step on: nan (positive or negative bits), where in a row."""

    def __init__(self, model, nan: Tensor, *, step: int, whole: bool):
        super().__init__(model)
        self.nan, self.step, self.whole, self.scored = nan, step, whole, 0

    def forward(self, tree):
        scores = super().forward(tree)
        self.scored += 1
        if self.scored > self.step:
            logits = scores.logits.clone()
            logits[:, slice(None) if self.whole else slice(3, 4)] = self.nan
            return type(scores)(logits, scores.hidden)
        return scores


def nan_of(dtype: torch.dtype, negative: bool) -> Tensor:
    width = torch.int32 if dtype == torch.float32 else torch.int16
    bits = BAD_BITS[dtype][negative]
    bound = 1 << (8 * dtype.itemsize - 1)
    number = torch.tensor(bits - 2 * bound if bits >= bound else bits, dtype=width).view(dtype)
    assert number.isnan()
    assert torch.signbit(number).item() is negative
    return number


NAN_RULES = [(0.0, "greedy"), (0.0, "by_draw"), (0.0, "sample_and_match"), (0.0, "traversal")]
NAN_RULES += [(1.0, "by_draw"), (1.0, "sample_and_match"), (1.0, "traversal")]


@pytest.mark.parametrize(("heat", "rule"), NAN_RULES)
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("dtype", BAD_BITS)
def test_not_a_number_in_the_logits_is_an_error(dtype, negative, heat, rule):
    model = small().to(dtype)
    for drafter in (PlainDrafter(), NgramDrafter()):
        for whole, step in ((True, 0), (True, 2), (False, 2)):
            target = Spoiled(model, nan_of(dtype, negative), step=step, whole=whole)
            options = {"max_new_tokens": 30, "temperature": heat}
            with pytest.raises(ValueError, match=NO_NUMBER):
                decode(target, drafter, verifiers.BY_NAME[rule], PROMPT, **options)


def test_an_overflow_in_a_layer_is_an_error_at_any_temperature():
    for heat in (0.0, 1.0):
        model = llama()
        with torch.no_grad():
            model.model.layers[1].mlp.down_proj.weight.fill_(torch.inf)
        for drafter in (PlainDrafter(), NgramDrafter()):
            with pytest.raises(ValueError, match=NO_NUMBER):
                decode(Target(model), drafter, verifiers.by_draw, PROMPT, max_new_tokens=8, temperature=heat)


@pytest.mark.parametrize("dtype", BAD_BITS)
def test_the_likeliest_token_is_right_beside_negative_numbers(dtype):
    """Control of the bits that are compared: rows below zero, minus infinity, ties, and NaN with either sign."""
    rows = torch.tensor([[-3.0, -1.0, -2.0], [-torch.inf, -5.0, -5.0], [0.5, 0.25, -torch.inf], [-0.0, 0.0, -1.0]])
    assert sampling.likeliest(rows.to(dtype)).tolist() == [1, 1, 0, 0]
    for negative in (False, True):
        spoiled = rows.to(dtype)
        spoiled[:, 2] = nan_of(dtype, negative)
        assert sampling.likeliest(spoiled).tolist() == [2, 2, 2, 2]


def test_a_draft_model_without_numbers_changes_no_greedy_text():
    broken = llama(1)
    with torch.no_grad():
        broken.lm_head.weight.fill_(torch.nan)
    drafter = TreeDrafter(CausalLMDraft(broken), growth.kary(2, 2))
    assert written(llama(), drafter=drafter) == generated(llama(), PROMPT, 20)
    for drawn in (Drawn.IID, Drawn.SWOR):
        drafter = TreeDrafter(CausalLMDraft(broken), growth.kary(2, 2), drawn)
        with pytest.raises(ValueError, match=NO_NUMBER):
            decode(Target(llama()), drafter, verifiers.by_draw, PROMPT, max_new_tokens=8, temperature=1.0)


# --- drafters and verifiers of all kinds: inference mode, other default devices, devices without float64, seeds

STORE = np.array(3 * PROMPT + list(range(40)))
CORPUS = [PROMPT, list(range(20))]


def auto(draft):
    return AutoDrafter(CausalLMDraft(draft), PRICES, [0.1] * 4, RetrievalDrafter(Datastore(STORE)))


def merged(draft):
    return MergedDrafter(TreeDrafter(CausalLMDraft(draft), growth.kary(2, 2)), RetrievalDrafter(Datastore(STORE)))


def sampled(drawn, shape=None):
    return lambda draft: TreeDrafter(CausalLMDraft(draft), shape or growth.kary(2, 2), drawn)


def reduced(drawn):
    """Drafts over the first forty tokens."""

    def make(draft):
        kept = {name: value[:40] if len(value) == 50 else value for name, value in draft.state_dict().items()}
        with torch.device("cpu"):
            cut = small(vocab_size=40)
        cut.load_state_dict(kept)
        return TreeDrafter(CausalLMDraft(cut, ids=torch.arange(40, device="cpu")), growth.kary(2, 2), drawn)

    return make


DRAFTERS = {
    "plain": lambda draft: PlainDrafter(),
    "ngram": lambda draft: NgramDrafter(),
    "retrieval": lambda draft: RetrievalDrafter(Datastore(STORE)),
    "merged": merged,
    "auto": auto,
    "ptd": lambda draft: ProgressiveDrafter(children=2, depth=3),
    "ptd, sampled": lambda draft: ProgressiveDrafter(children=2, depth=3, expand="sample"),
    "ptd, chained": lambda draft: ProgressiveDrafter(children=2, depth=3, chained=True, from_prompt=True),
    "self-draft": lambda draft: SelfDrafter(branches=2, length=3, corpus=Corpus(CORPUS, length=3)),
    "lookahead": lambda draft: LookaheadDrafter(window=3, level=3, guesses=3, from_prompt=True),
    "tree": lambda draft: TreeDrafter(CausalLMDraft(draft), growth.kary(2, 2)),
    "salf": lambda draft: TreeDrafter(CausalLMDraft(draft), growth.Salf(8, 2, 0.01, 4)),
    "tempered": lambda draft: TreeDrafter(Tempered(CausalLMDraft(draft), 0.7), growth.kary(2, 2)),
    "drawn IID": sampled(Drawn.IID),
    "drawn SWOR": sampled(Drawn.SWOR),
    "chain": sampled(Drawn.IID, growth.chain(3)),
    "reduced": reduced(Drawn.POINT),
    "reduced, IID": reduced(Drawn.IID),
    "reduced, SWOR": reduced(Drawn.SWOR),
}
RULES = {  # verifiers that a drafter is tried with at temperature 1, beside by_draw
    "plain": ["one_hot"],
    "ngram": ["one_hot", "traversal", "sample_and_match"],
    "tree": ["one_hot", "traversal", "sample_and_match"],
    "drawn IID": ["rrs", "traversal", "one_hot"],
    "drawn SWOR": ["rrsw", "traversal"],
    "chain": ["token_level", "block", "traversal"],
    "reduced, IID": ["rrs", "traversal"],
    "reduced, SWOR": ["rrsw", "traversal"],
}


def sampled_text(target, drafter, rule, seed=3, count=10) -> tuple[int, ...]:
    options = {"max_new_tokens": count, "temperature": 1.0, "seed": seed, "eos": ()}
    return decode(target, drafter, verifiers.BY_NAME[rule], PROMPT, **options).tokens


@pytest.fixture
def on_meta():
    """A default device on which nothing can be computed, for a while: what a notebook sets to "cuda"."""

    def enter():
        torch.set_default_device("meta")

    yield enter
    torch.set_default_device(None)


@pytest.mark.parametrize("name", DRAFTERS)
def test_another_default_device_changes_nothing(name, on_meta):
    target, draft = small(), near(small())
    theirs = generated(target, PROMPT, 12)
    rules = ["by_draw", *RULES.get(name, [])]
    expected = [sampled_text(Target(target), DRAFTERS[name](draft), rule) for rule in rules]
    before = DRAFTERS[name](draft)
    on_meta()
    for drafter in (before, DRAFTERS[name](draft)):
        assert written(target, count=12, drafter=drafter) == theirs
        assert [sampled_text(Target(target), drafter, rule) for rule in rules] == expected


def test_another_default_device_changes_nothing_in_what_stands_around_the_loop(on_meta):
    target = small()
    ids = torch.tensor([PROMPT])
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 12}
    theirs = generated(target, PROMPT, 12)
    mistral = windowed("mistral", 6)
    windows = generated(mistral, PROMPT, 12)
    on_meta()
    for forwards in (None, Graphs(target, capacity=64, sizes=(8,)), Invariant(target)):
        out = target.generate(ids, custom_generate=ngram(forwards=forwards), **options)
        assert out[0, len(PROMPT) :].tolist() == theirs
    out = mistral.generate(ids, custom_generate=ngram(check=False), **options)  # the check's generate fails on meta
    assert out[0, len(PROMPT) :].tolist() == windows
    assert Target(target).check() < 1e-3
    assert written(target, count=12, window=Window(4, 100)) == theirs
    if models.packing.possible(torch.float32):
        assert written(models.pack(small_on_cpu()), count=12) == theirs


def small_on_cpu():
    """A model made while another device is the default one."""
    with torch.device("cpu"):
        return small()


class Mps(Tensor):
    """A tensor of a device without float64, as Apple's GPU."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = args[0] if args else None
        asked = any(one is torch.float64 for one in (*args[1:], kwargs.get("dtype")))
        if isinstance(given, Mps) and (func is Tensor.double or asked):
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")
        if func in (Tensor.cpu, Tensor.tolist, Tensor.item, Tensor.numpy, Tensor.__float__, Tensor.__int__):
            with torch._C.DisableTorchFunctionSubclass():
                return func(given.as_subclass(Tensor), *args[1:], **kwargs)
        return super().__torch_function__(func, types, args, kwargs)


class OnMps(Target):
    def _run(self, *args, **kwargs):
        scores = super()._run(*args, **kwargs)
        return type(scores)(scores.logits.as_subclass(Mps), scores.hidden)


class DraftOnMps(CausalLMDraft):
    def expand(self, tree, frontier):
        return super().expand(tree, frontier).as_subclass(Mps)


@pytest.mark.parametrize("name", [name for name in DRAFTERS if name not in ("salf", "tempered", "ptd, chained")])
def test_a_device_without_float64_serves(name, monkeypatch):
    target, draft = small(), near(small())
    theirs = generated(target, PROMPT, 12)
    monkeypatch.setitem(globals(), "CausalLMDraft", DraftOnMps)
    drafter = DRAFTERS[name](draft)
    out = decode(OnMps(target), drafter, verifiers.greedy, PROMPT, max_new_tokens=12, eos=())
    assert list(out.tokens) == theirs
    for rule in ("by_draw", *RULES.get(name, [])):
        text = sampled_text(OnMps(target), drafter, rule, count=12)
        assert len(text) == 12
        assert all(0 <= token < 50 for token in text)
    options = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "max_new_tokens": 12}
    assert len(decode(OnMps(target), drafter, verifiers.by_draw, PROMPT, **options).tokens) == 12


def test_the_emulated_device_refuses_float64():
    """Negative control of the test above."""
    numbers = torch.ones(3).as_subclass(Mps)
    for convert in (
        lambda: numbers.double(),
        lambda: numbers.to(torch.float64),
        lambda: numbers.sum(dtype=torch.float64),
    ):
        with pytest.raises(TypeError, match="float64"):
            convert()


@pytest.mark.parametrize("rule", multidraft.RULES)
def test_the_rules_of_one_level_serve_without_float64(rule):
    laws = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4], [1.0, 0.0, 0.0, 0.0]])
    for p in laws:
        for q in laws:
            for seed in range(3):
                given = (p.as_subclass(Mps), q.as_subclass(Mps))
                _, token = multidraft.RULES[rule](*given, sampling.RandomCoins(seed))
                assert 0 <= token < 4
                assert p[token] > 0


def test_the_chances_of_a_draft_can_be_told_without_float64():
    target, drafts = OnMps(small()), []

    def watched(draft, p, coins):
        drafts.append((draft, p))
        return verifiers.by_draw(draft, p, coins)

    drafter = TreeDrafter(DraftOnMps(near(small())), growth.kary(2, 2), Drawn.SWOR)
    decode(target, drafter, watched, PROMPT, max_new_tokens=6, temperature=1.0)
    assert drafts
    for draft, p in drafts:
        assert all(0 <= chance <= 1.001 for chance in verifiers.chances(draft, p))


INFERENCE = ["plain", "ngram", "merged", "auto", "ptd", "self-draft", "lookahead", "drawn IID", "drawn SWOR", "reduced"]


RECORDED = ["plain", "merged", "drawn SWOR"]


@pytest.mark.parametrize(
    ("name", "recorded"), [*((name, False) for name in INFERENCE), *((name, True) for name in RECORDED)]
)
def test_inference_mode_in_and_out(name, recorded):
    """In all orders, with one target, one drafter and one set of recordings."""
    model, draft = small(), near(small())
    theirs = generated(model, PROMPT, 12)
    for order in ((True, False, True), (False, True, False)):
        graphs = Graphs(model, capacity=64, sizes=(8,)) if recorded else None
        target, drafter = Target(model, forwards=graphs), DRAFTERS[name](draft)
        for inside in order:
            with torch.inference_mode(inside):
                out = decode(target, drafter, verifiers.by_draw, PROMPT, max_new_tokens=12, eos=())
            assert list(out.tokens) == theirs
        assert not recorded or not graphs.failed


@pytest.mark.parametrize("kind", ["plain", "graphs", "invariant", "window", "grown"])
@pytest.mark.parametrize("begun", [True, False])
def test_a_generator_begun_in_inference_mode_is_finished_outside(begun, kind):
    """And the other way round, and back and forth in between; grown: buffers that have to grow outside, too."""
    model = small(max_position_embeddings=600)
    count = 262 if kind == "grown" else 24
    options = {"forwards": Graphs(model, capacity=64, sizes=(8,))} if kind == "graphs" else {}
    options |= {"forwards": Invariant(model)} if kind == "invariant" else {}
    options |= {"window": Window(4, 12)} if kind == "window" else {}
    drafter = TreeDrafter(CausalLMDraft(near(model)), growth.kary(2, 2))
    evicting = {"window": options["window"]} if kind == "window" else {}  # its text is not the model's own
    theirs = written(model, count=count, drafter=drafter, **evicting)
    target, found = Target(model, **options), []
    stream = steps(target, drafter, verifiers.greedy, PROMPT, max_new_tokens=count, eos=())
    inside = begun
    while True:
        with torch.inference_mode(inside):
            step = next(stream, None)
        if step is None:
            break
        found += step.tokens
        inside = begun if len(found) % 3 == 0 else not begun
    assert found == theirs


def test_weights_made_in_inference_mode_serve_outside():
    with torch.inference_mode():
        model = small()
    assert model.lm_head.weight.is_inference()
    theirs = generated(small(), PROMPT, 12)
    graphs = Graphs(model, capacity=64, sizes=(8,))
    for inside in (False, True, False):
        with torch.inference_mode(inside):
            assert written(model, count=12) == theirs
            assert written(model, count=12, forwards=graphs) == theirs
            assert generated(model, PROMPT, 12, custom_generate=ngram()) == theirs
    if models.packing.possible(torch.float32):
        assert written(models.pack(model), count=12) == theirs


LEARNING = ["ngram", "retrieval", "merged", "auto", "ptd", "ptd, sampled", "ptd, chained", "self-draft", "lookahead"]
OTHERS = ([3, 1, 4, 1, 5, 9, 3, 1], [20, 21, 20, 21, 20], list(range(30, 45)))


@pytest.mark.parametrize("name", LEARNING)
def test_a_seed_stands_for_one_text_whatever_a_drafter_learnt(name):
    model, rule = small(), "by_draw"
    target, drafter = Target(model), DRAFTERS[name](near(model))
    first = sampled_text(target, drafter, rule, count=20)
    for number, prompt in enumerate(OTHERS):
        heat = float(number % 2)
        options = {"max_new_tokens": 25, "temperature": heat, "seed": number, "eos": ()}
        decode(target, drafter, verifiers.by_draw, prompt, **options)
        assert sampled_text(target, drafter, rule, count=20) == first
    assert sampled_text(target, DRAFTERS[name](near(model)), rule, count=20) == first
    assert sampled_text(target, drafter, rule, seed=4, count=20) != first  # control


def test_learning_would_move_a_text_that_kept_it(monkeypatch):
    """Negative control: with what it learnt before, AutoDrafter's trees, and so the coins, are others."""
    model = small()
    target, drafter = Target(model), auto(near(model))
    first = sampled_text(target, drafter, "by_draw", count=40)
    for ratio in (drafter.speed, drafter.hit_rate, drafter.deep_hit_rate):
        ratio.earned *= 1000  # tokens come by themselves: nothing is worth drafting
        ratio.spent *= 0.001
        monkeypatch.setattr(ratio, "forget", lambda: None)
    assert sampled_text(target, drafter, "by_draw", count=40) != first


# --- ends


def ends(token: int) -> dict:
    """One end of text in the forms in which people give it."""
    return {
        "int": token, "numpy": np.int64(token), "tensor": torch.tensor(token), "narrow": np.int16(token),
        "list": [token], "tuple": (token, 49), "set": {token}, "numpy array": np.array([token, 49]),
        "tensor of one": torch.tensor([token]), "tensor of two": torch.tensor([49, token]),
        "list of tensors": [torch.tensor(token)], "list of numpy": [np.int64(49), np.int64(token)],
    }  # fmt: skip


@pytest.mark.parametrize("form", ends(0))
def test_ends_of_text_may_be_given_in_any_form(form):
    model = llama()
    text = generated(model, PROMPT, 20)
    end = next(token for token in text[4:] if token != 49)
    expected = text[: text.index(end) + 1]
    assert 49 not in expected
    assert len(expected) < 20
    given = ends(end)[form]
    options = {"max_new_tokens": 20}
    assert (
        list(decode(Target(model), NgramDrafter(), verifiers.greedy, PROMPT, eos=given, **options).tokens) == expected
    )
    model.generation_config.eos_token_id = given
    assert list(decode(Target(model), NgramDrafter(), verifiers.greedy, PROMPT, **options).tokens) == expected


@pytest.mark.parametrize("wrong", ["</s>", 2.0, [2.5], ["</s>"], torch.tensor(2.5)])
def test_what_is_no_token_id_is_no_end_of_text(wrong):
    with pytest.raises(ValueError, match="ids must be"):
        decode(Target(llama()), NgramDrafter(), verifiers.greedy, PROMPT, max_new_tokens=4, eos=wrong)


@pytest.mark.parametrize("padding", [0, 1, 20])
def test_a_whole_text_is_as_long_as_asked_for(padding):
    """An id that never comes: with a padded vocabulary that of the tokenizer's length is a row of the model."""
    words = tokenizer()
    model = llama(vocab_size=len(words) + padding)
    if padding:
        with torch.no_grad():  # the first row behind the tokenizer's comes at once, and always
            model.lm_head.weight.zero_()
            model.lm_head.weight[len(words)] = model.model.norm.weight
            model.model.embed_tokens.weight.fill_(1.0)
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
    pair = models.Pair("own", model, None, words)
    text = models.generate(pair, PROMPT, 12, whole=True)
    assert len(text) == 12
    if padding:
        assert text == [len(words)] * 12  # control: the id in question does come
    assert text == written(model, count=12)
    end = text[3]
    model.generation_config.eos_token_id = end
    assert models.generate(pair, PROMPT, 12, whole=True) == text
    assert models.generate(pair, PROMPT, 12) == text[: text.index(end) + 1]


# --- drafts: of another vocabulary, of a shorter context, quantised


@pytest.mark.parametrize("rows", [40, 64])
def test_drafts_of_another_vocabulary_are_refused_before_any_text(rows):
    draft = CausalLMDraft(llama(1, vocab_size=rows))
    tree = TreeDrafter(draft, growth.kary(2, 2))
    drafters = [tree, TreeDrafter(draft, growth.kary(2, 2), Drawn.SWOR), MergedDrafter(tree)]
    drafters += [TreeDrafter(Tempered(draft, 2.0), growth.kary(2, 2)), AutoDrafter(draft, PRICES, [0.1] * 4)]
    for drafter in drafters:
        with pytest.raises(ValueError, match=r"CausalLMDraft\(model, vocabulary=50\)"):
            next(steps(Target(llama()), drafter, verifiers.by_draw, PROMPT, max_new_tokens=5))
    for drawn in Drawn:
        fitting = TreeDrafter(CausalLMDraft(llama(1, vocab_size=rows), vocabulary=50), growth.kary(2, 2), drawn)
        assert written(llama(), count=10, drafter=fitting) == generated(llama(), PROMPT, 10)


@pytest.mark.parametrize("kind", ["auto", "merged", "tree", "salf", "drawn IID", "drawn SWOR", "chain"])
def test_a_draft_with_a_shorter_context_steps_aside(kind):
    model = small()
    theirs = generated(model, PROMPT, 30)
    for context in (4, len(PROMPT), 18):
        drafter = DRAFTERS[kind](small(1, max_position_embeddings=context))
        assert written(model, count=30, drafter=drafter) == theirs
        assert len(sampled_text(Target(model), drafter, "by_draw", count=30)) == 30


def test_a_quantised_draft_drafts():
    """A layer whose weight is a method: the number of its rows is told by the layer or by the configuration."""
    quantize = torch.ao.quantization.quantize_dynamic
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is old, and says so
        draft = quantize(near(llama()), {torch.nn.Linear}, dtype=torch.qint8)
    assert not isinstance(draft.get_output_embeddings().weight, Tensor)
    drafter = TreeDrafter(CausalLMDraft(draft), growth.kary(2, 2))
    assert drafter.vocabulary == 50
    assert written(llama(), drafter=drafter) == generated(llama(), PROMPT, 20)


# --- weights that accelerate keeps elsewhere


@pytest.mark.parametrize("kind", ["plain", "graphs", "draft", "invariant", "window"])
def test_offloaded_weights_compute_where_their_hooks_say(kind):
    accelerate = pytest.importorskip("accelerate")
    theirs, model = generated(llama(), PROMPT, 12), accelerate.cpu_offload(llama())
    assert model.device.type == "meta"
    options = {}
    if kind in ("graphs", "invariant"):
        options["forwards"] = {"graphs": Graphs, "invariant": Invariant}[kind](model)
    if kind == "draft":
        drafter = TreeDrafter(CausalLMDraft(model), growth.kary(2, 2))
        assert written(llama(), count=12, drafter=drafter) == theirs
        return
    options |= {"window": Window(4, 100)} if kind == "window" else {}
    assert written(model, count=12, **options) == theirs
    if kind == "plain":
        assert generated(model, PROMPT, 12, custom_generate=ngram()) == theirs


def test_weights_that_are_nowhere_are_refused():
    with torch.device("meta"):
        model = LlamaForCausalLM(small_on_cpu().config)
    with pytest.raises(ValueError, match="its weights are on no device"):
        Target(model)
