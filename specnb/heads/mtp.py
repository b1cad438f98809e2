"""Multi-token prediction: the MTP module that a target's own checkpoint brings along, as a draft model.

Some published models are trained together with a small module that predicts one token further (DeepSeek-V3, 2024). An
MTP module is one decoder layer of the target's own kind, with three norms and a matrix. Input row i combines the
embedding of token i + 1 with the target's last hidden state at token i; the output predicts token i + 2. Below the
root the target has no states yet, so there the module's own output takes the state's place, as in EAGLE.

Published formats (keys in the checkpoint; N: the target's number of layers; W: the width of its states):

- Qwen3-Next and Qwen3.5: ``mtp.fc.weight`` (W, 2 W), ``mtp.pre_fc_norm_embedding``, ``mtp.pre_fc_norm_hidden``,
  ``mtp.layers.0.*``, ``mtp.norm``.
- DeepSeek-V3 and GLM-4.5: all begin with ``model.layers.N.``: ``eh_proj.weight`` (W, 2 W), ``enorm``, ``hnorm``,
  ``shared_head.norm``, and the decoder layer's weights by their usual names. ``embed_tokens`` and ``shared_head.head``
  are copies of the target's.
- MiMo: ``model.mtp_layers.0.``: ``input_proj.weight`` (W, 2 W), ``token_layernorm``, ``hidden_layernorm``,
  ``final_layernorm``, and the decoder layer's. Here the matrix reads the state first, and then the embedding.
- speculators (an MTP module that was trained on its own): ``mtp_layers.0.`` with MiMo's names, embedding first.

transformers drops these weights when it loads the target, so they are read from its checkpoint.

Sources: transformers 5.24 (``MtpModel``), vLLM (``qwen3_next_mtp``, ``deepseek_mtp``, ``mimo_mtp``), SGLang
(``deepseek_nextn``) and speculators 0.9.0 (``models/mtp``). They agree on all above; they differ in two things:

- Below the root, the state is the module's output after its last norm, as in transformers, SGLang and speculators. For
  DeepSeek's format, vLLM takes the output before this norm. The first drafted token is the same.
- vLLM sets the embedding of the first row to zero (DeepSeek's and MiMo's formats). The others, and this module, do not.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutput

from specnb import masks
from specnb.cache import ARGUMENT
from specnb.drafters import DraftForwards
from specnb.heads.drafts import FeatureDraft
from specnb.heads.folders import Checkpoint, checkpoint, fill, listed
from specnb.heads.modules import final_norm
from specnb.target import output_rows


@dataclass(frozen=True)
class Format:
    """How a family of checkpoints names the parts of an MTP module, and in which order its matrix reads them.

    prefix: the beginning of all its keys; {layers} stands for the target's number of layers, {index} for the index of
        the module, where a checkpoint has several.
    layer: the beginning of the keys of its decoder layer, after the prefix.
    """

    name: str
    prefix: str
    layer: str
    fc: str
    embedding_norm: str
    hidden_norm: str
    norm: str
    embedding_first: bool = True

    def start(self, layers: int, index: int = 0) -> str:
        """The beginning of the keys of the module with this index, for a target of this many layers."""
        return self.prefix.format(layers=layers + index, index=index)

    def first_key(self, layers: int, index: int = 0) -> str:
        """A key that every module of this format has, and no other format: that of its matrix."""
        if self.layer:  # the matrix is shared by all of a checkpoint's modules, so a layer's norm tells their number
            return f"{self.start(layers)}{self.layer.format(index=index)}input_layernorm.weight"
        return f"{self.start(layers, index)}{self.fc}.weight"


FORMATS = (
    Format(
        "Qwen3-Next", "mtp.", "layers.{index}.", "fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"
    ),
    Format("DeepSeek-V3", "model.layers.{layers}.", "", "eh_proj", "enorm", "hnorm", "shared_head.norm"),
    Format(
        "MiMo", "model.mtp_layers.{index}.", "", "input_proj", "token_layernorm", "hidden_layernorm",
        "final_layernorm", embedding_first=False,
    ),
    Format(
        "speculators", "mtp_layers.{index}.", "", "input_proj", "token_layernorm", "hidden_layernorm",
        "final_layernorm",
    ),
)  # fmt: skip


class Mtp(nn.Module):
    """An MTP module: a matrix over a token's embedding and the state before it, one decoder layer, and three norms.

    target: the model whose decoder layer, rotary angles and output matrix are used. Angles and output matrix are the
        target's own, not copies.
    sparse: whether the layer has experts, if the architecture knows layers with and without.
    embedding_first: the order of the two halves that the matrix reads.
    """

    def __init__(self, target: PreTrainedModel, *, sparse: bool, embedding_first: bool):
        super().__init__()
        base = target.get_decoder()
        config = layer_config(target, sparse=sparse)
        width, norm_class, layer_class = config.hidden_size, type(final_norm(target)), type(base.layers[-1])
        self.embedding_first = embedding_first
        self.embedding_norm = norm_class(width, eps=config.rms_norm_eps)
        self.hidden_norm = norm_class(width, eps=config.rms_norm_eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layer = layer_class(config, 0)
        self.norm = norm_class(width, eps=config.rms_norm_eps)
        self.needs_mask = config._attn_implementation != "sdpa"  # sdpa is causal where it is given no mask
        # In a tuple, where nn.Module does not see them: they stay the target's modules.
        self.shared = (base.rotary_emb, target.get_output_embeddings())

    def rows(self, embedded: Tensor, states: Tensor) -> Tensor:
        """(..., W) embedded tokens and (..., W) the states before them → (..., W) input rows of the layer."""
        embedded = self.embedding_norm(embedded)
        states = self.hidden_norm(states)
        halves = [embedded, states] if self.embedding_first else [states, embedded]
        return self.fc(torch.cat(halves, -1))

    def forward(
        self, inputs_embeds: Tensor, position_ids: Tensor, attention_mask: Tensor | None, logits_to_keep: int = 0,
        **others: Cache | bool,
    ) -> CausalLMOutput:  # fmt: skip
        """Logits (1, m, V) of the last m rows, and the states (1, n, W) of all n rows.

        inputs_embeds: (1, n, W), what ``rows`` returns.
        position_ids: (1, n).
        attention_mask: (1, 1, n, slots in use + n) additive, or None for causal attention over the first rows.
        logits_to_keep: m; 0 keeps all rows.
        others: the cache, under the name that this version of transformers has for it (ARGUMENT), and use_cache and
            output_hidden_states, which are not read.
        """
        rotary, output = self.shared
        if attention_mask is None and self.needs_mask:
            n = inputs_embeds.shape[1]
            below = torch.ones(n, n, dtype=torch.bool, device=inputs_embeds.device).tril()
            attention_mask = masks.additive(below, inputs_embeds.dtype)
        places = position_ids
        if hasattr(rotary, "mrope_section"):  # Qwen3.5 has places in time, height and width; text has all three alike
            places = position_ids.expand(3, 1, -1)
        states = self.layer(
            inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            position_embeddings=rotary(inputs_embeds, places),
            **{ARGUMENT: others[ARGUMENT]},
        )
        states = self.norm(states)
        logits = output(states[:, -logits_to_keep:])
        return CausalLMOutput(logits=logits, hidden_states=(states,))


def layer_config(target: PreTrainedModel, *, sparse: bool):
    """The target's configuration, changed to that of a single layer with full attention.

    Architectures say in different ways which of their layers have experts: by a first layer (DeepSeek-V3, GLM-4.5), a
    list of those without (Qwen3-Next), or a name for each. With ``sparse``, layer 0 is one of those with experts.
    """
    config = copy.deepcopy(target.config.get_text_config())
    changes = {
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "mlp_layer_types": ["sparse" if sparse else "dense"],
        "first_k_dense_replace": 0 if sparse else 1,
        "mlp_only_layers": [] if sparse else [0],
        "decoder_sparse_step": 1,
    }
    for name, value in changes.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, value)
    return config


def mtp(target: PreTrainedModel, source: str | Path | Mapping[str, Tensor] | None = None) -> "MtpDraft":
    """The MTP module of a published checkpoint as a draft model for this target.

    source: the target's checkpoint, as a folder, a name on the hub, or a state dict with the published keys. None for
        the checkpoint that the target was loaded from.

    Returns a draft model for ``TreeDrafter``, in the target's dtype. The format is recognised from the keys, see the
    top of this file. The module reads ``hidden_states[-1]``, the state after the target's final norm.

    Raises ValueError if the keys fit no format or another number of layers, if there are several modules, if a tensor
    is missing, unexpected, quantised or of another shape, and if the checkpoint is another model's: its final norm,
    embedding or output matrix is not the target's. ``Target`` itself refuses targets that keep a state beside keys and
    values, among them Qwen3-Next and Qwen3.5: no tree can be verified with them here, though their modules draft.

    Example::

        model = AutoModelForCausalLM.from_pretrained(folder)
        drafter = TreeDrafter(heads.mtp(model), growth.kary(2, 3))
    """
    if source is None:
        source = target.config.get_text_config().name_or_path or target.config.name_or_path
        if not source:
            raise ValueError("the target does not say where it was loaded from: give the folder with its checkpoint")
    opened = checkpoint(source)
    layers = target.config.get_text_config().num_hidden_layers
    found = recognise(opened, layers)
    _check_config(opened, layers)

    start = found.start(layers)
    tensors = opened.read(key for key in opened.keys if key.startswith(start))
    _check_same_target(opened, tensors, start, target)
    tensors = renamed(tensors, found, start)
    sparse = any(key.startswith(("layer.mlp.experts.", "layer.mlp.gate.")) for key in tensors)
    with torch.device("meta"):  # without memory: its tensors are those of the checkpoint
        module = Mtp(target, sparse=sparse, embedding_first=found.embedding_first)
    fill(module, _placed(fused_experts(tensors), target), opened.name)
    return MtpDraft(module, target)


def recognise(opened: Checkpoint, layers: int) -> Format:
    """The format of a checkpoint's only MTP module. ValueError if it has none, several, or one for other layers."""
    fitting = [found for found in FORMATS if found.first_key(layers) in opened.keys]
    if len(fitting) == 1:
        (found,) = fitting
        if found.first_key(layers, 1) in opened.keys:
            raise ValueError(
                f"{opened.name} has several MTP modules ({found.first_key(layers, 1)}), one for each depth: only a "
                "single one, which is used at all depths, is taken here"
            )
        return found
    if fitting:
        names = " and ".join(found.name for found in fitting)
        raise ValueError(f"{opened.name} has MTP modules in the formats of {names}: expected one")

    elsewhere = [key for key in opened.keys if re.fullmatch(r"model\.layers\.\d+\.eh_proj\.weight", key)]
    if elsewhere:
        raise ValueError(
            f"{opened.name} is of a model with another number of layers: it has {listed(elsewhere)}, and the target's "
            f"MTP module would be model.layers.{layers}"
        )
    expected = ", ".join(f"{found.first_key(layers)} ({found.name})" for found in FORMATS)
    raise ValueError(f"{opened.name} has no MTP module. Its keys: {listed(opened.keys)}. Expected one of {expected}")


