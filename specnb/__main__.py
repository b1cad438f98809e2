"""specnb "Name three rivers.": write an answer by speculative decoding, coloured by what each target call wrote.

On a machine's first run the model is fetched and forwards are timed; both are kept in the user cache.
"""

import argparse
import os
import sys

COLOURS = ("\033[34m", "\033[35m", "\033[32m")  # blue, magenta, green: readable on dark and on light
PLAIN = "\033[0m"


def options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="specnb", description=__doc__)
    parser.add_argument("prompt", help="what you would type into a chat")
    parser.add_argument(
        "--compare", action="store_true", help="time transformers' own generate on it, too, three runs each"
    )
    parser.add_argument("--model", metavar="NAME", help="another model: a pair's name, a hub name or a folder")
    parser.add_argument("--dtype", help="bfloat16, float32, …: by default the machine's fastest")
    parser.add_argument("--tokens", type=int, default=128, help="most new tokens (128)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0, the default, is greedy")
    parser.add_argument("--top-k", type=int, default=0, help="sample from the k likeliest tokens only")
    parser.add_argument("--top-p", type=float, default=1.0, help="sample from the likeliest tokens of this mass only")
    parser.add_argument("--seed", type=int, default=0, help="of sampling (0)")
    parser.add_argument("--bare", action="store_true", help="go on with the prompt, without the model's chat template")
    parser.add_argument("--measure", action="store_true", help="time this machine's forwards anew: it was busy before")
    given = parser.parse_args(words)
    if not given.prompt.strip():
        parser.error("the prompt is empty")
    given.refuse = parser.error
    return given


def main(words: list[str] | None = None) -> None:
    """The command line. words: its arguments, None for those of the process."""
    given = options(words)
    from specnb import models, one_call  # now: torch and transformers take seconds

    model = given.model or models.EMBEDDED
    settings = {
        "model": model,
        "max_new_tokens": given.tokens,
        "temperature": given.temperature,
        "top_k": given.top_k,
        "top_p": given.top_p,
        "seed": given.seed,
        "chat": not given.bare,
        "dtype": given.dtype,
    }
    try:
        pair = one_call.load(model, given.dtype)
        choice = one_call.fastest_drafter(pair, anew=given.measure)
        print()
        answer = one_call.generate(given.prompt, **settings, on_call=Printer())
        print("\n")
        per_call = len(answer.tokens) / answer.calls
        print(
            f"{len(answer.tokens)} tokens in {answer.calls} target calls, {per_call:.2f} a call, {answer.seconds:.1f} s"
        )
        print(f"drafted by {answer.drafter}")
        if choice.why:
            print(f"faster: {choice.why}")
        if given.compare:
            print(comparison(one_call.compare(given.prompt, **settings)))
    except (ValueError, OSError) as error:
        given.refuse(str(error))


class Printer:
    """Prints what each call wrote as soon as it has: in turns of colours, or, where there are none, between bars."""

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


def comparison(timed) -> str:
    """What became of ``one_call.compare``, in two lines."""
    ours = ", ".join(f"{seconds:.2f}" for seconds in timed.seconds)
    theirs = ", ".join(f"{seconds:.2f}" for seconds in timed.their_seconds)
    lines = [f"{timed.speed_up:.2f} times as fast as transformers' generate on this prompt: {ours} s beside {theirs} s"]
    if timed.parted_at is not None:
        lines.append(f"the two texts part at token {timed.parted_at}, by rounding: --dtype float32 makes that rare")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
