"""EDD and PCT: what the paper says, and by which tests it is judged."""

from itertools import product

import pandas as pd
from torch import Tensor

from specnb import exact, growth
from specnb.growth import Cape, Eagle2, Pct, kary
from specnb.tree import Draft
from study import experiments, paper
from study.claims import in_print
from study.claims.registry import checked, claim, not_attempted
from study.claims.toys import CLOSE
from study.prices import Prices
from study.quantities import HEADS, chains_of, replayed
from study.stats import DIFFERENCE, LEAD, MEAN, RATIO, slope

PAPER_7B = Prices(call=paper.EDD_PRICE_7B, name="the paper's 7B price")
"""Of a draft forward in section 4.2: 1.1 ms beside 29.8 ms of the target with 7B; nodes are free."""

PCT = Pct(cost=PAPER_7B.call)
"""PCT at that price."""


def _printed(*items: str) -> pd.DataFrame:
    """Printed numbers by item, model, data set and method."""
    return in_print.wide(in_print.numbers("edd_pct", *items), "item", "model", "dataset", "row")


@checked(
    where="Equation 3",
    reason="The text says blocks 0 to j − 1, rightly; the formula adds block j's first state.",
    before="no-label-in-view",
)
def no_label_in_view() -> list[bool]:
    """Under Equation 3 the draft never sees the target's state of a token that it has yet to predict.

    A case is a token of the first four blocks, of length 2, 5 or 10: when the draft predicts t_i, the target's state
    h_i of that token is out of its view. The first token of each later block fails: Equation 3 shows h_k with
    k ≤ j L, the last of which is the state at that token.
    """
    cases = []
    for L in (2, 5, 10):
        for i in range(1, 4 * L):
            j = i // L
            shown = range(j * L + 1)
            cases.append(i not in shown)
    return cases


@claim(
    where="Figure 3b",
    recording=experiments.EDD_RULES,
    methods=(chains_of("edd"),),
    statistic=MEAN,
    below=0.05,
    effect=0.019,
    reason=(
        "Chains of ten at every place of greedy texts, up to the first rejection; where steps begin, as in the "
        "paper, it is smaller and undecided, too. The paper has more text. The bound is our reading of small."
    ),
    before="confidence-is-calibrated",
)
def confidence_is_calibrated(runs):
    """EDD's confidence in its draft tokens agrees with the share accepted: the expected calibration error over ten bins
    is small.
    """
    return runs["ece"]


@claim(
    where="Section 3.2",
    recording=experiments.EDD_RULES,
    methods=(chains_of("edd"),),
    statistic=MEAN,
    below=0.05,
    reason="Calibration error of path products, of nodes of the likeliest chain that PCT drafts at the paper's price.",
    before="path-products-are-calibrated",
)
def path_products_are_calibrated(runs):
    """The product of the confidences along a path is close to the probability that all of it is accepted."""
    return runs["ece of paths"]


@checked(
    where="Equation 5",
    reason=(
        "Below that price it never pays, as the paper's sentence says. Above it, where by Equation 5 it should, a "
        "loop that is already fast may still lose."
    ),
    before="break-even",
)
def break_even() -> list[bool]:
    """A drafting step shortens the time per token exactly where its path probability exceeds the price of a draft call.

    A case is a step of a chain of up to ten with a given acceptance a token, at the paper's two prices or at a tenth.
    Those fail whose probability is above the price, but below the price times the speed so far, in tokens per target
    call: Equation 5 takes the speed to be one, while a loop that is already fast loses more in a draft step's time.
    No step below the price pays.
    """
    cases = []
    for accepted, price in product((0.5, 0.6, 0.7, 0.8, 0.9), (1.1 / 29.8, 1.4 / 50.1, 0.1)):
        speed = []
        for length in range(11):
            tokens = sum(accepted**place for place in range(length + 1))
            speed.append(tokens / (1 + length * price))
        for step in range(1, 11):
            faster = speed[step] > speed[step - 1]
            cases.append(faster == (accepted**step > price))
    return cases


@checked(
    where="Section 4.1, Table 1, Table 4",
    reason="The printed rates are tokens per step, bonus included, over the depth.",
    before="alpha-is-the-accepted-share",
)
def alpha_is_the_accepted_share() -> list[bool]:
    """The printed acceptance rate is the average share of draft tokens that are accepted.

    A case is a method, model and data set: α should be (τ - 1) / 5, since one of a step's τ tokens was not drafted
    and five were. All fail: the printed α is τ / 5, apart from a few misprints.
    """
    cells = _printed("Table 1", "Table 4")
    share = (cells["tau"] - 1) / 5
    return in_print.cases((cells["alpha"] - share).abs() <= 0.006 + in_print.FLOAT_ERROR)


