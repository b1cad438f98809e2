"""Write an answer by speculative decoding; the tokens of each target call (one forward of the model) have one colour.

On a machine's first run the model is downloaded, and its forward passes are timed to choose how much to draft. Both are
kept in the user cache.
"""

import argparse
import os
import sys

COLOURS = ("\033[34m", "\033[35m", "\033[32m")  # blue, magenta, green: readable on dark and on light backgrounds
PLAIN = "\033[0m"


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(prog="specnb", description=__doc__)
    made.add_argument("prompt", help="what you would type into a chat")
    made.add_argument(
        "--compare", action="store_true", help="also time transformers' generate on this prompt, in turns"
    )
    made.add_argument("--model", metavar="NAME", help="another model: a name of the model hub, or a folder")
    made.add_argument("--dtype", help="bfloat16, float32, …; by default the one that is fastest on this machine")
    made.add_argument("--tokens", type=int, default=128, help="how many new tokens at most (default 128)")
    made.add_argument("--temperature", type=float, default=0.0, help="of sampling; 0, the default, is greedy decoding")
    made.add_argument(
        "--top-k", type=int, default=0, help="sample from the k likeliest tokens only (default 0: from all)"
    )
    made.add_argument(
        "--top-p", type=float, default=1.0, help="sample from the likeliest tokens that reach this probability"
    )
    made.add_argument("--seed", type=int, default=0, help="seed of the sampling (default 0)")
    made.add_argument("--bare", action="store_true", help="continue the prompt as it is, without a chat template")
    made.add_argument("--measure", action="store_true",
                      help="time this machine's forward passes again, if it was busy the first time")  # fmt: skip
    return made


def options(argv: list[str] | None) -> argparse.Namespace:
    """The options of a command line; None for those of the process. An empty prompt is a usage error."""
    args = parser().parse_args(argv)
    if not args.prompt.strip():
        parser().error("the prompt is empty")
    return args


def main(argv: list[str] | None = None) -> None:
    """The command line. argv: its arguments, None for those of the process."""
    args = options(argv)
    # Imported here and not above, so that --help and a wrong option answer at once: torch takes seconds to load.
    from specnb import models, one_call

    settings = {
        "model": args.model or models.EMBEDDED,
        "max_new_tokens": args.tokens,
        "temperature": args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "seed": args.seed,
        "chat": not args.bare,
        "dtype": args.dtype,
    }
    try:
        # Both are kept in this process: generate finds the same pair and the same drafter again.
        pair = one_call.load(settings["model"], args.dtype)
        choice = one_call.fastest_drafter(pair, anew=args.measure)
        print()
        answer = one_call.generate(args.prompt, **settings, on_call=Printer())
        print("\n")
        per_call = len(answer.tokens) / answer.calls
        counts = f"{len(answer.tokens)} tokens in {answer.calls} target calls, {per_call:.2f} per call"
        print(f"{counts}, {answer.seconds:.1f} s")
        print(f"drafted by {answer.drafter}")
        if choice.what_would_be_faster:
            print(f"to be faster: {choice.what_would_be_faster}")
        if args.compare:
            print(report(one_call.compare(args.prompt, **settings)))
    except (ValueError, OSError) as error:  # a name that is no model, a prompt that is too long, no network, …
        parser().error(str(error))


class Printer:
    """Prints what each call wrote as soon as it has: in alternating colours or, without colours, separated by bars."""

    def __init__(self):
        self.calls = 0
        self.coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def __call__(self, text: str) -> None:
        if self.coloured:
            text = f"{COLOURS[self.calls % len(COLOURS)]}{text}{PLAIN}"
        elif self.calls > 0:
            text = f"|{text}"
        print(text, end="", flush=True)
        self.calls += 1


def report(comparison) -> str:
    """The result of ``one_call.compare`` (its ``Comparison``) in words: a line, and one more where the texts part."""
    ours = ", ".join(f"{seconds:.2f}" for seconds in comparison.seconds)
    theirs = ", ".join(f"{seconds:.2f}" for seconds in comparison.their_seconds)
    said = (
        f"{comparison.speed_up:.2f} times as fast as transformers' generate on this prompt: {ours} s beside {theirs} s"
    )
    if comparison.parted_at is not None:
        said += (
            f"\nthe two greedy texts part at token {comparison.parted_at}, where rounding decided between two tokens"
        )
        said += "; with --dtype float32 that is rare"
    return said


if __name__ == "__main__":
    main()
