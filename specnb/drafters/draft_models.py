"""Who gives q: models that score the nodes of a growing tree, a whole frontier in one batched forward."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specnb import masks
from specnb.cache import TreeCache
from specnb.target import context_length, evaluating, refusal
from specnb.tree import TokenTree


class DraftModel(Protocol):
    """What TreeDrafter asks of a model.

    ids: None, or (V_d,) int64 sorted, the token ids of a reduced vocabulary.
    hidden_layers: the target's hidden states it wants to see, () for none.
    max_depth: the deepest tree it can draft, None for any.
    """

    ids: Tensor | None
    hidden_layers: tuple[int, ...]
    max_depth: int | None

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        """Start a generation. prefix: committed tokens, root last; hidden: (len(prefix) - 1, width) each."""

    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        """(len(frontier), V_d) logits after each frontier node, which sees the prefix and its ancestors only.

        The first call of a step is for the root; a node's parent is always expanded before it. A frontier may
        mix depths.
        """

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        """The step is over: path was accepted, next_token is the new root; hidden: (1 + len(path), width) each."""


class CausalLMDraft:
    """Any transformers causal language model as draft, with a KV cache of its own.

    vocabulary: the target's number of logits, where it differs from the draft's although both share a tokenizer
    (Qwen2.5 pads its models differently): surplus columns are cut, missing ones are declared through ids.
    ids: the tokens its logits stand for, where its output matrix was cut to a reduced vocabulary.
    Tokens of the text that it does not know it reads as its last one: its guesses get worse, nothing else.
    Accepted tokens are kept in its cache, never recomputed; the next step feeds what it has not seen yet
    (the last accepted leaf, if it was never expanded, and the new root) in one forward.
    """

    hidden_layers, max_depth = (), None

    def __init__(self, model: PreTrainedModel, *, vocabulary: int | None = None, ids: Tensor | None = None):
        if why := refusal(model):
            raise ValueError(f"no tree can be drafted by a {model.config.model_type} model: {why}")
        self.model = model
        own = model.get_output_embeddings().weight.shape[0]
        if ids is not None and len(ids) != own:
            raise ValueError(f"ids must name the model's {own} output rows, got {len(ids)}")
        self.columns = min(own, vocabulary or own)
        self.ids = torch.arange(own) if vocabulary and own < vocabulary else ids

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        self.cache = TreeCache()
        self.unseen = list(prefix)  # committed tokens not in the cache yet, root last
        self.slots: dict[int, int] = {}  # tree node → pending slot of the cache
        self.places = torch.arange(0)  # positions of what stands in the cache

    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        if not self.slots:
            return self._expand_root(tree, frontier)
        start, pending = self.cache.length, self.cache.pending
        visible = visible_slots(tree, frontier, self.slots, start, pending)
        nodes = torch.tensor(list(frontier))
        logits = self._run(tree.tokens[nodes], start + tree.depth[nodes], visible)
        self.slots.update({node: pending + row for row, node in enumerate(frontier)})
        return logits

    def _expand_root(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        if list(frontier) != [0]:
            raise ValueError(f"the first expansion of a step is the root alone, got nodes {list(frontier)}")
        start, count = self.cache.length, len(self.unseen)
        visible = None if start == 0 else masks.visible(TokenTree.chain(self.unseen), start)
        ids = torch.tensor(self.unseen)
        logits = self._run(ids, start + torch.arange(count), visible, logits_to_keep=1)
        self.cache.promote(count - 1)
        self.slots[0] = 0
        return logits

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        seen = [node for node in (0, *path) if node in self.slots]
        self.cache.commit([self.slots[node] for node in seen])
        self.places = torch.arange(self.cache.length)
        tokens = [tree.token_list[node] for node in path if node not in self.slots]
        self.unseen = ([] if seen else self.unseen) + [*tokens, next_token]
        self.slots = {}

    @torch.no_grad()
    def _run(self, ids: Tensor, position_ids: Tensor, visible: Tensor | None, **kwargs) -> Tensor:
        if int(position_ids.max()) >= context_length(self.model):
            raise ValueError(
                f"the draft model's context of {context_length(self.model)} is full: shorten the prompt or "
                f"max_new_tokens, or take a draft model with a longer context"
            )
        mask, device = None, self.model.device
        self.places = torch.cat([self.places, position_ids])
        if visible is not None:
            mask = masks.additive(visible.to(device), self.model.dtype)
            mask = masks.by_layer(mask, self.model, position_ids, self.places)
        known = ids.clamp_max(self.model.config.get_text_config().vocab_size - 1)
        inputs = {"position_ids": position_ids[None].to(device), "attention_mask": mask, **kwargs}
        with evaluating(self.model):
            out = self.model(known[None].to(device), past_key_values=self.cache, use_cache=True, **inputs)
        return out.logits[0, :, : self.columns]


def visible_slots(tree: TokenTree, frontier: Sequence[int], slots: dict[int, int], start: int, pending: int) -> Tensor:
    """(m, start + pending + m) bool: what m new nodes see of a cache whose pending slots hold other nodes.

    Each sees the first start slots, those of its ancestors (slots: node → place behind start) and itself; an
    ancestor without a slot of its own stands among the first.
    """
    count = len(frontier)
    visible = torch.zeros(count, start + pending + count, dtype=torch.bool)
    visible[:, :start] = True
    for row, node in enumerate(frontier):
        above = [slots[a] for a in (0, *tree.path(node)[:-1]) if a in slots and a != node]
        visible[row, [start + slot for slot in (*above, pending + row)]] = True
    return visible


class Tempered:
    """A draft model whose logits are divided by a temperature, to calibrate it (Guo et al. 2017); ranks stay.

    Raises ValueError on a temperature that is not above 0.
    """

    def __init__(self, draft: DraftModel, temperature: float):
        if not temperature > 0:
            raise ValueError(f"a draft's temperature must be above 0, got {temperature}")
        self.draft, self.temperature = draft, temperature
        self.ids, self.hidden_layers, self.max_depth = draft.ids, draft.hidden_layers, draft.max_depth
        self.begin, self.commit = draft.begin, draft.commit

    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        logits = self.draft.expand(tree, frontier).float()  # in bfloat16 neighbours would fall together
        return logits / self.temperature


class TableDraft:
    """A toy draft model: ``law(prefix)`` → (V,) probabilities after a tuple of tokens. For exact enumeration."""

    ids, hidden_layers, max_depth = None, (), None

    def __init__(self, law: Callable[[tuple[int, ...]], Tensor]):
        self.law = law

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        self.prefix = tuple(prefix)

    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        return torch.stack([self.law(self.prefix + tree.path_tokens(node)) for node in frontier]).log()

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        self.prefix += (*(tree.token_list[node] for node in path), next_token)
