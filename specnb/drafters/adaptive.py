"""AdaptiveDrafter: SALF with a stopping threshold that is learnt while it decodes (``growth.adaptive``)."""

import time
from collections.abc import Callable
from dataclasses import replace

from specnb.drafters.draft_models import DraftModel
from specnb.drafters.tree_drafter import TreeDrafter
from specnb.growth import Past, Salf, threshold
from specnb.tree import Draft

REMEMBERED = 200  # steps


class AdaptiveDrafter:
    """A TreeDrafter with SALF whose threshold is learnt while it decodes, over all texts it has seen since it was made.

    rule: every other setting, and the threshold to begin with. clock: seconds, as time.perf_counter.
    """

    reach = 0

    def __init__(self, draft_model: DraftModel, rule: Salf, clock: Callable[[], float] = time.perf_counter):
        self.inner, self.rule, self.clock, self.past = TreeDrafter(draft_model, rule), rule, clock, []
        self.hidden_layers = draft_model.hidden_layers

    def begin(self, prefix, warp, hidden) -> None:
        self.inner.begin(prefix, warp, hidden)
        self.began = self.clock()

    def propose(self, coins, max_depth) -> Draft:
        self.inner.growth = replace(self.rule, threshold=threshold(self.past, self.rule.threshold))
        return self.inner.propose(coins, max_depth)

    def observe(self, draft, path, next_token, hidden, logits) -> None:
        self.inner.observe(draft, path, next_token, hidden, logits)
        seconds = self.clock() - self.began
        step = Past(seconds, len(path), len(self.inner.masses), sum(self.inner.masses))
        self.past = [*self.past, step][-REMEMBERED:]
        self.began += seconds
