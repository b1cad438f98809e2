"""The tables and figures of EDD and PCT, redrawn."""

from specnb.growth import Cape, Eagle2, Pct, kary
from study import experiments, paper
from study.claims.edd_pct import PAPER_7B, PCT
from study.figures.domains import domain, prompt_set
from study.figures.panels import Panel, Runs, figure, labels
from study.quantities import HEADS, chains_of, replayed
from study.stats import MEAN, RATIO

DRAFTS = (  # on the axis, the paper's row in Tables 1 and 4, our method
    ("VDM", "VDM", "vdm-chain-5"),
    ("Medusa", "MEDUSA-1", "medusa-chain-4"),
    ("EAGLE", "EAGLE", "eagle-chain-5"),
    ("EDD", "EDD", "edd-chain-5"),
)


@figure("edd_pct", "Table 1", experiments.EDD)
def table_1(runs: Runs) -> list[Panel]:
    """Draft models that draft chains, greedy: tokens per step and speed-up."""
    tokens = Panel("tokens a step", ["greedy"], labels(DRAFTS), runs)
    speed = Panel("speed-up over plain decoding", ["greedy"], labels(DRAFTS), runs)
    for tick, row, method in DRAFTS:
        printed_tokens = paper.select("edd_pct", "Table 1", row=row, column="tau")
        our_tokens = tokens.estimate(MEAN, "tau", [method])
        tokens.printed("greedy", tick, printed_tokens)
        tokens.ours("greedy", tick, our_tokens)
        printed_speed = paper.select("edd_pct", "Table 1", row=row, column="Speedup")
        our_speed = speed.estimate(RATIO, "speed", [method, "generate"])
        speed.printed("greedy", tick, printed_speed)
        speed.ours("greedy", tick, our_speed)
    return [tokens, speed]


@figure("edd_pct", "Table 2", experiments.EDD_RULES)
def table_2(runs: Runs) -> list[Panel]:
    """Tree rules for one draft, greedy: tokens per step, and the speed-up at the paper's price."""
    rules = {  # by their names in the paper
        "VCT": kary(3, 5),
        "CAPE": Cape(),
        "EAGLE-2": Eagle2(50),
        "PCT": PCT,
    }
    measures = (  # on the axis, the paper's column, our quantity
        ("tokens a step", "tau", "tau"),
        ("speed-up (ours: at the paper's price)", "Speedup", PAPER_7B.speed),
    )
    panels = []
    for ylabel, column, quantity in measures:
        panel = Panel(ylabel, ["greedy"], list(rules), runs)
        for name, rule in rules.items():
            printed = paper.select("edd_pct", "Table 2", row=name, column=column)
            ours = panel.estimate(MEAN, quantity, [replayed("edd", rule)])
            panel.printed("greedy", name, printed)
            panel.ours("greedy", name, ours)
        panels.append(panel)
    return panels


@figure("edd_pct", "Table 3", HEADS)
def table_3(heads: Runs) -> list[Panel]:
    """EDD and its training without some of their parts."""
    trained = (  # on the axis, the paper's row, our head, which was trained with two seeds
        ("EDD", "EDD+PCT", "edd_small"),
        ("no encoding", "w/o encoding result", "edd_no_encoding"),
        ("no KL", "w/o KL divergence", "edd_no_kl"),
        ("fixed blocks", "w/o random division length", "edd_no_random"),
        ("VDM, one layer", None, "vdm_one"),
    )
    title = "ours: chains, one text for all, two seeds"
    panel = Panel("tokens a step", ["greedy"], labels(trained), heads, title=title)
    for tick, row, head in trained:
        if row is not None:
            printed = paper.select("edd_pct", "Table 3", row=row, column="tau")
            panel.printed("greedy", tick, printed)
        ours = panel.estimate(MEAN, "tau", [head, f"{head}-1"])
        panel.ours("greedy", tick, ours)
    return [panel]


@figure("edd_pct", "Table 4", experiments.EDD_SAMPLED)
def table_4(runs: Runs) -> list[Panel]:
    """Draft models that draft chains, at temperature 1."""
    line = "temperature 1"
    panel = Panel("tokens a step", [line], labels(DRAFTS), runs)
    for tick, row, method in DRAFTS:
        printed = paper.select("edd_pct", "Table 4", row=row, column="tau")
        ours = panel.estimate(MEAN, "tau", [method])
        panel.printed(line, tick, printed)
        panel.ours(line, tick, ours)
    return [panel]


