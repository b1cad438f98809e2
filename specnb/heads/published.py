"""Draft heads that others have published: those of EAGLE-1, EAGLE-2 and HASS, EAGLE-3, speculators and Medusa.

A published head is a folder, or a repository of the Hugging Face hub, with config.json and one file of weights:

- EAGLE (also EAGLE-2, HASS): ``fc`` and one decoder layer ``layers.0`` without an input norm, often ``embed_tokens``.
- EAGLE-3 (SafeAILab, AngelSlim, SpecForge): ``fc``, one layer ``midlayer`` with ``hidden_norm``, a ``norm`` and
  ``lm_head`` of its own; ``d2t`` and ``t2d`` for a reduced vocabulary; often ``embed_tokens``.
- speculators, only its kind ``eagle3``: the keys of EAGLE-3 with ``layers.0``, and a config of its own with options.
- Medusa: ``{i}.0.linear`` and the output rows ``{i}.1.weight`` of each head i.

The format is recognised from the config and the keys. Every key and every shape has to fit the config, and the config
has to fit the target; what does not fit is an error that says what was found and what was expected. Two things cannot
be seen in a file: whether the weights mean what their names say, and whether the head was trained for this target.
``heads.check`` measures both.

Linear weights are (out, in). In shapes, h is the width of the target's hidden states, d that of the head, V the size of
the vocabulary, and V_d that of the reduced one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from specnb.heads.folders import json_object, listed
from specnb.heads.modules import MODULES, Frozen, Spec, final_norm, rises_within

# In this order: a file of safetensors is taken where there is a pickle, too.
WEIGHTS = ("model.safetensors", "medusa_lm_head.safetensors", "pytorch_model.bin", "medusa_lm_head.pt")
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
PLAIN = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool)
PLAIN_NAMES = "float32, bfloat16 or float16 weights, int64 or int32 ids, bool masks"
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")  # options of an EAGLE-3 config

# Where each weight of a one-layer module stands in a published layer, by the beginning of its name
IN_LAYER = {
    "layer.input_layernorm.feature.": "hidden_norm.",
    "layer.input_layernorm.token.": "input_layernorm.",
    "layer.post_attention_layernorm.": "post_attention_layernorm.",
    "layer.q_proj.": "self_attn.q_proj.",
    "layer.k_proj.": "self_attn.k_proj.",
    "layer.v_proj.": "self_attn.v_proj.",
    "layer.o_proj.": "self_attn.o_proj.",
    "layer.q_norm.": "self_attn.q_norm.",
    "layer.k_norm.": "self_attn.k_norm.",
    "layer.gate_proj.": "mlp.gate_proj.",
    "layer.up_proj.": "mlp.up_proj.",
    "layer.down_proj.": "mlp.down_proj.",
}
BESIDE_LAYER = {"fc.": "fc.", "states_norm.": "input_norm.", "states_norms.": "fc_norm."}


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The content of a published head's folder."""

    file: Path  # the weights
    config: dict  # config.json
    tensors: dict[str, Tensor]

    @property
    def prefix(self) -> str:
        """What the keys of its decoder layer begin with."""
        midlayer = any(key.startswith("midlayer.") for key in self.tensors)
        return "midlayer." if midlayer else "layers.0."

    def error(self, what: str) -> ValueError:
        """The error that says what is wrong with this head."""
        return ValueError(f"{self.file}: {what}")


@dataclass(frozen=True)
class Sizes:
    """What a head has to fit of its target."""

    width: int  # h
    layers: int  # n; there are n + 1 hidden states
    vocabulary: int  # V
    name: str  # of its class

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Sizes":
        config = model.config.get_text_config()
        rows = len(model.get_input_embeddings().weight)
        return cls(config.hidden_size, config.num_hidden_layers, rows, type(model).__name__)


# ---- finding and reading files --------------------------------------------------------------------------------


def is_of_hub(name: str) -> bool:
    """Whether a name can only be one of the hub: it has the form OWNER/NAME, and there is no OWNER here."""
    return bool(HUB_NAME.fullmatch(name)) and not Path(name).parent.exists()


