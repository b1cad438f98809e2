"""Training on a tiny corpus: losses against their definitions, every kind of head, kills, damage, full disks."""

import errno
import functools
import json
import os
from dataclasses import replace

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from tiny import llama, randomise

from specnb import assets, growth, head_drafts, heads, models, records, verifiers
from specnb.decode import decode
from specnb.drafters import TreeDrafter
from specnb.target import Target
from specnb.training import branches, evaluation, features, loop, losses, runs, starts, writing
from specnb.tree import TokenTree

V = 24  # so few that an untrained draft is right now and then
QUICK = loop.Schedule(epochs=2, batch_tokens=160, warmup=2, checkpoint_every=2)


@pytest.fixture(scope="module")
def pair() -> models.Pair:
    return models.Pair("tiny", llama(vocab_size=V, num_hidden_layers=6, num_attention_heads=4), None, None)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(writing, "template", lambda tokenizer: ([1, 2], [3, 4]))


@pytest.fixture
def dialogues(pair) -> list[writing.Dialogue]:
    """Forty short dialogues whose answers the tiny target really writes."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for i in range(40):
        question = torch.randint(V, (3 + i % 4,), generator=generator).tolist()
        prompt = torch.tensor([[1, 2, *question, 3, 4]])
        torch.manual_seed(i)
        new = pair.target.generate(
            prompt, max_new_tokens=8 + i % 5, do_sample=True, attention_mask=torch.ones_like(prompt)
        )
        found.append(writing.Dialogue(tuple(question), tuple(new[0, prompt.shape[1] :].tolist()), False))
    return found


@pytest.fixture
def ready(pair, dialogues):
    """(frozen, features) of the tiny corpus over half of the vocabulary."""
    ids = features.vocabulary(dialogues, 16)
    return heads.Frozen.of(pair.target, ids), runs.corpus_features(pair, dialogues, ids, [-1, -4])


def fresh(pair, name: str):
    recipe = loop.RECIPES[name]
    torch.manual_seed(3)
    spec = heads.Spec.like(pair.target, recipe.kind, hidden_layer=recipe.hidden_layer, count=recipe.count)
    head = heads.MODULES[recipe.kind](spec)
    starts.from_target(head, pair.target)
    return head, spec, recipe


def talf(pair, ready, rows: list[int]):
    """A random head, and some dialogues with their target-built trees."""
    frozen, data = ready
    head, _, _ = fresh(pair, "talf")
    trees = branches.compute(pair.target, frozen, data, range(6), k=3, m=4)
    return randomise(head, 0.3), frozen, loop.gather(data, rows, frozen.rows, trees)


# --- features and losses


def test_features_are_the_targets(pair, ready, dialogues):
    """Hidden states, soft rows and best tokens of each dialogue are those of a plain forward pass."""
    frozen, data = ready
    for i in (0, 7, 39):
        span = slice(int(data.start[i]), int(data.start[i + 1]))
        ids = torch.tensor([[1, 2, *dialogues[i].question, 3, 4, *dialogues[i].answer]])
        assert data.tokens[span].tolist() == ids[0].tolist()
        with torch.no_grad():
            out = pair.target(ids, output_hidden_states=True)
        law = out.logits[0][:, frozen.ids].softmax(-1)
        torch.testing.assert_close(data.hidden[-4][span].float(), out.hidden_states[-4][0], rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(data.soft[span], law @ frozen.rows)
        assert (data.best[span, 0] == law.argmax(-1)).all()
        batch = loop.gather(data, [i], frozen.rows)
        rows = batch.answers[0].nonzero().flatten()
        assert batch.tokens[0, rows + 1].tolist() == list(dialogues[i].answer)


def test_features_are_computed_once(pair, dialogues, ready, monkeypatch):
    frozen, data = ready
    monkeypatch.setattr(features, "_run", None)  # a second computation would fail
    again = runs.corpus_features(pair, dialogues, frozen.ids, [-4])
    assert torch.equal(again.soft, data.soft)
    again.soft.zero_()  # copy on write: what readers do to it stays with them
    assert torch.equal(runs.corpus_features(pair, dialogues, frozen.ids, [-1]).soft, data.soft)
    for other in ((dialogues[:-1], [-1]), (dialogues, [-2])):
        with pytest.raises(TypeError):
            runs.corpus_features(pair, other[0], frozen.ids, other[1])


def test_a_grown_corpus_only_adds_features(pair, dialogues, monkeypatch):
    """Chunks that were there are read, not computed; the whole is what one chunk would have been."""
    ids, ran, run = features.vocabulary(dialogues, 16), [], features._run
    whole = runs.corpus_features(pair, dialogues, ids, [-1])
    monkeypatch.setattr(features, "CHUNK", 7)
    runs.corpus_features(pair, dialogues[:16], ids, [-1])
    monkeypatch.setattr(features, "_run", lambda *a: (ran.append(len(a[2])), run(*a)))
    grown = runs.corpus_features(pair, dialogues, ids, [-1])
    assert sum(ran) == 40 - 14  # the third chunk was not full
    assert torch.equal(grown.tokens, whole.tokens)
    assert torch.equal(grown.answer, whole.answer)
    torch.testing.assert_close(grown.soft, whole.soft)
    torch.testing.assert_close(grown.hidden[-1].float(), whole.hidden[-1].float(), rtol=2e-2, atol=1e-2)


def test_a_full_disk_is_an_error_before_the_work_not_a_crash_within(pair, dialogues, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(features.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        runs.corpus_features(pair, dialogues, features.vocabulary(dialogues, 16), [-1])
    assert list((assets.cache_dir() / "features").glob("*/*.npy")) == []
    monkeypatch.undo()


def test_frozen_cross_entropy_is_the_kl_up_to_a_constant():
    generator = torch.Generator().manual_seed(0)
    h, rows = (torch.randn(*shape, generator=generator) for shape in ((5, 4), (7, 4)))
    law = torch.randn(5, 7, generator=generator).softmax(-1)
    mass = torch.tensor([1.0, 0.5, 2.0, 1.0, 1.0])
    for h_ in (h, h * 3):
        a, b = h_.clone().requires_grad_(), h_.clone().requires_grad_()
        soft = (law * mass[:, None]) @ rows
        ours = losses.FrozenCrossEntropy.apply(a, rows, soft, mass, 2)
        theirs = -(law * mass[:, None] * F.log_softmax(b @ rows.T, -1)).sum()
        torch.testing.assert_close(ours, theirs)
        ours.backward()
        theirs.backward()
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16])
def test_no_state_gains_by_running_off_where_all_logits_shift_alike(ready, kept):
    """There the loss is that of the uniform law, however long the state; soft rows in bf16 are the negative control."""
    frozen, data = ready
    flat = torch.linalg.lstsq(frozen.rows, torch.ones(len(frozen.rows), 1)).solution[:, 0]  # rows @ flat = 1
    soft = data.soft.to(kept).float()
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
    torch.testing.assert_close(ours, expected, rtol=2e-2, atol=1e-2)  # features are stored in bf16


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
    noise = torch.rand(1, n, f.shape[1], generator=torch.Generator().manual_seed(5))[0].sub(0.5).mul(0.2 * 512 / n)
    total, rows = 0.0, batch.answers[0].nonzero().flatten().tolist()
    for t in rows:
        before = torch.cat([torch.zeros(1, f.shape[1]), (f + noise)[:t]])
        x = head.rows(frozen.embedding[batch.tokens[0, : t + 1]], before)[None]
        keys, values = head.layer.keys_values(x, torch.arange(t + 1))
        out = head.layer(x, torch.arange(t + 1), keys, values, None)[0, t]
        law = (f[t] @ frozen.rows.T).softmax(-1)
        total += cross_entropy_of(out, law, frozen) + 0.1 * F.smooth_l1_loss(out, f[t])
    ours = losses.eagle_loss(head, frozen, batch, torch.Generator().manual_seed(5))
    torch.testing.assert_close(ours.double(), total / len(rows), rtol=2e-2, atol=1e-2)  # features are kept in bf16


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
    torch.testing.assert_close(ours, (root + 3 * below[0] + 3 * below[1]) / 7, rtol=1e-2, atol=1e-2)
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
    torch.testing.assert_close(recipe.loss(head, frozen, batch, None), total, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_trees_are_the_targets_own(pair, ready):
    """TALF's trees by brute force: top k below the root, then the k best of k² by joint probability; laws by path."""
    frozen, data = ready
    data = replace(data, hidden={-1: data.hidden[-1].float()})
    k, trees = 3, branches.compute(pair.target, frozen, data, [5, 6], k=3, m=4)

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
                torch.testing.assert_close(trees.soft[row, 0, j, place].float(), soft, rtol=2e-2, atol=1e-2)
            for place, (parent, token) in enumerate(found):
                soft = law([*above, first[parent], token]) @ frozen.rows
                torch.testing.assert_close(trees.soft[row, 1, j, place].float(), soft, rtol=2e-2, atol=1e-2)


