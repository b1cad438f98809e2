"""What the target says off its own path: small trees hung at chosen places of a text, scored in two passes."""

import json
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import Cache, DynamicCache, PreTrainedModel

from specnb import masks
from specnb.cache import ARGUMENT
from specnb.heads import Frozen, fingerprint
from specnb.models import files
from specnb.tree import TokenTree
from training import hints
from training.features import CHUNK, Branches, Features, Pieces, cached

NAMES = ("tokens", "parents", "soft")

# The first level's states (m, k, width) → the second level's tokens (m, k) and their parents (m, k) in the first.
Second = Callable[[Tensor], tuple[Tensor, Tensor]]


@torch.no_grad()
def score(
    model: PreTrainedModel, text: Tensor, roots: Tensor, first: Tensor, second: Second | None = None
) -> list[Tensor]:
    """The target's last states after nodes below roots (m,) of a text (n,), one (m, k, width) tensor per level.

    first: (m, k) token ids, k nodes below each root; second: chooses the next level from the states of the first, or
    None. Text and trees are one token tree: the text is a chain of n nodes, and nodes n + i · k to n + i · k + k − 1
    hang on the chain's node roots[i]. The second level's pass reads the cache that the first one leaves.
    """
    m, k = first.shape
    cache = DynamicCache()
    tree = TokenTree.chain(text)
    tree = tree.grow(first.flatten(), roots.repeat_interleave(k))
    states = _last_states(model, tree, 0, cache)
    below = states[-m * k :]
    levels = [below.unflatten(0, (m, k))]
    if second is not None:
        tokens, parents = second(levels[0])
        first_siblings = len(text) + torch.arange(0, m * k, k)  # (m,): the first node below each root
        parent_nodes = first_siblings[:, None] + parents
        scored = len(tree)
        tree = tree.grow(tokens.flatten(), parent_nodes.flatten())
        states = _last_states(model, tree, scored, cache)
        levels.append(states.unflatten(0, (m, k)))
    return levels


def _last_states(model: PreTrainedModel, tree: TokenTree, begin: int, cache: Cache) -> Tensor:
    """(nodes, width) states of the tree's nodes from ``begin`` on; the nodes before them stand in the cache."""
    device = model.device
    ids = tree.tokens[None, begin:].to(device)
    positions = tree.depth[None, begin:].to(device)
    visible = tree.ancestors[begin:].to(device)
    mask = masks.additive(visible, model.dtype)
    mask = masks.by_layer(mask, model, tree.depth[begin:], tree.depth)
    kept = {"use_cache": True, ARGUMENT: cache}
    out = model.base_model(ids, position_ids=positions, attention_mask=mask, **kept)
    return out.last_hidden_state[0]


def choose_roots(data: Features, dialogues: Sequence[int], m: int, seed: int) -> tuple[list[int], Tensor]:
    """m rows of what counts as answer in each dialogue that has as many, drawn without replacement.

    A root's row is counted from its dialogue's start, and its next token belongs to the answer. Example: a dialogue
    of 10 tokens whose answer begins at token 6 has the rows 5, 6, 7 and 8 to draw from. Returns the kept dialogues
    and (B, m) rows. ValueError if no dialogue is long enough.
    """
    rng = np.random.default_rng(seed)
    kept = []
    roots = []
    for i in dialogues:
        span = data.span(i)
        first = int(data.answer[i]) - 1 - span.start
        last = span.stop - 1 - span.start  # not among them: no token follows it
        rows = np.arange(first, last)
        if len(rows) >= m:
            drawn = rng.choice(rows, m, replace=False)
            kept.append(i)
            roots.append(np.sort(drawn))
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
    kept, roots = choose_roots(data, dialogues, m, seed)
    if k == 0:
        return _roots_alone(kept, roots, width=frozen.rows.shape[1])

    dtype = str(frozen.rows.dtype)
    target = [fingerprint(model), dtype, frozen.ids.tolist()]
    chunks = []
    begins = range(0, len(kept), CHUNK)
    with hints.interruptible(lambda: f"trees of {len(chunks)} of {len(begins)} chunks kept in {files.cache_dir()}"):
        for begin in tqdm(begins, unit="chunk", desc=f"trees, k={k}", disable=files.QUIET):
            part = slice(begin, begin + CHUNK)
            chosen = list(zip(kept[part], roots[part], strict=True))
            texts = [(data.tokens[data.span(i)].tolist(), rows.tolist()) for i, rows in chosen]
            key = json.dumps([*target, k, texts])
            grow = partial(_trees, model, frozen, data, chosen, k)
            chunks.append(cached(key, NAMES, grow))
    return Branches(
        dialogues=torch.tensor(kept),
        roots=roots,
        tokens=torch.cat([chunk["tokens"] for chunk in chunks]),
        parents=torch.cat([chunk["parents"] for chunk in chunks]),
        soft=Pieces([chunk["soft"] for chunk in chunks]),
    )


