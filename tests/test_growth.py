"""Named static trees have the published shapes; bad shapes are refused."""

from collections import Counter

import pytest

from specnb import growth


@pytest.mark.parametrize(
    ("name", "levels"), [("eagle_25", [4, 8, 8, 3, 2]), ("medusa_63", [10, 28, 23, 2])], ids=["eagle", "medusa"]
)
def test_named_trees(name, levels):
    paths = growth.BY_NAME[name].paths
    assert len(set(paths)) == len(paths)
    counts = Counter(map(len, paths))
    assert [counts[depth] for depth in sorted(counts)] == levels


@pytest.mark.parametrize(
    ("paths", "message"),
    [(((1,),), r"\(1,\) has no elder sibling \(0,\)"), (((0,), (1, 0)), r"\(1, 0\) has no parent \(1,\)")],
)
def test_a_shape_with_holes_is_refused(paths, message):
    with pytest.raises(ValueError, match=message):
        growth.Static(paths)
