"""Verifiers compared on the very same drafts, without a coin: expected accepted length from tree, p and q.

Differences of a few per cent drown in the noise of sampled runs. Here each step's drafted tree and laws go through
both verifiers, and probabilities replace coin flips, given the tree (``exact.accepted_given``) or, with still less
noise, given no more of it than must be (``verifiers.chances``).
"""

from collections.abc import Sequence
from itertools import product

import pandas as pd

from specnb import models, verifiers
from specnb.decode import Drafter, Verifier, steps
from specnb.drafters import TreeDrafter
from specnb.exact import accepted_given, expectation
from specnb.models import prompts
from specnb.target import Target
from specnb.tree import Drawn
from study import methods
from study.run import ALONE, draft_model, loaded

ROOM = 9  # a step with no more new tokens left is not counted: shapes of up to eight levels are never cut
COMPARED: dict[str, Verifier] = {"token-level": verifiers.rrsw, "traversal": verifiers.traversal}


def compare(
    target: Target, drafter: Drafter, prompt: Sequence[int], *, max_new_tokens: int, temperature: float = 1.0, **options
) -> pd.DataFrame:
    """Decode a prompt at a temperature above 0 and put every step's draft to both rules; one row per step and rule.

    Columns: step; rule; tau, expected tokens per step (bonus included) by ``chances``; given, the same given the
    whole tree; nodes. Text is decoded with the token-level rule, so steps begin where its steps begin. Steps whose tree
    the end of the text would cut are left out. options: others of ``decode.steps``.
    """
    if temperature <= 0 or max_new_tokens <= ROOM:
        got = temperature, max_new_tokens
        raise ValueError(f"temperature must be above 0 and max_new_tokens above {ROOM}, got {got}")
    rows, options = [], options | {"max_new_tokens": max_new_tokens, "temperature": temperature}
    for step in steps(target, drafter, verifiers.rrsw, prompt, **options):
        if max_new_tokens - (step.start - len(prompt)) <= ROOM:
            break
        for name, rule in COMPARED.items():
            token_level = rule is verifiers.rrsw
            paths = accepted_given(step.draft, step.p, rule)
            tau = sum(verifiers.chances(step.draft, step.p, token_level=token_level))
            facts = {"given": 1 + expectation(paths, len), "nodes": len(step.draft.tree) - 1}
            rows.append({"step": step.index, "rule": name, "tau": tau, **facts})
    return pd.DataFrame(rows)


def verifiers_block(
    prompt: str,
    heads: Sequence[str],
    shapes: Sequence[str],
    length: int,
    temperature: float = 1.0,
    seed: int = 0,
    pair: str = models.EMBEDDED,
    dtype: str = "float32",
    packed: bool = False,
) -> list[dict[str, object]]:
    """``compare`` on one prompt for every head and shape ("kary 2,5", "eagle_25"), of less than ROOM levels; one row a
    head, shape and rule.

    Columns: method ("head:shape"), rule, steps, and means over steps of tau, given and nodes.
    """
    found, rows = loaded(pair, dtype, packed), []
    ids = found.encode(prompts.text(prompt))
    options = {"max_new_tokens": length, "temperature": temperature, "seed": seed}
    for head, shape in product(heads, shapes):
        drafter = TreeDrafter(draft_model(head, found, 0), methods.rule(shape), Drawn.SWOR)
        with ALONE:
            table = compare(Target(found.target), drafter, ids, **options)
        for name, part in table.groupby("rule"):
            means = part[["tau", "given", "nodes"]].mean().to_dict()
            rows.append({"method": f"{head}:{shape}", "rule": name, "steps": len(part), **means})
    return rows
