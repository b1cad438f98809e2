"""Whether methods sample the target's own law, on a machine whose forwards no proof covers: a GPU."""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from scipy.stats import chisquare
from transformers import PreTrainedModel

from specnb import models
from specnb.decode import decode
from specnb.models import prompts
from specnb.sampling import Warp
from specnb.target import Target
from study.measure.clock import ALONE, recorded_as_asked
from study.measure.loading import built, loaded
from study.methods import method

COOLER = 0.7  # by this the control's temperature is too low
Tokens = tuple[int, ...]


def law_block(
    prompt: str,
    methods: Sequence[str],
    draws: int,
    temperature: float = 1.0,
    pair: str = models.EMBEDDED,
    dtype: str = "float32",
) -> list[dict[str, object]]:
    """Whether methods sample the target's own law: chi-square of a text's first two tokens, one row a method.

    The law of two tokens comes from plain forwards. Outcomes that are expected five times or more are counted (at least
    the three commonest), the others together. The last row is a control that should fail: the first method at a lower
    temperature.
    """
    ready = loaded(pair, dtype)
    ids = ready.encode(prompts.text(prompt))
    law = two_tokens(ready.target, ids, temperature)
    often = sum(draws * chance >= 5 for chance in law.values())
    common = sorted(law, key=law.get, reverse=True)[: max(3, often)]
    runs = [(name, temperature) for name in methods]
    runs.append((methods[0], COOLER * temperature))
    rows = []
    for name, heat in runs:
        seen = Counter(_sampled(name, ready, ids, heat, seed) for seed in range(draws))
        rows.append({"method": name, "heat": heat, "outcomes": len(common) + 1, "p value": _p(seen, law, common)})
    return rows


def _p(seen: Counter, law: Mapping[Tokens, float], common: Sequence[Tokens]) -> float:
    """The chi-square test's p value of what was seen, all but the common outcomes taken together."""
    draws = seen.total()
    counts = [seen[outcome] for outcome in common]
    expected = [draws * law[outcome] for outcome in common]
    test = chisquare([*counts, draws - sum(counts)], [*expected, draws - sum(expected)])
    return float(test.pvalue)


@torch.no_grad()
def two_tokens(model: PreTrainedModel, ids: Sequence[int], temperature: float) -> dict[Tokens, float]:
    """Probabilities of the 16 likeliest tokens behind a text with each of the 16 likeliest behind them."""
    warp = Warp(temperature)
    first = warp(model(torch.tensor([list(ids)], device=model.device)).logits[0, -1])  # (V,)
    tokens = first.topk(16).indices.tolist()
    texts = torch.tensor([[*ids, token] for token in tokens], device=model.device)
    second = warp(model(texts).logits[:, -1])  # (16, V)
    likeliest = second.topk(16).indices.tolist()
    found = {}
    for row, token in enumerate(tokens):
        for after in likeliest[row]:
            found[token, after] = float(first[token] * second[row, after])
    return found


@recorded_as_asked()
def _sampled(name: str, pair: models.Pair, ids: Sequence[int], heat: float, seed: int) -> Tokens:
    """The first two tokens of a method's sampled text of three: its first draft may be two levels deep."""
    made = method(name)
    options = {"max_new_tokens": 3, "temperature": heat, "seed": seed, "eos": (), "trace": "none"}
    with ALONE:
        drafter, _, recorded = built(made, pair, len(ids) + 3)
        target = Target(pair.target, window=made.window, forwards=recorded)
        return decode(target, drafter, made.verifier, ids, **options).tokens[:2]
