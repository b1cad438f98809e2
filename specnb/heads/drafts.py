"""Trained heads at work: the DraftModels around EAGLE-type, EDD and Medusa modules, and ``load_draft`` by name.

A committed token's row is fed once and kept; the rows of a tree are dropped when a step ends.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from specnb.drafters import CausalLMDraft, DraftForwards, DraftModel, first_is_root
from specnb.heads import files
from specnb.heads.modules import Frozen, HeadModel, Spec, as_causal_lm, frozen_linear
from specnb.models import Graphs, PackedLinear, pack
from specnb.tree import TokenTree


def load_draft(name: str | Path, model: PreTrainedModel, *, capacity: int = 0) -> DraftModel:
    """A trained head as draft model for this target: by name (data/drafts) or path without suffix.

    A packed target's head is packed, too. capacity: see ``draft_model``. Raises ValueError, see ``heads.load``.
    """
    head, spec, frozen = files.load(name, model)
    packed = any(isinstance(module, PackedLinear) for module in model.modules())
    return draft_model(head, spec, frozen, packed=packed, capacity=capacity)


def draft_model(head: nn.Module, spec: Spec, frozen: Frozen, *, packed: bool = False, capacity: int = 0) -> DraftModel:
    """The draft model around a head of any kind, its weights packed if wanted.

    capacity: if above 0 its forwards are captured (``models.Graphs``), for so many tokens of a text and a tree. Not
    Medusa's, which are one product a step.
    """
    model = _callable_model(head, spec, frozen, joined=packed).eval()
    if packed:
        model = pack(model)
    if spec.kind == "medusa":
        return MedusaDraft(model, spec, frozen)

    graphs = None
    if capacity:
        rows_are_ids = spec.kind == "vdm"
        graphs = Graphs(model, capacity=capacity, width=None if rows_are_ids else head.layer.row_width)
    if spec.kind == "vdm":
        return CausalLMDraft(model, ids=frozen.ids.cpu(), graphs=graphs)
    if spec.kind == "edd":
        return EddDraft(DraftForwards(model, graphs), spec, frozen)
    return EagleDraft(DraftForwards(model, graphs, states=True), spec, frozen)


def _callable_model(head: nn.Module, spec: Spec, frozen: Frozen, *, joined: bool) -> nn.Module:
    """A head and the target's output rows behind it as one module; joined: with fewer, larger products, if it can."""
    if spec.kind == "vdm":
        return as_causal_lm(head, spec, frozen, reduced=True)
    if spec.kind == "medusa":
        return nn.Sequential(head, frozen_linear(frozen.rows))
    if joined:
        head.layer.join()
    return HeadModel(head, frozen)


class HeadDraft:
    """What all heads share: what they ask the target for, and the target's embedding."""

    max_depth: int | None = None

    def __init__(self, spec: Spec, frozen: Frozen):
        self.frozen = frozen
        self.ids = frozen.ids.cpu()
        self.hidden_layer = spec.hidden_layer  # the one state of the target that it reads, if it is one
        self.hidden_layers = spec.layers
        self.no_state = frozen.embedding.new_zeros(1, spec.width)  # what stands for the state before the first token

    def _embed(self, tokens: Sequence[int]) -> Tensor:
        """(n, width) rows of the target's embedding."""
        embedding = self.frozen.embedding
        ids = torch.tensor(list(tokens), dtype=torch.int64, device=embedding.device)
        return F.embedding(ids, embedding)


