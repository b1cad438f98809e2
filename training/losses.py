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
        """(B, n) bool: the rows of the answer that stand so many places below a root of the dialogue's trees."""
        at = (self.branches.roots + places).clamp_max(self.answers.shape[1] - 1)  # the last row is never one
        return self.answers & torch.zeros_like(self.answers).scatter(1, at, True)


def cross_entropy(h: Tensor, frozen: Frozen, soft: Tensor, mass: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of draft states h (R, width) against soft rows e (R, width) that carry this much mass (R,).

    Σ over rows of mass · log Σ exp(W h) − e · h, by the frozen output rows W.
    """
    log_sum = (h.to(frozen.rows.dtype) @ frozen.rows.T).float().logsumexp(-1)
    log_sum = log_sum if mass is None else mass * log_sum
    return (log_sum.sum() - (soft.float() * h.float()).sum()) / max(1, len(h))


# ---- passes ---------------------------------------------------------------------------------------------------


def shifted(x: Tensor, by: int = 1) -> Tensor:
    """Row t of the result is row t − by of x (B, n, width), zero at the start: tokens beside the state before them."""
    return F.pad(x, (0, 0, by, 0))[:, : x.shape[1]]


def eagle_pass(
    head: Eagle | Eagle3, embedded: Tensor, features: Tensor, depth: int, *, through: bool = False
) -> list[Tensor]:
    """Draft features at depths 1 to depth, (B, n, width) each: EAGLE's training pass, then HASS's context alignment.

    At depth j row t is fed its own draft's feature of row t − 1; it attends to target features up to row t − j + 1
    and to the draft's of forward 2, …, j on the diagonals behind them, just as in a chain drafted from root t − j + 1.
    Gradients do not flow from one depth to the one before, unless they are let through, as EAGLE-3's are. HASS (Zhang
    et al. 2025), section 3.2.
    """
    n = embedded.shape[1]
    places = torch.arange(n, device=embedded.device)
    back = places[:, None] - places[None, :]  # (n, n): how far behind a query its key stands
    keys, values, out = [], [], []
    for j in range(1, depth + 1):
        fed = features if not out else out[-1] if through else out[-1].detach()
        x = head.rows(embedded, shifted(fed))
        query, key, value = head.layer.project(x, places)
        keys, values = [*keys, key], [*values, value]
        mask = torch.cat([back >= j - 1, *(back == j - i for i in range(2, j + 1))], 1) if j > 1 else None
        out.append(head.layer(x, query, torch.cat(keys, 2), torch.cat(values, 2), mask))
    return out


def tree_pass(head: Eagle, frozen: Frozen, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """TALF's pass: draft features after every text row (B, n, width) and after both tree levels, (B, m, k, width) each.

    A node is fed its token and the draft's feature at its parent; it attends to target-fed text rows up to its root,
    then to the tree's draft-fed rows above it. Gradients do not flow from a node to its parent, as in HASS.
    """
    trees, embedded = batch.branches, batch.embedded(frozen)
    n, (m, k) = embedded.shape[1], trees.parents.shape[-2:]
    places = torch.arange(n, device=embedded.device)
    x = head.rows(embedded, shifted(batch.hidden[-1]))
    query, keys, values = head.layer.project(x, places)
    out = [head.layer(x, query, keys, values, None)]
    every = torch.arange(len(embedded), device=embedded.device)[:, None]
    above = out[0].detach()[every, trees.roots][:, :, None].expand(-1, -1, k, -1)  # the root's feature, k times
    text = places <= trees.roots.repeat_interleave(k, 1)[..., None]  # (B, m·k, n): rows up to a node's root
    own = torch.eye(m * k, dtype=torch.bool, device=places.device).expand(len(embedded), -1, -1)
    parent = own[every, (torch.arange(0, m * k, k, device=places.device)[:, None] + trees.parents).flatten(1)]
    visible = [torch.cat([text, own], -1), torch.cat([text, parent, own], -1)]
    for level in range(2):
        x = head.rows(F.embedding(trees.tokens[:, level], frozen.embedding), above).flatten(1, 2)
        positions = (trees.roots + 1 + level).repeat_interleave(k, 1)
        query, key, value = head.layer.project(x, positions)
        keys, values = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        out.append(head.layer(x, query, keys, values, visible[level][:, None]).unflatten(1, (m, k)))
        above = out[1].detach().gather(2, trees.parents[..., None].expand_as(out[1]))
    return tuple(out)


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
        soft = head.layer.project(prompt, places)[1:]
        keys, values = (torch.cat(pair, 2) for pair in zip(soft, (keys, values), strict=True))
        mask = masks.dual_block(block)
    return frozen.norm(head.layer(embedded, query, keys, values, mask))


def vdm_pass(head: Vdm, frozen: Frozen, embedded: Tensor) -> Tensor:
    """The small language model's states (B, n, width): it sees tokens only."""
    return frozen.norm(head.model(inputs_embeds=embedded, use_cache=False).last_hidden_state)


# ---- losses ---------------------------------------------------------------------------------------------------

Loss = Callable[[nn.Module, Frozen, Batch, torch.Generator], Tensor]


