"""Widgets, without a browser: set traits, and picture, readout and ranges must follow."""

import dataclasses
import io

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specnb import growth, verifiers, widgets
from specnb.decode import decode
from specnb.draft_models import CausalLMDraft
from specnb.drafters import NgramDrafter, TreeDrafter
from specnb.target import Target
from specnb.tree import Drawn


def tiny(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def pieces(tokens) -> list[str]:
    return [f"␣w{int(t)}<&>" for t in tokens]


@pytest.fixture(scope="module")
def full():
    """Sampled trees with coins, p and q recorded."""
    drafter = TreeDrafter(CausalLMDraft(tiny(1)), growth.kary(2, 2), Drawn.SWOR)
    stop = lambda tokens: "enough" if len(tokens) == 12 else None  # noqa: E731
    options = {"max_new_tokens": 40, "stop": stop, "temperature": 1.0, "trace": "full", "eos": ()}
    return decode(Target(tiny(0)), drafter, verifiers.rrsw, [1, 2, 3, 4], **options)


@pytest.fixture(scope="module")
def greedy():
    """Prompt lookup at temperature 0: no coins, no q, some steps without a draft; no tables in the trace."""
    options = {"max_new_tokens": 30, "eos": ()}
    return decode(Target(tiny(0)), NgramDrafter(), verifiers.greedy, [1, 2, 3, 1, 2], **options)


def distinct_views(box, values) -> int:
    """Number of different pictures an Image shows while ``set`` walks through the values."""
    return len({(set_value(), box.controls.image.value)[1] for set_value in values})


def walk(box, generation) -> list:
    """One setter per trial count of the first three steps."""

    def at(i, trial):
        box.controls.step.value = i
        box.controls.trial.value = trial

    counts = [len(step.verdict.trials) for step in generation.steps[:3]]
    return [lambda i=i, k=k: at(i, k) for i, count in enumerate(counts) for k in range(count + 1)]


# ---- the stepper ----------------------------------------------------------------------------------------


def test_every_position_has_its_own_picture(full):
    box = widgets.stepper(full, pieces)
    positions = walk(box, full)
    assert len(positions) > 5
    assert distinct_views(box, positions) == len(positions)


def test_that_check_notices_a_broken_callback(full, monkeypatch):
    monkeypatch.setattr(widgets, "render_step", lambda *_: b"always the same")
    box = widgets.stepper(full, pieces)
    assert distinct_views(box, walk(box, full)) == 1


def test_the_picture_is_the_pure_function_of_the_sliders(full):
    box = widgets.stepper(full, pieces)
    box.controls.step.value, box.controls.trial.value = 1, 1
    assert box.controls.image.value == widgets.render_step(full.steps, 1, 1, pieces)
    assert plt.imread(io.BytesIO(box.controls.image.value)).shape == (560, 1200, 4)


def test_readout_follows(full):
    box = widgets.stepper(full, pieces)
    step = full.steps[1]
    box.controls.step.value = 1
    assert f"<b>steps[1]</b> of {len(full.steps)} · trial 0 of {len(step.verdict.trials)}" in box.controls.readout.value
    assert "nothing tried yet" in box.controls.readout.value
    box.controls.trial.value = 1
    first = step.verdict.trials[0]
    said = box.controls.readout.value
    assert f"coin {step.uniforms[0]:.2f}" in said
    assert f"threshold {first.probability:.2f}: {'accepted' if first.accepted else 'rejected'}" in said
    box.controls.trial.value = box.controls.trial.max
    said = box.controls.readout.value
    marked = [part.split('"')[0] for part in said.split('title="')[1:]]
    assert len(marked) == len(step.tokens)
    assert marked[:-1] == ["accepted"] * len(step.verdict.path)
    assert marked[-1] in ("recovered", "bonus")
    assert " w" in said.split("pre-wrap")[1]
    assert "<&>" not in said
    assert "&lt;&amp;&gt;" in said


def test_text_of_the_last_step_is_the_generation(full, greedy):
    for generation in (full, greedy):
        box = widgets.stepper(generation, pieces)
        box.controls.step.value = box.controls.step.max
        box.controls.trial.value = box.controls.trial.max
        assert box.controls.readout.value.count("&lt;&amp;&gt;") == len(generation.tokens)


def test_ranges_follow_the_step(greedy):
    box = widgets.stepper(greedy, pieces)
    step, trial = box.controls.step, box.controls.trial
    assert step.max == len(greedy.steps) - 1
    counts = {len(s.verdict.trials) for s in greedy.steps}
    assert 0 in counts
    assert len(counts) > 2
    for i, s in reversed(list(enumerate(greedy.steps))):
        trial.value = trial.max
        step.value = i
        assert (trial.value, trial.max, trial.disabled) == (
            0,
            max(len(s.verdict.trials), 1),
            not s.verdict.trials,
        )
    step.value = 0
    step.value = next(i for i, s in enumerate(greedy.steps) if not s.verdict.trials)
    assert "own token" in box.controls.readout.value


def test_next_walks_through_all_trials_and_steps(greedy):
    box = widgets.stepper(greedy, pieces)
    clicks = sum(len(s.verdict.trials) for s in greedy.steps) + len(greedy.steps) - 1
    for _ in range(clicks):
        box.controls.next.click()
    assert box.controls.step.value == len(greedy.steps) - 1
    last = box.controls.image.value
    assert box.controls.trial.value == len(greedy.steps[-1].verdict.trials)
    box.controls.next.click()
    assert box.controls.image.value == last


def test_a_pair_gives_its_pieces(full):
    pair = type("AnyPair", (), {"pieces": staticmethod(pieces)})
    assert widgets.stepper(full, pair).controls.image.value == widgets.stepper(full, pieces).controls.image.value


def test_a_generation_without_steps_is_refused(full):
    with pytest.raises(ValueError, match="trace="):
        widgets.stepper(dataclasses.replace(full, steps=()), pieces)
    with pytest.raises(ValueError, match="upto"):
        widgets.render_step(full.steps, 0, 99, pieces)


def test_p_and_q_appear_with_a_full_trace_only(full):
    light = [step.light() for step in full.steps]
    assert widgets.render_step(light, 0, 1, pieces) != widgets.render_step(full.steps, 0, 1, pieces)
    assert widgets.render_step(light, 0, 0, pieces) == widgets.render_step(full.steps, 0, 0, pieces)


def test_outcome_in_words(full, greedy):
    decided = next(step for step in greedy.steps if step.verdict.trials)
    assert widgets.outcome(decided, 1).startswith("no coin, the target's choice: ")
    for step in full.steps:
        for k, trial in enumerate(step.verdict.trials, start=1):
            assert ("<" in widgets.outcome(step, k)) == trial.accepted


def test_nothing_is_left_behind(full, capsys):
    before = plt.get_fignums()
    style = dict(plt.rcParams)
    box = widgets.stepper(full, pieces)
    box.controls.next.click()
    widgets.acceptance_explorer()
    assert plt.get_fignums() == before
    assert dict(plt.rcParams) == style
    assert capsys.readouterr() == ("", "")


# ---- the acceptance explorer ----------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize("mix", [0.0, 0.3, 0.5, 1.0])
def test_exact_numbers_agree_with_the_formula(mix, gamma):
    numbers = widgets.acceptance(mix, gamma)
    alpha = np.minimum(widgets.TARGET, widgets.draft_law(mix)).sum()
    assert numbers["overlap"] == pytest.approx(alpha, abs=1e-12)
    assert numbers["distance"] == pytest.approx(1 - alpha, abs=1e-12)
    assert numbers["accepted"] == pytest.approx(sum(alpha**i for i in range(1, gamma + 1)), abs=1e-12)
    assert numbers["error"] < 1e-12


def test_draft_law_runs_from_the_target_to_one_hot():
    np.testing.assert_allclose(widgets.draft_law(0), widgets.TARGET)
    np.testing.assert_allclose(widgets.draft_law(0.5), (0.6, 0.3, 0.1))
    np.testing.assert_allclose(widgets.draft_law(0.75), (0.8, 0.15, 0.05))
    np.testing.assert_allclose(widgets.draft_law(1), (1, 0, 0))
    with pytest.raises(ValueError, match=r"0\.\.1"):
        widgets.draft_law(1.2)


def explorer_views(box) -> int:
    values = [(0.0, 1), (0.5, 1), (0.5, 2), (1.0, 2)]

    def at(mix, gamma):
        box.controls.mix.value, box.controls.gamma.value = mix, gamma

    return distinct_views(box, [lambda pair=pair: at(*pair) for pair in values])


def test_explorer_follows_its_sliders(monkeypatch):
    box = widgets.acceptance_explorer()
    assert explorer_views(box) == 4
    assert box.controls.image.value == widgets.render_acceptance(1.0, 2)
    assert (box.controls.gamma.min, box.controls.gamma.max) == (1, 3)
    monkeypatch.setattr(widgets, "render_acceptance", lambda *_: b"always the same")
    assert explorer_views(widgets.acceptance_explorer()) == 1
