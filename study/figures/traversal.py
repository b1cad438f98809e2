"""The tables and figures of Traversal Verification, redrawn."""

from specnb.growth import EAGLE_25, chain, kary
from study import experiments, paper
from study.figures.panels import Panel, Runs, figure, labels
from study.quantities import verified
from study.stats import MEAN, PER_CENT

SHAPES = (  # on the axis, the paper's tree, our shape
    ("chain", "Chain", chain(5)),
    ("binary tree", "Binary Tree", kary(2, 5)),
    ("EAGLE's sparse tree", "EAGLE Sparse Tree", EAGLE_25),
)
VERIFIERS = (  # the label, which is our verifier, and the paper's column
    ("token-level", "Tok.V"),
    ("traversal", "Tra.V"),
)


def tokens_a_step(item: str, head: str, title: str, runs: Runs) -> Panel:
    """Tokens per step of both verifiers, at temperature 1."""
    panel = Panel("tokens a step", labels(VERIFIERS), labels(SHAPES), runs, title=title)
    for verifier, column in VERIFIERS:
        for tick, tree, shape in SHAPES:
            printed = paper.select("traversal", item, row="Avg. Accept.", tree=tree, column=column)
            ours = panel.estimate(MEAN, "tau", [verified(head, shape, verifier)])
            panel.printed(verifier, tick, printed)
            panel.ours(verifier, tick, ours)
    return panel


def gain_in_tokens(item: str, head: str, line: str, runs: Runs) -> Panel:
    """The gain of traversal over token-level in tokens per step, at temperature 1."""
    panel = Panel("gain in tokens a step, %", [line], labels(SHAPES), runs)
    for tick, tree, shape in SHAPES:
        printed = paper.select("traversal", item, row="Avg. Accept.", tree=tree, column="Improvement")
        ours = panel.estimate(MEAN, "lift", [verified(head, shape, "traversal")])
        panel.printed(line, tick, printed)
        panel.ours(line, tick, ours)
    return panel


@figure("traversal", "Table 2", experiments.TRAVERSAL, experiments.TRAVERSAL_RACE)
def table_2(runs: Runs, race: Runs) -> list[Panel]:
    """The stronger draft: tokens per step, and traversal's gain in tokens per step and per second."""
    return [
        tokens_a_step("Table 2", "hass", "the stronger draft; ours: the head hass", runs),
        gain_in_tokens("Table 2", "hass", "tokens a step", runs),
        gain_in_speed(race),
    ]


def gain_in_speed(race: Runs) -> Panel:
    """The gain of traversal over token-level in tokens per second, in real sampling."""
    raced = (  # on the axis, the paper's tree, our methods
        ("chain", "Chain", "hass-chain-5 iid, traversal", "hass-chain-5 iid, token-level"),
        ("binary tree", "Binary Tree", "hass-binary-5 swor, traversal", "hass-binary-5 swor, rrsw"),
        ("EAGLE's sparse tree", "EAGLE Sparse Tree", "hass-sparse swor, traversal", "hass-sparse swor, rrsw"),
    )
    line = "traversal over token-level"
    panel = Panel("gain in tokens a second, %", [line], labels(raced), race)
    for tick, tree, traversal, token_level in raced:
        printed = paper.select("traversal", "Table 2", row="Avg. Token/s", tree=tree, column="Improvement")
        ours = panel.estimate(PER_CENT, "speed", [traversal, token_level])
        panel.printed(line, tick, printed)
        panel.ours(line, tick, ours)
    return panel


@figure("traversal", "Table 3", experiments.TRAVERSAL)
def table_3(runs: Runs) -> list[Panel]:
    """The weaker draft: tokens per step, and traversal's gain."""
    return [
        tokens_a_step("Table 3", "vdm", "the weaker draft; ours: the head vdm", runs),
        gain_in_tokens("Table 3", "vdm", "traversal over token-level", runs),
    ]


@figure("traversal", "Figure 3", experiments.TRAVERSAL_DEPTHS)
def figure_3(runs: Runs) -> list[Panel]:
    """Tokens per step by the depth of the tree. The paper draws this and prints no numbers."""
    families = (  # the title, our shapes by depth
        ("chains", {depth: chain(depth) for depth in (2, 4, 6, 8)}),
        ("binary trees", {depth: kary(2, depth) for depth in (2, 3, 4, 5)}),
    )
    panels = []
    for title, shapes in families:
        panel = Panel("tokens a step", labels(VERIFIERS), list(shapes), runs, title=title, xlabel="depth")
        for verifier in panel.lines:
            for depth, shape in shapes.items():
                ours = panel.estimate(MEAN, "tau", [verified("hass", shape, verifier)])
                panel.ours(verifier, depth, ours)
        panels.append(panel)
    return panels


@figure("traversal", "Table 4", experiments.TRAVERSAL_HEAT)
def table_4(runs: Runs) -> list[Panel]:
    """Traversal's gain by temperature. Ours has no binary trees here."""
    temperatures = [0.2, 0.4, 0.6, 0.8, 1.0]
    panel = Panel("gain in tokens a step, %", labels(SHAPES), temperatures, runs, xlabel="temperature")
    for line, tree, shape in SHAPES:
        for heat in temperatures:
            printed = paper.select("traversal", "Table 4", temperature=heat, tree=tree, column="Improvement")
            panel.printed(line, heat, printed)
            if line != "binary tree":
                method = verified("hass", shape, "traversal", temperature=heat)
                ours = panel.estimate(MEAN, "lift", [method])
                panel.ours(line, heat, ours)
    return [panel]
