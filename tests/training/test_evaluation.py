"""Evaluation by replay: what a real run does, from one teacher-forced pass; and its reports."""

import json
from dataclasses import replace

import pandas as pd
import pytest
import torch
from tiny import randomise
from tiny_heads import V, fresh

from specnb import growth, heads, verifiers
from specnb.decode import decode
from specnb.drafters import TreeDrafter
from specnb.target import Target
from specnb.tree import TokenTree
from training import branches, evaluation, features, runs, writing

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("name", ["vdm", "medusa", "eagle", "edd", "edd_no_encoding"])
def test_replay_is_the_real_run(name, pair, ready):
    """Accepted tokens of every step of a real greedy decode with chains of 5, from one teacher-forced pass."""
    head, spec, _ = fresh(pair, name)
    frozen, _ = ready
    randomise(head, 0.3)
    dialogues, real = [], []
    for i in range(6):
        question = [i % V, (5 * i) % V, 7]
        drafter = TreeDrafter(heads.draft_model(head.eval(), spec, frozen), growth.chain(5))
        prompt = [1, 2, *question, 3, 4]
        generation = decode(Target(pair.target), drafter, verifiers.greedy, prompt, max_new_tokens=20)
        dialogues.append(writing.Dialogue(tuple(question), tuple(generation.tokens), True))
        real.append([len(step.verdict.path) for step in generation.steps])
    data = runs.corpus_features(pair, dialogues, frozen.ids, [spec.hidden_layer] if spec.hidden_layer else [])
    data = replace(data, hidden={k: torch.cat(v.pieces).float() for k, v in data.hidden.items()})
    replayed = {i: evaluation.steps_of(match) for i, match in evaluation.by_dialogue(head, spec, frozen, data)}
    assert [replayed[i] for i in range(6)] == real
    assert sum(map(sum, real)) > 5  # something was accepted
    prompts = pd.DataFrame({"set": ["a", "b", "tuning"] * 2, "id": range(6)})
    counted = evaluation.counts(name, head, spec, frozen, data, prompts)
    assert counted["steps"].tolist() == list(map(len, real))
    assert counted["prompt"].tolist() == list(range(6))
    table = evaluation.summed(counted).set_index("set")
    assert table.index.tolist() == ["a", "b", "tuning", "all"]
    reported = [steps for i, steps in enumerate(real) if i % 3 < 2]
    assert table.loc["all", "tau"] == pytest.approx(4 * 20 / sum(map(len, reported)))


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
    data = replace(data, hidden={-1: torch.cat(data.hidden[-1].pieces).float()})
    head, spec, _ = fresh(pair, "eagle")
    for parameter in head.parameters():
        parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    few = replace(data, start=data.start[:4], answer=data.answer[:3])
    found = evaluation.by_rank(head, spec, frozen, pair.target, few, range(3), 4)
    kept, roots = branches.choose_roots(few, range(3), 4, seed=0)
    expected = []
    for i, at in zip(kept, roots.tolist(), strict=True):
        span = slice(int(data.start[i]), int(data.start[i + 1]))
        text, states = data.tokens[span].tolist(), data.hidden[-1][span]
        hits = []
        for root in at:
            draft = heads.draft_model(head, spec, frozen)
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


def test_reports_are_recorded(pair, dialogues, hasty, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "held_out", lambda *_: dialogues[:12])
    prompts = pd.DataFrame({"set": ["a", "b", "tuning"] * 4, "id": range(12)})
    monkeypatch.setattr(evaluation, "held_out_prompts", lambda: prompts)
    with pytest.raises(ValueError, match="holds no trained heads"):
        runs.report(pair, "test", folder=tmp_path, out=tmp_path)
    for name in ("eagle", "hass", "talf", "vdm"):
        runs.train(pair, name, "test", dialogues=dialogues, ids=features.vocabulary(dialogues, 16), out=tmp_path)
    runs.report(pair, "test", folder=tmp_path, out=tmp_path / "tables")
    table, ranks, each = (
        pd.read_csv(tmp_path / "tables" / f"heads_{x}.csv") for x in ("held_out", "by_rank", "by_prompt")
    )
    assert table["head"].tolist() == [name for name in ("eagle", "hass", "talf", "vdm") for _ in range(4)]
    assert table["set"].tolist() == ["a", "b", "tuning", "all"] * 4
    assert ranks["rank"].tolist() == [1, 2, 3, 4, 5] * 3
    hits = each[(each["head"] == "hass") & (each["set"] != "tuning")].filter(like="rank").sum()
    rows = ranks[ranks["head"] == "hass"]
    assert hits.tolist() == pytest.approx((rows["accuracy"] * rows["roots"]).tolist(), rel=1e-3)
    assert each[each["head"] == "vdm"].filter(like="rank").isna().all(axis=None)
    assert json.loads((tmp_path / "tables" / "heads_by_rank.json").read_text())["command"] == "test"
    assert 0.3 <= json.loads((tmp_path / "vdm.json").read_text())["held_out"]["temperature"] <= 3  # what is searched
    (tmp_path / "more").mkdir()
    runs.train(
        pair, "medusa", "test", dialogues=dialogues, ids=features.vocabulary(dialogues, 16), out=tmp_path / "more"
    )
    runs.report(pair, "test", folder=tmp_path / "more", out=tmp_path / "alone")  # no head in it that has ranks
    assert pd.read_csv(tmp_path / "alone" / "heads_held_out.csv")["head"].unique().tolist() == ["medusa"]
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "by_rank", None)  # would be called again for a head that is not known
        for folder in (tmp_path / "more", tmp_path):
            runs.report(pair, "again", folder=folder, out=tmp_path / "tables")
    more = pd.read_csv(tmp_path / "tables" / "heads_by_prompt.csv")
    pd.testing.assert_frame_equal(more[more["head"] != "medusa"], each)
    assert (more["head"] == "medusa").sum() == 12


def test_the_temperature_is_the_one_that_calibrates(pair, ready):
    """A head whose logits are all too large by a factor is told to divide by that factor more."""
    frozen, data = ready
    head, spec, _ = fresh(pair, "vdm")
    quiet, loud = (
        evaluation.temperature(head, spec, replace(frozen, rows=factor * frozen.rows), data, range(8))
        for factor in (0.25, 0.5)
    )
    assert 0.31 < quiet < loud < 2.99
    # Twice the rows are, in every dtype and by every kernel, exactly twice the logits: what is left is the search's own
    # tolerance, of scipy's bounded minimisation (1e-5 of a temperature, in each).
    assert loud == pytest.approx(2 * quiet, abs=3e-5)
