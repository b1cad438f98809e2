"""specnb: tree-based speculative decoding, one tree and one target forward at a time.

Every method is a tree that rides one target forward pass: a drafter proposes it, the target scores all of its
nodes at once under an ancestor mask, a verifier elects a path and one more token, the cache keeps that path.
The loop is the eight files beside this one; the rooms around it say in their __init__ what they hold.
Throughout, p is the target's distribution and q the draft's.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

import platformdirs

__version__ = "0.1.0"


def cache_dir() -> Path:
    """The folder that holds what is fetched or computed once: $SPECNB_CACHE, else the platform's user cache."""
    return Path(os.environ.get("SPECNB_CACHE") or platformdirs.user_cache_dir("specnb"))


def late(room: str, **names: str):
    """A room's __getattr__ and __dir__: the names each of its files gives it; a file is imported when first asked for.

    So that a command line can be read, and its mistakes be told, before torch and transformers are there.
    """
    homes = {name: file for file, listed in names.items() for name in (file, *listed.split())}

    def found(name: str):
        if name not in homes:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        module = import_module(f"{room}.{homes[name]}")
        return module if name == homes[name] else getattr(module, name)

    return found, lambda: sorted({*vars(sys.modules[room]), *homes})
