"""Drafters that need no draft model: PTD, Self-Draft and lookahead; tries, pools, windows, and losslessness."""

import itertools
import math
import pickle
import random
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import llama

from specnb import growing, methods, metrics, racing, self_drafting, verifiers
from specnb.broken import Unpositioned
from specnb.decode import PlainDrafter, decode
from specnb.drafters import Corpus, LookaheadDrafter, ProgressiveDrafter, SelfDrafter, pools, ptd
from specnb.drafters.pools import GramPool, TriePool
from specnb.exact import engine_law, joint, total_variation
from specnb.sampling import RandomCoins, Warp
from specnb.target import Target
from specnb.traversal import traversal
from specnb.tree import Draft, TokenTree

TINY = llama(0, max_position_embeddings=512)
DRAFTERS = {
    "ptd": ProgressiveDrafter,
    "ptd, chained": lambda: ProgressiveDrafter(chained=True),
    "ptd, prompt": lambda: ProgressiveDrafter(from_prompt=True),
    "ptd, sampled": lambda: ProgressiveDrafter(expand="sample"),
    "ptd, without feedback": lambda: ProgressiveDrafter(feedback=False),
    "self-draft": SelfDrafter,
    "self-draft, corpus": lambda: SelfDrafter(corpus=Corpus([[3, 1, 4, 1, 5, 9, 2, 6]])),
    "lookahead": lambda: LookaheadDrafter(7, 5, 7),
    "lookahead, prompt": lambda: LookaheadDrafter(7, 5, 7, from_prompt=True),
}
tries = st.recursive(
    st.just({}), lambda below: st.dictionaries(st.integers(0, 5), below, max_size=4), max_leaves=12
)  # fmt: skip


def paths(trie, before=()):
    """Every node as its path from the root."""
    found = set()
    for token, below in trie.items():
        found |= {(*before, token)} | paths(below, (*before, token))
    return found


# ---- tries and pools ----------------------------------------------------------------------------------------


@given(tries, tries, tries)
def test_merge_is_a_union(a, b, c):
    assert paths(pools.merge(a, b)) == paths(a) | paths(b)
    assert pools.merge(a, b) == pools.merge(b, a)
    assert pools.merge(a, a) == a
    assert pools.merge(pools.merge(a, b), c) == pools.merge(a, pools.merge(b, c))


@given(tries, tries)
def test_merge_is_that_of_token_trees_and_changes_nothing(a, b):
    before = paths(a), paths(b)
    merged = TokenTree.from_paths(paths(a)).merge(TokenTree.from_paths(paths(b)))
    assert {merged.path_tokens(i) for i in range(1, len(merged))} == paths(pools.merge(a, b))
    assert (paths(a), paths(b)) == before


def test_merge_keeps_the_first_ones_order():
    assert list(pools.merge({3: {}, 1: {}}, {2: {}, 3: {4: {}}})) == [3, 1, 2]


@given(tries, st.integers(0, 4))
def test_size_depth_cut_and_subtrees(trie, most):
    assert pools.size(trie) == len(paths(trie))
    assert pools.depth(trie) == max(map(len, paths(trie)), default=0)
    assert paths(pools.cut(trie, most)) == {path for path in paths(trie) if len(path) <= most}
    assert sum(1 for _ in pools.subtrees(trie)) == pools.size(trie)


def test_path_is_a_trie_of_one_path():
    assert pools.path((5, 6, 5)) == {5: {6: {5: {}}}}
    assert pools.path(()) == {}


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


def test_the_corpus_prefers_the_longest_ending_and_the_commonest_continuation():
    corpus = Corpus([[1, 2, 3, 4], [9, 2, 5, 6], [8, 2, 5, 6]], length=2)
    assert corpus.get([1, 2]) == {3: {4: {}}}
    assert list(corpus.get([7, 2])) == [5, 3]
    assert corpus.get([7]) == {}
    assert Corpus([[1, 2, 3], [1, 4, 3], [1, 5, 3], [1, 6, 3]], most=3).get([1]).keys() == {2, 4, 5}


# ---- PTD's draft tree -----------------------------------------------------------------------------------------


