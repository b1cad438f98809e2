"""Prompt sets as DataFrames with the columns task, id and text; text is the user's turn, without a chat template."""

import gzip
import json
import re
from collections.abc import Iterable

import pandas as pd

from specnb.models import files

DOMAINS = ("conversation", "translation", "summarisation", "question_answering", "mathematics", "rag")


def own() -> pd.DataFrame:
    """Sixty prompts written for specnb, ten in each of six domains."""
    path = files.in_checkout(files.DATA / "prompts" / "own.jsonl")
    return pd.read_json(path, lines=True)[["task", "id", "text"]]


def humaneval() -> pd.DataFrame:
    """HumanEval's 164 function headers (Chen et al. 2021); the model is asked to complete each function."""
    with gzip.open(files.fetch(files.HUMANEVAL), "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    ids = [row["task_id"] for row in rows]
    headers = [row["prompt"].strip() for row in rows]
    texts = [f"Complete this Python function:\n\n```python\n{header}\n```" for header in headers]
    return pd.DataFrame({"task": "humaneval", "id": ids, "text": texts})


def gsm100() -> pd.DataFrame:
    """One hundred questions of GSM8K's test split (Cobbe et al. 2021)."""
    rows = pd.read_json(files.fetch(files.GSM100), lines=True)
    return pd.DataFrame({"task": "gsm100", "id": rows["id"], "text": rows["prompt"]})


def dynatree() -> pd.DataFrame:
    """A set of one prompt, "paper", in place of DynaTree's own: its sweep asked for such an explanation."""
    prompt = "Write a detailed technical explanation of how a computer's memory works, from registers to disks."
    return pd.DataFrame({"task": ["dynatree"], "id": ["paper"], "text": [prompt]})


def text(prompt: str) -> str:
    """A prompt's text by its id in any of the sets; ValueError if none has it."""
    for name in SETS:
        table = load(name).set_index("id")
        if prompt in table.index:
            return table.loc[prompt, "text"]
    raise ValueError(f"no prompt set ({', '.join(SETS)}) has the prompt {prompt!r}")


# Those that need no download come first.
SETS = {"own": own, "dynatree": dynatree, "humaneval": humaneval, "gsm100": gsm100}


def load(name: str) -> pd.DataFrame:
    """A prompt set by name; for another name, ValueError with the known ones."""
    if name not in SETS:
        raise ValueError(f"unknown prompt set {name!r}: known are {', '.join(SETS)}")
    return SETS[name]()


def chosen(name: str) -> list[str]:
    """The ids of the prompts that a name on the command line stands for; ValueError on any other name.

    "own" is a full set. "own:4" is the first four prompts of each of its tasks, and "own:5-10" the fifth to the tenth.
    "translation:4" is the first four of one domain of our own set. The id of a prompt is that prompt.
    """
    group, colon, numbers = name.partition(":")
    first, last = _first_and_last(name, numbers) if colon else (1, None)
    if group in SETS:
        table = load(group)
    elif group in DOMAINS:
        table = own()
        table = table[table["task"] == group]
    else:
        text(name)  # called only for its ValueError if there is no such prompt
        return [name]
    by_task = table.groupby("task", sort=False, group_keys=False)
    return by_task.nth[first - 1 : last]["id"].tolist()


def _first_and_last(name: str, numbers: str) -> tuple[int, int]:
    """The first and last prompt of a task, counted from 1: "4" is (1, 4), "5-10" is (5, 10); ValueError on others."""
    first, dash, last = numbers.rpartition("-")
    if not dash:
        first = "1"
    if first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last):
        return int(first), int(last)
    raise ValueError(f"{name!r}: behind the colon stands how many prompts, 4 or 5-10, from 1 on")


def domains(ids: Iterable[str]) -> list[str]:
    """The domain or set of each prompt, by its id: conversation, …, HumanEval, GSM-100.

    Example: "rag-05" belongs to the domain rag, and "HumanEval/7" to HumanEval.
    """
    beginnings = [re.split("[-/]", prompt)[0] for prompt in ids]
    return ["GSM-100" if beginning == "gsm8k" else beginning for beginning in beginnings]
