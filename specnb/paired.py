"""Verifiers compared on the very same drafts, without a coin: expected accepted length given tree, p and q.

Differences of a few per cent drown in the noise of sampled runs. Here each recorded step's drafted tree and laws go
through every verifier, and ``exact.accepted_given`` replaces coin flips by their probabilities.
"""

import time
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from specnb import growth
from specnb.decode import steps
from specnb.drafters import Drafter
from specnb.exact import accepted_given, expectation
from specnb.target import Target
from specnb.tree import Draft, TokenTree
from specnb.verifiers import Verifier

SHAPES = {
    **{f"chain {d}": growth.chain(d) for d in (2, 4, 6, 8)},
    **{f"binary {d}": growth.kary(2, d) for d in (2, 3, 4, 5)},
    "EAGLE sparse": growth.EAGLE_25,
}


def lumped(draft: Draft, p: Tensor) -> tuple[Draft, Tensor]:
    """The same step over the draft's own vocabulary, all tokens it cannot draft lumped into one that it never drafts.

    Acceptance depends on the rest of p through its mass alone, so every verifier's accepted lengths keep their law
    (tested), while a table of 49,152 columns shrinks to 8,193. q is needed.
    """
    columns = draft.columns.clone()
    columns[0] = 0  # the root's own token is never read
    ids = torch.arange(p.shape[1]) if draft.ids is None else draft.ids
    inside = p[:, ids].double()
    rest = (p.double().sum(1) - inside.sum(1)).clamp_min(0)
    tree = TokenTree(columns, draft.tree.parents)
    q = torch.cat([draft.q.double(), draft.q.new_zeros(len(p), 1, dtype=torch.float64)], 1)
    return Draft(tree, q, draft.drawn), torch.cat([inside, rest[:, None]], 1)


def compare(
    target: Target,
    drafter: Drafter,
    rules: Mapping[str, Verifier],
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    seed: int = 0,
) -> pd.DataFrame:
    """Decode a prompt and put every step's draft to every rule: columns step, rule, tau (expected, bonus included),
    ms (one verification of the full tables), nodes.

    The text is decoded with the first rule; all rules see the same trees. The last steps, where the room left cuts
    the tree, are left out.
    """
    rows, first = [], next(iter(rules.values()))
    limits = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    full = None
    for step in steps(target, drafter, first, prompt, **limits):
        full = full or len(step.draft.tree)
        if step.start - len(prompt) > max_new_tokens - 12:
            break
        small = lumped(step.draft, step.p)
        for name, rule in rules.items():
            began = time.perf_counter()
            rule(step.draft, step.p, verifiers_coins(seed, step.index))
            ms = 1000 * (time.perf_counter() - began)
            tau = 1 + expectation(accepted_given(*small, rule), float)
            rows.append({"step": step.index, "rule": name, "tau": tau, "ms": ms, "nodes": len(step.draft.tree) - 1})
    return pd.DataFrame(rows)