def find(name: str | Path) -> Path | None:
    """The folder of a published head; None if the name is neither a folder nor could be one of the hub.

    name: a folder with config.json, or the name of a repository on the Hugging Face hub, "owner/name". The repository
    is downloaded, or taken from the hub's cache, unless a folder "owner" lies here. Raises OSError if the hub does not
    give it.
    """
    folder = Path(name)
    if (folder / "config.json").exists():
        return folder
    if isinstance(name, Path) or not is_of_hub(name):
        return None
    try:
        return Path(snapshot_download(name, allow_patterns=["config.json", *WEIGHTS]))
    except Exception as error:  # any of several libraries may raise
        raise OSError(
            f"{name} is no trained head here, and the Hugging Face hub does not give it ({type(error).__name__}): "
            f"check the name, your access to it and the network"
        ) from error


def weights_file(folder: Path) -> Path:
    """The weights in a published head's folder. Raises ValueError if there are none; a file of shards is not read."""
    present = [folder / name for name in WEIGHTS if (folder / name).exists()]
    if not present:
        raise ValueError(f"{folder} has no weights of a draft head: expected one of {', '.join(WEIGHTS)}")
    return present[0]


def read(folder: Path) -> Checkpoint:
    """Read a published head's config and weights. Pickles are read without running code (weights_only=True).

    Raises ValueError if there is no file of weights, if one cannot be read, or if a weight is not finite.
    """
    config = _config(folder / "config.json")
    file = weights_file(folder)
    try:
        if file.suffix == ".safetensors":
            tensors = load_file(file)
        else:
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip files and safetensors raise many kinds
        if file.read_bytes()[:40].startswith(b"version https://git-lfs"):
            raise ValueError(f"{file} is a pointer of Git LFS and not the weights: fetch them, git lfs pull") from error
        first_line = str(error).partition("\n")[0]
        raise ValueError(f"{file} cannot be read ({type(error).__name__}: {first_line})") from error
    for key, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{file} must contain tensors by name, {key!r} is a {type(tensor).__name__}")
        if tensor.dtype not in PLAIN:
            raise ValueError(f"{file}: {key} is {tensor.dtype}, so the file is quantised; expected {PLAIN_NAMES}")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(f"{file}: {key} contains numbers that are not finite, as if it was never filled")
    return Checkpoint(file, config, tensors)


def _config(file: Path) -> dict:
    """A head's config.json; ValueError if it is not a JSON object, or says that the weights are quantised."""
    config = json_object(file)
    if "quantization_config" in config:
        raise ValueError(f"{file} says that the weights are quantised; only plain ones can be loaded")
    return config


# ---- loading --------------------------------------------------------------------------------------------------


def load(
    folder: Path, model: PreTrainedModel, *, layers: Sequence[int] | None = None
) -> tuple[nn.Module, Spec, Frozen]:
    """Load a published head for this target, in the target's dtype and on its device.

    layers: the hidden states that an EAGLE-3 head reads, by their index in transformers' ``hidden_states``, if they are
        not those that the config says.

    Returns the head as a module, its spec, and what is frozen beside it: the head's own embedding, norm and output
    rows where it has them, else the target's. Raises ValueError for a format that is not known, keys that are missing
    or left over, shapes that contradict the config, and a config that contradicts the target.
    """
    checkpoint = read(folder)
    sizes = Sizes.of(model)
    kind = recognise(checkpoint)
    if layers is not None and kind not in ("EAGLE-3", "speculators"):
        raise ValueError(f"layers is for EAGLE-3 heads, and this one is of {kind}")
    if kind == "Medusa":
        spec = _medusa_spec(checkpoint, sizes)
    elif kind == "EAGLE":
        spec = _eagle_spec(checkpoint, sizes)
    else:
        spec = _eagle3_spec(checkpoint, sizes, kind, layers)

    with torch.device("meta"):
        head = MODULES[spec.kind](spec)
    keys = {name: key_of(name, checkpoint.prefix) for name in head.state_dict()}
    expected = {keys[name]: tuple(weight.shape) for name, weight in head.state_dict().items()}
    required, optional = _beside(checkpoint, spec, sizes)
    _check_keys(checkpoint, kind, {**expected, **required}, optional)

    weights = {name: checkpoint.tensors[key] for name, key in keys.items()}
    head.load_state_dict(weights, assign=True)
    head = head.to(model.device, model.dtype).requires_grad_(False).eval()
    return head, spec, _frozen(checkpoint, spec, model)


