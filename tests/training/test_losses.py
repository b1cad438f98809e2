"""Losses and TALF's trees, each against its definition."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from rounding import BFLOAT16, rounding, same
from tiny import randomise
from tiny_heads import QUICK, fresh

from training import branches, features, loop, losses

pytestmark = pytest.mark.usefixtures("own_cache")


def talf(pair, ready, rows: list[int]):
    """A random head, and some dialogues with their target-built trees."""
    frozen, data = ready
    head, _, _ = fresh(pair, "talf")
    trees = branches.compute(pair.target, frozen, data, range(6), k=3, m=4)
    return randomise(head, 0.3), frozen, loop.gather(replace(data, trees=trees), rows, frozen.rows)


def wide(head, frozen, batch):
    """All three in float64."""
    frozen = replace(frozen, embedding=frozen.embedding.double(), rows=frozen.rows.double())
    hidden = {layer: states.double() for layer, states in batch.hidden.items()}
    return head.double(), frozen, replace(batch, hidden=hidden, soft=batch.soft.double())


def test_cross_entropy_with_soft_rows_is_the_kl_up_to_a_constant():
    generator = torch.Generator().manual_seed(0)
    h, rows = (torch.randn(*shape, generator=generator) for shape in ((5, 4), (7, 4)))
    law = torch.randn(5, 7, generator=generator).softmax(-1)
    mass = torch.tensor([1.0, 0.5, 2.0, 1.0, 1.0])
    soft = (law * mass[:, None]) @ rows
    for h_ in (h, h * 3):
        theirs = -(law * mass[:, None] * F.log_softmax(h_ @ rows.T, -1)).sum() / 5
        torch.testing.assert_close(losses.cross_entropy(h_, SimpleNamespace(rows=rows), soft, mass), theirs)


@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
def test_no_state_gains_by_running_off_where_all_logits_shift_alike(ready, kept):
    """There the loss is that of the uniform law, however long the state, also beside a target in bfloat16.

    Soft rows that are in bfloat16 themselves are the negative control.
    """
    frozen, data = ready
    flat = torch.linalg.lstsq(frozen.rows, torch.ones(len(frozen.rows), 1)).solution[:, 0]  # rows @ flat = 1
    batch = loop.gather(data, list(range(len(data))), frozen.rows.bfloat16())
    soft = batch.soft[batch.answers].to(kept).float()
    long = torch.stack([losses.cross_entropy(3e3 * flat[None], frozen, row[None]) for row in soft])
    off = (long - torch.tensor(float(len(frozen.rows))).log()).abs().max()
    assert (off < 0.01) == (kept == torch.float32), off


def test_hass_loss_is_its_definition(pair, ready):
    """Depth 1, no regression: CE plus the top-ten loss, Σ p log q over the teacher's likeliest, not renormalised."""
    frozen, data = ready
    head, _, _ = fresh(pair, "hass")
    batch = loop.gather(data, [0, 1, 2], frozen.rows)
    ours = losses.hass_loss(head, frozen, batch, None, depth=1, regression=0.0)
    (out,) = losses.eagle_pass(head, batch.embedded(frozen), batch.hidden[-1], 1)
    logq = F.log_softmax(out[batch.answers] @ frozen.rows.T, -1)
    p = (batch.hidden[-1][batch.answers] @ frozen.rows.T).softmax(-1)
    best = p.topk(features.TOP)
    expected = -(p * logq).sum(-1).mean() - (best.values * logq.gather(-1, best.indices)).sum(-1).mean()
    torch.testing.assert_close(ours, expected, rtol=2 * BFLOAT16, atol=BFLOAT16)  # features are stored in bf16


@torch.no_grad()
def test_hass_on_roots_counts_what_is_drafted_below_them(pair, ready):
    """Depth 1 counts at every answer row, depths 2 and 3 one and two places below a root; TALF's trees have these."""
    frozen, data = ready
    head, _, recipe = fresh(pair, "hass_roots")
    randomise(head, 0.15)
    trees = branches.compute(pair.target, frozen, data, range(6), k=0, m=4)
    assert torch.equal(trees.roots, branches.compute(pair.target, frozen, data, range(6), k=2, m=4).roots)
    batch, total = loop.gather(replace(data, trees=trees), [3, 5], frozen.rows), 0.0
    law = (batch.hidden[-1] @ frozen.rows.T).softmax(-1)
    law = law + law * (law >= law.topk(features.TOP).values[..., -1:])  # the ten likeliest count twice
    for below, out in enumerate(losses.eagle_pass(head, batch.embedded(frozen), batch.hidden[-1], 3)):
        terms = [
            cross_entropy_of(out[row, t], law[row, t], frozen)
            + 0.1 * F.smooth_l1_loss(out[row, t], batch.hidden[-1][row, t])
            for row, t in batch.answers.nonzero().tolist()
            if not below or t - below in batch.branches.roots[row]
        ]
        total += sum(terms) / len(terms) / 3
    ours = recipe.loss(head, frozen, batch, None)
    everywhere = losses.hass_loss(head, frozen, replace(batch, branches=None), None)
    assert abs(ours - total) < 0.01 < 0.03 < abs(ours - everywhere)  # features are kept in bf16


