"""What each head is trained on: teacher-forced passes over whole sequences, and the losses of the papers.

A pass gives, for each row t, the draft's state for the law of token t + 1; the same passes measure agreement at
depths 1, 2, … on held-out text. Sequences are padded on the right, where causal masks never look.
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
    """B dialogues of up to n tokens. answers: (B, n) bool, rows t whose next token belongs to the answer.

    tokens: (B, n); hidden: layer → (B, n, width); soft: (B, n, width), see ``features``; best, best_p: (B, n, TOP);
    branches: the trees of these dialogues, where the loss wants them.
    """

    tokens: Tensor
    answers: Tensor
    hidden: dict[int, Tensor]
    soft: Tensor
    best: Tensor
    best_p: Tensor
    branches: Branches | None = None

    def embedded(self, frozen: Frozen) -> Tensor:
        return F.embedding(self.tokens, frozen.embedding)

    def below_roots(self, places: int) -> Tensor:
        """(B, n) bool: the rows of the answer that stand so many places below a root of the dialogue's trees.

        Example: with roots at rows 3 and 7 of 9, one place below stand rows 4 and 8. Row 8 is the last one, which no
        token of the answer follows, so only row 4 is meant. Places behind the end count as the last row.
        """
        last = self.answers.shape[1] - 1
        rows = (self.branches.roots + places).clamp_max(last)  # (B, m)
        below = torch.zeros_like(self.answers).scatter(1, rows, True)
        return self.answers & below


def cross_entropy(h: Tensor, frozen: Frozen, soft: Tensor, mass: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of draft states h (R, width) against soft rows e (R, width) that carry this much mass (R,).

    The mean over rows of mass · log Σ exp(W h) − e · h, by the frozen output rows W; without ``mass`` each row carries
    1. Example: two output rows W = (2), (0), a state h = (1) and the target's law (½, ½), whose soft row is
    e = ½ · 2 + ½ · 0 = (1). The loss is log(exp 2 + exp 0) − 1 = 1.127. The draft's law is softmax(2, 0) =
    (.881, .119), and −½ log .881 − ½ log .119 is the same.
    """
    logits = h.to(frozen.rows.dtype) @ frozen.rows.T  # (R, V_d)
    log_sum = logits.float().logsumexp(-1)  # (R,)
    if mass is not None:
        log_sum = mass * log_sum
    expected = soft.float() * h.float()
    return (log_sum.sum() - expected.sum()) / max(1, len(h))


# ---- passes ---------------------------------------------------------------------------------------------------


def shifted(x: Tensor, by: int = 1) -> Tensor:
    """Row t of the result is row t − by of x (B, n, width), zero at the start: tokens beside the state before them.

    Example: rows a, b, c become 0, a, b.
    """
    padded = F.pad(x, (0, 0, by, 0))
    return padded[:, : x.shape[1]]


def eagle_pass(
    head: Eagle | Eagle3, embedded: Tensor, features: Tensor, depth: int, *, through: bool = False
) -> list[Tensor]:
    """Draft features at depths 1 to depth, (B, n, width) each: EAGLE's training pass, then HASS's context alignment.

    At depth j row t is fed its own draft's feature of row t − 1; it attends to target features up to row t − j + 1
    and to the draft's of forward 2, …, j on the diagonals behind them, just as in a chain drafted from root t − j + 1.
    Gradients do not flow from one depth to the one before, unless they are let through, as EAGLE-3's are. HASS (Zhang
    et al. 2025), section 3.2. The mask of each depth: see ``chain_mask``.
    """
    places = torch.arange(embedded.shape[1], device=embedded.device)
    all_keys = []  # (B, key_heads, n, head_width) of each depth so far
    all_values = []
    out = []
    fed = features
    for j in range(1, depth + 1):
        x = head.rows(embedded, shifted(fed))
        query, keys, values = head.layer.project(x, places)
        all_keys.append(keys)
        all_values.append(values)
        mask = chain_mask(places, j)
        drafted = head.layer(x, query, torch.cat(all_keys, 2), torch.cat(all_values, 2), mask)
        out.append(drafted)
        fed = drafted if through else drafted.detach()
    return out


def chain_mask(places: Tensor, j: int) -> Tensor | None:
    """(n, j · n) bool: what rows at places (n,) see at depth j of ``eagle_pass``; None, plainly causal, at depth 1.

    The columns are the rows of depth 1, then those of depth 2, up to j. Example: at depth 3, row 5 stands two places
    below the root, row 3. Of depth 1 it sees rows 0 to 3, the text; of depth 2 row 4, the first drafted token; of
    depth 3 row 5, itself.
    """
    if j == 1:
        return None
    behind = places[:, None] - places[None, :]  # (n, n): how far behind a query its key stands
    text = behind >= j - 1
    drafted = [behind == j - i for i in range(2, j + 1)]
    return torch.cat([text, *drafted], 1)


