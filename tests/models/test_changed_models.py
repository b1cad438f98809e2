"""Captured forwards and packed weights of a model that has been changed since: the text is that of the model as it is.

And a model that has not been changed is not captured again, which would cost seconds with each text.
"""

import copy

import pytest
import torch
from tiny import COMMON, generated, llama
from torch import nn
from torch.nn.utils import parametrize
from transformers import Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

from specnb import growth, verifiers
from specnb.decode import decode
from specnb.drafters import CausalLMDraft, NgramDrafter, TreeDrafter
from specnb.hf import speculative
from specnb.models import Graphs, pack, packing
from specnb.models.graphs import as_operations
from specnb.target import Target
from specnb.tree import TokenTree

PROMPT = [1, 2, 3, 1, 2]
NO_ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def small(seed: int = 0, layers: int = 1):
    return llama(seed, num_hidden_layers=layers)


def text(model, graphs=None, drafter=None) -> tuple[int, ...]:
    target = Target(model, forwards=graphs)
    options = {"max_new_tokens": 12, "eos": ()}
    return decode(target, drafter or NgramDrafter(), verifiers.greedy, PROMPT, **options).tokens


class Capturing:
    """Captures as on a CPU, and counts."""

    def __init__(self):
        self.count = 0

    def __call__(self, call):
        self.count += 1
        return as_operations(call)


def in_graphs(model, **options) -> Graphs:
    return Graphs(model, capacity=64, sizes=(8,), capture=Capturing(), **options)


class Negated(nn.Module):
    """Another layer, or a parametrisation."""

    def forward(self, x, *args, **kwargs):
        return -x


# --- changes of the model itself


@torch.no_grad()
def in_place(model):
    model.lm_head.weight.neg_()


@torch.inference_mode()
def in_inference_mode(model):
    model.lm_head.weight.neg_()


def through_data(model):
    model.lm_head.weight.data.neg_()


def new_data(model):
    model.lm_head.weight.data = -model.lm_head.weight.data


def new_parameter(model):
    model.lm_head.weight = nn.Parameter(-model.lm_head.weight.detach())


def assigned(model):
    model.load_state_dict(small(3, len(model.model.layers)).state_dict(), assign=True)


def loaded(model):
    model.load_state_dict(small(3, len(model.model.layers)).state_dict())


def replaced_module(model):
    model.model.layers[0].mlp = Negated()


def fewer_layers(model):
    model.model.layers = model.model.layers[:1]


def other_order(model):
    model.model.layers = nn.ModuleList([*model.model.layers][::-1])


def other_class(model):
    model.model.norm.__class__ = type(
        "Scaled", (type(model.model.norm),), {"forward": lambda self, x: -x * self.weight}
    )


def parametrised(model):
    parametrize.register_parametrization(model.lm_head, "weight", Negated())


def hooked(model):
    model.model.layers[0].register_forward_hook(lambda module, inputs, output: -2 * output)


def hooked_before(model):
    model.lm_head.register_forward_pre_hook(lambda module, inputs: (-inputs[0],))


def other_forward(model):
    usual = model.model.layers[0].mlp.forward
    model.model.layers[0].mlp.forward = lambda x: -3 * usual(x)


def other_setting(model):
    for layer in model.model.layers:
        layer.self_attn.scaling = 9.0


def other_buffer(model):
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq * 7


def tied(model):
    model.lm_head.weight = model.model.embed_tokens.weight


