"""What the commands of ``python -m study`` do, given their options.

Each returns a table; where rows of it failed, ``__main__`` names them and exits with 1.
"""

import multiprocessing
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from specnb import heads, models
from specnb.models import prompts, provenance
from specnb.sampling import Warp
from specnb.tree import Drawn
from study import experiments, methods, prices, stats
from study.experiments import Experiment
from study.measure import loading
from study.methods import METHODS, Auto, Method, label

FEW = 12  # prompts; bootstrap intervals of fewer are too narrow
NOTHING = pd.DataFrame({"status": []})  # what a command returns that measures nothing


# ---- where blocks run ---------------------------------------------------------------------------------------------


@contextmanager
def executors(options: Namespace) -> Iterator[Executor | None]:
    """Where blocks run: here, on a pool of processes, or on a Dask cluster."""
    if options.scheduler:
        from distributed import Client

        with Client(options.scheduler) as client:
            yield client.get_executor()
    elif options.workers > 1:
        with processes(options.workers) as pool:
            yield pool
    else:
        yield None


@contextmanager
def processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool whose processes end with an interrupt, in place of finishing their blocks."""
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    with deaf():
        for _ in range(workers):
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


@contextmanager
def deaf() -> Iterator[None]:
    """Processes started meanwhile do not hear Ctrl-C, which a terminal sends to all: this process ends them."""
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, heard)


# ---- options that make no sense are told before anything is loaded ------------------------------------------------


def checked_prompts(options: Namespace) -> list[str]:
    """The ids of a race's prompts; ValueError on methods, prompts or a pair that make no sense."""
    chosen = methods_of(options)
    models.check_name(options.pair)
    with_own_draft = [name for name, method in chosen.items() if method.head == "pair"]
    _, draft = models.PAIRS.get(options.pair, (None, None))
    if with_own_draft and draft is None:
        raise ValueError(f"{with_own_draft[0]!r}: {options.pair} has no draft model of its own, name a trained head")
    drawing = [name for name, method in chosen.items() if method.drawn is not Drawn.POINT]
    temperature = getattr(options, "temperature", 0.0)
    if drawing and temperature == 0:
        raise ValueError(f"{drawing[0]!r} draws its tree: that needs a race at a --temperature above 0")
    ids: list[str] = []
    for choice in options.prompts:
        ids += prompts.chosen(choice)
    names = [*options.methods, *ids]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"{twice[0]!r} stands twice among methods or --prompts: --repetitions repeats")
    return ids


def methods_of(options: Namespace) -> dict[str, Method]:
    """The methods of a command by name, changed as its options say."""
    changes = {"head": options.head, "softened": options.softened, "forwards": options.forwards}
    return {name: methods.method(name, **changes) for name in options.methods}


TIMED = (experiments.RACE_CELL, experiments.CURVES_CELL, experiments.SHAPES_CELL)  # whose seconds are read


def check_alone(wanted: Experiment, options: Namespace) -> None:
    """ValueError on several processes of one machine where seconds are measured."""
    if wanted.cell in TIMED and options.workers > 1:
        raise ValueError(f"--workers {options.workers}: seconds are measured, for which a machine has to be alone")


def check_kernels(options: Namespace) -> None:
    """ValueError on a dtype that is none, or one that cannot be packed here where that was asked for."""
    dtype = options.dtype or models.fastest_dtype(models.best_device())[0]
    kind = models.as_dtype(dtype)
    can_pack = models.best_device().type == "cpu" and models.packing.possible(kind)
    if options.packed and not can_pack:
        raise ValueError(f"--packed needs a CPU with kernels for packed weights of {dtype}")


def dtype_and_packing(options: Namespace) -> dict[str, object]:
    """dtype and packed, as asked for; what was left open as load_pair() chooses it, the fastest on this machine."""
    if options.dtype:
        return {"dtype": options.dtype, "packed": bool(options.packed)}
    dtype, packed = models.fastest_dtype(models.best_device())
    if options.packed is not None:
        packed = options.packed
    elif packed:
        packed = not _is_quantised(options.pair)
    weights = "packed weights" if packed else "weights as they are"
    told = f"{options.pair}: {dtype}, {weights}: the fastest here (others: --dtype, --packed, --no-packed)"
    print(told, file=sys.stderr)
    return {"dtype": dtype, "packed": packed}


def _is_quantised(pair: str) -> bool:
    """Whether a pair's target or draft model is quantised: such weights cannot be packed."""
    target, draft = models.PAIRS.get(pair, (pair, None))
    if models.quantised(target):
        return True
    return draft is not None and models.quantised(draft)


def check_pair(wanted: Experiment) -> None:
    """Load the pair of an experiment; OSError or ValueError if it cannot be, or what is to be measured does not fit."""
    settings = wanted.settings
    packed = settings.get("packed", False)
    pair = loading.loaded(settings["pair"], settings.get("dtype", "float32"), packed)
    changes = {name: settings[name] for name in ("head", "softened", "forwards") if name in settings}
    for name in settings.get("methods", ()):
        loading.check_fit(name, methods.method(name, **changes), pair, packed)
    for head in settings.get("heads", ()):
        loading.draft_model(head, pair, 0)


