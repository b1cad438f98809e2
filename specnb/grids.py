"""The papers' parameter grids, and their checks, as sweeps over real runs. On the command line:

python -m specnb.grids dynatree --draft vdm --out data/results/dynatree_grid        # the grid, timed
python -m specnb.grids texts --draft vdm --workers 2 --out data/results/dynatree_texts      # same text, float32?
python -m specnb.grids replay --draft vdm --out data/results/dynatree_replay                # replay = real run?

``--workers N`` runs the cells on N processes, ``--scheduler ADDRESS`` on a Dask cluster; where time is measured, a
machine should run one cell at a time.
"""

import argparse
import json
import multiprocessing
import shlex
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import pandas as pd

from specnb import bench, costs, growth, head_drafts, heads, models, prompts, records, replay, sweep, verifiers
from specnb.broken import Unpositioned
from specnb.decode import Step, decode
from specnb.draft_models import DraftModel
from specnb.drafters import TreeDrafter
from specnb.target import Target

DEPTHS, BRANCHES, THRESHOLDS = range(3, 9), (2, 3, 4), (0.01, 0.02, 0.03, 0.05, 0.1)  # DynaTree, appendix A
LENGTHS = (100, 200, 300, 500, 1000)
TEXT_RESULTS = ("equal", "first", "gap", "same")
REPLAY_RESULTS = ("steps", "same", "draft", "target", "verify", "commit")
LARGEST = growth.DynaTree(10, 4, 0.01, 4000)  # what is recorded for replay: every smaller tree is a part of it

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


def check_dynatree(draft_name: str, depth: int, branch: int, threshold: float, budget: int, **_) -> None:
    """ValueError on settings without sense."""
    growth.DynaTree(depth, branch, threshold, budget)
    if branch > vocabulary(draft_name):
        raise ValueError(f"branch {branch} exceeds the draft's vocabulary of {vocabulary(draft_name)}")


@cache
def vocabulary(name: str) -> int:
    """How many tokens a trained head can draft, from its card."""
    return json.loads((heads.FOLDER / f"{name}.json").read_text(encoding="utf-8"))["vocabulary"]


def plain(length: int, prompt: str, repetition: int) -> dict[str, float]:
    """transformers' own generate, greedy, to exactly so many tokens: every speed-up's baseline. End tokens are text."""
    with ALONE:
        method = bench.generate(pair().target, max_new_tokens=length, eos_token_id=len(pair().tokenizer))
        tokens, seconds = costs.timed(partial(method, encoded(prompt)))
    return {"seconds": seconds, "tokens": len(tokens)}


def run_dynatree(options: argparse.Namespace, executor: Executor | None) -> dict:
    """The grid of DynaTree's appendix A and its baseline; both files resume."""
    common = {"prompt": options.prompts, "repetition": range(options.repetitions)}
    axes = {"depth": DEPTHS, "branch": BRANCHES, "threshold": THRESHOLDS, "budget": [128]}
    cells = sweep.grid(draft_name=[options.draft], **common, **axes)
    for cell in cells:
        check_dynatree(**cell)  # before the baselines take their time
    lengths = sweep.grid(length=LENGTHS, **{**common, "repetition": range(3 * options.repetitions)})
    sweep.run(plain, lengths, f"{options.out}_plain.csv", results=("seconds", "tokens"), retry=options.retry)
    again = {"executor": executor, "retry": options.retry}
    sweep.run(dynatree, cells, f"{options.out}.csv", results=DYNATREE_RESULTS, **again)
    return {"draft": options.draft, "dtype": "bfloat16", "lengths": list(LENGTHS)}


def settings(count: int, seed: int = 0) -> list[dict]:
    """Random DynaTree settings of and around the paper's grid."""
    rng = np.random.default_rng(seed)
    return [
        {
            "depth": int(rng.integers(3, 9)),
            "branch": int(rng.integers(2, 5)),
            "threshold": round(float(rng.uniform(0.01, 0.2)), 3),
            "budget": int(rng.integers(8, 129)),
        }
        for _ in range(count)
    ]


def run_texts(options: argparse.Namespace, executor: Executor | None) -> dict:
    """Every setting on every prompt against plain text; and, for each prompt, a setting without position ids."""
    chosen = settings(options.settings)
    cells = [
        {"draft_name": options.draft, **setting, "prompt": prompt, "length": options.tokens, "positions": told}
        for prompt in options.prompts
        for setting, told in [*((s, True) for s in chosen), (chosen[0], False)]
    ]
    again = {"executor": executor, "retry": options.retry}
    sweep.run(same_text, cells, f"{options.out}.csv", results=TEXT_RESULTS, **again)
    return {"draft": options.draft, "dtype": "float32"}


