"""Replay against real runs: the same trees, the same accepted lengths, for any setting; times by arithmetic."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from tiny import llama, near_copy
from tiny_heads import make

from specnb import exact, growth, heads, verifiers
from specnb.decode import PlainDrafter, decode
from specnb.drafters import CausalLMDraft, TreeDrafter
from specnb.models import files
from specnb.sampling import RandomCoins, Warp
from specnb.target import Target
from specnb.tree import Drawn, TokenTree
from study import replay

LARGEST = growth.DynaTree(5, 4, 0.004, 2000)
PROMPTS = [[1, 2, 3], [7, 30, 12, 5], [11]]


@pytest.fixture(scope="module")
def model():
    return llama()


def drafts(model):
    head, spec, frozen = make(model, "eagle", -1)
    return {"causal lm": CausalLMDraft(near_copy(model)), "eagle": heads.draft_model(head, spec, frozen)}


@pytest.mark.parametrize("name", ["causal lm", "eagle"])
def test_replay_is_the_real_run(name, model):
    draft, rng, accepted = drafts(model)[name], np.random.default_rng(0), []
    for prompt in PROMPTS:
        plain = decode(Target(model), TreeDrafter(draft, growth.chain(1)), verifiers.greedy, prompt, max_new_tokens=40)
        recording = replay.record(Target(model), draft, LARGEST, prompt, plain.tokens)
        for _ in range(4):
            depth, branch = int(rng.integers(1, 6)), int(rng.integers(1, 5))
            threshold, budget = float(rng.uniform(0.004, 0.3)), int(rng.integers(1, 80))
            rule = growth.DynaTree(depth, branch, threshold, budget)
            real = decode(Target(model), TreeDrafter(draft, rule), verifiers.greedy, prompt, max_new_tokens=40)
            turns = replay.replay(recording, rule)
            assert real.tokens == plain.tokens
            assert [len(step.verdict.path) for step in real.steps] == [turn.accepted for turn in turns], rule
            assert [len(step.draft.tree) for step in real.steps] == [turn.nodes for turn in turns], rule
            accepted += [turn.accepted for turn in turns]
    assert max(accepted) > 0


def test_replay_of_another_text_is_another_run(model):
    """Negative control: trees that hang at the wrong places give other lengths."""
    draft, prompt = CausalLMDraft(near_copy(model)), PROMPTS[1]
    rule = growth.DynaTree(3, 1, 0.01)
    real = decode(Target(model), TreeDrafter(draft, rule), verifiers.greedy, prompt, max_new_tokens=40)
    right = replay.record(Target(model), draft, LARGEST, prompt, real.tokens)
    shifted = replay.Recording(right.text, (*right.trees[1:], right.trees[0]), (*right.scores[1:], right.scores[0]))
    lengths = [len(step.verdict.path) for step in real.steps]
    assert [turn.accepted for turn in replay.replay(right, rule)] == lengths
    assert [turn.accepted for turn in replay.replay(shifted, rule)] != lengths


def test_a_prefix_of_a_recording(model):
    draft, prompt = CausalLMDraft(near_copy(model)), PROMPTS[0]
    real = decode(Target(model), TreeDrafter(draft, growth.chain(1)), verifiers.greedy, prompt, max_new_tokens=30)
    recording = replay.record(Target(model), draft, LARGEST, prompt, real.tokens)
    rule = growth.DynaTree(4, 2, 0.02)
    short = decode(Target(model), TreeDrafter(draft, rule), verifiers.greedy, prompt, max_new_tokens=11)
    turns = replay.replay(recording.cut(11), rule)
    assert [turn.accepted for turn in turns] == [len(step.verdict.path) for step in short.steps]
    for one in (rule, growth.DynaTree(5, 4, 0.01, 60), growth.DynaTree(2, 1, 0.1)):
        cuts = {n: replay.replay(recording.cut(n), one) for n in (1, 7, 11, 30)}
        assert replay.along(recording, one, list(cuts)) == cuts
    with pytest.raises(ValueError, match="a recording of 30 tokens cannot be cut to 31"):
        recording.cut(31)


def test_what_was_not_recorded_is_an_error():
    tree = TokenTree([0, 5, 6, 7], [-1, 0, 1, 1])
    recording = replay.Recording((5,) * 5, (tree,) * 5, (torch.tensor([1.0, 0.9, 0.5, 0.3]).double(),) * 5)
    with pytest.raises(ValueError, match="wants 3 children where the recording has 2"):
        replay.replay(recording, growth.DynaTree(1, 3, 0.1))
    with pytest.raises(ValueError, match="wants 2 children where the recording has 0"):
        replay.replay(recording, growth.DynaTree(2, 2, 0.1))


def test_recording_with_a_rule_that_drops_nodes_is_refused(model):
    class Dropping(growth.Static):
        prunes = True

    with pytest.raises(ValueError, match="Dropping drops nodes"):
        replay.record(Target(model), CausalLMDraft(model), Dropping(((0,),)), [1], [2])


def test_recording_prints_no_bar(model, monkeypatch, capsys):
    """Blocks are recorded on workers, too, where every prompt's bar would fill the log."""
    monkeypatch.setattr(files, "QUIET", False)
    replay.record(Target(model), CausalLMDraft(model), LARGEST, [1, 2], [3, 4])
    assert capsys.readouterr() == ("", "")


