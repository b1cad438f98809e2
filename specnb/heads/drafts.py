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
from specnb.heads.modules import Frozen, HeadModel, Spec, as_causal_lm, product
from specnb.models import Graphs, PackedLinear, pack
from specnb.tree import TokenTree


def load_draft(name: str | Path, model: PreTrainedModel, *, capacity: int = 0) -> DraftModel:
    """A trained head as draft model for this target: by name (data/drafts) or path without suffix.

    A packed target's head is packed, too. capacity: see ``draft_model``. Raises ValueError, see ``heads.load``.
    """
    packed = any(isinstance(module, PackedLinear) for module in model.modules())
    return draft_model(*files.load(name, model), packed=packed, capacity=capacity)


def draft_model(head: nn.Module, spec: Spec, frozen: Frozen, *, packed: bool = False, capacity: int = 0) -> DraftModel:
    """The draft model around a head of any kind, its weights packed if wanted.

    capacity: if above 0 its forwards are recorded (``models.Graphs``), for so many tokens of a text and a tree. Not
    Medusa's, which are one product a step.
    """
    if spec.kind == "vdm":
        model, width = as_causal_lm(head, spec, frozen, reduced=True), None
    elif spec.kind == "medusa":
        model, width = nn.Sequential(head, product(frozen.rows)), None
    else:
        model, width = HeadModel(head, frozen), head.layer.q_proj.in_features
        if packed:
            head.layer.join()
    model = pack(model.eval()) if packed else model.eval()
    if spec.kind == "medusa":
        return MedusaDraft(model, spec, frozen)
    graphs = Graphs(model, capacity=capacity, width=width) if capacity else None
    if spec.kind == "vdm":
        return CausalLMDraft(model, ids=frozen.ids.cpu(), graphs=graphs)
    if spec.kind == "edd":
        return EddDraft(DraftForwards(model, graphs), spec, frozen)
    return EagleDraft(DraftForwards(model, graphs, states=True), spec, frozen)


class HeadDraft:
    """What all heads share: what they ask the target for, and the target's embedding."""

    max_depth = None

    def __init__(self, forwards: DraftForwards | nn.Module, spec: Spec, frozen: Frozen):
        self.forwards, self.frozen, self.ids, self.layer = forwards, frozen, frozen.ids.cpu(), spec.hidden_layer
        self.hidden_layers = spec.layers
        self.nothing = frozen.embedding.new_zeros(1, spec.width)  # the state before the first token

    def _embed(self, tokens: Sequence[int]) -> Tensor:
        """(n, width) rows of the target's embedding."""
        ids = torch.tensor(list(tokens), dtype=torch.int64, device=self.frozen.embedding.device)
        return F.embedding(ids, self.frozen.embedding)


class EagleDraft(HeadDraft):
    """EAGLE's drafting (also HASS's, TALF's and EAGLE-3's): rows of committed tokens carry the target's features,
    drafted tokens the feature the draft itself predicted at their parent. The root's row is a committed one."""

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        self.forwards.begin()
        self.features: dict[int, Tensor] = {}  # expanded node → the feature predicted there
        self.unseen = list(prefix)  # committed tokens whose rows have not been fed, root last …
        self.before = torch.cat([self.nothing, self._features(hidden)] if hidden else [self.nothing])  # … those before

    @torch.no_grad()
    def _features(self, hidden: dict[int, Tensor]) -> Tensor:
        return self.forwards.model.head.fuse([hidden[layer] for layer in self.hidden_layers])

    @torch.no_grad()
    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        first_is_root(not self.unseen, frontier)
        if self.unseen:
            logits, out = self.forwards.text(self._rows(self.unseen, self.before))
        else:
            rows = self._rows(
                [tree.token_list[node] for node in frontier],
                torch.stack([self.features[tree.parent_list[node]] for node in frontier]),
            )
            logits, out = self.forwards.tree(tree, frontier, rows, self.forwards.cache.length - 1)
        self.unseen = []
        self.features.update(zip(frontier, out, strict=True))
        return logits

    def _rows(self, tokens: Sequence[int], before: Tensor) -> Tensor:
        return self.forwards.model.head.rows(self._embed(tokens), before)

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        states, fed = self._features(hidden), not self.unseen
        self.forwards.commit(())
        self.before = states if fed else torch.cat([self.before, states])
        self.unseen += [*(tree.token_list[node] for node in path), next_token]
        self.features = {}


class EddDraft(HeadDraft):
    """EDD's drafting: the target's states of committed tokens are the soft prompt, of which only keys and values
    are made; the root and the drafted tokens are rows behind it, dropped when the step ends.

    A head trained without encoding result reads the embeddings of committed tokens in their place.
    """

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        self.forwards.begin()
        self.unseen = self._states(prefix[:-1], hidden)  # rows of the soft prompt not fed yet

    def _states(self, tokens: Sequence[int], hidden: dict[int, Tensor]) -> Tensor:
        return self._embed(tokens) if self.layer is None or not len(tokens) else hidden[self.layer]

    @torch.no_grad()
    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        forwards, layer = self.forwards, self.forwards.model.head.layer
        first_is_root(bool(forwards.slots), frontier)
        if len(self.unseen):
            places = forwards.cache.length + torch.arange(len(self.unseen), device=self.unseen.device)
            forwards.cache.update(*layer.project(self.unseen[None], places)[1:], 0)
            forwards.cache.promote(len(places))
            self.unseen = self.unseen[:0]
        rows = self._embed([tree.token_list[node] for node in frontier])
        return forwards.tree(tree, frontier, rows, forwards.cache.length)[0]

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        self.forwards.commit(())
        self.unseen = torch.cat([self.unseen, self._states([tree.token_list[node] for node in (0, *path)], hidden)])


class MedusaDraft(HeadDraft):
    """Medusa-1's drafting: head d gives the law of all nodes at depth d + 1, whatever their parents are."""

    @property
    def max_depth(self) -> int:
        return len(self.forwards[0].blocks)

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        self._see(hidden[self.layer][-1:] if len(prefix) > 1 else self.nothing)  # the state that predicted the root

    def _see(self, state: Tensor) -> None:
        self.state, self.laws = state, None  # … and (heads, V_d) logits, once they are asked for

    @torch.no_grad()
    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        depth = tree.depth[list(frontier)]
        if int(depth.max()) >= self.max_depth:
            raise ValueError(f"{self.max_depth} Medusa heads draft as many tokens deep, not {int(depth.max()) + 1}")
        if self.laws is None:
            self.laws = self.forwards(self.state)[0]
        return self.laws[depth.to(self.laws.device)]

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        self._see(hidden[self.layer][-1:])
