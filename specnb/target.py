"""Target: the model whose law must not change. One forward pass scores a whole tree."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import index

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specnb import masks
from specnb.cache import TreeCache
from specnb.tree import TokenTree


@dataclass(frozen=True)
class Scores:
    """What one forward pass says about n nodes.

    logits: (n, V) in the model's dtype, row i is the prediction *after* node i.
    hidden: layer index as in transformers' hidden_states (negative counts from the end) → (n, width).
    """

    logits: Tensor
    hidden: dict[int, Tensor] = field(default_factory=dict)


def context_length(model: PreTrainedModel) -> int:
    """Number of positions the model was made for."""
    return model.config.get_text_config().max_position_embeddings


class Target:
    """A causal language model with a TreeCache: prefill, forward(tree), commit(path).

    The cache holds every committed token except the last one, the root, whose key and value are written by the
    forward pass that scores its tree. hidden_layers names the hidden states that drafters ask for. window
    (``models.Window``): keep only attention sinks and recent tokens (StreamingLLM): bounded memory, and no longer the
    model's own text once something has been evicted; its evictor(model) is called with the cache after each commit.
    graphs (``models.Graphs``): recorded forwards of this model, for trees that fit them; empty() makes the cache of a
    generation, score(...) replays a forward or says None.
    """

    def __init__(self, model: PreTrainedModel, *, hidden_layers: Sequence[int] = (), window=None, graphs=None):
        if not isinstance(model, PreTrainedModel):
            raise ValueError(f"Target takes a model of transformers (pair.target), got a {type(model).__name__}")
        self.model, self.window, self.graphs = model.eval(), window, graphs
        self.hidden_layers = tuple(hidden_layers)
        self.cache, self.evict = TreeCache(), None
        self.tree: TokenTree | None = None  # scored, waiting for commit

    @property
    def vocabulary(self) -> int:
        return self.model.config.get_text_config().vocab_size

    @property
    def context(self) -> int:
        return context_length(self.model)

    def prefill(self, tokens: Sequence[int]) -> dict[int, Tensor]:
        """Start over with these tokens in the cache (the prompt without its last token; may be empty).

        Returns the hidden states asked for, (len(tokens), width) each.
        """
        check_tokens(tokens, self.vocabulary)
        if len(tokens) >= self.context:
            raise ValueError(f"{len(tokens)} tokens do not fit the context of {self.context}: shorten the prompt")
        self.cache, self.tree = self.graphs.empty() if self.graphs else TreeCache(), None
        self.evict = self.window and self.window.evictor(self.model)
        if not len(tokens):
            return {}
        ids = torch.tensor([list(tokens)])
        scores = self._run(ids, torch.arange(len(tokens))[None], None, logits_to_keep=1)
        self.cache.promote(len(tokens))
        if self.evict:
            self.evict(self.cache)
        return scores.hidden

    def forward(self, tree: TokenTree) -> Scores:
        """Score all nodes of a tree that hangs off the last committed token, in one pass."""
        if self.tree is not None:
            raise RuntimeError("the last tree has not been committed: call commit(path) before the next forward")
        check_tokens(tree.token_list, self.vocabulary)
        length = self.cache.length
        if length + max(tree.depth_list) >= self.context:
            raise ValueError(
                f"{length} committed tokens and a tree of depth {max(tree.depth_list)} do not fit the context "
                f"of {self.context}: shorten the prompt, max_new_tokens or the tree"
            )
        mask = None  # a root alone sees everything there is
        if len(tree) > 1:
            mask = masks.tree_mask(tree, length, dtype=self.model.dtype, device=self.model.device)
        first = length + (self.evict.evicted if self.evict else 0)
        scores = self._run(tree.tokens[None], masks.positions(tree, first), mask)
        self.tree = tree
        return scores

    def commit(self, path: Sequence[int]) -> None:
        """Keep the root and the accepted path (nodes of the tree last scored, root excluded)."""
        if self.tree is None:
            raise RuntimeError("nothing to commit: call forward(tree) first")
        if path and tuple(path) != self.tree.path(path[-1]):
            raise ValueError(f"{tuple(path)} is not a path from the root of the scored tree")
        self.cache.commit([0, *path])
        self.tree = None
        if self.evict:
            self.evict(self.cache)

    @torch.no_grad()
    def _run(self, ids: Tensor, position_ids: Tensor, mask: Tensor | None, **kwargs) -> Scores:
        if self.graphs and not kwargs:
            found = self.graphs.score(self.cache, ids, position_ids, mask, self.hidden_layers)
            if found:
                return Scores(*found)
        device = self.model.device
        out = self.model(
            input_ids=ids.to(device),
            position_ids=position_ids.to(device),
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
            output_hidden_states=bool(self.hidden_layers),
            **kwargs,
        )
        hidden = {layer: out.hidden_states[layer][0] for layer in self.hidden_layers}
        return Scores(logits=out.logits[0], hidden=hidden)


def token_ids(tokens: Iterable[int]) -> list[int]:
    """Token ids as a list; ValueError unless they are whole numbers (text, floats and batches are not)."""
    try:
        return [index(token) for token in tokens]
    except TypeError as error:
        raise ValueError(f"ids must be a list of ints, got {str(tokens)!r:.40}: use pair.encode(text)") from error


def check_tokens(tokens: Sequence[int], vocabulary: int) -> None:
    """ValueError unless all token ids lie in 0..vocabulary-1."""
    if len(tokens) and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        bad = next(t for t in tokens if not 0 <= t < vocabulary)
        raise ValueError(f"token id {bad} is outside the model's vocabulary of {vocabulary}")
