"""Training on a tiny corpus: losses against their definitions, every kind of head, kills, damage, full disks."""

import errno
import functools
import os
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tiny import llama

from specnb import assets, growth, head_drafts, heads, models, records, verifiers
from specnb.decode import decode
from specnb.drafters import TreeDrafter
from specnb.target import Target
from specnb.training import branches, evaluation, features, loop, losses, runs, writing

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
    return heads.Frozen.of(pair.target, ids), runs.corpus_features(pair, dialogues, ids, loop.EDD_LAYERS[:1])


def fresh(pair, name: str):
    recipe = loop.RECIPES[name]
    torch.manual_seed(3)
    spec = heads.Spec.like(pair.target, recipe.kind, hidden_layer=recipe.hidden_layer, count=recipe.count)
    head = heads.MODULES[recipe.kind](spec)
    heads.start_from(head, pair.target)
    return head, spec, recipe


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
        torch.testing.assert_close(data.soft[span].float(), law @ frozen.rows, rtol=2e-2, atol=1e-2)
        assert (data.best[span, 0] == law.argmax(-1)).all()
        batch = loop.gather(data, [i], frozen.rows)
        rows = batch.answers[0].nonzero().flatten()
        assert batch.tokens[0, rows + 1].tolist() == list(dialogues[i].answer)


def test_features_are_computed_once(pair, dialogues, ready, monkeypatch):
    frozen, data = ready
    monkeypatch.setattr(features, "_run", None)  # a second computation would fail
    again = runs.corpus_features(pair, dialogues, frozen.ids, loop.EDD_LAYERS[:1])
    assert torch.equal(again.soft, data.soft)
    with pytest.raises(TypeError):
        runs.corpus_features(pair, dialogues[:-1], frozen.ids, ())


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
    frozen, data = ready
    head, _, _ = fresh(pair, "talf")
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(1))
    trees = branches.compute(pair.target, frozen, data, range(6), k=3, m=4)
    batch = loop.gather(data, [5, 2, 3], frozen.rows, trees)
    text, first, second = losses.tree_pass(head, frozen, batch)
    for row in range(3):
        for j, root in enumerate(batch.branches.roots[row].tolist()):
            features_before = batch.hidden[-1][row : row + 1, : root + 1]
            for place in range(3):
                parent = int(batch.branches.parents[row, j, place])
                path = [int(batch.branches.tokens[row, 0, j, parent]), int(batch.branches.tokens[row, 1, j, place])]
                ids = torch.cat([batch.tokens[row, : root + 1], torch.tensor(path)])
                chain = losses.eagle_pass(head, frozen.embedding[ids][None], F.pad(features_before, (0, 0, 0, 2)), 3)
                torch.testing.assert_close(chain[0][0, root], text[row, root], rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(chain[1][0, root + 1], first[row, j, parent], rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(chain[2][0, root + 2], second[row, j, place], rtol=1e-4, atol=1e-4)


# --- training


@pytest.mark.parametrize(
    "name", ["vdm", "medusa", "eagle", "hass", "talf", "edd", "edd_no_encoding", "edd_no_kl", "edd_no_random"]
)
def test_every_kind_learns(name, pair, ready, tmp_path):
    frozen, data = ready
    head, _, recipe = fresh(pair, name)
    longer = replace(QUICK, epochs=6, lr=3e-3)
    trees = branches.compute(pair.target, frozen, data, range(40), k=recipe.trees, m=4) if recipe.trees else None
    _, curve = loop.train(head, frozen, data, recipe.loss, longer, tmp_path / "c.pt", trees)
    assert min(row["validation_loss"] for row in curve) < curve[0]["validation_loss"]
    assert curve[-1]["loss"] < curve[0]["loss"]


def test_train_by_name_writes_a_head_that_drafts(pair, dialogues, tmp_path):
    for name in ("eagle", "hass"):
        runs.train(pair, name, QUICK, "test", dialogues=dialogues, vocabulary=16, out=tmp_path / "drafts")
    card = tmp_path / "drafts" / "hass.json"
    assert '"parent": "eagle"' in card.read_text()
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


def test_too_small_a_corpus_for_the_table_is_said(dialogues):
    with pytest.raises(ValueError, match=r"only .* different answer tokens, 500 were asked for"):
        features.vocabulary(dialogues, 500)


# --- evaluation by replay


@pytest.mark.parametrize("name", ["vdm", "medusa", "eagle", "edd", "edd_no_encoding"])
def test_replay_is_the_real_run(name, pair, ready):
    """Accepted tokens of every step of a real greedy decode with chains of 5, from one teacher-forced pass."""
    head, spec, _ = fresh(pair, name)
    frozen, _ = ready
    for parameter in head.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(1))
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
