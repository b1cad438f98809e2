"""Who gives q: models that score the nodes of a growing tree, a whole frontier in one batched forward."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specnb import masks
from specnb.cache import ARGUMENT, TreeCache
from specnb.target import (
    call_options,
    context_length,
    device_of,
    evaluating,
    layers_dtype,
    of_model,
    output_rows,
    refusal,
)
from specnb.tree import TokenTree


class DraftModel(Protocol):
    """What TreeDrafter asks of a model.

    ids: None, or (V_d,) int64 sorted, the token ids of a reduced vocabulary.
    columns: optional; V_d, or None if it is not known before the first forward.
    hidden_layers: the target's hidden states it wants to see, () for none.
    max_depth: the deepest tree that it can draft in this step, None for any; 0 or less where it cannot draft.
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


class DraftForwards:
    """A draft model's forwards: rows of committed tokens first in its cache, those of a step's tree behind them.

    Rows are token ids (n,) or, for trained heads, vectors (n, width). model: called as transformers' models are.
    graphs: recorded forwards (``models.Graphs``) of this model, for all but the prompt's. states: whether its last
    hidden states are wanted, too.
    """

    def __init__(self, model: nn.Module, graphs=None, *, states: bool = False):
        self.model, self.graphs, self.layers = model, of_model(graphs, model), (-1,) if states else ()
        self.dtype = layers_dtype(model) if isinstance(model, PreTrainedModel) else None
        if graphs:
            graphs.prepare(self.layers)

    def begin(self) -> None:
        self.cache = self.graphs.empty() if self.graphs else TreeCache()
        self.commit(())

    def commit(self, nodes: Sequence[int]) -> None:
        """Of the tree's rows keep those of a path, without the root; drop the others."""
        self.cache.commit([self.slots[node] for node in nodes])
        self.slots: dict[int, int] = {}  # tree node → place behind the committed rows
        self.ahead: list[Tensor] = []  # positions of what stands there

    def text(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows that follow the committed ones, and stay: logits (1, V_d) and state (1, width) after the last."""
        start, count = self.cache.length, len(rows)
        visible = masks.visible(TokenTree.chain([0] * count), start) if start else None
        out = self._run(rows, start + torch.arange(count, device="cpu"), visible, logits_to_keep=1)
        self.cache.promote(count)
        self.ahead = []
        return tuple(None if each is None else each[-1:] for each in out)

    def tree(self, tree: TokenTree, frontier: Sequence[int], rows: Tensor, root: int) -> tuple[Tensor, Tensor | None]:
        """A frontier's rows; root: the root's position. Logits (m, V_d) and states (m, width)."""
        start, pending = self.cache.length, self.cache.pending
        self.slots.update({node: pending + row for row, node in enumerate(frontier)})
        visible = torch.zeros(len(frontier), start + pending + len(frontier), dtype=torch.bool, device="cpu")
        visible[:, :start] = True
        for row, node in enumerate(frontier):  # an ancestor without a slot of its own stands among the committed rows
            visible[row, [start + self.slots[a] for a in (0, *tree.path(node)) if a in self.slots]] = True
        return self._run(rows, root + tree.depth[list(frontier)], visible)

    @torch.no_grad()
    def _run(self, rows: Tensor, positions: Tensor, visible: Tensor | None, **kwargs) -> tuple[Tensor, Tensor | None]:
        like, mask, found = next(self.model.parameters()), None, None
        device, dtype = like.device, like.dtype
        if isinstance(self.model, PreTrainedModel):
            device, dtype = device_of(self.model), self.dtype
        self.ahead.append(positions)
        if visible is not None:
            columns = torch.cat([torch.arange(self.cache.length, device="cpu"), *self.ahead])
            mask = masks.additive(visible.to(device), dtype)
            mask = masks.by_layer(mask, self.model, positions, columns)
            found = self.graphs and self.graphs.score(self.cache, rows[None], positions[None], mask, self.layers)
        if found:
            return found[0], found[1].get(-1)
        inputs = {"input_ids" if rows.dim() == 1 else "inputs_embeds": rows[None].to(device)}
        inputs |= {"position_ids": positions[None].to(device), "attention_mask": mask, ARGUMENT: self.cache}
        with evaluating(self.model):
            options = call_options(self.model, **kwargs)
            out = self.model(**inputs, use_cache=True, output_hidden_states=bool(self.layers), **options)
        return out.logits[0], out.hidden_states[-1][0] if self.layers else None


class CausalLMDraft:
    """Any transformers causal language model as draft, with a KV cache of its own.

    vocabulary: the target's number of logits, where it differs from the draft's although both share a tokenizer
    (Qwen2.5 pads its models differently): surplus columns are cut, missing ones are declared through ids.
    ids: the tokens its logits stand for, where its output matrix was cut to a reduced vocabulary. graphs: see
    ``DraftForwards``.
    Tokens of the text that it does not know it reads as its last one: its guesses get worse, nothing else.
    Where its context ends before the target's, the text goes on without its guesses.
    Accepted tokens are kept in its cache, never recomputed; the next step feeds what it has not seen yet
    (the last accepted leaf, if it was never expanded, and the new root) in one forward.
    """

    hidden_layers = ()

    def __init__(
        self, model: PreTrainedModel, *, vocabulary: int | None = None, ids: Tensor | None = None, graphs=None
    ):
        if why := refusal(model):
            raise ValueError(f"no tree can be drafted by a {model.config.model_type} model: {why}")
        self.model, self.forwards = model, DraftForwards(model, graphs)
        own = output_rows(model)
        if ids is not None and len(ids) != own:
            raise ValueError(f"ids must name the model's {own} output rows, got {len(ids)}")
        self.columns = min(own, vocabulary or own) if ids is None else own
        self.ids = torch.arange(own, device="cpu") if ids is None and vocabulary and own < vocabulary else ids

    @property
    def max_depth(self) -> int:
        """The depth of the deepest tree for which its context has room; none is left where it is 0 or less.

        A node can be expanded at a position within the context; its children need none yet.
        """
        positions = self.forwards.cache.length + len(self.unseen)  # taken up to the root
        return context_length(self.model) - positions + 1

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        self.forwards.begin()
        self.unseen = list(prefix)  # committed tokens not in the cache yet, root last

    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        first_is_root(not self.unseen, frontier)
        known = self.model.config.get_text_config().vocab_size - 1
        tokens = self.unseen or [tree.token_list[node] for node in frontier]
        tokens = torch.tensor(tokens, device="cpu").clamp_max(known)
        if self.unseen:
            logits, _ = self.forwards.text(tokens)
        else:
            logits, _ = self.forwards.tree(tree, frontier, tokens, self.forwards.cache.length - 1)
        self.unseen = []
        return logits[:, : self.columns]

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        seen = [node for node in path if node in self.forwards.slots]
        self.forwards.commit(seen)
        self.unseen += [*(tree.token_list[node] for node in path[len(seen) :]), next_token]


def first_is_root(begun: bool, frontier: Sequence[int]) -> None:
    """ValueError unless the first expansion of a step is that of the root alone."""
    if not begun and list(frontier) != [0]:
        raise ValueError(f"the first expansion of a step is the root alone, got nodes {list(frontier)}")


class Tempered:
    """A draft model whose logits are divided by a temperature, to calibrate it (Guo et al. 2017); ranks stay.

    Raises ValueError on a temperature that is not above 0.
    """

    def __init__(self, draft: DraftModel, temperature: float):
        if not temperature > 0:
            raise ValueError(f"a draft's temperature must be above 0, got {temperature}")
        self.draft, self.temperature = draft, temperature
        self.ids, self.hidden_layers = draft.ids, draft.hidden_layers
        self.columns = getattr(draft, "columns", None)
        self.begin, self.commit = draft.begin, draft.commit

    @property
    def max_depth(self) -> int | None:
        return self.draft.max_depth

    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        logits = self.draft.expand(tree, frontier).float()  # in bfloat16 neighbours would fall together
        return logits / self.temperature


class TableDraft:
    """A toy draft model: ``law(prefix)`` → (V,) probabilities after a tuple of tokens. For exact enumeration."""

    ids, columns, hidden_layers, max_depth = None, None, (), None

    def __init__(self, law: Callable[[tuple[int, ...]], Tensor]):
        self.law = law

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        self.prefix = tuple(prefix)

    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        return torch.stack([self.law(self.prefix + tree.path_tokens(node)) for node in frontier]).log()

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        self.prefix += (*(tree.token_list[node] for node in path), next_token)
