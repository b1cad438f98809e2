"""Live measurements: a cell is run on several prompts, and its rows are returned as a table and not recorded."""

from collections.abc import Callable, Sequence

import pandas as pd
from tqdm.auto import tqdm

from specnb.models import files

Rows = list[dict[str, object]]


def on_prompts(cell: Callable[..., Rows], prompts: Sequence[str], **settings: object) -> pd.DataFrame:
    """The rows of a cell on several prompts, with the prompt's id as the first column.

    cell:     the function that measures one prompt.
    prompts:  ids of prompts.
    settings: further arguments of the cell, the same for all prompts.
    """
    rows = []
    for prompt in tqdm(prompts, unit="prompt", disable=files.QUIET):
        for row in cell(prompt, **settings):
            rows.append({"prompt": prompt, **row})
    return pd.DataFrame(rows)
