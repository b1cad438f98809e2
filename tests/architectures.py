"""Every causal and every vision-language type of the installed transformers, built small, and what becomes of it.

``small`` takes a type's default configuration and shrinks it: sizes of known names, one layer of each kind, random
weights. What this rule does not get right stands in ``SETTINGS``, one line a type. ``outcome`` says in one sentence
whether specnb writes with it what ``generate`` writes; docs/architectures.md is the table of these sentences.
"""

import dataclasses
import re
from copy import deepcopy
from functools import cache

import torch
import transformers
from tiny import randomise
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.utils import logging

from specnb import growth, masks, verifiers
from specnb.decode import decode
from specnb.drafters import CausalLMDraft, LookaheadDrafter, NgramDrafter, ProgressiveDrafter, SelfDrafter, TreeDrafter
from specnb.hf import speculative
from specnb.models import Graphs
from specnb.target import Target, refusal

VOCABULARY = 40
LENGTH = 14  # tokens written
SHORT, LONG = 6, 100  # windows: every text is longer than the one and shorter than the other
SEEDS, MORE_SEEDS = range(3), range(10)  # of prompts; of those where something is wrong
LARGEST = 12_000_000  # parameters of a model that still counts as small
SEEN = 1e-3  # of the largest logit: how much an earlier token must move the last logits, else tests say nothing

# --- the types

CAUSAL = dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)  # model type → name of its class
VISION = {
    name: kind
    for name, kind in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items()
    if CAUSAL.get(name) != kind  # those of both tables stand in the first
}

# --- the rule

# Sizes by the names that configurations give them. A configuration gets those that it has.
SIZES = {
    VOCABULARY: "vocab_size vocab_size_per_layer_input decoder_vocab_size unpadded_vocab_size shape_vocab_size "
    "pronunciation_vocab_size",
    128: "max_position_embeddings n_positions n_ctx max_target_positions context_length",
    32: "hidden_size d_model n_embd embed_dim emb_dim embedding_size out_hidden_size input_embedding_size "
    "output_embedding_size word_embed_proj_dim projection_dim backbone_hidden_size text_hidden_size embedding_dim "
    "output_dim intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff dff dim_ff ffn_hidden_size d_inner "
    "feed_forward_size dense_intermediate_size intermediate_size_mlp projector_hidden_size mlp_dim "
    "projection_hidden_dim projection_hidden_size n_inner",
    28: "image_size",
    16: "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size shared_intermediate_size "
    "moe_hidden_size share_expert_dim shared_experts_intermediate_size hidden_size_per_layer_input laurel_rank "
    "ple_embed_dim moe_shared_expert_intermediate_size",
    14: "patch_size",
    8: "head_dim swa_head_dim global_head_dim v_head_dim attention_head_size d_kv d_head dim_head index_head_dim "
    "linear_key_head_dim linear_value_head_dim linear_head_dim kv_lora_rank q_lora_rank o_lora_rank kv_channels "
    "index_topk mamba_d_state state_size mamba_chunk_size chunk_size num_query_tokens num_position_embeddings "
    "floor_scale",
    4: "num_attention_heads num_heads n_head n_heads encoder_attention_heads decoder_attention_heads attention_heads "
    "num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads num_kv_heads qk_rope_head_dim "
    "qk_nope_head_dim rotary_dim linear_num_heads num_experts n_routed_experts num_local_experts moe_num_experts",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers "
    "num_encoder_layers depth layers num_blocks num_layers_per_stack num_key_value_heads num_global_key_value_heads "
    "swa_num_key_value_heads linear_num_key_heads linear_num_value_heads index_n_heads num_experts_per_tok moe_topk "
    "moe_k top_k_experts num_experts_per_token",
    1: "n_group topk_group n_shared_experts max_window_layers",
}
NAMED = {name: size for size, names in SIZES.items() for name in names.split()}
WINDOWS = ("sliding_window", "sliding_window_size", "attention_chunk_size", "window_size", "attention_window_size")
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # None where the configuration allows it

# --- what the rule does not get right


def text(**settings) -> dict:
    return {"text_config": settings}


