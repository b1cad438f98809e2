"""The commands of ``python -m study``, as functions of their options.

Each returns a table with a column status. If rows of it failed ``__main__`` names them and exits with status 1.
"""

import multiprocessing
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from specnb import models
from specnb.models import prompts, provenance
from specnb.sampling import Warp
from specnb.tree import Drawn
from study import experiments, methods, prices, stats, weights
from study.experiments import Experiment
from study.measure import loading
from study.methods import METHODS, Auto, Method, label

FEW = 12  # prompts; bootstrap intervals of fewer are too narrow
HARDLY = 1.05  # tokens per target call of a head that may be read wrongly: 1 is what comes without a draft
NOTHING = pd.DataFrame({"status": []})  # what a command returns that measures nothing


# ---- where blocks run ---------------------------------------------------------------------------------------------


@contextmanager
def executors(options: Namespace) -> Iterator[Executor | None]:
    """The executor that measures blocks: a Dask cluster's, a pool of processes, or None for this process."""
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
    """A pool of processes that are ended by Ctrl-C at once. An ordinary pool would finish its blocks first."""
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    with deaf():
        for _ in range(workers):
            pool.submit(os.getpid)  # called only to start all processes now, while Ctrl-C is ignored
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
    """Ignore Ctrl-C in processes that are started in this context: a terminal sends it to all, and we end them."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


# ---- options are checked before anything is loaded ----------------------------------------------------------------


def checked_prompts(options: Namespace) -> list[str]:
    """The ids of a race's prompts. Raises ValueError on methods, prompts or a pair that make no sense."""
    raced = methods_of(options)
    models.check_name(options.pair)
    check_head(options.head, raced)
    with_own_draft = [name for name, method in raced.items() if method.head == weights.PAIR]
    _, draft = models.PAIRS.get(options.pair, (None, None))
    if with_own_draft and draft is None:
        raise ValueError(f"{with_own_draft[0]!r}: {options.pair} has no draft model of its own, name a trained head")
    drawing = [name for name, method in raced.items() if method.drawn is not Drawn.POINT]
    temperature = getattr(options, "temperature", 0.0)  # the command texts has no such option: it is greedy
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


def check_head(head: str, raced: Mapping[str, Method]) -> None:
    """Raise ValueError if the option --head is given and no method would use it.

    Whether the head exists is told by ``Experiment.check``, which comes before anything is loaded, too.
    head: "" for none. raced: the methods by name, with this head in the place of theirs.
    """
    if head and not any(method.head == head for method in raced.values()):
        names = ", ".join(map(repr, raced))
        raise ValueError(
            f"--head {head}: no trained head drafts in {names}: race 'hass-salf' or 'eagle-eagle2-16', say"
        )


def methods_of(options: Namespace) -> dict[str, Method]:
    """The methods of a command by name, changed by its options --head, --softened and --forwards."""
    changes = {"head": options.head, "softened": options.softened, "forwards": options.forwards}
    return {name: methods.method(name, **changes) for name in options.methods}


TIMED = (experiments.RACE_CELL, experiments.CURVES_CELL, experiments.SHAPES_CELL)  # whose seconds are read


def check_alone(wanted: Experiment, options: Namespace) -> None:
    """Raise ValueError if seconds are to be measured by several processes of one machine."""
    if wanted.cell in TIMED and options.workers > 1:
        raise ValueError(f"--workers {options.workers}: seconds are measured, for which a machine has to be alone")


def check_kernels(options: Namespace) -> None:
    """Raise ValueError on an unknown dtype, and on --packed if weights of this dtype cannot be packed here."""
    dtype = options.dtype or models.fastest_dtype(models.best_device())[0]
    kind = models.as_dtype(dtype)
    can_pack = models.best_device().type == "cpu" and models.packing.possible(kind)
    if options.packed and not can_pack:
        raise ValueError(f"--packed needs a CPU with kernels for packed weights of {dtype}")


