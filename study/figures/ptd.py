"""The tables and figures of Progressive Tree Drafting, redrawn."""

from study import experiments, paper
from study.claims.ptd import NODE_BETWEEN_METHODS, NODE_ON_AVERAGE
from study.figures.domains import gsm, humaneval, own
from study.figures.panels import Panel, Runs, figure, labels
from study.stats import MEAN, MEAN_PER_CENT, PER_CENT

# Which of the style's colours a method has in all figures of this paper; others have what is left.
SPECULATIVE = 0
LOOKAHEAD = 1
SELF_DRAFT = 2
PTD = 3

DOMAINS = (  # on the axis, the paper's data set, our prompts
    ("MT-Bench / own", "MT-Bench", own),
    ("GSM", "GSM-100", gsm),
    ("HumanEval", "HumanEval", humaneval),
)
WITHOUT_BONUS = (  # on the axis, the paper's row in Table 4, our method
    ("lookahead, no bonus", "LADE", "lookahead, no bonus"),
    ("Self-Draft, no bonus, corpus", "Self-Draft", "self-draft, corpus, no bonus"),
    ("PTD", "PTD", "ptd"),
)
BY_CHILDREN = {
    1: "ptd, 1 children",
    2: "ptd, 2 children",
    3: "ptd, 3 children",
    4: "ptd",
    6: "ptd, 6 children",
    8: "ptd, 8 children",
}
BY_DEPTH = {3: "ptd, depth 3", 4: "ptd, depth 4", 5: "ptd, depth 5", 6: "ptd", 8: "ptd, depth 8"}


def gains(item: str, runs: Runs, speculative: str, title: str) -> Panel:
    """Speed-ups in tokens per second, for Tables 1 and 3. speculative: our method for speculative decoding."""
    lines = (  # the label, the paper's row, our method
        ("speculative decoding", "SpeDe", speculative),
        ("lookahead", "LADE", "lookahead"),
        ("Self-Draft", "Self-Draft", "self-draft"),
        ("PTD", "PTD", "ptd"),
    )
    colours = [SPECULATIVE, LOOKAHEAD, SELF_DRAFT, PTD]
    panel = Panel("gain over plain decoding, %", labels(lines), labels(DOMAINS), runs, title=title, colours=colours)
    for line, row, method in lines:
        for tick, dataset, prompts in DOMAINS:
            printed = paper.select("ptd", item, column="Imp.", row=row, dataset=dataset)
            ours = panel.estimate(PER_CENT, "speed", [method, "generate"], where=prompts)
            panel.printed(line, tick, printed)
            panel.ours(line, tick, ours)
    return panel


@figure("ptd", "Table 1", experiments.PTD_SAMPLED)
def table_1(runs: Runs) -> list[Panel]:
    """Speed-ups at temperature 0.5."""
    return [gains("Table 1", runs, speculative="vdm-chain-5 iid", title="temperature 0.5")]


@figure("ptd", "Table 2", experiments.PTD_SAMPLED)
def table_2(runs: Runs) -> list[Panel]:
    """ROUGE of the texts against plain decoding's, also for two broken verifiers."""
    lines = (  # the label, the paper's column, our method
        ("PTD", "Rouge-1", "ptd"),
        ("plain decoding, another seed", None, "generate"),
        ("Algorithm 2 as printed", None, "ptd as printed"),
        ("last token as coded", None, "ptd as coded"),
    )
    panel = Panel("ROUGE-1 against plain decoding, %", labels(lines), labels(DOMAINS), runs, colours=[PTD, 0, 4, 5])
    for line, column, method in lines:
        for tick, dataset, prompts in DOMAINS:
            if column is not None:
                printed = paper.select("ptd", "Table 2", column=column, dataset=dataset)
                panel.printed(line, tick, printed)
            ours = panel.estimate(MEAN_PER_CENT, "rouge", [method], where=prompts)
            panel.ours(line, tick, ours)
    return [panel]


@figure("ptd", "Table 3", experiments.PTD_SPEED)
def table_3(runs: Runs) -> list[Panel]:
    """Speed-ups of greedy decoding."""
    return [gains("Table 3", runs, speculative="vdm-chain-5", title="greedy")]


@figure("ptd", "Table 4", experiments.PTD)
def table_4(runs: Runs) -> list[Panel]:
    """Tokens per target forward in each domain."""
    colours = [LOOKAHEAD, SELF_DRAFT, PTD]
    panel = Panel("tokens a forward (DE)", labels(WITHOUT_BONUS), labels(DOMAINS), runs, colours=colours)
    for line, row, method in WITHOUT_BONUS:
        for tick, dataset, prompts in DOMAINS:
            printed = paper.select("ptd", "Table 4", column="DE", row=row, dataset=dataset)
            ours = panel.estimate(MEAN, "tau", [method], where=prompts)
            panel.printed(line, tick, printed)
            panel.ours(line, tick, ours)
    return [panel]


@figure("ptd", "Figure 1b", experiments.PTD_ALIKE)
def figure_1b(runs: Runs) -> list[Panel]:
    """How alike branches are. The paper draws this and prints no numbers."""
    methods = {"Self-Draft": "self-draft", "PTD": "ptd", "PTD, chained mask": "ptd, chained"}
    thresholds = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    measures = (  # on the axis, the beginning of our quantities' names
        ("steps with two branches aligned, share", "steps aligned"),
        ("branches with such a partner, share", "share aligned"),
    )
    colours = [SELF_DRAFT, PTD, 4]
    panels = []
    for ylabel, measure in measures:
        panel = Panel(ylabel, list(methods), thresholds, runs, xlabel="aligned at least by", colours=colours)
        for line, method in methods.items():
            for threshold in thresholds:
                ours = panel.estimate(MEAN, f"{measure} {threshold}", [method])
                panel.ours(line, threshold, ours)
        panels.append(panel)
    return panels


