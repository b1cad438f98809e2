"""DynaTree on real decoding: the text is plain decoding's for any setting, and is not without position ids."""

import os

import numpy as np
import pytest
from tiny import llama

from specnb import bench, growth, head_drafts, replay, verifiers
from specnb.broken import Unpositioned
from specnb.decode import decode
from specnb.draft_models import CausalLMDraft
from specnb.drafters import TreeDrafter
from specnb.target import Target

FULL = os.environ.get("SPECNB_PROFILE") == "full"
LARGEST = growth.DynaTree(8, 4, 0.005, 4000)


def settings(count: int, seed: int = 0) -> list[growth.DynaTree]:
    rng = np.random.default_rng(seed)
    return [
        growth.DynaTree(
            int(rng.integers(3, 9)), int(rng.integers(2, 5)), float(rng.uniform(0.01, 0.2)), int(rng.integers(8, 129))
        )
        for _ in range(count)
    ]


def greedy(target: Target, draft, rule: growth.Growth, prompt: list[int], tokens: int):
    return decode(target, TreeDrafter(draft, rule), verifiers.greedy, prompt, max_new_tokens=tokens, eos=())


def test_without_position_ids_the_text_breaks():
    """On a random model: right positions give the plain text for every setting, positions in a row do not."""
    model = llama()
    draft, prompt = CausalLMDraft(model), [5, 9, 2]
    plain = bench.generate(model, max_new_tokens=40, eos_token_id=10_000)(prompt)
    rules = settings(5)
    assert all(list(greedy(Target(model), draft, rule, prompt, 40).tokens) == plain for rule in rules)
    assert any(list(greedy(Unpositioned(model), draft, rule, prompt, 40).tokens) != plain for rule in rules)


@pytest.mark.model
def test_same_text_on_the_model(smollm2):
    """float32, near-tie rule; CI takes 6 prompts and settings, SPECNB_PROFILE=full 60 prompts under 20 settings."""
    rules, draft = settings(20 if FULL else 6), head_drafts.load("vdm", smollm2.target)
    prompts = [smollm2.encode(text) for text in bench.choose("own", 10 if FULL else 1)["text"]]
    for i, prompt in enumerate(prompts):
        mine = rules if FULL else rules[i : i + 1]
        methods = {"generate": bench.generate(smollm2.target, max_new_tokens=32)}
        for k, rule in enumerate(mine):
            drafter = TreeDrafter(draft, rule)
            methods[f"dynatree {k}"] = bench.speculative(smollm2.target, drafter, verifiers.greedy, max_new_tokens=32)
        table = bench.same_text(smollm2.target, methods, [prompt])
        assert table["same"].all(), table[~table["same"]]


@pytest.mark.model
def test_replay_is_the_real_run_on_the_model(smollm2):
    """Accepted lengths and tree sizes, exactly: 5 prompts × 20 settings in full, a few in CI."""
    prompts = [smollm2.encode(text) for text in bench.choose("own", 1)["text"]][: 5 if FULL else 1]
    for name in ("vdm", "eagle"):
        draft = head_drafts.load(name, smollm2.target)
        for prompt in prompts:
            text = greedy(Target(smollm2.target), draft, growth.chain(3), prompt, 40).tokens
            recording = replay.record(Target(smollm2.target), draft, LARGEST, prompt, text)
            for rule in settings(20 if FULL else 3, seed=1):
                real, turns = greedy(Target(smollm2.target), draft, rule, prompt, 40), replay.replay(recording, rule)
                assert [len(step.verdict.path) for step in real.steps] == [turn.accepted for turn in turns], rule
                assert [len(step.draft.tree) for step in real.steps] == [turn.nodes for turn in turns], rule


@pytest.mark.model
def test_methods_by_name(smollm2):
    """All that claim it write generate's text; a small window, once full, does not."""
    prompt = smollm2.encode("Name three rivers and say where they end.")
    names = ["generate", "assistant", "linear", "streaming 1024", "dynatree"]
    methods = bench.drafted(smollm2, names, max_new_tokens=24, whole=True)
    texts = {name: method(prompt) for name, method in methods.items()}
    assert set(map(tuple, texts.values())) == {tuple(texts["generate"])}
    assert len(texts["generate"]) == 24
    with pytest.raises(ValueError, match="unknown method 'magic': known are generate, prompt lookup"):
        bench.drafted(smollm2, ["magic"], max_new_tokens=4)
