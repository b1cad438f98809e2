"""Growth rules are their algorithms; bad shapes and settings are refused."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import generated, llama, near_copy
from toy import grow

from specnb import exact, growth, verifiers
from specnb.decode import steps
from specnb.drafters import CausalLMDraft, TableDraft, TreeDrafter
from specnb.exact import random_model
from specnb.sampling import RandomCoins, Warp
from specnb.target import Target
from specnb.tree import Drawn


@pytest.mark.parametrize(
    ("name", "levels"), [("eagle_25", [4, 8, 8, 3, 2]), ("medusa_63", [10, 28, 23, 2])], ids=["eagle", "medusa"]
)
def test_named_trees(name, levels):
    paths = {"eagle_25": growth.EAGLE_25, "medusa_63": growth.MEDUSA_63}[name].paths
    assert len(set(paths)) == len(paths)
    counts = Counter(map(len, paths))
    assert [counts[depth] for depth in sorted(counts)] == levels


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (((1,),), r"\(1,\) has no elder sibling \(0,\)"),
        (((0,), (1, 0)), r"\(1, 0\) has no parent \(1,\)"),
        (((0,), (0,)), "paths must differ"),
        (((-1,),), "their ranks be 0, 1, …"),
    ],
)
def test_a_shape_with_holes_is_refused(paths, message):
    with pytest.raises(ValueError, match=message):
        growth.Static(paths)


def test_kary_is_breadth_first():
    assert growth.kary(2, 2).paths == ((0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1))
    assert growth.chain(3).paths == ((0,), (0, 0), (0, 0, 0))
    assert growth.kary(5, 0).paths == ()
    assert len(growth.kary(3, 3).paths) == 3 + 9 + 27
    for k, depth in ((0, 2), (2, -1)):
        with pytest.raises(ValueError, match=f"k >= 1 and depth >= 0, got k={k}, depth={depth}"):
            growth.kary(k, depth)


# --- DynaTree


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


# --- trees by confidence: CAPE, EAGLE-2, PCT, and break-even by layer


def level_sizes(draft) -> dict[int, int]:
    """How many nodes of each level were expanded."""
    tree = draft.tree
    return Counter(tree.depth_list[node] for node in range(len(tree)) if tree.children[node])


@settings(deadline=None)
@given(seed=st.integers(0, 999), depth=st.integers(1, 4))
def test_cape_is_a_chain_with_neighbours(seed, depth):
    draft, law = grow(growth.Cape(depth, extra=(4, 3, 2, 1)), seed)
    prefix, expected = (), []
    for _ in range(depth):
        confidence = float(law(prefix).max())
        width = 1 + (4 if confidence <= 0.3 else 3 if confidence <= 0.6 else 2 if confidence <= 0.8 else 1)
        expected += [(*prefix, token) for token in law(prefix).topk(width).indices.tolist()]
        prefix = (*prefix, int(law(prefix).argmax()))
    assert [draft.tree.path_tokens(i) for i in range(1, len(draft.tree))] == expected


@settings(deadline=None)
@given(seed=st.integers(0, 999), total=st.integers(1, 30), depth=st.integers(1, 4), k=st.integers(1, 4))
def test_eagle2_is_its_beam(seed, total, depth, k):
    """Against the algorithm on prefixes: k children of the k best of each level, then the best of all."""
    draft, law = grow(growth.Eagle2(total, depth, k), seed)
    frontier, candidates = {(): 1.0}, {}
    for _ in range(depth):
        grown = {(*u, v): c * float(law(u)[v]) for u, c in frontier.items() for v in law(u).topk(k).indices.tolist()}
        candidates |= grown
        frontier = dict(sorted(grown.items(), key=lambda item: -item[1])[:k])
    expected = sorted(candidates, key=lambda u: -candidates[u])[:total]
    assert {draft.tree.path_tokens(i) for i in range(1, len(draft.tree))} == set(expected)


def test_eagle2_keeps_parents_of_children_that_are_as_likely():
    """A draft that is sure of itself: every path probability is 1, the elder must win."""
    sure = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    drafter = TreeDrafter(TableDraft(lambda prefix: sure), growth.Eagle2(3, 5, 2))
    drafter.begin((0,), Warp(), {})
    draft = drafter.propose(RandomCoins(0), 99)
    assert draft.tree.path_tokens(3) == (1, 1, 1)


@settings(deadline=None)
@given(seed=st.integers(0, 999), cost=st.floats(0.02, 0.9), k=st.integers(1, 5))
def test_pct_expands_what_calls_pay_for(seed, cost, k):
    """Expanded are the root and every node whose path probability reaches the price, at most 1 / price in a level."""
    draft, _ = grow(growth.Pct(cost, k, depth=4, leaf=0), seed)
    assert max(level_sizes(draft).values()) <= max(1, 1 / cost)
    for node in range(1, len(draft.tree)):
        if draft.tree.depth_list[node] < 4:
            assert bool(draft.tree.children[node]) == bool(draft.scores[node] >= cost)
    pruned, _ = grow(growth.Pct(cost, k, depth=4, leaf=cost / 3), seed)
    stay = {draft.tree.path_tokens(node) for node in range(len(draft.tree)) if draft.scores[node] >= cost / 3}
    assert {pruned.tree.path_tokens(node) for node in range(len(pruned.tree))} == stay


@pytest.mark.parametrize("seed", range(3))
def test_pct_at_its_limits(seed):
    """Calls for nothing: the full k-ary tree. Calls as expensive as the target's: one level."""
    assert len(grow(growth.Pct(0.0, 3, depth=3, leaf=0), seed)[0].tree) == 1 + 3 + 9 + 27
    assert level_sizes(grow(growth.Pct(1.0, 3, depth=3, leaf=0), seed)[0]) == {0: 1}


