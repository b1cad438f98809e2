"""The laboratory's commands:

python -m study list                                     what is recorded, and what is not
python -m study record NAME …                            record experiments; resumes
python -m study claims [PAPER]                           what became of the papers' claims
python -m study race METHOD … --prompts own:1 --out F    any methods on any prompts, recorded in F.jsonl
python -m study price HEAD … --out F                     cost curves of the target and of heads
python -m study gpu                                      all that a GPU is asked, in some minutes; resumes

A prompt is an id, a set ("own", "gsm100:12") or a domain ("rag:2"). How methods are spelt: study/methods.py.
"""

import sys
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace, RawDescriptionHelpFormatter

from specnb import models
from study import names


def number(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def main() -> None:
    """Parse and run; exits with 1 if anything failed, naming it."""
    parser = ArgumentParser("python -m study", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    where = ArgumentParser(add_help=False)
    where.add_argument("--workers", type=number, default=1, help="processes (not where seconds are measured)")
    where.add_argument("--scheduler", help="address of a Dask scheduler; one block at a time on each machine")
    where.add_argument("--retry", action="store_true", help="measure again what failed")
    model = ArgumentParser(add_help=False)
    model.add_argument("--pair", default=models.EMBEDDED, help=f"{', '.join(models.PAIRS)}, a hub name or a folder")
    model.add_argument("--dtype", help="float32, bfloat16 or float16; left out: the fastest here, packed if it can be")
    model.add_argument("--packed", action=BooleanOptionalAction, help="pack the weights for the CPU's kernels, or not")
    model.add_argument("--out", required=True, help="writes OUT.jsonl")
    parts = parser.add_subparsers(dest="what", required=True)
    parts.add_parser("list", help="the table of experiments and its state").set_defaults(what="listing")
    part = parts.add_parser("claims", help="verdicts on the papers' claims, counted, or one paper's")
    part.add_argument("paper", nargs="?", help="ptd, traversal, dynatree, edd_pct or salf_talf")
    part = parts.add_parser("record", parents=[where], help="record experiments; resumes")
    part.add_argument("names", nargs="+", metavar="NAME", help="as `list` names them")
    part.add_argument("--prompts", nargs="+", default=(), help="only these prompts of the experiment")
    part = parts.add_parser("race", parents=[where, model], help="any methods on any prompts")
    part.add_argument("methods", nargs="+", metavar="METHOD", help="the first is the baseline")
    part.add_argument("--prompts", nargs="+", default=["own:1"])
    part.add_argument("--tokens", type=number, default=96, help="new tokens per prompt")
    part.add_argument("--temperature", type=float, default=0.0)
    part.add_argument("--repetitions", type=number, default=1)
    part.add_argument("--whole", action="store_true", help="write all new tokens, whatever ends the text before")
    part.add_argument("--texts", action="store_true", help="compare greedy float32 texts instead of speed")
    part = parts.add_parser("price", parents=[where, model], help="cost curves of the target and of heads")
    part.add_argument("heads", nargs="*", metavar="HEAD")
    part.add_argument("--prefix", type=number, help="tokens behind which forwards are measured: 300, if they fit")
    part.add_argument("--repetitions", type=number, default=15)
    part = parts.add_parser("gpu", help="texts, laws, prices and races on a GPU, and a forecast for larger models")
    part.add_argument("--out", default="data/results", help="folder for gpu_*.jsonl")
    part.add_argument("--retry", action="store_true", help="measure again what failed")
    options = parser.parse_args()
    try:
        failures = done(options)
    except (ValueError, OSError, RuntimeError) as error:
        parser.error(str(error))
    except KeyboardInterrupt as stop:
        kept = str(stop) or "nothing was being measured; the same command begins again"
        print(f"\ninterrupted: {kept}", file=sys.stderr)
        sys.exit(130)  # as shells report an interrupt
    if failures:
        sys.exit("\n".join([*failures, "--retry measures again"]))


def done(options: Namespace) -> list[str]:
    """Do what the command line asks for; in words, what failed. Mistyped methods and heads are told at once."""
    for name in getattr(options, "methods", ()):
        names.check(name)
    for head in getattr(options, "heads", ()):
        names.check_head(head, head)
    from study import commands  # now: torch and transformers take seconds

    table = getattr(commands, options.what)(options)
    failed = table[table["status"] == "failed"]
    if not len(failed):
        return []
    failing = failed.get("method", failed["cell"]).fillna(failed["cell"])
    reasons = zip(failing, failed["error"], strict=True)
    return names.unique(f"{name} failed: {error}" for name, error in reasons)


if __name__ == "__main__":
    main()
