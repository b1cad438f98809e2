"""Theorems on small cases: how many cases hold, what breaks those that do, and what mends those that do not."""

from functools import partial
from itertools import pairwise

import pytest

from specnb import verifiers
from specnb.exact import accepted_given, expectation, gallery, law, random_model, toy_draft
from specnb.growth import Eagle2, Salf, Static, kary
from specnb.growth.textbook import salf
from specnb.sampling import draw
from specnb.tree import Drawn, TokenTree
from specnb.verifiers import textbook
from specnb.verifiers.multidraft import transport_bound
from study import paper, theorems

HOLD = {  # claim → cases that hold, cases in all
    "traversal_table_1": (32, 32),
    "traversal_order": (14, 14),
    "traversal_worked_example": (9, 9),
    "traversal_is_lossless": (17, 17),
    "traversal_best_on_chains": (100, 100),
    "traversal_deep_chains": (52, 52),
    "traversal_self_similarity": (23, 23),
    "salf_theorem_1": (20, 23),
    "salf_theorem_2": (2, 10),
    "salf_theorem_3": (11, 11),
    "salf_error_of_a_calibrated_draft": (0, 2),
}


@pytest.mark.parametrize("name", HOLD)
def test_so_many_cases_hold(name):
    cases = getattr(theorems, name)()
    assert (sum(cases), len(cases)) == HOLD[name]
    assert all(type(case) is bool for case in cases)


def test_every_claim_is_counted_here():
    assert {name for name in vars(theorems) if name.startswith(("traversal_", "salf_"))} == set(HOLD)


# ---- what breaks those that hold ------------------------------------------------------------------------------


PRINTED = paper.rows


def misprinted(*names):
    """Table 1 with one cell of another value; its row and column sums are wrong, too."""
    table = PRINTED(*names)
    wrong = (table["row"] == "output token b") & (table["column"] == "drafted token a")
    return table.assign(value=table["value"].mask(wrong, 0.2))


RIGHT_OPTIMUM = theorems.optimum


def without_the_target(p, q, shape):
    """The linear program over all rules, lossless or not: whole chains are accepted."""
    changes = ("A_eq=rows", "A_eq=rows[: len(trees)]"), ("b_eq=sums", "b_eq=sums[: len(trees)]")
    return gallery.spoiled(RIGHT_OPTIMUM, *changes)(p, q, shape)


def test_the_optimum_of_two_siblings_is_the_transport_bound():
    for p, q in gallery.worlds(4):
        pairs = law(lambda coins, q=q: frozenset(draw(q(()), 2, Drawn.SWOR, coins)))
        best = theorems.optimum(p, q, kary(2, 1), Drawn.SWOR)(len)
        assert best == pytest.approx(transport_bound(p(()), pairs), abs=1e-6)


BROKEN = [  # claim, where and what is replaced, by what
    ("traversal_table_1", theorems.paper, "rows", misprinted),
    ("traversal_table_1", textbook, "rrsw", textbook.rrs),
    ("traversal_order", verifiers, "traversal", verifiers.rrsw),
    ("traversal_order", textbook, "traversal", textbook.rrsw),
    ("traversal_order", verifiers, "rrsw", verifiers.traversal),
    ("traversal_worked_example", textbook, "traversal", gallery.SURVIVALS),
    ("traversal_worked_example", textbook, "rrsw", textbook.traversal),
    ("traversal_is_lossless", verifiers, "traversal", gallery.SURVIVALS),
    ("traversal_is_lossless", gallery, "RECOVERED", textbook.rrsw),
    ("traversal_best_on_chains", textbook, "traversal", textbook.token_level),
    ("traversal_best_on_chains", theorems, "optimum", without_the_target),
    ("traversal_deep_chains", theorems, "TABLE_1", theorems.TABLE_1[:1] * 2),
    ("traversal_self_similarity", verifiers, "traversal", verifiers.rrsw),
    ("traversal_self_similarity", verifiers, "chances", partial(verifiers.chances, token_level=True)),
    ("traversal_self_similarity", textbook, "rrsw", textbook.rrs),
    ("salf_theorem_3", theorems, "salf", lambda draft, N, B, th: salf(draft, N, B, 0.6)),
    ("salf_theorem_3", theorems, "Eagle2", lambda total, depth, k: Eagle2(total, depth, 4)),
]


@pytest.mark.parametrize(("name", "where", "what", "by"), BROKEN, ids=[f"{row[0]}-{row[2]}" for row in BROKEN])
def test_what_breaks_it(monkeypatch, name, where, what, by):
    monkeypatch.setattr(where, what, by)
    cases = getattr(theorems, name)()
    assert len(cases) == HOLD[name][1]
    assert not all(cases)


# ---- what mends those that do not hold ------------------------------------------------------------------------


def without_ties(*law):
    """Nearly equal laws, of which no two are the same."""
    return random_model(len(law), 0, sharpness=0.01)


MENDED = {  # claim → a piece of its source, and what stands in its place
    "salf_theorem_2": ("_held(draft, 12, 3)", "_held(draft, 12, 12)"),
    "salf_error_of_a_calibrated_draft": ("np.where(right, first, 1 - first)", "np.full(10, first)"),
}


@pytest.mark.parametrize("name", MENDED)
def test_what_mends_it(name):
    cases = gallery.spoiled(getattr(theorems, name), MENDED[name])()
    assert len(cases) == HOLD[name][1]
    assert all(cases)


def test_theorem_1_of_salf_holds_without_ties(monkeypatch):
    monkeypatch.setattr(theorems, "_model", without_ties)
    assert all(theorems.salf_theorem_1())


# ---- what the docstrings say besides --------------------------------------------------------------------------


def test_with_ties_the_sum_stands_still_but_never_rises():
    _, sums = toy_draft(theorems._model(*[1 / 4] * 4), Salf(60, 2, 0.0))
    assert sums[:5] == pytest.approx([1, 0.5, 0.5, 0.125, 0.125])
    assert all(after < before + 1e-9 for before, after in pairwise(sums))


def test_given_the_drawn_token_the_second_chain_is_not_longer():
    """X5 = a, as in Section 3.2; p and q without X1."""
    p = theorems._model(0.3, 0.4, 0.3, after={(): (0, 1 / 3, 2 / 3)})
    q = theorems._model(0.6, 0.3, 0.1, after={(): (0, 3 / 4, 1 / 4)})
    given = theorems._on(TokenTree.chain((0, 1, 0)), p, q)
    lengths = [expectation(accepted_given(*given, rule), len) for rule in (textbook.traversal, textbook.rrsw)]
    assert lengths == pytest.approx([4 / 9 + 7 / 9 * 3 / 53, 4 / 9 * 1.5])


@pytest.mark.parametrize(("survival", "chance"), [(1.0, 0.6), (0.7, 2579 / 6225)])
def test_what_a_fork_accepts(survival, chance):
    """One of two siblings below a node: at survival 0.7 less than 0.7 times what it is at survival one."""
    p = theorems._model(0, 0.4, 0.1, 0.5, after={(): (survival, 1 - survival, 0, 0)})
    q = theorems._model(0.8, 0, 0.1, 0.1, after={(): (1, 0, 0, 0)})
    law = theorems._accepted(textbook.traversal, Static(((0,), (0, 0), (0, 1))), p, q)
    assert sum(mass for text, mass in law.items() if len(text) == 2) == pytest.approx(chance)
