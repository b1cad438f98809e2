"""What the commands of ``python -m study`` do, given their options."""

import argparse
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from specnb import heads, models
from specnb.models import prompts, provenance
from specnb.sampling import Warp
from specnb.tree import Drawn
from study import experiments, methods, run, stats
from study.experiments import Experiment

FEW = 12  # prompts; bootstrap intervals of fewer are too narrow


@contextmanager
def executors(options: argparse.Namespace) -> Iterator[Executor | None]:
    """Where blocks run: here, on a pool of processes, or on a Dask cluster."""
    if options.scheduler:
        from distributed import Client

        with Client(options.scheduler) as client:
            yield client.get_executor()
    elif options.workers > 1:
        pool = ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn"))
        with deaf():
            for _ in range(options.workers):
                pool.submit(os.getpid)  # so that all processes are started now
        try:
            yield pool
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()  # else the pool would wait for the blocks in flight
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    else:
        yield None


@contextmanager
def deaf() -> Iterator[None]:
    """Processes started meanwhile do not hear Ctrl-C, which a terminal sends to all: this process ends them."""
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, heard)


def checked_prompts(options: argparse.Namespace) -> list[str]:
    """The ids of a race's prompts; ValueError on what makes no sense, before anything is loaded."""
    models.check_name(options.pair)
    check_kernels(options)
    Warp(options.temperature)
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


def check_kernels(options: argparse.Namespace) -> None:
    """ValueError on a dtype that is none, or one that cannot be packed here where that was asked for."""
    dtype = options.dtype or models.fastest(models.device())[0]
    kind = models.dtype(dtype)
    if options.packed and not (models.device().type == "cpu" and models.packing.possible(kind)):
        raise ValueError(f"--packed needs a CPU with kernels for packed weights of {dtype}")


def settled(options: argparse.Namespace) -> dict[str, object]:
    """dtype and packed, as asked for; what was left open as load_pair() chooses it, the fastest on this machine."""
    if options.dtype:
        return {"dtype": options.dtype, "packed": bool(options.packed)}
    dtype, packed = models.fastest(models.device())
    if options.packed is not None:
        packed = options.packed
    elif packed:
        target, draft = models.PAIRS.get(options.pair, (options.pair, None))
        packed = not models.quantised(target) and not (draft and models.quantised(draft))
    how = "packed weights" if packed else "weights as they are"
    print(f"{options.pair}: {dtype}, {how}: the fastest here (others: --dtype, --packed, --no-packed)", file=sys.stderr)
    return {"dtype": dtype, "packed": packed}


def race(options: argparse.Namespace) -> pd.DataFrame:
    """Methods on prompts, timed, or their greedy texts compared; recorded block by block, and shown."""
    ids = checked_prompts(options)
    settings = {"methods": options.methods, "length": options.tokens, "pair": options.pair}
    if options.texts:
        if options.dtype not in (None, "float32") or options.temperature != 0 or options.packed:
            raise ValueError("--texts compares greedy float32 texts: leave out --dtype, --temperature and --packed")
        return measured(Experiment("", "texts", prompts=ids, settings=settings), options)
    settings |= {"temperature": options.temperature, "repetitions": options.repetitions, "whole": options.whole}
    settings |= settled(options)
    return measured(Experiment("", "race", prompts=ids, settings=settings), options)


def measured(wanted: Experiment, options: argparse.Namespace) -> pd.DataFrame:
    """An experiment that stands in no table, recorded in OUT.jsonl and shown."""
    wanted.keys()  # blocks and heads that make no sense are told before anything is loaded
    if not options.scheduler:  # what cannot be loaded, or does not fit, is no failure of a method
        check_pair(wanted)
    file, command = Path(f"{options.out.removesuffix('.jsonl')}.jsonl"), provenance.command("study")
    with executors(options) as executor:
        table = wanted.measure(file, command, executor, options.retry)
    told(wanted, table)
    return table


def check_pair(wanted: Experiment) -> None:
    """Load the pair of an experiment; OSError or ValueError if it cannot be, or what is to be measured does not fit."""
    settings = wanted.settings
    packed = settings.get("packed", False)
    pair = run.loaded(settings["pair"], settings.get("dtype", "float32"), packed)
    for name in settings.get("methods", ()):
        run.check_fit(name, pair, packed)
    for head in settings.get("heads", ()):
        run.draft_model(head, pair, 0)


def told(wanted: Experiment, table: pd.DataFrame) -> None:
    """Print what a recorded table says, by what its blocks measured; a race's first method is its baseline."""
    good, cell, first = table[table["status"] == "ok"], wanted.cell, [*wanted.settings.get("methods", ()), ""][0]
    if good.empty:  # the command ends with what failed
        return
    if cell == "texts":
        for name, part in good.groupby("method", sort=False):
            equal, same = part["equal"].astype(bool).sum(), part["same"].astype(bool).sum()
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
    models.check_name(options.pair)
    check_kernels(options)
    heads.hashes(set(options.heads) - {"pair"})  # ValueError on one that is not there
    settings = {"heads": options.heads, "pair": options.pair, "repetitions": options.repetitions, **settled(options)}
    settings["prefix"] = options.prefix or run.PREFIX
    if not options.scheduler:
        pair = run.loaded(options.pair, settings["dtype"], settings["packed"])
        settings["prefix"] = run.measured_behind(pair, options.prefix)
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
    from study import claims as judging  # now: it brings what no other command needs

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
