"""Trained draft heads: small modules beside a frozen target, whose embedding, final norm and output rows they reuse.

A head predicts a reduced vocabulary: ``Frozen.ids`` names the target's tokens it can draft, ``Frozen.rows`` are
their rows of the target's output matrix. On disk a head is NAME.safetensors with its card NAME.json.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specnb import assets, records
from specnb.layers import Layer, Spec

FOLDER = assets.DATA / "drafts"


class Eagle(nn.Module):
    """EAGLE (Li et al. 2024): a row is a token beside the feature before it; its output is the feature after it.

    The layer has no input norm, as in the authors' code. HASS and TALF train the same module otherwise.
    """

    def __init__(self, spec: Spec):
        super().__init__()
        self.fc = nn.Linear(2 * spec.width, spec.width)
        self.layer = Layer(spec, input_norm=False)

    def rows(self, embedded: Tensor, features: Tensor) -> Tensor:
        """(..., width) embedded tokens and the features before them → (..., width) rows."""
        return self.fc(torch.cat([embedded, features], -1))


class Edd(nn.Module):
    """EDD (Zheng & Wang 2025): a decoder layer over a soft prompt of target states h, then the drafted tokens."""

    def __init__(self, spec: Spec):
        super().__init__()
        self.layer = Layer(spec)


class Medusa(nn.Module):
    """Medusa-1 (Cai et al. 2024): head i (from 0) guesses the token i + 2 places after the state it reads."""

    def __init__(self, spec: Spec):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(spec.width, spec.width) for _ in range(spec.count))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> Tensor:
        """(..., width) last states → (..., count, width) states for the shared output rows."""
        return torch.stack([features + F.silu(block(features)) for block in self.blocks], -2)


class Vdm(nn.Module):
    """The papers' vanilla draft model: a small independent language model on the target's embedding."""

    def __init__(self, spec: Spec):
        super().__init__()
        self.model = LlamaModel(self.config(spec, vocabulary=1, bos_token_id=None, eos_token_id=None))
        self.model.embed_tokens = None  # embedded tokens come from the target
        self.model.norm = nn.Identity()

    @staticmethod
    def config(spec: Spec, vocabulary: int, **options) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=spec.width,
            intermediate_size=spec.mlp,
            num_hidden_layers=spec.count,
            num_attention_heads=spec.attention_heads,
            num_key_value_heads=spec.key_heads,
            head_dim=spec.head_width,
            rms_norm_eps=spec.epsilon,
            rope_parameters={"rope_type": "default", "rope_theta": spec.theta},
            max_position_embeddings=8192,
            tie_word_embeddings=False,
            **options,
        )


MODULES = {"vdm": Vdm, "medusa": Medusa, "eagle": Eagle, "edd": Edd}


@dataclass(frozen=True, eq=False)
class Frozen:
    """What heads borrow of the target: embedding (V, width), final norm, ids (V_d,) and their output rows."""

    embedding: Tensor
    norm: nn.Module
    ids: Tensor
    rows: Tensor

    @classmethod
    def of(cls, model: PreTrainedModel, ids: Tensor) -> "Frozen":
        output = model.get_output_embeddings().weight.detach()
        if len(ids) == 0 or (ids.diff() <= 0).any() or not 0 <= int(ids[0]) <= int(ids[-1]) < len(output):
            raise ValueError(f"a reduced vocabulary is rising token ids below {len(output)}, got {ids[:3].tolist()}…")
        ids = ids.to(output.device)
        return cls(model.get_input_embeddings().weight.detach(), final_norm(model), ids, output[ids].contiguous())


def final_norm(model: PreTrainedModel) -> nn.Module:
    """The norm between a model's last layer and its output matrix, by the names transformers gives it."""
    for name in ("norm", "final_layer_norm", "ln_f"):
        if hasattr(model.base_model, name):
            return getattr(model.base_model, name)
    raise ValueError(
        f"{type(model.base_model).__name__} has no final norm known by name (norm, final_layer_norm, ln_f)"
    )