def eagle_loss(head: Eagle, frozen: Frozen, batch: Batch, generator: torch.Generator) -> Tensor:
    """EAGLE: cross-entropy plus SmoothL1 of the features, with uniform noise on the features fed in while it trains.

    The weights are those of the SALF & TALF paper (section 4.1, cross-entropy ten times the regression), the reverse
    of the authors' code. Its noise, U(−.1, .1) · 512 / length, is made for texts of 512 tokens and more: on ours,
    a third of that, it would cost agreement, so it stays at U(−.1, .1).
    """
    features = batch.hidden[-1]
    drawn = torch.Generator(features.device).manual_seed(generator.initial_seed())
    noise = torch.rand(features.shape, generator=drawn, device=features.device).sub(0.5).mul(0.2 * head.training)
    (out,) = eagle_pass(head, batch.embedded(frozen), features + noise.to(features.dtype), 1)
    h = out[batch.answers]
    near = F.smooth_l1_loss(h.float(), features[batch.answers].float())
    return cross_entropy(h, frozen, batch.soft[batch.answers]) + 0.1 * near


def hass_loss(
    head: Eagle, frozen: Frozen, batch: Batch, generator: torch.Generator, *, depth: int = 3, regression: float = 0.1
) -> Tensor:
    """HASS: cross-entropy, regression and the teacher's ten likeliest tokens at depths 1 to 3, averaged.

    Each depth is fed the draft's own features, see ``eagle_pass``; no noise is added. Where the dialogues carry trees,
    depths from 2 on count below their roots only: as TALF's rows do on each level of trees of width 1.
    """
    best_p = batch.best_p.float()
    # Σ over the top ten of p(x) w_x, exactly: as a product of matrices autocast would round it
    top_rows = (best_p[..., None] * frozen.rows[batch.best].float()).sum(-2)
    soft, mass, total = batch.soft + top_rows, 1 + best_p.sum(-1), 0.0
    for below, out in enumerate(eagle_pass(head, batch.embedded(frozen), batch.hidden[-1], depth)):
        rows = batch.below_roots(below) if below and batch.branches else batch.answers
        h = out[rows]
        near = F.smooth_l1_loss(h.float(), batch.hidden[-1][rows].float())
        total = total + cross_entropy(h, frozen, soft[rows], mass[rows]) + regression * near
    return total / depth


def eagle3_loss(
    head: Eagle3, frozen: Frozen, batch: Batch, generator: torch.Generator, *, depth: int = 7, decay: float = 0.8
) -> Tensor:
    """EAGLE-3's training-time test: Σ over depths j of 0.8^(j − 1) · KL to the target (up to its constant), weighed.

    No feature is predicted. The authors' code trains output rows and final norm, too; ours are the target's, frozen.
    """
    features = head.fuse([batch.hidden[layer] for layer in head.layer.spec.fused])
    total, weights, soft = 0.0, [decay**j for j in range(depth)], batch.soft[batch.answers]
    outs = eagle_pass(head, batch.embedded(frozen), features, depth, through=True)
    for weight, out in zip(weights, outs, strict=True):
        total = total + weight * cross_entropy(frozen.norm(out[batch.answers]), frozen, soft)
    return total / sum(weights)


def talf_loss(head: Eagle, frozen: Frozen, batch: Batch, generator: torch.Generator) -> Tensor:
    """TALF (Algorithm 1): cross-entropy summed over the 1 + 2k expanded nodes of target-built trees, averaged here.

    The root's term is taken at every answer token, the others at the roots that carry a tree. No regression loss.
    """
    text, *levels = tree_pass(head, frozen, batch)
    k = batch.branches.parents.shape[-1]
    total = cross_entropy(text[batch.answers], frozen, batch.soft[batch.answers])
    for level, out in enumerate(levels):
        total = total + k * cross_entropy(out.flatten(0, 2), frozen, batch.branches.soft[:, level].flatten(0, 2))
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
    low, high = lengths
    length = int(torch.randint(low, high + 1, (), generator=generator))
    offset = int(torch.randint(length, (), generator=generator))
    rows = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    block = ((rows + offset) // length * length - offset).clamp_min(0)
    states = batch.hidden.get(head.layer.spec.hidden_layer)  # none for a head without encoding result
    out = edd_pass(head, frozen, batch.embedded(frozen), states, block)
    if labels:
        return label_loss(out, frozen, batch, 1)
    return cross_entropy(out[batch.answers], frozen, batch.soft[batch.answers])


def label_loss(out: Tensor, frozen: Frozen, batch: Batch, ahead: int) -> Tensor:
    """Cross-entropy of states (B, n, width) with the text's token ``ahead`` places on, where the table has it."""
    label = batch.tokens.roll(-ahead, 1)
    column = torch.searchsorted(frozen.ids, label).clamp_max(len(frozen.ids) - 1)
    known = batch.answers.roll(1 - ahead, 1) & (frozen.ids[column] == label)
    known[:, -ahead:] = False
    return cross_entropy(out[known], frozen, frozen.rows[column[known]])


def vdm_loss(head: Vdm, frozen: Frozen, batch: Batch, generator: torch.Generator) -> Tensor:
    """KL to the target (up to its constant), as for EDD."""
    out = vdm_pass(head, frozen, batch.embedded(frozen))
    return cross_entropy(out[batch.answers], frozen, batch.soft[batch.answers])


def medusa_loss(head: Medusa, frozen: Frozen, batch: Batch, generator: torch.Generator) -> Tensor:
    """Medusa-1: Σ over heads of 0.8^i · cross-entropy with the text's token i + 2 places on."""
    out = head(batch.hidden[-1])  # (B, n, heads, width)
    return sum(0.8**i * label_loss(out[:, :, i], frozen, batch, i + 2) for i in range(out.shape[2]))
