"""Verifiers compared without a coin: expectations agree with simulation, lumping loses nothing."""

import numpy as np
import pytest
from tiny import llama
from toy import RANDOM, table, tree_drafter

from specnb import growth
from specnb.drafters import CausalLMDraft, TreeDrafter
from specnb.exact import accepted_given, expectation
from specnb.sampling import RandomCoins, Warp
from specnb.target import Target
from specnb.tree import Drawn
from specnb.verifiers import rrsw, traversal
from study.measure import verifiers

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


def test_compare_a_decoded_text():
    target, draft = Target(llama()), CausalLMDraft(llama(seed=1))
    found = verifiers.compare(target, TreeDrafter(draft, growth.kary(2, 2), SWOR), [1, 2, 3], max_new_tokens=24)
    wide = found.pivot_table(index="step", columns="verifier", values="tau")
    assert len(wide) > 5
    given = found.pivot_table(index="step", columns="verifier", values="given")
    assert (wide - wide.mean()).abs().mean().mean() < (given - given.mean()).abs().mean().mean()  # less noise
    assert found["nodes"].unique().tolist() == [6]
    chain = verifiers.compare(target, TreeDrafter(draft, growth.chain(3), SWOR), [1, 2, 3], max_new_tokens=24)
    wide = chain.pivot_table(index="step", columns="verifier", values="tau")
    assert (wide["traversal"] >= wide["token-level"] - 1e-12).all()  # on a chain, tree by tree


def test_settings_without_sense_are_refused():
    target, drafter = Target(llama()), TreeDrafter(CausalLMDraft(llama(seed=1)), growth.chain(2), SWOR)
    with pytest.raises(ValueError, match=r"temperature must be above 0, got 0.0"):
        verifiers.compare(target, drafter, [1, 2], temperature=0.0, max_new_tokens=20)
    with pytest.raises(ValueError, match="max_new_tokens must be above 9, got 9"):
        verifiers.compare(target, drafter, [1, 2], max_new_tokens=9)


@pytest.mark.usefixtures("toy")
def test_a_block_is_the_means_of_its_steps():
    rows = verifiers.verifiers_block("rag-02", ["pair"], [growth.chain(2), growth.kary(2, 2)], 30)
    by = {(row["head"], row["shape"], row["verifier"]): row for row in rows}
    assert list(by) == [
        ("pair", shape, rule) for shape in ("chain(2)", "kary(2, 2)") for rule in ("token-level", "traversal")
    ]
    assert by["pair", "chain(2)", "traversal"]["tau"] >= by["pair", "chain(2)", "token-level"]["tau"] > 1
    assert by["pair", "kary(2, 2)", "traversal"]["nodes"] == 6
    assert by["pair", "chain(2)", "traversal"]["steps"] >= 2
