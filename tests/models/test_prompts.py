"""Prompt sets: their sizes, their columns, and that no prompt is there twice."""

import pytest

from specnb.models import prompts

SIZES = {"own": 60, "humaneval": 164, "gsm100": 100, "dynatree": 1}


@pytest.mark.parametrize("name", SIZES)
def test_size_and_columns(name):
    frame = prompts.load(name)
    assert list(frame) == ["task", "id", "text"]
    assert len(frame) == SIZES[name]
    assert frame.id.is_unique
    assert frame.text.is_unique
    assert (frame.text.str.strip().str.len() > 10).all()
    assert (frame.text == frame.text.str.strip()).all()
    assert list(frame.index) == list(range(len(frame)))


def test_the_sets_are_these():
    assert set(prompts.SETS) == set(SIZES)


def test_own_prompts_are_ten_per_domain():
    counts = prompts.own().task.value_counts(sort=False)
    assert counts.to_dict() == dict.fromkeys(prompts.DOMAINS, 10)
    assert len(prompts.DOMAINS) == 6


def test_own_ids_name_their_domain():
    frame = prompts.own()
    assert [i.rsplit("-", 1)[0] for i in frame.id] == list(frame.task)


def test_humaneval_asks_for_each_function():
    frame = prompts.humaneval()
    assert set(frame.task) == {"humaneval"}
    assert list(frame.id) == [f"HumanEval/{n}" for n in range(164)]
    assert frame.text.str.startswith("Complete this Python function:\n\n```python\n").all()
    assert frame.text.str.endswith("\n```").all()
    assert frame.text.str.contains("def ").all()
    assert "def has_close_elements(" in frame.text[0]


def test_gsm100_are_questions():
    frame = prompts.gsm100()
    assert set(frame.task) == {"gsm100"}
    assert frame.text.str.contains(r"\d").mean() > 0.9
    assert frame.text.str.contains("?", regex=False).mean() > 0.9
    assert not frame.text.str.contains("####", regex=False).any()  # no answers in the questions


@pytest.mark.parametrize("name", ["mtbench", "", "Own"])
def test_unknown_set_names_the_known_ones(name):
    with pytest.raises(ValueError, match=f"unknown prompt set '{name}': known are own, dynatree, humaneval, gsm100"):
        prompts.load(name)


@pytest.mark.parametrize("kind", ["own", "translation"])
@pytest.mark.parametrize("count", ["-4", "many", "0", "", "2.5", "0-3", "5-4", "2-"])
def test_behind_the_colon_stands_a_number_of_prompts(kind, count):
    assert prompts.chosen(f"{kind}:1")[-1:] == prompts.chosen(kind)[50 if kind == "own" else 0 :][:1]
    two = [*prompts.chosen(f"{kind}:4"), *prompts.chosen(f"{kind}:5-10")]
    assert sorted(two) == sorted(prompts.chosen(kind))
    with pytest.raises(ValueError, match=f"'{kind}:{count}': behind the colon stands how many prompts, 4 or 5-10"):
        prompts.chosen(f"{kind}:{count}")
