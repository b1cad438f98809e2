"""Figures: the tables they are drawn from are exact; the drawing is checked for what can be counted."""

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from specnb import growth, show
from specnb.decode import Step
from specnb.models import files
from specnb.show import look, trees
from specnb.tree import Draft, Drawn, TokenTree, Trial, Verdict

# root 0 ─┬─ 1 ─┬─ 3
#         │     └─ 4
#         └─ 2
TREE = TokenTree([7, 1, 2, 3, 4], [-1, 0, 0, 1, 1])
TOP_DOWN = Verdict((1,), 5, (Trial(1, 0.9, True), Trial(3, 0.2, False), Trial(4, 0.1, False)))
BOTTOM_UP = Verdict((1, 4), 5, (Trial(3, 0.2, False), Trial(4, 0.6, True)))


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def draft(tree=TREE, vocabulary=9) -> Draft:
    generator = torch.Generator().manual_seed(0)
    q = torch.rand(len(tree), vocabulary, generator=generator).softmax(-1)
    return Draft(tree, q, Drawn.SWOR)


def shape(paths) -> TokenTree:
    return TokenTree.from_paths(paths)


def states(verdict, upto=None, **options) -> list[str]:
    return show.tree_table(draft(), verdict, upto=upto, **options)["state"].tolist()


def step(verdict=TOP_DOWN, tokens=(1, 5), index=0, tree=TREE) -> Step:
    seconds = {"draft": 0.001, "target": 0.02, "verify": 0.002, "commit": 0.001}
    return Step(index, 4, draft(tree), None, verdict, tokens, seconds)


# ---- tables ---------------------------------------------------------------------------------------------


def test_layout_puts_leaves_in_drawing_order_and_the_next_token_last():
    table = show.tree_table(draft(), TOP_DOWN)
    assert table["x"].tolist() == [2.0, 1.0, 3.0, 0.0, 1.0, 2.0]
    assert table["y"].tolist() == [0.0, -1.0, -1.0, -2.0, -2.0, -2.0]
    assert table["depth"].tolist() == [0, 1, 1, 2, 2, 2]
    assert table.iloc[-1][["node", "parent", "token", "label"]].tolist() == [5, 1, 5, "5"]


def test_columns_and_a_draft_without_verdict():
    table = show.tree_table(Draft(TREE))
    names = ["node", "parent", "depth", "token", "label", "state", "x", "y", "p", "q", "trial_probability"]
    assert table.columns.tolist() == names
    assert table["state"].tolist() == ["root"] + ["unvisited"] * 4
    assert table[["p", "q", "trial_probability"]].isna().all().all()


def test_states_follow_the_trials_one_by_one():
    assert states(TOP_DOWN, 0) == ["root"] + ["unvisited"] * 4
    assert states(TOP_DOWN, 1) == ["root", "accepted", "unvisited", "unvisited", "unvisited"]
    assert states(TOP_DOWN, 2) == ["root", "accepted", "unvisited", "rejected", "unvisited"]
    whole = ["root", "accepted", "unvisited", "rejected", "rejected", "recovered"]
    assert states(TOP_DOWN, 3) == states(TOP_DOWN) == whole


def test_a_leaf_accepted_bottom_up_brings_its_ancestors():
    assert states(BOTTOM_UP, 1) == ["root", "unvisited", "unvisited", "rejected", "unvisited"]
    assert states(BOTTOM_UP) == ["root", "accepted", "unvisited", "rejected", "accepted", "bonus"]
    more = Verdict((1, 4), 5, (*BOTTOM_UP.trials, Trial(2, 0.5, False)))
    assert states(more, 2) == ["root", "accepted", "unvisited", "rejected", "accepted"]


def test_auxiliary_children_are_no_candidates():
    auxiliary = torch.tensor([False, False, False, True, True])
    table = show.tree_table(Draft(TREE, auxiliary=auxiliary), Verdict((1,), 5, (Trial(1, 1.0, True),)))
    assert table["state"].tolist() == ["root", "accepted", "unvisited", "auxiliary", "auxiliary", "bonus"]


def test_a_step_without_draft_commits_a_bonus():
    table = show.tree_table(Draft(TokenTree([7], [-1])), Verdict((), 5), upto=0)
    assert table["state"].tolist() == ["root", "bonus"]


