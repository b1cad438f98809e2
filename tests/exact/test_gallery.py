"""The gallery: every bug is caught, and each stands in for an algorithm or a draft that is exact without it."""

import numpy as np
import pytest
import torch
from transformers.generation import utils

from specnb.exact import gallery, law, newer, output_law, randomness, toy_drafter
from specnb.exact.symbols import second_winner
from specnb.growth import chain
from specnb.tree import Draft, Drawn, TokenTree
from specnb.verifiers import rrs, rrsw, textbook, traversal

WORLDS = gallery.worlds(4)
EVERY = gallery.BUGS | gallery.MEANT


@pytest.mark.parametrize("name", EVERY)
def test_every_bug_is_caught(name):
    bug = EVERY[name]
    assert any(gallery.bias(bug.drafter, bug.verifier, p, q, bug.warp) > 0.01 for p, q in WORLDS)


@pytest.mark.parametrize("name", EVERY)
def test_what_was_meant_instead_is_exact(name):
    bug = EVERY[name]
    assert max(gallery.bias(*bug.right, p, q, bug.warp) for p, q in WORLDS) < 1e-12


UNSPOILED = {
    "rrsw": (gallery.TREE, gallery.spoiled(textbook.rrsw)),
    "traversal": (gallery.TREE, gallery.spoiled(textbook.traversal)),
    "rrs": (gallery.drawn(gallery.UNEVEN, gallery.IID), gallery.spoiled(textbook.rrs)),
    "a draft that says how it was drawn": (
        gallery.drawn(gallery.UNEVEN, gallery.SWOR, gallery.drawn_as(gallery.SWOR)),
        rrsw,
    ),
    "the same, drawn independently": (gallery.drawn(gallery.UNEVEN, gallery.IID, gallery.drawn_as(gallery.IID)), rrs),
    "a whole tree": (gallery.TREE, traversal),
    "one-hot on a chosen tree": (gallery.drawn(gallery.UNEVEN, gallery.POINT), gallery.one_hot),
}


@pytest.mark.parametrize("name", UNSPOILED)
def test_without_the_bug_nothing_is_wrong(name):
    """The sources that the bugs spoil, with no change, and the drafts that they spoil, left whole."""
    make, verifier = UNSPOILED[name]
    assert max(gallery.bias(make, verifier, p, q) for p, q in WORLDS) < 1e-12


def test_a_bonus_under_the_temperature_is_exact():
    tempered = gallery.BUGS["bonus drawn without the temperature"]
    assert max(gallery.bias(tempered.drafter, rrsw, p, q, tempered.warp) for p, q in WORLDS) < 1e-12


def test_spoiled_changes_what_it_is_told_to_and_nothing_else():
    assert gallery.spoiled(gallery.worlds, ("range(count)", "range(1)"))(4)[1:] == []
    assert len(gallery.worlds(4)) == 4
    for change in (("nowhere to be found", ""), ("model", "")):
        with pytest.raises(ValueError, match="once was expected"):
            gallery.spoiled(gallery.worlds, change)


def test_one_uniform_number_for_all_coins():
    """What is known of it narrows with each coin: in [.6, 1), then in [.6, .8)."""

    def three(coins):
        one = gallery.OneUniform(coins)
        return tuple(one.accept(probability) for probability in (0.6, 0.8, 0.5))

    expected = {
        (True, True, True): 0.5,
        (True, True, False): 0.1,
        (False, True, False): 0.2,
        (False, False, False): 0.2,
    }
    assert law(three) == pytest.approx(expected)


def test_the_table_is_the_worst_of_the_worlds(monkeypatch):
    few = {name: gallery.BUGS[name] for name in ("residual not renormalised", "recovered token drawn from p")}
    monkeypatch.setattr(gallery, "BUGS", few)
    table = gallery.table(2)
    assert list(table) == ["bug", "kind", "TV", "likelier", "longer"]
    assert table["longer"].iloc[0] < -0.01  # an unnormalised residual accepts less
    assert table["longer"].iloc[1] == pytest.approx(0)  # the last token is no matter of acceptance
    assert list(table["bug"]) == list(few)
    for bug, found in zip(few.values(), table["TV"], strict=True):
        assert found == max(gallery.bias(bug.drafter, bug.verifier, p, q) for p, q in gallery.worlds(2))


