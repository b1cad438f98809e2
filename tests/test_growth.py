"""Named static trees have the published shapes; bad shapes are refused."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specnb import growth
from specnb.draft_models import TableDraft
from specnb.drafters import TreeDrafter
from specnb.exact import random_model
from specnb.sampling import RandomCoins, Warp


@pytest.mark.parametrize(
    ("name", "levels"), [("eagle_25", [4, 8, 8, 3, 2]), ("medusa_63", [10, 28, 23, 2])], ids=["eagle", "medusa"]
)
def test_named_trees(name, levels):
    paths = growth.BY_NAME[name].paths
    assert len(set(paths)) == len(paths)
    counts = Counter(map(len, paths))
    assert [counts[depth] for depth in sorted(counts)] == levels


@pytest.mark.parametrize(
    ("paths", "message"),
    [(((1,),), r"\(1,\) has no elder sibling \(0,\)"), (((0,), (1, 0)), r"\(1, 0\) has no parent \(1,\)")],
)
def test_a_shape_with_holes_is_refused(paths, message):
    with pytest.raises(ValueError, match=message):
        growth.Static(paths)


# --- DynaTree


def grow(rule, seed=0):
    """The tree a growth rule makes of a random draft, and the draft's law."""
    law = random_model(6, seed)
    drafter = TreeDrafter(TableDraft(lambda prefix: law(prefix[1:])), rule)
    drafter.begin((0,), Warp(), {})
    return drafter.propose(RandomCoins(0), 99), law


def node_by_node(law, depth, branch, threshold, budget):
    """Algorithm 1 as printed: its root u_0 is the draft's top token. Paths in the order of their creation."""
    (top,) = law(()).topk(1).indices.tolist()
    tree, active = {(top,): float(law(())[top])}, [(top,)]
    for _ in range(depth):
        if not active or len(tree) >= budget:
            break
        grown = []
        for u in active:
            if tree[u] < threshold:
                continue
            for v in law(u).topk(branch).indices.tolist():
                if len(tree) >= budget:
                    break
                tree[(*u, v)] = tree[u] * float(law(u)[v])
                grown.append((*u, v))
        active = grown
    return tree


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    depth=st.integers(1, 5),
    branch=st.integers(1, 4),
    threshold=st.floats(0.005, 0.5),
    budget=st.integers(1, 60),
)
def test_dynatree_is_its_algorithm(seed, depth, branch, threshold, budget):
    """Level by level in batches or node by node as printed: the same nodes, in the same order, with the same scores."""
    draft, law = grow(growth.DynaTree(depth, branch, threshold, budget), seed)
    expected = node_by_node(law, depth, branch, threshold, budget)
    assert [draft.tree.path_tokens(i) for i in range(1, len(draft.tree))] == list(expected)
    assert draft.scores[1:].tolist() == pytest.approx(list(expected.values()))


def test_dynatree_with_more_below_the_root():
    draft, law = grow(growth.DynaTree(2, 2, 0.01, first=3))
    assert draft.tree.tokens[1:4].tolist() == law(()).topk(3).indices.tolist()
    assert Counter(draft.tree.depth_list)[1] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 0.0}, r"threshold must lie in \(0, 1\), got 0.0"),
        ({"threshold": 1.0}, r"threshold must lie in \(0, 1\), got 1.0"),
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"branch": 0}, "branch must be at least 1, got 0"),
        ({"budget": 0}, "budget must be at least 1, got 0"),
    ],
)
def test_dynatree_refuses_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        growth.DynaTree(**options)
