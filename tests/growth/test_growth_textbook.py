"""SALF and DynaTree as printed grow the trees of the fast rules; SELECTCOMMIT is greedy verification."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import grow

from specnb import exact, growth, verifiers
from specnb.growth import textbook
from specnb.sampling import RandomCoins
from specnb.tree import Draft, TokenTree

V = 6  # tokens of toy.grow's random drafts


def kept(draft: Draft) -> list[tuple[int, ...]]:
    return [draft.tree.path_tokens(node) for node in range(len(draft.tree))]


# ---- SALF -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("th", [0.0, 0.3, 0.6])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 999), total=st.integers(1, 25), beam=st.integers(1, 6))
def test_salf_as_printed_grows_the_fast_rules_tree(th, seed, total, beam):
    draft, law = grow(growth.Salf(total=total, beam=beam, threshold=th, width=V), seed)
    printed = textbook.salf(law, total, beam, th)
    assert set(kept(draft)) == set(printed)
    assert dict(zip(kept(draft), draft.scores.tolist(), strict=True)) == pytest.approx(printed)


def test_another_threshold_gives_another_tree():
    """Negative control."""
    other = 0
    for seed in range(20):
        draft, law = grow(growth.Salf(total=20, beam=3, threshold=0.3, width=V), seed)
        other += set(kept(draft)) != set(textbook.salf(law, 20, 3, 0.6))
    assert other > 10


# ---- DynaTree ---------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 999),
    depth=st.integers(1, 5),
    branch=st.integers(1, 4),
    threshold=st.floats(0.005, 0.5),
    budget=st.integers(1, 60),
)
def test_dynatree_as_printed_grows_the_fast_rules_tree(seed, depth, branch, threshold, budget):
    """The same nodes in the same order; a node's score is the probability of its path."""
    draft, law = grow(growth.DynaTree(depth, branch, threshold, budget), seed)
    assert kept(draft)[1:] == textbook.draft_tree(law, depth, branch, threshold, budget)
    scores = [math.prod(float(law(path[:i])[path[i]]) for i in range(len(path))) for path in kept(draft)]
    assert draft.scores.tolist() == pytest.approx(scores)


def test_another_dynatree_threshold_gives_another_tree():
    other = 0
    for seed in range(20):
        draft, law = grow(growth.DynaTree(4, 3, 0.05, 40), seed)
        other += kept(draft)[1:] != textbook.draft_tree(law, 4, 3, 0.2, 40)
    assert other > 10


# ---- selection --------------------------------------------------------------------------------------------------


@st.composite
def path_sets(draw) -> list[tuple[int, ...]]:
    """Random trees of three tokens, as paths."""
    tree = TokenTree.from_paths(draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=8)))
    return [tree.path_tokens(node) for node in range(1, len(tree))]


def committed(paths: list[tuple[int, ...]], target: exact.Model) -> tuple[int, ...]:
    """What greedy verification commits on the tree of these paths."""
    tree = TokenTree.from_paths(paths)
    best = torch.tensor([int(target(tree.path_tokens(node)).argmax()) for node in range(len(tree))])
    verdict = verifiers.greedy(Draft(tree), torch.eye(3)[best], RandomCoins())
    return (*(tree.token_list[node] for node in verdict.path), verdict.next_token)


@settings(max_examples=200, deadline=None)
@given(path_sets(), st.integers(0, 99))
def test_select_commit_is_greedy_verification(paths, seed):
    target = exact.random_model(3, seed)
    found = textbook.select_commit(paths, lambda path: int(target(path).argmax()))
    assert found == committed(paths, target)


def test_select_commit_of_another_target_is_another_text():
    """Negative control; and among these texts are accepted paths of every length."""
    paths = [p for depth in (1, 2, 3) for p in product(range(2), repeat=depth)]
    lengths, other = set(), 0
    for seed in range(40):
        target, stranger = exact.random_model(3, seed), exact.random_model(3, seed + 1000)
        found = textbook.select_commit(paths, lambda path, model=target: int(model(path).argmax()))
        lengths.add(len(found))
        other += found != committed(paths, stranger)
    assert lengths == {1, 2, 3, 4}
    assert other > 20
