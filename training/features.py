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
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from filelock import FileLock
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm

from specnb import heads, models
from specnb.models import files
from training import hints, writing

CHUNK = 256  # dialogues
BATCH = 2048  # padded tokens in a forward pass
TOP = 10  # the teacher's likeliest tokens kept for HASS's loss and TALF's trees

Text = tuple[Sequence[int], Sequence[int]]  # prompt and answer


def vocabulary(dialogues: Sequence[writing.Dialogue], size: int) -> Tensor:
    """(size,) int64, rising: the tokens that occur most often in the dialogues; ties go to the smaller id.

    Questions count as well: answers take up their words, and a word of a new question is likelier one of other
    questions than one of other answers.
    """
    counts = np.bincount([t for d in dialogues for t in (*d.question, *d.answer)])
    if (counts > 0).sum() < size:
        there = (counts > 0).sum()
        raise ValueError(f"the corpus has only {there} different tokens, {size} were asked for: --vocabulary {there}")
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:size]))


class Pieces:
    """(N, …) rows in pieces that stay where they are, mapped from the disk: more of them than memory holds.

    Read by a slice that lies in one piece, as a dialogue does, or by an index (n,) of rows.
    """

    def __init__(self, pieces: Sequence[Tensor]):
        self.pieces, self.ends = list(pieces), np.cumsum([len(piece) for piece in pieces]).tolist()

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        if isinstance(rows, Tensor):
            return torch.cat([self[row : row + 1] for row in rows.tolist()])
        which = bisect_right(self.ends, rows.start)
        begin = self.ends[which - 1] if which else 0
        return self.pieces[which][rows.start - begin : rows.stop - begin]


@dataclass(frozen=True, eq=False)
class Branches:
    """Trees of two levels of k nodes at m roots in each of B dialogues: TALF's, or any tokens of interest.

    dialogues: (B,) index; roots: (B, m) rows of the roots, counted from the dialogue's start;
    tokens: (B, 2, m, k) token ids; parents: (B, m, k) which of the first level's nodes each of the second hangs on;
    soft: (B, 2, m, k, width) float32, the soft row of the target's law after each node.
    k may be 0: roots alone.
    """

    dialogues: Tensor
    roots: Tensor
    tokens: Tensor
    parents: Tensor
    soft: Pieces | Tensor

    def of(self, rows: Sequence[int], device: torch.device) -> "Branches":
        """Those of some dialogues (by index), on a device."""
        at = torch.tensor([int((self.dialogues == i).nonzero()) for i in rows])
        parts = (self.dialogues, self.roots, self.tokens, self.parents, self.soft)
        return Branches(*(part[at].to(device) for part in parts))


@dataclass(frozen=True, eq=False)
class Features:
    """N tokens of n dialogues, end to end; dialogue i is start[i]:start[i + 1] and its answer begins at answer[i].

    tokens: (N,) int64; hidden: layer → (N, width) bf16; soft: (N, width) float32, the soft rows e;
    best, best_p: (N, TOP) columns and probabilities of the likeliest next tokens, over the reduced vocabulary.
    trees: those that hang on these dialogues, where a loss wants some.
    """

    tokens: Tensor
    start: Tensor
    answer: Tensor
    hidden: dict[int, Pieces | Tensor]
    soft: Pieces | Tensor
    best: Tensor
    best_p: Tensor
    trees: Branches | None = None

    def __len__(self) -> int:
        return len(self.answer)


def cached(key: str, names: Sequence[str], compute: Callable[[list[str]], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors by name, kept in the cache under a key: compute is given the names that are not there yet.

    Each is written in one move, so that OSError from a full disk leaves none that is half written; a lock keeps two
    processes from the same work. What comes back is mapped from the disk, copied where it is written to.
    """
    folder = files.cache_dir() / "features" / hashlib.sha256(key.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.pt" for name in names}
    with FileLock(f"{folder}.lock"):
        missing = [name for name, path in paths.items() if not path.exists()]
        for name, tensor in (compute(missing) if missing else {}).items():
            files.write(paths[name], partial(torch.save, tensor))
    return {name: torch.load(path, weights_only=True, mmap=True) for name, path in paths.items()}


@torch.no_grad()
def compute(pair: models.Pair, frozen: heads.Frozen, texts: Sequence[Text], layers: Sequence[int]) -> Features:
    """Run the target over (prompt, answer) token sequences and keep what heads need, as tensors in the cache.

    Texts go to the disk in runs of CHUNK, each computed once for the same target and vocabulary, so that a grown
    corpus only adds to them, and another layer only itself. On the disk they take 2 · width bytes a token for each
    layer and 4 · width for the soft row; in memory 68, for the others. OSError if the disk has no room.
    """
    full = [[*prompt, *answer] for prompt, answer in texts]
    base = json.dumps([heads.fingerprint(pair.target), str(frozen.rows.dtype), frozen.ids.tolist()])
    names, chunks = [*(f"hidden{layer}" for layer in layers), "soft", "best", "best_p"], []
    begins = range(0, len(full), CHUNK)
    with hints.interruptible(lambda: f"features of {len(chunks)} of {len(begins)} chunks kept in {files.cache_dir()}"):
        for begin in tqdm(begins, unit="chunk", desc="features", disable=files.QUIET):
            part = full[begin : begin + CHUNK]
            chunks.append(cached(f"{base} {part}", names, partial(_chunk, pair, frozen, part, layers)))
    best, best_p = (torch.cat([chunk[name] for chunk in chunks]) for name in ("best", "best_p"))
    start = np.concatenate([[0], np.cumsum([len(s) for s in full])])
    return Features(
        tokens=torch.tensor([t for s in full for t in s]),
        start=torch.from_numpy(start),
        answer=torch.tensor([int(b) + len(p) for b, (p, _) in zip(start, texts, strict=False)]),
        hidden={layer: Pieces([chunk[f"hidden{layer}"] for chunk in chunks]) for layer in layers},
        soft=Pieces([chunk["soft"] for chunk in chunks]),
        best=best,
        best_p=best_p,
    )


def _chunk(pair, frozen, full, layers, names: Sequence[str]) -> dict[str, Tensor]:
    """All sequences through the target, longest first; what is wanted of them, end to end."""
    order, found = sorted(range(len(full)), key=lambda i: len(full[i])), {}
    while order:
        count = max(1, BATCH // len(full[order[-1]]))
        order, rows = order[:-count], order[-count:]
        found |= zip(rows, _run(pair, frozen, [full[i] for i in rows], layers), strict=True)
    return {name: torch.cat([found[i][name] for i in range(len(full))]) for name in names}


def _run(pair, frozen, sequences, layers) -> list[dict[str, Tensor]]:
    """One right-padded batch through the target: what heads need of each sequence."""
    ids = pad_sequence([torch.tensor(sequence) for sequence in sequences], batch_first=True)
    out = pair.target.base_model(ids.to(pair.target.device), output_hidden_states=True, use_cache=False)
    states = out.hidden_states
    found = []
    for row, sequence in enumerate(sequences):
        hidden = {f"hidden{layer}": states[layer][row, : len(sequence)].bfloat16() for layer in layers}
        law = F.linear(states[-1][row, : len(sequence)], frozen.rows).float().softmax(-1)  # (n, V_d)
        best_p, best = law.topk(TOP)
        more = {"soft": law @ frozen.rows.float(), "best": best.to(torch.int32), "best_p": best_p.bfloat16()}
        found.append({name: value.cpu() for name, value in (hidden | more).items()})
    return found