# ---- commands -----------------------------------------------------------------------------------------------------


def race(options: Namespace) -> pd.DataFrame:
    """Methods on prompts, timed; recorded block by block, and shown."""
    ids = checked_prompts(options)
    check_kernels(options)
    Warp(options.temperature)  # ValueError on one that is none
    settings = common(options)
    settings |= {"temperature": options.temperature, "repetitions": options.repetitions, "whole": options.whole}
    settings |= dtype_and_packing(options)
    return measured(Experiment("", experiments.RACE_CELL, prompts=ids, settings=settings), options)


def texts(options: Namespace) -> pd.DataFrame:
    """Greedy float32 texts of methods beside those of generate; recorded prompt by prompt, and shown."""
    ids = checked_prompts(options)
    return measured(Experiment("", experiments.TEXTS_CELL, prompts=ids, settings=common(options)), options)


def common(options: Namespace) -> dict[str, object]:
    """The settings of a race and of texts."""
    return {
        "methods": options.methods,
        "length": options.tokens,
        "pair": options.pair,
        "head": options.head,
        "softened": options.softened,
        "forwards": options.forwards,
    }


def price(options: Namespace) -> pd.DataFrame:
    """Cost curves of the target's forwards and of heads', behind a prefix; recorded and shown."""
    models.check_name(options.pair)
    check_kernels(options)
    heads.hashes(set(options.heads) - {"pair"})  # ValueError on one that is not there
    settings = {"heads": options.heads, "pair": options.pair, "repetitions": options.repetitions}
    settings |= dtype_and_packing(options)
    settings["prefix"] = options.prefix or loading.PREFIX
    if not options.scheduler:
        pair = loading.loaded(options.pair, settings["dtype"], settings["packed"])
        settings["prefix"] = loading.measured_behind(pair, options.prefix)
    return measured(Experiment("", experiments.CURVES_CELL, settings=settings), options)


def measured(wanted: Experiment, options: Namespace) -> pd.DataFrame:
    """An experiment that stands in no table, recorded in OUT.jsonl and shown."""
    check_alone(wanted, options)
    wanted.check()  # blocks and heads that make no sense are told before anything is loaded
    if not options.scheduler:  # what cannot be loaded, or does not fit, is no failure of a method
        check_pair(wanted)
    file = Path(f"{options.out.removesuffix('.jsonl')}.jsonl")
    command = provenance.command("study")
    already_there = wanted.recorded(file)
    if already_there:
        count = f"{len(already_there)} of {len(wanted.blocks())} blocks are in {file} already"
        print(f"{count}, by their methods' names: after a change behind a name use another --out", file=sys.stderr)
    with executors(options) as executor:
        runs = wanted.measure(file, command, executor, options.retry)
    show(wanted, runs)
    return runs


def record(options: Namespace) -> pd.DataFrame:
    """Experiments by name, one after the other."""
    for name in options.names:  # names and prompts without sense are told before the first hour is spent
        check_alone(experiments.chosen(name, options.prompts), options)
    tables = []
    options_of_all = {"only": options.prompts, "retry": options.retry, "command": provenance.command("study")}
    with executors(options) as executor:
        for name in options.names:
            runs = experiments.record(name, executor=executor, plan=plan_of(name), **options_of_all)
            failures = (runs["status"] == "failed").sum()
            print(f"{name}: {runs['block'].nunique()} blocks, {failures} failures")
            tables.append(runs)
    return pd.concat(tables)


def gpu(options: Namespace) -> pd.DataFrame:
    """The experiments that a GPU is asked, one after the other, what they say, and a forecast at the papers' scale."""
    folder = Path(options.out) if options.out else experiments.RESULTS
    options_of_all = {"folder": folder, "retry": options.retry, "command": provenance.command("study")}
    tables = {}
    for name, wanted in experiments.TABLE.items():
        if not name.startswith("gpu_"):
            continue
        device = provenance.facts("")["device"]
        print(f"\n{name} on {device}", flush=True)
        tables[name] = experiments.record(name, plan=plan_of(name), **options_of_all)
        show(wanted, tables[name])
    show_forecast(tables["gpu_race"], tables["gpu_shapes"])
    return pd.concat(tables.values())


def plan_of(name: str) -> str:
    """Hashes of the claims that will judge an experiment: each of its blocks carries them."""
    from study import claims as judging  # now: it brings what no other command needs

    return judging.plan_of(name)


def claims(options: Namespace) -> pd.DataFrame:
    """The papers' claims: how many have which verdict, or one paper's with its tests."""
    from study import claims as judging  # now: it brings what no other command needs

    if not options.paper:
        judged = {paper: judging.judged(paper) for paper in judging.PAPERS}
        print(judging.summary(judged).to_string())
        return NOTHING
    judged = judging.judged(options.paper).set_index("claim")
    columns = ["where", "effect", "ours", "low", "high", "prompts", "verdict"]
    print(judged[columns].round(3).to_string())
    return NOTHING


