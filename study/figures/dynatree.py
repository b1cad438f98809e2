"""The tables and figures of the DynaTree paper, redrawn: the printed numbers beside ours.

Each panel compares lines (often one per head) at ticks (often one per method). ``panel.printed`` adds the paper's
number, ``panel.ours`` our estimate. MEAN is the mean over prompts of one method's quantity. RATIO is the median over
prompts of a first method's quantity divided by a second's, so with [method, "generate"] it is a speed-up over generate.

Some speed-ups are "at the authors' prices" (``claims.dynatree.AUTHORS``): a replayed run has no seconds, only counts of
nodes, and these prices, computed from the authors' own results, turn the counts into time.
"""

from specnb.growth import DynaTree, chain
from study import experiments, paper
from study.claims.dynatree import AUTHORS
from study.figures.panels import Panel, Quantity, Runs, figure, labels
from study.quantities import replayed
from study.stats import MEAN, RATIO

SPEED = "speed-up over plain decoding"
LINE_NAME = "500 tokens; here 96"  # of the one line of a panel: new tokens in the paper's texts, and in ours
LENGTHS = [100, 200, 300, 500, 1000]  # new tokens, in Table 3
METHODS = (  # on the axis, the paper's row in Table 1, our method
    ("assisted", "HuggingFace assisted", "assistant"),
    ("chain of six", "Linear speculative (K=6)", "vdm-chain-6"),
    ("with a window", "StreamingLLM + speculative (cache=1024)", "vdm-chain-6, window 1024"),
    ("DynaTree", "DynaTree (ours)", "vdm-dynatree"),
)


def speed_ups(runs: Runs) -> Panel:
    """The speed-ups of the methods of Table 1. Figure 2 draws the same numbers."""
    panel = Panel(SPEED, [LINE_NAME], labels(METHODS), runs)
    for tick, row, method in METHODS:
        printed = paper.select("dynatree", "Table 1", row=row, column="Speedup")
        ours = panel.estimate(RATIO, "speed", [method, "generate"])
        panel.printed(LINE_NAME, tick, printed)
        panel.ours(LINE_NAME, tick, ours)
    return panel


@figure("dynatree", "Table 1", experiments.DYNATREE)
def table_1(runs: Runs) -> list[Panel]:
    """Speed-ups, and tokens per drafted node. The paper prints no tokens per node for the method with a window."""
    drafted = (  # on the axis, the paper's row, our method
        ("chain of six", "Linear speculative (K=6)", "vdm-chain-6"),
        ("with a window", None, "vdm-chain-6, window 1024"),
        ("DynaTree", "DynaTree (ours)", "vdm-dynatree"),
    )
    panel = Panel("tokens a drafted node", [LINE_NAME], labels(drafted), runs)
    for tick, row, method in drafted:
        if row is not None:
            printed = paper.select("dynatree", "Table 1", row=row, column="Acceptance rate")
            panel.printed(LINE_NAME, tick, printed)
        ours = panel.estimate(MEAN, "acceptance", [method])
        panel.ours(LINE_NAME, tick, ours)
    return [speed_ups(runs), panel]


@figure("dynatree", "Figure 2", experiments.DYNATREE)
def figure_2(runs: Runs) -> list[Panel]:
    """The speed-ups of Table 1."""
    return [speed_ups(runs)]


@figure("dynatree", "Table 2", experiments.DYNATREE)
def table_2(runs: Runs) -> list[Panel]:
    """The speed-ups of DynaTree without and with its parts."""
    parts = (  # on the axis, the paper's row, our method
        ("chain", "Linear speculative", "vdm-chain-6"),
        ("+ tree", "+ Tree structure", "vdm-dynatree, depth 4"),
        ("+ depth and pruning", "+ Depth & pruning optimization", "vdm-dynatree"),
    )
    panel = Panel(SPEED, ["DynaTree"], labels(parts), runs)
    for tick, row, method in parts:
        printed = paper.select("dynatree", "Table 2", row=row, column="Speedup")
        ours = panel.estimate(RATIO, "speed", [method, "generate"])
        panel.printed("DynaTree", tick, printed)
        panel.ours("DynaTree", tick, ours)
    return [panel]


