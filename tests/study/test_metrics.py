"""Acceptance measures on three steps counted by hand."""

import math
from dataclasses import replace

import pytest
import torch
from tiny import llama

from specnb import growth, verifiers
from specnb.decode import Step, decode
from specnb.drafters import CausalLMDraft, TreeDrafter
from specnb.target import Target
from specnb.tree import Draft, TokenTree, Verdict
from study import metrics

TREE = TokenTree([1, 2, 3, 4], [-1, 0, 1, 0])
RIDING = torch.tensor([False, False, False, True])  # the last node is auxiliary


def step(index, path, draft):
    seconds = {"draft": 0.1, "target": 1.0 + index, "verify": 0.2, "commit": 0.1}
    return Step(index, 5, draft, None, Verdict(path, 9), (*(2, 3)[: len(path)], 9), seconds)


STEPS = (step(0, (1, 2), Draft(TREE)), step(1, (), Draft(TREE, auxiliary=RIDING)), step(2, (1,), Draft(TREE)))


def test_measures():
    assert metrics.accepted(STEPS).tolist() == [2, 0, 1]
    assert metrics.drafted(STEPS).tolist() == [3, 2, 3]  # without the root and the auxiliary node
    assert metrics.tau(STEPS) == 2.0
    assert metrics.acceptance_rate(STEPS) == 3 / 8


def cut(path, committed) -> Step:
    """A step whose verdict says more than the text has room for: it ends after so many tokens."""
    whole = step(0, path, Draft(TREE))
    return replace(whole, tokens=whole.tokens[:committed], finish="eos")


def test_what_stands_behind_the_end_of_the_text_is_not_counted():
    """Of two accepted tokens and the next, the text has one, two or all three."""
    before = step(0, (1,), Draft(TREE))
    found = {n: [before, cut((1, 2), n)] for n in (1, 2, 3)}
    assert {n: metrics.committed(steps).tolist() for n, steps in found.items()} == {1: [2, 1], 2: [2, 2], 3: [2, 3]}
    assert {n: metrics.accepted(steps).tolist() for n, steps in found.items()} == {1: [1, 1], 2: [1, 2], 3: [1, 2]}
    assert {n: metrics.tau(steps) for n, steps in found.items()} == {1: 1.5, 2: 2.0, 3: 2.5}
    assert {n: metrics.acceptance_rate(steps) for n, steps in found.items()} == {1: 2 / 6, 2: 3 / 6, 3: 3 / 6}


@pytest.mark.parametrize("end", ["eos", "stop", "length"])
def test_tau_is_tokens_per_target_call_however_a_text_ends(end):
    """A target that drafts for itself: all is accepted, so that the text ends within what a step elects."""
    model = llama()

    def run(**options):
        drafter = TreeDrafter(CausalLMDraft(model), growth.chain(5))
        return decode(Target(model), drafter, verifiers.greedy, [7, 8, 9], **{"max_new_tokens": 40, **options})

    text = run().tokens
    options = {
        "eos": {"eos": text[1]},
        "stop": {"stop": lambda new: "stop" if len(new) == 8 else None},
        "length": {"max_new_tokens": 8},
    }[end]
    out = run(**options)
    assert len(out.tokens) < len(text)
    assert metrics.tau(out.steps) == len(out.tokens) / len(out.steps)
    elected = [len(one.verdict.path) for one in out.steps]
    assert (1 + sum(elected) / len(elected) > metrics.tau(out.steps)) == (end != "length")  # drafts know the length


def test_nothing_drafted_has_no_rate():
    assert math.isnan(metrics.acceptance_rate([step(0, (), Draft(TokenTree([1], [-1])))]))


def test_branches_are_the_auxiliary_paths_alone():
    tree = TokenTree([9, 1, 2, 5, 6, 7, 6], [-1, 0, 1, 0, 3, 3, 0])
    draft = Draft(tree, auxiliary=torch.tensor([False, False, False, True, True, True, True]))
    assert metrics.branches(draft) == [(5, 6), (5, 7), (6,)]
    assert metrics.branches(draft, 1) == [(6,), (7,), (6,)]
    assert metrics.branches(Draft(tree)) == []


def test_similarities():
    assert metrics.aligned((1, 2, 3, 4), (1, 9, 3, 4)) == 0.75
    assert metrics.aligned((1, 2, 3, 4), (2, 3, 4, 5)) == 0
    assert metrics.overlap((1, 2, 3, 4), (2, 3, 4, 5)) == 0.75  # the same, one token later
    assert metrics.aligned((1, 2), (1, 2, 3, 4)) == 0.5
    for similarity in metrics.SIMILARITIES.values():
        assert similarity((1, 2), (1, 2)) == 1
        assert similarity((1, 2), (3, 4)) == 0


def test_likeness_is_that_of_the_most_similar_other_branch():
    found = metrics.likeness([(1, 2), (1, 2), (1, 5), (7, 8)], metrics.aligned)
    assert found.tolist() == [1, 1, 0.5, 0]
    assert metrics.likeness([(1, 2)], metrics.aligned).tolist() == [0]
    assert metrics.likeness([], metrics.aligned).tolist() == []


def test_repeated_counts_pairs():
    tree = TokenTree([9, 1, 2, 9, 1], [-1, 0, 1, 0, 3])
    assert metrics.repeated(Draft(tree, auxiliary=torch.tensor([False, True, True, True, True]))) == 0.25


def test_alike_counts_steps_and_branches():
    """Two steps: in one both branches are the same, in the other they share nothing."""
    riding = torch.tensor([False, True, True, True, True])

    def of(*tokens):
        return step(0, (), Draft(TokenTree([9, *tokens], [-1, 0, 1, 0, 3]), auxiliary=riding))

    found = metrics.alike([of(1, 2, 1, 2), of(1, 2, 3, 4)])
    assert set(found) == {"branches", "repeated", *metrics.ALIKE}
    assert found["branches"] == 2
    assert found["repeated"] == 0.25
    assert found["steps aligned 0.8"] == found["share aligned 0.8"] == 0.5


def test_nothing_is_repeated_where_nothing_rides_along():
    assert metrics.repeated(Draft(TREE)) == 0.0