def test_text_of_a_broken_rule_may_look_better(monkeypatch):
    """The last token by argmax makes the text likelier, one uniform for all coins less likely; both are wrong."""
    few = ("last token by argmax (PTD's code)", "one uniform for all accept coins")
    monkeypatch.setattr(gallery, "BUGS", {name: gallery.BUGS[name] for name in few})
    better, worse = gallery.table(2)["likelier"]
    assert better > 0.05
    assert worse < -0.05


# ---- the draft's noise again


P = np.array([0.1, 0.4, 0.3, 0.2])
Q = np.array([0.5, 0.25, 0.05, 0.2])


def given_rows(p, q):
    """Models without memory."""
    return (lambda prefix: torch.from_numpy(p)), (lambda prefix: torch.from_numpy(q))


def frequencies(winners):
    return np.bincount(winners, minlength=len(P)) / len(winners)


def standard_errors(found, due, count):
    """How many standard errors lie between frequencies and probabilities; tokens of probability 0 may not occur."""
    assert not found[due == 0].any()
    possible = due > 0
    error = np.sqrt(due * (1 - due) / count)[possible]
    return np.abs(found - due)[possible] / np.maximum(error, 1e-12)


def test_second_winners_of_drawn_noise():
    """Of 200,000 draws of the noise: the second race's winners, given that token 0 was drafted and rejected."""
    noise = np.random.default_rng(0).exponential(size=(200_000, len(P)))
    residual = np.maximum(P - Q, 0) / np.maximum(P - Q, 0).sum()  # (0, .375, .625, 0)
    drafted = (noise / Q).argmin(1)
    of_token_0 = noise[drafted == 0]
    with np.errstate(divide="ignore"):
        found = frequencies((of_token_0 / residual).argmin(1))
    due = second_winner(Q, 0, residual)
    assert standard_errors(found, due, len(of_token_0)).max() < 5
    assert standard_errors(found, residual, len(of_token_0)).max() > 50  # fresh noise would have this law
    assert due[1] < residual[1] - 0.05  # of the two that remain, token 1 has the larger q


def test_the_noise_simulated_whole():
    """A draft of one token, its acceptance and the recovered token, by drawn numbers and by enumeration."""
    count = 200_000
    generator = np.random.default_rng(1)
    noise = generator.exponential(size=(count, len(P)))
    drafted = (noise / Q).argmin(1)
    is_accepted = generator.random(count) < (P / Q)[drafted]
    with np.errstate(divide="ignore"):
        recovered = (noise / np.maximum(P - Q, 0)).argmin(1)
    found = frequencies(np.where(is_accepted, drafted, recovered))

    p, q = given_rows(P, Q)
    texts = output_law(toy_drafter(q, chain(1), Drawn.SWOR), gallery.draft_noise_again, p, depth=1)
    due = np.array([sum(mass for text, mass in texts.items() if text[0] == token) for token in range(len(P))])
    assert standard_errors(found, due, count).max() < 5
    assert standard_errors(found, P, count).max() > 10


def test_fresh_noise_would_be_exact(monkeypatch):
    monkeypatch.setattr(gallery, "second_winner", lambda first, winner, second: second / second.sum())
    bug = gallery.BUGS["the draft's noise again (vLLM)"]
    assert max(gallery.bias(bug.drafter, bug.verifier, p, q) for p, q in WORLDS) < 1e-12


# ---- others seen in public code


def test_without_the_top_k_its_claim_is_true():
    bug = gallery.BUGS["q before the top-k (transformers)"]
    assert max(gallery.bias(bug.drafter, bug.verifier, p, q) for p, q in WORLDS) < 1e-12


def test_hsd_with_the_cap_is_exact(monkeypatch):
    monkeypatch.setattr(gallery, "SCAN_AS_CODED", newer.scan)
    bug = gallery.BUGS["whole draft without the cap (HSD's code)"]
    assert max(gallery.bias(bug.drafter, bug.verifier, p, q) for p, q in WORLDS) < 1e-12


def test_hsd_as_coded_by_hand():
    """Ratios 2 and 1/2. The draft (0, 1) is accepted always, not half of the time: 1/9 too much, which (0, 0) lacks.

    (1, 1) is accepted with 1/4, of its 4/9; else 0 is recovered at once, which the target continues.
    """
    p, q = given_rows(np.array([2 / 3, 1 / 3]), np.array([1 / 3, 2 / 3]))
    beginnings = []
    for rule in (gallery.hsd_as_coded, newer.hsd):
        texts = output_law(toy_drafter(q, chain(2), Drawn.SWOR), rule, p, depth=2)
        pairs = {}
        for text, mass in texts.items():
            pairs[text[:2]] = pairs.get(text[:2], 0.0) + mass
        beginnings.append(pairs)
    as_coded, as_printed = beginnings
    assert as_coded == pytest.approx({(0, 0): 3 / 9, (0, 1): 3 / 9, (1, 0): 2 / 9, (1, 1): 1 / 9})
    assert as_printed == pytest.approx({(0, 0): 4 / 9, (0, 1): 2 / 9, (1, 0): 2 / 9, (1, 1): 1 / 9})


