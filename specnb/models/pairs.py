"""Named target/draft pairs, device and dtype, tokenizer and chat template; the embedded model's fast copy."""

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

BLOCK = 64  # tokens that ``Pair.pieces`` reads at once
AROUND = 8  # and as many more before them and after them


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
            return self.tokenizer(self._as_turn(text), add_special_tokens=False)["input_ids"]
        return self.tokenizer(text)["input_ids"]

    def _as_turn(self, text: str) -> str:
        """A user turn under the chat template; some templates want the text as a list of parts, others as it is."""
        for content in (text, [{"type": "text", "text": text}]):
            turn = [{"role": "user", "content": content}]
            said = self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
            if text.strip() in said:
                return said
        raise ValueError(f"the chat template of {self.name} drops the user's text: give chat=False or token ids")

    def decode(self, tokens) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True)

    def pieces(self, tokens) -> list[str]:
        """Each token's share of the text, spaces and line ends made visible; joined they are the text.

        A share is what the token adds to the text of those before it: many tokenizers drop the first space of a text,
        so that no token can be read alone. Where a character is spread over tokens, the one that completes it has it
        and the others are empty; bytes that nothing completes show as "�".
        """
        ids = [int(token) for token in tokens]
        shares: list[str] = []
        for start in range(0, len(ids), BLOCK):  # the tokens around a block settle what its first and last ones share
            before = max(start - AROUND, 0)
            around = ids[before : start + BLOCK + AROUND]
            of_block = self._shares(around)[start - before :]
            shares += of_block[:BLOCK]
        return [share.replace(" ", "␣").replace("\n", "⏎") for share in shares]

    def _shares(self, ids: list[int]) -> list[str]:
        """What each token adds to the text; joined they are the text.

        A token whose text so far is not how the whole begins ends within a character, and adds nothing yet. Example: of
        two tokens that are the two bytes of "é" the first one's text is "�", so the shares are "" and "é".
        """
        texts_so_far = [self.tokenizer.decode(ids[: end + 1]) for end in range(len(ids))]
        whole = texts_so_far[-1]
        shares: list[str] = []
        shared = 0  # characters of the whole that tokens have by now
        for text in texts_so_far:
            end = shared
            if whole.startswith(text):
                end = max(shared, len(text))
            shares.append(whole[shared:end])
            shared = end
        return shares


@torch.no_grad()
def generate(pair: Pair, ids: Sequence[int], length: int, *, whole: bool = False, **options) -> list[int]:
    """New tokens of transformers' generate, greedy unless options say more; whole: end tokens are text.

    Of the model's own generation config only the end of text counts: no penalty or filter that our loop does not have.
    """
    config = pair.target.generation_config
    end = config.eos_token_id
    if whole:
        end = max(output_rows(pair.target), len(pair.tokenizer))  # an id that never comes: the model has no row for it
    model = copy(pair.target)  # the same weights, without its own config, which may carry penalties
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=config.pad_token_id)
    prompt = torch.tensor([token_ids(ids)], device=device_of(model))
    settings = {"do_sample": False, "max_new_tokens": length, "attention_mask": torch.ones_like(prompt), **options}
    written = model.generate(prompt, **settings)  # (1, prompt and new tokens)
    return written[0, prompt.shape[1] :].tolist()


