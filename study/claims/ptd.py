"""Progressive Tree Drafting (PTD): what the paper says, and by which tests it is judged."""

import random
from collections.abc import Callable
from itertools import product

import pandas as pd
from transformers import LlamaForCausalLM

from specnb import exact, growth, masks
from specnb.drafters import ProgressiveDrafter, textbook
from specnb.drafters.pools import Trie
from specnb.exact import gallery
from specnb.sampling import Coins, RandomCoins, Warp
from specnb.target import Target
from specnb.tree import Drawn
from specnb.verifiers import one_hot
from study import experiments
from study.claims import in_print, toys
from study.claims.registry import checked, claim
from study.claims.toys import CLOSE
from study.prices import Prices
from study.stats import DIFFERENCE, LEAD, MEAN, RATIO, slope

NODE_BETWEEN_METHODS = Prices(node=0.0011, name="the price of one node more")
"""Of one node more between methods, in Tables 3 and 4 of the paper; calls of a draft there are none."""

NODE_ON_AVERAGE = Prices(node=0.0057, name="the average price of a node")
"""Of all methods' nodes on average, in Tables 3 and 4 of the paper."""


# ---- the algorithms and the method in small -----------------------------------------------------------------------


def _random_trie(rng: random.Random, depth: int = 3) -> Trie:
    """Up to three children a node, of four tokens."""
    if depth == 0:
        return {}
    children = rng.sample(range(4), rng.randint(0, 3))
    return {token: _random_trie(rng, depth - 1) for token in children}


def _merge_as_printed(T: Trie, other: Trie) -> Trie:
    """M, case by case: a child v that T lacks comes as a node, (V ∪ v, E ∪ (r, v)), without what is below it."""
    merged = {v: _merge_as_printed(below, other[v]) if v in other else below for v, below in T.items()}
    return merged | {v: {} for v in other if v not in T}


def _eligible(T: Trie, says: Callable[[tuple[int, ...]], int]) -> set[tuple[int, ...]]:
    """Edges (n, V_n) from a node of T, or its root, to a child that is what the target says there; as paths of V_n."""
    known = set(textbook.nodes(T))
    answers = {(*n, says(n)) for n in {(), *known}}
    return answers & known


def _sampling_cases(p: exact.Model, q: exact.Model, k: int) -> list[bool]:
    """Appendix C: of k candidates, the i-th is selected with its probability P_i; and the text has the target's law."""
    make = gallery.drawn(growth.kary(k, 1), Drawn.POINT)

    def selected_path(coins: Coins) -> tuple[int, ...]:
        _, verdict = exact.verify_once(make(q), one_hot, p, coins, depth=1)
        return verdict.path

    selected = exact.law(selected_path)
    likeliest = q(()).topk(k).indices
    chances = p(())[likeliest].tolist()
    cases = [abs(selected[node,] - chance) < CLOSE for node, chance in enumerate(chances, start=1)]
    return [*cases, gallery.bias(make, one_hot, p, q) < CLOSE]


def _one_forward_cases(model: LlamaForCausalLM, text: tuple[int, ...], draft_tree: Trie) -> list[bool]:
    """Figure 3: each node of [X; T; C] has the logits of its own branch; it sees X and its branch, at their depth."""
    length = len(text) - 1  # X; the last token of the text is the tree's root
    drafter = ProgressiveDrafter()
    drafter.begin(text, Warp(), {})
    drafter.tree = draft_tree
    drafter.pool.add(text[-1], {1: {1: {}, 2: {}}, 2: {}})
    tree = drafter.propose(RandomCoins(), 6).tree
    cases = toys.as_alone(Target(model), text, tree)
    positions = masks.positions(tree, length)[0].tolist()
    for node, row in enumerate(masks.visible(tree, length)):
        path = tree.path(node)
        branch = [length + above for above in (0, *path)]
        sees = row.nonzero().flatten().tolist()
        sees_its_branch = sees == [*range(length), *branch]
        cases.append(sees_its_branch and positions[node] == length + len(path))
    return cases


def _printed(*items: str) -> pd.DataFrame:
    """Printed numbers by item, data set, model and method."""
    return in_print.wide(in_print.numbers("ptd", *items), "item", "dataset", "model label", "row")


# ---- the claims ---------------------------------------------------------------------------------------------------


