"""What a GPU is asked besides races, texts and prices: sampled laws, and forwards at the papers' scale."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from scipy.stats import chisquare
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specnb import heads, models
from specnb.decode import decode
from specnb.drafters import CausalLMDraft
from specnb.models import Graphs, prompts
from specnb.sampling import Warp
from specnb.target import Target
from study import methods, prices
from study.run import ALONE, PREFIX, built, curves, loaded, recorded_as_asked

COOLER = 0.7  # by this the control's temperature is too low
ROWS = 8192  # of a head's output matrix, as many as the trained heads have


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
    found, rows = loaded(pair, dtype), []
    ids = found.encode(prompts.text(prompt))
    law = _two_tokens(found.target, ids, temperature)
    common = sorted(law, key=law.get, reverse=True)[: max(3, sum(draws * chance >= 5 for chance in law.values()))]
    expected = [draws * law[outcome] for outcome in common]
    for name, heat in [*((name, temperature) for name in methods), (methods[0], COOLER * temperature)]:
        seen = Counter(_sampled(name, found, ids, heat, seed) for seed in range(draws))
        counts = [seen[outcome] for outcome in common]
        test = chisquare([*counts, draws - sum(counts)], [*expected, draws - sum(expected)])
        rows.append({"method": name, "heat": heat, "outcomes": len(common) + 1, "p value": float(test.pvalue)})
    return rows


@torch.no_grad()
def _two_tokens(model: PreTrainedModel, ids: Sequence[int], temperature: float) -> dict[tuple[int, int], float]:
    """Probabilities of the 16 likeliest tokens behind a text with each of the 16 likeliest behind them."""
    first = Warp(temperature)(model(torch.tensor([ids], device=model.device)).logits[0, -1])
    tokens = first.topk(16).indices.tolist()
    second = Warp(temperature)(model(torch.tensor([[*ids, x] for x in tokens], device=model.device)).logits[:, -1])
    found = zip(tokens, second, second.topk(16).indices.tolist(), strict=True)
    return {(x, y): float(first[x] * row[y]) for x, row, below in found for y in below}


@recorded_as_asked()
def _sampled(name: str, pair: models.Pair, ids: Sequence[int], heat: float, seed: int) -> tuple[int, ...]:
    """The first two tokens of a method's sampled text of three: its first draft may be two levels deep."""
    made = methods.method(name)
    with ALONE:
        drafter, _, recorded = built(made, pair, len(ids) + 3)
        options = {"max_new_tokens": 3, "temperature": heat, "seed": seed, "eos": (), "trace": "none"}
        return decode(Target(pair.target, graphs=recorded), drafter, made.verifier, ids, **options).tokens[:2]


def shapes_block(
    target: Mapping[str, object], draft: Mapping[str, object], repetitions: int, sizes: Sequence[int], graphs: bool
) -> list[dict[str, object]]:
    """``curves`` of models that are not trained: a target and a draft of given configurations, and an EAGLE-type head.

    In bfloat16, behind PREFIX tokens; forwards cost what they cost whatever the weights are. target, draft: settings of
    transformers' configurations, with model_type. Rows as of ``curves``; the draft model is called "pair", the head
    "eagle".
    """
    configs = [AutoConfig.for_model(**settings) for settings in (target, draft)]
    with torch.device(models.device()):
        large, small = (AutoModelForCausalLM.from_config(c, dtype=torch.bfloat16).eval() for c in configs)
    capacity = (PREFIX + 2 * max(sizes)) if graphs else 0
    spec = heads.Spec.like(large, "eagle", hidden_layer=-1)
    head = heads.MODULES["eagle"](spec).to(large.device, large.dtype)
    frozen = heads.Frozen.of(large, torch.arange(min(ROWS, large.config.vocab_size)))
    recorded = Graphs(small, capacity=capacity) if graphs else None
    pair = CausalLMDraft(small, vocabulary=large.config.vocab_size, graphs=recorded)
    drafts = {"pair": pair, "eagle": heads.draft_model(head, spec, frozen, capacity=capacity)}
    return curves(large, drafts, PREFIX, repetitions, sizes, graphs)


def forecast(race: pd.DataFrame, curves: pd.DataFrame) -> pd.Series:
    """Median speed-up over plain decoding if a race's forwards, as counted, had the prices of ``shapes_block``.

    A forecast: no text was written at these prices, and what is done between forwards is left out. A vdm costs what the
    draft model does, any other head what EAGLE does.
    """
    price = {name: part.set_index("nodes")["median"].to_dict() for name, part in curves.groupby("model")}
    owners = {prices.head_of(name) for name in race["method"].unique()} - {None}
    drafts = {head: price["pair" if head in ("vdm", "pair") else "eagle"] for head in owners}
    found = prices.predicted(race[race["status"] == "ok"], price["target"], drafts, prefill=False)
    return found.groupby("method")["predicted"].median().sort_values(ascending=False)
