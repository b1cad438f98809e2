"""Replays: every growth rule of an experiment along the plain text of one prompt, from one recording of the draft."""

from collections.abc import Sequence

from specnb import models
from specnb.growth import Growth, Together, kary, regrow
from specnb.models import generate, prompts
from specnb.target import Target
from study import replay
from study.measure.clock import ALONE
from study.measure.loading import draft_model, loaded
from study.methods import label
from study.replay import Recording, Turn

COLUMNS = ("rule", "steps", "nodes", "forwards", "fed", "everywhere", "ranks", "chains")
VCT = kary(3, 5)  # EDD's full tree, whose 363 nodes no other rule wants: it has a recording of its own
CHAINS = "chain"  # how rows call that of the likeliest chains, which no rule has
RANKS = 10  # places among siblings that are counted apart, the last with all lower ones


def rules_block(
    prompt: str,
    head: str,
    rules: Sequence[Growth],
    length: int,
    k: int = 10,
    pair: str = models.EMBEDDED,
    wide: Sequence[Growth] = (),
    lengths: Sequence[int] = (),
    softened: float = 1.0,
) -> list[dict[str, object]]:
    """Every growth rule replayed along the plain float32 text of one prompt; one row a rule.

    steps, nodes of the verified trees, draft forwards and nodes fed to the draft, in all steps; everywhere: tokens
    accepted from every place of the text, not only where steps begin; ranks: how many verified nodes were the first,
    second, … of their siblings. The row "chain" holds what became of the likeliest chain at every place
    (``replay.chain_table``).

    wide: the rules whose trees are recorded, where a few hold those of all others. lengths: instead, one row a rule and
    length, along the first so many tokens; what is counted at every place is left out. softened: what the head's
    logits are divided by.
    """
    ready = loaded(pair, "float32")
    ids = ready.encode(prompts.text(prompt))
    draft = draft_model(head, ready, 0, softened)
    text = generate(ready, ids, length, whole=True)
    shared = list(wide) or [rule for rule in rules if rule != VCT]
    common = None
    full = None
    with ALONE:
        target = Target(ready.target)
        if shared:
            common = replay.record(target, draft, Together(tuple(shared), k=k), ids, text)
        if VCT in rules:
            full = replay.record(target, draft, VCT, ids, text)
    if lengths:
        return _by_length(common, rules, lengths)
    rows = [_row(full if rule == VCT else common, rule) for rule in rules]
    chain = dict.fromkeys(rows[0], 0)
    chain |= {"rule": CHAINS, "ranks": [], "chains": replay.chains(common or full)}
    return [*rows, chain]


def _by_length(recording: Recording, rules: Sequence[Growth], lengths: Sequence[int]) -> list[dict[str, object]]:
    rows = []
    for rule in rules:
        for length, turns in replay.along(recording, rule, lengths).items():
            counts = {"rule": label(rule), "length": length, **_sums(turns)}
            rows.append(counts | {"everywhere": 0, "ranks": [], "chains": []})
    return rows


def _row(recording: Recording, rule: Growth) -> dict[str, object]:
    places = range(len(recording.text))
    turns = [replay.turn_at(recording, at, rule) for at in places]
    run = replay.walk(len(recording.text), turns.__getitem__)
    ranks = _ranks(recording, rule, run)
    everywhere = sum(turn.accepted for turn in turns)
    return {"rule": label(rule), **_sums(run), "everywhere": everywhere, "ranks": ranks, "chains": []}


def _ranks(recording: Recording, rule: Growth, run: Sequence[Turn]) -> list[int]:
    """How many verified nodes of a run were the first, second, … of their siblings."""
    ranks = [0] * RANKS
    for turn in run:
        tree = recording.trees[turn.start]
        nodes, _ = regrow(tree, recording.scores[turn.start], rule, recording.depth_left(turn.start))
        for node in nodes[1:]:
            siblings = tree.children[tree.parent_list[node]]
            ranks[min(siblings.index(node), RANKS - 1)] += 1
    return ranks


def _sums(run: Sequence[Turn]) -> dict[str, int]:
    """steps, nodes, forwards and fed of a replayed run."""
    return {
        "steps": len(run),
        "nodes": sum(turn.nodes - 1 for turn in run),
        "forwards": sum(len(turn.forwards) for turn in run),
        "fed": sum(sum(turn.forwards) for turn in run),
    }
