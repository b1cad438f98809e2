"""Small random targets with an MTP module, and the module's tensors by the keys and shapes of published checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from tiny import COMMON, VOCABULARY
from torch import Tensor
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

WIDTH, HEADS, KEY_HEADS, HEAD, MLP, EXPERT, EXPERTS = 64, 4, 2, 16, 48, 24, 4
SIZES = {
    **COMMON,
    "hidden_size": WIDTH,
    "intermediate_size": MLP,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "pad_token_id": None,
    "initializer_range": 0.1,
}
Shapes = dict[str, tuple[int, ...]]


def built(kind: type, config) -> PreTrainedModel:
    """A random target; its norms are random, too, so that a state before the last norm is not one after it."""
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight += 0.3 * torch.randn_like(weight)
    return model


def deepseek() -> PreTrainedModel:
    """DeepSeek-V3: latent attention; the first layer dense, the others with experts."""
    of_experts = {"n_routed_experts": EXPERTS, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
    latent = {"q_lora_rank": 24, "kv_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": HEAD, "v_head_dim": 12}
    sizes = {**SIZES, "num_key_value_heads": HEADS, "moe_intermediate_size": EXPERT, "first_k_dense_replace": 1}
    return built(DeepseekV3ForCausalLM, DeepseekV3Config(**sizes, **of_experts, **latent))


def glm() -> PreTrainedModel:
    of_experts = {"n_routed_experts": EXPERTS, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2}
    sizes = {**SIZES, "head_dim": HEAD, "moe_intermediate_size": EXPERT, "first_k_dense_replace": 1}
    return built(Glm4MoeForCausalLM, Glm4MoeConfig(**sizes, **of_experts, attention_bias=True, use_qk_norm=True))


LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],  # the last is of the other kind
}


def qwen3_next() -> PreTrainedModel:
    of_experts = {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT}
    sizes = {**SIZES, "head_dim": HEAD, "shared_expert_intermediate_size": EXPERT}
    return built(Qwen3NextForCausalLM, Qwen3NextConfig(**sizes, **of_experts, **LINEAR))


ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}


def qwen3_5() -> PreTrainedModel:
    sizes = {**SIZES, "head_dim": HEAD, "rope_parameters": ROPE}
    return built(Qwen3_5ForCausalLM, Qwen3_5TextConfig(**sizes, **LINEAR))


def qwen3_5_moe() -> PreTrainedModel:
    of_experts = {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT}
    sizes = {**SIZES, "head_dim": HEAD, "rope_parameters": ROPE, "shared_expert_intermediate_size": EXPERT}
    return built(Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig(**sizes, **of_experts, **LINEAR))


def mimo() -> PreTrainedModel:
    """MiMo is a Qwen2 by another name."""
    return built(Qwen2ForCausalLM, Qwen2Config(**SIZES))


def dense(width: int, inner: int, start: str) -> Shapes:
    return {
        f"{start}gate_proj.weight": (inner, width),
        f"{start}up_proj.weight": (inner, width),
        f"{start}down_proj.weight": (width, inner),
    }


def experts(start: str, shared: str) -> Shapes:
    shapes = {f"{start}mlp.gate.weight": (EXPERTS, WIDTH), **dense(WIDTH, EXPERT, f"{start}mlp.{shared}.")}
    for index in range(EXPERTS):
        shapes |= dense(WIDTH, EXPERT, f"{start}mlp.experts.{index}.")
    return shapes


def norms(start: str, *names: str) -> Shapes:
    return {f"{start}{name}.weight": (WIDTH,) for name in names}


def attention(start: str, query: int, *, bias: bool, normed: bool) -> Shapes:
    """Query, key and value heads; query: rows of q_proj, twice as many where it makes the output gate, too."""
    rows = {"q_proj": query, "k_proj": KEY_HEADS * HEAD, "v_proj": KEY_HEADS * HEAD}
    shapes = {f"{start}self_attn.o_proj.weight": (WIDTH, HEADS * HEAD)}
    for name, count in rows.items():
        shapes[f"{start}self_attn.{name}.weight"] = (count, WIDTH)
        if bias:
            shapes[f"{start}self_attn.{name}.bias"] = (count,)
    if normed:
        shapes |= {f"{start}self_attn.{name}.weight": (HEAD,) for name in ("q_norm", "k_norm")}
    return shapes


LAYER_NORMS = ("input_layernorm", "post_attention_layernorm")


def deepseek_shapes(start: str = "model.layers.3.") -> Shapes:
    attention_rows = {
        "q_a_proj": (24, WIDTH),
        "q_a_layernorm": (24,),
        "q_b_proj": (HEADS * (HEAD + 8), 24),
        "kv_a_proj_with_mqa": (20 + 8, WIDTH),
        "kv_a_layernorm": (20,),
        "kv_b_proj": (HEADS * (HEAD + 12), 20),
        "o_proj": (WIDTH, HEADS * 12),
    }
    return {
        f"{start}eh_proj.weight": (WIDTH, 2 * WIDTH),
        **norms(start, "enorm", "hnorm", "shared_head.norm", *LAYER_NORMS),
        **{f"{start}self_attn.{name}.weight": shape for name, shape in attention_rows.items()},
        **experts(start, "shared_experts"),
        f"{start}mlp.gate.e_score_correction_bias": (EXPERTS,),
        f"{start}embed_tokens.weight": (VOCABULARY, WIDTH),
        f"{start}shared_head.head.weight": (VOCABULARY, WIDTH),
    }


def glm_shapes() -> Shapes:
    start = "model.layers.3."
    return {
        f"{start}eh_proj.weight": (WIDTH, 2 * WIDTH),
        **norms(start, "enorm", "hnorm", "shared_head.norm", *LAYER_NORMS),
        **attention(start, HEADS * HEAD, bias=True, normed=True),
        **experts(start, "shared_experts"),
        f"{start}mlp.gate.e_score_correction_bias": (EXPERTS,),
        f"{start}embed_tokens.weight": (VOCABULARY, WIDTH),
        f"{start}shared_head.head.weight": (VOCABULARY, WIDTH),
    }


def qwen_shapes(mlp: Shapes) -> Shapes:
    start = "mtp.layers.0."
    return {
        "mtp.fc.weight": (WIDTH, 2 * WIDTH),
        **norms("mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"),
        **norms(start, *LAYER_NORMS),
        **attention(start, 2 * HEADS * HEAD, bias=False, normed=True),
        **mlp,
    }


def qwen3_next_shapes() -> Shapes:
    start = "mtp.layers.0."
    return qwen_shapes({**experts(start, "shared_expert"), f"{start}mlp.shared_expert_gate.weight": (1, WIDTH)})


def qwen3_5_shapes() -> Shapes:
    return qwen_shapes(dense(WIDTH, MLP, "mtp.layers.0.mlp."))


def qwen3_5_moe_shapes() -> Shapes:
    """As Qwen3-Next's, but the experts are stacked in the checkpoint already."""
    shapes = {key: shape for key, shape in qwen3_next_shapes().items() if ".experts." not in key}
    shapes["mtp.layers.0.mlp.experts.gate_up_proj"] = (EXPERTS, 2 * EXPERT, WIDTH)
    shapes["mtp.layers.0.mlp.experts.down_proj"] = (EXPERTS, WIDTH, EXPERT)
    return shapes


