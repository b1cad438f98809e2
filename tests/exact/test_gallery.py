"""The gallery: every bug is caught, and each stands in for an algorithm or a draft that is exact without it."""

import pytest

from specnb.exact import gallery
from specnb.verifiers import rrs, rrsw, textbook, traversal

WORLDS = gallery.worlds(4)


@pytest.mark.parametrize("name", gallery.BUGS)
def test_every_bug_is_caught(name):
    bug = gallery.BUGS[name]
    assert max(gallery.bias(bug.drafter, bug.verifier, p, q, bug.warp) for p, q in WORLDS) > 0.01


UNSPOILED = {
    "rrsw": (gallery.TREE, gallery.spoiled(textbook.rrsw)),
    "traversal": (gallery.TREE, gallery.spoiled(textbook.traversal)),
    "rrs": (gallery.drawn(gallery.BINARY, gallery.IID), gallery.spoiled(textbook.rrs)),
    "a draft that says how it was drawn": (
        gallery.drawn(gallery.BINARY, gallery.SWOR, gallery.drawn_as(gallery.SWOR)),
        rrsw,
    ),
    "the same, drawn independently": (
        gallery.drawn(gallery.BINARY, gallery.IID, gallery.drawn_as(gallery.IID)),
        rrs,
    ),
    "a whole tree": (gallery.SMALL, traversal),
    "one-hot on a chosen tree": (gallery.drawn(gallery.BINARY, gallery.POINT), gallery.one_hot),
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
    for change in (("nowhere to be found", ""), ("exact", "")):
        with pytest.raises(ValueError, match="once was expected"):
            gallery.spoiled(gallery.worlds, change)


def test_the_table_has_every_bug():
    table = gallery.table(1)
    assert list(table) == ["bug", "kind", "TV", "printed"]
    assert list(table["bug"]) == list(gallery.BUGS)
    assert table["TV"].between(0, 1).all()
