"""Writes heads in public formats, so that vLLM, SGLang, speculators and EAGLE's own code load them.

The keys and configs are those that the loaders of vLLM 0.33.0, SGLang 0.5.9 and speculators 0.9.0 read.
"""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specnb.heads.modules import Eagle, Frozen, Spec
from specnb.heads.published import key_of
from specnb.models import files as model_files

FORMATS = {"eagle": "eagle", "eagle3": "eagle3", "speculators": "eagle3"}  # the kind of head that each can hold


def export(
    parts: tuple[nn.Module, Spec, Frozen],
    model: PreTrainedModel,
    folder: str | Path,
    *,
    format: str,
    embedding: bool | None = None,
    fold_bias: bool = False,
    verifier: str | None = None,
) -> None:
    """Write a head as FOLDER/config.json and FOLDER/model.safetensors in a public format, in the head's dtype.

    parts: what ``heads.load`` returned, or a head, its spec and ``Frozen.of`` its target.
    model: the target.
    format: "eagle" for heads of EAGLE, HASS and TALF; "eagle3" (SafeAILab, SGLang, vLLM) or "speculators" (also vLLM)
        for those of EAGLE-3.
    embedding: whether embed_tokens is written. None: only if it is not the target's, which the loaders share with the
        head.
    fold_bias: write an EAGLE head without the bias of its fc, and with an embedding of its own that makes up for it.
    verifier: the target's folder or name on the hub, which speculators' config names and its code looks up. None: where
        the target was loaded from.

    A reduced vocabulary is written as d2t and t2d. EAGLE's format has none: an exported EAGLE head drafts from the
    whole vocabulary. Published heads have no row for the first token of a text, our own have one. So a head that was
    exported drafts like ours without its first row: nearly the same, see docs/own_draft.md.

    An EAGLE head with a bias in fc, as ours have, is written for SGLang and EAGLE's own code; vLLM's fc has no bias and
    refuses the file. One without is written for vLLM, and SGLang would leave its fc a random bias. So for vLLM a bias
    has to be folded, see ``fold_bias``.

    Raises ValueError for another format or kind of head, and for what a format has no place for: an EAGLE head that
    reads another state than the last, an EAGLE-3 head that reads the state after the final norm, a norm that is no
    plain RMSNorm of the head's own epsilon, and scaled rotary angles.
    """
    head, spec, frozen = parts
    _check_kind(spec, format)
    if fold_bias:
        head, spec, frozen = _without_bias(head, spec, frozen)

    prefix = "midlayer." if format == "eagle3" else "layers.0."
    tensors = {key_of(name, prefix): weight for name, weight in head.state_dict().items()}
    targets = model.get_input_embeddings().weight
    if embedding is None:
        embedding = frozen.embedding.shape != targets.shape or not torch.equal(frozen.embedding, targets)
    if embedding:
        tensors["embed_tokens.weight"] = frozen.embedding
    if format == "eagle":
        config = _eagle_config(spec, model)
    else:
        tensors |= _own_output(spec, frozen)
        config = _eagle3_config(spec, frozen, model)
        if format == "speculators":
            verifier = verifier or model.name_or_path
            if not verifier:
                raise ValueError(
                    "speculators' config names the target's folder or name on the hub: say it by verifier="
                )
            config = _speculators_config(config, model, verifier)

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {key: weight.detach().cpu().contiguous().clone() for key, weight in tensors.items()}
    content = {
        folder / "config.json": json.dumps(config, indent=2) + "\n",
        folder / "model.safetensors": tensors_to_bytes(contiguous, metadata={"format": "pt"}),
    }
    model_files.write_all(content)


def _check_kind(spec: Spec, format: str) -> None:
    """ValueError for a format that is not known, or that cannot hold heads like this one."""
    if format not in FORMATS:
        raise ValueError(f"formats are {', '.join(FORMATS)}, got {format!r}")
    if spec.kind != FORMATS[format]:
        raise ValueError(f"the format {format} holds heads of the kind {FORMATS[format]}, this one is {spec.kind}")
    if spec.frequencies:
        raise ValueError("a head with scaled rotary angles cannot be exported: a config names the scaling's parameters")


def _without_bias(head: nn.Module, spec: Spec, frozen: Frozen) -> tuple[nn.Module, Spec, Frozen]:
    """The same EAGLE head without a bias in fc: its bias b becomes a vector that is added to every embedding.

    fc computes W e + U f + b for an embedding e and a feature f. With the vector s that solves W s = b this is
    W (e + s) + U f. Example: W = 2 and b = 6 need s = 3. In bfloat16 the larger embeddings are rounded more coarsely.
    """
    if spec.kind != "eagle" or not spec.fc_bias:
        raise ValueError(f"only an EAGLE head's fc has a bias to fold, this one is {spec.kind} without one")
    weight = head.fc.weight.detach()
    shift = torch.linalg.solve(weight[:, : spec.width].double(), head.fc.bias.detach().double())  # (width,)
    embedding = (frozen.embedding.double() + shift).to(frozen.embedding.dtype)
    spec = replace(spec, fc_bias=False)
    folded = Eagle(spec).to(weight)
    kept = {name: value for name, value in head.state_dict().items() if name != "fc.bias"}
    folded.load_state_dict(kept)
    return folded, spec, replace(frozen, embedding=embedding)