def list_experiments(options: Namespace) -> pd.DataFrame:
    """The table of experiments."""
    print(experiments.listing().set_index("name").to_string())
    return NOTHING


def list_methods(options: Namespace) -> pd.DataFrame:
    """The table of methods, or those with a word in their name."""
    chosen = {name: method for name, method in METHODS.items() if options.word in name}
    if not chosen:
        methods.check(options.word)  # ValueError with what may be meant
    for name, method in chosen.items():
        print(f"{name:32} {in_a_line(method)}")
    return NOTHING


def in_a_line(method: Method) -> str:
    """A method in a line: who drafts, by which rule, how drawn and verified, where that is not the usual way.

    >>> in_a_line(METHODS["hass-salf-6, in graphs"])
    'head hass, Salf(total=6, beam=3, threshold=0.8, width=10); forwards in graphs'
    """
    if not method.ours:
        return _generate_in_a_line(method)
    parts = []
    if method.head is not None:
        rule = "sizes by prices" if isinstance(method.grow, Auto) else label(method.grow)
        parts.append(f"head {method.head}, {rule}")
    for build in (method.drafter, method.look_up):
        if build is not None:
            parts.append(str(build))
    if method.drawn is not Drawn.POINT:
        parts.append(f"drawn {method.drawn.name.lower()}, verified by {method.verifier.__name__}")
    if method.window is not None:
        parts.append(str(method.window))
    if method.forwards != methods.USUAL:
        parts.append(f"forwards {method.forwards}")
    return "; ".join(parts)


def _generate_in_a_line(method: Method) -> str:
    """A method of transformers in a line."""
    parts = ["transformers' generate"]
    if method.assistant:
        parts.append("with an assistant model")
    if method.generate:
        parts.append(", ".join(f"{name}={value}" for name, value in method.generate.items()))
    return " ".join(parts)


# ---- what a recorded table says -----------------------------------------------------------------------------------


def show(wanted: Experiment, runs: pd.DataFrame) -> None:
    """Print what a recorded table says, by what its blocks measured."""
    good = runs[runs["status"] == "ok"]
    if good.empty:  # the command ends with what failed
        return
    cell = wanted.cell.name
    if cell == "race":
        show_race(runs, baseline=wanted.settings["methods"][0])
    elif cell == "texts":
        show_texts(good)
    elif cell == "law":
        print(good[["method", "heat", "outcomes", "p value"]].to_string(index=False))
    else:
        show_curves(good)


def show_texts(good: pd.DataFrame) -> None:
    """How many texts are those of generate, method by method."""
    for name, texts_of_one in good.groupby("method", sort=False):
        equal = texts_of_one["equal"].astype(bool).sum()
        same = texts_of_one["same"].astype(bool).sum()
        count = len(texts_of_one)
        print(f"{name}: {same} of {count} texts are those of generate, {same - equal} but for a near tie")


def show_race(runs: pd.DataFrame, baseline: str) -> None:
    """Speed-ups over a method, which differences the prompts do not tell, and whether there are enough of them."""
    ran = (runs["status"] == "ok") & (runs["method"] == baseline)
    if not ran.any():
        return
    speed_ups = stats.speed_ups(runs, baseline)
    columns = ["tau", "speed-up", "low", "high", "token/s", "prompts", "failed"]
    print(speed_ups[columns].round(2).to_string())
    rivals = speed_ups.drop(baseline)
    not_told_apart = rivals[(rivals["low"] <= 1) & (rivals["high"] >= 1)].index
    if len(not_told_apart):
        print(f"not told from {baseline}, the interval holds 1: {', '.join(not_told_apart)}")
    count = runs["prompt"].nunique()
    if count < FEW:
        print(f"only {count} of the {FEW} prompts that an interval needs at least: try --prompts own:4")


def show_curves(good: pd.DataFrame) -> None:
    """Milliseconds by the number of nodes, with graphs apart from without."""
    for recorded, part in good.groupby("graphs"):
        milliseconds = 1000 * part.pivot(index="nodes", columns="model", values="median")
        title = "nodes, ms in graphs" if recorded else "nodes, ms"
        print(milliseconds.round(2).rename_axis(title).to_string())


def show_forecast(raced: pd.DataFrame, shapes: pd.DataFrame) -> None:
    """What a recorded race would be at the prices of larger models' shapes, if both were measured."""
    no_race = not (raced["status"] == "ok").any()
    no_prices = (shapes["status"] == "failed").any()
    if no_race or no_prices:
        return
    print("\nForecast, not measured: the race's counts at the prices of gpu_shapes in graphs, over plain decoding")
    in_graphs = shapes[shapes["graphs"]]
    speed_ups = prices.forecast(raced, in_graphs)
    print(speed_ups.round(2).to_string())
