"""What the target computes on the training text: hidden states and laws, once for all heads, kept in the cache.

For every token x_t of every dialogue (the chat template's tokens included) two things are kept. The first are the
target's hidden states. The second is its law, the probability distribution p of the next token over the V_d tokens of
the draft vocabulary, as a *soft row* e_t = Σ_x p(x | x_≤t) w_x: the mean of the output rows w_x weighted by p. (The
output rows are the rows of the target's output matrix W.) A draft state h has the cross-entropy
log Σ_x exp(w_x · h) − e_t · h with p, so that the losses need no more of p.

Soft rows are float32, and computed with exactly the output rows that training uses. A state can move in a direction
that shifts all logits by the same amount. The loss does not change along it, but only if e_t is exact. If e_t were
rounded to bfloat16, the loss would go on falling along the rounding error, and a draft state without a norm after it
would grow without end. (Measured: to fifty times a state's length, at a loss below zero.)
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

CHUNK = 256  # dialogues to a file in the cache
BATCH = 2048  # tokens in a forward pass at most, padding included
TOP = 10  # the target's likeliest tokens that are kept: HASS's loss needs ten, TALF's trees four

Text = tuple[Sequence[int], Sequence[int]]  # prompt and answer


def vocabulary(dialogues: Sequence[writing.Dialogue], size: int) -> Tensor:
    """The draft vocabulary: the ``size`` commonest tokens of the dialogues, (size,) int64, rising.

    Example: a question (5, 2) and its answer (2, 7) give the vocabulary (2, 5) of size 2. Among equally common tokens
    the smaller ids are taken. Questions count as well: answers repeat their words, and the words of a new question are
    found in other questions rather than in other answers. Raises ValueError if the dialogues have fewer different
    tokens than ``size``.
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
    """Rows (N, …) in several tensors, one after the other, which stay mapped from the disk: more than memory holds.

    They are read by a slice within one of the tensors (a dialogue never crosses from one to the next) or by an index
    (n,) of rows. Example: with tensors of 4 and 6 rows, [5:8] is [1:4] of the second.
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
    """Trees of two levels with k nodes each, below m roots in each of B dialogues.

    They are TALF's trees, see ``branches``, or any tokens of interest. With k = 0 there are only roots.
    """

    dialogues: Tensor  # (B,) which dialogues of ``Features``
    roots: Tensor  # (B, m) indices of tokens, counted from the start of the dialogue
    tokens: Tensor  # (B, 2, m, k) token ids
    parents: Tensor  # (B, m, k) number, from 0 to k − 1, of the first level's node that each node of the second follows
    soft: Pieces | Tensor  # (B, 2, m, k, width) float32: the soft row of the target's law after each node

    def of(self, dialogues: Sequence[int], device: torch.device) -> "Branches":
        """The trees of some dialogues, on a device."""
        indices = torch.tensor([int((self.dialogues == i).nonzero()) for i in dialogues])
        return Branches(
            dialogues=self.dialogues[indices].to(device),
            roots=self.roots[indices].to(device),
            tokens=self.tokens[indices].to(device),
            parents=self.parents[indices].to(device),
            soft=self.soft[indices].to(device),
        )


@dataclass(frozen=True, eq=False)
class Features:
    """What the target computes on n dialogues of N tokens in all, one dialogue after the other."""

    tokens: Tensor  # (N,) int64 token ids
    start: Tensor  # (n + 1,): dialogue i has the tokens start[i] to start[i + 1] − 1
    answer: Tensor  # (n,): the first token of each answer, an index into tokens
    hidden: dict[
        int, Pieces | Tensor
    ]  # layer → (N, width) bfloat16: the target's states, numbered as in ``heads.Spec``
    soft: Pieces | Tensor  # (N, width) float32: the soft rows e
    best: Tensor  # (N, TOP): the likeliest next tokens, as columns of the draft vocabulary
    best_p: Tensor  # (N, TOP): their probabilities
    trees: Branches | None = None  # the trees of some of the dialogues, for losses that use them

    def __len__(self) -> int:
        """The number of dialogues."""
        return len(self.answer)

    def span(self, i: int) -> slice:
        """The tokens of dialogue i, as a slice of tokens, soft and so on."""
        return slice(int(self.start[i]), int(self.start[i + 1]))


def cached(key: str, names: Sequence[str], make: Callable[[list[str]], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors by name from the cache; those that it lacks are computed and written first.

    key: whatever the tensors depend on, as a text. make: called with the missing names, returns these tensors.

    A file is written under another name and then moved, so that a full disk (OSError) leaves no half of a file. A lock
    keeps two processes from the same work. The result is mapped from the disk; what is written to it stays in memory.
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
    """The target's features on (prompt, answer) texts; what the cache lacks of them is computed.

    layers: the states to keep, numbered as in ``heads.Spec``.

    The texts are kept in chunks of CHUNK, each under a name that depends on target, draft vocabulary and the chunk's
    texts. So if the corpus grows, only new chunks are computed; if another layer is asked for, only that layer is. On
    the disk a token takes 2 · width bytes per layer (bfloat16) and 4 · width for its soft row (float32). In memory it
    takes 68 bytes: its id (8) and the TOP columns (4 each) and probabilities (2 each) of its next token. Raises OSError
    if the disk is full.
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
            make = partial(_chunk, pair, frozen, part, layers)
            chunks.append(cached(f"{target} {part}", names, make))

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
    """The features of sequences by name, for the asked names alone, each one sequence after the other.

    The target runs on batches of sequences of about equal length, the longest first.
    """
    by_length = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    features = {}  # index of a sequence → its features by name
    while by_length:
        longest = len(sequences[by_length[-1]])
        count = max(1, BATCH // longest)
        batch = by_length[-count:]  # indices of sequences
        by_length = by_length[:-count]
        batch_features = _run(pair, frozen, [sequences[i] for i in batch], layers)
        features |= zip(batch, batch_features, strict=True)
    joined = {}
    for name in names:
        joined[name] = torch.cat([features[i][name] for i in range(len(sequences))])
    return joined


def _run(
    pair: models.Pair, frozen: heads.Frozen, sequences: Sequence[Sequence[int]], layers: Sequence[int]
) -> list[dict[str, Tensor]]:
    """Run the target on one batch, padded on the right; the features of each sequence by name, on the CPU."""
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
