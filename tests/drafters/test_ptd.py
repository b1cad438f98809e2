"""PTD's draft tree: expansion, step and prune, its limits, and which rows it observes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import llama
from toy import paths, tries

from specnb import verifiers
from specnb.decode import decode
from specnb.drafters import ProgressiveDrafter, pools, ptd, textbook
from specnb.sampling import Warp
from specnb.target import Target

TINY = llama(0, max_position_embeddings=512)


@given(tries, st.integers(1, 4))
def test_expansion_adds_one_child_per_node_where_there_is_room(trie, most):
    grown = textbook.expand(trie, {path: 100 + i for i, path in enumerate(textbook.nodes(trie))}, most)
    new = paths(grown) - paths(trie)
    roomy = {path for path in paths(trie) if len(list(_below(trie, path))) < most}
    assert {path[:-1] for path in new} == roomy


def _below(trie, path):
    for token in path:
        trie = trie[token]
    return trie


def test_expansion_ignores_what_is_there():
    d = {(1,): 2, (1, 2): 7, (3,): 8}
    assert textbook.expand({1: {2: {}}, 3: {}}, d, 4) == {1: {2: {7: {}}}, 3: {8: {}}}


@given(tries, st.integers(1, 4))
def test_step_bounds_the_depth_if_it_was_exceeded_by_one(trie, most):
    trie = pools.cut(trie, most + 1)
    stepped = textbook.step_and_prune(trie, most)
    assert pools.depth(stepped) <= most
    assert len(stepped) <= len(trie)
    assert all(stepped[token] == below for token, below in trie.items() if pools.depth(below) < most)


def test_step_keeps_the_earliest_branch():
    tree = {1: {2: {3: {}}, 4: {}}, 5: {}}
    assert textbook.step_and_prune(tree, 3) == tree
    assert textbook.step_and_prune(tree, 2) == {5: {}, 2: {3: {}}}
    assert list(textbook.step_and_prune(tree, 2)) == [5, 2]
    there = {1: {5: {3: {}}, 4: {}}, 5: {}}  # 5 stands on the first level already
    assert textbook.step_and_prune(there, 2) == {5: {}, 4: {}}
    assert textbook.step_and_prune({1: {5: {3: {}}}, 5: {}}, 2) == {5: {}}


class Counted(ProgressiveDrafter):
    """PTD whose trees are looked at after every step."""

    def observe(self, *args):
        super().observe(*args)
        assert pools.depth(self.tree) <= self.depth
        assert len(self.tree) <= self.children
        assert all(len(below) <= self.children for _, below in pools.subtrees(self.tree))
        assert max(count for _, count in self.pool.tries.values()) <= self.nodes


@pytest.mark.parametrize("settings", [{}, {"children": 1, "depth": 1}, {"children": 2, "depth": 3, "nodes": 5}])
@pytest.mark.parametrize("chained", [True, False])
@pytest.mark.parametrize("expand", ptd.EXPANSIONS)
def test_width_and_depth_limits_hold_after_every_step(settings, chained, expand):
    drafter = Counted(**settings, chained=chained, expand=expand)
    out = decode(Target(TINY), drafter, verifiers.greedy, [3, 1, 4, 1, 5], max_new_tokens=60)
    assert any(step.draft.auxiliary.any() for step in out.steps)


def test_chained_first_level_nodes_see_each_other():
    trees = {}
    for chained in (True, False):
        drafter = ProgressiveDrafter(chained=chained)
        drafter.begin([7, 8], Warp(), {})
        drafter.tree = {1: {2: {}}, 3: {4: {}}}
        trees[chained] = drafter.propose(None, 4).tree
    assert trees[True].parent_list == [-1, 0, 1, 1, 3]
    assert trees[False].parent_list == [-1, 0, 1, 0, 3]


def test_the_first_level_is_kept_up_unless_it_is_asked_not_to_be():
    grown = {}
    for refill in (True, False):
        drafter = ProgressiveDrafter(children=3, depth=4, refill=refill)
        drafter.begin([7, 8], Warp(), {})
        drafter.tree = {1: {}}
        logits = torch.zeros(2, 50)
        logits[range(2), [20, 21]] = 1
        drafter.observe(drafter.propose(None, 4), (), 20, {}, logits)
        grown[refill] = drafter.tree
    assert grown == {True: {1: {}, 21: {}}, False: {1: {21: {}}}}


def test_ptd_observes_candidates_and_draft_nodes_each_in_their_rows():
    drafter = ProgressiveDrafter(children=3, depth=4)
    drafter.begin([7, 8], Warp(), {})
    drafter.tree = {1: {2: {}}, 3: {}}
    drafter.pool.add(8, {4: {5: {}}, 6: {}})
    draft = drafter.propose(None, 4)
    assert draft.tree.token_list == [8, 4, 5, 6, 1, 2, 3]
    logits = torch.zeros(7, 50)
    logits[range(7), [4, 5, 20, 21, 22, 23, 24]] = 1  # the root says 4, a candidate
    drafter.observe(draft, (1, 2), 20, {}, logits)
    assert drafter.pool.get(8) == {4: {5: {20: {}}}, 6: {21: {}}}
    assert drafter.pool.get(1) == {2: {23: {}}, 22: {}}
    assert drafter.pool.get(2) == {23: {}}
    assert drafter.pool.get(3) == {24: {}}
    assert drafter.tree == {1: {2: {23: {}}, 22: {}}, 3: {}, 24: {}}  # 24 joined the first level
    assert drafter.root == 20


def test_ptds_pool_from_the_text():
    drafter = ProgressiveDrafter(depth=2, from_prompt=True)
    drafter.begin([7, 8, 9, 6], Warp(), {})
    assert [drafter.pool.get(key) for key in (7, 8, 9)] == [{8: {9: {}}}, {9: {6: {}}}, {}]
    assert drafter.root == 6


def test_ptd_begins_with_distinct_tokens_of_the_prompt():
    for seed in range(20):
        drafter = ProgressiveDrafter(seed=seed)
        drafter.begin([7, 8, 7, 7, 7, 7], Warp(), {})
        assert set(drafter.tree) == {7, 8}
        assert pools.depth(drafter.tree) <= 2
    drafter.begin([7], Warp(), {})
    assert set(drafter.tree) == {7}


def test_ptds_tree_recovers_when_all_of_it_has_gone():
    drafter = ProgressiveDrafter(children=2, depth=1)
    drafter.begin([7], Warp(), {})
    drafter.tree = {}
    draft = drafter.propose(None, 4)
    drafter.observe(draft, (), 9, {}, torch.zeros(len(draft.tree), 50))
    assert drafter.tree == {9: {}}
