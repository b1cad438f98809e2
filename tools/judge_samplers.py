"""Samplers in the wild: python tools/judge_samplers.py CHECKOUTS --out data/samplers

Judges public samplers by their exact output law (``exact.judge``). CHECKOUTS is a folder with a checkout of each
repository in ``SAMPLERS``, under its own name, and with unpacked releases such as ``vllm-0.9.2``; what is not there is
said to be missing. Nothing of theirs is copied: their functions run as they are, with stand-ins for packages that their
files import and the sampler does not use. lucidrains' need the packages einops and beartype. Writes OUT.csv, and
OUT.json with commits, versions and date.

Whoever adds a sampler reads its code. The text in ``adapter`` says what differs from a call by its own authors. What is
called not lossless has been followed by hand before, in that very version: ``followed`` names the line that makes the
wrong law. A counterexample that nobody has followed is printed, and the sampler counts as not judged.
"""

import argparse
import ast
import contextlib
import importlib
import inspect
import io
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock, patch

import pandas as pd
import torch
import transformers
from torch.overrides import TorchFunctionMode
from tqdm import tqdm

from specnb.exact import CHAINS, TREES, Model, World, chains, conventions, judge, randomness
from specnb.exact.judgement import LOSSY, NOT_JUDGED, Convention, Step, chain_step
from specnb.exact.toy_worlds import depth_of
from specnb.growth import Static
from specnb.models import files, provenance
from specnb.sampling import Coins

MISSING = "missing"  # no checkout
BY_DESIGN = "lossy by design"  # as a claim
COLUMNS = (
    "repository", "function", "arguments", "version", "claims", "report", "adapter", "verdict", "distance", "worlds",
    "coins", "why", "followed", "seconds",
)  # fmt: skip


# --- their files


