"""Exact claims of three papers, which are read as printed.

How many cases hold, what breaks those that do, and what mends those that do not.
"""

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

from specnb import growth, masks
from specnb.drafters import textbook
from specnb.exact import gallery
from specnb.models import Window
from specnb.target import Target
from specnb.verifiers import one_hot
from study.claims import Checked, dynatree, edd_pct, of_paper, ptd

HOLD = {  # claim → cases that hold, cases in all
    "algorithm_1": (5, 20),
    "algorithm_2": (0, 12),
    "law_kept": (70, 70),
    "some_path_agrees": (0, 40),
    "pruned_below_threshold": (0, 40),
    "mask_is_enough": (11, 19),
    "greedy_theorem": (36, 36),
    "streaming_is_a_baseline": (0, 6),
    "no_label_in_view": (56, 65),
    "break_even": (131, 150),
    "path_products_choose_better": (40, 40),
}


ARITHMETIC = {
    "tables_and_text", "improvements", "no_latency", "printed_speed_ups", "harnesses_agree",
    "alpha_is_the_accepted_share", "headlines", "dozen_iterations",
}  # fmt: skip


def cases_of(name):
    """A claim of one of the three papers, checked."""
    (paper,) = (paper for paper in (ptd, dynatree, edd_pct) if hasattr(paper, name))
    return getattr(paper, name)()


@pytest.mark.parametrize("name", HOLD)
def test_so_many_cases_hold(name):
    cases = cases_of(name)
    assert (sum(cases), len(cases)) == HOLD[name]
    assert all(type(case) is bool for case in cases)


def test_every_claim_is_counted_here():
    """But for those about printed numbers, which are counted in test_arithmetic."""
    papers = ("ptd", "dynatree", "edd_pct")
    checked = [one.name for name in papers for one in of_paper(name).values() if type(one) is Checked]
    assert set(checked) - ARITHMETIC == set(HOLD)


# ---- what breaks those that hold ------------------------------------------------------------------------------


def in_a_row(tree, length):
    """What nodes see if they stand in a row: all before them, other branches, too."""
    return torch.ones(len(tree), length + len(tree)).tril(length).bool()


def in_a_row_forward(tree, length, *, dtype, device):
    return masks.additive(in_a_row(tree, length), dtype)


class BreadthFirst(growth.Pct):
    """As many nodes as PCT has, but those that come first."""

    def select(self, tree, scores):
        return growth.kary(self.k, self.depth).select(tree, scores)

    def finish(self, tree, scores):
        return range(1, 1 + len(super().finish(tree, scores)))


def takes_first(T, y_hat):
    """A selection that commits the draft's first token without a look at the target."""
    return (*T[0], y_hat(T[0]))


BROKEN = [  # claim, what is replaced, by what
    ("law_kept", ptd, "one_hot", gallery.BUGS["last token by argmax (PTD's code)"].verifier),
    ("law_kept", masks, "tree_mask", in_a_row_forward),
    ("law_kept", masks, "visible", in_a_row),
    ("greedy_theorem", growth.textbook, "select_commit", takes_first),
    ("path_products_choose_better", growth, "Pct", BreadthFirst),
    ("path_products_choose_better", growth, "Pct", lambda cost, k, depth, leaf: growth.Eagle2(40, depth, k)),
]


@pytest.mark.parametrize(("name", "where", "what", "broken"), BROKEN)
def test_a_broken_part_is_noticed(monkeypatch, name, where, what, broken):
    monkeypatch.setattr(where, what, broken)
    cases = cases_of(name)
    assert len(cases) == HOLD[name][1]
    assert sum(cases) < len(cases)


def test_without_positions_ptd_keeps_its_sampling_only(monkeypatch):
    """Of its cases, 27 are of sampling, then come those of 11 and 10 nodes, and the text."""
    monkeypatch.setattr(ptd, "Target", gallery.Unpositioned)
    cases = ptd.law_kept()
    assert all(cases[:27])
    assert not all(cases[27:-1])
    assert not cases[-1]


# ---- what mends those that do not -----------------------------------------------------------------------------


class Pruned(growth.DynaTree):
    """DynaTree that removes leaves below the threshold, as section 3.3 has it."""

    def finish(self, tree, scores):
        return np.flatnonzero(scores >= self.threshold).tolist()


MENDED = [  # claim, what is replaced, by what, which cases hold then
    ("algorithm_1", ptd, "_merge_as_printed", textbook.merge, slice(10)),
    ("algorithm_2", gallery, "ptd_as_printed", one_hot, slice(None, None, 2)),
    ("some_path_agrees", growth, "DynaTree", partial(growth.DynaTree, first=3), slice(None)),
    ("pruned_below_threshold", growth, "DynaTree", Pruned, slice(None)),
    ("mask_is_enough", gallery, "Unpositioned", Target, slice(None)),
    ("streaming_is_a_baseline", dynatree, "Window", lambda start, recent: Window(start, 252), slice(None)),
]


@pytest.mark.parametrize(("name", "where", "what", "mended", "part"), MENDED)
def test_mended_it_holds(monkeypatch, name, where, what, mended, part):
    monkeypatch.setattr(where, what, mended)
    cases = cases_of(name)
    assert len(cases) == HOLD[name][1]
    assert all(cases[part])


@pytest.mark.parametrize("length", [2, 5, 10])
def test_the_mask_of_equation_3s_text_hides_all_labels(length):
    """Blocks 0 to j − 1: no token sees its own state."""
    rows = torch.arange(4 * length)
    assert not masks.dual_block(rows // length * length)[rows, rows].any()


def test_a_step_of_break_even_fails_between_the_price_and_the_price_times_speed():
    """Equation 5 errs on one side only, and so far as the loop is fast already."""
    fails = []
    for a, price in product((0.5, 0.6, 0.7, 0.8, 0.9), (1.1 / 29.8, 1.4 / 50.1, 0.1)):
        tokens = 1.0
        for j in range(1, 11):
            fails.append(price < a**j < price * tokens / (1 + (j - 1) * price))
            tokens += a**j
    assert fails == [not holds for holds in edd_pct.break_even()]


def test_line_20_accepts_nothing_of_the_candidates():
    """On a step by hand: 5 is what the target says everywhere."""
    candidates, draft_tree = {5: {5: {}}, 6: {}}, {7: {}}
    expanded = textbook.expand(draft_tree, {(7,): 5}, 4)
    assert ptd._eligible(candidates, lambda path: 5) == {(5,), (5, 5)}
    assert ptd._eligible(expanded, lambda path: 5) == {(7, 5)}