@claim(
    where="Table 1, Section 4.2",
    recording=HEADS,
    methods=("edd", "eagle", "medusa", "vdm"),
    statistic=LEAD,
    above=0,
    effect=0.12,
    reason=(
        "Our VDM has two layers, our Medusa four heads; one seed, schedules differ. It hangs on how texts count: "
        "EDD is ahead of EAGLE on HumanEval, behind it on GSM8K and on our prompts; on average it is not told apart "
        "from VDM; by all tokens over all steps it is behind EAGLE and VDM, which would contradict. Effect: median "
        "lead over EAGLE, temperature 0."
    ),
    before="edd-accepted-longest",
)
def edd_accepted_longest(runs):
    """EDD's chains of five are accepted longer than those of VDM, MEDUSA-1 and EAGLE."""
    return runs["tau"]


@claim(
    where="Table 1, Table 3",
    recording=HEADS,
    methods=("edd_small", "edd_small-1", "edd_no_encoding", "edd_no_encoding-1"),
    statistic=slope([1, 1, 0, 0]),
    above=0,
    effect=0.715,
    reason=(
        "One text and one schedule for both, two seeds; the slope is the difference of means. Effect: median of "
        "Table 1. A language model of one layer (vdm_one), no larger than they and of the same text, is further "
        "behind, with both seeds."
    ),
    before="encoding-helps",
)
def encoding_helps(runs):
    """Without the target's hidden states, a draft of one layer has fewer tokens accepted."""
    return runs["tau"]


@claim(
    where="Table 2, Section 4.2",
    recording=experiments.EDD_RULES,
    methods=(
        replayed("edd", PCT),
        replayed("edd", kary(3, 5)),
        replayed("edd", Cape()),
        replayed("edd", Eagle2(total=50)),
    ),
    statistic=LEAD,
    above=0,
    effect=0.18,
    reason=(
        "Replay at the paper's 7B price of a draft call, nodes free; the paper's seconds hold nodes, too. Behind "
        "EAGLE-2 only: ahead of CAPE, not told apart from VCT. From a few thousandths of a target call a node on "
        "PCT is ahead of all three; with its leaves kept it is not told apart from EAGLE-2. Effect: median lead "
        "over the next best."
    ),
    before="pct-fastest-tree",
)
def pct_fastest_tree(runs):
    """With the same draft, PCT is faster than VCT, CAPE and EAGLE-2."""
    return PAPER_7B.speed(runs)


@claim(
    where="Table 2, Section 4.2",
    recording=experiments.EDD,
    methods=("edd-pct at .061", "edd-eagle2-50"),
    statistic=RATIO,
    above=1,
    effect=1.067,
    reason=(
        "PCT at the recorded threshold nearest to this machine's price of a draft call. On a CPU every verified "
        "node costs time, too. It measures what nodes cost: by calls alone PCT is behind (pct_fastest_tree)."
    ),
    before="pct-faster-here",
)
def pct_faster_here(runs):
    """PCT is faster than EAGLE-2 in seconds."""
    return runs["speed"]


@claim(
    where="Table 2, Section 4.2",
    recording=experiments.EDD,
    methods=("edd-pct at .061", "generate"),
    statistic=RATIO,
    above=2.04,
    effect=3.06,
    reason="A small target on a CPU. The paper's range is 2.04 to 3.62; effect: median.",
    before="twice-as-fast",
)
def twice_as_fast(runs):
    """EDD with PCT writes at least 2.04 times as fast as plain decoding."""
    return runs["speed"]


@checked(
    where="Section 1, Section 4.2",
    reason="13B and 7B are compared on average: Vicuna on GSM8K gains more with 7B.",
    before="headlines",
)
def headlines() -> list[bool]:
    """The speed-ups in the text follow from Table 2: range, best and worst data, and more for 13B than for 7B.

    Cases: the range, its lower end on CNN/DM and its upper on HumanEval; both 13B models on MT-bench; in each family,
    13B faster than 7B on average; and the reason given for this, a lower price of drafting.
    """
    speed_up = _printed("Table 2")["Speedup"].xs("PCT", level="row")["Table 2"]  # by model and data set
    text = in_print.numbers("edd_pct", "Text")
    in_words = text.set_index("column")["value"]
    _, slowest_data = speed_up.idxmin()
    _, fastest_data = speed_up.idxmax()
    extremes = [
        speed_up.min() == in_words["Speedup, lowest"],
        speed_up.max() == in_words["Speedup, highest"],
        slowest_data == "CNN/DM",
        fastest_data == "HumanEval",
    ]
    introduction = text[text["section"] == "1"].set_index("model")["value"]
    on_mt_bench = speed_up[:, "MT-bench"][introduction.index] == introduction
    mean = speed_up.groupby("model").mean()
    gains_more = [mean[f"{family} 13B"] > mean[f"{family} 7B"] for family in ("LLaMA2-Chat", "Vicuna1.5")]
    time = in_print.wide(text[text["unit"] == "ms"], "model")
    price = time["time per forward pass, s_d"] / time["time per forward pass, s_t"]
    return in_print.cases(extremes, on_mt_bench, gains_more, price["13B"] < price["7B"])


