"""SALF and DynaTree as their papers print them, over a draft given as a function of the path.

``draft(path)`` returns (V,) probabilities of the next token after a tuple of tokens. Numbers in comments are the line
numbers of the printed algorithm. A test holds the trees equal to those of the fast rules (``Salf``, ``DynaTree``).
"""

import heapq
from collections.abc import Callable

from torch import Tensor

Path = tuple[int, ...]
LanguageModel = Callable[[Path], Tensor]


def salf(draft: LanguageModel, N: int, B: int, th: float) -> dict[Path, float]:
    """Dynamic tree construction with SALF (SALF & TALF, Algorithm 2): the nodes of G by path, with their probability.

    N counts the root. Two departures from the print: the root is not pushed into G again when it is popped, and an
    empty D ends the loop, which never ends at th = 0 otherwise. Q holds −pr, since Python's heap pops the smallest.
    """
    G = {(): 1.0}  # 1: up to N nodes of high probability
    Q = [(-1.0, 0, ())]  # 2: open nodes, likeliest first; shorter paths first among equals
    while True:  # 3
        D = {}
        for _ in range(min(B, len(Q))):  # 4–7, 9
            minus_pr, _, path = heapq.heappop(Q)
            D[path] = -minus_pr
        G |= D  # 8
        likeliest = sorted(G, key=lambda path: (-G[path], len(path)))
        G = {path: G[path] for path in likeliest[:N]}  # 1: G holds N at most
        epsilon = min(G.values()) if len(G) == N else 0.0  # 10, 11
        D = {path: pr for path, pr in D.items() if pr > epsilon}  # 12
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

    Line 17 compares the path's log-probability with log τ; here both are probabilities. Lines 1 to 7, one iteration
    around these two functions, are the loop's (``decode.steps``): it gathers the cache where line 6 rebuilds it.
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
    """SELECTCOMMIT (DynaTree, Algorithm 1, lines 32 to 42): the longest greedy-consistent path and a bonus token.

    y_hat(path): the target's argmax after a path; y_hat(()) is what the paper calls first (line 33).
    """
    nodes = set(T)
    path = (y_hat(()),)  # 33: first
    while path in nodes:  # 34
        path = (*path, y_hat(path))
    return path  # 35–40: its last token is no node; [first] alone if no path begins with it
