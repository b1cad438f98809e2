"""Models and prompts: files fetched and kept, target/draft pairs by name, prompt sets.

``pairs`` loads a model with its tokenizer (``load_pair``); ``prompts`` has the prompt sets; ``packing`` lays weights
out for the CPU's matrix kernels; ``graphs`` captures forward passes (CUDA graphs) and replays them; ``invariant`` makes
forwards whose bits do not depend on the tree; ``windows`` evicts old tokens from a cache (StreamingLLM); ``files`` and
``provenance`` fetch, write and sign files.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors; at run time a file is imported when one of its names is first asked for, see below
    from specnb.models import files, graphs, invariant, packing, pairs, prompts, provenance, windows
    from specnb.models.graphs import Graphs
    from specnb.models.invariant import Invariant
    from specnb.models.packing import PackedLinear, pack
    from specnb.models.pairs import (
        Pair, as_dtype, best_device, check_name, fastest_dtype, generate, load_pair, quantised,
    )  # fmt: skip
    from specnb.models.windows import Window

EMBEDDED = "smollm2-135m"

# name → (target, draft or None). The papers' pairs load by hub name and need a connection and, most, a GPU.
PAIRS: dict[str, tuple[str, str | None]] = {
    EMBEDDED: (EMBEDDED, None),
    "pythia-2.8b": ("EleutherAI/pythia-2.8b", "EleutherAI/pythia-70m"),  # DynaTree
    "llama2-7b": ("meta-llama/Llama-2-7b-chat-hf", "JackFram/llama-68m"),  # Traversal
    "llama3.1-8b": ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"),  # Traversal
    "qwen2.5-7b": ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),  # PTD
    "qwen2.5-14b": ("Qwen/Qwen2.5-14B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
    "qwen2.5-32b": ("Qwen/Qwen2.5-32B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
    "vicuna-7b": ("lmsys/vicuna-7b-v1.3", "double7/vicuna-68m"),  # EDD, EAGLE
}

FILES = ("files", "graphs", "invariant", "packing", "pairs", "prompts", "provenance", "windows")
HOMES = {  # public name → the file that has it
    "Graphs": "graphs",
    "Invariant": "invariant",
    "PackedLinear": "packing",
    "pack": "packing",
    "Pair": "pairs",
    "as_dtype": "pairs",
    "best_device": "pairs",
    "check_name": "pairs",
    "fastest_dtype": "pairs",
    "generate": "pairs",
    "load_pair": "pairs",
    "quantised": "pairs",
    "Window": "windows",
}


def __getattr__(name: str):
    """A file or one of its names. So a command line can be read, and its mistakes be told, before torch is there."""
    if name in FILES:
        return import_module(f"{__name__}.{name}")
    if name in HOMES:
        return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *FILES, *HOMES})
