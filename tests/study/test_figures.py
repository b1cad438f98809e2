"""Figures redrawn: every printed number is found, ours are asked of what will be recorded, and are drawn."""

from functools import cache

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from planned import known

from specnb.models import prompts
from study import experiments, figures, paper, stats
from study.figures import draw, ptd
from study.figures.domains import domain, gsm, humaneval, own
from study.figures.panels import FIGURES, Panel, figure
from study.quantities import HEADS
from study.stats import MEAN, Estimate

NO_NUMBERS_OF_OURS = {
    ("traversal", "Table 1"),
    ("edd_pct", "Table 6"),
    ("salf_talf", "Figure 3"),
}  # exact, texts, a toy


def planned(recording) -> pd.DataFrame:
    """A run of every method on every prompt, before anything is measured."""
    if recording is HEADS:
        places = pd.DataFrame({"set": ["own", "humaneval", "gsm100"] * 6})
        places["prompt"] = [f"{i}" for i in places.index]
    else:
        chosen = [one for some in recording.prompts for one in prompts.chosen(some)]
        places = pd.DataFrame({"prompt": chosen})
        places["domain"] = prompts.domains(places["prompt"])
    return places.merge(pd.DataFrame({"method": sorted(known(recording))}), how="cross")


class Watched(Panel):
    """A panel over what is planned: it refuses to ask what will not be recorded, or of fewer than six prompts."""

    def __post_init__(self):
        super().__post_init__()
        self.in_print = set()  # lines with numbers of the paper

    def printed(self, line, tick, rows):
        self.in_print.add(line)
        super().printed(line, tick, rows)

    def estimate(self, statistic, quantity, methods, where=None):
        assert set(methods) <= set(self.runs["method"])
        chosen = self.runs if where is None else where(self.runs)
        assert chosen["prompt"].nunique() >= 6
        return Estimate(1.0, 0.0, 2.0, 6)


@pytest.mark.parametrize(("name", "item"), FIGURES)
def test_a_figure_finds_its_printed_numbers_and_asks_what_will_be_recorded(name, item, monkeypatch):
    redrawn = FIGURES[name, item]
    monkeypatch.setitem(redrawn.build.__globals__, "Panel", Watched)
    for panel in redrawn.build(*map(planned, redrawn.recordings)):
        table = panel.table()
        found = set(zip(table["line"], table["tick"], strict=True))
        assert found == {(line, str(tick)) for line in panel.lines for tick in panel.ticks}
        assert set(table["line"][table["whose"] == "paper"]) == panel.in_print
        assert "ours" in set(table["whose"])


def test_a_method_that_will_not_be_recorded_is_noticed():
    """The control of the test above."""
    panel = Watched("", ["a"], ["b"], planned(experiments.PTD))
    assert panel.estimate(MEAN, "tau", ["ptd"]) is not None
    with pytest.raises(AssertionError):
        panel.estimate(MEAN, "tau", ["ptd", "generate"])


@pytest.fixture(scope="module")
def recorded():
    """``runs_of``, which reads a recording once for all tests."""
    return cache(figures.runs_of)


@pytest.mark.parametrize(("name", "item"), FIGURES)
def test_recordings_have_what_figures_ask(name, item, recorded, monkeypatch):
    monkeypatch.setattr(figures, "runs_of", recorded)
    monkeypatch.setattr(stats, "interval", lambda values, statistic: (0.0, 1.0))  # which is what takes time
    for panel in figures.panels_of(name, item):
        if panel.runs is not None:
            assert np.isfinite([point.value for point in panel.points]).all()
            assert any(point.whose == "ours" for point in panel.points)


def test_every_table_and_figure_with_numbers_is_redrawn():
    for name in paper.PAPERS:
        with_numbers = set(paper.load(name).dropna(subset="value")["item"])
        tables = {(name, item) for item in with_numbers if item.startswith("Table")}
        assert tables - FIGURES.keys() <= NO_NUMBERS_OF_OURS


@pytest.fixture
def made_up():
    """Twenty prompts of the experiment ptd: PTD 3, Self-Draft 2, lookahead 1 tokens a forward, give or take."""
    rng, level = np.random.default_rng(0), {"ptd": 3, "self-draft, corpus, no bonus": 2}
    rows = []
    for name in known(experiments.PTD):
        for i in range(20):
            rows.append({"prompt": f"{i}", "method": name, "tau": level.get(name, 1) + rng.normal(0, 0.1)})
    return pd.DataFrame(rows).assign(hits=0.5, length=2.0, auxiliary=30.0, drafted=7.0)


