"""The judgement of anybody's sampler: ten right ones pass, six wrong ones are refuted by what a reader can follow."""

import inspect
import math
import subprocess
import sys
from pathlib import Path

import foreign
import pytest
import torch
from transformers.generation import utils

from specnb import exact, verifiers
from specnb.exact import conventions, judgement
from specnb.exact.__main__ import main
from specnb.tree import Verdict


@pytest.mark.parametrize("sampler", foreign.RIGHT, ids=lambda sampler: sampler.__name__)
def test_a_right_sampler_is_found_lossless(sampler):
    found = exact.judge(sampler, conventions.PLAIN)
    assert (found.verdict, found.counterexample) == (judgement.LOSSLESS, None), str(found)
    assert found.judged == 2 * len(judgement.worlds())
    assert found.distance <= 1e-12


@pytest.mark.parametrize("sampler", foreign.WRONG, ids=lambda sampler: sampler.__name__)
def test_a_wrong_one_is_refuted_by_a_law_that_adds_up(sampler):
    found = exact.judge(sampler, conventions.PLAIN)
    assert found.verdict == judgement.LOSSY
    shown = found.counterexample
    assert abs(shown.given - shown.right) > 1e-3
    assert sum(given for given, _ in shown.laws.values()) == pytest.approx(1)
    assert sum(right for _, right in shown.laws.values()) == pytest.approx(1)
    assert sum(script.probability for script in shown.scripts) == pytest.approx(1)
    # by hand: what leads to the text, each completed by the target, makes its probability
    total = 0.0
    for script in shown.leading:
        text = script.committed
        chance = script.probability
        while len(text) < len(shown.tokens):
            chance *= float(shown.world.p(text)[shown.tokens[len(text)]])
            text = (*text, shown.tokens[len(text)])
        total += chance
    assert total == pytest.approx(shown.given)
    assert f"comes out with probability {shown.given:.6f}" in str(found)


def test_the_smallest_counterexample_comes_first():
    """A bug of the second position needs two draft tokens; the others are refuted with one."""
    shapes = {
        sampler.__name__: exact.judge(sampler, conventions.PLAIN).counterexample.shape.name for sampler in foreign.WRONG
    }
    assert shapes == {
        "no_residual": "a chain of 1", "same_uniform": "a chain of 2", "ratio_turned": "a chain of 1",
        "residual_of_the_first": "a chain of 2", "noise_used_again": "a chain of 1", "threshold": "a chain of 1",
    }  # fmt: skip


# --- samplers in use


def test_transformers_own_is_lossless_and_its_ensemble_weight_is_not():
    found = exact.judge(utils._speculative_sampling, conventions.TRANSFORMERS)
    assert found.verdict == judgement.LOSSLESS
    if "assistant_ensemble_weight" not in utils._speculative_sampling.__code__.co_varnames:
        pytest.skip("this transformers has no ensemble weight")

    def blended(*arguments):
        return utils._speculative_sampling(*arguments, assistant_ensemble_weight=0.9)

    found = exact.judge(blended, conventions.TRANSFORMERS, by_design=True)
    assert found.verdict == judgement.BY_DESIGN
    assert 0.01 < found.distance < 0.2


@pytest.mark.parametrize("name", ["token_level", "by_draw", "block", "traversal", "rrs", "rrsw"])
def test_our_own_verifiers_on_chains(name):
    assert exact.judge(getattr(verifiers, name), conventions.VERIFIER).verdict == judgement.LOSSLESS


@pytest.mark.parametrize(
    ("name", "convention"),
    [
        ("rrsw", conventions.VERIFIER_SWOR),
        ("traversal", conventions.VERIFIER_SWOR),
        ("one_hot", conventions.VERIFIER_TOP_K),
        ("sample_and_match", conventions.VERIFIER_TOP_K),
    ],
)
def test_our_own_verifiers_on_trees(name, convention):
    assert exact.judge(getattr(verifiers, name), convention).verdict == judgement.LOSSLESS


def test_a_verifier_that_accepts_everything():
    def accepts_everything(draft, p, coins):
        path = tuple(range(1, len(draft.tree)))
        return Verdict(path, coins.choose(p[len(path)]))

    assert exact.judge(accepts_everything, conventions.VERIFIER).verdict == judgement.LOSSY