def cross_entropy_of(h, p, frozen):
    """−Σ p log q for one state, in float64."""
    return -(p.double() * F.log_softmax(h.double() @ frozen.rows.double().T, -1)).sum()


@torch.no_grad()
def test_eagle_loss_is_its_definition(pair, ready):
    """Row t: token t beside the noisy feature before it; asked for the target's law and feature at t."""
    frozen, data = ready
    head, _, _ = fresh(pair, "eagle")
    randomise(head, 0.1)
    batch = loop.gather(data, [3], frozen.rows)
    f, n = batch.hidden[-1][0], batch.tokens.shape[1]
    noise = torch.rand(1, n, f.shape[1], generator=torch.Generator().manual_seed(5))[0].sub(0.5).mul(0.2)
    total, rows = 0.0, batch.answers[0].nonzero().flatten().tolist()
    for t in rows:
        before = torch.cat([torch.zeros(1, f.shape[1]), (f + noise)[:t]])
        x = head.rows(frozen.embedding[batch.tokens[0, : t + 1]], before)[None]
        query, keys, values = head.layer.project(x, torch.arange(t + 1))
        out = head.layer(x, query, keys, values, None)[0, t]
        law = (f[t] @ frozen.rows.T).softmax(-1)
        total += cross_entropy_of(out, law, frozen) + 0.1 * F.smooth_l1_loss(out, f[t])
    ours = losses.eagle_loss(head, frozen, batch, torch.Generator().manual_seed(5))
    # features are kept in bfloat16
    torch.testing.assert_close(ours.double(), total / len(rows), rtol=2 * BFLOAT16, atol=BFLOAT16)


@torch.no_grad()
def test_noise_is_for_training_only(pair, ready):
    """Two generators, two losses; in eval mode one, and validation leaves the head training."""
    frozen, data = ready
    head, _, recipe = fresh(pair, "eagle")
    batch = loop.gather(data, [3], frozen.rows)
    noisy, quiet = (
        {float(recipe.loss(head.train(on), frozen, batch, torch.Generator().manual_seed(s))) for s in (0, 1)}
        for on in (True, False)
    )
    assert (len(noisy), len(quiet)) == (2, 1)
    loop.validate(head, frozen, data, [3], recipe.loss, QUICK)
    assert head.training


@torch.no_grad()
def test_talf_loss_is_its_definition(pair, ready):
    """Every level against the law the target really has there; with the levels' laws swapped it is another number."""
    head, frozen, batch = talf(pair, ready, [5])
    text, *levels = losses.tree_pass(head, frozen, batch)
    f, tokens, mine = batch.hidden[-1][0], batch.tokens[0].tolist(), batch.branches
    rows = batch.answers[0].nonzero().flatten().tolist()
    root = sum(cross_entropy_of(text[0, t], (f[t] @ frozen.rows.T).softmax(-1), frozen) for t in rows) / len(rows)
    below = []
    for level, out in enumerate(levels):
        terms = []
        for j, at in enumerate(mine.roots[0].tolist()):
            for place in range(3):
                parent = int(mine.parents[0, j, place]) if level else place
                path = [int(mine.tokens[0, 0, j, parent]), int(mine.tokens[0, 1, j, place])][: level + 1]
                law = pair.target(torch.tensor([[*tokens[: at + 1], *path]])).logits[0, -1, frozen.ids].softmax(-1)
                terms.append(cross_entropy_of(out[0, j, place], law, frozen))
        below.append(sum(terms) / len(terms))
    ours = losses.talf_loss(head, frozen, batch, None).double()
    torch.testing.assert_close(ours, (root + 3 * below[0] + 3 * below[1]) / 7, rtol=2 * BFLOAT16, atol=BFLOAT16)
    swapped = replace(batch, branches=replace(mine, soft=mine.soft.flip(1)))
    assert abs(losses.talf_loss(head, frozen, swapped, None).double() - ours) > 0.05


def test_edd_blocks_are_blocks(pair, ready, monkeypatch):
    """The blocks edd_loss cuts: 5 to 10 rows, side by side, none beginning behind its rows; fixed length on request."""
    frozen, data = ready
    head, _, _ = fresh(pair, "edd")
    batch, seen = loop.gather(data, [1, 2], frozen.rows), []
    monkeypatch.setattr(losses, "edd_pass", lambda h, f, e, prompt, block: seen.append((prompt, block)) or e)
    for lengths in ((5, 10), (5, 5)):
        seen.clear()
        for seed in range(60):
            losses.edd_loss(head, frozen, batch, torch.Generator().manual_seed(seed), lengths=lengths)
        inner = set()
        for prompt, block in seen:
            assert prompt is batch.hidden[-4]
            rows = torch.arange(len(block))
            starts = block.unique()
            assert (block <= rows).all()
            assert (rows - block < lengths[1]).all()
            assert (block[starts] == starts).all()  # each block begins at its own first row
            inner |= set(starts.diff()[1:].tolist())
        assert inner == set(range(lengths[0], min(lengths[1], 9) + 1)) | ({10} if 10 in inner else set())