def rope(*section: int, **more) -> dict:
    """Rotary positions of several axes, their sections as narrow as the small heads."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(section), **more}}


ALL_HEADS = {"num_key_value_heads": 4}  # latent attention has as many keys as queries
PAD = {"pad_token_id": 0}  # it counts positions, or looks rows up, by its padding token
DECODER = {"is_decoder": True}
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
CODES = {"base_channels": 32, "channel_multiplier": [1, 1]}  # a small tower of convolutions for pictures
IMAGE_WORDS = {"vocabulary_map": {"<image>": 39, "<|extra_200|>": 38}}
SWA = {"swa_q_lora_rank": 8, "swa_kv_lora_rank": 8, "swa_qk_nope_head_dim": 4, "swa_v_head_dim": 8, "swa_head_dim": 8}
DOTS3 = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "indexed_attention"], "head_dim": 8}
DOTS3 |= {"mlp_layer_types": ["dense", "sparse"], "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4}
DOTS3 |= SWA | ALL_HEADS
COMPASS = {"layer_types": MIXED["layer_types"]}
COMPASS |= {"rope_parameters": {kind: rope(2, 1, 1)["rope_parameters"] for kind in MIXED["layer_types"]}}
INDEXER = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8}
INDEXER |= {"indexer_compress_ratio": 2}
NO_PER_LAYER = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "num_kv_shared_layers": 2}
FLORENCE = {"depths": [1, 1], "embed_dim": [16, 32], "num_heads": [2, 2], "num_groups": [2, 2], "patch_size": [7, 3]}
FLORENCE |= {"patch_stride": [4, 2], "patch_padding": [3, 1], "patch_prenorm": [False, True], "projection_dim": 32}
SPEECH = {"num_hidden_layers": 2, "patch_sizes": [16, 6], "hidden_sizes": [32, 32], "depths": [1, 1]}
DORY = {"num_hidden_layers": 4, "n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1}
DORY |= {"layer_types": 2 * MIXED["layer_types"]}
LFM2 = {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "full_attn_idxs": [1]}

SETTINGS = {
    "apertus1p5": {  # pictures' and sounds' codes are tokens of its vocabulary
        "image_token_offset": 16, "audio_token_offset": 24, "audio_config": {"codebook_dim": 32, "codebook_size": 8},
        "vision_config": CODES | {"codebook_size": 8, "num_embeddings": 8},
    },
    "axk1": ALL_HEADS,
    "axk2": ALL_HEADS,
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "attn_layer_indices": [1]},  # heads times width: twice the model's
    "blt": {"encoder_hash_byte_group_vocab": 50},  # a table of its own
    "camembert": PAD,
    "chameleon": {**IMAGE_WORDS, "vq_config": CODES | {"embed_dim": 32, "latent_channels": 32, "num_embeddings": 8}},
    "cohere_compass": text(**COMPASS),  # its default has no rotary positions for one kind of layers
    "cohere_compass_text": COMPASS,
    "data2vec-text": PAD,
    "dbrx": {  # its parts have sizes of their own, and lack two defaults
        "attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 32},
    },
    "deepseek_ocr2": text(num_experts_per_tok=2, n_routed_experts=4, mlp_layer_types=["dense", "sparse"]),  # no default
    "deepseek_v2": ALL_HEADS | {"num_experts_per_tok": 2, "head_dim": 4},  # no default; heads as wide as rotary parts
    "deepseek_v3": ALL_HEADS,
    "deepseek_v32": ALL_HEADS,
    "diffusion_gemma": {  # no defaults; a canvas of 256 tokens takes long
        "canvas_length": 8, **text(num_experts=4, top_k_experts=2, moe_intermediate_size=16),
    },
    "dory": DORY,  # as many layers as its three sections together
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1},  # "
    "dots3_note": {  # towers must be as wide as what follows
        "vision_config": {"adapter_in_dim": 32, "adapter_out_dim": 32}, **text(**DOTS3),
        "audio_config": {"adapter_input_size": 32, "adapter_out_dim": 32},
    },
    "dots3_note_text": DOTS3,  # sizes by kind of layer
    "emu3": {**IMAGE_WORDS, **text(**SPECIAL), "vq_config": CODES | {"attn_resolutions": [1]}},
    "ernie4_5_vl_moe": text(**rope(1, 1, 2), head_dim=8, moe_intermediate_size=[16, 16]),
    "florence2": {"vision_config": FLORENCE},  # lists, one number a stage
    "gemma3n_text": {  # one layer shares the keys and values of another
        "num_hidden_layers": 3, "num_kv_shared_layers": 1, "intermediate_size": [32] * 3,
        "layer_types": [*MIXED["layer_types"], "sliding_attention"], "activation_sparsity_pattern": [0.0] * 3,
    },
    "gemma4": text(**PAD),
    "gemma4_assistant": {**text(**NO_PER_LAYER, **MIXED)},  # all of its layers must share
    "gemma4_unified": text(**PAD),
    "glm46v": text(**rope(2, 1, 1)),
    "glm4_moe_lite": ALL_HEADS,
    "glm4v": text(**rope(2, 1, 1)),
    "glm4v_moe": text(**rope(1, 1, 0, partial_rotary_factor=0.5)),
    "glm5_next": text(**ALL_HEADS, index_topk=16, qk_rope_head_dim=0),  # 16 divides it; indexed layers rotate nothing
    "glm_moe_dsa": ALL_HEADS,
    "glm_ocr": text(**rope(2, 1, 1)),
    "glmga": text(**rope(2, 1, 1)),
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},  # a pattern, times how often
    "granite4_vision": {  # no defaults; its heads have 64 channels
        "downsample_rate": "1/2", "deepstack_layer_map": [[-1, 0]], "vision_config": {"hidden_size": 64},
    },
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8, "layer_types": ["mamba", "attention"]},
    "hrm_text": {"num_layers_per_stack": None},  # set by the number of layers
    "hunyuan_v1_dense": {"head_dim": 8},  # no default
    "hunyuan_v1_moe": {"head_dim": 8},
    "hunyuan_vl": text(**rope(1, 1, 1, 1), head_dim=8),
    "hy_v4_vl": text(**rope(1, 1, 0)),
    "inkling_mm_model": {"vision_config": {"num_hidden_layers": 2, "patch_size": 8}},  # widths grow with the patch
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},  # one layer of each kind
    "janus": {"vq_config": CODES},
    "kimi_k25": text(**ALL_HEADS),
    "kosmos-2.5": text(**PAD),
    "laguna": MIXED,  # all layers are alike by default
    "lfm2": LFM2,  # all layers are alike by default
    "lfm2_moe": {"layer_types": LFM2["layer_types"]},
    "lfm2_vl": text(**LFM2),
    "llama4_text": {"attn_scale": 2.0},  # its temperatures must show in a text
    "llama4": text(attn_scale=2.0)
    | {"vision_config": {"projector_output_dim": 32, "projector_input_dim": 32, "vision_output_dim": 32}},
    "longcat_flash": ALL_HEADS | {"head_dim": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8},  # heads times width: twice the model's
    "mellum": MIXED,
    "minicpm3": ALL_HEADS,
    "minimax_m3_vl": text(layer_types=["full_attention", "minimax_m3_sparse"]),  # as published
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"]},
    "ministral": {"head_dim": 8},  # no default
    "ministral3": rope(llama_4_scaling_beta=0.5, original_max_position_embeddings=5),  # temperatures by position
    "mistral4": ALL_HEADS,
    "mistral_large4": text(**ALL_HEADS),
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},  # layers that there are
    "muse_spark": {"audio_config": SPEECH},  # lists, one number a stage
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},  # no default
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},  # must be the outer one
    "paddleocr_vl": text(**rope(2, 1, 1), head_dim=8),
    "prophetnet": PAD,
    "qwen2_5_omni_thinker": {"vision_start_token_id": 10**6, "audio_start_token_id": 10**6, **text(**rope(2, 1, 1))},
    "qwen2_5_vl": text(**rope(2, 1, 1)),
    "qwen2_vl": text(**rope(2, 1, 1)),
    "qwen3_omni_moe_thinker": {  # no defaults; its text layers have no window
        "vision_start_token_id": 10**6, "audio_start_token_id": 10**6, "vision_end_token_id": 10**6,
        "audio_config": {"downsample_hidden_size": 32}, **text(use_sliding_window=False, sliding_window=None),
    },
    "qwen4_exp": text(**INDEXER),  # no defaults
    "qwen4_exp_text": INDEXER,
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},  # one layer of each kind
    "reformer": {  # a decoder; positions are a grid of two axes
        **DECODER, "attn_layers": ["local", "lsh"], "axial_pos_shape": [8, 16], "axial_pos_embds_dim": [16, 16],
        "num_buckets": 2,
    },
    "roberta": PAD,
    "roberta-prelayernorm": PAD,
    "sarvam_mla": ALL_HEADS,
    "smollm3": MIXED,
    "step3p7": text(**MIXED, mlp_layer_types=["dense", "sparse"]),
    "xlm": {"causal": True, "pad_index": 0, **PAD},
    "xlm-roberta": PAD,
    "xlm-roberta-xl": PAD,
    "xlstm": {"chunk_size": 64},  # chunks are a power of two longer than a head
    "xmod": PAD | {"default_language": "en_XX"},
    "youtu": ALL_HEADS,
    "zamba": {"num_hidden_layers": 4, "layers_block_type": 2 * ["linear_attention", "hybrid"], "num_key_value_heads": 4}
    | {"attention_head_dim": 16},  # a shared layer must come twice
    "zaya": {"num_experts_per_tok": 1},  # it takes no other
}  # fmt: skip

# Other settings that users have, by type: (note, settings beside those above).
ENCODERS = (
    "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta "
    "roberta-prelayernorm roc_bert xlm-roberta xlm-roberta-xl xmod"
)
VARIANTS = {name: [("as a decoder", DECODER)] for name in ENCODERS.split()}
VARIANTS |= {
    "dory": [("caching its last loop alone", {"recurrent_kv_cache_mode": "last_loop"})],
    "falcon": [("with ALiBi", {"alibi": True})],
    "gpt_neo": [("without local layers", {"attention_types": [[["global"], 2]]})],
    "granitemoehybrid": [("without recurrent layers", {"layer_types": ["attention", "attention"]})],
    "lfm2": [("without convolutions", {"layer_types": ["full_attention"] * 2, "full_attn_idxs": [0, 1]})],
    "llama4_text": [("without attention temperatures", {"attn_temperature_tuning": False})],
}
NEEDS_TIMM = ("fast_vlm", "gemma3n", "perception_lm")  # their vision towers are those of another package

# --- built small


def fields(config: PreTrainedConfig) -> dict[str, str]:
    """A configuration's own settings → their types."""
    return {field.name: str(field.type) for field in dataclasses.fields(config)}


