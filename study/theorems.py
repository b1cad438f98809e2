"""Theorems of the papers on small cases: traversal verification, and the tree search of SALF.

Each public function but ``optimum`` answers for one claim: a truth value a case, True where it is as the paper says.
Laws are exact.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import pairwise, product

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from specnb import heads, verifiers
from specnb.decode import Verifier
from specnb.exact import enumeration as exact
from specnb.exact import gallery
from specnb.growth import EAGLE_25, Eagle2, Salf, Static, chain, kary
from specnb.growth.textbook import Path, salf
from specnb.sampling import Coins, Warp
from specnb.tree import Draft, Drawn, TokenTree
from specnb.verifiers import textbook
from study import paper

POINT, IID, SWOR = Drawn


def _model(*law: float, after: dict[Path, tuple[float, ...]] | None = None) -> exact.Model:
    """The same law after every text, but for those that have one of their own."""
    return lambda text: torch.tensor((after or {}).get(text, law), dtype=torch.float64)


TABLE_1 = _model(0.3, 0.4, 0.3), _model(0.6, 0.3, 0.1)  # p and q
FIGURE_1 = TokenTree([0, 0, 1, 1, 2, 0], [-1, 0, 0, 1, 1, 2])  # X1 = a with children X3 = b, X4 = c; X2 = b with X5 = a


def _equal(found: object, due: object) -> list[bool]:
    """Number by number, within rounding."""
    return np.ravel(np.abs(np.subtract(found, due)) < 1e-9).tolist()


class _Rejecting:
    """Coins that reject every node; they keep the chances and the law of the next token."""

    def __init__(self):
        self.chances: list[float] = []

    def accept(self, probability: float) -> bool:
        self.chances.append(probability)
        return False

    def choose(self, probabilities: Tensor) -> int:
        self.law = probabilities
        return 0


def _on(tree: TokenTree, p: exact.Model, q: exact.Model) -> tuple[Draft, Tensor]:
    """A given tree as a draft, and the target's rows for it."""
    return Draft(tree, exact.rows(q, tree), SWOR), exact.rows(p, tree)


def _rejected(rule: Verifier, tree: TokenTree, *world: exact.Model) -> tuple[list[float], list[int], Tensor]:
    """A tree all of which is rejected: chances, nodes (which textbook forms do not note), law of the next token."""
    coins = _Rejecting()
    nodes = [trial.node for trial in rule(*_on(tree, *world), coins).trials]
    return coins.chances, nodes, coins.law


def _steps(rule: Verifier, shape: Static, p: exact.Model, q: exact.Model, drawn: Drawn = SWOR) -> exact.Law:
    """Law of a step: of the draft and the verdict."""
    return exact.law(partial(exact.verify_once, exact.toy_drafter(q, shape, drawn), rule, p, depth=99))


def _accepted(*step: object) -> exact.Law:
    """Law of the tokens that a step accepts."""
    law: exact.Law = defaultdict(float)
    for (draft, verdict), mass in _steps(*step).items():
        law[draft.tree.path_tokens([0, *verdict.path][-1])] += mass
    return law


def _children(model: exact.Model, texts: exact.Law) -> exact.Law:
    """All texts with one more token, and their probability."""
    return {(*text, x): mass * p for text, mass in texts.items() for x, p in enumerate(model(text).tolist())}


def _nodes(model: exact.Model, depth: int) -> exact.Law:
    """All texts of at most depth tokens, short ones first, and their probability."""
    if not depth:
        return {(): 1.0}
    shorter = _nodes(model, depth - 1)
    return shorter | _children(model, shorter)


def traversal_table_1() -> list[bool]:
    """Table 1 and Section 2.2: one drafted token at token level, and what drawing siblings without replacement brings.

    Cases: the cells of the table, its sums by row and column, the chance that a is rejected; those of b and c as second
    siblings of a rejected a; two siblings are accepted more often if drawn without replacement, in four worlds at three
    temperatures; the lower the temperature, the larger the difference, in the paper's world and on average.
    """
    printed = paper.rows("traversal", "Table 1").set_index(["row", "column"])["value"]
    found = np.zeros((3, 3))
    for (draft, verdict), mass in _steps(textbook.token_level, chain(1), *TABLE_1).items():
        x = draft.tree.token_list[1]
        found[x if verdict.path else verdict.next_token, x] += mass
    cells = np.array([[printed[f"output token {y}", f"drafted token {x}"] for x in "abc"] for y in "abc"])
    cases = _equal(cells, found)
    cases += _equal(cells.sum(0), [printed["draft probability", f"drafted token {x}"] for x in "abc"])
    cases += _equal(cells.sum(1), [printed[f"output token {y}", "target probability"] for y in "abc"])
    cases += _equal(1 - found[0, 0] / found[:, 0].sum(), printed["drafted token a", "rejection probability"])
    for x, chance in ((1, 4 / 9), (2, 1)):
        cases += _equal(_rejected(textbook.rrsw, TokenTree([0, 0, x], [-1, 0, 0]), *TABLE_1)[0][1], chance)
    gains = np.array([[_pair_gain(t, *world) for t in (1, 0.7, 0.4)] for world in (TABLE_1, *gallery.worlds(3))])
    rises = np.diff([gains[0], gains.mean(0)]) > 0
    return [*cases, *(gains > 0).ravel().tolist(), *rises.all(1).tolist()]