@claim(
    where="Figure 1b; Section 1",
    recording=experiments.PTD_ALIKE,
    methods=("self-draft",),
    statistic=MEAN,
    above=0.5,
    effect=0.5,
    reason=(
        "Without random prefixes. Likeness is undefined: with four tokens more than 80 % means all four by both our "
        "measures, and a little below it the claim is undecided (notebook 01). A mean of each prompt's share; over "
        "the steps of all prompts together it may be undecided."
    ),
    before="branches-alike",
)
def branches_alike(runs):
    """More than half of Self-Draft's decoding steps hold two branches that are over 80 % alike."""
    return runs["steps aligned 0.8"]


@claim(
    where="Section 1; Section 2",
    recording=experiments.PTD_ALIKE,
    methods=("ptd", "self-draft"),
    statistic=DIFFERENCE,
    below=0,
    reason=(
        "Share of draft tokens that repeat a token behind the same token in the step; the paper gives no measure. "
        "By branches alike in Figure 1b's sense it hangs on the measure: by overlap at .8 more of PTD's steps have "
        "some, by aligned places fewer (notebook 01)."
    ),
    before="less-redundancy",
)
def less_redundancy(runs):
    """A smaller share of the tokens of PTD's draft tree than of Self-Draft's branches is computed twice."""
    return runs["repeated"]


@checked(
    where="Section 3.2; Algorithm 1",
    reason="Both are read as they are printed; our code corrects them.",
    before="algorithm-1",
)
def algorithm_1() -> list[bool]:
    """The merge M keeps every path of both trees, and line 20 finds the edges that section 3.3 accepts.

    Cases of M are pairs of random trees of four tokens: it fails where the second has a child with nodes below it
    that the first lacks, since M's first case adds the child alone. Cases of line 20 are steps with a random draft
    tree and a random candidate tree: all fail. The line goes through V^i, the expanded draft tree, where every node
    has got the target's answer as a child (line 8), so all of it is eligible; section 3.3 goes through the candidates.
    """
    cases = []
    for seed in range(10):
        rng = random.Random(seed)
        T = _random_trie(rng)
        other = _random_trie(rng)
        both = {*textbook.nodes(T), *textbook.nodes(other)}
        cases.append(set(textbook.nodes(_merge_as_printed(T, other))) == both)
    for seed in range(10):
        rng = random.Random(seed)
        says = toys.greedy(exact.random_model(4, seed))
        candidates = {0: _random_trie(rng)}
        T = {1: _random_trie(rng)}
        V_i = textbook.expand(T, {v: says(v) for v in textbook.nodes(T)}, 4)  # line 8
        cases.append(_eligible(V_i, says) == _eligible(candidates, says))
    return cases


@checked(
    where="Figure 2; Figure 3; Appendix C",
    reason="As the proof has it: renormalised over the vocabulary, then sampled. Random models, float64.",
    before="law-kept",
)
def law_kept() -> list[bool]:
    """One forward scores text, drafts and candidates, each behind its own branch. Sequential sampling with
    renormalisation keeps the target's distribution.

    Cases: each candidate's chance of being selected, and the law of the text, for one to three candidates of three
    random drafts; logits, and mask and position, of every node of two steps with a random model; and the law of the
    text that the whole method writes with it. Sampling renormalises over the vocabulary.
    """
    cases = []
    for (p, q), k in product(gallery.worlds(3, 4), (1, 2, 3)):
        cases += _sampling_cases(p, q, k)
    model = toys.random_llama()
    text = (0, 1, 2, 0)
    for tree in ({1: {2: {0: {}}}, 0: {1: {}, 2: {}}}, {2: {}, 1: {0: {1: {2: {}}}}}):
        cases += _one_forward_cases(model, text, tree)
    written = exact.engine_law(Target(model), ProgressiveDrafter(2, 2), one_hot, text, 3)
    target = exact.joint(lambda path: toys.logits_after(model, (*text, *path)).softmax(-1), 3)
    return [*cases, exact.total_variation(written, target) < CLOSE]