def mimo_shapes(start: str = "model.mtp_layers.0.") -> Shapes:
    return {
        f"{start}input_proj.weight": (WIDTH, 2 * WIDTH),
        **norms(start, "token_layernorm", "hidden_layernorm", "final_layernorm", *LAYER_NORMS),
        **attention(start, HEADS * HEAD, bias=True, normed=False),
        **dense(WIDTH, MLP, f"{start}mlp."),
    }


def speculators_shapes() -> Shapes:
    return mimo_shapes("mtp_layers.0.")


@dataclass(frozen=True)
class Family:
    """A kind of target, and its module's published keys with their shapes.

    parts: the published names of the matrix, the norms of embedding and state, and the last norm.
    layer: the beginning of the keys of the decoder layer.
    takes_trees: whether ``Target`` takes the target.
    """

    target: Callable[[], PreTrainedModel]
    shapes: Callable[[], Shapes]
    parts: tuple[str, str, str, str]
    layer: str
    takes_trees: bool = True
    embedding_first: bool = True


DEEPSEEK_PARTS = tuple(f"model.layers.3.{name}" for name in ("eh_proj", "enorm", "hnorm", "shared_head.norm"))
QWEN_PARTS = ("mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
MIMO_PARTS = ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm")
FAMILIES = {
    "deepseek": Family(deepseek, deepseek_shapes, DEEPSEEK_PARTS, "model.layers.3."),
    "glm": Family(glm, glm_shapes, DEEPSEEK_PARTS, "model.layers.3."),
    "qwen3-next": Family(qwen3_next, qwen3_next_shapes, QWEN_PARTS, "mtp.layers.0.", takes_trees=False),
    "qwen3.5": Family(qwen3_5, qwen3_5_shapes, QWEN_PARTS, "mtp.layers.0.", takes_trees=False),
    "qwen3.5-moe": Family(qwen3_5_moe, qwen3_5_moe_shapes, QWEN_PARTS, "mtp.layers.0.", takes_trees=False),
    "mimo": Family(
        mimo, mimo_shapes, tuple(f"model.mtp_layers.0.{name}" for name in MIMO_PARTS), "model.mtp_layers.0.",
        embedding_first=False,
    ),
    "speculators": Family(
        mimo, speculators_shapes, tuple(f"mtp_layers.0.{name}" for name in MIMO_PARTS), "mtp_layers.0."
    ),
}  # fmt: skip


def tensors(shapes: Shapes, target: PreTrainedModel) -> dict[str, Tensor]:
    """Random tensors by these keys; copies of the target's embedding and output matrix are the target's."""
    generator = torch.Generator().manual_seed(3)
    made = {}
    for key, shape in shapes.items():
        made[key] = 0.3 * torch.randn(shape, generator=generator)
        if "norm" in key and len(shape) == 1:
            made[key] += 1
        if key.endswith("embed_tokens.weight"):
            made[key] = target.get_input_embeddings().weight.detach().clone()
        if key.endswith("shared_head.head.weight"):
            made[key] = target.get_output_embeddings().weight.detach().clone()
    return made
