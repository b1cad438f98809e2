"""What the target says off its own path: small trees hung at chosen places of a text, scored in two passes."""

import json
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import DynamicCache, PreTrainedModel

from specnb import masks
from specnb.cache import ARGUMENT
from specnb.heads import Frozen, fingerprint
from specnb.models import files
from specnb.tree import TokenTree
from training import hints
from training.features import CHUNK, Branches, Features, Pieces, cached

NAMES = ("tokens", "parents", "soft")


@torch.no_grad()
def score(model: PreTrainedModel, text: Tensor, roots: Tensor, first: Tensor, second=None) -> list[Tensor]:
    """The target's last states after nodes below roots (m,) of a text (n,), one (m, k, width) tensor per level.

    first: (m, k) token ids; second: function of the first level's states → (tokens (m, k), parents (m, k)), or None.
    """
    (n,), (m, k), device, cache = text.shape, first.shape, model.device, DynamicCache()

    def run(tree: TokenTree, begin: int) -> Tensor:
        """States of the tree's last level; rows before ``begin`` stand in the cache."""
        ids, positions = (x[None, begin:].to(device) for x in (tree.tokens, tree.depth))
        mask = masks.additive(tree.ancestors[begin:].to(device), model.dtype)
        mask = masks.by_layer(mask, model, tree.depth[begin:], tree.depth)
        out = model.base_model(ids, position_ids=positions, attention_mask=mask, use_cache=True, **{ARGUMENT: cache})
        return out.last_hidden_state[0, -m * k :].unflatten(0, (m, k))

    tree = TokenTree.chain(text).grow(first.flatten(), roots.repeat_interleave(k))
    states = [run(tree, 0)]
    if second is not None:
        tokens, parents = second(states[0])
        above = n + torch.arange(0, m * k, k)[:, None] + parents
        states.append(run(tree.grow(tokens.flatten(), above.flatten()), len(tree)))
    return states


def choose_roots(data: Features, dialogues: Sequence[int], m: int, seed: int) -> tuple[list[int], Tensor]:
    """m rows of what counts as answer in each dialogue that has as many, drawn without replacement.

    Returns the kept dialogues and (B, m) rows.
    """
    rng, kept, roots = np.random.default_rng(seed), [], []
    for i in dialogues:
        low, high = int(data.answer[i] - data.start[i]) - 1, int(data.start[i + 1] - data.start[i]) - 1
        if high - low >= m:
            kept.append(i)
            roots.append(np.sort(rng.choice(np.arange(low, high), m, replace=False)))
    if not kept:
        raise ValueError(f"none of {len(dialogues)} dialogues has an answer of {m} tokens to hang trees on")
    return kept, torch.from_numpy(np.array(roots))


def compute(
    model: PreTrainedModel, frozen: Frozen, data: Features, dialogues: Sequence[int], *, k: int, m: int, seed: int = 0
) -> Branches:
    """TALF's trees (Algorithm 1, lines 1 to 5), built by the target with beam search of width k and depth 3.

    At each root the target's k likeliest tokens, then the k likeliest of all their successors by joint probability;
    with the root, 1 + 2k laws to learn from. Kept in the cache in runs of CHUNK dialogues, like features, 8 · m · k ·
    width bytes a dialogue. k = 0: roots alone.
    """
    (kept, roots), width = choose_roots(data, dialogues, m, seed), frozen.rows.shape[1]
    if not k:
        nodes = torch.zeros(len(kept), 2, m, 0, dtype=torch.int64)
        return Branches(torch.tensor(kept), roots, nodes, nodes[:, 0], torch.zeros(len(kept), 2, m, 0, width))
    target, chunks = [fingerprint(model), str(frozen.rows.dtype), frozen.ids.tolist()], []
    begins = range(0, len(kept), CHUNK)
    with hints.interruptible(lambda: f"trees of {len(chunks)} of {len(begins)} chunks kept in {files.cache_dir()}"):
        for begin in tqdm(begins, unit="chunk", desc=f"trees, k={k}", disable=files.QUIET):
            some = list(zip(kept[begin : begin + CHUNK], roots[begin : begin + CHUNK], strict=True))
            texts = [(data.tokens[data.start[i] : data.start[i + 1]].tolist(), at.tolist()) for i, at in some]
            key = json.dumps([*target, k, texts])
            chunks.append(cached(key, NAMES, partial(_trees, model, frozen, data, some, k)))
    tokens, parents = (torch.cat([chunk[name] for chunk in chunks]) for name in NAMES[:2])
    return Branches(torch.tensor(kept), roots, tokens, parents, Pieces([chunk["soft"] for chunk in chunks]))


def _trees(model, frozen, data, some: Sequence[tuple[int, Tensor]], k: int, _) -> dict[str, Tensor]:
    """The trees of some dialogues, stacked by name."""
    found = [_tree(model, frozen, data, i, at, k) for i, at in some]
    return dict(zip(NAMES, map(torch.stack, zip(*found, strict=True)), strict=True))


def _tree(model: PreTrainedModel, frozen: Frozen, data: Features, i: int, roots: Tensor, k: int) -> tuple[Tensor, ...]:
    """Tokens (2, m, k), parents (m, k) and soft rows (2, m, k, width) of the trees of one dialogue."""
    begin, end = int(data.start[i]), int(data.start[i + 1])
    best, p = data.best[begin + roots, :k].long(), data.best_p[begin + roots, :k].float()  # (m, k)
    grown = [frozen.ids.cpu()[best]]

    def law(states: Tensor) -> Tensor:
        return (states @ frozen.rows.T).float().softmax(-1)

    def second(states: Tensor) -> tuple[Tensor, Tensor]:
        p_next, columns = (x.cpu() for x in law(states).topk(k))  # (m, k, k)
        chosen = (p[..., None] * p_next).flatten(-2).topk(k).indices  # (m, k) of the k² joint probabilities
        grown.append(frozen.ids.cpu()[columns.flatten(-2).gather(-1, chosen)])
        grown.append(chosen // k)
        return grown[1], grown[2]

    states = torch.stack(score(model, data.tokens[begin:end], roots, grown[0], second))
    return torch.stack(grown[:2]), grown[2], (law(states) @ frozen.rows.float()).cpu()
