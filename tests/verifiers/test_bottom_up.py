"""Block and traversal verification: exact, never worse, and broken variants caught."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from tiny import llama
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
    bias,
    constant,
    table,
    tree_drafter,
    warped,
)  # fmt: skip

from specnb import exact
from specnb.drafters import CausalLMDraft, TreeDrafter
from specnb.exact import accepted_law, engine_law, expectation, joint, law, total_variation
from specnb.growth import chain, kary
from specnb.sampling import Warp
from specnb.target import Target
from specnb.tree import Draft, Drawn, TokenTree
from specnb.verifiers import block, bottom_up, one_hot, rrs, rrsw, sample_and_match, token_level
from specnb.verifiers import traversal as traverse

LOSSLESS = [
    *[(block, drawn, chain(k), k) for drawn in Drawn for k in (1, 2)],
    *[(traverse, drawn, shape, 2) for drawn in Drawn for shape in (chain(2), UNEVEN)],
    (block, SWOR, chain(3), 3),
    (traverse, SWOR, chain(3), 3),
    (traverse, SWOR, kary(3, 1), 1),
    (traverse, IID, kary(3, 1), 1),
    (traverse, POINT, BINARY, 2),
]


@pytest.mark.parametrize("world", WORLDS)
def test_lossless(world):
    p, q = WORLDS[world]
    for verifier, drawn, shape, depth in LOSSLESS:
        assert bias(tree_drafter(q, shape, drawn), verifier, p, depth) < 1e-12, (verifier, drawn, shape)


@pytest.mark.parametrize("drawn", [IID, SWOR])
@pytest.mark.parametrize("world", ["random 0", "zeros in both", "paper"])
def test_lossless_on_the_binary_tree(world, drawn):
    p, q = WORLDS[world]
    assert bias(tree_drafter(q, BINARY, drawn), traverse, p, 2) < 1e-12


@pytest.mark.parametrize("warp", [Warp(0.7), Warp(1.0, top_k=2), Warp(1.0, top_p=0.8), Warp(0.0)], ids=str)
@pytest.mark.parametrize("drawn", Drawn)
def test_lossless_under_warps(warp, drawn):
    p, q = WORLDS["random 2"]
    assert bias(tree_drafter(q, UNEVEN, drawn), traverse, warped(p, warp), 2, warp) < 1e-12


@pytest.mark.parametrize("drawn", Drawn)
def test_lossless_over_a_reduced_vocabulary(drawn):
    p, q = WORLDS["random 3"]
    assert bias(tree_drafter(q, UNEVEN, drawn, ids=[1, 2]), traverse, p, 2) < 1e-12


@pytest.mark.parametrize(
    ("shape", "depth", "expected"),
    [(chain(2), 2, 5 / 4), (chain(3), 3, 213 / 125), (BINARY, 2, 541 / 320), (UNEVEN, 2, 61 / 40)],
)
def test_expected_accepted_length(shape, depth, expected):
    accepted = accepted_law(tree_drafter(M_S, shape, SWOR), traverse, M_B, depth=depth)
    assert expectation(accepted, float) == pytest.approx(expected, abs=1e-12)


def test_the_toy_of_block_verification():
    """10/9 accepted tokens token by token, 11/9 by block (Sun et al. 2024)."""
    p, q = constant(1 / 3, 2 / 3), constant(2 / 3, 1 / 3)
    drafter = tree_drafter(q, chain(2), IID)
    lengths = {v: expectation(accepted_law(drafter, v, p, depth=2), float) for v in (token_level, block, traverse)}
    assert lengths == pytest.approx({token_level: 10 / 9, block: 11 / 9, traverse: 11 / 9}, abs=1e-12)


def test_a_chain_of_two_by_hand():
    """Tokens 0 and 1 of p = (.3, .4, .3), q = (.6, .3, .1): both survive with 2/3, else the first with 1/11."""
    tree = TokenTree.chain([0, 0, 1])
    draft, p = Draft(tree, table(M_S, tree), SWOR), table(M_B, tree)
    paths = law(lambda coins: traverse(draft, p, coins).path)
    assert paths == pytest.approx({(1, 2): 2 / 3, (1,): 1 / 33, (): 10 / 33})
    assert bottom_up.chances(draft, p) == pytest.approx([1, 1 / 2, 2 / 3])
    assert bottom_up.chances(draft, p, token_level=True) == pytest.approx([1, 1 / 2, 1 / 2])


def test_figure_2():
    """The paper's tree a → {b, c}, b → a: every threshold and the outcome law, as exact fractions."""
    tree = TokenTree([0, 0, 1, 1, 2, 0], [-1, 0, 0, 1, 1, 2])
    draft, p = Draft(tree, table(M_S, tree), SWOR), table(M_B, tree)
    verdicts = law(lambda coins: traverse(draft, p, coins))
    (longest,) = {v.trials for v in verdicts if len(v.trials) == 5 and not v.trials[-1].accepted}
    assert [trial.node for trial in longest] == [3, 4, 1, 5, 2]  # X3, X4, X1, X5, X2: then the root
    expected = [2 / 3, 7 / 11, 0, 2 / 9, 3 / 53]
    assert [trial.probability for trial in longest] == pytest.approx(expected, abs=1e-12)
    paths = law(lambda coins: traverse(draft, p, coins).path)
    fractions = {(1, 3): 2 / 3, (1, 4): 7 / 33, (2, 5): 8 / 297, (2,): 28 / 5247, (): 1400 / 15741}
    assert {path: x for path, x in paths.items() if x > 0} == pytest.approx(fractions, abs=1e-12)