@settings(deadline=None)
@given(seed=st.integers(0, 999), call=st.floats(0.01, 0.9), row=st.floats(0.0, 0.3))
def test_what_pays_is_the_best_number_of_the_likeliest(seed, call, row):
    """Against trying all subsets of a frontier; without prices nothing is left out, and the root never is."""
    search, prices = growth.Salf(30, 4, 0.0, 6, fill=True), [call + row * n for n in range(4)]
    draft, _ = grow(growth.kary(3, 2), seed)
    scores = draft.scores.numpy()
    chances = {node: float(scores[node]) for node, _ in search.select(draft.tree, scores)}
    assert len(chances) == 4
    found = growth.Paying(search, prices).select(draft.tree, scores)
    subsets = [part for n in range(len(chances) + 1) for part in combinations(chances, n)]
    worth = {part: sum(chances[node] for node in part) - (prices[len(part) - 1] if part else 0) for part in subsets}
    assert worth[tuple(sorted(node for node, _ in found))] == pytest.approx(max(worth.values()))
    assert kept(grow(growth.Paying(search, [0.0] * 4), seed)[0]) == kept(grow(search, seed)[0])
    assert level_sizes(grow(growth.Paying(search, [2.0] * 4), seed)[0]) == {0: 1}


RULES = [
    growth.Cape(3, (2, 2, 1, 1)),
    growth.Eagle2(6, 3, 2),
    growth.Pct(0.2, 2, 3, 0.1),
    growth.Paying(growth.Salf(5, 2, 0, 3), (0.3, 0.4)),
    growth.Salf(5, 2, 0.3, 3),
    growth.SpecExec(5, 2, 2),
    growth.OptTree(5, 0.2, 3, 2),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_pruned_trees_are_exact_with_one_hot_verification(rule):
    """Deterministic trees, whatever they drop: the output law is the target's; told that they were drawn, it is not."""
    p, q = random_model(3, 1), random_model(3, 2)

    def off(verifier):
        drafter = exact.toy_drafter(q, rule, Drawn.POINT)
        law = exact.output_law(drafter, verifier, p, depth=3)
        return exact.total_variation(law, exact.joint(p, 4))

    def told_drawn(draft, p_rows, coins):
        rows = torch.stack([q(draft.tree.path_tokens(node)) for node in range(len(draft.tree))])
        return verifiers.rrsw(replace(draft, q=rows, drawn=Drawn.SWOR), p_rows, coins)

    assert off(verifiers.one_hot) < 1e-12
    assert off(told_drawn) > 0.01
    with pytest.raises(ValueError, match="would be biased"):
        TreeDrafter(TableDraft(q), rule, Drawn.SWOR)


DEEPER = [
    growth.Cape(4, edges=(0.06, 0.1, 0.2)),
    growth.Eagle2(9, 4, 3),
    growth.Pct(0.02, 3, 4, 0.01),
    growth.Paying(growth.Salf(12, 3, 0, 4), (0.1, 0.2, 0.3)),
    growth.Salf(12, 3, 0.2, 4),
    growth.SpecExec(11, 4, 4),
    growth.OptTree(11, 0.1, 4, 4),
]


@pytest.mark.parametrize("rule", DEEPER, ids=lambda rule: type(rule).__name__)
def test_greedy_text_is_plain_text(rule):
    """With a draft close to its target: paths of two and more are accepted in trees that have dropped nodes."""
    model = llama()
    draft = CausalLMDraft(near_copy(model))
    plain = generated(model, [5, 9, 2], 40)
    drafter = TreeDrafter(draft, rule)
    dropped, longest, tokens = 0, 0, []
    for step in steps(Target(model), drafter, verifiers.greedy, [5, 9, 2], max_new_tokens=40, eos=()):
        tokens += step.tokens
        longest = max(longest, len(step.verdict.path))
        dropped += len(step.draft.tree) < len(drafter.grown)
    assert tokens == plain
    assert longest >= 2
    assert dropped > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: growth.Pct(0.01, leaf=0.05), "leaf 0.05 and cost 0.01"),
        (lambda: growth.Pct(1.5), "cost 1.5"),
        (lambda: growth.Eagle2(total=0), "total must be at least 1, got 0"),
        (lambda: growth.Cape(0), "depth of at least 1"),
        (lambda: growth.Cape(extra=(1, 2)), "one width more than edges"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- search for the likeliest nodes: SALF, SpecExec, OPT-Tree


def likeliest(law, total: int, vocabulary: int = 6, depth: int = 30) -> dict[tuple, float]:
    """The total most probable paths by trying all, the empty one included."""
    level, found = {(): 1.0}, {(): 1.0}
    for _ in range(depth):
        level = {(*p, t): c * float(law(p)[t]) for p, c in level.items() for t in range(vocabulary)}
        level = dict(sorted(level.items(), key=lambda item: -item[1])[:total])  # no child outlives its parent
        found |= level
    return dict(sorted(found.items(), key=lambda item: -item[1])[:total])


def kept(draft) -> set[tuple]:
    return {draft.tree.path_tokens(node) for node in range(len(draft.tree))}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 999), total=st.integers(1, 25), beam=st.integers(1, 6))
