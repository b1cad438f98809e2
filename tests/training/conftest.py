"""Fixtures: a tiny target, dialogues that it wrote, and their features."""

from dataclasses import replace

import pytest
import torch
from tiny import llama
from tiny_heads import QUICK, V

from specnb import heads, models
from training import features, recipes, runs, writing


@pytest.fixture(scope="module")
def pair() -> models.Pair:
    return models.Pair("tiny", llama(vocab_size=V, num_hidden_layers=6, num_attention_heads=4), None, None)


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(writing, "template", lambda tokenizer: ([1, 2], [3, 4]))


@pytest.fixture(scope="module")
def dialogues(pair) -> list[writing.Dialogue]:
    """Forty short dialogues whose answers the tiny target really writes."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for i in range(40):
        question = torch.randint(V, (3 + i % 4,), generator=generator).tolist()
        prompt = torch.tensor([[1, 2, *question, 3, 4]])
        torch.manual_seed(i)
        new = pair.target.generate(
            prompt, max_new_tokens=8 + i % 5, do_sample=True, attention_mask=torch.ones_like(prompt)
        )
        found.append(writing.Dialogue(tuple(question), tuple(new[0, prompt.shape[1] :].tolist()), False))
    return found


@pytest.fixture
def ready(pair, dialogues, own_cache):
    """(frozen, features) of the tiny corpus over half of the vocabulary."""
    ids = features.vocabulary(dialogues, 16)
    return heads.Frozen.of(pair.target, ids), runs.corpus_features(pair, dialogues, ids, [-1, -4])


@pytest.fixture(autouse=True)
def few_layers(monkeypatch):
    """The tiny target has no layers as deep as those that EAGLE-3 fuses."""
    monkeypatch.setitem(recipes.TABLE, "eagle3", replace(recipes.TABLE["eagle3"], fused=[0.5, 1.0]))


@pytest.fixture
def hasty(monkeypatch):
    """Recipes for the tiny corpus: few steps, and four roots where there are some."""
    monkeypatch.setattr(recipes.Recipe, "schedule", property(lambda recipe: replace(QUICK, seed=recipe.seed)))
    for name, recipe in recipes.TABLE.items():
        if recipe.roots:
            monkeypatch.setitem(recipes.TABLE, name, replace(recipe, roots=4))
