"""The decoding loop: propose, score, verify, commit. ``steps`` runs it step by step, ``decode`` to the end.

Words used here: a candidate is a draft node that the verifier may accept. An auxiliary node only rides the target's
forward pass and is never accepted. A law is a probability distribution over the vocabulary. Coins are the source of all
randomness (``specnb.sampling``).
"""

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
# verifier(draft, p, coins); p: (m, V), one row per node up to the last candidate, see specnb.verifiers
Verifier = Callable[[Draft, Tensor, Coins], Verdict]


class Drafter(Protocol):
    """Proposes one draft per step; serves one generation at a time.

    hidden_layers: the layers of the target whose hidden states the drafter reads, () for none.
    reach: by how many levels its auxiliary nodes may be deeper than max_depth; 0 without auxiliary nodes.
    vocabulary: optional; the number of logits of its draft model, None where the draft names their ids.
    serving: ``steps`` sets it to a mark of the generation that began last with this drafter, and stops any earlier
        generation by it. A drafter need not declare it.
    """

    hidden_layers: tuple[int, ...]
    reach: int
    serving: object

    def begin(self, prefix: Sequence[int], warp: Warp, hidden: dict[int, Tensor]) -> None:
        """Start a generation.

        prefix: the tokens of the prompt; the last one is the root of the first draft.
        hidden: for each layer in hidden_layers (len(prefix) - 1, width), the states of all tokens before the root.
        """

    def propose(self, coins: Coins, max_depth: int) -> Draft:
        """Return a draft whose root is the last committed token.

        Nodes deeper than max_depth could not be used. If a draft model ran, ``Draft.expansions`` lists its forwards. A
        drafter that merges drafts or drops nodes passes this list on.
        """

    def observe(
        self, draft: Draft, path: Sequence[int], next_token: int, hidden: dict[int, Tensor], logits: Tensor
    ) -> None:
        """Learn from a finished step: the nodes of path were accepted, and next_token follows them.

        hidden: for each layer in hidden_layers (1 + len(path), width), the states of the root and the path.
        logits: (n, V), the target's output after every node, auxiliary ones included.
        """


@dataclass(frozen=True)
class Step:
    """One turn of the loop.

    index: the number of the step, from 0.
    start: the number of committed tokens before the step, the root included.
    draft: the proposed draft. draft.expansions lists the nodes and seconds of each forward of the draft model.
    p: (m, V), the target's law after each node up to the last candidate; None in a light step.
    verdict: the accepted path and the next token, as the verifier returned them.
    tokens: the committed tokens: the accepted path and the next token, cut where the generation ends.
    seconds: wall-clock seconds by phase: "draft", "target" (forward), "verify" (warp and verifier) and "commit" (cache
        and drafter's bookkeeping). "draft" of step 0 includes the prefill and the drafter's ``begin``.
    uniforms: the uniform number of each accept coin, in the order of verdict.trials.
    finish: on the last step "eos", "length" or the string that ``stop`` returned; None before.
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
        """Return the same step without the vocabulary-sized tables p and q.

        Its draft becomes a POINT draft, because a draft of any other kind must have its q.
        """
        bare = replace(self.draft, q=None, ids=None, drawn=Drawn.POINT)
        return replace(self, draft=bare, p=None)


@dataclass(frozen=True)
class Generation:
    """A finished generation.

    prompt: the tokens of the prompt.
    tokens: the new tokens.
    steps: the steps that made them; none with trace="none".
    finish: why the generation ended: "eos", "length" or the string that ``stop`` returned.
    """

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

    prompt: token ids, at least one.
    max_new_tokens: the generation ends after this number of new tokens.
    temperature, top_k, top_p: how logits become probabilities, see ``Warp``.
    seed: decides all coins. Drafting and verifying use independent streams: coins(seed, 0) and coins(seed, 1).
    eos: a token id or several that end the text; None for those of the model's generation config, () for none.
    stop: called with all new tokens after each new token that does not end the text by eos. A string that it returns
        ends the generation after that token.
    coins: makes the coins of a seed and a purpose.
    profile: wait for the GPU at the end of each phase, so that the seconds of a phase are its own; slower.

    Raises ValueError at the first step, before any work:
    - if the prompt is empty or is not a list of token ids;
    - if prompt, max_new_tokens and the drafter's reach together exceed the context;
    - if a setting is out of its range.
    Raises ValueError later if the root of a draft is not the last committed token.
    Raises RuntimeError if the target or the drafter begins another generation before this one has ended, because each
    of them serves one generation at a time.
    """
    prompt = _check_arguments(target, drafter, verifier, prompt, max_new_tokens)
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
        target.hidden_layers = tuple(drafter.hidden_layers)  # every forward from here on returns these states
        drafter.begin(prompt, warp, target.prefill(prompt[:-1]))
    for index in count():
        start = len(prompt) + len(new)
        for part in (target, drafter):
            if part.serving is not this_generation:
                raise RuntimeError(f"this {type(part).__name__} has begun another generation: make one for each")
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
            committed = [0, *verdict.path]  # nodes
            hidden = {layer: states[committed] for layer, states in scores.hidden.items()}
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
    """Run ``steps`` to the end and return the Generation.

    trace: "full" keeps p and q of every step (n × V numbers each), "light" drops them, "none" keeps no steps.
    options: the keyword arguments of ``steps``.
    """
    if trace not in ("full", "light", "none"):
        raise ValueError(f"trace must be 'full', 'light' or 'none', got {trace!r}")
    recorded: list[Step] = []
    tokens: list[int] = []
    finish = ""
    for step in steps(target, drafter, verifier, prompt, **options):
        tokens += step.tokens
        finish = step.finish or ""
        if trace != "none":
            recorded.append(step if trace == "full" else step.light())
    return Generation(tuple(map(int, prompt)), tuple(tokens), tuple(recorded), finish)