def tree_pass(head: Eagle, frozen: Frozen, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """TALF's pass: draft features after every text row (B, n, width) and after both tree levels, (B, m, k, width) each.

    A node is fed its token and the draft's feature at its parent; it attends to target-fed text rows up to its root,
    then to the tree's draft-fed rows above it. Gradients do not flow from a node to its parent, as in HASS.
    """
    trees = batch.branches
    m, k = trees.parents.shape[-2:]
    embedded = batch.embedded(frozen)
    places = torch.arange(embedded.shape[1], device=embedded.device)
    x = head.rows(embedded, shifted(batch.hidden[-1]))
    query, keys, values = head.layer.project(x, places)
    text = head.layer(x, query, keys, values, None)

    dialogue = torch.arange(len(embedded), device=embedded.device)[:, None]  # (B, 1)
    at_roots = text.detach()[dialogue, trees.roots]  # (B, m, width)
    above = at_roots[:, :, None].expand(-1, -1, k, -1)  # (B, m, k, width): the feature that each node is fed
    parents = trees.parents[..., None]  # (B, m, k, 1)
    levels = []
    for level, visible in enumerate(tree_masks(trees, places)):
        tokens = F.embedding(trees.tokens[:, level], frozen.embedding)
        x = head.rows(tokens, above).flatten(1, 2)  # (B, m · k, width)
        positions = (trees.roots + 1 + level).repeat_interleave(k, 1)
        query, new_keys, new_values = head.layer.project(x, positions)
        keys = torch.cat([keys, new_keys], 2)
        values = torch.cat([values, new_values], 2)
        drafted = head.layer(x, query, keys, values, visible[:, None])
        levels.append(drafted.unflatten(1, (m, k)))
        first = levels[0].detach()
        above = first.gather(2, parents.expand_as(first))
    return text, levels[0], levels[1]


def tree_masks(trees: Branches, places: Tensor) -> tuple[Tensor, Tensor]:
    """What the nodes of each level see, bool: (B, m · k, n + m · k) for the first, (B, m · k, n + 2 · m · k) below it.

    The columns are the text's rows at places (n,), then the nodes of the first level, then those of the second. Row
    i · k + s is node s below root i. Example: a text of 3 tokens, one root at row 1, k = 2, both second nodes below
    the first level's second. Each of the first level sees rows 0 and 1 and itself; each of the second sees rows 0 and
    1, column 3 + 1, its parent, and itself.
    """
    count, m, k = trees.parents.shape
    roots = trees.roots.repeat_interleave(k, 1)  # (B, m · k)
    text = places <= roots[..., None]  # (B, m · k, n)
    identity = torch.eye(m * k, dtype=torch.bool, device=places.device)
    itself = identity.expand(count, -1, -1)  # (B, m · k, m · k)

    first_siblings = torch.arange(0, m * k, k, device=places.device)  # (m,): node 0 below each root
    parents = (first_siblings[:, None] + trees.parents).flatten(1)  # (B, m · k)
    dialogue = torch.arange(count, device=places.device)[:, None]
    parent = itself[dialogue, parents]  # (B, m · k, m · k)

    first = torch.cat([text, itself], -1)
    second = torch.cat([text, parent, itself], -1)
    return first, second


def edd_pass(head: Edd, frozen: Frozen, embedded: Tensor, prompt: Tensor | None, block: Tensor) -> Tensor:
    """EDD's draft states (B, n, width) under the dual-block mask; block: (n,) first row of each row's block.

    Row t sees the target's states h of rows before its block and the tokens of its block up to itself: exactly
    what a drafter has whose root is the block's first token. prompt None is the variant without encoding result:
    tokens of earlier blocks stand in for h, so that the layer is an ordinary causal one.
    """
    places = torch.arange(embedded.shape[1], device=embedded.device)
    query, keys, values = head.layer.project(embedded, places)
    mask = None
    if prompt is not None:
        _, prompt_keys, prompt_values = head.layer.project(prompt, places)
        keys = torch.cat([prompt_keys, keys], 2)
        values = torch.cat([prompt_values, values], 2)
        mask = masks.dual_block(block)
    return frozen.norm(head.layer(embedded, query, keys, values, mask))


def vdm_pass(head: Vdm, frozen: Frozen, embedded: Tensor) -> Tensor:
    """The small language model's states (B, n, width): it sees tokens only."""
    out = head.model(inputs_embeds=embedded, use_cache=False)
    return frozen.norm(out.last_hidden_state)


# ---- losses ---------------------------------------------------------------------------------------------------

Loss = Callable[[nn.Module, Frozen, Batch, torch.Generator], Tensor]


def answer_loss(out: Tensor, frozen: Frozen, batch: Batch) -> Tensor:
    """Cross-entropy of states (B, n, width) with the target's law, over the rows of the answers."""
    h = out[batch.answers]  # (R, width)
    soft = batch.soft[batch.answers]
    return cross_entropy(h, frozen, soft)


def eagle_loss(head: Eagle, frozen: Frozen, batch: Batch, generator: torch.Generator) -> Tensor:
    """EAGLE: cross-entropy plus SmoothL1 of the features, with uniform noise on the features fed in while it trains.

    The weights are those of the SALF & TALF paper (section 4.1, cross-entropy ten times the regression), the reverse
    of the authors' code. Its noise, U(−.1, .1) · 512 / length, is made for texts of 512 tokens and more: on ours,
    a third of that, it would cost agreement, so it stays at U(−.1, .1).
    """
    features = batch.hidden[-1]
    fed = features
    if head.training:
        device = features.device
        there = torch.Generator(device).manual_seed(generator.initial_seed())
        noise = torch.rand(features.shape, generator=there, device=device).sub(0.5).mul(0.2)
        fed = features + noise.to(features.dtype)
    (out,) = eagle_pass(head, batch.embedded(frozen), fed, 1)
    h = out[batch.answers]  # (R, width)
    feature_loss = F.smooth_l1_loss(h.float(), features[batch.answers].float())
    return cross_entropy(h, frozen, batch.soft[batch.answers]) + 0.1 * feature_loss


def hass_loss(
    head: Eagle, frozen: Frozen, batch: Batch, generator: torch.Generator, *, depth: int = 3, regression: float = 0.1
) -> Tensor:
    """HASS: cross-entropy, regression and the teacher's ten likeliest tokens at depths 1 to 3, averaged.

    Each depth is fed the draft's own features, see ``eagle_pass``; no noise is added. Where the dialogues carry trees,
    depths from 2 on count below their roots only: as TALF's rows do on each level of trees of width 1.
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
    """EAGLE-3's training-time test: Σ over depths j of 0.8^(j − 1) · KL to the target (up to its constant), weighed.

    No feature is predicted. The authors' code trains output rows and final norm, too; ours are the target's, frozen.
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
    """TALF (Algorithm 1): cross-entropy summed over the 1 + 2k expanded nodes of target-built trees, averaged here.

    The root's term is taken at every answer token, the others at the roots that carry a tree. No regression loss.
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
    """EDD eq. 4: KL to the target (up to its constant) under the dual-block mask.

    lengths: shortest and longest block, drawn for each step; labels: cross-entropy with the text's next token in
    place of the target's law (the ablation's "w/o KL"). Beyond the paper, where the first block begins is drawn too,
    so that every row stands at every depth; its copied embedding and output matrix are trained, ours stay frozen.
    """
    shortest, longest = lengths
    length = int(torch.randint(shortest, longest + 1, (), generator=generator))
    offset = int(torch.randint(length, (), generator=generator))
    rows = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    block = block_starts(rows, length, offset)
    states = batch.hidden.get(head.layer.spec.hidden_layer)  # none for a head without encoding result
    out = edd_pass(head, frozen, batch.embedded(frozen), states, block)
    if labels:
        return label_loss(out, frozen, batch, 1)
    return answer_loss(out, frozen, batch)


def block_starts(rows: Tensor, length: int, offset: int) -> Tensor:
    """(n,) the first row of each row's block, for blocks of one length whose first one has lost ``offset`` rows.

    Example: rows 0 to 6, length 3, offset 1: the blocks are rows 0–1, 2–4 and 5–6, so the starts are
    0, 0, 2, 2, 2, 5, 5.
    """
    number = (rows + offset) // length
    return (number * length - offset).clamp_min(0)


def label_loss(out: Tensor, frozen: Frozen, batch: Batch, ahead: int) -> Tensor:
    """Cross-entropy of states (B, n, width) with the text's token ``ahead`` places on, where the table has it.

    Row t counts if token t + ahead belongs to the answer. A label is a law of one token, whose soft row is that
    token's output row.
    """
    label = batch.tokens.roll(-ahead, 1)  # (B, n); the last rows hold tokens from the text's begin
    last_column = len(frozen.ids) - 1
    column = torch.searchsorted(frozen.ids, label).clamp_max(last_column)
    drafted = frozen.ids[column] == label
    counted = batch.answers.roll(1 - ahead, 1) & drafted
    counted[:, -ahead:] = False
    return cross_entropy(out[counted], frozen, frozen.rows[column[counted]])


def vdm_loss(head: Vdm, frozen: Frozen, batch: Batch, generator: torch.Generator) -> Tensor:
    """KL to the target (up to its constant), as for EDD."""
    out = vdm_pass(head, frozen, batch.embedded(frozen))
    return answer_loss(out, frozen, batch)


def medusa_loss(head: Medusa, frozen: Frozen, batch: Batch, generator: torch.Generator) -> Tensor:
    """Medusa-1: Σ over heads of 0.8^i · cross-entropy with the text's token i + 2 places on."""
    out = head(batch.hidden[-1])  # (B, n, heads, width)
    total = 0
    for i in range(out.shape[2]):
        loss = label_loss(out[:, :, i], frozen, batch, ahead=i + 2)
        total = total + 0.8**i * loss
    return total
