"""The loop: propose, score, verify, commit; one Step at a time or a whole Generation."""

import operator
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from numbers import Integral
from typing import Protocol

import torch
from torch import Tensor

from specnb.sampling import Coins, RandomCoins, Warp
from specnb.target import Target, check_tokens, token_ids
from specnb.tree import Draft, Drawn, TokenTree, Verdict

Stop = Callable[[Sequence[int]], str | None]  # generated tokens so far → why to stop, or None
Verifier = Callable[[Draft, Tensor, Coins], Verdict]  # verifier(draft, p (n, V), coins), see specnb.verifiers


class Drafter(Protocol):
    """Proposes one draft per step; serves one generation at a time.

    hidden_layers: the target's hidden states it wants to see, () for none.
    reach: how many positions its auxiliary nodes may lie deeper than max_depth, 0 without such nodes.
    vocabulary: optional; for how many tokens its draft model has logits, None where the draft names their ids.
    serving: no drafter needs to declare it; ``steps`` sets it to the generation that has begun last with this drafter,
    and lets no earlier one go on.
    """

    hidden_layers: tuple[int, ...]
    reach: int
    serving: object

    def begin(self, prefix: Sequence[int], warp: Warp, hidden: dict[int, Tensor]) -> None:
        """Start a generation. prefix: the prompt, root last; hidden: (len(prefix) - 1, width) each."""

    def propose(self, coins: Coins, max_depth: int) -> Draft:
        """A draft whose root is the last committed token. Nodes deeper than max_depth could not be used.

        Where a draft model was asked, the draft names its forwards (``Draft.expansions``); a drafter that merges drafts
        or drops nodes hands them on.
        """

    def observe(
        self, draft: Draft, path: Sequence[int], next_token: int, hidden: dict[int, Tensor], logits: Tensor
    ) -> None:
        """The step is over: path of draft was accepted, then next_token.

        hidden: (1 + len(path), width) each, for the root and the path. logits: (n, V), the target's output
        after every node, auxiliary ones included.
        """


@dataclass(frozen=True)
class Step:
    """One turn of the loop.

    start: number of committed tokens before it, the root included. draft: what was proposed; draft.expansions tells
    how many nodes each forward of a draft model expanded, and in which time. p: (m, V), the target's law after each
    node up to the last candidate.
    tokens: what the step commits: the accepted path and the next token, cut at the end of the generation.
    uniforms: the number behind each accept coin, in the order of verdict.trials. seconds: draft, target
    (forward), verify (warp and verifier) and commit (cache and drafter's bookkeeping).
    finish: "eos", "length" or what ``stop`` said, on the last step.
    """

    index: int
    start: int
    draft: Draft
    p: Tensor | None
    verdict: Verdict
    tokens: tuple[int, ...]
    seconds: dict[str, float]
    uniforms: tuple[float, ...] = ()
    finish: str | None = None

    def light(self) -> "Step":
        """The same step without the vocabulary-sized tables p and q.

        What else the draft says is kept, as a POINT draft.
        """
        bare = replace(self.draft, q=None, ids=None, drawn=Drawn.POINT)
        return replace(self, draft=bare, p=None)