def as_vllm(tokens, counts, longest, ends, draft_probs, target_probs, bonus, _, starts=None, bonus_of=None):
    """A sampler with vLLM's arguments, in plain torch. As in vLLM a request has one row of noise for all its places."""
    output = torch.full((len(counts), longest + 1), -1, dtype=torch.int32)
    uniform = torch.rand((len(tokens),), dtype=torch.float64)
    noise = torch.empty((len(counts), target_probs.shape[-1]), dtype=torch.float64)
    noise.exponential_()
    request_of_row = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    rest = (target_probs - draft_probs).clamp_min(0)
    recovered = (rest / noise[request_of_row]).argmax(-1)
    for request, count in enumerate(counts):
        start = int(ends[request]) - count if starts is None else starts[request]
        for place in range(count):
            token = int(tokens[start + place])
            if uniform[start + place] > target_probs[start + place, token] / draft_probs[start + place, token]:
                output[request, place] = recovered[start + place]
                break
            output[request, place] = token
        else:
            output[request, count] = bonus[request if bonus_of is None else bonus_of, 0]
    return output


def as_vllm_without_starts(*arguments):
    """Every request is taken to begin at the first row."""
    return as_vllm(*arguments, starts=[0] * len(arguments[1]))


def as_vllm_with_one_bonus(*arguments):
    """The first request's bonus token for all."""
    return as_vllm(*arguments, bonus_of=0)


def as_sglang(*, predicts, accept_index, accept_token_num, candidates, uniform_samples, **rest):
    """A sampler with SGLang's arguments: a node's children share one uniform number and the sum of p before them."""
    p, struck = rest["target_probs"][0], rest["draft_probs"][0]
    last = rest["uniform_samples_for_final_sampling"][0]
    node = 0
    accepted = 0
    accept_index[0, 0] = 0
    while True:
        child = int(rest["retrive_next_token"][0, node])
        total = 0.0
        while child >= 0:
            token = candidates[0, child]
            total += p[node, token]
            if uniform_samples[0, node] < total:
                break
            struck[node, token] = p[node, token]
            child = int(rest["retrive_next_sibling"][0, child])
        if child < 0:
            break
        predicts[node] = candidates[0, child]
        accepted += 1
        accept_index[0, accepted] = child
        node = child
    accept_token_num[0] = accepted
    law = (p[node] - struck[node]).clamp_min(0)
    law = law / law.sum()
    predicts[node] = (law.cumsum(0) > last).int().argmax()


def as_sglang_without_sums(**arguments):
    """The same number for all siblings, each compared with its own p: the younger ones are hardly ever accepted."""
    p = arguments["target_probs"]
    wrong = p.clone()
    wrong[..., 1:] = wrong[..., 1:] / 2
    as_sglang(**{**arguments, "target_probs": wrong / wrong.sum(-1, keepdim=True)})


def as_posterior(logits, candidates, process, forgets=False):
    """A sampler with the arguments of EAGLE-2's: chosen tokens, each with q = 1. forgets: refused ones come again."""
    leaf = 0
    path = []
    while True:
        law = torch.softmax(process(None, logits[leaf, len(path)]), -1)
        refused = law.clone()
        accepted = None
        for other, candidate in enumerate(candidates.tolist()):
            is_below = candidate[1 : 1 + len(path)] == path and len(candidate) > 1 + len(path)
            token = candidate[1 + len(path)] if is_below else -1
            if token < 0 or refused[token] == 0:
                continue
            if torch.rand(()) < refused[token] / refused.sum():
                leaf, accepted = other, token
                break
            refused[token] = 0
        if accepted is None:
            return leaf, len(path), law if forgets else refused
        path.append(accepted)


def as_posterior_forgetful(logits, candidates, process):
    """The same, but what was refused may be drawn at the end."""
    return as_posterior(logits, candidates, process, forgets=True)


def as_vllm_without_laws(*arguments):
    """A sampler with vLLM's arguments, for drafts that were looked up: each has q = 1."""
    tokens, _, _, _, draft_probs, target_probs, *_ = arguments
    assert draft_probs is None
    one_hot = torch.nn.functional.one_hot(tokens, target_probs.shape[-1]).double()
    return as_vllm(*arguments[:4], one_hot, *arguments[5:])


def as_vllm_with_softmax(*arguments):
    """The same with a law that the looked-up token was not drawn from."""
    target_probs = arguments[5]
    return as_vllm(*arguments[:4], torch.full_like(target_probs, 1 / 3), *arguments[5:])