def test_labels_are_the_texts_own_tokens(pair, ready):
    """Medusa's head i at row t is asked for token t + 2 + i, where the table has it; computed here token by token."""
    frozen, data = ready
    head, spec, recipe = fresh(pair, "medusa")
    batch = loop.gather(data, [4], frozen.rows)
    out, column = head(batch.hidden[-1])[0], {int(t): c for c, t in enumerate(frozen.ids)}
    begin, n = int(batch.answers[0].nonzero()[0]) + 1, batch.tokens.shape[1]  # the answer's first token
    total = 0.0
    for i in range(spec.count):
        pairs = [(t, column[int(batch.tokens[0, t + 2 + i])]) for t in range(n - 2 - i)
                 if t + 2 + i >= begin and int(batch.tokens[0, t + 2 + i]) in column]  # fmt: skip
        logq = [F.log_softmax(out[t, i] @ frozen.rows.T, -1)[c] for t, c in pairs]
        total += 0.8**i * -torch.stack(logq).mean()
    torch.testing.assert_close(recipe.loss(head, frozen, batch, None), total, rtol=0, atol=rounding(total))


@torch.no_grad()
def test_trees_are_the_targets_own(pair, ready):
    """TALF's trees by brute force: top k below the root, then the k best of k² by joint probability; laws by path."""
    frozen, data = ready
    data = replace(data, hidden={-1: torch.cat(data.hidden[-1].pieces).float()})
    k, trees = 3, branches.compute(pair.target, frozen, data, [5, 6], k=3, m=4)
    trees = replace(trees, soft=torch.cat(trees.soft.pieces))

    def law(tokens) -> torch.Tensor:
        return pair.target(torch.tensor([tokens])).logits[0, -1, frozen.ids].softmax(-1)

    for row, i in enumerate(trees.dialogues.tolist()):
        text = data.tokens[int(data.start[i]) : int(data.start[i + 1])].tolist()
        for j, root in enumerate(trees.roots[row].tolist()):
            assert int(data.answer[i] - data.start[i]) - 1 <= root < len(text) - 1
            above = text[: root + 1]
            p, best = law(above).topk(k)
            first = frozen.ids[best].tolist()
            assert trees.tokens[row, 0, j].tolist() == first
            joint = {}
            for parent, token in enumerate(first):
                for p_next, column in zip(*law([*above, token]).topk(k), strict=True):
                    joint[parent, int(frozen.ids[column])] = float(p[parent] * p_next)
            expected = sorted(joint, key=joint.get, reverse=True)[:k]
            found = list(zip(trees.parents[row, j].tolist(), trees.tokens[row, 1, j].tolist(), strict=True))
            assert min(joint[node] for node in found) >= 0.98 * joint[expected[-1]]  # best_p is kept in bf16
            for place, token in enumerate(first):
                soft = law([*above, token]) @ frozen.rows
                torch.testing.assert_close(trees.soft[row, 0, j, place].float(), soft, rtol=2 * BFLOAT16, atol=BFLOAT16)
            for place, (parent, token) in enumerate(found):
                soft = law([*above, first[parent], token]) @ frozen.rows
                torch.testing.assert_close(trees.soft[row, 1, j, place].float(), soft, rtol=2 * BFLOAT16, atol=BFLOAT16)


@torch.no_grad()
def test_tree_pass_is_a_chain_pass_along_every_path(pair, ready):
    """TALF's tree attention against HASS's chain pass on text + path: what drafting does at inference.

    In float64, but for rotary angles, which are float32: a random head's attention multiplies errors by its large
    scores, so in float32 the bound would not follow from the number of terms.
    """
    head, frozen, batch = wide(*talf(pair, ready, [5, 2, 3]))
    text, first, second = losses.tree_pass(head, frozen, batch)
    for row in range(3):
        for j, root in enumerate(batch.branches.roots[row].tolist()):
            features_before = batch.hidden[-1][row : row + 1, : root + 1]
            for place in range(3):
                parent = int(batch.branches.parents[row, j, place])
                path = [int(batch.branches.tokens[row, 0, j, parent]), int(batch.branches.tokens[row, 1, j, place])]
                ids = torch.cat([batch.tokens[row, : root + 1], torch.tensor(path)])
                chain = losses.eagle_pass(head, frozen.embedding[ids][None], F.pad(features_before, (0, 0, 0, 2)), 3)
                ours = (text[row, root], first[row, j, parent], second[row, j, place])
                for depth, state in enumerate(ours):
                    theirs = chain[depth][0, root + depth]
                    assert same(state, theirs, dtype=torch.float32)
