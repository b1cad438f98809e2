"""What one cell of a replay sweep measures: the growth rules of EDD's and of SALF's comparisons along one recording."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile

import pandas as pd
from torch import Tensor

from specnb import adaptive, growth, measures, replay, search
from specnb.growth import Growth
from specnb.replay import Recording, Turn
from specnb.tree import TokenTree


def edd_rules(cost: float, node: float) -> dict[str, Growth]:
    """EDD's rules by name, its ablations and widths, and break-even by layer; prices are shares of a target call."""
    widths = {f"pct width {k}": growth.Pct(cost, k) for k in (1, 2, 3, 4, 6, 8, 10)}
    return {
        "chain 5": growth.chain(5),
        "chain 10": growth.chain(10),
        "vct": growth.kary(3, 5),
        "cape": growth.Cape(),
        "eagle2": growth.Eagle2(50, 6, 10),
        "pct": growth.Pct(cost),
        "pct w/o gain": growth.Pct(cost, alone=True, budget=100, leaf=0.01),
        "pct w/o leaves": growth.Pct(cost, leaf=0),
        "layer gain": growth.LayerGain(cost, node),
        **widths,
    }


def trees(
    draft_name: str, prompt: str, length: int, cost: float, node: float, vanilla: bool = True
) -> dict[str, object]:
    """Every rule of EDD's comparison, replayed along the plain float32 text of one prompt from one recording.

    Per rule: steps, nodes of the verified trees, draft forwards and nodes fed to the draft, in all steps. chains:
    what became of the likeliest chain at every place, as ``chain_table`` reads it. The vanilla tree, whose 363 nodes
    nobody else wants, has a recording of its own, or none (vanilla=False: its counts are nan).
    """
    rules = edd_rules(cost, node)
    widest = [rules[name] for name in ("chain 10", "cape", "eagle2", "pct width 10", "pct w/o gain", "layer gain")]
    recording = measures.recorded(draft_name, prompt, length, replay.Together(tuple(widest), k=10))
    full = measures.recorded(draft_name, prompt, length, rules["vct"]) if vanilla else None
    vct = {"vct": rules.pop("vct")}
    counts = _counts(full, vct) if full else {f"vct: {what}": float("nan") for what in COUNTS}
    return {"chains": _pack(replay.outcomes(recording)), **counts, **_counts(recording, rules)}


COUNTS = ("steps", "nodes", "forwards", "fed")
TREES_RESULTS = ("chains", *(f"{name}: {what}" for name in edd_rules(1, 1) for what in COUNTS))


def _counts(recording: Recording, rules: dict[str, Growth]) -> dict[str, int]:
    """Of every rule, replayed: steps, nodes of the verified trees, draft forwards and nodes fed to the draft."""
    found = {}
    for name, rule in rules.items():
        found |= _count(name, replay.replay(recording, rule))
    return found


def _count(name: str, turns: list[Turn]) -> dict[str, int]:
    drafted, forwards = sum(turn.nodes - 1 for turn in turns), [turn.forwards for turn in turns]
    counts = (len(turns), drafted, sum(map(len, forwards)), sum(map(sum, forwards)))
    return {f"{name}: {what}": value for what, value in zip(COUNTS, counts, strict=True)}


def salf_rules() -> dict[str, Growth]:
    """SALF's rules by name: EAGLE-2's beam (depth 7 in its code is 8 here), searches, Salf by threshold and size."""
    beams = {f"beam {depth}": growth.Eagle2(59, depth, 10) for depth in range(3, 9)}
    salf = {f"salf {th:.2f}": search.Salf(60, 10, th, 10) for th in THRESHOLDS}
    filled = {f"filled {th:.2f}": search.Salf(60, 10, th, 10, fill=True) for th in THRESHOLDS}
    small = {f"salf {n},{b} {th:.1f}": search.Salf(n, b, th, 10) for n, b in SIZES for th in THRESHOLDS[::4]}
    others = {"specexec": search.SpecExec(59, 10, 10), "opt-tree": search.OptTree(59, 0.5, 10, 10)}
    return beams | salf | filled | small | others


THRESHOLDS = tuple(i / 20 for i in range(20))
SIZES = ((30, 10), (20, 5), (12, 10), (12, 3), (6, 3), (4, 1))  # of trees (root included) and beams
PRICES = tuple((call, node) for call in (0.02, 0.05, 0.1, 0.2, 0.4) for node in (0.0, 0.024))
ADAPTIVE = {f"adaptive {call},{node}": (call, node) for call, node in PRICES}
RANKED = ("beam 8", "salf 0.00", "salf 0.60")
SEARCHES_RESULTS = (
    "gains",
    *(f"{name}: ranks" for name in RANKED),
    *(f"{name}: {what}" for name in (*salf_rules(), *ADAPTIVE) for what in COUNTS),
    *(f"{name}: everywhere" for name in salf_rules()),
)


def price(call: float, node: float) -> Callable[[Turn], float]:
    """Seconds of a step in target calls for one token: so much a draft forward, so much a verified node."""
    return lambda turn: 1 + call * len(turn.forwards) + node * (turn.nodes - 1)