@torch.no_grad()
def test_tree_pass_is_a_chain_pass_along_every_path(pair, ready):
    """TALF's tree attention against HASS's chain pass on text + path: what drafting does at inference."""
    head, frozen, batch = talf(pair, ready, [5, 2, 3])
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
                    assert (theirs - state).abs().max() < 1e-4 * theirs.abs().max()


# --- training


@pytest.mark.parametrize(
    "name", ["vdm", "medusa", "eagle", "hass", "talf", "edd", "edd_no_encoding", "edd_no_kl", "edd_no_random"]
)
def test_every_kind_learns(name, pair, ready, tmp_path):
    frozen, data = ready
    head, _, recipe = fresh(pair, name)
    longer = replace(QUICK, epochs=6, lr=3e-3)
    trees = branches.compute(pair.target, frozen, data, range(40), k=recipe.trees, m=4) if recipe.trees else None
    before = loop.validate(head, frozen, data, range(0, 40, 20), recipe.loss, longer, trees)["validation_loss"]
    _, curve = loop.train(head, frozen, data, recipe.loss, longer, tmp_path / "c.pt", trees=trees)
    assert min(row["validation_loss"] for row in curve) < before
    assert curve[-1]["loss"] < curve[0]["loss"]


def with_something_in_common(data: features.Features, width: int) -> features.Features:
    """Features of a toy, moved by what a real model's states have in common, so that they tell from embedded tokens."""
    common = torch.linspace(-8, 8, width)
    return replace(data, hidden={layer: states.float() + common for layer, states in data.hidden.items()})


