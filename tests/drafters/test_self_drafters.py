"""PTD, Self-Draft and lookahead in the engine: the same text, bounded memory, and sampling that is exact."""

import pickle
import random
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from tiny import llama, tau

from specnb import verifiers
from specnb.decode import decode
from specnb.drafters import Corpus, LookaheadDrafter, ProgressiveDrafter, SelfDrafter
from specnb.exact import engine_law, in_float64, joint, total_variation
from specnb.exact.gallery import Unpositioned
from specnb.sampling import Warp
from specnb.target import Target

TINY = llama(0, max_position_embeddings=512)
DRAFTERS = {
    "ptd": ProgressiveDrafter,
    "ptd, chained": lambda: ProgressiveDrafter(chained=True),
    "ptd, prompt": lambda: ProgressiveDrafter(from_prompt=True),
    "ptd, sampled": lambda: ProgressiveDrafter(expand="sample"),
    "ptd, without feedback": lambda: ProgressiveDrafter(feedback=False),
    "self-draft": SelfDrafter,
    "self-draft, corpus": partial(SelfDrafter, corpus=Corpus([[3, 1, 4, 1, 5, 9, 2, 6]])),
    "lookahead": lambda: LookaheadDrafter(7, 5, 7),
    "lookahead, prompt": lambda: LookaheadDrafter(7, 5, 7, from_prompt=True),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_reach_is_how_deep_auxiliary_nodes_go(name):
    drafter = DRAFTERS[name]()
    out = decode(Target(TINY), drafter, verifiers.greedy, [3, 1, 4, 1, 5], max_new_tokens=120)
    deepest = max(int(step.draft.tree.depth[step.draft.auxiliary].max()) for step in out.steps)
    assert deepest == drafter.reach
    decode(Target(TINY), drafter, verifiers.greedy, [3] * (512 - 8 - drafter.reach), max_new_tokens=8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LookaheadDrafter(level=2), "level, the length of the n-grams, must be at least 3, got 2"),
        (lambda: LookaheadDrafter(window=0), "window must be at least 1, got 0"),
        (lambda: SelfDrafter(length=2), "length, of a branch with its prefix, must be at least 3, got 2"),
        (lambda: SelfDrafter(branches=0), "branches must be at least 1, got 0"),
        (lambda: ProgressiveDrafter(depth=0), "depth must be at least 1, got 0"),
        (lambda: ProgressiveDrafter(expand="beam"), "expand must be one of argmax, topk, topp, sample, got 'beam'"),
    ],
)
def test_settings_without_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("make", [partial(LookaheadDrafter, 7, 5, 7), SelfDrafter, DRAFTERS["self-draft, corpus"]])
def test_without_bonus_a_whole_gram_of_four_earns_four_tokens_and_with_it_five(make):
    for bonus, most in ((False, 4), (True, 5)):
        out = decode(Target(TINY), make(bonus=bonus), verifiers.greedy, [3, 1, 4, 1, 5], max_new_tokens=80)
        assert max(len(step.tokens) for step in out.steps) == most


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_text_is_plain_decodings(name):
    for prompt in ([7], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]):
        ids = torch.tensor([prompt])
        with torch.no_grad():
            plain = TINY.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=80)
        out = decode(Target(TINY), DRAFTERS[name](), verifiers.greedy, prompt, max_new_tokens=80)
        assert list(out.tokens) == plain[0, len(prompt) :].tolist()
    assert tau(out.steps) > 1.1  # it does draft


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_drafter_starts_afresh_with_every_generation(name):
    drafter, prompt = DRAFTERS[name](), [3, 1, 4, 1, 5]
    first, second = (
        decode(Target(TINY), drafter, verifiers.one_hot, prompt, max_new_tokens=30, temperature=0.7, seed=1)
        for _ in range(2)
    )
    assert first.tokens == second.tokens
    assert [s.draft.tree.token_list for s in first.steps] == [s.draft.tree.token_list for s in second.steps]