def _pair_gain(temperature: float, *world: exact.Model) -> float:
    """How much more often one of two siblings is accepted if they are drawn without replacement."""
    p, q = (lambda text, model=model: Warp(temperature)(model(text).log()) for model in world)
    return _accepted(textbook.rrs, kary(2, 1), p, q, IID)[()] - _accepted(textbook.rrsw, kary(2, 1), p, q)[()]


def traversal_order() -> list[bool]:
    """Figure 1 and Section 3.2: traversal tries every node of a tree, a parent only after all its children.

    Cases: the order on Figure 1's tree; token-level verification leaves children alone whose parent is rejected; on
    four larger trees, all rejected, traversal tosses a coin for each node but the root, no parent comes before a child,
    and token-level verification tries the children of the root alone.
    """
    given = _on(FIGURE_1, *TABLE_1)
    orders = {tuple(trial.node for trial in verdict.trials) for verdict in exact.law(partial(verifiers.rrsw, *given))}
    cases = [_rejected(verifiers.traversal, FIGURE_1, *TABLE_1)[1] == [3, 4, 1, 5, 2]]
    cases.append((1, 2) in orders and orders <= {(1, 2), (1, 2, 5), (1, 3), (1, 3, 4)})
    for shape, world in zip((gallery.UNEVEN, kary(2, 3), kary(3, 2), EAGLE_25), gallery.worlds(4, 6), strict=True):
        tree = exact.toy_draft(world[1], shape, SWOR)[0].tree
        order = _rejected(verifiers.traversal, tree, *world)[1]
        cases.append(len(_rejected(textbook.traversal, tree, *world)[0]) == len(tree) - 1)
        cases.append(all(order.index(x) < order.index(v) for v in order for x in tree.children[v] if x in order))
        cases.append(_rejected(verifiers.rrsw, tree, *world)[1] == list(tree.children[0]))
    return cases


def traversal_worked_example() -> list[bool]:
    """Figure 2 and Section 3.2: traversal accepts the first chain more often, and expects the second one longer too.

    Cases (the fractions are by hand, the text we have lost them): the chances of X3, X4, X1, X5 and X2 as each is
    rejected in turn; token-level verification accepts the first chain with 1/2; X1 after X3 alone; X2 without X5 is
    equal under both rules; traversal expects more of the second chain on average over its last token, as Theorem 3.4
    has it (given the token that the example draws it does not).
    """
    rules = textbook.traversal, textbook.rrsw
    cases = _equal(_rejected(textbook.traversal, FIGURE_1, *TABLE_1)[0], [2 / 3, 7 / 11, 0, 2 / 9, 3 / 53])
    cases += _equal(exact.accepted_given(*_on(FIGURE_1, *TABLE_1), textbook.rrsw)[1, 3], 1 / 2)
    cases += _equal(_rejected(textbook.traversal, FIGURE_1.keep(range(4)), *TABLE_1)[0][1], 1 / 11)
    cases.append(all(_equal([_rejected(rule, FIGURE_1.keep(range(5)), *TABLE_1)[0][-1] for rule in rules], 4 / 9)))
    p = _model(0.3, 0.4, 0.3, after={(): (0, 1 / 3, 2 / 3)})  # p and q without X1
    q = _model(0.6, 0.3, 0.1, after={(): (0, 3 / 4, 1 / 4)})
    lengths = np.zeros(2)
    for x, share in enumerate((0.6, 0.3, 0.1)):
        second = _on(TokenTree.chain((0, 1, x)), p, q)
        lengths += [share * exact.expectation(exact.accepted_given(*second, rule), len) for rule in rules]
    return [*cases, all(_equal(lengths, [4 / 9 + 37 / 90, 4 / 9 * 1.7])) and bool(lengths[0] > lengths[1])]