def test_positions_do_not_depend_on_upto():
    whole = show.tree_table(draft(), TOP_DOWN)
    for upto in range(3):
        part = show.tree_table(draft(), TOP_DOWN, upto=upto)
        assert part[["x", "y"]].equals(whole[["x", "y"]].iloc[:5])
        assert part.attrs["size"] == whole.attrs["size"] == (4.0, 3)


def test_probabilities_are_those_of_the_token_given_its_parent():
    d, p = draft(), torch.rand(5, 9).softmax(-1)
    table = show.tree_table(d, TOP_DOWN, p=p)
    assert np.isnan(table["p"][0])
    assert np.isnan(table["q"][5])
    np.testing.assert_allclose(table["p"][1:], p[[0, 0, 1, 1, 1], [1, 2, 3, 4, 5]])
    np.testing.assert_allclose(table["q"][1:5], d.q[[0, 0, 1, 1], [1, 2, 3, 4]])
    assert table["trial_probability"].tolist()[3:5] == [0.2, 0.1]
    assert np.isnan(table["trial_probability"][2])


def test_reduced_vocabulary():
    q = torch.tensor([[0.5, 0.3, 0.2]] * 3)
    reduced = Draft(TokenTree([7, 40, 10], [-1, 0, 0]), q, Drawn.SWOR, ids=torch.tensor([10, 20, 40]))
    np.testing.assert_allclose(show.tree_table(reduced)["q"][1:], [0.2, 0.5])


def test_labels_from_a_function_or_a_list():
    assert show.tree_table(draft(), TOP_DOWN, labels=lambda ts: [f"<{t}>" for t in ts])["label"][5] == "<5>"
    assert show.tree_table(draft(), TOP_DOWN, labels=list("abcde"))["label"].tolist() == [*"abcde", "5"]
    assert show.tree_table(draft(), TOP_DOWN, labels=list("abcdef"), upto=1)["label"].tolist() == list("abcde")
    with pytest.raises(ValueError, match="each of 5 nodes, got 3"):
        show.tree_table(draft(), TOP_DOWN, labels=list("abc"))


@pytest.mark.parametrize("upto", [-1, 4])
def test_upto_out_of_range(upto):
    with pytest.raises(ValueError, match=r"0\.\.3"):
        show.tree_table(draft(), TOP_DOWN, upto=upto)


# ---- drawings -------------------------------------------------------------------------------------------

SHAPES = {
    "1": TokenTree([0], [-1]),
    "3": TREE.keep([1, 2]),
    "7": TokenTree.from_paths(growth.kary(2, 2).paths),
    "26": shape(growth.EAGLE_25.paths),
    "64": shape(growth.MEDUSA_63.paths),
    "chain of 64": TokenTree.chain(range(64)),
}
AWKWARD = ["$x$", "日本", "␣photosynthesis", "a\tb", "<|im_end|>", "⏎", "_{", "%", ""]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("note", ["", ".25"])
def test_every_label_is_drawn_inside_the_axes_and_large_enough(name, note):
    tree = SHAPES[name]
    labels = [AWKWARD[i % len(AWKWARD)] for i in range(len(tree))]
    p = torch.full((len(tree), 64), 1 / 64)
    table = show.tree_table(Draft(tree), p=p, labels=labels)
    with plt.rc_context(look.STYLE):
        ax = show.draw_tree(table, notes=[note] * len(table), highlight=0)
        show.legend(ax)
        ax.figure.canvas.draw()
    assert isinstance(ax, Axes)
    assert len(ax.texts) == len(tree)
    frame = ax.get_window_extent().padded(12)
    for text in ax.texts:
        box = text.get_window_extent()
        assert text.get_fontsize() >= 7
        assert frame.contains(box.x0, box.y0), text.get_text()
        assert frame.contains(box.x1, box.y1), text.get_text()