def _check_config(opened: Checkpoint, layers: int) -> None:
    """ValueError if the checkpoint's config.json names another number of layers, or several MTP modules."""
    config = opened.config.get("text_config") or opened.config.get("transformer_layer_config") or opened.config
    theirs = config.get("num_hidden_layers", layers)
    if theirs != layers:
        raise ValueError(f"{opened.name} is of a model with {theirs} layers, the target has {layers}")
    for name in ("num_nextn_predict_layers", "mtp_num_hidden_layers"):
        count = config.get(name, 1)
        if count != 1:
            raise ValueError(f"{opened.name} says {name} = {count}: exactly one MTP module is taken here")


def _check_same_target(opened: Checkpoint, tensors: dict[str, Tensor], start: str, target: PreTrainedModel) -> None:
    """ValueError if a tensor that the checkpoint shares with its target is not this target's.

    These are the module's copies of embedding and output matrix, which are taken out of ``tensors``, and the final norm
    of the model in the checkpoint. A checkpoint may have none of them: then nothing is known of its target.
    """
    shared = {}
    embedding = target.get_input_embeddings().weight
    output = target.get_output_embeddings().weight
    for key, weight in {"embed_tokens.weight": embedding, "shared_head.head.weight": output}.items():
        if start + key in tensors:
            shared[start + key] = (tensors.pop(start + key), weight)
    for key in ("model.norm.weight", "model.language_model.norm.weight"):
        if key in opened.keys:
            shared[key] = (opened.read([key])[key], final_norm(target).weight)
    for key, (theirs, ours) in shared.items():
        ours = ours.detach().cpu()
        if theirs.shape != ours.shape or not torch.equal(theirs.to(ours), ours):
            raise ValueError(f"{opened.name} is of another target: its {key} is not this target's")


