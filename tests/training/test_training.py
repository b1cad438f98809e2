"""Training on a tiny corpus: every kind of head, kills, damage, full disks."""

import errno
import functools
import json
import os
from dataclasses import replace

import pytest
import torch
from tiny_heads import QUICK, fresh

from specnb import growth, heads, verifiers
from specnb.decode import decode
from specnb.drafters import TreeDrafter
from specnb.models import files
from specnb.target import Target
from training import branches, features, loop, losses, recipes, runs, starts

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize(
    "name",
    [
        "vdm",
        "medusa",
        "eagle",
        "eagle3",
        "hass",
        "hass_roots",
        "talf",
        "edd",
        "edd_no_encoding",
        "edd_no_kl",
        "edd_no_random",
    ],
)
def test_every_kind_learns(name, pair, ready, tmp_path):
    frozen, data = ready
    head, _, recipe = fresh(pair, name)
    longer = replace(QUICK, epochs=6, lr=3e-3)
    if recipe.roots:
        data = replace(data, trees=branches.compute(pair.target, frozen, data, range(40), k=recipe.trees, m=4))
    before = loop.validate(head, frozen, data, range(0, 40, 20), recipe.loss, longer)["validation_loss"]
    _, curve = loop.train(head, frozen, data, recipe.loss, longer, tmp_path / "c.pt")
    assert min(row["validation_loss"] for row in curve) < before
    assert curve[-1]["loss"] < curve[0]["loss"]


def with_something_in_common(data: features.Features, width: int) -> features.Features:
    """Features of a toy, moved by what a real model's states have in common, so that they tell from embedded tokens."""
    common = torch.linspace(-8, 8, width)
    return replace(
        data, hidden={layer: torch.cat(states.pieces).float() + common for layer, states in data.hidden.items()}
    )


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
        _, states, _ = layer.project(batch.hidden[recipe.hidden_layer][:, :root], torch.arange(root))
        _, block, _ = layer.project(batch.embedded(frozen)[:, tokens], tokens)
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
    starts.look(head, frozen, data)
    for case in cases:
        block, latest = looked(*case)
        assert block > 0.9
        assert latest > 0.5


@torch.no_grad()
@pytest.mark.parametrize("name", ["eagle", "eagle3", "edd", "edd_no_encoding"])
def test_heads_begin_by_predicting_the_next_state(pair, ready, name):
    """Untrained, their loss is below the plain start's, and below that of a regression on rows in another order."""
    frozen, data = ready
    recipe, width = recipes.named(name), frozen.rows.shape[1]
    if recipe.kind == "edd":
        data = with_something_in_common(data, width)
    other = torch.randperm(len(data.tokens), generator=torch.Generator().manual_seed(1))
    wrong = replace(data, tokens=data.tokens[other])
    if recipe.kind == "eagle3":  # begins without a look at tokens
        wrong = replace(data, hidden={layer: states[other] for layer, states in data.hidden.items()})

    def loss(start_from: features.Features | None) -> float:
        head, _, _ = fresh(pair, name)
        if start_from is not None and recipe.kind == "edd":
            starts.look(head, frozen, start_from)
        elif start_from is not None:
            starts.regress(head, frozen, start_from)
        return loop.validate(head, frozen, data, range(40), recipe.loss, QUICK)["validation_loss"]

    assert loss(data) < loss(wrong) < loss(None)


