"""The loop end to end: same text as transformers' generate, its edges, its trace."""

import re
import time
from functools import cache

import numpy as np
import pytest
import torch
from rounding import same
from tiny import VOCABULARY, generated, llama, near_copy, tau
from transformers import GenerationConfig

from specnb import exact, growth, verifiers
from specnb.decode import PlainDrafter, decode, steps
from specnb.drafters import (
    AutoDrafter,
    CausalLMDraft,
    MergedDrafter,
    NgramDrafter,
    RetrievalDrafter,
    Tempered,
    TreeDrafter,
)
from specnb.models import Pair, prompts
from specnb.target import Target
from specnb.tree import Drawn, TokenTree

TARGET = llama(0)
OTHER = near_copy(TARGET)


def own_draft(model, shape, drawn=Drawn.POINT):
    return TreeDrafter(CausalLMDraft(model), shape, drawn)


DRAFTERS = {
    "plain": PlainDrafter,
    "ngram": NgramDrafter,
    "chain": lambda: own_draft(OTHER, growth.chain(4)),
    "binary": lambda: own_draft(OTHER, growth.kary(2, 3)),
    "eagle_25": lambda: own_draft(OTHER, growth.EAGLE_25),
    "medusa_63": lambda: own_draft(OTHER, growth.MEDUSA_63),
    "swor": lambda: own_draft(OTHER, growth.kary(2, 2), Drawn.SWOR),
    "self": lambda: own_draft(TARGET, growth.kary(3, 2)),
}
TREES = {"binary", "eagle_25", "medusa_63"}


@cache
def right_text(prompt: tuple[int, ...]) -> list[int]:
    return generated(TARGET, prompt, 30)


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("verifier", ["greedy", "one_hot", "by_draw", "sample_and_match"])
def test_greedy_text_is_generates(name, verifier):
    paths = []
    for prompt in ((7,), (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)):
        out = decode(Target(TARGET), DRAFTERS[name](), verifiers.BY_NAME[verifier], prompt, max_new_tokens=30)
        assert list(out.tokens) == right_text(prompt)
        assert out.finish == "length"
        paths += [step.verdict.path for step in out.steps]
    assert any(paths) == (name != "plain")
    if name in TREES:
        assert any(path != tuple(range(1, 1 + len(path))) for path in paths)  # a later child was accepted


def test_the_target_as_its_own_draft_accepts_everything():
    for gamma in (1, 3, 6):
        n = 5 * (gamma + 1)
        out = decode(Target(TARGET), own_draft(TARGET, growth.chain(gamma)), verifiers.greedy, [5, 6], max_new_tokens=n)
        assert tau(out.steps) == gamma + 1
        sampled = own_draft(TARGET, growth.chain(gamma), Drawn.IID)
        out = decode(Target(TARGET), sampled, verifiers.rrs, [5, 6], max_new_tokens=n, temperature=1.0)
        assert tau(out.steps) > 0.9 * (gamma + 1)  # q/p differ by rounding only


def test_eos_ends_the_text_inside_a_step():
    text = generated(TARGET, [7, 8], 30)
    eos = text[11]
    first = text.index(eos)
    for name in ("self", "ngram", "plain"):
        out = decode(Target(TARGET), DRAFTERS[name](), verifiers.greedy, [7, 8], max_new_tokens=30, eos=[eos])
        assert list(out.tokens) == text[: first + 1]
        assert out.finish == "eos"
        assert sum(len(step.tokens) for step in out.steps) == first + 1
    one = decode(Target(TARGET), PlainDrafter(), verifiers.greedy, [7, 8], max_new_tokens=30, eos=eos)
    assert one.tokens == out.tokens
    out = decode(Target(TARGET), DRAFTERS["self"](), verifiers.greedy, [7, 8], max_new_tokens=30, eos=())
    assert list(out.tokens) == text


def test_eos_is_taken_from_the_generation_config():
    model = llama(0)
    text = generated(model, [7, 8], 30)
    model.generation_config = GenerationConfig(eos_token_id=[text[9], 49])
    out = decode(Target(model), NgramDrafter(), verifiers.greedy, [7, 8], max_new_tokens=30)
    assert list(out.tokens) == generated(model, [7, 8], 30)
    assert out.finish == "eos"