def fingerprint(model: PreTrainedModel) -> str:
    """A short name for a target's weights, the same in float32 and bf16: what a head was trained for.

    Sixty-four evenly spaced rows of every matrix enter it, so that any fine-tune has a name of its own.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        rows = weight.detach()[:: max(1, len(weight) // 64)].to("cpu", torch.bfloat16).contiguous()
        digest.update(name.encode() + rows.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def hashes(names: Iterable[str], folder: Path = FOLDER) -> dict[str, str]:
    """SHA-256 of trained heads' weights: what recordings say of them. ValueError if one is missing.

    A heat ("edd@1.3") is none of the file's name.
    """
    return {name: assets.sha256(_files(folder / name.partition("@")[0])[0]) for name in sorted(set(names))}


def _files(path: Path) -> tuple[Path, Path]:
    """Weights and card of a trained head; ValueError naming the heads that are there, if they are not."""
    weights, card = path.with_suffix(".safetensors"), path.with_suffix(".json")
    if not weights.exists() or not card.exists():
        known = sorted(p.stem for p in path.parent.glob("*.safetensors"))
        raise ValueError(f"no trained head {path.name!r} in {path.parent}: known are {', '.join(known) or 'none'}")
    return weights, card


def save(head: nn.Module, spec: Spec, ids: Tensor, card: dict, path: Path) -> None:
    """Write PATH.safetensors (bf16) and its card PATH.json; on a full disk an earlier pair stays as it was."""
    tensors = {name: w.detach().to("cpu", torch.bfloat16).contiguous() for name, w in head.state_dict().items()}
    data = save_tensors({**tensors, "ids": ids.to("cpu", torch.int32)})
    card = {**card, "spec": asdict(spec), "sha256": hashlib.sha256(data).hexdigest()}
    records.write_all({path.with_suffix(".safetensors"): data, path.with_suffix(".json"): records.to_json(card)})


def load(name: str | Path, model: PreTrainedModel) -> tuple[nn.Module, Spec, Frozen]:
    """A trained head for this target, by name (in data/drafts) or path without suffix; in the target's dtype.

    Raises ValueError if the file is missing, damaged or truncated, or was trained for another target.
    """
    weights, card = _files(FOLDER / name if isinstance(name, str) else Path(name))
    facts, data = json.loads(card.read_text(encoding="utf-8")), weights.read_bytes()
    if hashlib.sha256(data).hexdigest() != facts["sha256"]:
        raise ValueError(
            f"{weights} is truncated or damaged (its SHA-256 is not the card's): restore or train it again"
        )
    if facts["target"] != fingerprint(model):
        raise ValueError(
            f"{weights.name} was trained for a target with fingerprint {facts['target']}, "
            f"this one has {fingerprint(model)}: train a head for it with `python -m specnb.training`"
        )
    tensors = load_tensors(data)
    ids = tensors.pop("ids").long()
    spec = Spec(**{f.name: facts["spec"][f.name] for f in fields(Spec)})
    head = MODULES[spec.kind](spec)
    head.load_state_dict(tensors)
    return exact_rotation(head.to(model.device, model.dtype)).eval(), spec, Frozen.of(model, ids)


def as_causal_lm(head: Vdm, spec: Spec, frozen: Frozen, *, reduced: bool = False) -> LlamaForCausalLM:
    """The vdm as a plain transformers model over the whole vocabulary, for ``generate(assistant_model=…)``.

    Its output has a bias that rules out tokens outside the reduced vocabulary; reduced leaves their rows out:
    (…, V_d) logits, one per id.
    """
    model = LlamaForCausalLM(Vdm.config(spec, len(frozen.embedding)))
    model.model.layers, model.model.norm = head.model.layers, frozen.norm
    model.model.embed_tokens.weight = nn.Parameter(frozen.embedding, requires_grad=False)
    if reduced:
        model.lm_head.weight = nn.Parameter(frozen.rows, requires_grad=False)
    else:
        bias = torch.full((len(frozen.embedding),), -1e4).index_fill_(0, frozen.ids.cpu(), 0.0)
        model.lm_head = nn.Linear(spec.width, len(frozen.embedding))
        rows = torch.zeros_like(frozen.embedding).index_copy_(0, frozen.ids, frozen.rows)
        model.lm_head.weight, model.lm_head.bias = (nn.Parameter(x, requires_grad=False) for x in (rows, bias))
    return exact_rotation(model.to(frozen.rows)).eval()


def exact_rotation(model: nn.Module) -> nn.Module:
    """Put the rotary frequencies of transformers' modules back to float32: ``.to(bf16)`` rounds them, ruinously."""
    for module in model.modules():
        if isinstance(module, LlamaRotaryEmbedding):
            module.inv_freq = LlamaRotaryEmbedding(module.config).inv_freq.to(module.inv_freq.device)
    return model
