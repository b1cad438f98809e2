"""What is read as printed: how many cases hold, what breaks those that do, and what mends those that do not."""

from functools import partial
from itertools import product

import pytest
import torch

from specnb import growth, masks
from specnb.drafters import textbook
from specnb.exact import gallery
from specnb.models import Window
from specnb.target import Target
from specnb.verifiers import one_hot
from study import as_printed

HOLD = {  # claim → cases that hold, cases in all
    "ptd_algorithm_1_as_printed": (5, 20),
    "ptd_algorithm_2_as_printed": (0, 12),
    "ptd_law_is_kept": (70, 70),
    "dynatree_first_token": (0, 40),
    "dynatree_pruned_leaves": (0, 40),
    "dynatree_mask_alone": (11, 19),
    "dynatree_writes_greedy_text": (36, 36),
    "dynatree_window_drops": (0, 6),
    "edd_equation_3_hides_labels": (56, 65),
    "edd_break_even": (131, 150),
    "edd_path_products_choose_better": (40, 40),
}


@pytest.mark.parametrize("name", HOLD)
def test_so_many_cases_hold(name):
    cases = getattr(as_printed, name)()
    assert (sum(cases), len(cases)) == HOLD[name]
    assert all(type(case) is bool for case in cases)


def test_every_claim_is_counted_here():
    names = {name for name in vars(as_printed) if name.split("_")[0] in ("ptd", "dynatree", "edd")}
    assert names == set(HOLD)


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
    ("ptd_law_is_kept", as_printed, "one_hot", gallery.BUGS["last token by argmax (PTD's code)"].verifier),
    ("ptd_law_is_kept", masks, "tree_mask", in_a_row_forward),
    ("ptd_law_is_kept", masks, "visible", in_a_row),
    ("dynatree_writes_greedy_text", growth.textbook, "select_commit", takes_first),
    ("edd_path_products_choose_better", growth, "Pct", BreadthFirst),
    ("edd_path_products_choose_better", growth, "Pct", lambda cost, k, depth, leaf: growth.Eagle2(40, depth, k)),
]


@pytest.mark.parametrize(("name", "where", "what", "broken"), BROKEN)
def test_a_broken_part_is_noticed(monkeypatch, name, where, what, broken):
    monkeypatch.setattr(where, what, broken)
    cases = getattr(as_printed, name)()
    assert len(cases) == HOLD[name][1]
    assert sum(cases) < len(cases)


def test_without_positions_ptd_keeps_its_sampling_only(monkeypatch):
    """Of its cases, 27 are of sampling, then come those of 11 and 10 nodes, and the text."""
    monkeypatch.setattr(as_printed, "Target", gallery.Unpositioned)
    cases = as_printed.ptd_law_is_kept()
    assert all(cases[:27])
    assert not all(cases[27:-1])
    assert not cases[-1]


# ---- what mends those that do not -----------------------------------------------------------------------------


class Pruned(growth.DynaTree):
    """DynaTree that removes leaves below the threshold, as section 3.3 has it."""

    def finish(self, tree, scores):
        return (scores >= self.threshold).nonzero().flatten().tolist()


MENDED = [  # claim, what is replaced, by what, which cases hold then
    ("ptd_algorithm_1_as_printed", as_printed, "_merge_as_printed", textbook.merge, slice(10)),
    ("ptd_algorithm_2_as_printed", gallery, "ptd_as_printed", one_hot, slice(None, None, 2)),
    ("dynatree_first_token", growth, "DynaTree", partial(growth.DynaTree, first=3), slice(None)),
    ("dynatree_pruned_leaves", growth, "DynaTree", Pruned, slice(None)),
    ("dynatree_mask_alone", gallery, "Unpositioned", Target, slice(None)),
    ("dynatree_window_drops", as_printed, "Window", lambda start, recent: Window(start, 252), slice(None)),
]


@pytest.mark.parametrize(("name", "where", "what", "mended", "part"), MENDED)
def test_mended_it_holds(monkeypatch, name, where, what, mended, part):
    monkeypatch.setattr(where, what, mended)
    cases = getattr(as_printed, name)()
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
    assert fails == [not holds for holds in as_printed.edd_break_even()]


def test_line_20_accepts_nothing_of_the_candidates():
    """On a step by hand: 5 is what the target says everywhere."""
    candidates, draft_tree = {5: {5: {}}, 6: {}}, {7: {}}
    expanded = textbook.expand(draft_tree, {(7,): 5}, 4)
    assert as_printed._eligible(candidates, lambda path: 5) == {(5,), (5, 5)}
    assert as_printed._eligible(expanded, lambda path: 5) == {(7, 5)}
