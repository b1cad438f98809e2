"""Side-by-side timing: every method on the same prompts in the same run, next to transformers' own.

A method is a function of a prompt's token ids that returns the new tokens. Methods take turns on each prompt,
so that a slow minute of the machine hits all of them alike; ratios are paired by prompt.
"""

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.metadata import version

import pandas as pd
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specnb.decode import decode
from specnb.drafters import Drafter
from specnb.target import Target
from specnb.verifiers import Verifier

Method = Callable[[list[int]], list[int]]


def generate(model: PreTrainedModel, *, max_new_tokens: int, **options) -> Method:
    """transformers' own ``generate``, greedy unless options say otherwise (prompt_lookup_num_tokens=10, …)."""

    @torch.no_grad()
    def run(prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt], device=model.device)
        settings = {"do_sample": False, "max_new_tokens": max_new_tokens, **options}
        return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(prompt) :].tolist()

    return run


def speculative(model: PreTrainedModel, drafter: Drafter, verifier: Verifier, **options) -> Method:
    """specnb's own loop; options are those of ``decode.steps``."""
    target = Target(model)

    def run(prompt: list[int]) -> list[int]:
        return list(decode(target, drafter, verifier, prompt, trace="none", **options).tokens)

    return run


def race(
    methods: Mapping[str, Method], prompts: Sequence[list[int]], *, repetitions: int = 1, warm_up: bool = True
) -> pd.DataFrame:
    """Time all methods on all prompts: one row per (repetition, prompt, method) with seconds, tokens, token/s.

    The order of the methods rotates from prompt to prompt. warm_up runs each method once, untimed, first.
    """
    names, rows = list(methods), []
    if warm_up:
        for name in names:
            methods[name](prompts[0])
    turns = [(r, i) for r in range(repetitions) for i in range(len(prompts))]
    for repetition, i in tqdm(turns, desc="race", unit="prompt"):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            _wait()
            begin = time.perf_counter()
            tokens = methods[name](prompts[i])
            _wait()
            seconds = time.perf_counter() - begin
            rows.append((repetition, i, name, seconds, len(tokens), len(tokens) / seconds))
    return pd.DataFrame(rows, columns=["repetition", "prompt", "method", "seconds", "tokens", "token/s"])


def ratios(frame: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Per method: median token/s, and the speed-up over the baseline paired by prompt, as median and quartiles."""
    table = frame.pivot_table(index=["repetition", "prompt"], columns="method", values="token/s", sort=False)
    paired = table.div(table[baseline], axis=0)
    return pd.DataFrame(
        {
            "token/s": table.median(),
            "speed-up": paired.median(),
            "from": paired.quantile(0.25),
            "to": paired.quantile(0.75),
        }
    ).loc[frame["method"].drop_duplicates()]


def provenance(command: str) -> dict[str, str]:
    """Where a recorded number comes from: device, versions, command, date."""
    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else f"cpu, {torch.get_num_threads()} threads",
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("specnb", "torch", "transformers")},
        "command": command,
        "date": date.today().isoformat(),
    }


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
