"""Costs are measured on what they claim: shapes of the tables, every rule and phase present. No speed is asserted."""

import pytest

from specnb import costs, search

pytestmark = pytest.mark.model


def test_curves_have_a_row_for_each_size_and_model(smollm2):
    table = costs.cost_curves(smollm2, ["eagle", "edd"], sizes=(1, 5), prefix=20, repetitions=2)
    rows = [[model, nodes] for model in ("eagle", "edd", "target") for nodes in (1, 5)]
    assert table[["model", "nodes"]].to_numpy().tolist() == rows
    assert (table["quartile"] <= table["third quartile"]).all()
    assert (table["median"] > 0).all()


def test_draft_costs_hold_the_target_too(smollm2):
    table = costs.draft_costs(smollm2, ["medusa", "edd"], nodes=2, length=20, repetitions=2)
    assert table["head"].tolist() == ["medusa", "edd", "target"]
    assert (table["median"] > 0).all()


def test_verification_and_sampled_runs(smollm2):
    prompts = [smollm2.encode("Name three rivers.")]
    table = costs.verification_costs(smollm2, ["vdm"], prompts, max_new_tokens=8)
    assert table["rule"].tolist() == ["token-level", "traversal", "softmax"]
    runs = costs.sampled(smollm2, ["vdm"], prompts, max_new_tokens=8)
    assert len(runs) == len(costs.SHAPES) * len(costs.RULES)
    assert (runs["tokens"] >= runs["steps"]).all()
    assert (runs[["draft s", "target s", "verify s", "commit s"]] > 0).all(axis=None)


def test_building_costs_are_what_drafting_takes_around_the_forwards(smollm2):
    """Every rule has its row; a search without a stop drafts more often than one with."""
    rules = {"optimal": search.Salf(20, 5, 0.0, 5), "salf": search.Salf(20, 5, 0.6, 5)}
    prompts = [smollm2.encode("Count to ten.")]
    table = costs.building_costs(smollm2, "eagle", rules, prompts, max_new_tokens=8).set_index("rule")
    assert list(table.index) == list(rules)
    assert table.loc["optimal", "forwards"] > table.loc["salf", "forwards"] >= 1
    assert (table[["draft", "building"]] > 0).all(axis=None)
