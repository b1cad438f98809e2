"""Exact claims of two papers: theorems on small cases.

How many cases hold, what breaks those that do, and what mends those that do not.
"""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from specnb import verifiers
from specnb.exact import accepted_given, expectation, gallery, law, random_model, toy_draft
from specnb.growth import Eagle2, Salf, Static, kary
from specnb.growth import textbook as growth_textbook
from specnb.growth.textbook import salf
from specnb.sampling import draw
from specnb.tree import Drawn, TokenTree
from specnb.verifiers import textbook
from specnb.verifiers.multidraft import transport_bound
from study import paper
from study.claims import Checked, of_paper, salf_talf, toys, traversal

HOLD = {  # claim → cases that hold, cases in all
    "single_token_example": (32, 32),
    "order_of_trial": (14, 14),
    "worked_example": (9, 9),
    "lossless": (17, 17),
    "optimal_on_chains": (100, 100),
    "very_deep_chains": (52, 52),
    "self_similarity": (23, 23),
    "theorem_1": (20, 23),
    "theorem_2": (2, 10),
    "theorem_3": (11, 11),
    "calibration_error": (0, 2),
}


def cases_of(name):
    """A claim of one of the two papers, checked."""
    return getattr(traversal if hasattr(traversal, name) else salf_talf, name)()


@pytest.mark.parametrize("name", HOLD)
def test_so_many_cases_hold(name):
    cases = cases_of(name)
    assert (sum(cases), len(cases)) == HOLD[name]
    assert all(type(case) is bool for case in cases)


def test_every_claim_is_counted_here():
    """But for those about printed numbers, which are counted in test_arithmetic."""
    checked = [
        one.name for name in ("traversal", "salf_talf") for one in of_paper(name).values() if type(one) is Checked
    ]
    assert set(checked) - {"printed_gains", "words_and_tables", "beam_baselines"} == set(HOLD)


# ---- what breaks those that hold ------------------------------------------------------------------------------


PRINTED = paper.rows


def misprinted(*names):
    """Table 1 with one cell of another value; its row and column sums are wrong, too."""
    table = PRINTED(*names)
    wrong = (table["row"] == "output token b") & (table["column"] == "drafted token a")
    return table.assign(value=table["value"].mask(wrong, 0.2))


RIGHT_OPTIMUM = traversal.optimum


def without_the_target(p, q, shape):
    """The linear program over all rules, lossless or not: whole chains are accepted."""
    changes = ("A_eq=rows", "A_eq=rows[: len(trees)]"), ("b_eq=sums", "b_eq=sums[: len(trees)]")
    return gallery.spoiled(RIGHT_OPTIMUM, *changes)(p, q, shape)


def test_the_optimum_of_two_siblings_is_the_transport_bound():
    for p, q in gallery.worlds(4):
        pairs = law(lambda coins, q=q: frozenset(draw(q(()), 2, Drawn.SWOR, coins)))
        best = traversal.optimum(p, q, kary(2, 1), Drawn.SWOR)(len)
        assert best == pytest.approx(transport_bound(p(()), pairs), abs=1e-6)


BROKEN = [  # claim, where and what is replaced, by what
    ("single_token_example", paper, "rows", misprinted),
    ("single_token_example", textbook, "rrsw", textbook.rrs),
    ("order_of_trial", verifiers, "traversal", verifiers.rrsw),
    ("order_of_trial", textbook, "traversal", textbook.rrsw),
    ("order_of_trial", verifiers, "rrsw", verifiers.traversal),
    ("worked_example", textbook, "traversal", gallery.SURVIVALS),
    ("worked_example", textbook, "rrsw", textbook.traversal),
    ("lossless", verifiers, "traversal", gallery.SURVIVALS),
    ("lossless", gallery, "RECOVERED", textbook.rrsw),
    ("optimal_on_chains", textbook, "traversal", textbook.token_level),
    ("optimal_on_chains", traversal, "optimum", without_the_target),
    ("very_deep_chains", traversal, "TABLE_1", traversal.TABLE_1[:1] * 2),
    ("self_similarity", verifiers, "traversal", verifiers.rrsw),
    ("self_similarity", verifiers, "chances", partial(verifiers.chances, token_level=True)),
    ("self_similarity", textbook, "rrsw", textbook.rrs),
    ("theorem_3", growth_textbook, "salf", lambda draft, N, B, th: salf(draft, N, B, 0.6)),
    ("theorem_3", salf_talf, "Eagle2", lambda total, depth, k: Eagle2(total, depth, 4)),
]


