"""Random heads beside tiny models, what training computes along a path, and a draft model that is held to it."""

import torch
from references import apart
from tiny import VOCABULARY, randomise

from specnb import heads, models
from training import loop, losses, recipes, starts

IDS = torch.arange(0, VOCABULARY, 2)  # the draft knows every second token


KINDS = {
    "vdm": ("vdm", None, 2),
    "medusa": ("medusa", -1, 4),
    "eagle": ("eagle", -1, 1),
    "eagle3": ("eagle3", None, 1, (-3, -2, -1)),
    "edd": ("edd", -2, 1),
    "edd without encoding": ("edd", None, 1),
}


def make(model, kind: str, hidden_layer=None, count: int = 1, fused=()):
    """A random head of one kind beside a model, (head, spec, frozen), in the model's dtype."""
    torch.manual_seed(7)
    spec = heads.Spec.like(model, kind, hidden_layer=hidden_layer, count=count, fused=fused)
    head = heads.MODULES[kind](spec)
    return randomise(head, 0.2).eval(), spec, heads.Frozen.of(model, IDS)


@torch.no_grad()
def trained_logits(head, spec, frozen, model, tokens: list[int], root: int, poison: float = 0.0) -> torch.Tensor:
    """(V_d,) logits after the last of the tokens by the training pass; tokens[:root] are committed, then a path.

    poison is added to every target state that does not exist yet when the root's tree is drafted.
    """
    ids = torch.tensor([tokens])
    states = model.base_model(ids, output_hidden_states=True).hidden_states
    embedded, depth = frozen.embedding[ids], len(tokens) - root
    seen = [states[layer].clone() for layer in spec.layers]
    for state in seen:
        state[:, root:] += poison
    state = seen[0] if seen else None
    if spec.kind == "vdm":
        out = losses.vdm_pass(head, frozen, embedded)[0, -1]
    elif spec.kind == "medusa":
        out = head(state[0, root - 1] if root else torch.zeros(spec.width))[depth - 1]
    elif spec.kind == "eagle":
        out = losses.eagle_pass(head, embedded, state, depth)[-1][0, -1]
    elif spec.kind == "eagle3":
        out = frozen.norm(losses.eagle_pass(head, embedded, head.fuse(seen), depth)[-1][0, -1])
    else:
        block = torch.arange(len(tokens)).clamp_max(root)  # the tree's block begins at its root
        out = losses.edd_pass(head, frozen, embedded, state, block)[0, -1]
    return out @ frozen.rows.T


class Compared:
    """A draft model that holds every node that it expands to a reference, over the node's whole path.

    reference: tokens and the place of the root among them → logits after the last token. tokens[:root] are committed.
    """

    def __init__(self, inner, reference):
        self.inner, self.reference = inner, reference
        self.worst, self.nodes, self.depths = 0.0, 0, set()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def begin(self, prefix, hidden):
        self.prefix = list(prefix)
        self.inner.begin(prefix, hidden)

    def expand(self, tree, frontier):
        logits = self.inner.expand(tree, frontier)
        for node, row in zip(frontier, logits, strict=True):
            tokens = self.prefix + list(tree.path_tokens(node))
            self.worst = max(self.worst, apart(row, self.reference(tokens, len(self.prefix) - 1)))
            self.nodes += 1
            self.depths.add(tree.depth_list[node])
        return logits

    def commit(self, tree, path, next_token, hidden):
        self.prefix += [*(tree.token_list[node] for node in path), next_token]
        self.inner.commit(tree, path, next_token, hidden)


# ---- training

V = 24  # so few that an untrained draft is right now and then
QUICK = loop.Schedule(epochs=2, batch_tokens=160, warmup=2, checkpoint_every=2)


def fresh(pair: models.Pair, name: str) -> tuple[torch.nn.Module, heads.Spec, recipes.Recipe]:
    """An untrained head by a recipe's name, its spec and the recipe."""
    recipe = recipes.named(name)
    torch.manual_seed(3)
    spec = recipe.spec(pair.target)
    head = heads.MODULES[recipe.kind](spec)
    starts.from_target(head, pair.target)
    return head, spec, recipe
