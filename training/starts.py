"""The weights that training begins with: heads that predict the target's next state as well as a linear map can.

Training on a million tokens teaches a head to read the state that it is given, even if the head begins at random or as
a copy of one of the target's layers. It teaches the head next to nothing about the token beside the state, because a
token's embedding is a fourteenth of a state's size. A linear map, fitted before the first step, knows how much each of
the two predicts. So EAGLE's input layer begins as a linear map, and so do most of EDD's attention heads.

Rows, here, are token positions of the training text (``rows``), or the vectors that a layer reads there (``x``).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specnb.heads import Eagle, Eagle3, Edd, Frozen, Spec, Vdm
from specnb.heads.modules import Layer
from training.features import Features

SAMPLE = 60_000  # tokens that the linear maps are fitted on


def begin(head: nn.Module, model: PreTrainedModel, frozen: Frozen, data: Features) -> None:
    """Set the weights of a new head, before the first training step. data: features of the training text."""
    from_target(head, model)
    if isinstance(head, Edd):
        look(head, frozen, data)
    if isinstance(head, Eagle | Eagle3):
        regress(head, frozen, data)


# ---- the target's own layers ----------------------------------------------------------------------------------


@torch.no_grad()
def from_target(head: nn.Module, model: PreTrainedModel) -> None:
    """Copy layers of the target: its first ones and its last into a vdm, its last into an edd.

    A vdm is a small Llama of its own; an edd is one decoder layer that also attends to the target's states. The layer
    of an EAGLE or EAGLE-3 begins by adding nothing to what it reads. Medusa's blocks begin at zero by themselves.

    A head's layers have the parts of Llama's. Parts that the target has beside these (biases of queries and keys) are
    left out. If the target lacks one of these parts, nothing is copied, and the head's layer stays random.
    """
    layers = [layer.state_dict() for layer in getattr(model.base_model, "layers", ())]
    if isinstance(head, Vdm) and layers:
        _copy_into_vdm(head, layers)
    if isinstance(head, Edd) and layers:
        _copy_into_edd(head.layer, layers[-1])
    if isinstance(head, Eagle | Eagle3):
        _add_nothing(head.layer)


def _copy_into_vdm(head: Vdm, layers: Sequence[dict[str, Tensor]]) -> None:
    """Copy the target's first layers and its last, each with only as many inner units of the MLP as the vdm has."""
    own_layers = head.model.layers
    first = layers[: len(own_layers) - 1]
    last = layers[-1]
    for layer, theirs in zip(own_layers, [*first, last], strict=True):
        names = layer.state_dict().keys()
        if not names <= theirs.keys():
            continue
        units = len(layer.mlp.gate_proj.weight)
        narrowed = _narrowed(theirs, units)
        layer.load_state_dict({name: narrowed[name] for name in names})


