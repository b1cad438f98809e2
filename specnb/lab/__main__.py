"""The laboratory's commands:

python -m specnb.lab list                                     what is recorded, and what is not
python -m specnb.lab record NAME …                            record experiments; resumes
python -m specnb.lab race METHOD … --prompts own:1 --out F    any methods on any prompts, recorded in F.jsonl
python -m specnb.lab price HEAD … --out F                     cost curves of the target and of heads

A prompt is an id, a set ("own", "gsm100:12") or a domain ("rag:2"). How methods are spelt: specnb/lab/methods.py.
"""

import argparse
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

import pandas as pd

from specnb import models
from specnb.lab import experiments, methods, prices, run, stats, sweep
from specnb.models import packing, prompts, provenance
from specnb.tree import Drawn


@contextmanager
def executors(options: argparse.Namespace) -> Iterator[Executor | None]:
    """Where blocks run: here, on a pool of processes, or on a Dask cluster."""
    if options.scheduler:
        from distributed import Client

        with Client(options.scheduler) as client:
            yield client.get_executor()
    elif options.workers > 1:
        with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool
    else:
        yield None


def checked_prompts(options: argparse.Namespace) -> list[str]:
    """The ids of a race's prompts; ValueError on what makes no sense, before anything is loaded."""
    models.check_name(options.pair)
    models.dtype(options.dtype)
    if min(options.tokens, options.repetitions) < 1 or options.temperature < 0:
        raise ValueError("--tokens and --repetitions must be at least 1, --temperature at least 0")
    cpu = models.device().type == "cpu"
    if options.packed and (options.dtype != "bfloat16" or not cpu or not packing.possible()):
        raise ValueError(
            f"--packed needs bfloat16 and a CPU with its kernels, this is {options.dtype} on {models.device()}"
        )
    known = {name: methods.method(name) for name in options.methods}
    alone = [name for name, made in known.items() if made.head == "pair"]
    if alone and models.PAIRS.get(options.pair, (None, None))[1] is None:
        raise ValueError(f"{alone[0]!r}: {options.pair} has no draft model of its own, name a trained head")
    drawn = [name for name, made in known.items() if made.drawn is not Drawn.POINT]
    if drawn and (options.texts or options.temperature == 0):
        raise ValueError(f"{drawn[0]!r} draws its tree: that needs a --temperature above 0")
    ids = [one for name in options.prompts for one in prompts.chosen(name)]
    if twice := [name for name in (*options.methods, *ids) if (*options.methods, *ids).count(name) > 1]:
        raise ValueError(f"{twice[0]!r} stands twice among methods or --prompts: --repetitions repeats")
    return ids


def race(options: argparse.Namespace) -> pd.DataFrame:
    """Methods on prompts, timed, or their greedy texts compared; recorded block by block, and shown."""
    ids = checked_prompts(options)
    common = {"methods": options.methods, "length": options.tokens, "pair": options.pair}
    if not options.texts:
        common |= {"temperature": options.temperature, "repetitions": options.repetitions, "dtype": options.dtype}
        common |= {"packed": options.packed, "whole": options.whole}
    hashes = experiments.used_heads(options.methods)
    cell, measure = ("texts", run.texts_block) if options.texts else ("race", run.race_block)
    with executors(options) as executor:
        table = sweep.run(
            cell, measure, [{"prompt": one, **common} for one in ids], f"{options.out}.jsonl", heads=hashes,
            command=provenance.command("specnb.lab"), executor=executor, retry=options.retry,
        )  # fmt: skip
    if options.texts:
        print(table.groupby(["method", "positions"], sort=False)[["equal", "same"]].agg(["sum", "size"]).to_string())
    elif (table["status"] == "ok").any():
        print(stats.speed_ups(table, options.methods[0]).round(2).to_string())
    return table