def test_ours_stand_beside_the_papers_with_an_interval(made_up):
    points = ptd.figure_4(made_up)[0].table()
    found = points.query("whose == 'ours'")
    assert found["value"].tolist() == pytest.approx([1, 2, 3], abs=0.1)
    assert ((found["low"] < found["value"]) & (found["value"] < found["high"])).all()
    assert (found["high"] - found["low"]).max() < 0.2
    printed = paper.select("ptd", "Table 4", column="DE", row="PTD")["value"]
    drawn = points.query("tick == 'PTD' and whose == 'paper'")
    assert drawn["value"].tolist() == printed.tolist()


def test_what_stands_below_may_be_measured(made_up):
    panel = Panel("", ["a"], ["PTD"], made_up, measured_x=True)
    panel.ours("a", "PTD", panel.estimate(MEAN, "tau", ["ptd"]), at=panel.estimate(MEAN, "drafted", ["ptd"]))
    assert panel.table()["x"].tolist() == [7.0]
    panel.ours("a", "PTD", panel.estimate(MEAN, "tau", ["ptd"]))
    assert panel.table()["x"].tolist() == [7.0, 0.0]  # its place on the axis, where nothing is measured


def test_numbers_stand_at_their_own_places(made_up):
    estimate = Estimate(1.0, 0.5, 1.5, 20)
    for ticks, places in (([3, 7], [3.0, 7.0]), (["three", "seven"], [0.0, 1.0]), ([0.1, 0.5], [0.1, 0.5])):
        panel = Panel("", ["a"], ticks, made_up)
        for tick in ticks:
            panel.ours("a", tick, estimate)
        assert panel.table()["x"].tolist() == places
        assert panel.table()["tick"].tolist() == [str(tick) for tick in ticks]


def test_printed_numbers_have_the_error_that_is_printed():
    panel = Panel("", ["a"], ["b"], None)
    panel.printed("a", "b", pd.DataFrame({"value": [2.0, 3.0, np.nan], "error": [0.5, np.nan, 1.0]}))
    found = panel.table()
    assert found[["value", "low", "high"]].to_numpy().tolist() == [[2.0, 1.5, 2.5], [3.0, 3.0, 3.0]]
    assert set(found["whose"]) == {"paper"}


def test_domains_choose_prompts():
    runs = pd.DataFrame({"domain": ["HumanEval", "GSM-100", "rag", "mathematics"]})
    assert own(runs)["domain"].tolist() == ["rag", "mathematics"]
    assert gsm(runs)["domain"].tolist() == ["GSM-100"]
    assert humaneval(runs)["domain"].tolist() == ["HumanEval"]
    assert domain("rag")(runs)["domain"].tolist() == ["rag"]


# --- what a title says


def titles(name, item) -> list[str]:
    drawn = figures.paper_figure(name, item)
    found = [ax.get_title() for ax in drawn.axes]
    plt.close(drawn)
    return found


def test_what_is_not_recorded_is_said(monkeypatch):
    monkeypatch.setattr(figures, "runs_of", lambda recording: None)
    (title,) = titles("ptd", "Figure 8")
    assert "not recorded yet" in title


