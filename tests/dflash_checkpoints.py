"""DFlash checkpoints with random weights, in the published keys, shapes and config.json."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tiny import COMMON, VOCABULARY
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

WIDTH, HEADS, KEY_HEADS, HEAD, MLP, LAYERS, SIZE, MASK = 64, 4, 2, 24, 80, 2, 5, 49
IDS = (0, 2)  # outputs of the target's layers 0 and 2 of 4: hidden_states 1 and 3

TARGET = {**COMMON, "hidden_size": WIDTH, "num_hidden_layers": 4, "num_key_value_heads": 2, "initializer_range": 0.1}


def qwen3() -> PreTrainedModel:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**TARGET, head_dim=16)).eval()


def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**TARGET)).eval()


TARGETS = {"qwen3": qwen3, "llama": llama}

QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": WIDTH,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "attention_bias": False,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "layer_types": ["full_attention"] * LAYERS,
}
ZLAB = {
    **QWEN3,
    "architectures": ["DFlashDraftModel"],
    "block_size": SIZE,
    "num_target_layers": 4,
    "dflash_config": {"target_layer_ids": list(IDS), "mask_token_id": MASK},
}
SPECULATORS = {
    "architectures": ["DFlashSpeculator"],
    "speculators_model_type": "dflash",
    "transformer_layer_config": QWEN3,
    "draft_vocab_size": VOCABULARY,
    "block_size": SIZE,
    "aux_hidden_state_layer_ids": [index + 1 for index in IDS],
    "mask_token_id": MASK,
}


def tensors() -> dict[str, Tensor]:
    """Random tensors of all published keys."""
    shapes = {"fc.weight": (WIDTH, len(IDS) * WIDTH), "hidden_norm.weight": (WIDTH,), "norm.weight": (WIDTH,)}
    of_a_layer = {
        "input_layernorm": (WIDTH,),
        "post_attention_layernorm": (WIDTH,),
        "self_attn.q_proj": (HEADS * HEAD, WIDTH),
        "self_attn.k_proj": (KEY_HEADS * HEAD, WIDTH),
        "self_attn.v_proj": (KEY_HEADS * HEAD, WIDTH),
        "self_attn.o_proj": (WIDTH, HEADS * HEAD),
        "self_attn.q_norm": (HEAD,),
        "self_attn.k_norm": (HEAD,),
        "mlp.gate_proj": (MLP, WIDTH),
        "mlp.up_proj": (MLP, WIDTH),
        "mlp.down_proj": (WIDTH, MLP),
    }
    for layer in range(LAYERS):
        for name, shape in of_a_layer.items():
            shapes[f"layers.{layer}.{name}.weight"] = shape
    generator = torch.Generator().manual_seed(3)
    made = {}
    for key, shape in shapes.items():
        made[key] = 0.2 * torch.randn(shape, generator=generator)
        if len(shape) == 1:
            made[key] += 1
    return made


def written(folder: Path, weights: dict[str, Tensor], config: dict) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder
