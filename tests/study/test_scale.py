"""The papers at their own scale: counts are those of published files, and the page says what the plans say."""

import shlex
from argparse import Namespace

import pandas as pd
import pytest

from specnb import heads, models
from specnb.models import files, prompts
from study import __main__ as command
from study import commands, experiments, methods, scale

PAGE = (files.ROOT / "docs" / "papers_scale.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("model", "count"),
    [
        ("meta-llama/Llama-2-7b-chat-hf", 6_738_415_616),
        ("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248),
        ("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("EleutherAI/pythia-2.8b", 2_775_208_960),
    ],
)
def test_parameters_are_those_that_the_hub_counts(model, count):
    assert scale.parameters(model) == count
    assert scale.parameters(model, 3) < count  # control: the number of layers matters


@pytest.mark.parametrize(
    ("target", "kind", "size", "each"),
    [  # sizes of pytorch_model.bin on the hub: EAGLE-Vicuna-7B-v1.3, EAGLE-llama2-chat-13B, EAGLE3-Vicuna1.3-13B
        ("lmsys/vicuna-7b-v1.3", "eagle", 1_468_043_538, 4),
        ("meta-llama/Llama-2-13b-chat-hf", "eagle", 2_133_897_490, 4),
        ("meta-llama/Llama-2-13b-chat-hf", "eagle3", 1_280_000_000, 2),  # printed with three digits; the same shapes
    ],
)
def test_heads_have_as_many_parameters_as_their_published_files(target, kind, size, each):
    shape = scale.SHAPES[target]
    embedding = shape["vocab_size"] * shape["hidden_size"] if kind == "eagle" else 0  # these files hold a copy of it
    assert each * (scale.head_parameters(target, kind) + embedding) == pytest.approx(size, rel=0.004)
    other = "eagle3" if kind == "eagle" else "eagle"
    assert each * (scale.head_parameters(target, other) + embedding) != pytest.approx(size, rel=0.1)  # control


def test_the_embedded_model_takes_the_time_that_was_measured():
    """Its own forwards are the measured ones: reading its weights takes less time."""
    assert scale.model_seconds("smollm2-135m") == scale._measured("target", False)
    graphs = scale.model_seconds("meta-llama/Llama-3.1-8B-Instruct", graphs=True)
    assert graphs[1] == pytest.approx(2 * 8_030_261_248 / 3.35e12)  # there it is the reading that takes longer


def test_minutes_by_hand(monkeypatch):
    """Ten tokens by two forwards of the target over one node, and one over eleven, with three of the draft over one.

    At 1 s and 2 s for the target and 0.1 s for the draft that is 4.3 s for ten tokens. For 50 tokens on 6 prompts,
    twice, it is 4.3 x 5 x 12 = 258 s.
    """
    row = {"method": "pair-chain-5", "status": "ok", "tokens": 10, "trees": [[1, 2], [11, 1]], "frontiers": [[1, 3]]}
    failed = row | {"status": "failed", "tokens": 0}
    monkeypatch.setattr(experiments, "recorded", lambda wanted: pd.DataFrame([row, failed]))
    curves = {"large": {1: 1.0, 11: 2.0}, "small": {1: 0.1, 2: 0.1}}
    monkeypatch.setattr(scale, "model_seconds", lambda name: curves[name])
    plan = scale.Plan("", "", "large", ["pair-chain-5"], None, "own:1", 6, 50, draft="small", repetitions=2)
    assert plan.minutes() == pytest.approx(258 / 60)


def test_gigabytes_by_hand(monkeypatch):
    monkeypatch.setattr(scale, "parameters", {"large": 4_000_000_000, "small": 500_000_000}.get)
    monkeypatch.setattr(scale, "head_parameters", lambda model, kind: 250_000_000)
    monkeypatch.setattr(scale, "cache_bytes", {"large": 100_000, "small": 20_000}.get)
    plan = scale.Plan("", "", "large", [], None, "own:1", 6, 500, draft="small", head="x/y", kind="eagle")
    assert plan.gigabytes() == pytest.approx(2 * 4.75 + 0.12)


@pytest.mark.parametrize("name", scale.PLANS)
def test_a_plan_is_what_it_says(name, monkeypatch):
    plan = scale.PLANS[name]
    assert plan.command(name) in PAGE.splitlines()
    assert len(prompts.chosen(plan.prompts)) == plan.count
    assert models.PAIRS.get(plan.pair, (plan.pair, None)) == (plan.target, plan.draft or None)
    recorded = {*plan.recorded.settings["methods"]}
    assert set(plan.methods) <= recorded
    assert bool(plan.head) == any(methods.method(method).head for method in plan.methods)  # none is given in vain
    assert 0 < plan.minutes() < 600
    assert 0 < plan.gigabytes() < 80


def test_a_plan_s_counts_are_of_texts_by_the_same_temperature():
    for plan in scale.PLANS.values():
        assert plan.recorded.settings.get("temperature", 0.0) == plan.temperature


def test_commands_of_plans_are_understood():
    """By the checks that come before anything is loaded. That their words parse is tested with all pages' commands."""
    for plan in scale.PLANS.values():
        words = plan.command("x").removeprefix("python -m study ")
        options = parsed(words)
        commands.checked_prompts(options)
    wrong = parsed(words.replace("salf-60", "salf-6000"))
    with pytest.raises(ValueError, match="unknown method"):  # control
        commands.checked_prompts(wrong)


def parsed(words: str) -> Namespace:
    return command._parser().parse_args(shlex.split(words))


def test_the_page_names_every_published_head_of_a_plan():
    for plan in scale.PLANS.values():
        if plan.kind:
            assert heads.published.is_of_hub(plan.head)
            assert f"| `{plan.head}`" in PAGE  # it stands in the table of heads