def traversal_is_lossless() -> list[bool]:
    """Theorem 3.3 and Lemma A.1: traversal verification leaves the target's law as it is; one step suffices to see it.

    Cases: the law of the text is the target's own, on chains and on trees drawn either way, with and without zeros; one
    step completed by the target and several steps are both exact for three sound rules, both wrong for two broken.
    """
    zeros = _model(0, 0.7, 0.3), _model(0.5, 0.5, 0)
    wide = product((TABLE_1, zeros), ((chain(2), SWOR), (kary(3, 1), SWOR), (kary(3, 1), IID)))
    deep = product(gallery.worlds(2, 2), ((chain(3), SWOR), (gallery.UNEVEN, SWOR), (gallery.UNEVEN, IID)))
    cases = []
    for (p, q), (shape, drawn) in (*wide, *deep):
        depth = max(map(len, shape.paths))
        law = exact.output_law(exact.toy_drafter(q, shape, drawn), verifiers.traversal, p, depth=depth)
        cases += _equal(exact.total_variation(law, exact.joint(p, depth + 1)), 0)
    one, two, pair = (gallery.drawn(shape, SWOR) for shape in (chain(1), chain(2), kary(2, 1)))
    resorted = gallery.drawn(kary(2, 1), SWOR, gallery.resorted)
    sound = (two, textbook.traversal), (two, textbook.token_level), (pair, textbook.traversal)
    p, q = gallery.worlds(1, 2)[0]
    for make, rule in (*sound, (one, gallery.RECOVERED), (resorted, verifiers.rrsw)):
        law = exact.law(partial(_three_tokens, make, rule, p, q))
        biases = gallery.bias(make, rule, p, q), exact.total_variation(law, exact.joint(p, 3))
        cases.append(_equal(biases, 0) == [(make, rule) in sound] * 2)
    return cases


def _three_tokens(make: gallery.MakeDrafter, rule: Verifier, p: exact.Model, q: exact.Model, coins: Coins) -> Path:
    """A text of as many steps as it takes."""
    tokens: Path = ()
    while len(tokens) < 3:
        p_on, q_on = (lambda more, model=model, tokens=tokens: model(tokens + more) for model in (p, q))
        draft, verdict = exact.verify_once(make(q_on), rule, p_on, coins, depth=2)
        tokens += (*(draft.tree.token_list[node] for node in verdict.path), verdict.next_token)
    return tokens[:3]


def traversal_best_on_chains() -> list[bool]:
    """Theorem 3.4, Lemmas B.1 and B.2: on a chain traversal is block verification, and no lossless rule accepts more.

    Cases, on four chains: both accept the same tokens equally often; their mean is the optimum of a linear program over
    all lossless rules, and no other rule's is higher; every prefix is accepted with its draft probability times its
    survival, and by no lossless rule more often. (The program is solved to six digits.)
    """
    rules = textbook.traversal, textbook.block, textbook.token_level, verifiers.one_hot, verifiers.sample_and_match
    thirds = _model(1 / 3, 2 / 3), _model(2 / 3, 1 / 3)
    cases = []
    for (p, q), gamma in ((thirds, 2), (TABLE_1, 2), (gallery.worlds(1)[0], 2), (gallery.worlds(1, 2)[0], 3)):
        laws = [_accepted(rule, chain(gamma), p, q) for rule in rules]
        means, best = [exact.expectation(law, len) for law in laws], optimum(p, q, chain(gamma))
        cases += _equal(exact.total_variation(laws[0], laws[1]), 0)
        cases += [abs(best(len) - means[0]) < 1e-6, max(means) < means[0] + 1e-9]
        survival = {(): 1.0}
        for prefix, drafted in list(_nodes(q, gamma).items())[1:]:
            before, x = prefix[:-1], prefix[-1]
            survival[prefix] = min(survival[before] * float(p(before)[x] / q(before)[x]), 1.0)
            accepted = sum(mass for text, mass in laws[1].items() if text[: len(prefix)] == prefix)
            most = best(lambda text, prefix=prefix: text[: len(prefix)] == prefix)
            cases += [*_equal(accepted, drafted * survival[prefix]), abs(most - accepted) < 1e-6]
    return cases


