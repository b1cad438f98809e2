"""The learnt threshold: its parts from hand-made pasts, its value against the best fixed one, and its drafter."""

from dataclasses import replace

import pytest
from tiny import llama, near_copy

from specnb import adaptive, exact, growth, methods, replay, search, studies, verifiers
from specnb.adaptive import AdaptiveDrafter, Past, threshold
from specnb.decode import decode
from specnb.draft_models import CausalLMDraft
from specnb.drafters import TreeDrafter
from specnb.sampling import RandomCoins, Warp
from specnb.target import Target
from specnb.tree import Drawn

RULE = search.Salf(20, 4, 0.6, 8)


def pasts(call: float, steps=60, later_yield=0.5) -> list[Past]:
    """Steps of one and of three forwards at a price per forward; the later two expand .8 in all, every step."""
    found = []
    for i in range(steps):
        forwards, mass = (3, 1.8) if i % 2 else (1, 1.0)
        deep = later_yield * 0.8 * (i % 2)
        found.append(Past(1 + call * forwards, 1 + deep, forwards, mass))
    return found


def test_the_threshold_is_rate_times_price_over_yield():
    """With many steps the starting guess fades and the formula remains."""
    for call in (0.01, 0.05, 0.1):
        past = pasts(call, 2000)
        rate = sum(step.accepted + 1 for step in past) / sum(step.seconds for step in past)
        assert threshold(past, 0.6) == pytest.approx(rate * call / 0.5, rel=0.02)


def test_a_dearer_forward_and_a_worse_draft_stop_earlier():
    by_price = [threshold(pasts(call), 0.6) for call in (0.0, 0.02, 0.1, 0.3, 3.0)]
    assert by_price[0] == 0
    assert by_price == sorted(by_price)
    assert by_price[-1] == adaptive.HIGHEST
    by_yield = [threshold(pasts(0.05, later_yield=share), 0.6) for share in (0.8, 0.4, 0.1)]
    assert by_yield == sorted(by_yield)
    assert by_yield[0] < by_yield[-1]


def test_it_waits_for_a_reason_to_move():
    """Four steps of patience, then ever longer drafts until there are steps to compare."""
    assert [threshold(pasts(0.1)[:n], 0.4) for n in range(4)] == [0.4] * 4
    assert threshold(pasts(0.1)[:4], 0.4) != 0.4
    alike = [step for step in pasts(0.1) if step.forwards == 1]
    assert [threshold(alike[:n], 0.4) for n in (3, 4, 5, 6, 30)] == [0.4, 0.2, 0.1, 0.05, 0.05]


def test_a_few_slow_steps_do_not_bend_it():
    past = pasts(0.05)
    slow = [replace(step, seconds=step.seconds + 5 * (i in (3, 21))) for i, step in enumerate(past)]
    faster = sum(step.seconds for step in slow) / sum(step.seconds for step in past)  # the rate itself does fall
    assert threshold(slow, 0.6) * faster == pytest.approx(threshold(past, 0.6), rel=1e-6)


@pytest.fixture(scope="module")
def recording() -> replay.Recording:
    model, prompt = llama(), [7, 30, 12, 5]
    draft = CausalLMDraft(near_copy(model))
    plain = decode(Target(model), TreeDrafter(draft, growth.chain(1)), verifiers.greedy, prompt, max_new_tokens=90)
    return replay.record(Target(model), draft, replay.Together((replace(RULE, threshold=0),), 8), prompt, plain.tokens)


@pytest.mark.parametrize("call", [0.02, 0.3, 2.0])
def test_replayed_it_comes_near_the_best_fixed_threshold(recording, call):
    """It writes the recorded text, and is not far from the best in hindsight at a low, a middle and a high price.

    Farthest at the low one: this draft's first guess is nearly always right and never said to be, so what a second
    forward earns says nothing of the tenth, and the threshold looks one forward ahead.
    """
    price = studies.price(call, 0.01)
    learnt = adaptive.replay(recording, RULE, price)
    assert sum(turn.accepted + 1 for turn in learnt) == len(recording.text)
    fixed = [sum(map(price, replay.replay(recording, replace(RULE, threshold=th / 10)))) for th in range(10)]
    assert sum(map(price, learnt)) < min(fixed) * 1.2
    if call == 2.0:
        assert sum(map(price, learnt)) < max(fixed) * 0.8  # a threshold that did not matter would show nothing


def test_the_drafter_is_the_replay_on_its_own_clock(recording):
    """With a clock that charges forwards and nodes, the live drafter learns what the replay learns, step by step."""
    model, prompt, price = llama(), [7, 30, 12, 5], studies.price(0.3, 0.01)
    now, drafter = [0.0], AdaptiveDrafter(CausalLMDraft(near_copy(model)), RULE, lambda: now[0])
    observe = drafter.inner.observe

    def charged(draft, *rest):
        forwards = (0,) * len(drafter.inner.masses)
        now[0] += price(replay.Turn(0, len(draft.tree), forwards, 0, 0.0))
        return observe(draft, *rest)

    drafter.inner.observe = charged
    out = decode(Target(model), drafter, verifiers.greedy, prompt, max_new_tokens=90)
    turns = adaptive.replay(recording, RULE, price)
    assert out.tokens == recording.text
    assert [(len(s.draft.tree), len(s.verdict.path)) for s in out.steps] == [(t.nodes, t.accepted) for t in turns]
    assert [past.mass for past in drafter.past] == pytest.approx([turn.mass for turn in turns])
    assert len({turn.forwards for turn in turns}) > 1


def test_what_it_has_learnt_goes_on_to_the_next_text():
    model = llama()
    drafter = methods.drafter("adaptive 20,4,0.6,8", CausalLMDraft(near_copy(model)))
    assert isinstance(drafter, AdaptiveDrafter)
    assert drafter.rule == RULE
    plain = TreeDrafter(CausalLMDraft(model), growth.chain(1))
    text = decode(Target(model), plain, verifiers.greedy, [7, 30, 12], max_new_tokens=12).tokens
    seen = 0
    for _ in range(2):
        out = decode(Target(model), drafter, verifiers.greedy, [7, 30, 12], max_new_tokens=12)
        seen += len(out.steps)
        assert out.tokens == text
        assert len(drafter.past) == seen


def test_masses_are_what_each_forward_expanded():
    """The S_i of a live draft are those of its replay, and the first is the root's 1."""
    rule = replace(RULE, threshold=0)
    everything = exact.toy_drafter(exact.random_model(8, 0), replay.Together((rule,), k=8), Drawn.POINT)
    everything.begin((0,), Warp(), {})
    recorded = everything.propose(RandomCoins(), 9)
    alone = exact.toy_drafter(exact.random_model(8, 0), rule, Drawn.POINT)
    alone.begin((0,), Warp(), {})
    assert len(alone.propose(RandomCoins(), 9).tree) == 20
    stages = replay.stages(recorded.tree, recorded.scores, rule)[:-1]
    assert alone.masses == pytest.approx([float(recorded.scores[list(stage.next)].sum()) for stage in stages])
    assert alone.masses[0] == 1
    assert len(alone.masses) > 2
