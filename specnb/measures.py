"""What one cell of a sweep measures: a single real run, with models and drafts loaded once per process.

Times are those of the embedded pair in bfloat16, texts and replays are compared in float32.
"""

import threading
from functools import cache, partial
from itertools import accumulate
from pathlib import Path

import pandas as pd

from specnb import assets, bench, costs, growth, head_drafts, models, prompts, replay, verifiers
from specnb.broken import Unpositioned
from specnb.decode import Step, decode
from specnb.draft_models import DraftModel
from specnb.drafters import TreeDrafter
from specnb.growth import Growth
from specnb.target import Target

LENGTHS = (100, 200, 300, 500, 1000)  # of DynaTree's sweep
DYNATREE_RESULTS = tuple(f"{name} {n}" for n in LENGTHS for name in ("seconds", "tokens", "steps", "nodes"))
TEXT_RESULTS = ("equal", "first", "gap", "same")
REPLAY_RESULTS = ("steps", "same", "draft", "target", "verify", "commit")

ALONE = threading.Lock()  # drafts have a state and seconds are measured: one cell at a time in a process


@cache
def pair(dtype: str = "bfloat16") -> models.Pair:
    """The embedded model, once per process, and warm: its first forwards are slow."""
    loaded = models.load_pair(dtype=dtype)
    bench.generate(loaded.target, max_new_tokens=16)(loaded.encode("Good morning."))
    return loaded


@cache
def draft(name: str, dtype: str = "bfloat16") -> DraftModel:
    """A trained head, once per process."""
    return head_drafts.load(name, pair(dtype).target)


def encoded(prompt: str, dtype: str = "bfloat16") -> list[int]:
    """Token ids of the prompt "paper" or of an own one, by its id."""
    return pair(dtype).encode(pd.concat([prompts.dynatree(), prompts.own()]).set_index("id").loc[prompt, "text"])


@cache
def plain_text(prompt: str, length: int) -> tuple[int, ...]:
    """What transformers' generate writes greedily in float32, end tokens taken as text."""
    model = pair("float32").target
    method = bench.generate(model, max_new_tokens=length, eos_token_id=len(pair("float32").tokenizer))
    return tuple(method(encoded(prompt, "float32")))


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
        drafter = TreeDrafter(draft(draft_name), growth.DynaTree(depth, branch, threshold, budget))
        options = {"max_new_tokens": max(LENGTHS), "eos": ()}
        out = decode(Target(pair().target), drafter, verifiers.greedy, encoded(prompt), **options)
    return {f"{name} {n}": value for n in LENGTHS for name, value in after(list(out.steps), n).items()}


def same_text(
    draft_name: str, depth: int, branch: int, threshold: float, budget: int, prompt: str, length: int, positions: bool
) -> dict[str, object]:
    """DynaTree's greedy float32 text beside plain decoding's, by the near-tie rule; positions: told to the target."""
    with ALONE:
        model = pair("float32").target
        drafter = TreeDrafter(draft(draft_name, "float32"), growth.DynaTree(depth, branch, threshold, budget))
        target, options = (Target if positions else Unpositioned)(model), {"max_new_tokens": length, "eos": ()}
        methods = {
            "generate": lambda _: list(plain_text(prompt, length)),
            "dynatree": lambda ids: list(decode(target, drafter, verifiers.greedy, ids, **options).tokens),
        }
        row = bench.same_text(model, methods, [encoded(prompt, "float32")]).iloc[0]
    return {name: row[name].item() if hasattr(row[name], "item") else row[name] for name in TEXT_RESULTS}