def test_tau_counts_the_bonus():
    turns = [replay.Turn(0, 3, (1, 2), 1), replay.Turn(2, 9, (1,), 0)]
    assert replay.tau(turns) == 1.5


def test_outcomes_of_chains():
    """Two places of a text: a first token that fits and a second that does not, and what follows is not alive."""
    chain = TokenTree([0, 7, 8, 9], [-1, 0, 1, 2])
    scores = torch.tensor([1.0, 0.5, 0.25, 0.1], dtype=torch.float64)
    recording = replay.Recording((7, 7, 8, 9), (chain,) * 4, (scores,) * 4)
    rows = replay.chain_table({"p": replay.chains(recording)})
    first = rows[rows["place"] == 0]
    assert first["hit"].tolist() == [True, False, False]
    assert first["alive"].tolist() == [True, True, False]
    assert first["confidence"].tolist() == pytest.approx([0.5, 0.5, 0.4])
    assert first["path"].tolist() == pytest.approx([0.5, 0.25, 0.1])
    assert rows[rows["place"] == 1]["hit"].tolist() == [True, True, True]
    assert rows.groupby("place").size().tolist() == [3, 3, 2, 1]  # the text ends
    branching = replay.Recording((8,), (TokenTree([0, 7, 8], [-1, 0, 0]),), (scores[:3],))
    assert replay.chain_table({"p": replay.chains(branching)})["hit"].tolist() == [False]  # the likeliest, not any


def test_one_recording_for_several_rules(model):
    """Beams, chains with neighbours and thresholds want different nodes: one recording serves them all."""
    levels = (growth.Eagle2(12, 4, 3), growth.Cape(4), growth.Pct(0.02, 3, 4, 0.01))
    rules = (*levels, growth.Salf(20, 3, 0.0, 6), growth.SpecExec(14, 4, 5), growth.OptTree(14, 0.1, 5, 5))
    draft, prompt, longest = CausalLMDraft(near_copy(model)), [5, 9, 2, 30], 0
    text = decode(Target(model), PlainDrafter(), verifiers.greedy, prompt, max_new_tokens=40, eos=()).tokens
    recording = replay.record(Target(model), draft, growth.Together(rules, k=8), prompt, text)
    for rule in rules:
        real = decode(Target(model), TreeDrafter(draft, rule), verifiers.greedy, prompt, max_new_tokens=40, eos=())
        steps = [(len(step.draft.tree), len(step.verdict.path)) for step in real.steps]
        assert steps == [(turn.nodes, turn.accepted) for turn in replay.replay(recording, rule)], rule
        longest = max(longest, *(accepted for _, accepted in steps))
    assert longest >= 2
    with pytest.raises(ValueError, match="record with a wider"):
        replay.replay(recording, growth.kary(3, 4))