@pytest.mark.parametrize("name", ["7", "26", "64", "chain of 64"])
def test_labels_do_not_overlap(name):
    tree = SHAPES[name]
    labels = ["␣photosynthesis"] * len(tree)
    with plt.rc_context(look.STYLE):
        ax = show.draw_tree(show.tree_table(Draft(tree), labels=labels))
        boxes = [text.get_window_extent() for text in ax.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_missing_glyphs_are_replaced_not_warned_about(recwarn):
    assert trees.drawable("a日$\n␣") == "a▯$▯␣"
    look.png(show.draw_tree(show.tree_table(Draft(TREE), labels=AWKWARD[:5])).figure)
    assert not [w for w in recwarn if "Glyph" in str(w.message)]


@pytest.mark.parametrize("children", [2, 3, 4, 6])
def test_notes_are_written_in_full_however_little_room_there_is(children):
    parents = [-1, *[0] * children, *np.repeat(range(1, children + 1), children)]
    tree = TokenTree([0] * len(parents), parents)
    labels, notes = ["␣a rather long word"] * len(tree), ["", *(f".{i:02d}" for i in range(1, len(tree)))]
    ax = plt.figure(figsize=(4, 3)).add_subplot()
    show.draw_tree(show.tree_table(Draft(tree), labels=labels), ax=ax, notes=notes)
    written = [text.get_text() for text in ax.texts]
    assert all(text.endswith(note) for text, note in zip(written, notes, strict=True))
    assert max(map(len, written)) < len(labels[0]) + 4  # the labels gave way


def test_a_crowded_mask_names_fewer_rows_rather_than_smaller_ones():
    ax = plt.figure(figsize=(4, 4)).add_subplot()
    show.draw_mask(TokenTree.chain(range(60)), 10, ax=ax)
    sizes = {label.get_fontsize() for label in ax.get_yticklabels()}
    assert min(sizes) >= 8
    assert 10 < len(ax.get_yticks()) < 60


def test_states_differ_without_colour():
    seen = {(look.marker, look.outline, look.sign is not None, look.scale) for look in show.LOOKS.values()}
    assert len(seen) == len(show.LOOKS)
    assert len({show.LOOKS[state].underline for state in ("accepted", "recovered", "bonus")}) == 3


def test_states_differ_for_dichromats():
    def seen(colour, matrix):  # Viénot, Brettel, Mollon 1999, in linear light
        linear = np.power(to_rgb(colour), 2.2)
        return np.power(np.clip(matrix @ linear, 0, 1), 1 / 2.2)

    protan = np.array([[0.1124, 0.8876, 0], [0.1124, 0.8876, 0], [0.004, -0.004, 1]])
    deutan = np.array([[0.2928, 0.7072, 0], [0.2928, 0.7072, 0], [-0.0223, 0.0223, 1]])
    chosen = [show.COLOURS[s] for s in ("accepted", "rejected", "recovered", "bonus")]
    for matrix in (protan, deutan):
        points = [seen(colour, matrix) for colour in chosen]
        gaps = [np.linalg.norm(a - b) for i, a in enumerate(points) for b in points[:i]]
        assert min(gaps) > 0.1


def test_mask_marks_exactly_what_is_visible():
    ax = show.draw_mask(TREE, 2, labels=list("abcde"))
    cells, dots = ax.collections
    assert (cells.get_array().reshape(5, 7) > 0).sum() == len(dots.get_offsets())
    marks = {tuple(map(int, point)) for point in dots.get_offsets()}  # (column, row)
    ancestors = {(a + 2, i) for i in range(5) for a in (0, *TREE.path(i))}
    assert marks == ancestors | {(column, row) for column in (0, 1) for row in range(5)}
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0", "1", *"abcde"]
    assert [t.get_text() for t in ax.get_yticklabels()] == list("abcde")


def test_mask_condenses_a_long_prefix():
    labels = [t.get_text() for t in show.draw_mask(TREE, 500).get_xticklabels()]
    assert labels == ["0", "1", "2", "…", "498", "499", "7", "1", "2", "3", "4"]


def test_text_is_escaped_marked_and_cut_where_the_step_was():
    texts = {1: "<b>", 4: "␣&", 5: '"⏎'}
    pieces = lambda tokens: [texts[t] for t in tokens]  # noqa: E731
    shown = show.draw_text([step(BOTTOM_UP, (1, 4, 5)), step(TOP_DOWN, (1, 5)), step(TOP_DOWN, (1,))], pieces)
    body = shown.split("</div>")[1]
    assert "<b>" not in shown
    assert body.count("&lt;b&gt;") == 3
    assert " &amp;" in body
    assert "&quot;⏎\n" in body
    origins = [part.split('"')[0] for part in body.split('title="')[1:]]
    assert origins == ["accepted", "accepted", "bonus", "accepted", "recovered", "accepted"]
    assert body.count(">|<") == 2


# ---- files ----------------------------------------------------------------------------------------------


def test_png_closes_the_figure_and_style_is_readable():
    before = plt.get_fignums()
    for _ in range(3):
        data = look.png(show.draw_tree(show.tree_table(draft(), TOP_DOWN)).figure)
    assert data.startswith(b"\x89PNG")
    assert plt.get_fignums() == before
    assert look.STYLE["font.size"] >= 12
    with plt.rc_context():
        show.use_style()
        assert plt.rcParams["figure.facecolor"] == "white"


def test_save_is_identical_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FIGURES", tmp_path / "figures")
    written = []
    for _ in range(2):
        table = show.tree_table(draft(), TOP_DOWN)
        path = show.save(show.draw_tree(table), "tree", table)
        written.append({file.name: file.read_bytes() for file in path.parent.iterdir()})
    assert written[0] == written[1]
    assert sorted(written[0]) == ["tree.csv", "tree.png"]
    assert b"Software" not in written[0]["tree.png"]
    assert pd.read_csv(tmp_path / "figures" / "tree.csv")["state"].tolist() == table["state"].tolist()
    with pytest.raises(ValueError, match="plain file name"):
        show.save(plt.figure(), "a/b", table)


def test_a_failed_save_leaves_the_old_files(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FIGURES", tmp_path)
    data = pd.Series([1, 2], index=["a", "b"], name="n").rename_axis("key")
    show.save(plt.figure(), "f", data)
    old = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert (tmp_path / "f.csv").read_text() == "key,n\na,1\nb,2\n"
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        show.save(plt.figure(), "f", data)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == old


def test_trends_show_the_table():
    rows = [
        (c, k, g, g - 1, g + 2) for c, k, g in (("x", "a", 1.0), ("x", "b", 2.0), ("y", "a", 3.0), ("y", "b", -1.0))
    ]
    table = pd.DataFrame(rows, columns=["cell", "kind", "gain", "low", "high"])
    ax = show.trend(table.assign(depth=[2, 2, 1, 1]), "depth", "gain", "kind")
    values = {line.get_color(): list(line.get_ydata()) for line in ax.lines if len(line.get_ydata())}
    assert values == {look.KINDS[0].colour: [3, 1], look.KINDS[1].colour: [-1, 2]}
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]
    assert len(ax.collections) == 2  # the bands
    assert len(show.trend(table[["cell", "kind", "gain"]], "cell", "gain", "kind").collections) == 0
    many = pd.DataFrame({"x": range(6), "y": range(6), "k": list("abcdef")})
    for draw in (show.trend, show.ranked):
        with pytest.raises(ValueError, match="tells 5 kinds apart, got 6"):
            draw(many, "x", "y", "k")


def test_every_row_is_drawn_and_none_is_averaged_with_another():
    """Also rows with the same label, or of the same kind at the same place."""
    table = pd.DataFrame({"name": ["a", "a", "b"], "kind": ["x", "y", "x"], "value": [1.0, 3.0, 2.0], "at": [1, 1, 1]})
    ax = show.ranked(table, "value", "name", "kind")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "a"]
    bars = {round(bar.get_y() + bar.get_height() / 2): bar.get_width() for bar in ax.patches}
    assert bars == {0: 3.0, 1: 2.0, 2: 1.0}
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["y", "x"]
    (line,) = (line for line in show.trend(table, "at", "value", "kind").lines if len(line.get_ydata()) == 2)
    assert sorted(line.get_ydata()) == [1.0, 2.0]