def dtype_and_packing(options: Namespace) -> dict[str, object]:
    """The settings dtype and packed. What the options leave open is the fastest on this machine, as in load_pair()."""
    if options.dtype:
        return {"dtype": options.dtype, "packed": bool(options.packed)}
    dtype, packed = models.fastest_dtype(models.best_device())
    if options.packed is not None:
        packed = options.packed
    elif packed:
        packed = not _is_quantised(options.pair)
    weights = "packed weights" if packed else "weights as they are"
    message = f"{options.pair}: {dtype}, {weights}: the fastest here (others: --dtype, --packed, --no-packed)"
    print(message, file=sys.stderr)
    return {"dtype": dtype, "packed": packed}


def _is_quantised(pair: str) -> bool:
    """Whether a pair's target or draft model is quantised: such weights cannot be packed."""
    target, draft = models.PAIRS.get(pair, (pair, None))
    if models.quantised(target):
        return True
    return draft is not None and models.quantised(draft)


def check_pair(wanted: Experiment) -> None:
    """Load the pair of an experiment. Raises OSError or ValueError if that fails, or if methods or heads do not fit."""
    settings = wanted.settings
    packed = settings.get("packed", False)
    pair = loading.loaded(settings["pair"], settings.get("dtype", "float32"), packed)
    changes = {name: settings[name] for name in ("head", "softened", "forwards") if name in settings}
    for name in settings.get("methods", ()):
        loading.check_fit(name, methods.method(name, **changes), pair, packed)
    for head in settings.get("heads", ()):
        loading.draft_model(head, pair, 0)  # called only for its errors; the loaded head is kept


# ---- commands -----------------------------------------------------------------------------------------------------


def race(options: Namespace) -> pd.DataFrame:
    """Run and time methods on prompts; record them block by block, and print the speed-ups."""
    ids = checked_prompts(options)
    check_kernels(options)
    Warp(options.temperature)  # called only for its ValueError on a bad temperature
    settings = common(options)
    settings |= {"temperature": options.temperature, "repetitions": options.repetitions, "whole": options.whole}
    settings |= dtype_and_packing(options)
    return measured(Experiment("", experiments.RACE_CELL, prompts=ids, settings=settings), options)


def texts(options: Namespace) -> pd.DataFrame:
    """Compare methods' greedy float32 texts with those of generate; record them block by block, and print counts."""
    ids = checked_prompts(options)
    return measured(Experiment("", experiments.TEXTS_CELL, prompts=ids, settings=common(options)), options)


def common(options: Namespace) -> dict[str, object]:
    """The settings that races and texts have in common."""
    return {
        "methods": options.methods,
        "length": options.tokens,
        "pair": options.pair,
        "head": options.head,
        "softened": options.softened,
        "forwards": options.forwards,
    }


def price(options: Namespace) -> pd.DataFrame:
    """Time forwards of the target and of heads, after a prefix of text; record and print the curves."""
    models.check_name(options.pair)
    check_kernels(options)
    timed = [*options.heads, *([options.head] if options.head else [])]
    weights.hashes(set(timed) - {weights.PAIR})  # called only for its ValueError on a missing head
    twice = [name for name in timed if timed.count(name) > 1]
    if twice:
        raise ValueError(f"{twice[0]!r} stands twice among the heads: --repetitions repeats")
    settings = {"heads": timed, "pair": options.pair, "repetitions": options.repetitions}
    settings |= dtype_and_packing(options)
    settings["prefix"] = options.prefix or loading.PREFIX
    if not options.scheduler:
        pair = loading.loaded(options.pair, settings["dtype"], settings["packed"])
        settings["prefix"] = loading.measured_behind(pair, options.prefix)
    return measured(Experiment("", experiments.CURVES_CELL, settings=settings), options)


