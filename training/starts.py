"""Where training begins: heads that predict the target's next state as well as linear maps can.

Begun at random, or as one of the target's own layers, a head learns in a million tokens to read the state it is given
and next to nothing from the token beside it, whose embedding is a fourteenth of a state's size. A linear map knows what
both are worth before the first step: so EAGLE's input layer begins as one, and so do most of edd's attention heads.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specnb.heads import Eagle, Eagle3, Edd, Frozen, Spec, Vdm
from training.features import Features

SAMPLE = 60_000  # tokens that means and maps are taken from


@torch.no_grad()
def from_target(head: nn.Module, model: PreTrainedModel) -> None:
    """Begin with the target's own layers: a vdm with its first and last, an edd with the last.

    An EAGLE's layer adds nothing yet; Medusa's blocks begin at zero by themselves. What the target's layers have
    beside Llama's parts (biases of queries and keys) is left out; an edd or a vdm beside a target whose layers lack
    some of them begins at random.
    """
    layers = [layer.state_dict() for layer in getattr(model.base_model, "layers", ())]
    if isinstance(head, Vdm) and layers:
        for ours, theirs in zip(head.model.layers, [*layers[: len(head.model.layers) - 1], layers[-1]], strict=True):
            if ours.state_dict().keys() <= theirs.keys():
                narrowed = _narrowed(theirs, len(ours.mlp.gate_proj.weight))
                ours.load_state_dict({name: narrowed[name] for name in ours.state_dict()})
    if isinstance(head, Edd) and layers:
        _copy(head.layer, layers[-1])
    if isinstance(head, Eagle | Eagle3):
        for part in (head.layer.o_proj.weight, head.layer.down_proj.weight):
            part.zero_()


def _narrowed(layer: dict[str, Tensor], inner: int) -> dict[str, Tensor]:
    """A layer's weights with so many of its MLP's inner units: those whose three weight vectors are longest."""
    ways = {f"mlp.{name}_proj.weight": dim for name, dim in (("gate", 1), ("up", 1), ("down", 0))}
    length = torch.stack([layer[name].norm(dim=dim) for name, dim in ways.items()]).prod(0)
    kept = length.topk(inner).indices.sort().values
    return layer | {name: layer[name].index_select(1 - dim, kept) for name, dim in ways.items()}


def _copy(layer: nn.Module, theirs: dict[str, Tensor]) -> None:
    """The target's layer, if it has all that ours has; key heads that it shares among query heads become copies."""
    found = {name.removeprefix("self_attn.").removeprefix("mlp."): weight for name, weight in theirs.items()}
    if not layer.state_dict().keys() <= found.keys():
        return
    for name in ("k_proj.weight", "v_proj.weight"):
        shared = found[name].unflatten(0, (-1, layer.spec.head_width))
        found[name] = shared.repeat_interleave(layer.spec.key_heads // len(shared), 0).flatten(0, 1)
    layer.load_state_dict({name: found[name] for name in layer.state_dict()})


def begin(head: nn.Module, model: PreTrainedModel, frozen: Frozen, data: Features) -> None:
    """All that a new head is given before the first step; data: features of the text that is trained on."""
    from_target(head, model)
    if isinstance(head, Edd):
        look(head, frozen, data)
    if isinstance(head, Eagle | Eagle3):
        regress(head, frozen, data)


@torch.no_grad()
def regress(head: Eagle | Eagle3, frozen: Frozen, data: Features) -> None:
    """The fc begins as a ridge regression: EAGLE's of a token's feature on its embedding and the feature before it,
    EAGLE-3's, which has no bias and knows no token, of the next state before its final norm on the states it fuses."""
    rows = _sample(data)
    before = [data.hidden[layer][rows - 1].to(frozen.rows.device).float() for layer in head.layer.spec.layers]
    y = data.hidden[-1][rows].to(before[0])
    if isinstance(head, Eagle3):
        head.fc.weight.copy_(_even_ridge(torch.cat(before, 1), _before_norm(frozen, y)).T)
        return
    x = torch.cat([_embedded(frozen, data, rows), *before], 1)
    weight = _even_ridge(x - x.mean(0), y - y.mean(0))  # (2 · width, width)
    head.fc.weight.copy_(weight.T)
    head.fc.bias.copy_(y.mean(0) - x.mean(0) @ weight)


@torch.no_grad()
def look(head: Edd, frozen: Frozen, data: Features) -> None:
    """Turn half of the attention heads to the latest state, half to the row's own token; the MLP adds nothing yet.

    data: features of the text that is trained on, with the states it reads and the last ones; an edd without states
    looks at tokens only. Among normed rows x, w_q · x is about 1 for embedded tokens, w_k · x about 1 for the
    rows that a head looks at and 0 for others, so that queries and keys are fixed vectors, turned by their positions:
    scores fall with the distance. Values and output are the ridge regression of the target's next state before its
    final norm on both kinds of row, at the rank that the heads have, for states one and two places old.
    """
    layer, spec, hidden_layer = head.layer, head.layer.spec, head.layer.spec.hidden_layer
    rows = _sample(data)
    old = torch.randint(1, 3, (len(rows),), generator=torch.Generator().manual_seed(1))
    embedded = _embedded(frozen, data, rows)
    parts = [layer.input_layernorm(embedded)]
    following = _before_norm(frozen, data.hidden[-1][rows].to(embedded)) - embedded
    scores, ones = [_falling(spec, slope=3.0, steep=6, first=0)], torch.arange(spec.head_width) < spec.head_width // 2
    if hidden_layer is not None:
        parts.append(layer.input_layernorm(data.hidden[hidden_layer][rows - old].to(embedded)))
        scores.append(_falling(spec, slope=1.5, steep=12, first=1))
    w_q = _ridge(parts[0], torch.ones(len(rows), 1).to(embedded))[:, 0]
    scales = [x.std(0) + 1e-6 for x in parts]
    joint = _ridge(torch.cat([x / scale for x, scale in zip(parts, scales, strict=True)], 1), following)
    for weight in (layer.o_proj.weight, layer.down_proj.weight):
        weight.zero_()
    half, carried = spec.attention_heads // 2, []
    count = half * spec.head_width
    for i, (x, scale, score) in enumerate(zip(parts, scales, scores, strict=True)):
        weight = joint[i * spec.width : (i + 1) * spec.width] / scale[:, None]
        fit = x @ weight
        values = weight @ torch.linalg.eigh(fit.T @ fit).eigenvectors[:, -count:]  # (width, count)
        values = values / ((x @ values).std(0) + 1e-6)
        is_x = torch.cat([torch.full((len(part), 1), float(part is x)) for part in parts]).to(x)
        w_k = _ridge(torch.cat(parts), is_x)[:, 0]
        place, carried = slice(i * count, (i + 1) * count), [*carried, x @ values]
        layer.q_proj.weight[place] = torch.outer(score.to(x), w_q).repeat(half, 1)
        layer.k_proj.weight[place] = torch.outer(ones.to(x), w_k).repeat(half, 1)
        layer.v_proj.weight[place] = values.T
    output = _ridge(torch.cat(carried, 1), following)
    layer.o_proj.weight[:, : len(output)] = output.T


def _before_norm(frozen: Frozen, states: Tensor) -> Tensor:
    """States that left the final norm as they entered it, up to their length; ones and minus ones show its gains and
    shifts, whatever it makes of its weights."""
    signs = 1 - 2 * (torch.arange(states.shape[-1]) % 2).to(frozen.rows)
    ahead, back = (frozen.norm(sign[None]).float() for sign in (signs, -signs))
    return (states - (ahead + back) / 2) / ((ahead - back) / 2 * signs)


def _sample(data: Features) -> Tensor:
    """SAMPLE rows, rising, that have three others of their dialogue before them; a text's first state is an outlier."""
    place = torch.arange(len(data.tokens)) - data.start[:-1].repeat_interleave(data.start.diff())
    rows = (place >= 3).nonzero()[:, 0]
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:SAMPLE]].sort().values


