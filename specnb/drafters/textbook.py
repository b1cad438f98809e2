"""The four moves of Progressive Tree Drafting (PTD, Algorithm 1 and section 3.2), one function each.

In Algorithm 1 they are steps 1, 3 and 4: ``retrieve``; ``expand`` and ``step_and_prune``; ``merge_subtrees``, which
uses ``merge``. Step 2 is the target's one forward (line 6): it predicts a token d_v after every node v. Verification
(lines 18 to 23) is the work of a verifier. A comment such as ``# line 10`` names the printed line.

A tree is a nested dict, token → tree below it; its root is not in it. A dict keeps the order in which its keys were
added, so the first child is the oldest one.

In which order the tree is pruned and merged into the pool differs:
- The paper prunes the expanded tree first, and merges the pruned tree.
- The public code merges the expanded tree, without the limit on children, and prunes afterwards.
- The functions here allow both. ``ProgressiveDrafter`` calls them in the order of the public code.
The code's other additions are options of ``ProgressiveDrafter``. A test compares one of its steps, without these
options, with Algorithm 1 on random trees.
"""

from specnb.drafters.pools import Trie, depth

Path = tuple[int, ...]  # a node as the tokens from the first level down to it


def nodes(T: Trie, path: Path = ()) -> list[Path]:
    """All nodes of a tree as paths, depth first.

    Example: {1: {2: {}}, 3: {}} has the nodes (1,), (1, 2) and (3,).
    """
    paths = []
    for v, below in T.items():
        paths.append((*path, v))
        paths += nodes(below, (*path, v))
    return paths


def expand(T: Trie, d: dict[Path, int], children: int, path: Path = ()) -> Trie:
    """Step 3, first half: every node v gets the target's token d_v as a new last child.

    A node that has d_v as a child already, or has ``children`` of them, stays as it is.

    Example: with children = 2 and d = {(1,): 5, (1, 2): 6}, {1: {2: {}}} becomes {1: {2: {6: {}}, 5: {}}}. With
    children = 1 node (1,) is full, and the tree becomes {1: {2: {6: {}}}}.
    """
    grown = {}
    for v, below in T.items():
        grown[v] = expand(below, d, children, (*path, v))
    if path and len(grown) < children:  # the limit is in section 3.2
        grown.setdefault(d[path], {})  # lines 8, 9
    return grown


def merge(T: Trie, other: Trie) -> Trie:
    """The merging function M of section 3.2: the union of two trees, the children of T first.

    Example: {1: {2: {}}} and {1: {3: {}}, 4: {}} make {1: {2: {}, 3: {}}, 4: {}}.

    On sets of paths it is commutative, associative and idempotent.
    """
    united = {}
    for v, below in T.items():
        united[v] = merge(below, other.get(v, {}))
    for v, below in other.items():
        united.setdefault(v, below)
    return united


def merge_subtrees(pool: dict[int, Trie], T: Trie) -> dict[int, Trie]:
    """Step 4: for every node v of T that has children, merge the tree below v into the pool's tree of token v.

    Example: with the pool {2: {9: {}}}, T = {1: {2: {3: {}}}} makes {2: {9: {}, 3: {}}, 1: {2: {3: {}}}}.
    """
    pool = dict(pool)
    for v, below in T.items():  # line 14
        if below:
            pool[v] = merge(pool.get(v, {}), below)  # line 15
        pool = merge_subtrees(pool, below)
    return pool


def step_and_prune(T: Trie, d_max: int) -> Trie:
    """Step 3, second half: replace every first-level subtree of more than d_max levels by the subtree of one child.

    Example: with d_max = 2, {1: {2: {3: {}}, 4: {}}, 5: {}} becomes {5: {}, 2: {3: {}}}: the subtree of 1 has three
    levels, so its oldest child 2 takes its place, as the last one on the first level.

    The heir is the oldest child whose token is not on the first level yet, as in the public code. A subtree without an
    heir is dropped.
    """
    kept = {}
    for v, below in T.items():
        if 1 + depth(below) <= d_max:  # line 10
            kept[v] = below
    for v, below in T.items():
        if v not in kept:  # line 11
            heirs = [child for child in below if child not in T and child not in kept]
            if heirs:
                heir = heirs[0]
                kept[heir] = below[heir]
    return kept


def retrieve(pool: dict[int, Trie], x: int) -> Trie:
    """Step 1: the candidate tree C_X, the pool's tree of the text's last token x; empty if there is none.

    Example: from the pool {1: {2: {}}}, x = 1 gives {2: {}} and x = 3 gives {}.
    """
    return pool.get(x, {})  # line 4
