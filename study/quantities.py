"""What claims and figures compare: of each recording a table with one row a prompt and method (and repetition).

``quantities`` makes the table; ``replayed``, ``chains_of`` and ``verified`` are the names that methods have in the
tables of replays and of verifiers, and nothing reads such a name back.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specnb.growth import Growth
from specnb.models import files
from study import experiments, methods, prices, replay
from study.experiments import Experiment
from study.measure.race import PHASES
from study.measure.replays import CHAINS, RANKS

PRICE = 0.0369  # of a draft forward in target calls, where EDD's reliability by path is asked


@dataclass(frozen=True)
class Heads:
    """Counts of trained heads, text by text, which training wrote into data/results (``python -m training``)."""

    name: str = "heads"

    @property
    def table(self) -> pd.DataFrame:
        """One row a head and prompt, tuning prompts included."""
        return pd.read_csv(files.in_checkout(files.DATA / "results" / "heads_by_prompt.csv"))

    @property
    def hashes(self) -> dict[str, str]:
        """Of the heads that were counted, by name; none if there is no such file."""
        path = files.DATA / "results" / "heads_by_prompt.json"
        if not path.exists():
            return {}
        return json.loads(path.read_text(encoding="utf-8"))["head_sha256"]

    def missing(self, names: Sequence[str]) -> list[str]:
        """Which of these heads were not counted."""
        known = self.hashes
        return sorted(set(names) - known.keys())

    def stale(self, names: Sequence[str]) -> str:
        """In words, which of these heads are others now than those that were counted."""
        known = self.hashes
        other = experiments.replaced({name: known[name] for name in names})
        return f"made with other heads: {', '.join(sorted(other))}" if other else ""


HEADS = Heads()


# ---- names of methods in tables -----------------------------------------------------------------------------------


def replayed(head: str, rule: Growth, tokens: int | None = None, softened: float = 1.0) -> str:
    """A growth rule with a head's trees, in tables of replays.

    tokens: of the text, where its first so many were replayed. softened: what the head's logits were divided by.

    >>> from specnb.growth import DynaTree, chain
    >>> replayed("vdm", DynaTree(depth=4)), replayed("vdm", chain(6), 500)
    ('vdm by DynaTree(depth=4)', 'vdm by chain(6), 500 tokens')
    """
    return _replayed(head, methods.label(rule), tokens, softened)


def chains_of(head: str, softened: float = 1.0) -> str:
    """A head's likeliest chains, in tables of replays: a row for what became of them, not for a rule."""
    return f"{_softened(head, softened)}, likeliest chains"


def verified(head: str, shape: Growth, verifier: str, temperature: float = 1.0) -> str:
    """A verifier, "token-level" or "traversal", on a head's trees of a shape, in tables of verifiers.

    >>> from specnb.growth import chain
    >>> verified("hass", chain(5), "traversal")
    'hass on chain(5), traversal, T = 1.0'
    """
    return _verified(head, methods.label(shape), verifier, temperature)


def _replayed(head: str, rule: str, tokens: int | None, softened: float) -> str:
    """The same, of a rule as recordings spell it."""
    if rule == CHAINS:
        return chains_of(head, softened)
    along = "" if tokens is None else f", {tokens} tokens"
    return f"{_softened(head, softened)} by {rule}{along}"


def _softened(head: str, by: float) -> str:
    return head if by == 1.0 else f"{head} softened {by}"


def _verified(head: str, shape: str, verifier: str, temperature: float) -> str:
    """The same, of a shape as recordings spell it."""
    return f"{head} on {shape}, {verifier}, T = {float(temperature)}"


# ---- tables -------------------------------------------------------------------------------------------------------