def optimum(p: exact.Model, q: exact.Model, shape: Static, drawn: Drawn = IID) -> Callable[..., float]:
    """The largest mean of value(accepted tokens) over all lossless rules for trees of a shape, as a function of value.

    A rule gives each outcome (tree drafted, path accepted, token behind it) a mass. A tree's sum to its probability; a
    text's, each over its target probability, to one: completed by the target (Lemma A.1) it is as likely as it should.
    """
    depth, drafter = max(map(len, shape.paths)), exact.toy_drafter(q, shape, drawn)

    def paths(coins: Coins) -> tuple[Path, ...]:
        drafter.begin((0,), Warp(), {})
        tree = drafter.propose(coins, depth).tree
        return tuple(tree.path_tokens(node) for node in range(len(tree)))

    trees, texts, target = exact.law(paths), exact.joint(p, depth + 1), _nodes(p, depth + 1)
    ends = [(tree, (*path, y)) for tree in trees for path in dict.fromkeys(tree) for y in range(len(p(())))]
    outcomes = [(tree, written) for tree, written in ends if target[written]]
    rows = [[float(tree is drafted) for tree, _ in outcomes] for drafted in trees]
    rows += [[(text[: len(written)] == written) / target[written] for _, written in outcomes] for text in texts]
    sums = [*trees.values()] + [1.0] * len(texts)
    return lambda value: -linprog([-value(written[:-1]) for _, written in outcomes], A_eq=rows, b_eq=sums).fun


def traversal_deep_chains() -> list[bool]:
    """Section 4.3: at depths of about twenty the gain over token-level verification is expected to be still larger.

    All tokens of a chain have one p and one q. A case is one more level: the relative gain has to rise down to depth
    twenty in Table 1's world, and may not fall down to twelve in three random ones.
    """
    numbers = np.random.default_rng(0)
    cases = [b > a + 1e-9 for a, b in pairwise(_gains(*(model(()).tolist() for model in TABLE_1), 20))]
    for _ in range(3):
        cases += [b > a - 1e-9 for a, b in pairwise(_gains(*numbers.dirichlet(np.ones(3), 2).tolist(), 12))]
    return cases


def _gains(p: list[float], q: list[float], depth: int) -> list[float]:
    """Traversal's expected tokens over token-level verification's, less one, on chains of one to depth tokens."""
    law, traversal, token_level, gains = {1.0: 1.0}, 1.0, 1.0, []  # law: of the last token's survival
    for level in range(1, depth + 1):
        longer: dict[float, float] = defaultdict(float)
        for (survival, mass), (px, qx) in product(law.items(), zip(p, q, strict=True)):
            longer[round(min(survival * px / qx, 1.0), 12)] += mass * qx
        law = longer
        traversal += exact.expectation(law, float)
        token_level += sum(map(min, p, q)) ** level
        gains.append(traversal / token_level - 1)
    return gains


def traversal_self_similarity() -> list[bool]:
    """Lemma A.2 and Section 3.3: every subtree is a traversal of its own, and a pseudo-child explains the update.

    Cases: each node of a tree in two worlds. Given the tokens that decide whether it is reached, the outcome runs
    through it with the chance that it is reached times its survival, and then the target's law follows (proved for the
    first chain; nodes 2 and 4 are later siblings). Five times three: the chances of two siblings and then of the node
    above, of survival s, are RRSw's with one more sibling: it has 1 - s of the target and stands for rejection.
    """
    cases = []
    for p, q in gallery.worlds(2):
        steps = _steps(verifiers.traversal, gallery.UNEVEN, p, q)
        chances = {draft: verifiers.chances(*_on(draft.tree, p, q)) for draft, _ in steps}
        for node, deciding in {1: [1], 2: [1, 2], 3: [1, 3], 4: [1, 3, 4]}.items():
            found, due = defaultdict(float), defaultdict(float)  # of the deciding tokens and what follows the node
            for (draft, verdict), mass in steps.items():
                known, path = tuple(draft.tree.tokens[deciding].tolist()), draft.tree.path_tokens(node)
                if node in verdict.path:
                    text = *draft.tree.path_tokens(verdict.path[-1]), verdict.next_token
                    found[known, text[len(path)]] += mass
                for y, share in enumerate(p(path).tolist()):
                    due[known, y] += mass * chances[draft][node] * share
            cases += _equal(exact.total_variation(found, due), 0)
    numbers = np.random.default_rng(0)
    for _ in range(5):
        s, (p, q) = numbers.uniform(0.05, 0.95), numbers.dirichlet(np.ones(4), 2)
        parent = _model(*p, after={(): (s, 1 - s, 0, 0)}), _model(*q, after={(): (1, 0, 0, 0)})
        node, _, _ = _rejected(textbook.traversal, TokenTree([0, 0, 0, 1], [-1, 0, 1, 1]), *parent)
        flat, _, law = _rejected(textbook.rrsw, TokenTree([0, 0, 1], [-1, 0, 0]), _model(*s * p, 1 - s), _model(*q, 0))
        cases += _equal(node, [*flat, 1 - float(law[-1])])
    return cases