def test_salf_without_a_stop_is_the_optimal_tree(seed, total, beam):
    draft, law = grow(growth.Salf(total, beam, 0.0), seed)
    assert kept(draft) == set(likeliest(law, total))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), total=st.integers(2, 25))
def test_specexec_without_decay_is_the_optimal_tree(seed, total):
    draft, law = grow(growth.SpecExec(total - 1, 4, 6, 1.0), seed)
    assert kept(draft) == set(likeliest(law, total))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), total=st.integers(1, 40), beam=st.integers(1, 6), depth=st.integers(1, 3))
def test_salf_under_a_depth_is_the_best_tree_of_that_depth(seed, total, beam, depth):
    draft, law = grow(growth.Salf(total, beam, 0.0, depth=depth), seed)
    assert kept(draft) == set(likeliest(law, total, depth=depth))


@pytest.mark.parametrize("rule", [growth.Salf(30, 3, 0.0), growth.Salf(30, 3, 0.3), growth.SpecExec(30, 4, 6)])
def test_a_search_knows_how_deep_its_draft_goes(rule):
    """Nodes that will have no children must not hold its beam: so near a text's end, and with Medusa's heads."""
    law = random_model(6, 3)
    drafter = TreeDrafter(TableDraft(lambda prefix: law(prefix[1:])), rule)
    drafter.begin((0,), Warp(), {})
    for depth in (1, 2, 3):
        assert kept(drafter.propose(RandomCoins(), depth)) == kept(grow(replace(rule, depth=depth), 3)[0])


def test_popped_nodes_at_the_depth_are_those_before_a_less_likely_one():
    """A search stopped by its threshold keeps what it has popped, not all that it scored."""
    few, all_ = (len(grow(growth.Salf(200, 3, threshold, depth=3), 3)[0].tree) for threshold in (0.2, 0.0))
    assert few < all_


def test_specexec_prefers_short_paths():
    shallow, deep = (grow(growth.SpecExec(20, 8, 6, decay))[0].tree.depth for decay in (0.5, 1.0))
    assert shallow.sum() < deep.sum()