def measured(wanted: Experiment, options: Namespace) -> pd.DataFrame:
    """Record an experiment that is not in ``experiments.TABLE`` in OUT.jsonl, and print it."""
    check_alone(wanted, options)
    wanted.check()  # errors in blocks and heads come before anything is loaded
    if not options.scheduler:  # here, so that a pair that cannot be loaded is not recorded as a method's failure
        check_pair(wanted)
    file = Path(f"{options.out.removesuffix('.jsonl')}.jsonl")
    command = provenance.command("study")
    already_there = wanted.blocks_in(file)
    if already_there:
        count = f"{len(already_there)} of {len(wanted.blocks())} blocks are in {file} already"
        print(f"{count}, by their methods' names: after a change behind a name use another --out", file=sys.stderr)
    with executors(options) as executor:
        runs = wanted.measure_missing(file, command, executor, options.retry)
    show(wanted, runs)
    return runs


def record(options: Namespace) -> pd.DataFrame:
    """Record experiments by name, one after the other."""
    for name in options.names:  # errors in any name or prompt come before the first experiment, which may take an hour
        check_alone(experiments.with_prompts(name, options.prompts), options)
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
    """Record and print the experiments for a GPU, one after the other, and a forecast for larger models."""
    asked = gpu_experiments(options)
    other = options.pair != models.EMBEDDED or bool(options.head)
    folder = Path(options.out) if options.out else experiments.RESULTS
    options_of_all = {"folder": folder, "retry": options.retry, "command": provenance.command("study")}
    for wanted in asked.values():
        wanted.check()  # errors in names come before anything is loaded
    tables = {}
    dtype = None  # of the pair that is loaded
    for name, wanted in asked.items():
        device = provenance.facts("")["device"]
        print(f"\n{name} on {device}", flush=True)
        if other:
            before, dtype = dtype, wanted.settings.get("dtype", "float32")
            if before not in (None, dtype):
                loading.forget()  # a large pair may not have room in two dtypes
            check_pair(wanted)
        tables[name] = experiments.record(wanted, plan=plan_of(name), **options_of_all)
        show(wanted, tables[name])
    if "gpu_shapes" in tables:
        show_forecast(tables["gpu_race"], tables["gpu_shapes"])
    return pd.concat(tables.values())


def gpu_experiments(options: Namespace) -> dict[str, Experiment]:
    """What the command gpu records, by name: of the embedded model, or of another pair or head (``for_pair``).

    Raises ValueError on an unknown pair or head, and where results of another pair would be mixed with the committed
    ones.
    """
    asked = {name: wanted for name, wanted in experiments.TABLE.items() if name.startswith("gpu_")}
    if options.pair == models.EMBEDDED and not options.head:
        return asked
    models.check_name(options.pair)
    if not options.out:
        raise ValueError("another pair or head needs a folder of its own: --out FOLDER")
    changed = {}
    for name, wanted in asked.items():
        for_this_pair = experiments.for_pair(wanted, options.pair, options.head)
        if for_this_pair is not None:
            changed[name] = for_this_pair
    say_what_changes(options, asked, changed)
    return changed


def say_what_changes(options: Namespace, asked: Mapping[str, Experiment], changed: Mapping[str, Experiment]) -> None:
    """Print on stderr what drafts in the place of the trained heads, and what is left out on this pair."""
    replacement = changed["gpu_race"].settings["head"]
    drafts = {"": "nothing", weights.PAIR: "the pair's own draft model"}.get(replacement, replacement)
    print(f"{options.pair}: in the place of all trained heads drafts {drafts}", file=sys.stderr)
    for name, wanted in asked.items():
        if name not in changed:
            print(f"{name}: left out, it has nothing that this pair can run", file=sys.stderr)
            continue
        kept = changed[name].settings.get("methods", ())
        gone = [method for method in wanted.settings.get("methods", ()) if method not in kept]
        if gone:
            print(f"{name}: left out, not of this pair or the same twice: {'; '.join(gone)}", file=sys.stderr)


def plan_of(name: str) -> str:
    """Hashes of the claims that are judged by an experiment: each of its blocks records them."""
    from study import claims as judging  # not at the top: it imports much that other commands do not need

    return judging.plan_of(name)


