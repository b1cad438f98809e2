"""Single-level rules: exact, the published table, never above the optimal transport bound."""

import pytest
import torch
from toy import WORLDS

from specnb.exact import law
from specnb.verifiers.multidraft import RULES, greedy_multi_draft, k_seq, spec_hub, transport_bound

# p, q → acceptance of K-SEQ, SpecHub, greedy multi-draft; bounds for IID and SWOR pairs (algorithms.md 2.6)
TABLE = [
    ((0.3, 0.4, 0.3), (0.6, 0.3, 0.1), (0.84, 0.95, 0.95), (0.89, 0.99286)),
    ((0.3, 0.2, 0.5), (1 / 9, 4 / 9, 4 / 9), (0.8536, 0.90, 0.90), (0.9099, 0.9889)),
    ((1 / 11, 2 / 11, 2 / 11, 6 / 11), (3 / 17, 5 / 17, 5 / 17, 4 / 17), (0.7961, 0.7879, 0.7879), (0.8698, 0.9363)),
]


def vector(law):
    return torch.tensor(law, dtype=torch.float64)


def laws(rule, p, q):
    """Law of the token, and the probability of acceptance."""
    both = law(lambda coins: rule(vector(p), vector(q), coins))
    tokens = [sum(both.get((accepted, x), 0.0) for accepted in (True, False)) for x in range(len(p))]
    return tokens, sum(mass for (accepted, _), mass in both.items() if accepted)


CASES = [
    *[(tuple(p(prefix).tolist()), tuple(q(prefix).tolist())) for p, q in WORLDS.values() for prefix in ((), (1,))],
    ((0.2, 0.8), (1.0, 0.0)),
    ((0.0, 1.0), (1.0, 0.0)),
    ((0.25,) * 4, (0.25,) * 4),
    ((0.7, 0.1, 0.1, 0.1), (0.1, 0.2, 0.3, 0.4)),
]


@pytest.mark.parametrize("name", RULES)
def test_the_tokens_law_is_p(name):
    for p, q in CASES:
        tokens, _ = laws(RULES[name], p, q)
        assert tokens == pytest.approx(list(p), abs=1e-9), (p, q)


@pytest.mark.parametrize(("p", "q", "expected", "bounds"), TABLE)
def test_published_acceptance(p, q, expected, bounds):
    found = [laws(rule, p, q)[1] for rule in (k_seq, spec_hub, greedy_multi_draft)]
    assert found == pytest.approx(expected, abs=5e-5)


def pairs(q, replace: bool):
    """Law of the set of two drafts."""

    def draw(coins):
        a = coins.choose(vector(q))
        left = vector(q)
        if not replace:
            left[a] = 0
        return frozenset({a, coins.choose(left)})

    return law(draw)


@pytest.mark.parametrize(("p", "q", "expected", "bounds"), TABLE)
def test_transport_bound(p, q, expected, bounds):
    found = [transport_bound(vector(p), pairs(q, replace)) for replace in (True, False)]
    assert found == pytest.approx(bounds, abs=5e-5)
    assert expected[0] <= bounds[0] + 1e-9


def hub_pairs(q):
    """Law of SpecHub's set of two drafts."""
    a = max(range(len(q)), key=lambda i: q[i])

    def draw(coins):
        x = coins.choose(vector(q))
        rest = vector(q)
        rest[a] = 0
        return frozenset({a, x if x != a else coins.choose(rest)})

    return law(draw)


WHOLE = [(p, q) for p, q in CASES if min(q) > 0]  # every token can be drafted: both rules draw pairs


def test_there_are_cases_with_and_without_zeros_in_q():
    assert len(WHOLE) >= 12
    assert len(CASES) - len(WHOLE) >= 4


@pytest.mark.parametrize(("p", "q"), WHOLE)
def test_spec_hub_reaches_the_bound_of_its_pairs_and_k_seq_stays_below_its_own(p, q):
    assert laws(spec_hub, p, q)[1] == pytest.approx(transport_bound(vector(p), hub_pairs(q)), abs=1e-6)
    assert laws(k_seq, p, q)[1] <= transport_bound(vector(p), pairs(q, True)) + 1e-6


def top_pairs(q):
    """Law of greedy multi-draft's set of two drafts: the likeliest token, and one drawn from the rest."""
    top = int(vector(q).topk(1).indices)

    def draw(coins):
        return frozenset({top, coins.choose(vector(q).index_fill(0, torch.tensor(top), 0.0))})

    return law(draw)


@pytest.mark.parametrize(("p", "q"), WHOLE)
def test_greedy_multi_draft_reaches_the_bound_of_its_pairs(p, q):
    assert laws(greedy_multi_draft, p, q)[1] == pytest.approx(transport_bound(vector(p), top_pairs(q)), abs=1e-9)


def test_a_broken_rule_is_caught():
    """K-SEQ whose residual forgets what was accepted."""

    def broken(p, q, coins):
        accepted, token = k_seq(p, q, coins)
        return accepted, token if accepted else coins.choose(p)

    tokens, _ = laws(broken, (0.3, 0.4, 0.3), (0.6, 0.3, 0.1))
    assert tokens != pytest.approx([0.3, 0.4, 0.3], abs=1e-3)
