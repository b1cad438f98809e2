"""The law explorer: exact numbers behind it, and a picture that follows every control."""

import numpy as np
import pandas as pd
import pytest

from specnb import exact, explorers, growth, race, replay, search, sweep
from specnb.draft_models import TableDraft
from specnb.drafters import TreeDrafter
from specnb.exact import random_model
from specnb.sampling import RandomCoins, Warp
from specnb.tree import Drawn

P, Q = (0.3, 0.4, 0.3), (0.6, 0.3, 0.1)


@pytest.mark.parametrize(
    ("shape", "token_level", "traversal"),
    [
        ("chain of 2", 119 / 100, 5 / 4),
        ("chain of 3", 1533 / 1000, 213 / 125),
        ("uneven: two, two below the first", 119 / 80, 61 / 40),
        ("two children each, two levels", 105 / 64, 541 / 320),
    ],
)
def test_numbers_are_the_known_ones(shape, token_level, traversal):
    found = explorers.numbers(P, Q, shape)
    assert found["token-level (RRSw)"]["accepted"] == pytest.approx(token_level, abs=1e-12)
    assert found["traversal"]["accepted"] == pytest.approx(traversal, abs=1e-12)
    assert all(row["error"] < 1e-12 for row in found.values())
    assert ("block" in found) == shape.startswith("chain")


def test_every_control_moves_the_picture():
    box = explorers.law_explorer()
    controls, seen = box.controls, [box.controls.image.value]
    assert bytes(seen[0]).startswith(b"\x89PNG")
    controls.shape.value = "chain of 2"
    seen.append(controls.image.value)
    for slider, value in ((controls.p[0], 0.9), (controls.q[2], 0.7)):
        slider.value = value
        seen.append(controls.image.value)
    assert len({bytes(png) for png in seen}) == len(seen)


def test_impossible_weights_are_said_and_leave_the_picture():
    controls = explorers.law_explorer().controls
    controls.shape.value = "chain of 2"
    for slider in controls.q[:2]:
        slider.value = 0
    before = controls.image.value
    controls.q[2].value = 0
    assert "needs some mass" in controls.readout.value
    assert controls.image.value == before
    controls.q[1].value = 0.5
    assert controls.readout.value == ""
    assert controls.image.value != before


# --- growth on a recorded step, and sweeps


def recorded(depth: int, first: int = 1):
    law = random_model(6, 3)
    drafter = TreeDrafter(TableDraft(lambda prefix: law(prefix[1:])), growth.DynaTree(depth, 4, 0.009, 4000, first))
    drafter.begin((0,), Warp(), {})
    draft = drafter.propose(RandomCoins(0), 99)
    return draft.tree, draft.scores, [f"t{token}" for token in draft.tree.token_list]


def test_growth_explorer_follows_its_sliders():
    box = explorers.growth_explorer(*recorded(8))
    controls, seen = box.controls, [(bytes(box.controls.image.value), box.controls.readout.value)]
    assert seen[0][0].startswith(b"\x89PNG")
    for name, value in (("threshold", 0.3), ("depth", 2), ("branch", 2), ("budget", 3)):
        getattr(controls, name).value = value
        seen.append((bytes(controls.image.value), controls.readout.value))
    sizes = [int(text.split()[0]) for _, text in seen]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[1] > sizes[-1] == 3
    assert "node by node" in seen[0][1]


def test_growth_explorer_says_when_the_recording_is_too_small():
    tree, scores, labels = recorded(1)
    controls = explorers.growth_explorer(tree, scores, labels).controls
    assert "record with a wider, deeper or less pruned tree" in controls.readout.value


def test_sweep_explorer_follows_its_sliders():
    cells = sweep.grid(depth=(3, 4, 5), branch=(2, 3), threshold=(0.01, 0.1))
    table = pd.DataFrame([{**c, "speed": c["depth"] + c["branch"] * c["threshold"]} for c in cells])
    box = explorers.sweep_explorer(table, ["depth", "branch", "threshold"], "speed")
    seen = [bytes(box.controls.image.value)]
    for name, value in (("depth", 5), ("branch", 3), ("threshold", 0.1)):
        box.controls.sliders[name].value = value
        seen.append(bytes(box.controls.image.value))
    assert len(set(seen)) == 4
    with pytest.raises(ValueError, match="axes must be three columns"):
        explorers.sweep_explorer(table, ["depth", "branch", "width"], "speed")


