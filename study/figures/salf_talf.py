"""The tables and figures of SALF and TALF, redrawn."""

from specnb.growth import Eagle2, Salf
from study import experiments, paper
from study.claims.salf_talf import TABLE_4
from study.figures.domains import gsm, humaneval, own, prompt_set
from study.figures.panels import Panel, Runs, figure, labels
from study.quantities import HEADS, replayed
from study.stats import MEAN, RATIO

SPEED = "speed-up over plain decoding"


@figure("salf_talf", "Table 1", experiments.SALF, experiments.SALF_SAMPLED)
def table_1(greedy: Runs, sampled: Runs) -> list[Panel]:
    """Speed-ups at both temperatures."""
    domains = (  # on the axis, the paper's column, our prompts
        ("MT-Bench / own", "MT-bench", own),
        ("HumanEval", "HumanEval", humaneval),
        ("GSM", "GSM8K", gsm),
    )
    methods = {"EAGLE-2": "eagle-beam-60", "HASS": "hass-beam-60", "SALF & TALF": "talf-salf-60"}  # by the paper's rows
    races = (("greedy", 0, greedy), ("temperature 1", 1, sampled))  # the title, the temperature, our runs
    panels = []
    for title, temperature, runs in races:
        panel = Panel(SPEED, list(methods), labels(domains), runs, title=title)
        for row, method in methods.items():
            for tick, column, prompts in domains:
                printed = paper.select("salf_talf", "Table 1", row=row, column=column, temperature=temperature)
                ours = panel.estimate(RATIO, "speed", [method, "generate"], where=prompts)
                panel.printed(row, tick, printed)
                panel.ours(row, tick, ours)
        panels.append(panel)
    return panels


@figure("salf_talf", "Table 2", experiments.SALF)
def table_2(runs: Runs) -> list[Panel]:
    """Three growth rules with three heads: tokens per step and speed-up."""
    heads = (  # the label, the paper's name, ours
        ("EAGLE", "EAGLE-2", "eagle"),
        ("HASS", "HASS", "hass"),
        ("TALF", "TALF", "talf"),
    )
    rules = (  # on the axis, the paper's name, ours
        ("beam", "Beam search", "beam"),
        ("optimal tree", "Optimal tree search", "optimal"),
        ("SALF", "SALF", "salf"),
    )
    tokens = Panel("tokens a step", labels(heads), labels(rules), runs)
    speed = Panel(SPEED, labels(heads), labels(rules), runs)
    for line, draft, head in heads:
        for tick, search, rule in rules:
            row = f"{search} + {draft}"
            method = f"{head}-{rule}-60"
            printed_tokens = paper.select("salf_talf", "Table 2", row=row, column="Mean tau")
            our_tokens = tokens.estimate(MEAN, "tau", [method])
            tokens.printed(line, tick, printed_tokens)
            tokens.ours(line, tick, our_tokens)
            printed_speed = paper.select("salf_talf", "Table 2", row=row, column="Mean speedup")
            our_speed = speed.estimate(RATIO, "speed", [method, "generate"])
            speed.printed(line, tick, printed_speed)
            speed.ours(line, tick, our_speed)
    return [tokens, speed]


@figure("salf_talf", "Table 3", HEADS)
def table_3(heads: Runs) -> list[Panel]:
    """Tokens per step of heads by the number of likely tokens on which they were trained."""
    sets = (  # the label, the paper's column, our set of prompts
        ("MT-Bench / own", "MT-bench", "own"),
        ("HumanEval", "HumanEval", "humaneval"),
        ("GSM", "GSM8K", "gsm100"),
    )
    trained = (  # on the axis, the paper's row, our head, which was trained with two seeds
        ("HASS", "HASS (top-1)", "hass_roots"),
        ("TALF, k = 1", "TALF (top-1)", "talf_k1"),
        ("2", "TALF (top-2)", "talf_k2"),
        ("4", "TALF (top-4)", "talf"),
    )
    title = "ours: chains, one text for all, two seeds"
    panel = Panel("tokens a step", labels(sets), labels(trained), heads, title=title)
    for line, column, prompts in sets:
        for tick, row, head in trained:
            printed = paper.select("salf_talf", "Table 3", row=row, column=column)
            ours = panel.estimate(MEAN, "tau", [head, f"{head}-1"], where=prompt_set(prompts))
            panel.printed(line, tick, printed)
            panel.ours(line, tick, ours)
    return [panel]