def replayed(
    draft_name: str, depth: int, branch: int, threshold: float, budget: int, prompt: str, recording: str
) -> dict[str, object]:
    """One real greedy run in float32, and whether replaying the recording takes the same steps with the same trees.

    Seconds are those of the run's steps after the first, which holds the prefill.
    """
    with ALONE:
        recorded, rule = replay.Recording.load(recording), growth.DynaTree(depth, branch, threshold, budget)
        drafter, options = TreeDrafter(draft(draft_name, "float32"), rule), {"eos": ()}
        target, ids = Target(pair("float32").target), encoded(prompt, "float32")
        out = decode(target, drafter, verifiers.greedy, ids, max_new_tokens=len(recorded.text), **options)
    turns, later = replay.replay(recorded, rule), out.steps[1:]
    real = [(len(step.draft.tree), len(step.verdict.path)) for step in out.steps]
    phases = {name: sum(step.seconds[name] for step in later) for name in ("draft", "target", "verify", "commit")}
    return {"steps": len(real), "same": real == [(turn.nodes, turn.accepted) for turn in turns], **phases}


def plain(length: int, prompt: str, repetition: int) -> dict[str, float]:
    """transformers' own generate, greedy, to exactly so many tokens: every speed-up's baseline. End tokens are text."""
    with ALONE:
        method = bench.generate(pair().target, max_new_tokens=length, eos_token_id=len(pair().tokenizer))
        tokens, seconds = costs.timed(partial(method, encoded(prompt)))
    return {"seconds": seconds, "tokens": len(tokens)}


def study_rules(cost: float, node: float) -> dict[str, Growth]:
    """EDD's rules by name, its ablations and widths, and break-even by layer; prices are shares of a target call."""
    widths = {f"pct width {k}": growth.Pct(cost, k) for k in (1, 2, 3, 4, 6, 8, 10)}
    return {
        "chain 5": growth.chain(5),
        "chain 10": growth.chain(10),
        "vct": growth.kary(3, 5),
        "cape": growth.Cape(),
        "eagle2": growth.Eagle2(50, 6, 10),
        "pct": growth.Pct(cost),
        "pct w/o gain": growth.Pct(cost, alone=True, budget=100, leaf=0.01),
        "pct w/o leaves": growth.Pct(cost, leaf=0),
        "layer gain": growth.LayerGain(cost, node),
        **widths,
    }


def kept(draft_name: str, prompt: str, length: int) -> Path:
    """Where ``trees`` keeps its recording: in the user's cache."""
    folder = assets.cache_dir() / "recordings"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{draft_name}_{prompt}_{length}.npz"


def trees(draft_name: str, prompt: str, length: int, cost: float, node: float) -> dict[str, float]:
    """Every rule of EDD's comparison, replayed along the plain float32 text of one prompt from one recording.

    Per rule: steps, drafted nodes, draft forwards and nodes fed to the draft, summed over steps. The recording stays
    in the cache (``kept``); the vanilla tree, whose 363 nodes nobody else wants, has one of its own.
    """
    rules = study_rules(cost, node)
    widest = [rules[name] for name in ("chain 10", "cape", "eagle2", "pct width 10", "pct w/o gain", "layer gain")]
    with ALONE:
        target, model, ids = Target(pair("float32").target), draft(draft_name, "float32"), encoded(prompt, "float32")
        text = plain_text(prompt, length)
        recording = replay.record(target, model, replay.Together(tuple(widest), k=10), ids, text)
        vanilla = replay.record(target, model, rules["vct"], ids, text)
    recording.save(kept(draft_name, prompt, length))
    found: dict[str, float] = {}
    for name, rule in rules.items():
        turns = replay.replay(vanilla if name == "vct" else recording, rule)
        counts = {
            "steps": len(turns),
            "nodes": sum(turn.nodes - 1 for turn in turns),
            "forwards": sum(len(turn.forwards) for turn in turns),
            "fed": sum(sum(turn.forwards) for turn in turns),
        }
        found |= {f"{name}: {what}": value for what, value in counts.items()}
    return found


TREES_RESULTS = tuple(f"{name}: {what}" for name in study_rules(1, 1) for what in ("steps", "nodes", "forwards", "fed"))
