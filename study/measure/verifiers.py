"""Verifiers compared on the very same drafts, without a coin: expected accepted length from tree, p and q.

Differences of a few per cent drown in the noise of sampled runs. Here each step's drafted tree and laws go through
both verifiers, and probabilities replace coin flips, given the tree (``exact.accepted_given``) or, with still less
noise, given no more of it than must be (``verifiers.chances``).
"""

from collections.abc import Sequence

import pandas as pd

from specnb import models, verifiers
from specnb.decode import Drafter, Step, Verifier, steps
from specnb.drafters import TreeDrafter
from specnb.exact import accepted_given, expectation
from specnb.growth import Growth
from specnb.models import prompts
from specnb.target import Target
from specnb.tree import Drawn
from study.measure.clock import ALONE
from study.measure.loading import draft_model, loaded
from study.methods import label

ROOM = 9  # a step with no more new tokens left is not counted: shapes of up to eight levels are never cut
COMPARED: dict[str, Verifier] = {"token-level": verifiers.rrsw, "traversal": verifiers.traversal}


def compare(
    target: Target, drafter: Drafter, prompt: Sequence[int], *, max_new_tokens: int, temperature: float = 1.0, **options
) -> pd.DataFrame:
    """Decode a prompt at a temperature above 0 and put every step's draft to both rules; one row per step and rule.

    Columns: step; verifier; tau, expected tokens per step (bonus included) by ``chances``; given, the same given the
    whole tree; nodes. Text is decoded with the token-level rule, so steps begin where its steps begin. Steps whose tree
    the end of the text would cut are left out. options: others of ``decode.steps``.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if max_new_tokens <= ROOM:
        raise ValueError(f"max_new_tokens must be above {ROOM}, got {max_new_tokens}")
    options |= {"max_new_tokens": max_new_tokens, "temperature": temperature}
    rows = []
    for step in steps(target, drafter, verifiers.rrsw, prompt, **options):
        if max_new_tokens - (step.start - len(prompt)) <= ROOM:
            break
        for name in COMPARED:
            rows.append({"step": step.index, "verifier": name, **_expected(step, name)})
    return pd.DataFrame(rows)


def _expected(step: Step, name: str) -> dict[str, float]:
    """What a verifier of COMPARED is expected to commit of a step's draft."""
    verifier = COMPARED[name]
    paths = accepted_given(step.draft, step.p, verifier)
    chances = verifiers.chances(step.draft, step.p, token_level=verifier is verifiers.rrsw)
    return {"tau": sum(chances), "given": 1 + expectation(paths, len), "nodes": len(step.draft.tree) - 1}


def verifiers_block(
    prompt: str,
    heads: Sequence[str],
    shapes: Sequence[Growth],
    length: int,
    temperature: float = 1.0,
    seed: int = 0,
    pair: str = models.EMBEDDED,
    dtype: str = "float32",
    packed: bool = False,
) -> list[dict[str, object]]:
    """``compare`` on one prompt for every head and shape, of less than ROOM levels; one row a head, shape and verifier.

    Columns: head, shape, verifier, steps, and means over steps of tau, given and nodes.
    """
    ready = loaded(pair, dtype, packed)
    ids = ready.encode(prompts.text(prompt))
    options = {"max_new_tokens": length, "temperature": temperature, "seed": seed}
    rows = []
    for head in heads:
        for shape in shapes:
            drafter = TreeDrafter(draft_model(head, ready, 0), shape, Drawn.SWOR)
            with ALONE:
                table = compare(Target(ready.target), drafter, ids, **options)
            for name, part in table.groupby("verifier"):
                means = part[["tau", "given", "nodes"]].mean().to_dict()
                rows.append({"head": head, "shape": label(shape), "verifier": name, "steps": len(part), **means})
    return rows
