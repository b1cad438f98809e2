"""AutoDrafter: a SALF tree and looked-up text, sized by the seconds of forwards and by what was accepted before.

Decoding is a sequence of steps. Each step earns tokens and costs time, and the speed in the long run is the ratio of
the two sums. Anything that earns more tokens per second than this speed raises it, anything that earns fewer lowers it.
So another draft forward is worth its time if it earns more tokens than its seconds times the speed. The same holds for
another node in the target's forward. The seconds are measured beforehand; the earned tokens are learnt from the steps.
"""

from collections.abc import Sequence

import numpy as np

from specnb.drafters.draft_models import DraftModel
from specnb.drafters.merged import MergedDrafter
from specnb.drafters.retrieval import RetrievalDrafter
from specnb.drafters.tree_drafter import TreeDrafter
from specnb.growth import Paying, Salf, within
from specnb.tree import Draft

REMEMBERED = 0.98  # the share of a running sum that is kept from step to step: about the last 50 steps count


class AutoDrafter:
    """A SALF tree, merged with a looked-up tree. Its beam, depth and size follow measured seconds and accepted tokens.

    draft_model: the draft model that grows the tree.
    target_seconds: (N,) seconds of a target forward over 1, 2, … N nodes.
    draft_seconds: (B,) seconds of a draft forward over 1, 2, … B nodes.
    other: a RetrievalDrafter whose paths are added to the tree, or None.
    width: the children of an expanded node, as in ``Salf``.

    It learns three ratios:
    - speed: tokens per second.
    - hit_rate: accepted draft tokens per path probability, both summed over all nodes that were verified.
    - deep_hit_rate: accepted tokens of the draft model below depth 1, per path probability that its forwards expanded
      below the root.
    The ratios are kept from text to text. Before a sampled text they are reset, because its seed alone must decide it.

    Raises ValueError unless N ≥ 2 B, B ≥ 1 and all seconds are above 0. Raises ValueError if ``other`` is not a
    RetrievalDrafter: other look-ups give their paths no probabilities.
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

        self.speed = RunningRatio(1.0, float(self.target_seconds[0]))  # that of plain decoding: one token per forward
        self.hit_rate = RunningRatio(1.0, 1.5)  # a cautious guess: drafts promise more than is accepted
        self.deep_hit_rate = RunningRatio(1.0, 2.0)

    def begin(self, prefix, warp, hidden) -> None:
        if warp.temperature > 0:
            # The tree decides which coins are tossed, so a seed gives the same text only from the same ratios.
            self.speed.forget()
            self.hit_rate.forget()
            self.deep_hit_rate.forget()
        self.inner.begin(prefix, warp, hidden)

    def propose(self, coins, max_depth) -> Draft:
        speed = self.speed.value
        # An expansion costs seconds · speed tokens. Paying needs its price in path probability; 1 of path probability
        # earns deep_hit_rate tokens.
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
    """ValueError unless all seconds are above 0 (NaN is refused, too)."""
    if not seconds.min() > 0:
        raise ValueError(f"prices are seconds above 0, got {seconds.tolist()} for {name}")


class RunningRatio:
    """The sum that steps have earned, divided by the sum that they have spent; older steps count less.

    Example: a ratio that begins at 1 / 2 gets a step that earns 3 and spends 1. Now earned is 4 and spent is 3. After
    another step that earns and spends nothing they are .98 · 4 + .02 · 1 = 3.94 and .98 · 3 + .02 · 2 = 2.98.

    earned and spent begin with the values of one imaginary step. In each step both keep the share ``REMEMBERED`` of
    their value, and the rest is replaced by the first value. So without new steps that earn or spend, the ratio returns
    to where it began, and a kind of draft that had become unprofitable is tried again.
    """

    def __init__(self, earned: float, spent: float):
        self.first_earned = earned
        self.first_spent = spent
        self.forget()

    def forget(self) -> None:
        """Reset to the first values."""
        self.earned = self.first_earned
        self.spent = self.first_spent

    def add(self, earned: float, spent: float) -> None:
        """Add one step."""
        self.earned = REMEMBERED * self.earned + (1 - REMEMBERED) * self.first_earned + earned
        self.spent = REMEMBERED * self.spent + (1 - REMEMBERED) * self.first_spent + spent

    @property
    def value(self) -> float:
        return self.earned / self.spent


def nodes_worth_their_time(
    scores: np.ndarray, target_seconds: np.ndarray, tokens_per_second: float, hit_rate: float
) -> list[int]:
    """Return the nodes of a tree to verify: the root and the likeliest k others, with the k that gains most.

    Example: with scores (1, .5, .4, .1), target_seconds (1, 1.1, 1.2, 1.5), 1 token per second and a hit_rate of 1,
    one node gains .5 − .1 = .4, two gain .9 − .2 = .7, and three 1 − .5 = .5: nodes 1 and 2 are kept, and the root.

    scores: (n,) path probabilities, the root's first.
    target_seconds: (N,) seconds of a target forward over 1, 2, … N nodes.
    tokens_per_second: the value of a second in tokens.
    hit_rate: a node earns ``hit_rate * score`` tokens on average.
    If no k gains anything, only the root is kept.
    """
    by_score = 1 + np.argsort(-scores[1:], kind="stable")  # stable: a parent comes before its children
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
