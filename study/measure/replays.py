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
    shared = tuple(wide) or tuple(rule for rule in rules if rule != VCT)
    of_shared = None
    of_vct = None
    with ALONE:
        target = Target(ready.target)
        if shared:
            of_shared = replay.record(target, draft, Together(shared, k=k), ids, text)
        if VCT in rules:
            of_vct = replay.record(target, draft, VCT, ids, text)
    if lengths:
        return _by_length(of_shared, rules, lengths)
    rows = []
    for rule in rules:
        recording = of_vct if rule == VCT else of_shared
        rows.append(_row(recording, rule))
    of_chains = of_vct if of_shared is None else of_shared
    chains = dict.fromkeys(rows[0], 0)
    chains |= {"rule": CHAINS, "ranks": [], "chains": replay.chains(of_chains)}
    return [*rows, chains]


def _by_length(recording: Recording, rules: Sequence[Growth], lengths: Sequence[int]) -> list[dict[str, object]]:
    """One row a rule and length, along the first so many tokens of the text."""
    rows = []
    for rule in rules:
        for length, turns in replay.along(recording, rule, lengths).items():
            counts = {"rule": label(rule), "length": length, **_sums(turns)}
            rows.append(counts | {"everywhere": 0, "ranks": [], "chains": []})
    return rows


def _row(recording: Recording, rule: Growth) -> dict[str, object]:
    """A rule's row: what its run along the text counted, and what it would have accepted at every place."""
    turns = [replay.turn_at(recording, place, rule) for place in range(len(recording.text))]
    run = replay.walk(len(turns), lambda place: turns[place])
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
            rank = min(siblings.index(node), RANKS - 1)
            ranks[rank] += 1
    return ranks


def _sums(run: Sequence[Turn]) -> dict[str, int]:
    """Sums over the steps of a replayed run: how many there are, their nodes, draft forwards, and nodes fed to these.

    Example: two steps with trees of 3 and 4 nodes and the root, drafted by forwards over 1 and 2 nodes, and over 1
    and 3: {"steps": 2, "nodes": 7, "forwards": 4, "fed": 7}.
    """
    return {
        "steps": len(run),
        "nodes": sum(turn.nodes - 1 for turn in run),
        "forwards": sum(len(turn.forwards) for turn in run),
        "fed": sum(sum(turn.forwards) for turn in run),
    }
