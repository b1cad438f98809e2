"""Which of our prompts stand for a paper's data set: functions that choose runs, or rows of heads."""

from collections.abc import Callable

import pandas as pd

PUBLIC = ("HumanEval", "GSM-100")  # prompt sets that others made


def own(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs on our own prompts, in place of MT-Bench."""
    return runs[~runs["domain"].isin(PUBLIC)]


def gsm(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs on GSM-100."""
    return runs[runs["domain"] == "GSM-100"]


def humaneval(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs on HumanEval."""
    return runs[runs["domain"] == "HumanEval"]


def domain(name: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """What chooses runs on one domain of our own prompts ("rag")."""

    def chosen(runs: pd.DataFrame) -> pd.DataFrame:
        return runs[runs["domain"] == name]

    return chosen


def prompt_set(name: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """What chooses rows of heads on one set of prompts: "own", "humaneval" or "gsm100"."""

    def chosen(heads: pd.DataFrame) -> pd.DataFrame:
        return heads[heads["set"] == name]

    return chosen
