"""PTD's draft tree in a widget: frames are the steps, pools those that the candidates came from."""

import pytest
from tiny import llama
from toy import paths

from specnb.drafters import ProgressiveDrafter
from specnb.show import growing
from specnb.target import Target
from study import metrics

TINY = llama(seed=2)


def test_growing_refuses_a_chained_tree():
    with pytest.raises(ValueError, match="chained=False"):
        growing.record_frames(Target(TINY), ProgressiveDrafter(chained=True), [1, 2], 2)


def pieces(tokens):
    return [f"t{token}" for token in tokens]


def test_the_growing_explorer_follows_its_slider():
    frames = growing.record_frames(Target(TINY), ProgressiveDrafter(), [3, 1, 4, 1, 5], 8)
    assert len(frames) == 8
    assert frames[0].pool == {}
    box = growing.growing_explorer(frames, pieces)
    seen = {box.controls.image.value}
    for index in range(1, 8):
        box.controls.step.value = index
        seen.add(box.controls.image.value)
        step = frames[index].step
        assert f"behind {len(frames[index].pool)} tokens" in box.controls.readout.value
        assert len(frames[index].drafted) == len(step.draft.tree) - metrics.drafted([step])[0]
    assert len(seen) == 8


def test_a_frames_pool_is_the_one_its_candidates_came_from():
    frames = growing.record_frames(Target(TINY), ProgressiveDrafter(), [3, 1, 4, 1, 5], 12)
    for frame in frames:
        tree = frame.step.draft.tree
        candidates = tree.keep(range(frame.step.draft.candidate_rows))
        known = paths(frame.pool.get(tree.token_list[0], {}))
        assert {candidates.path_tokens(node) for node in range(1, len(candidates))} <= known


def test_the_first_frames_words_escape_the_text():
    frames = growing.record_frames(Target(TINY), ProgressiveDrafter(), [3, 1], 2)
    _, words = growing.render(frames, 0, lambda tokens: ["<b>" for _ in tokens])
    assert "&lt;b&gt;" in words
    assert "<b>" not in words
