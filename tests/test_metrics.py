"""Acceptance measures on three steps counted by hand."""

import math

import numpy as np
import pytest
import torch

from specnb import metrics
from specnb.decode import Generation, Step
from specnb.tree import Draft, TokenTree
from specnb.verifiers import Verdict

TREE = TokenTree([1, 2, 3, 4], [-1, 0, 1, 0])
RIDING = torch.tensor([False, False, False, True])  # the last node is auxiliary


def step(index, path, draft):
    seconds = {"draft": 0.1, "target": 1.0 + index, "verify": 0.2, "commit": 0.1}
    return Step(index, 5, draft, None, Verdict(path, 9), (*(2, 3)[: len(path)], 9), seconds)


STEPS = (
    step(0, (1, 2), Draft(TREE)),
    step(1, (), Draft(TREE, auxiliary=RIDING)),
    step(2, (1,), Draft(TREE)),
)


def test_measures():
    assert metrics.accepted(STEPS).tolist() == [2, 0, 1]
    assert metrics.drafted(STEPS).tolist() == [3, 2, 3]  # without the root and the auxiliary node
    assert metrics.tau(STEPS) == 2.0
    assert metrics.acceptance_rate(STEPS) == 3 / 8
    assert metrics.acceptance_rate_per_position(STEPS).tolist() == pytest.approx([2 / 3, 1 / 3])
    assert metrics.histogram(STEPS).to_dict() == {0: 1, 1: 1, 2: 1}
    assert metrics.phases(STEPS)["target"] == 2.5  # the first step holds the prefill


def test_summary_of_several_generations():
    generation = Generation((1,), (2, 3, 9, 9, 2, 9), STEPS, "length")
    assert metrics.summary([generation, generation]) == {
        "tokens": 12,
        "target calls": 6,
        "tau": 2.0,
        "draft tokens per step": 8 / 3,
        "acceptance rate": 3 / 8,
    }


def test_nothing_drafted_has_no_rate():
    assert math.isnan(metrics.acceptance_rate([step(0, (), Draft(TokenTree([1], [-1])))]))


def test_ece_of_calibrated_and_of_sure_predictors():
    """The calibrated (.7, .3) predictor of algorithms.md 8: standard ECE 0, the SALF paper's own definition .30."""
    confidence, hit = np.repeat(0.7, 1000), np.repeat([1, 0], [700, 300])
    assert metrics.ece(confidence, hit) == pytest.approx(0, abs=1e-12)
    of_the_targets_token = np.repeat([0.7, 0.3], [700, 300])  # the paper's confidence: its argmax was right where .7
    assert metrics.ece(of_the_targets_token, hit) == pytest.approx(0.30)
    assert metrics.ece(np.ones(10), np.zeros(10)) == 1
