"""Newer verifiers: hierarchical speculative decoding is lossless as printed, and is block verification."""

from functools import partial

import numpy as np
import pytest
import torch

from specnb.exact import (
    accepted_law,
    expectation,
    gallery,
    joint,
    law,
    newer,
    rows,
    total_variation,
    toy_draft,
    toy_drafter,
)
from specnb.growth import Static, chain
from specnb.tree import Draft, Drawn, TokenTree
from specnb.verifiers import rrs, textbook, traversal
from study.claims.traversal import optimum

IID = Drawn.IID
WORLDS = gallery.worlds(3)
TWO_CHAINS = Static(((0,), (1,), (0, 0), (1, 0)))


def tokens(rule, shape, p, q):
    """The mean number of accepted tokens."""
    depth = max(map(len, shape.paths))
    return expectation(accepted_law(toy_drafter(q, shape, IID), rule, p, depth=depth), float)


def outcome(rule, draft, p, coins):
    """What a rule does with a given draft: the accepted path and the next token."""
    verdict = rule(draft, p, coins)
    return verdict.path, verdict.next_token


def farthest(rule, shape, worlds=WORLDS):
    """The largest total variation from the target's law."""
    return newer.compare({"rule": rule}, shape, IID, worlds)["TV"].max()


# ---- one chain


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_hsd_is_lossless(gamma):
    assert farthest(newer.hsd, chain(gamma)) < 1e-12


@pytest.mark.parametrize("changes", [
    ("r[gamma] / max(1.0, *r[:gamma])", "r[gamma]"),  # the public code
    ("capped[t] * M_b[t]", "r[t] * M_b[t]"),
    ("(capped[tau] * M_b[tau] - M_s[tau])", "(r[tau] * M_b[tau] - M_s[tau])"),
    ("deficit / excess", "deficit / max(deficit + 0.1, excess)"),
])  # fmt: skip
def test_each_cap_is_needed(monkeypatch, changes):
    monkeypatch.setattr(newer, "scan", gallery.spoiled(newer.scan, changes))
    assert farthest(newer.hsd, chain(3)) > 1e-3


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_hsd_is_block_verification(gamma):
    """On every given draft: the laws of the accepted path and the next token are the same."""
    p, q = WORLDS[0]
    for drafted in joint(q, gamma):
        tree = TokenTree([0, *drafted], range(-1, gamma))
        draft = Draft(tree, rows(q, tree), IID)
        laws = [law(partial(outcome, rule, draft, rows(p, tree))) for rule in (newer.hsd, textbook.block)]
        assert total_variation(*laws) < 1e-12


def test_the_capped_ratio_is_block_verifications():
    random = np.random.default_rng(0)
    largest = []
    for _ in range(20):
        M_b, M_s = torch.from_numpy(random.dirichlet(np.ones(4), (2, 6)))
        X = random.integers(4, size=6).tolist()
        r, capped = newer.capped_ratios(X, M_b, M_s)
        survival = 1.0
        for t, x in enumerate(X):
            survival = min(survival * float(M_b[t, x] / M_s[t, x]), 1.0)
            assert capped[t + 1] == pytest.approx(survival)
        largest.append(max(r))
    assert 5 < sum(ratio > 1 for ratio in largest) < 20  # often enough there was something to cap


def test_the_docstrings_example():
    M_b = torch.tensor([[0.2, 0.8], [0.8, 0.2], [0.2, 0.8]])
    M_s = torch.tensor([[0.4, 0.6], [0.2, 0.8], [0.4, 0.6]])
    r, capped = newer.capped_ratios([0, 0, 0], M_b, M_s)
    assert r == pytest.approx([1, 1 / 2, 2, 1])
    assert capped == pytest.approx([1, 1 / 2, 1, 1 / 2])


def test_block_verifications_example_by_hand():
    """p = (2/3, 1/3), q = (1/3, 2/3), two tokens: 10/9, 11/9 and 12/9 accepted tokens (Sun et al., section 2)."""
    p = lambda prefix: torch.tensor([2 / 3, 1 / 3], dtype=torch.float64)  # noqa: E731
    q = lambda prefix: torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)  # noqa: E731
    assert tokens(textbook.token_level, chain(2), p, q) == pytest.approx(10 / 9)
    assert tokens(newer.hsd, chain(2), p, q) == pytest.approx(11 / 9)
    assert tokens(gallery.hsd_as_coded, chain(2), p, q) == pytest.approx(12 / 9)
    naive = law(partial(newer.naive_hsd, p, q, 2))
    assert expectation(naive, lambda outcome: outcome[1]) == pytest.approx(12 / 9)


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_against_the_best_lossless_rule(gamma):
    """HSD reaches it, so that nothing that is lossless and asks the target once can accept more. Its code does."""
    best = lambda p, q: optimum(p, q, chain(gamma))(len)  # noqa: E731
    rules = {"hsd": newer.hsd, "token-level": textbook.token_level, "as coded": gallery.hsd_as_coded}
    table = newer.compare(rules, chain(gamma), IID, WORLDS, best).set_index("rule")
    assert table.loc["hsd", "share"] == pytest.approx(1, abs=1e-6)
    if gamma == 1:
        assert table["share"].to_numpy() == pytest.approx(1, abs=1e-6)
        assert table["TV"].max() < 1e-12
    else:
        assert table.loc["token-level", "share"] < 0.99
        assert table.loc["as coded", "share"] > 1.01
        assert table.loc["as coded", "TV"] > 0.01