def test_an_edd_begins_with_its_eyes_on_the_latest_state_and_on_its_block(pair, ready):
    """Turned heads look at the rows meant for them, wherever the block begins; a plain copy's do not."""
    frozen, data = ready
    head, spec, recipe = fresh(pair, "edd")
    data = with_something_in_common(data, spec.width)
    batch = loop.gather(data, list(range(8)), frozen.rows)
    layer, half = head.layer, spec.attention_heads // 2

    @torch.no_grad()
    def looked(root: int, depth: int) -> tuple[float, float]:
        """Mean attention at this depth to the block's tokens and to the latest state, by their heads."""
        at, tokens = root + depth - 1, torch.arange(root, root + depth)
        states, _ = layer.keys_values(batch.hidden[recipe.hidden_layer][:, :root], torch.arange(root))
        block, _ = layer.keys_values(batch.embedded(frozen)[:, tokens], tokens)
        rows = layer.input_layernorm(batch.embedded(frozen)[:, [at]])
        query = layer._rotate(layer._split(layer.q_proj(rows)), torch.tensor([at]))
        keys = torch.cat([states, block], 2)
        attention = (query @ keys.transpose(2, 3) / spec.head_width**0.5).softmax(-1)[:, :, 0]  # (B, heads, keys)
        block, latest = attention[:, :half, root:].sum(-1), attention[:, half : 2 * half, root - 1]
        return float(block.mean()), float(latest.mean())

    cases = [(9, 1), (9, 4), (5, 2)]
    for case in cases:
        block, latest = looked(*case)
        assert block < 0.8
        assert latest < 0.4
    starts.look(head, frozen, data, recipe.hidden_layer)
    for case in cases:
        block, latest = looked(*case)
        assert block > 0.9
        assert latest > 0.5