def key_of(name: str, prefix: str) -> str:
    """The published key of a weight of one of our modules. prefix: what the keys of the decoder layer begin with.

    Examples: with the prefix "midlayer." layer.q_proj.weight stands under midlayer.self_attn.q_proj.weight. A Medusa's
    blocks.2.bias stands under 2.0.linear.bias.
    """
    for ours, theirs in IN_LAYER.items():
        if name.startswith(ours):
            return prefix + theirs + name.removeprefix(ours)
    for ours, theirs in BESIDE_LAYER.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    _, index, parameter = name.split(".")  # blocks.2.bias
    return f"{index}.0.linear.{parameter}"


def recognise(checkpoint: Checkpoint) -> str:
    """The format of a published head: EAGLE, EAGLE-3, speculators or Medusa.

    Raises ValueError, with what was found, for another format, and where the config names another than the keys show.
    """
    config = checkpoint.config
    keys = sorted(checkpoint.tensors)
    speculators = config.get("speculators_model_type")
    if speculators is not None:
        if speculators != "eagle3":
            other = " (heads.dflash loads this one)" if speculators == "dflash" else ""
            raise ValueError(
                f"{checkpoint.file} is speculators' {speculators}: only its eagle3 heads can be loaded{other}"
            )
        return "speculators"
    if "dflash_config" in config or "hidden_norm.weight" in keys:
        raise ValueError(f"{checkpoint.file} is a DFlash block, not a head of EAGLE or Medusa: heads.dflash loads it")
    if any(key.startswith("mtp.") or key.endswith(".eh_proj.weight") for key in keys):
        raise ValueError(f"{checkpoint.file} is an MTP module, not a head of EAGLE or Medusa: heads.mtp loads it")

    if any(re.fullmatch(r"\d+\.\d+\.linear\.weight", key) for key in keys):
        kind = "Medusa"
    elif any(key.startswith("midlayer.") for key in keys) or "layers.0.hidden_norm.weight" in keys or "d2t" in keys:
        kind = "EAGLE-3"
    elif "fc.weight" in keys and "layers.0.self_attn.q_proj.weight" in keys:
        kind = "EAGLE"
    else:
        raise ValueError(
            f"{checkpoint.file} has no format that is known here (EAGLE, EAGLE-3, speculators, Medusa): its keys are "
            f"{listed(keys)}"
        )
    named = _named_by(config)
    if named and named != kind:
        raise checkpoint.error(f"config.json names a head of {named}, and its keys are those of {kind}")
    return kind


def _named_by(config: dict) -> str | None:
    """The format that a config names, beside speculators; None if it could belong to EAGLE or to EAGLE-3."""
    architectures = " ".join(config.get("architectures") or [])
    if "medusa_num_heads" in config or "Medusa" in architectures:
        return "Medusa"
    if "Eagle3" in architectures or config.get("draft_vocab_size"):
        return "EAGLE-3"
    return None


def _check_keys(
    checkpoint: Checkpoint, kind: str, required: Mapping[str, tuple], optional: Mapping[str, tuple]
) -> None:
    """ValueError unless a file has the required keys, no others than the optional ones, and all in these shapes."""
    found = {key: tuple(tensor.shape) for key, tensor in checkpoint.tensors.items()}
    missing = sorted(required.keys() - found.keys())
    left_over = sorted(found.keys() - required.keys() - optional.keys())
    if missing or left_over:
        raise ValueError(
            f"{checkpoint.file} is no head of {kind} as config.json describes it: "
            f"missing are {listed(missing) or 'none'}; left over are {listed(left_over) or 'none'}"
        )
    expected = {**optional, **required}
    for key, shape in found.items():
        if shape != expected[key]:
            raise checkpoint.error(f"{key} has shape {shape}, config.json and the target say {expected[key]}")
        is_table = key in ("d2t", "t2d")
        if checkpoint.tensors[key].is_floating_point() == is_table:
            raise checkpoint.error(f"{key} is {checkpoint.tensors[key].dtype}, which cannot be right")


# ---- specs ----------------------------------------------------------------------------------------------------


