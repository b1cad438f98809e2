"""Text shown token by token reads as the text: spaces that tokenizers drop, characters spread over tokens."""

import html
import re
from types import SimpleNamespace

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import pytest
import torch
from fallback import byte_fallback, spelt
from matplotlib.text import Text

from specnb import show
from specnb.decode import Step
from specnb.models import Pair
from specnb.show import trees
from specnb.show.charts import so_far, step_html
from specnb.show.stepper import describe, render_step
from specnb.tree import Draft, TokenTree, Trial, Verdict

PAIR = Pair("as Llama 2's", None, None, byte_fallback())


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def seen(shown: str) -> str:
    """What a reader sees of HTML, without the bars between steps and the signs of line ends."""
    shown = re.sub(r'<span style="color:#999">\|</span>', "", shown)
    return html.unescape(re.sub("<[^>]*>", "", shown)).replace("⏎\n", "\n")


def step(*tokens: int) -> SimpleNamespace:
    """As much of a step as text needs: its tokens, all but the last accepted."""
    tree = TokenTree([0, *tokens[:-1]], range(-1, len(tokens) - 1))
    return SimpleNamespace(tokens=tokens, draft=Draft(tree), verdict=Verdict(tuple(range(1, len(tokens))), tokens[-1]))


# The steps end within 你 and within é, and where a word begins.
WHOLE = spelt("▁The", "▁cat", "▁", "你", "▁sat", "é", "▁on", ".")
STEPS = [step(*WHOLE[:4]), step(*WHOLE[4:8]), step(*WHOLE[8:])]


def test_text_with_its_origins_reads_as_the_text():
    assert [token for one in STEPS for token in one.tokens] == WHOLE
    shown = show.draw_text(STEPS, PAIR.pieces)
    assert seen(shown.split("</div>", 1)[1]) == PAIR.decode(WHOLE) == "The cat 你 saté on."
    assert shown.count(">|<") == 2


def test_a_step_alone_reads_as_it_does_behind_the_text():
    assert seen(step_html(STEPS[2], PAIR.pieces, WHOLE[:8])) == "é on."
    assert seen(step_html(step(*WHOLE[1:3]), PAIR.pieces)) == "cat "  # behind nothing


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_text_so_far_is_that_of_all_its_tokens(count):
    tokens = [token for one in STEPS[:count] for token in one.tokens]
    assert seen(so_far("", STEPS[:count], "", PAIR.pieces)) == PAIR.decode(tokens)


def test_the_cut_text_so_far_begins_as_in_the_text():
    words = step(*spelt("▁The", *["▁cat"] * 60))
    assert seen(so_far("", [words], "", PAIR.pieces)) == "…" + " cat" * 60
    within = step(*spelt("▁The", "é", *["▁cat"] * 59))  # the cut is between the two bytes of é
    assert seen(so_far("", [within], "", PAIR.pieces)) == "…é" + " cat" * 59


def test_a_character_that_marked_tokens_complete_is_theirs():
    marked = step_html(STEPS[1], PAIR.pieces, WHOLE[:4])
    shown = so_far("", STEPS[:1], marked, PAIR.pieces, STEPS[1].tokens)
    assert seen(shown) == PAIR.decode(WHOLE[:7]) + "�"  # of the next character nothing more is known
    assert PAIR.decode(WHOLE[:7]) == "The cat 你 sat"


# ---- trees -------------------------------------------------------------------------------------------------------

# The root begins a character that two siblings complete; a third child begins a word.
FIRST, HALF, OTHER_HALF = *"é".encode(), "è".encode()[1]
CAT, SAT = spelt("▁cat", "▁sat")
TREE = TokenTree([CAT, FIRST, SAT, HALF, OTHER_HALF, SAT], [-1, 0, 0, 1, 1, 2])


def test_nodes_are_labelled_along_their_paths():
    labels = show.tree_table(Draft(TREE), Verdict((1, 4), SAT), labels=PAIR.pieces)["label"].tolist()
    assert labels == ["cat", "�", "␣sat", "é", "è", "␣sat", "␣sat"]
    ticks = [tick.get_text() for tick in show.draw_mask(TREE, labels=PAIR.pieces).get_yticklabels()]
    assert ticks == labels[:6]


def test_without_their_paths_they_would_be_wrong():
    assert PAIR.pieces(TREE.token_list) != trees.label_nodes(TREE, PAIR.pieces)


def test_a_token_between_the_ends_of_a_character_has_a_label_too():
    chain = TokenTree(list("😀".encode()), range(-1, 3))
    *within, last = trees.label_nodes(chain, PAIR.pieces)
    assert last == "😀"
    assert all("�" in label for label in within)


# ---- the stepper -------------------------------------------------------------------------------------------------


def turn(index: int, root: int, path: list[int], rejected: int, following: int) -> Step:
    """A step that rejects a token, accepts a path and ends with a token; the next two are the target's likeliest."""
    tree = TokenTree([root, rejected, *path], [-1, 0, 0, *range(2, len(path) + 1)])
    p = torch.zeros(len(tree), len(PAIR.tokenizer))
    p[:, [CAT, SAT]] = torch.tensor([0.6, 0.4])
    nodes = range(2, len(path) + 2)
    trials = (Trial(1, 0.1, False), *(Trial(node, 0.9, True) for node in nodes))
    return Step(index, 1, Draft(tree), p, Verdict(tuple(nodes), following, trials), (*path, following), {})


@pytest.fixture
def generation() -> SimpleNamespace:
    """The text again, three tokens a step behind "▁The"; the second step begins within a character."""
    first = turn(0, WHOLE[0], WHOLE[1:3], SAT, WHOLE[3])
    second = turn(1, WHOLE[3], WHOLE[4:6], CAT, WHOLE[6])
    third = turn(2, WHOLE[6], WHOLE[7:9], CAT, WHOLE[9])
    return SimpleNamespace(steps=[first, second, third])


def test_the_steppers_line_reads_as_the_text(generation):
    tokens = [token for one in generation.steps for token in one.tokens]
    assert [WHOLE[0], *tokens] == WHOLE[: len(tokens) + 1]
    for index, one in enumerate(generation.steps):
        words = describe(generation, index, len(one.verdict.trials), PAIR.pieces)
        shown = seen(words[words.index("<div>") :])
        assert shown == PAIR.decode(tokens[: sum(len(some.tokens) for some in generation.steps[: index + 1])])


def drawn(generation, index: int, trial: int, monkeypatch) -> list[str]:
    """All texts in the stepper's picture."""
    monkeypatch.setitem(
        render_step.__globals__, "png", lambda figure: [text.get_text() for text in figure.findobj(Text)]
    )
    return render_step(generation.steps, index, trial, PAIR.pieces)


def test_the_steppers_picture_reads_as_the_text(generation, monkeypatch):
    texts = drawn(generation, 1, 2, monkeypatch)
    assert any(text.startswith("trial 2 of 3") for text in texts)
    assert {"▸ �", "␣cat", "␣sat"} <= set(texts)
    later = drawn(generation, 2, 1, monkeypatch)
    assert {"▸ ␣cat", "␣sat"} <= set(later)
    assert "after “␣sat”, before any rejection" in later
