"""Side by side: any methods of specnb next to transformers' own, on the same prompts in one run. On the command line:

    python -m specnb.bench --methods generate 'edd:pct 0.06' 'talf:salf 6,3,0.8,10 + ngram' --out my_race
    python -m specnb.bench --pair vicuna-7b --methods generate pair:eagle2 --prompts own:4 --out my_vicuna
    python -m specnb.bench --texts --methods 'talf:salf 6,3,0.8,10 + ngram' --prompts own --out my_texts

How methods are spelt: ``specnb.methods``. Every cell, a method on a prompt, is recorded as it ends: a killed run goes
on where it stopped, a method that fails is recorded as failed and the rest goes on.
"""

import argparse
import sys

import pandas as pd

from specnb import costs, heads, measures, methods, models, packing, prompts, records, side_by_side, sweep
from specnb.prompts import choose
from specnb.racing import generate, load, peers, race, ratios, same_text
from specnb.tree import Drawn

__all__ = ["choose", "generate", "load", "peers", "race", "ratios", "same_text"]
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # nodes at which cost curves are measured
DEFAULT = ("generate", "prompt lookup", "assistant", "n-gram tree")


def cells(options: argparse.Namespace) -> list[dict]:
    """The cells of a race or of a comparison of texts; ValueError on names without sense, before anything is loaded."""
    models.check_name(options.pair)
    models.dtype(options.dtype)
    if options.tokens < 1 or options.repetitions < 1 or min(options.temperatures) < 0:
        raise ValueError("--tokens and --repetitions must be at least 1, --temperatures at least 0")
    if options.packed and (options.dtype != "bfloat16" or models.device().type != "cpu" or not packing.possible()):
        raise ValueError(
            f"--packed needs bfloat16 and a CPU with its kernels, this is {options.dtype} on {models.device()}"
        )
    known = {name: methods.method(name) for name in options.methods}
    alone = [name for name, made in known.items() if made.head == "pair"]
    if alone and models.PAIRS.get(options.pair, (None, None))[1] is None:
        raise ValueError(f"{alone[0]!r}: {options.pair} has no draft model of its own, name a trained head")
    drawn = [name for name, made in known.items() if made.drawn is not Drawn.POINT]
    if drawn and (options.texts or 0 in options.temperatures):
        raise ValueError(f"{drawn[0]!r} draws its tree: that needs --temperatures above 0")
    ids = [one for name in options.prompts for one in prompts.chosen(name)]
    if twice := [name for name in (*options.methods, *ids) if (*options.methods, *ids).count(name) > 1]:
        raise ValueError(f"{twice[0]!r} stands twice among --methods or --prompts: --repetitions repeats")
    if options.texts:
        ours = [name for name, made in known.items() if made.options is None]
        if not ours or options.pair != models.EMBEDDED:
            raise ValueError(
                f"--texts compares drafters of ours on {models.EMBEDDED}, not of transformers or elsewhere"
            )
        return [
            {"method": name, "prompt": prompt, "length": options.tokens, "positions": told}
            for i, prompt in enumerate(ids)
            for name in ours
            for told in ((True, False) if i % 10 == 0 else (True,))
        ]
    common = {"pair": options.pair, "dtype": options.dtype, "packed": options.packed, "whole": options.whole}
    return [
        {"method": name, "prompt": prompt, "temperature": heat, "length": options.tokens, "repetition": turn, **common}
        for heat in options.temperatures
        for turn in range(options.repetitions)
        for i, prompt in enumerate(ids)
        for name in costs.shuffled(options.methods, i)
    ]


def run(options: argparse.Namespace) -> None:
    """A race, or a comparison of texts, recorded as it goes, and shown; SystemExit at the end if a cell failed."""
    wanted = cells(options)
    named = {methods.method(name).head for name in options.methods} - {None, "pair"}
    named |= {"vdm"} if "assistant" in options.methods and options.pair == models.EMBEDDED else set()
    facts = {"pair": options.pair, "dtype": "float32" if options.texts else options.dtype}
    facts |= {"head_sha256": heads.hashes(named)}
    records.add_run(f"{options.out}.json", records.command("specnb.bench"), **facts)
    one, results = side_by_side.measure, side_by_side.RESULTS
    if options.texts:
        one, results = side_by_side.same_greedy_text, measures.TEXT_RESULTS
    table = sweep.run(one, wanted, f"{options.out}.csv", results=results, retry=options.retry)
    good = table[table["status"] == "ok"]
    if options.texts:
        show(good.groupby(["method", "positions"], sort=False)[["equal", "same"]].agg(["sum", "size"]).reset_index())
    for heat in () if options.texts else options.temperatures:
        part = good[good["temperature"] == heat]
        part = part.assign(**{"token/s": part["tokens"] / part["seconds"]})
        baseline = next((name for name in options.methods if name in set(part["method"])), None)
        if baseline is None:
            continue
        print(f"temperature {heat:g}, speed-ups over {baseline}:")
        show(ratios(part, baseline).reset_index())
    failed = table[table["status"] == "failed"].drop_duplicates("method").set_index("method")["error"]
    if len(failed):
        sys.exit("\n".join([f"{name} failed: {error}" for name, error in failed.items()] + ["--retry measures again"]))