@dataclass(frozen=True)
class Generation:
    """A finished generation: prompt and new tokens, the steps that made them, and why it ended."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    steps: tuple[Step, ...] = field(repr=False)
    finish: str


def steps(
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    eos: int | Collection[int] | None = None,
    stop: Stop | None = None,
    coins: Callable[[int, int], Coins] = RandomCoins,
    profile: bool = False,
) -> Iterator[Step]:
    """Speculative decoding, one Step at a time.

    eos: token ids (or one) that end the text, None for those of the model's generation config, () for none.
    stop: called with the generated tokens after each new token; a string ends the generation after that token.
    Coins for drafting and for verifying come from independent streams of the seed: coins(seed, 0), coins(seed, 1).
    profile: wait for the GPU at the ends of a step's phases, so that their seconds are their own; slower.
    Raises ValueError, at the first step and before any work, on a prompt that is empty or no list of token ids, if
    prompt, max_new_tokens and the drafter's reach exceed the context, or on settings without sense; later, on a draft
    that does not hang off the last committed token. RuntimeError if target or drafter begins another generation before
    this one is over: each serves one at a time.
    """
    prompt = _checked(target, drafter, verifier, prompt, max_new_tokens)
    warp = Warp(temperature, top_k, top_p)
    eos = eos_ids(target.model) if eos is None else ids_of(eos)
    draft_coins, verify_coins = coins(seed, 0), coins(seed, 1)
    clock = Clock(profile)
    new: list[int] = []
    finish = None
    this_generation = object()
    target.serving = this_generation
    drafter.serving = this_generation
    with clock("draft"):  # prefill and begin belong to the first step
        target.hidden_layers = tuple(drafter.hidden_layers)
        drafter.begin(prompt, warp, target.prefill(prompt[:-1]))
    for index in count():
        start = len(prompt) + len(new)
        for one in (target, drafter):
            if one.serving is not this_generation:
                raise RuntimeError(f"this {type(one).__name__} has begun another generation: make one for each")
        with clock("draft"):  # a step commits accepted + 1 tokens: deeper nodes could never be used
            draft = drafter.propose(draft_coins, max_new_tokens - len(new) - 1)
        _check_kind(draft, Draft, f"propose of {type(drafter).__name__}")
        root = draft.tree.token_list[0]
        last = (new or prompt)[-1]
        if root != last:
            raise ValueError(f"a draft hangs off the last committed token, {last}; its root is {root} ({drafter!r})")
        with clock("target"):
            scores = target.forward(draft.tree)
        with clock("verify"):
            verify_coins.uniforms.clear()
            p = warp(scores.logits[: draft.candidate_rows])
            verdict = verifier(draft, p, verify_coins)
        _check_kind(verdict, Verdict, f"the verifier {getattr(verifier, '__name__', verifier)}")
        with clock("commit"):
            target.commit(verdict.path)
            hidden = {layer: rows[[0, *verdict.path]] for layer, rows in scores.hidden.items()}
            drafter.observe(draft, verdict.path, verdict.next_token, hidden, scores.logits)
        accepted = [draft.tree.token_list[node] for node in verdict.path]
        tokens = []
        for token in (*accepted, verdict.next_token):
            tokens.append(token)
            new.append(token)
            finish = _finished(new, max_new_tokens, eos, stop)
            if finish:
                break
        uniforms = tuple(verify_coins.uniforms)
        yield Step(index, start, draft, p, verdict, tuple(tokens), clock.take(), uniforms, finish)
        if finish:
            return


def decode(
    target: Target, drafter: Drafter, verifier: Verifier, prompt: Sequence[int], *, trace: str = "light", **options
) -> Generation:
    """Run ``steps`` to the end. options: those of ``steps``.

    trace "full" keeps p and q of every step (n × V numbers each), "light" drops them, "none" keeps no steps.
    """
    if trace not in ("full", "light", "none"):
        raise ValueError(f"trace must be 'full', 'light' or 'none', got {trace!r}")
    kept: list[Step] = []
    tokens: list[int] = []
    finish = ""
    for step in steps(target, drafter, verifier, prompt, **options):
        tokens += step.tokens
        finish = step.finish or ""
        if trace != "none":
            kept.append(step if trace == "full" else step.light())
    return Generation(tuple(map(int, prompt)), tuple(tokens), tuple(kept), finish)


class PlainDrafter:
    """Proposes nothing: the loop becomes ordinary autoregressive decoding, one target call per token."""

    hidden_layers, reach = (), 0

    def begin(self, prefix, warp, hidden) -> None:
        self.root = prefix[-1]

    def propose(self, coins, max_depth) -> Draft:
        return Draft(TokenTree([self.root], [-1]))

    def observe(self, draft, path, next_token, hidden, logits) -> None:
        self.root = next_token


def eos_ids(model) -> frozenset[int]:
    """End-of-text token ids of a model's generation config."""
    ids = model.generation_config.eos_token_id
    return frozenset() if ids is None else ids_of(ids)


def ids_of(ends: int | Collection[int]) -> frozenset[int]:
    """One token id or several, also as numpy's or torch's numbers."""
    try:
        return frozenset([operator.index(ends)])
    except TypeError:
        return frozenset(token_ids(ends))


def _checked(
    target: Target, drafter: Drafter, verifier: Verifier, prompt: Sequence[int], max_new_tokens: int
) -> list[int]:
    """The prompt's token ids; ValueError if nothing can be generated behind it."""
    if not hasattr(target, "prefill"):
        raise ValueError(f"decode needs a Target, got a {type(target).__name__}: give Target(pair.target)")
    if not callable(verifier):
        raise ValueError(f"decode needs a verifier such as verifiers.greedy, a function, got {verifier!r}")
    columns = getattr(drafter, "vocabulary", None)
    if columns is not None and columns != target.vocabulary:
        raise ValueError(
            f"the draft model gives {columns} logits, the target {target.vocabulary}: if they share a tokenizer, say "
            f"CausalLMDraft(model, vocabulary={target.vocabulary})"
        )
    prompt = token_ids(prompt)
    if not prompt:
        raise ValueError("the prompt is empty: at least one token is needed to hang a tree on")
    check_tokens(prompt, target.readable)
    if not isinstance(max_new_tokens, Integral) or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be a whole number, at least 1, got {max_new_tokens}")
    if len(prompt) + max_new_tokens + drafter.reach > target.context:
        ahead = f", of which drafts take {drafter.reach}" if drafter.reach else ""
        raise ValueError(
            f"a prompt of {len(prompt)} tokens and max_new_tokens={max_new_tokens} exceed the context of "
            f"{target.context}{ahead}: shorten one of them"
        )
    return prompt


def _check_kind(found: object, kind: type, whose: str) -> None:
    """ValueError unless what a drafter or a verifier gives is a Draft or a Verdict."""
    if not isinstance(found, kind):
        raise ValueError(f"{whose} should give a {kind.__name__}, got a {type(found).__name__}")


def _finished(new: list[int], limit: int, eos: frozenset[int], stop: Stop | None) -> str | None:
    if new[-1] in eos:
        return "eos"
    if stop is not None:
        why = stop(new)
        if why:
            return why
    if len(new) == limit:
        return "length"
    return None


class Clock:
    """Seconds per phase since the last ``take``. profile: wait for the GPU at the ends of a phase.

    Else what a GPU has been given to do counts in the phase that has to wait for it: that of the next read.
    """

    def __init__(self, profile: bool):
        self.phases: dict[str, float] = {}
        self.now = now if profile else time.perf_counter

    @contextmanager
    def __call__(self, phase: str):
        began = self.now()
        yield
        self.phases[phase] = self.phases.get(phase, 0.0) + self.now() - began

    def take(self) -> dict[str, float]:
        taken = self.phases
        self.phases = {}
        return taken


def now() -> float:
    """Seconds on the wall clock, once the GPU's queue is empty."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