@torch.no_grad()
@pytest.mark.parametrize("name", ["eagle", "edd", "edd_no_encoding"])
def test_heads_begin_by_foretelling_the_next_state(pair, ready, name):
    """Untrained, their loss is below the plain start's, and below that of a regression on tokens in another order."""
    frozen, data = ready
    recipe, width = loop.RECIPES[name], frozen.rows.shape[1]
    if recipe.kind == "edd":
        data = with_something_in_common(data, width)
    wrong = replace(
        data, tokens=data.tokens[torch.randperm(len(data.tokens), generator=torch.Generator().manual_seed(1))]
    )

    def loss(start_from: features.Features | None) -> float:
        head, _, _ = fresh(pair, name)
        if start_from is not None and recipe.kind == "eagle":
            starts.foretell(head, frozen, start_from)
        elif start_from is not None:
            starts.look(head, frozen, start_from, recipe.hidden_layer)
        return loop.validate(head, frozen, data, range(40), recipe.loss, QUICK, None)["validation_loss"]

    assert loss(data) < loss(wrong) < loss(None)


def test_questions_are_trained_on_too(pair, dialogues):
    """The target wrote them: rows from the template's opening on, answers alone where drafts are measured."""
    ids = features.vocabulary(dialogues, 16)
    whole, answers = (runs.corpus_features(pair, dialogues, ids, [], questions=q) for q in (True, False))
    assert torch.equal(whole.tokens, answers.tokens)
    assert (whole.answer - whole.start[:-1] == 2).all()
    asked = torch.tensor([len(d.question) for d in dialogues])
    assert torch.equal(answers.answer - whole.answer, asked + 2)