@given(tries, st.integers(1, 4))
def test_expansion_adds_one_child_per_node_where_there_is_room(trie, most):
    counter = itertools.count(100)
    grown = ptd.grow(trie, counter, most)
    new = paths(grown) - paths(trie)
    roomy = {path for path in paths(trie) if len(list(_below(trie, path))) < most}
    assert {path[:-1] for path in new} == roomy
    assert next(counter) == 100 + pools.size(trie)  # every node had its token, also where there was no room


def _below(trie, path):
    for token in path:
        trie = trie[token]
    return trie


def test_expansion_goes_depth_first_and_ignores_what_is_there():
    assert ptd.grow({1: {2: {}}, 3: {}}, iter([2, 7, 8]), 4) == {1: {2: {7: {}}}, 3: {8: {}}}


@given(tries, st.integers(1, 4))
def test_step_bounds_the_depth_if_it_was_exceeded_by_one(trie, most):
    trie = pools.cut(trie, most + 1)
    stepped = ptd.step(trie, most)
    assert pools.depth(stepped) <= most
    assert len(stepped) <= len(trie)
    assert all(stepped[token] == below for token, below in trie.items() if pools.depth(below) < most)


def test_step_keeps_the_earliest_branch():
    tree = {1: {2: {3: {}}, 4: {}}, 5: {}}
    assert ptd.step(tree, 3) == tree
    assert ptd.step(tree, 2) == {5: {}, 2: {3: {}}}
    assert list(ptd.step(tree, 2)) == [5, 2]
    assert ptd.step({1: {5: {3: {}}, 4: {}}, 5: {}}, 2) == {5: {}, 4: {}}  # 5 stands on the first level already
    assert ptd.step({1: {5: {3: {}}}, 5: {}}, 2) == {5: {}}


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


# ---- the windows of lookahead and Self-Draft ------------------------------------------------------------------


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
        pools.path(p) for p in ((1, 2, 3), (11, 12, 13), (21, 22, 23))
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


@pytest.mark.parametrize("name", DRAFTERS)
def test_reach_is_how_deep_auxiliary_nodes_go(name):
    drafter = DRAFTERS[name]()
    out = decode(Target(TINY), drafter, verifiers.greedy, [3, 1, 4, 1, 5], max_new_tokens=120)
    deepest = max(int(step.draft.tree.depth[step.draft.auxiliary].max()) for step in out.steps)
    assert deepest == drafter.reach
    decode(Target(TINY), drafter, verifiers.greedy, [3] * (512 - 8 - drafter.reach), max_new_tokens=8)


@pytest.mark.parametrize("verifier", [verifiers.one_hot, verifiers.sample_and_match, traversal])
def test_p_of_auxiliary_rows_behind_the_candidates_is_not_needed(verifier):
    tree = TokenTree([9, 1, 2, 5, 6], [-1, 0, 0, 0, 3])
    draft = Draft(tree, auxiliary=torch.tensor([False, False, False, True, True]))
    p = torch.rand(5, 10, generator=torch.Generator().manual_seed(0)).softmax(-1)
    assert draft.elected == 3
    for seed in range(20):
        full, short = (verifier(draft, rows, RandomCoins(seed)) for rows in (p, p[:3]))
        assert (full.path, full.next_token) == (short.path, short.next_token)
    with pytest.raises(ValueError, match="shape"):
        verifier(draft, p[:4], RandomCoins())


def test_self_draft_fills_and_then_slides():
    drafter = SelfDrafter(branches=3, length=4)
    drafter.begin([7, 8, 9], Warp(), {})
    prefixes = [list(prefix) for prefix, _ in drafter.columns]
    assert [len(prefix) for prefix in prefixes[:2]] == [1, 1]
    assert len(prefixes) == 4
    seen = []
    for turn in range(4):
        draft = drafter.propose(None, 4)
        logits = torch.zeros(len(draft.tree), 50)
        logits[drafter.last, [10 * turn + i for i in range(len(drafter.last))]] = 1
        drafter.observe(draft, (), 5, {}, logits)
        seen.append([(list(prefix), list(levels)) for prefix, levels in drafter.columns])
    two, three = prefixes[2:]
    assert seen[0] == [([], [0]), (prefixes[1], [1]), (two, [2]), (three, [3])]
    assert seen[1] == [([], [1, 11]), (two, [2, 12]), (three, [3, 13])]
    whole = [[*two, 2, 12, 21, 31], [*three, 3, 13, 22, 32]]
    assert seen[2] == [([], [11, 20]), *(_slid(*pair, 1) for pair in zip(whole, (two, three), strict=True))]
    assert seen[3] == [([], [20, 30]), *(_slid(*pair, 2) for pair in zip(whole, (two, three), strict=True))]