def layers_kept(lists: dict[str, list], count: int) -> list[int]:
    """The first layer of each kind, by what its configuration lists layer by layer; two where all are alike."""
    rows, kept = [], []
    for layer in range(count):
        row = [str(values[layer]) for values in lists.values()]
        if row not in rows and len(rows) < 6:
            rows.append(row)
            kept.append(layer)
    return kept if len(kept) > 1 else [0, 1]


def listed(config: PreTrainedConfig) -> dict:
    """Settings that a configuration lists layer by layer, for one layer of each kind, and the number of layers."""
    count_name = type(config).attribute_map.get("num_hidden_layers", "num_hidden_layers")
    count = vars(config).get(count_name) or 0
    lists = {}
    for name in fields(config):
        values = vars(config).get(name)
        if isinstance(values, list | tuple) and count > 4 and len(values) == count:
            lists[name] = values
    if not lists:
        return {}
    kept = layers_kept(lists, count)
    if "max_window_layers" in fields(config):  # it decides which layers have a window
        lists.pop("layer_types", None)
    found = {name: [values[layer] for layer in kept] for name, values in lists.items()}
    if "intermediate_size" in found:
        found["intermediate_size"] = [NAMED["intermediate_size"]] * len(kept)
    return found | {count_name: len(kept)}


