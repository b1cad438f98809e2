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
        draft = self.step.draft
        return draft.tree.keep(range(draft.candidate_rows, len(draft.tree)))

    def paths(self) -> set[tuple[int, ...]]:
        """The draft tree's nodes as paths of tokens."""
        return {self.drafted.path_tokens(node) for node in range(1, len(self.drafted))}


def record_frames(target: Target, drafter: ProgressiveDrafter, prompt: Sequence[int], count: int) -> list[Frame]:
    """The first steps of a greedy generation, at most count, with the pool as each of them found it.

    Raises ValueError for a chained drafter: there a node's path holds first-level nodes that are none of its own.
    """
    if drafter.chained:
        raise ValueError("record_frames shows the tree of the paper's text: use ProgressiveDrafter(chained=False)")
    generation = steps(target, drafter, verifiers.greedy, prompt, max_new_tokens=8 * count)
    frames = []
    pool = {}
    for step in islice(generation, count):
        frames.append(Frame(step.light(), pool))
        pool = {key: copy.deepcopy(trie) for key, (trie, _) in drafter.pool.tries.items()}
    return frames


def growing_explorer(frames: Sequence[Frame], pieces: Pieces) -> Explorer:
    """PTD's draft tree growing, step by step (Figure 3)."""
    slider = ipywidgets.IntSlider(0, 0, len(frames) - 1)
    return explorer({"step": slider}, lambda step: render(frames, step, pieces))


def render(frames: Sequence[Frame], index: int, pieces: Pieces) -> Picture:
    """PNG (1200 × 560) of frame index, the draft tree left and its mask right; and the pool and the text in words.

    Diamonds joined the tree in the step before. Raises IndexError on an unknown frame.
    """
    step = frames[index].step
    tree = frames[index].drafted
    new = _new_nodes(frames, index)
    table = tree_table(Draft(tree), labels=pieces)
    table.loc[1:, "state"] = "unvisited"
    table.loc[new, "state"] = "recovered"

    with canvas(12, 5.6) as figure:
        tree_ax = figure.add_axes((0.01, 0.02, 0.52, 0.88))
        draw_tree(table, ax=tree_ax)
        tree_ax.set_title(f"step {step.index}: a draft tree of {len(tree) - 1} nodes, {len(new)} of them new")
        mask_ax = figure.add_axes((0.62, 0.16, 0.37, 0.66))
        draw_mask(tree, step.start - 1, labels=pieces, ax=mask_ax)
        return png(figure), _words(frames, index, pieces)


def _new_nodes(frames: Sequence[Frame], index: int) -> list[int]:
    """Nodes of a frame's draft tree that the frame before did not have; none in the first frame.

    A path that has stepped since is not new: it lost its first node. Behind the paths (5,) and (5, 6), the paths (5,)
    and (6,) are known, and (6, 7) is new.
    """
    if index == 0:
        return []
    before = frames[index - 1].paths()
    known = before | {path[1:] for path in before}
    tree = frames[index].drafted
    return [node for node in range(1, len(tree)) if tree.path_tokens(node) not in known]


def _words(frames: Sequence[Frame], index: int, pieces: Pieces) -> str:
    """HTML: how large the pool is, what it knows behind the root, and the text so far with this step's tokens."""
    step = frames[index].step
    tree = step.draft.tree
    sizes = [pools.size(trie) for trie in frames[index].pool.values()]

    candidates = []
    for node in range(1, step.draft.candidate_rows):
        if not tree.children[node]:
            candidates.append("".join(pieces(tree.path_tokens(node))))
    known = " · ".join(candidates) or "nothing"
    (root,) = pieces(tree.token_list[:1])
    words = f"pool: {sum(sizes)} nodes behind {len(sizes)} tokens. "
    words += html.escape(f"Behind “{root}” it knows: {known}")
    earlier = [frame.step for frame in frames[:index]]
    return so_far(words, earlier, step_html(step, pieces), pieces)
