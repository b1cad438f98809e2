"""What forwards cost by their size: of a pair's target and of heads, and of models at the papers' scale."""

from collections.abc import Mapping, Sequence

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specnb import heads, models
from specnb.drafters import CausalLMDraft
from specnb.models import Graphs
from study.measure import loading
from study.measure.clock import curves

NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # nodes at which curves are measured
ROWS = 8192  # of a head's output matrix, as many as the trained heads have


def curves_block(
    heads: Sequence[str],
    prefix: int = 300,
    repetitions: int = 15,
    pair: str = models.EMBEDDED,
    dtype: str = "float32",
    packed: bool = False,
    sizes: Sequence[int] = NODES,
    graphs: bool = False,
) -> list[dict[str, object]]:
    """``curves`` of a pair's target and of heads by name. graphs: whether forwards are recorded, those of heads too."""
    used = loading.loaded(pair, dtype, packed)
    capacity = prefix + 2 * max(sizes) if graphs else 0
    drafts = {name: loading.draft_model(name, used, capacity) for name in heads}
    return curves(used.target, drafts, prefix, repetitions, sizes, graphs)


def shapes_block(
    target: Mapping[str, object], draft: Mapping[str, object], repetitions: int, sizes: Sequence[int], graphs: bool
) -> list[dict[str, object]]:
    """``curves`` of models that are not trained: a target and a draft of given configurations, and an EAGLE-type head.

    In bfloat16, behind PREFIX tokens; forwards cost what they cost whatever the weights are. target, draft: settings of
    transformers' configurations, with model_type. Rows as of ``curves``; the draft model is called "pair", the head
    "eagle".
    """
    large = _untrained(target)
    small = _untrained(draft)
    capacity = loading.PREFIX + 2 * max(sizes) if graphs else 0
    spec = heads.Spec.like(large, "eagle", hidden_layer=-1)
    head = heads.MODULES["eagle"](spec).to(large.device, large.dtype)
    frozen = heads.Frozen.of(large, torch.arange(min(ROWS, large.config.vocab_size)))
    recorded = Graphs(small, capacity=capacity) if graphs else None
    pair = CausalLMDraft(small, vocabulary=large.config.vocab_size, graphs=recorded)
    eagle = heads.draft_model(head, spec, frozen, capacity=capacity)
    return curves(large, {"pair": pair, "eagle": eagle}, loading.PREFIX, repetitions, sizes, graphs)


def _untrained(settings: Mapping[str, object]) -> PreTrainedModel:
    config = AutoConfig.for_model(**settings)
    with torch.device(models.best_device()):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
