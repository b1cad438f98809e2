"""AdaptiveDrafter: the text stays, what it has learnt too, and a clock of its own decides the threshold."""

import pytest
from tiny import llama, near_copy

from specnb import exact, growth, verifiers
from specnb.decode import decode
from specnb.drafters import AdaptiveDrafter, CausalLMDraft, TreeDrafter
from specnb.sampling import RandomCoins, Warp
from specnb.target import Target
from specnb.tree import Drawn

RULE = growth.Salf(20, 4, 0.6, 8)


def test_what_it_has_learnt_goes_on_to_the_next_text():
    model = llama()
    drafter = AdaptiveDrafter(CausalLMDraft(near_copy(model)), RULE)
    plain = TreeDrafter(CausalLMDraft(model), growth.chain(1))
    text = decode(Target(model), plain, verifiers.greedy, [7, 30, 12], max_new_tokens=12).tokens
    seen = 0
    for _ in range(2):
        out = decode(Target(model), drafter, verifiers.greedy, [7, 30, 12], max_new_tokens=12)
        seen += len(out.steps)
        assert out.tokens == text
        assert len(drafter.past) == seen


def test_masses_are_what_each_forward_expanded():
    """The S_i of SALF's Algorithm 2: the root's 1 first, then less with every forward, none below the threshold."""
    for threshold in (0.0, 0.5):
        rule = growth.Salf(20, 4, threshold, 8)
        drafter = exact.toy_drafter(exact.random_model(8, 0), rule, Drawn.POINT)
        drafter.begin((0,), Warp(), {})
        drafter.propose(RandomCoins(), 9)
        assert drafter.masses[0] == 1
        assert drafter.masses == sorted(drafter.masses, reverse=True)
        assert min(drafter.masses) >= threshold
        assert len(drafter.masses) > 1


@pytest.mark.parametrize("dear", [False, True])
def test_a_clock_that_charges_forwards_teaches_the_threshold(dear):
    """Where a draft forward costs ten steps the learnt threshold ends high, where it costs nothing at zero."""
    model, now = llama(), [0.0]
    drafter = AdaptiveDrafter(CausalLMDraft(near_copy(model)), RULE, lambda: now[0])
    observe = drafter.inner.observe

    def charged(*args):
        now[0] += 1 + 10 * dear * len(drafter.inner.masses)
        observe(*args)

    drafter.inner.observe = charged
    out = decode(Target(model), drafter, verifiers.greedy, [7, 30, 12, 5], max_new_tokens=90)
    assert len(drafter.past) == len(out.steps)
    assert [past.accepted for past in drafter.past] == [len(step.verdict.path) for step in out.steps]
    assert sum(past.seconds for past in drafter.past) == now[0]
    assert len({past.forwards for past in drafter.past}) > 1
    if dear:
        assert growth.threshold(drafter.past, 0.6) > 0.6
    else:
        assert growth.threshold(drafter.past, 0.6) == 0
