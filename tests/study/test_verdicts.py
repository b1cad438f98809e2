"""The picture of a paper's claims: every row's interval on its own scale, in its verdict's colour."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from study import verdicts

ROWS = [
    ("faster", "above", 1, 1.4, 1.2, 1.1, 1.3, 36, "reproduced"),
    ("slower", "below", 0, np.nan, -0.1, -0.3, 0.1, 36, "undecided"),
    ("no different", "within", 0.2, 0, 0.3, 0.25, 0.4, 36, "contradicted"),
    ("theorem", "", np.nan, np.nan, 3, np.nan, np.nan, 3, "same setting"),
    ("elsewhere", "", np.nan, np.nan, np.nan, np.nan, np.nan, np.nan, "not attempted"),
]
NAMES = ["says", "direction", "bound", "effect", "ours", "low", "high", "prompts", "verdict"]


TABLE = pd.DataFrame(ROWS, columns=NAMES).assign(where="Table 1", reason="another machine", stale="", planned="")


@pytest.fixture
def ax():
    yield verdicts.picture(TABLE)
    plt.close("all")


def test_intervals_lie_on_the_side_of_the_bound_they_lie_on(ax):
    spans = {line.get_ydata()[0]: line for line in ax.lines if line.get_linewidth() == 5}
    assert set(spans) == {0, 1, 2}
    low, high = spans[0].get_xdata()
    assert 0 < low < high < 1  # above 1
    low, high = spans[1].get_xdata()
    assert -1 < low < 0 < high < 1
    assert spans[2].get_xdata()[0] > 0.2 / 0.44 - 1e-9  # right of the margin, on the row's own scale
    for y, line in spans.items():
        assert to_hex(line.get_color()) == to_hex(verdicts.VERDICTS[ROWS[int(y)][-1]])


def test_words_say_what_the_numbers_are(ax):
    words = [text.get_text() for text in ax.texts]
    assert "1.20 [1.10, 1.30]   (paper 1.40)" in words
    assert "3 of 3 hold" in words
    assert "not attempted" in words
    assert "Table 1: faster" in words
    (legend,) = ax.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "reproduced: 1", "same setting: 1", "undecided: 1", "contradicted: 1", "not attempted: 1", "the paper",
        "the bound",
    ]  # fmt: skip


def test_a_claim_has_the_verdict_the_number_all_its_words_and_what_the_number_is():
    table = TABLE.replace("slower", "slower " + "by far " * 18).assign(statistic="ratio", value="speed")
    lines = verdicts.told(table.assign(reason="")).splitlines()
    assert " ".join(lines[0].split()) == "reproduced 1.20 [1.10, 1.30] faster (ratio of speed above 1; the paper 1.40)"
    assert max(map(len, lines)) <= 120
    assert " ".join(lines[1:3]).split()[4:] == ["slower", *18 * ["by", "far"], "(ratio", "of", "speed", "below", "0)"]
    assert lines[2].startswith(" " * 37)
    assert lines[4].split() == ["same", "setting", "3", "of", "3", "hold", "theorem"]
    assert lines[5].split() == ["not", "attempted", "elsewhere"]


def test_a_reason_stands_below_its_claim():
    table = TABLE.assign(statistic="ratio", value="speed", reason=["", *4 * ["another machine"]])
    lines = verdicts.told(table).splitlines()
    assert [i for i, line in enumerate(lines) if line.split() == ["·", "another", "machine"]] == [2, 4, 6, 8]


def test_what_is_stale_or_chosen_later_stands_below_its_claim():
    stale = ["made with other heads: edd", *4 * [""]]
    planned = ["before the data", "after the data", *3 * [""]]
    table = TABLE.assign(statistic="ratio", value="speed", reason="", stale=stale, planned=planned)
    lines = [" ".join(line.split()) for line in verdicts.told(table).splitlines()]
    assert lines[1] == "· Stale: the recording was made with other heads: edd."
    assert lines[3] == "· Its test was chosen after the data were there."
    assert len(lines) == 7


def test_the_picture_says_what_is_stale(ax):
    stale = ["made with other heads: edd", *4 * [""]]
    drawn = verdicts.picture(TABLE.assign(stale=stale))
    words = [text.get_text() for text in drawn.texts]
    assert "1.20 [1.10, 1.30]   (paper 1.40)   stale" in words
    assert sum("stale" in word for word in words) == 1
    assert not any("stale" in text.get_text() for text in ax.texts)
