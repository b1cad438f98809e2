"""How alike the branches of greedy self-drafters are (PTD's Figure 1b).

A self-drafter has no draft model: the target itself works on several candidate texts, the branches, in each forward.
"""

from collections.abc import Sequence

from specnb import verifiers
from specnb.decode import decode
from specnb.drafters import SelfDrafter
from specnb.models import prompts
from specnb.target import Target
from study import metrics
from study.measure.loading import loaded
from study.methods import method as method_named

COLUMNS = ("method", "branches", "repeated", *metrics.ALIKE)


def alike_block(prompt: str, methods: Sequence[str], length: int) -> list[dict[str, object]]:
    """Measure how alike branches are (``metrics.alike``), on one prompt; one row per method.

    Self-Draft's branches are taken without their random prefixes. The first steps, in which the drafter's window or
    tree may not be full yet, are left out.
    """
    pair = loaded()
    ids = pair.encode(prompts.text(prompt))
    rows = []
    for name in methods:
        drafter = method_named(name).drafter(pair)
        text = decode(Target(pair.target), drafter, verifiers.greedy, ids, max_new_tokens=length, eos=())
        tail = drafter.levels if isinstance(drafter, SelfDrafter) else None
        full_steps = text.steps[drafter.reach :]
        rows.append({"method": name, **metrics.alike(full_steps, tail)})
    return rows