def test_what_is_recorded_in_part_is_not_drawn(tmp_path, monkeypatch):
    name = experiments.PTD_ALIKE.name
    assert figures.runs_of(experiments.PTD_ALIKE) is not None
    lines = (experiments.RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / f"{name}.jsonl").write_text("".join(lines[: len(lines) // 2]), encoding="utf-8")
    monkeypatch.setattr(experiments, "RESULTS", tmp_path)
    assert figures.runs_of(experiments.PTD_ALIKE) is None


@pytest.mark.parametrize("why", ["", "made with other heads: hass"])
def test_what_is_drawn_from_a_stale_recording_is_said(why, made_up, monkeypatch):
    made_up.attrs["stale"] = why
    made_up["domain"] = ["GSM-100", "HumanEval", "rag", "mathematics"] * (len(made_up) // 4)
    monkeypatch.setattr(figures, "runs_of", lambda recording: made_up)
    for item in ("Figure 4", "Table 4"):  # of all prompts, and domain by domain
        for title in titles("ptd", item):
            assert title.replace("\n", " ") == (f"(ours are stale: {why})" if why else "")


def test_a_stale_recording_is_drawn_all_the_same(monkeypatch):
    fresh = figures.points("edd_pct", "Figure 6")
    assert titles("edd_pct", "Figure 6") == ["", ""]
    monkeypatch.setattr(experiments, "known_hash", lambda name: "another")
    assert figures.points("edd_pct", "Figure 6").equals(fresh)
    assert titles("edd_pct", "Figure 6") == ["(ours are stale: made with other heads: edd)"] * 2


def test_stale_heads_are_said(monkeypatch):
    (before,) = titles("edd_pct", "Figure 5")
    assert "stale" not in before
    monkeypatch.setattr(experiments, "known_hash", lambda name: "another" if name == "edd_layer8" else None)
    (after,) = titles("edd_pct", "Figure 5")
    assert after == f"{before}\n(ours are stale: made with other heads: edd_layer8)"


def test_a_long_title_has_lines(made_up, monkeypatch):
    made_up.attrs["stale"] = "made with other heads: eagle, edd, hass, medusa, talf, vdm"
    monkeypatch.setattr(figures, "runs_of", lambda recording: made_up)
    for title in titles("ptd", "Figure 4"):  # four panels in a row
        assert max(map(len, title.splitlines())) <= 24


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (4, 1), (5, 2), (6, 2), (7, 2)])
def test_any_number_of_panels_is_drawn(count, rows):
    estimate = Estimate(1.0, 0.5, 1.5, 20)
    panels = []
    for number in range(count):
        panel = Panel(f"measure {number}", ["a", "b"], ["x"], pd.DataFrame(), title=f"panel {number}")
        panel.ours("a", "x", estimate)
        panels.append(panel)
    figure = draw.drawn(panels)
    assert [ax.get_title() for ax in figure.axes] == [panel.title for panel in panels]
    assert len({ax.get_subplotspec().rowspan.start for ax in figure.axes}) == rows
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ours, 95 % interval over prompts", "a", "b"]
    plt.close(figure)


def test_the_legends_marks_are_those_drawn():
    panel = Panel("measure", ["a"], ["x"], pd.DataFrame())
    panel.printed("a", "x", pd.DataFrame({"value": [2.0], "error": [None]}))
    panel.ours("a", "x", Estimate(1.0, 0.5, 1.5, 20))
    figure = draw.drawn([panel])
    look = lambda line: (line.get_marker(), line.get_markerfacecolor() == "white")  # noqa: E731
    in_legend = {handle.get_label().split(",")[0]: look(handle) for handle in figure.legends[0].legend_handles}
    values = {line.get_ydata()[0]: look(line) for line in figure.axes[0].lines if len(line.get_ydata()) == 1}
    assert in_legend == {"the paper": values[2.0], "ours": values[1.0]}
    assert values[1.0] != values[2.0]
    plt.close(figure)


# --- the list


def test_each_recording_is_read_once(monkeypatch):
    read = []

    def counted(recording):
        read.append(recording.name)

    monkeypatch.setattr(figures, "runs_of", counted)
    figures.points("dynatree", "Figure 3")
    assert read == ["dynatree_rules", "dynatree_lengths"]


def test_what_there_is_is_listed_without_reading(monkeypatch):
    monkeypatch.setattr(figures, "runs_of", None)
    found = figures.listing()
    assert list(zip(found["paper"], found["item"], strict=True)) == list(FIGURES)
    assert list(dict.fromkeys(found["paper"])) == list(paper.PAPERS)
    (axes,) = found[(found["paper"] == "edd_pct") & (found["item"] == "Figure 7")]["axes"]
    assert axes == "tokens a step; nodes a step"


def test_a_figure_that_nobody_printed_is_refused():
    with pytest.raises(ValueError, match="ptd has no 'Table 9' to redraw: there are Table 1, Table 2"):
        figures.paper_figure("ptd", "Table 9")
    with pytest.raises(ValueError, match="medusa has no 'Table 1' to redraw: there are ptd, traversal"):
        figures.paper_figure("medusa", "Table 1")


def test_a_figure_is_listed_once():
    with pytest.raises(ValueError, match="Figure 4 of ptd is redrawn twice"):
        figure("ptd", "Figure 4")(lambda: [])
    assert FIGURES["ptd", "Figure 4"].build is ptd.figure_4


def test_a_panel_refuses_what_it_has_not():
    panel = Panel("", ["a"], [1, 2], None)
    with pytest.raises(ValueError, match="the panel has no line 'b', only 'a'"):
        panel.ours("b", 1, None)
    with pytest.raises(ValueError, match="the panel has no tick 3, only 1, 2"):
        panel.ours("a", 3, None)
    with pytest.raises(ValueError, match="2 lines need as many colours"):
        Panel("", ["a", "b"], [1], None, colours=[0])