def test_a_text_that_would_leave_the_context_is_refused_before_any_work():
    with pytest.raises(ValueError, match="exceed the context of 512, of which drafts take 6: shorten"):
        decode(Target(TINY), ProgressiveDrafter(), verifiers.greedy, [1, 2], max_new_tokens=505)
    decode(Target(TINY), ProgressiveDrafter(), verifiers.greedy, [1] * 490, max_new_tokens=12)


def scripted(tree):
    """Logits of a target that continues any text by a rule, without a model: for long runs."""
    rng = random.Random(sum(tree.token_list))
    logits = torch.zeros(len(tree), 200)
    logits[torch.arange(len(tree)), [(7 * t + rng.randrange(3)) % 200 for t in tree.token_list]] = 1
    return logits


@pytest.mark.parametrize(
    "make",
    [
        lambda: ProgressiveDrafter(2, 4, nodes=20, keys=50),
        lambda: SelfDrafter(grams=3, keys=50),
        lambda: LookaheadDrafter(4, 3, 3, keys=50, from_prompt=True),
    ],
    ids=["ptd", "self-draft", "lookahead"],
)
def test_pools_stay_bounded_over_ten_thousand_steps(make):
    drafter, bytes_held = make(), []
    drafter.begin([1, 2, 3], Warp(), {})
    for turn in range(10_000):
        draft = drafter.propose(None, 8)
        drafter.observe(draft, (), turn * turn % 200, {}, scripted(draft.tree))
        if turn >= 1000 and turn % 250 == 0:
            bytes_held.append(len(pickle.dumps(drafter.__dict__)))
    stored = drafter.pool.tries if hasattr(drafter.pool, "tries") else drafter.pool.lists
    assert len(stored) == 50  # full, and not beyond
    assert max(bytes_held[-10:]) < 1.2 * max(bytes_held[:10])


# ---- exactly lossless, through the real engine ------------------------------------------------------------------

SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}


SMALL = in_float64(llama(3, vocab_size=3, num_hidden_layers=1, **SIZES))


PROMPT, LENGTH = [0, 1, 2, 0], 4


def plain_law():
    """The tiny transformer's own law of LENGTH tokens after the prompt, by plain forwards."""

    @torch.no_grad()
    def model(prefix):
        return SMALL(torch.tensor([[*PROMPT, *prefix]])).logits[0, -1].softmax(-1)

    return joint(model, LENGTH)


SMALL_DRAFTERS = {
    "ptd": lambda: ProgressiveDrafter(2, 2),
    "ptd, sampled": lambda: ProgressiveDrafter(2, 2, expand="sample", chained=True),
    "self-draft": lambda: SelfDrafter(2, 3, gram=1, corpus=Corpus([[0, 1, 2, 2]])),
    "lookahead": lambda: LookaheadDrafter(2, 3, 2, from_prompt=True),
}


def error(target, name, verifier):
    """Total variation between the exact law of whole generations, every coin enumerated, and the model's own."""
    return total_variation(engine_law(target, SMALL_DRAFTERS[name](), verifier, PROMPT, LENGTH), plain_law())


@pytest.mark.parametrize("name", SMALL_DRAFTERS)
def test_sampling_is_exact_through_the_whole_engine(name):
    assert error(Target(SMALL), name, verifiers.one_hot) < 1e-12


def unstruck(draft, p, coins):
    """One-hot verification that forgets to strike a rejected candidate out before it draws the recovered token."""
    verdict = verifiers.one_hot(draft, p, SimpleNamespace(accept=coins.accept, choose=lambda law: 0))
    return verifiers.Verdict(verdict.path, coins.choose(p[verdict.path[-1] if verdict.path else 0]), verdict.trials)


@pytest.mark.parametrize("name", SMALL_DRAFTERS)
def test_a_broken_verifier_is_caught_there(name):
    assert error(Target(SMALL), name, unstruck) > 0.01


@pytest.mark.parametrize("name", ["ptd", "lookahead"])
def test_a_target_without_positions_is_caught_there(name):
    assert error(Unpositioned(SMALL), name, verifiers.one_hot) > 1e-5
