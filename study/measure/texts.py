"""Texts: what methods write greedily, compared token by token with plain decoding, by the near-tie rule."""

from collections.abc import Sequence

import pandas as pd
import torch
from tqdm.auto import tqdm

from specnb import models, verifiers
from specnb.decode import decode
from specnb.exact.gallery import Unpositioned
from specnb.models import files, generate, prompts
from specnb.target import Target
from study.measure.clock import ALONE, recorded_as_asked
from study.measure.loading import built, lent_assistant, loaded
from study.methods import method

NEAR_TIE = 1e-3  # logits; float32 noise over 30 layers is a hundredth of that, ordinary gaps are tenths and more


def texts_block(
    prompt: str,
    methods: Sequence[str],
    length: int,
    control: str = "",
    pair: str = models.EMBEDDED,
    dtype: str = "float32",
    plain: str = "generate",
    head: str = "",
    softened: float = 1.0,
    forwards: str = "usual",
) -> list[dict[str, object]]:
    """Greedy texts of methods of ours beside those of plain decoding, by the near-tie rule; one row a method.

    equal: token by token; else first, the place where they part (None if one text is the beginning of the other), and
    gap, that of the two largest logits there. same: equal, or the gap is below rounding noise (NEAR_TIE) and the two
    texts hold the two likeliest tokens there. control: a method that also runs without position ids, which
    should part. The near-tie rule is float32's: in another dtype texts are equal or they are not. head, softened and
    forwards change the methods, see ``methods.method``.
    """
    ready = loaded(pair, dtype)
    ids = ready.encode(prompts.text(prompt))
    right = greedy_text(plain, ready, ids, length)
    changes = {"head": head, "softened": softened, "forwards": forwards}
    runs = [(name, True) for name in methods]
    if control:
        runs.append((control, False))
    rows = []
    for name, positions in runs:
        other = greedy_text(name, ready, ids, length, positions, **changes)
        rows.append({"method": name, "positions": positions, **compared(ready, ids, right, other)})
    return rows


@recorded_as_asked()
def greedy_text(
    name: str, pair: models.Pair, ids: Sequence[int], length: int, positions: bool = True, **changes: object
) -> tuple[int, ...]:
    """The tokens that a method writes greedily; end tokens are text.

    positions: whether the target is told them. changes: see ``methods.method``.
    """
    made = method(name, **changes)
    if not made.ours:
        if not positions:
            raise ValueError(f"a control runs in our loop, without position ids: {name!r} is transformers' own")
        options = dict(made.generate)
        if made.assistant:
            options["assistant_model"] = lent_assistant(pair, packed=False)
        return tuple(generate(pair, ids, length, whole=True, **options))
    kind = Target if positions else Unpositioned
    with ALONE:
        drafter, _, recorded = built(made, pair, len(ids) + length)
        target = kind(pair.target, window=made.window, forwards=recorded)
        return decode(target, drafter, verifiers.greedy, ids, max_new_tokens=length, eos=(), trace="none").tokens


def compared(pair: models.Pair, ids: Sequence[int], right: Sequence[int], other: Sequence[int]) -> dict[str, object]:
    """Two greedy texts behind a prompt by the near-tie rule: see ``texts_block``."""
    right = list(right)
    other = list(other)
    if right == other:
        return {"equal": True, "first": None, "gap": None, "same": True}
    first = _parting(right, other)
    if first is None:  # one text is the beginning of the other
        return {"equal": False, "first": None, "gap": None, "same": False}
    gap, likeliest = _likeliest_two(pair, [*ids, *right[:first]])
    noise = NEAR_TIE if pair.target.dtype == torch.float32 else 0.0
    tie = gap < noise and {right[first], other[first]} == likeliest
    return {"equal": False, "first": first, "gap": gap, "same": tie}


def _parting(right: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place at which two texts differ, as far as both go."""
    for place, (a, b) in enumerate(zip(right, other, strict=False)):
        if a != b:
            return place
    return None


@torch.no_grad()
def _likeliest_two(pair: models.Pair, tokens: Sequence[int]) -> tuple[float, set[int]]:
    """The gap between the two largest logits behind a text, and their tokens."""
    row = pair.target(torch.tensor([list(tokens)], device=pair.target.device)).logits[0, -1]
    top, two = row.float().topk(2)
    return float(top[0] - top[1]), set(two.tolist())


def texts(prompts: Sequence[str], methods: Sequence[str], **settings: object) -> pd.DataFrame:
    """``texts_block`` of several prompts here and now, not recorded."""
    rows = []
    for name in tqdm(prompts, unit="prompt", disable=files.QUIET):
        for row in texts_block(name, list(methods), **settings):
            rows.append({"prompt": name, **row})
    return pd.DataFrame(rows)
