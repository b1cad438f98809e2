"""The papers' parameter grids as sweeps over real runs. On the command line:

python -m specnb.grids dynatree --draft vdm --out data/results/dynatree_grid

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

from specnb import bench, costs, growth, head_drafts, heads, models, prompts, records, sweep, verifiers
from specnb.decode import Step, decode
from specnb.draft_models import DraftModel
from specnb.drafters import TreeDrafter
from specnb.target import Target

DEPTHS, BRANCHES, THRESHOLDS = range(3, 9), (2, 3, 4), (0.01, 0.02, 0.03, 0.05, 0.1)  # DynaTree, appendix A
LENGTHS = (100, 200, 300, 500, 1000)
PROMPT = "Write a detailed technical explanation of how a computer's memory works, from registers to disks."


ALONE = threading.Lock()  # drafts have a state and seconds are measured: one cell at a time in a process


@cache
def pair() -> models.Pair:
    """The embedded model in bfloat16, once per process, and warm: its first forwards are slow."""
    loaded = models.load_pair(dtype="bfloat16")
    bench.generate(loaded.target, max_new_tokens=16)(loaded.encode(PROMPT))
    return loaded


@cache
def draft(name: str) -> DraftModel:
    """A trained head, once per process."""
    return head_drafts.load(name, pair().target)


def encoded(prompt: str) -> list[int]:
    """Token ids of "paper"'s prompt, or of an own one by its id."""
    return pair().encode(PROMPT if prompt == "paper" else prompts.own().set_index("id").loc[prompt, "text"])


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
    lengths = sweep.grid(length=LENGTHS, **common)
    sweep.run(plain, lengths, f"{options.out}_plain.csv", results=("seconds", "tokens"), retry=options.retry)
    again = {"executor": executor, "retry": options.retry}
    sweep.run(dynatree, cells, f"{options.out}.csv", results=DYNATREE_RESULTS, **again)
    return {"draft": options.draft, "lengths": list(LENGTHS)}


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
    """Run a paper's grid; goes on where a killed run stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", choices=["dynatree"])
    parser.add_argument("--draft", default="vdm", help="a trained head")
    parser.add_argument("--prompts", nargs="+", default=["paper"], help='"paper", or ids of own prompts')
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--retry", action="store_true", help="measure again what failed")
    parser.add_argument("--scheduler", help="address of a Dask scheduler")
    parser.add_argument("--out", required=True, help="writes OUT.csv, OUT_plain.csv and OUT.json")
    options = parser.parse_args()
    command = shlex.join(["python", "-m", "specnb.grids", *sys.argv[1:]])
    with executors(options) as executor:
        facts = run_dynatree(options, executor)
    records.add_run(f"{options.out}.json", command, dtype="bfloat16", **facts)


DYNATREE_RESULTS = tuple(f"{name} {n}" for n in LENGTHS for name in ("seconds", "tokens", "steps", "nodes"))


if __name__ == "__main__":
    from specnb import grids  # workers must find the functions under their own module's name, not under __main__

    grids.main()