@pytest.mark.parametrize(("name", "where", "what", "by"), BROKEN, ids=[f"{row[0]}-{row[2]}" for row in BROKEN])
def test_what_breaks_it(monkeypatch, name, where, what, by):
    monkeypatch.setattr(where, what, by)
    cases = cases_of(name)
    assert len(cases) == HOLD[name][1]
    assert not all(cases)


# ---- what mends those that do not hold ------------------------------------------------------------------------


def without_ties(*law):
    """Nearly equal laws, of which no two are the same."""
    return random_model(len(law), 0, sharpness=0.01)


def all_at_once(draft, total, beam):
    """The search of the proof, which expands all nodes in a round."""
    return SEARCH_IN_BATCHES(draft, total, total)


def in_its_own_choice(right, first):
    """The confidence that the common definition takes."""
    return np.full(10, first)


SEARCH_IN_BATCHES = salf_talf._held
MENDED = {  # claim → what is replaced in its paper, by what
    "theorem_2": ("_held", all_at_once),
    "calibration_error": ("_in_the_targets_token", in_its_own_choice),
}


@pytest.mark.parametrize("name", MENDED)
def test_what_mends_it(monkeypatch, name):
    monkeypatch.setattr(salf_talf, *MENDED[name])
    cases = cases_of(name)
    assert len(cases) == HOLD[name][1]
    assert all(cases)


def test_theorem_1_of_salf_holds_without_ties(monkeypatch):
    monkeypatch.setattr(toys, "fixed", without_ties)
    assert all(salf_talf.theorem_1())


# ---- what the docstrings say besides --------------------------------------------------------------------------


def test_with_ties_the_sum_stands_still_but_never_rises():
    _, sums = toy_draft(toys.fixed(*[1 / 4] * 4), Salf(60, 2, 0.0))
    assert sums[:5] == pytest.approx([1, 0.5, 0.5, 0.125, 0.125])
    assert all(after < before + 1e-9 for before, after in pairwise(sums))


def test_given_the_drawn_token_the_second_chain_is_not_longer():
    """X5 = a, as in Section 3.2; p and q without X1."""
    p = toys.fixed(0.3, 0.4, 0.3, after={(): (0, 1 / 3, 2 / 3)})
    q = toys.fixed(0.6, 0.3, 0.1, after={(): (0, 3 / 4, 1 / 4)})
    given = traversal._on(TokenTree.chain((0, 1, 0)), p, q)
    lengths = [expectation(accepted_given(*given, rule), len) for rule in (textbook.traversal, textbook.rrsw)]
    assert lengths == pytest.approx([4 / 9 + 7 / 9 * 3 / 53, 4 / 9 * 1.5])


@pytest.mark.parametrize(("survival", "chance"), [(1.0, 0.6), (0.7, 2579 / 6225)])
def test_what_a_fork_accepts(survival, chance):
    """One of two siblings below a node: at survival 0.7 less than 0.7 times what it is at survival one."""
    p = toys.fixed(0, 0.4, 0.1, 0.5, after={(): (survival, 1 - survival, 0, 0)})
    q = toys.fixed(0.8, 0, 0.1, 0.1, after={(): (1, 0, 0, 0)})
    law = traversal._accepted(textbook.traversal, Static(((0,), (0, 0), (0, 1))), p, q)
    assert sum(mass for text, mass in law.items() if len(text) == 2) == pytest.approx(chance)
