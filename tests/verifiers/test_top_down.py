"""Top-down verifiers: exact by enumeration, published numbers, and refusals."""

from types import SimpleNamespace

import pytest
import torch
from toy import (
    BINARY,
    IID,
    M_B,
    M_S,
    POINT,
    RANDOM,
    SWOR,
    UNEVEN,
    WORLDS,
    altered,
    bias,
    confined,
    constant,
    table,
    tree_drafter,
    warped,
)

from specnb import exact
from specnb.exact import accepted_law, expectation, joint, law, total_variation
from specnb.growth import chain, kary
from specnb.sampling import RandomCoins, Warp
from specnb.tree import Draft, Drawn, TokenTree
from specnb.verifiers import block, by_draw, greedy, one_hot, rrs, rrsw, sample_and_match, token_level, traversal

# ---- lossless -------------------------------------------------------------------------------------------

LOSSLESS = [
    (token_level, IID, chain(2), 2),
    (token_level, IID, chain(3), 3),
    (rrsw, SWOR, UNEVEN, 2),
    (rrsw, SWOR, chain(2), 2),
    (rrs, IID, UNEVEN, 2),
    (rrs, IID, chain(2), 2),
    *[(verifier, POINT, shape, 2) for verifier in (one_hot, sample_and_match) for shape in (UNEVEN, BINARY)],
    *[(verifier, POINT, chain(3), 3) for verifier in (one_hot, sample_and_match)],
    *[(verifier, drawn, chain(2), 2) for verifier in (one_hot, sample_and_match) for drawn in (IID, SWOR)],
]


@pytest.mark.parametrize("world", WORLDS)
def test_lossless(world):
    p, q = WORLDS[world]
    for verifier, drawn, shape, depth in LOSSLESS:
        assert bias(tree_drafter(q, shape, drawn), verifier, p, depth) < 1e-12, (verifier, drawn, shape)


@pytest.mark.parametrize("world", ["random 0", "zeros in both"])
@pytest.mark.parametrize(("verifier", "drawn"), [(rrsw, SWOR), (rrs, IID)])
def test_lossless_on_the_binary_tree(world, verifier, drawn):
    p, q = WORLDS[world]
    assert bias(tree_drafter(q, BINARY, drawn), verifier, p, 2) < 1e-12


@pytest.mark.parametrize("world", ["zeros in p", "zeros in q"])
@pytest.mark.parametrize("drawn", [IID, SWOR])
@pytest.mark.parametrize("verifier", [one_hot, sample_and_match])
def test_one_hot_and_sample_and_match_are_lossless_on_sampled_trees(world, drawn, verifier):
    p, q = WORLDS[world]
    assert bias(tree_drafter(q, UNEVEN, drawn), verifier, p, 2) < 1e-12


WARPS = [Warp(0.7), Warp(1.0, top_k=2), Warp(1.0, top_p=0.8), Warp(0.7, 2, 0.8), Warp(0.0)]


@pytest.mark.parametrize("warp", WARPS, ids=str)
@pytest.mark.parametrize(
    ("verifier", "drawn", "shape"),
    [(rrsw, SWOR, UNEVEN), (rrs, IID, UNEVEN), (token_level, IID, chain(2)), (one_hot, POINT, UNEVEN)],
)
def test_lossless_with_the_same_warp_on_p_and_q(warp, verifier, drawn, shape):
    p, q = WORLDS["random 2"]
    assert bias(tree_drafter(q, shape, drawn), verifier, warped(p, warp), 2, warp) < 1e-12


@pytest.mark.parametrize("drawn", Drawn)
@pytest.mark.parametrize("world", WORLDS)
def test_greedy_is_lossless_for_one_hot_p(world, drawn):
    p, q = WORLDS[world]
    p = warped(p, Warp(0.0))
    assert bias(tree_drafter(q, UNEVEN, drawn), greedy, p, 2) < 1e-12
    assert list(joint(p, 3).values()) == [1.0]


