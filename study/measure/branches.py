"""How alike the branches of greedy self-drafters are (PTD's Figure 1b)."""

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
    """How alike the branches of greedy self-drafters are (``metrics.alike``); one row a method.

    Self-Draft's branches are taken without their prefixes. Steps in which the window or tree may still fill are left
    out.
    """
    pair = loaded()
    ids = pair.encode(prompts.text(prompt))
    rows = []
    for name in methods:
        drafter = method_named(name).drafter(pair)
        text = decode(Target(pair.target), drafter, verifiers.greedy, ids, max_new_tokens=length, eos=())
        tail = drafter.levels if isinstance(drafter, SelfDrafter) else None
        filled = text.steps[drafter.reach :]
        rows.append({"method": name, **metrics.alike(filled, tail)})
    return rows