def test_train_by_name_writes_a_head_that_drafts(pair, dialogues, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "TREE_ROOTS", 4)
    train = functools.partial(
        runs.train, pair, dialogues=dialogues, ids=features.vocabulary(dialogues, 16), out=tmp_path / "drafts"
    )
    with pytest.raises(ValueError, match="train eagle first"):
        train("talf", QUICK, "test")
    for name in ("eagle", "hass", "talf"):
        train(name, QUICK, "test")
    card = json.loads((tmp_path / "drafts" / "talf.json").read_text())
    assert card["data"]["trees"] == "40 dialogues with 4 trees of width 4 each"
    assert card["terms"]["parent"] == assets.sha256(tmp_path / "drafts" / "eagle.safetensors")[:16]
    with monkeypatch.context() as patch:  # trained already: nothing to do; on other terms there is
        patch.setattr(loop, "train", None)
        train("eagle", QUICK, "test")
        with pytest.raises(TypeError):
            train("eagle", replace(QUICK, seed=1), "test")
    drafter = TreeDrafter(head_drafts.load(tmp_path / "drafts" / "hass", pair.target), growth.chain(3))
    generation = decode(Target(pair.target), drafter, verifiers.greedy, [1, 2, 5, 3, 4], max_new_tokens=12)
    plain = pair.target.generate(torch.tensor([[1, 2, 5, 3, 4]]), max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert list(generation.tokens) == plain[0, 5:].tolist()
    assert not list((assets.cache_dir() / "training").glob("*"))


class Killed(Exception):
    pass


def killed_at(step: int, loss):
    """The loss, until its step-th call kills the run."""
    calls = iter(range(10**9))

    def wrapped(*args):
        if next(calls) == step:
            raise Killed
        return loss(*args)

    return wrapped


@pytest.mark.parametrize("name", ["eagle", "edd", "vdm"])
def test_a_killed_run_resumes_bit_for_bit(name, pair, ready, tmp_path):
    """Bar 6: killed at any step or validation, again and again, the weights and the curve come out the same."""
    frozen, data = ready
    head, _, recipe = fresh(pair, name)
    expected, curve = loop.train(head, frozen, data, recipe.loss, QUICK, tmp_path / "whole.pt")
    for stop in (1, 3, 4, 7):
        head, path = fresh(pair, name)[0], tmp_path / f"{stop}.pt"
        for _ in range(100):
            try:
                _, again = loop.train(head, frozen, data, killed_at(stop, recipe.loss), QUICK, path)
                break
            except Killed:
                head = fresh(pair, name)[0]  # a new process knows only the checkpoint
                stop += 1  # get further each time, for progress despite the kills
        assert again == curve
        for key, weight in expected.state_dict().items():
            assert torch.equal(weight, head.state_dict()[key])


def test_early_stopping_resumes_alike(pair, ready, tmp_path):
    frozen, data = ready
    recipe, hasty = loop.RECIPES["eagle"], replace(QUICK, epochs=30, patience=1, lr=0.03)
    calls = []

    def counted(*args):
        calls.append(args)
        return recipe.loss(*args)

    expected, curve = loop.train(fresh(pair, "eagle")[0], frozen, data, counted, hasty, tmp_path / "whole.pt")
    assert len(curve) < 30
    head = fresh(pair, "eagle")[0]
    with pytest.raises(Killed):
        loop.train(head, frozen, data, killed_at(len(calls) - 2, recipe.loss), hasty, tmp_path / "c.pt")
    head, again = loop.train(fresh(pair, "eagle")[0], frozen, data, recipe.loss, hasty, tmp_path / "c.pt")
    assert again == curve
    assert torch.equal(head.fc.weight, expected.fc.weight)


def test_noise_is_part_of_what_resumes(pair, ready, tmp_path):
    """Negative control: another seed gives other weights, so the equality above says something."""
    frozen, data = ready
    recipe = loop.RECIPES["eagle"]
    trained = [
        loop.train(fresh(pair, "eagle")[0], frozen, data, recipe.loss, replace(QUICK, seed=s), tmp_path / f"{s}.pt")[0]
        for s in (0, 1)
    ]
    assert not torch.equal(trained[0].fc.weight, trained[1].fc.weight)


@pytest.fixture
def interrupted(pair, ready, tmp_path):
    """A checkpoint of a killed run, and a function that goes on with it."""
    frozen, data = ready
    recipe, path = loop.RECIPES["edd"], tmp_path / "c.pt"
    with pytest.raises(Killed):
        loop.train(fresh(pair, "edd")[0], frozen, data, killed_at(5, recipe.loss), QUICK, path)
    assert path.exists()
    return path, functools.partial(loop.train, fresh(pair, "edd")[0], frozen, data, recipe.loss, checkpoint=path)


def test_a_truncated_checkpoint_is_named(interrupted):
    path, go_on = interrupted
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(ValueError, match="truncated or damaged: delete it"):
        go_on(schedule=QUICK)


def test_a_checkpoint_of_another_run_is_refused(interrupted):
    _, go_on = interrupted
    with pytest.raises(ValueError, match="belongs to another run"):
        go_on(schedule=replace(QUICK, lr=0.5))
    with pytest.raises(ValueError, match="'ids': None"):
        go_on(schedule=QUICK, terms={"ids": "those of another table"})


def test_a_full_disk_leaves_the_earlier_checkpoint(interrupted, monkeypatch):
    path, go_on = interrupted
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(records.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        go_on(schedule=QUICK)
    assert path.read_bytes() == before
    assert list(path.parent.glob("*.part*")) == []
    monkeypatch.undo()
    go_on(schedule=QUICK)


def test_a_full_disk_leaves_the_earlier_head_and_its_card(pair, ready, tmp_path, monkeypatch):
    """Weights and card belong together: neither is replaced unless both are on the disk."""
    frozen, _ = ready
    head, spec, _ = fresh(pair, "edd")
    card = {"target": heads.fingerprint(pair.target)}
    heads.save(head, spec, frozen.ids, card, tmp_path / "edd")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    calls, sync = iter(range(9)), os.fsync

    def full(number):
        if next(calls) == 1:  # the card, after the weights
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(number)

    monkeypatch.setattr(records.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        heads.save(fresh(pair, "edd")[0], spec, frozen.ids[:8], card, tmp_path / "edd")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    heads.load(tmp_path / "edd", pair.target)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"epochs": 0}, "epochs must be at least 1"), ({"lr": 1e30, "clip": 1e30}, "the loss is .* at step")],
)
def test_hopeless_schedules_are_said(change, message, pair, ready, tmp_path):
    frozen, data = ready
    with pytest.raises(ValueError, match=message):
        loop.train(
            fresh(pair, "edd")[0], frozen, data, loop.RECIPES["edd"].loss, replace(QUICK, **change), tmp_path / "c.pt"
        )