CALLED = [
    (as_vllm, conventions.VLLM, True),
    (as_vllm_without_starts, conventions.VLLM, True),
    (as_vllm, conventions.VLLM_BATCH, True),
    (as_vllm_without_starts, conventions.VLLM_BATCH, False),
    (as_vllm_with_one_bonus, conventions.VLLM_BATCH, False),
    (as_vllm_without_laws, conventions.VLLM_NGRAM, True),
    (as_vllm_with_softmax, conventions.VLLM_NGRAM, False),
    (as_sglang, conventions.SGLANG, True),
    (as_sglang_without_sums, conventions.SGLANG, False),
    (as_posterior, conventions.POSTERIOR, True),
    (as_posterior_forgetful, conventions.POSTERIOR, False),
    (foreign.tree_recursive, conventions.TREE, True),
    (foreign.tree_struck, conventions.TREE, False),
    (foreign.tree_first_residual_only, conventions.TREE, False),
    (foreign.tree_struck, conventions.TREE_SWOR, True),
    (foreign.tree_recursive, conventions.TREE_SWOR, False),
    (foreign.tree_of_likeliest, conventions.TREE_TOP_K, True),
    (foreign.tree_by_softmax, conventions.TREE_TOP_K, False),
]


@pytest.mark.parametrize(("sampler", "convention", "right"), CALLED, ids=lambda one: getattr(one, "__name__", ""))
def test_the_conventions_of_engines_and_trees(sampler, convention, right):
    found = exact.judge(sampler, convention)
    assert found.is_lossless == right, str(found)


def test_a_chain_of_three_with_one_row_of_noise_a_request():
    """Three races on the same noise, of which at most one matters."""
    found = exact.judge(as_vllm, conventions.VLLM, shapes=exact.chains(3), tried=exact.worlds()[:2])
    assert found.verdict == judgement.LOSSLESS, str(found)


# --- what is not judged, and what is no step


def test_rounding_is_told_from_a_fault():
    def in_float32(p, q, drafted):
        return foreign.textbook(p.float(), q.float(), drafted)

    found = exact.judge(in_float32, conventions.PLAIN, dtype=torch.float64)
    assert found.verdict == judgement.LOSSY  # in float64 it would be a fault
    assert "this may be rounding: judge it with dtype=torch.float32" in str(found)
    found = exact.judge(in_float32, conventions.PLAIN)
    assert found.verdict == judgement.ROUNDING
    assert 1e-12 < found.distance < 2 * torch.finfo(torch.float32).eps
    assert exact.judge(foreign.no_residual, conventions.PLAIN, dtype=torch.bfloat16).verdict == judgement.LOSSY


def test_hidden_randomness_is_not_judged():
    generator = torch.Generator().manual_seed(0)
    hidden = __import__("numpy").random.default_rng(0)
    calls = []

    def by_a_generator_of_before(p, q, drafted):
        return drafted if hidden.random() < 0.5 else [0]

    def by_state(p, q, drafted):
        calls.append(1)
        return [len(calls) % 2]

    def by_randn(p, q, drafted):
        return [int(torch.randn(3, generator=generator).argmax())]

    for sampler, reason in [
        (by_a_generator_of_before, "run twice with the same coins"),
        (by_state, "run twice with the same coins"),
        (by_randn, "randn is random and is not enumerated"),
    ]:
        found = exact.judge(sampler, conventions.PLAIN)
        assert found.verdict == judgement.NOT_JUDGED
        assert not found.is_lossless
        assert reason in found.reason


def test_too_many_coins_end_with_a_message(monkeypatch):
    monkeypatch.setattr(judgement, "MOST_SCRIPTS", 50)

    def wasteful(p, q, drafted):
        (torch.rand(12) < 0.5).tolist()
        return foreign.textbook(p, q, drafted)

    found = exact.judge(wasteful, conventions.PLAIN)
    assert found.verdict == judgement.NOT_JUDGED
    assert "more than 50 sequences of coins" in found.reason


def test_a_counterexample_tells_who_tossed_and_what_the_target_adds():
    found = exact.judge(foreign.no_residual, conventions.PLAIN)
    said = str(found)
    source, start = inspect.getsourcelines(foreign.no_residual)
    comparing = start + next(place for place, line in enumerate(source) if "torch.rand" in line)
    assert "draft: draw from" in said
    assert f"line {comparing}: coin of" in said
    assert "(the target goes on) = " in said
    shown = [float(line.split(": ")[0].split(" = ")[-1]) for line in said.splitlines() if "→ commits" in line]
    assert sum(shown) == pytest.approx(found.counterexample.given, abs=1e-5)


