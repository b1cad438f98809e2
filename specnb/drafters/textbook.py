"""PTD's four moves (Algorithm 1, section 3.2): retrieve, expand, step and prune, merge.

A tree is a nested dict: token → what is below it; the root is not in it. Numbers in comments are lines of Algorithm 1.
d_v is what the target says after node v in the step's one forward (line 6); verification (18–23) is a verifier's.
The paper prunes before it merges. The public code, and ``ProgressiveDrafter`` with it, merges the tree as expanded,
without a limit of its width. What else the code adds (a chained first level, feedback from candidates, the upkeep of
the first level, bounds of the pool) are options of ``ProgressiveDrafter``, which expands, steps and prunes by these
functions. A test holds a whole step of it, without the options, equal to Algorithm 1 on random trees.
"""

from specnb.drafters.pools import Trie, depth

Path = tuple[int, ...]  # a node as the tokens from the first level down to it


def nodes(T: Trie, path: Path = ()) -> list[Path]:
    """All nodes of a tree as paths, depth first: (1,), (1, 2), (3,) of {1: {2: {}}, 3: {}}."""
    found = []
    for v, below in T.items():
        found.append((*path, v))
        found += nodes(below, (*path, v))
    return found


def expand(T: Trie, d: dict[Path, int], children: int, path: Path = ()) -> Trie:
    """Step 3: every node v gets the target's token d_v as its latest child, unless it has ``children`` of them.

    Example: {1: {2: {}}} with d = {(1,): 5, (1, 2): 6} becomes {1: {2: {6: {}}, 5: {}}}.
    """
    grown = {}
    for v, below in T.items():
        grown[v] = expand(below, d, children, (*path, v))
    if path and len(grown) < children:  # the limit is in section 3.2
        grown.setdefault(d[path], {})  # 8, 9
    return grown


def merge(T: Trie, other: Trie) -> Trie:
    """The merging function M of section 3.2: T with every child of the other that it lacks, recursively.

    As sets of paths it is commutative, associative and idempotent.
    Example: {1: {2: {}}} and {1: {3: {}}, 4: {}} make {1: {2: {}, 3: {}}, 4: {}}.
    """
    united = {}
    for v, below in T.items():
        united[v] = merge(below, other.get(v, {}))
    for v, below in other.items():
        united.setdefault(v, below)
    return united


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
    goes. Example with d_max = 2: {1: {2: {3: {}}, 4: {}}, 5: {}} becomes {5: {}, 2: {3: {}}}.
    """
    kept = {}
    for v, below in T.items():
        if 1 + depth(below) <= d_max:  # 10
            kept[v] = below
    for v, below in T.items():
        if v not in kept:  # 11
            heirs = [child for child in below if child not in T and child not in kept]
            if heirs:
                kept[heirs[0]] = below[heirs[0]]
    return kept


def retrieve(pool: dict[int, Trie], x: int) -> Trie:
    """Step 1: the candidate tree C_X, what the pool knows behind the text's last token x."""
    return pool.get(x, {})  # 4