def searches(draft_name: str, prompt: str, length: int) -> dict[str, object]:
    """Every search of SALF's comparison, replayed along the plain float32 text of one prompt from one recording.

    Every node gets at most ten children, EAGLE-2's k. gains: the S_i of the search without a stop, at every place.
    everywhere: tokens accepted from every place of the text, where threshold and rule alone differ (a run's steps
    begin at other places too). ranks: of the verified nodes among their siblings. Runs with a threshold learnt on
    the way begin at SALF's own .6 and pay by ``price``.
    """
    rules = salf_rules()
    widest = [rules[name] for name in ("beam 8", "specexec", "opt-tree", "salf 0.00")]
    recording = measures.recorded(draft_name, prompt, length, replay.Together(tuple(widest), k=10))
    places = zip(recording.trees, recording.scores, strict=True)
    found = {"gains": json.dumps([_gains(*place, rules["salf 0.00"]) for place in places])}
    for name, rule in rules.items():
        turns = [replay.turn(recording, at, rule) for at in range(length)]
        run = replay.walk(length, turns.__getitem__)
        found |= _count(name, run) | {f"{name}: everywhere": sum(turn.accepted for turn in turns)}
        if name in RANKED:
            found[f"{name}: ranks"] = json.dumps(_ranks(recording, rule, run))
    for name, prices in ADAPTIVE.items():
        found |= _count(name, adaptive.replay(recording, rules["salf 0.60"], price(*prices)))
    return found


def _gains(tree: TokenTree, scores: Tensor, rule: Growth) -> list[float]:
    return [round(float(scores[list(stage.next)].sum()), 9) for stage in replay.stages(tree, scores, rule)[:-1]]


def _ranks(recording: Recording, rule: Growth, run: list[Turn]) -> list[int]:
    """How many verified nodes are the first, second, … of their siblings."""
    found = [0] * 10
    for turn in run:
        tree, left = recording.trees[turn.start], len(recording.text) - turn.start - 1
        for node in replay.regrow(tree, recording.scores[turn.start], rule, left)[0][1:]:
            found[tree.children[tree.parent_list[node]].index(node)] += 1
    return found


def _pack(outcomes: pd.DataFrame) -> str:
    """Per place the number of accepted tokens and every token's confidence in hundredths of a per cent, as JSON."""
    places = outcomes.groupby("place")
    return json.dumps([[int(p["hit"].sum()), *(10_000 * p["confidence"]).round().astype(int)] for _, p in places])


def chain_table(recorded: pd.DataFrame) -> pd.DataFrame:
    """``replay.outcomes`` of recorded cells of ``trees``, with their draft and prompt; confidences to four digits."""
    rows = []
    for cell in recorded.to_dict("records"):
        for place, (accepted, *confidences) in enumerate(json.loads(cell["chains"])):
            path = 1.0
            for depth, confidence in enumerate(confidences, start=1):
                path *= confidence / 10_000
                fate = depth <= accepted + 1, depth <= accepted  # alive, hit
                rows.append((cell["draft_name"], cell["prompt"], place, depth, confidence / 10_000, path, *fate))
    return pd.DataFrame(rows, columns=["draft", "prompt", "place", "depth", "confidence", "path", "alive", "hit"])


def along(recording: Recording, rule: Growth, lengths: Sequence[int]) -> dict[int, list[Turn]]:
    """A rule's steps along the first n tokens of a recorded text, for each of several n: ``replay`` of each cut.

    What comes long before a cut is the same for all: only there trees go less deep.
    """
    whole, found = replay.replay(recording.cut(max(lengths)), rule), {}
    for n in lengths:
        part = recording.cut(n)
        shared = [*takewhile(lambda turn, n=n: turn.start + max(recording.trees[turn.start].depth_list) < n, whole)]
        done = sum(turn.accepted + 1 for turn in shared)
        found[n] = shared + replay.walk(n, partial(replay.turn, part, rule=rule), at=done)
    return found


def tidy(table: pd.DataFrame, plain: pd.DataFrame) -> pd.DataFrame:
    """A recorded grid as one row per setting and length: token/s, speed-up over plain, path, nodes, acceptance.

    path: tokens a step commits; nodes: drafted a step; acceptance: DynaTree's own, committed tokens per drafted node.
    Plain decoding's token/s is the median over its repetitions at that length, half of them from before the grid and
    half from after it: a machine that changed in between would show there. Cells that failed are left out.
    """
    per_length = plain[plain["status"] == "ok"].groupby(["length", "prompt"])[["tokens", "seconds"]].median()
    baseline, rows = per_length["tokens"] / per_length["seconds"], []
    for row in table[table["status"] == "ok"].to_dict("records"):
        for n in measures.LENGTHS:
            tokens, steps, nodes = (row[f"{name} {n}"] for name in ("tokens", "steps", "nodes"))
            speed, before = tokens / row[f"seconds {n}"], baseline[n, row["prompt"]]
            counts = {"path": tokens / steps, "nodes": nodes / steps, "acceptance": tokens / nodes}
            setting = {name: row[name] for name in ("prompt", "depth", "branch", "threshold")}
            rows.append(
                {**setting, "length": n, "token/s": speed, "plain": before, "speed-up": speed / before, **counts}
            )
    return pd.DataFrame(rows)