@pytest.mark.parametrize(("verifier", "drawn"), [(rrsw, SWOR), (rrs, IID), (one_hot, POINT), (one_hot, SWOR)])
def test_every_verifier_is_greedy_at_one_hot_p(verifier, drawn):
    p, q = WORLDS["random 3"]
    p, drafter = warped(p, Warp(0.0)), tree_drafter(q, UNEVEN, drawn)
    assert bias(drafter, verifier, p, 2) < 1e-12
    ours, theirs = (accepted_law(drafter, v, p, depth=2) for v in (verifier, greedy))
    assert ours == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize(
    ("verifier", "drawn"), [(rrsw, SWOR), (rrs, IID), (one_hot, POINT), (one_hot, SWOR), (sample_and_match, IID)]
)
@pytest.mark.parametrize("world", ["paper", "random 3", "zeros in p"])
def test_lossless_over_a_reduced_vocabulary(world, verifier, drawn):
    p, q = WORLDS[world]
    drafter = tree_drafter(q, UNEVEN, drawn, ids=[1, 2])
    assert bias(drafter, verifier, p, 2) < 1e-12
    if drawn is not POINT:
        drafter.begin((0,), Warp(), {})
        draft = drafter.propose(RandomCoins(), 2)
        assert draft.q.shape == (len(draft.tree), 2)
        assert set(draft.tree.token_list[1:]) <= {1, 2}


@pytest.mark.parametrize(
    ("verifier", "drawn"),
    [(rrsw, SWOR), (rrs, IID), (token_level, IID), (block, IID), (block, SWOR), (traversal, SWOR), (traversal, IID)],
)
def test_lossless_where_the_target_has_nothing_outside_the_reduced_vocabulary(verifier, drawn):
    """The mass outside is zero, not what rounding leaves of one minus the rest: there would be nothing to draw."""
    ids = [1, 2, 4]
    shape = chain(1) if verifier in (block, token_level) else kary(2, 1)
    for seed in range(4):
        p, q = confined(exact.random_model(5, seed), ids), exact.random_model(5, 100 + seed)
        assert bias(tree_drafter(q, shape, drawn, ids), verifier, p, 1) < 1e-12


class ByScore:
    """Expand the likeliest of the drawn nodes: the shape follows the draws, but nothing drawn is dropped."""

    prunes = False

    def select(self, tree, scores):
        if len(tree) == 1:
            return [(0, 2)]
        return [(int(scores[1:].argmax()) + 1, 2)] if max(tree.depth_list) == 1 else []

    def finish(self, tree, scores):
        return None


def test_a_shape_that_follows_the_draws_is_lossless():
    for p, q in RANDOM[:2]:
        assert bias(tree_drafter(q, ByScore(), SWOR), rrsw, p, 2) < 1e-12
        assert bias(tree_drafter(q, ByScore(), IID), rrs, p, 2) < 1e-12


@pytest.mark.parametrize(("verifier", "drawn"), [(rrsw, SWOR), (rrs, IID), (one_hot, SWOR)])
@pytest.mark.parametrize("ids", [None, [1, 2]])
def test_a_sampled_draft_of_the_root_alone_is_verified(verifier, drawn, ids):
    """With room for one token nothing is drafted: it happens at the end of every generation."""
    assert bias(tree_drafter(M_S, chain(2), drawn, ids), verifier, M_B, 0) < 1e-12


@pytest.mark.parametrize("drawn", Drawn)
def test_by_draw_is_lossless_for_every_draft(drawn):
    p, q = RANDOM[1]
    assert bias(tree_drafter(q, kary(2, 1), drawn), by_draw, p, 1) < 1e-12


@pytest.mark.parametrize("drawn", [IID, SWOR])
def test_q_of_a_draft_is_the_warped_law_after_each_node(drawn):
    q, warp = RANDOM[0][1], Warp(0.7, top_k=2)
    drafter = tree_drafter(q, BINARY, drawn)
    drafter.begin((0,), warp, {})
    draft = drafter.propose(RandomCoins(), 2)
    inner = [node for node, below in enumerate(draft.tree.children) if below]
    assert len(inner) == 3
    assert torch.allclose(draft.q[inner], table(warped(q, warp), draft.tree)[inner], rtol=0, atol=1e-15)