def test_train_by_name_writes_a_head_that_drafts(pair, dialogues, hasty, tmp_path, monkeypatch):
    train = functools.partial(
        runs.train, pair, dialogues=dialogues, ids=features.vocabulary(dialogues, 16), out=tmp_path / "drafts"
    )
    with pytest.raises(ValueError, match="train eagle first"):
        train("talf", "test")
    for name in ("eagle", "hass", "talf"):
        train(name, "test")
    card = json.loads((tmp_path / "drafts" / "talf.json").read_text())
    assert card["data"]["with_roots"] == 40
    assert card["terms"]["recipe"]["trees"] == 4
    assert card["terms"]["parent"] == files.sha256(tmp_path / "drafts" / "eagle.safetensors")[:16]
    with monkeypatch.context() as patch:  # trained already: nothing to do; on other terms there is
        patch.setattr(loop, "train", None)
        train("eagle", "test")
        patch.setitem(recipes.TABLE, "eagle", replace(recipes.TABLE["eagle"], lr=1.0))
        with pytest.raises(TypeError):
            train("eagle", "test")
    drafter = TreeDrafter(heads.load_draft(tmp_path / "drafts" / "hass", pair.target), growth.chain(3))
    generation = decode(Target(pair.target), drafter, verifiers.greedy, [1, 2, 5, 3, 4], max_new_tokens=12)
    plain = pair.target.generate(torch.tensor([[1, 2, 5, 3, 4]]), max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert list(generation.tokens) == plain[0, 5:].tolist()
    assert not list((files.cache_dir() / "training").glob("*"))


class Killed(Exception):
    pass


def killed_at(step: int, loss):
    """The loss, until its step-th call kills the run."""
    calls = iter(range(10**9))

    @functools.wraps(loss)  # cards and checkpoints know a loss by its name
    def wrapped(*args):
        if next(calls) == step:
            raise Killed
        return loss(*args)

    return wrapped


@pytest.mark.parametrize("name", ["eagle", "eagle3", "edd", "vdm"])
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
    recipe, hasty = recipes.named("eagle"), replace(QUICK, epochs=30, patience=1, lr=0.03)
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
    recipe = recipes.named("eagle")
    trained = [
        loop.train(fresh(pair, "eagle")[0], frozen, data, recipe.loss, replace(QUICK, seed=s), tmp_path / f"{s}.pt")
        for s in (0, 1)
    ]
    assert not torch.equal(trained[0][0].fc.weight, trained[1][0].fc.weight)


@pytest.fixture
def interrupted(pair, ready, tmp_path):
    """A checkpoint of a killed run, and a function that goes on with it."""
    frozen, data = ready
    recipe, path = recipes.named("edd"), tmp_path / "c.pt"
    with pytest.raises(Killed):
        loop.train(fresh(pair, "edd")[0], frozen, data, killed_at(5, recipe.loss), QUICK, path)
    assert path.exists()
    return path, functools.partial(loop.train, fresh(pair, "edd")[0], frozen, data, recipe.loss, checkpoint=path)


def test_a_truncated_checkpoint_is_named(interrupted):
    path, go_on = interrupted
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(ValueError, match="truncated or damaged: delete it"):
        go_on(schedule=QUICK)


def test_a_run_on_other_terms_has_a_checkpoint_of_its_own(pair, dialogues, hasty, tmp_path, monkeypatch):
    ids, loss = features.vocabulary(dialogues, 16), losses.eagle_loss
    train = functools.partial(runs.train, pair, command="test", dialogues=dialogues, ids=ids, out=tmp_path)
    with monkeypatch.context() as patch:
        patch.setitem(recipes.TABLE, "eagle", replace(recipes.TABLE["eagle"], loss_function=killed_at(5, loss)))
        with pytest.raises(Killed):
            train("eagle")
    (kept,) = (files.cache_dir() / "training").glob("*")
    before = kept.read_bytes()
    train("eagle-1")
    assert kept.read_bytes() == before
    train("eagle")
    assert not kept.exists()
    weights = [(tmp_path / f"{name}.safetensors").read_bytes() for name in ("eagle", "eagle-1")]
    assert weights[0] != weights[1]


def test_a_full_disk_leaves_the_earlier_checkpoint(interrupted, monkeypatch):
    path, go_on = interrupted
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
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

    monkeypatch.setattr(files.os, "fsync", full)
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
            fresh(pair, "edd")[0], frozen, data, recipes.named("edd").loss, replace(QUICK, **change), tmp_path / "c.pt"
        )


def test_too_few_dialogues_are_said(pair, dialogues, ready, tmp_path):
    frozen, data = ready
    one = runs.corpus_features(pair, dialogues[:1], frozen.ids, [-1, -4])
    with pytest.raises(ValueError, match="0 dialogues to train on and 1 to validate are too few"):
        loop.train(fresh(pair, "edd")[0], frozen, one, None, QUICK, tmp_path / "c.pt")
    with pytest.raises(ValueError, match="none of 40 dialogues has an answer of 99 tokens"):
        branches.compute(pair.target, frozen, data, range(40), k=2, m=99)