def _medusa_spec(checkpoint: Checkpoint, sizes: Sizes) -> Spec:
    """The number of heads is counted in the file: public configs say 2 where there are 5, and Medusa ignores that."""
    blocks = [key for key in checkpoint.tensors if key.endswith(".linear.weight")]
    count = 1 + max(int(key.split(".")[0]) for key in blocks)
    named = checkpoint.config.get("medusa_num_heads", 0)
    if named > count:
        raise checkpoint.error(f"config.json says {named} Medusa heads, and the file has {count}")
    layers = checkpoint.config.get("medusa_num_layers", 1)
    if layers != 1:
        raise checkpoint.error(f"heads of {layers} blocks are not supported, only of one")
    return Spec(
        "medusa",
        width=sizes.width,
        attention_heads=1,  # it has no attention, no MLP and no norm: these numbers are not read
        key_heads=1,
        head_width=2,
        mlp=0,
        theta=10_000.0,
        epsilon=1e-5,
        hidden_layer=-1,
        count=count,
        first_row=False,
    )


def _eagle_spec(checkpoint: Checkpoint, sizes: Sizes) -> Spec:
    """EAGLE's fc has a bias or not: the file says it, and the config's "bias" must agree (unsaid it means true)."""
    config = checkpoint.config
    spec = _decoder_spec(checkpoint, "eagle", config, sizes)
    if spec.width != sizes.width:
        raise checkpoint.error(
            f"the head reads states of {spec.width} numbers, those of {sizes.name} have {sizes.width}"
        )
    fc_bias = "fc.bias" in checkpoint.tensors
    if "bias" in config and bool(config["bias"]) != fc_bias:
        raise checkpoint.error(f"config.json says bias {config['bias']}, fc.bias in the file is {fc_bias}")
    if "bias" not in config and not fc_bias:
        raise checkpoint.error("there is no fc.bias, and config.json does not say that bias is false")
    qkv_bias = bool(config.get("qkv_bias")) or spec.qkv_bias
    return replace(spec, hidden_layer=-1, fc_bias=fc_bias, qkv_bias=qkv_bias)


def _eagle3_spec(checkpoint: Checkpoint, sizes: Sizes, kind: str, layers: Sequence[int] | None) -> Spec:
    config = checkpoint.config
    layer = config
    if kind == "speculators":
        layer = _speculators_layer(checkpoint, sizes)
    spec = _decoder_spec(checkpoint, "eagle3", layer, sizes)

    nested = config.get("eagle_config") or {}
    if nested.get("use_aux_hidden_state", True) is False:
        raise checkpoint.error("an EAGLE-3 head without fused states (use_aux_hidden_state) is not known")
    flags = {name: bool(nested.get(name, config.get(name, False))) for name in FLAGS}
    if flags["norm_before_fc"] and flags["fc_norm"]:
        raise checkpoint.error("norm_before_fc and fc_norm exclude each other, both are true")
    states_norm = ""
    if flags["norm_before_fc"]:
        states_norm = "together"
    if flags["fc_norm"]:
        states_norm = "each"

    target_width = config.get("target_hidden_size") or spec.width
    if target_width != sizes.width:
        raise checkpoint.error(
            f"the head reads states of {target_width} numbers, those of {sizes.name} have {sizes.width}"
        )
    return replace(
        spec,
        fused=_fused(checkpoint, sizes, layers),
        target_width=target_width,
        fc_bias=False,
        states_norm=states_norm,
        norm_before_residual=flags["norm_before_residual"],
        norm_output=flags["norm_output"],
    )


def _speculators_layer(checkpoint: Checkpoint, sizes: Sizes) -> dict:
    """The config of the decoder layer in a config of speculators; its own defaults stand where it is silent."""
    config = checkpoint.config
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise checkpoint.error(f"a config of speculators needs transformer_layer_config, got {layer!r}")
    if "norm_before_residual" not in config:
        raise checkpoint.error(
            "config.json does not say norm_before_residual, which speculators 0.9 reads as false and "
            "vLLM as true: write it into the file"
        )
    verifier = (config.get("speculators_config") or {}).get("verifier") or {}
    architectures = verifier.get("architectures") or []
    if architectures and sizes.name not in architectures:
        raise ValueError(f"{checkpoint.file} was made for {', '.join(architectures)}, and the target is {sizes.name}")
    return {"model_type": "qwen3", **layer}


