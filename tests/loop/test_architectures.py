"""Tiny random models of many architectures: the loop writes what ``generate`` writes, or the model is refused by name.

docs/architectures.md is made here: SPECNB_WRITE=1 pytest tests/loop/test_architectures.py -k documented
"""

import os
from collections import defaultdict
from copy import deepcopy

import pytest
import torch
import transformers
from packaging.version import Version
from tiny import randomise
from transformers import AutoConfig, AutoModelForCausalLM

from specnb import growth, masks, verifiers
from specnb.decode import PlainDrafter, decode
from specnb.drafters import CausalLMDraft, LookaheadDrafter, NgramDrafter, ProgressiveDrafter, SelfDrafter, TreeDrafter
from specnb.models import Graphs, files
from specnb.target import Target, refusal
from specnb.tree import TokenTree

V, LENGTH = 40, 20  # tokens known, tokens written
OLD = Version(transformers.__version__) < Version("5.23")  # 5.17 was tried: Doge is wrong there, kinds have other names
PAGE = files.ROOT / "docs" / "architectures.md"
SMALL = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rotary_dim": 4}
SMALL |= dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"))
SMALL |= {"num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4, "moe_num_experts": 4, "n_shared_experts": 1}
SMALL |= {"moe_intermediate_size": 16, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 16, "n_group": 1}
SMALL |= {"topk_group": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
SMALL |= {"v_head_dim": 8}
MLA = {"num_key_value_heads": 4, "head_dim": 4}  # as many keys as queries, and the width of the rotary part
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}

# Model type → settings beside SMALL. Those with a window are tested with a short one, a long one and none.
FULL = {
    "apertus": {}, "arcee": {}, "aria_text": {}, "bert": {"is_decoder": True}, "biogpt": {}, "bitnet": {},
    "codegen": {}, "cohere": {}, "ctrl": {}, "deepseek_v2": MLA, "deepseek_v3": MLA,
    "diffllama": {}, "dots1": {}, "ernie4_5": {}, "ernie4_5_moe": {}, "falcon": {"head_dim": None}, "flex_olmo": {},
    "gemma": {}, "glm": {}, "glm4": {}, "glm4_moe": {}, "glm4_moe_lite": MLA, "gpt2": {}, "gpt_bigcode": {},
    "gpt_neox": {}, "gpt_neox_japanese": {}, "gptj": {},
    "granite": {}, "granitemoe": {}, "granitemoeshared": {},
    "helium": {}, "hunyuan_v1_dense": {}, "hunyuan_v1_moe": {}, "hy_v3": {}, "jais2": {}, "jetmoe": {}, "llama": {},
    "minicpm3": MLA, "minimax_m2": {}, "nanochat": {}, "nemotron": {}, "olmo": {}, "olmo2": {}, "olmoe": {}, "opt": {},
    "persimmon": {}, "phi": {}, "seed_oss": {}, "solar_open": {}, "stablelm": {}, "xglm": {},
}  # fmt: skip
WINDOWED = {
    "afmoe": MIXED, "cohere2": MIXED, "cwm": MIXED | SPECIAL, "doge": {}, "exaone4": MIXED, "exaone_moe": MIXED,
    "gemma2": MIXED, "gemma3_text": MIXED, "gpt_oss": MIXED, "granite_swa": MIXED, "granitemoe_swa": MIXED,
    "laguna": MIXED, "llama4_text": {"layer_types": ["chunked_attention", "full_attention"], "floor_scale": 8},
    "mellum": MIXED, "mimo_v2_flash": {}, "ministral": MIXED, "mistral": {}, "mixtral": {},
    "modernbert-decoder": MIXED | SPECIAL, "olmo3": MIXED, "phi3": {}, "phimoe": {}, "qwen2": MIXED, "qwen2_moe": MIXED,
    "qwen3": MIXED, "qwen3_moe": {}, "smollm3": MIXED, "starcoder2": {}, "vaultgemma": MIXED,
}  # fmt: skip
STATE, KIND = "it keeps a recurrent state, which the branches of a tree would have to share", "which take no tree mask"
PLACES, BOTH = "it takes no position_ids", "it reads both ways"
REFUSED = {
    "bamba": ({"mamba_n_heads": 8, "mamba_d_head": 8}, STATE), "bert ": ({"is_decoder": False}, BOTH),
    "blenderbot-small": ({}, PLACES), "bloom": ({}, PLACES), "cpmant": ({}, PLACES),
    "deepseek_v32": (MLA, "it has layers of the kind (indexed|deepseek_sparse)_attention"), "falcon_mamba": ({}, STATE),
    "falcon ": ({"head_dim": None, "alibi": True}, "ALiBi, count slots"),
    "gpt_neo": ({"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 6}, "its local layers"),
    "jamba": ({}, STATE), "lfm2": ({"layer_types": ["conv", "full_attention"]}, "it has layers of the kind conv"),
    "mamba": ({}, STATE), "mamba2": ({"num_heads": 8, "head_dim": 8}, STATE), "minimax": ({}, "linear_attention"),
    "mpt": ({}, PLACES), "openai-gpt": ({}, "it keeps no keys and values in a cache"),
    "qwen3_next": ({"linear_num_key_heads": 2, "linear_num_value_heads": 2}, STATE), "recurrent_gemma": ({}, STATE),
    "roberta": ({"is_decoder": False, "pad_token_id": 0}, BOTH), "rwkv": ({}, STATE),
    "xlstm": ({"v_head_dim": None}, STATE),
}  # fmt: skip


def tiny(name: str, window: int | None = None, **changes):
    """A random model of a type whose logits depend on what each token sees."""
    sizes = {"sliding_window": window, "use_sliding_window": window is not None, "attention_chunk_size": window}
    changes = {**SMALL, **(sizes if window else {}), **changes}
    kept = {key: value for key, value in changes.items() if value is not None or key.endswith("_id")}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name.strip(), **kept)).eval()
    return randomise(model, 0.3)


def known(name: str):
    """A model of the tables, with a short window if it can have one."""
    return tiny(name, 6, **WINDOWED[name]) if name in WINDOWED else tiny(name, **FULL[name])


def near(model):
    """The model, a little disturbed: a draft that is right often enough."""
    draft, generator = deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
    return draft


def drafters(model) -> list:
    draft = TreeDrafter(CausalLMDraft(near(model)), growth.kary(2, 3))
    return [NgramDrafter(), ProgressiveDrafter(), LookaheadDrafter(), SelfDrafter(), draft]


def differ(model, prompt: list[int], graphs: bool = False) -> list[str]:
    """The drafters whose float32 greedy text is not generate's, near ties aside."""
    ids = torch.tensor([prompt])
    theirs = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=LENGTH, eos_token_id=None,
        output_logits=True, return_dict_in_generate=True, pad_token_id=0,
    )  # fmt: skip
    text, wrong = theirs.sequences[0, len(prompt) :].tolist(), []
    for drafter in drafters(model):
        target = Target(model, graphs=Graphs(model, capacity=128) if graphs else None)
        ours = decode(target, drafter, verifiers.greedy, prompt, max_new_tokens=LENGTH, eos=()).tokens
        at = next((i for i in range(LENGTH) if ours[i] != text[i]), None)
        if at is not None and float(theirs.logits[at][0].topk(2).values.diff().abs()) > 1e-4:
            wrong.append(type(drafter).__name__)
    return wrong


