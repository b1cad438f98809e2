"""The papers' parameter grids, and their checks, as sweeps over real runs. On the command line:

python -m specnb.grids dynatree --draft vdm --out data/results/dynatree_grid        # the grid, timed
python -m specnb.grids texts --draft vdm --workers 2 --out data/results/dynatree_texts      # same text, float32?
python -m specnb.grids replay --draft vdm --out data/results/dynatree_replay                # replay = real run?
python -m specnb.grids decoded --runs 'vdm:chain 5' 'edd:pct 0.06' --prompts own:4 --out data/results/edd_runs
python -m specnb.grids methods --methods plain ptd lookahead --prompts own:4 --out data/results/ptd_methods
python -m specnb.grids trees --draft edd --prompts own --cost 0.07 --node 0.02 --out data/results/trees_edd

``--workers N`` runs the cells on N processes, ``--scheduler ADDRESS`` on a Dask cluster; where time is measured, a
machine should run one cell at a time.
"""

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from specnb import assets, costs, growth, heads, measures, methods, prompts, records, self_drafting, studies, sweep

DEPTHS, BRANCHES, THRESHOLDS = range(3, 9), (2, 3, 4), (0.01, 0.02, 0.03, 0.05, 0.1)  # DynaTree, appendix A
LARGEST = growth.DynaTree(10, 4, 0.01, 4000)  # what is recorded for replay: every smaller tree is a part of it


@cache
def vocabulary(name: str) -> int:
    """How many tokens a trained head can draft, from its card."""
    return json.loads((heads.FOLDER / f"{name.partition('@')[0]}.json").read_text(encoding="utf-8"))["vocabulary"]


def check_dynatree(draft_name: str, depth: int, branch: int, threshold: float, budget: int, **_) -> None:
    """ValueError on settings without sense."""
    growth.DynaTree(depth, branch, threshold, budget)
    if branch > vocabulary(draft_name):
        raise ValueError(f"branch {branch} exceeds the draft's vocabulary of {vocabulary(draft_name)}")


def run(
    options: argparse.Namespace,
    executor: Executor | None,
    measure: Callable,
    cells: Sequence[dict],
    results: Sequence[str],
) -> pd.DataFrame:
    """The cells, measured into OUT.csv where the options say."""
    return sweep.run(measure, cells, f"{options.out}.csv", results=results, executor=executor, retry=options.retry)


def run_dynatree(options: argparse.Namespace, executor: Executor | None) -> pd.DataFrame:
    """The grid of DynaTree's appendix A and its baseline; both files resume."""
    axes = {"depth": DEPTHS, "branch": BRANCHES, "threshold": THRESHOLDS, "budget": [128]}
    common = {"prompt": options.prompts, "repetition": range(options.repetitions)}
    wanted = sweep.grid(draft_name=[options.draft], **common, **axes)
    for cell in wanted:
        check_dynatree(**cell)  # before the baselines take their time
    record(options, dtype="bfloat16", lengths=list(measures.LENGTHS))

    def baseline(repetitions: Iterable[int]) -> pd.DataFrame:
        lengths = sweep.grid(length=measures.LENGTHS, prompt=options.prompts, repetition=repetitions)
        file = f"{options.out}_plain.csv"
        return sweep.run(measures.plain, lengths, file, results=("seconds", "tokens"), retry=options.retry)

    before = baseline(range(2))
    table = run(options, executor, measures.dynatree, wanted, measures.DYNATREE_RESULTS)
    return pd.concat([before, table, baseline(range(2, 4))])  # a machine that has changed meanwhile shows


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


def run_texts(options: argparse.Namespace, executor: Executor | None) -> pd.DataFrame:
    """Growth rules (random DynaTree settings) on every prompt against plain text; the first also without positions."""
    random = (",".join(map(str, setting.values())) for setting in settings(options.settings))
    chosen = options.rules or [f"dynatree {setting}" for setting in random]
    for name in chosen:
        methods.rule(name)  # ValueError on names without sense
    wanted = [
        {"draft_name": options.draft, "rule": rule, "prompt": prompt, "length": options.tokens, "positions": told}
        for prompt in options.prompts
        for rule, told in [*((rule, True) for rule in chosen), (chosen[0], False)]
    ]
    record(options, dtype="float32")
    return run(options, executor, measures.same_text, wanted, measures.TEXT_RESULTS)


