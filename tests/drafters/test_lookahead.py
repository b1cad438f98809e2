"""Lookahead's window: how many nodes ride, where they stand, what enters the pool."""

import pytest
import torch
from tiny import llama

from specnb import verifiers
from specnb.decode import decode
from specnb.drafters import LookaheadDrafter, pools
from specnb.sampling import Warp
from specnb.target import Target

TINY = llama(0, max_position_embeddings=512)


@pytest.mark.parametrize(("window", "level"), [(15, 5), (10, 5), (7, 5), (1, 3), (4, 3), (3, 7)])
def test_lookahead_rides_w_times_n_minus_1_minus_1_nodes_in_the_steady_state(window, level):
    drafter = LookaheadDrafter(window, level, 3)
    out = decode(Target(TINY), drafter, verifiers.greedy, [3, 1, 4, 1, 5], max_new_tokens=40)
    riding = [int(step.draft.auxiliary.sum()) for step in out.steps[level - 2 :]]
    assert riding
    assert set(riding) == {window * (level - 1) - 1}
    assert len(out.steps[0].draft.tree) == window + level - 2  # level 0 and the root


def test_lookaheads_window_is_a_tree_whose_depth_is_the_position():
    drafter = LookaheadDrafter(3, 4, 3)
    drafter.begin([7, 8, 9], Warp(), {})
    drafter.levels = [[10, 20], [1, 11, 21], [2, 12, 22]]
    tree = drafter.propose(None, 4).tree
    parent = {child: tree.token_list[above] for child, above in zip(tree.token_list, tree.parent_list, strict=True)}
    assert parent == {9: 22, 10: 9, 20: 10, 1: 9, 11: 10, 21: 20, 2: 1, 12: 11, 22: 21}
    depth = dict(zip(tree.token_list, tree.depth_list, strict=True))
    assert depth == {9: 0, 10: 1, 20: 2, 1: 1, 11: 2, 21: 3, 2: 2, 12: 3, 22: 4}


def test_lookahead_pools_columns_and_shifts():
    drafter = LookaheadDrafter(3, 4, 3)
    drafter.begin([7, 8, 9], Warp(), {})
    drafter.levels = [[10, 20], [1, 11, 21], [2, 12, 22]]
    draft = drafter.propose(None, 4)
    logits = torch.zeros(len(draft.tree), 50)
    logits[drafter.last, [3, 13, 23]] = 1
    drafter.observe(draft, (), 5, {}, logits)
    assert [drafter.pool.get(key) for key in (9, 10, 20)] == [
        pools.trie_of([p]) for p in ((1, 2, 3), (11, 12, 13), (21, 22, 23))
    ]
    assert drafter.levels == [[11, 21], [2, 12, 22], [3, 13, 23]]


def test_lookahead_fills_level_by_level():
    drafter = LookaheadDrafter(2, 4, 3)
    drafter.begin([7, 8, 9], Warp(), {})
    drafter.levels = [[10, 20, 30]]
    for answers, levels in (([11, 21, 31], [[20, 30], [11, 21, 31]]), ([12, 22, 32], [[30], [21, 31], [22, 32]])):
        draft = drafter.propose(None, 4)
        logits = torch.zeros(len(draft.tree), 50)
        logits[drafter.last, answers] = 1
        drafter.observe(draft, (), 5, {}, logits)
        assert drafter.levels == levels
    assert drafter.pool.lists == {}
