"""Figures redrawn: every printed number is found, ours are asked of what will be recorded, and are drawn."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from planned import known

from specnb.models import prompts
from study import claims, experiments, figures, paper

PANELS = [
    (name, item, i)
    for name, items in figures.FIGURES.items()
    for item in items
    for i in range(len(figures.panels(name, item)))
]
NO_NUMBERS_OF_OURS = {
    ("traversal", "Table 1"),
    ("edd_pct", "Table 6"),
    ("salf_talf", "Figure 3"),
}  # exact, texts, a toy


def cells(panel):
    return [(line, tick) for line in figures._names(panel["lines"]) for tick in figures._names(panel["ticks"])]


@pytest.mark.parametrize(("name", "item", "i"), PANELS)
def test_a_panel_finds_its_printed_numbers_and_asks_what_will_be_recorded(name, item, i):
    panel = figures.panels(name, item)[i]
    found = figures.points(name, item, panel, lambda row: None).query("whose == 'paper'")
    for line, tick in cells(panel):
        printed, ours = (figures.asked(panel, side, line, tick) for side in ("printed", "ours"))
        assert printed or ours
        assert not printed or len(found.query("line == @line"))
        if ours:
            assert set(ours["methods"].split(" ; ")) <= known(ours["experiment"])
        if ours.get("rows", "").startswith("domain"):
            chosen = [
                one for some in experiments.EXPERIMENTS[ours["experiment"]].prompts for one in prompts.chosen(some)
            ]
            assert len(pd.DataFrame({"domain": prompts.domains(pd.Series(chosen))}).query(ours["rows"])) >= 6


def test_every_table_and_figure_with_numbers_is_redrawn():
    for name in paper.PAPERS:
        with_numbers = set(paper.load(name).dropna(subset="value")["item"])
        tables = {item for item in with_numbers if item.startswith("Table")}
        assert {(name, item) for item in tables - set(figures.FIGURES[name])} <= NO_NUMBERS_OF_OURS


@pytest.fixture
def made_up():
    """Twenty prompts of the experiment ptd: PTD 3, Self-Draft 2, lookahead 1 tokens a forward, give or take."""
    rng, level = np.random.default_rng(0), {"ptd": 3, "self_draft corpus=own bonus=False": 2}
    rows = [{"prompt": f"{i}", "method": name, "tau": level.get(name, 1) + rng.normal(0, 0.1)}
            for name in known("ptd") for i in range(20)]  # fmt: skip
    return pd.DataFrame(rows)


def test_ours_stand_beside_the_papers_with_an_interval(made_up):
    panel = figures.panels("ptd", "Figure 4")[0]
    points = figures.points("ptd", "Figure 4", panel, lambda row: made_up)
    found = points.query("whose == 'ours'")
    assert found["value"].tolist() == pytest.approx([1, 2, 3], abs=0.1)
    assert ((found["low"] < found["value"]) & (found["value"] < found["high"])).all()
    assert (found["high"] - found["low"]).max() < 0.2
    printed = paper.select("ptd", "Table 4", column="DE", row="PTD")["value"]
    drawn = points.query("tick == 'PTD' and whose == 'paper'")
    assert drawn["value"].tolist() == printed.tolist()


def test_what_stands_below_may_be_measured(made_up):
    panel = {"y": "", "lines": ["a"], "ticks": {"PTD": ["", "ptd"]}, "ours": {"experiment": "ptd", "value": "tau"}}
    panel["ours"] |= {"methods": "{x}", "across": "nodes"}
    found = figures.points("ptd", "Figure 4", panel, lambda row: made_up.assign(nodes=7.0))
    assert found["x"].tolist() == [7.0]


def test_what_is_not_recorded_is_said(monkeypatch):
    monkeypatch.setattr(claims, "reading", lambda: lambda row: None)
    figure = figures.paper_figure("ptd", "Figure 8")
    assert "not recorded yet" in figure.axes[0].get_title()
    plt.close(figure)


def test_a_figure_that_nobody_printed_is_refused():
    with pytest.raises(ValueError, match="ptd has no 'Table 9' to redraw: there are Table 1, Table 2"):
        figures.paper_figure("ptd", "Table 9")
    with pytest.raises(ValueError, match="medusa has no 'Table 1' to redraw: there are ptd, traversal"):
        figures.paper_figure("medusa", "Table 1")
