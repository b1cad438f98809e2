"""TALF's training trees: what the target predicts after its own likely tokens, away from the text.

A head that is trained on a text alone sees only tokens that the target wrote. While drafting it also has to go on from
tokens that the target finds likely but did not write. So TALF (SALF & TALF paper, Algorithm 1) trains on trees.
At chosen tokens of the text, the roots, the target builds a tree of two levels:

first level    the k tokens that the target finds likeliest after the root
second level   of all tokens that could follow the first level's nodes, the k with the highest joint probability

For each node the head needs the target's law, its probability distribution p over the V_d tokens of the draft
vocabulary. Only the *soft row* of p is kept, Σ_x p(x) w_x: the mean of the output rows w_x (the rows of the target's
output matrix W), weighted by p. The loss needs no more. With a head's logits W h, its cross-entropy with p is
log Σ_x exp(w_x · h) − (Σ_x p(x) w_x) · h, because the logits are linear in the rows. So a node takes ``width`` numbers
on the disk, not V_d.
"""

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

ARRAYS = ("tokens", "parents", "soft")  # what the cache keeps of a chunk's trees, see ``features.Branches``


class GrowingTree:
    """A text and trees below its tokens, as one token tree, which the target scores level by level.

    The text is a chain: node i is its token i. Each call of ``add`` appends nodes and runs the target on them. A cache
    contains the keys and values of the earlier nodes, so that none is computed twice.
    """

    def __init__(self, model: PreTrainedModel, text: Tensor):
        """text: (n,) token ids."""
        self.model = model
        self.tree = TokenTree.chain(text)
        self.cache = DynamicCache()
        self.scored = 0  # number of nodes whose keys and values are in the cache

    def __len__(self) -> int:
        """The number of nodes, which is the index of the next node."""
        return len(self.tree)

    @torch.no_grad()
    def add(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Append nodes and return the target's last states after them, (m, k, width).

        tokens: (m, k) token ids; parents: (m, k) the node below which each is appended.

        Example: a text of 5 tokens is the nodes 0 to 4. Appending the tokens ((a, b)) to the parents ((2, 2)) makes
        the nodes 5 and 6. They are two guesses at the token after the text's third.
        """
        self.tree = self.tree.grow(tokens.flatten(), parents.flatten())
        states = self._score_new_nodes()
        added = states[-tokens.numel() :]  # at the first call the text is scored, too
        return added.unflatten(0, tokens.shape)

    def _score_new_nodes(self) -> Tensor:
        """Run the target on the nodes that are not in the cache yet; their last states (nodes, width)."""
        tree = self.tree
        device = self.model.device
        ids = tree.tokens[None, self.scored :].to(device)
        positions = tree.depth[None, self.scored :].to(device)
        visible = tree.ancestors[self.scored :].to(device)
        mask = masks.additive(visible, self.model.dtype)
        mask = masks.by_layer(mask, self.model, tree.depth[self.scored :], tree.depth)
        caching = {"use_cache": True, ARGUMENT: self.cache}
        out = self.model.base_model(ids, position_ids=positions, attention_mask=mask, **caching)
        self.scored = len(tree)
        return out.last_hidden_state[0]


def score(model: PreTrainedModel, text: Tensor, roots: Tensor, tokens: Tensor) -> Tensor:
    """The target's last states (m, k, width) after k tokens below each of m roots of a text (n,).

    roots: (m,) indices into the text; tokens: (m, k) token ids.
    """
    parents = roots[:, None].expand_as(tokens)
    return GrowingTree(model, text).add(tokens, parents)


def choose_roots(data: Features, dialogues: Sequence[int], m: int, seed: int) -> tuple[list[int], Tensor]:
    """Draw m roots in each dialogue, without replacement; dialogues whose answer is too short are left out.

    A root is counted from the start of its dialogue, and the token after it belongs to the answer. Example: in a
    dialogue of 10 tokens whose answer begins at token 6, the roots are drawn from the tokens 5, 6, 7 and 8.

    Returns the indices of the B remaining dialogues and their roots (B, m), rising in each dialogue. Raises ValueError
    if no dialogue remains.
    """
    rng = np.random.default_rng(seed)
    kept_dialogues = []
    kept_roots = []
    for i in dialogues:
        span = data.span(i)
        before_answer = int(data.answer[i]) - 1 - span.start  # the last token of the prompt
        last = span.stop - 1 - span.start  # the dialogue's last token, which is not a root: no token follows it
        candidates = np.arange(before_answer, last)
        if len(candidates) >= m:
            roots = rng.choice(candidates, m, replace=False)
            kept_dialogues.append(i)
            kept_roots.append(np.sort(roots))
    if not kept_dialogues:
        raise ValueError(f"none of {len(dialogues)} dialogues has an answer of {m} tokens to hang trees on")
    return kept_dialogues, torch.from_numpy(np.array(kept_roots))


def compute(
    model: PreTrainedModel, frozen: Frozen, data: Features, dialogues: Sequence[int], *, k: int, m: int, seed: int = 0
) -> Branches:
    """Build the trees of TALF's Algorithm 1 (lines 1 to 5) at m roots of each dialogue.

    This is a beam search by the target, k tokens wide. A head learns from 1 + 2k laws for each root: the law at the
    root, and those after the k nodes of both levels. With k = 0 only the roots are drawn.

    The trees are kept in the cache, CHUNK dialogues to a file. Their soft rows are most of it: 2 levels of m · k
    nodes with ``width`` float32 numbers of 4 bytes, so 8 · m · k · width bytes per dialogue.
    """
    kept_dialogues, roots = choose_roots(data, dialogues, m, seed)
    if k == 0:
        return _roots_alone(kept_dialogues, roots, width=frozen.rows.shape[1])

    dtype = str(frozen.rows.dtype)
    target = [fingerprint(model), dtype, frozen.ids.tolist()]
    chunks = []
    begins = range(0, len(kept_dialogues), CHUNK)
    with hints.interruptible(lambda: f"trees of {len(chunks)} of {len(begins)} chunks kept in {files.cache_dir()}"):
        for begin in tqdm(begins, unit="chunk", desc=f"trees, k={k}", disable=files.QUIET):
            part = slice(begin, begin + CHUNK)
            rooted = list(zip(kept_dialogues[part], roots[part], strict=True))
            texts = []
            for i, dialogue_roots in rooted:
                text = data.tokens[data.span(i)]
                texts.append((text.tolist(), dialogue_roots.tolist()))
            key = json.dumps([*target, k, texts])
            make = partial(_chunk_of_trees, model, frozen, data, rooted, k)
            chunks.append(cached(key, ARRAYS, make))
    return Branches(
        dialogues=torch.tensor(kept_dialogues),
        roots=roots,
        tokens=torch.cat([chunk["tokens"] for chunk in chunks]),
        parents=torch.cat([chunk["parents"] for chunk in chunks]),
        soft=Pieces([chunk["soft"] for chunk in chunks]),
    )


def _roots_alone(dialogues: Sequence[int], roots: Tensor, width: int) -> Branches:
    """Roots (B, m) of dialogues without any node below them."""
    count, m = roots.shape
    return Branches(
        dialogues=torch.tensor(dialogues),
        roots=roots,
        tokens=torch.zeros(count, 2, m, 0, dtype=torch.int64),
        parents=torch.zeros(count, m, 0, dtype=torch.int64),
        soft=torch.zeros(count, 2, m, 0, width),
    )


def _chunk_of_trees(
    model: PreTrainedModel,
    frozen: Frozen,
    data: Features,
    rooted: Sequence[tuple[int, Tensor]],
    k: int,
    _missing: Sequence[str],
) -> dict[str, Tensor]:
    """The trees of a chunk of dialogues, each array stacked over the dialogues.

    rooted: (dialogue, its roots (m,)). ``cached`` also says which arrays are missing. All are computed together, so
    that does not matter here.
    """
    trees = [_tree(model, frozen, data, i, roots, k) for i, roots in rooted]
    stacked = {}
    for name in ARRAYS:
        stacked[name] = torch.stack([tree[name] for tree in trees])
    return stacked


def _tree(model: PreTrainedModel, frozen: Frozen, data: Features, i: int, roots: Tensor, k: int) -> dict[str, Tensor]:
    """The trees at the roots (m,) of dialogue i: tokens (2, m, k), parents (m, k) and soft rows (2, m, k, width)."""
    ids = frozen.ids.cpu()  # (V_d,): the token id of each column of the draft vocabulary
    span = data.span(i)
    root_rows = span.start + roots  # (m,): where the roots are in the arrays of all dialogues
    first_columns = data.best[root_rows, :k].long()  # (m, k): the k likeliest after each root
    p = data.best_p[root_rows, :k].float()  # (m, k)
    first_tokens = ids[first_columns]

    tree = GrowingTree(model, data.tokens[span])
    first_nodes = len(tree) + torch.arange(first_tokens.numel()).view_as(first_tokens)  # (m, k): their indices
    first_states = tree.add(first_tokens, roots[:, None].expand_as(first_tokens))

    p_next, columns_next = _law(frozen, first_states).topk(k)  # (m, k, k): the k likeliest after each first node
    second_columns, parents = _likeliest_pairs(p, p_next.cpu(), columns_next.cpu())
    second_tokens = ids[second_columns]
    second_states = tree.add(second_tokens, first_nodes.gather(1, parents))

    states = torch.stack([first_states, second_states])  # (2, m, k, width)
    soft = _law(frozen, states) @ frozen.rows.float()
    return {"tokens": torch.stack([first_tokens, second_tokens]), "parents": parents, "soft": soft.cpu()}


def _law(frozen: Frozen, states: Tensor) -> Tensor:
    """The target's law over the draft vocabulary, (…, V_d) float32, from its last states (…, width)."""
    logits = states @ frozen.rows.T
    return logits.float().softmax(-1)


def _likeliest_pairs(p: Tensor, p_next: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Of the k² pairs (first token, token after it) below each root, the k with the highest joint probability.

    Example: k = 2. The first tokens are A with probability .6 and B with .4. After A come C with .5 and D with .4,
    after B come E with .9 and F with .1. The joint probabilities are AC .30, AD .24, BE .36 and BF .04. The two
    highest are BE and AC, so the result is the tokens (E, C) and their parents (1, 0): E follows B, number 1, and C
    follows A, number 0.

    p: (m, k) probabilities of the first tokens.
    p_next: (m, k, k) probabilities of the k likeliest tokens after each first token.
    columns: (m, k, k) which tokens these are.
    Returns, both (m, k), the columns of the second tokens and the numbers of the first tokens that they follow.
    """
    k = p.shape[-1]
    joint = p[..., None] * p_next  # (m, k, k)
    pairs = joint.flatten(-2).topk(k).indices  # (m, k): pair number parent · k + successor
    parents = pairs // k
    second_columns = columns.flatten(-2).gather(-1, pairs)
    return second_columns, parents
