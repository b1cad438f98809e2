"""Paired comparison: lumping loses nothing, expectations agree with simulation, the bonus bug is measured."""

import numpy as np
import pandas as pd
import pytest
from tiny import llama
from toy import RANDOM, table, tree_drafter

from specnb import growth, paired
from specnb.draft_models import CausalLMDraft
from specnb.drafters import TreeDrafter
from specnb.exact import accepted_given, expectation
from specnb.sampling import RandomCoins, Warp
from specnb.target import Target
from specnb.traversal import traversal
from specnb.tree import Drawn
from specnb.verifiers import rrsw

SWOR = Drawn.SWOR


def test_expectation_agrees_with_simulation():
    """20,000 coin-flipped verifications of one tree against the exact expectation: within four standard errors."""
    p, q = RANDOM[1]
    drafter = tree_drafter(q, growth.kary(2, 2), SWOR)
    drafter.begin((0,), Warp(), {})
    draft = drafter.propose(RandomCoins(3), 2)
    rows, coins = table(p, draft.tree), RandomCoins(0, 1)
    for rule in (rrsw, traversal):
        simulated = np.array([len(rule(draft, rows, coins).path) for _ in range(20_000)])
        exact_value = expectation(accepted_given(draft, rows, rule), len)
        assert abs(simulated.mean() - exact_value) < 4 * simulated.std() / 20_000**0.5
        assert abs(simulated.mean() - exact_value - 0.05) > 4 * simulated.std() / 20_000**0.5  # it can tell 0.05 apart


def test_the_bonus_bug_is_the_distance_of_the_laws_it_mixes():
    """One accepted leaf: the step's last token is off by TV(p_T, p_1); nothing is off at T = 1."""
    p, q = RANDOM[0]
    drafter = tree_drafter(q, growth.chain(1), SWOR)
    drafter.begin((0,), Warp(), {})
    draft = drafter.propose(RandomCoins(0), 1)
    plain = table(p, draft.tree)
    cold = Warp(0.4)(plain.log())
    paths = accepted_given(draft, cold, rrsw)
    assert paths[(1,)] > 0
    expected = paths[(1,)] * float((cold[1] - plain[1]).abs().sum() / 2)
    assert paired.untempered_bonus(draft, cold, 0.4, paths) == pytest.approx(expected, abs=1e-9)
    assert paired.untempered_bonus(draft, plain, 1.0, paths) == pytest.approx(0, abs=1e-12)


def test_compare_a_decoded_text():
    target, draft = Target(llama()), CausalLMDraft(llama(seed=1))
    found = paired.compare(target, TreeDrafter(draft, growth.kary(2, 2), SWOR), [1, 2, 3], max_new_tokens=24)
    wide = found.pivot_table(index="step", columns="rule", values="tau")
    assert len(wide) > 5
    given = found.pivot_table(index="step", columns="rule", values="given")
    assert (wide - wide.mean()).abs().mean().mean() < (given - given.mean()).abs().mean().mean()  # less noise
    assert found["nodes"].unique().tolist() == [6]
    chain = paired.compare(target, TreeDrafter(draft, growth.chain(3), SWOR), [1, 2, 3], max_new_tokens=24)
    wide = chain.pivot_table(index="step", columns="rule", values="tau")
    assert (wide["traversal"] >= wide["token-level"] - 1e-12).all()  # on a chain, tree by tree


def test_gains_of_a_known_table():
    rows = [
        {"cell": "a", "prompt": i, "steps": 1 + i % 2, "token-level": 2.0, "traversal": 2.1 if i % 2 else 2.4}
        for i in range(6)
    ]
    (found,) = paired.gains(pd.DataFrame(rows), ["cell"]).itertuples()
    assert found._4 == pytest.approx(10)  # (3 · 2.4 + 6 · 2.1) / (9 · 2.0)
    assert 5 <= found.low < 10 < found.high <= 20


def test_gains_resample_prompts_not_rows():
    """A prompt that stands in a cell twice is still one prompt: the same interval as with its rows summed."""
    rows = [{"cell": "a", "prompt": i, "steps": 2, "token-level": 2.0, "traversal": 2.0 + 0.1 * i} for i in range(5)]
    halves = [{**row, "steps": 1} for row in rows for _ in (0, 1)]
    pd.testing.assert_frame_equal(
        paired.gains(pd.DataFrame(rows), ["cell"]), paired.gains(pd.DataFrame(halves), ["cell"])
    )


def test_settings_without_sense_are_refused():
    target, drafter = Target(llama()), TreeDrafter(CausalLMDraft(llama(seed=1)), growth.chain(2), SWOR)
    for options in ({"temperature": 0.0, "max_new_tokens": 20}, {"max_new_tokens": 9}):
        with pytest.raises(ValueError, match="temperature must be above 0 and max_new_tokens above 9"):
            paired.compare(target, drafter, [1, 2], **options)


def test_a_summary_is_the_means_of_its_steps():
    target, draft = Target(llama()), CausalLMDraft(llama(seed=1))
    found = paired.compare(target, TreeDrafter(draft, growth.chain(2), SWOR), [1, 2, 3], max_new_tokens=20)
    row = paired.summary(found)
    assert set(row) == set(paired.RESULTS)
    assert row["steps"] == len(found) / 2
    assert row["traversal"] == pytest.approx(found[found["rule"] == "traversal"]["tau"].mean())
    assert row["token-level given"] == pytest.approx(found[found["rule"] == "token-level"]["given"].mean())
