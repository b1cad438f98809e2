"""What the target says about the corpus, computed once and shared by all heads: arrays in the cache.

For every token x_t of every dialogue (template included) two things are kept: the target's hidden states, and its law
of the next token, over the reduced vocabulary, as a *soft row* e_t = Σ_x p(x | x_≤t) w_x, the expected output row. With
frozen output rows W the cross-entropy of a draft state h against p needs no more: log Σ exp(W h) − e_t · h.

Soft rows are float32, from the very rows that training uses. A state can move in a direction in which all logits shift
alike, and there this loss is flat only if e_t is exact. If e_t is rounded to bf16, the loss goes on falling along what
rounding leaves, and a draft state without a norm behind it grows without end (measured: to fifty times a state's
length, at a loss below zero).
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

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
    questions than one of other answers. Example: of a question (5, 2) and its answer (2, 7), a vocabulary of two is
    (2, 5). ValueError if the dialogues have fewer different tokens than asked for.
    """
    tokens = []
    for dialogue in dialogues:
        tokens += dialogue.question
        tokens += dialogue.answer
    counts = np.bincount(tokens)  # (largest id + 1,)
    different = (counts > 0).sum()
    if different < size:
        raise ValueError(
            f"the corpus has only {different} different tokens, {size} were asked for: --vocabulary {different}"
        )
    commonest_first = np.argsort(-counts, kind="stable")
    return torch.from_numpy(np.sort(commonest_first[:size]))


class Pieces:
    """(N, …) rows in pieces that stay where they are, mapped from the disk: more of them than memory holds.

    Read by a slice that lies in one piece, as a dialogue does, or by an index (n,) of rows. Example: of pieces of 4
    and 6 rows, [5:8] is the second piece's [1:4].
    """

    def __init__(self, pieces: Sequence[Tensor]):
        self.pieces = list(pieces)
        self.ends = np.cumsum([len(piece) for piece in pieces]).tolist()

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        if isinstance(rows, Tensor):
            return torch.cat([self[row : row + 1] for row in rows.tolist()])
        which = bisect_right(self.ends, rows.start)
        piece = self.pieces[which]
        begin = self.ends[which] - len(piece)
        return piece[rows.start - begin : rows.stop - begin]


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
        places = torch.tensor([int((self.dialogues == i).nonzero()) for i in rows])
        return Branches(
            dialogues=self.dialogues[places].to(device),
            roots=self.roots[places].to(device),
            tokens=self.tokens[places].to(device),
            parents=self.parents[places].to(device),
            soft=self.soft[places].to(device),
        )


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

    def span(self, i: int) -> slice:
        """The rows of dialogue i."""
        return slice(int(self.start[i]), int(self.start[i + 1]))


def cached(key: str, names: Sequence[str], make: Callable[[list[str]], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors by name, kept in the cache under a key: make is given the names that are not there yet.

    Each is written in one move, so that OSError from a full disk leaves none that is half written; a lock keeps two
    processes from the same work. What comes back is mapped from the disk, copied where it is written to.
    """
    digest = hashlib.sha256(key.encode()).hexdigest()
    folder = files.cache_dir() / "features" / digest[:16]
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.pt" for name in names}
    with FileLock(f"{folder}.lock"):
        missing = [name for name, path in paths.items() if not path.exists()]
        computed = make(missing) if missing else {}
        for name, tensor in computed.items():
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
    dtype = str(frozen.rows.dtype)
    ids = frozen.ids.tolist()
    target = json.dumps([heads.fingerprint(pair.target), dtype, ids])
    names = [*(f"hidden{layer}" for layer in layers), "soft", "best", "best_p"]
    chunks = []
    begins = range(0, len(full), CHUNK)
    with hints.interruptible(lambda: f"features of {len(chunks)} of {len(begins)} chunks kept in {files.cache_dir()}"):
        for begin in tqdm(begins, unit="chunk", desc="features", disable=files.QUIET):
            part = full[begin : begin + CHUNK]
            run = partial(_chunk, pair, frozen, part, layers)
            chunks.append(cached(f"{target} {part}", names, run))

    def pieces(name: str) -> Pieces:
        return Pieces([chunk[name] for chunk in chunks])

    lengths = [len(tokens) for tokens in full]
    start = np.concatenate([[0], np.cumsum(lengths)])
    prompt_lengths = [len(prompt) for prompt, _ in texts]
    return Features(
        tokens=torch.tensor(list(chain.from_iterable(full))),
        start=torch.from_numpy(start),
        answer=torch.from_numpy(start[:-1] + prompt_lengths),
        hidden={layer: pieces(f"hidden{layer}") for layer in layers},
        soft=pieces("soft"),
        best=torch.cat([chunk["best"] for chunk in chunks]),
        best_p=torch.cat([chunk["best_p"] for chunk in chunks]),
    )


def _chunk(
    pair: models.Pair,
    frozen: heads.Frozen,
    sequences: Sequence[Sequence[int]],
    layers: Sequence[int],
    names: Sequence[str],
) -> dict[str, Tensor]:
    """All sequences through the target, longest first, in batches; what the names ask for, end to end."""
    by_length = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    features = {}  # of each sequence, by its index
    while by_length:
        longest = len(sequences[by_length[-1]])
        count = max(1, BATCH // longest)
        rows = by_length[-count:]
        by_length = by_length[:-count]
        batch = _run(pair, frozen, [sequences[i] for i in rows], layers)
        features |= zip(rows, batch, strict=True)
    joined = {}
    for name in names:
        joined[name] = torch.cat([features[i][name] for i in range(len(sequences))])
    return joined


def _run(
    pair: models.Pair, frozen: heads.Frozen, sequences: Sequence[Sequence[int]], layers: Sequence[int]
) -> list[dict[str, Tensor]]:
    """One right-padded batch through the target: what heads need of each sequence, on the CPU."""
    target = pair.target
    ids = pad_sequence([torch.tensor(sequence) for sequence in sequences], batch_first=True)
    out = target.base_model(ids.to(target.device), output_hidden_states=True, use_cache=False)
    features = []
    for row, sequence in enumerate(sequences):
        states = [layer_states[row, : len(sequence)] for layer_states in out.hidden_states]  # (n, width) each
        needed = {f"hidden{layer}": states[layer].bfloat16() for layer in layers}
        law = F.linear(states[-1], frozen.rows).float().softmax(-1)  # (n, V_d)
        best_p, best = law.topk(TOP)  # (n, TOP)
        needed["soft"] = law @ frozen.rows.float()  # (n, width)
        needed["best"] = best.to(torch.int32)
        needed["best_p"] = best_p.bfloat16()
        features.append({name: value.cpu() for name, value in needed.items()})
    return features
