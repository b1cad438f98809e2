"""What the target says about the corpus, computed once and shared by all heads: arrays in the cache.

For every token x_t of every dialogue (template included): the target's hidden states, and its law of the next
token over the reduced vocabulary as a *soft row* e_t = Σ_x p(x | x_≤t) w_x, the expected output row. With frozen
output rows W, the cross-entropy of a draft state h against p needs no more: log Σ exp(W h) − e_t · h. Soft rows are
float32, from the very rows that training uses: where all logits shift alike this loss is flat only if e_t is exact,
and a draft state without a norm behind it grows without end along what rounding e_t to bf16 leaves (measured: to fifty
times a state's length, at a loss below zero).
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from filelock import FileLock
from torch import Tensor
from tqdm.auto import tqdm

from specnb import heads, models
from specnb.models import files
from specnb.training import writing

CHUNK = 256  # dialogues
TOP = 10  # the teacher's likeliest tokens kept for HASS's loss and for agreement


def vocabulary(dialogues: Sequence[writing.Dialogue], size: int) -> Tensor:
    """(size,) int64, rising: the tokens that occur most often in the dialogues; ties go to the smaller id.

    Questions count as well: answers take up their words, and a word of a new question is likelier one of other
    questions than one of other answers.
    """
    if size > 32_767:
        raise ValueError(f"a reduced vocabulary holds at most 32767 tokens (columns are kept as int16), got {size}")
    counts = np.bincount([t for d in dialogues for t in (*d.question, *d.answer)])
    if (counts > 0).sum() < size:
        raise ValueError(f"the corpus has only {(counts > 0).sum()} different tokens, {size} were asked for")
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:size]))


@dataclass(frozen=True, eq=False)
class Features:
    """N tokens of n dialogues, end to end; dialogue i is start[i]:start[i + 1] and its answer begins at answer[i].

    tokens: (N,) int64; hidden: layer → (N, width) bf16; soft: (N, width) float32, the soft rows e;
    best, best_p: (N, TOP) columns and probabilities of the likeliest next tokens, over the reduced vocabulary.
    """

    tokens: Tensor
    start: Tensor
    answer: Tensor
    hidden: dict[int, Tensor]
    soft: Tensor
    best: Tensor
    best_p: Tensor

    def __len__(self) -> int:
        return len(self.answer)


@torch.no_grad()
def compute(
    pair: models.Pair,
    frozen: heads.Frozen,
    texts: Sequence[tuple[Sequence[int], Sequence[int]]],
    layers: Sequence[int],
    *,
    batch_tokens: int = 2048,
) -> Features:
    """Run the target over (prompt, answer) token sequences and keep what heads need, as arrays in the cache.

    Texts go to the disk in runs of CHUNK, each computed once for the same target and vocabulary, so that a grown
    corpus only adds to them. All arrays are then read into memory: 2 · width bytes a token for each layer, 4 · width
    for the soft row, and 40 more. OSError if the disk has no room.
    """
    full = [[*prompt, *answer] for prompt, answer in texts]
    base = json.dumps([heads.fingerprint(pair.target), str(frozen.rows.dtype), frozen.ids.tolist()])
    found: dict[str, list[Tensor]] = {}
    for begin in tqdm(range(0, len(full), CHUNK), unit="chunk", desc="features", disable=files.QUIET):
        for name, array in _chunk(pair, frozen, full[begin : begin + CHUNK], layers, base, batch_tokens).items():
            found.setdefault(name, []).append(torch.from_numpy(array))
    joined = {name: torch.cat(parts) for name, parts in found.items()}
    start = np.concatenate([[0], np.cumsum([len(s) for s in full])])
    return Features(
        tokens=torch.tensor([t for s in full for t in s]),
        start=torch.from_numpy(start),
        answer=torch.tensor([int(b) + len(p) for b, (p, _) in zip(start, texts, strict=False)]),
        hidden={layer: joined[f"hidden{layer}"].view(torch.bfloat16) for layer in layers},
        soft=joined["soft"],
        best=joined["best"],
        best_p=joined["best_p"].view(torch.bfloat16),
    )


def _chunk(pair, frozen, full, layers, base: str, batch_tokens: int) -> dict[str, np.ndarray]:
    """Arrays of some token sequences, end to end: computed, or opened if an earlier run has completed them."""
    start = np.concatenate([[0], np.cumsum([len(s) for s in full])])
    key = hashlib.sha256(f"{base} {start.tolist()} {full}".encode()).hexdigest()[:16]
    folder, width, n = files.cache_dir() / "features" / key, frozen.rows.shape[1], int(start[-1])
    shapes = {f"hidden{layer}": (n, width) for layer in layers} | {
        "soft": (n, width), "best": (n, TOP), "best_p": (n, TOP)
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        missing = {name: shape for name, shape in shapes.items() if not (folder / f"{name}.done").exists()}
        if missing:
            types = {name: np.float32 if name == "soft" else np.int16 for name in missing}
            arrays = {name: _room_for(folder / f"{name}.npy", types[name], shape) for name, shape in missing.items()}
            _fill(pair, frozen, full, start, layers, arrays, batch_tokens)
            for name, array in arrays.items():
                array.flush()
                files.write(folder / f"{name}.done", "")
    return {name: np.load(folder / f"{name}.npy", mmap_mode="c") for name in shapes}


def _room_for(path: Path, dtype: type, shape: tuple[int, int]) -> np.memmap:
    """A new array file whose blocks are on the disk already: writing to it cannot run out of room later."""
    array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    try:
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError:
        path.unlink()
        raise
    return array


def _fill(pair, frozen, full, start, layers, arrays, batch_tokens: int) -> None:
    """All sequences through the target, longest first, into the arrays."""
    order = sorted(range(len(full)), key=lambda i: len(full[i]))
    while order:
        longest = len(full[order[-1]])
        rows = [order.pop() for _ in range(min(len(order), max(1, batch_tokens // longest)))]
        _run(pair, frozen, [full[i] for i in rows], [int(start[i]) for i in rows], layers, arrays)


def _run(pair, frozen, sequences, starts, layers, arrays) -> None:
    """One right-padded batch through the target; its rows go to their places in the arrays."""
    ids = torch.zeros(len(sequences), max(map(len, sequences)), dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
    out = pair.target.base_model(ids.to(pair.target.device), output_hidden_states=True, use_cache=False)
    exact = frozen.rows.float()
    for row, (sequence, begin) in enumerate(zip(sequences, starts, strict=True)):
        place, last = slice(begin, begin + len(sequence)), out.hidden_states[-1][row, : len(sequence)]
        law = F.linear(last, frozen.rows).float().softmax(-1)  # (n, V_d)
        best_p, best = law.topk(TOP)
        found = {f"hidden{layer}": out.hidden_states[layer][row, : len(sequence)] for layer in layers}
        found["best_p"] = best_p
        found = {name: value.to("cpu", torch.bfloat16).contiguous().view(torch.int16) for name, value in found.items()}
        found |= {"best": best.to("cpu", torch.int16), "soft": (law @ exact).cpu()}
        for name, array in arrays.items():
            array[place] = found[name].numpy()