def _narrowed(layer: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """A layer's weights with only ``count`` of the MLP's inner units: those with the longest weight vectors, in order.

    A unit has three weight vectors: a row of gate_proj, a row of up_proj and a column of down_proj. Units are ranked
    by the product of the three lengths. Example: two units have the lengths (1, 1, 5) and (2, 2, 1). The products are
    5 and 4, so a count of 1 keeps the first unit.
    """
    gate = layer["mlp.gate_proj.weight"]  # (units, width)
    up = layer["mlp.up_proj.weight"]  # (units, width)
    down = layer["mlp.down_proj.weight"]  # (width, units)
    gate_lengths = gate.norm(dim=1)  # (units,)
    up_lengths = up.norm(dim=1)
    down_lengths = down.norm(dim=0)
    products = torch.stack([gate_lengths, up_lengths, down_lengths]).prod(0)
    longest = products.topk(count).indices
    kept = longest.sort().values
    return layer | {
        "mlp.gate_proj.weight": gate.index_select(0, kept),
        "mlp.up_proj.weight": up.index_select(0, kept),
        "mlp.down_proj.weight": down.index_select(1, kept),
    }


def _copy_into_edd(layer: Layer, theirs: dict[str, Tensor]) -> None:
    """Copy a layer of the target, if it has all parts that an edd's layer has.

    In the target several query heads may share one key head. An edd has one key head per query head, so shared ones are
    repeated. Example: four query heads and the two key heads a and b of the target become the key heads a, a, b, b.
    """
    spec = layer.spec
    weights = {}
    for name, weight in theirs.items():
        ours = name.removeprefix("self_attn.").removeprefix("mlp.")
        weights[ours] = weight
    names = layer.state_dict().keys()
    if not names <= weights.keys():
        return
    for name in ("k_proj.weight", "v_proj.weight"):
        shared = weights[name].unflatten(0, (-1, spec.head_width))  # (the target's key heads, head_width, width)
        copied = shared.repeat_interleave(spec.key_heads // len(shared), 0)
        weights[name] = copied.flatten(0, 1)
    layer.load_state_dict({name: weights[name] for name in names})


def _add_nothing(layer: Layer) -> None:
    """Set to zero what attention and MLP add to a row, so that the layer returns its rows unchanged."""
    layer.o_proj.weight.zero_()
    layer.down_proj.weight.zero_()


# ---- regressions ----------------------------------------------------------------------------------------------


@torch.no_grad()
def regress(head: Eagle | Eagle3, frozen: Frozen, data: Features) -> None:
    """Fit a head's input layer ``fc`` by ridge regression, from what a row reads to the target's state at that row.

    EAGLE's fc predicts the state of a token from the token's embedding and the state of the token before. EAGLE-3's fc
    has no bias and reads no token: it predicts the state as it enters the final norm, from the states that EAGLE-3
    fuses, of the token before.
    """
    rows = _sample(data)
    before = []  # (n, width) each: the states that the head reads, taken one token earlier
    for layer in head.layer.spec.layers:
        states = data.hidden[layer][rows - 1]
        before.append(states.to(frozen.rows.device).float())
    target = data.hidden[-1][rows].to(before[0])  # (n, width)

    if isinstance(head, Eagle3):
        fused = torch.cat(before, 1)  # (n, fused states · width)
        weight = _even_ridge(fused, _before_norm(frozen, target))
        head.fc.weight.copy_(weight.T)
        return

    tokens = _embedded(frozen, data, rows)
    x = torch.cat([tokens, *before], 1)  # (n, 2 · width)
    x_mean = x.mean(0)
    target_mean = target.mean(0)
    weight = _even_ridge(x - x_mean, target - target_mean)  # (2 · width, width)
    head.fc.weight.copy_(weight.T)
    head.fc.bias.copy_(target_mean - x_mean @ weight)


@torch.no_grad()
def look(head: Edd, frozen: Frozen, data: Features) -> None:
    """Make half of an edd's attention heads look at the row's own token, half at the latest state of the target.

    Example: with 4 attention heads of width 16, rows 0 to 31 of q_proj, k_proj and v_proj belong to the two heads that
    look at tokens, rows 32 to 63 to the two that look at states. In an edd that reads no states the latter add nothing.

    Where a head looks. Every token asks with the same query (see ``_falling``): its normed row x has w_q · x of about
    1, and that number is multiplied by a fixed vector. The keys are made in the same way, but a head's w_k · x is about
    1 only for the kind of row that it looks at, and about 0 for the other kind. The rotary embedding turns queries and
    keys by their positions, and the query is chosen so that scores fall with the distance.

    What a head returns. A ridge regression predicts, from both kinds of row, what the layer is to add to the token's
    row so that the sum is the target's next state before its final norm. The heads have room for its main directions.
    The regression is fitted on states that are one and two tokens old. The MLP adds nothing yet.

    data: features of the training text, with the states that the head reads and the last ones.
    """
    layer = head.layer
    spec = layer.spec
    rows = _sample(data)
    generator = torch.Generator().manual_seed(1)
    ages = torch.randint(1, 3, (len(rows),), generator=generator)  # (n,): how many tokens old a row's state is
    tokens = _embedded(frozen, data, rows)  # (n, width)
    next_states = data.hidden[-1][rows].to(tokens)
    missing = _before_norm(frozen, next_states) - tokens  # (n, width): what the layer is to add to the token's row

    # The slopes give most of the attention to the nearest row of a kind: 1 − e^−3 = 95 %, and 1 − e^−1.5 = 78 %.
    kinds = [layer.input_layernorm(tokens)]  # (n, width) each: the rows that the heads look at
    queries = [_falling(spec, slope=3.0, steep=6, first=0)]  # (head_width,) each
    if spec.hidden_layer is not None:
        states = data.hidden[spec.hidden_layer][rows - ages].to(tokens)
        kinds.append(layer.input_layernorm(states))
        queries.append(_falling(spec, slope=1.5, steep=12, first=1))
    fixed_key = torch.arange(spec.head_width) < spec.head_width // 2  # (head_width,): ones, then zeros
    ones = torch.ones(len(rows), 1).to(tokens)
    w_q = _ridge(kinds[0], ones)[:, 0]  # (width,)

    _add_nothing(layer)
    heads_per_kind = spec.attention_heads // 2
    count = heads_per_kind * spec.head_width  # numbers that the heads of one kind return
    returned = []  # (n, count) each
    for number, weight in enumerate(_joint_ridge(kinds, missing)):
        x = kinds[number]
        w_k = _indicator_weights(kinds, number)
        values = _main_directions(x, weight, count)
        weight_rows = slice(number * count, (number + 1) * count)
        query_of_one_head = torch.outer(queries[number].to(x), w_q)  # (head_width, width)
        key_of_one_head = torch.outer(fixed_key.to(x), w_k)
        layer.q_proj.weight[weight_rows] = query_of_one_head.repeat(heads_per_kind, 1)
        layer.k_proj.weight[weight_rows] = key_of_one_head.repeat(heads_per_kind, 1)
        layer.v_proj.weight[weight_rows] = values.T
        returned.append(x @ values)
    output = _ridge(torch.cat(returned, 1), missing)  # (kinds · count, width)
    layer.o_proj.weight[:, : len(output)] = output.T


def _joint_ridge(kinds: Sequence[Tensor], y: Tensor) -> list[Tensor]:
    """The ridge regression of y (n, b) on all kinds of rows together: weights (width, b) for each kind (n, width).

    All columns are scaled to the same spread first, as in ``_even_ridge``.
    """
    scales = [x.std(0) + 1e-6 for x in kinds]
    even = [x / scale for x, scale in zip(kinds, scales, strict=True)]
    joint = _ridge(torch.cat(even, 1), y)  # (kinds · width, b)
    weights = joint.split(kinds[0].shape[1])
    return [weight / scale[:, None] for weight, scale in zip(weights, scales, strict=True)]


def _indicator_weights(kinds: Sequence[Tensor], chosen: int) -> Tensor:
    """Weights w (width,) with w · x of about 1 for rows x of the chosen kind, and of about 0 for the other kinds.

    Example: with the row (1, 0) of one kind and (0, 1) of the other, w is near (1, 0) for the first kind.
    """
    labels = []
    for number, rows in enumerate(kinds):
        label = 1.0 if number == chosen else 0.0
        labels.append(torch.full((len(rows), 1), label))
    all_rows = torch.cat(list(kinds))
    all_labels = torch.cat(labels).to(all_rows)
    return _ridge(all_rows, all_labels)[:, 0]


def _main_directions(x: Tensor, weight: Tensor, count: int) -> Tensor:
    """Weights (width, count) that keep most of the prediction x @ weight (n, width) in ``count`` numbers per row.

    The numbers are the prediction's projections on the directions in which it varies most, each scaled to a spread of
    1.
    """
    predicted = x @ weight
    directions = torch.linalg.eigh(predicted.T @ predicted).eigenvectors  # (width, width), the strongest last
    values = weight @ directions[:, -count:]
    return values / ((x @ values).std(0) + 1e-6)


def _before_norm(frozen: Frozen, states: Tensor) -> Tensor:
    """Undo the final norm: the states as they entered it, up to their length.

    A norm scales a row to a fixed length, multiplies it by gains and may add shifts. Gains and shifts are found without
    looking at its weights, by applying it to a row of ones and minus ones and to the opposite row. Example: gains
    (2, 3) without shifts turn (1, −1) into (2, −3) and (−1, 1) into (−2, 3). Half of their difference, with the signs
    taken off, is (2, 3). So the state (4, 3) entered as a multiple of (2, 1).
    """
    odd = torch.arange(states.shape[-1]) % 2  # (width,): 0, 1, 0, 1, …
    signs = 1 - 2 * odd.to(frozen.rows)  # (width,): 1, −1, 1, −1, …
    ahead = frozen.norm(signs[None]).float()  # (1, width): gains · signs + shifts
    back = frozen.norm(-signs[None]).float()  # (1, width): −gains · signs + shifts
    shifts = (ahead + back) / 2
    gains = (ahead - back) / 2 * signs
    return (states - shifts) / gains


def _sample(data: Features) -> Tensor:
    """At most SAMPLE rows, in rising order, each with three tokens of its dialogue before it.

    The states of the first tokens are left out because a text's first state is an outlier. Example: dialogues of 5 and
    4 tokens are rows 0 to 8, of which 3, 4 and 8 can be drawn.
    """
    lengths = data.start.diff()
    begins = data.start[:-1].repeat_interleave(lengths)  # (N,) where each token's dialogue begins
    positions = torch.arange(len(data.tokens)) - begins
    rows = (positions >= 3).nonzero()[:, 0]
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(rows), generator=generator)
    drawn = rows[order[:SAMPLE]]
    return drawn.sort().values


def _embedded(frozen: Frozen, data: Features, rows: Tensor) -> Tensor:
    """The embeddings (n, width) of the tokens at rows (n,), in float32."""
    tokens = data.tokens[rows].to(frozen.embedding.device)
    return frozen.embedding[tokens].float()


def _ridge(x: Tensor, y: Tensor, strength: float = 1e-2) -> Tensor:
    """Ridge regression of y (n, b) on x (n, a) without intercept; weights (a, b).

    The penalty is ``strength`` times the mean square of x. Example: for x = (1, 3) and y = (2, 6) the mean square of x
    is 5 and the mean product is 10. The weight is 10 / (5 + 0.01 · 5) = 1.98, a little less than 2.
    """
    gram = x.T @ x / len(x)  # (a, a)
    products = x.T @ y / len(x)  # (a, b)
    penalty = strength * gram.diagonal().mean()
    identity = torch.eye(len(gram)).to(x)
    return torch.linalg.solve(gram + penalty * identity, products)


def _even_ridge(x: Tensor, y: Tensor) -> Tensor:
    """Ridge regression after scaling the columns of x to the same spread, so that the penalty treats them alike."""
    scale = x.std(0) + 1e-6
    return _ridge(x / scale, y) / scale[:, None]


def _falling(spec: Spec, *, slope: float, steep: int, first: int) -> Tensor:
    """A query (head_width,) whose score falls with the distance from the key. The key is half ones, then half zeros.

    Example: with slope 3 and steep 6, distances 1, 6 and 11 are to score 3, 18 and 21 less than distance 0. A head of
    width 64 (theta 10,000) comes as near as 2.8, 16.8 and 21.0.

    The rotary embedding turns query q and key. Their product at distance d is a sum over the frequencies j,
    Σ_j q_j cos(d ω_j) − q_{half + j} sin(d ω_j), with ω_j = theta^(−j / half). The query is fitted to the wanted
    scores by least squares with a small ridge. Only differences between scores matter, so their mean is subtracted.

    slope: how much the score falls per token, up to the distance ``steep``; from there to 60 it falls by a fifth of it.
    first: the smallest distance that occurs.
    """
    half = spec.head_width // 2
    distance = torch.arange(first, 60, dtype=torch.float64)  # (distances,)
    j = torch.arange(half, dtype=torch.float64)
    angle = distance[:, None] / spec.theta ** (j / half)  # (distances, half)
    waves = torch.cat([angle.cos(), -angle.sin()], 1)  # (distances, head_width)

    slow = (distance - steep).clamp_min(0) / 5
    score = -slope * torch.minimum(distance, steep + slow)
    wanted = (score - score.mean())[:, None]
    query = _ridge(waves, wanted, strength=0.1 / len(waves))[:, 0]  # about .002: a close fit
    return query.float() * spec.head_width**0.5  # attention divides scores by this root
