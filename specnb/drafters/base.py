"""The Drafter protocol."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from specnb.sampling import Coins, Warp
from specnb.tree import Draft


class Drafter(Protocol):
    """Proposes one draft per step. hidden_layers: the target's hidden states it wants to see, () for none.

    A drafter whose auxiliary nodes reach deeper than ``max_depth`` says in ``reach`` by how many positions at most.
    """

    hidden_layers: tuple[int, ...]

    def begin(self, prefix: Sequence[int], warp: Warp, hidden: dict[int, Tensor]) -> None:
        """Start a generation. prefix: the prompt, root last; hidden: (len(prefix) - 1, width) each."""

    def propose(self, coins: Coins, max_depth: int) -> Draft:
        """A draft whose root is the last committed token. Nodes deeper than max_depth could not be used."""

    def observe(
        self, draft: Draft, path: Sequence[int], next_token: int, hidden: dict[int, Tensor], logits: Tensor
    ) -> None:
        """The step is over: path of draft was accepted, then next_token.

        hidden: (1 + len(path), width) each, for the root and the path. logits: (n, V), what the target said
        after every node, auxiliary ones included.
        """
