"""Draft models made of trained heads: for EAGLE-type, EDD and Medusa modules, and ``load_draft`` by name.

A head's input row is the vector of one token. The row of a committed token is fed once, and its keys and values stay in
the head's cache. The rows of a step's tree are dropped when the step ends.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from specnb.drafters import CausalLMDraft, DraftForwards, DraftModel, first_is_root
from specnb.heads import files
from specnb.heads.modules import Frozen, HeadModel, OwnRows, Spec, as_causal_lm, frozen_linear
from specnb.models import Graphs, PackedLinear, pack
from specnb.tree import TokenTree


def load_draft(
    name: str | Path, model: PreTrainedModel, *, capacity: int = 0, layers: Sequence[int] | None = None
) -> DraftModel:
    """Load a trained head as a draft model for this target.

    name: a name in data/drafts, a path without suffix, or a published head, see ``heads.load``.
    capacity: see ``draft_model``.
    layers: see ``heads.load``.

    If the target is packed (``models.pack``), the head is packed, too. Raises ValueError as ``heads.load`` does.
    """
    head, spec, frozen = files.load(name, model, layers=layers)
    packed = any(isinstance(module, PackedLinear) for module in model.modules())
    return draft_model(head, spec, frozen, packed=packed, capacity=capacity)


def draft_model(head: nn.Module, spec: Spec, frozen: Frozen, *, packed: bool = False, capacity: int = 0) -> DraftModel:
    """Make a draft model of a head of any kind.

    packed: lay the weights out for the CPU's matrix kernels (``models.pack``).
    capacity: if above 0, the head's forwards are captured (``models.Graphs``), for texts and trees of this many tokens
        together. Medusa's are not: they are few products per step.
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
    """A head followed by the target's output rows, as one module.

    joined: fuse the head's small matrix products into fewer large ones (``Layer.join``); no effect on medusa and vdm.
    """
    if spec.kind == "vdm":
        return as_causal_lm(head, spec, frozen, reduced=True)
    if spec.kind == "medusa":
        shared = frozen.rows.dim() == 2
        return nn.Sequential(head, frozen_linear(frozen.rows) if shared else OwnRows(frozen.rows))
    if joined:
        head.layer.join()
    return HeadModel(head, frozen)


class HeadDraft:
    """Base class of the draft models here: which of the target's states a head reads, and the target's embedding."""

    max_depth: int | None = None  # how many tokens deep it can draft; None for no limit

    def __init__(self, spec: Spec, frozen: Frozen):
        self.frozen = frozen
        self.ids = frozen.ids.cpu()
        self.hidden_layer = spec.hidden_layer  # None for a head that reads several, or none
        self.hidden_layers = spec.layers
        self.no_state = frozen.embedding.new_zeros(1, spec.width)  # takes the place of the state before the first token
        # Our own heads are bound to their target by a fingerprint; published ones, which have no first row, are not.
        self.watch = None if spec.first_row else Watch()

    def _embed(self, tokens: Sequence[int]) -> Tensor:
        """(n, width): the target's embeddings of these tokens."""
        embedding = self.frozen.embedding
        ids = torch.tensor(list(tokens), dtype=torch.int64, device=embedding.device)
        return F.embedding(ids, embedding)


class Watch:
    """Warns, once, if the likeliest token of a published head is hardly ever the one that the target takes.

    A trained head agrees with its target in a third of all places and more, also on texts unlike those that it was
    trained on; a head of another model, or one that is read wrongly, hardly ever does. Texts are right either way, so
    that only the speed would tell. The first STEPS steps are watched, over all texts.
    """

    STEPS = 64
    LEAST = 6  # of these steps

    def __init__(self) -> None:
        self.steps = 0
        self.hits = 0
        self.likeliest: Tensor | None = None  # of this step: a column of the logits, or None if nothing was drafted

    def drafted(self, logits: Tensor) -> None:
        """logits: (V_d,) after the root."""
        if self.steps < self.STEPS:
            self.likeliest = logits.argmax()

    def taken(self, token: int, ids: Tensor) -> None:
        """token: the one that follows the root. ids: (V_d,) of the columns."""
        if self.likeliest is None:
            return
        self.steps += 1
        self.hits += int(ids[int(self.likeliest)]) == token
        self.likeliest = None
        if self.steps == self.STEPS and self.hits < self.LEAST:
            warnings.warn(
                f"this head's likeliest token was the target's in {self.hits} of {self.STEPS} places: it may have been "
                f"trained for another target, or its file may mean something else; heads.check says more",
                stacklevel=2,
            )