@pytest.mark.parametrize("world", WORLDS)
def test_traversal_is_block_verification_on_chains_and_beats_token_level(world):
    """Theorem 3.4, by enumeration."""
    p, q = WORLDS[world]
    drafter = tree_drafter(q, chain(3), SWOR)
    blocks, trees, tokens = (expectation(accepted_law(drafter, v, p, depth=3), float) for v in (block, traverse, rrsw))
    assert trees == pytest.approx(blocks, abs=1e-12)
    assert blocks >= tokens - 1e-12
    by_length = [accepted_law(drafter, v, p, depth=3) for v in (block, traverse)]
    assert by_length[0] == pytest.approx({k: by_length[1].get(k, 0.0) for k in by_length[0]}, abs=1e-12)


@pytest.mark.parametrize("world", WORLDS)
def test_never_shorter_than_rejection_sampling_on_trees(world):
    p, q = WORLDS[world]
    for drawn, verifier in ((SWOR, rrsw), (IID, rrs)):
        drafter = tree_drafter(q, UNEVEN, drawn)
        ours, theirs = (expectation(accepted_law(drafter, v, p, depth=2), float) for v in (traverse, verifier))
        assert ours >= theirs - 1e-12


@pytest.mark.parametrize("world", WORLDS)
def test_no_gain_on_deterministic_trees(world):
    """One-hot q: traversal = one-hot rejection = sample and match, in law of the accepted path."""
    p, _ = WORLDS[world]
    tree = TokenTree.from_paths([(0, 1), (0, 2), (2,), (2, 1)])
    rows = table(p, tree)
    laws = [law(lambda coins, v=v: v(Draft(tree), rows, coins).path) for v in (traverse, one_hot, sample_and_match)]
    for other in laws[1:]:
        assert total_variation(laws[0], other) < 1e-12


@pytest.mark.parametrize("drawn", [IID, SWOR])
def test_lemma_a2_for_the_first_child(drawn):
    """Given the first child, the result runs through it with min(p/q, 1), whatever is drawn below and beside it."""
    for p, q in RANDOM:
        drafter = tree_drafter(q, UNEVEN, drawn)

        def first_and_fate(coins, p=p, drafter=drafter):
            draft, verdict = exact.verify_once(drafter, traverse, p, coins, depth=2)
            return draft.tree.token_list[1], 1 in verdict.path

        joint_law = law(first_and_fate)
        for x in range(3):
            through, past = (joint_law.get((x, fate), 0.0) for fate in (True, False))
            assert through / (through + past) == pytest.approx(min(1.0, float(p(())[x] / q(())[x])), abs=1e-12)


@pytest.mark.parametrize(("verifier", "drawn"), [(traverse, SWOR), (rrsw, SWOR), (traverse, IID), (rrs, IID)])
def test_accepted_given_a_tree_averages_to_the_whole_law(verifier, drawn):
    """E over trees of the exact conditional expectation = the exact expectation: nothing is lost by conditioning."""
    for p, q in RANDOM[:2]:
        drafter = tree_drafter(q, UNEVEN, drawn)

        def tree(coins, drafter=drafter):
            drafter.begin((0,), Warp(), {})
            drawn_tree = drafter.propose(coins, 2).tree
            return tuple(drawn_tree.token_list), tuple(drawn_tree.parent_list)

        total = 0.0
        for (tokens, parents), mass in law(tree).items():
            drawn_tree = TokenTree(list(tokens), list(parents))
            draft = Draft(drawn_tree, table(q, drawn_tree), drawn)
            total += mass * expectation(exact.accepted_given(draft, table(p, drawn_tree), verifier), len)
        whole = expectation(accepted_law(drafter, verifier, p, depth=2), float)
        assert total == pytest.approx(whole, abs=1e-12)


# ---- refusals and negative controls -------------------------------------------------------------------------


def test_block_refuses_trees():
    tree = TokenTree([0, 1, 2], [-1, 0, 0])
    with pytest.raises(ValueError, match="this draft branches, use traversal"):
        block(Draft(tree, table(M_S, tree), SWOR), table(M_B, tree), None)


def broken(monkeypatch, name, change):
    monkeypatch.setattr(bottom_up, name, change)
    return max(bias(tree_drafter(q, BINARY, SWOR), traverse, p, 2) for p, q in RANDOM)


