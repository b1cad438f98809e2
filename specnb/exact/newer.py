"""Newer verifiers in the letters of ``verifiers.textbook``, to be enumerated and compared with the older ones.

Here is hierarchical speculative decoding (HSD; Zhou et al., ICLR 2026, arXiv 2601.05724): on a chain (Algorithm 2,
Equations 16 to 20), on several chains drafted independently (Algorithm 3), and in its first form (Algorithm 1,
Equations 11 and 12), which asks the target again for every token that it draws after a rejection.

What enumeration finds: Algorithm 2 is lossless, and it accepts exactly what block verification accepts
(``capped_ratios`` says why), so that on chains it is traversal verification, too. The paper's Theorem 7 has it accept
more; but in the proof Equation A.94 drops a factor q(X) from one term of a fraction whose other terms have it, too.
Algorithm 1 does accept more, for more calls of the target. The public code is neither (``gallery.hsd_as_coded``).

UniVer (Weng et al. 2026, arXiv 2605.04543) is not here. We found its abstract and no text of its algorithm.

M_b: (n, V), the target's distribution after each node.
M_s: (n, V), the draft's distribution after each node (``draft.q``), positive for every drafted token.
coins.accept(h): the paper's h ≥ η.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd
import torch
from torch import Tensor

from specnb import exact
from specnb.decode import Verifier
from specnb.growth import Static
from specnb.sampling import Coins
from specnb.tree import Draft, Drawn, TokenTree, Verdict
from specnb.verifiers import traversal
from specnb.verifiers.textbook import norm


def capped_ratios(X: Sequence[int], M_b: Tensor, M_s: Tensor) -> tuple[list[float], list[float]]:
    """Return r(X_1:t) and its capped form for t = 0 … γ, X being the drafted tokens.

    r is the ratio p(X_1:t) / q(X_1:t) of the whole beginning. It is capped by its largest value so far, if that
    exceeds 1 (Definition 4): the ratio is counted from there on. In Equation 16 a next token x has the capped ratio
    r*(X_1:t, x) = capped[t] · M_b(x) / M_s(x).

    The capped ratio is what block verification calls p_t. There p_t = min(p_t−1 · M_b(X_t) / M_s(X_t), 1), which is the
    smallest of all ratios that begin later, r(X_1:t) / r(X_1:s) for s = 0 … t (the paper's Equation A.85). The
    smallest has the largest r(X_1:s) below it, so it is r(X_1:t) / max(1, r(X_1:1), …, r(X_1:t)).

    Example: if the tokens' own ratios are 1/2, 4 and 1/2, then r is 1, 1/2, 2, 1 and capped is 1, 1/2, 1, 1/2. Block
    verification's p_t is min(1/2, 1) = 1/2, min(1/2 · 4, 1) = 1 and min(1 · 1/2, 1) = 1/2.
    """
    r = [1.0]
    capped = [1.0]
    for t, x in enumerate(X):
        r.append(r[t] * float(M_b[t, x] / M_s[t, x]))
        capped.append(r[-1] / max(1.0, *r))
    return r, capped


def scan(X: Sequence[int], M_b: Tensor, M_s: Tensor, coins: Coins) -> tuple[int, Tensor]:
    """HSD's Algorithm 2 up to its last line: how many drafted tokens are accepted, and the law of the next one.

    Rows t of M_b and of M_s are the laws after X_1:t. All divergences have the factor q(X_1:t), which is left out: it
    cancels in Equations 19 and 20.
    """
    gamma = len(X)
    r, capped = capped_ratios(X, M_b, M_s)
    tau = 0
    for t in range(gamma, 0, -1):  # backwards: the first coin that says yes decides
        if t == gamma:
            r_star = r[gamma] / max(1.0, *r[:gamma])  # (16)
            h = min(1.0, r_star)
        else:
            difference = capped[t] * M_b[t] - M_s[t]
            deficit = float(difference.clamp(min=0).sum())  # (17)
            excess = float((-difference).clamp(min=0).sum())  # (18)
            h = min(1.0, deficit / excess) if excess > 0 else 1.0  # (19)
        if coins.accept(h):
            tau = t
            break
    if tau == gamma:
        return tau, M_b[tau]
    rest = (capped[tau] * M_b[tau] - M_s[tau]).clamp(min=0)  # (20)
    return tau, norm(rest, M_b[tau])


def hsd(draft: Draft, M_b: Tensor, coins: Coins) -> Verdict:
    """HSD of a chain (Algorithm 2)."""
    X = draft.tree.token_list[1:]
    tau, law = scan(X, M_b.double(), draft.q.double(), coins)
    path = range(1, tau + 1)
    return Verdict(tuple(path), coins.choose(law))


def hsd_of_several(draft: Draft, M_b: Tensor, coins: Coins) -> Verdict:
    """HSD of several chains that were drafted independently from the root (Algorithm 3).

    What is left of one chain is verified after what was accepted so far, if the chain begins by that. Its first token
    then has the law that remained, Equation 20's.
    """
    tree = draft.tree
    M_b = M_b.double()
    M_s = draft.q.double()
    accepted: tuple[int, ...] = ()  # nodes
    law = M_b[0]  # of the token after them
    for child in tree.children[0]:
        chain = _down_from(child, draft)
        start = len(accepted)
        begins_by_accepted = _tokens(draft, chain[:start]) == _tokens(draft, accepted)
        if not begins_by_accepted:
            continue
        rest = chain[start:]
        before = [0, *chain][start:]  # the node before each of the rest, and the last one
        target = torch.cat([law[None], M_b[before[1:]]])
        tau, law = scan(_tokens(draft, rest), target, M_s[before], coins)
        accepted = chain[: start + tau]
        if len(accepted) == len(chain):
            break
    return Verdict(accepted, coins.choose(law))


def _down_from(node: int, draft: Draft) -> tuple[int, ...]:
    """Return a node and all below it, which are a chain."""
    chain = [node]
    while draft.tree.children[chain[-1]]:
        chain.append(draft.tree.children[chain[-1]][0])
    return tuple(chain)


def _tokens(draft: Draft, nodes: Sequence[int]) -> list[int]:
    """Return the nodes' tokens."""
    return [draft.tree.token_list[node] for node in nodes]


def naive_hsd(p: exact.Model, q: exact.Model, gamma: int, coins: Coins) -> tuple[tuple[int, ...], int]:
    """HSD without the cap (Algorithm 1, Equations 11 and 12): the first γ tokens, and how many of them were drafted.

    It is no verifier of a given draft: each token after a rejection needs the target's and the draft's law after the
    token drawn before. So it asks the target again once for every one of them but the first.
    """
    X: tuple[int, ...] = exact.sample(q, (), gamma, coins)
    tau = 0
    for t in range(gamma, 0, -1):
        if t == gamma:
            h = min(1.0, _joint(p, X) / _joint(q, X))
        else:
            difference = _joint(p, X[:t]) * p(X[:t]) - _joint(q, X[:t]) * q(X[:t])
            deficit = float(difference.clamp(min=0).sum())  # (6)
            excess = float((-difference).clamp(min=0).sum())
            larger = max(deficit, excess)
            h = deficit / larger if larger > 0 else 1.0  # (11)
        if coins.accept(h):
            tau = t
            break
    text = X[:tau]
    while len(text) < gamma:
        difference = _joint(p, text) * p(text) - _joint(q, text) * q(text)
        rest = norm(difference.clamp(min=0), p(text))  # (12)
        text = (*text, coins.choose(rest))
    return text, tau


def _joint(model: exact.Model, text: tuple[int, ...]) -> float:
    """Return the model's probability of a text."""
    probability = 1.0
    for position, token in enumerate(text):
        law = model(text[:position])
        probability *= float(law[token])
    return probability


def merged(tree: TokenTree) -> TokenTree:
    """Return a tree whose children hang below the first of several siblings that have the same token.

    Nodes keep their numbers. A sibling that repeats an earlier one's token stays, without children. Which children are
    moved depends on the tokens above them, not on their own, so that they are draws from q as before.

    Example: of the chains a, b and a, c the second becomes a child c of the first one's a, and a childless a.
    """
    first_with: dict[tuple[int, int], int] = {}  # (parent, token) → the first such node
    stands_for = [0]  # for each node, the first with the same tokens on its path
    parents = [-1]
    for node in range(1, len(tree)):
        parent = stands_for[tree.parent_list[node]]
        parents.append(parent)
        first = first_with.setdefault((parent, tree.token_list[node]), node)
        stands_for.append(first)
    return TokenTree(tree.tokens, torch.tensor(parents))


def traversal_of_merged(draft: Draft, M_b: Tensor, coins: Coins) -> Verdict:
    """Traversal verification after siblings of the same token are merged, for drafts drawn independently (IID)."""
    tree = merged(draft.tree)
    verdict = traversal(replace(draft, tree=tree), M_b, coins)
    last = verdict.path[-1] if verdict.path else 0
    return Verdict(draft.tree.path(last), verdict.next_token)


def compare(
    rules: dict[str, Verifier],
    shape: Static,
    drawn: Drawn,
    worlds: Sequence[tuple[exact.Model, exact.Model]],
    best: Callable[[exact.Model, exact.Model], float] | None = None,
) -> pd.DataFrame:
    """Return a table of rules that verify drafts of one shape, one row per rule.

    TV: the largest total variation, in any of the worlds (p, q), between the texts' law and the target's; 0 is
        lossless.
    tokens: the mean number of accepted draft tokens in a step, averaged over the worlds.
    share: that number divided by the largest one of any lossless rule, averaged over the worlds; nan without ``best``.
    best: the largest mean number of accepted tokens of any lossless rule, for a world (p, q).
    """
    depth = max(map(len, shape.paths))
    rows = []
    for name, rule in rules.items():
        distances = []
        lengths = []
        shares = []
        for p, q in worlds:
            drafter = exact.toy_drafter(q, shape, drawn)
            texts = exact.output_law(drafter, rule, p, depth=depth)
            distances.append(exact.total_variation(texts, exact.joint(p, depth + 1)))
            accepted = exact.accepted_law(drafter, rule, p, depth=depth)
            length = exact.expectation(accepted, float)
            lengths.append(length)
            shares.append(length / best(p, q) if best else float("nan"))
        count = len(worlds)
        rows.append((name, max(distances), sum(lengths) / count, sum(shares) / count))
    return pd.DataFrame(rows, columns=["rule", "TV", "tokens", "share"])