def renamed(tensors: Mapping[str, Tensor], found: Format, start: str) -> dict[str, Tensor]:
    """The tensors of a module under the names that ``Mtp`` has for them."""
    parts = {
        found.fc: "fc",
        found.embedding_norm: "embedding_norm",
        found.hidden_norm: "hidden_norm",
        found.norm: "norm",
    }
    layer = found.layer.format(index=0)
    ours = {}
    for key, tensor in tensors.items():
        name = key.removeprefix(start)
        part = name.removesuffix(".weight")
        if part in parts:
            name = f"{parts[part]}.weight"
        elif name.startswith(layer):
            name = f"layer.{name.removeprefix(layer)}"
        ours[name] = tensor
    return ours


EXPERT = re.compile(r"layer\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")


def fused_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with those of single experts stacked as transformers' layers have them.

    Checkpoints have matrices gate and up (I, W) and down (W, I) for each of E experts. transformers has one tensor
    gate_up_proj (E, 2 I, W), and one down_proj (E, W, I). Raises ValueError if an expert lacks one of its three.
    """
    others = {}
    experts: dict[tuple[int, str], Tensor] = {}
    for key, tensor in tensors.items():
        match = EXPERT.fullmatch(key)
        if match:
            experts[int(match[1]), match[2]] = tensor
        else:
            others[key] = tensor
    if not experts:
        return others

    count = 1 + max(index for index, _ in experts)
    gates_and_ups = []
    downs = []
    for index in range(count):
        for part in ("gate", "up", "down"):
            if (index, part) not in experts:
                raise ValueError(f"expert {index} of {count} has no {part}_proj in the checkpoint")
        gates_and_ups.append(torch.cat([experts[index, "gate"], experts[index, "up"]]))
        downs.append(experts[index, "down"])
    others["layer.mlp.experts.gate_up_proj"] = torch.stack(gates_and_ups)
    others["layer.mlp.experts.down_proj"] = torch.stack(downs)
    return others


def _placed(tensors: Mapping[str, Tensor], target: PreTrainedModel) -> dict[str, Tensor]:
    """The tensors in the target's dtype, beside its last layer; what transformers keeps in float32 stays so."""
    device = next(target.get_decoder().layers[-1].parameters()).device
    placed = {}
    for name, tensor in tensors.items():
        dtype = torch.float32 if _in_float32(name, target) else target.dtype
        placed[name] = tensor.to(device, dtype)
    return placed