def _slid(whole, prefix, by):
    """A column that has lost its first tokens: prefix and levels as long as before."""
    return whole[by : by + len(prefix)], whole[by + len(prefix) : by + len(prefix) + 2]


def test_self_draft_pools_every_gram_of_columns_and_text():
    drafter = SelfDrafter(branches=2, length=4, gram=2)
    drafter.begin([7, 8, 9], Warp(), {})
    assert {key: list(grams) for key, grams in drafter.pool.lists.items()} == {7: [(8, 9)]}
    drafter.columns = [([], [1, 2]), ([30, 31], [3, 4])]
    draft = drafter.propose(None, 4)
    logits = torch.zeros(len(draft.tree), 50)
    logits[drafter.last, [5, 6]] = 1
    drafter.observe(draft, (), 10, {}, logits)
    pooled = {key: list(grams) for key, grams in drafter.pool.lists.items()}
    assert pooled == {7: [(8, 9)], 9: [(1, 2)], 1: [(2, 5)], 30: [(31, 3)], 31: [(3, 4)], 3: [(4, 6)], 8: [(9, 10)]}
    assert drafter.columns == [([], [2, 5]), ([31, 3], [4, 6])]


def test_self_draft_rides_about_thirty_nodes():
    out = decode(Target(TINY), SelfDrafter(), verifiers.greedy, [3, 1, 4, 1, 5], max_new_tokens=40)
    riding = {int(step.draft.auxiliary.sum()) for step in out.steps[4:]}
    assert len(riding) == 1
    assert 24 + 5 <= riding.pop() <= 24 + 10


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LookaheadDrafter(level=2), "level, the length of the n-grams, must be at least 3, got 2"),
        (lambda: LookaheadDrafter(window=0), "window must be at least 1, got 0"),
        (lambda: SelfDrafter(length=2), "length, of a branch with its prefix, must be at least 3, got 2"),
        (lambda: SelfDrafter(branches=0), "branches must be at least 1, got 0"),
        (lambda: ProgressiveDrafter(depth=0), "depth must be at least 1, got 0"),
        (lambda: ProgressiveDrafter(expand="beam"), "expand must be one of argmax, topk, topp, sample, got 'beam'"),
    ],
)
def test_settings_without_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ---- in the engine --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_text_is_plain_decodings(name):
    for prompt in ([7], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]):
        ids = torch.tensor([prompt])
        with torch.no_grad():
            plain = TINY.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=80)
        out = decode(Target(TINY), DRAFTERS[name](), verifiers.greedy, prompt, max_new_tokens=80)
        assert list(out.tokens) == plain[0, len(prompt) :].tolist()
    assert metrics.tau(out.steps) > 1.1  # it does draft


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_drafter_starts_afresh_with_every_generation(name):
    drafter, prompt = DRAFTERS[name](), [3, 1, 4, 1, 5]
    first, second = (
        decode(Target(TINY), drafter, verifiers.one_hot, prompt, max_new_tokens=30, temperature=0.7, seed=1)
        for _ in range(2)
    )
    assert first.tokens == second.tokens
    assert [s.draft.tree.token_list for s in first.steps] == [s.draft.tree.token_list for s in second.steps]


def test_a_text_that_would_leave_the_context_is_refused_before_any_work():
    with pytest.raises(ValueError, match="exceed the context of 512, of which drafts take 6: shorten"):
        decode(Target(TINY), ProgressiveDrafter(), verifiers.greedy, [1, 2], max_new_tokens=505)
    decode(Target(TINY), ProgressiveDrafter(), verifiers.greedy, [1] * 490, max_new_tokens=12)


