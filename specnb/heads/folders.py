"""Published checkpoints: their config.json and the tensors of their safetensors files, read key by key.

A checkpoint of a large target has hundreds of gigabytes in many files. A head inside it is a few keys of them, so only
the files with these keys are opened.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from safetensors import safe_open
from torch import Tensor, nn

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHOWN = 4  # keys that an error message lists


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has been opened: what it is called, what it says of itself, and what it contains.

    name: for error messages.
    config: the content of its config.json; {} if only tensors were given.
    keys: the names of its tensors.
    read: takes names, and returns a dictionary with their tensors.
    """

    name: str
    config: dict
    keys: frozenset[str]
    read: Callable[[Iterable[str]], dict[str, Tensor]]


def checkpoint(source: str | Path | Mapping[str, Tensor]) -> Checkpoint:
    """Open a checkpoint: a folder, a name on the hub, or a state dict.

    Raises ValueError if it is none of these, and if a folder has no safetensors files.
    """
    if isinstance(source, Mapping):
        tensors = dict(source)
        return Checkpoint(
            "the state dict", {}, frozenset(tensors), lambda names: {name: tensors[name] for name in names}
        )

    config_file = _file(source, "config.json")
    config = json_object(config_file) if config_file else {}
    file_of = _files_by_key(source)

    def read(names: Iterable[str]) -> dict[str, Tensor]:
        tensors = {}
        for name in names:
            path = _file(source, file_of[name])
            if path is None:
                raise ValueError(f"{source} has no {file_of[name]}, which its index lists: download it again")
            with safe_open(path, framework="pt") as opened:
                tensors[name] = opened.get_tensor(name)
        return tensors

    return Checkpoint(str(source), config, frozenset(file_of), read)


def json_object(file: Path) -> dict:
    """What a file such as config.json says; ValueError if it is not a JSON object."""
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from error
    if not isinstance(said, dict):
        raise ValueError(f"{file} must be a JSON object, it is a {type(said).__name__}")
    return said


def _file(source: str | Path, name: str) -> Path | None:
    """The path of a file of a folder, or of a repository of the hub; None if it has no such file.

    Raises ValueError if the source is neither a folder nor the name of a repository that can be reached.
    """
    folder = Path(source)
    if folder.is_dir():
        path = folder / name
        return path if path.exists() else None
    try:
        return Path(hf_hub_download(str(source), name))
    except (LocalEntryNotFoundError, RepositoryNotFoundError, HFValidationError) as error:
        raise ValueError(f"{str(source)!r} is no folder here, and no hub name that can be reached: {error}") from error
    except EntryNotFoundError:
        return None


def _files_by_key(source: str | Path) -> dict[str, str]:
    """Each tensor's name → the file with it. A large checkpoint lists them in an index."""
    index = _file(source, INDEX)
    if index is not None:
        return json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    single = _file(source, SINGLE)
    if single is None:
        raise ValueError(f"{source} has neither {SINGLE} nor {INDEX}: expected a checkpoint in safetensors files")
    with safe_open(single, framework="pt") as opened:
        return dict.fromkeys(opened.keys(), SINGLE)


def listed(names: Iterable[str]) -> str:
    """Some names for an error message: the first few, and how many more there are."""
    names = sorted(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def fill(module: nn.Module, tensors: Mapping[str, Tensor], name: str) -> None:
    """Make these tensors the module's: all that it has, and none besides. It may have been made on the device "meta".

    name: of the checkpoint, for errors.

    Raises ValueError that names the tensors which are missing, unexpected or of another shape.
    """
    expected = module.state_dict()
    faults = []
    missing = expected.keys() - tensors.keys()
    if missing:
        faults.append(f"lacks {listed(missing)}")
    unexpected = tensors.keys() - expected.keys()
    if unexpected:
        faults.append(f"has {listed(unexpected)}, which this kind does not")
    if any("scale" in key for key in unexpected):
        faults.append("is quantised (scales beside its weights): only plain weights are read here")
    for key in sorted(expected.keys() & tensors.keys()):
        found, wanted = tuple(tensors[key].shape), tuple(expected[key].shape)
        if found != wanted:
            faults.append(f"has {key} of shape {found}, expected {wanted}")
    if faults:
        raise ValueError(f"{name}: the head " + "; it ".join(faults))
    module.load_state_dict(dict(tensors), assign=True)
    module.eval().requires_grad_(False)
