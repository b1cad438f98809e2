"""What one cell of a sweep measures: a single real run, with models and drafts loaded once per process.

Times are those of the embedded pair in bfloat16, texts and replays are compared in float32.
"""

import threading
from collections.abc import Sequence
from functools import cache, partial
from itertools import accumulate

import torch

from specnb import assets, costs, growth, methods, models, prompts, racing, replay, verifiers
from specnb.broken import Unpositioned
from specnb.decode import Generation, Step, decode
from specnb.draft_models import DraftModel
from specnb.drafters import Drafter, TreeDrafter
from specnb.growth import Growth
from specnb.target import Target

LENGTHS = (100, 200, 300, 500, 1000)  # of DynaTree's sweep
DYNATREE_RESULTS = tuple(f"{name} {n}" for n in LENGTHS for name in ("seconds", "tokens", "steps", "nodes"))
TEXT_RESULTS = ("equal", "first", "gap", "same")
PHASES = ("draft", "target", "verify", "commit")
REPLAY_RESULTS = ("steps", "equal", "same", *PHASES)

ALONE = threading.Lock()  # drafts have a state and seconds are measured: one cell at a time in a process


@cache
def pair(dtype: str) -> models.Pair:
    """The embedded model, once per process, and warm: its first forwards are slow."""
    loaded = models.load_pair(dtype=dtype)
    racing.generate(loaded.target, max_new_tokens=16)(loaded.encode("Good morning."))
    return loaded


@cache
def draft(name: str, dtype: str) -> DraftModel:
    """A trained head, once per process; "edd@1.3" is edd with its logits divided by 1.3."""
    return methods.draft_model(name, pair(dtype))


def encoded(prompt: str, dtype: str) -> list[int]:
    """Token ids of a prompt by its id in any of the prompt sets."""
    return pair(dtype).encode(prompts.text(prompt))


def generate(dtype: str, length: int, **options) -> racing.Method:
    """transformers' own generate, to exactly so many tokens: end tokens are text. Greedy unless options say more."""
    return racing.generate(
        pair(dtype).target, max_new_tokens=length, eos_token_id=len(pair(dtype).tokenizer), **options
    )


@cache
def plain_text(prompt: str, length: int) -> tuple[int, ...]:
    """What transformers' generate writes greedily in float32."""
    return tuple(generate("float32", length)(encoded(prompt, "float32")))


def after(steps: list[Step], length: int) -> dict[str, float]:
    """A run as it stood once it had written so many tokens: seconds, tokens, steps and drafted nodes."""
    written = list(accumulate(len(step.tokens) for step in steps))
    count = next(i for i, tokens in enumerate(written, start=1) if tokens >= length)
    seconds = sum(sum(step.seconds.values()) for step in steps[:count])
    nodes = sum(len(step.draft.tree) - 1 for step in steps[:count])
    return {"seconds": seconds, "tokens": written[count - 1], "steps": count, "nodes": nodes}


def dynatree(
    draft_name: str, depth: int, branch: int, threshold: float, budget: int, prompt: str, repetition: int
) -> dict[str, float]:
    """One greedy run of the longest length with DynaTree; shorter lengths are its beginnings. End tokens count as text.

    prompt: see ``encoded``.
    """
    with ALONE:
        drafter = TreeDrafter(draft(draft_name, "bfloat16"), growth.DynaTree(depth, branch, threshold, budget))
        options = {"max_new_tokens": max(LENGTHS), "eos": ()}
        out = decode(Target(pair("bfloat16").target), drafter, verifiers.greedy, encoded(prompt, "bfloat16"), **options)
    return {f"{name} {n}": value for n in LENGTHS for name, value in after(list(out.steps), n).items()}


def same_text(draft_name: str, rule: str, prompt: str, length: int, positions: bool) -> dict[str, object]:
    """The greedy float32 text of a growth rule (``methods.rule``): see ``compare_text``."""
    return compare_text(rule, methods.drafter(rule, draft(draft_name, "float32")), prompt, length, positions)


def compare_text(
    name: str, drafter: Drafter, prompt: str, length: int, positions: bool, **settings
) -> dict[str, object]:
    """A drafter's greedy float32 text beside plain decoding's, by the near-tie rule.

    positions: whether the target is told position ids. settings: those of ``Target``.
    """
    with ALONE:
        model = pair("float32").target
        target = (Target if positions else Unpositioned)(model, **settings)
        options = {"max_new_tokens": length, "eos": ()}
        texts = {
            "generate": lambda _: list(plain_text(prompt, length)),
            name: lambda ids: list(decode(target, drafter, verifiers.greedy, ids, **options).tokens),
        }
        row = racing.same_text(model, texts, [encoded(prompt, "float32")]).iloc[0]
    return {name: row[name].item() if hasattr(row[name], "item") else row[name] for name in TEXT_RESULTS}


def recorded(draft_name: str, prompt: str, length: int, largest: Growth) -> replay.Recording:
    """The draft's largest trees along the plain float32 text of one prompt."""
    with ALONE:
        target, ids = Target(pair("float32").target), encoded(prompt, "float32")
        return replay.record(target, draft(draft_name, "float32"), largest, ids, plain_text(prompt, length))


