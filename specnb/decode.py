"""The loop: propose, score, verify, commit; one Step at a time or a whole Generation."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specnb.drafters import Drafter
from specnb.sampling import Coins, RandomCoins, Warp
from specnb.target import Target
from specnb.tree import Draft, TokenTree
from specnb.verifiers import Verdict, Verifier

Stop = Callable[[Sequence[int]], str | None]  # generated tokens so far → why to stop, or None


@dataclass(frozen=True)
class Step:
    """One turn of the loop.

    start: number of committed tokens before it, the root included. p: (m, V), the target's law after each node up to
    the last that stood for election.
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
        """The same step without the vocabulary-sized tables p and q (the tree is kept as a POINT draft)."""
        bare = Draft(self.draft.tree, auxiliary=self.draft.auxiliary, scores=self.draft.scores)
        return replace(self, draft=bare, p=None)


@dataclass(frozen=True)
class Generation:
    """A finished generation: prompt and new tokens, the steps that made them, and why it ended."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    steps: tuple[Step, ...] = field(repr=False)
    finish: str

    @property
    def seconds(self) -> float:
        return sum(sum(step.seconds.values()) for step in self.steps)


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
    eos: Collection[int] | None = None,
    stop: Stop | None = None,
    coins: Callable[[int, int], Coins] = RandomCoins,
) -> Iterator[Step]:
    """Speculative decoding, one Step at a time.

    eos: token ids that end the text, None for those of the model's generation config, () for none.
    stop: called with the generated tokens after each new token; a string ends the generation after that token.
    Coins for drafting and for verifying come from independent streams of the seed: coins(seed, 0), coins(seed, 1).
    Raises ValueError before any work on an empty prompt, or one that with max_new_tokens exceeds the context.
    """
    prompt = [int(token) for token in prompt]
    warp = Warp(temperature, top_k, top_p)
    eos = eos_ids(target.model) if eos is None else frozenset(eos)
    if not prompt:
        raise ValueError("the prompt is empty: at least one token is needed to hang a tree on")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    reach = getattr(drafter, "reach", 0)  # self-drafters look further ahead than the text will go
    if len(prompt) + max_new_tokens + reach > target.context:
        raise ValueError(
            f"a prompt of {len(prompt)} tokens and max_new_tokens={max_new_tokens} exceed the context of "
            f"{target.context}{f', of which drafts take {reach}' if reach else ''}: shorten one of them"
        )
    target.hidden_layers = tuple(drafter.hidden_layers)
    draft_coins, verify_coins = coins(seed, 0), coins(seed, 1)
    tossed = getattr(verify_coins, "uniforms", [])
    clock = Clock()
    drafter.begin(prompt, warp, target.prefill(prompt[:-1]))
    clock.lap("draft")  # prefill and begin belong to the first step
    new: list[int] = []
    index, finish = 0, None
    while finish is None:
        start = len(prompt) + len(new)
        # A step commits accepted + 1 tokens: deeper nodes than that leave room for could never be used.
        draft = drafter.propose(draft_coins, max_new_tokens - len(new) - 1)
        clock.lap("draft")
        scores = target.forward(draft.tree)
        clock.lap("target")
        tossed.clear()
        p = warp(scores.logits[: draft.elected]).cpu()
        verdict = verifier(draft, p, verify_coins)
        clock.lap("verify")
        target.commit(verdict.path)
        kept = [0, *verdict.path]
        hidden = {layer: rows[kept] for layer, rows in scores.hidden.items()}
        drafter.observe(draft, verdict.path, verdict.next_token, hidden, scores.logits)
        clock.lap("commit")
        tokens = []
        for token in (*(draft.tree.token_list[node] for node in verdict.path), verdict.next_token):
            tokens.append(token)
            new.append(token)
            finish = _finished(new, max_new_tokens, eos, stop)
            if finish:
                break
        yield Step(index, start, draft, p, verdict, tuple(tokens), clock.take(), tuple(tossed), finish)
        clock.lap("outside")  # what the reader of the iterator did meanwhile is not ours
        clock.take()
        index += 1


def decode(
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    prompt: Sequence[int],
    *,
    trace: str = "light",
    **options,
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


def stop_strings(tokenizer, strings: Sequence[str]) -> Stop:
    """A ``stop`` for ``steps`` and ``decode``: end as soon as the generated text contains one of the strings."""

    reach = 4 * max(map(len, strings)) + 4  # in tokens: a character has at most four bytes, a byte is a token at least

    def stop(tokens: Sequence[int]) -> str | None:
        tail = tokenizer.decode(list(tokens[-reach:]))
        return next((f"stop string {s!r}" for s in strings if s in tail), None)

    return stop


class PlainDrafter:
    """Proposes nothing: the loop becomes ordinary autoregressive decoding, one target call per token."""

    hidden_layers = ()

    def begin(self, prefix, warp, hidden) -> None:
        self.root = prefix[-1]

    def propose(self, coins, max_depth) -> Draft:
        return Draft(TokenTree([self.root], [-1]))

    def observe(self, draft, path, next_token, hidden, logits) -> None:
        self.root = next_token


def eos_ids(model) -> frozenset[int]:
    """End-of-text token ids of a model's generation config."""
    ids = model.generation_config.eos_token_id
    return frozenset() if ids is None else frozenset([ids] if isinstance(ids, int) else ids)


def _finished(new: list[int], limit: int, eos: frozenset[int], stop: Stop | None) -> str | None:
    if new[-1] in eos:
        return "eos"
    if stop is not None and (why := stop(new)):
        return why
    return "length" if len(new) == limit else None


class Clock:
    """Seconds per phase since the last ``take``; waits for the GPU at each lap, so phases do not leak."""

    def __init__(self):
        self.last, self.phases = time.perf_counter(), {}

    def lap(self, phase: str) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self.last
        self.last = now

    def take(self) -> dict[str, float]:
        taken, self.phases = self.phases, {}
        return taken