def scripted(tree):
    """Logits of a target that continues any text by a rule, without a model: for long runs."""
    rng = random.Random(sum(tree.token_list))
    logits = torch.zeros(len(tree), 200)
    logits[torch.arange(len(tree)), [(7 * t + rng.randrange(3)) % 200 for t in tree.token_list]] = 1
    return logits


@pytest.mark.parametrize(
    "make",
    [
        lambda: ProgressiveDrafter(2, 4, nodes=20, keys=50),
        lambda: SelfDrafter(grams=3, keys=50),
        lambda: LookaheadDrafter(4, 3, 3, keys=50, from_prompt=True),
    ],
    ids=["ptd", "self-draft", "lookahead"],
)
def test_pools_stay_bounded_over_ten_thousand_steps(make):
    drafter, bytes_held = make(), []
    drafter.begin([1, 2, 3], Warp(), {})
    for turn in range(10_000):
        draft = drafter.propose(None, 8)
        drafter.observe(draft, (), turn * turn % 200, {}, scripted(draft.tree))
        if turn >= 1000 and turn % 250 == 0:
            bytes_held.append(len(pickle.dumps(drafter.__dict__)))
    stored = drafter.pool.tries if hasattr(drafter.pool, "tries") else drafter.pool.lists
    assert len(stored) == 50  # full, and not beyond
    assert max(bytes_held[-10:]) < 1.2 * max(bytes_held[:10])


# ---- exactly lossless, through the real engine ------------------------------------------------------------------

SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
SMALL = llama(3, vocab_size=3, num_hidden_layers=1, **SIZES).double()
PROMPT, LENGTH = [0, 1, 2, 0], 4


def plain_law():
    """The tiny transformer's own law of LENGTH tokens after the prompt, by plain forwards."""

    @torch.no_grad()
    def model(prefix):
        return SMALL(torch.tensor([[*PROMPT, *prefix]])).logits[0, -1].softmax(-1)

    return joint(model, LENGTH)


SMALL_DRAFTERS = {
    "ptd": lambda: ProgressiveDrafter(2, 2),
    "ptd, sampled": lambda: ProgressiveDrafter(2, 2, expand="sample", chained=True),
    "self-draft": lambda: SelfDrafter(2, 3, gram=1, corpus=Corpus([[0, 1, 2, 2]])),
    "lookahead": lambda: LookaheadDrafter(2, 3, 2, from_prompt=True),
}


def error(target, name, verifier):
    """Total variation between the exact law of whole generations, every coin enumerated, and the model's own."""
    return total_variation(engine_law(target, SMALL_DRAFTERS[name](), verifier, PROMPT, LENGTH), plain_law())


@pytest.mark.parametrize("name", SMALL_DRAFTERS)
def test_sampling_is_exact_through_the_whole_engine(name):
    assert error(Target(SMALL), name, verifiers.one_hot) < 1e-12


def unstruck(draft, p, coins):
    """One-hot verification that forgets to strike a rejected candidate out before it draws the recovered token."""
    verdict = verifiers.one_hot(draft, p, SimpleNamespace(accept=coins.accept, choose=lambda law: 0))
    return verifiers.Verdict(verdict.path, coins.choose(p[verdict.path[-1] if verdict.path else 0]), verdict.trials)


@pytest.mark.parametrize("name", SMALL_DRAFTERS)
def test_a_broken_verifier_is_caught_there(name):
    assert error(Target(SMALL), name, unstruck) > 0.01


@pytest.mark.parametrize("name", ["ptd", "lookahead"])
def test_a_target_without_positions_is_caught_there(name):
    assert error(Unpositioned(SMALL), name, verifiers.one_hot) > 1e-5


# ---- PTD's measures, and how alike branches are -----------------------------------------------------------------


