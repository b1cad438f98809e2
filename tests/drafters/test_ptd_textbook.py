"""PTD's moves as printed, and a whole step of the drafter that is made of them, on random trees."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import tries

from specnb.drafters import ProgressiveDrafter, pools, textbook
from specnb.sampling import Warp

V, MANY = 40, 10**6  # tokens; a bound that is never reached


def told(trie: dict, seed: int) -> dict[tuple[int, ...], int]:
    """A target's token d_v for every node: a known one now and then, mostly another."""
    rng = random.Random(seed)
    return {node: rng.randrange(9) for node in textbook.nodes(trie)}


def same(a: dict, b: dict) -> bool:
    """Equal with the order of siblings."""
    return textbook.nodes(a) == textbook.nodes(b)


def grown_tree(rng: random.Random, first: int, most: int, levels: int) -> dict:
    """A random tree: so many nodes on the first level, below it at most so many children, levels in all at most."""
    tokens = rng.sample(range(9), first) if levels else []
    return {token: grown_tree(rng, rng.randrange(most + 1), most, levels - 1) for token in tokens}


# ---- the moves ----------------------------------------------------------------------------------------------------


@given(tries)
def test_nodes_are_the_pools(trie):
    assert len(textbook.nodes(trie)) == pools.size(trie)
    assert [node[-1] for node in textbook.nodes(trie)] == [token for token, _ in pools.subtrees(trie)]


@given(st.lists(tries, max_size=4))
def test_merge_subtrees_is_what_the_pool_holds(trees):
    pool, kept = {}, pools.TriePool(MANY, MANY)
    for trie in trees:
        pool = textbook.merge_subtrees(pool, trie)
        for key, below in pools.subtrees(trie):
            if below:
                kept.add(key, below)
    assert pool == {key: trie for key, (trie, _) in kept.tries.items()}
    for x in range(7):
        assert same(textbook.retrieve(pool, x), kept.get(x))


def test_other_settings_are_other_trees():
    """Negative controls: one child more, one level more, the two trees of a merge exchanged."""
    other = {"expand": 0, "step": 0, "merge": 0}
    for seed in range(40):
        rng = random.Random(seed)
        a, b = grown_tree(rng, 3, 3, 3), grown_tree(rng, 3, 3, 3)
        d = told(a, seed)
        other["expand"] += not same(textbook.expand(a, d, 2), textbook.expand(a, d, 3))
        other["step"] += not same(textbook.step_and_prune(a, 2), textbook.step_and_prune(a, 3))
        other["merge"] += not same(textbook.merge(a, b), textbook.merge(b, a))
    assert min(other.values()) > 20


# ---- a whole step -------------------------------------------------------------------------------------------------


def one_step(seed: int, children: int = 3, depth: int = 3, first: int | None = None, **options):
    """A step of the drafter on a random tree and pool, and what Algorithm 1 makes of it: tree, pool, candidates."""
    rng = random.Random(seed)
    tree = grown_tree(rng, children if first is None else first, children, depth)
    start = {key: grown_tree(rng, 2, 2, 2) for key in range(4)}
    options = {"chained": False, "feedback": False, "from_prompt": False, **options}
    drafter = ProgressiveDrafter(children, depth, nodes=MANY, keys=MANY, **options)
    drafter.begin([5, 6, rng.randrange(4)], Warp(), {})
    drafter.tree = tree
    for key, trie in start.items():
        drafter.pool.add(key, trie)

    draft = drafter.propose(None, 9)
    known = textbook.retrieve(start, draft.tree.token_list[0])
    assert draft.candidate_rows == 1 + len(textbook.nodes(known))
    logits = torch.zeros(len(draft.tree), V)
    answers = [rng.randrange(9) for _ in range(len(draft.tree))]
    logits[range(len(draft.tree)), answers] = 1
    next_token = rng.randrange(4)
    drafter.observe(draft, (), next_token, {}, logits)

    d = dict(zip(textbook.nodes(tree), answers[draft.candidate_rows :], strict=True))
    pool = textbook.merge_subtrees(start, textbook.expand(tree, d, MANY))
    printed = textbook.step_and_prune(textbook.expand(tree, d, children), depth)
    held = {key: trie for key, (trie, _) in drafter.pool.tries.items()}
    drafter.propose(None, 9)
    return (drafter.tree, held, drafter.candidates), (printed, pool, textbook.retrieve(pool, next_token))


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 4))
def test_a_step_of_the_drafter_is_algorithm_1(seed, children, depth):
    """Expand, merge into the pool, step and prune, retrieve: with a full first level nothing else happens."""
    (tree, pool, candidates), (printed, expected, retrieved) = one_step(seed, children, depth)
    assert same(tree, printed)
    assert pool == expected
    assert same(candidates, retrieved)


@pytest.mark.parametrize(("change", "part"), [({"feedback": True}, 1), ({"first": 1}, 0)])
def test_the_drafters_own_options_are_another_step(change, part):
    """Negative control: feedback makes another pool; a first level with room makes another tree."""
    other = sum(ours[part] != printed[part] for ours, printed in (one_step(seed, **change) for seed in range(30)))
    assert other > 15
