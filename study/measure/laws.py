"""Whether methods sample from the target's own law, the probability distribution of its texts, tested by sampling.

It is meant for GPUs. Proofs and exact tests cover the algorithms, but not the kernels that run there.
"""

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
from study.methods import method as method_named

COOLER = 0.7  # the control's temperature is this share of the right one
LIKELIEST = 16  # tokens that are looked at in each of the two positions
Tokens = tuple[int, ...]


def law_block(
    prompt: str,
    methods: Sequence[str],
    draws: int,
    temperature: float = 1.0,
    pair: str = models.EMBEDDED,
    dtype: str = "float32",
    head: str = "",
) -> list[dict[str, object]]:
    """Test with chi-square whether the first two tokens of sampled texts follow the law of plain forwards.

    Outcomes are pairs of tokens. Those that are expected five times or more (at least the three commonest) are counted
    one by one, all others together.

    prompt:      the id of a prompt.
    methods:     names of methods.
    draws:       how many texts each method samples.
    temperature: at which they are sampled.
    pair, dtype: which models are loaded, and how.
    head:        takes the place of the methods' trained heads, see ``methods.method``.

    Returns one row per method: method, heat (the temperature), outcomes (how many were told apart) and "p value". The
    last row is a control that should fail: the first method, sampled at a lower temperature.
    """
    ready = loaded(pair, dtype)
    ids = ready.encode(prompts.text(prompt))
    law = two_tokens(ready.target, ids, temperature)
    common = common_outcomes(law, draws)
    runs = [(name, temperature) for name in methods]
    runs.append((methods[0], COOLER * temperature))
    rows = []
    for name, heat in runs:
        seen = Counter(_sampled(name, ready, ids, heat, seed, head) for seed in range(draws))
        p = p_value(seen, law, common)
        rows.append({"method": name, "heat": heat, "outcomes": len(common) + 1, "p value": p})
    return rows


def common_outcomes(law: Mapping[Tokens, float], draws: int) -> list[Tokens]:
    """The outcomes that are expected five times or more in this number of draws, at least three, the likeliest first.

    >>> common_outcomes({(1, 2): 0.1, (1, 3): 0.5, (4, 2): 0.3, (4, 5): 0.02}, 50)  # 5, 25, 15 and 1 times
    [(1, 3), (4, 2), (1, 2)]
    """
    expected_often = [outcome for outcome, chance in law.items() if draws * chance >= 5]
    count = max(3, len(expected_often))
    return sorted(law, key=law.get, reverse=True)[:count]


def p_value(seen: Counter, law: Mapping[Tokens, float], common: Sequence[Tokens]) -> float:
    """The chi-square test's p value of the outcomes that were seen. All uncommon outcomes are counted together.

    Example: of 100 draws, two common outcomes were seen 60 and 30 times, others 10 times. By a law of .5 and .4 these
    counts would be 50, 40 and 10, so chi-square is 100 / 50 + 100 / 40 + 0 = 4.5 with two degrees of freedom: p = .105.
    """
    draws = seen.total()
    counts = [seen[outcome] for outcome in common]
    expected = [draws * law[outcome] for outcome in common]
    other_count = draws - sum(counts)
    other_expected = draws - sum(expected)
    test = chisquare([*counts, other_count], [*expected, other_expected])
    return float(test.pvalue)


@torch.no_grad()
def two_tokens(model: PreTrainedModel, ids: Sequence[int], temperature: float) -> dict[Tokens, float]:
    """Probabilities of pairs: the 16 likeliest tokens after a text, each with the 16 likeliest tokens after it."""
    warp = Warp(temperature)
    text = torch.tensor([list(ids)], device=model.device)  # (1, T)
    first_law = warp(model(text).logits[0, -1])  # (V,)
    first_tokens = first_law.topk(LIKELIEST).indices.tolist()

    texts = torch.tensor([[*ids, token] for token in first_tokens], device=model.device)  # (16, T + 1)
    second_laws = warp(model(texts).logits[:, -1])  # (16, V)
    second_tokens = second_laws.topk(LIKELIEST).indices.tolist()  # 16 after each first token

    law = {}
    for row, first in enumerate(first_tokens):
        for second in second_tokens[row]:
            law[first, second] = float(first_law[first] * second_laws[row, second])
    return law


@recorded_as_asked()
def _sampled(name: str, pair: models.Pair, ids: Sequence[int], heat: float, seed: int, head: str) -> Tokens:
    """The first two tokens of a sampled text. The text has three, so that its first draft may have two levels."""
    method = method_named(name, head=head)
    options = {"max_new_tokens": 3, "temperature": heat, "seed": seed, "eos": (), "trace": "none"}
    with ALONE:
        drafter, _, forwards = built(method, pair, len(ids) + 3)
        target = Target(pair.target, window=method.window, forwards=forwards)
        text = decode(target, drafter, method.verifier, ids, **options)
    return text.tokens[:2]
