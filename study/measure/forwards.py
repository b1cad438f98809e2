"""Seconds of forwards by their number of nodes, for a pair's target and heads, and for models of the papers' size."""

from collections.abc import Mapping, Sequence

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specnb import heads, models
from specnb.drafters import CausalLMDraft
from specnb.models import Graphs
from study.measure import loading
from study.measure.clock import curves

NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # the sizes that are timed
ROWS = 8192  # tokens that a head can draft, one per row of its output matrix; the trained heads have the same number


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
    """The rows of ``clock.curves`` for a pair's target and for heads, given by name.

    graphs: whether forwards are captured and replayed, those of the heads, too.
    """
    used = loading.loaded(pair, dtype, packed)
    capacity = prefix + 2 * max(sizes) if graphs else 0
    drafts = {name: loading.draft_model(name, used, capacity) for name in heads}
    return curves(used.target, drafts, prefix, repetitions, sizes, graphs)


def shapes_block(
    target: Mapping[str, object], draft: Mapping[str, object], repetitions: int, sizes: Sequence[int], graphs: bool
) -> list[dict[str, object]]:
    """The rows of ``clock.curves`` for models with random weights, whose forwards take as long as with trained ones.

    The models are a target, a draft model (called "pair" in the rows) and an EAGLE head (called "eagle"), in bfloat16,
    after PREFIX tokens of text.

    target, draft: settings of transformers' configurations, with model_type.
    """
    large = _untrained(target)
    small = _untrained(draft)
    capacity = loading.PREFIX + 2 * max(sizes) if graphs else 0
    spec = heads.Spec.like(large, "eagle", hidden_layer=-1)
    head = heads.MODULES["eagle"](spec).to(large.device, large.dtype)
    frozen = heads.Frozen.of(large, torch.arange(min(ROWS, large.config.vocab_size)))
    small_graphs = Graphs(small, capacity=capacity) if graphs else None
    pair = CausalLMDraft(small, vocabulary=large.config.vocab_size, graphs=small_graphs)
    eagle = heads.draft_model(head, spec, frozen, capacity=capacity)
    return curves(large, {"pair": pair, "eagle": eagle}, loading.PREFIX, repetitions, sizes, graphs)


def _untrained(settings: Mapping[str, object]) -> PreTrainedModel:
    """A bfloat16 model of transformers with random weights. settings: of its configuration."""
    config = AutoConfig.for_model(**settings)
    with torch.device(models.best_device()):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