def best_device() -> torch.device:
    """cuda when there, else cpu."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def as_dtype(name: str | torch.dtype) -> torch.dtype:
    """A dtype by its name: 'bfloat16' for speed, 'float32' for exactness (also 'float16', 'float64')."""
    known = {"bfloat16", "float32", "float16", "float64"}
    if isinstance(name, torch.dtype):
        return name
    if name not in known:
        raise ValueError(f"unknown dtype {name!r}: known are {', '.join(sorted(known))}")
    return getattr(torch, name)


def check_name(name: str) -> None:
    """ValueError unless a name can be loaded: a key of PAIRS, a folder, or of a hub name's form, OWNER/MODEL."""
    is_of_the_hubs_form = re.fullmatch(r"\w[\w.-]*/[\w.-]+", str(name))
    if name not in PAIRS and not Path(name).is_dir() and not is_of_the_hubs_form:
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

    name: a key of PAIRS, a hub name or a local folder; draft: likewise, in place of the pair's own.
    dtype: None takes bfloat16 on a device that has kernels for it, else float32, packed on a CPU, and says which.
    device: None takes cuda when there; "auto" spreads a large model over all GPUs.
    packed: lay the weights out for the CPU's kernels (``packing.pack``): the same, faster; not for quantised weights.
    check: whether the target scores trees as it scores their paths, by ``Target.check``: None tries it once and is
    silent if it passes (``selfcheck.check_once``), True tries it now and says how exactly, False does not try.
    Raises ValueError on a name that is none, if target and draft do not share a tokenizer or cannot be packed, or a
    check fails; OSError if a model cannot be fetched or read.
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
    """Whether a model's weights are quantised, which cannot be packed: by its configuration, in a folder or the hub."""
    if name == EMBEDDED:
        return False
    if Path(name).is_dir():
        config = Path(name) / "config.json"
    else:
        try:
            config = Path(hf_hub_download(name, "config.json", etag_timeout=10))
        except OSError:
            return False  # why it cannot be fetched is told when the model is loaded
    return config.exists() and "quantization_config" in json.loads(config.read_text(encoding="utf-8"))


def fastest_dtype(where: str | torch.device) -> tuple[str, bool]:
    """The fastest dtype that is exact enough on a device, and whether to pack the weights for it."""
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
    ids_a = a.get_vocab()  # token → id
    ids_b = b.get_vocab()
    if ids_a == ids_b:
        return
    unlike = [token for token in (*ids_a, *ids_b) if ids_a.get(token) != ids_b.get(token)]
    example = unlike[0]
    raise ValueError(
        f"{name_a} and {name_b} have different tokenizers ({len(ids_a)} and {len(ids_b)} tokens; for example "
        f"{example!r} is {ids_a.get(example)} and {ids_b.get(example)}): choose a draft made for this target"
    )


def _load(name: str, kind: torch.dtype, where, packed: bool | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
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
    """OSError if a checkpoint lacks weights of the model, which would then be random; report: from_pretrained's."""
    lacking = sorted(report.get("missing_keys", ()))
    mismatched = [entry if isinstance(entry, str) else entry[0] for entry in report.get("mismatched_keys", ())]
    for what, names in (("lacks", lacking), ("has in another shape", sorted(mismatched))):
        if names:
            hint = ""
            others = sorted(report.get("unexpected_keys", ()))
            if others:
                hint = f"; it has {others[0]}, which the model does not know"
            raise OSError(f"{name} {what} {len(names)} of the model's weights, {names[0]} for example{hint}")


def _reach(name: str) -> None:
    """Say that a model is fetched, unless it is in the hub's cache; OSError, before all retries, where it cannot be."""
    if try_to_load_from_cache(name, "config.json"):
        return
    print(f"fetching {name} from the Hugging Face hub …", flush=True)
    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=10)
    except Exception as error:  # of several libraries
        raise OSError(
            f"{name} is no folder here and the Hugging Face hub does not give it ({type(error).__name__}): check "
            f"the name, your access to it and the network, or load a local folder or {EMBEDDED}"
        ) from error


def embedded_copy() -> Path:
    """Folder with the embedded SmolLM2-135M-Instruct as a plain float32 checkpoint, made on first use.

    The public file is Q4_1-quantised GGUF. It is de-quantised once (about 15 s) and saved with a manifest of
    SHA-256 sums, which is checked at every load: ValueError, naming the file, if the copy was damaged.
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
    """The first file of a model copy that is not what the manifest says it was."""
    try:
        sums = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError):
        return "manifest.json"
    if not sums:
        return "manifest.json"
    for name, right in sums.items():
        if not (folder / name).exists() or files.sha256(folder / name) != right:
            return name
    return None


def _dequantise(gguf: Path, folder: Path) -> None:
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # A GGUF-loaded model is marked as quantised and refuses to be saved: move the weights into a plain one.
    config = quantised.config.to_dict()
    config.pop("quantization_config", None)
    plain = type(quantised)(type(quantised.config).from_dict(config))
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
