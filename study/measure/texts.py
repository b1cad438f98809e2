"""Texts: what methods write greedily, compared token by token with the text of plain decoding.

A lossless method writes the same greedy text as plain decoding, up to rounding: a forward over a tree adds floats in
another order than a forward over one token, so where two tokens are almost equally likely either may come out first.

Example: the texts are "a b c d" and "a b x y". After "a b" the target's two largest logits are those of c and x, and
they differ by 0.0004. This is a near tie, and both texts count as lawful. If the gap were 0.4, or x only the third
likeliest token, the second text would be wrong.

The near-tie rule: two float32 texts are both lawful if they are equal or if, where they first differ, the gap between
the two largest logits is below NEAR_TIE and the two texts have the two likeliest tokens there. Only the first
difference is judged; after it the two texts have different prefixes and need not agree. In another dtype rounding noise
is as large as ordinary gaps, so there is no such rule: a text is lawful only if it equals the plain one.
"""

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

NEAR_TIE = 1e-3  # of a logit; float32 noise after 30 layers is a hundredth of that, ordinary gaps are 0.1 or more


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
    """Compare the greedy texts of methods of ours with a plain text, on one prompt; see the module for the rule.

    prompt:  the id of a prompt.
    methods: names of methods.
    length:  new tokens of each text.
    control: a method that also runs without position ids. The target then takes all nodes of a tree for consecutive
             tokens, so its text should differ: this shows that the comparison can fail.
    pair:    which target is loaded; dtype: its number format.
    plain:   the method that writes the plain text.
    head, softened, forwards: change the methods, see ``methods.method``.

    Returns one row per method, and one for the control, with these columns:
    method:    its name.
    positions: whether the target was given position ids.
    equal:     whether the texts are equal token by token.
    first:     the index of the first token that differs; None if none does, or one text is the beginning of the other.
    gap:       the difference of the two largest logits there; None if first is None.
    same:      whether the text is lawful by the near-tie rule. Despite the name, the texts need not be equal.
    """
    ready = loaded(pair, dtype)
    ids = ready.encode(models.prompts.text(prompt))
    plain_text = greedy_text(plain, ready, ids, length)
    changes = {"head": head, "softened": softened, "forwards": forwards}
    runs = [(name, True) for name in methods]  # (method, whether it is run with position ids)
    if control:
        runs.append((control, False))
    rows = []
    for name, positions in runs:
        text = greedy_text(name, ready, ids, length, positions, **changes)
        comparison = compare_texts(ready, ids, plain_text, text)
        rows.append({"method": name, "positions": positions, **comparison})
    return rows


@recorded_as_asked()
def greedy_text(
    name: str, pair: models.Pair, ids: Sequence[int], length: int, positions: bool = True, **changes: object
) -> tuple[int, ...]:
    """The tokens that a method writes greedily; it goes on after an end token.

    name:      of the method.
    pair:      the loaded models.
    ids:       token ids of the prompt.
    length:    new tokens.
    positions: whether the target is given position ids.
    changes:   options of ``methods.method``.

    If the forwards cannot be captured as the method asks, that is an error (``recorded_as_asked``). Raises ValueError
    on transformers' own methods without positions.
    """
    method = method_named(name, **changes)
    if not method.ours:
        if not positions:
            raise ValueError(f"a control runs in our loop, without position ids: {name!r} is transformers' own")
        options = dict(method.generate)
        if method.assistant:
            options["assistant_model"] = lent_assistant(pair, packed=False)
        return tuple(generate(pair, ids, length, whole=True, **options))
    target_class = Target if positions else Unpositioned
    with ALONE:  # a drafter has a state: no other run of this process may use it meanwhile
        drafter, _, forwards = built(method, pair, len(ids) + length)
        target = target_class(pair.target, window=method.window, forwards=forwards)
        text = decode(target, drafter, verifiers.greedy, ids, max_new_tokens=length, eos=(), trace="none")
    return text.tokens


def compare_texts(
    pair: models.Pair, ids: Sequence[int], plain: Sequence[int], text: Sequence[int]
) -> dict[str, object]:
    """The columns equal, first, gap and same of ``texts_block``.

    pair:  the loaded models; the target tells the likeliest tokens where the texts differ.
    ids:   token ids of the prompt.
    plain: the text of plain decoding.
    text:  the text to judge.
    """
    plain = list(plain)
    text = list(text)
    if plain == text:
        return {"equal": True, "first": None, "gap": None, "same": True}
    first = _first_difference(plain, text)
    if first is None:  # one text is the beginning of the other
        return {"equal": False, "first": None, "gap": None, "same": False}
    gap, two_likeliest = _two_likeliest(pair, [*ids, *plain[:first]])
    noise = NEAR_TIE if pair.target.dtype == torch.float32 else 0.0
    is_near_tie = gap < noise and {plain[first], text[first]} == two_likeliest
    return {"equal": False, "first": first, "gap": gap, "same": is_near_tie}


def _first_difference(plain: Sequence[int], text: Sequence[int]) -> int | None:
    """The first index at which two texts differ, up to the end of the shorter one; None if there is none.

    >>> _first_difference([5, 6, 7], [5, 6, 8, 9]), _first_difference([5, 6], [5, 6, 8])
    (2, None)
    """
    for index, (token, other_token) in enumerate(zip(plain, text, strict=False)):
        if token != other_token:
            return index
    return None


@torch.no_grad()
def _two_likeliest(pair: models.Pair, tokens: Sequence[int]) -> tuple[float, set[int]]:
    """The gap between the two largest logits after a text, and the two tokens that have them."""
    ids = torch.tensor([list(tokens)], device=pair.target.device)  # (1, T)
    next_logits = pair.target(ids).logits[0, -1]  # (V,)
    logits, likeliest = next_logits.float().topk(2)
    gap = float(logits[0] - logits[1])
    return gap, set(likeliest.tolist())


def texts(prompts: Sequence[str], methods: Sequence[str], **settings: object) -> pd.DataFrame:
    """The rows of ``texts_block`` on several prompts, measured now and not recorded.

    prompts: ids of prompts. settings: other arguments of ``texts_block``.
    """
    return live.on_prompts(texts_block, prompts, methods=list(methods), **settings)
