"""One call for a newcomer: its text is the target's own, by the fastest drafter there is, from Python and the shell."""

import io
import re

import pytest
import torch
from tiny import TEMPLATE, generated, llama, near_copy, tokenizer

import specnb
from specnb import __main__ as command
from specnb import models, one_call
from specnb.drafters import AutoDrafter, NgramDrafter
from specnb.drafters.seconds import ForwardSeconds
from specnb.models import files
from study.measure import loading
from study.methods import METHODS

PROMPT = "abcabcabc"


def pair(draft: bool = True) -> models.Pair:
    """A tiny target, that writes bytes; its draft model is a near copy."""
    target = llama(vocab_size=260)
    return models.Pair("tiny", target, near_copy(target) if draft else None, tokenizer(template=TEMPLATE))


PRICES = ForwardSeconds(tuple(1 + 0.01 * nodes for nodes in range(32)), (0.01,) * 8)


@pytest.fixture(autouse=True)
def cheap_drafts(monkeypatch):
    """Prices as on a quiet machine with a small draft: what is measured here would change from run to run."""
    monkeypatch.setattr(one_call.seconds, "kept", lambda *args, **options: PRICES)
    one_call.CHOICES.clear()


# --- from Python


@pytest.mark.parametrize("draft", [True, False])
def test_the_text_is_the_targets_own_in_fewer_calls(draft):
    both = pair(draft)
    pieces = []
    answer = specnb.generate(PROMPT, model=both, max_new_tokens=24, on_call=pieces.append)
    assert list(answer.tokens) == generated(both.target, both.encode(PROMPT), 24)
    assert "".join(answer.writes) == answer.text == both.decode(answer.tokens)
    assert list(answer.writes) == pieces
    assert answer.calls == len(answer.writes) == len(answer.generation.steps)
    assert answer.generation.tokens == answer.tokens
    if draft:
        assert answer.calls < 24
    assert answer.drafter.startswith("auto" if draft else "n-gram tree")


def test_a_bare_text_is_another_prompt_and_sampling_follows_the_seed():
    both = pair()
    bare = specnb.generate(PROMPT, model=both, chat=False, max_new_tokens=8)
    assert list(bare.tokens) == generated(both.target, both.encode(PROMPT, chat=False), 8)
    first, again, other = (
        specnb.generate(PROMPT, model=both, max_new_tokens=24, temperature=1.0, seed=seed).tokens for seed in (1, 1, 2)
    )
    assert first == again != other


def test_the_same_for_transformers():
    both = pair()
    prompt = torch.tensor([both.encode(PROMPT)])
    right = generated(both.target, prompt[0].tolist(), 24)
    for model in (both, both.target):
        ours = both.target.generate(
            prompt, max_new_tokens=24, do_sample=False, custom_generate=specnb.custom_generate(model)
        )
        assert ours[0, prompt.shape[1] :].tolist() == right


def test_a_drafter_that_is_measured_again_takes_the_place_of_the_first(monkeypatch):
    both = pair()
    asked = []
    monkeypatch.setattr(one_call.seconds, "kept", lambda *args, anew: asked.append(anew) or PRICES)
    first = one_call.fastest_drafter(both)
    again = one_call.fastest_drafter(both, anew=True)
    assert again is not first
    assert one_call.fastest_drafter(both) is again
    assert asked == [False, True]


def test_a_character_over_several_tokens_counts_for_the_call_that_completes_it():
    both = pair()
    ids = both.tokenizer("é€")["input_ids"]
    shown, pieces = "", []
    for count in range(1, len(ids) + 1):
        pieces.append(one_call._new_text(both, ids[:count], shown, last=False))
        shown += pieces[-1]
    assert pieces == ["", "é", "", "", "€"]
    assert one_call._new_text(both, ids[:1], "", last=True) == "\N{REPLACEMENT CHARACTER}"


def test_without_a_draft_model_it_says_what_would_be_faster(monkeypatch):
    choice = one_call.fastest_drafter(pair(draft=False))
    assert isinstance(choice.drafter, NgramDrafter)
    assert "python -m training" in choice.what_would_be_faster
    monkeypatch.setattr(files, "CHECKED_OUT", False)
    plain = pair(draft=False)
    embedded = models.Pair(models.EMBEDDED, plain.target, None, plain.tokenizer)
    assert "git clone" in one_call.fastest_drafter(embedded).what_would_be_faster


