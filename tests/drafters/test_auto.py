"""AutoDrafter: the text stays, prices decide how much is drafted and verified, what was learnt goes on."""

import numpy as np
import pytest
from tiny import llama, near_copy, tau

from specnb import growth, verifiers
from specnb.decode import decode, steps
from specnb.drafters import AutoDrafter, CausalLMDraft, NgramDrafter, RetrievalDrafter, TreeDrafter, auto
from specnb.target import Target

PROMPT = [7, 30, 12, 5, 7, 30]
CHEAP = [1 + 0.01 * n for n in range(32)]  # seconds of forwards over 1, 2, … nodes
EXPENSIVE = [1.0, *[3.0] * 31]  # whatever is verified costs two forwards more
DOUBLE = [1.0, *[1.3] * 31]
NOISY = [1.0, 1.0, 1.0, 1.2, *[1.0] * 28]  # as measured: six nodes cost less than three


def written(target_seconds, draft_seconds, *, model=None, draft=None, other=None, tokens=60, temperature=0.0):
    """A text and the drafter that wrote it."""
    model = model or llama()
    look_up = RetrievalDrafter() if other else None
    drafter = AutoDrafter(CausalLMDraft(draft or near_copy(model)), target_seconds, [draft_seconds] * 4, look_up)
    options = {"max_new_tokens": tokens, "temperature": temperature, "eos": ()}
    return decode(Target(model), drafter, verifiers.by_draw, PROMPT, **options), drafter


def sums(drafter) -> np.ndarray:
    """What it has learnt: what was earned and spent of each ratio."""
    ratios = (drafter.speed, drafter.hit_rate, drafter.deep_hit_rate)
    return np.array([[ratio.earned, ratio.spent] for ratio in ratios])


def mean(values) -> float:
    values = list(values)
    return sum(values) / len(values)


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("prices", [(CHEAP, 0.01), (CHEAP, 5.0), (EXPENSIVE, 0.01), (DOUBLE, 0.1), (NOISY, 0.1)])
def test_the_text_is_plain_decodings(prices, other):
    model = llama()
    plain = TreeDrafter(CausalLMDraft(model), growth.chain(1))
    expected = decode(Target(model), plain, verifiers.greedy, PROMPT, max_new_tokens=60, eos=()).tokens
    assert written(*prices, model=model, other=other)[0].tokens == expected


def test_expensive_forwards_are_few_and_expensive_nodes_too():
    free, _ = written(CHEAP, 0.001)
    few_calls, _ = written(CHEAP, 2.0)
    assert max(max(step.draft.tree.depth_list) for step in few_calls.steps) == 1
    assert max(max(step.draft.tree.depth_list) for step in free.steps) > 2
    few_nodes, _ = written(EXPENSIVE, 0.001)
    sizes = [mean(len(step.draft.tree) for step in out.steps) for out in (free, few_nodes)]
    assert sizes[0] > 2 * sizes[1]


def test_nodes_that_make_a_draft_forward_dear_are_not_expanded():
    """Eight rows at the price of one are used; at a target forward a row only the likeliest is."""
    beams = {}
    for name, calls in {"cheap": [0.01] * 8, "by the row": [0.01 + n for n in range(8)]}.items():
        model = llama()
        drafter = AutoDrafter(CausalLMDraft(near_copy(model)), CHEAP, calls)
        found = steps(Target(model), drafter, verifiers.greedy, PROMPT, max_new_tokens=40, eos=())
        beams[name] = max(each.nodes for step in found for each in step.draft.expansions)
    assert beams["by the row"] == 1
    assert beams["cheap"] > 3


def test_a_draft_model_earns_what_it_drafted_and_no_more():
    """A stranger beside a look-up that knows the text: its own credit stays where it was without one."""
    credits, taus = [], []
    for other in (False, True):
        out, drafter = written(CHEAP, 0.01, draft=llama(1), other=other, tokens=90)
        credits.append(drafter.deep_hit_rate.earned)
        taus.append(tau(out.steps))
    assert taus[1] > 1.3 * taus[0], taus
    assert credits[1] < 1.3 * credits[0] + 1, credits


def test_nothing_is_verified_where_it_cannot_pay():
    """A stranger's guesses are wrong: after a while few nodes are worth a third of a forward."""
    out, drafter = written(DOUBLE, 0.01, draft=llama(1), tokens=90, temperature=1.0)
    assert drafter.hit_rate.value < 0.3
    near, _ = written(DOUBLE, 0.01, tokens=90)
    late = [mean(len(step.draft.tree) - 1 for step in text.steps[-20:]) for text in (out, near)]
    assert late[0] < late[1] / 3
    assert tau(near.steps) > 1.5