@pytest.mark.parametrize("returned", [None, 1, torch.tensor(1), torch.tensor([[1]])])
def test_what_is_no_list_of_tokens_is_said(returned):
    def sampler(p, q, drafted):
        torch.rand(1)
        return returned

    with pytest.raises(ValueError, match="the sampler returned"):
        exact.judge(sampler, conventions.PLAIN)


@pytest.mark.parametrize("tokens", [[], [0, 0, 0, 0], [3], [-1]])
def test_what_is_no_step_is_an_error(tokens):
    with pytest.raises(ValueError, match="the sampler gave"):
        exact.judge(lambda p, q, drafted: tokens, conventions.PLAIN, shapes=exact.chains(1))


def test_nothing_to_try_is_an_error():
    for nothing in ({"tried": []}, {"shapes": []}):
        with pytest.raises(ValueError, match="nothing to try"):
            exact.judge(foreign.textbook, conventions.PLAIN, **nothing)


def test_in_a_test_of_ones_own():
    exact.assert_lossless(foreign.textbook, conventions.PLAIN, shapes=exact.chains(1))
    with pytest.raises(AssertionError, match="not lossless: total variation"):
        exact.assert_lossless(foreign.no_residual, conventions.PLAIN)


def test_worlds_are_what_they_are_called():
    by_name = {world.name: world for world in judgement.worlds()}
    assert torch.equal(by_name["p = q"].p((1,)), by_name["p = q"].q((1,)))
    assert float((by_name["nothing in common"].p(()) * by_name["nothing in common"].q(())).sum()) == 0
    assert by_name["q misses a token"].q(())[2] == 0
    assert len(set(by_name["tied"].p(()).tolist())) < 3
    assert (by_name["p cut to the top 2"].p(()) > 0).sum() == 2
    for world in by_name.values():
        assert math.isclose(float(world.p((0,)).sum()), 1)


# --- the command


def test_the_command_says_it_by_its_status(capsys):
    file = str(Path(foreign.__file__))
    assert main([f"{file}:textbook", "--lengths", "1"]) == 0
    assert capsys.readouterr().out.startswith("lossless: ")
    assert main([f"{file}:no_residual"]) == 1
    assert "Ways that lead to" in capsys.readouterr().out
    assert main([f"{file}:threshold", "--by-design"]) == 0
    assert main(["transformers.generation.utils:_speculative_sampling", "--as", "transformers", "--lengths", "1"]) == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nosuch.py:f"], "there is no file nosuch.py"),
        (["nosuch_module:f"], "there is no module nosuch_module"),
        ([f"{foreign.__file__}:nosuch"], "has no function nosuch: it has "),
        (["mine.py"], "say FILE.py:FUNCTION"),
        ([f"{foreign.__file__}:textbook", "--as", "nobody"], "invalid choice"),
        ([f"{foreign.__file__}:textbook", "--as", "vllm"], "It was called as 'vllm': sampler(draft_token_ids"),
        ([f"{foreign.__file__}:no_token"], "the sampler returned None, not the tokens that it commits"),
        ([f"{foreign.__file__}:textbook", "--lengths", "0"], "a draft has one token or more"),
        ([f"{foreign.__file__}:textbook", "--vocabulary", "2"], "the worlds need three tokens or more"),
        ([f"{foreign.__file__}:draws_and_reports", "--as", "draft", "--by-design"], "--by-design is for samplers"),
    ],
)
def test_a_mistake_is_told_in_a_line(words, reason, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert reason in capsys.readouterr().err


def test_as_a_process():
    command = [sys.executable, "-m", "specnb.exact", f"{foreign.__file__}:no_residual", "--lengths", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.startswith("not lossless: ")


def test_a_reader_may_have_enough():
    """As with ``| head -1``: no traceback, and the verdict's status."""
    command = [sys.executable, "-m", "specnb.exact", f"{foreign.__file__}:no_residual", "--lengths", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1


def test_the_judge_needs_torch_and_numpy_only():
    """With a control: the exact laws of this project's own loop need transformers."""
    program = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("transformers", "pandas", "scipy", "matplotlib"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
from specnb.exact.__main__ import main
status = main([sys.argv[1], "--lengths", "1"])
from specnb import exact
try:
    exact.output_law
except ImportError as error:
    print(error)
    sys.exit(status)
"""
    command = [sys.executable, "-c", program, f"{foreign.__file__}:textbook"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    verdict, *_, control = done.stdout.strip().splitlines()
    assert verdict.startswith("lossless: ")
    assert "is blocked" in control