CHANGES = [
    in_place, in_inference_mode, through_data, new_data, new_parameter, assigned, loaded, replaced_module, fewer_layers,
    other_order, other_class, parametrised, hooked, hooked_before, other_forward, other_setting, other_buffer, tied,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_captured_forwards_notice_a_changed_model(change):
    model = small(layers=2 if change in (fewer_layers, other_order) else 1)
    graphs = in_graphs(model)
    before = text(model, graphs)
    assert before == text(model)
    assert graphs.capture.count
    change(model)
    right = text(model)
    assert right != before  # negative control: the change moves the text
    assert text(model, graphs) == right
    assert not graphs.failed
    count = graphs.capture.count
    assert text(model, graphs) == right
    assert graphs.capture.count == count  # at most once a change


def test_a_hook_that_is_taken_away_again_is_noticed():
    model = small()
    plain = text(model)
    handle = model.model.layers[0].register_forward_hook(lambda module, inputs, output: -2 * output)
    graphs = in_graphs(model)
    assert text(model, graphs) == text(model) != plain
    handle.remove()
    assert text(model, graphs) == plain


def test_a_change_of_the_draft_model_is_noticed():
    """A stale draft changes no greedy text, so its trees are compared."""
    target, draft = small(), small(1)

    def trees(graphs):
        drafter = TreeDrafter(CausalLMDraft(draft, graphs=graphs), growth.kary(2, 2))
        out = decode(Target(target), drafter, verifiers.greedy, PROMPT, max_new_tokens=8, eos=())
        return [step.draft.tree.token_list for step in out.steps]

    graphs = in_graphs(draft)
    before = trees(graphs)
    assert before == trees(None)
    for change in (assigned, replaced_module):
        change(draft)
        assert trees(graphs) == trees(None) != before


def test_a_drafter_kept_over_a_change_drafts_anew():
    """The drafter itself stays, and with it its captured forwards."""
    target, draft = small(), small(1)
    drafters = [
        TreeDrafter(CausalLMDraft(draft, graphs=graphs), growth.kary(2, 2)) for graphs in (in_graphs(draft), None)
    ]

    def trees(drafter):
        out = decode(Target(target), drafter, verifiers.greedy, PROMPT, max_new_tokens=8, eos=())
        return [step.draft.tree.token_list for step in out.steps]

    before = [trees(drafter) for drafter in drafters]
    assert before[0] == before[1]
    assigned(draft)
    after = [trees(drafter) for drafter in drafters]
    assert after[0] == after[1] != before[0]


UNCHANGED = {
    "nothing": lambda model: None,
    "training and back": lambda model: model.train().eval(),
    "a forward": lambda model: model(torch.tensor([[1, 2, 3]])),
    "generate": lambda model: generated(model, PROMPT, 4),
    "a hook that is gone": lambda model: model.register_forward_hook(lambda *_: None).remove(),
    "gradients off": lambda model: model.requires_grad_(False),
    "to where it is": lambda model: model.to("cpu", torch.float32),
    "inference mode": lambda model: text_in_inference_mode(model),
}


def text_in_inference_mode(model):
    with torch.inference_mode():
        text(model)


@pytest.mark.parametrize("what", UNCHANGED)
def test_an_unchanged_model_is_not_captured_again(what):
    model = small()
    graphs = in_graphs(model)
    before = text(model, graphs)
    count = graphs.capture.count
    assert count > 0
    for _ in range(2):
        UNCHANGED[what](model)
        assert text(model, graphs) == before
        assert graphs.capture.count == count


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_dtype_is_noticed(dtype):
    model = small()
    graphs = in_graphs(model)
    text(model, graphs)
    model.to(dtype)
    target = Target(model, forwards=graphs)
    plain = Target(model)
    for one in (target, plain):
        one.prefill(PROMPT[:-1])
    tree = TokenTree([PROMPT[-1], 4, 5], [-1, 0, 0])
    ours, theirs = target.forward(tree).logits, plain.forward(tree).logits
    assert ours.dtype == theirs.dtype == dtype
    torch.testing.assert_close(ours, theirs, atol=0.1 if dtype == torch.bfloat16 else 1e-9, rtol=0.1)
    assert not graphs.failed


# --- of its configuration, which forwards read


def gemma2():
    sizes = {**COMMON, **NO_ENDS, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 1, "sliding_window": 6}
    torch.manual_seed(0)
    return Gemma2ForCausalLM(Gemma2Config(**sizes, final_logit_softcapping=None, query_pre_attn_scalar=8)).eval()


def mistral():
    sizes = {**COMMON, **NO_ENDS, "num_key_value_heads": 2, "num_hidden_layers": 1, "sliding_window": 3}
    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(**sizes)).eval()