@checked(
    where="Section 4.1; Section 4.2.1; Table 4",
    reason="From the printed tables alone; gains on different prompt sets are not paired in ours.",
    before="tables-and-text",
)
def tables_and_text() -> list[bool]:
    """DE is HR times AL plus 1 minus HR. PTD gains most in every row, and more on GSM-100 and MBPP.

    Cases: every method and setting of Table 4, whose DE is HR · AL + 1 - HR; in Tables 1 and 3 every setting, where
    PTD gains most, and every model, where it gains more on GSM-100 than on MT-Bench, on MBPP-100 than on HumanEval.
    """
    counts = _printed("Table 4")
    hits = counts["HR"]
    length = counts["AL"]
    apart = (hits * length + 1 - hits - counts["DE"]).abs()
    rounding = 0.005 * (hits + length)  # of HR and AL, to two digits each
    cases = [apart <= rounding + in_print.FLOAT_ERROR]
    for item in ("Table 1", "Table 3"):
        gain = _printed(item)["Imp."][item].unstack("row")
        ours = gain.pop("PTD")
        cases.append(ours > gain.max(axis=1))
        cases.append(ours["GSM-100"] > ours["MT-Bench"])
        cases.append(ours["MBPP-100"] > ours["HumanEval"])
    return in_print.cases(*cases)


@claim(
    where="Abstract; Table 1",
    recording=experiments.PTD_SAMPLED,
    methods=("ptd", "generate"),
    statistic=RATIO,
    above=1,
    effect=1.86,
    reason=(
        "Two CPU cores: every drafted node costs time. Effect: median over 14 settings on a GPU. At the paper's "
        "price of a node it would hold (notebook 01, section 7)."
    ),
    before="faster-when-sampled",
)
def faster_when_sampled(runs):
    """At temperature 0.5 PTD decodes faster than plain autoregressive decoding, up to twice as fast."""
    return runs["speed"]


@claim(
    where="Table 1; Section 4.2.1",
    recording=experiments.PTD_SAMPLED,
    methods=("ptd", "vdm-chain-5 iid", "lookahead", "self-draft"),
    statistic=LEAD,
    above=0,
    effect=5.4,
    reason=(
        "Tokens a second over the best rival; effect: mean. Our draft is trained on the target's own text. Ahead of "
        "lookahead, behind Self-Draft and, by most, our draft."
    ),
    before="first-when-sampled",
)
def first_when_sampled(runs):
    """At temperature 0.5 PTD is faster than speculative decoding, lookahead and Self-Draft."""
    return runs["speed"]


@checked(
    where="Table 1; Table 3",
    reason=(
        "Table 1's speculative decoding of LLaMA-2-13B on MT-Bench goes from 24 to 36 tokens a second, printed as "
        "39 %; Table 3 has 51 %."
    ),
    before="improvements",
)
def improvements() -> list[bool]:
    """Each printed improvement is the throughput over that of plain decoding, within rounding.

    A case is a method in a setting. One fails: speculative decoding of L-13B on MT-Bench in Table 1, whose
    improvement is printed too low.
    """
    cells = _printed("Table 1", "Table 3").unstack("row")
    speed = cells.pop("TP")
    cases = []
    for method, gain in cells["Imp."].items():
        printed = gain.dropna()
        fast = speed.loc[printed.index, method]
        plain = speed.loc[printed.index, "AR"]
        cases.append(in_print.follows(printed, fast, plain, 0.5, 0.5))
    return in_print.cases(*cases)


@claim(
    where="Figure 4; Table 4",
    recording=experiments.PTD,
    methods=("ptd", "lookahead, no bonus"),
    statistic=DIFFERENCE,
    above=0,
    effect=0.45,
    reason="Effect: mean over 14 settings. Without a bonus token after a full match as in lookahead's public code.",
    before="efficiency-over-lookahead",
)
def efficiency_over_lookahead(runs):
    """PTD decodes more tokens a forward (DE) than lookahead decoding."""
    return runs["tau"]


@claim(
    where="Figure 4; Table 4",
    recording=experiments.PTD,
    methods=("ptd", "self-draft, no bonus", "self-draft, corpus, no bonus"),
    statistic=LEAD,
    above=0,
    effect=0.35,
    reason=(
        "Over the better of both variants, since the paper names both; without a bonus token after a full match as "
        "in its public code. Where answers do not quote their prompts, it would hold; against Self-Draft with its "
        "bonus PTD is behind."
    ),
    before="efficiency-over-self-draft",
)
def efficiency_over_self_draft(runs):
    """PTD decodes more tokens a forward (DE) than Self-Draft."""
    return runs["tau"]


