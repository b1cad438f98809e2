"""Explorers over recorded numbers: every control moves the picture, and the words say what it shows."""

import html
import io
from base64 import b64decode
from itertools import product

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pytest
from tiny import llama
from toy import grow

from specnb import exact, growth, show, verifiers
from specnb.decode import decode
from specnb.drafters import NgramDrafter, ProgressiveDrafter
from specnb.sampling import RandomCoins, Warp
from specnb.target import Target
from specnb.tree import Drawn

# ---- one explorer under all of them


def picture(red: int) -> bytes:
    plt.imsave(file := io.BytesIO(), np.full((2, 2, 3), red, np.uint8), format="png")
    return file.getvalue()


def shade(red: int, words: str) -> tuple[bytes, str]:
    if red > 200:
        raise ValueError("too red: 200 < 255")
    return picture(red), f"<b>{words}</b>"


def simple() -> show.explorers.Explorer:
    options = {"red": ipywidgets.IntSlider(10, 0, 255), "words": ipywidgets.Dropdown(options=["one", "two"])}
    return show.explorer(options, shade)


def test_an_explorer_redraws_when_a_control_changes():
    box = simple()
    controls = box.controls
    assert (controls.image.value, controls.readout.value) == (picture(10), "<b>one</b>")
    controls.red.value = 20
    assert (controls.image.value, controls.readout.value) == (picture(20), "<b>one</b>")
    controls.words.value = "two"
    assert (controls.image.value, controls.readout.value) == (picture(20), "<b>two</b>")
    assert box.names == ["red", "words"]
    assert controls.red.continuous_update is False  # a drag draws once
    assert controls.red.description == "red"


def test_a_refusal_is_said_and_leaves_the_picture():
    controls = simple().controls
    controls.red.value = 255
    assert controls.readout.value == html.escape("too red: 200 < 255")
    assert controls.image.value == picture(10)
    controls.red.value = 30
    assert (controls.image.value, controls.readout.value) == (picture(30), "<b>one</b>")


def test_a_picture_without_words_clears_the_readout():
    box = show.explorer({"red": ipywidgets.IntSlider(10, 0, 255)}, lambda red: shade(red, "")[0])
    box.controls.red.value = 255
    assert "too red" in box.controls.readout.value
    box.controls.red.value = 20
    assert box.controls.readout.value == ""


def test_other_errors_are_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        show.explorer({"red": ipywidgets.IntSlider()}, lambda red: 1 / red)


def test_the_readout_says_that_a_picture_is_being_computed():
    """While render works, over the words that stood there; afterwards only the new words do, also after an error."""
    seen = []

    def render(red: int) -> tuple[bytes, str]:
        if boxes:
            seen.append(boxes[0].controls.readout.value)
        if red == 99:
            raise ZeroDivisionError("broken")
        return picture(red), f"<i>red is {red}</i>"

    boxes = []
    boxes.append(show.explorer({"red": ipywidgets.IntSlider(10, 0, 255)}, render))
    controls = boxes[0].controls
    assert "computing" not in controls.readout.value
    controls.red.value = 20
    assert len(seen) == 1
    assert "computing …" in seen[0]
    assert "<i>red is 10</i>" in seen[0]
    assert controls.readout.value == "<i>red is 20</i>"
    with pytest.raises(ZeroDivisionError):
        controls.red.value = 99
    assert "computing …" in seen[1]
    assert "computing" not in controls.readout.value
    assert controls.readout.value.endswith("ZeroDivisionError: broken")


@pytest.mark.parametrize(("row", "rows"), [(1, [1, 1, 1]), (2, [2, 1]), (3, [3])])
def test_controls_stand_in_rows_over_words_and_picture(row, rows):
    controls = {name: ipywidgets.IntSlider() for name in "abc"}
    box = show.explorer(controls, lambda **values: b"", row=row)
    *lines, readout, image = box.children
    assert [len(line.children) for line in lines] == rows
    assert (readout, image) == (box.controls.readout, box.controls.image)


def test_a_saved_widget_leaves_its_picture_for_pages_without_a_kernel():
    assert b64decode(simple()._repr_mimebundle_()["image/png"]) == picture(10)


def test_an_answer_moves_nothing_and_says_a_refusal():
    box = simple()
    box.controls.words.value = "two"
    assert box.now() == {"red": 10, "words": "two"}
    assert box.answer(red=3, words="one") == (picture(3), "<b>one</b>")
    assert box.answer(red=255, words="one") == (picture(10), html.escape("too red: 200 < 255"))
    assert box.now() == {"red": 10, "words": "two"}


# ---- every widget, and some of its settings


def recorded(depth: int, first: int = 1):
    draft, _ = grow(growth.DynaTree(depth, 4, 0.009, 4000, first), seed=3)
    return draft.tree, draft.scores, [f"t{token}" for token in draft.tree.token_list]


def searched():
    """A recorded step on which a search with any of these settings can be replayed."""
    rule = growth.Together(tuple(growth.Salf(12, 3, stop, 4) for stop in (0.0, 0.6)), k=4)
    drafter = exact.toy_drafter(exact.random_model(6, 3), rule, Drawn.POINT)
    drafter.begin((0,), Warp(), {})
    draft = drafter.propose(RandomCoins(0), 99)
    return draft.tree, draft.scores, [f"<{token}>" for token in draft.tree.token_list]


