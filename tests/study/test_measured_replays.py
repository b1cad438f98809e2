"""Growth rules replayed along one prompt's text: counts that agree with each other and with a real run."""

import pytest

from specnb import growth, verifiers
from specnb.decode import decode
from specnb.drafters import CausalLMDraft, TreeDrafter
from specnb.growth import DynaTree, Pct, Salf, chain, kary
from specnb.models import prompts
from specnb.target import Target
from study import replay
from study.measure import replays
from study.methods import label


def test_rules_along_one_recording(toy):
    """Counts of all rules agree with each other and with a real run; chains with what was accepted."""
    pruned = Pct(0.061)
    whole = Pct(0.061, leaf=0.0)
    optimal = Salf(12, 3, 0.0, 6)
    stopped = Salf(12, 3, 0.6, 6)
    rules = [chain(5), pruned, whole, optimal, stopped, kary(3, 5)]
    rows = {row["rule"]: row for row in replays.rules_block("rag-02", "pair", rules, 30, k=6)}
    assert list(rows) == [*map(label, rules), "chain"]
    assert all(set(row) == set(replays.COLUMNS) for row in rows.values())
    for rule in rules:
        row = rows[label(rule)]
        assert 1 <= row["steps"] <= 30
        assert sum(row["ranks"]) == row["nodes"]
    assert rows[label(kary(3, 5))]["nodes"] > rows[label(pruned)]["nodes"] > 0
    assert rows[label(whole)]["nodes"] >= rows[label(pruned)]["nodes"]
    assert rows[label(optimal)]["everywhere"] >= rows[label(stopped)]["everywhere"]
    ids = toy.encode(prompts.text("rag-02"))
    drafter = TreeDrafter(CausalLMDraft(toy.draft), growth.chain(5))
    real = decode(Target(toy.target), drafter, verifiers.greedy, ids, max_new_tokens=30, eos=())
    assert rows["chain(5)"]["steps"] == len(real.steps) < 25
    chains = replay.chain_table({"rag-02": rows["chain"]["chains"]})
    first = chains[chains["depth"] == 1]
    assert first["alive"].all()
    assert len(first) == 30
    assert ((chains["path"] <= chains["confidence"] + 1e-9) & (chains["hit"] <= chains["alive"])).all()


@pytest.mark.usefixtures("toy")
def test_a_few_wide_rules_hold_the_others_at_every_length():
    """One long recording of two rules says of all others what recordings of their own, of each length, say."""
    rules = [chain(2), chain(4), DynaTree(3, 2, 0.05, 16), DynaTree(3, 2, 0.2, 16)]
    counts = ("rule", "steps", "nodes", "forwards", "fed")
    wide = {"wide": [chain(4), DynaTree(3, 2, 0.01, 64)], "lengths": [6, 12, 30]}
    rows = replays.rules_block("rag-02", "pair", rules, 30, k=2, **wide)
    assert all(set(row) == {*replays.COLUMNS, "length"} for row in rows)
    for n in wide["lengths"]:
        alone = [row for row in replays.rules_block("rag-02", "pair", rules, n, k=2) if row["rule"] != "chain"]
        cut = [row for row in rows if row["length"] == n]
        assert [[row[name] for name in counts] for row in cut] == [[row[name] for name in counts] for row in alone]
    with pytest.raises(ValueError, match="record with a wider"):
        replays.rules_block("rag-02", "pair", [kary(2, 2)], 12, k=2, wide=[chain(4)])


@pytest.mark.usefixtures("toy")
def test_a_softened_head_drafts_less_surely():
    surely = {}
    for softened in (1.0, 2.0):
        rows = replays.rules_block("rag-02", "pair", [chain(2)], 6, k=2, softened=softened)
        chains = replay.chain_table({"rag-02": rows[-1]["chains"]})
        surely[softened] = chains.groupby(["place", "depth"])["confidence"].first()
    assert surely[2.0].mean() < surely[1.0].mean()
