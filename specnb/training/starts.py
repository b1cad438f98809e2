"""Where training begins: heads made of the target's own layers, and edd's eyes on the latest state.

An edd meets the target's state only through attention. Begun as one of the target's layers it does not learn, in a
million tokens, to look there: its agreement at depth 1 stays that at depth 5. So most of its heads begin by looking at
the latest state they may see, and by carrying from it what a linear map needs to foretell the next one.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specnb.heads import Eagle, Edd, Frozen, Vdm
from specnb.training.features import Features

SAMPLE = 40_000  # tokens that means and maps are taken from


@torch.no_grad()
def from_target(head: nn.Module, model: PreTrainedModel, hidden_layer: int | None = None) -> None:
    """Begin training well: a vdm from the target's first and last layers, edd from those that read its states.

    EAGLE begins as the identity: fc passes the feature through, the layer adds nothing yet. hidden_layer: the state
    that an edd reads; its attention comes from the layer of the target that reads this state, or from the last.
    Raises KeyError or RuntimeError from torch if an edd or a vdm is to start from layers that are not of Llama's make.
    """
    if isinstance(head, Vdm):
        layers = model.base_model.layers
        for ours, theirs in zip(head.model.layers, [*layers[: len(head.model.layers) - 1], layers[-1]], strict=True):
            ours.load_state_dict(theirs.state_dict())
    if isinstance(head, Edd):
        layers = model.base_model.layers
        _copy(head.layer, layers[min(hidden_layer or -1, -2) + 1], layers[-1])
    if isinstance(head, Eagle):
        width = head.fc.out_features
        nn.init.normal_(head.fc.weight, std=0.02)
        head.fc.weight[:, width:] += torch.eye(width)
        for part in (head.fc.bias, head.layer.o_proj.weight, head.layer.down_proj.weight):
            part.zero_()


def _copy(layer: nn.Module, reader: nn.Module, last: nn.Module) -> None:
    """Attention and its norm from one layer of the target, the rest from its last; shared key heads become copies."""
    found = {
        name.removeprefix("self_attn.").removeprefix("mlp."): weight
        for part, wanted in ((last, False), (reader, True))
        for name, weight in part.state_dict().items()
        if name.startswith(("self_attn.", "input_layernorm.")) == wanted
    }
    for name in ("k_proj.weight", "v_proj.weight"):
        shared = found[name].unflatten(0, (-1, layer.spec.head_width))
        found[name] = shared.repeat_interleave(layer.spec.key_heads // len(shared), 0).flatten(0, 1)
    layer.load_state_dict({name: found[name] for name in layer.state_dict()})


@torch.no_grad()
def look_at_states(head: Edd, frozen: Frozen, data: Features, hidden_layer: int) -> None:
    """Turn all attention heads but every third to the latest state: it wins their attention and foretells the next.

    data: features of the text that is trained on, with the states of this layer and of the last.
    Among normed rows x, w_q · x is about 1 for embedded tokens, w_k · x about 1 for states and 0 for tokens, so that
    a token's query and a state's key are fixed vectors, turned by their positions: scores fall with the distance. The
    values are the state's principal components at unit variance; the output is their ridge regression of the target's
    next state before its final norm, at the strength that the copied layer's output has.
    """
    layer, spec, device = head.layer, head.layer.spec, frozen.rows.device
    rows = torch.randperm(len(data.tokens) - 1, generator=torch.Generator().manual_seed(0))[:SAMPLE] + 1
    states = data.hidden[hidden_layer][rows - 1].to(device).float()
    usual = states.norm(dim=-1) < 4 * states.norm(dim=-1).median()  # a text's first states are of another size
    rows, states = rows[usual.cpu()], layer.input_layernorm(states[usual])
    embedded = frozen.embedding[data.tokens[rows].to(device)].float()
    tokens = layer.input_layernorm(embedded)
    following = data.hidden[-1][rows].to(device).float() / frozen.norm.weight.float()
    w_q = _ridge(tokens, torch.ones(len(tokens), 1, device=device))[:, 0]
    is_state = torch.cat([torch.ones(len(states), 1), torch.zeros(len(tokens), 1)]).to(device)
    w_k = _ridge(torch.cat([states, tokens]), is_state)[:, 0]
    looking = [h for h in range(spec.attention_heads) if h % 3 != 1]
    centred = states - states.mean(0)
    directions, variances, _ = torch.linalg.svd(centred.T @ centred / len(centred))
    count = len(looking) * spec.head_width
    values = directions[:, :count] / (variances[:count].sqrt() + 1e-3)  # (width, count)
    carried = states @ values
    output = _ridge(carried, following, 1e-2)  # (count, width)
    x, places = embedded[None, :256], torch.arange(min(256, len(embedded)), device=device)
    added = layer.attention(x, places, *layer.keys_values(x, places), None)
    output *= (added.square().mean() / (carried @ output).square().mean()).sqrt()
    half = spec.head_width // 2
    falling = _falling(spec.theta, half).to(device)
    query = torch.cat([falling[:half], -falling[half:]]) * spec.head_width**0.5
    key = torch.cat([torch.ones(half), torch.zeros(half)]).to(device)
    for part, h in zip(range(0, count, spec.head_width), looking, strict=True):
        place, block = slice(h * spec.head_width, (h + 1) * spec.head_width), slice(part, part + spec.head_width)
        layer.q_proj.weight[place], layer.k_proj.weight[place] = torch.outer(query, w_q), torch.outer(key, w_k)
        layer.v_proj.weight[place], layer.o_proj.weight[:, place] = values[:, block].T, output[block].T


def _ridge(x: Tensor, y: Tensor, strength: float = 1e-3) -> Tensor:
    """(a, b) weights of the ridge regression of y (n, b) on x (n, a), without intercept."""
    gram = x.T @ x / len(x)
    return torch.linalg.solve(gram + strength * gram.diagonal().mean() * torch.eye(len(gram)).to(x), x.T @ y / len(x))


def _falling(theta: float, half: int, slope: float = 1.5, steep: int = 12) -> Tensor:
    """(2 · half,) cosine and sine weights at the rotary frequencies of a score that falls with the distance.

    By slope a step over the distances that a block has, a fifth of that up to 60; least squares, with a small ridge.
    """
    distance = torch.arange(1, 60, dtype=torch.float64)
    angle = distance[:, None] / theta ** (torch.arange(half, dtype=torch.float64) / half)
    score = -slope * torch.minimum(distance, steep + (distance - steep).clamp_min(0) / 5)
    waves = torch.cat([angle.cos(), angle.sin()], 1)
    return torch.linalg.solve(waves.T @ waves + 0.05 * torch.eye(2 * half), waves.T @ (score - score.mean())).float()
