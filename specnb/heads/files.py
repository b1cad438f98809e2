"""Trained heads on disk: NAME.safetensors with its card NAME.json, bound to one target by its fingerprint."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from transformers import PreTrainedModel

from specnb.heads.modules import MODULES, Frozen, Spec, exact_rotation
from specnb.models import files

FOLDER = files.DATA / "drafts"


def fingerprint(model: PreTrainedModel) -> str:
    """A short name for a target's weights, the same in float32 and bf16: what a head was trained for.

    Evenly spaced rows of every matrix enter it, at least 64 where there are so many, so that any fine-tune has a name
    of its own.
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
    return {name: files.sha256(_files(path(name.partition("@")[0], folder))[0]) for name in sorted(set(names))}


def path(name: str | Path, folder: Path = FOLDER) -> Path:
    """Where a head lies, without suffix: a bare name in a folder, a name with a slash in it, or a Path, as given."""
    return Path(name) if isinstance(name, Path) or "/" in name else folder / name


def _files(path: Path) -> tuple[Path, Path]:
    """Weights and card of a trained head; ValueError naming the heads that are there, if they are not.

    FileNotFoundError for a head of the repository, where specnb is installed without it.
    """
    files.in_checkout(path)
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
    files.write_all({path.with_suffix(".safetensors"): data, path.with_suffix(".json"): files.to_json(card)})


def load(name: str | Path, model: PreTrainedModel) -> tuple[nn.Module, Spec, Frozen]:
    """A trained head for this target, by name (in data/drafts) or path, see ``path``; in the target's dtype.

    Raises ValueError if the file is missing, damaged or truncated, or was trained for another target. A target in
    float16, whose weights are rounded otherwise, is taken unchecked: a wrong head would draft badly, nothing else.
    """
    weights, card = _files(path(name))
    facts, data = json.loads(card.read_text(encoding="utf-8")), weights.read_bytes()
    if hashlib.sha256(data).hexdigest() != facts["sha256"]:
        raise ValueError(f"{weights} is truncated or damaged (SHA-256 is not the card's): restore or train it again")
    if model.dtype != torch.float16 and facts["target"] != fingerprint(model):
        raise ValueError(
            f"{weights.name} was trained for a target with fingerprint {facts['target']}, this one has "
            f"{fingerprint(model)}: train one for it, `python -m training train NAME --pair FOLDER_OR_NAME`"
        )
    tensors = load_tensors(data)
    ids = tensors.pop("ids").long()
    given = {"fused": (), **facts["spec"]}  # heads of the first generations do not say it
    spec = Spec(**{f.name: given[f.name] for f in fields(Spec)} | {"fused": tuple(given["fused"])})
    head = MODULES[spec.kind](spec)
    head.load_state_dict(tensors)
    return exact_rotation(head.to(model.device, model.dtype)).eval(), spec, Frozen.of(model, ids)