def _own_output(spec: Spec, frozen: Frozen) -> dict[str, Tensor]:
    """An EAGLE-3 head's own norm, output rows and tables: the target's, where the head borrows them."""
    vocabulary = len(frozen.embedding)
    ids = frozen.ids.cpu()
    tensors = {"norm.weight": _plain_norm(spec, frozen), "lm_head.weight": frozen.rows}
    if len(ids) != vocabulary:
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.isin(torch.arange(vocabulary), ids)
    return tensors


def _plain_norm(spec: Spec, frozen: Frozen) -> Tensor:
    """The weight (width,) of the final norm. ValueError unless it is a RMSNorm with it and the head's epsilon."""
    weight = getattr(frozen.norm, "weight", None)
    reason = f"the final norm ({type(frozen.norm).__name__}) is no RMSNorm with the head's epsilon {spec.epsilon}"
    if weight is None or getattr(frozen.norm, "bias", None) is not None:
        raise ValueError(f"{reason}: the format has no place for it")
    plain = LlamaRMSNorm(spec.width, spec.epsilon).to(weight)
    plain.weight.data = weight.data
    x = torch.linspace(-1, 1, spec.width).to(weight) * spec.epsilon**0.5  # so small that another epsilon shows
    with torch.no_grad():
        if not torch.allclose(plain(x), frozen.norm(x), rtol=1e-2):
            raise ValueError(f"{reason}: the format has no place for it")
    return weight


def _layer_config(spec: Spec, model: PreTrainedModel) -> dict:
    """What all formats say of the decoder layer and of the vocabulary."""
    target = model.config.get_text_config()
    config = {
        "model_type": "qwen3" if spec.qk_norm else "llama",
        "hidden_size": spec.width,
        "intermediate_size": spec.mlp,
        "num_hidden_layers": 1,
        "num_attention_heads": spec.attention_heads,
        "num_key_value_heads": spec.key_heads,
        "head_dim": spec.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": spec.epsilon,
        "rope_theta": spec.theta,
        "max_position_embeddings": getattr(target, "max_position_embeddings", 2048),
        "vocab_size": len(model.get_input_embeddings().weight),
        "tie_word_embeddings": False,
    }
    if spec.qkv_bias != spec.o_bias and spec.kind == "eagle3":
        raise ValueError("an EAGLE-3 config has one setting for the biases of q, k, v and o: here they differ")
    if spec.o_bias:
        config["attention_bias"] = True
    return config


def _eagle_config(spec: Spec, model: PreTrainedModel) -> dict:
    if spec.hidden_layer != -1:
        raise ValueError(f"an EAGLE head reads the target's last state, -1, this one reads {spec.hidden_layer}")
    config = _layer_config(spec, model)
    if spec.qkv_bias and not spec.o_bias:
        config["qkv_bias"] = True
    if spec.fc_bias:  # no "bias": true, which engines would also read as biases of attention
        return {"architectures": ["LlamaForCausalLMEagle"], **config}
    return {"architectures": ["EagleLlamaForCausalLM"], **config, "bias": False}


def _eagle3_config(spec: Spec, frozen: Frozen, model: PreTrainedModel) -> dict:
    count = model.config.get_text_config().num_hidden_layers
    ids = [layer + count + 1 for layer in spec.fused]  # in transformers' numbering: n + 1 states
    if ids != sorted(set(ids)) or ids[-1] == count:
        raise ValueError(
            f"an exported EAGLE-3 head reads states in rising order, before the final norm: {ids} of 0..{count} are not"
        )
    architecture = "Eagle3Qwen3ForCausalLM" if spec.qk_norm else "LlamaForCausalLMEagle3"
    config = {"architectures": [architecture], **_layer_config(spec, model), "draft_vocab_size": len(frozen.ids)}
    if spec.target_width not in (None, spec.width):
        config["target_hidden_size"] = spec.target_width
    if ids != [2, count // 2, count - 3]:
        config["eagle_aux_hidden_state_layer_ids"] = ids  # vLLM and speculators: states
        # SGLang: layers whose output is the next state. vLLM counts them, and takes the list above.
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [index - 1 for index in ids]}
    options = {
        "norm_before_residual": spec.norm_before_residual,
        "norm_before_fc": spec.states_norm == "together",
        "fc_norm": spec.states_norm == "each",
        "norm_output": spec.norm_output,
    }
    return config | {name: True for name, value in options.items() if value}


def _speculators_config(config: dict, model: PreTrainedModel, verifier: str) -> dict:
    """speculators' config with the same content as an EAGLE-3 config."""
    in_layer = (
        "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings", "vocab_size",
        "tie_word_embeddings", "attention_bias",
    )  # fmt: skip
    layer = {name: config[name] for name in in_layer if name in config}
    layer["rope_parameters"] = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": verifier, "architectures": [type(model).__name__]},
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": config["draft_vocab_size"],
        "target_hidden_size": config.get("target_hidden_size"),
        "eagle_aux_hidden_state_layer_ids": config.get("eagle_aux_hidden_state_layer_ids"),
        "norm_before_residual": config.get("norm_before_residual", False),
        "norm_before_fc": config.get("norm_before_fc", False),
        "fc_norm": config.get("fc_norm", False),
        "norm_output": config.get("norm_output", False),
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
    }