@pytest.mark.model
def test_the_embedded_model_is_drafted_for_by_the_fastest_recorded_method(smollm2, monkeypatch):
    """The same as the study's ``auto``, which the README's race found to be the fastest."""
    monkeypatch.setattr(loading, "machine", lambda *_: PRICES)
    choice = one_call.fastest_drafter(smollm2)
    theirs, _, _ = loading.built(METHODS["auto"], smollm2, tokens=64)
    ours = choice.drafter
    assert choice.what_would_be_faster == ""
    assert isinstance(ours, AutoDrafter)
    assert type(ours) is type(theirs)
    assert type(ours.tree_drafter.draft_model) is type(theirs.tree_drafter.draft_model)
    assert ours.hidden_layers == theirs.hidden_layers
    assert ours.search == theirs.search
    assert ours.inner.other.budget == theirs.inner.other.budget
    answer = specnb.generate("Name three rivers.", model=smollm2, max_new_tokens=24)
    assert answer.tokens == tuple(models.generate(smollm2, smollm2.encode("Name three rivers."), 24))
    assert answer.calls < 24


def test_a_comparison_pairs_runs_and_finds_where_texts_part():
    both = pair()
    timed = one_call.compare(PROMPT, model=both, max_new_tokens=8, runs=2)
    assert (len(timed.seconds), len(timed.their_seconds), timed.tokens, timed.their_tokens) == (2, 2, 8, 8)
    assert timed.parted_at is None
    assert one_call._parted_at([1, 2, 3], [1, 9, 3]) == 1
    assert one_call._parted_at([1, 2], [1, 2, 3]) == 2
    slower = one_call.Comparison((2.0, 8.0, 1.0), (1.0, 2.0, 4.0), tokens=10, their_tokens=10, parted_at=None)
    assert slower.speed_up == 0.5  # of the ratios .5, .25 and 4


# --- from the shell


@pytest.fixture
def shell(monkeypatch, capsys):
    """Runs the command on the tiny pair; what it prints."""
    both = pair()
    monkeypatch.setattr(one_call, "_load", lambda name, dtype: both)

    def run(*words: str) -> str:
        command.main(list(words))
        return capsys.readouterr().out

    return run


def test_the_command_prints_what_each_call_wrote_and_the_counts(shell):
    said = shell(PROMPT, "--tokens", "12")
    answer = specnb.generate(PROMPT, model=one_call.load(), max_new_tokens=12)
    calls = re.search(r"12 tokens in (\d+) target calls", said)
    assert said.count("|") == int(calls[1]) - 1
    assert answer.text in said.replace("|", "")
    assert "drafted by auto" in said
    assert "transformers' generate" not in said


def test_it_compares_seconds_when_asked(shell):
    said = shell(PROMPT, "--tokens", "6", "--compare")
    assert "times as fast as transformers' generate on this prompt" in said
    assert " part at token" not in said


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["  "], "the prompt is empty"),
        (["x", "--model", "nosuch"], "unknown pair 'nosuch'"),
        (["x", "--tokens", "0"], "max_new_tokens must be a whole number"),
        (["x", "--tokens", "1000"], "exceed the context"),
        (["x", "--temperature", "-1"], "temperature"),
        ([], "the following arguments are required: prompt"),
    ],
)
def test_a_mistake_is_one_line_and_no_traceback(words, reason, monkeypatch, capsys):
    both = pair()
    if "--model" not in words:
        monkeypatch.setattr(one_call, "_load", lambda name, dtype: both)
    with pytest.raises(SystemExit) as end:
        command.main(words)
    assert end.value.code == 2
    assert reason in capsys.readouterr().err


def test_colours_where_there_is_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.delenv("NO_COLOR", raising=False)
    printer = command.Printer()
    printer("one")
    printer("two")
    assert screen.getvalue() == "\033[34mone\033[0m\033[35mtwo\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert not command.Printer().coloured