def prompt(name: str, window: int | None) -> list[int]:
    """Random tokens, said once more so that n-grams find something; longer than a short window."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)) + (window or 0))
    text = torch.randint(3, V, (int(torch.randint(6, 16, (), generator=generator)),), generator=generator).tolist()
    return text + text


CASES = [(name, None, changes) for name, changes in FULL.items()]
CASES += [(name, window, changes) for name, changes in WINDOWED.items() for window in (6, 100)]


@pytest.mark.parametrize(("name", "window", "changes"), CASES, ids=[f"{name}-{window}" for name, window, _ in CASES])
def test_texts_are_those_of_generate(name, window, changes):
    model = tiny(name, window, **changes)
    assert (masks.layer_kinds(model) != ("full_attention",)) is (name in WINDOWED)
    if name == "doge" and OLD:
        with pytest.raises(ValueError, match="scores a tree unlike the tree's paths"):
            Target(model).check()
        return
    assert differ(model, prompt(name, window)) == []
    assert Target(model).check() < 1e-4


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "qwen2", "mistral", "olmo3", "gpt_oss", "phi3"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_scores_in_half_precision_are_path_by_path_within_rounding(name, kind):
    assert Target(known(name).to(kind)).check() <= torch.finfo(kind).eps ** 0.5


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "llama4_text"])
def test_recorded_forwards_keep_windows(name):
    model = known(name)
    assert differ(model, prompt(name, 6), graphs=True) == []
    assert Target(model, graphs=Graphs(model, capacity=128)).check() < 1e-4


@pytest.mark.parametrize("name", ["mistral", "llama4_text", "gpt_oss"])
def test_a_window_left_out_is_noticed(name, monkeypatch):
    """Negative control: the first edition's mask, which shows every layer the whole prefix."""
    monkeypatch.setattr(masks, "by_layer", lambda mask, *_: mask)
    model = known(name)
    assert differ(model, prompt(name, 6))
    with pytest.raises(ValueError, match="scores a tree unlike the tree's paths: logits differ by"):
        Target(model).check()


