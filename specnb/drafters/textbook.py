"""PTD's four moves (Algorithm 1, section 3.2): retrieve, expand, step and prune, merge.

A tree is a nested dict: token → what is below it; the root is not in it. Numbers in comments are lines of Algorithm 1;
d_v is what the target says after node v in the step's one forward (line 6), verification (18–23) is a verifier's.
The paper prunes before it merges; the public code, and ``ProgressiveDrafter`` with it, merges the tree as expanded,
without a limit of its width. What else the code adds (a chained first level, feedback from candidates, the upkeep of
the first level, bounds of the pool) are options of ``ProgressiveDrafter``, which expands, steps and prunes by these
functions; a test holds a whole step of it, without the options, equal to Algorithm 1 on random trees.
"""

from specnb.drafters.pools import Trie, depth


def nodes(T: Trie, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """All nodes of a tree as paths, depth first."""
    return [node for v, below in T.items() for node in ((*path, v), *nodes(below, (*path, v)))]


def expand(T: Trie, d: dict[tuple[int, ...], int], children: int, path: tuple[int, ...] = ()) -> Trie:
    """Step 3: every node v gets the target's token d_v as its latest child, unless it has ``children`` of them."""
    # 8, 9; the limit of children is in section 3.2
    grown = {v: expand(below, d, children, (*path, v)) for v, below in T.items()}
    if path and (len(grown) < children):
        grown.setdefault(d[path], {})
    return grown


def merge(T: Trie, other: Trie) -> Trie:
    """The merging function M of section 3.2: T with every child of the other that it lacks, recursively.

    As sets of paths: commutative, associative, idempotent.
    """
    united = {v: merge(below, other.get(v, {})) for v, below in T.items()}
    return united | {v: below for v, below in other.items() if v not in T}


def merge_subtrees(pool: dict[int, Trie], T: Trie) -> dict[int, Trie]:
    """Step 4: every subtree of T that has nodes below its root is merged into the pool under its root."""
    pool = dict(pool)
    for v, below in T.items():  # 14
        if below:
            pool[v] = merge(pool.get(v, {}), below)  # 15
        pool = merge_subtrees(pool, below)
    return pool


def step_and_prune(T: Trie, d_max: int) -> Trie:
    """Step 3: a first-level subtree deeper than d_max gives way to its earliest child, which moves to the end.

    As in the public code, a child whose token stands on the first level is passed over; without an heir the subtree
    goes.
    """
    kept = {v: below for v, below in T.items() if 1 + depth(below) <= d_max}  # 10–12
    for v, below in T.items():
        if v not in kept:
            heir = next((child for child in below if child not in T and child not in kept), None)
            if heir is not None:
                kept[heir] = below[heir]
    return kept


def retrieve(pool: dict[int, Trie], x: int) -> Trie:
    """Step 1: the candidate tree C_X, what the pool knows behind the text's last token x."""
    return pool.get(x, {})  # 4
