"""Small random models of every architecture: the loop writes what ``generate`` writes, or the model is refused.

docs/architectures.md is made here: SPECNB_WRITE=1 pytest tests/loop/test_architectures.py -k documented
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import partial

import architectures
import pytest
import torch
import transformers
from architectures import LONG, SHORT, small
from packaging.version import Version
from transformers import LlavaConfig, LlavaForConditionalGeneration

from specnb import masks, target, verifiers
from specnb.decode import PlainDrafter, decode
from specnb.drafters import CausalLMDraft, NgramDrafter, draft_models
from specnb.models import Graphs, files
from specnb.target import Target, refusal
from specnb.tree import TokenTree

PAGE = files.ROOT / "docs" / "architectures.md"
WRITE = bool(os.environ.get("SPECNB_WRITE"))
DOCUMENTED = Version(transformers.__version__).release[:2] == (5, 24)
of_the_page = pytest.mark.skipif(not DOCUMENTED, reason="the page says what transformers 5.24 does")
CASES = architectures.cases()
WINDOWED = ["mistral", "mixtral", "phi3", "phimoe", "starcoder2", "qwen2", "qwen3_moe", "gemma2", "gpt_oss", "olmo3"]
WINDOWED += ["doge", "ministral3", "cohere2", "modernbert-decoder", "dory"]


def called(name: str, note: str, vision: bool) -> str:
    """A case's name among those of both tables."""
    return architectures.label(name, note) + (" with pictures" if vision else "")


def near_enough(model) -> float:
    """The error that is rounding: a share of the largest logit."""
    return torch.finfo(model.dtype).eps ** 0.5


# --- the table


def tables(page: str) -> dict[bool, dict[str, str]]:
    """Whether with pictures → what the page says becomes of each type: label → outcome."""
    found = {}
    for vision, mark in ((False, "causal"), (True, "vision")):
        part = page.partition(f"<!-- {mark} -->\n")[2].partition("<!-- end -->")[0]
        found[vision] = {}
        for outcome, count, names in re.findall(r"^\| (.+) \| (\d+) \| (.+) \|$", part, re.MULTILINE):
            assert len(names.split(", ")) == int(count)
            found[vision] |= dict.fromkeys(names.split(", "), outcome)
    return found


def table(vision: bool) -> str:
    """One of the page's tables, computed."""
    rows = defaultdict(list)
    for name, note, pictures in CASES:
        if pictures is vision:
            rows[architectures.outcome(name, note, vision)].append(architectures.label(name, note))
    order = sorted(rows, key=lambda outcome: (not outcome.startswith("exact"), outcome))
    lines = [f"| {outcome} | {len(rows[outcome])} | {', '.join(sorted(rows[outcome]))} |" for outcome in order]
    return "\n".join(["| result | how many | model types |", "|---|---|---|", *lines, ""])


def rewritten(page: str) -> str:
    for vision, mark in ((False, "causal"), (True, "vision")):
        before, start, rest = page.partition(f"<!-- {mark} -->\n")
        page = before + start + table(vision) + rest[rest.index("<!-- end -->") :]
    return page


# Types that people use most, which make test asks; and one of each row of the tables. The others are marked slow.
USUAL = {
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3", "gpt2", "gpt_neox",
    "gpt_oss", "llama4_text", "olmo3",
}  # fmt: skip


def chosen(cases: Iterable[tuple[str, str, bool]]) -> list:
    """Cases as parameters, slow but for the usual types and the first of each outcome that the page tells."""
    named, told, found = tables(PAGE.read_text(encoding="utf-8")), set(), []
    for name, note, vision in cases:
        outcome = named[vision].get(architectures.label(name, note)), vision
        first = outcome not in told
        told.add(outcome)
        marks = [] if first or (name in USUAL and not vision) else [pytest.mark.slow]
        found.append(pytest.param(name, note, vision, id=called(name, note, vision), marks=marks))
    return found


@of_the_page
def test_all_types_are_documented():
    """The page names every type of the installed transformers once, and every variant."""
    if WRITE:
        PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    named = tables(PAGE.read_text(encoding="utf-8"))
    for vision in (False, True):
        cases = {architectures.label(name, note) for name, note, pictures in CASES if pictures is vision}
        assert set(named[vision]) == cases


@of_the_page
def test_no_type_writes_wrong_text_unnoticed():
    named = tables(PAGE.read_text(encoding="utf-8"))
    assert not [name for rows in named.values() for name, outcome in rows.items() if outcome.startswith("WRONG")]


