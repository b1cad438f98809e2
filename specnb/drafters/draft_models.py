"""Draft models, which give q: they score the nodes of a growing tree, a whole frontier in one batched forward."""

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
    """A draft model's forwards. Its cache holds rows of committed tokens first, then those of the step's tree.

    A row is a token id, or for trained heads a vector: rows are (n,) int64 or (n, width). model: it is called as
    transformers' models are. graphs: recorded forwards (``models.Graphs``) of this model, used for all but the
    prompt's. states: whether the model's last hidden states are wanted, too.
    """

    def __init__(self, model: nn.Module, graphs=None, *, states: bool = False):
        self.model = model
        self.graphs = of_model(graphs, model)
        self.layers = (-1,) if states else ()
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
        self.pending_positions: list[Tensor] = []  # (n,) of each forward whose rows stand there

    def text(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rows that follow the committed ones, and stay: logits (1, V_d) and state (1, width) after the last."""
        start = self.cache.length
        count = len(rows)
        positions = start + torch.arange(count, device="cpu")
        visible = None
        if start:
            chain = TokenTree.chain([0] * count)
            visible = masks.visible(chain, start)
        logits, states = self._run(rows, positions, visible, logits_to_keep=1)
        self.cache.promote(count)
        self.pending_positions = []
        last_state = None if states is None else states[-1:]
        return logits[-1:], last_state

    def tree(self, tree: TokenTree, frontier: Sequence[int], rows: Tensor, root: int) -> tuple[Tensor, Tensor | None]:
        """The rows of a frontier of m nodes: logits (m, V_d) and states (m, width). root: the root's position.

        Example: the cache holds 5 committed rows, the root's last. Node 1, a child of the root, was fed before and
        stands in slot 0. For node 2 below it 7 columns are visible: 0 to 4, column 5 of node 1, and 6, its own.
        """
        committed = self.cache.length
        pending = self.cache.pending
        for row, node in enumerate(frontier):
            self.slots[node] = pending + row
        columns = committed + pending + len(frontier)
        visible = torch.zeros(len(frontier), columns, dtype=torch.bool, device="cpu")
        visible[:, :committed] = True
        for row, node in enumerate(frontier):
            path = (0, *tree.path(node))
            # A path's node without a slot of its own stands among the committed rows.
            seen = [committed + self.slots[above] for above in path if above in self.slots]
            visible[row, seen] = True
        positions = root + tree.depth[list(frontier)]
        return self._run(rows, positions, visible)

    @torch.no_grad()
    def _run(self, rows: Tensor, positions: Tensor, visible: Tensor | None, **options) -> tuple[Tensor, Tensor | None]:
        """Logits (n, V_d) and states (n, width) of rows at their positions (n,).

        visible: (n, all columns) bool, or None for a text's first rows. options: of an ordinary forward alone.
        """
        self.pending_positions.append(positions)
        mask = None
        if visible is not None:
            mask = self._mask(visible, positions)
            if self.graphs:
                scored = self.graphs.score(self.cache, rows[None], positions[None], mask, self.layers)
                if scored is not None:
                    logits, states = scored
                    return logits, states.get(-1)

        device, _ = self._placement()
        kind_of_rows = "input_ids" if rows.dim() == 1 else "inputs_embeds"
        inputs = {
            kind_of_rows: rows[None].to(device),
            "position_ids": positions[None].to(device),
            "attention_mask": mask,
            ARGUMENT: self.cache,
        }
        with evaluating(self.model):
            options = call_options(self.model, **options)
            out = self.model(**inputs, use_cache=True, output_hidden_states=bool(self.layers), **options)
        states = out.hidden_states[-1][0] if self.layers else None
        return out.logits[0], states

    def _mask(self, visible: Tensor, positions: Tensor) -> masks.Masks:
        """The additive mask of a forward, within the window that each kind of layer has."""
        device, dtype = self._placement()
        committed = torch.arange(self.cache.length, device="cpu")
        columns = torch.cat([committed, *self.pending_positions])
        mask = masks.additive(visible.to(device), dtype)
        return masks.by_layer(mask, self.model, positions, columns)

    def _placement(self) -> tuple[torch.device, torch.dtype]:
        """Where the model's inputs have to be, and its masks' dtype."""
        if isinstance(self.model, PreTrainedModel):
            return device_of(self.model), self.dtype
        parameter = next(self.model.parameters())
        return parameter.device, parameter.dtype


class CausalLMDraft:
    """Any transformers causal language model as draft, with a KV cache of its own.

    vocabulary: the target's number of logits, where it differs from the draft's although both share a tokenizer
    (Qwen2.5 pads its models differently). Surplus columns are cut, missing ones are declared through ids.
    ids: the tokens its logits stand for, where its output matrix was cut to a reduced vocabulary. graphs: see
    ``DraftForwards``.
    A token of the text that it does not know it reads as the last one that it knows: its guesses get worse, nothing
    else. Where its context ends before the target's, the text goes on without its guesses.
    Accepted tokens are kept in its cache, never computed again. The next step feeds what it has not seen yet, the new
    root and before it the last accepted leaf if that was never expanded, in one forward.
    Raises ValueError for a model that cannot be asked about trees, and unless ids are as many as its output rows.
    """

    hidden_layers = ()

    def __init__(
        self, model: PreTrainedModel, *, vocabulary: int | None = None, ids: Tensor | None = None, graphs=None
    ):
        if why := refusal(model):
            raise ValueError(f"no tree can be drafted by a {model.config.model_type} model: {why}")
        self.model = model
        self.forwards = DraftForwards(model, graphs)
        rows = output_rows(model)
        if ids is not None and len(ids) != rows:
            raise ValueError(f"ids must name the model's {rows} output rows, got {len(ids)}")
        self.ids = ids
        self.columns = rows
        if ids is None and vocabulary:
            self.columns = min(rows, vocabulary)
            if rows < vocabulary:
                self.ids = torch.arange(rows, device="cpu")

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
        if self.unseen:
            logits, _ = self.forwards.text(self._known(self.unseen))
        else:
            tokens = [tree.token_list[node] for node in frontier]
            root = self.forwards.cache.length - 1
            logits, _ = self.forwards.tree(tree, frontier, self._known(tokens), root)
        self.unseen = []
        return logits[:, : self.columns]

    def _known(self, tokens: Sequence[int]) -> Tensor:
        """(n,) int64; tokens beyond the model's vocabulary become its last one."""
        last = self.model.config.get_text_config().vocab_size - 1
        return torch.tensor(tokens, device="cpu").clamp_max(last)

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        seen = [node for node in path if node in self.forwards.slots]
        self.forwards.commit(seen)
        unseen = [tree.token_list[node] for node in path[len(seen) :]]
        self.unseen += [*unseen, next_token]


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
        self.draft = draft
        self.temperature = temperature
        self.ids = draft.ids
        self.hidden_layers = draft.hidden_layers
        self.columns = getattr(draft, "columns", None)
        self.begin = draft.begin
        self.commit = draft.commit

    @property
    def max_depth(self) -> int | None:
        return self.draft.max_depth

    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        logits = self.draft.expand(tree, frontier).float()  # in bfloat16 neighbours would fall together
        return logits / self.temperature


class TableDraft:
    """A toy draft model: ``law(prefix)`` → (V,) probabilities after a tuple of tokens. For exact enumeration."""

    ids = None
    columns = None
    hidden_layers = ()
    max_depth = None

    def __init__(self, law: Callable[[tuple[int, ...]], Tensor]):
        self.law = law

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        self.prefix = tuple(prefix)

    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        laws = [self.law(self.prefix + tree.path_tokens(node)) for node in frontier]
        return torch.stack(laws).log()  # (m, V)

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        accepted = [tree.token_list[node] for node in path]
        self.prefix += (*accepted, next_token)
