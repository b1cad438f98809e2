"""Where a Markdown text leads: its links to files, and those that lead nowhere."""

import re
from pathlib import Path

LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def local(text: str) -> list[str]:
    """Every link that is neither an address nor a place in the same text."""
    return LINK.findall(text)


def dead(text: str, folder: Path) -> list[str]:
    """The links to files that are not there. folder: where the text stands."""
    return [link for link in local(text) if not (folder / link).exists()]
