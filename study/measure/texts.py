"""Texts: what methods write greedily, compared token by token with plain decoding, by the near-tie rule."""

from collections.abc import Sequence

import pandas as pd
import torch

from specnb import models, verifiers
from specnb.decode import decode
from specnb.exact.gallery import Unpositioned
from specnb.models import generate
from specnb.target import Target
from study.measure import live
from study.measure.clock import ALONE, recorded_as_asked
from study.measure.loading import built, lent_assistant, loaded
from study.methods import USUAL
from study.methods import method as method_named

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
    forwards: str = USUAL,
) -> list[dict[str, object]]:
    """Greedy texts of methods of ours beside those of plain decoding, by the near-tie rule; one row a method.

    Columns: method; positions, whether the target was told position ids; equal, whether the texts are equal token by
    token; first, the place where they part (None if they do not, or one text is the beginning of the other); gap, that
    of the two largest logits there; same, whether the texts are equal or the gap is below rounding noise (NEAR_TIE) and
    the two texts hold the two likeliest tokens there. The near-tie rule is float32's: in another dtype texts are equal
    or they are not.

    control: a method that also runs without position ids, which should part. plain: the method that writes the text to
    compare with. head, softened and forwards change the methods, see ``methods.method``.
    """
    ready = loaded(pair, dtype)
    ids = ready.encode(models.prompts.text(prompt))
    plain_text = greedy_text(plain, ready, ids, length)
    changes = {"head": head, "softened": softened, "forwards": forwards}
    runs = [(name, True) for name in methods]
    if control:
        runs.append((control, False))
    rows = []
    for name, positions in runs:
        text = greedy_text(name, ready, ids, length, positions, **changes)
        comparison = compared(ready, ids, plain_text, text)
        rows.append({"method": name, "positions": positions, **comparison})
    return rows


@recorded_as_asked()
def greedy_text(
    name: str, pair: models.Pair, ids: Sequence[int], length: int, positions: bool = True, **changes: object
) -> tuple[int, ...]:
    """The tokens that a method writes greedily; end tokens are text.

    positions: whether the target is told them. changes: see ``methods.method``.
    """
    method = method_named(name, **changes)
    if not method.ours:
        if not positions:
            raise ValueError(f"a control runs in our loop, without position ids: {name!r} is transformers' own")
        options = dict(method.generate)
        if method.assistant:
            options["assistant_model"] = lent_assistant(pair, packed=False)
        return tuple(generate(pair, ids, length, whole=True, **options))
    kind = Target if positions else Unpositioned
    with ALONE:
        drafter, _, recorded = built(method, pair, len(ids) + length)
        target = kind(pair.target, window=method.window, forwards=recorded)
        text = decode(target, drafter, verifiers.greedy, ids, max_new_tokens=length, eos=(), trace="none")
    return text.tokens


def compared(pair: models.Pair, ids: Sequence[int], plain: Sequence[int], text: Sequence[int]) -> dict[str, object]:
    """Two greedy texts behind a prompt, that of plain decoding first, by the near-tie rule: see ``texts_block``."""
    plain = list(plain)
    text = list(text)
    if plain == text:
        return {"equal": True, "first": None, "gap": None, "same": True}
    first = _parting(plain, text)
    if first is None:  # one text is the beginning of the other
        return {"equal": False, "first": None, "gap": None, "same": False}
    gap, likeliest = _likeliest_two(pair, [*ids, *plain[:first]])
    noise = NEAR_TIE if pair.target.dtype == torch.float32 else 0.0
    is_tie = gap < noise and {plain[first], text[first]} == likeliest
    return {"equal": False, "first": first, "gap": gap, "same": is_tie}


def _parting(plain: Sequence[int], text: Sequence[int]) -> int | None:
    """The first place at which two texts differ, as far as both go; None if they do not.

    >>> _parting([5, 6, 7], [5, 6, 8, 9]), _parting([5, 6], [5, 6, 8])
    (2, None)
    """
    for place, (token, other_token) in enumerate(zip(plain, text, strict=False)):
        if token != other_token:
            return place
    return None


@torch.no_grad()
def _likeliest_two(pair: models.Pair, tokens: Sequence[int]) -> tuple[float, set[int]]:
    """The gap between the two largest logits behind a text, and their tokens."""
    ids = torch.tensor([list(tokens)], device=pair.target.device)  # (1, T)
    last = pair.target(ids).logits[0, -1]  # (V,)
    logits, likeliest = last.float().topk(2)
    return float(logits[0] - logits[1]), set(likeliest.tolist())


def texts(prompts: Sequence[str], methods: Sequence[str], **settings: object) -> pd.DataFrame:
    """``texts_block`` of several prompts, by their ids, here and now, not recorded."""
    return live.on_prompts(texts_block, prompts, methods=list(methods), **settings)