def run_replay(options: argparse.Namespace, executor: Executor | None) -> pd.DataFrame:
    """Record the draft's largest trees along each prompt's plain text, a file each; run and replay settings."""
    record(options, dtype="float32", recorded_with=str(LARGEST))
    names = {p: p.replace("/", "-") for p in options.prompts}
    files = {p: f"{options.out}_{options.draft}_{name}_{options.tokens}.npz" for p, name in names.items()}
    for prompt, file in files.items():
        if not Path(file).exists():
            measures.recorded(options.draft, prompt, options.tokens, LARGEST).save(file)
    paths = {prompt: os.path.relpath(file, assets.ROOT) for prompt, file in files.items()}
    wanted = [
        {"draft_name": options.draft, **setting, "prompt": prompt, "recording": paths[prompt]}
        for prompt in options.prompts
        for setting in settings(options.settings, seed=1)
    ]
    if not wanted:
        return pd.DataFrame({"status": []})
    return run(options, executor, measures.replayed, wanted, measures.REPLAY_RESULTS)


def run_decoded(options: argparse.Namespace, executor: Executor | None) -> pd.DataFrame:
    """Real timed runs of heads and rules, and of plain generate, in turns on every prompt.

    A file that was begun in another hour compares hours: give new runs a new file.
    """
    runs = [("none", "plain")]
    for words in options.runs:
        name, colon, rule = words.partition(":")
        if not colon:
            raise ValueError(f"--runs takes HEAD:RULE, such as 'edd:chain 5', got {words!r}")
        vocabulary(name)  # FileNotFoundError and ValueError on names without sense
        methods.rule(rule)
        runs.append((name, rule))
    if len(runs) < 2 or min(options.temperatures) < 0:
        raise ValueError("decoded needs --runs, and --temperatures of at least 0")
    wanted = [
        {"draft_name": name, "rule": rule, "prompt": prompt, "temperature": heat, "length": options.tokens}
        for heat in options.temperatures
        for i, prompt in enumerate(options.prompts)
        for name, rule in costs.rotated(runs, i)
    ]
    record(options, sorted({name for name, _ in runs[1:]}), dtype="bfloat16")
    return run(options, executor, measures.decoded, wanted, measures.DECODED)


def run_trees(options: argparse.Namespace, executor: Executor | None) -> pd.DataFrame:
    """EDD's growth rules, and what becomes of the likeliest chains, on every prompt."""
    if options.cost is None or options.node is None:
        raise ValueError("trees needs --cost and --node: what a draft call and a node more cost of a target call")
    studies.edd_rules(options.cost, options.node)  # ValueError on prices without sense
    common = {"length": [options.tokens], "cost": [options.cost], "node": [options.node]}
    common |= {"vanilla": [False]} if options.no_vanilla else {}
    wanted = sweep.grid(draft_name=[options.draft], prompt=options.prompts, **common)
    record(options, dtype="float32")
    return run(options, executor, studies.trees, wanted, studies.TREES_RESULTS)


def run_searches(options: argparse.Namespace, executor: Executor | None) -> pd.DataFrame:
    """SALF's growth rules and thresholds on every prompt."""
    wanted = sweep.grid(draft_name=[options.draft], prompt=options.prompts, length=[options.tokens])
    record(options, dtype="float32")
    return run(options, executor, studies.searches, wanted, studies.SEARCHES_RESULTS)


def run_methods(options: argparse.Namespace, executor: Executor | None) -> pd.DataFrame:
    """Real timed runs of methods without a trained draft (``self_drafting.run``), in turns on every prompt."""
    if not options.methods or min(options.temperatures) < 0:
        raise ValueError("methods needs --methods, and --temperatures of at least 0")
    wanted = [
        {"method": method, "prompt": prompt, "temperature": heat, "length": options.tokens, "seed": seed}
        for heat in options.temperatures
        for seed in range(options.seed, options.seed + options.repetitions)
        for i, prompt in enumerate(options.prompts)
        for method in costs.rotated(options.methods, i)
    ]
    record(options, ["vdm"] if "spede" in options.methods else [], dtype="bfloat16")
    return run(options, executor, self_drafting.run, wanted, self_drafting.METHODS_RESULTS)