def test_what_it_has_learnt_goes_on_to_the_next_text():
    model = llama()
    drafter = AutoDrafter(CausalLMDraft(near_copy(model)), CHEAP, [0.1] * 4)
    texts, learnt = [], [sums(drafter).tolist()]
    for _ in range(2):
        texts.append(decode(Target(model), drafter, verifiers.greedy, PROMPT, max_new_tokens=12).tokens)
        learnt.append(sums(drafter).tolist())
    assert texts[0] == texts[1]
    assert learnt[0] != learnt[1] != learnt[2]


def test_the_same_prices_and_texts_make_the_same_trees():
    first, second = (written(CHEAP, 0.1, other=True)[0] for _ in range(2))
    assert [step.draft.tree.token_list for step in first.steps] == [s.draft.tree.token_list for s in second.steps]


@pytest.mark.parametrize(
    ("target_seconds", "draft_seconds", "message"),
    [
        (CHEAP[:5], [0.1] * 3, "must be twice as many as those of draft forwards or more, got 5 and 3"),
        ([0.0, *CHEAP], [0.1], r"prices are seconds above 0, got \[0.0, 1.0.* for target_seconds"),
        (CHEAP, [0.0], r"prices are seconds above 0, got \[0.0\] for draft_seconds"),
        (CHEAP, [-1], r"prices are seconds above 0, got \[-1.0\] for draft_seconds"),
        (CHEAP, [float("nan")], r"prices are seconds above 0, got \[nan\] for draft_seconds"),
        (CHEAP, [], "needs the seconds of a draft forward over 1, 2, … nodes, got none"),
    ],
)
def test_prices_without_sense_are_refused(target_seconds, draft_seconds, message):
    with pytest.raises(ValueError, match=message):
        AutoDrafter(CausalLMDraft(llama()), target_seconds, draft_seconds)


def test_nodes_are_kept_while_they_gain():
    """Gains of one, two and three nodes are .4, .7 and .5; where a second is worth more tokens, none pays."""
    scores, seconds = np.array([1, 0.5, 0.4, 0.1]), np.array([1, 1.1, 1.2, 1.5])
    assert auto.nodes_worth_their_time(scores, seconds, 1.0, 1.0) == [0, 1, 2]
    assert auto.nodes_worth_their_time(scores, seconds, 6.0, 1.0) == [0]
    assert auto.nodes_worth_their_time(scores, seconds, 1.0, 0.1) == [0]
    assert auto.nodes_worth_their_time(scores[:1], seconds, 1.0, 1.0) == [0]
    reversed_ = np.array([1, 0.4, 0.5, 0.1])
    assert auto.nodes_worth_their_time(reversed_, seconds[:2], 1.0, 1.0) == [0, 2]  # room for one


def test_a_ratio_returns_to_what_it_began_with():
    ratio = auto.RunningRatio(1.0, 2.0)
    ratio.add(3, 1)
    assert (ratio.earned, ratio.spent) == pytest.approx((4, 3))
    ratio.add(0, 0)
    assert (ratio.earned, ratio.spent) == pytest.approx((3.94, 2.98))
    for _ in range(1000):
        ratio.add(0, 0)
    assert ratio.value == pytest.approx(0.5)
    ratio.add(5, 1)
    ratio.forget()
    assert ratio.value == 0.5


@pytest.mark.parametrize("other", [False, True])
def test_what_is_learnt_follows_from_the_steps_alone(other):
    """The three ratios are sums over the drafts that were seen: their forwards, scores and sources."""
    expected = np.array([[1.0, CHEAP[0]], [1.0, 1.5], [1.0, 2.0]])
    first = expected.copy()
    out, drafter = written(CHEAP, 0.1, other=other)
    looked_up = 0
    for step in out.steps:
        draft, path = step.draft, step.verdict.path
        seconds = CHEAP[len(draft.tree) - 1] + 0.1 * len(draft.expansions)
        below = sum(each.mass for each in draft.expansions[1:])
        own = [node for node in path[1:] if draft.sources[node] >= 0]
        looked_up += len(path[1:]) - len(own)
        new = [[len(path) + 1, seconds], [len(path), float(draft.scores[1:].sum())], [len(own), below]]
        expected = 0.98 * expected + 0.02 * first + np.array(new)
    np.testing.assert_allclose(sums(drafter), expected)
    assert (looked_up > 0) == other


def test_a_look_up_without_probabilities_is_refused():
    """n-grams give none: it would fail in the middle of a race."""
    draft = CausalLMDraft(llama())
    with pytest.raises(ValueError, match="other must give its paths probabilities, as RetrievalDrafter does"):
        AutoDrafter(draft, range(1, 9), [0.1, 0.2], NgramDrafter())
