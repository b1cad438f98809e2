"""The gallery: every bug is caught, and each stands in for an algorithm or a draft that is exact without it."""

import pytest

from specnb.exact import gallery, law
from specnb.verifiers import rrs, rrsw, textbook, traversal

WORLDS = gallery.worlds(4)


@pytest.mark.parametrize("name", gallery.BUGS)
def test_every_bug_is_caught(name):
    bug = gallery.BUGS[name]
    assert any(gallery.bias(bug.drafter, bug.verifier, p, q, bug.warp) > 0.01 for p, q in WORLDS)


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