@figure("ptd", "Figure 4", experiments.PTD)
def figure_4(runs: Runs) -> list[Panel]:
    """The measures of Table 4 over all prompts."""
    measures = (  # on the axis, the paper's column in Table 4, our quantity
        ("tokens a forward (DE)", "DE", "tau"),
        ("steps with a candidate (HR)", "HR", "hits"),
        ("tokens per step with a candidate (AL)", "AL", "length"),
    )
    nodes = (  # the label, the paper's column in Table 4, our quantity
        ("draft (Dft)", "Dft", "auxiliary"),
        ("candidates (Ver)", "Ver", "drafted"),
    )
    panels = []
    for ylabel, column, quantity in measures:
        panel = Panel(ylabel, ["all prompts"], labels(WITHOUT_BONUS), runs)
        add_measure(panel, "all prompts", column, quantity)
        panels.append(panel)
    of_nodes = Panel("nodes a step", labels(nodes), labels(WITHOUT_BONUS), runs)
    for line, column, quantity in nodes:
        add_measure(of_nodes, line, column, quantity)
    return [*panels, of_nodes]


def add_measure(panel: Panel, line: str, column: str, quantity: str) -> None:
    """Add a column of Table 4 and our quantity to one line of a panel, for each method."""
    for tick, row, method in WITHOUT_BONUS:
        printed = paper.select("ptd", "Table 4", column=column, row=row)
        ours = panel.estimate(MEAN, quantity, [method])
        panel.printed(line, tick, printed)
        panel.ours(line, tick, ours)


@figure("ptd", "Figure 5", experiments.PTD_SIZES)
def figure_5(runs: Runs) -> list[Panel]:
    """The number of children and the depth: speed-ups at two prices, and the measures that decide them."""
    families = (  # on the axis below, our methods
        ("children (depth 6)", BY_CHILDREN),
        ("depth (four children)", BY_DEPTH),
    )
    measures = (  # on the axis, our quantity
        ("share of steps with a candidate (HR)", "hits"),
        ("tokens per step with a candidate (AL)", "length"),
    )
    panels = []
    for xlabel, methods in families:
        panels.append(speed_at_two_prices(xlabel, methods, runs))
        for ylabel, quantity in measures:
            panel = Panel(ylabel, ["PTD"], list(methods), runs, xlabel=xlabel, colours=[PTD])
            for size, method in methods.items():
                ours = panel.estimate(MEAN, quantity, [method])
                panel.ours("PTD", size, ours)
            panels.append(panel)
    return panels


def speed_at_two_prices(xlabel: str, methods: dict[int, str], runs: Runs) -> Panel:
    """A panel of speed by a size of the tree, at two prices per node: the average one, and that of one node more."""
    prices = {".0057": NODE_ON_AVERAGE, ".0011": NODE_BETWEEN_METHODS}  # of a node, in target calls
    ylabel = "speed-up, at two prices of a node"
    panel = Panel(ylabel, list(prices), list(methods), runs, xlabel=xlabel, colours=[PTD, 1])
    for line, price in prices.items():
        for size, method in methods.items():
            ours = panel.estimate(MEAN, price.speed, [method])
            panel.ours(line, size, ours)
    return panel


@figure("ptd", "Figure 6", experiments.PTD_SIZES)
def figure_6(runs: Runs) -> list[Panel]:
    """Tokens per target forward by the nodes that drafting takes."""
    by_window = {3: "lookahead, window 3", 7: "lookahead, window 7", 15: "lookahead"}
    families = (  # the title, the label, its colour, our methods
        ("PTD, by children", "PTD", PTD, BY_CHILDREN),
        ("lookahead, by window", "lookahead", LOOKAHEAD, by_window),
    )
    panels = []
    for title, line, colour, methods in families:
        texts = {"title": title, "xlabel": "draft nodes a step"}
        panel = Panel("tokens a forward", [line], list(methods), runs, **texts, colours=[colour], measured_x=True)
        for size, method in methods.items():
            nodes = panel.estimate(MEAN, "auxiliary", [method])
            tokens = panel.estimate(MEAN, "tau", [method])
            panel.ours(line, size, tokens, at=nodes)
        panels.append(panel)
    return panels


@figure("ptd", "Figure 7", experiments.PTD_SIZES)
def figure_7(runs: Runs) -> list[Panel]:
    """Rules by which a tree's nodes get their children."""
    methods = {"greedy": "ptd", "top-k": "ptd, top-k", "top-p": "ptd, top-p"}
    measures = (("tokens a forward", "tau"), ("auxiliary nodes a step", "auxiliary"))  # on the axis, our quantity
    panels = []
    for ylabel, quantity in measures:
        panel = Panel(ylabel, ["PTD"], list(methods), runs, colours=[PTD])
        for tick, method in methods.items():
            ours = panel.estimate(MEAN, quantity, [method])
            panel.ours("PTD", tick, ours)
        panels.append(panel)
    return panels


@figure("ptd", "Figure 8", experiments.PTD_SPEED)
def figure_8(runs: Runs) -> list[Panel]:
    """The parts of a step's time. The paper draws this and prints no numbers."""
    methods = {"plain decoding": "generate", "PTD": "ptd"}
    phases = ["draft", "target", "verify", "commit"]
    panel = Panel("ms a step", list(methods), phases, runs, colours=[5, PTD])
    for line, method in methods.items():
        for phase in phases:
            ours = panel.estimate(MEAN, f"{phase} ms", [method])
            panel.ours(line, phase, ours)
    return [panel]