class FeatureDraft:
    """Drafting with a module whose row combines a token and the feature before it: EAGLE's heads and MTP modules.

    The feature is the target's before a committed token. The target has none at a draft token's parent, so there it is
    the one that the module itself has predicted. The root is a committed token: the feature before it is the target's.

    A class derived from this one has ``forwards`` and says what features and rows are made of.
    """

    forwards: DraftForwards
    first_row = False  # whether a text's first token has a row, with no_state (1, width) in place of a feature
    watch: Watch | None = None

    def _target_features(self, hidden: dict[int, Tensor]) -> Tensor:
        """(n, width): the features at n tokens, made of the target's hidden states there."""
        raise NotImplementedError

    def _rows(self, tokens: Sequence[int], features_before: Tensor) -> Tensor:
        """The input rows of n tokens, with the features (n, width) before them."""
        raise NotImplementedError

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        self.forwards.begin()
        self.unseen = list(prefix)  # committed tokens whose rows have not been fed yet; the root is the last
        features = []
        if self.first_row:
            features.append(self.no_state)
        else:
            self.unseen = self.unseen[1:]
        if hidden:
            features.append(self._target_features(hidden))
        self.unseen_features = torch.cat(features) if features else None  # (len(unseen), width): before each
        self.max_depth = None if self.unseen else 0  # without a first row nothing is drafted behind a single token
        self.predicted: dict[int, Tensor] = {}  # expanded node → its predicted feature (width,)

    @torch.no_grad()
    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        first_is_root(not self.unseen, frontier)
        if self.unseen:  # in the first call of a step, which is for the root: its row is the last of these
            rows = self._rows(self.unseen, self.unseen_features)
            logits, features = self.forwards.text(rows)
            self.unseen = []
            if self.watch:
                self.watch.drafted(logits[0])
        else:
            tokens = [tree.token_list[node] for node in frontier]
            parents = [tree.parent_list[node] for node in frontier]
            rows = self._rows(tokens, torch.stack([self.predicted[parent] for parent in parents]))
            root_position = self.forwards.cache.length - 1
            logits, features = self.forwards.tree(tree, frontier, rows, root_position)
        self.predicted.update(zip(frontier, features, strict=True))
        return logits

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        features = self._target_features(hidden)  # (1 + accepted, width): before each accepted token and next_token
        if self.watch:
            self.watch.taken(tree.token_list[path[0]] if path else next_token, self.ids)
        if self.unseen:  # the head was not asked in this step, so that it has to catch up
            features = torch.cat([self.unseen_features, features])
        self.unseen_features = features
        self.unseen += [*(tree.token_list[node] for node in path), next_token]
        self.max_depth = None
        self.forwards.commit(())
        self.predicted = {}


class EagleDraft(HeadDraft, FeatureDraft):
    """Drafting with an EAGLE head (also of HASS, TALF and EAGLE-3)."""

    def __init__(self, forwards: DraftForwards, spec: Spec, frozen: Frozen):
        super().__init__(spec, frozen)
        self.forwards = forwards
        self.first_row = spec.first_row

    @torch.no_grad()
    def _target_features(self, hidden: dict[int, Tensor]) -> Tensor:
        states = [hidden[layer] for layer in self.hidden_layers]
        return self.forwards.model.head.fuse(states)

    def _rows(self, tokens: Sequence[int], features_before: Tensor) -> Tensor:
        return self.forwards.model.head.rows(self._embed(tokens), features_before)


class EddDraft(HeadDraft):
    """Drafting with an EDD head: it attends to a soft prompt, and after it to the root and the tokens drafted so far.

    The soft prompt is the target's hidden states of all committed tokens before the root. Only their keys and values
    are needed. A head that was trained without these states (the paper's ablation "without encoding result") reads the
    embeddings of committed tokens in their place. The rows of the root and of draft tokens are dropped after each step.
    """

    def __init__(self, forwards: DraftForwards, spec: Spec, frozen: Frozen):
        super().__init__(spec, frozen)
        self.forwards = forwards

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        self.forwards.begin()
        self.unseen = self._states(prefix[:-1], hidden)  # (n, width): rows of the soft prompt that are not fed yet

    def _states(self, tokens: Sequence[int], hidden: dict[int, Tensor]) -> Tensor:
        """(n, width): the rows of the soft prompt for these committed tokens."""
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
        """Append the keys and values of the unseen rows to the cache, as those of committed tokens."""
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
    """Drafting with Medusa-1's heads: head d predicts the token at depth d + 1, independently of the tokens before it.

    So all nodes at one depth have the same distribution. model: the heads, followed by the target's output rows; it
    takes a state (1, width) to logits (1, heads, V_d).
    """

    def __init__(self, model: nn.Sequential, spec: Spec, frozen: Frozen):
        super().__init__(spec, frozen)
        self.model = model
        self.count = self.max_depth = spec.count
        self.first_row = spec.first_row

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        if len(prefix) > 1:
            self._see(hidden[self.hidden_layer])
            return
        self._see(self.no_state)
        if not self.first_row:
            self.max_depth = 0  # a published head has learnt nothing about a text's first token

    def _see(self, states: Tensor) -> None:
        """Draft from the last of these states (n, width), at the token before the root, until the next commit."""
        self.max_depth = self.count
        self.state = states[-1:]
        self.logits: Tensor | None = None  # (heads, V_d), computed when they are first needed

    @torch.no_grad()
    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        depth = tree.depth[list(frontier)]
        deepest = int(depth.max())
        if deepest >= self.max_depth:
            raise ValueError(f"{self.max_depth} Medusa heads draft as many tokens deep, not {deepest + 1}")
        if self.logits is None:
            self.logits = self.model(self.state)[0]
            if self.watch:
                self.watch.drafted(self.logits[0])
        return self.logits[depth.to(self.logits.device)]

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        if self.watch:
            self.watch.taken(tree.token_list[path[0]] if path else next_token, self.ids)
        self._see(hidden[self.hidden_layer])
