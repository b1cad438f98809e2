"""The stepper, without a browser: set traits, and picture, readout and ranges must follow."""

import dataclasses
import io

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import pytest
from tiny import llama

from specnb import growth, show, verifiers
from specnb.decode import decode
from specnb.drafters import CausalLMDraft, NgramDrafter, TreeDrafter
from specnb.show.stepper import outcome, render_step
from specnb.target import Target
from specnb.tree import Drawn


def pieces(tokens) -> list[str]:
    return [f"␣w{int(t)}<&>" for t in tokens]


@pytest.fixture(scope="module")
def full():
    """Sampled trees with coins, p and q recorded."""
    drafter = TreeDrafter(CausalLMDraft(llama(1)), growth.kary(2, 2), Drawn.SWOR)
    stop = lambda tokens: "enough" if len(tokens) == 12 else None  # noqa: E731
    options = {"max_new_tokens": 40, "stop": stop, "temperature": 1.0, "trace": "full", "eos": ()}
    return decode(Target(llama(0)), drafter, verifiers.rrsw, [1, 2, 3, 4], **options)


@pytest.fixture(scope="module")
def greedy():
    """Prompt lookup at temperature 0: no coins, no q, some steps without a draft; no tables in the trace."""
    options = {"max_new_tokens": 16, "eos": ()}
    return decode(Target(llama(0)), NgramDrafter(), verifiers.greedy, [1, 2, 3, 1, 2], **options)


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


def test_every_position_has_its_own_picture(full):
    box = show.stepper(full, pieces)
    positions = walk(box, full)
    assert len(positions) > 5
    assert distinct_views(box, positions) == len(positions)


def test_that_check_notices_a_broken_callback(full, monkeypatch):
    monkeypatch.setitem(show.stepper.__globals__, "render_step", lambda *_: b"always the same")
    box = show.stepper(full, pieces)
    assert distinct_views(box, walk(box, full)) == 1


def test_the_picture_is_the_pure_function_of_the_sliders(full):
    box = show.stepper(full, pieces)
    box.controls.step.value, box.controls.trial.value = 1, 1
    assert box.controls.image.value == render_step(full.steps, 1, 1, pieces)
    assert plt.imread(io.BytesIO(box.controls.image.value)).shape == (560, 1200, 4)


def test_readout_follows(full):
    box = show.stepper(full, pieces)
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
        box = show.stepper(generation, pieces)
        box.controls.step.value = box.controls.step.max
        box.controls.trial.value = box.controls.trial.max
        assert box.controls.readout.value.count("&lt;&amp;&gt;") == len(generation.tokens)


def test_ranges_follow_the_step(greedy):
    box = show.stepper(greedy, pieces)
    step, trial = box.controls.step, box.controls.trial
    assert step.max == len(greedy.steps) - 1
    counts = {len(s.verdict.trials) for s in greedy.steps}
    assert 0 in counts
    assert len(counts) > 2
    for i, s in reversed(list(enumerate(greedy.steps))):
        trial.value = trial.max
        step.value = i
        assert (trial.value, trial.max, trial.disabled) == (0, max(len(s.verdict.trials), 1), not s.verdict.trials)
    step.value = 0
    step.value = next(i for i, s in enumerate(greedy.steps) if not s.verdict.trials)
    assert "own token" in box.controls.readout.value


def test_next_walks_through_all_trials_and_steps(greedy):
    box = show.stepper(greedy, pieces)
    clicks = sum(len(s.verdict.trials) for s in greedy.steps) + len(greedy.steps) - 1
    walked = [box.now(), *(box.controls.next.click() or box.now() for _ in range(clicks))]
    assert walked == box.walk
    assert box.controls.step.value == len(greedy.steps) - 1
    last = box.controls.image.value
    assert box.controls.trial.value == len(greedy.steps[-1].verdict.trials)
    box.controls.next.click()
    assert box.controls.image.value == last


def test_a_pair_gives_its_pieces(full):
    pair = type("AnyPair", (), {"pieces": staticmethod(pieces)})
    assert show.stepper(full, pair).controls.image.value == show.stepper(full, pieces).controls.image.value


def test_a_generation_without_steps_is_refused(full):
    with pytest.raises(ValueError, match="trace="):
        show.stepper(dataclasses.replace(full, steps=()), pieces)
    with pytest.raises(ValueError, match="upto"):
        render_step(full.steps, 0, 99, pieces)


def test_p_and_q_appear_with_a_full_trace_only(full):
    light = [step.light() for step in full.steps]
    assert render_step(light, 0, 1, pieces) != render_step(full.steps, 0, 1, pieces)
    assert render_step(light, 0, 0, pieces) == render_step(full.steps, 0, 0, pieces)


def test_outcome_in_words(full, greedy):
    decided = next(step for step in greedy.steps if step.verdict.trials)
    assert outcome(decided, 1).startswith("no coin, the target's choice: ")
    for step in full.steps:
        for k, trial in enumerate(step.verdict.trials, start=1):
            assert ("<" in outcome(step, k)) == trial.accepted


def test_nothing_is_left_behind(full, capsys):
    before = plt.get_fignums()
    style = dict(plt.rcParams)
    box = show.stepper(full, pieces)
    box.controls.next.click()
    show.acceptance_explorer()
    assert plt.get_fignums() == before
    assert dict(plt.rcParams) == style
    assert capsys.readouterr() == ("", "")