def run_looks(options: argparse.Namespace, executor: Executor | None) -> pd.DataFrame:
    """How alike the branches of self-drafters are, or what their bookkeeping takes, on every prompt."""
    wanted = sweep.grid(method=options.methods, prompt=options.prompts, length=[options.tokens])
    record(options, [], dtype="bfloat16")
    measure, results = self_drafting.LOOKS[options.work]
    return run(options, executor, measure, wanted, results)


def run_self_texts(options: argparse.Namespace, executor: Executor | None) -> pd.DataFrame:
    """Self-drafters' greedy float32 texts on every prompt against plain text; on every fifth also without positions."""
    wanted = [
        {"method": method, "prompt": prompt, "length": options.tokens, "positions": told}
        for i, prompt in enumerate(options.prompts)
        for method in options.methods
        for told in ((True, False) if i % 5 == 0 else (True,))
    ]
    record(options, [], dtype="float32")
    return run(options, executor, self_drafting.same_text, wanted, measures.TEXT_RESULTS)


def record(options: argparse.Namespace, drafts: Sequence[str] | None = None, **facts) -> None:
    """Say in OUT.json, before the first cell, who writes to OUT.csv: command, versions, and each head by its hash."""
    command = records.command("specnb.grids")
    drafts = [options.draft] if drafts is None else drafts
    records.add_run(f"{options.out}.json", command, head_sha256=heads.hashes(drafts), **facts)


WORK = {
    "dynatree": run_dynatree,
    "texts": run_texts,
    "replay": run_replay,
    "decoded": run_decoded,
    "trees": run_trees,
    "searches": run_searches,
    "methods": run_methods,
    "alike": run_looks,
    "bookkeeping": run_looks,
    "self_texts": run_self_texts,
}


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
    parser.add_argument("--prompts", nargs="+", default=["paper"], help='ids, sets: "own", "own:4", "rag:4"')
    parser.add_argument("--tokens", type=int, default=48, help="of a checked or recorded text")
    parser.add_argument("--cost", type=float, help="of a draft call, as a share of a target call")
    parser.add_argument("--node", type=float, help="of one node more in a tree, as a share of a target call")
    parser.add_argument("--no-vanilla", action="store_true", help="trees without the 363 nodes of the vanilla tree")
    parser.add_argument("--rules", nargs="+", help='growth rules whose texts are checked: cape, "pct 0.07,5,10", …')
    parser.add_argument("--runs", nargs="+", default=[], metavar="HEAD:RULE", help='what decoded times: "edd:chain 5"')
    parser.add_argument("--methods", nargs="+", default=[], metavar="NAME", help='"ptd children=2", "lookahead", plain')
    parser.add_argument("--seed", type=int, default=0, help="the first of --repetitions seeds of methods")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0])
    parser.add_argument("--settings", type=int, default=20, help="random settings to check")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--retry", action="store_true", help="measure again what failed")
    parser.add_argument("--scheduler", help="address of a Dask scheduler")
    parser.add_argument("--out", required=True, help="writes OUT.csv, OUT_plain.csv and OUT.json")
    options = parser.parse_args()
    for name in set(options.methods) - ({"plain", "spede"} if options.work == "methods" else set()):
        methods.named(name, None)  # ValueError on names without sense, before any work
    options.prompts = [one for name in options.prompts for one in prompts.chosen(name)]
    with executors(options) as executor:
        table = WORK[options.work](options, executor)
    if failed := int((table["status"] == "failed").sum()):
        sys.exit(f"{failed} cells failed: the column error in {options.out}.csv says why; --retry measures them again")


if __name__ == "__main__":
    from specnb import grids  # workers must find the functions under their own module's name, not under __main__

    grids.main()