def claims(options: Namespace) -> pd.DataFrame:
    """Print how many claims of each paper have which verdict, or the claims of one paper."""
    from study import claims as judging  # not at the top: it imports much that other commands do not need

    if not options.paper:
        judged = {paper: judging.judged(paper) for paper in judging.PAPERS}
        print(judging.summary(judged).to_string())
        return NOTHING
    judged = judging.judged(options.paper).set_index("claim")
    columns = ["where", "effect", "ours", "low", "high", "prompts", "verdict"]
    print(judged[columns].round(3).to_string())
    return NOTHING


def list_experiments(options: Namespace) -> pd.DataFrame:
    """Print the table of experiments."""
    print(experiments.listing().set_index("name").to_string())
    return NOTHING


def list_methods(options: Namespace) -> pd.DataFrame:
    """Print the table of methods, or those with a word in their name."""
    matching = {name: method for name, method in METHODS.items() if options.word in name}
    if not matching:
        methods.check_name(options.word)  # called only for its ValueError, which names similar methods
    for name, method in matching.items():
        print(f"{name:32} {in_a_line(method)}")
    return NOTHING


def in_a_line(method: Method) -> str:
    """A method in one line: its draft and growth rule, and each further setting that is not the usual one.

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
    """A method of transformers in one line."""
    parts = ["transformers' generate"]
    if method.assistant:
        parts.append("with an assistant model")
    if method.generate:
        parts.append(", ".join(f"{name}={value}" for name, value in method.generate.items()))
    return " ".join(parts)


# ---- recorded tables are printed ----------------------------------------------------------------------------------


def show(wanted: Experiment, runs: pd.DataFrame) -> None:
    """Print a summary of a recorded table, which depends on its cell."""
    good = runs[runs["status"] == "ok"]
    if good.empty:  # there is nothing to print here; ``__main__`` prints the failures
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
    """Print for each method how many of its texts are those of generate, up to near ties (``measure.texts``)."""
    for name, its_texts in good.groupby("method", sort=False):
        equal = its_texts["equal"].astype(bool).sum()
        same = its_texts["same"].astype(bool).sum()
        count = len(its_texts)
        print(f"{name}: {same} of {count} texts are those of generate, {same - equal} but for a near tie")


def has_head(name: str) -> bool:
    """Whether a trained head drafts in a method of this name."""
    return bool(getattr(METHODS.get(name), "head", None))


def show_race(runs: pd.DataFrame, baseline: str) -> None:
    """Print speed-ups over the baseline, which of them may be 1, and a warning if there are few prompts."""
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
    useless = [name for name in rivals.index if rivals["tau"][name] < HARDLY and has_head(name)]
    if useless:
        print(
            f"hardly any drafted token was accepted: {', '.join(useless)}. Does the head belong to this target, and is "
            f"it read rightly? heads.check measures it"
        )
    count = runs["prompt"].nunique()
    if count < FEW:
        print(f"only {count} of the {FEW} prompts that an interval needs at least: try --prompts own:4")


def show_curves(good: pd.DataFrame) -> None:
    """Print milliseconds by the number of nodes, in one table with graphs and in one without."""
    for in_graphs, part in good.groupby("graphs"):
        milliseconds = 1000 * part.pivot(index="nodes", columns="model", values="median")
        title = "nodes, ms in graphs" if in_graphs else "nodes, ms"
        print(milliseconds.round(2).rename_axis(title).to_string())


def show_forecast(raced: pd.DataFrame, shapes: pd.DataFrame) -> None:
    """Print a forecast of a race at the prices of larger models, if both were measured (``prices.forecast``)."""
    no_race = not (raced["status"] == "ok").any()
    no_prices = (shapes["status"] == "failed").any()
    if no_race or no_prices:
        return
    print("\nForecast, not measured: the race's counts at the prices of gpu_shapes in graphs, over plain decoding")
    in_graphs = shapes[shapes["graphs"]]
    speed_ups = prices.forecast(raced, in_graphs)
    print(speed_ups.round(2).to_string())
