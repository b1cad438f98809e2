"""Drafters that need no draft model: PTD, Self-Draft and lookahead; tries, pools, windows, and losslessness."""

import itertools
import pickle
import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import llama

from specnb import metrics, verifiers
from specnb.broken import Unpositioned
from specnb.decode import decode
from specnb.drafters import Corpus, LookaheadDrafter, ProgressiveDrafter, SelfDrafter, pools, ptd
from specnb.drafters.pools import GramPool, TriePool
from specnb.exact import joint, law, total_variation
from specnb.sampling import Warp
from specnb.target import Target
from specnb.tree import TokenTree

TINY = llama(0, max_position_embeddings=512)
DRAFTERS = {
    "ptd": ProgressiveDrafter,
    "ptd, literal": lambda: ProgressiveDrafter(chained=False),
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
    assert seen[2] == [([], [11, 20]), (two, [12, 21]), (three, [13, 22])]
    assert seen[3] == [([], [20, 30]), (two, [21, 31]), (three, [22, 32])]


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
    with pytest.raises(ValueError, match="exceed the context of 512, of which drafts take 10: shorten"):
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


def engine_law(monkeypatch, drafter, verifier):
    """The exact law of a whole generation: every coin of the verifier enumerated; drafters toss none."""

    def text(coins):
        monkeypatch.setattr("specnb.decode.RandomCoins", lambda seed, purpose: _with_uniforms(coins))
        return decode(Target(SMALL), drafter, verifier, PROMPT, max_new_tokens=LENGTH, temperature=1.0, eos=()).tokens

    return law(text)


def _with_uniforms(coins):
    coins.uniforms = []
    return coins


SMALL_DRAFTERS = {
    "ptd": lambda: ProgressiveDrafter(2, 2),
    "ptd, sampled": lambda: ProgressiveDrafter(2, 2, expand="sample", chained=False),
    "self-draft": lambda: SelfDrafter(2, 3, gram=1, corpus=Corpus([[0, 1, 2, 2]])),
    "lookahead": lambda: LookaheadDrafter(2, 3, 2, from_prompt=True),
}


@pytest.mark.parametrize("name", SMALL_DRAFTERS)
def test_sampling_is_exact_through_the_whole_engine(monkeypatch, name):
    assert total_variation(engine_law(monkeypatch, SMALL_DRAFTERS[name](), verifiers.one_hot), plain_law()) < 1e-12


def unstruck(draft, p, coins):
    """One-hot verification that forgets to strike a rejected candidate out before it draws the recovered token."""
    verdict = verifiers.one_hot(draft, p, SimpleNamespace(accept=coins.accept, choose=lambda law: 0))
    node = verdict.path[-1] if verdict.path else 0
    return verifiers.Verdict(verdict.path, coins.choose(p[node]), verdict.trials)


@pytest.mark.parametrize("name", SMALL_DRAFTERS)
def test_a_broken_verifier_is_caught_there(monkeypatch, name):
    assert total_variation(engine_law(monkeypatch, SMALL_DRAFTERS[name](), unstruck), plain_law()) > 0.01


@pytest.mark.parametrize("name", ["ptd", "lookahead"])
def test_a_target_without_positions_is_caught_there(monkeypatch, name):
    monkeypatch.setattr(f"{__name__}.Target", Unpositioned)
    assert total_variation(engine_law(monkeypatch, SMALL_DRAFTERS[name](), verifiers.one_hot), plain_law()) > 1e-5