def quantities(recording: "Experiment | Heads") -> pd.DataFrame:
    """A recording's rows with what is compared, of an experiment or of HEADS; those of other cells as recorded.

    Races: tau (tokens a step), speed (tokens a second), "log speed", hits (share of steps with a candidate), length
    (tokens of such steps, bonus included), auxiliary, drafted and forwards (auxiliary nodes, others and draft forwards
    a step), depth (of the tree), acceptance (tokens over drafted nodes), "draft ms", "target ms", "verify ms", "commit
    ms" (a later step), outside (share of such steps' seconds that is not the target's), rouge (see there).
    Replays (methods as ``replayed`` has them): tau, drafted, forwards, acceptance, fed (nodes fed to the draft, a
    step), everywhere (accepted at every place of the text), first (share of nodes that are first children), share1 to
    share5 (nodes by rank among their siblings in per cent, the last with all lower ones), "correlation of nodes and
    tau" (each prompt's share of it); of ``chains_of`` also ece and "ece of paths", see ``errors``.
    Verifiers (methods as ``verified`` has them): tau, and lift, what traversal adds to token-level's in per cent.
    Heads: tau, depth1 to depth5, rank1 to rank5 (accuracy), over1 to over5 (confidence less that), lower (mean
    accuracy over ranks 2 to 5).

    Its attrs say under "stale" what is stale, see ``experiments.recorded``.
    """
    if isinstance(recording, Heads):
        table = recording.table
        return of_heads(table[table["set"] != "tuning"])
    table = experiments.recorded(recording)
    stale = table.attrs.get("stale", "")
    found = _of_cell(recording, table[table["status"] == "ok"])
    found.attrs["stale"] = stale
    return found


def complete(recording: "Experiment | Heads") -> pd.DataFrame | None:
    """A recording's ``quantities``, or None until all of it is there: every block, none of which failed in part.

    Whatever heads it was made with: it says so itself where it is stale. Of HEADS those that were counted are there.
    """
    if isinstance(recording, Heads):
        return quantities(recording) if recording.hashes else None
    blocks = recording.recorded(experiments.RESULTS / f"{recording.name}.jsonl")
    whole = [block for block in blocks if not block.failed]
    return None if len(whole) < len(recording.blocks()) else quantities(recording)


def _of_cell(experiment: Experiment, table: pd.DataFrame) -> pd.DataFrame:
    """The table of the runs that went well, by what was measured."""
    cell = experiment.cell.name
    if cell == "race":
        return of_race(table)
    if cell == "rules":
        return of_rules(table, by_length="lengths" in experiment.settings)
    if cell == "verifiers":
        return of_verifiers(table)
    return table


def of_heads(table: pd.DataFrame) -> pd.DataFrame:
    """What is compared of heads, one row a head and prompt."""
    more = {"method": table["head"], "tau": table["tokens"] / table["steps"]}
    for depth in range(1, 6):
        more[f"depth{depth}"] = table[f"hits{depth}"] / table[f"seen{depth}"]
    for rank in range(1, 6):
        right = table[f"rank{rank}"]
        more[f"rank{rank}"] = right / table["roots"]
        more[f"over{rank}"] = (table[f"sure{rank}"] - right) / table["roots"]
    more["lower"] = sum(more[f"rank{rank}"] for rank in range(2, 6)) / 4
    return table.assign(**more)


def of_race(table: pd.DataFrame) -> pd.DataFrame:
    """What is compared of races, one row a run."""
    steps = table["steps"]
    tokens = table["tokens"]
    drafted = table["nodes"] - table["auxiliary"]
    later = table[list(PHASES)].sum(axis=1)
    forwards = [prices.count(sizes) for sizes in table["frontiers"]]
    speed = tokens / table["seconds"]
    more = {
        "tau": tokens / steps,
        "speed": speed,
        "log speed": np.log(speed),
        "length": 1 + (tokens - steps) / table["hits"],
        "hits": table["hits"] / steps,
        "drafted": drafted / steps,
        "auxiliary": table["auxiliary"] / steps,
        "depth": table["depth"] / steps,
        "forwards": forwards / steps,
        "acceptance": tokens / drafted,
        "outside": 1 - table["target"] / later,
        "rouge": rouge(table),
    }
    for phase in PHASES:
        more[f"{phase} ms"] = 1000 * table[phase] / (steps - 1)
    return table.assign(**more)


def rouge(table: pd.DataFrame) -> list[float]:
    """ROUGE-1 F of each text's tokens against plain decoding of the same prompt with other seeds: their mean.

    nan where no tokens were kept.
    """
    kept = [len(ids) > 0 for ids in table["ids"]]
    if not any(kept):
        return [float("nan")] * len(table)
    bags = [Counter(ids) for ids in table["ids"]]
    plain = table["method"] == "generate"
    found = []
    for row, bag in zip(table.itertuples(), bags, strict=True):
        others = plain & (table["prompt"] == row.prompt) & (table["repetition"] != row.repetition)
        against = [bags[place] for place in np.flatnonzero(others)]
        found.append(np.mean([2 * (bag & other).total() / (bag.total() + other.total()) for other in against]))
    return found