def _in_float32(name: str, target: PreTrainedModel) -> bool:
    """Whether transformers keeps this tensor of a layer in float32, whatever the model's dtype."""
    kept = {*(target._keep_in_fp32_modules_strict or ()), *(target._keep_in_fp32_modules or ())}
    return any(part in name for part in kept)


class MtpDraft(FeatureDraft):
    """Drafting with an MTP module, which keeps the keys and values of committed rows in a cache of its own.

    The feature is the state after the final norm. The text's first token has no row, because there is no state before
    it. So a text of one token cannot be drafted for: ``max_depth`` is 0 in this step.
    """

    ids = None
    hidden_layers = (-1,)  # after the target's final norm

    def __init__(self, module: Mtp, target: PreTrainedModel):
        self.forwards = DraftForwards(module, states=True)
        self.embedding = target.get_input_embeddings()
        self.columns = output_rows(target)

    def _target_features(self, hidden: dict[int, Tensor]) -> Tensor:
        return hidden[-1]

    def _rows(self, tokens: Sequence[int], states_before: Tensor) -> Tensor:
        """(n, W): the input rows of n tokens, with the states (n, W) before them."""
        ids = torch.tensor(list(tokens), device=self.embedding.weight.device)
        module = self.forwards.model
        device = module.fc.weight.device
        return module.rows(self.embedding(ids).to(device), states_before.to(device))