@of_the_page
@pytest.mark.skipif(WRITE, reason="the page has just been computed")
@pytest.mark.parametrize(("name", "note", "vision"), chosen(CASES))
def test_the_page_says_what_becomes_of_a_type(name, note, vision):
    documented = tables(PAGE.read_text(encoding="utf-8"))[vision][architectures.label(name, note)]
    assert architectures.outcome(name, note, vision) == documented


# Refused by a sentence that is not true of them: they would be exact.
UNTRUE = {
    "granitemoehybrid (without recurrent layers)": "others of its kind keep a state, it does not",
    "moss_transcribe_diarize": "it does not name position_ids, but hands them on",
    "evolla with pictures": "it does not name a cache, but hands one on",
}


def refused_cases() -> list:
    """The types and variants that the page says to be refused; those of UNTRUE are expected to fail."""
    named = tables(PAGE.read_text(encoding="utf-8"))
    refused = [case for case in CASES if named[case[2]].get(architectures.label(*case[:2]), "").startswith("refused: ")]
    found = []
    for case in chosen(refused):
        untrue = [pytest.mark.xfail(reason=UNTRUE[case.id], strict=True)] if case.id in UNTRUE else []
        found.append(pytest.param(*case.values, id=case.id, marks=[*case.marks, *untrue]))
    return found


@of_the_page
@pytest.mark.parametrize(("name", "note", "vision"), refused_cases())
def test_no_refused_type_would_be_exact(name, note, vision, monkeypatch):
    """Without its refusal a refused model raises, scores trees wrong or writes another text."""
    monkeypatch.setattr(target, "refusal", lambda model: None)
    monkeypatch.setattr(draft_models, "refusal", lambda model: None)
    assert not architectures.would_be_exact(architectures.made(name, note, vision))


REFUSED = {
    "bart": "its forward names no position_ids", "bert": "it reads both ways", "gpt_neo": "its local layers",
    "lfm2": "it has layers of the kind conv", "mamba": "models of its kind keep a state",
    "openai-gpt": "its forward names no cache",
}  # fmt: skip