@pytest.mark.parametrize(("name", "case"), REFUSED.items(), ids=[name.strip() for name in REFUSED])
def test_what_cannot_score_a_tree_is_refused(name, case):
    changes, why = case
    model = tiny(name, **changes)
    with pytest.raises(ValueError, match=f"^no trees with a {name.strip()} model .*{why}"):
        Target(model)
    with pytest.raises(ValueError, match=f"^no tree can be drafted by a {name.strip()} model: .*{why}"):
        CausalLMDraft(model)


def test_flash_attention_is_refused():
    model = tiny("llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="attention 'flash_attention_2' takes no tree mask: load it with"):
        Target(model)


def test_longrope_ends_where_its_long_factors_begin():
    factors = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    model = tiny("phi3", rope_parameters=factors, original_max_position_embeddings=48)
    target = Target(model)
    assert target.context == 48
    assert differ(model, prompt("phi3", 6)[:6]) == []
    with pytest.raises(ValueError, match="exceed the context of 48"):
        decode(target, PlainDrafter(), verifiers.greedy, [1] * 30, max_new_tokens=20)
    target.prefill([1] * 46)
    with pytest.raises(ValueError, match="do not fit the context of 48"):
        target.forward(TokenTree.chain([1, 2, 3]))


def table() -> str:
    rows = defaultdict(list)
    for name in FULL | WINDOWED:
        assert refusal(known(name)) is None
        rows["exact, with its window by position" if name in WINDOWED else "exact"].append(name)
    for name, (changes, _) in REFUSED.items():
        model = tiny(name, **changes)
        note = {"bert ": " (not as decoder)", "falcon ": " (with ALiBi)", "roberta": " (not as decoder)"}.get(name, "")
        rows["refused: " + refusal(model)].append(name.strip() + note)
    lines = [f"| {result} | {len(names)} | {', '.join(sorted(names))} |" for result, names in rows.items()]
    return "\n".join(["| result | how many | model types |", "|---|---|---|", *lines])


@pytest.mark.skipif(OLD, reason="the page says what this transformers and later ones do")
def test_architectures_are_documented():
    before, mark, rest = PAGE.read_text(encoding="utf-8").partition("<!-- table -->\n")
    page = before + mark + table() + "\n" + rest[rest.index("<!-- end -->") :]
    if os.environ.get("SPECNB_WRITE"):
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page