def show(table: pd.DataFrame) -> None:
    """Print a table."""
    print(table.round(2).to_string(index=False))


def price(options: argparse.Namespace) -> None:
    """What forwards, tree building, verification and sampled decoding cost; written in one piece, and shown."""
    known = {name: methods.method(name) for name in options.memory or ()}
    if odd := [name for name, made in known.items() if made.options is not None or made.window]:
        raise ValueError(f"--memory follows drafters of ours without a window, not {odd[0]!r}")
    pair = side_by_side.loaded(side_by_side.Setting(options.pair, options.dtype, options.packed))
    names = [one for name in options.prompts for one in prompts.chosen(name)]
    ids = [pair.encode(prompts.text(name)) for name in names]
    length = {"max_new_tokens": options.tokens}
    named = options.heads or options.curves or options.verify or options.sampled or [options.building]
    named = {made.head for made in known.values()} if known else set(named)
    facts = {"pair": options.pair, "dtype": options.dtype, "packed": options.packed}
    facts |= {"head_sha256": heads.hashes(named - {None, "pair"})}
    if options.heads:
        frame = costs.draft_costs(pair, options.heads)
        facts |= {"frontier": 8, "prefix": 200}
    elif options.curves:
        frame = costs.cost_curves(pair, options.curves, sizes=SIZES, prefix=options.prefix)
        facts |= {"prefix": options.prefix}
    elif options.building:
        names = ("eagle2 59,8,10", "salf 60,10,0.0", "salf 60,10,0.6", "salf 60,10,0.6,10")
        frame = costs.building_costs(pair, options.building, {n: methods.rule(n) for n in names}, ids, **length)
    elif options.verify:
        frame = costs.verification_costs(pair, options.verify, ids, **length)
        facts |= {"tree": "binary, 31 nodes", "new_tokens": options.tokens}
    elif options.sampled:
        frame = costs.sampled(pair, options.sampled, ids, **length)
        frame["prompt"] = [names[i] for i in frame["prompt"]]
    else:
        frame = costs.memory(pair, {name: methods.build(made, pair) for name, made in known.items()}, ids[0], **length)
    records.write_table(options.out, frame, records.command("specnb.bench"), **facts)
    show(frame)


def main() -> None:
    """Race methods on chosen prompts, compare their texts, or price their parts; record the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", default=models.EMBEDDED, help=f"{', '.join(models.PAIRS)}, a hub name or a folder")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--methods", nargs="+", metavar="NAME", default=DEFAULT, help="the first is the baseline")
    parser.add_argument("--draft", default="vdm", help="the trained head of methods that are a growth rule alone")
    parser.add_argument("--prompts", nargs="+", default=["own:4"], help='ids, sets: "own", "own:4", "gsm100:12"')
    parser.add_argument("--tokens", type=int, default=96, help="new tokens per prompt")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0])
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--packed", action="store_true", help="pack the weights: same bits, faster on a CPU")
    parser.add_argument("--whole", action="store_true", help="write all new tokens, whatever ends the text before")
    parser.add_argument("--texts", action="store_true", help="compare greedy float32 texts instead of speed")
    parser.add_argument("--retry", action="store_true", help="measure again what failed")
    parser.add_argument("--heads", nargs="+", metavar="NAME", help="time trained heads' draft forwards instead")
    parser.add_argument(
        "--curves", nargs="+", metavar="NAME", help="time heads' and target's forwards by nodes instead"
    )
    parser.add_argument("--prefix", type=int, default=300, help="tokens behind which --curves are measured")
    parser.add_argument("--building", metavar="NAME", help="time a head's tree building outside its forwards instead")
    parser.add_argument("--verify", nargs="+", metavar="NAME", help="time verification of trained heads' trees instead")
    parser.add_argument("--sampled", nargs="+", metavar="NAME", help="time decoding at temperature 1 by every rule")
    parser.add_argument("--memory", nargs="+", metavar="METHOD", help="memory along one long text instead")
    parser.add_argument("--out", required=True, help="writes OUT.csv and OUT.json")
    options = parser.parse_args()
    options.methods = [methods.full(name, options.draft) for name in options.methods]
    prices = (options.heads, options.curves, options.building, options.verify, options.sampled, options.memory)
    (price if any(prices) else run)(options)


if __name__ == "__main__":
    from specnb import bench  # cells are recorded under their function's name in its own module

    bench.main()
