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

import sys
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace, RawDescriptionHelpFormatter

from specnb import models


def number(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def options() -> ArgumentParser:
    """What the command line understands."""
    parser = ArgumentParser("python -m study", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    where = ArgumentParser(add_help=False)
    where.add_argument("--workers", type=number, default=1, help="processes (not where seconds are measured)")
    where.add_argument("--scheduler", help="address of a Dask scheduler; one block at a time on each machine")
    where.add_argument("--retry", action="store_true", help="measure again what failed")
    model = ArgumentParser(add_help=False)
    model.add_argument("--pair", default=models.EMBEDDED, help=f"{', '.join(models.PAIRS)}, a hub name or a folder")
    model.add_argument("--out", required=True, help="writes OUT.jsonl")
    dtype = ArgumentParser(add_help=False)
    dtype.add_argument("--dtype", help="float32, bfloat16 or float16; left out: the fastest here, packed if it can be")
    dtype.add_argument("--packed", action=BooleanOptionalAction, help="pack the weights for the CPU's kernels, or not")
    raced = ArgumentParser(add_help=False)
    raced.add_argument("methods", nargs="+", metavar="METHOD", help="of study/methods.py")
    raced.add_argument("--prompts", nargs="+", default=["own:1"])
    raced.add_argument("--tokens", type=number, default=96, help="new tokens per prompt")
    raced.add_argument("--head", default="", help="path of a head of your own, in place of the methods'")
    raced.add_argument("--softened", type=float, default=1.0, help="divide the heads' logits by this")
    raced.add_argument("--forwards", default="usual", choices=("usual", "in graphs", "invariant"))
    parts = parser.add_subparsers(dest="what", required=True)
    parts.add_parser("list", help="the table of experiments and its state").set_defaults(what="listing")
    part = parts.add_parser("claims", help="verdicts on the papers' claims, counted, or one paper's")
    part.add_argument("paper", nargs="?", help="ptd, traversal, dynatree, edd_pct or salf_talf")
    part = parts.add_parser("methods", help="the table of methods")
    part.add_argument("word", nargs="?", default="", help="only names that hold it")
    part.set_defaults(what="table")
    part = parts.add_parser("record", parents=[where], help="record experiments; resumes")
    part.add_argument("names", nargs="+", metavar="NAME", help="as `list` names them")
    part.add_argument("--prompts", nargs="+", default=(), help="only these prompts of the experiment")
    part = parts.add_parser("race", parents=[where, model, dtype, raced], help="any methods on any prompts; the first "
                            "is the baseline")  # fmt: skip
    part.add_argument("--temperature", type=float, default=0.0)
    part.add_argument("--repetitions", type=number, default=1)
    part.add_argument("--whole", action="store_true", help="write all new tokens, whatever ends the text before")
    parts.add_parser("texts", parents=[where, model, raced], help="greedy float32 texts beside those of generate")
    part = parts.add_parser("price", parents=[where, model, dtype], help="cost curves of the target and of heads")
    part.add_argument("heads", nargs="*", metavar="HEAD")
    part.add_argument("--prefix", type=number, help="tokens behind which forwards are measured: 300, if they fit")
    part.add_argument("--repetitions", type=number, default=15)
    part = parts.add_parser("gpu", help="texts, laws, prices and races on a GPU, and a forecast for larger models")
    part.add_argument("--out", help="folder for gpu_*.jsonl; left out: data/results")
    part.add_argument("--retry", action="store_true", help="measure again what failed")
    return parser


def main() -> None:
    """Parse and run. Exits with 1 if a block failed, naming it; with 2 on what makes no sense; with 130 on Ctrl-C."""
    parser = options()
    given = parser.parse_args()
    try:
        failures = done(given)
    except (ValueError, OSError, RuntimeError) as error:
        parser.error(str(error))
    except KeyboardInterrupt as stop:
        kept = str(stop) or "nothing was being measured; the same command begins again"
        print(f"\ninterrupted: {kept}", file=sys.stderr)
        sys.exit(130)  # as shells report an interrupt
    if failures:
        sys.exit("\n".join([*failures, "--retry measures again"]))


def done(given: Namespace) -> list[str]:
    """Do what the command line asks for; in words, what failed."""
    from study import commands  # now: torch and transformers take seconds

    table = getattr(commands, given.what)(given)
    failed = table[table["status"] == "failed"]
    if not len(failed):
        return []
    failing = failed.get("method", failed["cell"]).fillna(failed["cell"])
    words = [f"{name} failed: {error}" for name, error in zip(failing, failed["error"], strict=True)]
    return list(dict.fromkeys(words))


if __name__ == "__main__":
    main()