@figure("salf_talf", "Table 4", experiments.SALF_RULES)
def table_4(runs: Runs) -> list[Panel]:
    """SALF's threshold: tokens per step, and the speed-up at a price per draft call."""
    thresholds = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    measures = (  # on the axis, the title, the paper's column, our quantity
        ("tokens a step", "", "Mean tau", "tau"),
        ("speed-up", "ours at 0.05 target calls a draft call", "Mean speedup", TABLE_4.speed),
    )
    panels = []
    for ylabel, title, column, quantity in measures:
        panel = Panel(ylabel, ["SALF"], thresholds, runs, title=title, xlabel="threshold")
        for threshold in thresholds:
            rule = Salf(60, 10, threshold, width=10)
            printed = paper.select("salf_talf", "Table 4", row=f"th = {threshold}", column=column)
            ours = panel.estimate(MEAN, quantity, [replayed("talf", rule)])
            panel.printed("SALF", threshold, printed)
            panel.ours("SALF", threshold, ours)
        panels.append(panel)
    return panels


@figure("salf_talf", "Figure 2a", experiments.SALF_RULES)
def figure_2a(runs: Runs) -> list[Panel]:
    """The ranks of a tree's nodes among their siblings. The paper prints two numbers and names no rule."""
    rules = {
        "beam": Eagle2(59, depth=8, k=10),
        "optimal tree": Salf(60, 10, 0.0, width=10),
        "SALF": Salf(60, 10, 0.6, width=10),
    }
    ranks = (  # on the axis, the paper's column, our rank
        ("1", "share of rank 1", 1),
        ("2", None, 2),
        ("3", None, 3),
        ("4", None, 4),
        ("5 or lower", "share of rank 5 or lower", 5),
    )
    row = "Candidate tokens in the final draft tree"
    xlabel = 'rank among siblings (the paper names no rule; 10 is "over 10")'
    panel = Panel("share of tree nodes, per cent", list(rules), labels(ranks), runs, xlabel=xlabel)
    for line, rule in rules.items():
        for tick, column, rank in ranks:
            if line == "beam" and column is not None:
                printed = paper.select("salf_talf", "Figure 2a", row=row, column=column)
                panel.printed(line, tick, printed)
            ours = panel.estimate(MEAN, f"share{rank}", [replayed("talf", rule)])
            panel.ours(line, tick, ours)
    return [panel]


@figure("salf_talf", "Figure 2b", HEADS)
def figure_2b(heads: Runs) -> list[Panel]:
    """Accuracy of heads after children of each rank, and their overconfidence. The paper prints no numbers."""
    trained = {"EAGLE": "eagle_roots", "HASS": "hass_roots", "TALF": "talf"}  # with two seeds each
    measures = (  # on the axis, the title, the beginning of our quantities' names
        ("accuracy behind a child of this rank", "", "rank"),
        ("confidence less accuracy", "in print: calibration error", "over"),
    )
    panels = []
    for ylabel, title, measure in measures:
        panel = Panel(ylabel, list(trained), range(1, 6), heads, title=title, xlabel="rank")
        for line, head in trained.items():
            for rank in panel.ticks:
                ours = panel.estimate(MEAN, f"{measure}{rank}", [head, f"{head}-1"])
                panel.ours(line, rank, ours)
        panels.append(panel)
    return panels