class PlainDrafter:
    """A drafter that proposes nothing: the loop becomes ordinary autoregressive decoding, one target call per token."""

    hidden_layers, reach = (), 0

    def begin(self, prefix, warp, hidden) -> None:
        self.root = prefix[-1]

    def propose(self, coins, max_depth) -> Draft:
        return Draft(TokenTree([self.root], [-1]))

    def observe(self, draft, path, next_token, hidden, logits) -> None:
        self.root = next_token


def eos_ids(model) -> frozenset[int]:
    """Return the end-of-text token ids of a model's generation config."""
    ids = model.generation_config.eos_token_id
    return frozenset() if ids is None else ids_of(ids)


def ids_of(ends: int | Collection[int]) -> frozenset[int]:
    """Return one token id or several as a frozenset; numpy's and torch's integers are taken, too."""
    try:
        return frozenset([operator.index(ends)])
    except TypeError:
        return frozenset(token_ids(ends))


def _check_arguments(
    target: Target, drafter: Drafter, verifier: Verifier, prompt: Sequence[int], max_new_tokens: int
) -> list[int]:
    """ValueError unless the arguments of ``steps`` fit together; returns the prompt as a list of token ids."""
    if not hasattr(target, "prefill"):
        raise ValueError(f"decode needs a Target, got a {type(target).__name__}: give Target(pair.target)")
    if not callable(verifier):
        raise ValueError(f"decode needs a verifier such as verifiers.greedy, a function, got {verifier!r}")
    columns = getattr(drafter, "vocabulary", None)
    if columns is not None and columns != target.vocabulary:
        raise ValueError(
            f"the draft model gives {columns} logits, the target {target.vocabulary}: if they share a tokenizer, use "
            f"CausalLMDraft(model, vocabulary={target.vocabulary})"
        )
    prompt = token_ids(prompt)
    if not prompt:
        raise ValueError("the prompt is empty: at least one token is needed, the root of the first tree")
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


def _check_kind(result: object, kind: type, giver: str) -> None:
    """ValueError unless a result is of the kind (Draft or Verdict); giver: who returned it, for the error."""
    if not isinstance(result, kind):
        raise ValueError(f"{giver} should give a {kind.__name__}, got a {type(result).__name__}")


def _finished(new: list[int], limit: int, eos: frozenset[int], stop: Stop | None) -> str | None:
    """Return why the generation ends after the last new token, or None if it goes on.

    eos comes first, then ``stop``, then the length: a text that ends by eos with its last allowed token reports "eos".
    """
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
    """Measures the seconds of each phase since the last ``take``.

    profile: wait for the GPU at both ends of a phase. Without it, work that is queued on a GPU counts in the phase that
    waits for the GPU next, usually because it reads a result.
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
    """Wait until the GPU's queue is empty, and return the seconds on the wall clock."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
