"""Verifiers compared on the very same drafts, without a coin: expected accepted length from tree, p and q.

Differences of a few per cent drown in the noise of sampled runs. Here each step's drafted tree and laws go through
both verifiers, and probabilities replace coin flips, given the tree (``exact.accepted_given``) or, with still less
noise, given no more of it than must be (``verifiers.chances``).
"""

from collections.abc import Mapping, Sequence

import pandas as pd
from torch import Tensor

from specnb import growth, models, verifiers
from specnb.decode import Drafter, Verifier, steps
from specnb.drafters import TreeDrafter
from specnb.exact import accepted_given, expectation
from specnb.lab import methods
from specnb.lab.run import ALONE, draft_model, loaded
from specnb.models import prompts
from specnb.target import Target
from specnb.tree import Draft, Drawn

ROOM = 9  # new tokens left below which a step is not counted: the deepest shape and the bonus
RULES: dict[str, Verifier] = {"token-level": verifiers.rrsw, "traversal": verifiers.traversal}


def untempered_bonus(
    draft: Draft, p: Tensor, temperature: float, accepted_paths: Mapping[tuple[int, ...], float]
) -> float:
    """Expected total variation of a step's last token if the bonus is drawn at temperature 1 (a public harness's bug).

    Only where the accepted path ends at a leaf; elsewhere the recovered token is drawn rightly. p is at the
    temperature, without top-k or top-p.
    """
    total = 0.0
    for path, mass in accepted_paths.items():
        end = path[-1] if path else 0
        if not draft.candidates[end] and mass > 0:
            law = p[end].double()
            plain = law**temperature
            total += mass * float((law - plain / plain.sum()).abs().sum() / 2)
    return total


def compare(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    seed: int = 0,
) -> pd.DataFrame:
    """Decode a prompt at a temperature above 0 and put every step's draft to both rules; one row per step and rule.

    Columns: step; rule; tau, expected tokens per step (bonus included) by ``chances``; given, the same given the
    whole tree; nodes; bug, see ``untempered_bonus`` (token-level only). Text is decoded with the token-level rule,
    so steps begin where its steps begin. Steps whose tree the end of the text would cut are left out.
    """
    if temperature <= 0 or max_new_tokens <= ROOM:
        raise ValueError(
            f"temperature must be above 0 and max_new_tokens above {ROOM}, got {temperature}, {max_new_tokens}"
        )
    rows = []
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    for step in steps(target, drafter, verifiers.rrsw, prompt, **options):
        if max_new_tokens - (step.start - len(prompt)) <= ROOM:
            break
        for name, rule in RULES.items():
            token_level = rule is verifiers.rrsw
            paths = accepted_given(step.draft, step.p, rule)
            bug = untempered_bonus(step.draft, step.p, temperature, paths) if token_level else float("nan")
            tau = sum(verifiers.chances(step.draft, step.p, token_level=token_level))
            facts = {"given": 1 + expectation(paths, len), "nodes": len(step.draft.tree) - 1, "bug": bug}
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
) -> list[dict[str, object]]:
    """``compare`` on one prompt for every head and shape ("kary 2,5", "eagle_25"); one row a head, shape and rule.

    Columns: method ("head:shape"), rule, steps, and means over steps of tau, given, nodes and bug.
    """
    found, rows = loaded(pair, dtype), []
    ids = found.encode(prompts.text(prompt))
    for head in heads:
        for shape in shapes:
            rule = growth.BY_NAME[shape] if shape in growth.BY_NAME else methods.rule(shape)
            drafter = TreeDrafter(draft_model(head, found).inner, rule, Drawn.SWOR)
            options = {"max_new_tokens": length, "temperature": temperature, "seed": seed}
            with ALONE:
                table = compare(Target(found.target), drafter, ids, **options)
            for name, part in table.groupby("rule"):
                means = part[["tau", "given", "nodes", "bug"]].mean().to_dict()
                rows.append({"method": f"{head}:{shape}", "rule": name, "steps": len(part), **means})
    return rows
