"""specnb: tree-based speculative decoding, one tree and one target forward at a time.

Every method is a tree that rides one target forward pass: a drafter proposes it, the target scores all of its
nodes at once under an ancestor mask, a verifier elects a path and one more token, the cache keeps that path.
The loop is the eight files beside this one; the rooms around it say in their __init__ what they hold; ``one_call``
puts them together for a newcomer: ``specnb.generate("Name three rivers.")``.
Throughout, p is the target's distribution and q the draft's.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

if TYPE_CHECKING:
    from specnb.one_call import Answer, custom_generate, generate

__version__ = "0.1.0"
__all__ = ["Answer", "cache_dir", "custom_generate", "generate"]


def cache_dir() -> Path:
    """The folder that holds what is fetched or computed once: $SPECNB_CACHE, else the platform's user cache."""
    return Path(os.environ.get("SPECNB_CACHE") or platformdirs.user_cache_dir("specnb"))


def __getattr__(name: str):
    """The names of ``one_call``, imported when first asked for: torch and transformers take seconds."""
    if name not in ("Answer", "custom_generate", "generate"):
        raise AttributeError(f"module 'specnb' has no attribute {name!r}")
    from specnb import one_call

    return getattr(one_call, name)