def test_kinds_may_be_numbers_and_are_told_in_the_order_of_their_first_mention():
    table = pd.DataFrame({"name": list("abc"), "B": [4, 2, 4], "value": [3.0, 2.0, 1.0]})
    ax = show.ranked(table, "value", "name", "B")
    hatches = [[bar.get_hatch() for bar in bars] for bars in ax.containers]
    assert hatches == [[look.KINDS[0].hatch] * 2, [look.KINDS[1].hatch]]
    for legend in (ax.get_legend(), show.trend(table, "value", "value", "B").get_legend()):
        assert [text.get_text() for text in legend.get_texts()] == ["4", "2"]


def test_charts_leave_the_readers_style():
    style = dict(plt.rcParams)
    table = pd.DataFrame({"name": ["a", "b"], "value": [1.0, 3.0]})
    show.ranked(table, "value", "name")
    show.trend(table, "value", "value", "name")
    show.draw_mask(TREE, 3)
    assert dict(plt.rcParams) == style


def test_bars_of_one_kind_have_one_colour_and_no_legend():
    table = pd.DataFrame({"name": ["a", "b", "c"], "value": [1.0, 3.0, 2.0]})
    ax = show.ranked(table, "value", "name")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["b", "c", "a"]
    assert len({bar.get_facecolor() for bar in ax.patches}) == 1
    assert ax.get_legend() is None