class EagleDraft(HeadDraft):
    """EAGLE's drafting (also HASS's, TALF's and EAGLE-3's): a row is a token beside the feature before it.

    Rows of committed tokens carry the target's features, drafted tokens the feature the draft itself predicted at their
    parent. The root's row is a committed one: the feature before it is the target's.
    """

    def __init__(self, forwards: DraftForwards, spec: Spec, frozen: Frozen):
        super().__init__(spec, frozen)
        self.forwards = forwards

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        self.forwards.begin()
        self.unseen = list(prefix)  # committed tokens whose rows have not been fed, root last
        self.unseen_features = self.no_state  # (len(unseen), width): the target's features before each of them
        if hidden:
            self.unseen_features = torch.cat([self.no_state, self._target_features(hidden)])
        self.predicted: dict[int, Tensor] = {}  # expanded node → the feature predicted there, (width,)

    @torch.no_grad()
    def _target_features(self, hidden: dict[int, Tensor]) -> Tensor:
        """(n, width) features of n tokens, of the states that the target has at them."""
        states = [hidden[layer] for layer in self.hidden_layers]
        return self.forwards.model.head.fuse(states)

    @torch.no_grad()
    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        first_is_root(not self.unseen, frontier)
        if self.unseen:  # the step's first call, for the root: the last of these rows is its own
            rows = self._rows(self.unseen, self.unseen_features)
            logits, features = self.forwards.text(rows)
            self.unseen = []
        else:
            tokens = [tree.token_list[node] for node in frontier]
            parents = [tree.parent_list[node] for node in frontier]
            rows = self._rows(tokens, torch.stack([self.predicted[parent] for parent in parents]))
            root_position = self.forwards.cache.length - 1
            logits, features = self.forwards.tree(tree, frontier, rows, root_position)
        self.predicted.update(zip(frontier, features, strict=True))
        return logits

    def _rows(self, tokens: Sequence[int], features_before: Tensor) -> Tensor:
        return self.forwards.model.head.rows(self._embed(tokens), features_before)

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        features = self._target_features(hidden)  # (1 + accepted, width): those before the accepted and the next token
        if self.unseen:  # this step was drafted without the head, which has to catch up
            features = torch.cat([self.unseen_features, features])
        self.unseen_features = features
        self.unseen += [*(tree.token_list[node] for node in path), next_token]
        self.forwards.commit(())
        self.predicted = {}


class EddDraft(HeadDraft):
    """EDD's drafting: the target's states of committed tokens are the soft prompt, of which only keys and values
    are made; the root and the drafted tokens are rows behind it, dropped when the step ends.

    A head trained without encoding result reads the embeddings of committed tokens in their place.
    """

    def __init__(self, forwards: DraftForwards, spec: Spec, frozen: Frozen):
        super().__init__(spec, frozen)
        self.forwards = forwards

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        self.forwards.begin()
        self.unseen = self._states(prefix[:-1], hidden)  # (n, width) rows of the soft prompt not fed yet

    def _states(self, tokens: Sequence[int], hidden: dict[int, Tensor]) -> Tensor:
        """(n, width) rows of the soft prompt for these committed tokens."""
        if self.hidden_layer is None or len(tokens) == 0:
            return self._embed(tokens)
        return hidden[self.hidden_layer]

    @torch.no_grad()
    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        first_is_root(bool(self.forwards.slots), frontier)
        if len(self.unseen):
            self._feed_soft_prompt()
        rows = self._embed([tree.token_list[node] for node in frontier])
        root_position = self.forwards.cache.length
        logits, _ = self.forwards.tree(tree, frontier, rows, root_position)
        return logits

    def _feed_soft_prompt(self) -> None:
        """Append keys and values of the unseen rows to the cache, as committed ones."""
        cache = self.forwards.cache
        positions = cache.length + torch.arange(len(self.unseen), device=self.unseen.device)
        _, keys, values = self.forwards.model.head.layer.project(self.unseen[None], positions)
        cache.update(keys, values, 0)
        cache.promote(len(positions))
        self.unseen = self.unseen[:0]

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        self.forwards.commit(())
        committed = [tree.token_list[node] for node in (0, *path)]
        self.unseen = torch.cat([self.unseen, self._states(committed, hidden)])


class MedusaDraft(HeadDraft):
    """Medusa-1's drafting: head d gives the law of all nodes at depth d + 1, whatever their parents are.

    model: the heads, then the target's output rows: (1, width) state → (1, heads, V_d) logits.
    """

    def __init__(self, model: nn.Sequential, spec: Spec, frozen: Frozen):
        super().__init__(spec, frozen)
        self.model = model
        self.max_depth = spec.count

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        if len(prefix) > 1:
            self._see(hidden[self.hidden_layer])
        else:
            self._see(self.no_state)

    def _see(self, states: Tensor) -> None:
        """Draft from the last of these states (n, width), which predicted the root, from now on."""
        self.state = states[-1:]
        self.logits: Tensor | None = None  # (heads, V_d), once they are asked for

    @torch.no_grad()
    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        depth = tree.depth[list(frontier)]
        deepest = int(depth.max())
        if deepest >= self.max_depth:
            raise ValueError(f"{self.max_depth} Medusa heads draft as many tokens deep, not {deepest + 1}")
        if self.logits is None:
            self.logits = self.model(self.state)[0]
        return self.logits[depth.to(self.logits.device)]

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        self._see(hidden[self.hidden_layer])