def price(options: argparse.Namespace) -> pd.DataFrame:
    """Cost curves of the target's forwards and of heads', behind a prefix; recorded and shown."""
    block = {"heads": options.heads, "prefix": options.prefix, "pair": options.pair, "dtype": options.dtype}
    block |= {"packed": options.packed, "repetitions": options.repetitions}
    command = provenance.command("specnb.lab")
    used = experiments.used_heads((), options.heads)
    table = sweep.run("curves", prices.curves_block, [block], f"{options.out}.jsonl", command=command, heads=used)
    curves = 1000 * table.pivot(index="nodes", columns="model", values="median")
    print(curves.round(2).rename_axis("nodes, ms").to_string())
    return table


def record(options: argparse.Namespace) -> pd.DataFrame:
    """Experiments by name, one after the other."""
    tables = []
    for name in map(experiments.check, options.names):
        with executors(options) as executor:
            tables.append(experiments.record(name, only=options.prompts, executor=executor, retry=options.retry))
    return pd.concat(tables)


def listing(options: argparse.Namespace) -> pd.DataFrame:
    """The table of experiments."""
    print(experiments.listing().set_index("name").to_string())
    return pd.DataFrame({"status": []})


def main() -> None:
    """Parse and run; exits with 1 if anything failed, naming it."""
    parser = argparse.ArgumentParser(
        prog="python -m specnb.lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--workers", type=int, default=1, help="processes (not where seconds are measured)")
    where.add_argument("--scheduler", help="address of a Dask scheduler; one block at a time on each machine")
    where.add_argument("--retry", action="store_true", help="measure again what failed")
    model = argparse.ArgumentParser(add_help=False)
    model.add_argument("--pair", default=models.EMBEDDED, help=f"{', '.join(models.PAIRS)}, a hub name or a folder")
    model.add_argument("--dtype", default="float32", help="bfloat16 is faster where the CPU has kernels for it")
    model.add_argument("--packed", action="store_true", help="pack the weights: same bits, faster on such a CPU")
    model.add_argument("--out", required=True, help="writes OUT.jsonl")
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("list", help="the table of experiments and its state").set_defaults(do=listing)
    part = commands.add_parser("record", parents=[where], help="record experiments; resumes")
    part.add_argument("names", nargs="+", metavar="NAME", help=", ".join(experiments.EXPERIMENTS))
    part.add_argument("--prompts", nargs="+", default=(), help="only these prompts of the experiment")
    part.set_defaults(do=record)
    part = commands.add_parser("race", parents=[where, model], help="any methods on any prompts")
    part.add_argument("methods", nargs="+", metavar="METHOD", help="the first is the baseline")
    part.add_argument("--prompts", nargs="+", default=["own:1"])
    part.add_argument("--tokens", type=int, default=96, help="new tokens per prompt")
    part.add_argument("--temperature", type=float, default=0.0)
    part.add_argument("--repetitions", type=int, default=1)
    part.add_argument("--whole", action="store_true", help="write all new tokens, whatever ends the text before")
    part.add_argument("--texts", action="store_true", help="compare greedy float32 texts instead of speed")
    part.set_defaults(do=race)
    part = commands.add_parser("price", parents=[model], help="cost curves of the target and of heads")
    part.add_argument("heads", nargs="*", metavar="HEAD")
    part.add_argument("--prefix", type=int, default=300, help="tokens behind which forwards are measured")
    part.add_argument("--repetitions", type=int, default=15)
    part.set_defaults(do=price)
    options = parser.parse_args()
    try:
        table = options.do(options)
    except ValueError as error:
        parser.error(str(error))
    failed = table[table["status"] == "failed"].drop_duplicates("error")
    if len(failed):
        names = failed.get("method", failed["cell"])
        sys.exit("\n".join([*(f"{n} failed: {e}" for n, e in zip(names, failed["error"], strict=True)),
                            "--retry measures again"]))  # fmt: skip


if __name__ == "__main__":
    main()
