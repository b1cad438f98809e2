"""Texts for users: commands that errors advise, and what is kept when a command is interrupted."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specnb import models


def command(what: str, *words: str | Path, pair: str = models.EMBEDDED) -> str:
    """A command of ``python -m training`` in backquotes, as a user would type it.

    pair: the name of the target. It is part of the command unless it is the embedded one, which is the default.

    >>> command("corpus", "--guided", pair="my/model")
    '`python -m training corpus --guided --pair my/model`'
    """
    parts = ["python", "-m", "training", what, *map(str, words)]
    if pair != models.EMBEDDED:
        parts += ["--pair", pair]
    return f"`{shlex.join(parts)}`"


@contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """Let a KeyboardInterrupt in the block say what is kept.

    kept: called at the interrupt, returns that text, for example "step 1,000 of 4,296 kept in run.pt".
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"{kept()}; the same command goes on") from stop