@pytest.mark.parametrize("name", DRAFTERS)
def test_de_is_hr_times_al_plus_one_minus_hr(name):
    out = decode(Target(TINY), DRAFTERS[name](), verifiers.greedy, [3, 1, 4, 1, 5], max_new_tokens=60)
    found = metrics.retrieval(out.steps)
    assert found["DE"] == pytest.approx(found["HR"] * found["AL"] + 1 - found["HR"], abs=1e-12)
    assert found["DE"] == metrics.tau(out.steps)
    assert found["AL"] >= found["DE"] > 1
    rows = sum(len(step.draft.tree) - 1 for step in out.steps)
    assert (found["Dft"] + found["Ver"]) * len(out.steps) == pytest.approx(rows)


def test_retrieval_of_plain_steps_has_no_accept_length():
    out = decode(Target(TINY), PlainDrafter(), verifiers.greedy, [3, 1, 4], max_new_tokens=5)
    found = metrics.retrieval(out.steps)
    assert (found["DE"], found["HR"], found["Dft"], found["Ver"]) == (1, 0, 0, 0)
    assert math.isnan(found["AL"])


def test_branches_are_the_auxiliary_paths_alone():
    tree = TokenTree([9, 1, 2, 5, 6, 7, 6], [-1, 0, 1, 0, 3, 3, 0])
    draft = Draft(tree, auxiliary=torch.tensor([False, False, False, True, True, True, True]))
    assert metrics.branches(draft) == [(5, 6), (5, 7), (6,)]
    assert metrics.branches(draft, 1) == [(6,), (7,), (6,)]
    assert metrics.branches(Draft(tree)) == []


def test_similarities():
    assert metrics.aligned((1, 2, 3, 4), (1, 9, 3, 4)) == 0.75
    assert metrics.aligned((1, 2, 3, 4), (2, 3, 4, 5)) == 0
    assert metrics.overlap((1, 2, 3, 4), (2, 3, 4, 5)) == 0.75  # the same, one token later
    assert metrics.aligned((1, 2), (1, 2, 3, 4)) == 0.5
    for similarity in self_drafting.SIMILARITIES.values():
        assert similarity((1, 2), (1, 2)) == 1
        assert similarity((1, 2), (3, 4)) == 0


def test_likeness_is_that_of_the_most_similar_other_branch():
    found = metrics.likeness([(1, 2), (1, 2), (1, 5), (7, 8)], metrics.aligned)
    assert found.tolist() == [1, 1, 0.5, 0]
    assert metrics.likeness([(1, 2)], metrics.aligned).tolist() == [0]
    assert metrics.likeness([], metrics.aligned).tolist() == []


# ---- names, cells and resemblance --------------------------------------------------------------------------------


def test_drafters_by_name():
    drafter = methods.named("ptd children=2 depth=3 chained=False expand=topk", None)
    assert (drafter.children, drafter.depth, drafter.chained, drafter.expand) == (2, 3, False, "topk")
    assert methods.named("lookahead window=3", None).window == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("medusa", "unknown drafter 'medusa': known are undrafted, ptd, self_draft, lookahead, ngram"),
        ("ptd width=3", "'width=3' is no setting of ptd, which has chained, children, depth"),
        ("ptd depth", "'depth' is no setting of ptd"),
        ("ptd depth=0", "depth must be at least 1, got 0"),
        ("ptd chained=no", "'chained=no' should be chained=False or so"),
        ("ptd depth=six", "'depth=six' should be depth=6 or so"),
        ("self_draft corpus=oanc", "'corpus=oanc' should be corpus='own' or so"),
    ],
)
def test_names_without_sense_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        methods.named(name, None)


@pytest.mark.model
def test_cells_of_the_real_model():
    row = self_drafting.run("ptd", "conversation-02", 0.5, 12, 0)
    assert row["tokens"] == 12 == len(row["ids"].split())
    assert set(row) == set(self_drafting.METHODS_RESULTS)
    plain = self_drafting.run("plain", "conversation-02", 0.0, 12, 0)
    assert plain["DE"] is None
    assert plain["steps"] == 12
    found = self_drafting.alike("self_draft", "conversation-02", 16)
    assert set(found) == set(self_drafting.BRANCHES_RESULTS)
    assert 0 <= found["share overlap 0.8"] <= found["share overlap 0.5"] <= 1
    assert set(self_drafting.bookkeeping("ptd", "conversation-02", 12)) == {"propose", "observe", "forward"}
    assert self_drafting.same_text("self_draft corpus=own", "conversation-02", 8, True)["same"]