def test_a_draft_law_that_keeps_rejected_tokens_is_caught():
    """SWOR siblings verified as if drawn IID, and the other way round."""

    def lie(drawn):
        return lambda draft, p, coins: traverse(replace(draft, drawn=drawn), p, coins)

    assert any(bias(tree_drafter(q, BINARY, SWOR), lie(IID), p, 2) > 0.02 for p, q in RANDOM)
    assert any(bias(tree_drafter(q, BINARY, IID), lie(SWOR), p, 2) > 0.02 for p, q in RANDOM)


def test_dividing_by_the_remaining_draft_mass_is_caught(monkeypatch):
    """p' = min(S / (1 − q(x)), 1), seen in a public file."""

    def wrong(draft, at, child, p):
        q = bottom_up.draft_law(draft, at.node, child, p) if at.q is None else at.q / at.q_mass
        before = at.survival
        law_ = p[at.node].double() if at.p is None else at.p / at.p_mass
        mass = float((before * law_ - q).clamp_min(0).sum())
        right(draft, at, child, p)
        at.survival = min(mass / max(1 - float(q[draft.tree.token_list[child]]), 1e-9), 1.0)
        if len(draft.tree.path(at.node)) == 0:
            at.survival = 1.0

    right = bottom_up._reject
    assert broken(monkeypatch, "_reject", wrong) > 0.005


def test_a_survival_that_is_not_updated_is_caught(monkeypatch):
    assert broken(monkeypatch, "odds", lambda mass, survival: survival) > 0.01


def test_the_residual_without_survival_is_caught(monkeypatch):
    """[p − q]_+ as top-down rules take it, in place of [s·p − q]_+."""

    def wrong(draft, at, child, p):
        law_ = p[at.node].double() if at.p is None else at.p / at.p_mass
        q = bottom_up.draft_law(draft, at.node, child, p) if at.q is None else at.q / at.q_mass
        right(draft, at, child, p)
        rest = (law_ - q).clamp_min(0)
        if rest.any():
            at.p, at.p_mass = rest, float(rest.sum())

    right = bottom_up._reject
    assert broken(monkeypatch, "_reject", wrong) > 0.01


def test_the_whole_engine_is_exact():
    """A random tiny transformer as target and another as draft, through cache, masks and decode: float64, V = 3."""
    sizes = {"vocab_size": 3, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    big, small = (llama(seed, **sizes).double() for seed in (0, 1))

    @torch.no_grad()
    def model(prefix):
        return big(torch.tensor([[1, 2, *prefix]])).logits[0, -1].softmax(-1)

    expected = joint(model, 3)
    for verifier, shape in ((traverse, UNEVEN), (block, chain(2))):
        found = engine_law(Target(big), TreeDrafter(CausalLMDraft(small), shape, SWOR), verifier, [1, 2], 3)
        assert total_variation(found, expected) < 1e-6  # probabilities are float32


# --- chances of nodes, by Lemma A.2


@pytest.mark.parametrize("drawn", [IID, SWOR])
@pytest.mark.parametrize("world", ["paper", "random 0", "zeros in both"])
def test_chances_average_to_the_expected_accepted_length(world, drawn):
    """Over all drawn trees; the other rule's chances do not (negative control), except where nothing branches off."""
    p, q = WORLDS[world]
    shapes = [(chain(3), 3), (UNEVEN, 2), (kary(3, 1), 1)]
    if world == "random 0" and drawn is SWOR:
        shapes.append((BINARY, 2))  # of which an enumeration takes a second
    for shape, depth in shapes:
        drafter = tree_drafter(q, shape, drawn)
        found = []
        for top_down, rule in ((False, traverse), (True, rrsw if drawn is SWOR else rrs)):
            found.append(expectation(law(partial(sum_of_chances, drafter, p, depth, top_down)), float) - 1)
            true = expectation(accepted_law(drafter, rule, p, depth=depth), float)
            assert found[-1] == pytest.approx(true, abs=1e-12), (shape, rule)
        if depth > 1 and world != "zeros in both":
            assert found[0] > found[1] + 1e-4


def sum_of_chances(drafter, p, depth, top_down, coins):
    def rule(draft, rows, coins):
        return sum(bottom_up.chances(draft, rows, token_level=top_down))

    return exact.verify_once(drafter, rule, p, coins, depth=depth)[1]


def test_chances_on_chosen_trees_are_the_targets_own():
    """A POINT tree: a node is accepted as often as the target itself would write its path."""
    p, _ = RANDOM[0]
    tree = TokenTree.from_paths([(0, 1), (0, 2), (2,), (2, 1)])
    rows = table(p, tree)
    for top_down in (True, False):
        found = bottom_up.chances(Draft(tree), rows, token_level=top_down)
        for node in range(len(tree)):
            own = 1.0
            for k, token in enumerate(tree.path_tokens(node)):
                own *= float(p(tree.path_tokens(node)[:k])[token])
            assert found[node] == pytest.approx(own, abs=1e-12)


def test_chances_of_auxiliary_nodes_are_zero():
    p, _ = RANDOM[0]
    tree = TokenTree.from_paths([(0,), (1,)])
    draft = Draft(tree, auxiliary=torch.tensor([False, False, True]))
    assert bottom_up.chances(draft, table(p, tree))[2] == 0