def test_every_length_up_to_the_context_is_reached_exactly():
    for n in (1, 2, 3, 17, 126):
        out = decode(Target(TARGET), DRAFTERS["self"](), verifiers.greedy, [1, 2], max_new_tokens=n, eos=())
        assert len(out.tokens) == n


def test_trace_full_light_none():
    run = lambda trace: decode(  # noqa: E731
        Target(TARGET),
        DRAFTERS["swor"](),
        verifiers.rrsw,
        [1, 2, 3],
        max_new_tokens=12,
        temperature=1.0,
        seed=3,
        trace=trace,
    )
    full, light, none = map(run, ("full", "light", "none"))
    assert full.tokens == light.tokens == none.tokens
    assert none.steps == ()
    for a, b in zip(full.steps, light.steps, strict=True):
        assert a.p.shape == (len(a.draft.tree), VOCABULARY)
        if len(a.draft.tree) > 1:
            assert a.draft.q.shape == (len(a.draft.tree), VOCABULARY)
        assert b.p is None
        assert b.draft.q is None
        assert a.draft.tree.token_list == b.draft.tree.token_list
        assert a.verdict == b.verdict
        assert len(a.uniforms) == len(a.verdict.trials)
        assert all((u < t.probability) == t.accepted for u, t in zip(a.uniforms, a.verdict.trials, strict=True))
        assert set(a.seconds) == {"draft", "target", "verify", "commit"}
    starts = [step.start for step in full.steps]
    assert starts == [3 + sum(len(s.tokens) for s in full.steps[:i]) for i in range(len(full.steps))]
    with pytest.raises(ValueError, match="trace must be"):
        run("everything")


class Counted(CausalLMDraft):
    """A draft model that notes of each forward its nodes, and sleeps a little in it."""

    def begin(self, prefix, hidden):
        self.calls = []
        super().begin(prefix, hidden)

    def expand(self, tree, frontier):
        self.calls.append(len(frontier))
        time.sleep(0.002)
        return super().expand(tree, frontier)


PRICES = [1 + 0.01 * n for n in range(32)]
DRAFTING = {
    "POINT": lambda model: TreeDrafter(model, growth.kary(2, 3)),
    "SWOR": lambda model: TreeDrafter(model, growth.kary(2, 3), Drawn.SWOR),
    "pruned": lambda model: TreeDrafter(model, growth.Salf(12, 3, 0.1, 4)),
    "merged": lambda model: MergedDrafter(TreeDrafter(model, growth.kary(2, 3)), NgramDrafter()),
    "auto": lambda model: AutoDrafter(model, PRICES, [0.01] * 4),
    "auto, merged": lambda model: AutoDrafter(model, PRICES, [0.01] * 4, RetrievalDrafter()),
}


@pytest.mark.parametrize("trace", ["full", "light"])
@pytest.mark.parametrize("name", DRAFTING)
def test_steps_tell_sizes_and_seconds_of_the_draft_models_forwards(name, trace):
    model = Counted(OTHER)
    verifier, heat = (verifiers.rrsw, 1.0) if name == "SWOR" else (verifiers.one_hot, 0.0)
    out = decode(
        Target(TARGET), DRAFTING[name](model), verifier, [5, 9, 2], max_new_tokens=20, temperature=heat, trace=trace
    )
    assert [each.nodes for step in out.steps for each in step.draft.expansions] == model.calls
    assert len(model.calls) >= len(out.steps) - 1  # the last token needs no draft
    for step in out.steps:
        taken = sum(each.seconds for each in step.draft.expansions)
        assert 0.002 * len(step.draft.expansions) <= taken <= step.seconds["draft"]
        if step.draft.expansions:
            assert step.draft.expansions[0].mass == 1.0


def test_where_no_draft_model_is_asked_there_are_no_forwards():
    for drafter in (PlainDrafter(), NgramDrafter()):
        out = decode(Target(TARGET), drafter, verifiers.greedy, [5, 6, 5], max_new_tokens=8)
        assert all(step.draft.expansions == () and step.draft.sources is None for step in out.steps)


def test_what_a_light_step_keeps_of_its_draft():
    drafter = DRAFTERS["swor"]()
    options = {"max_new_tokens": 12, "temperature": 1.0, "seed": 3}
    step = next(steps(Target(TARGET), drafter, verifiers.rrsw, [1, 2, 3], **options))
    light = step.light().draft
    assert (light.q, light.ids, light.drawn) == (None, None, Drawn.POINT)
    assert light.tree is step.draft.tree
    assert light.scores is step.draft.scores
    assert light.sources.tolist() == list(range(len(light.tree)))
    assert light.expansions == step.draft.expansions != ()


