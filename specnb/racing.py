"""Timing methods side by side on the same prompts, and comparing what they write.

A method is a function of a prompt's token ids that returns the new tokens. Methods take turns on each prompt,
so that a slow minute of the machine hits all of them alike; ratios are paired by prompt.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas as pd
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specnb import assets, costs, growth, models, sweep, verifiers
from specnb import prompts as prompt_sets
from specnb.decode import decode
from specnb.draft_models import CausalLMDraft
from specnb.drafters import Drafter, NgramDrafter, TreeDrafter
from specnb.target import Target
from specnb.verifiers import Verifier

Method = Callable[[list[int]], list[int]]
NEAR_TIE = 1e-3  # logits; float32 noise over 30 layers is a hundredth of that, ordinary gaps are tenths and more


def generate(model: PreTrainedModel, *, max_new_tokens: int, **options) -> Method:
    """transformers' own ``generate``, greedy unless options say otherwise (prompt_lookup_num_tokens=10, …)."""

    @torch.no_grad()
    def run(prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt], device=model.device)
        settings = {"do_sample": False, "max_new_tokens": max_new_tokens, **options}
        return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(prompt) :].tolist()

    return run


def sampling(temperature: float) -> dict[str, object]:
    """The options of ``generate`` for this temperature and no other warp; none for greedy decoding."""
    return {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}


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
    for repetition, i in tqdm(turns, desc="race", unit="prompt", disable=assets.QUIET):
        for name in costs.rotated(names, i):
            tokens, seconds = costs.timed(partial(methods[name], prompts[i]))
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


def load(name: str) -> pd.DataFrame:
    """A recorded race (data/results/NAME.csv, or an absolute path without suffix) with domain and token/s."""
    table = sweep.load(assets.DATA / "results" / f"{name}.csv")
    return table.assign(domain=prompt_sets.domains(table["prompt"]), **{"token/s": table["tokens"] / table["seconds"]})


def same_text(model: PreTrainedModel, methods: Mapping[str, Method], prompts: Sequence[list[int]]) -> pd.DataFrame:
    """Compare every method's greedy text with the first method's, by the near-tie rule.

    One row per (prompt, method): equal; else the first differing place and the gap there between the two largest
    logits of a plain forward. same: equal, or that gap is below float32's rounding noise (NEAR_TIE).
    """
    reference, *others = methods
    rows = []
    for i, prompt in enumerate(tqdm(prompts, desc="same text", unit="prompt", disable=assets.QUIET)):
        right = methods[reference](prompt)
        for name in others:
            text = methods[name](prompt)
            first = next((j for j, (a, b) in enumerate(zip(right, text, strict=False)) if a != b), None)
            gap = float("inf") if first is None else _gap(model, [*prompt, *right[:first]])
            rows.append((i, name, text == right, first, gap, text == right or gap < NEAR_TIE))
    return pd.DataFrame(rows, columns=["prompt", "method", "equal", "first", "gap", "same"])


@torch.no_grad()
def _gap(model: PreTrainedModel, tokens: list[int]) -> float:
    top = model(torch.tensor([tokens], device=model.device)).logits[0, -1].float().topk(2).values
    return float(top[0] - top[1])


def peers(pair: models.Pair, *, max_new_tokens: int, self_draft: bool = False) -> dict[str, Method]:
    """The methods that need no trained draft: transformers' generate and prompt lookup, our n-gram tree.

    self_draft adds the target as its own draft (chain of 7): no speed-up, but it must accept everything.
    """
    model = pair.target
    chain = TreeDrafter(CausalLMDraft(model), growth.chain(7))
    own = {"self draft": speculative(model, chain, verifiers.greedy, max_new_tokens=max_new_tokens)}
    return {
        "generate": generate(model, max_new_tokens=max_new_tokens),
        "prompt lookup": generate(model, max_new_tokens=max_new_tokens, prompt_lookup_num_tokens=10),
        "n-gram tree": speculative(model, NgramDrafter(), verifiers.greedy, max_new_tokens=max_new_tokens),
        **(own if self_draft else {}),
    }
