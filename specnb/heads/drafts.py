"""Trained heads at work: the DraftModels around EAGLE-type, EDD and Medusa modules, and ``load_draft`` by name.

A committed token's row is fed once and kept; the rows of a tree are dropped when a step ends.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specnb import masks
from specnb.cache import TreeLayer
from specnb.drafters import CausalLMDraft, DraftModel, visible_slots
from specnb.heads import files
from specnb.heads.modules import Frozen, Spec, as_causal_lm
from specnb.models import PackedLinear, pack
from specnb.target import check_tokens
from specnb.tree import TokenTree


def load_draft(name: str | Path, model: PreTrainedModel) -> DraftModel:
    """A trained head as draft model for this target: by name (data/drafts) or path without suffix.

    A packed target's head is packed, too. Raises ValueError, see ``heads.load``.
    """
    draft = draft_model(*files.load(name, model))
    if any(isinstance(module, PackedLinear) for module in model.modules()):
        pack(draft.model if isinstance(draft, CausalLMDraft) else draft.head)
    return draft


def draft_model(head: torch.nn.Module, spec: Spec, frozen: Frozen) -> DraftModel:
    """The draft model around a head of any kind."""
    if spec.kind == "vdm":
        return CausalLMDraft(as_causal_lm(head, spec, frozen, reduced=True), ids=frozen.ids.cpu())
    return {"eagle": EagleDraft, "edd": EddDraft, "medusa": MedusaDraft}[spec.kind](head, spec, frozen)


def _first_is_root(begun: bool, frontier: Sequence[int]) -> None:
    if not begun and list(frontier) != [0]:
        raise ValueError(f"the first expansion of a step is the root alone, got nodes {list(frontier)}")


class HeadDraft:
    """What all heads share: the rows of committed tokens stand first in the cache, those of a step's tree behind."""

    max_depth = None

    def __init__(self, head: torch.nn.Module, spec: Spec, frozen: Frozen):
        self.head, self.frozen, self.ids, self.layer = head, frozen, frozen.ids.cpu(), spec.hidden_layer
        self.hidden_layers = () if self.layer is None else (self.layer,)

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        check_tokens(prefix, len(self.frozen.embedding))
        self.nothing = self.frozen.embedding.new_zeros(1, self.frozen.embedding.shape[1])  # before the first token
        self.cache, self.length = TreeLayer(), 0
        self.slots: dict[int, int] = {}  # expanded node → slot behind the committed rows

    def _visible(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        """What new nodes see, ``visible_slots``; they get the slots behind the pending ones."""
        pending = self.cache.used - self.length
        visible = visible_slots(tree, frontier, self.slots, self.length, pending)
        self.slots.update({node: pending + row for row, node in enumerate(frontier)})
        return visible

    def _attend(self, x: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Rows x (n, width) through the layer, their keys and values into the cache; visible: (n, all in use)."""
        x, positions = x[None], positions.to(x.device)
        keys, values = self.cache.update(*self.head.layer.keys_values(x, positions))
        return self.head.layer(x, positions, keys, values, visible.to(x.device))[0]

    def _embed(self, tokens: Sequence[int]) -> Tensor:
        """(n, width) rows of the target's embedding."""
        ids = torch.tensor(list(tokens), dtype=torch.int64, device=self.frozen.embedding.device)
        return F.embedding(ids, self.frozen.embedding)


class EagleDraft(HeadDraft):
    """EAGLE's drafting (also HASS's and TALF's): rows of committed tokens carry the target's features, drafted
    tokens the feature the draft itself predicted at their parent. The root's row is a committed one."""

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        super().begin(prefix, hidden)
        self.features: dict[int, Tensor] = {}  # expanded node → the feature predicted there
        self.unseen = list(prefix)  # committed tokens whose rows have not been fed, root last …
        states = [] if len(prefix) == 1 else [hidden[self.layer]]
        self.before = torch.cat([self.nothing, *states])  # … the states before

    @torch.no_grad()
    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        _first_is_root(0 in self.features, frontier)
        if 0 not in self.features:
            rows = self.head.rows(self._embed(self.unseen), self.before)
            visible = masks.visible(TokenTree.chain(self.unseen), self.length)
            positions = self.length + torch.arange(len(rows))
            self.length += len(rows)
        else:
            above = torch.stack([self.features[tree.parent_list[node]] for node in frontier])
            rows = self.head.rows(self._embed([tree.token_list[node] for node in frontier]), above)
            visible, positions = self._visible(tree, frontier), self.length - 1 + tree.depth[list(frontier)]
        out = self._attend(rows, positions, visible)[-len(frontier) :]
        self.features.update(zip(frontier, out, strict=True))
        return out @ self.frozen.rows.T

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        fed = 0 in self.features
        self.cache.used = self.length
        states = hidden[self.layer]
        self.before = states if fed else torch.cat([self.before, states])
        self.unseen = ([] if fed else self.unseen) + [*(tree.token_list[node] for node in path), next_token]
        self.slots, self.features = {}, {}


class EddDraft(HeadDraft):
    """EDD's drafting: the target's states of committed tokens are the soft prompt, of which only keys and values
    are made; the root and the drafted tokens are rows behind it, dropped when the step ends.

    A head trained without encoding result reads the embeddings of committed tokens in their place.
    """

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        super().begin(prefix, hidden)
        self.unseen = self._states(prefix[:-1], hidden)  # rows of the soft prompt not fed yet

    def _states(self, tokens: Sequence[int], hidden: dict[int, Tensor]) -> Tensor:
        return self._embed(tokens) if self.layer is None or not len(tokens) else hidden[self.layer]

    @torch.no_grad()
    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        _first_is_root(bool(self.slots), frontier)
        if len(self.unseen):
            places = self.length + torch.arange(len(self.unseen), device=self.unseen.device)
            self.cache.update(*self.head.layer.keys_values(self.unseen[None], places))
            self.length, self.unseen = self.length + len(places), self.unseen[:0]
        rows = self._embed([tree.token_list[node] for node in frontier])
        out = self._attend(rows, self.length + tree.depth[list(frontier)], self._visible(tree, frontier))
        return self.frozen.norm(out) @ self.frozen.rows.T

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        self.cache.used, self.slots = self.length, {}
        tokens = [tree.token_list[node] for node in (0, *path)]
        self.unseen = torch.cat([self.unseen, self._states(tokens, hidden)])


class MedusaDraft(HeadDraft):
    """Medusa-1's drafting: head d gives the law of all nodes at depth d + 1, whatever their parents are."""

    @property
    def max_depth(self) -> int:
        return len(self.head.blocks)

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        super().begin(prefix, hidden)
        self.before = hidden[self.layer][-1:] if len(prefix) > 1 else self.nothing  # the state that foretold the root

    @torch.no_grad()
    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        depth = tree.depth[list(frontier)]
        if int(depth.max()) >= self.max_depth:
            raise ValueError(f"{self.max_depth} Medusa heads draft as many tokens deep, not {int(depth.max()) + 1}")
        return (self.head(self.before)[0] @ self.frozen.rows.T)[depth.to(self.before.device)]

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        self.before = hidden[self.layer][-1:]