def test_same_seed_same_text_other_seed_other_text():
    texts = [
        decode(Target(TARGET), DRAFTERS["swor"](), verifiers.rrsw, [1], max_new_tokens=20, temperature=1, seed=s)
        for s in (1, 1, 2)
    ]
    assert texts[0].tokens == texts[1].tokens != texts[2].tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [1.5, 2.5]}, "ids must be a list of ints, got '[1.5, 2.5]': use pair.encode(text)"),
        ({"prompt": [float("nan")]}, "ids must be a list of ints, got '[nan]'"),
        ({"prompt": torch.tensor([1.0, 2.0])}, "ids must be a list of ints, got 'tensor([1., 2.])'"),
        ({"prompt": torch.tensor([[1, 2], [3, 4]])}, "ids must be a list of ints, got 'tensor([[1, 2],"),
        ({"prompt": [[1, 2]]}, "ids must be a list of ints, got '[[1, 2]]'"),
        ({"prompt": "Good morning"}, "ids must be a list of ints, got 'Good morning': use pair.encode(text)"),
        ({"prompt": ["Good", "morning"]}, "ids must be a list of ints, got \"['Good', 'morning']\""),
        ({"prompt": {"input_ids": [1, 2]}}, "ids must be a list of ints, got \"{'input_ids': [1, 2]}\""),
        ({"prompt": None}, "ids must be a list of ints, got 'None'"),
        ({"prompt": 5}, "ids must be a list of ints, got '5'"),
        ({"eos": "</s>"}, "ids must be a list of ints, got '</s>'"),
        ({"max_new_tokens": 0}, "max_new_tokens must be a whole number, at least 1, got 0"),
        ({"max_new_tokens": 2.5}, "max_new_tokens must be a whole number, at least 1, got 2.5"),
        ({"max_new_tokens": 10.0}, "max_new_tokens must be a whole number, at least 1, got 10.0"),
        ({"temperature": -0.5}, "temperature must be at least 0"),
        ({"temperature": float("inf")}, "temperature must be at least 0 (0 is greedy) and finite, got inf"),
        ({"top_p": 0.0}, "top_p must be in (0, 1]"),
        ({"prompt": [1] * 130}, "a prompt of 130 tokens and max_new_tokens=5 exceed the context of 128"),
        ({"prompt": [1, 99]}, "token id 99 is outside the model's vocabulary of 50"),
    ],
)
def test_bad_input(options, message):
    options = {"prompt": [1, 2], "max_new_tokens": 5, **options}
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        list(steps(Target(TARGET), PlainDrafter(), verifiers.greedy, options.pop("prompt"), **options))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("prompt", [(7, 8), range(7, 9), np.array([7, 8]), torch.tensor([7, 8])], ids=type)
def test_whole_numbers_are_token_ids_however_they_come(prompt):
    out = decode(Target(TARGET), PlainDrafter(), verifiers.greedy, prompt, max_new_tokens=5)
    assert out.prompt == (7, 8)
    assert list(out.tokens) == generated(TARGET, [7, 8], 5)


def test_a_model_is_no_target_and_a_pair_no_model():
    with pytest.raises(ValueError, match=r"decode needs a Target, got a LlamaForCausalLM: give Target\(pair.target\)"):
        decode(TARGET, PlainDrafter(), verifiers.greedy, [7, 8], max_new_tokens=5)
    with pytest.raises(ValueError, match=r"Target takes a model of transformers \(pair.target\), got a Pair"):
        Target(Pair("tiny", TARGET, None, None))


class Elsewhere(PlainDrafter):
    """A drafter that loses its place: the root of its second draft is not the last token."""

    def observe(self, draft, path, next_token, hidden, logits):
        self.root = (next_token + 1) % VOCABULARY


def test_a_draft_that_hangs_off_another_token_is_refused():
    with pytest.raises(
        ValueError, match=r"a draft hangs off the last committed token, \d+; its root is \d+ \(.*Elsewhere"
    ):
        decode(Target(TARGET), Elsewhere(), verifiers.greedy, [5, 6], max_new_tokens=8)


