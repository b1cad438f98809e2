"""The gallery: every bug is caught, and each stands in for an implementation that is exact without it."""

import pytest

from specnb import broken
from specnb.exact import accepted_law, total_variation
from specnb.traversal import traversal
from specnb.verifiers import rrsw


@pytest.mark.parametrize("name", broken.BUGS)
def test_every_bug_is_caught(name):
    bug = broken.BUGS[name]
    found = max(broken.bias(bug.drafter, bug.verifier, p, q, bug.warp) for p, q in broken.worlds(2))
    assert found > 0.01
    if bug.printed:  # other worlds, the same kind of mistake
        assert bug.printed / 6 < found < 6 * bug.printed


@pytest.mark.parametrize(("plain", "whole"), [(broken.top_down, rrsw), (broken.bottom_up, traversal)])
def test_the_plain_implementations_are_whole(plain, whole):
    """Without the bug they are exact, and accept what the package's own verifiers accept."""
    for p, q in broken.worlds(2):
        assert broken.bias(broken.TREE, plain, p, q) < 1e-12
        ours, theirs = (accepted_law(broken.SMALL(q), verifier, p, depth=2) for verifier in (plain, whole))
        assert total_variation(ours, theirs) < 1e-12


def test_unbroken_coins_drafts_and_temperatures_are_exact():
    """What the other bugs change is harmless when it changes nothing."""
    p, q = broken.worlds(1)[0]
    unchanged = broken.drawn(broken.BINARY, broken.SWOR, broken.drawn_as(broken.SWOR))
    assert broken.bias(unchanged, rrsw, p, q) < 1e-12
    tempered = broken.BUGS["bonus drawn without the temperature"]
    assert broken.bias(tempered.drafter, rrsw, p, q, tempered.warp) < 1e-12
