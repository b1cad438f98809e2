"""Two verifiers compared on the very same drafts: token-level verification (``rrsw``) and traversal verification.

rrsw is recursive rejection sampling without replacement, which decides from the root down, token by token; traversal
decides from the leaves up. They differ by a few per cent, which drown in the noise of sampled runs. So here a text is
decoded once, with sampled trees and sampled tokens, and every step's tree, p (target) and q (draft) go through both
verifiers. Only their coins are not tossed: the expected number of accepted tokens is computed exactly, from the
acceptance probabilities, in two ways.

- Given the whole tree (``exact.accepted_given``): the accept coins are averaged out, by enumeration.
- By node (``verifiers.chances``): for each node the probability that it is on the accepted path, in which everything
  that is drawn below the node and its siblings is averaged out, too. The mean over trees is the same, the noise less.
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

# A step is counted only if more new tokens than this are still wanted. A drafted path of eight levels and its bonus
# token are nine tokens, so the trees of counted steps are never cut to the end of the text.
ROOM = 9
COMPARED: dict[str, Verifier] = {"token-level": verifiers.rrsw, "traversal": verifiers.traversal}


def compare(
    target: Target, drafter: Drafter, prompt: Sequence[int], *, max_new_tokens: int, temperature: float = 1.0, **options
) -> pd.DataFrame:
    """Decode a prompt at a temperature above 0, and pass every step's draft through both verifiers.

    The text is decoded with the token-level verifier, so the steps begin where its steps begin. Steps whose tree could
    be cut by the end of the text are left out (ROOM).

    target:         the target model.
    drafter:        draws the trees.
    prompt:         token ids.
    max_new_tokens: the length of the text, more than ROOM.
    temperature:    of the sampled text, above 0.
    options:        other options of ``decode.steps``, such as the seed.

    Returns one row per step and verifier, with these columns:
    step:     the index of the step.
    verifier: "token-level" (rrsw) or "traversal".
    tau:      expected tokens of the step, the bonus token included, by ``chances``.
    given:    the same, given the whole tree. On a single tree it differs from tau, on average over trees it does not.
    nodes:    drafted nodes, the root not counted.

    Raises ValueError on a temperature or a length that is too low.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if max_new_tokens <= ROOM:
        raise ValueError(f"max_new_tokens must be above {ROOM}, got {max_new_tokens}")
    options |= {"max_new_tokens": max_new_tokens, "temperature": temperature}
    rows = []
    for step in steps(target, drafter, verifiers.rrsw, prompt, **options):
        written = step.start - len(prompt)
        if max_new_tokens - written <= ROOM:
            break
        for name in COMPARED:
            rows.append({"step": step.index, "verifier": name, **_expected(step, name)})
    return pd.DataFrame(rows)


def _expected(step: Step, name: str) -> dict[str, float]:
    """The columns tau, given and nodes of a step, for one of the verifiers in COMPARED."""
    verifier = COMPARED[name]
    chances = verifiers.chances(step.draft, step.p, token_level=verifier is verifiers.rrsw)  # one per node
    paths = accepted_given(step.draft, step.p, verifier)  # accepted path, without the root → its probability
    return {
        "tau": sum(chances),  # the root's chance, 1, counts for the recovered or bonus token, of which there is one
        "given": 1 + expectation(paths, len),
        "nodes": len(step.draft.tree) - 1,  # without the root
    }


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
    """``compare`` on one prompt, for every head and every shape.

    prompt:      the id of a prompt.
    heads:       names of trained heads.
    shapes:      fixed tree shapes with fewer than ROOM levels. Trees are drawn without replacement.
    length:      new tokens of the text.
    temperature: at which the text is sampled.
    seed:        of the text.
    pair, dtype, packed: which target is loaded, and how.

    Returns one row per head, shape and verifier. Its columns are head, shape, verifier, steps (how many were counted)
    and the means over these steps of tau, given and nodes, see ``compare``.
    """
    ready = loaded(pair, dtype, packed)
    ids = ready.encode(prompts.text(prompt))
    options = {"max_new_tokens": length, "temperature": temperature, "seed": seed}
    rows = []
    for head in heads:
        for shape in shapes:
            drafter = TreeDrafter(draft_model(head, ready, 0), shape, Drawn.SWOR)
            with ALONE:  # a draft model has a state: no other run of this process may use it meanwhile
                table = compare(Target(ready.target), drafter, ids, **options)
            for name, its_steps in table.groupby("verifier"):
                means = its_steps[["tau", "given", "nodes"]].mean().to_dict()
                settings = {"head": head, "shape": label(shape), "verifier": name}
                rows.append({**settings, "steps": len(its_steps), **means})
    return rows