def salf():
    box = show.growth_explorer(*searched(), growth.Salf, width=4)
    box.controls.beam.value, box.controls.total.value = 3, 12
    return box


def pieces(tokens):
    return [f"t{token}" for token in tokens]


def stepping():
    story = decode(Target(llama()), NgramDrafter(), verifiers.greedy, [1, 2, 3, 1, 2], max_new_tokens=12, eos=())
    return show.stepper(story, pieces)


def growing():
    return show.growing_explorer(show.record_frames(Target(llama(2)), ProgressiveDrafter(), [3, 1, 4], 4), pieces)


WIDGETS = {
    "growth": (lambda: show.growth_explorer(*recorded(8)), {"depth": [2, 8], "branch": [2, 3]}),
    "pct": (
        lambda: show.growth_explorer(*recorded(8, first=4), growth.Pct),
        {"k": [2], "depth": [4], "cost": [0.1, 0.5]},
    ),
    "salf": (salf, {"threshold": [0.0, 0.6]}),
    "law": (show.law_explorer, {"shape": ["chain of 2"], "p_a": [0.3, 0.9]}),
    "trial": (show.trial_explorer, {"draw": [5, 6], "trial": [0, 1]}),
    "price": (lambda: show.price_explorer(lambda w: (2 - w, 1 - w), [0.0, 0.5, 1.0]), {"weight": [0.5, 0.0]}),
    "acceptance": (show.acceptance_explorer, {"mix": [0.5], "gamma": [1, 2]}),
    "stepper": (stepping, {"step": [0, 2]}),
    "growing": (growing, {"step": [0, 3]}),
}


@pytest.mark.parametrize("name", WIDGETS)
def test_answers_are_what_the_sliders_show(name):
    make, axes = WIDGETS[name]
    box, seen = make(), set()
    answers = [
        (values, box.answer(**box.now() | dict(zip(axes, values, strict=True)))) for values in product(*axes.values())
    ]
    for values, (image, words) in answers:
        for control, value in zip(axes, values, strict=True):
            getattr(box.controls, control).value = value
        assert image.startswith(b"\x89PNG")
        assert (box.controls.image.value, box.controls.readout.value) == (image, words)
        seen.add(image)
    assert len(seen) == np.prod([len(values) for values in axes.values()])


# ---- each of them


def test_growth_explorer_follows_its_sliders():
    box = show.growth_explorer(*recorded(8))
    controls, seen = box.controls, [(bytes(box.controls.image.value), box.controls.readout.value)]
    assert seen[0][0].startswith(b"\x89PNG")
    for name, value in (("threshold", 0.3), ("depth", 2), ("branch", 2), ("budget", 3)):
        getattr(controls, name).value = value
        seen.append((bytes(controls.image.value), controls.readout.value))
    sizes = [int(text.split()[0]) for _, text in seen]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[1] > sizes[-1] == 3
    assert "node by node" in seen[0][1]


def test_growth_explorer_says_when_the_recording_is_too_small():
    tree, scores, labels = recorded(1)
    controls = show.growth_explorer(tree, scores, labels).controls
    assert "record with a wider, deeper or less pruned tree" in controls.readout.value


def test_pct_explorer_follows_its_sliders():
    """Dearer calls draft less and gain less; a leaf threshold above the price is refused in words."""
    controls = show.growth_explorer(*recorded(8, first=4), growth.Pct).controls
    controls.k.value, controls.depth.value = 2, 4
    seen = []
    for cost in (0.02, 0.1, 0.5):
        controls.cost.value = cost
        seen.append((bytes(controls.image.value), int(controls.readout.value.split()[0])))
    assert seen[0][1] > seen[1][1] > seen[2][1]
    assert "gains" in controls.readout.value
    controls.cost.value, controls.leaf.value = 0.02, 0.2
    assert "leaf 0.2 and cost 0.02" in controls.readout.value


def test_salf_explorer_follows_its_sliders():
    """The first draft call expands the root alone; a stop leaves calls out; filling costs nodes and no call."""
    controls = salf().controls
    controls.threshold.value, whole = 0.0, []
    for threshold, fill in ((0.0, False), (0.6, False), (0.6, True)):
        controls.threshold.value, controls.fill.value = threshold, fill
        words = controls.readout.value
        whole.append((int(words.split(" draft forwards")[0].split()[-1]), int(words.split()[0])))
        assert "S by forward: 1.00" in words
    (calls, nodes), (fewer, unfilled), (same, filled) = whole
    assert calls > fewer == same
    assert nodes == filled == 11 > unfilled


def test_an_error_in_a_callback_is_told_above_the_old_picture():
    """In JupyterLab it would only reach a log; at the first picture it leaves the cell."""

    def drawn(red: int) -> bytes:
        if red == 1:
            raise KeyError("no label for <17>")
        return picture(red)

    box = show.explorer({"red": ipywidgets.IntSlider(10, 0, 255)}, drawn)
    with pytest.raises(KeyError):
        box.controls.red.value = 1
    assert "The picture is still that of other settings" in box.controls.readout.value
    assert "KeyError" in box.controls.readout.value
    assert "&lt;17&gt;" in box.controls.readout.value
    assert bytes(box.controls.image.value) == picture(10)
    box.controls.red.value = 2
    assert box.controls.readout.value == ""
    with pytest.raises(KeyError):
        show.explorer({"red": ipywidgets.IntSlider(1, 0, 255)}, drawn)