# ---- made to change the law


def test_an_ensemble_writes_the_mixture():
    """Drafted tokens follow weight · p + (1 − weight) · q. With all weight on p nothing is wrong."""
    p, q = given_rows(P, Q)
    for weight in (0.9, 0.5):
        texts = output_law(toy_drafter(q, chain(1), Drawn.SWOR), gallery.ensemble(weight), p, depth=1)
        for token in range(len(P)):
            mass = sum(mass for text, mass in texts.items() if text[0] == token)
            assert mass == pytest.approx(weight * P[token] + (1 - weight) * Q[token], abs=1e-12)
    assert max(gallery.bias(gallery.TWO_IN_A_ROW, gallery.ensemble(1.0), p, q) for p, q in WORLDS) < 1e-12


@pytest.mark.skipif(
    "assistant_ensemble_weight" not in utils._speculative_sampling.__code__.co_varnames,
    reason="this transformers has no ensemble weight",
)
def test_the_ensemble_is_that_of_transformers():
    """On a given draft of two tokens: the laws of what is written, all random numbers enumerated."""
    p = torch.tensor([[0.1, 0.4, 0.5], [0.3, 0.3, 0.4], [0.2, 0.5, 0.3]], dtype=torch.float64)
    q = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [0.6, 0.2, 0.2]], dtype=torch.float64)
    draft = Draft(TokenTree([0, 0, 1], [-1, 0, 1]), q, Drawn.SWOR)

    def theirs(coins):
        with randomness(coins):
            tokens, _ = utils._speculative_sampling(
                torch.tensor([[0, 0, 1]]), q[None, :2].log(), 2, p[None].log(), assistant_ensemble_weight=0.7
            )
        return tuple(tokens[0].tolist())

    def ours(coins):
        verdict = gallery.ensemble(0.7)(draft, p, coins)
        accepted = [draft.tree.token_list[node] for node in verdict.path]
        return (*accepted, verdict.next_token)

    assert law(ours) == pytest.approx(law(theirs), abs=1e-12)


def test_typical_acceptance_tosses_no_coin():
    """The root's law has the threshold .09 (its entropy is small), node 1's has .3 / 4 (it is uniform over four)."""
    p = torch.tensor([[0.9, 0.1, 0.0, 0.0], [0.25] * 4, [0.91, 0.03, 0.03, 0.03]], dtype=torch.float64)
    below_1 = Draft(TokenTree([0, 1, 0], [-1, 0, 1]))
    paths = law(lambda coins: gallery.typical_acceptance(below_1, p, coins).path)
    assert paths == pytest.approx({(1, 2): 1.0})
    too_unlikely = torch.tensor([[0.92, 0.08, 0.0, 0.0]] * 3, dtype=torch.float64)
    paths = law(lambda coins: gallery.typical_acceptance(below_1, too_unlikely, coins).path)
    assert paths == pytest.approx({(): 1.0})


def test_typical_acceptance_takes_the_likeliest_of_the_longest():
    p = torch.tensor([[0.4, 0.3, 0.3]] * 4, dtype=torch.float64)
    siblings = Draft(TokenTree([0, 1, 0, 2], [-1, 0, 0, 0]))
    paths = law(lambda coins: gallery.typical_acceptance(siblings, p, coins).path)
    assert paths == pytest.approx({(2,): 1.0})
    longer = Draft(TokenTree([0, 1, 0, 2], [-1, 0, 0, 1]))
    paths = law(lambda coins: gallery.typical_acceptance(longer, p, coins).path)
    assert paths == pytest.approx({(1, 3): 1.0})


def test_a_table_of_the_meant_ones():
    table = gallery.table(2, gallery.MEANT)
    assert list(table["bug"]) == list(gallery.MEANT)
    assert set(table["kind"]) == {"meant"}
    assert (table["longer"] > 0.05).all()  # what they gain
    light, heavy = table["TV"].iloc[:2]
    assert light < heavy  # with less weight on p more is lost
