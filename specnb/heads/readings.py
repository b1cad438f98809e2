"""Whether a head drafts for this target as its file says: its loss, and that of other readings of the same file.

The keys of a published head show names and shapes. They do not show whether its queries are stored for another rope,
whether it reads the states of other layers, or whether it was trained for another model. All of these draft badly, and
the text stays right, so that nothing but the speed tells. ``check`` measures them on a text.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from specnb.heads.modules import Frozen, Spec
from specnb.heads.published import rotation_of
from specnb.target import device_of, evaluating

FEWEST = 100  # tokens
SURE = 4.0  # standard errors: how much better another reading must be


@dataclass(frozen=True, eq=False)
class Text:
    """A text as the target sees it."""

    ids: Tensor  # (1, n)
    states: tuple[Tensor, ...]  # transformers' hidden_states, (1, n, width) each
    laws: Tensor  # (n, V): the target's law of the next token


@torch.no_grad()
def check(
    parts: tuple[nn.Module, Spec, Frozen], model: PreTrainedModel, texts: Sequence[Sequence[int]]
) -> pd.DataFrame:
    """Measure a head on texts, as its file says it works and in other readings; ValueError if it cannot be right.

    parts: what ``heads.load`` returned, of an EAGLE, EAGLE-3 or Medusa head.
    model: the target.
    texts: sequences of token ids, 1,000 tokens and more together, of the kind that the head was trained for; ValueError
        for fewer than FEWEST together.

    The first row of the table is the head as it was loaded. Its columns:
    - agreement: how often the head's likeliest next token is the target's.
    - loss: the mean cross-entropy of the head's law with the target's, over the reduced vocabulary.
    - worse: how much larger the loss is than that of the first row, and standard_error that of this difference.

    The other rows are the same weights, read as if the file meant something else: another rope, halves of q_proj
    swapped, states of the neighbouring layers, a normed residual. ValueError is raised if one of them is better
    by more than four standard errors, because the file then means that. It is also raised if the first row agrees with
    the target no more often than twice the best constant guess, or half way from that guess to 1, whichever is less.
    Random weights never pass: do not check them.

    Example: the TALF head for SmolLM2-135M, on 2,400 tokens, agrees in 49 % and has a loss of 2.91. With the halves of
    q_proj swapped the loss is .39 to .46 larger, more than 20 standard errors; with a theta of 10,000 in place of
    100,000 it is .04 larger, 7 standard errors, although the agreement hardly differs. So with such a fault in the
    file, the right reading is found among the others.
    """
    _check_arguments(parts, texts)
    head, spec, frozen = parts
    seen = [_see(model, ids) for ids in texts]
    tokens = torch.cat([text.laws.argmax(-1) for text in seen])
    constant = float((tokens == tokens.mode().values).float().mean())
    hits, losses = _measure(head, spec, frozen, seen)
    rows = [_row("as loaded", hits, losses, losses)]
    expected = min(2 * constant, (1 + constant) / 2)  # of a text with few different tokens nobody has twice as many
    if rows[0]["agreement"] < expected:
        raise ValueError(
            f"the head's likeliest token is the target's in {rows[0]['agreement']:.1%} of {len(hits)} places, and "
            f"always the same token would be in {constant:.1%}: it was trained for another target, or is read wrongly"
        )
    for name, other_head, other_spec in _other_readings(head, spec, model):
        other_hits, other_losses = _measure(other_head, other_spec, frozen, seen)
        rows.append(_row(name, other_hits, other_losses, losses))
    table = pd.DataFrame(rows)
    better = table[table["worse"] < -SURE * table["standard_error"]]
    if len(better):
        best = better.sort_values("worse").iloc[0]
        raise ValueError(
            f"the head's file means something else than it says: with {best['reading']} its loss is "
            f"{best['loss']:.3f}, as loaded {table['loss'][0]:.3f}, on {len(hits)} tokens"
        )
    return table


def _check_arguments(parts: object, texts: Sequence[Sequence[int]]) -> None:
    """ValueError for what ``check`` cannot take, before anything is computed."""
    if not isinstance(parts, tuple) or len(parts) != 3:
        raise ValueError(f"parts must be what heads.load returned, got a {type(parts).__name__}")
    if any(isinstance(text, str | int) for text in texts):
        raise ValueError("texts must be sequences of token ids: [pair.encode(text), …]")
    tokens = sum(len(text) for text in texts)
    if tokens < FEWEST:
        raise ValueError(f"{tokens} tokens are too few to judge a head: {FEWEST} at least, better 1,000")


def _row(reading: str, hits: Tensor, losses: Tensor, first: Tensor) -> dict:
    difference = (losses - first).double().cpu().numpy()
    error = float(np.std(difference) / len(difference) ** 0.5)
    return {
        "reading": reading,
        "agreement": float(hits.float().mean()),
        "loss": float(losses.mean()),
        "worse": float(difference.mean()),
        "standard_error": error,
    }


def _see(model: PreTrainedModel, ids: Sequence[int]) -> Text:
    if len(ids) < 3:
        raise ValueError(f"a text to check a head on has three tokens or more, got {len(ids)}")
    tokens = torch.tensor([list(ids)], device=device_of(model))
    with evaluating(model):
        out = model(tokens, output_hidden_states=True, use_cache=False)
    return Text(tokens, out.hidden_states, out.logits[0].float().softmax(-1))


def _measure(head: nn.Module, spec: Spec, frozen: Frozen, texts: Sequence[Text]) -> tuple[Tensor, Tensor]:
    """Whether the head agrees with the target, bool (N,), and its losses (N,), at every row of all texts."""
    hits = []
    losses = []
    for text in texts:
        logits, laws = _first_depth(head, spec, frozen, text)
        hits.append(frozen.ids[logits.argmax(-1)] == laws.argmax(-1))
        wanted = laws[:, frozen.ids]
        losses.append(-(wanted * logits.float().log_softmax(-1)).sum(-1))
    return torch.cat(hits), torch.cat(losses)


def _first_depth(head: nn.Module, spec: Spec, frozen: Frozen, text: Text) -> tuple[Tensor, Tensor]:
    """The head's logits (m, V_d) at the first depth below every root, and the target's laws (m, V) there."""
    if spec.kind == "medusa":
        states = head(text.states[-1][0, :-1])[:, 0]  # (n − 1, width): those of the first head
        rows = frozen.rows if frozen.rows.dim() == 2 else frozen.rows[0]
        return states @ rows.T, text.laws[1:]
    if spec.kind not in ("eagle", "eagle3"):
        raise ValueError(f"only heads of eagle, eagle3 and medusa are checked, not of {spec.kind}")
    features = head.fuse([text.states[layer] for layer in spec.layers])
    embedded = F.embedding(text.ids, frozen.embedding)
    # Row t has token t + 1 and the feature of token t. Our own heads have a row before it, without a feature.
    if spec.first_row:
        x = head.rows(embedded, F.pad(features, (0, 0, 1, 0))[:, :-1])
    else:
        x = head.rows(embedded[:, 1:], features[:, :-1])
    positions = torch.arange(x.shape[1], device=x.device)
    states = head.layer(x, *head.layer.project(x, positions), None)
    logits = frozen.before_rows(spec.kind)(states[0]) @ frozen.rows.T
    return logits, text.laws[-len(logits) :]


def _other_readings(head: nn.Module, spec: Spec, model: PreTrainedModel) -> Iterator[tuple[str, nn.Module, Spec]]:
    """Names, modules and specs of the other readings of a head's weights."""
    if spec.kind == "medusa":
        return
    ropes = {"a rope of theta 10000": (10_000.0, (), 1.0)}
    of_target = rotation_of(model.config.get_text_config(), spec.head_width)
    if of_target is not None:
        ropes["the target's rope"] = of_target
    for name, (theta, frequencies, scale) in ropes.items():
        if (theta, frequencies, scale) != (spec.theta, spec.frequencies, spec.rotary_scale):
            yield name, *_respecified(head, spec, theta=theta, frequencies=frequencies, rotary_scale=scale)

    half = spec.head_width // 2
    yield (
        "the halves of each query swapped",
        _with_q(head, lambda q: _by_head(q, spec).roll(half, 1).flatten(0, 1)),
        spec,
    )
    yield "the halves of q_proj's inputs swapped", _with_q(head, lambda q: q.roll(q.shape[1] // 2, 1)), spec
    yield "the halves of q_proj's outputs swapped", _with_q(head, lambda q: q.roll(q.shape[0] // 2, 0)), spec
    if spec.kind == "eagle3":
        turned = not spec.norm_before_residual
        yield f"norm_before_residual {turned}", *_respecified(head, spec, norm_before_residual=turned)
        count = model.config.get_text_config().num_hidden_layers
        for shift in (-1, 1):
            fused = tuple(layer + shift for layer in spec.fused)
            if -count - 1 <= min(fused) and max(fused) <= -1:
                yield f"states {shift:+d} layer", head, replace(spec, fused=fused)


def _respecified(head: nn.Module, spec: Spec, **changes) -> tuple[nn.Module, Spec]:
    """A copy of a head whose layer follows a spec with these changes, and that spec."""
    changed = replace(spec, **changes)
    copied = copy.deepcopy(head)
    copied.layer.spec = changed
    copied.layer._frequencies = {}
    return copied, changed


def _with_q(head: nn.Module, change) -> nn.Module:
    """A copy of a head with a changed q_proj; its bias, if there is one, stays."""
    copied = copy.deepcopy(head)
    copied.layer.q_proj.weight.data = change(copied.layer.q_proj.weight.data).contiguous()
    return copied


def _by_head(weight: Tensor, spec: Spec) -> Tensor:
    """(heads · head_width, n) → (heads, head_width, n)."""
    return weight.unflatten(0, (-1, spec.head_width))