@figure("dynatree", "Table 3", experiments.DYNATREE_LENGTHS)
def table_3(runs: Runs) -> list[Panel]:
    """Speed-ups and tokens per drafted node by the length of the text."""
    rules = {"DynaTree": DynaTree(), "chain of six": chain(6)}
    speed_title = "ours: D = 8, B = 3, θ = 0.03 at the authors' prices"
    measures = (  # on the axis, the title, the paper's column, and our quantity
        ("speed-up", speed_title, "Speedup", AUTHORS.speed),
        ("tokens a drafted node", "", "Acceptance rate", "acceptance"),
    )
    panels = []
    for ylabel, title, column, quantity in measures:
        panel = Panel(ylabel, list(rules), LENGTHS, runs, title=title, xlabel="new tokens", own_legend=True)
        for line, rule in rules.items():
            for tokens in LENGTHS:
                if line == "DynaTree":  # the paper has no chain here
                    printed = paper.select("dynatree", "Table 3", row=f"Length {tokens}", column=column)
                    panel.printed(line, tokens, printed)
                method = replayed("vdm", rule, tokens=tokens)  # its name in the table of replays
                ours = panel.estimate(MEAN, quantity, [method])
                panel.ours(line, tokens, ours)
        panels.append(panel)
    return panels


@figure("dynatree", "Figure 3", experiments.DYNATREE_RULES, experiments.DYNATREE_LENGTHS)
def figure_3(rule_runs: Runs, length_runs: Runs) -> list[Panel]:
    """DynaTree's settings varied one by one, with the draft of the race (vdm) and with a better one (hass).

    The paper draws this figure and prints no numbers for it, so the panels have only ours.
    """
    thresholds = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5)
    by_depth = {depth: DynaTree(depth=depth) for depth in range(3, 9)}
    by_branches = {branch: DynaTree(branch=branch) for branch in range(1, 5)}
    by_threshold = {threshold: DynaTree(threshold=threshold) for threshold in thresholds}
    speed = "speed-up (ours: at the authors' prices)"
    threshold_axis = "threshold θ (D = 8, B = 3)"
    return [
        by_setting(speed, "depth D (B = 3, θ = 0.03)", by_depth, AUTHORS.speed, rule_runs),
        by_setting(speed, "branches B (D = 8, θ = 0.03)", by_branches, AUTHORS.speed, rule_runs),
        by_setting(speed, threshold_axis, by_threshold, AUTHORS.speed, rule_runs),
        speed_by_length(speed, length_runs),
        tokens_by_depth_and_branches(rule_runs),
        by_setting("tokens a drafted node", threshold_axis, by_threshold, "acceptance", rule_runs),
    ]


def by_setting(ylabel: str, xlabel: str, rules: dict[float, DynaTree], quantity: Quantity, runs: Runs) -> Panel:
    """A panel of a quantity by one of DynaTree's settings, with one line for each of two heads.

    rules: by the value of the setting, which is the tick on the x axis.
    """
    panel = Panel(ylabel, ["vdm", "hass"], list(rules), runs, xlabel=xlabel)
    for head in panel.lines:
        for tick, rule in rules.items():
            ours = panel.estimate(MEAN, quantity, [replayed(head, rule)])
            panel.ours(head, tick, ours)
    return panel


def speed_by_length(ylabel: str, runs: Runs) -> Panel:
    """A panel of the speed-up by the length of the text, with the draft of the race."""
    panel = Panel(ylabel, ["vdm"], LENGTHS, runs, xlabel="new tokens (D = 8, B = 3, θ = 0.03)")
    for tokens in LENGTHS:
        method = replayed("vdm", DynaTree(), tokens=tokens)
        ours = panel.estimate(MEAN, AUTHORS.speed, [method])
        panel.ours("vdm", tokens, ours)
    return panel


def tokens_by_depth_and_branches(runs: Runs) -> Panel:
    """A panel of tokens per step by depth, with one line for each number of branches."""
    branches = {"B = 1": 1, "B = 2": 2, "B = 3": 3, "B = 4": 4}
    panel = Panel("tokens a step", list(branches), range(3, 9), runs, xlabel="depth D (θ = 0.03)")
    for line, branch in branches.items():
        for depth in panel.ticks:
            rule = DynaTree(depth=depth, branch=branch)
            ours = panel.estimate(MEAN, "tau", [replayed("vdm", rule)])
            panel.ours(line, depth, ours)
    return panel