@pytest.mark.parametrize(("name", "why"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_score_a_tree_is_refused(name, why):
    model = small(name)
    with pytest.raises(ValueError, match=f"^no trees with a {name} model .*{why}"):
        Target(model)
    with pytest.raises(ValueError, match=f"^no tree can be drafted by a {name} model: .*{why}"):
        CausalLMDraft(model)


def test_flash_attention_is_refused():
    model = small("llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="attention 'flash_attention_2' takes no tree mask: load it with"):
        Target(model)


# --- the table's own tests: what is wrong is found


@pytest.mark.parametrize("name", ["mistral", "qwen2", "gpt_oss"])
def test_a_window_left_out_is_noticed(name, monkeypatch):
    """Negative control: the first edition's mask, which shows every layer the whole prefix."""
    monkeypatch.setattr(masks, "by_layer", lambda mask, *_: mask)
    assert architectures.fate(small(name)).startswith("refused where it is checked (it scores a tree unlike")


def test_wrong_text_is_noticed(monkeypatch):
    """Negative control: consecutive position ids, and a check that passes whatever it is given."""
    monkeypatch.setattr(masks, "positions", lambda tree, length: (length + torch.arange(len(tree)))[None])
    monkeypatch.setattr(Target, "check", lambda self: 0.0)
    assert architectures.fate(small("llama")).startswith("WRONG")


def test_a_model_that_reads_nothing_tests_nothing():
    model = small("llama")
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    with pytest.raises(AssertionError, match="this model tests nothing"):
        architectures.fate(model)


def test_a_near_tie_is_no_error_and_another_token_is_one():
    sure, tie = torch.tensor([1.0, 9.0, 0.0]), torch.tensor([1.0, 9.0, 9.0 - 1e-6])
    assert architectures.Right([0], [1, 1], [sure, tie]).same([1, 2])
    assert not architectures.Right([0], [1, 1], [sure, tie]).same([0, 1])
    assert not architectures.Right([0], [1, 1], [sure, sure]).same([1])


# --- models that users make


def run_alike(model, base) -> bool:
    """Whether a model's text is the one that generate writes with another."""
    right = architectures.right_text(base)
    options = {"max_new_tokens": architectures.LENGTH, "eos": ()}
    return right.same(decode(Target(model), NgramDrafter(), verifiers.greedy, right.prompt, **options).tokens)


class Wrapping:
    """What stands around a model, a decorator for example, and says nothing of the arguments."""

    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize("name", ["llama", "gpt2", *WINDOWED])
@pytest.mark.parametrize("bases", [(), (Wrapping,)], ids=["subclass", "wrapper"])
def test_a_class_of_the_users_own_is_what_its_base_class_is(name, bases):
    """The class is defined in a notebook, whose module (__main__) knows nothing of windows."""
    base, model = small(name), small(name)
    model.__class__ = type("Mine", (*bases, type(model)), {"__module__": "__main__"})
    assert masks.layer_kinds(model) == masks.layer_kinds(base)
    assert run_alike(model, base)
    assert Target(model).check() <= near_enough(model)


@pytest.mark.parametrize("name", ["bart", "bert", "gpt_neo", "lfm2", "mamba", "openai-gpt"])
@pytest.mark.parametrize("bases", [(), (Wrapping,)], ids=["subclass", "wrapper"])
def test_a_class_of_the_users_own_is_refused_for_its_base_class_s_reason(name, bases):
    model = small(name)
    reason = refusal(model)
    model.__class__ = type("Mine", (*bases, type(model)), {"__module__": "__main__"})
    assert refusal(model) == reason


@pytest.mark.parametrize("name", ["llama", "mistral", "mixtral", "phi3", "qwen2", "starcoder2"])
@pytest.mark.parametrize("window", [SHORT, LONG])
def test_a_vision_language_model_keeps_the_window_of_its_text_model(name, window):
    """LLaVA's own module applies no window; that of the text model inside does."""
    text = small(name, window=window).config
    tower = {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    tower |= {"num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    model = LlavaForConditionalGeneration(LlavaConfig(text_config=text, vision_config=tower)).eval()
    outcome = architectures.fate(architectures.randomise(model, 0.3))
    assert outcome == ("exact" if name == "llama" else "exact, with its window by position")


# --- other dtypes, recorded forwards, the ends of contexts


def in_half_precision(name: str, kind: torch.dtype):
    """A small model of gentler weights: those of float32's tests make rounding errors of a tenth of the logits.

    A mixture asks all of its experts: which ones it would choose may turn on the rounding of a half.
    """
    changes = {"num_experts_per_tok": 4} if name == "gpt_oss" else {}
    return architectures.randomise(small(name, **changes), 0.15).to(kind)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "qwen2", "mistral", "olmo3", "gpt_oss", "phi3"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_scores_in_half_precision_are_path_by_path_within_rounding(name, kind):
    model = in_half_precision(name, kind)
    assert Target(model).check() <= near_enough(model)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_wrong_positions_are_noticed_in_half_precision(kind, monkeypatch):
    """Negative control: consecutive position ids show beyond the rounding of a half, too."""
    monkeypatch.setattr(masks, "positions", lambda tree, length: (length + torch.arange(len(tree)))[None])
    with pytest.raises(ValueError, match="scores a tree unlike the tree's paths"):
        Target(in_half_precision("gpt2", kind)).check()


@pytest.mark.parametrize(
    "name", ["gemma2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "mistral", "llama4_text"))]
)
def test_recorded_forwards_keep_windows(name, monkeypatch):
    """Chunks of Llama 4, too; its attention temperatures, which count slots, are off."""
    monkeypatch.setitem(Graphs.__init__.__kwdefaults__, "sizes", (16,))  # on a CPU each takes seconds
    changes = {"attn_temperature_tuning": False} if name == "llama4_text" else {}
    model = small(name, **changes)
    assert architectures.differ(model, architectures.right_text(model), graphs=True) == []
    assert Target(model, forwards=Graphs(model, capacity=128)).check() <= near_enough(model)


def test_longrope_ends_where_its_long_factors_begin():
    factors = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    model = small("phi3", window=LONG, rope_parameters=factors, original_max_position_embeddings=48)
    scored = Target(model)
    assert scored.context == 48
    assert architectures.differ(model, architectures.right_text(model)) == []
    write = partial(decode, scored, PlainDrafter(), verifiers.greedy)
    with pytest.raises(ValueError, match="exceed the context of 48"):
        write([1] * 30, max_new_tokens=20)
    scored.prefill([1] * 46)
    with pytest.raises(ValueError, match="do not fit the context of 48"):
        scored.forward(TokenTree.chain([1, 2, 3]))
