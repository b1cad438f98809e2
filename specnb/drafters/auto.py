"""AutoDrafter: SALF, and what is looked up, sized by what forwards cost on this machine and what drafts have earned.

Decoding is a renewal process: steps follow each other, each earns tokens and costs time, and the speed R in the long
run is the ratio of the two sums. Whatever earns more than R a second raises it, whatever earns less lowers it. So a
further draft forward pays while it earns more than R times its seconds, and a node while it earns more than R times
the seconds that verifying it takes. Seconds are measured beforehand; what is earned is learnt from the steps.
"""

from collections.abc import Sequence

import numpy as np

from specnb.drafters.draft_models import DraftModel
from specnb.drafters.merged import MergedDrafter
from specnb.drafters.retrieval import RetrievalDrafter
from specnb.drafters.tree_drafter import TreeDrafter
from specnb.growth import Paying, Salf, within
from specnb.tree import Draft

REMEMBERED = 0.98  # of what was learnt, from step to step: it spans about fifty


class AutoDrafter:
    """A SALF tree, merged with a look-up's, whose beam, depth and size follow prices and experience.

    target, call: seconds of a target and of a draft forward over 1, 2, 3, … nodes. other: a RetrievalDrafter, or None.
    width: Salf's. What it learns: R; right: accepted tokens by the sum of the probabilities that drafts gave them;
    deep: tokens of the draft model accepted below depth 1 by probability expanded below the root. It is kept from text
    to text, but for sampled texts, which a seed alone decides.
    Raises ValueError unless prices are above 0, and the target's twice as many as the draft's or more.
    """

    reach = 0

    def __init__(
        self, draft_model: DraftModel, target: Sequence[float], call: Sequence[float],
        other: RetrievalDrafter | None = None, *, width: int = 10,
    ):  # fmt: skip
        self.target = np.asarray(target, dtype=float)
        self.call = np.asarray(call, dtype=float)
        beam = len(self.call)
        if beam == 0:
            raise ValueError("AutoDrafter needs the seconds of a draft forward over 1, 2, … nodes, got none")
        if len(self.target) < 2 * beam:
            raise ValueError(
                f"prices of target forwards must be twice as many as those of draft forwards or more, "
                f"got {len(self.target)} and {beam}"
            )
        for name, prices in {"target": self.target, "call": self.call}.items():
            if not prices.min() > 0:
                raise ValueError(f"prices are seconds above 0, got {prices.tolist()} for {name}")
        if other is not None and not isinstance(other, RetrievalDrafter):
            raise ValueError(f"other must give its paths probabilities, as RetrievalDrafter does, got {other!r}")
        self.search = Salf(len(self.target), beam, 0.0, width, fill=True)
        # a draft forward's price, and that of one node a row
        self.more = self.call + (self.target[-1] - self.target[0]) / (len(self.target) - 1) * np.arange(1, beam + 1)
        self.salf = TreeDrafter(draft_model, self.search)
        self.inner = MergedDrafter(self.salf, other) if other else self.salf
        self.hidden_layers, self.vocabulary = draft_model.hidden_layers, self.salf.vocabulary
        # One step's worth of R, right and deep, to begin with: each is the ratio of its row.
        self.first = np.array([[1.0, self.target[0]], [1.0, 1.5], [1.0, 2.0]])
        self.sums = self.first.copy()

    def begin(self, prefix, warp, hidden) -> None:
        if warp.temperature > 0:
            # The tree decides which coins are tossed: a seed stands for one text only if every text begins alike.
            self.sums = self.first.copy()
        self.inner.begin(prefix, warp, hidden)

    def propose(self, coins, max_depth) -> Draft:
        rate, right, deep = self.sums[:, 0] / self.sums[:, 1]
        self.salf.growth = Paying(within(self.search, max_depth), rate / deep * self.more)
        draft = self.inner.propose(coins, max_depth)
        scores = draft.scores.numpy()
        order = 1 + np.argsort(-scores[1:], kind="stable")[: len(self.target) - 1]  # parents before their children
        gains = right * scores[order].cumsum() - rate * (self.target[1 : len(order) + 1] - self.target[0])
        count = 1 + int(gains.argmax()) if len(gains) and gains.max() > 0 else 0
        return draft.keep(order[:count].tolist())

    def observe(self, draft, path, next_token, hidden, logits) -> None:
        self.inner.observe(draft, path, next_token, hidden, logits)
        drafting = sum(self.call[each.nodes - 1] for each in draft.expansions)
        seconds = self.target[len(draft.tree) - 1] + drafting
        below = sum(each.mass for each in draft.expansions[1:])
        own = sum(int(draft.sources[node]) >= 0 for node in path[1:])
        earned = len(path) + 1, len(path), own
        spent = seconds, float(draft.scores.sum()) - 1, below
        new = np.column_stack([earned, spent])
        self.sums = REMEMBERED * self.sums + (1 - REMEMBERED) * self.first + new  # with no news it is tried again