def of_rules(table: pd.DataFrame, by_length: bool) -> pd.DataFrame:
    """What is compared of replays, one row a rule and prompt, and a length where each has several."""
    table = table.assign(method=_names(table, by_length))
    steps = table["steps"].replace(0, np.nan)  # the row of the likeliest chains has none
    more = {
        "tau": table["length"] / steps,
        "drafted": table["nodes"] / steps,
        "forwards": table["forwards"] / steps,
        "fed": table["fed"] / steps,
        "auxiliary": 0,
        "acceptance": table["length"] / table["nodes"].replace(0, np.nan),
        "everywhere": table["everywhere"] / table["length"],
    }
    ranks = pd.DataFrame(list(table["ranks"]), table.index).reindex(columns=range(RANKS))
    shares = ranks.div(ranks.sum(axis=1), axis=0)
    shares[4] = shares[range(4, RANKS)].sum(axis=1, min_count=1)
    more["first"] = shares[0]
    for rank in range(1, 6):
        more[f"share{rank}"] = 100 * shares[rank - 1]
    table = table.assign(**more)
    spread = table.groupby("method")[["drafted", "tau"]].transform(_standardised)
    table["correlation of nodes and tau"] = spread["drafted"] * spread["tau"]
    chained = table[table["chains"].map(len) > 0]
    if chained.empty:
        return table
    return table.join(pd.concat([errors(part) for _, part in chained.groupby("method")]))


def _names(table: pd.DataFrame, by_length: bool) -> list[str]:
    """The methods of replays, row by row."""
    lengths = table["length"] if by_length else [None] * len(table)
    softened = table["softened"] if "softened" in table else [1.0] * len(table)
    rows = zip(table["head"], table["rule"], lengths, softened, strict=True)
    return [_replayed(head, rule, tokens, by) for head, rule, tokens, by in rows]


def _standardised(numbers: pd.Series) -> pd.Series:
    return (numbers - numbers.mean()) / numbers.std(ddof=0)


def errors(chained: pd.DataFrame) -> pd.DataFrame:
    """Each prompt's share of a head's expected calibration error: their mean over prompts is ``heads.ece``.

    So resampling prompts adds nothing to the bias upwards that absolute gaps have. ece: of tokens whose predecessors
    were accepted; "ece of paths": of the path's probability at all nodes that PCT would draft at PRICE.
    """
    chains = replay.chain_table(dict(zip(chained["prompt"], chained["chains"], strict=True)))
    above = chains.groupby(["prompt", "place"])["path"].shift(fill_value=1.0)  # path probability of the parent
    alive = chains[chains["alive"]]
    drafted = chains[above >= PRICE]
    found = {
        "ece": _shares(chained["prompt"], alive, alive["confidence"]),
        "ece of paths": _shares(chained["prompt"], drafted, drafted["path"]),
    }
    return pd.DataFrame(found)


def _shares(prompts: pd.Series, tokens: pd.DataFrame, believed: pd.Series) -> pd.Series:
    """Each prompt's share of the calibration error over ten bins of equal width."""
    gap = tokens["hit"] - believed
    bins = (10 * believed).astype(int).clip(upper=9)
    signs = np.sign(gap.groupby(bins).transform("sum"))
    signed = (gap * signs).groupby(tokens["prompt"]).sum()
    return prompts.map(signed * len(signed) / len(tokens))


def of_verifiers(table: pd.DataFrame) -> pd.DataFrame:
    """What is compared of two verifiers on the same trees, one row a verifier, head, shape and prompt."""
    key = ["prompt", "head", "shape", "temperature"]
    wide = table.pivot_table(index=key, columns="verifier", values="tau")
    lift = 100 * (wide["traversal"] / wide["token-level"] - 1)
    rows = zip(table["head"], table["shape"], table["verifier"], table["temperature"], strict=True)
    named = [_verified(*row) for row in rows]
    return table.join(lift.rename("lift"), on=key).assign(method=named)
