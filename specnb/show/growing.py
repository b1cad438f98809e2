"""PTD at work, to drag: the draft tree step by step, who sees whom in it, and what the pool had to offer."""

import copy
import html
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import ipywidgets

from specnb import verifiers
from specnb.decode import Step, steps
from specnb.drafters import ProgressiveDrafter, pools
from specnb.show.charts import draw_mask, so_far, step_html
from specnb.show.explorers import Explorer, Picture, explorer
from specnb.show.look import canvas, png
from specnb.show.trees import Pieces, draw_tree, tree_table
from specnb.target import Target
from specnb.tree import Draft, TokenTree


@dataclass(frozen=True)
class Frame:
    """One greedy step of PTD: what was drafted and verified, and the pool (key token → trie) it was taken from."""

    step: Step
    pool: dict[int, pools.Trie]

    @cached_property
    def drafted(self) -> TokenTree:
        """The draft tree alone: the step's tree without the candidates."""
        return self.step.draft.tree.keep(range(self.step.draft.candidate_rows, len(self.step.draft.tree)))

    def paths(self) -> set[tuple[int, ...]]:
        """The draft tree's nodes as paths of tokens."""
        return {self.drafted.path_tokens(node) for node in range(1, len(self.drafted))}


def record_frames(target: Target, drafter: ProgressiveDrafter, prompt: Sequence[int], count: int) -> list[Frame]:
    """The first steps of a greedy generation, at most count, with the pool as each of them found it.

    Raises ValueError for a chained drafter: there a node's path holds first-level nodes that are none of its own.
    """
    if drafter.chained:
        raise ValueError("record_frames shows the tree of the paper's text: use ProgressiveDrafter(chained=False)")
    frames, pool = [], {}
    for step in islice(steps(target, drafter, verifiers.greedy, prompt, max_new_tokens=8 * count), count):
        frames.append(Frame(step.light(), pool))
        pool = {key: copy.deepcopy(trie) for key, (trie, _) in drafter.pool.tries.items()}
    return frames


def render(frames: Sequence[Frame], index: int, pieces: Pieces) -> Picture:
    """PNG (1200 × 560) of frame index, the draft tree left and its mask right; and the pool and the text in words.

    Diamonds joined the tree in the step before. Raises IndexError on an unknown frame.
    """
    frame, tree = frames[index], frames[index].drafted
    before = frames[max(index - 1, 0)].paths()  # nothing is new in the first frame
    before |= {path[1:] for path in before}  # what has stepped since lost its first node
    fresh = [node for node in range(1, len(tree)) if tree.path_tokens(node) not in before]
    with canvas(12, 5.6) as figure:
        table = tree_table(Draft(tree), labels=pieces)
        table.loc[1:, "state"] = "unvisited"
        table.loc[fresh, "state"] = "recovered"
        ax = draw_tree(table, ax=figure.add_axes((0.01, 0.02, 0.52, 0.88)))
        ax.set_title(f"step {frame.step.index}: a draft tree of {len(tree) - 1} nodes, {len(fresh)} of them new")
        draw_mask(tree, frame.step.start - 1, labels=pieces, ax=figure.add_axes((0.62, 0.16, 0.37, 0.66)))
        return png(figure), _words(frames, index, pieces)


def _words(frames: Sequence[Frame], index: int, pieces: Pieces) -> str:
    frame, step = frames[index], frames[index].step
    tree, sizes = step.draft.tree, [pools.size(trie) for trie in frame.pool.values()]
    leaves = [node for node in range(1, step.draft.candidate_rows) if not tree.children[node]]
    known = " · ".join("".join(pieces(tree.path_tokens(node))) for node in leaves) or "nothing"
    words = f"pool: {sum(sizes)} nodes behind {len(sizes)} tokens. "
    words += html.escape(f"Behind “{pieces(tree.token_list[:1])[0]}” it knows: {known}")
    return so_far(words, [earlier.step for earlier in frames[:index]], step_html(step, pieces), pieces)


def growing_explorer(frames: Sequence[Frame], pieces: Pieces) -> Explorer:
    """PTD's draft tree growing, step by step (Figure 3)."""
    return explorer({"step": ipywidgets.IntSlider(0, 0, len(frames) - 1)}, lambda step: render(frames, step, pieces))
