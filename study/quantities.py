"""What claims and figures compare: of each recording a table with one row a prompt and method (and repetition).

``quantities`` makes the table; ``replayed``, ``chains_of`` and ``verified`` are the names that methods have in the
tables of replays and of verifiers, and nothing reads such a name back.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from specnb.growth import Growth
from specnb.models import files
from study import experiments, methods, paper, prices, replay
from study.experiments import Experiment
from study.measure.race import PHASES
from study.measure.replays import CHAINS, RANKS


@dataclass(frozen=True)
class Heads:
    """Counts of trained heads, text by text, which training wrote into data/results (``python -m training``)."""

    name: str = "heads"

    @property
    def file(self) -> Path:
        """Where the counts are; the facts about them are in a JSON file beside it."""
        return files.DATA / "results" / "heads_by_prompt.csv"

    @property
    def table(self) -> pd.DataFrame:
        """One row a head and prompt, tuning prompts included."""
        return pd.read_csv(files.in_checkout(self.file))

    @property
    def hashes(self) -> dict[str, str]:
        """Of the heads that were counted, by name; none if there is no such file."""
        facts = self.file.with_suffix(".json")
        if not facts.exists():
            return {}
        return json.loads(facts.read_text(encoding="utf-8"))["head_sha256"]

    def missing(self, names: Sequence[str]) -> list[str]:
        """Which of these heads were not counted."""
        counted = self.hashes
        return sorted(set(names) - counted.keys())

    def stale(self, names: Sequence[str]) -> str:
        """In words, which of these heads are others now than those that were counted."""
        counted = self.hashes
        replaced = experiments.replaced({name: counted[name] for name in names})
        return experiments.made_with_other(replaced)


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
    name = f"{_softened(head, softened)} by {rule}"
    if tokens is None:
        return name
    return f"{name}, {tokens} tokens"


def _softened(head: str, by: float) -> str:
    if by == 1.0:
        return head
    return f"{head} softened {by}"


def _verified(head: str, shape: str, verifier: str, temperature: float) -> str:
    """The same, of a shape as recordings spell it."""
    return f"{head} on {shape}, {verifier}, T = {float(temperature)}"


# ---- tables -------------------------------------------------------------------------------------------------------


def quantities(recording: Experiment | Heads) -> pd.DataFrame:
    """A recording's rows with what is compared, of an experiment or of HEADS; those of other cells as recorded.

    Its attrs say under "stale" what is stale, see ``experiments.recorded``. The columns that are added are these.

    Races:
        tau: tokens a step. speed: tokens a second; "log speed": its logarithm.
        hits: share of steps with a candidate. length: tokens of such steps, bonus included.
        auxiliary, drafted, forwards: auxiliary nodes, other nodes, and draft forwards, a step.
        depth: of the tree. acceptance: tokens over drafted nodes.
        "draft ms", "target ms", "verify ms", "commit ms": of a step but the first.
        outside: share of these steps' seconds that is not the target's. rouge: see there.
    Replays, whose methods are named by ``replayed``:
        tau, drafted, forwards, acceptance: as of races. fed: nodes fed to the draft, a step.
        everywhere: accepted tokens at every place of the text.
        first: share of nodes that are first children.
        share1 to share5: nodes by rank among their siblings, in per cent, the last with all lower ones.
        "correlation of nodes and tau": each prompt's share of it.
        ece, "ece of paths": of the rows of ``chains_of``, see ``errors``.
    Verifiers, whose methods are named by ``verified``:
        tau: as of races. lift: what traversal adds to token-level's tau, in per cent.
    Heads:
        tau: as of races, of greedy chains of five.
        depth1 to depth5: accuracy at each depth, given the text's own tokens above.
        rank1 to rank5: accuracy behind the draft's own first to fifth choice. over1 to over5: its confidence less that.
        lower: mean of rank2 to rank5.
    """
    if isinstance(recording, Heads):
        table = recording.table
        return of_heads(table[table["set"] != "tuning"])
    table = experiments.recorded(recording)
    stale = table.attrs.get("stale", "")
    good = table[table["status"] == "ok"]
    compared = _of_cell(recording, good)
    compared.attrs["stale"] = stale
    return compared


def complete(recording: Experiment | Heads) -> pd.DataFrame | None:
    """A recording's ``quantities``, or None until all of it is there: every block, none of which failed in part.

    Whatever heads it was made with: it says so itself where it is stale. Of HEADS those that were counted are there.
    """
    if isinstance(recording, Heads):
        is_complete = bool(recording.hashes)
    else:
        blocks = recording.recorded(experiments.RESULTS / f"{recording.name}.jsonl")
        whole = [block for block in blocks if not block.failed]
        is_complete = len(whole) == len(recording.blocks())
    if not is_complete:
        return None
    return quantities(recording)


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
    columns = {"method": table["head"], "tau": table["tokens"] / table["steps"]}
    for depth in range(1, 6):
        columns[f"depth{depth}"] = table[f"hits{depth}"] / table[f"seen{depth}"]
    for rank in range(1, 6):
        right = table[f"rank{rank}"]
        columns[f"rank{rank}"] = right / table["roots"]
        columns[f"over{rank}"] = (table[f"sure{rank}"] - right) / table["roots"]
    lower_ranks = [columns[f"rank{rank}"] for rank in range(2, 6)]
    columns["lower"] = sum(lower_ranks) / len(lower_ranks)
    return table.assign(**columns)


def of_race(table: pd.DataFrame) -> pd.DataFrame:
    """What is compared of races, one row a run."""
    steps = table["steps"]
    tokens = table["tokens"]
    drafted = table["nodes"] - table["auxiliary"]
    later_seconds = table[list(PHASES)].sum(axis=1)  # of all steps but the first
    forwards = [prices.count(sizes) for sizes in table["frontiers"]]
    speed = tokens / table["seconds"]
    columns = {
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
        "outside": 1 - table["target"] / later_seconds,
        "rouge": rouge(table),
    }
    for phase in PHASES:
        columns[f"{phase} ms"] = 1000 * table[phase] / (steps - 1)
    return table.assign(**columns)


def rouge(table: pd.DataFrame) -> list[float]:
    """ROUGE-1 F of each text's tokens against plain decoding of the same prompt with other seeds: their mean.

    nan where no tokens were kept.
    """
    if not any(len(ids) > 0 for ids in table["ids"]):
        return [float("nan")] * len(table)
    counts = [Counter(ids) for ids in table["ids"]]
    is_plain = table["method"] == "generate"
    means = []
    for row, own in zip(table.itertuples(), counts, strict=True):
        is_same_prompt = table["prompt"] == row.prompt
        is_other_seed = table["repetition"] != row.repetition
        references = np.flatnonzero(is_plain & is_same_prompt & is_other_seed)
        scores = [rouge_1(own, counts[place]) for place in references]
        means.append(np.mean(scores))
    return means


def rouge_1(text: Counter, reference: Counter) -> float:
    """ROUGE-1 F of how often tokens occur in a text and in a reference: twice what they share over both lengths.

    >>> rouge_1(Counter("abb"), Counter("bbbc"))  # two b's are shared: 2 · 2 / (3 + 4)
    0.5714285714285714
    """
    shared = text & reference
    return 2 * shared.total() / (text.total() + reference.total())


def of_rules(table: pd.DataFrame, by_length: bool) -> pd.DataFrame:
    """What is compared of replays, one row a rule and prompt, and a length where each has several."""
    table = table.assign(method=_names(table, by_length))
    steps = table["steps"].replace(0, np.nan)  # the row of the likeliest chains has none
    nodes = table["nodes"].replace(0, np.nan)
    columns = {
        "tau": table["length"] / steps,
        "drafted": table["nodes"] / steps,
        "forwards": table["forwards"] / steps,
        "fed": table["fed"] / steps,
        "auxiliary": 0,
        "acceptance": table["length"] / nodes,
        "everywhere": table["everywhere"] / table["length"],
        **_shares_by_rank(table["ranks"]),
    }
    table = table.assign(**columns)
    distances = table.groupby("method")[["drafted", "tau"]].transform(_standardised)
    table["correlation of nodes and tau"] = distances["drafted"] * distances["tau"]
    has_chains = table["chains"].map(len) > 0
    if not has_chains.any():
        return table
    parts = [errors(chained) for _, chained in table[has_chains].groupby("method")]
    return table.join(pd.concat(parts))


def _names(table: pd.DataFrame, by_length: bool) -> list[str]:
    """The methods of replays, row by row."""
    lengths = table["length"] if by_length else [None] * len(table)
    softened = table["softened"] if "softened" in table else [1.0] * len(table)
    names = []
    for head, rule, tokens, by in zip(table["head"], table["rule"], lengths, softened, strict=True):
        names.append(_replayed(head, rule, tokens, by))
    return names


def _shares_by_rank(ranks: pd.Series) -> dict[str, pd.Series]:
    """first, the share of nodes that are first children; share1 to share5, per cent, the last with all lower ranks.

    ranks: in each row the number of nodes of each rank among their siblings; empty for the likeliest chains. Example:
    of [6, 2, 1, 0, 0, 1, 0, 0, 0, 0] first is .6, share1 is 60 and share5 is 10.
    """
    counts = pd.DataFrame(list(ranks), ranks.index).reindex(columns=range(RANKS))  # (rows, RANKS)
    shares = counts.div(counts.sum(axis=1), axis=0)
    shares[4] = shares[range(4, RANKS)].sum(axis=1, min_count=1)
    columns = {"first": shares[0]}
    for rank in range(1, 6):
        columns[f"share{rank}"] = 100 * shares[rank - 1]
    return columns


def _standardised(numbers: pd.Series) -> pd.Series:
    """Distances from the mean, in standard deviations: products of two of these average to a correlation."""
    return (numbers - numbers.mean()) / numbers.std(ddof=0)


def errors(chained: pd.DataFrame) -> pd.DataFrame:
    """Each prompt's share of a head's expected calibration error: their mean over prompts is ``heads.ece``.

    So resampling prompts adds nothing to the bias upwards that absolute gaps have. ece: of tokens whose predecessors
    were accepted; "ece of paths": of the path's probability at all nodes that PCT would draft at EDD's price with 7B.
    """
    chains_by_prompt = dict(zip(chained["prompt"], chained["chains"], strict=True))
    chains = replay.chain_table(chains_by_prompt)
    path_of_parent = chains.groupby(["prompt", "place"])["path"].shift(fill_value=1.0)
    alive = chains[chains["alive"]]
    drafted = chains[path_of_parent >= paper.EDD_PRICE_7B]
    columns = {
        "ece": _shares_of_error(chained["prompt"], alive, alive["confidence"]),
        "ece of paths": _shares_of_error(chained["prompt"], drafted, drafted["path"]),
    }
    return pd.DataFrame(columns)


def _shares_of_error(prompts: pd.Series, tokens: pd.DataFrame, believed: pd.Series) -> pd.Series:
    """Each prompt's share of the expected calibration error (ECE) over ten bins of equal width.

    The ECE adds up, bin by bin, the absolute value of a sum over tokens: of hit (1 or 0) less what was believed. A
    token's share is its term, with the sign that makes its bin's sum positive, over the number of tokens. A prompt's
    is that of its tokens, times the number of prompts, so that the mean over prompts is the ECE.

    prompts: of each row that gets its prompt's share. tokens: the columns prompt and hit. believed: the probability of
    each token.

    Example: prompt a has a hit that was believed to .85 and a miss believed to .25, prompt b two such misses. The bin
    of .8 to .9 sums to .15 - .85 = -.7, that of .2 to .3 to -.5: both signs are turned. a has -.15 + .25 = .1, b has
    1.1, and the ECE is 1.2 / 4 = .3. The shares are .1 · 2 / 4 = .05 and .55; their mean is .3.
    """
    gap = tokens["hit"] - believed
    bins = (10 * believed).astype(int).clip(upper=9)
    signs = np.sign(gap.groupby(bins).transform("sum"))
    by_prompt = (gap * signs).groupby(tokens["prompt"]).sum()
    shares = by_prompt * len(by_prompt) / len(tokens)
    return prompts.map(shares)


def of_verifiers(table: pd.DataFrame) -> pd.DataFrame:
    """What is compared of two verifiers on the same trees, one row a verifier, head, shape and prompt."""
    key = ["prompt", "head", "shape", "temperature"]
    by_verifier = table.pivot_table(index=key, columns="verifier", values="tau")
    lift = 100 * (by_verifier["traversal"] / by_verifier["token-level"] - 1)
    names = []
    for head, shape, verifier, heat in zip(
        table["head"], table["shape"], table["verifier"], table["temperature"], strict=True
    ):
        names.append(_verified(head, shape, verifier, heat))
    return table.join(lift.rename("lift"), on=key).assign(method=names)
