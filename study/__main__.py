"""The study's commands:

python -m study list                                     which experiments are recorded, and which are not
python -m study record NAME …                            record experiments of that list; resumes
python -m study claims [PAPER]                           the verdicts on the papers' claims
python -m study methods [WORD]                           the table of methods, or those with a word in their name
python -m study race METHOD … --prompts own:1 --out F    run and time any methods on any prompts; recorded in F.jsonl
python -m study texts METHOD … --prompts own:1 --out F   compare their greedy texts with those of generate
python -m study price HEAD … --out F                     time forwards of the target and of heads, by their size
python -m study gpu                                      everything that is measured on a GPU, in minutes; resumes

METHOD is a key of study/methods.py, such as "hass-salf-6" or "prompt lookup"; "generate" is transformers' own
generate. HEAD is a trained draft head: "hass", the path of one of your own without its suffix, or one in a published
format, by its folder or its name on the hub (docs/papers_scale.md).

Prompts are given as ids ("rag-01"), as sets ("own", "gsm100:12" for its first twelve) or as domains of our own set
("rag:2"); "own:1" is the first prompt of each of the six domains of our own set, and "own:5-10" the fifth to the tenth.
"""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace, RawDescriptionHelpFormatter
from typing import NoReturn

from specnb import models


def main() -> None:
    """Run the command that was typed.

    The exit status is 0, or 1 if something failed that was to be measured (its name is printed), 2 on options that make
    no sense, 130 after Ctrl-C, and 141 if nobody reads the output any more.
    """
    parser = _parser()
    options = parser.parse_args()
    try:
        failures = run(options)
        sys.stdout.flush()  # if the reader of a pipe has gone, the error comes here, where it is handled
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