def sized(config: PreTrainedConfig, window: int | None) -> dict:
    """Settings of known names, small."""
    had, types, found = vars(config), fields(config), {}
    for name in types:
        if name in NAMED and had.get(name) is not None and not isinstance(had[name], list | tuple):
            found[name] = NAMED[name]
        if name in SPECIAL:
            found[name] = None if "None" in types[name] else SPECIAL[name]
        if name in WINDOWS and not isinstance(had.get(name), list | tuple):
            found[name] = window
    if "use_sliding_window" in types:
        found["use_sliding_window"] = True
    if had.get("tie_word_embeddings") and "tie_word_embeddings" in types:
        found["tie_word_embeddings"] = False  # else many a random model says its last token for ever
    rotary = had.get("rope_parameters")
    if isinstance(rotary, dict) and "mrope_section" in rotary:
        found["rope_parameters"] = rotary | {"mrope_section": [2, 1, 1]}
    return found


def merged(settings: dict, changes: dict) -> dict:
    """Settings with changes, also within the settings of parts."""
    result = dict(settings)
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(name), dict) and name != "rope_parameters"
        result[name] = merged(result[name], value) if both else value
    return result


def settings_of(config: PreTrainedConfig, window: int | None) -> dict:
    """The settings of a small model of a configuration's type."""
    found = sized(config, window) | listed(config)
    for name in type(config).sub_configs:
        part = vars(config).get(name)
        if isinstance(part, PreTrainedConfig):
            found[name] = settings_of(part, window) | ({"model_type": part.model_type} if part.model_type else {})
    return found


