"""python -m specnb.exact FILE.py:FUNCTION --as CONVENTION: is this sampler lossless? By its exact output law.

As ``draft`` or ``drafter`` it is asked whether a drafter draws from the q that it reports.
Exit status: 0 if it is lossless (or honest), 1 if it is not or cannot be judged, 2 for a wrong command.
"""

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from specnb.exact.conventions import CONVENTIONS, DRAFT_CONVENTIONS
from specnb.exact.drafting import DraftJudgement, judge_drafter
from specnb.exact.judgement import BY_DESIGN, Judgement, judge
from specnb.exact.symbols import raised_at
from specnb.exact.toy_worlds import chains, worlds


def options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m specnb.exact", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sampler", metavar="FILE.py:FUNCTION", help="or MODULE:FUNCTION, of an installed package")
    parser.add_argument(
        "--as",
        dest="convention",
        choices=[*CONVENTIONS, *DRAFT_CONVENTIONS],
        default="plain",
        help="how it is called (plain)",
    )
    parser.add_argument("--lengths", type=int, nargs="+", metavar="N",
                        help="try chains of so many draft tokens (1 and 2, and trees where they fit)")  # fmt: skip
    parser.add_argument("--dtype", default="float32", choices=["float64", "float32", "bfloat16", "float16"],
                        help="in which it computes: what may be called rounding depends on it (float32)")  # fmt: skip
    parser.add_argument("--vocabulary", type=int, default=3, metavar="V", help="tokens of the small worlds (3)")
    parser.add_argument("--by-design", action="store_true", help="its authors mean it to be lossy: say by how much")
    given = parser.parse_args(words)
    place, colon, function = given.sampler.rpartition(":")
    if not colon or not place or not function:
        parser.error(f"say FILE.py:FUNCTION or MODULE:FUNCTION, got {given.sampler!r}")
    if given.by_design and given.convention in DRAFT_CONVENTIONS:
        parser.error("--by-design is for samplers")
    given.place = place
    given.function = function
    given.refuse = parser.error
    return given


def loaded(place: str, function: str) -> Callable:
    """A function of a file or of an installed module; ValueError if there is none."""
    if place.endswith(".py"):
        path = Path(place)
        if not path.exists():
            raise ValueError(f"there is no file {place}")
        sys.path.insert(0, str(path.resolve().parent))  # what stands beside it can be imported, as when it is run
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise ValueError(f"there is no module {place} here ({error})") from error
    found = getattr(module, function, None)
    if not callable(found):
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("__")]
        raise ValueError(f"{place} has no function {function}: it has {', '.join(known) or 'none'}")
    return found


def judged(function: Callable, given: argparse.Namespace, tried, shapes) -> tuple[Judgement | DraftJudgement, bool]:
    """What was found, and whether it is what one hopes for."""
    dtype = getattr(torch, given.dtype)
    if given.convention in DRAFT_CONVENTIONS:
        convention = DRAFT_CONVENTIONS[given.convention]
        found = judge_drafter(function, convention, tried=tried, shapes=shapes, dtype=dtype)
        return found, found.is_honest
    convention = CONVENTIONS[given.convention]
    found = judge(function, convention, tried=tried, shapes=shapes, dtype=dtype, by_design=given.by_design)
    return found, found.is_lossless or found.verdict == BY_DESIGN


def main(words: list[str] | None = None) -> int:
    """The command line; the exit status. words: its arguments, None for those of the process."""
    given = options(words)
    try:
        function = loaded(given.place, given.function)
        shapes = chains(*given.lengths) if given.lengths else None
        tried = worlds(given.vocabulary)
    except ValueError as error:
        given.refuse(str(error))
    try:
        found, is_fine = judged(function, given, tried, shapes)
    except Exception as error:  # of the sampler, whatever it is
        convention = {**CONVENTIONS, **DRAFT_CONVENTIONS}[given.convention]
        given.refuse(
            f"{type(error).__name__}: {error}{raised_at(error)}\n"
            f"It was called as {given.convention!r}: {convention.says}\n"
            f"--as says otherwise"
        )
    status = 0 if is_fine else 1
    try:
        print(found, flush=True)
    except BrokenPipeError:  # whoever reads, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


if __name__ == "__main__":
    sys.exit(main())
