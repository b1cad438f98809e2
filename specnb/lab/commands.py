"""What the commands of ``python -m specnb.lab`` do, given their options."""

import argparse
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from specnb import models
from specnb.lab import experiments, methods, run, stats
from specnb.lab.experiments import Experiment
from specnb.models import prompts, provenance
from specnb.sampling import Warp
from specnb.tree import Drawn

FEW = 12  # prompts; bootstrap intervals of fewer are too narrow


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
    Warp(options.temperature)
    if options.packed and not (models.device().type == "cpu" and models.packing.possible(models.dtype(options.dtype))):
        raise ValueError(f"--packed needs a CPU with kernels for packed weights of {options.dtype}")
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
    settings = {"methods": options.methods, "length": options.tokens, "pair": options.pair}
    if options.texts and (options.dtype, options.temperature, options.packed) != ("float32", 0.0, False):
        raise ValueError("--texts compares greedy float32 texts: leave out --dtype, --temperature and --packed")
    if not options.texts:
        settings |= {"temperature": options.temperature, "repetitions": options.repetitions, "dtype": options.dtype}
        settings |= {"packed": options.packed, "whole": options.whole}
    return measured(Experiment("", "texts" if options.texts else "race", prompts=ids, settings=settings), options)


def measured(wanted: Experiment, options: argparse.Namespace) -> pd.DataFrame:
    """An experiment that stands in no table, recorded in OUT.jsonl and shown."""
    wanted.keys()  # blocks and heads that make no sense are told before anything is loaded
    if not options.scheduler:  # what cannot be loaded is no failure of a method
        run.loaded(options.pair, wanted.settings.get("dtype", "float32"), wanted.settings.get("packed", False))
    file, command = Path(f"{options.out}.jsonl"), provenance.command("specnb.lab")
    with executors(options) as executor:
        table = wanted.measure(file, command, executor, options.retry)
    told(wanted, table)
    return table


def told(wanted: Experiment, table: pd.DataFrame) -> None:
    """Print what a recorded table says, by what its blocks measured; a race's first method is its baseline."""
    good, cell, first = table[table["status"] == "ok"], wanted.cell, [*wanted.settings.get("methods", ()), ""][0]
    if cell == "texts" and len(good):
        for name, part in good.groupby("method", sort=False):
            equal, same = part["equal"].sum(), part["same"].sum()
            print(f"{name}: {same} of {len(part)} texts are those of generate, {same - equal} but for a near tie")
    elif cell == "race" and (good["method"] == first).any():
        found = stats.speed_ups(table, first)
        print(found[["tau", "speed-up", "low", "high", "token/s", "prompts", "failed"]].round(2).to_string())
        if level := [name for name in found.index if found["low"][name] <= 1 <= found["high"][name] and name != first]:
            print(f"not told from {first}, the interval holds 1: {', '.join(level)}")
        if (count := table["prompt"].nunique()) < FEW:
            print(f"only {count} of the {FEW} prompts that an interval needs at least: try --prompts own:4")
    elif cell == "law":
        print(good[["method", "heat", "outcomes", "p value"]].to_string(index=False))
    elif cell in ("curves", "shapes"):
        for recorded, part in good.groupby("graphs"):
            curves = 1000 * part.pivot(index="nodes", columns="model", values="median")
            print(curves.round(2).rename_axis(f"nodes, ms{' in graphs' if recorded else ''}").to_string())


def price(options: argparse.Namespace) -> pd.DataFrame:
    """Cost curves of the target's forwards and of heads', behind a prefix; recorded and shown."""
    settings = {name: getattr(options, name) for name in ("heads", "prefix", "pair", "dtype", "packed", "repetitions")}
    return measured(Experiment("", "curves", settings=settings), options)


def gpu(options: argparse.Namespace) -> pd.DataFrame:
    """The experiments that a GPU is asked, one after the other, what they say, and a forecast at the papers' scale."""
    tables = {}
    for name in (name for name in experiments.EXPERIMENTS if name.startswith("gpu_")):
        print(f"\n{name} on {provenance.facts('')['device']}", flush=True)
        tables[name] = experiments.record(name, folder=Path(options.out), retry=options.retry)
        told(experiments.EXPERIMENTS[name], tables[name])
    shapes = tables["gpu_shapes"]
    if not (shapes["status"] == "failed").any():
        print("\nForecast, not measured: the race's counts at the prices of gpu_shapes in graphs, over plain decoding")
        print(experiments.gpu.forecast(tables["gpu_race"], shapes[shapes["graphs"]]).round(2).to_string())
    return pd.concat(tables.values())


def record(options: argparse.Namespace) -> pd.DataFrame:
    """Experiments by name, one after the other."""
    tables = []
    for name in options.names:  # names and prompts without sense are told before the first hour is spent
        experiments.chosen(name, options.prompts)
    with executors(options) as executor:
        for name in options.names:
            tables.append(experiments.record(name, only=options.prompts, executor=executor, retry=options.retry))
            print(f"{name}: {tables[-1]['key'].nunique()} blocks, {sum(tables[-1]['status'] == 'failed')} failures")
    return pd.concat(tables)


def claims(options: argparse.Namespace) -> pd.DataFrame:
    """The papers' claims: how many have which verdict, or one paper's with its tests."""
    from specnb.lab import claims as judging  # now: it brings what no other command needs

    if not options.paper:
        print(judging.summary({paper: judging.judged(paper) for paper in judging.PAPERS}).to_string())
    else:
        table = judging.judged(options.paper).set_index("claim")
        print(table[["where", "effect", "ours", "low", "high", "prompts", "verdict"]].round(3).to_string())
    return pd.DataFrame({"status": []})


def listing(options: argparse.Namespace) -> pd.DataFrame:
    """The table of experiments."""
    print(experiments.listing().set_index("name").to_string())
    return pd.DataFrame({"status": []})
