"""How methods are spelt, and what is wrong with a mistyped name, told before torch and transformers are there.

``methods`` says what the names stand for. Importing it takes seconds, so names in its tables are read from its text.
"""

import ast
import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from specnb.models import files

HEADS = files.DATA / "drafts"  # the committed heads
AUTO = "hass:auto + retrieval store=own"
THEIRS = ("generate", "generate as shipped", "prompt lookup", "assistant")
LOOKUP = re.compile(r"prompt lookup(?: (?P<prompt_lookup_num_tokens>[1-9]\d*) (?P<max_matching_ngram_size>[1-9]\d*))?")
FORWARDS = ("in graphs", "invariant")  # how those of our methods are run
PATTERN = re.compile(r"(?P<head>[\w./@-]+):(?P<rule>.+?)(?: (?P<drawn>point|iid|swor)(?: (?P<verifier>\w+))?)?")
TABLES = ("DRAFTERS", "GROWTH", "NAMED", "WINDOWS", "LOSSY")  # of methods.py

Tables = Mapping[str, Collection[str]]


@cache
def written() -> Tables:
    """The names in each of TABLES, as they stand in the text of methods.py."""
    module = ast.parse(Path(__file__).with_name("methods.py").read_text(encoding="utf-8"))
    found = {}
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            found[statement.targets[0].id] = tuple(ast.literal_eval(key) for key in statement.value.keys)
    return {table: found[table] for table in TABLES}


def trained() -> list[str]:
    """The names of the committed heads."""
    return sorted(path.stem for path in HEADS.glob("*.safetensors"))


def check(name: str, tables: Tables | None = None) -> None:
    """ValueError on a method whose drafter, head or growth rule is none.

    Settings and verifiers are left to ``methods``. tables: names by table, see ``written``.
    """
    tables = written() if tables is None else tables
    if not all(part.split() for part in name.split(" + ")):
        raise ValueError(f"a method has no name: {name!r}")
    for how in (*FORWARDS, *tables["LOSSY"]):
        if name.endswith(f" {how}"):
            check(name.removesuffix(f" {how}"), tables)
            return
    alone = (*THEIRS, "n-gram tree")
    if name in alone or LOOKUP.fullmatch(name) or name.split()[0] in tables["DRAFTERS"]:
        return
    _check_with_a_draft(name, tables)


def _check_with_a_draft(name: str, tables: Tables) -> None:
    """The same for a method with a trained head or a draft model: HEAD:RULE."""
    own = AUTO if name == "auto" else name
    parts = PATTERN.fullmatch(own.partition(" + ")[0])
    if not parts:
        raise ValueError(_unknown_method(name, tables))
    check_head(name, parts["head"])
    if parts["rule"] not in ("auto", *tables["WINDOWS"]):
        check_rule(parts["rule"], tables)


def check_head(name: str, head: str) -> None:
    """ValueError unless a method's head is there, and its temperature, behind an @, is a number above 0.

    FileNotFoundError for a head of the repository, where specnb is installed without it.
    """
    bare, at, temperature = head.partition("@")
    if at and not (re.fullmatch(r"\d*\.?\d+", temperature) and float(temperature)):
        raise ValueError(f"{name!r}: a head's temperature is a number above 0, got {temperature!r}")
    known = ("pair", *trained())
    place = Path(bare) if "/" in bare else HEADS / bare
    if bare not in known:
        files.in_checkout(place)
    if bare not in known and not place.with_suffix(".safetensors").exists():
        files.in_checkout(place)
        raise ValueError(f"{name!r}: there is no trained head {head!r}: {told(bare, known)}")


def check_rule(rule: str, tables: Tables) -> None:
    """ValueError unless a growth rule is one of NAMED, or one of GROWTH with settings or without."""
    kind = rule.partition(" ")[0]
    if rule not in tables["NAMED"] and kind not in tables["GROWTH"]:
        known = unique((*tables["GROWTH"], *tables["NAMED"]))
        raise ValueError(f"unknown growth rule {rule!r}: {told(kind, known)}")


def _unknown_method(name: str, tables: Tables) -> str:
    """What is said of a name that is no method's: the closest one, and all that are."""
    alone = unique(("auto", *THEIRS, "n-gram tree", *tables["DRAFTERS"]))
    rules = unique(("auto", *tables["GROWTH"], *tables["NAMED"], *tables["WINDOWS"]))
    with_a_head = [f"{head}:auto" for head in ("pair", *trained())]
    meant = close(name, (*alone, *with_a_head)) or close(name.split()[0], (*alone, *with_a_head))
    hint = f"did you mean {meant!r}? " if meant else ""
    return (
        f"unknown method {name!r}: {hint}known are {', '.join(alone)}, and HEAD:RULE with "
        f"HEAD of pair, {', '.join(trained())}, or a path, and RULE of {', '.join(rules)}"
    )


def unique(names: Iterable[str]) -> list[str]:
    """Each name once, in the order in which they first stand."""
    return list(dict.fromkeys(names))


def close(word: str, known: Collection[str]) -> str | None:
    """The known name that a mistyped word is most like, whatever its capitals; None if it is like none."""
    found = get_close_matches(word.lower(), known, n=1)
    return found[0] if found else None


def told(word: str, known: Collection[str]) -> str:
    """The end of an error about an unknown word: the name that may be meant, and all that are known."""
    meant = close(word, known)
    hint = f"did you mean {meant!r}? " if meant else ""
    return f"{hint}known are {', '.join(known)}"
