"""Here and now: a cell on several prompts, shown as a table and not recorded."""

from collections.abc import Callable, Sequence

import pandas as pd
from tqdm.auto import tqdm

from specnb.models import files

Rows = list[dict[str, object]]


def on_prompts(cell: Callable[..., Rows], prompts: Sequence[str], **settings: object) -> pd.DataFrame:
    """The rows of a cell on prompts by their ids, one prompt after the other, with the prompt as the first column.

    settings: of the cell, the same for all prompts.
    """
    rows = []
    for prompt in tqdm(prompts, unit="prompt", disable=files.QUIET):
        for row in cell(prompt, **settings):
            rows.append({"prompt": prompt, **row})
    return pd.DataFrame(rows)