SETTINGS = {
    "a cap": (gemma2, "final_logit_softcapping", 1e-9),  # all logits alike, in the end
    "a window": (gemma2, "sliding_window", 2),
    "no window": (mistral, "sliding_window", None),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_changed_configuration_is_noticed(name):
    make, setting, value = SETTINGS[name]
    model = make()
    graphs = in_graphs(model)
    before = scores(model, graphs)
    torch.testing.assert_close(before, scores(model), atol=1e-4, rtol=1e-4)
    setattr(model.config, setting, value)
    right = scores(model)
    assert (right - before).abs().max() > 1e-2  # negative control
    torch.testing.assert_close(scores(model, graphs), right, atol=1e-4, rtol=1e-4)


def scores(model, graphs=None) -> torch.Tensor:
    """Logits of a small tree behind a text that is longer than the windows."""
    target = Target(model, forwards=graphs)
    target.prefill([7, 8, 9, 10, 11, 12, 13, 14])
    return target.forward(TokenTree([5, 6, 7, 8], [-1, 0, 0, 1])).logits


# --- adapters


def lora(**options):
    peft = pytest.importorskip("peft")
    options = {"target_modules": ["q_proj", "v_proj"], "init_lora_weights": False, "lora_alpha": 64} | options
    return peft.LoraConfig(task_type="CAUSAL_LM", **options)


def adapted(model):
    """The model with an adapter inside; returns what PEFT puts around it."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    return peft.get_peft_model(model, lora()).eval()


def test_an_added_adapter_is_noticed():
    model = small()
    graphs = in_graphs(model)
    through = speculative(NgramDrafter(), verifiers.by_draw, forwards=graphs, check=False)
    before = generated(model, PROMPT, 12, custom_generate=through)
    assert before == generated(model, PROMPT, 12)
    adapted(model)
    right = generated(model, PROMPT, 12)
    assert right != before
    assert generated(model, PROMPT, 12, custom_generate=through) == right


def disabled(outer):
    outer.base_model.disable_adapter_layers()


def scaled(outer):
    for layer in outer.modules():
        if hasattr(layer, "set_scale"):
            layer.set_scale("default", -3.0)


def scaled_in_its_dict(outer):
    for layer in outer.modules():
        if hasattr(layer, "set_scale"):
            layer.scaling["default"] = 40.0


def second(outer):
    outer.add_adapter("second", lora(r=4))
    outer.set_adapter("second")
    outer.eval()


def other_weights(outer):
    peft = pytest.importorskip("peft")
    state = peft.get_peft_model_state_dict(outer)
    peft.set_peft_model_state_dict(outer, {name: -3 * value for name, value in state.items()})


def unloaded(outer):
    outer.unload()


@pytest.mark.parametrize("change", [disabled, scaled, scaled_in_its_dict, second, other_weights, unloaded])
def test_a_changed_adapter_is_noticed(change):
    model = small()
    outer = adapted(model)
    graphs = in_graphs(model)
    before = text(model, graphs)
    assert before == text(model)
    change(outer)
    right = text(model)
    assert right != before  # negative control
    assert text(model, graphs) == right


def test_an_adapter_may_be_disabled_and_enabled_in_turn():
    model = small()
    bare = text(model)
    outer = adapted(model)
    graphs = in_graphs(model)
    with_it = text(model)
    assert with_it != bare
    for _ in range(2):
        assert text(model, graphs) == with_it
        with outer.disable_adapter():
            assert text(model, graphs) == bare
    outer.merge_adapter()
    assert text(model, graphs) == text(model)
    outer.unmerge_adapter()
    assert text(model, graphs) == text(model)


# --- packed weights

packable = pytest.mark.skipif(
    not packing.possible(torch.float32), reason="no matrix kernels here take packed float32 weights"
)


@packable
@pytest.mark.parametrize(
    "change",
    [in_place, in_inference_mode, new_data, new_parameter, assigned, loaded, replaced_module, hooked, tied],
    ids=lambda change: change.__name__,
)
def test_packed_weights_follow_a_change(change):
    model, plain = pack(small()), small()
    before = text(plain)
    assert text(model) == before
    for one in (model, plain):
        change(one)
    assert text(plain) != before  # negative control
    assert text(model) == text(plain)


@packable
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_packed_model_may_change_its_dtype(dtype):
    """Where no kernel takes packed weights of it, they are multiplied as they are."""
    model, plain = pack(small()).to(dtype), small().to(dtype)
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        ours, theirs = model(ids).logits, plain(ids).logits
    assert ours.dtype == dtype
    bound = 1e-9 if dtype == torch.float64 else 0.1
    torch.testing.assert_close(ours, theirs, atol=bound, rtol=bound)


@packable
def test_weights_that_come_to_lie_where_others_lay_are_laid_out_again():
    """The memory of a weight that is gone is often given to the next one, and both are of version 0."""
    for seed in range(1, 6):
        model, plain, other = pack(small()), small(), small(seed).lm_head.weight.detach().numpy().copy()
        text(model)
        for one in (model, plain):
            one.lm_head.weight = None
            one.lm_head.weight = nn.Parameter(torch.tensor(other))
        assert text(model) == text(plain)


@packable
def test_a_copy_of_a_packed_model_is_one_of_its_own():
    model = pack(small())
    before = text(model)
    other = copy.deepcopy(model)
    in_place(other)
    plain = small()
    in_place(plain)
    assert text(other) == text(plain) != before
    assert text(model) == before


@packable
def test_captured_forwards_of_a_packed_model_follow_a_change():
    model, plain = pack(small()), small()
    graphs = in_graphs(model)
    assert text(model, graphs) == text(plain)
    for change in (in_place, new_parameter, assigned):
        for one in (model, plain):
            change(one)
        assert text(model, graphs) == text(plain)


@packable
def test_a_model_that_is_packed_after_it_was_captured_is_captured_anew():
    model = small()
    graphs = in_graphs(model)
    before = text(model, graphs)
    pack(model)
    assert text(model, graphs) == before
    in_place(model)
    assert text(model, graphs) == text(model) != before