def test_too_few_dialogues_are_said(pair, dialogues, ready, tmp_path):
    frozen, data = ready
    one = runs.corpus_features(pair, dialogues[:1], frozen.ids, [-1, -4])
    with pytest.raises(ValueError, match="0 dialogues to train on and 1 to validate are too few"):
        loop.train(fresh(pair, "edd")[0], frozen, one, None, QUICK, tmp_path / "c.pt")
    with pytest.raises(ValueError, match="none of 40 dialogues has an answer of 99 tokens"):
        branches.compute(pair.target, frozen, data, range(40), k=2, m=99)


def test_too_small_a_corpus_for_the_table_is_said(dialogues):
    with pytest.raises(ValueError, match=r"only .* different tokens, 500 were asked for"):
        features.vocabulary(dialogues, 500)


# --- evaluation by replay


@pytest.mark.parametrize("name", ["vdm", "medusa", "eagle", "edd", "edd_no_encoding"])
def test_replay_is_the_real_run(name, pair, ready):
    """Accepted tokens of every step of a real greedy decode with chains of 5, from one teacher-forced pass."""
    head, spec, _ = fresh(pair, name)
    frozen, _ = ready
    randomise(head, 0.3)
    dialogues, real = [], []
    for i in range(12):
        question = [i % V, (5 * i) % V, 7]
        drafter = TreeDrafter(head_drafts.draft_model(head.eval(), spec, frozen), growth.chain(5))
        prompt = [1, 2, *question, 3, 4]
        generation = decode(Target(pair.target), drafter, verifiers.greedy, prompt, max_new_tokens=20)
        dialogues.append(writing.Dialogue(tuple(question), tuple(generation.tokens), True))
        real.append([len(step.verdict.path) for step in generation.steps])
    data = runs.corpus_features(pair, dialogues, frozen.ids, [spec.hidden_layer] if spec.hidden_layer else [])
    data = replace(data, hidden={k: v.float() for k, v in data.hidden.items()}, soft=data.soft.float())
    replayed = {i: evaluation.steps_of(match) for i, match in evaluation.by_dialogue(head, spec, frozen, data)}
    assert [replayed[i] for i in range(12)] == real
    assert sum(map(sum, real)) > 5  # something was accepted
    table = evaluation.measure(name, head, spec, frozen, data, ["a", "b"] * 6)
    assert table["set"].tolist() == ["a", "b", "all"]
    assert table["tau"].iloc[-1] == pytest.approx(12 * 20 / sum(map(len, real)))