@claim(
    where="Figure 5",
    recording=HEADS,
    methods=("edd_small", "edd_layer1", "edd_layer8", "edd_layer15", "edd_layer22"),
    statistic=LEAD,
    above=0,
    reason=(
        "A target of thirty layers, five of them tried, greedy chains of five; judged by first seeds. With second "
        "seeds the eighth-to-last stays not told apart from it, the last and the twenty-second from the end behind "
        "it; the fifteenth is behind one of our two seeds, not told apart from the other."
    ),
    before="fourth-to-last-layer",
)
def fourth_to_last_layer(runs):
    """Hidden states of the fourth-to-last layer give longer accepted drafts than those of the last or of earlier
    layers.
    """
    gsm = runs[runs["set"] == "gsm100"]
    return gsm["tau"]


@claim(
    where="Figure 6",
    recording=experiments.EDD_WIDTHS,
    methods=(replayed("edd", Pct(cost=PAPER_7B.call, k=10)), replayed("edd", PCT)),
    statistic=RATIO,
    below=1.1,
    reason=(
        "The paper calls the effect negligible and prints no numbers; a tenth is our reading. Six children would "
        "pass, eight would not."
    ),
    before="five-children-suffice",
)
def five_children_suffice(runs):
    """More than five children a node hardly change PCT's trees: ten have less than a tenth more nodes."""
    return runs["drafted"]


@claim(
    where="Figure 6",
    recording=experiments.EDD_WIDTHS,
    methods=(replayed("edd", PCT), replayed("edd", Eagle2(total=50))),
    statistic=RATIO,
    below=0.6,
    effect=0.5,
    reason="GSM8K test questions, the paper's 7B price. The bound is our reading of half.",
    before="half-the-nodes",
)
def half_the_nodes(runs):
    """PCT verifies about half as many nodes as EAGLE-2: at most six tenths."""
    return runs["drafted"]


@claim(
    where="Figure 6, Table 2",
    recording=experiments.EDD_WIDTHS,
    methods=(replayed("edd", PCT), replayed("edd", Eagle2(total=50))),
    statistic=DIFFERENCE,
    within=0.15,
    effect=-0.03,
    reason=(
        "GSM8K test questions, the paper's 7B price. It is behind on most prompts; that it is by more than the "
        "bound, which is ours, hangs on single ones. Effect: mean of Table 2's GSM8K column."
    ),
    before="competitive-length",
)
def competitive_length(runs):
    """With these fewer nodes, PCT's mean acceptance length is about that of EAGLE-2."""
    return runs["tau"]


@claim(
    where="Table 3",
    recording=HEADS,
    methods=("edd_small", "edd_small-1", "edd_no_kl", "edd_no_kl-1"),
    statistic=slope([1, 1, 0, 0]),
    above=0,
    effect=0.39,
    reason=(
        "Chains, two seeds; seeds of one head differ by up to half of this. Our text is the target's own, half "
        "greedy, half drawn at temperature 0.6; the paper's is not."
    ),
    before="kl-helps",
)
def kl_helps(runs):
    """Trained on the text's tokens in place of the target's distribution, EDD has fewer tokens accepted."""
    return runs["tau"]


@claim(
    where="Table 3",
    recording=HEADS,
    methods=("edd_small", "edd_small-1", "edd_no_random", "edd_no_random-1"),
    statistic=slope([1, 1, 0, 0]),
    above=0,
    effect=0.27,
    reason=(
        "Two seeds. Chains of five fit the fixed blocks; the paper's trees go down to ten. By depth, random lengths "
        "are behind at one and two, ahead at five."
    ),
    before="random-lengths-help",
)
def random_lengths_help(runs):
    """Trained on blocks of fixed length, EDD has fewer tokens accepted than with random lengths."""
    return runs["tau"]


@checked(
    where="Table 3",
    reason=(
        "For calibrated drafts, of which it is true by definition. The paper measures that they choose better; its "
        "variant's threshold is not printed, and at the same one it would keep more nodes."
    ),
    before="path-products-choose-better",
)
def path_products_choose_better() -> list[bool]:
    """Path products choose nodes no worse than a token's own confidence: as many nodes are expected to yield at least
    as many accepted tokens.

    A case is a random calibrated draft and a bar for a token's own confidence, below which a node gets no children:
    PCT's tree with as many nodes is expected to have at least as many tokens accepted.
    """
    cases = []
    for seed, bar in product(range(10), (0.1, 0.3, 0.5, 0.7)):
        law = exact.random_model(6, seed)
        full, _ = exact.toy_draft(law, growth.kary(3, 4))
        by_confidence = _below_no_unsure_node(full, bar)
        last = full.scores.sort(descending=True).values[len(by_confidence) - 1]
        least = float(last) * (1 - CLOSE)  # as a threshold of PCT it keeps as many nodes
        pct, _ = exact.toy_draft(law, growth.Pct(least, 3, 4, least))
        gain = float(pct.scores.sum() - by_confidence.sum())
        cases.append(len(pct.scores) == len(by_confidence) and gain > -CLOSE)
    return cases