@pytest.mark.parametrize("shared", ["Target", "NgramDrafter"])
def test_targets_and_drafters_serve_one_generation_at_a_time(shared):
    target, drafter = Target(TARGET), NgramDrafter()
    first = steps(target, drafter, verifiers.greedy, [5, 6, 5], max_new_tokens=8)
    next(first)
    other = (target, NgramDrafter()) if shared == "Target" else (Target(TARGET), drafter)
    second = steps(*other, verifiers.greedy, [7, 8, 7], max_new_tokens=8)
    next(second)
    with pytest.raises(RuntimeError, match=f"this {shared} has begun another generation: make one for each"):
        next(first)
    assert target.serving is not None
    rest = [token for step in second for token in step.tokens]
    assert rest[-4:] == generated(TARGET, [7, 8, 7], 8)[-4:]  # the later one goes on
    again = decode(target, drafter, verifiers.greedy, [5, 6, 5], max_new_tokens=8)
    assert list(again.tokens) == generated(TARGET, [5, 6, 5], 8)


def test_a_model_in_training_is_scored_without_dropout_and_goes_on_training():
    model, draft = (llama(seed, attention_dropout=0.5).train() for seed in (0, 1))
    draft.lm_head.eval()
    out = decode(Target(model), own_draft(draft, growth.kary(2, 2)), verifiers.greedy, [5, 6], max_new_tokens=20)
    assert all(module.training for module in model.modules())
    assert [m for m in draft.modules() if not m.training] == [draft.lm_head]
    assert list(out.tokens) == generated(model.eval(), [5, 6], 20)


def test_the_ids_of_a_cut_draft_model_stand_whatever_the_vocabulary():
    ids = torch.arange(10, 60)
    draft = CausalLMDraft(llama(1), vocabulary=70, ids=ids)
    assert draft.ids is ids
    assert draft.columns == 50


@pytest.mark.parametrize("context", [2, 3, 16])
@pytest.mark.parametrize(("drawn", "verifier"), [(Drawn.POINT, verifiers.greedy), (Drawn.SWOR, verifiers.rrsw)])
def test_where_a_draft_models_context_ends_the_text_goes_on_without_it(context, drawn, verifier):
    """Drafts reach the last position of the context, and no further; the text is written to its end."""
    small = CausalLMDraft(near_copy(llama(max_position_embeddings=context)))  # its weights are the target's, nearly
    heat = 0.0 if verifier is verifiers.greedy else 1.0
    out = decode(
        Target(TARGET), TreeDrafter(small, growth.chain(4), drawn), verifier, [1, 2, 3], max_new_tokens=40,
        temperature=heat,
    )  # fmt: skip
    assert len(out.tokens) == 40
    deepest = [step.start - 1 + max(step.draft.tree.depth_list) for step in out.steps]
    with_drafts = [place for place, step in zip(deepest, out.steps, strict=True) if len(step.draft.tree) > 1]
    # A leaf needs no position in the draft's context: only what is expanded does.
    assert max(with_drafts, default=context) == context
    if not heat:
        assert list(out.tokens) == list(
            decode(Target(TARGET), PlainDrafter(), verifier, [1, 2, 3], max_new_tokens=40).tokens
        )


@pytest.mark.parametrize(("drawn", "verifier"), [(Drawn.POINT, verifiers.one_hot), (Drawn.SWOR, verifiers.rrsw)])
@pytest.mark.parametrize("prompt", [[1, 2, 3], [45, 7, VOCABULARY - 1]])
def test_a_draft_model_reads_on_where_it_does_not_know_a_token(drawn, verifier, prompt):
    """The target says tokens, and the prompt has some, that the draft's vocabulary of 20 lacks: same text."""
    model = llama(vocab_size=20)
    model.load_state_dict({k: w[:20] if len(w) == VOCABULARY else w for k, w in TARGET.state_dict().items()})
    drafter = TreeDrafter(CausalLMDraft(model, vocabulary=VOCABULARY), growth.kary(2, 2), drawn)
    out = decode(Target(TARGET), drafter, verifier, prompt, max_new_tokens=30)
    assert list(out.tokens) == generated(TARGET, prompt, 30)
    assert max(out.tokens) >= 20
    assert tau(out.steps) > 1


