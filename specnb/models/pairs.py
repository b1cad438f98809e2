"""Named target/draft pairs, device and dtype, tokenizer and chat template; the embedded model's fast copy."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as hf_logging

from specnb.models import files, packing

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


@dataclass(frozen=True)
class Pair:
    """A target, perhaps a draft model, and the tokenizer they share."""

    name: str
    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase

    def encode(self, text: str, *, chat: bool = True) -> list[int]:
        """Token ids of a user turn under the chat template up to the open answer, or of bare text."""
        if chat and self.tokenizer.chat_template:
            turn = [{"role": "user", "content": text}]
            text = self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
            return self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return self.tokenizer(text)["input_ids"]

    def decode(self, tokens) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def pieces(self, tokens) -> list[str]:
        """Each token's own text, spaces and line ends made visible: for labels in figures."""
        return [self.tokenizer.decode([t]).replace(" ", "␣").replace("\n", "⏎") for t in tokens]


def device() -> torch.device:
    """cuda when there, else cpu."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def dtype(name: str | torch.dtype) -> torch.dtype:
    """'bfloat16' for speed, 'float32' for exactness (also 'float16', 'float64')."""
    known = {"bfloat16", "float32", "float16", "float64"}
    if isinstance(name, torch.dtype):
        return name
    if name not in known:
        raise ValueError(f"unknown dtype {name!r}: known are {', '.join(sorted(known))}")
    return getattr(torch, name)


def check_name(name: str) -> None:
    """ValueError unless a name can be loaded: a key of PAIRS, a folder, or of a hub name's form, OWNER/MODEL."""
    if name not in PAIRS and "/" not in name and not Path(name).is_dir():
        raise ValueError(f"unknown pair {name!r}: known are {', '.join(PAIRS)}, hub names (OWNER/MODEL) and folders")


def load_pair(
    name: str = EMBEDDED,
    *,
    dtype: str | torch.dtype,
    device: str | torch.device | None = None,
    draft: str | None = None,
    packed: bool = False,
) -> Pair:
    """Load a target with its tokenizer, and a draft model if the pair has one.

    name: a key of PAIRS, a hub name or a local folder; draft: hub name or folder, in place of the pair's own.
    device: None takes cuda when there; "auto" spreads a large model over all GPUs.
    packed: lay the weights out for the CPU's bfloat16 kernels (``packing.pack``): same bits, faster.
    Raises ValueError if target and draft do not share a tokenizer or cannot be packed, OSError from transformers if a
    hub name cannot be reached.
    """
    check_name(name)
    where = globals()["device"]() if device is None else device
    kind = globals()["dtype"](dtype)
    target_name, draft_name = PAIRS.get(name, (name, None))
    draft_name = draft or draft_name
    target, tokenizer = _load(target_name, kind, where, packed)
    if draft_name is None:
        return Pair(name, target, None, tokenizer)
    draft_model, draft_tokenizer = _load(draft_name, kind, where, packed)
    check_tokenizers(tokenizer, draft_tokenizer, target_name, draft_name)
    return Pair(name, target, draft_model, tokenizer)


def check_tokenizers(a: PreTrainedTokenizerBase, b: PreTrainedTokenizerBase, name_a: str, name_b: str) -> None:
    """ValueError unless two tokenizers give the same ids to the same tokens."""
    left, right = a.get_vocab(), b.get_vocab()
    if left != right:
        moved = next((t for t in left if right.get(t) != left[t]), None) or next(t for t in right if t not in left)
        raise ValueError(
            f"{name_a} and {name_b} have different tokenizers ({len(left)} and {len(right)} tokens; for example "
            f"{moved!r} is {left.get(moved)} and {right.get(moved)}): choose a draft made for this target"
        )


def _load(name: str, kind: torch.dtype, where, packed: bool) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    folder = embedded_copy() if name == EMBEDDED else name
    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    placement = {"device_map": "auto"} if where == "auto" else {}
    try:
        hf_logging.set_verbosity_error()
        hf_logging.disable_progress_bar()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind, **placement)
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()
    model = (model if where == "auto" else model.to(where)).eval()
    return packing.pack(model) if packed else model, tokenizer


def embedded_copy() -> Path:
    """Folder with the embedded SmolLM2-135M-Instruct as a plain float32 checkpoint, made on first use.

    The public file is Q4_1-quantised GGUF. It is de-quantised once (about 15 s) and saved with a manifest of
    SHA-256 sums, which is checked at every load: ValueError, naming the file, if the copy was damaged.
    """
    asset = files.SMOLLM2_GGUF
    folder = files.cache_dir() / "models" / f"{EMBEDDED}-{asset.sha256[:12]}"
    files.once(folder, lambda: _dequantise(files.fetch(asset), folder))
    damaged = _damaged(folder)
    if damaged:
        raise ValueError(
            f"{folder / damaged} is missing or corrupted: "
            f"delete the folder {folder} and run `python -m specnb.models` again"
        )
    return folder


def _damaged(folder: Path) -> str | None:
    """The first file of a model copy that is not what the manifest says it was."""
    try:
        sums = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError):
        return "manifest.json"
    bad = (name for name in sums if not (folder / name).exists() or files.sha256(folder / name) != sums[name])
    return next(bad, None) if sums else "manifest.json"


def _dequantise(gguf: Path, folder: Path) -> None:
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # A GGUF-loaded model is marked as quantised and refuses to be saved: move the weights into a plain one.
    config = type(quantised.config).from_dict(
        {k: v for k, v in quantised.config.to_dict().items() if k != "quantization_config"}
    )
    plain = type(quantised)(config)
    plain.load_state_dict(quantised.state_dict())
    plain.generation_config = quantised.generation_config
    part = folder.with_name(f"part-{folder.name}-{os.getpid()}")
    try:
        plain.save_pretrained(part)
        tokenizer.save_pretrained(part)
        sums = {file.name: files.sha256(file) for file in sorted(part.iterdir())}
        (part / "manifest.json").write_text(json.dumps(sums, indent=1))
        os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
