"""What draft heads are trained on: passes of a head over whole dialogues, and the losses of the papers.

A pass runs a head on B padded dialogues of n tokens at once. Its row t is the head's state from which it predicts token
t + 1: the output rows (the target's output matrix W, restricted to the draft vocabulary) times the state are the
logits. All passes are teacher-forced, so that a head reads the text's own tokens. The same passes measure, on held-out
text, how often a head agrees with the target at depths 1, 2, … below a root. Sequences are padded on the right, where
causal masks never look.

A law is a probability distribution over the V_d tokens of the draft vocabulary; the target's law p is what a head
learns. A soft row is what the losses need of it, see ``cross_entropy``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specnb import masks
from specnb.heads import Eagle, Eagle3, Edd, Frozen, Medusa, Vdm
from training.features import Branches


@dataclass(frozen=True, eq=False)
class Batch:
    """B dialogues of up to n tokens, padded on the right. ``loop.gather`` makes it from ``Features``."""

    tokens: Tensor  # (B, n) token ids
    answers: Tensor  # (B, n) bool: whether the token after this one belongs to the answer
    hidden: dict[int, Tensor]  # layer → (B, n, width): the target's states
    soft: Tensor  # (B, n, width): the soft rows of the target's laws
    best: Tensor  # (B, n, TOP): columns of the target's likeliest next tokens, in the draft vocabulary
    best_p: Tensor  # (B, n, TOP): their probabilities
    branches: Branches | None = None  # the trees and roots of these dialogues, for losses that use them

    def embedded(self, frozen: Frozen) -> Tensor:
        """The tokens' embeddings (B, n, width)."""
        return F.embedding(self.tokens, frozen.embedding)

    def below_roots(self, distance: int) -> Tensor:
        """(B, n) bool: the rows of the answers that come ``distance`` tokens after a root.

        Example: the roots are rows 3 and 7 of 9, the distance is 1. Rows 4 and 8 come one token after a root. No token
        of the answer follows row 8, the last, so the result is True at row 4 alone. Rows after the end count as the
        last row.
        """
        last = self.answers.shape[1] - 1
        rows = (self.branches.roots + distance).clamp_max(last)  # (B, m)
        below = torch.zeros_like(self.answers).scatter(1, rows, True)
        return self.answers & below


