"""Tries and pools: merging is a union, and what is kept is bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import paths, tries

from specnb.drafters import pools, textbook
from specnb.drafters.pools import GramPool, TriePool
from specnb.tree import TokenTree


@given(tries, tries, tries)
def test_merge_is_a_union(a, b, c):
    merge = textbook.merge
    assert paths(merge(a, b)) == paths(a) | paths(b)
    assert merge(a, b) == merge(b, a)
    assert merge(a, a) == a
    assert merge(merge(a, b), c) == merge(a, merge(b, c))


@given(tries, tries)
def test_merge_is_that_of_token_trees_and_changes_nothing(a, b):
    before = paths(a), paths(b)
    merged = TokenTree.from_paths(paths(a)).merge(TokenTree.from_paths(paths(b)))
    assert {merged.path_tokens(i) for i in range(1, len(merged))} == paths(textbook.merge(a, b))
    assert (paths(a), paths(b)) == before


def test_merge_keeps_the_first_ones_order():
    assert list(textbook.merge({3: {}, 1: {}}, {2: {}, 3: {4: {}}})) == [3, 1, 2]


@given(tries, tries)
def test_absorb_is_merge_in_place(a, b):
    trie, merged, before = pools.cut(a, 99), textbook.merge(a, b), textbook.nodes(b)  # cut: a copy of every node
    assert pools.size(a) + pools.absorb(trie, b) == pools.size(trie)
    assert textbook.nodes(trie) == textbook.nodes(merged)
    assert textbook.nodes(b) == before


@given(tries, st.integers(0, 4))
def test_size_depth_cut_and_subtrees(trie, most):
    assert pools.size(trie) == len(paths(trie))
    assert pools.depth(trie) == max(map(len, paths(trie)), default=0)
    assert paths(pools.cut(trie, most)) == {path for path in paths(trie) if len(path) <= most}
    assert sum(1 for _ in pools.subtrees(trie)) == pools.size(trie)


def test_path_is_a_trie_of_one_path():
    assert pools.trie_of([(5, 6, 5)]) == {5: {6: {5: {}}}}
    assert pools.trie_of([()]) == {}


@given(tries, st.lists(st.integers(0, 6), max_size=5))
def test_a_chain_is_a_trie_of_one_path(trie, tokens):
    chained, branched = pools.Rows(9), pools.Rows(9)
    for rows in (chained, branched):
        rows.add_trie(trie, 0)
    assert chained.add_chain(tokens, 0) == branched.add_trie(pools.trie_of([tokens]), 0)
    assert (chained.tokens, chained.parents) == (branched.tokens, branched.parents)


@given(st.lists(st.tuples(st.integers(0, 6), tries), max_size=30), st.integers(1, 8), st.integers(1, 4))
def test_the_trie_pool_is_bounded(entries, nodes, keys):
    pool = TriePool(nodes, keys)
    for key, trie in entries:
        pool.add(key, trie)
        assert len(pool.tries) <= keys
        assert all(pools.size(own) == count <= nodes for own, count in pool.tries.values())


def test_the_trie_pool_drops_the_oldest_branch_first_and_the_key_not_asked_for():
    pool = TriePool(nodes=3, keys=2)
    pool.add(0, {1: {2: {}}})
    pool.add(0, {3: {}})
    assert pool.get(0) == {1: {2: {}}, 3: {}}
    pool.add(0, {4: {}})
    assert pool.get(0) == {3: {}, 4: {}}
    pool.add(1, {5: {}})
    pool.get(0)
    pool.add(2, {6: {}})
    assert pool.get(1) == {}
    assert pool.get(0)
    pool.add(2, {6: {1: {1: {1: {}}}}})
    assert pool.get(2) == {6: {1: {1: {}}}}


def test_the_gram_pool_keeps_the_latest_grams():
    pool = GramPool(grams=2, keys=2)
    for gram in ((1, 2), (1, 3), (1, 2), (4, 5)):
        pool.add(0, gram)
    assert pool.get(0) == {4: {5: {}}, 1: {2: {}}}
    assert list(pool.get(0)) == [4, 1]  # the latest stands first
    pool.add(1, (7, 7))
    pool.add(2, (8, 8))
    assert pool.get(0) == {}
    assert pool.get(9) == {}


@pytest.mark.parametrize("make", [lambda: TriePool(nodes=0), lambda: GramPool(0), lambda: GramPool(1, keys=0)])
def test_pools_without_room_are_refused(make):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        make()
