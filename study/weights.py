"""What the name of a head stands for, and the hash by which a recording knows its weights.

A command takes three kinds of names:

    hass                                    a head of this project: a committed one in data/drafts
    drafts_of_X/drafts/hass                 the same in another folder: the path of its two files, without their suffix
    heads/my_eagle3                         a folder with a head in a published format
    yuhuili/EAGLE3-LLaMA3.1-Instruct-8B     such a folder on the model hub, OWNER/NAME

``heads.load_draft`` loads all of them. Here nothing is loaded or fetched, so that a mistyped name is told at once.
"""

import hashlib
from functools import cache
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from specnb import heads
from specnb.models import files

PAIR = "pair"  # the name that stands for the pair's own draft model, which is no trained head
FILES = (".safetensors", ".bin", ".pt", ".json", ".jinja", ".model", ".txt", ".gguf", ".py")  # of models and of heads


def folder_of(name: str) -> Path | None:
    """The folder of a head in a published format; None for a head of this project, and for one not fetched yet.

    A name of the hub has a folder once it has been fetched: the one that the hub's cache keeps.
    """
    if _is_own(str(heads.path(name))):
        return None
    if Path(name).is_dir():
        return Path(name)
    if not heads.published.is_of_hub(name):
        return None
    config = try_to_load_from_cache(name, "config.json")  # a path; or None, or an object that says it does not exist
    return Path(config).parent if isinstance(config, str) else None


def _is_own(name: str) -> bool:
    """Whether this project's two files of a head lie under a path. NAME may have dots in it, as names of the hub do."""
    return Path(f"{name}.safetensors").is_file() and Path(f"{name}.json").is_file()


def hash_of(name: str) -> str:
    """The hash of a head's weights as they are now.

    A head of this project is its one file of weights, a published one all files of its folder. A head of the hub that
    has not been fetched is known by its name alone. Raises ValueError, with the heads that there are, if a name stands
    for nothing.
    """
    folder = folder_of(name)
    if folder is not None:
        return folder_hash(folder)
    if heads.published.is_of_hub(name):
        return f"not fetched: {name}"
    return heads.hashes({name})[name]


def hashes(names: set[str]) -> dict[str, str]:
    """The hashes of several heads, by name. Raises ValueError as ``hash_of`` does."""
    return {name: hash_of(name) for name in sorted(names)}


def folder_hash(folder: Path) -> str:
    """A hash of the files of a model and its tokenizer in a folder, or of a head. It changes when one of them does."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in FILES:
            facts = path.stat()
            file_hash = _file_hash(path, facts.st_size, facts.st_mtime_ns)
            digest.update(f"{path.name} {file_hash}\n".encode())
    return digest.hexdigest()


@cache
def _file_hash(path: Path, size: int, changed: int) -> str:
    """A file's SHA-256. size and changed are here for the cache: the file is read again when one of them differs."""
    return files.sha256(path)