@figure("edd_pct", "Table 5", experiments.EDD_SAMPLED)
def table_5(runs: Runs) -> list[Panel]:
    """Tree rules for one draft, at temperature 1. Two of them are not in our race."""
    methods = {"VCT": None, "CAPE": None, "EAGLE-2": "edd-eagle2-50", "PCT": "edd-pct at .0369"}
    line = "temperature 1"
    panel = Panel("tokens a step", [line], list(methods), runs)
    for name, method in methods.items():
        printed = paper.select("edd_pct", "Table 5", row=name, column="tau")
        panel.printed(line, name, printed)
        if method is not None:
            ours = panel.estimate(MEAN, "tau", [method])
            panel.ours(line, name, ours)
    return [panel]


@figure("edd_pct", "Figure 3b", experiments.EDD_RULES)
def figure_3b(runs: Runs) -> list[Panel]:
    """Calibration: how often tokens are right by EDD's confidence in the token, and in the path."""
    errors = (  # on the axis, the paper's column, our quantity
        ("the draft's word for a token", "Expected Calibration Error", "ece"),
        ("for a path", None, "ece of paths"),
    )
    panel = Panel("expected calibration error", ["EDD"], labels(errors), runs)
    for tick, column, quantity in errors:
        if column is not None:
            printed = paper.select("edd_pct", "Figure 3b", column=column)
            panel.printed("EDD", tick, printed)
        ours = panel.estimate(MEAN, quantity, [chains_of("edd")])
        panel.ours("EDD", tick, ours)
    return [panel]


@figure("edd_pct", "Figure 5", HEADS)
def figure_5(heads: Runs) -> list[Panel]:
    """The layer of the target whose states EDD reads. The paper draws this and prints no numbers."""
    by_layer = {0: "edd_layer1", 3: "edd_small", 7: "edd_layer8", 14: "edd_layer15", 21: "edd_layer22"}
    panel = Panel(
        "tokens a step",
        ["EDD"],
        list(by_layer),
        heads,
        title="ours: GSM8K, chains, two seeds",
        xlabel="the states that EDD reads: layers before the last",
    )
    on_gsm = prompt_set("gsm100")
    for layer, head in by_layer.items():
        ours = panel.estimate(MEAN, "tau", [head, f"{head}-1"], where=on_gsm)
        panel.ours("EDD", layer, ours)
    return [panel]


@figure("edd_pct", "Figure 6", experiments.EDD_WIDTHS)
def figure_6(runs: Runs) -> list[Panel]:
    """The number of children per node in PCT. The paper draws this and prints no numbers."""
    widths = [1, 2, 3, 4, 6, 8, 10]
    measures = (("tokens a step", "tau"), ("nodes a step", "drafted"))  # on the axis, our quantity
    panels = []
    for ylabel, quantity in measures:
        panel = Panel(ylabel, ["PCT"], widths, runs, xlabel="children a node")
        for width in widths:
            rule = Pct(PAPER_7B.call, k=width)
            ours = panel.estimate(MEAN, quantity, [replayed("edd", rule)])
            panel.ours("PCT", width, ours)
        panels.append(panel)
    return panels


@figure("edd_pct", "Figure 7", experiments.EDD_RULES)
def figure_7(runs: Runs) -> list[Panel]:
    """PCT's trees in each domain. The paper draws this and prints no numbers."""
    domains = {
        "chat": "conversation",
        "mathematics": "mathematics",
        "questions": "question_answering",
        "RAG": "rag",
        "summary": "summarisation",
        "translation": "translation",
    }
    measures = (  # on the axis, the label, our quantity
        ("tokens a step", "tokens", "tau"),
        ("nodes a step", "nodes", "drafted"),
    )
    panels = []
    for ylabel, line, quantity in measures:
        panel = Panel(ylabel, [line], list(domains), runs)
        for tick, name in domains.items():
            ours = panel.estimate(MEAN, quantity, [replayed("edd", PCT)], where=domain(name))
            panel.ours(line, tick, ours)
        panels.append(panel)
    return panels