def run_replay(options: argparse.Namespace, executor: Executor | None) -> dict:
    """Record the draft's largest trees along each prompt's plain text (OUT_PROMPT.npz); run and replay settings."""
    files = {prompt: f"{options.out}_{prompt}.npz" for prompt in options.prompts}
    for prompt, file in files.items():
        if not Path(file).exists():
            target, text = Target(pair("float32").target), plain_text(prompt, options.tokens)
            ids, model = encoded(prompt, "float32"), draft(options.draft, "float32")
            replay.record(target, model, LARGEST, ids, text).save(file)
    cells = [
        {"draft_name": options.draft, **setting, "prompt": prompt, "recording": files[prompt]}
        for prompt in options.prompts
        for setting in settings(options.settings, seed=1)
    ]
    if cells:
        again = {"executor": executor, "retry": options.retry}
        sweep.run(replayed, cells, f"{options.out}.csv", results=REPLAY_RESULTS, **again)
    return {"draft": options.draft, "dtype": "float32", "recorded with": str(LARGEST)}


WORK = {"dynatree": run_dynatree, "texts": run_texts, "replay": run_replay}


def tidy(table: pd.DataFrame, plain: pd.DataFrame) -> pd.DataFrame:
    """A recorded grid as one row per setting and length: token/s, speed-up over plain, path, nodes, acceptance.

    path: tokens a step commits; nodes: drafted a step; acceptance: DynaTree's own, committed tokens per drafted node.
    Plain decoding's token/s is the median over its repetitions at that length. Cells that failed are left out.
    """
    per_length = plain[plain["status"] == "ok"].groupby(["length", "prompt"])[["tokens", "seconds"]].median()
    baseline, rows = per_length["tokens"] / per_length["seconds"], []
    for row in table[table["status"] == "ok"].to_dict("records"):
        for n in LENGTHS:
            tokens, steps, nodes = (row[f"{name} {n}"] for name in ("tokens", "steps", "nodes"))
            speed, before = tokens / row[f"seconds {n}"], baseline[n, row["prompt"]]
            counts = {"path": tokens / steps, "nodes": nodes / steps, "acceptance": tokens / nodes}
            setting = {name: row[name] for name in ("prompt", "depth", "branch", "threshold")}
            rows.append(
                {**setting, "length": n, "token/s": speed, "plain": before, "speed-up": speed / before, **counts}
            )
    return pd.DataFrame(rows)


@contextmanager
def executors(options: argparse.Namespace) -> Iterator[Executor | None]:
    """Where cells run: here, on a pool of processes or on a Dask cluster."""
    if options.scheduler:
        from distributed import Client

        with Client(options.scheduler) as client:
            yield client.get_executor()
    elif options.workers > 1:
        with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool
    else:
        yield None


def main() -> None:
    """Run a grid or a check; goes on where a killed run stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=WORK)
    parser.add_argument("--draft", default="vdm", help="a trained head")
    parser.add_argument("--prompts", nargs="+", default=["paper"], help='"paper", ids of own prompts, or "own": all')
    parser.add_argument("--tokens", type=int, default=48, help="of a checked or recorded text")
    parser.add_argument("--settings", type=int, default=20, help="random settings to check")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--retry", action="store_true", help="measure again what failed")
    parser.add_argument("--scheduler", help="address of a Dask scheduler")
    parser.add_argument("--out", required=True, help="writes OUT.csv, OUT_plain.csv and OUT.json")
    options = parser.parse_args()
    command = shlex.join(["python", "-m", "specnb.grids", *sys.argv[1:]])
    if options.prompts == ["own"]:
        options.prompts = prompts.own()["id"].tolist()
    with executors(options) as executor:
        facts = WORK[options.work](options, executor)
    records.add_run(f"{options.out}.json", command, **facts)


DYNATREE_RESULTS = tuple(f"{name} {n}" for n in LENGTHS for name in ("seconds", "tokens", "steps", "nodes"))


if __name__ == "__main__":
    from specnb import grids  # workers must find the functions under their own module's name, not under __main__

    grids.main()
