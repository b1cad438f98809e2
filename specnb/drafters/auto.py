"""AutoDrafter: SALF, and what is looked up, sized by what forwards cost on this machine and what drafts have earned.

Decoding is a renewal process: steps follow each other, each earns tokens and costs time, and the speed in the long run
is the ratio of the two sums. Whatever earns more tokens a second than that raises the speed, whatever earns fewer
lowers it. So a further draft forward pays while it earns more than its seconds times the speed, and so does a node
that is verified. Seconds are measured beforehand; what is earned is learnt from the steps.
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
    """A SALF tree, merged with that of a look-up, whose beam, depth and size follow prices and experience.

    target_seconds: (N,) seconds of a target forward over 1, 2, … N nodes. draft_seconds: (B,) seconds of a draft
    forward over 1, 2, … B nodes. other: a RetrievalDrafter whose paths join the tree, or None. width: Salf's.

    It learns three ratios. speed is tokens a second. hit_rate is accepted draft tokens by the sum of the probabilities
    that drafts gave them. deep_hit_rate is accepted tokens of the draft model below depth 1 by the path probability
    that was expanded below the root. The ratios are kept from text to text. Only before a sampled text are they
    forgotten, because a seed alone must decide that text.

    Raises ValueError unless there are prices, all of them above 0, and for at least 2 B nodes of the target; and for an
    other drafter that gives its paths no probabilities.
    """

    reach = 0

    def __init__(
        self,
        draft_model: DraftModel,
        target_seconds: Sequence[float],
        draft_seconds: Sequence[float],
        other: RetrievalDrafter | None = None,
        *,
        width: int = 10,
    ):
        self.target_seconds = np.asarray(target_seconds, dtype=float)  # (N,) [n - 1]: a target forward over n nodes
        self.draft_seconds = np.asarray(draft_seconds, dtype=float)  # (B,) [b - 1]: a draft forward over b nodes
        max_nodes = len(self.target_seconds)
        max_beam = len(self.draft_seconds)
        if max_beam == 0:
            raise ValueError("AutoDrafter needs the seconds of a draft forward over 1, 2, … nodes, got none")
        if max_nodes < 2 * max_beam:
            raise ValueError(
                f"prices of target forwards must be twice as many as those of draft forwards or more, "
                f"got {max_nodes} and {max_beam}"
            )
        _check_seconds("target_seconds", self.target_seconds)
        _check_seconds("draft_seconds", self.draft_seconds)
        if other is not None and not isinstance(other, RetrievalDrafter):
            raise ValueError(f"other must give its paths probabilities, as RetrievalDrafter does, got {other!r}")

        self.search = Salf(max_nodes, max_beam, threshold=0.0, width=width, fill=True)
        self.tree_drafter = TreeDrafter(draft_model, self.search)
        self.inner = self.tree_drafter if other is None else MergedDrafter(self.tree_drafter, other)
        self.hidden_layers = draft_model.hidden_layers
        self.vocabulary = self.tree_drafter.vocabulary

        # Expanding b more nodes costs a draft forward now, and b more nodes in the target's forward later.
        seconds_per_node = (self.target_seconds[-1] - self.target_seconds[0]) / (max_nodes - 1)
        self.expansion_seconds = self.draft_seconds + seconds_per_node * np.arange(1, max_beam + 1)  # (B,)

        self.speed = RunningRatio(1.0, float(self.target_seconds[0]))  # as plain decoding: a token a forward
        self.hit_rate = RunningRatio(1.0, 1.5)
        self.deep_hit_rate = RunningRatio(1.0, 2.0)

    def begin(self, prefix, warp, hidden) -> None:
        if warp.temperature > 0:
            # The tree decides which coins are tossed: a seed stands for one text only if every text begins alike.
            self.speed.forget()
            self.hit_rate.forget()
            self.deep_hit_rate.forget()
        self.inner.begin(prefix, warp, hidden)

    def propose(self, coins, max_depth) -> Draft:
        speed = self.speed.value
        # In tokens an expansion costs its seconds · speed. Paying takes its price in path probability, of which 1 earns
        # deep_hit_rate tokens.
        expansion_prices = speed / self.deep_hit_rate.value * self.expansion_seconds
        self.tree_drafter.growth = Paying(within(self.search, max_depth), expansion_prices)
        draft = self.inner.propose(coins, max_depth)
        scores = draft.scores.numpy()
        kept = nodes_worth_their_time(scores, self.target_seconds, speed, self.hit_rate.value)
        return draft.keep(kept)

    def observe(self, draft, path, next_token, hidden, logits) -> None:
        self.inner.observe(draft, path, next_token, hidden, logits)

        drafting_seconds = sum(self.draft_seconds[forward.nodes - 1] for forward in draft.expansions)
        seconds = self.target_seconds[len(draft.tree) - 1] + drafting_seconds
        self.speed.add(len(path) + 1, float(seconds))

        promised = float(draft.scores.sum()) - 1  # the root's probability of 1 is no promise
        self.hit_rate.add(len(path), promised)

        sources = draft.sources.tolist()
        deep_from_model = [node for node in path[1:] if sources[node] >= 0]  # the others were looked up
        expanded_below_root = sum(forward.mass for forward in draft.expansions[1:])
        self.deep_hit_rate.add(len(deep_from_model), expanded_below_root)


def _check_seconds(name: str, seconds: np.ndarray) -> None:
    """ValueError unless all of them are above 0; NaN is not."""
    if not seconds.min() > 0:
        raise ValueError(f"prices are seconds above 0, got {seconds.tolist()} for {name}")


class RunningRatio:
    """What steps have earned by what they spent, where a step counts less and less the longer ago it was.

    earned and spent begin as if one step had been seen. From step to step each keeps ``REMEMBERED`` of its value and is
    filled up with what it began with: without news the ratio returns there, and what had been given up is tried again.

    Example: a ratio that begins at 1 / 2 sees a step that earns 3 and spends 1. Now 4 is earned and 3 spent. After
    another one that earns and spends nothing they are .98 · 4 + .02 · 1 = 3.94 and .98 · 3 + .02 · 2 = 2.98.
    """

    def __init__(self, earned: float, spent: float):
        self.first_earned = earned
        self.first_spent = spent
        self.forget()

    def forget(self) -> None:
        """Back to what it began with."""
        self.earned = self.first_earned
        self.spent = self.first_spent

    def add(self, earned: float, spent: float) -> None:
        """Take up one more step."""
        self.earned = REMEMBERED * self.earned + (1 - REMEMBERED) * self.first_earned + earned
        self.spent = REMEMBERED * self.spent + (1 - REMEMBERED) * self.first_spent + spent

    @property
    def value(self) -> float:
        return self.earned / self.spent


def nodes_worth_their_time(
    scores: np.ndarray, target_seconds: np.ndarray, tokens_per_second: float, hit_rate: float
) -> list[int]:
    """Which nodes of a tree to verify: the root and the likeliest k others, with the k that gains most.

    scores: (n,) path probabilities, the root's first. target_seconds: (N,) of a target forward over 1, 2, … N nodes.
    A node earns ``hit_rate * score`` tokens on average. It costs seconds of the target, and a second is worth
    ``tokens_per_second`` tokens. Where no k gains anything, only the root is kept.

    Example: with scores (1, .5, .4, .1), target_seconds (1, 1.1, 1.2, 1.5), 1 token a second and a hit_rate of 1,
    one node gains .5 − .1 = .4, two gain .9 − .2 = .7, and three 1 − .5 = .5: nodes 1 and 2 are kept.
    """
    by_score = 1 + np.argsort(-scores[1:], kind="stable")  # stable: a parent stands before its children
    by_score = by_score[: len(target_seconds) - 1]
    if len(by_score) == 0:
        return [0]
    earned = hit_rate * scores[by_score].cumsum()  # tokens
    seconds = target_seconds[1 : len(by_score) + 1] - target_seconds[0]  # beyond those of the root alone
    gain = earned - tokens_per_second * seconds
    best = int(gain.argmax())
    if gain[best] > 0:
        return [0, *sorted(by_score[: best + 1].tolist())]
    return [0]
