"""Which of our prompts stand for a paper's data set: functions that select rows of runs, or of HEADS."""

from collections.abc import Callable

import pandas as pd

PUBLIC = ("HumanEval", "GSM-100")  # prompt sets that others made


def own(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs on our own prompts, which stand for MT-Bench."""
    return runs[~runs["domain"].isin(PUBLIC)]


def gsm(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs on GSM-100."""
    return runs[runs["domain"] == "GSM-100"]


def humaneval(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs on HumanEval."""
    return runs[runs["domain"] == "HumanEval"]


def domain(name: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """A function that selects the runs on one domain of our own prompts, such as "rag"."""

    def select(runs: pd.DataFrame) -> pd.DataFrame:
        return runs[runs["domain"] == name]

    return select


def prompt_set(name: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """A function that selects the rows of HEADS on one set of prompts: "own", "humaneval" or "gsm100"."""

    def select(heads: pd.DataFrame) -> pd.DataFrame:
        return heads[heads["set"] == name]

    return select
