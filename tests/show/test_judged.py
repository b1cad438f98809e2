"""Pictures of what a judge of samplers found."""

import pytest
import torch

from specnb import exact, show
from specnb.exact import conventions
from specnb.show import judged
from specnb.show.look import COLOURS


def no_residual(p, q, drafted):
    """A wrong sampler: after a rejection the next token comes from p itself."""
    if torch.rand(()) < p[0, drafted[0]] / q[0, drafted[0]]:
        return [*drafted, int(torch.multinomial(p[1], 1))]
    return [int(torch.multinomial(p[0], 1))]


@pytest.fixture
def found():
    return exact.judge(no_residual, conventions.PLAIN, shapes=exact.chains(1)).counterexample


def test_every_way_ends_in_what_it_commits(found):
    ax = show.draw_scripts(found.scripts, marked=found.tokens)
    words = [text.get_text().split() for text in ax.texts]
    shown = [two for two in words if len(two) == 2 and two[0] not in ("yes", "no")]
    committed = {"".join("abc"[token] for token in script.committed) for script in found.scripts}
    assert {text for text, _ in shown} == committed
    assert len(shown) == len(found.scripts)
    assert sum(float(probability) for _, probability in shown) == pytest.approx(1, abs=1e-3)


def test_the_ways_to_the_marked_text_are_coloured(found):
    ax = show.draw_scripts(found.scripts, marked=found.tokens)
    coloured = [line for line in ax.lines if line.get_color() == COLOURS["bonus"]]
    assert len(coloured) == sum(len(script.tosses) for script in found.leading)
    plain = show.draw_scripts(found.scripts)
    assert not [line for line in plain.lines if line.get_color() == COLOURS["bonus"]]


def test_tosses_are_named(found):
    ax = show.draw_scripts(found.scripts)
    said = [text.get_text() for text in ax.texts]
    first = found.world.q(())
    assert f"draft a {float(first[0]):.3f}".replace("0.", ".") in said
    assert any(words.startswith("yes ") for words in said)
    assert any(words.startswith("draw ") for words in said)


def test_a_fork_stands_in_the_middle_of_its_ends(found):
    ordered = sorted(found.scripts, key=judged._outcomes)
    heights = judged._heights(ordered)
    assert heights[()] == (len(ordered) - 1) / 2
    assert sorted(heights[judged._outcomes(script)] for script in ordered) == list(range(len(ordered)))


def test_bars_of_both_laws(found):
    ax = show.draw_laws(found)
    given, right = [[bar.get_height() for bar in bars] for bars in ax.containers]
    assert given == pytest.approx([pair[0] for _, pair in sorted(found.laws.items())])
    assert right == pytest.approx([pair[1] for _, pair in sorted(found.laws.items())])
    assert [text.get_text() for text in ax.texts] == ["most wrong"]


def test_the_price_follows_its_slider():
    asked = []

    def priced(weight):
        asked.append(weight)
        return 2 - weight, 1 - weight

    box = show.price_explorer(priced, [0.0, 0.5, 1.0])
    assert asked == [0.0, 0.5, 1.0]
    first = box.controls.image.value
    assert "1.000 draft tokens are accepted a step; the law is 0.0000 away" in box.controls.readout.value
    box.controls.weight.value = 0.5
    assert box.controls.image.value != first
    assert "1.500 draft tokens are accepted a step; the law is 0.5000 away" in box.controls.readout.value
    assert asked == [0.0, 0.5, 1.0]  # remembered
    assert box.walk == [{"weight": 0.0}, {"weight": 0.5}, {"weight": 1.0}]


@pytest.mark.parametrize("weights", [[0.5], [1.0, 0.5]])
def test_weights_that_make_no_curve(weights):
    with pytest.raises(ValueError, match="two or more, rising"):
        show.price_explorer(lambda weight: (1.0, 0.0), weights)