def cross_entropy(h: Tensor, frozen: Frozen, soft: Tensor, mass: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of a head's states h (R, width) with target laws, which are given as soft rows (R, width).

    The soft row of a law p is e = Σ_x p(x) w_x, the mean of the output rows w_x weighted by p. The cross-entropy of the
    head's law q = softmax(W h) with p needs no more of p: it is −Σ_x p(x) log q(x) = log Σ_x exp(w_x · h) − e · h.

    Example: two output rows W = (2), (0), a state h = (1) and the law p = (½, ½), whose soft row is
    e = ½ · 2 + ½ · 0 = (1). The loss is log(exp 2 + exp 0) − 1 = 1.127. The head's law is softmax(2, 0) =
    (.881, .119), and −½ log .881 − ½ log .119 is the same.

    mass: (R,) the sum of p, if it is not 1; the logarithm is multiplied by it.
    """
    logits = h.to(frozen.rows.dtype) @ frozen.rows.T  # (R, V_d)
    log_sum = logits.float().logsumexp(-1)  # (R,)
    if mass is not None:
        log_sum = mass * log_sum
    expected = soft.float() * h.float()
    return (log_sum.sum() - expected.sum()) / max(1, len(h))


# ---- passes ---------------------------------------------------------------------------------------------------


def shifted(x: Tensor, by: int = 1) -> Tensor:
    """Move the rows of x (B, n, width) back by ``by``: row t of the result is row t − by of x, zeros at the start.

    So each token is put beside the state of the token before it. Example: rows a, b, c become 0, a, b.
    """
    padded = F.pad(x, (0, 0, by, 0))
    return padded[:, : x.shape[1]]


def eagle_pass(
    head: Eagle | Eagle3, embedded: Tensor, features: Tensor, depth: int, *, through: bool = False
) -> list[Tensor]:
    """A head's features at depths 1 to ``depth``, (B, n, width) each: EAGLE's pass, then HASS's context alignment.

    A feature is the state that an EAGLE head predicts. At depth 1 row t reads the target's state of row t − 1. At
    depth j > 1 it reads the feature that the head itself made for row t − 1 at depth j − 1. What a row sees is what it
    would see in a chain drafted from root t − j + 1: the target's states up to the root, and after it one feature of
    each depth 2 to j, see ``chain_mask``. This is section 3.2 of HASS (Zhang et al. 2025).

    through: whether gradients flow from one depth to the one before. They do in EAGLE-3 only.
    """
    positions = torch.arange(embedded.shape[1], device=embedded.device)
    all_keys = []  # (B, key_heads, n, head_width) of each depth so far
    all_values = []
    out = []
    fed = features
    for j in range(1, depth + 1):
        x = head.rows(embedded, shifted(fed))
        query, keys, values = head.layer.project(x, positions)
        all_keys.append(keys)
        all_values.append(values)
        mask = chain_mask(positions, j)
        drafted = head.layer(x, query, torch.cat(all_keys, 2), torch.cat(all_values, 2), mask)
        out.append(drafted)
        fed = drafted if through else drafted.detach()
    return out


def chain_mask(positions: Tensor, j: int) -> Tensor | None:
    """(n, j · n) bool: what the rows see at depth j of ``eagle_pass``; None, an ordinary causal mask, at depth 1.

    positions: (n,) of the rows. The columns are the keys of depth 1, then those of depth 2, and so on up to j.
    Example: at depth 3, row 5 is two tokens below its root, row 3. Of depth 1 it sees rows 0 to 3, the text. Of depth 2
    it sees row 4, the first drafted token, and of depth 3 row 5, itself.
    """
    if j == 1:
        return None
    distance = positions[:, None] - positions[None, :]  # (n, n): how far a key is before the query
    text = distance >= j - 1
    drafted = [distance == j - i for i in range(2, j + 1)]
    return torch.cat([text, *drafted], 1)


def tree_pass(head: Eagle, frozen: Frozen, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """TALF's pass. Features after every text row, (B, n, width), and after both tree levels, (B, m, k, width) each.

    The tree of a root has two levels of k nodes, see ``branches``. A node reads its token and the head's feature of its
    parent. It attends to the text up to its root, where the head reads the target's states, then to its ancestors in
    the tree and to itself. As in HASS, no gradient flows from a node to its parent.
    """
    trees = batch.branches
    m, k = trees.parents.shape[-2:]
    embedded = batch.embedded(frozen)
    text_positions = torch.arange(embedded.shape[1], device=embedded.device)
    x = head.rows(embedded, shifted(batch.hidden[-1]))
    query, keys, values = head.layer.project(x, text_positions)
    text = head.layer(x, query, keys, values, None)

    dialogue = torch.arange(len(embedded), device=embedded.device)[:, None]  # (B, 1)
    at_roots = text.detach()[dialogue, trees.roots]  # (B, m, width)
    above = at_roots[:, :, None].expand(-1, -1, k, -1)  # (B, m, k, width): the parent's feature, which a node reads
    parents = trees.parents[..., None]  # (B, m, k, 1)
    levels = []
    for level, visible in enumerate(tree_masks(trees, text_positions)):
        tokens = F.embedding(trees.tokens[:, level], frozen.embedding)
        x = head.rows(tokens, above).flatten(1, 2)  # (B, m · k, width)
        positions = (trees.roots + 1 + level).repeat_interleave(k, 1)  # (B, m · k)
        query, new_keys, new_values = head.layer.project(x, positions)
        keys = torch.cat([keys, new_keys], 2)
        values = torch.cat([values, new_values], 2)
        drafted = head.layer(x, query, keys, values, visible[:, None])
        levels.append(drafted.unflatten(1, (m, k)))
        first = levels[0].detach()
        above = first.gather(2, parents.expand_as(first))
    return text, levels[0], levels[1]


def tree_masks(trees: Branches, positions: Tensor) -> tuple[Tensor, Tensor]:
    """What the nodes of the first and of the second level see, bool.

    The shapes are (B, m · k, n + m · k) and (B, m · k, n + 2 · m · k). Row i · k + s is node s below root i. The
    columns are the text's rows, at positions (n,), then the nodes of the first level, then those of the second.

    Example: a text of 3 tokens, one root at row 1, k = 2, and both nodes of the second level below the second node of
    the first. Each node of the first level sees rows 0 and 1 and itself. Each node of the second sees rows 0 and 1, its
    parent in column 3 + 1, and itself.
    """
    count, m, k = trees.parents.shape
    roots = trees.roots.repeat_interleave(k, 1)  # (B, m · k)
    text = positions <= roots[..., None]  # (B, m · k, n)
    identity = torch.eye(m * k, dtype=torch.bool, device=positions.device)
    itself = identity.expand(count, -1, -1)  # (B, m · k, m · k)

    first_siblings = torch.arange(0, m * k, k, device=positions.device)  # (m,): node 0 below each root
    parents = (first_siblings[:, None] + trees.parents).flatten(1)  # (B, m · k)
    dialogue = torch.arange(count, device=positions.device)[:, None]
    parent = itself[dialogue, parents]  # (B, m · k, m · k)

    first = torch.cat([text, itself], -1)
    second = torch.cat([text, parent, itself], -1)
    return first, second


def edd_pass(head: Edd, frozen: Frozen, embedded: Tensor, prompt: Tensor | None, block: Tensor) -> Tensor:
    """EDD's states (B, n, width) under the dual-block mask. block: (n,) the first row of each row's block.

    The text is cut into blocks. Row t sees the target's states h of the rows before its block, and the tokens of its
    block up to itself. A drafter sees exactly this when its root is the block's first token.

    prompt: (B, n, width) the states h. None is the paper's variant without encoding result: the tokens of earlier
    blocks take the place of h, so that the layer becomes an ordinary causal one.
    """
    positions = torch.arange(embedded.shape[1], device=embedded.device)
    query, keys, values = head.layer.project(embedded, positions)
    mask = None
    if prompt is not None:
        _, prompt_keys, prompt_values = head.layer.project(prompt, positions)
        keys = torch.cat([prompt_keys, keys], 2)
        values = torch.cat([prompt_values, values], 2)
        mask = masks.dual_block(block)
    return frozen.norm(head.layer(embedded, query, keys, values, mask))


def vdm_pass(head: Vdm, frozen: Frozen, embedded: Tensor) -> Tensor:
    """The states (B, n, width) of a VDM, a small language model of its own, which reads tokens only."""
    out = head.model(inputs_embeds=embedded, use_cache=False)
    return frozen.norm(out.last_hidden_state)


# ---- losses ---------------------------------------------------------------------------------------------------

# A loss takes the head, the frozen weights of the target, a batch, and a generator for all that is drawn at random.
Loss = Callable[[nn.Module, Frozen, Batch, torch.Generator], Tensor]


def answer_loss(out: Tensor, frozen: Frozen, batch: Batch) -> Tensor:
    """Mean cross-entropy of a head's states (B, n, width) with the target's laws, over the tokens of the answers."""
    h = out[batch.answers]  # (R, width)
    soft = batch.soft[batch.answers]
    return cross_entropy(h, frozen, soft)


def eagle_loss(head: Eagle, frozen: Frozen, batch: Batch, generator: torch.Generator) -> Tensor:
    """EAGLE's loss: cross-entropy with the target's laws plus a SmoothL1 regression of the features on its states.

    The weights, 1 and 0.1, are those of the SALF & TALF paper (section 4.1); the authors' code has the reverse. In
    training, noise from U(−.1, .1) is added to the states that the head reads. The authors multiply it by 512 / length,
    for texts of 512 tokens and more. Ours have a third of that, where so much noise would cost agreement.
    """
    features = batch.hidden[-1]
    fed = features
    if head.training:
        device = features.device
        device_generator = torch.Generator(device).manual_seed(generator.initial_seed())
        noise = torch.rand(features.shape, generator=device_generator, device=device).sub(0.5).mul(0.2)
        fed = features + noise.to(features.dtype)
    (out,) = eagle_pass(head, batch.embedded(frozen), fed, 1)
    h = out[batch.answers]  # (R, width)
    feature_loss = F.smooth_l1_loss(h.float(), features[batch.answers].float())
    return cross_entropy(h, frozen, batch.soft[batch.answers]) + 0.1 * feature_loss


def hass_loss(
    head: Eagle, frozen: Frozen, batch: Batch, generator: torch.Generator, *, depth: int = 3, regression: float = 0.1
) -> Tensor:
    """HASS's loss: the mean over depths 1 to ``depth`` of cross-entropy, regression and a top-k term.

    The top-k term is a cross-entropy with the target's ten likeliest tokens alone. It is added to the soft rows: law
    and top ten together carry the mass 1 + Σ p(x) over the ten. From depth 2 on the head reads its own features, see
    ``eagle_pass``. No noise is added. If the dialogues have roots, depth j counts only rows j − 1 tokens after a root,
    just as level j − 1 of TALF's trees would with one node per level.
    """
    best_p = batch.best_p.float()  # (B, n, TOP)
    best_rows = frozen.rows[batch.best].float()  # (B, n, TOP, width)
    # Σ over the top ten of p(x) w_x, exactly: as a product of matrices autocast would round it
    top_soft = (best_p[..., None] * best_rows).sum(-2)
    soft = batch.soft + top_soft
    mass = 1 + best_p.sum(-1)  # (B, n)

    features = batch.hidden[-1]
    total = 0.0
    outs = eagle_pass(head, batch.embedded(frozen), features, depth)
    for below, out in enumerate(outs):
        rows = batch.answers
        if below > 0 and batch.branches is not None:
            rows = batch.below_roots(below)
        h = out[rows]  # (R, width)
        feature_loss = F.smooth_l1_loss(h.float(), features[rows].float())
        total = total + cross_entropy(h, frozen, soft[rows], mass[rows]) + regression * feature_loss
    return total / depth


def eagle3_loss(
    head: Eagle3, frozen: Frozen, batch: Batch, generator: torch.Generator, *, depth: int = 7, decay: float = 0.8
) -> Tensor:
    """EAGLE-3's training-time test: the KL divergence from the target at depths 1 to ``depth``, weighted and averaged.

    The weight of depth j is decay^(j − 1). Up to a constant the KL divergence is the cross-entropy. There is no
    regression on the target's states. The authors also train output rows and final norm; ours are the target's.
    """
    states = [batch.hidden[layer] for layer in head.layer.spec.fused]
    features = head.fuse(states)
    soft = batch.soft[batch.answers]
    weights = [decay**j for j in range(depth)]
    total = 0.0
    outs = eagle_pass(head, batch.embedded(frozen), features, depth, through=True)
    for weight, out in zip(weights, outs, strict=True):
        h = frozen.norm(out[batch.answers])
        total = total + weight * cross_entropy(h, frozen, soft)
    return total / sum(weights)


def talf_loss(head: Eagle, frozen: Frozen, batch: Batch, generator: torch.Generator) -> Tensor:
    """TALF's loss (Algorithm 1): the cross-entropy with the target's laws, averaged over the 1 + 2k nodes of a tree.

    The root's term is taken after every token of the answer, not at the roots alone. The terms of the other nodes are
    taken at the m roots that have a tree. There is no regression on the target's states.
    """
    text, *levels = tree_pass(head, frozen, batch)
    trees = batch.branches
    k = trees.parents.shape[-1]
    total = answer_loss(text, frozen, batch)
    for level, out in enumerate(levels):
        h = out.flatten(0, 2)  # (B · m · k, width)
        soft = trees.soft[:, level].flatten(0, 2)
        total = total + k * cross_entropy(h, frozen, soft)
    return total / (1 + 2 * k)


def edd_loss(
    head: Edd,
    frozen: Frozen,
    batch: Batch,
    generator: torch.Generator,
    *,
    lengths: tuple[int, int] = (5, 10),
    labels: bool = False,
) -> Tensor:
    """EDD's loss (eq. 4): the KL divergence from the target under the dual-block mask, up to its constant.

    lengths: the shortest and the longest block; each step draws one length.
    labels: learn the text's next token instead of the target's law, as in the paper's ablation "w/o KL divergence".

    Two things differ from the paper. The beginning of the first block is drawn, too, so that every token is seen at
    every depth. And the embedding and the output matrix, which the paper copies and trains, stay the target's.
    """
    shortest, longest = lengths
    length = int(torch.randint(shortest, longest + 1, (), generator=generator))
    offset = int(torch.randint(length, (), generator=generator))
    rows = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    block = block_starts(rows, length, offset)
    states = batch.hidden.get(head.layer.spec.hidden_layer)  # None for a head that reads no states
    out = edd_pass(head, frozen, batch.embedded(frozen), states, block)
    if labels:
        return label_loss(out, frozen, batch, 1)
    return answer_loss(out, frozen, batch)


def block_starts(rows: Tensor, length: int, offset: int) -> Tensor:
    """(n,) the first row of each row's block. All blocks have one length, but the first lacks ``offset`` rows.

    Example: with rows 0 to 6, length 3 and offset 1 the blocks are rows 0–1, 2–4 and 5–6. The result is
    0, 0, 2, 2, 2, 5, 5.
    """
    number = (rows + offset) // length
    return (number * length - offset).clamp_min(0)


def label_loss(out: Tensor, frozen: Frozen, batch: Batch, ahead: int) -> Tensor:
    """Mean cross-entropy of a head's states (B, n, width) with the text's token ``ahead`` positions later.

    Row t counts if token t + ahead belongs to the answer and to the draft vocabulary. Example: with ahead = 2 row 3 is
    to predict token 5. A label is a law that gives one token the probability 1, so its soft row is the output row of
    that token.
    """
    labels = batch.tokens.roll(-ahead, 1)  # (B, n); the last ``ahead`` columns wrap around, and do not count
    last_column = len(frozen.ids) - 1
    columns = torch.searchsorted(frozen.ids, labels).clamp_max(last_column)
    in_vocabulary = frozen.ids[columns] == labels
    counted = batch.answers.roll(1 - ahead, 1) & in_vocabulary
    counted[:, -ahead:] = False
    return cross_entropy(out[counted], frozen, frozen.rows[columns[counted]])


def vdm_loss(head: Vdm, frozen: Frozen, batch: Batch, generator: torch.Generator) -> Tensor:
    """The KL divergence from the target, up to its constant, as for EDD."""
    out = vdm_pass(head, frozen, batch.embedded(frozen))
    return answer_loss(out, frozen, batch)


def medusa_loss(head: Medusa, frozen: Frozen, batch: Batch, generator: torch.Generator) -> Tensor:
    """Medusa-1's loss: the sum over its heads i of 0.8^i times the cross-entropy with the token i + 2 positions later.

    Head i drafts that token from the target's state: token t + 1 is the target's own, which needs no head.
    """
    out = head(batch.hidden[-1])  # (B, n, heads, width)
    total = 0
    for i in range(out.shape[2]):
        loss = label_loss(out[:, :, i], frozen, batch, ahead=i + 2)
        total = total + 0.8**i * loss
    return total