def _decoder_spec(checkpoint: Checkpoint, kind: str, config: dict, sizes: Sizes) -> Spec:
    """The spec of a head with one decoder layer, from the layer's config as transformers reads it.

    Numbers that the config does not have are those of transformers' LlamaConfig (or Qwen3Config, for a model_type of
    qwen3), as in the reference code: rope_theta is 10000 then, whatever the target's is.
    """
    model_type = config.get("model_type", "llama")
    if model_type not in ("llama", "qwen2", "qwen3", "mistral", "mixtral"):
        raise checkpoint.error(f"layers of model_type {model_type!r} are not known here, only Llama's and Qwen's")
    settings_class = Qwen3Config if model_type == "qwen3" else LlamaConfig
    try:
        settings = settings_class(**{name: value for name, value in config.items() if name != "model_type"})
    except (TypeError, ValueError, KeyError, StrictDataclassError) as error:
        raise checkpoint.error(f"config.json does not describe a {model_type} layer: {error}") from error

    if settings.num_hidden_layers != 1:
        raise checkpoint.error(f"a head has one decoder layer, config.json says {settings.num_hidden_layers}")
    if settings.hidden_act != "silu":
        raise checkpoint.error(f"the MLP's activation must be silu, config.json says {settings.hidden_act}")
    if "sliding_attention" in (getattr(settings, "layer_types", None) or ()):
        raise checkpoint.error("a head with sliding attention is not supported")
    if settings.vocab_size != sizes.vocabulary:
        raise checkpoint.error(
            f"config.json says a vocabulary of {settings.vocab_size}, {sizes.name} has {sizes.vocabulary}"
        )
    theta, frequencies, rotary_scale = _rotation(checkpoint, settings)
    attention_bias = bool(settings.attention_bias)
    return Spec(
        kind,
        width=settings.hidden_size,
        attention_heads=settings.num_attention_heads,
        key_heads=settings.num_key_value_heads,
        head_width=settings.head_dim,
        mlp=settings.intermediate_size,
        theta=theta,
        epsilon=settings.rms_norm_eps,
        first_row=False,
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        qk_norm=model_type == "qwen3",
        frequencies=frequencies,
        rotary_scale=rotary_scale,
    )


def _rotation(checkpoint: Checkpoint, settings: LlamaConfig) -> tuple[float, tuple[float, ...], float]:
    """``rotation_of`` the config of a head's layer; ValueError if it is not supported."""
    rotation = rotation_of(settings, settings.head_dim)
    if rotation is None:
        raise checkpoint.error(f"rotary angles as in {settings.rope_parameters} are not supported")
    return rotation


def rotation_of(config: PreTrainedConfig, head_width: int) -> tuple[float, tuple[float, ...], float] | None:
    """How a config rotates vectors of head_width: theta, frequencies and rotary_scale as in ``Spec``.

    The frequencies of scaled angles (linear, llama3, YaRN) are computed by transformers; those of plain ones are left
    to theta. None for angles that depend on the length of the text, or that turn a part of a vector only.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    rope_type = parameters.get("rope_type")
    if rope_type not in ("default", "linear", "llama3", "yarn") or parameters.get("partial_rotary_factor", 1) != 1:
        return None
    theta = float(parameters["rope_theta"])
    if rope_type == "default":
        return theta, (), 1.0
    plain = LlamaConfig(
        head_dim=head_width, rope_parameters=parameters, max_position_embeddings=config.max_position_embeddings
    )
    rotary = LlamaRotaryEmbedding(plain)
    return theta, tuple(rotary.inv_freq.tolist()), float(rotary.attention_scaling)


def _fused(checkpoint: Checkpoint, sizes: Sizes, layers: Sequence[int] | None) -> tuple[int, ...]:
    """The states that an EAGLE-3 head reads, counted from the end as in ``Spec.fused``.

    In transformers' numbering they are 2, n // 2 and n − 3 of a target with n layers, unless the config lists others.
    A list at the top of the config (vLLM, speculators) has indices of hidden_states. One in eagle_config has, in
    SGLang, SpecForge and NVIDIA's heads, numbers of layers whose output is hidden_states[i + 1]; vLLM reads it as it
    reads the other. So such a list is taken only where one of the two readings gives 2, n // 2 and n − 3.
    """
    count = sizes.layers
    usual = [2, count // 2, count - 3]
    nested = (checkpoint.config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    listed = checkpoint.config.get("eagle_aux_hidden_state_layer_ids")
    if layers is not None:
        ids = list(layers)
    elif listed:
        ids = list(listed)
    elif not nested or usual in (list(nested), [layer + 1 for layer in nested]):
        ids = usual
    else:
        raise checkpoint.error(
            f"eagle_config lists the layers {list(nested)}, which vLLM reads as hidden_states[i] and "
            f"SGLang as hidden_states[i + 1]: say which by layers=, in transformers' numbering of hidden_states"
        )
    rising = ids == sorted(set(ids))
    # The state with index n is the one after the final norm; heads are trained on states before it.
    if not ids or not rising or ids[0] < 0 or ids[-1] >= count:
        raise checkpoint.error(
            f"the head would read the states {ids}, which must rise within 0..{count - 1} for "
            f"{sizes.name} with {count} layers; say others by layers= if it was trained on them"
        )
    return tuple(index - (count + 1) for index in ids)


# ---- what stands beside the head's own weights ------------------------------------------------------------------


def _beside(checkpoint: Checkpoint, spec: Spec, sizes: Sizes) -> tuple[dict[str, tuple], dict[str, tuple]]:
    """Shapes, by key, of what a head's file must and may have beside the weights of our module."""
    required: dict[str, tuple] = {}
    optional: dict[str, tuple] = {}
    if spec.kind == "medusa":
        for index in range(spec.count):
            required[f"{index}.1.weight"] = (sizes.vocabulary, spec.width)
        return required, optional

    embedding = {"embed_tokens.weight": (sizes.vocabulary, spec.width)}
    if spec.width == sizes.width:
        optional |= embedding
    else:  # the target's would not fit
        required |= embedding
    if spec.kind == "eagle3":
        draft_size = _draft_size(checkpoint, sizes)
        tables = {"d2t": (draft_size,), "t2d": (sizes.vocabulary,)}
        optional |= tables
        required |= {"norm.weight": (spec.width,), "lm_head.weight": (draft_size, spec.width)}
        if draft_size != sizes.vocabulary:
            required["d2t"] = tables["d2t"]
    return required, optional