class Watched:
    """A growth rule and what it expanded: the summed probability of every beam."""

    prunes = True

    def __init__(self, rule):
        self.rule, self.gains = rule, []

    def select(self, tree, scores):
        frontier = self.rule.select(tree, scores)
        self.gains += [float(scores[[node for node, _ in frontier]].sum())] if frontier else []
        return frontier

    def finish(self, tree, scores):
        return self.rule.finish(tree, scores)


def test_what_a_forward_can_add_falls_with_every_forward():
    """SALF's Theorem 1 on 1,000 random trees: S_i is strictly decreasing, so stopping at the first low one is right."""
    forwards = 0
    for seed in range(1000):
        watched = Watched(growth.Salf(12, 4, 0.0))
        grow(watched, seed)
        assert all(a > b for a, b in zip(watched.gains, watched.gains[1:], strict=False)), seed
        forwards += len(watched.gains)
    assert forwards > 2500


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 999), low=st.floats(0, 0.95), high=st.floats(0, 0.95), fill=st.booleans())
def test_salf_stops_earlier_at_a_higher_threshold(seed, low, high, fill):
    """A higher threshold is the same search, ended earlier; trees are ancestor-closed and within their sizes."""
    low, high = sorted((low, high))
    few, many = Watched(growth.Salf(20, 4, high, 20, fill)), Watched(growth.Salf(20, 4, low, 20, fill))
    small, large = grow(few, seed)[0], grow(many, seed)[0]
    assert few.gains == many.gains[: len(few.gains)]
    assert all(gain >= high for gain in few.gains)
    if fill:
        assert min(20, 1 + 6 * len(few.gains)) <= len(small.tree) <= 20  # every forward scores six at least
        assert small.scores.sum() <= large.scores.sum() + 1e-12
    else:
        assert len(small.tree) <= min(20, 1 + 4 * len(few.gains))
    for draft in (small, large):
        assert all(path[:-1] in kept(draft) for path in kept(draft) if path)


def test_optimal_accepts_most_in_expectation():
    """Under the draft's own law no tree of that many nodes, EAGLE-2's among them, is expected to accept more."""
    beaten = 0
    for seed in range(50):
        optimal, beam = (grow(rule, seed)[0] for rule in (growth.Salf(16, 4, 0.0), growth.Eagle2(15, 5, 3)))
        assert len(beam.tree) == len(optimal.tree) == 16
        assert beam.scores.sum() <= optimal.scores.sum() + 1e-12
        beaten += bool(beam.scores.sum() < optimal.scores.sum() - 1e-9)
    assert beaten > 5


def test_opt_tree_stops_when_a_level_gains_too_little():
    for seed in range(20):
        deep, shallow = (Watched(growth.OptTree(12, threshold, 6)) for threshold in (0.0, 0.4))
        large, small = grow(deep, seed)[0], grow(shallow, seed)[0]
        assert len(shallow.gains) <= len(deep.gains)
        assert small.scores.sum() <= large.scores.sum() + 1e-12
        best_sums = [sum(sorted(level_sums(seed, depth), reverse=True)[:12]) for depth in range(8)]
        stop = next(d for d in range(1, 8) if best_sums[d] - best_sums[d - 1] <= 0.4 or d == 6)
        assert len(shallow.gains) == stop


def level_sums(seed: int, depth: int) -> list[float]:
    """Path probabilities of every node that OPT-Tree has seen after so many levels, 12 expanded in each."""
    law, level, seen = random_model(6, seed), {(): 1.0}, []
    for _ in range(depth):
        children = {(*p, t): c * float(law(p)[t]) for p, c in level.items() for t in range(6)}
        level = dict(sorted(children.items(), key=lambda item: -item[1])[:12])
        seen += children.values()
    return seen


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: growth.Salf(threshold=1.0), r"threshold must lie in \[0, 1\), got 1.0"),
        (lambda: growth.Salf(total=0), "total must be at least 1, got 0"),
        (lambda: growth.Salf(total=59.0), "total must be a whole number, got 59.0"),
        (lambda: growth.SpecExec(decay=0.0), r"decay must lie in \(0, 1\], got 0.0"),
        (lambda: growth.OptTree(threshold=-1.0), "threshold must be at least 0, got -1.0"),
    ],
)
def test_searches_refuse_bad_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
