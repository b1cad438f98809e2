"""Trained draft heads on disk: NAME.safetensors, and a card NAME.json that binds the head to one target.

A head is a small module that drafts for one frozen target; its weights mean nothing to another one. Its card is a
dictionary of facts about it: among them the target's fingerprint, the head's spec and the SHA-256 of its weights.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor, nn
from transformers import PreTrainedModel

from specnb.heads import published
from specnb.heads.modules import MODULES, Frozen, Spec, exact_rotation
from specnb.models import files as model_files

FOLDER = model_files.DATA / "drafts"


def fingerprint(model: PreTrainedModel) -> str:
    """A short name for a target's weights: 16 hexadecimal digits of a SHA-256, the same in float32 and in bfloat16.

    It is computed from evenly spaced rows of every weight, in bfloat16: all rows where there are fewer than 128, else
    64 to 96 of them. A fine-tuned model has another name unless it differs in none of these rows. An adapter
    that changes every matrix is noticed; a change of a few tokens' embeddings may not be.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        step = max(1, len(weight) // 64)
        rows = weight.detach()[::step].to("cpu", torch.bfloat16).contiguous()
        digest.update(name.encode())
        digest.update(rows.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def hashes(names: Iterable[str], folder: Path = FOLDER) -> dict[str, str]:
    """SHA-256 of the weights of trained heads, by name, as recordings contain it. ValueError if a head is missing."""
    digests = {}
    for name in sorted(set(names)):
        public = _published(name, folder)
        weights = published.weights_file(public) if public else _weights_and_card(path(name, folder))[0]
        digests[name] = model_files.sha256(weights)
    return digests


def _published(name: str | Path, folder: Path = FOLDER) -> Path | None:
    """The folder of a published head of this name; None if there are files of our own under it, or nothing."""
    if path(name, folder).with_suffix(".safetensors").exists():
        return None
    return published.find(name)


def path(name: str | Path, folder: Path = FOLDER) -> Path:
    """The path of a head's files, without their suffix.

    A bare name is looked up in the folder; a name with a slash in it, or a Path, is taken as given.
    """
    if isinstance(name, Path) or "/" in name:
        return Path(name)
    return folder / name


def _weights_and_card(stem: Path) -> tuple[Path, Path]:
    """The two files of a trained head. Raises ValueError, with the names of the heads that exist, if one is missing.

    Raises FileNotFoundError for a head of the repository, where specnb is installed without it.
    """
    model_files.in_checkout(stem)  # called only for its error
    weights = stem.with_suffix(".safetensors")
    card = stem.with_suffix(".json")
    if not weights.exists() or not card.exists():
        known = sorted(file.stem for file in stem.parent.glob("*.safetensors"))
        names = ", ".join(known) or "none"
        if stem.is_dir():
            raise ValueError(f"the folder {stem} has no config.json, which a published head has")
        raise ValueError(
            f"no trained head {stem.name!r} in {stem.parent}: known are {names}. A head that others have published is "
            f"named by its folder, or as OWNER/NAME on the hub"
        )
    return weights, card


def save(head: nn.Module, spec: Spec, ids: Tensor, card: dict, stem: Path) -> None:
    """Write STEM.safetensors (bfloat16) and its card STEM.json; on a full disk, earlier files stay as they were.

    ids: (V_d,) the reduced vocabulary that the head predicts; it is saved beside the weights, as int32.
    card: more facts about the head. ``load`` needs card["target"], the ``fingerprint`` of the target that the head was
        trained for; it is not added here. The spec and the SHA-256 of the weights are added.
    """
    tensors = {}
    for name, weight in head.state_dict().items():
        tensors[name] = weight.detach().to("cpu", torch.bfloat16).contiguous()
    tensors["ids"] = ids.to("cpu", torch.int32)
    weights = tensors_to_bytes(tensors)
    card = {**card, "spec": asdict(spec), "sha256": hashlib.sha256(weights).hexdigest()}
    content = {stem.with_suffix(".safetensors"): weights, stem.with_suffix(".json"): model_files.to_json(card)}
    model_files.write_all(content)


def load(
    name: str | Path, model: PreTrainedModel, *, layers: Sequence[int] | None = None
) -> tuple[nn.Module, Spec, Frozen]:
    """Load a trained head for this target, in the target's dtype and on its device.

    name: a bare name in data/drafts, or a path; see ``path``. Or a head that others have published, see ``published``:
        a folder with config.json, or a repository of the Hugging Face hub as "owner/name".
    layers: the states that a published EAGLE-3 head reads, if they are not those that its config says.

    Returns the head as a module, its spec, and the frozen parts that it borrows from the target. Raises ValueError if
    a file is missing, damaged or truncated, or if the head was trained for another target. A target in float16 is not
    checked, because its weights are rounded differently; a wrong head would draft badly, and the texts stay right.
    A published head does not say which weights it was trained for: ``published.load`` says what is checked instead.
    """
    folder = _published(name)
    if folder is not None:
        return published.load(folder, model, layers=layers)
    if layers is not None:
        raise ValueError(f"layers is for published heads of EAGLE-3, and {name} is none")
    weights_file, card_file = _weights_and_card(path(name))
    card = json.loads(card_file.read_text(encoding="utf-8"))
    weights = weights_file.read_bytes()
    if hashlib.sha256(weights).hexdigest() != card["sha256"]:
        raise ValueError(
            f"{weights_file} is truncated or damaged (SHA-256 is not the card's): restore or train it again"
        )
    if model.dtype != torch.float16:
        _check_target(weights_file, card["target"], fingerprint(model))

    tensors = tensors_from_bytes(weights)
    ids = tensors.pop("ids").long()
    spec = _spec_of(card)
    head = MODULES[spec.kind](spec)
    head.load_state_dict(tensors)
    head = exact_rotation(head.to(model.device, model.dtype))  # rotary frequencies stay in float32
    return head.eval(), spec, Frozen.of(model, ids)


def _check_target(weights_file: Path, trained_for: str, this_one: str) -> None:
    """ValueError if a head was trained for a target with another fingerprint."""
    if trained_for != this_one:
        raise ValueError(
            f"{weights_file.name} was trained for a target with fingerprint {trained_for}, this one has "
            f"{this_one}: train one for it, `python -m training train NAME --pair FOLDER_OR_NAME`"
        )


def _spec_of(card: dict) -> Spec:
    """The spec that a card contains. Fields that an older card does not have keep their defaults."""
    known = {field.name for field in fields(Spec)}
    settings = {}
    for name, value in card["spec"].items():
        if name in known:  # a card may be of a version whose Spec had more fields: those are dropped
            settings[name] = tuple(value) if isinstance(value, list) else value  # JSON has no tuples
    return Spec(**settings)
