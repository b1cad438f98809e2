"""The study's commands:

python -m study list                                     what is recorded, and what is not
python -m study record NAME …                            record experiments; resumes
python -m study claims [PAPER]                           what became of the papers' claims
python -m study methods [WORD]                           the table of methods, or those with a word in their name
python -m study race METHOD … --prompts own:1 --out F    any methods on any prompts, recorded in F.jsonl
python -m study texts METHOD … --prompts own:1 --out F   whether their greedy texts are those of generate
python -m study price HEAD … --out F                     cost curves of the target and of heads
python -m study gpu                                      all that a GPU is asked, in some minutes; resumes

A prompt is an id, a set ("own", "gsm100:12") or a domain ("rag:2"). Methods are the keys of study/methods.py.
"""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace, RawDescriptionHelpFormatter

from specnb import models


def main() -> None:
    """Parse and run. Exits with 1 if a block failed, naming it; with 2 on what makes no sense; with 130 on Ctrl-C."""
    parser = _parser()
    options = parser.parse_args()
    try:
        failures = run(options)
        sys.stdout.flush()  # here a reader that has gone away can still be noticed
    except BrokenPipeError:
        _leave_quietly()
    except (ValueError, OSError, RuntimeError) as error:
        parser.error(str(error))
    except KeyboardInterrupt as stop:
        kept = str(stop) or "nothing was being measured; the same command begins again"
        print(f"\ninterrupted: {kept}", file=sys.stderr)
        sys.exit(130)  # as shells report an interrupt
    if failures:
        sys.exit("\n".join([*failures, "--retry measures again"]))


def _leave_quietly() -> None:
    """Exit when nobody reads our output any more: ``python -m study list | head`` has its ten lines."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # else Python complains when it flushes what is left, on its way out
    sys.exit(141)  # as shells report a broken pipe


def run(options: Namespace) -> list[str]:
    """Do what the command line asks for; in words, what failed."""
    from study import commands  # now: torch and transformers take seconds

    functions = {
        "list": commands.list_experiments,
        "claims": commands.claims,
        "methods": commands.list_methods,
        "record": commands.record,
        "race": commands.race,
        "texts": commands.texts,
        "price": commands.price,
        "gpu": commands.gpu,
    }
    table = functions[options.what](options)
    failed = table[table["status"] == "failed"]
    if failed.empty:
        return []
    names = failed["cell"]
    if "method" in failed:
        names = failed["method"].fillna(failed["cell"])
    failures = [f"{name} failed: {error}" for name, error in zip(names, failed["error"], strict=True)]
    return list(dict.fromkeys(failures))


# ---- what the command line understands ----------------------------------------------------------------------------


def number(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _parser() -> ArgumentParser:
    """All commands with their options."""
    parser = ArgumentParser("python -m study", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    where = _where_blocks_run()
    model = _model_and_file()
    kernels = _dtype_and_packing()
    raced = _methods_on_prompts()

    commands.add_parser("list", help="the table of experiments and its state")

    claims = commands.add_parser("claims", help="verdicts on the papers' claims, counted, or one paper's")
    claims.add_argument("paper", nargs="?", help="ptd, traversal, dynatree, edd_pct or salf_talf")

    methods = commands.add_parser("methods", help="the table of methods")
    methods.add_argument("word", nargs="?", default="", help="only names that hold it")

    record = commands.add_parser("record", parents=[where], help="record experiments; resumes")
    record.add_argument("names", nargs="+", metavar="NAME", help="as `list` names them")
    record.add_argument("--prompts", nargs="+", default=(), help="only these prompts of the experiment")

    race_help = "any methods on any prompts; the first is the baseline"
    race = commands.add_parser("race", parents=[where, model, kernels, raced], help=race_help)
    race.add_argument("--temperature", type=float, default=0.0)
    race.add_argument("--repetitions", type=number, default=1)
    race.add_argument("--whole", action="store_true", help="write all new tokens, whatever ends the text before")

    commands.add_parser("texts", parents=[where, model, raced], help="greedy float32 texts beside those of generate")

    price = commands.add_parser("price", parents=[where, model, kernels], help="cost curves of the target and of heads")
    price.add_argument("heads", nargs="*", metavar="HEAD")
    price.add_argument("--prefix", type=number, help="tokens behind which forwards are measured: 300, if they fit")
    price.add_argument("--repetitions", type=number, default=15)

    gpu = commands.add_parser("gpu", help="texts, laws, prices and races on a GPU, and a forecast for larger models")
    gpu.add_argument("--out", help="folder for gpu_*.jsonl; left out: data/results")
    gpu.add_argument("--retry", action="store_true", help="measure again what failed")
    return parser


def _where_blocks_run() -> ArgumentParser:
    """Options of all commands that measure blocks one after the other."""
    part = ArgumentParser(add_help=False)
    part.add_argument("--workers", type=number, default=1, help="processes (not where seconds are measured)")
    part.add_argument("--scheduler", help="address of a Dask scheduler; one block at a time on each machine")
    part.add_argument("--retry", action="store_true", help="measure again what failed")
    return part


def _model_and_file() -> ArgumentParser:
    """Options of all commands that measure any pair, and write a file of the reader's own."""
    part = ArgumentParser(add_help=False)
    part.add_argument("--pair", default=models.EMBEDDED, help=f"{', '.join(models.PAIRS)}, a hub name or a folder")
    part.add_argument("--out", required=True, help="writes OUT.jsonl")
    return part


def _dtype_and_packing() -> ArgumentParser:
    """Options of all commands that measure seconds."""
    part = ArgumentParser(add_help=False)
    part.add_argument("--dtype", help="float32, bfloat16 or float16; left out: the fastest here, packed if it can be")
    part.add_argument("--packed", action=BooleanOptionalAction, help="pack the weights for the CPU's kernels, or not")
    return part


def _methods_on_prompts() -> ArgumentParser:
    """Options of a race and of texts."""
    part = ArgumentParser(add_help=False)
    part.add_argument("methods", nargs="+", metavar="METHOD", help="of study/methods.py")
    part.add_argument("--prompts", nargs="+", default=["own:1"])
    part.add_argument("--tokens", type=number, default=96, help="new tokens per prompt")
    part.add_argument("--head", default="", help="path of a head of your own, in place of the methods'")
    part.add_argument("--softened", type=float, default=1.0, help="divide the heads' logits by this")
    part.add_argument("--forwards", default="usual", choices=("usual", "in graphs", "invariant"))
    return part


if __name__ == "__main__":
    main()