def test_pct_explorer_follows_its_sliders():
    """Dearer calls draft less and gain less; a leaf threshold above the price is refused in words."""
    controls = explorers.growth_explorer(*recorded(8, first=4), growth.Pct).controls
    controls.k.value, controls.depth.value = 2, 4
    seen = []
    for cost in (0.02, 0.1, 0.5):
        controls.cost.value = cost
        seen.append((bytes(controls.image.value), int(controls.readout.value.split()[0])))
    assert seen[0][1] > seen[1][1] > seen[2][1]
    assert "gains" in controls.readout.value
    controls.cost.value, controls.leaf.value = 0.02, 0.2
    assert "leaf 0.2 and cost 0.02" in controls.readout.value


def test_race_explorer_goes_forward_by_forward():
    """Every stage another picture; the optimal search covers most in the end, SALF's stop leaves forwards out."""
    rules = {"beam": growth.Eagle2(11, 3, 3), "optimal": search.Salf(12, 3, 0.0, 4), "SALF": search.Salf(12, 3, 0.6, 4)}
    drafter = exact.toy_drafter(random_model(6, 3), replay.Together(tuple(rules.values()), k=4), Drawn.POINT)
    drafter.begin((0,), Warp(), {})
    draft = drafter.propose(RandomCoins(0), 99)
    labels = [f"<{token}>" for token in draft.tree.token_list]
    controls = race.race_explorer(draft.tree, draft.scores, labels, rules).controls
    seen = []
    for forward in range(controls.forward.max + 1):
        controls.forward.value = forward
        seen.append((bytes(controls.image.value), controls.readout.value))
    assert len({picture for picture, _ in seen}) == len(seen) > 4
    assert "next, S = 1.00: &lt;0&gt; 1.00" in seen[0][1]
    assert seen[-1][1].count("nothing is expanded any more") == 3
    beam, optimal, salf = (float(line.split("cover ")[1].split()[0]) for line in seen[-1][1].split("<br>"))
    assert optimal >= beam
    assert optimal > salf
    forwards = {name: len(replay.stages(draft.tree, draft.scores, rule)) - 1 for name, rule in rules.items()}
    assert forwards["SALF"] < forwards["optimal"]


def test_threshold_explorer_moves_its_optimum_with_the_prices():
    """Free forwards: the longest drafts are best; dear ones: the shortest. The ring follows its slider."""
    table = pd.DataFrame({"τ": [2.4, 2.2, 1.8], "forwards": [7.0, 2.0, 1.2], "nodes": [60.0, 20.0, 12.0]})
    controls = race.threshold_explorer(table.set_axis([0.0, 0.6, 0.95])).controls
    best, seen = [], set()
    for call, node in ((0.0, 0.0), (0.06, 0.0), (0.5, 0.0), (0.0, 0.05)):
        controls.call.value, controls.node.value = call, node
        best.append(controls.readout.value.split("best at ")[1][:4])
        seen.add(bytes(controls.image.value))
    assert best == ["0.00", "0.60", "0.95", "0.95"]
    controls.threshold.value = 0.6
    assert controls.readout.value.startswith("threshold 0.60: 2.00 forwards, 20.0 nodes, τ 2.20, speed 1.10")
    assert len({*seen, bytes(controls.image.value)}) == 5


def test_reliability_explorer_follows_its_controls():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(size=400)
    chains = pd.DataFrame({"confidence": confidence, "path": confidence**2, "depth": 1 + np.arange(400) % 5})
    chains = chains.assign(alive=rng.uniform(size=400) < 0.7, hit=rng.uniform(size=400) < confidence)
    controls = explorers.reliability_explorer(chains).controls
    seen = [(bytes(controls.image.value), controls.readout.value)]
    for name, value in (("of", "path"), ("bins", 4), ("equal", "count"), ("depth", 2)):
        getattr(controls, name).value = value
        seen.append((bytes(controls.image.value), controls.readout.value))
    assert len({picture for picture, _ in seen}) == 5
    assert seen[0][1].startswith(f"{chains['alive'].sum()} tokens")
    assert seen[-1][1].startswith("160 tokens")