def test_several_steps_are_lossless_and_the_draft_sees_what_was_accepted():
    p, q = RANDOM[0]
    drafter = tree_drafter(q, kary(2, 1), SWOR)

    def text(coins):
        drafter.begin((0,), Warp(), {})
        tokens = ()
        while len(tokens) < 3:
            draft = drafter.propose(coins, 1)
            assert torch.allclose(draft.q[0], q(tokens), rtol=0, atol=1e-15)
            rows = torch.stack([p((*tokens, *draft.tree.path_tokens(node))) for node in range(len(draft.tree))])
            verdict = rrsw(draft, rows, coins)
            drafter.observe(draft, verdict.path, verdict.next_token, {}, rows)
            tokens += (*(draft.tree.token_list[node] for node in verdict.path), verdict.next_token)
        return tokens[:3]

    assert total_variation(law(text), joint(p, 3)) < 1e-12


# ---- auxiliary nodes ------------------------------------------------------------------------------------


def with_auxiliary(draft: Draft) -> Draft:
    """Every token as an auxiliary child of every node, in front of the elected ones, and one below those."""
    tokens, parents, old, auxiliary, stack = [0], [-1], [0], [False], [(0, 0)]
    while stack:
        node, new = stack.pop()
        here = len(tokens)
        below = draft.tree.children[node]
        tokens += [0, 1, 2, 1, *(draft.tree.token_list[c] for c in below)]
        parents += [new, new, new, here, *(new for _ in below)]
        auxiliary += [True] * 4 + [False] * len(below)
        old += [node] * 4 + list(below)
        stack += [(child, here + 4 + i) for i, child in enumerate(below)]
    q = None if draft.q is None else draft.q[old]
    return Draft(TokenTree(tokens, parents), q, draft.drawn, auxiliary=torch.tensor(auxiliary))


@pytest.mark.parametrize(
    ("verifier", "drawn", "shape"),
    [
        (rrsw, SWOR, UNEVEN),
        (rrs, IID, UNEVEN),
        (token_level, IID, chain(2)),
        (one_hot, POINT, UNEVEN),
        (sample_and_match, POINT, UNEVEN),
        (greedy, POINT, UNEVEN),
    ],
)
def test_auxiliary_nodes_are_never_elected_and_change_nothing(verifier, drawn, shape):
    p, q = WORLDS["random 1"]
    p = warped(p, Warp(0.0)) if verifier is greedy else p
    plain = tree_drafter(q, shape, drawn)
    drafter = altered(plain, with_auxiliary)
    assert bias(drafter, verifier, p, 2) < 1e-12
    verdicts = law(lambda coins: elected(drafter, verifier, p, coins))
    assert set(verdicts) <= {(), (False,), (False, False)}
    ours, theirs = (accepted_law(d, verifier, p, depth=2) for d in (drafter, plain))
    assert ours == pytest.approx(theirs, abs=1e-12)


def elected(drafter, verifier, p, coins):
    """The auxiliary flags along the accepted path."""
    draft, verdict = exact.verify_once(drafter, verifier, p, coins, depth=2)
    return tuple(bool(draft.auxiliary[node]) for node in verdict.path)


@pytest.mark.parametrize("verifier", [one_hot, sample_and_match, traversal])
def test_p_of_auxiliary_rows_behind_the_candidates_is_not_needed(verifier):
    tree = TokenTree([9, 1, 2, 5, 6], [-1, 0, 0, 0, 3])
    draft = Draft(tree, auxiliary=torch.tensor([False, False, False, True, True]))
    p = torch.rand(5, 10, generator=torch.Generator().manual_seed(0)).softmax(-1)
    assert draft.candidate_rows == 3
    for seed in range(20):
        full, short = (verifier(draft, rows, RandomCoins(seed)) for rows in (p, p[:3]))
        assert (full.path, full.next_token) == (short.path, short.next_token)
    with pytest.raises(ValueError, match="shape"):
        verifier(draft, p[:4], RandomCoins())