def test_stages_end_in_what_is_regrown():
    """One stage more than forwards; each scores more than the one before; the last keeps what regrow keeps."""
    drafter = exact.toy_drafter(exact.random_model(6, 1), growth.DynaTree(6, 4, 0.01, 4000, 4), Drawn.POINT)
    drafter.begin((0,), Warp(), {})
    draft = drafter.propose(RandomCoins(0), 99)
    for rule in (growth.Eagle2(10, 3, 2), growth.Salf(10, 3, 0.3, 3), growth.DynaTree(3, 2, 0.1, 20)):
        found = growth.stages(draft.tree, draft.scores, rule)
        nodes, frontiers = growth.regrow(draft.tree, draft.scores, rule, 99)
        assert [list(stage.next) for stage in found] == [*frontiers, []]
        assert list(found[-1].kept) == nodes
        assert all(set(a.scored) < set(b.scored) for a, b in pairwise(found))
        assert all(set(stage.next) <= set(stage.scored) for stage in found)


def test_a_recording_serves_searches_at_every_depth_that_is_left():
    """Rules that expand nodes of several depths choose others where a text ends soon: those are recorded too."""
    rules = (growth.Salf(20, 3, 0.0, 5), growth.Salf(20, 3, 0.4, 5), growth.SpecExec(14, 4, 5), growth.Eagle2(12, 4, 3))
    for seed in range(8):
        drafter = exact.toy_drafter(exact.random_model(8, seed), growth.Together(rules, k=5), Drawn.POINT)
        drafter.begin((0,), Warp(), {})
        draft = drafter.propose(RandomCoins(0), 99)
        for rule in rules:
            for left in range(1, 7):
                alone = exact.toy_drafter(exact.random_model(8, seed), rule, Drawn.POINT)
                alone.begin((0,), Warp(), {})
                real = alone.propose(RandomCoins(0), left).tree
                nodes, _ = growth.regrow(draft.tree, draft.scores, rule, left)
                found = {draft.tree.path_tokens(node) for node in nodes}
                assert found == {real.path_tokens(node) for node in range(len(real))}


def test_a_search_that_went_straight_down_is_served_where_a_text_ends():
    """Without an end it only ever expands the newest level, with one it turns to what it left above."""
    rule = growth.Salf(6, 1, 0.0, 3)
    both = growth.Together((rule,), k=3, left=2)
    drafter = exact.toy_drafter(lambda prefix: torch.tensor([0.9, 0.06, 0.04]).double(), both, Drawn.POINT)
    drafter.begin((0,), Warp(), {})
    draft = drafter.propose(RandomCoins(0), 99)
    nodes, frontiers = growth.regrow(draft.tree, draft.scores, rule, 2)
    assert [draft.tree.depth_list[node] for frontier in frontiers for node in frontier] == [0, 1, 1]
    assert len(nodes) == 6


def test_masses_are_what_each_forward_expanded():
    """The S_i of a live draft are those of its replay, and the first is the root's 1."""
    rule = growth.Salf(20, 3, 0, 8)
    everything = exact.toy_drafter(exact.random_model(8, 0), growth.Together((rule,), k=8), Drawn.POINT)
    everything.begin((0,), Warp(), {})
    recorded = everything.propose(RandomCoins(), 9)
    alone = exact.toy_drafter(exact.random_model(8, 0), rule, Drawn.POINT)
    alone.begin((0,), Warp(), {})
    draft = alone.propose(RandomCoins(), 9)
    assert len(draft.tree) == 20
    stages = growth.stages(recorded.tree, recorded.scores, rule)[:-1]
    masses = [forward.mass for forward in draft.expansions]
    assert masses == pytest.approx([float(recorded.scores[list(stage.next)].sum()) for stage in stages])
    assert masses[0] == 1
    assert len(masses) > 2
