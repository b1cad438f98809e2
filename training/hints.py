"""What errors advise, and what an interrupted command says: commands as a reader would type them, what is kept."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specnb import models


def command(what: str, *words: str | Path, pair: str = models.EMBEDDED) -> str:
    """A command of ``python -m training`` in backquotes.

    The embedded target's files lie in the repository, so the command names any other one:

    >>> command("corpus", "--guided", pair="my/model")
    '`python -m training corpus --guided --pair my/model`'
    """
    parts = ["python", "-m", "training", what, *map(str, words)]
    if pair != models.EMBEDDED:
        parts += ["--pair", pair]
    return f"`{shlex.join(parts)}`"


@contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """A KeyboardInterrupt while the block runs says what is kept, in words that kept() finds then."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"{kept()}; the same command goes on") from stop