# ---- published and hand-computed numbers ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("verifier", "drawn", "shape", "depth", "expected"),
    [
        (token_level, IID, chain(2), 2, 119 / 100),
        (token_level, IID, chain(3), 3, 1533 / 1000),
        (rrsw, SWOR, BINARY, 2, 105 / 64),
        (rrsw, SWOR, UNEVEN, 2, 119 / 80),
    ],
)
def test_expected_accepted_length(verifier, drawn, shape, depth, expected):
    accepted = accepted_law(tree_drafter(M_S, shape, drawn), verifier, M_B, depth=depth)
    assert expectation(accepted, float) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("p", "q", "single", "with_replacement", "without", "top_2"),
    [
        ((0.3, 0.4, 0.3), (0.6, 0.3, 0.1), 0.70, 0.82, 7 / 8, 0.70),
        ((0.3, 0.2, 0.5), (1 / 9, 4 / 9, 4 / 9), 0.7556, 0.8383, 0.8600, 0.70),
        ((1 / 11, 2 / 11, 2 / 11, 6 / 11), (3 / 17, 5 / 17, 5 / 17, 4 / 17), 0.6898, 0.7628, 0.7892, 0.3636),
    ],
)
def test_acceptance_at_one_node(p, q, single, with_replacement, without, top_2):
    p, q = constant(*p), constant(*q)
    accepted = [
        accepted_law(tree_drafter(q, kary(k, 1), drawn), verifier, p, depth=1)[1]
        for k, drawn, verifier in [(1, IID, token_level), (2, IID, rrs), (2, SWOR, rrsw), (2, POINT, one_hot)]
    ]
    assert accepted == pytest.approx([single, with_replacement, without, top_2], abs=5e-5)


@pytest.mark.parametrize(("second", "probability"), [(1, 4 / 9), (2, 1)])
def test_trials_show_the_residual_acceptance_of_the_second_sibling(second, probability):
    tree = TokenTree([0, 0, second], [-1, 0, 0])
    draft = Draft(tree, table(M_S, tree), SWOR)
    trials = [verdict.trials for verdict in law(lambda coins: rrsw(draft, table(M_B, tree), coins))]
    assert {t[0].probability for t in trials} == {0.5}
    rejected = [t for t in trials if not t[0].accepted]
    assert [t[1].node for t in rejected] == [2] * len(rejected)
    assert [t[1].probability for t in rejected] == pytest.approx([probability] * len(rejected))


def test_outcomes_on_the_tree_of_figure_2():
    tree = TokenTree([0, 0, 1, 1, 2, 0], [-1, 0, 0, 1, 1, 2])  # a → b, c and b → a
    draft, p = Draft(tree, table(M_S, tree), SWOR), table(M_B, tree)
    paths = law(lambda coins: rrsw(draft, p, coins).path)
    expected = {(1, 3): 1 / 2, (2, 5): 1 / 9, (2,): 1 / 9, (): 5 / 18}
    assert {path: x for path, x in paths.items() if x > 1e-12} == pytest.approx(expected, abs=1e-12)


def test_a_deterministic_tree_accepts_the_sum_of_its_path_probabilities():
    tree = TokenTree.from_paths([(0, 1, 2), (0, 2), (2, 1), (1,)])
    for p, _ in WORLDS.values():
        rows = table(p, tree)
        reach = [1.0]
        for parent, token in zip(tree.parent_list[1:], tree.token_list[1:], strict=True):
            reach.append(reach[parent] * float(rows[parent, token]))
        one_hot_law, match_law = (
            law(lambda coins, v=verifier, rows=rows: len(v(Draft(tree), rows, coins).path))
            for verifier in (one_hot, sample_and_match)
        )
        assert expectation(one_hot_law, float) == pytest.approx(sum(reach[1:]), abs=1e-12)
        assert expectation(match_law, float) == pytest.approx(sum(reach[1:]), abs=1e-12)


# ---- refusals -------------------------------------------------------------------------------------------

