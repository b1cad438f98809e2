"""SALF and DynaTree as their papers print them, with the papers' letters and line numbers.

The draft model is a function here: ``draft(path)`` returns the (V,) probabilities of the next token after a path. A
node is written as its path, the tuple of tokens from the first level down to it; () is the root. Numbers in comments
are the line numbers of the printed algorithm. A test compares the trees with those of the fast rules (``Salf``,
``DynaTree``).
"""

import heapq
from collections.abc import Callable

from torch import Tensor

Path = tuple[int, ...]  # a node
LanguageModel = Callable[[Path], Tensor]


def salf(draft: LanguageModel, N: int, B: int, th: float) -> dict[Path, float]:
    """Dynamic tree construction with SALF (SALF & TALF, Algorithm 2): returns the tree as path → path probability.

    N: the most nodes of the tree, the root included.
    B: the beam, the number of nodes that one draft forward expands.
    th: the threshold; drafting stops when the next beam's probabilities sum to less.
    The paper's letters inside:
    G: the nodes of the tree so far, up to N of high probability.
    Q: the open nodes, scored but not expanded.
    D: the beam that is popped from Q.
    pr: the probability of a path.
    epsilon: the smallest probability in G once G is full, 0 before.
    S: the summed probability of D, the most that the next forward can add to the expected length.

    Example: a draft that gives its two tokens .6 and .4 everywhere, N = 4, B = 1, th = .5. The root is expanded
    (S = 1), then the node of .6 (S = .6). The next beam is the node of .4: S is below th, and the tree is
    {(): 1, (0,): .6, (1,): .4}.

    It differs from the print in two points. The print adds the root to G a second time when it is popped; here G is a
    dict, so the root stays a single entry. And an empty D ends the loop, because at th = 0 the printed loop never ends.
    """
    G = {(): 1.0}  # 1: up to N nodes of high probability
    Q = [(-1.0, 0, ())]  # 2: (−pr, length, path): a heap pops the smallest, so likely and then short paths first
    while True:  # 3
        D = {}
        for _ in range(min(B, len(Q))):  # 4–7, 9
            minus_pr, _, path = heapq.heappop(Q)
            D[path] = -minus_pr
        G |= D  # 8
        likeliest = sorted(G, key=lambda path: (-G[path], len(path)))
        G = {path: G[path] for path in likeliest[:N]}  # 1: N nodes at most
        epsilon = min(G.values()) if len(G) == N else 0.0  # 10, 11
        D = {path: pr for path, pr in D.items() if pr > epsilon}  # 12: a child is never likelier than its parent
        S = sum(D.values())  # 13
        if not D or th > S:  # 13: stopping at low further gains
            return G
        for path, pr in D.items():  # 14; the paper feeds them to the draft in one batch
            for v, p in enumerate(draft(path).tolist()):  # 15–18
                child = (*path, v)
                heapq.heappush(Q, (-(pr * p), len(child), child))  # 19, 20
        Q = heapq.nsmallest(N, Q)  # 20: Q discards low entries beyond N


def draft_tree(draft: LanguageModel, D: int, B: int, tau: float, N_max: int) -> list[Path]:
    """DRAFTTREE (DynaTree, Algorithm 1, lines 8 to 31): the nodes of the tree as paths, breadth first.

    D: the number of levels below the first one.
    B: the number of children of a node.
    tau: a node is expanded only if its path has at least this probability.
    N_max: the most nodes, the root not counted.

    Example: a draft that gives its three tokens .6, .3 and .1 everywhere, D = 1, B = 2, tau = .5, N_max = 128. The top
    token (0,) has .6 and gets two children: the tree is (0,), (0, 0), (0, 1).

    The print compares logarithms in line 17; here both sides are probabilities. Lines 1 to 7 are one iteration around
    DRAFTTREE and SELECTCOMMIT; in this package that is ``decode.steps``. Line 6 computes the cache of the accepted
    tokens anew, while ``decode.steps`` moves their keys and values within the cache.
    """
    first = draft(())  # 9
    u_0 = (int(first.argmax()),)  # 9: the top token stands alone below the prefix
    T = [u_0]  # 9
    probability = {u_0: float(first.max())}
    active = [u_0]  # 10
    for _ in range(D):  # 11
        if not active or len(T) >= N_max:  # 12
            break
        new = []  # 15
        for u in active:  # 16
            if probability[u] < tau:  # 17: prune branches of low probability
                continue
            top = draft(u).topk(B)  # 20
            for v, p in zip(top.indices.tolist(), top.values.tolist(), strict=True):  # 21
                if len(T) >= N_max:  # 22
                    break
                child = (*u, v)
                probability[child] = probability[u] * p
                T.append(child)  # 25
                new.append(child)
        active = new  # 28
    return T  # 30


def select_commit(T: list[Path], y_hat: Callable[[Path], int]) -> Path:
    """SELECTCOMMIT (DynaTree, Algorithm 1, lines 32 to 42): the accepted path and the bonus token, as one tuple.

    T: the nodes of the tree.
    y_hat(path): the target's argmax after a path; the paper calls y_hat(()) first (line 33).
    Returns one path. Its last token is the bonus, the others are the accepted draft tokens.

    Example: T has the nodes (5,) and (5, 7), and the target's argmax is 5 after (), 7 after (5,) and 9 after (5, 7).
    The result is (5, 7, 9). If the argmax after () were 4, it would be (4,).
    """
    nodes = set(T)
    path = (y_hat(()),)  # 33: first
    while path in nodes:  # 34
        path = (*path, y_hat(path))
    return path  # 35–40: accepted draft tokens and the bonus; only the bonus if first is not in the tree