def _leave_quietly() -> NoReturn:
    """Exit without a message when nobody reads the output any more, as after ``python -m study list | head``."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(
        nowhere, sys.stdout.fileno()
    )  # Python flushes the rest of the output at exit: into the closed pipe it fails
    sys.exit(141)  # as shells report a broken pipe


def run(options: Namespace) -> list[str]:
    """Run a command. Returns one message for each thing that failed, without repetitions."""
    from study import (
        commands,
    )  # not at the top: importing torch and transformers takes seconds, and --help needs neither

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
    """Parse a whole number of at least 1. Raises ArgumentTypeError on any other text."""
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _parser() -> ArgumentParser:
    """The parser of all commands with their options."""
    parser = ArgumentParser("python -m study", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    where = _where_blocks_run()
    model = _model_and_file()
    kernels = _dtype_and_packing()
    raced = _methods_on_prompts()

    commands.add_parser("list", help="which experiments are recorded, and which are not")

    claims = commands.add_parser("claims", help="the verdicts on the papers' claims, counted, or one paper's claims")
    claims.add_argument("paper", nargs="?", help="ptd, traversal, dynatree, edd_pct or salf_talf")

    methods = commands.add_parser("methods", help="the table of methods")
    methods.add_argument("word", nargs="?", default="", help="only methods with this word in their name")

    record = commands.add_parser("record", parents=[where], help="record experiments; resumes")
    record.add_argument("names", nargs="+", metavar="NAME", help="names of experiments, as `list` prints them")
    record.add_argument("--prompts", nargs="+", default=(), help="only these prompts of the experiment")

    race_help = "run and time any methods on any prompts; the first method is the baseline"
    race = commands.add_parser("race", parents=[where, model, kernels, raced], help=race_help)
    race.add_argument("--temperature", type=float, default=0.0, help="of the sampled texts; 0, the default, is greedy")
    race.add_argument("--repetitions", type=number, default=1, help="runs of every method on every prompt; default 1")
    race.add_argument("--whole", action="store_true", help="go on after an end token, up to --tokens")

    texts_help = "compare methods' greedy float32 texts with those of generate"
    commands.add_parser("texts", parents=[where, model, raced], help=texts_help)

    price_help = "time forwards of the target and of heads, by their number of nodes"
    price = commands.add_parser("price", parents=[where, model, kernels], help=price_help)
    heads_help = 'trained heads, or "pair" for the pair\'s own draft model; without any only the target is timed'
    price.add_argument("heads", nargs="*", metavar="HEAD", help=heads_help)
    price.add_argument("--head", default="", metavar="HEAD", help="one more head, as race takes it")
    prefix_help = "tokens before the measured forwards; default 300, or what the models' contexts can take"
    price.add_argument("--prefix", type=number, help=prefix_help)
    price.add_argument("--repetitions", type=number, default=15, help="how often each size is timed; default 15")

    gpu = commands.add_parser("gpu", help="everything that is measured on a GPU, and a forecast for larger models")
    pair_help = "another target, as race takes it; what belongs to the embedded model is then left out"
    gpu.add_argument("--pair", default=models.EMBEDDED, help=pair_help)
    head_help = (
        "drafts in the place of all trained heads; default with --pair: the pair's own draft model, if it has one"
    )
    gpu.add_argument("--head", default="", metavar="HEAD", help=head_help)
    out_help = "folder for gpu_*.jsonl; default data/results, to be given with --pair or --head"
    gpu.add_argument("--out", help=out_help)
    gpu.add_argument("--retry", action="store_true", help="measure again the blocks that failed")
    return parser


def _where_blocks_run() -> ArgumentParser:
    """Options of the commands that measure block by block: where that happens. A block is a prompt with all methods."""
    part = ArgumentParser(add_help=False)
    workers_help = "number of processes; default 1, as it must be where seconds are measured"
    part.add_argument("--workers", type=number, default=1, help=workers_help)
    part.add_argument("--scheduler", help="address of a Dask scheduler, for measuring on a cluster")
    part.add_argument("--retry", action="store_true", help="measure again the blocks that failed")
    return part


def _model_and_file() -> ArgumentParser:
    """Options of the commands that measure any pair (target and draft model) and write a file of their own."""
    part = ArgumentParser(add_help=False)
    known = ", ".join(models.PAIRS)
    pair_help = f"the target: {known}, a model's name on the hub, or a folder; default {models.EMBEDDED}"
    part.add_argument("--pair", default=models.EMBEDDED, help=pair_help)
    part.add_argument("--out", required=True, help="records in OUT.jsonl")
    return part


def _dtype_and_packing() -> ArgumentParser:
    """Options of the commands that measure seconds."""
    part = ArgumentParser(add_help=False)
    part.add_argument("--dtype", help="float32, bfloat16 or float16; default: the fastest on this machine")
    packed_help = (
        "pack the weights for the CPU's kernels, or do not; default with --dtype: not, without it: if possible"
    )
    part.add_argument("--packed", action=BooleanOptionalAction, help=packed_help)
    return part


def _methods_on_prompts() -> ArgumentParser:
    """Options of the commands race and texts."""
    part = ArgumentParser(add_help=False)
    part.add_argument("methods", nargs="+", metavar="METHOD", help="as `methods` prints them")
    prompts_help = "default own:1, the first prompt of each domain of our own set"
    part.add_argument("--prompts", nargs="+", default=["own:1"], help=prompts_help)
    part.add_argument("--tokens", type=number, default=96, help="new tokens per prompt; default 96")
    head_help = 'a head of your own, a published one, or "pair": all methods with a trained head draft with it instead'
    part.add_argument("--head", default="", metavar="HEAD", help=head_help)
    softened_help = "the temperature of the heads: their logits are divided by it; default 1"
    part.add_argument("--softened", type=float, default=1.0, help=softened_help)
    forwards_help = "how the target's forwards are run; in graphs: captured and replayed; invariant: the same bits"
    part.add_argument("--forwards", default="usual", choices=("usual", "in graphs", "invariant"), help=forwards_help)
    return part


if __name__ == "__main__":
    main()