def test_the_law_of_a_target_with_more_tokens_than_its_draft_is_exact():
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    target, draft = llama(0, vocab_size=3, **sizes).double(), llama(1, vocab_size=2, **sizes).double()

    @torch.no_grad()
    def model(prefix):
        return target(torch.tensor([[1, 2, *prefix]])).logits[0, -1].softmax(-1)

    drafter = TreeDrafter(CausalLMDraft(draft, vocabulary=3), growth.kary(2, 1), Drawn.SWOR)
    found = exact.engine_law(Target(target), drafter, verifiers.rrsw, [1, 2], 3)
    assert exact.total_variation(found, exact.joint(model, 3)) < 1e-6  # probabilities are float32
    assert sum(mass for text, mass in found.items() if 2 in text[:2]) > 0.1


def test_draft_logits_equal_plain_forwards():
    """CausalLMDraft's cached, batched frontier = one plain forward per node, through several steps."""
    model, prefix = OTHER, [3, 1, 4, 1, 5]
    draft = CausalLMDraft(model)
    draft.begin(prefix, {})
    for path_pick in (3, 0, 5):
        grower = TreeDrafter(draft, growth.kary(2, 3))
        grower.root = prefix[-1]
        grower.warp = lambda logits: logits.softmax(-1)
        seen = []
        expand = draft.expand
        draft.expand = lambda tree, nodes, f=expand, seen=seen: (
            seen.append((tree, nodes, f(tree, nodes))) or seen[-1][2]
        )
        tree = grower.propose(None, 3).tree
        draft.expand = expand
        for partial, nodes, logits in seen:
            for node, row in zip(nodes, logits, strict=True):
                with torch.no_grad():
                    plain = model(torch.tensor([[*prefix, *partial.path_tokens(node)]])).logits[0, -1]
                assert same(row, plain)
        path = tree.path(path_pick)
        draft.commit(tree, path, 42, {})
        prefix += [*(tree.token_list[node] for node in path), 42]


# ---- the real model ---------------------------------------------------------------------------------------


def test_a_tempered_draft_ranks_alike_and_promises_less():
    """Same tree of ranks and the same text; its path probabilities are those of the softmax at that temperature."""
    drafts = (Tempered(CausalLMDraft(OTHER), 2.0), CausalLMDraft(OTHER))
    runs = [
        decode(Target(TARGET), TreeDrafter(draft, growth.kary(2, 2)), verifiers.greedy, [5, 9, 2], max_new_tokens=12)
        for draft in drafts
    ]
    assert runs[0].tokens == runs[1].tokens
    first, second = (run.steps[0].draft for run in runs)
    assert first.tree.token_list == second.tree.token_list
    logits = OTHER(torch.tensor([[5, 9, 2]])).logits[0, -1].detach()
    assert first.scores[1] == pytest.approx(float(torch.softmax(logits / 2, -1).max()), rel=1e-5)
    assert second.scores[1] == pytest.approx(float(torch.softmax(logits, -1).max()), rel=1e-5)
    assert second.scores[1] > first.scores[1] + 0.01
    with pytest.raises(ValueError, match="temperature must be above 0, got 0"):
        Tempered(CausalLMDraft(OTHER), 0)


@pytest.mark.model
def test_the_target_as_its_own_draft_accepts_everything_on_the_real_model(smollm2):
    drafter, ids = own_draft(smollm2.target, growth.chain(7)), smollm2.encode(prompts.text("conversation-01"))
    out = decode(Target(smollm2.target), drafter, verifiers.greedy, ids, max_new_tokens=16, eos=())
    assert [len(step.verdict.path) for step in out.steps] == [7, 7]  # τ = depth + 1 exactly


# ---- what is no part of the loop -----------------------------------------------------------------------------------


class Bare(PlainDrafter):
    """A drafter that gives a tree in place of a draft."""

    def propose(self, coins, max_depth):
        return TokenTree([self.root], [-1])


@pytest.mark.parametrize(
    ("drafter", "verifier", "message"),
    [
        (Bare(), verifiers.greedy, "propose of Bare should give a Draft, got a TokenTree"),
        (PlainDrafter(), lambda draft, p, coins: ((), 3), "the verifier <lambda> should give a Verdict, got a tuple"),
        (PlainDrafter(), "greedy", "a verifier such as verifiers.greedy, a function, got 'greedy'"),
    ],
)
def test_what_is_no_draft_verdict_or_verifier_is_refused_by_name(drafter, verifier, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        decode(Target(TARGET), drafter, verifier, [1, 2, 3], max_new_tokens=4)