def replayed(
    draft_name: str, depth: int, branch: int, threshold: float, budget: int, prompt: str, recording: str
) -> dict[str, object]:
    """One real greedy run in float32, and whether replaying the recording takes the same steps with the same trees.

    recording: a file, by its path from the checkout. equal: the run wrote the recorded text (a near tie may part
    them). Seconds are those of the run's steps after the first, which holds the prefill.
    """
    with ALONE:
        known, rule = replay.Recording.load(assets.ROOT / recording), growth.DynaTree(depth, branch, threshold, budget)
        drafter, options = TreeDrafter(draft(draft_name, "float32"), rule), {"eos": ()}
        target, ids = Target(pair("float32").target), encoded(prompt, "float32")
        out = decode(target, drafter, verifiers.greedy, ids, max_new_tokens=len(known.text), **options)
    turns, later = replay.replay(known, rule), out.steps[1:]
    real = [(len(step.draft.tree), len(step.verdict.path)) for step in out.steps]
    phases = {name: sum(step.seconds[name] for step in later) for name in PHASES}
    same = real == [(turn.nodes, turn.accepted) for turn in turns]
    return {"steps": len(real), "equal": out.tokens == known.text, "same": same, **phases}


def plain(length: int, prompt: str, repetition: int) -> dict[str, float]:
    """transformers' own generate, greedy: every speed-up's baseline."""
    with ALONE:
        tokens, seconds = costs.timed(partial(generate("bfloat16", length), encoded(prompt, "bfloat16")))
    return {"seconds": seconds, "tokens": len(tokens)}


def decoded(draft_name: str, rule: str, prompt: str, temperature: float, length: int) -> dict[str, float]:
    """One real run with a growth rule (``methods.rule``), or of transformers' generate for the rule "plain".

    Greedy at temperature 0, else sampled by one-hot verification: these trees drop nodes by value. A learnt threshold
    begins anew ("adaptive …") or goes on from the process' earlier texts ("ongoing …"). End tokens are text.
    seconds: the whole run. prefill: until the first token of plain, resp. all of the first step; draft, target,
    verify and commit: seconds of the later steps. nodes, depth: of the trees that were verified, summed over steps.
    """
    if rule == "plain":
        return plain_run(prompt, temperature, length)[1]
    with ALONE:
        _warm(draft_name, rule)
    drafter = (_kept if rule.startswith("ongoing") else _made)(draft_name, rule)
    return timed_run(drafter, verifiers.one_hot if temperature else verifiers.greedy, prompt, temperature, length)[1]


def plain_run(prompt: str, temperature: float, length: int, seed: int = 0) -> tuple[tuple[int, ...], dict[str, float]]:
    """The text of transformers' generate, greedy or sampled, and its times in the form of ``timed_run``."""
    sampling = racing.sampling(temperature)
    with ALONE:
        ids = encoded(prompt, "bfloat16")
        one, method = (generate("bfloat16", n, **sampling) for n in (1, length))
        prefill = costs.timed(partial(one, ids))[1]
        torch.manual_seed(seed)
        tokens, seconds = costs.timed(partial(method, ids))
    sizes = {"seconds": seconds, "tokens": len(tokens), "steps": len(tokens), "prefill": prefill}
    return tuple(tokens), {**dict.fromkeys(DECODED, 0), **sizes}


def timed_run(
    drafter: Drafter, verifier: verifiers.Verifier, prompt: str, temperature: float, length: int, seed: int = 0
) -> tuple[Generation, dict[str, float]]:
    """One real run in bfloat16, end tokens being text; and its times: see ``decoded``."""
    options = {"max_new_tokens": length, "temperature": temperature, "seed": seed, "eos": ()}
    with ALONE:
        target, ids = Target(pair("bfloat16").target), encoded(prompt, "bfloat16")
        out, seconds = costs.timed(partial(decode, target, drafter, verifier, ids, **options))
    return out, times(out.steps, seconds)


def times(steps: Sequence[Step], seconds: float) -> dict[str, float]:
    """Sizes and times of a run by its steps: see ``decoded``."""
    first, *later = steps
    return {
        "seconds": seconds,
        "tokens": sum(len(step.tokens) for step in steps),
        "steps": len(steps),
        "nodes": sum(len(step.draft.tree) - 1 for step in steps),
        "depth": sum(max(step.draft.tree.depth_list) for step in steps),
        "prefill": sum(first.seconds.values()),
        **{name: sum(step.seconds[name] for step in later) for name in PHASES},
    }


def _made(draft_name: str, rule: str) -> Drafter:
    return methods.drafter(rule, draft(draft_name, "bfloat16"))


_kept = cache(_made)
DECODED = ("seconds", "tokens", "steps", "nodes", "depth", "prefill", *PHASES)


@cache
def _warm(draft_name: str, rule: str) -> None:
    """A first short run, whose forwards are slow."""
    ids = pair("bfloat16").encode("Good morning.")
    decode(Target(pair("bfloat16").target), _made(draft_name, rule), verifiers.greedy, ids, max_new_tokens=8)