# ---- without the cap


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_naive_hsd_is_lossless_and_accepts_more(gamma):
    for p, q in WORLDS:
        outcomes = law(partial(newer.naive_hsd, p, q, gamma))
        texts = {}
        for (text, _), mass in outcomes.items():
            texts[text] = texts.get(text, 0.0) + mass
        assert total_variation(texts, joint(p, gamma)) < 1e-12
        gain = expectation(outcomes, lambda outcome: outcome[1]) - tokens(textbook.block, chain(gamma), p, q)
        assert gain > 0.01 if gamma > 1 else abs(gain) < 1e-12


def test_naive_hsd_needs_its_residual(monkeypatch):
    spoiled = gallery.spoiled(
        newer.naive_hsd, ("text = (*text, coins.choose(rest))", "text = exact.sample(p, text, gamma, coins)")
    )
    p, q = WORLDS[0]
    texts = {}
    for (text, _), mass in law(partial(spoiled, p, q, 2)).items():
        texts[text] = texts.get(text, 0.0) + mass
    assert total_variation(texts, joint(p, 2)) > 0.01


# ---- several chains


def test_hsd_of_several_chains_is_lossless():
    assert farthest(newer.hsd_of_several, TWO_CHAINS) < 1e-12
    assert farthest(newer.hsd_of_several, Static(((0,), (1,), (2,)))) < 1e-12


@pytest.mark.parametrize("changes", [
    ("_tokens(draft, chain[:start]) == _tokens(draft, accepted)", "True"),
    ("torch.cat([law[None], M_b[before[1:]]])", "M_b[before]"),
])  # fmt: skip
def test_what_several_chains_need(changes):
    assert farthest(gallery.spoiled(newer.hsd_of_several, changes), TWO_CHAINS, WORLDS[:1]) > 0.01


def test_of_one_chain_nothing_changes():
    draft, _ = toy_draft(WORLDS[0][1], chain(3), IID)
    p = rows(WORLDS[0][0], draft.tree)
    laws = [law(partial(outcome, rule, draft, p)) for rule in (newer.hsd, newer.hsd_of_several)]
    assert total_variation(*laws) < 1e-12
    assert len(laws[0]) > 1


def test_siblings_of_one_level_are_verified_as_by_rrs():
    siblings = Static(((0,), (1,), (2,)))
    for p, q in WORLDS:
        assert tokens(newer.hsd_of_several, siblings, p, q) == pytest.approx(tokens(rrs, siblings, p, q))


def test_children_of_equal_siblings_are_merged():
    """Chains 1, 2 and 1, 3 and 4, 3: the first two begin alike."""
    tree = TokenTree([0, 1, 1, 4, 2, 3, 3], [-1, 0, 0, 0, 1, 2, 3])
    assert newer.merged(tree).parent_list == [-1, 0, 0, 0, 1, 1, 3]
    deeper = TokenTree([0, 1, 1, 2, 2, 3, 3], [-1, 0, 0, 1, 2, 3, 4])
    assert newer.merged(deeper).parent_list == [-1, 0, 0, 1, 1, 3, 3]
    different = TokenTree([0, 1, 2, 3, 3], [-1, 0, 0, 1, 2])
    assert newer.merged(different).parent_list == different.parent_list


def test_traversal_of_merged_chains():
    """HSD goes on with a chain that begins like what was accepted, traversal on separate chains does not: so it is
    behind, but ahead if equal beginnings are shared. Nobody reaches the optimum.
    """
    assert farthest(newer.traversal_of_merged, TWO_CHAINS) < 1e-12
    for p, q in gallery.worlds(2):
        separate = tokens(traversal, TWO_CHAINS, p, q)
        several = tokens(newer.hsd_of_several, TWO_CHAINS, p, q)
        together = tokens(newer.traversal_of_merged, TWO_CHAINS, p, q)
        assert separate < several < together < optimum(p, q, TWO_CHAINS)(len) - 0.01


def test_other_siblings_may_not_be_merged(monkeypatch):
    anything_goes = gallery.spoiled(newer.merged, ("(parent, tree.token_list[node])", "(parent, 0)"))
    monkeypatch.setattr(newer, "merged", anything_goes)
    assert farthest(newer.traversal_of_merged, TWO_CHAINS, WORLDS[:1]) > 0.01


# ---- the table


def test_the_table_of_a_comparison():
    p, q = WORLDS[0]
    rules = {"block": textbook.block, "broken": gallery.hsd_as_coded}
    table = newer.compare(rules, chain(2), IID, [(p, q)], lambda p, q: 2.0)
    assert list(table) == ["rule", "TV", "tokens", "share"]
    assert list(table["rule"]) == list(rules)
    assert table["tokens"].iloc[0] == pytest.approx(tokens(textbook.block, chain(2), p, q))
    assert table["share"].iloc[0] == pytest.approx(table["tokens"].iloc[0] / 2)
    assert table["TV"].iloc[0] < 1e-12 < 0.01 < table["TV"].iloc[1]
    assert newer.compare(rules, chain(2), IID, [(p, q)])["share"].isna().all()
