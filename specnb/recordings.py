"""What is recorded in data/results, by which commands, and with which heads.

python -m specnb.recordings                       one line a recording
python -m specnb.recordings --again "edd_*"       the shell lines that make these recordings anew
"""

import argparse
import fnmatch
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from specnb import assets, heads

FOLDER = assets.DATA / "results"


def listing(folder: Path = FOLDER, drafts: Path = heads.FOLDER) -> pd.DataFrame:
    """Every recording of a folder, one row each: name, date (the last), processors, heads, commands.

    heads: "as committed", "replaced: eagle, …" where a head's file is another now, "gone: …" where there is none, ""
    where the recording names none. commands: all that wrote to it, each once, the oldest first. ValueError on a JSON
    file without a command.
    """
    rows = []
    for path in sorted(folder.glob("*.json")):
        facts = json.loads(path.read_text(encoding="utf-8"))
        runs = facts.get("runs", [facts])
        if not all("command" in run for run in runs):
            raise ValueError(f"{path} is no recording: it names no command")
        used = {pair for run in runs for pair in run.get("head_sha256", {}).items()}
        rows.append({
            "name": path.stem,
            "date": max(run["date"] for run in runs),
            "processors": "; ".join(dict.fromkeys(run.get("processor", "not named") for run in runs)),
            "heads": _compared(used, drafts),
            "commands": list(dict.fromkeys(run["command"] for run in runs)),
        })  # fmt: skip
    return pd.DataFrame(rows, columns=["name", "date", "processors", "heads", "commands"])


def remark(*patterns: str, folder: Path = FOLDER, drafts: Path = heads.FOLDER) -> str:
    """What a notebook prints beside its tables: which of its recordings were made with other heads than the present.

    Named are those whose heads have been replaced or are gone, and those that name no head and are older than the
    newest one. ValueError on a pattern that matches nothing.
    """
    table = matching(listing(folder, drafts), patterns)
    newest = max((json.loads(card.read_text(encoding="utf-8"))["date"] for card in drafts.glob("*.json")), default="")
    other = table["heads"].str.contains(":")
    older = (table["heads"] == "") & (table["date"] < newest)
    if not (other | older).any():
        return f"all {len(table)} recordings read here were made with the committed heads, or with none"
    lines = [f"of the {len(table)} recordings read here"]
    for said, names in (
        ("made with heads other than the committed ones", table["name"][other]),
        (f"naming no head, and older than the newest of them ({newest})", table["name"][older]),
    ):
        if len(names):
            lines.append(f"{len(names)} {said}: {', '.join(names)}")
    lines.append(
        "these, and the sentences that quote them, speak of earlier heads; what runs live has the present ones"
    )
    return "\n  ".join(lines)


def matching(table: pd.DataFrame, patterns: Sequence[str]) -> pd.DataFrame:
    """The rows whose name matches one of the patterns, pattern by pattern; ValueError on one that matches none."""
    parts = []
    for pattern in patterns:
        parts.append(table[[fnmatch.fnmatch(name, pattern) for name in table["name"]]])
        if parts[-1].empty:
            raise ValueError(f"no recording is named {pattern!r}: known are {', '.join(table['name'])}")
    return pd.concat(parts).drop_duplicates("name")


def _compared(used: set[tuple[str, str]], drafts: Path) -> str:
    """In words: are the heads that a recording names, by (name, hash), still the ones in the folder?"""
    names = {name for name, _ in used}
    there = {name for name in names if (drafts / f"{name.partition('@')[0]}.safetensors").exists()}
    now = heads.hashes(there, drafts)
    other, gone = {name for name, digest in used if name in there and now[name] != digest}, names - there
    words = [f"{word}: {', '.join(sorted(found))}" for word, found in (("replaced", other), ("gone", gone)) if found]
    return "; ".join(words) or ("as committed" if used else "")


def again(table: pd.DataFrame, patterns: Sequence[str], folder: Path = FOLDER) -> list[str]:
    """Shell lines that record anew what matches a pattern: the old files away, then every command.

    A file belongs to the recording with the longest name that its own begins with. ValueError on a pattern that
    matches nothing.
    """
    lines, known = [], sorted(table["name"], key=len)
    for row in matching(table, patterns).itertuples():
        files = sorted(folder.glob(f"{row.name}*"))
        own = [file for file in files if [n for n in known if file.stem.startswith(n)][-1] == row.name]
        own = [str(f.relative_to(assets.ROOT) if f.is_relative_to(assets.ROOT) else f) for f in own]
        lines += [shlex.join(["rm", "-f", *own]), *row.commands]
    return lines


def main() -> None:
    """Print the table, or the lines that record anew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", nargs="+", metavar="NAME", help="recordings by name, * and ? allowed")
    options = parser.parse_args()
    table = listing()
    if options.again:
        print(*again(table, options.again), sep="\n")
    else:
        for row in table.itertuples():
            print(f"{row.date}  {row.name:30}{row.heads or 'no head named':30}{row.processors}")


if __name__ == "__main__":
    main()
