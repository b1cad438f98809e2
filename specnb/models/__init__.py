"""Models and prompts: files fetched and kept, target/draft pairs by name, prompt sets.

``pairs`` loads a model with its tokenizer (``load_pair``); ``prompts`` has the prompt sets; ``packing`` lays weights
out for the CPU's matrix kernels; ``graphs`` records forward passes (CUDA graphs); ``invariant`` makes forwards whose
bits do not depend on the tree; ``windows`` evicts old tokens from a cache (StreamingLLM); ``files`` and ``provenance``
fetch, write and sign files.
"""

from specnb import late

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

__getattr__, __dir__ = late(
    __name__, files="", prompts="", provenance="", graphs="Graphs", invariant="Invariant", packing="PackedLinear pack",
    pairs="Pair check_name device dtype fastest generate load_pair quantised", windows="Window",
)  # fmt: skip