def _embedded(frozen: Frozen, data: Features, rows: Tensor) -> Tensor:
    return frozen.embedding[data.tokens[rows].to(frozen.embedding.device)].float()


def _ridge(x: Tensor, y: Tensor, strength: float = 1e-2) -> Tensor:
    """(a, b) weights of the ridge regression of y (n, b) on x (n, a), without intercept."""
    gram = x.T @ x / len(x)
    return torch.linalg.solve(gram + strength * gram.diagonal().mean() * torch.eye(len(gram)).to(x), x.T @ y / len(x))


def _even_ridge(x: Tensor, y: Tensor) -> Tensor:
    """The same with columns of x brought to one spread, so that the ridge weighs alike on all of them."""
    scale = x.std(0) + 1e-6
    return _ridge(x / scale, y) / scale[:, None]


def _falling(spec: Spec, *, slope: float, steep: int, first: int) -> Tensor:
    """(head_width,) query against a key of ones and zeros, for a score that falls with the distance from ``first`` on.

    By slope a step up to ``steep``, a fifth of that up to 60; least squares over the rotary waves, with a small ridge.
    """
    half, distance = spec.head_width // 2, torch.arange(first, 60, dtype=torch.float64)
    angle = distance[:, None] / spec.theta ** (torch.arange(half, dtype=torch.float64) / half)
    score = -slope * torch.minimum(distance, steep + (distance - steep).clamp_min(0) / 5)
    waves = torch.cat([angle.cos(), -angle.sin()], 1)
    weights = _ridge(waves, (score - score.mean())[:, None], strength=0.1 / len(waves))[:, 0]
    return weights.float() * spec.head_width**0.5
