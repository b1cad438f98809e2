"""TokenTree, Draft and masks: golden arrays, properties of random trees, what bad input is told."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specnb import masks
from specnb.tree import Draft, Drawn, Expansion, TokenTree

#       0:7
#      /    \
#    1:5    2:6
#   /   \     \
# 3:5   4:8   5:5
#        |
#       6:9
SMALL = TokenTree([7, 5, 6, 5, 8, 5, 9], [-1, 0, 0, 1, 1, 2, 4])
ANCESTORS = [
    [1, 0, 0, 0, 0, 0, 0],
    [1, 1, 0, 0, 0, 0, 0],
    [1, 0, 1, 0, 0, 0, 0],
    [1, 1, 0, 1, 0, 0, 0],
    [1, 1, 0, 0, 1, 0, 0],
    [1, 0, 1, 0, 0, 1, 0],
    [1, 1, 0, 0, 1, 0, 1],
]


def arrays(tree: TokenTree) -> tuple[list[int], list[int]]:
    return tree.tokens.tolist(), tree.parents.tolist()


# ---- golden ---------------------------------------------------------------------------------------------


def test_derived_arrays():
    assert len(SMALL) == 7
    assert SMALL.depth.dtype == torch.int64
    assert SMALL.depth.tolist() == [0, 1, 1, 2, 2, 2, 3]
    assert SMALL.children == ((1, 2), (3, 4), (5,), (), (6,), (), ())
    assert SMALL.leaves == (3, 5, 6)
    assert SMALL.ancestors.dtype == torch.bool
    assert SMALL.ancestors.int().tolist() == ANCESTORS
    assert [SMALL.path(i) for i in range(7)] == [(), (1,), (2,), (1, 3), (1, 4), (2, 5), (1, 4, 6)]
    assert SMALL.path_tokens(6) == (5, 8, 9)


def test_root_alone():
    root = TokenTree([4], [-1])
    assert (root.depth.tolist(), root.children, root.leaves, root.path(0)) == ([0], ((),), (0,), ())
    assert root.ancestors.tolist() == [[True]]


def test_from_paths_adds_missing_parents_and_merges_shared_prefixes():
    assert arrays(TokenTree.from_paths([(0,), (0, 0), (1,)])) == ([0, 0, 0, 1], [-1, 0, 1, 0])
    trie = TokenTree.from_paths([(3, 4, 5), (3, 4), (3, 6)], root=9)
    assert arrays(trie) == ([9, 3, 4, 5, 6], [-1, 0, 1, 2, 1])
    assert arrays(TokenTree.from_paths([], root=2)) == ([2], [-1])


def test_chain():
    assert arrays(TokenTree.chain([9, 3, 3])) == ([9, 3, 3], [-1, 0, 1])


def test_grow_adds_leaves_and_their_depths():
    """As the tree made at once, whether or not the old depths were asked for before."""
    for asked in (False, True):
        tree = TokenTree([9, 4, 5], [-1, 0, 1])
        if asked:
            assert tree.depth_list == [0, 1, 2]
        grown = tree.grow(torch.tensor([6, 7]), torch.tensor([2, 0]))
        again = TokenTree([9, 4, 5, 6, 7], [-1, 0, 1, 2, 0])
        assert grown.token_list == again.token_list
        assert grown.parent_list == again.parent_list
        assert grown.depth_list == again.depth_list == [0, 1, 2, 3, 1]
        assert len(tree) == 3
    with pytest.raises(ValueError, match="node 3 has parent 3: every parent must come before its child"):
        tree.grow(torch.tensor([6]), torch.tensor([3]))


def test_keep():
    assert arrays(SMALL.keep([6, 4, 1])) == ([7, 5, 8, 9], [-1, 0, 1, 2])  # any order, the root implied


def test_merge_appends_what_is_new():
    other = TokenTree.from_paths([(5, 8, 1), (2,)], root=7)
    assert arrays(SMALL.merge(other)) == ([7, 5, 6, 5, 8, 5, 9, 1, 2], [-1, 0, 0, 1, 1, 2, 4, 4, 0])


def test_masks_visible():
    expected = [[1, 1, *row] for row in ANCESTORS]
    assert masks.visible(SMALL, 2).dtype == torch.bool
    assert masks.visible(SMALL, 2).int().tolist() == expected
    assert masks.visible(SMALL, 0).int().tolist() == ANCESTORS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tree_mask(dtype):
    low = torch.finfo(dtype).min
    mask = masks.tree_mask(TokenTree([7, 5, 6, 5], [-1, 0, 0, 1]), 2, dtype=dtype)
    assert mask.dtype == dtype
    assert mask.shape == (1, 1, 4, 6)
    assert mask[0, 0].tolist() == [
        [0, 0, 0, low, low, low],
        [0, 0, 0, 0, low, low],
        [0, 0, 0, low, 0, low],
        [0, 0, 0, 0, low, 0],
    ]


def test_positions_are_prefix_plus_depth():
    assert masks.positions(SMALL, 10).dtype == torch.int64
    assert masks.positions(SMALL, 10).tolist() == [[10, 11, 11, 12, 12, 12, 13]]


@pytest.mark.parametrize(("kind", "hidden"), [("sliding_attention", [0, 1, 2]), ("chunked_attention", [0, 1, 2, 3])])
def test_what_a_window_of_four_hides_from_position_six(kind, hidden):
    outside = masks._outside_window(kind, 4, torch.tensor([6]), torch.arange(7))
    assert outside.shape == (1, 7)
    assert outside[0].nonzero().flatten().tolist() == hidden


# ---- properties of random trees -------------------------------------------------------------------------


@st.composite
def trees(draw):
    parents = [-1] + [draw(st.integers(0, i)) for i in range(draw(st.integers(0, 9)))]
    return TokenTree([0] + [draw(st.integers(0, 2)) for _ in parents[1:]], parents)


def texts(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tree.path_tokens(node) for node in range(len(tree))}


properties = settings(max_examples=100, deadline=None, derandomize=True, database=None)


@properties
@given(trees())
def test_ancestors_are_the_transitive_closure_of_parents(tree):
    step = np.eye(len(tree), dtype=int)
    for node, parent in enumerate(tree.parent_list[1:], start=1):
        step[node, parent] = 1
    closure = np.linalg.matrix_power(step, len(tree)) > 0
    assert np.array_equal(tree.ancestors.numpy(), closure)


@properties
@given(trees())
def test_depth_children_leaves_and_path_agree(tree):
    for node in range(len(tree)):
        path = tree.path(node)
        assert len(path) == tree.depth[node] == tree.ancestors[node].sum() - 1
        assert [tree.parent_list[i] for i in path] == [0, *path][: len(path)]
        assert path[-1:] == (node,)[: len(path)]
        assert all(tree.parent_list[child] == node for child in tree.children[node])
        assert list(tree.children[node]) == sorted(tree.children[node])
        assert (node in tree.leaves) == (tree.ancestors[:, node].sum() == 1)
    assert sum(map(len, tree.children)) == len(tree) - 1


@properties
@given(trees(), trees())
def test_merge_is_the_union_of_texts_and_idempotent(a, b):
    union = a.merge(b)
    assert texts(union) == texts(a) | texts(b)
    assert len(union) == len(texts(union))
    assert arrays(union.merge(union)) == arrays(union)
    assert arrays(union.merge(b)) == arrays(union)
    assert union.token_list[: len(a.merge(a))] == a.merge(a).token_list


# ---- bad input ------------------------------------------------------------------------------------------

BAD_TREES = {
    "parent after child": ([0, 1, 2], [-1, 2, 0], "node 1 has parent 2: every parent must come before"),
    "its own parent": ([0, 1], [-1, 1], "node 1 has parent 1: every parent must come before"),
    "parent below -1": ([0, 1], [-1, -2], "node 1 has parent -2: every parent must come before"),
    "two roots": ([0, 1, 2], [-1, 0, -1], "node 2 is a second root: only node 0 may have parent -1"),
    "no root": ([0, 1], [0, 0], "node 0 is the root and its parent must be -1, got 0"),
    "length mismatch": ([0, 1, 2], [-1, 0], "same length of at least 1, got 3 and 2"),
    "empty": ([], [], "same length of at least 1, got 0 and 0"),
    "negative token": ([0, -5], [-1, 0], "token ids must not be negative, got -5"),
    "int32": (
        torch.tensor([0, 1], dtype=torch.int32),
        [-1, 0],
        r"tokens must be int64 of shape \(n,\), got torch.int32 \(2,\)",
    ),
    "fractions": ([0, 1.9], [-1, 0], r"tokens must be int64 of shape \(n,\), got torch.float64 \(2,\)"),
    "nested": ([[0, 1]], [-1], r"tokens must be int64 of shape \(n,\), got torch.int64 \(1, 2\)"),
    "batched": ([0], torch.tensor([[-1]]), r"parents must be .* \(n,\), got torch.int64 \(1, 1\)"),
}


@pytest.mark.parametrize(("tokens", "parents", "message"), BAD_TREES.values(), ids=BAD_TREES)
def test_bad_tree(tokens, parents, message):
    with pytest.raises(ValueError, match=message):
        TokenTree(tokens, parents)


def test_bad_constructor_arguments():
    with pytest.raises(ValueError, match="at least 1, got 0 and 0"):
        TokenTree.chain([])


def test_bad_node_arguments():
    with pytest.raises(ValueError, match="node 6 is kept but its parent 4 is not"):
        SMALL.keep([1, 6])
    with pytest.raises(ValueError, match="cannot merge trees with roots 7 and 0"):
        SMALL.merge(TokenTree.chain([0, 1]))


@pytest.mark.parametrize("node", [-1, 7])
def test_nodes_outside_the_tree_are_refused(node):
    message = f"node {node} is not in this tree of 7 nodes"
    with pytest.raises(ValueError, match=message):
        SMALL.path(node)
    with pytest.raises(ValueError, match=message):
        SMALL.keep([node])


Q = torch.full((7, 10), 0.1)
FLAGS = torch.zeros(7, dtype=torch.bool)
BAD_DRAFTS = {
    "IID without q": (dict(drawn=Drawn.IID), "a draft drawn IID needs q"),
    "SWOR without q": (dict(drawn=Drawn.SWOR), "a draft drawn SWOR needs q"),
    "q too short": (dict(q=Q[:6]), r"shape \(7, V\), one row per node, got torch.float32 \(6, 10\)"),
    "q of one node": (dict(q=Q[0]), r"shape \(7, V\), one row per node, got torch.float32 \(10,\)"),
    "q in bfloat16": (dict(q=Q.bfloat16()), r"q must be float32 or wider, got torch.bfloat16 \(7, 10\)"),
    "ids too short": (dict(q=Q, ids=torch.arange(9)), r"one token id per column of q \(10\), got 9"),
    "ids as int32": (dict(q=Q, ids=torch.arange(10).int()), r"ids must be int64 .*, got torch.int32 \(10,\)"),
    "ids unsorted": (dict(q=Q, ids=torch.arange(10).flip(0)), "ids must rise, got 9 before 8"),
    "scores too short": (dict(scores=torch.ones(6)), r"scores must have shape \(7,\), got \(6,\)"),
    "ids without q": (dict(ids=torch.arange(10)), "one token id per column of q"),
    "auxiliary too long": (dict(auxiliary=torch.zeros(8, dtype=torch.bool)), r"shape \(7,\), got torch.bool \(8,\)"),
    "auxiliary as int": (dict(auxiliary=FLAGS.long()), r"auxiliary must be bool of shape \(7,\)"),
    "auxiliary root": (dict(auxiliary=~FLAGS), "the root cannot be auxiliary"),
    "sources too short": (dict(sources=torch.arange(6)), r"sources must be int64 of shape \(7,\), got torch.int64"),
    "sources as floats": (dict(sources=torch.arange(7.0)), r"sources must be int64 .*, got torch.float32 \(7,\)"),
    "another root": (dict(sources=torch.arange(1, 8)), "the source of the root must be 0, got 1"),
    "drafted below what was not": (
        dict(sources=torch.tensor([0, -1, 2, 3, 4, 5, 6])),
        "a node with a source needs a parent with one, got node 3 below 1",
    ),
    "elected below auxiliary": (
        dict(auxiliary=FLAGS.index_fill(0, torch.tensor([4]), True)),
        "node 4 is auxiliary, so its child 6 must be, too: it cannot be elected",
    ),
}


@pytest.mark.parametrize(("fields", "message"), BAD_DRAFTS.values(), ids=BAD_DRAFTS)
def test_bad_draft(fields, message):
    with pytest.raises(ValueError, match=message):
        Draft(SMALL, **fields)


def test_draft_candidates_leave_auxiliary_nodes_out():
    auxiliary = FLAGS.index_fill(0, torch.tensor([1, 3, 4, 6]), True)
    assert Draft(SMALL, auxiliary=auxiliary).candidates == ((2,), (), (5,), (), (), (), ())
    assert Draft(SMALL).candidates == SMALL.children


def test_draft_over_a_reduced_vocabulary():
    ids = torch.tensor([2, 5, 6, 8, 9])  # the root's token, 7, need not be among them
    draft = Draft(SMALL, torch.arange(35).reshape(7, 5).double(), Drawn.SWOR, ids=ids)
    assert draft.columns[1:].tolist() == [1, 2, 1, 3, 1, 4]
    assert draft.law(0, 10).tolist() == [0, 0, 0, 0, 0, 0.1, 0.2, 0, 0.3, 0.4]
    assert Draft(SMALL, Q, Drawn.IID).columns.tolist() == SMALL.token_list
    with pytest.raises(ValueError, match="drafted token 8 is not among the 2 ids"):
        _ = Draft(SMALL, Q[:, :2], Drawn.SWOR, ids=torch.tensor([5, 6])).columns


def test_law_is_normalised_float64():
    law = Draft(SMALL, 3 * Q, Drawn.IID).law(2, 10)
    assert law.dtype == torch.float64
    assert law.sum().item() == pytest.approx(1, abs=1e-15)


def test_a_draft_keeps_some_of_its_nodes():
    """Rows of all tables are cut alike; what drafting took stays; the root need not be named."""
    whole = Draft(
        SMALL, auxiliary=FLAGS.index_fill(0, torch.tensor([6]), True), scores=torch.arange(7.0),
        sources=torch.arange(7), expansions=(Expansion(1, 1.0, 0.5),),
    )  # fmt: skip
    part = whole.keep(SMALL.path(5))
    kept = sorted({0, *SMALL.path(5)})
    assert part.tree.token_list == SMALL.tokens[kept].tolist()
    assert part.scores.tolist() == kept
    assert part.sources.tolist() == kept
    assert part.auxiliary.tolist() == [False] * len(kept)
    assert part.expansions == whole.expansions
    assert part.q is None
    assert len(Draft(SMALL).keep([]).tree) == 1
    assert Draft(SMALL, Q).keep([1]).q.shape == (2, 10)
    with pytest.raises(ValueError, match="node 6 is kept but its parent"):
        whole.keep([6])


@pytest.mark.parametrize("drawn", [Drawn.IID, Drawn.SWOR])
def test_of_a_drawn_draft_no_node_is_dropped(drawn):
    with pytest.raises(ValueError, match=f"from a POINT draft only, this one was drawn {drawn.name}"):
        Draft(SMALL, Q, drawn).keep(range(7))