@claim(
    where="Figure 4; Table 4",
    recording=experiments.PTD,
    methods=("ptd", "self-draft, corpus, no bonus"),
    statistic=DIFFERENCE,
    below=0,
    effect=-0.18,
    reason="Our corpus is 60 prompts; the authors' corpus is not published. Texts of 96 tokens.",
    before="hits-behind-self-draft",
)
def hits_behind_self_draft(runs):
    """PTD finds a candidate less often (HR) than Self-Draft, which asks a corpus as well."""
    return runs["hits"]


@claim(
    where="Figure 4; Table 4",
    recording=experiments.PTD,
    methods=("ptd", "self-draft, no bonus", "self-draft, corpus, no bonus"),
    statistic=LEAD,
    above=0,
    effect=0.76,
    reason=(
        "Over the better of both variants of Self-Draft; no bonus as in its public code. With a bonus it is "
        "undecided; where answers quote their prompts (RAG) Self-Draft is ahead."
    ),
    before="length-over-self-draft",
)
def length_over_self_draft(runs):
    """When it finds a candidate, PTD accepts more tokens (AL) than Self-Draft."""
    return runs["length"]


@checked(
    where="Section 4.2.1; Table 3; Table 4",
    reason=(
        "A step's cost is DE over speed-up, both printed; the tenth is our reading of noticeable. Section 4.2.5 "
        "admits an extra cost."
    ),
    before="no-latency",
)
def no_latency() -> list[bool]:
    """PTD adds no noticeable latency: a step costs at most a tenth more than a plain one.

    A case is a setting: a step's cost is its tokens (Table 4) over the speed-up (Table 3). All fail: it costs about
    a third more.
    """
    ours = _printed("Table 3", "Table 4").xs("PTD", level="row")
    speed_up = 1 + ours["Imp."]["Table 3"] / 100
    return in_print.cases(ours["DE"]["Table 4"] / speed_up <= 1.1)


@claim(
    where="Figure 5; Section 4.2.2",
    recording=experiments.PTD_SIZES,
    methods=(
        "ptd",
        "ptd, 1 children",
        "ptd, 2 children",
        "ptd, 3 children",
        "ptd, 6 children",
        "ptd, 8 children",
        "ptd, depth 3",
        "ptd, depth 4",
        "ptd, depth 5",
        "ptd, depth 8",
    ),
    statistic=LEAD,
    above=0,
    reason=(
        "At the price of one node more between methods in Tables 3 and 4; a CPU's is far higher. The verdict hangs "
        "on that price: at twice as much, which its own interval holds, it is undecided. At the average price of "
        "all methods' nodes (Figure 5 as redrawn) it rises and falls with both; which is best is undecided there."
    ),
    before="best-shape",
)
def best_shape(runs):
    """Throughput rises, then falls with children and with depth: four children and depth six, which the paper chose
    from it, are the best.
    """
    return NODE_BETWEEN_METHODS.speed(runs)


@claim(
    where="Figure 5",
    recording=experiments.PTD_SIZES,
    methods=("ptd, 8 children", "ptd"),
    statistic=DIFFERENCE,
    within=0.2,
    reason=(
        "DE combines both. The margin is a tenth of the printed DE: at three quarters of it the claim would be "
        "undecided. Hits alone still grow a little from four to eight children."
    ),
    before="children-plateau",
)
def children_plateau(runs):
    """Beyond four children per node neither hits nor accepted length grow any more."""
    return runs["tau"]


@claim(
    where="Figure 5",
    recording=experiments.PTD_SIZES,
    methods=("ptd, depth 3", "ptd, depth 4", "ptd, depth 5", "ptd", "ptd, depth 8"),
    statistic=slope([3, 4, 5, 6, 8]),
    above=0,
    reason="Tokens per level; depth two, at which every tree begins, is left out.",
    before="depth-length",
)
def depth_length(runs):
    """The accepted length grows steadily with the depth of the tree."""
    return runs["length"]


@claim(
    where="Figure 5",
    recording=experiments.PTD_SIZES,
    methods=("ptd, depth 3", "ptd, depth 4", "ptd, depth 5", "ptd", "ptd, depth 8"),
    statistic=slope([3, 4, 5, 6, 8]),
    within=0.01,
    reason="Hit rate per level: the margin is one hit in a hundred steps.",
    before="depth-hits",
)
def depth_hits(runs):
    """The hit rate does not depend on the depth of the tree."""
    return runs["hits"]