def small(name: str, *, vision: bool = False, window: int = SHORT, **changes) -> PreTrainedModel:
    """A small random model of a type whose logits depend on what each token sees, with a window if it can have one."""
    given = {}
    if name == "gemma4_assistant":  # its default configuration is refused by itself
        given = text(model_type="gemma4_text", num_hidden_layers=2, **NO_PER_LAYER)
    default = AutoConfig.for_model(name, **given)
    settings = merged(settings_of(default, window), SETTINGS.get(name, {}))
    config = type(default)(**merged(settings, changes))
    kind = getattr(transformers, (VISION if vision else CAUSAL)[name])
    wanted = kind.config_class
    for part in ("text_config", "decoder"):  # the type is that of a whole, the class that of its text part
        if wanted is not None and not isinstance(config, wanted) and isinstance(vars(config).get(part), wanted):
            config = vars(config)[part]
    torch.manual_seed(0)
    model = kind(config).eval()
    count = sum(parameter.numel() for parameter in model.parameters())
    if count > LARGEST:
        raise ValueError(f"a small {name} model has {count} parameters: give it smaller sizes in SETTINGS")
    return randomise(model, 0.3)


# --- what becomes of it


def near(model: PreTrainedModel) -> PreTrainedModel:
    """The model, a little disturbed: a draft that is right often enough."""
    draft, generator = deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
    return draft


def drafters(model: PreTrainedModel) -> list:
    draft = TreeDrafter(CausalLMDraft(near(model)), growth.kary(2, 3))
    return [NgramDrafter(), ProgressiveDrafter(), LookaheadDrafter(), SelfDrafter(), draft]


def prompt(seed: int) -> list[int]:
    """Random tokens, said once more so that n-grams find something; longer than a short window."""
    generator = torch.Generator().manual_seed(seed)
    once = torch.randint(3, VOCABULARY - 5, (8,), generator=generator).tolist()
    return once + once


def written(model: PreTrainedModel, tokens: list[int], **options):
    """What transformers' own ``generate`` gives for a prompt, greedily, or by a custom_generate among the options."""
    ids = torch.tensor([tokens])
    return model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=LENGTH, eos_token_id=None,
        pad_token_id=0, **options,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Right:
    """A prompt, the text that ``generate`` writes behind it, and the logits of its tokens."""

    prompt: list[int]
    text: list[int]
    logits: list[Tensor]

    def same(self, ours: list[int]) -> bool:
        """Whether a text is this one up to the first place where the two best logits are equal but for rounding."""
        for i, token in enumerate(self.text):
            if i >= len(ours) or ours[i] != token:
                best = self.logits[i].topk(2).values
                share = float((best[0] - best[1]) / self.logits[i].abs().max())
                return i < len(ours) and share <= torch.finfo(best.dtype).eps ** 0.5
        return len(ours) == len(self.text)


def right_text(model: PreTrainedModel) -> Right:
    """What ``generate`` writes, behind the first of three prompts where it says more than two different things."""
    for seed in SEEDS:
        found = right_behind(model, prompt(seed))
        if len(set(found.text)) > 2:
            break
    return found


def right_behind(model: PreTrainedModel, tokens: list[int]) -> Right:
    theirs = written(model, tokens, output_logits=True, return_dict_in_generate=True)
    if theirs.logits is None:
        raise ValueError("its generate gives no logits token by token")
    return Right(tokens, theirs.sequences[0, len(tokens) :].tolist(), [row[0] for row in theirs.logits])


def differ(model: PreTrainedModel, right: Right, graphs: bool = False) -> list[str]:
    """The drafters whose greedy text is not generate's, near ties aside."""
    wrong = []
    for drafter in drafters(model):
        target = Target(model, forwards=Graphs(model, capacity=128) if graphs else None)
        ours = decode(target, drafter, verifiers.greedy, right.prompt, max_new_tokens=LENGTH, eos=()).tokens
        if not right.same(ours):
            wrong.append(type(drafter).__name__)
    return wrong