def _draft_size(checkpoint: Checkpoint, sizes: Sizes) -> int:
    """V_d; a config that does not say it means the whole vocabulary."""
    return checkpoint.config.get("draft_vocab_size") or sizes.vocabulary


def _frozen(checkpoint: Checkpoint, spec: Spec, model: PreTrainedModel) -> Frozen:
    """The embedding, norm, ids and output rows: the head's own where the file has them, else the target's."""

    def own(key: str) -> Tensor:
        return checkpoint.tensors[key].to(model.device, model.dtype)

    sizes = Sizes.of(model)
    everything = torch.arange(sizes.vocabulary)
    embedding = model.get_input_embeddings().weight.detach()
    if "embed_tokens.weight" in checkpoint.tensors:
        brought = own("embed_tokens.weight")
        if not torch.equal(brought, embedding):  # an equal one need not be kept twice
            embedding = brought
    if spec.kind == "medusa":
        rows = torch.stack([own(f"{index}.1.weight") for index in range(spec.count)])  # (count, V, h)
        return Frozen(embedding, final_norm(model), everything.to(model.device), rows)
    if spec.kind == "eagle":
        return replace(Frozen.of(model, everything), embedding=embedding)

    norm = LlamaRMSNorm(spec.width, spec.epsilon)
    norm.load_state_dict({"weight": checkpoint.tensors["norm.weight"]})
    norm = norm.to(model.device, model.dtype).requires_grad_(False)
    ids = _ids(checkpoint, sizes)
    return Frozen(embedding, norm, ids.to(model.device), own("lm_head.weight"))


def _ids(checkpoint: Checkpoint, sizes: Sizes) -> Tensor:
    """The token ids (V_d,) of a head's output rows. d2t says how far each is above the row's own number.

    Example: d2t = (0, 0, 3) means the ids 0, 1 and 2 + 3 = 5. Of six tokens, t2d is then True at 0, 1 and 5.
    """
    ids = torch.arange(_draft_size(checkpoint, sizes))
    if "d2t" in checkpoint.tensors:
        ids = ids + checkpoint.tensors["d2t"].long()
    if not rises_within(ids, sizes.vocabulary):
        raise checkpoint.error(f"d2t must give rising token ids below {sizes.vocabulary}, got {ids[:3].tolist()}…")
    if "t2d" in checkpoint.tensors:
        drafted = checkpoint.tensors["t2d"].bool().nonzero()[:, 0]
        if not torch.equal(drafted, ids):
            raise checkpoint.error(
                f"d2t names {len(ids)} tokens, {ids[:3].tolist()}…, t2d other ones: {len(drafted)}, "
                f"{drafted[:3].tolist()}…"
            )
    return ids
