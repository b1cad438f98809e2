"""Exact claims about printed numbers, the papers' own arithmetic.

How many cases hold, and that one other number in print is noticed.
"""

import pytest

from study.claims import dynatree, edd_pct, in_print, ptd, salf_talf, traversal


@pytest.mark.parametrize(
    ("claim", "hold", "cases"),
    [
        (traversal.printed_gains, 87, 87),
        (ptd.tables_and_text, 84, 84),
        (ptd.improvements, 95, 96),
        (ptd.no_latency, 0, 14),
        (dynatree.printed_speed_ups, 12, 13),
        (dynatree.harnesses_agree, 0, 2),
        (edd_pct.alpha_is_the_accepted_share, 0, 128),
        (edd_pct.headlines, 9, 9),
        (edd_pct.dozen_iterations, 0, 16),
        (salf_talf.words_and_tables, 57, 60),
        (salf_talf.beam_baselines, 0, 12),
    ],
)
def test_how_many_cases_hold(claim, hold, cases):
    found = claim()
    assert (sum(found), len(found)) == (hold, cases)
    assert set(map(type, found)) == {bool}


def test_the_reader_gives_settings_as_columns():
    table = in_print.numbers("dynatree", "Table 1", "Table 2")
    assert len(table) == 25  # of 28 cells, three are empty in print
    assert set(table["draft"]) == {"Pythia-70M"}
    assert set(table["K"].dropna()) == {"6"}


def reprint(monkeypatch, change, *, item="", setting="", row="", column="") -> set[int]:
    """Let the reader find other numbers in the cells so named; returns what will be the rows that it has changed."""
    read, changed = in_print.numbers, set()

    def printed(paper, *items):
        table = read(paper, *items)
        hit = table["setting"].str.contains(setting, regex=False) & table["row"].str.contains(row, regex=False)
        hit &= table["item"].eq(item) & table["column"].str.contains(column, regex=False)
        changed.update(table.index[hit])
        table.loc[hit, "value"] = table.loc[hit, "value"].map(change)
        return table

    monkeypatch.setattr(in_print, "numbers", printed)
    return changed


@pytest.mark.parametrize(
    ("claim", "cell", "step", "lost"),
    [
        (traversal.printed_gains, ("Table 3", "=Chain", "QA", "Improvement"), 1, 1),
        (traversal.printed_gains, ("Table 2", "tree=Binary", "Math", "Tok.V"), 0.1, 2),
        (traversal.printed_gains, ("Table 4", "=1.0; tree=Chain", "", "Tra.V"), 0.01, 1),
        (traversal.printed_gains, ("Text", "Section 4.2", "Improvement", "minimum"), -0.1, 1),
        (traversal.printed_gains, ("Table 3", "tree=EAGLE", "Token/s", "Improvement"), 3, 2),
        (traversal.printed_gains, ("Text", "Section 4.2", "Tables 2 and 3", "depth"), 1, 1),
        (ptd.tables_and_text, ("Table 4", "HumanEval; model=CodeLLaMA-7B", "LADE", "HR"), 0.05, 1),
        (ptd.tables_and_text, ("Table 1", "HumanEval; model=CodeLLaMA-7B", "Self-Draft", "Imp."), 20, 1),
        (ptd.tables_and_text, ("Table 3", "GSM-100; model=Qwen2.5-32B", "PTD", "Imp."), -80, 2),
        (ptd.improvements, ("Table 3", "GSM-100; model=Qwen2.5-32B", "PTD", "TP"), 3, 1),
        (dynatree.printed_speed_ups, ("Table 3", "", "Length 200", "Baseline"), -2, 1),
        (edd_pct.headlines, ("Text", "section=4.2", "EDD+PCT", "highest"), 0.01, 1),
        (edd_pct.headlines, ("Text", "MT-bench; temperature=0; model=Vicuna", "EDD+PCT", "Speedup"), 0.01, 1),
        (edd_pct.headlines, ("Table 2", "GSM8K; model=Vicuna1.5 7B", "PCT", "Speedup"), 0.6, 1),
        (edd_pct.headlines, ("Text", "model=13B", "draft model", "s_d"), 1, 1),
        (salf_talf.words_and_tables, ("Table 1", "Llama2-7B; temperature=1", "HASS", "Alpaca"), 0.2, 1),
        (salf_talf.words_and_tables, ("Table 1", "Deepseek-R1-Distill-Llama-8B; temperature=1", "HASS", "Imp"), -10, 3),
        (salf_talf.words_and_tables, ("Text", "Abstract", "over HASS", "maximum"), 0.1, 1),
        (salf_talf.words_and_tables, ("Text", "Section 4.2", "to EAGLE-2", "minimum"), 0.02, 1),
        (salf_talf.words_and_tables, ("Text", "inferred; tree=SALF", "TALF over HASS", "improvement"), 1, 1),
        (salf_talf.words_and_tables, ("Text", "Section 4.3", "loss TALF", "tau decrease"), 0.5, 1),
        (salf_talf.words_and_tables, ("Text", "Section 4.3", "loss HASS", "speedup increase"), 1, 1),
        (salf_talf.words_and_tables, ("Table 4", "th=0.7", "", "GSM8K speedup"), 0.05, 1),
    ],
)
def test_another_number_is_noticed(monkeypatch, claim, cell, step, lost):
    before = sum(claim())
    item, setting, row, column = cell
    changed = reprint(monkeypatch, lambda x: x + step, item=item, setting=setting, row=row, column=column)
    assert sum(claim()) == before - lost
    assert len(changed) == 1


@pytest.mark.parametrize(
    ("claim", "cell", "change", "hold"),
    [
        (ptd.improvements, ("Table 1", "MT-Bench; model=LLaMA2-13B", "SpeDe", "Imp."), lambda _: 50, 96),
        (ptd.no_latency, ("Table 4", "", "PTD", "DE"), lambda x: x / 1.3, 14),
        (dynatree.printed_speed_ups, ("Table 2", "", "Linear", "Speedup"), lambda _: 1.07, 13),
        (dynatree.harnesses_agree, ("Table 1", "", "DynaTree", "Speedup"), lambda _: 1.79, 1),
        (dynatree.harnesses_agree, ("Table 1", "", "DynaTree", "Acceptance"), lambda _: 0.38, 1),
        (edd_pct.alpha_is_the_accepted_share, ("Table 1", "", "", "tau"), lambda x: x + 1, 62),
        (edd_pct.alpha_is_the_accepted_share, ("Table 4", "", "", "tau"), lambda x: x + 1, 61),
        (edd_pct.dozen_iterations, ("Table 2", "", "PCT", "tau"), lambda x: x + 5, 16),
        (salf_talf.words_and_tables, ("Text", "Introduction", "SALF & TALF", "minimum"), lambda _: 2.03, 58),
    ],
)
def test_other_numbers_would_hold(monkeypatch, claim, cell, change, hold):
    """The cases that fail do so for the reason given: with the right number, or another definition, they hold."""
    item, setting, row, column = cell
    reprint(monkeypatch, change, item=item, setting=setting, row=row, column=column)
    assert sum(claim()) == hold


def test_table_1_repeats_the_optimal_tree_search(monkeypatch):
    """SALF's baselines are equal, cell by cell, to the rows of the other search."""
    read, names = in_print.numbers, {"beam search": "optimal tree search", "optimal tree search": "beam search"}
    swapped = lambda *what: (table := read(*what)).assign(tree=table["tree"].replace(names))  # noqa: E731
    monkeypatch.setattr(in_print, "numbers", swapped)
    assert sum(salf_talf.beam_baselines()) == 12