@torch.no_grad()
def seen(model: PreTrainedModel, right: Right) -> float:
    """How much the last logits move with the third last token, as a share of the largest: 0 if nothing is read."""
    ids = torch.tensor([right.prompt, right.prompt])
    ids[1, -3] = 3 + (ids[1, -3] - 2) % (VOCABULARY - 8)  # within the shortest window
    rows = [model(row[None]).logits[0, -1].float() for row in ids]
    return float((rows[0] - rows[1]).abs().max() / rows[0].abs().max())


def said(error: Exception) -> str:
    """An error's first line, without the numbers and the names of one run; its kind, too, if it is no ValueError."""
    line = str(error).strip().partition("\n")[0].partition(": logits differ by")[0].replace("|", "/")
    line = re.sub(r"\b(of tensor [ab]) \(\d+\)", r"\1", line)
    line = re.sub(r"^an? [\w.-]+ model \(\w+\) ", "it ", line)
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{kind}{line[:140]}".rstrip(": ")


def trees_outcome(model: PreTrainedModel, right: Right) -> str | None:
    """What goes wrong where a model that is not refused decodes with trees; None if nothing does."""
    try:
        wrong = differ(model, right)
    except Exception as error:
        return f"raises in its first steps: {said(error)}"
    try:
        Target(model).check()
        custom = speculative(NgramDrafter(), verifiers.by_draw, check=False)
        ours = written(model, right.prompt, custom_generate=custom)[0, len(right.prompt) :].tolist()
    except ValueError as error:
        wrong = wrong or any(differ(model, right_behind(model, prompt(seed))) for seed in MORE_SEEDS)
        text_is = "other text than generate's" if wrong else "generate's text"
        return f"refused where it is checked ({said(error)}); unchecked, decode writes {text_is}"
    if wrong or not right.same(ours):
        return "WRONG: other text than generate's, and nothing refuses it"
    return None


def decodes(model: PreTrainedModel) -> bool:
    """Whether our loop writes anything, of a model that cannot write by itself."""
    try:
        decode(Target(model), NgramDrafter(), verifiers.greedy, prompt(0), max_new_tokens=LENGTH, eos=())
    except Exception:  # of whatever kind
        return False
    return True


def fate(model: PreTrainedModel) -> str:
    """In one sentence: exact, refused and why, or unable to run by itself and why."""
    reason = refusal(model)
    if reason:
        return f"refused: {reason}"
    try:
        right = right_text(model)
        moved = seen(model, right)
    except Exception as error:
        still = "; decode writes a text all the same" if decodes(model) else ""
        return f"does not run by itself on a text alone: {said(error)}{still}"
    assert moved > SEEN, f"an earlier token moves the logits by {moved:.1e} of the largest: this model tests nothing"
    trouble = trees_outcome(model, right)
    if trouble:
        return trouble
    return "exact" if masks.layer_kinds(model) == ("full_attention",) else "exact, with its window by position"


def made(name: str, note: str, vision: bool, window: int = SHORT) -> PreTrainedModel:
    """A small model of a type, or of one of its variants."""
    changes = dict(VARIANTS.get(name, ()))[note] if note else {}
    return small(name, vision=vision, window=window, **changes)


@cache
def outcome(name: str, note: str = "", vision: bool = False) -> str:
    """The fate of a type, with short and with long windows; note: that of one of its variants."""
    if name in NEEDS_TIMM:
        return "not tried: its vision tower needs the package timm"
    logging.set_verbosity_error()
    result = fate(made(name, note, vision))
    if result == "exact, with its window by position":
        longer = fate(made(name, note, vision, LONG))
        assert longer == result, f"with a window of {LONG} tokens: {longer}"
    return result


def cases() -> list[tuple[str, str, bool]]:
    """All types and their variants: (type, note, whether it is of the vision-language table)."""
    found = [(name, "", False) for name in sorted(CAUSAL)]
    found += [(name, note, False) for name, variants in VARIANTS.items() for note, _ in variants]
    found += [(name, "", True) for name in sorted(VISION)]
    return found


def label(name: str, note: str) -> str:
    """How the table names a type or one of its variants."""
    return f"{name} ({note})" if note else name


def would_be_exact(model: PreTrainedModel) -> bool:
    """Whether trees are scored as their paths and texts are generate's, to be asked while ``refusal`` is off."""
    try:
        Target(model).check()
        return differ(model, right_text(model)) == []
    except Exception:  # of whatever kind: it is not exact
        return False