CHAIN, FORK = TokenTree([0, 1, 2], [-1, 0, 1]), TokenTree([0, 1, 2], [-1, 0, 0])
THIRDS = torch.full((3, 3), 1 / 3)
ONE_HOT = torch.eye(3)
REFUSED = {
    "rrsw, IID siblings": (
        rrsw,
        Draft(FORK, THIRDS, IID),
        THIRDS,
        "rrsw is lossless for siblings drawn SWOR only, these were drawn IID: use rrs",
    ),
    "rrs, SWOR siblings": (
        rrs,
        Draft(FORK, THIRDS, SWOR),
        THIRDS,
        "rrs is lossless for siblings drawn IID only, these were drawn SWOR: use rrsw",
    ),
    "token_level, siblings": (
        token_level,
        Draft(FORK, THIRDS, IID),
        THIRDS,
        "token_level verifies chains: this draft branches, use rrs, rrsw or one_hot",
    ),
    "rrs, POINT": (rrs, Draft(CHAIN), THIRDS, "rrs needs a sampled draft .* POINT .* use one_hot"),
    "rrsw, POINT": (rrsw, Draft(CHAIN), THIRDS, "rrsw needs a sampled draft .* POINT .* use one_hot"),
    "token_level, POINT": (
        token_level,
        Draft(CHAIN),
        THIRDS,
        "token_level needs a sampled draft .* POINT .* use one_hot",
    ),
    "POINT with q": (rrsw, Draft(CHAIN, THIRDS), THIRDS, "this one is POINT"),
    "greedy, p not one-hot": (
        greedy,
        Draft(CHAIN),
        THIRDS,
        r"greedy verification needs one-hot p \(temperature 0\), got a largest probability of 0.333",
    ),
}


@pytest.mark.parametrize(("verifier", "draft", "p", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(verifier, draft, p, message):
    with pytest.raises(ValueError, match=message):
        verifier(draft, p, RandomCoins())


@pytest.mark.parametrize("drawn", [IID, SWOR])
@pytest.mark.parametrize("verifier", [rrs, rrsw, token_level])
def test_a_sampled_chain_is_not_refused(verifier, drawn):
    assert verifier(Draft(CHAIN, THIRDS, drawn), THIRDS, RandomCoins()).path == (1, 2)


BAD_P = {
    "too few rows": (THIRDS[:2], r"p must be float32 or wider of shape \(3, V\), got torch.float32 \(2, 3\)"),
    "one row": (THIRDS[0], r"shape \(3, V\), got torch.float32 \(3,\)"),
    "half precision": (THIRDS.half(), r"float32 or wider of shape \(3, V\), got torch.float16 \(3, 3\)"),
    "vocabulary too small": (THIRDS[:, :2], "holds token id 2, the target's vocabulary ends at 1"),
    "wider than q": (torch.full((3, 4), 1 / 4), "q is over 3 tokens and p over 4: .* must name its ids"),
    "a row of NaN": (
        torch.cat([torch.full((1, 3), torch.nan), ONE_HOT[:2]]),
        "p holds nan, which is no probability|largest probability of nan|without mass",
    ),
}


@pytest.mark.parametrize("verifier", [greedy, sample_and_match, one_hot, rrs, rrsw, token_level, block, traversal])
@pytest.mark.parametrize(("p", "message"), BAD_P.values(), ids=BAD_P)
def test_bad_p(verifier, p, message):
    with pytest.raises(ValueError, match=message):
        verifier(Draft(CHAIN, THIRDS, SWOR), p, RandomCoins())


@pytest.mark.parametrize("value", [7.0, torch.inf, -0.5])
@pytest.mark.parametrize("verifier", [one_hot, rrs, rrsw, token_level, block, traversal])
def test_logits_are_no_probabilities(verifier, value):
    with pytest.raises(ValueError, match=f"p holds {value}, which is no probability: are there NaN in"):
        verifier(Draft(CHAIN, THIRDS, SWOR), torch.full((3, 3), value), RandomCoins())


@pytest.mark.parametrize("verifier", [rrs, rrsw, token_level, block, traversal])
def test_q_must_be_probabilities_too(verifier):
    for q in (THIRDS.log(), 6 * THIRDS, torch.full((3, 3), torch.nan)):
        with pytest.raises(ValueError, match=r"q holds (-1\.\d+|2\.0|nan), which is no probability"):
            verifier(Draft(CHAIN, q, SWOR), THIRDS, RandomCoins())


def test_target_and_draft_share_a_device():
    with pytest.raises(ValueError, match="q is on meta and p on cpu"):
        rrsw(Draft(CHAIN, THIRDS.to("meta"), SWOR), THIRDS, RandomCoins())


def test_a_growth_that_prunes_refuses_sampled_trees():
    pruning = SimpleNamespace(prunes=True)
    for drawn in (IID, SWOR):
        with pytest.raises(ValueError, match=f"SimpleNamespace drops .* drawn {drawn.name} would be biased"):
            tree_drafter(M_S, pruning, drawn)
    tree_drafter(M_S, pruning, POINT)