def _roots_alone(kept: Sequence[int], roots: Tensor, width: int) -> Branches:
    """Trees without a node below their roots (B, m)."""
    count, m = roots.shape
    return Branches(
        dialogues=torch.tensor(kept),
        roots=roots,
        tokens=torch.zeros(count, 2, m, 0, dtype=torch.int64),
        parents=torch.zeros(count, m, 0, dtype=torch.int64),
        soft=torch.zeros(count, 2, m, 0, width),
    )


def _trees(
    model: PreTrainedModel,
    frozen: Frozen,
    data: Features,
    chosen: Sequence[tuple[int, Tensor]],
    k: int,
    names: Sequence[str],
) -> dict[str, Tensor]:
    """The trees of dialogues at their chosen roots (m,), stacked by name, whatever names are asked for."""
    trees = [_tree(model, frozen, data, i, roots, k) for i, roots in chosen]
    stacked = {}
    for name in NAMES:
        stacked[name] = torch.stack([tree[name] for tree in trees])
    return stacked


def _tree(model: PreTrainedModel, frozen: Frozen, data: Features, i: int, roots: Tensor, k: int) -> dict[str, Tensor]:
    """The trees at the roots (m,) of one dialogue: tokens (2, m, k), parents (m, k), soft rows (2, m, k, width)."""
    span = data.span(i)
    ids = frozen.ids.cpu()
    rows = span.start + roots
    columns = data.best[rows, :k].long()  # (m, k) of the reduced vocabulary
    p = data.best_p[rows, :k].float()  # (m, k)
    first = ids[columns]
    second = {}

    def law(states: Tensor) -> Tensor:
        return (states @ frozen.rows.T).float().softmax(-1)

    def grow_second(states: Tensor) -> tuple[Tensor, Tensor]:
        p_next, columns_next = law(states).topk(k)  # (m, k, k)
        chosen, parents = _likeliest_pairs(p, p_next.cpu(), columns_next.cpu())
        second["tokens"] = ids[chosen]
        second["parents"] = parents
        return second["tokens"], second["parents"]

    levels = score(model, data.tokens[span], roots, first, grow_second)
    tokens = torch.stack([first, second["tokens"]])
    soft = law(torch.stack(levels)) @ frozen.rows.float()
    return {"tokens": tokens, "parents": second["parents"], "soft": soft.cpu()}


def _likeliest_pairs(p: Tensor, p_next: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """The k likeliest of the k² pairs of a token and its successor: the successors' columns and the parents, (m, k).

    p: (m, k) of the first tokens; p_next, columns: (m, k, k), each one's k likeliest successors. Example: k = 2, the
    first tokens have p = (.6, .4), and their successors p_next = ((.5, .4), (.9, .1)). The joint probabilities are
    (.30, .24), (.36, .04), so that the second token's first successor comes first, then the first token's: the parents
    are (1, 0).
    """
    k = p.shape[-1]
    joint = p[..., None] * p_next  # (m, k, k)
    chosen = joint.flatten(-2).topk(k).indices  # (m, k), counted through the k²
    parents = chosen // k
    return columns.flatten(-2).gather(-1, chosen), parents