def test_resemblance_is_full_for_the_same_texts_and_nothing_for_strangers():
    texts = ["the cat sat on the mat today", "to be or not to be that is it"]
    assert list(self_drafting.resemblance(texts, texts).values()) == pytest.approx([100] * 4)
    strangers = self_drafting.resemblance(texts, ["completely other words here now friend", "x y z w v u t s"])
    assert max(strangers.values()) < 5


# ---- the widget --------------------------------------------------------------------------------------------------


def test_reading_what_was_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(racing.assets, "DATA", tmp_path)
    (tmp_path / "results").mkdir()
    rows = [("a", "plain", 1.0), ("a", "ptd chained=False", 2.0), ("b", "plain", 2.0), ("b", "ptd chained=False", 6.0)]
    table = pd.DataFrame(rows, columns=["prompt", "method", "tokens"])
    table = table.assign(key=range(4), status="ok", error=None, seconds=1.0, DE=[1, 2, 1, 2.5])
    table.to_csv(tmp_path / "results" / "runs.csv", index=False)
    found = self_drafting.load("runs")
    assert set(found["method"]) == {"generate", "PTD"}
    assert self_drafting.speed_ups(found).loc["PTD", "speed-up"] == 2.5
    assert self_drafting.difference(found, "DE", "PTD", "generate")[0] == pytest.approx(1.25)
    table.assign(status="failed").to_csv(tmp_path / "results" / "runs.csv", index=False)
    with pytest.raises(ValueError, match="4 cells of runs failed"):
        self_drafting.load("runs")


def test_budget_for_takes_the_smallest_that_reaches():
    points = pd.DataFrame({"budget": [30, 10, 20, 40], "DE": [1.9, 1.5, 2.0, 2.2]})
    assert self_drafting.budget_for(points, 2.0) == 20
    assert self_drafting.budget_for(points, 1.75) == 15
    assert math.isnan(self_drafting.budget_for(points, 2.3))


def test_drafters_without_branches_are_refused():
    with pytest.raises(ValueError, match="has no branches to compare"):
        self_drafting.alike("lookahead", "conversation-02", 8)


def test_repeated_counts_pairs():
    tree = TokenTree([9, 1, 2, 9, 1], [-1, 0, 1, 0, 3])
    assert metrics.repeated(Draft(tree, auxiliary=torch.tensor([False, True, True, True, True]))) == 0.25


def test_growing_refuses_a_chained_tree():
    with pytest.raises(ValueError, match="chained=False"):
        growing.record(Target(TINY), ProgressiveDrafter(chained=True), [1, 2], 2)


def pieces(tokens):
    return [f"t{token}" for token in tokens]


def test_the_growing_explorer_follows_its_slider():
    frames = growing.record(Target(TINY), ProgressiveDrafter(), [3, 1, 4, 1, 5], 8)
    assert len(frames) == 8
    assert frames[0].pool == {}
    box = growing.growing_explorer(frames, pieces)
    seen = {box.controls.image.value}
    for index in range(1, 8):
        box.controls.step.value = index
        seen.add(box.controls.image.value)
        found = metrics.retrieval([frames[index].step])
        assert f"behind {len(frames[index].pool)} tokens" in box.controls.readout.value
        assert len(frames[index].drafted) - 1 == found["Dft"]
    assert len(seen) == 8


def test_a_frames_pool_is_the_one_its_candidates_came_from():
    frames = growing.record(Target(TINY), ProgressiveDrafter(), [3, 1, 4, 1, 5], 20)
    for frame in frames:
        tree = frame.step.draft.tree
        candidates = tree.keep(range(frame.step.draft.elected))
        known = paths(frame.pool.get(tree.token_list[0], {}))
        assert {candidates.path_tokens(node) for node in range(1, len(candidates))} <= known


def test_the_first_frames_words_escape_the_text():
    frames = growing.record(Target(TINY), ProgressiveDrafter(), [3, 1], 2)
    _, words = growing.render(frames, 0, lambda tokens: ["<b>" for _ in tokens])
    assert "&lt;b&gt;" in words
    assert "<b>" not in words
