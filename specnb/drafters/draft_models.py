"""Draft models: they score the nodes of a growing tree, and so give q. One forward scores all nodes of a frontier."""

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
    """What TreeDrafter needs of a draft model. A frontier is the nodes that are expanded by one forward.

    ids: (V_d,) int64, rising: the token ids of a reduced vocabulary; None for the target's vocabulary.
    columns: optional; V_d, or None if it is not known before the first forward.
    hidden_layers: the layers of the target whose hidden states the draft model reads, () for none.
    max_depth: the deepest tree that it can draft in this step, None for any; 0 or less if it cannot draft.
    """

    ids: Tensor | None
    hidden_layers: tuple[int, ...]
    max_depth: int | None

    def begin(self, prefix: Sequence[int], hidden: dict[int, Tensor]) -> None:
        """Start a generation.

        prefix: the committed tokens, the root last. hidden: layer → (len(prefix) - 1, width).
        """

    def expand(self, tree: TokenTree, frontier: Sequence[int]) -> Tensor:
        """Return logits (len(frontier), V_d) after each frontier node, which sees only the prefix and its ancestors.

        The first call of a step is for the root alone, and a node's parent is always expanded before the node. The
        nodes of a frontier may have different depths.
        """

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        """Take in a finished step: the nodes of path were accepted, and next_token is the new root.

        tree: the tree of ``expand``. hidden: layer → (1 + len(path), width), of the root and the path.
        """


class DraftForwards:
    """The forwards of a draft model, with its cache: first the committed rows, then the rows of the step's tree.

    A row is one input of the model: a token id or, for trained draft heads, a vector. So rows are (n,) int64 or
    (n, width).

    model: a module that is called like a model of transformers.
    graphs: captured CUDA graphs of this model (``models.Graphs``), used for all forwards but the prompt's; or None.
    states: whether the forwards return the model's last hidden states, too.
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
        """Keep the tree's rows of these nodes, a path without the root; drop all others."""
        self.cache.commit([self.slots[node] for node in nodes])
        self.slots: dict[int, int] = {}  # tree node → index of its row among the rows after the committed ones
        self.pending_positions: list[Tensor] = []  # (n,) for each forward that made these rows

    def text(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Feed rows of committed text; return logits (1, V_d) and the state (1, width) after the last one."""
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
        """Feed the rows of a frontier of m nodes; return logits (m, V_d) and states (m, width).

        root: the root's position.

        Example: the cache has 5 committed rows, the root's last. Node 1, a child of the root, was fed before and has
        slot 0. Node 2 below it sees 7 columns: 0 to 4, column 5 of node 1, and its own column 6.
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
            # A node of the path without a slot, such as the root, is among the committed rows.
            seen = [committed + self.slots[above] for above in path if above in self.slots]
            visible[row, seen] = True
        positions = root + tree.depth[list(frontier)]
        return self._run(rows, positions, visible)

    @torch.no_grad()
    def _run(self, rows: Tensor, positions: Tensor, visible: Tensor | None, **options) -> tuple[Tensor, Tensor | None]:
        """Return logits (n, V_d) and states (n, width) of rows at their positions (n,).

        visible: (n, all columns) bool, or None for the first rows of a text.
        options: arguments of the model's forward; captured graphs do not use them.
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
        """Return the additive mask of a forward, limited to the window of each kind of layer."""
        device, dtype = self._placement()
        committed = torch.arange(self.cache.length, device="cpu")
        columns = torch.cat([committed, *self.pending_positions])
        mask = masks.additive(visible.to(device), dtype)
        return masks.by_layer(mask, self.model, positions, columns)

    def _placement(self) -> tuple[torch.device, torch.dtype]:
        """Return the device of the model's inputs, and the dtype of its masks."""
        if isinstance(self.model, PreTrainedModel):
            return device_of(self.model), self.dtype
        parameter = next(self.model.parameters())
        return parameter.device, parameter.dtype


class CausalLMDraft:
    """A causal language model of transformers as draft model, with its own KV cache.

    model: the language model.
    vocabulary: the target's number of logits, if it differs from the draft's although both have the same tokenizer
        (Qwen2.5 pads its models differently). Surplus logits are cut; if some are missing, ``ids`` lists those there
        are.
    ids: the token ids of the model's logits, if its output matrix was cut to a reduced vocabulary.
    graphs: see ``DraftForwards``.

    A token of the text beyond its vocabulary is read as its last token: drafts get worse, but the text stays right. If
    its context is shorter than the target's, the rest of the text is decoded without its drafts. Accepted tokens stay
    in its cache and are never computed again. The first forward of a step feeds the new tokens: the new root and,
    before it, the last accepted node if that was never expanded.

    Raises ValueError for a model that cannot score trees, and if ids are not one per output row.
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
        """The depth of the deepest tree that fits its context; 0 or less if there is no room.

        Only expanded nodes need a position within the context; the deepest nodes are not expanded.
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
        """(n,) int64: the tokens, with those beyond the model's vocabulary replaced by its last one."""
        last = self.model.config.get_text_config().vocab_size - 1
        return torch.tensor(tokens, device="cpu").clamp_max(last)

    def commit(self, tree: TokenTree, path: Sequence[int], next_token: int, hidden: dict[int, Tensor]) -> None:
        seen = [node for node in path if node in self.forwards.slots]
        self.forwards.commit(seen)
        unseen = [tree.token_list[node] for node in path[len(seen) :]]
        self.unseen += [*unseen, next_token]


def first_is_root(begun: bool, frontier: Sequence[int]) -> None:
    """ValueError unless the first frontier of a step is the root alone; begun: whether there was one before."""
    if not begun and list(frontier) != [0]:
        raise ValueError(f"the first expansion of a step is the root alone, got nodes {list(frontier)}")


class Tempered:
    """A draft model whose logits are divided by a temperature, to calibrate it (Guo et al. 2017).

    The order of the tokens stays the same. Raises ValueError unless the temperature is above 0.
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
        logits = self.draft.expand(tree, frontier).float()  # in bfloat16 different logits could become equal
        return logits / self.temperature


class TableDraft:
    """A toy draft model for exact enumeration: ``law(prefix)`` returns (V,) probabilities after a tuple of tokens."""

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
