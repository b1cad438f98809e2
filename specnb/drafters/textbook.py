"""PTD's step as the paper's text has it (Algorithm 1, section 3.2): expand, merge, step and prune, retrieve.

A tree is a nested dict: token → what is below it; the root is not in it. Numbers in comments are lines of Algorithm 1.
What the public code adds (a chained first level, feedback from candidates, the first level's upkeep, bounds of the
pool) is in ``ProgressiveDrafter``; without these options a test holds its step equal to this one on random trees.
"""

Trie = dict[int, "Trie"]


def nodes(T: Trie, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """All nodes of a tree as paths, depth first."""
    return [node for v, below in T.items() for node in ((*path, v), *nodes(below, (*path, v)))]


def depth(T: Trie) -> int:
    """Levels of a tree."""
    return max(map(len, nodes(T)), default=0)


def expand(T: Trie, d: dict[tuple[int, ...], int], children: int, path: tuple[int, ...] = ()) -> Trie:
    """Step 3 (8, 9): every node v gets the target's token d_v as its latest child, unless it has ``children``."""
    grown = {v: expand(below, d, children, (*path, v)) for v, below in T.items()}
    if path and (len(grown) < children):
        grown.setdefault(d[path], {})
    return grown


def merge(T: Trie, other: Trie) -> Trie:
    """The merging function M of section 3.2: T with every child of the other that it lacks, recursively."""
    united = {v: merge(below, other.get(v, {})) for v, below in T.items()}
    return united | {v: below for v, below in other.items() if v not in T}


def merge_subtrees(pool: dict[int, Trie], T: Trie) -> dict[int, Trie]:
    """Step 4 (14–16): every subtree of T that has nodes below its root is merged into the pool under its root."""
    pool = dict(pool)
    for v, below in T.items():
        if below:
            pool[v] = merge(pool.get(v, {}), below)
        pool = merge_subtrees(pool, below)
    return pool


def step_and_prune(T: Trie, d_max: int) -> Trie:
    """Steps of 10–12: a first-level subtree deeper than d_max gives way to its earliest child, which moves to the end.

    A child whose token stands on the first level already is passed over; without an heir the subtree goes.
    """
    kept = {v: below for v, below in T.items() if 1 + depth(below) <= d_max}
    for below in (below for v, below in T.items() if v not in kept):
        for heir, under in below.items():
            if heir not in T and heir not in kept:
                kept[heir] = under
                break
    return kept


def retrieve(pool: dict[int, Trie], x: int) -> Trie:
    """Step 1 (4): the candidate tree C_X, what the pool knows behind the text's last token x."""
    return pool.get(x, {})