def salf_theorem_1() -> list[bool]:
    """Theorem 1: the probability S_i that the i-th draft forward expands falls strictly from i = 2 on, if B < |V|.

    Cases: twenty random drafts, and three whose tokens are all equally likely. These fail: several forwards expand
    equals, and the sum stands still where the proof has "at least" and needs "more". But it never rises.
    """
    searches = [(exact.random_model(8, seed), Salf(20, 4, 0.0)) for seed in range(20)]
    searches += [(_model(*[1 / V] * V), Salf(60, B, 0.0)) for V, B in ((4, 2), (8, 4), (9, 3))]
    sums = [exact.toy_draft(draft, rule)[1][1:] for draft, rule in searches]
    return [all(after < before - 1e-9 for before, after in pairwise(S)) for S in sums]


def salf_theorem_2() -> list[bool]:
    """Theorem 2: after every round the search holds the N likeliest of all nodes down to that depth.

    Cases: ten random drafts, four rounds, N = 12. It holds for the recursion of the proof, which expands all N nodes in
    a round; Algorithm 2 expands B of them, here three, and is behind on most drafts (until it ends).
    """
    drafts = [exact.random_model(6, seed) for seed in range(10)]
    return [_held(draft, 12, 3) == [set(_top(_nodes(draft, depth), 12)) for depth in range(1, 5)] for draft in drafts]


def _held(draft: exact.Model, total: int, beam: int) -> list[set[Path]]:
    """The likeliest nodes that a search knows after each of four rounds, in which it expands so many of them."""
    known, closed, held = {(): 1.0}, set(), []
    for _ in range(4):
        opened = _top({path: chance for path, chance in known.items() if path not in closed}, beam)
        closed |= set(opened)
        known = _top(known | _children(draft, opened), total)
        held.append(set(known))
    return held


def _top(nodes: exact.Law, count: int) -> exact.Law:
    return dict(sorted(nodes.items(), key=lambda node: -node[1])[:count])


def salf_theorem_3() -> list[bool]:
    """Theorem 3, Figures 3 and 4: without its stop Algorithm 2 ends with the N likeliest nodes of the whole tree.

    Cases: ten random drafts; and one that is lost after its first choice and sure after its second, where EAGLE-2's
    beam misses likely nodes. As printed, the loop never ends at threshold 0; ours ends when no node can enter.
    """
    sure = (0.95, 0.03, 0.01, 0.01)
    laws = {(): (0.5, 0.4, 0.06, 0.04), (0,): (0.5, 0.48, 0.01, 0.01), (1,): (0.55, 0.25, 0.1, 0.1)}
    late = _model(*[0.25] * 4, after={**laws, (1, 0): sure, (1, 0, 0): sure})
    beam, _ = exact.toy_draft(late, Eagle2(7, 4, 2))
    kept = {beam.tree.path_tokens(node): chance for node, chance in enumerate(beam.scores.tolist())}
    cases = [_optimal(draft, salf(draft, 20, 4, 0.0), 20) for draft in map(partial(exact.random_model, 6), range(10))]
    return [*cases, _optimal(late, salf(late, 8, 2, 0.0), 8) and not _optimal(late, kept, 8)]


def _optimal(draft: exact.Model, tree: exact.Law, total: int) -> bool:
    """Whether a tree of this size is the likeliest: no child outside, hence no node below, beats one of its own."""
    outside = max(chance for path, chance in _children(draft, tree).items() if path not in tree)
    return len(tree) == total and outside < min(tree.values()) + 1e-9


def salf_error_of_a_calibrated_draft() -> list[bool]:
    """Appendix A: the expected calibration error is low for a calibrated draft and high for an overconfident one.

    Cases: a draft that is right seven times in ten has almost no error if it says 0.7, and a larger one if it says 1.
    Both fail: the paper takes the confidence in the target's token, which is low where the draft was wrong; the common
    definition takes the confidence in the draft's own choice.
    """
    right = np.array([1] * 7 + [0] * 3)
    honest, boastful = (heads.ece(np.where(right, first, 1 - first), right) for first in (0.7, 1.0))
    return [honest < 0.01, boastful > honest]