def test_steps_of_a_known_text():
    """Depth 2, six tokens: accept 2, then 0, then 1 and the end."""
    match = torch.tensor([[1, 0, 1, 0, 1, 1], [0, 1, 0, 0, 0, 1]], dtype=torch.bool)
    assert evaluation.steps_of(match) == [2, 0, 1]
    assert evaluation.steps_of(torch.zeros(5, 4, dtype=torch.bool)) == [0, 0, 0, 0]
    assert evaluation.steps_of(torch.ones(5, 6, dtype=torch.bool)) == [5]


@torch.no_grad()
def test_by_rank_is_what_drafting_does(pair, ready):
    """Figure 2b's rows, each redone with the drafter's own expand and a plain target forward."""
    frozen, data = ready
    data = replace(data, hidden={-1: data.hidden[-1].float()})
    head, spec, _ = fresh(pair, "eagle")
    for parameter in head.parameters():
        parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    few = replace(data, start=data.start[:4], answer=data.answer[:3])
    found = evaluation.by_rank(head, spec, frozen, pair.target, few, roots=4)
    kept, roots = branches.choose_roots(few, range(3), 4, seed=0)
    expected = []
    for i, at in zip(kept, roots.tolist(), strict=True):
        span = slice(int(data.start[i]), int(data.start[i + 1]))
        text, states = data.tokens[span].tolist(), data.hidden[-1][span]
        hits = []
        for root in at:
            draft = head_drafts.draft_model(head, spec, frozen)
            draft.begin(text[: root + 1], {-1: states[:root]})
            tree = TokenTree([text[root]], [-1])
            best = frozen.ids[draft.expand(tree, [0])[0].topk(5).indices].tolist()
            tree = TokenTree([text[root], *best], [-1, 0, 0, 0, 0, 0])
            guesses = frozen.ids[draft.expand(tree, range(1, 6)).argmax(-1)].tolist()
            truth = [int(pair.target(torch.tensor([[*text[: root + 1], t]])).logits[0, -1].argmax()) for t in best]
            hits.append([a == b for a, b in zip(guesses, truth, strict=True)])
        expected += [(rank + 1, row[rank]) for rank in range(5) for row in hits]
    assert list(zip(found["rank"], found["hit"], strict=True)) == expected
    assert 0 < found["hit"].mean() < 1
    assert (found["p_target"] <= found["confidence"] + 1e-6).all()


def test_reports_are_recorded(pair, dialogues, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "TREE_ROOTS", 4)
    monkeypatch.setattr(runs, "held_out", lambda: dialogues[:12])
    monkeypatch.setattr(evaluation, "held_out_prompts", lambda: pd.DataFrame({"set": ["a", "b"] * 6}))
    with pytest.raises(ValueError, match="holds no trained heads"):
        runs.report(pair, "test", folder=tmp_path, out=tmp_path / "report")
    for name in ("eagle", "hass", "talf", "vdm"):
        runs.train(pair, name, QUICK, "test", dialogues=dialogues, ids=features.vocabulary(dialogues, 16), out=tmp_path)
    table = runs.report(pair, "test", folder=tmp_path, out=tmp_path / "report")
    assert table["head"].tolist() == [name for name in ("eagle", "hass", "talf", "vdm") for _ in range(3)]
    assert table["set"].tolist() == ["a", "b", "all"] * 4
    assert len(pd.read_csv(tmp_path / "report.csv")) == 12
    ranks = runs.report_ranks(pair, "test", folder=tmp_path, out=tmp_path / "ranks")
    assert ranks["rank"].tolist() == [1, 2, 3, 4, 5] * 3
    assert json.loads((tmp_path / "ranks.json").read_text())["command"] == "test"
