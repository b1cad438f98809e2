"""The tables and figures of DynaTree, redrawn."""

from specnb.growth import DynaTree, chain
from study import experiments, paper
from study.claims.dynatree import AUTHORS
from study.figures.panels import Panel, Quantity, Runs, figure, labels
from study.quantities import replayed
from study.stats import MEAN, RATIO

SPEED = "speed-up over plain decoding"
HERE = "500 tokens; here 96"  # the paper's texts and ours
LENGTHS = [100, 200, 300, 500, 1000]
METHODS = (  # on the axis, the paper's row in Table 1, our method
    ("assisted", "HuggingFace assisted", "assistant"),
    ("chain of six", "Linear speculative (K=6)", "vdm-chain-6"),
    ("with a window", "StreamingLLM + speculative (cache=1024)", "vdm-chain-6, window 1024"),
    ("DynaTree", "DynaTree (ours)", "vdm-dynatree"),
)


def speed_ups(runs: Runs) -> Panel:
    """Speed of Table 1's methods, which Figure 2 draws."""
    panel = Panel(SPEED, [HERE], labels(METHODS), runs)
    for tick, row, method in METHODS:
        printed = paper.select("dynatree", "Table 1", row=row, column="Speedup")
        ours = panel.estimate(RATIO, "speed", [method, "generate"])
        panel.printed(HERE, tick, printed)
        panel.ours(HERE, tick, ours)
    return panel


@figure("dynatree", "Table 1", experiments.DYNATREE)
def table_1(runs: Runs) -> list[Panel]:
    """Speed, and tokens a drafted node, of which the paper has none with a window."""
    drafted = (  # on the axis, the paper's row, our method
        ("chain of six", "Linear speculative (K=6)", "vdm-chain-6"),
        ("with a window", None, "vdm-chain-6, window 1024"),
        ("DynaTree", "DynaTree (ours)", "vdm-dynatree"),
    )
    panel = Panel("tokens a drafted node", [HERE], labels(drafted), runs)
    for tick, row, method in drafted:
        if row is not None:
            printed = paper.select("dynatree", "Table 1", row=row, column="Acceptance rate")
            panel.printed(HERE, tick, printed)
        ours = panel.estimate(MEAN, "acceptance", [method])
        panel.ours(HERE, tick, ours)
    return [speed_ups(runs), panel]


@figure("dynatree", "Figure 2", experiments.DYNATREE)
def figure_2(runs: Runs) -> list[Panel]:
    """Table 1's speed."""
    return [speed_ups(runs)]


@figure("dynatree", "Table 2", experiments.DYNATREE)
def table_2(runs: Runs) -> list[Panel]:
    """What each part of DynaTree adds to its speed."""
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
    """Speed and tokens a drafted node in longer and longer texts."""
    rules = {"DynaTree": DynaTree(), "chain of six": chain(6)}
    of_speed = "ours: D = 8, B = 3, θ = 0.03 at the authors' prices"
    measures = (  # on the axis, the title, the paper's column, and our quantity
        ("speed-up", of_speed, "Speedup", AUTHORS.speed),
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
                method = replayed("vdm", rule, tokens=tokens)
                ours = panel.estimate(MEAN, quantity, [method])
                panel.ours(line, tokens, ours)
        panels.append(panel)
    return panels


@figure("dynatree", "Figure 3", experiments.DYNATREE_RULES, experiments.DYNATREE_LENGTHS)
def figure_3(rules: Runs, lengths: Runs) -> list[Panel]:
    """DynaTree's settings one by one, which the paper only draws: with the race's draft, and with a better one."""
    by_depth = {depth: DynaTree(depth=depth) for depth in range(3, 9)}
    by_branches = {branch: DynaTree(branch=branch) for branch in range(1, 5)}
    by_threshold = {least: DynaTree(threshold=least) for least in (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5)}
    speed = "speed-up (ours: at the authors' prices)"
    threshold = "threshold θ (D = 8, B = 3)"
    return [
        settings(speed, "depth D (B = 3, θ = 0.03)", by_depth, AUTHORS.speed, rules),
        settings(speed, "branches B (D = 8, θ = 0.03)", by_branches, AUTHORS.speed, rules),
        settings(speed, threshold, by_threshold, AUTHORS.speed, rules),
        speed_by_length(speed, lengths),
        tokens_by_depth_and_branches(rules),
        settings("tokens a drafted node", threshold, by_threshold, "acceptance", rules),
    ]


def settings(ylabel: str, xlabel: str, rules: dict[float, DynaTree], quantity: Quantity, runs: Runs) -> Panel:
    """A quantity by one of DynaTree's settings, of two heads. rules: by the number that stands on the axis below."""
    panel = Panel(ylabel, ["vdm", "hass"], list(rules), runs, xlabel=xlabel)
    for head in panel.lines:
        for tick, rule in rules.items():
            ours = panel.estimate(MEAN, quantity, [replayed(head, rule)])
            panel.ours(head, tick, ours)
    return panel


def speed_by_length(ylabel: str, runs: Runs) -> Panel:
    """Speed in longer and longer texts, of the race's draft."""
    panel = Panel(ylabel, ["vdm"], LENGTHS, runs, xlabel="new tokens (D = 8, B = 3, θ = 0.03)")
    for tokens in LENGTHS:
        method = replayed("vdm", DynaTree(), tokens=tokens)
        ours = panel.estimate(MEAN, AUTHORS.speed, [method])
        panel.ours("vdm", tokens, ours)
    return panel


def tokens_by_depth_and_branches(runs: Runs) -> Panel:
    """Tokens a step by depth, a line for each number of branches."""
    branches = {"B = 1": 1, "B = 2": 2, "B = 3": 3, "B = 4": 4}
    panel = Panel("tokens a step", list(branches), range(3, 9), runs, xlabel="depth D (θ = 0.03)")
    for line, branch in branches.items():
        for depth in panel.ticks:
            rule = DynaTree(depth=depth, branch=branch)
            ours = panel.estimate(MEAN, "tau", [replayed("vdm", rule)])
            panel.ours(line, depth, ours)
    return panel