@claim(
    where="Figure 6; Section 4.2.3",
    recording=experiments.PTD_SIZES,
    methods=("ptd, 2 children", "lookahead"),
    statistic=RATIO,
    above=0.95,
    reason="By tokens a forward, whatever a node costs. Lookahead as in the paper's 7B rows.",
    before="half-the-overhead",
)
def half_the_overhead(runs):
    """With about half of lookahead's drafted and verified tokens PTD does as well as lookahead."""
    return runs["tau"]


@claim(
    where="Figure 7; Section 4.2.4",
    recording=experiments.PTD_SIZES,
    methods=("ptd", "ptd, top-k", "ptd, top-p"),
    statistic=LEAD,
    above=-0.05,
    reason="At the price of one node more as above; k and p are the public code's, none are printed.",
    before="drawing-gains-nothing",
)
def drawing_gains_nothing(runs):
    """Drawing draft tokens by top-k or top-p brings no significant gain in throughput over the greedy choice."""
    return NODE_BETWEEN_METHODS.speed(runs)


@claim(
    where="Figure 8; Section 4.2.5",
    recording=experiments.PTD_SPEED,
    methods=("ptd",),
    statistic=MEAN,
    below=0.1,
    reason="One small model, whose forward is short; verification and the cache count as bookkeeping, too.",
    before="bookkeeping",
)
def bookkeeping(runs):
    """Retrieving candidates and updating tree and pool is negligible beside the forward: under a tenth of a step."""
    return runs["outside"]


@checked(
    where="Algorithm 2; Appendix C",
    reason="As printed: renormalised over the remaining candidates; the sum is a sentence of Appendix C.",
    before="algorithm-2",
)
def algorithm_2() -> list[bool]:
    """Algorithm 2 keeps the target's distribution; its first i candidates are all rejected with the sum of their
    probabilities.

    Two cases for each of three random targets and two or three candidates: the law of the text is the target's; all
    candidates are rejected with the sum of their probabilities. All fail. Line 13 renormalises over the remaining
    candidates, not over the vocabulary, so the last one is always accepted; and the sum is the probability that one is
    accepted. A single candidate is left out: nothing remains to renormalise over, and the printed loop does not end.
    """
    cases = []
    for (p, q), k in product(gallery.worlds(3, 4), (2, 3)):
        make = gallery.drawn(growth.kary(k, 1), Drawn.POINT)
        cases.append(gallery.bias(make, gallery.ptd_as_printed, p, q) < CLOSE)
        rejected = exact.accepted_law(make(q), one_hot, p, depth=1)[0]  # one_hot samples as the proof does
        likeliest = q(()).topk(k).indices
        sum_of_theirs = float(p(())[likeliest].sum())
        cases.append(abs(rejected - sum_of_theirs) < CLOSE)
    return cases


@claim(
    where="Table 2",
    recording=experiments.PTD_SAMPLED,
    methods=("ptd", "generate"),
    statistic=DIFFERENCE,
    within=0.05,
    reason=(
        "ROUGE-1 of tokens with plain texts of other seeds; the paper prints no plain text against another. The "
        "broken verifier of the public code passes as well (notebook 01, section 7)."
    ),
    before="texts-alike",
)
def texts_alike(runs):
    """Sampled texts of PTD resemble those of plain decoding as much as plain decoding's own do."""
    return runs["rouge"]


@claim(
    where="Abstract; Table 3",
    recording=experiments.PTD,
    methods=("ptd",),
    statistic=MEAN,
    above=1,
    effect=1.9,
    reason=(
        "Counted steps at the average price of a node in Tables 3 and 4; effect: median over 14 settings. The "
        "clause on the price is ours. In seconds on two CPU cores it is slower than plain decoding."
    ),
    before="faster-when-greedy",
)
def faster_when_greedy(runs):
    """Greedy PTD decodes faster than plain autoregressive decoding where a node costs what it costs there."""
    return NODE_ON_AVERAGE.speed(runs)


@claim(
    where="Table 3",
    recording=experiments.PTD_SPEED,
    methods=("ptd", "vdm-chain-5", "lookahead", "self-draft"),
    statistic=LEAD,
    above=0,
    effect=8.8,
    reason=(
        "Tokens a second over the best rival, on two CPU cores; effect: the least mean lead over a rival, 14 "
        "settings. Ahead of lookahead, behind Self-Draft and, by most, our trained draft."
    ),
    before="first-when-greedy",
)
def first_when_greedy(runs):
    """Greedy PTD is faster than speculative decoding, lookahead and Self-Draft."""
    return runs["speed"]