@dataclass(frozen=True)
class Checkout:
    """Files of a repository."""

    folder: Path

    def module(self, name: str) -> ModuleType:
        """One of its modules, by its dotted name."""
        return importlib.import_module(name)

    def alone(self, path: str, name: str, tab: int | None = None, **needs) -> Callable:
        """One function of a file, compiled as it stands there, without the rest of the file.

        tab: spaces to put in place of a tab; None to leave it. needs: what the function finds in its module.
        """
        source = (self.folder / path).read_text()
        if tab is not None:
            source = source.expandtabs(tab)
        tree = ast.parse(source, path)
        (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
        namespace = dict(needs)
        exec(compile(ast.Module([function], []), str(self.folder / path), "exec"), namespace)
        return namespace[name]


@dataclass(frozen=True)
class Sampler:
    """A public sampler: whose, where it stands, how it is called, what its authors say, and with which arguments."""

    repository: str
    function: str
    load: Callable[[Checkout], object]
    convention: Convention
    arguments: str = ""
    adapter: str = "as its authors call it"
    claims: str = "lossless"
    report: str = ""  # a known report about its law
    followed: str = ""  # which line makes the wrong law, by somebody who read it
    read: str = ""  # the version that was read, or the beginning of its commit
    absent: tuple[str, ...] = ()  # modules that its file imports and the sampler does not need
    constants: Mapping[str, object] = field(default_factory=dict)  # of those and of packages, by dotted names
    packages: tuple[str, ...] = ()  # of its own, whose __init__ is not run
    dtype: torch.dtype = torch.float64
    shapes: tuple[Static, ...] | None = None  # of drafts; None for the convention's
    folder: str = ""  # of the checkout, if it is not called as the repository is


@contextmanager
def importing(sampler: Sampler, folder: Path) -> Iterator[Checkout]:
    """A checkout whose modules can be imported; what it left in sys.modules and sys.path is gone afterwards."""
    path = list(sys.path)
    before = dict(sys.modules)
    sys.path.insert(0, str(folder))
    for name in sampler.absent:
        sys.modules[name] = MagicMock()
    for name in sampler.packages:
        package = ModuleType(name)
        package.__path__ = [str(folder / name.replace(".", "/"))]
        sys.modules[name] = package
    for name, value in sampler.constants.items():
        module, _, constant = name.rpartition(".")
        setattr(sys.modules[module], constant, value)
    try:
        with patch("torch.compile", _not_compiled):
            yield Checkout(folder)
    finally:
        sys.path[:] = path
        _forget(before, folder, {*sampler.absent, *sampler.packages})


def _forget(before: Mapping[str, ModuleType], folder: Path, stand_ins: set[str]) -> None:
    """Take a checkout's modules and the stand-ins out of sys.modules, and put back what was there before."""
    for name in list(sys.modules):
        facts = vars(sys.modules[name])
        places = [facts.get("__file__"), *facts.get("__path__", ())]  # a package may have no file
        is_theirs = any(str(place).startswith(f"{folder}/") for place in places)
        if name in stand_ins or is_theirs:
            del sys.modules[name]
            if name in before:
                sys.modules[name] = before[name]


def _not_compiled(function: Callable | None = None, **_) -> Callable:
    """In place of torch.compile: the function itself."""
    if function is None:
        return _not_compiled
    return function


# --- steps of a chain


class WithoutPinning(TorchFunctionMode):
    """Ignores pin_memory, which asks for an accelerator."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        given = dict(kwargs or {})
        given.pop("pin_memory", None)
        return function(*args, **given)


def chain(name: str, run: Callable, says: str) -> Convention:
    """A convention from run(sampler, p (γ + 1, V), q (γ, V), drafted), which returns the committed tokens."""

    def with_sampler(sampler: Callable) -> Step:
        return chain_step(lambda p, q, drafted: run(sampler, p, q, drafted))

    return Convention(name, with_sampler, says)


def _vllm_0(sampler, p, q, drafted):
    bonus = torch.multinomial(p[-1], 1)[None]  # (1, 1)
    output = sampler(p[None], bonus, q[None], torch.tensor([drafted]))
    return [token for token in output[0].tolist() if token >= 0]


def _hsd(sampler, p, q, drafted):
    candidates = torch.tensor([[0, *drafted]])
    is_done = torch.tensor([False])
    found = sampler(candidates, q.log()[None], len(drafted), p.log()[None], is_done, stop=lambda *_, **__: False)
    return found[0][0].tolist()


def _ascend(sampler, p, q, drafted):
    return _call_ascend(sampler, p, q.float(), drafted)


def _ascend_ngram(sampler, p, q, drafted):
    return _call_ascend(sampler, p, None, drafted)


def _ascend_reduced(sampler, p, q, drafted):
    """Logits of a selection of tokens, with their ids: here all tokens, in reverse."""
    ids = torch.arange(p.shape[-1]).flip(0).expand(len(drafted), -1).contiguous()

    def with_ids(*given):
        logits = given[5].flip(-1).contiguous()
        return sampler(*given[:5], (logits, ids), *given[6:])

    return _call_ascend(with_ids, p, q.float(), drafted)


def _call_ascend(sampler, p, draft_probs, drafted):
    gamma = len(drafted)
    bonus = torch.multinomial(p[-1], 1)[None]
    metadata = SimpleNamespace(all_greedy=False, all_random=True, temperature=torch.ones(1), generators={})
    with WithoutPinning():
        output = sampler(
            torch.tensor(drafted), [gamma], gamma, torch.tensor([gamma]), draft_probs, p[:-1].log(), bonus, metadata
        )
    return [token for token in output[0].tolist() if token >= 0]


VLLM_0 = chain("vLLM until 0.9", _vllm_0, "(target_with_bonus_probs, bonus_token_ids, draft_probs, draft_token_ids)")
HSD = chain("HSD", _hsd, "as transformers', with is_done_candidate and stop")
ASCEND = chain("vllm-ascend", _ascend, "as vLLM's rejection_sample, with logits of the target")
ASCEND_REDUCED = chain("vllm-ascend, reduced", _ascend_reduced, "the same with logits and ids of selected tokens")
ASCEND_NGRAM = chain("vllm-ascend, n-grams", _ascend_ngram, "the same with draft_probs=None")


def _load_ascend(checkout: Checkout) -> ModuleType:
    """vllm-ascend's module, with vLLM's own generate_uniform_probs, which it takes from there."""
    module = checkout.module("vllm_ascend.sample.rejection_sampler")
    vllm = Checkout(checkout.folder.parent / VLLM_NOW)
    path = "vllm/v1/sample/rejection_sampler.py"
    module.generate_uniform_probs = vllm.alone(path, "generate_uniform_probs", torch=torch)
    return module


def _load_ascend_block(checkout: Checkout, recovered_blockwise: bool) -> Callable:
    """The last lines of vllm-ascend's rejection_sample, for block verification."""
    module = _load_ascend(checkout)

    def sampler(draft_token_ids, num_draft_tokens, most, ends, draft_probs, target_logits, bonus, metadata):
        target_probs = target_logits.softmax(dim=-1, dtype=torch.float32)
        device = target_logits.device
        output = torch.full((1, most + 1), -1, dtype=torch.int32)
        uniform = module.generate_uniform_probs(len(draft_token_ids), num_draft_tokens, metadata.generators, device)
        recovered = module.sample_recovered_tokens(
            most, num_draft_tokens, ends, draft_token_ids, draft_probs, target_probs, metadata, device,
            use_block_verify=recovered_blockwise,
        )  # fmt: skip
        module.rejection_random_sample_block_verify_pytorch(
            output, ends, draft_token_ids, draft_probs, target_probs, bonus, recovered, uniform,
            torch.zeros(1, dtype=torch.bool), most, target_probs.shape[-1],
        )  # fmt: skip
        return output

    return sampler


def _load_vllm_0(checkout: Checkout, name: str, kind: str, *settings) -> Callable:
    sampler = getattr(checkout.module(f"vllm.model_executor.layers.{name}"), kind)(*settings)
    sampler.init_tensors("cpu", device_type="cpu")  # for its counts
    return sampler


def _load_typical(checkout: Checkout) -> Callable:
    return _load_vllm_0(checkout, "typical_acceptance_sampler", "TypicalAcceptanceSampler", 0.09, 0.3)


# --- a tree of the likeliest tokens

EVEN = Static(((0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)), "two siblings, and two more below each of them")


def _medusa(function: Callable, **options) -> Callable:
    """Medusa's says which candidate and how much of it; the next token is drawn from the target, at temperature 1."""

    def sampler(logits, candidates, _):
        best, accepted = function(logits, candidates, temperature=1.0, **options)
        return best, accepted, logits[int(best), int(accepted)].softmax(-1)

    return sampler


# --- a whole generation with two models, as a step


class ToyModel:
    """A law behind every text as a language model: logits by the whole text, the root left out.

    Token ids are one higher than the world's, and 0 never comes: some code takes it for an error. If a cache is wanted
    it holds the tokens themselves, in place of keys and values (1, 1, n, 1): what is cut off from it is forgotten.
    """

    def __init__(self, law: Model, vocabulary: int, dtype: torch.dtype, temperature: float = 1.0):
        self.law = law
        self.dtype = dtype
        self.temperature = temperature  # at which the caller samples
        self.device = torch.device("cpu")
        self.config = SimpleNamespace(vocab_size=1 + vocabulary, max_position_embeddings=64)

    def probabilities(self, tokens) -> torch.Tensor:
        """(n, 1 + V) behind the first 1, 2, … n tokens, of which the first is the root."""
        text = tuple(int(token) - 1 for token in tokens)
        laws = torch.stack([self.law(text[1 : 1 + length]) for length in range(len(text))])
        return torch.nn.functional.pad(laws, (1, 0)).to(self.dtype)

    def logits(self, tokens) -> torch.Tensor:
        """(1, n, 1 + V) whose softmax at the caller's temperature is the law."""
        return self.temperature * self.probabilities(tokens).log()[None]

    def __call__(self, input_ids=None, past_key_values=None, use_cache=True, **_) -> SimpleNamespace:
        known = input_ids[0]
        if past_key_values is not None:
            known = torch.cat([past_key_values[0][0].flatten(), known])
        logits = self.logits(known)[:, -input_ids.shape[1] :]
        cached = known.reshape(1, 1, -1, 1)
        return SimpleNamespace(logits=logits, past_key_values=[(cached, cached)] if use_cache else None)


class ToyNet(ToyModel):
    """The same as lucidrains' Decoder: called with the whole text, of which what is in the cache is not read again."""

    def __call__(self, tokens, cache=None, seq_start_pos=None, return_cache=True, **_):
        known = tokens[0]
        if cache is not None:
            in_cache = cache[0].flatten()
            known = torch.cat([in_cache, known[len(in_cache) :]])
        new = len(known) - (0 if cache is None else len(in_cache))
        logits = self.logits(known)[:, -new:]
        return logits, (known.reshape(1, 1, -1, 1), torch.zeros(1, new, 1))


class SecondStep(Exception):
    """A second step begins with this text."""

    def __init__(self, tokens: torch.Tensor):
        super().__init__()
        self.tokens = tokens


class Drafting:
    """A draft net that ends the generation where a second step begins, if one step is wanted."""

    def __init__(self, net: Callable, gamma: int, wanted: int):
        self.net = net
        self.calls_left = gamma if wanted == 1 else math.inf

    def __call__(self, tokens, **options):
        if self.calls_left == 0:
            raise SecondStep(tokens)
        self.calls_left -= 1
        return self.net(tokens, **options)


class ToyExits:
    """One net with an early exit, as lucidrains'."""

    def __init__(self, early: Callable, whole: Callable):
        self.early = early
        self.whole = whole

    def __call__(self, tokens, return_early_exit_only=False, **options):
        net = self.early if return_early_exit_only else self.whole
        return net(tokens, **options)


def two_models(
    name: str,
    run: Callable,
    dtype: torch.dtype = torch.float64,
    shapes: tuple[Static, ...] = CHAINS,
    temperature: float = 1.0,
) -> Convention:
    """A step that is a generation: run(sampler, draft, target, γ, tokens wanted) returns the new tokens.

    With a chain of one, two tokens are wanted, so that a second step often follows, which reads caches. With longer
    chains one token is wanted, and one step done.
    """

    def with_sampler(sampler: Callable) -> Step:
        def step(world: World, shape: Static, coins: Coins) -> tuple[int, ...]:
            length = depth_of(shape)
            _fill(world, length)
            draft = ToyModel(world.q, world.vocabulary, dtype, temperature)
            target = ToyModel(world.p, world.vocabulary, dtype, temperature)
            with randomness(coins), contextlib.redirect_stderr(io.StringIO()):
                tokens = run(sampler, draft, target, length, 2 if length == 1 else 1)
            return tuple(int(token) - 1 for token in tokens)[: length + 1]

        return step

    return Convention(name, with_sampler, "a generation, with two models", shapes)


def _fill(world: World, length: int) -> None:
    """Work out the laws of all texts that may be asked for: inside ``randomness`` nothing can be drawn for them."""
    texts: list[tuple[int, ...]] = [()]
    for _ in range(2 * length + 2):
        for text in texts:
            world.p(text)
            world.q(text)
        texts = [(*text, token) for text in texts for token in range(world.vocabulary)]


ROOT = torch.tensor([[1]])  # a text of one token


def _feifeibear(sampler, draft, target, gamma, wanted):
    return sampler(ROOT, draft, target, wanted, gamma=gamma)[0, 1:].tolist()


def _romsto(sampler, draft, target, gamma, wanted):
    """It never drafts beyond the text that is wanted: so that is the whole draft and one token more."""
    function, processor = sampler
    tokens, _ = function(
        [1], draft, target, gamma=gamma, logits_processor=processor, max_gen_len=gamma + 1, eos_tokens_id=99,
        first_target=False,
    )  # fmt: skip
    return tokens


def _jaymody(sampler, draft, target, gamma, wanted):
    def draft_law(text):
        return draft.probabilities(text).numpy()

    def target_law(text):
        return target.probabilities(text).numpy()

    return sampler([1], draft_law, target_law, wanted, gamma)[1:].tolist()


def _llama_ssp(sampler, draft, target, gamma, wanted):
    return sampler(target, draft, wanted, ROOT, K=gamma)[0, 1:].tolist()


def _shreyansh(sampler, draft, target, gamma, wanted):
    text = sampler(target, draft, ROOT, 1 + wanted, None, lookahead=gamma, temperature=1.0, debug=False)
    return text[0, 1:].tolist()


def _gpt_fast(sampler, draft, target, gamma, wanted):
    """One step: the models see the text so far by what they were called with."""
    text = {}

    def as_model(model):
        def forward(x, input_pos):
            for place, token in zip(input_pos.tolist(), x.flatten().tolist(), strict=True):
                text[place] = token
            known = [text[place] for place in range(int(input_pos[-1]) + 1)]
            return model.logits(known)[:, -len(input_pos) :]

        return forward

    return sampler(as_model(target), as_model(draft), torch.tensor(1), 0, gamma).tolist()


def _lucidrains(sampler, draft, target, gamma, wanted):
    return _until_second_step(
        lambda net, small, length: sampler(net, small, ROOT, length, gamma=gamma, filter_thres=0.0),
        draft,
        target,
        gamma,
        wanted,
    )


def _lucidrains_exit(sampler, draft, target, gamma, wanted):
    return _until_second_step(
        lambda net, small, length: sampler(ToyExits(small, net), ROOT, length, gamma=gamma, filter_thres=0.0),
        draft,
        target,
        gamma,
        wanted,
    )


def _until_second_step(generate: Callable, draft: ToyModel, target: ToyModel, gamma: int, wanted: int) -> list[int]:
    """lucidrains' cut the text to the wanted length: it is asked for the draft and one more token."""
    net = ToyNet(target.law, target.config.vocab_size - 1, target.dtype)
    small = Drafting(ToyNet(draft.law, draft.config.vocab_size - 1, draft.dtype), gamma, wanted)
    try:
        tokens, _ = generate(net, small, 2 + gamma)
    except SecondStep as second:
        return second.tokens[0, 1:].tolist()
    return tokens[0].tolist()


def _lucidrains_prophet(sampler, draft, target, gamma, wanted):
    """The first token comes from the target, so that a draft of γ − 1 tokens and the one behind it fill the text."""
    net = ToyNet(target.law, target.config.vocab_size - 1, target.dtype)
    prophet = ToyNet(draft.law, draft.config.vocab_size - 1, draft.dtype)
    wrapped = SimpleNamespace(
        model=net, prophet=Prophet(prophet), to_prophet_start_token=lambda embeds: embeds, num_leading_start_tokens=1
    )
    tokens, _ = sampler(wrapped, ROOT, 2 + gamma, gamma=gamma - 1, filter_thres=0.0)
    return tokens[0].tolist()


class Prophet:
    """A draft that sees the last tokens only, from a start token on."""

    def __init__(self, net: ToyNet):
        self.net = net

    def __call__(self, tokens, start_tokens=None, cache=None, **_):
        return self.net(tokens, cache=cache)


def _layerskip(sampler, draft, target, gamma, wanted):
    """One step; the two halves of their Llama are replaced by laws. The draft's text travels as its query cache."""
    module, strategy = sampler

    def early(model, tokens, past, exit_layer, seen):
        known = tokens if seen is None else torch.cat([seen, tokens], dim=1)
        return module.ForwardResult(draft.logits(known[0]), past, known)

    def remainder(model, tokens, past, exit_layer, seen):
        return module.ForwardResult(target.logits(tokens[0]), past)

    with patch.multiple(strategy, forward_early=early, forward_remainder=remainder):
        _, tokens, *_ = strategy.SelfSpeculativeGenerationStrategy().single_step_speculation(
            model=None, input_ids=ROOT, input_ids_list=[1], output_ids=[], num_speculations=gamma, past_key_values=[],
            eos_token_ids=[], calls=0, exit_layer=1, sample=True, temperature=1.0, top_k=0, top_p=1.0,
        )  # fmt: skip
    return tokens


def _deepspec(draft_dtype: torch.dtype) -> Callable:
    """One step: their proposal by a draft with logits in a dtype, and their verification."""

    def run(sampler, draft, target, gamma, wanted):
        base, evaluator = sampler
        text = [1]

        def compute_logits(hidden):
            return draft.logits(text)[:, -1:].to(draft_dtype)

        def forward(input_ids, **_):
            text.append(int(input_ids))

        head = MagicMock(side_effect=forward)
        head.compute_logits = compute_logits
        self = SimpleNamespace(draft_model=head, max_proposal_tokens=gamma, args=SimpleNamespace(temperature=1.0))
        context = SimpleNamespace(draft_cache=MagicMock(), draft_hidden=None, position_ids=torch.arange(8)[None])
        proposal = evaluator.Qwen3Eagle3Evaluator._propose(
            self, context=context, output_ids=ROOT, position_ids=context.position_ids, start=0
        )
        verified = base.verify_draft_tokens(
            target_model=lambda input_ids, **_: SimpleNamespace(logits=target.logits(input_ids[0])),
            proposal=proposal,
            position_ids=context.position_ids,
            start=0,
            past_key_values_target=None,
            temperature=1.0,
            max_proposal_tokens=gamma,
        )
        return verified.committed_tokens[0].tolist()

    return run


def _load_deepspec(checkout: Checkout) -> tuple[ModuleType, ModuleType]:
    base = checkout.module("deepspec.eval.base_evaluator")
    return base, checkout.module("deepspec.eval.eagle3.evaluator")


def _load_lucidrains(module: str, function: str) -> Callable[[Checkout], Callable]:
    return lambda checkout: getattr(checkout.module(f"speculative_decoding.{module}"), function)


def _kernels(why: str) -> Callable[[Checkout], Callable]:
    """A sampler that cannot be run here."""

    def load(checkout: Checkout) -> Callable:
        raise NotImplementedError(why)

    return load


# --- the samplers

VLLM_NOW = "vllm-0.33.0"
STEPS = "with a chain of one up to two steps, with a chain of two one step"
TEXT_CACHE = f"models are laws, the cache holds the text itself; {STEPS}"
TWO_LAWS = f"models are laws; {STEPS}"


ENSEMBLE = {
    0.9: "probability_ratio is 1 − w + w p(x) / q(x) with w = .9: the draft 0 is accepted with .1 + .9 · .3378 = .4040 "
    "instead of .3378, and comes with .6490 · .4040 = .2622 instead of .2192, here times .7341.",
    0.5: "probability_ratio is 1 − w + w p(x) / q(x) with w = .5: the draft 0 is accepted with .5 + .5 · .3378 = .6689 "
    "instead of .3378, and comes with .6490 · .6689 = .4341 instead of .2192, here times .7341.",
}


def _hf(folder: str, weight: float | None = None) -> Sampler:
    """A release of transformers, with or without a static ensemble of p and q; "" for the installed one."""

    def load(checkout: Checkout) -> Callable:
        function = checkout.alone("transformers/generation/utils.py", "_speculative_sampling", torch=torch)
        options = {}
        if "is_done_candidate" in inspect.signature(function).parameters:
            options["is_done_candidate"] = False
        if weight is not None:
            options["assistant_ensemble_weight"] = weight
        return lambda *given: function(*given, **options)

    return Sampler(
        "huggingface/transformers",
        "generation.utils._speculative_sampling",
        load,
        conventions.TRANSFORMERS,
        "" if weight is None else f"assistant_ensemble_weight={weight}",
        claims="lossless" if weight is None else BY_DESIGN,
        folder=folder,
        adapter="the function alone, without the rest of its file",
        report="#47932 (the q handed to it)",
        followed=ENSEMBLE.get(weight, ""),
        read=folder.rpartition("-")[2] or "5.24.0",
    )


GPT_FAST = Sampler(
    "pytorch-labs/gpt-fast",
    "generate.speculative_decode",
    lambda checkout: checkout.module("generate").speculative_decode,
    two_models("gpt-fast", _gpt_fast),
    "temperature 1",
    adapter="models are laws; one step",
    report="#209",
    absent=("sentencepiece", "model", "tokenizer"),
)
MEDUSA = Sampler(
    "FasterDecoding/Medusa",
    "medusa.model.utils.evaluate_posterior",
    lambda checkout: _medusa(checkout.module("medusa.model.utils").evaluate_posterior, sampling="nucleus", top_p=1.0),
    conventions.POSTERIOR,
    "sampling='nucleus', top_p=1, temperature 1",
    adapter="as with fast=False; the next token is drawn at the accepted position, as get_nucleus_one_token does",
    claims=f"{BY_DESIGN} (its README: it relaxes the requirement of matching the distribution)",
    followed="get_nucleus_posterior_mask accepts a draft if a token drawn from p is equal to it; if not, the next "
    "token is drawn from p once more, and can be the refused draft: 0 comes with .2192 + .7808 · .2192 = .3904 instead "
    "of .2192, here times .7341.",
    read="e2a5d20",
)
LUCIDRAINS = Sampler(
    "lucidrains/speculative-decoding",
    "speculative_decoding.speculative_decoding",
    _load_lucidrains("speculative_decoding", "speculative_decoding"),
    two_models("lucidrains", _lucidrains),
    "temperature 1, filter_thres=0, a batch of one text",
    adapter=TEXT_CACHE,
    packages=("speculative_decoding",),
)
VLLM_0_SAMPLER = Sampler(
    "vllm-project/vllm",
    "model_executor.layers.rejection_sampler.RejectionSampler",
    lambda checkout: _load_vllm_0(checkout, "rejection_sampler", "RejectionSampler"),
    VLLM_0,
    adapter="not compiled; the bonus token is drawn before, from p",
    absent=("vllm.envs", "vllm.logger", "vllm.platforms"),
    packages=("vllm", "vllm.model_executor", "vllm.model_executor.layers"),
    folder="vllm-0.9.2",
    read="0.9.2",
)
ASCEND_SETTINGS = SimpleNamespace(
    enable_reduce_sample=False,
    rejection_sampler_config=SimpleNamespace(
        enable_block_verify=False, enable_entropy_verify=False, posterior_threshold=0.95, posterior_alpha=0.4
    ),
)
ENTROPY_SETTINGS = SimpleNamespace(
    enable_reduce_sample=False,
    rejection_sampler_config=SimpleNamespace(
        enable_block_verify=False, enable_entropy_verify=True, posterior_threshold=0.95, posterior_alpha=0.4
    ),
)
TRADES_PRECISION = f"{BY_DESIGN} (its documentation: a small amount of output precision is traded)"
BLOCK = (
    "legal_mask compares π, the product of the ratios, each capped at 1, with cum_uniform_token_probs, a product of "
    "uniform numbers. So a block of two is accepted with π (1 − ln π) instead of π: the draft (0, 2) has "
    "π = .3378 · .1076 = .0363, is accepted with .1567, and its text comes with .5315 · .1567 · .7186 = .0599."
)
ASCEND_ADAPTER = "pin_memory is ignored; generate_uniform_probs is vLLM 0.33.0's; the bonus token is drawn before"
ASCEND_SAMPLER = Sampler(
    "vllm-project/vllm-ascend",
    "sample.rejection_sampler.rejection_sample",
    lambda checkout: _load_ascend(checkout).rejection_sample,
    ASCEND,
    "without Triton",
    adapter=ASCEND_ADAPTER,
    absent=(
        "vllm", "vllm.distributed", "vllm.distributed.parallel_state", "vllm.logger", "vllm.triton_utils",
        "vllm.v1", "vllm.v1.outputs", "vllm.v1.sample", "vllm.v1.sample.logits_processor",
        "vllm.v1.sample.logits_processor.builtin", "vllm.v1.sample.metadata", "vllm.v1.sample.ops",
        "vllm.v1.sample.ops.bad_words", "vllm.v1.sample.rejection_sampler", "vllm.v1.sample.sampler",
        "vllm.v1.spec_decode", "vllm.v1.spec_decode.metadata", "vllm_ascend.ascend_config",
        "vllm_ascend.ops.triton.reject_sample", "vllm_ascend.ops.triton", "vllm_ascend.ops",
        "vllm_ascend.sample.penalties", "vllm_ascend.sample.sampler",
    ),
    constants={
        "vllm.triton_utils.HAS_TRITON": False,
        "vllm.v1.sample.rejection_sampler.PLACEHOLDER_TOKEN_ID": -1,
        "vllm.v1.sample.rejection_sampler.GREEDY_TEMPERATURE": 0,
        "vllm.v1.sample.rejection_sampler.MAX_SPEC_LEN": 128,
        "vllm.v1.sample.rejection_sampler.RejectionSampler": object,
        "vllm_ascend.ascend_config.get_ascend_config": lambda: ASCEND_SETTINGS,
    },
    packages=("vllm_ascend", "vllm_ascend.sample"),
    read="182b75e",
    dtype=torch.float32,
)  # fmt: skip
HSD_FIRST = Sampler(
    "ZhouYuxuanYX/Hierarchical-Speculative-Decoding",
    "transformers.generation.utils._speculative_sampling",
    lambda checkout: _load_hsd(checkout, backward=True, clever=True),
    HSD,
    "backward=True, clever=True (HSD), the first commit",
    adapter="the function alone, without the rest of its file; stop always says no",
    followed="p_next is capped where the ratio of a prefix is above 1, but probability_ratio, which accepts the whole "
    "draft, is not: after 1, whose ratio is .5681 / .1563 = 3.63, the draft 1 is accepted with min(1, 3.63 · .808) = 1 "
    "instead of .808, so that (1, 1) comes with .1563 · .7212 + .4117 · .5827 = .3526 instead of .3310, here times "
    ".8231. With the capped ratio in its place the law is right.",
    read="f3adf7f",
    folder="Hierarchical-Speculative-Decoding-first",
)


def _load_hsd(checkout: Checkout, tab: int | None = None, **options) -> Callable:
    path = "transformers/generation/utils.py"
    function = checkout.alone(path, "_speculative_sampling", tab, torch=torch, F=torch.nn.functional)
    return lambda *given, **named: function(*given, **named, **options)


DEEPSPEC = Sampler(
    "deepseek-ai/DeepSpec",
    "eval.base_evaluator.verify_draft_tokens",
    _load_deepspec,
    two_models("DeepSpec", _deepspec(torch.bfloat16)),
    "drafts by eval.eagle3.evaluator, the draft's logits in bfloat16",
    adapter="models are laws; the target's logits are not rounded",
    report="#31 (open; its cure is proposed in #30)",
    followed="sample_tokens takes the softmax of bfloat16 logits in bfloat16, logits_to_probs in float32: the draft 2 "
    "has the weight .1955, and is tested as .1953. By these weights it comes with .2129 instead of .2127, here times "
    ".7834. torch's multinomial rounds in bfloat16 once more, which is not enumerated: in 60 million draws on a CPU it "
    "came with .2125.",
    read="afdfa7c",
    absent=(
        "deepspec.data", "deepspec.data.parser", "deepspec.modeling", "deepspec.modeling.eagle3",
        "deepspec.modeling.eagle3.gemma4", "deepspec.modeling.eagle3.qwen3",
    ),
    constants={"deepspec.utils.init_dist": None, "deepspec.utils.seed_all": None},
    packages=("deepspec", "deepspec.eval", "deepspec.eval.eagle3", "deepspec.utils"),
    dtype=torch.float32,
)  # fmt: skip

SAMPLERS = (
    _hf(""),
    _hf("", 0.9),
    _hf("", 0.5),
    _hf("transformers-5.17.0"),
    _hf("transformers-5.17.0", 0.9),
    _hf("transformers-5.17.0", 0.5),
    _hf("transformers-4.46.3"),
    VLLM_0_SAMPLER,
    replace(
        VLLM_0_SAMPLER,
        function="model_executor.layers.typical_acceptance_sampler.TypicalAcceptanceSampler",
        load=_load_typical,
        arguments="posterior_threshold=.09, posterior_alpha=.3",
        claims=BY_DESIGN,
        followed="_evaluate_accepted_tokens accepts a draft if p(x) > min(.09, .3 e^−H), whatever q is: the draft 0, "
        "p(0) = .2192, always, so that it comes with q(0) = .6490 instead of .2192, here times .7341.",
    ),
    Sampler(
        "vllm-project/vllm",
        "v1.sample.rejection_sampler.rejection_sample",
        _kernels("it accepts and recovers by Triton kernels, which read memory; a number not drawn is not there"),
        conventions.VLLM,
        folder=VLLM_NOW,
    ),
    ASCEND_SAMPLER,
    replace(ASCEND_SAMPLER, convention=ASCEND_NGRAM, arguments="without Triton, draft_probs=None"),
    replace(
        ASCEND_SAMPLER,
        convention=ASCEND_REDUCED,
        arguments="without Triton, logits with the ids of their tokens (enable_reduce_sample)",
    ),
    replace(
        ASCEND_SAMPLER,
        arguments="without Triton, enable_entropy_verify",
        claims=BY_DESIGN,
        followed="modified_uniform_token_probs is u times min(e^(−.4 H), .95) = .6748, as H = .9833: the draft 0 is "
        "accepted with .3378 / .6748 = .5006, and comes with .6490 · .5006 = .3249 instead of .2192, here times .7341.",
        constants={**ASCEND_SAMPLER.constants, "vllm_ascend.ascend_config.get_ascend_config": lambda: ENTROPY_SETTINGS},
    ),
    replace(
        ASCEND_SAMPLER,
        function="sample.rejection_sampler.rejection_random_sample_block_verify_pytorch",
        load=lambda checkout: _load_ascend_block(checkout, recovered_blockwise=False),
        arguments="as rejection_sample composes it for enable_block_verify, without Triton",
        adapter=f"{ASCEND_ADAPTER}; rejection_sample takes it from three drafts on; here for fewer",
        report="#7807",
        claims=TRADES_PRECISION,
        followed=BLOCK,
    ),
    replace(
        ASCEND_SAMPLER,
        function="sample.rejection_sampler.rejection_random_sample_block_verify_pytorch",
        load=lambda checkout: _load_ascend_block(checkout, recovered_blockwise=True),
        arguments="with sample_recovered_tokens(use_block_verify=True), without Triton",
        adapter=f"{ASCEND_ADAPTER}; rejection_sample does not call it so",
        report="#7807",
        claims=TRADES_PRECISION,
        followed=BLOCK,
    ),
    Sampler(
        "sgl-project/sglang",
        "srt.speculative.eagle_info (tree_speculative_sampling_target_only)",
        _kernels("its sampler is a CUDA kernel of sgl_kernel; the Python files prepare its arguments"),
        conventions.SGLANG,
        folder="sglang-0.5.9",
    ),
    Sampler(
        "SafeAILab/EAGLE",
        "eagle.model.utils.evaluate_posterior",
        lambda checkout: checkout.module("eagle.model.utils").evaluate_posterior,
        conventions.POSTERIOR,
        "temperature 1, trees of the draft's likeliest tokens",
        report="#110",
        shapes=(*TREES, EVEN),
    ),
    MEDUSA,
    replace(
        MEDUSA,
        load=lambda checkout: _medusa(
            checkout.module("medusa.model.utils").evaluate_posterior,
            sampling="typical",
            posterior_threshold=0.09,
            posterior_alpha=0.3,
        ),
        arguments="sampling='typical', thresholds .09 and .3, temperature 1",
        adapter="its own generation takes the likeliest next token; here it is drawn from p",
        followed="posterior_mask is p(x) > min(.09, .3 e^−H) = .09, as H = .9833, and nothing is drawn: the draft 0, "
        "p(0) = .2192, is always accepted, so that it comes with 1 instead of .2192, here times .7341.",
    ),
    HSD_FIRST,
    replace(
        HSD_FIRST,
        load=lambda checkout: _load_hsd(checkout, blockwise=True),
        arguments="blockwise=True (block verification), the first commit",
        followed="",
    ),
    replace(HSD_FIRST, load=_load_hsd, arguments="token by token, the first commit", followed=""),
    replace(HSD_FIRST, folder="", arguments="backward=True, clever=True (HSD)"),
    replace(
        HSD_FIRST,
        load=lambda checkout: _load_hsd(checkout, tab=4, backward=True, clever=True),
        folder="",
        arguments="backward=True, clever=True (HSD), tabs read as four spaces",
        read="b8575e2",
    ),
    Sampler(
        "ZhouYuxuanYX/Hierarchical-Speculative-Decoding",
        "EAGLE-3H.eagle.model.utils.evaluate_posterior",
        lambda checkout: _load_eagle_h(checkout),
        conventions.POSTERIOR,
        "hsd=True, temperature 1, trees of the draft's likeliest tokens",
        shapes=(*TREES, EVEN),
        adapter="the function alone, without the rest of its file",
    ),
    DEEPSPEC,
    replace(
        DEEPSPEC,
        convention=two_models("DeepSpec", _deepspec(torch.float32)),
        arguments="drafts by eval.eagle3.evaluator, the draft's logits in float32",
        followed="",
    ),
    Sampler(
        "jaymody/speculative-sampling",
        "main.speculative_sampling",
        lambda checkout: checkout.module("main").speculative_sampling,
        two_models("jaymody", _jaymody),
        adapter=TWO_LAWS,
        absent=("gpt2", "utils"),
        report="#9",
    ),
    Sampler(
        "romsto/Speculative-Decoding",
        "sampling.speculative_decoding.speculative_generate",
        lambda checkout: (
            checkout.module("sampling.speculative_decoding").speculative_generate,
            checkout.module("utils.logits_processor").MultinomialProcessor(1.0),
        ),
        two_models("romsto", _romsto, torch.float32),
        "temperature 1, first_target=False",
        adapter=TWO_LAWS,
        absent=("utils.printing",),
        dtype=torch.float32,
    ),
    Sampler(
        "feifeibear/LLMSpeculativeSampling",
        "sampling.speculative_sampling.speculative_sampling",
        lambda checkout: checkout.module("sampling.speculative_sampling").speculative_sampling,
        two_models("feifeibear", _feifeibear),
        "temperature 1",
        adapter=TEXT_CACHE,
        absent=("globals",),
    ),
    Sampler(
        "feifeibear/LLMSpeculativeSampling",
        "sampling.speculative_sampling.speculative_sampling_v2",
        lambda checkout: checkout.module("sampling.speculative_sampling").speculative_sampling_v2,
        two_models("feifeibear", _feifeibear),
        "temperature 1",
        adapter=TWO_LAWS,
        absent=("globals",),
    ),
    GPT_FAST,
    replace(
        GPT_FAST, arguments="temperature 1, the last commit before batches", report="", folder="gpt-fast-before-batches"
    ),
    LUCIDRAINS,
    replace(
        LUCIDRAINS,
        function="speculative_decoding.speculative_decoding_with_same_model",
        load=_load_lucidrains("speculative_decoding", "speculative_decoding_with_same_model"),
        convention=two_models("lucidrains, early exit", _lucidrains_exit),
    ),
    replace(
        LUCIDRAINS,
        function="speculative_decoding_with_prophet.speculative_decoding_with_prophet_model",
        load=_load_lucidrains("speculative_decoding_with_prophet", "speculative_decoding_with_prophet_model"),
        convention=two_models("lucidrains, prophet", _lucidrains_prophet, shapes=chains(2)),
        adapter=f"{TEXT_CACHE}; the first token is the target's, then comes a draft of one",
    ),
    Sampler(
        "facebookresearch/LayerSkip",
        "self_speculation.self_speculation_generator.SelfSpeculativeGenerationStrategy.single_step_speculation",
        lambda checkout: (
            checkout.module("self_speculation.llama_model_utils"),
            checkout.module("self_speculation.self_speculation_generator"),
        ),
        two_models("LayerSkip", _layerskip),
        "temperature 1, top_k=0, top_p=1",
        adapter="laws in place of the two halves of its Llama",
        absent=("colorama", "self_speculation.generator_base", "self_speculation.speculative_streamer"),
        constants={"self_speculation.generator_base.GenerationStrategy": object},
        packages=("self_speculation",),
    ),
    Sampler(
        "dust-tt/llama-ssp",
        "lssp.ssp.ssp",
        lambda checkout: _load_llama_ssp(checkout).ssp,
        two_models("llama-ssp", _llama_ssp, temperature=0.5),
        "its temperature of .5",
        adapter=f"{TWO_LAWS}, whose logits are halved",
    ),
    Sampler(
        "shreyansh26/Speculative-Sampling",
        "speculative_sampling.speculative_sampling",
        lambda checkout: checkout.module("speculative_sampling").speculative_sampling,
        two_models("shreyansh26", _shreyansh, torch.float32),
        "temperature 1",
        adapter=TWO_LAWS,
        dtype=torch.float32,
    ),
)


def _load_eagle_h(checkout: Checkout) -> Callable:
    function = checkout.alone("EAGLE-3H/eagle/model/utils.py", "evaluate_posterior", torch=torch)
    return lambda *given: function(*given, hsd=True)


def _load_llama_ssp(checkout: Checkout) -> ModuleType:
    """lssp.ssp, without the tokenizer that lssp.base would load."""
    with patch("transformers.LlamaTokenizer", MagicMock()), torch.random.fork_rng():
        return checkout.module("lssp.ssp")


# --- the table


def version_of(folder: Path) -> str:
    """The commit of a checkout, or the version of an unpacked release."""
    if not (folder / ".git").exists():
        return folder.name.rpartition("-")[2]
    done = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def where(sampler: Sampler, checkouts: Path) -> tuple[Path, str]:
    """The folder of a sampler's checkout, and its version."""
    if sampler.repository == "huggingface/transformers" and not sampler.folder:
        return Path(transformers.__file__).parent.parent, transformers.__version__
    folder = (checkouts / (sampler.folder or sampler.repository.partition("/")[2])).resolve()
    return folder, version_of(folder) if folder.is_dir() else ""


def judged(sampler: Sampler, checkouts: Path) -> dict[str, object]:
    """A row of the table."""
    folder, version = where(sampler, checkouts)
    row = dict.fromkeys(COLUMNS, "")
    for name in ("repository", "function", "arguments", "claims", "report", "adapter"):
        row[name] = getattr(sampler, name)
    row["version"] = version
    if not version:
        return {**row, "verdict": MISSING, "why": f"no checkout {folder.name}"}
    began = time.perf_counter()
    try:
        with importing(sampler, folder) as checkout:
            function = sampler.load(checkout)
            by_design = sampler.claims.startswith(BY_DESIGN)
            found = judge(function, sampler.convention, dtype=sampler.dtype, by_design=by_design, shapes=sampler.shapes)
    except Exception as error:  # of their code, whatever it is: it is told
        return {**row, "verdict": NOT_JUDGED, "why": _told(error, folder)}
    row["seconds"] = round(time.perf_counter() - began, 1)
    row |= {"verdict": found.verdict, "worlds": found.judged, "coins": found.scripts, "why": found.reason}
    if found.verdict != NOT_JUDGED:
        row["distance"] = float(f"{found.distance:.5g}")
    shown = found.counterexample
    if shown is not None:
        row["why"] = (
            f"in {shown.world.name!r} with {shown.shape.name}, {list(shown.tokens)} has {shown.given:.4f} instead of "
            f"{shown.right:.4f}"
        )
        print(f"\n{sampler.repository} {sampler.function} {sampler.arguments}\n{found}\n")
        if sampler.followed and version.startswith(sampler.read):
            row["followed"] = sampler.followed
        elif found.verdict == LOSSY:
            row |= {"verdict": NOT_JUDGED, "why": f"{row['why']}, which nobody has followed in this version"}
    return row


def _told(error: Exception, folder: Path) -> str:
    """What an error says, in one line and without the place of the checkout on this machine."""
    if isinstance(error, NotImplementedError):
        return str(error)
    line = f"{type(error).__name__}: {error}".partition("\n")[0]
    return line.replace(f"{folder}/", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", default="", help="samplers whose repository or function contains this")
    given = parser.parse_args()
    chosen = [one for one in SAMPLERS if given.only in f"{one.repository} {one.function} {one.arguments} {one.folder}"]
    rows = [judged(sampler, given.checkouts) for sampler in tqdm(chosen, unit="sampler", disable=files.QUIET)]
    table = pd.DataFrame(rows, columns=COLUMNS)
    print(table.drop(columns=["version", "adapter", "followed"]).to_string())
    provenance.write_table(given.out, table, "python tools/judge_samplers.py CHECKOUTS --out data/samplers")


if __name__ == "__main__":
    main()
