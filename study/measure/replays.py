"""Replays: what many growth rules would have done along one text, computed from one run of the draft model.

The target's greedy text does not depend on the draft. So the draft's trees are recorded once, as large as any of the
rules could want them, and every rule is replayed on them (``study.replay``).
"""

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
VCT = kary(3, 5)  # EDD's full tree of 363 nodes, far more than other rules draft: its trees are recorded apart
CHAINS = "chain"  # in the column rule: the row of the likeliest chains, which belongs to no rule
RANKS = 10  # ranks among siblings that are counted; the last one includes all lower ranks


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
    """Replay growth rules along the plain float32 text of one prompt.

    prompt:   the id of a prompt.
    head:     the draft: a trained head, or "pair" for the pair's own draft model.
    rules:    the growth rules.
    length:   new tokens of the text.
    k:        children recorded per node, at least.
    pair:     which target is loaded.
    wide:     rules whose trees contain those of all others: only their trees are recorded. All rules if empty.
    lengths:  count along the first n tokens, for each n of these. Then there is one row per rule and length, and the
              columns everywhere, ranks and chains stay empty.
    softened: the number by which the head's logits are divided.

    Returns one row per rule, with these columns, summed over all steps:
    rule:       the rule's label.
    steps:      of the replayed run.
    nodes:      of the verified trees, the roots not counted.
    forwards:   of the draft model.
    fed:        nodes that these forwards expanded.
    everywhere: tokens that would be accepted from every position of the text, not only from those where steps begin.
    ranks:      how many verified nodes were the first, second, … of their siblings.
    chains:     empty, but for the last row, whose rule is "chain": what became of the likeliest chain at every
                position of the text (``replay.chains``).
    """
    ready = loaded(pair, "float32")
    ids = ready.encode(prompts.text(prompt))
    draft = draft_model(head, ready, 0, softened)
    text = generate(ready, ids, length, whole=True)
    recorded_rules = tuple(wide) or tuple(rule for rule in rules if rule != VCT)
    shared_recording = None
    vct_recording = None
    with ALONE:
        target = Target(ready.target)
        if recorded_rules:
            shared_recording = replay.record(target, draft, Together(recorded_rules, k=k), ids, text)
        if VCT in rules:
            vct_recording = replay.record(target, draft, VCT, ids, text)
    if lengths:
        return _by_length(shared_recording, rules, lengths)
    rows = []
    for rule in rules:
        recording = vct_recording if rule == VCT else shared_recording
        rows.append(_row(recording, rule))
    chain_recording = vct_recording if shared_recording is None else shared_recording
    chain_row = dict.fromkeys(rows[0], 0)
    chain_row |= {"rule": CHAINS, "ranks": [], "chains": replay.chains(chain_recording)}
    return [*rows, chain_row]


def _by_length(recording: Recording, rules: Sequence[Growth], lengths: Sequence[int]) -> list[dict[str, object]]:
    """One row per rule and length n, counted along the first n tokens of the text."""
    rows = []
    for rule in rules:
        for length, turns in replay.along(recording, rule, lengths).items():
            counts = {"rule": label(rule), "length": length, **_sums(turns)}
            rows.append(counts | {"everywhere": 0, "ranks": [], "chains": []})
    return rows


def _row(recording: Recording, rule: Growth) -> dict[str, object]:
    """A rule's row: the counts of its run along the text, and what it would have accepted at every position."""
    turns = [replay.turn_at(recording, position, rule) for position in range(len(recording.text))]
    run = replay.walk(len(turns), lambda position: turns[position])
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
    """The columns steps, nodes, forwards and fed of a replayed run.

    Example: two steps. The first tree has 3 nodes besides the root, drafted by forwards over 1 and 2 nodes; the second
    has 4, drafted by forwards over 1 and 3: {"steps": 2, "nodes": 7, "forwards": 4, "fed": 7}.
    """
    return {
        "steps": len(run),
        "nodes": sum(turn.nodes - 1 for turn in run),
        "forwards": sum(len(turn.forwards) for turn in run),
        "fed": sum(sum(turn.forwards) for turn in run),
    }