def _below_no_unsure_node(draft: Draft, bar: float) -> Tensor:
    """Path probabilities of the nodes that are left if a node with less confidence of its own gets no children."""
    of_parents = draft.scores[draft.tree.parents.clamp_min(0)]
    confidence = draft.scores / of_parents  # (n,), 1 at the root
    above = draft.tree.ancestors.clone().fill_diagonal_(False)  # (n, n): [i, j] says that j lies above i
    is_below_unsure = (above & (confidence < bar)).any(1)
    return draft.scores[~is_below_unsure]


@claim(
    where="Table 3",
    recording=experiments.EDD,
    methods=("edd-pct at .061", "edd-pct at .061, leaves kept"),
    statistic=RATIO,
    above=1,
    effect=1.031,
    reason=(
        "On a CPU every verified node costs time. By draft calls alone it is the reverse: without these leaves "
        "fewer tokens a step are accepted, in the paper as many."
    ),
    before="leaves-cost-time",
)
def leaves_cost_time(runs):
    """PCT is faster if leaves of low path probability are removed."""
    return runs["speed"]


@claim(
    where="Table 4",
    recording=experiments.EDD_SAMPLED,
    methods=("edd-chain-5", "eagle-chain-5", "medusa-chain-4", "vdm-chain-5"),
    statistic=LEAD,
    above=0,
    effect=0.165,
    reason=(
        "Chains of the draft's likeliest tokens, accepted with the target's probability. Behind EAGLE only, and "
        "thinly: by medians over prompts, or without the prompts on mathematics, it is undecided; not told apart "
        "from VDM, ahead of MEDUSA-1. Effect: median lead over the next best."
    ),
    before="edd-at-temperature-1",
)
def edd_at_temperature_1(runs):
    """At temperature 1, too, EDD's chains of five are accepted longer than those of VDM, MEDUSA-1 and EAGLE."""
    return runs["tau"]


@claim(
    where="Table 5",
    recording=experiments.EDD_SAMPLED,
    methods=("edd-pct at .0369", "edd-eagle2-50"),
    statistic=RATIO,
    above=1,
    effect=1.058,
    reason=(
        "At the paper's 7B price of a draft call, nodes free; the paper's seconds hold nodes, too. By the mean "
        "difference, as pct_fastest_tree is judged, it is thinly behind; from a few thousandths of a target call a "
        "node on it is ahead; in seconds, on our CPU, it is ahead."
    ),
    before="pct-at-temperature-1",
)
def pct_at_temperature_1(runs):
    """At temperature 1, too, PCT is faster than EAGLE-2."""
    return PAPER_7B.speed(runs)


@claim(
    where="Figure 7, Appendix A.1",
    recording=experiments.EDD_RULES,
    methods=(replayed("edd", PCT),),
    statistic=MEAN,
    above=0,
    reason=(
        "The correlation over our prompts, of six domains in place of MT-bench's categories. An interval of a mean "
        "of products, whose end may pass one."
    ),
    before="larger-trees-where-accepted",
)
def larger_trees_where_accepted(runs):
    """On inputs whose draft tokens are accepted more often, PCT's trees have more nodes."""
    return runs["correlation of nodes and tau"]


@checked(
    where="Table 6, Appendix A.2",
    reason=(
        "That needs over seven tokens an iteration; Table 2 prints at most 4.49. Table 6's own examples take 18 "
        "iterations and more for some 80 to 90 words."
    ),
    before="dozen-iterations",
)
def dozen_iterations() -> list[bool]:
    """At the printed acceptance lengths, EDD with PCT writes nearly 100 tokens in a dozen iterations.

    We read: at least 90. A case is a model and data set, with its acceptance length from Table 2. All fail, by far.
    """
    tau = _printed("Table 2")["tau"].xs("PCT", level="row")
    return in_print.cases(12 * tau >= 90)


@not_attempted(
    where="Table 1, Table 2, Table 4, Table 5",
    reason="Only one target of 135M runs here; most cells of the tables have no counterpart.",
    before="other-targets",
)
def other_targets():
    """All of this holds for four targets: LLaMA-2-Chat and Vicuna with 7B and 13B."""
