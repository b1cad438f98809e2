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
        step = max(1, len(weight) // 64)
        rows = weight.detach()[::step].to("cpu", torch.bfloat16).contiguous()
        digest.update(name.encode())
        digest.update(rows.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def hashes(names: Iterable[str], folder: Path = FOLDER) -> dict[str, str]:
    """SHA-256 of trained heads' weights, by name: what recordings say of them. ValueError if one is missing."""
    digests = {}
    for name in sorted(set(names)):
        weights, _ = _weights_and_card(path(name, folder))
        digests[name] = files.sha256(weights)
    return digests


def path(name: str | Path, folder: Path = FOLDER) -> Path:
    """Where a head lies, without suffix: a bare name in a folder, a name with a slash in it, or a Path, as given."""
    if isinstance(name, Path) or "/" in name:
        return Path(name)
    return folder / name


def _weights_and_card(stem: Path) -> tuple[Path, Path]:
    """The two files of a trained head; ValueError naming the heads that are there, if one of the two is not.

    FileNotFoundError for a head of the repository, where specnb is installed without it.
    """
    files.in_checkout(stem)
    weights = stem.with_suffix(".safetensors")
    card = stem.with_suffix(".json")
    if not weights.exists() or not card.exists():
        known = sorted(file.stem for file in stem.parent.glob("*.safetensors"))
        names = ", ".join(known) or "none"
        raise ValueError(f"no trained head {stem.name!r} in {stem.parent}: known are {names}")
    return weights, card


def save(head: nn.Module, spec: Spec, ids: Tensor, card: dict, stem: Path) -> None:
    """Write STEM.safetensors (bf16) and its card STEM.json; on a full disk an earlier pair stays as it was.

    ids: (V_d,) the reduced vocabulary that the head predicts, kept beside its weights as int32. card: what else is to
    be said of the head; its spec and the weights' SHA-256 are added.
    """
    tensors = {}
    for name, weight in head.state_dict().items():
        tensors[name] = weight.detach().to("cpu", torch.bfloat16).contiguous()
    tensors["ids"] = ids.to("cpu", torch.int32)
    weights = save_tensors(tensors)
    card = {**card, "spec": asdict(spec), "sha256": hashlib.sha256(weights).hexdigest()}
    files.write_all({stem.with_suffix(".safetensors"): weights, stem.with_suffix(".json"): files.to_json(card)})


def load(name: str | Path, model: PreTrainedModel) -> tuple[nn.Module, Spec, Frozen]:
    """A trained head for this target, by name (in data/drafts) or path, see ``path``; in the target's dtype.

    Raises ValueError if the file is missing, damaged or truncated, or was trained for another target. A target in
    float16, whose weights are rounded otherwise, is taken unchecked: a wrong head would draft badly, nothing else.
    """
    weights_file, card_file = _weights_and_card(path(name))
    card = json.loads(card_file.read_text(encoding="utf-8"))
    weights = weights_file.read_bytes()
    if hashlib.sha256(weights).hexdigest() != card["sha256"]:
        raise ValueError(
            f"{weights_file} is truncated or damaged (SHA-256 is not the card's): restore or train it again"
        )
    if model.dtype != torch.float16:
        _check_target(weights_file, card["target"], fingerprint(model))

    tensors = load_tensors(weights)
    ids = tensors.pop("ids").long()
    spec = _spec_of(card)
    head = MODULES[spec.kind](spec)
    head.load_state_dict(tensors)
    head = exact_rotation(head.to(model.device, model.dtype))
    return head.eval(), spec, Frozen.of(model, ids)


def _check_target(weights_file: Path, trained_for: str, this_one: str) -> None:
    """ValueError if a head was trained for a target with another fingerprint."""
    if trained_for != this_one:
        raise ValueError(
            f"{weights_file.name} was trained for a target with fingerprint {trained_for}, this one has "
            f"{this_one}: train one for it, `python -m training train NAME --pair FOLDER_OR_NAME`"
        )


def _spec_of(card: dict) -> Spec:
    """The spec that a card holds; cards of the first generations do not say ``fused``, as no head had it."""
    settings = {"fused": (), **card["spec"]}
    settings["fused"] = tuple(settings["fused"])  # JSON has lists only
    return Spec(**{field.name: settings[field.name] for field in fields(Spec)})
