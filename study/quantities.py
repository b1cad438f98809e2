"""Quantities: what claims and figures compare, computed from recordings.

``quantities`` returns a table with one row per prompt and method (and repetition) of a recording, and columns such as
tau. ``replayed``, ``chains_of`` and ``verified`` make the names of methods in the tables of replays and of verifiers;
no code takes such a name apart.
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
    """Counts of how often trained heads were right, prompt by prompt. ``python -m training`` writes the file."""

    name: str = "heads"

    @property
    def file(self) -> Path:
        """The path of the counts. A JSON file beside it has facts about them."""
        return files.DATA / "results" / "heads_by_prompt.csv"

    @property
    def table(self) -> pd.DataFrame:
        """The counts, one row per head and prompt, tuning prompts included."""
        return pd.read_csv(files.in_checkout(self.file))

    @property
    def hashes(self) -> dict[str, str]:
        """Hashes by name of the heads that were counted; empty if there is no file with facts."""
        facts = self.file.with_suffix(".json")
        if not facts.exists():
            return {}
        return json.loads(facts.read_text(encoding="utf-8"))["head_sha256"]

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those of these heads that were not counted, sorted."""
        counted = self.hashes
        return sorted(set(names) - counted.keys())

    def stale(self, names: Sequence[str]) -> str:
        """Why the counts of these heads are stale, in words; "" if no head was replaced since."""
        counted = self.hashes
        replaced = experiments.replaced_heads({name: counted[name] for name in names})
        return experiments.stale_by_heads(replaced)


HEADS = Heads()


# ---- names of methods in tables -----------------------------------------------------------------------------------


def replayed(head: str, rule: Growth, tokens: int | None = None, softened: float = 1.0) -> str:
    """The name of a growth rule on a head's trees, in tables of replays.

    tokens:   if only the first part of the text was replayed, its length.
    softened: the number by which the head's logits were divided.

    >>> from specnb.growth import DynaTree, chain
    >>> replayed("vdm", DynaTree(depth=4)), replayed("vdm", chain(6), 500)
    ('vdm by DynaTree(depth=4)', 'vdm by chain(6), 500 tokens')
    """
    return _replayed(head, methods.label(rule), tokens, softened)


def chains_of(head: str, softened: float = 1.0) -> str:
    """The name of the row for a head's likeliest chains, in tables of replays; it belongs to no rule."""
    return f"{_softened(head, softened)}, likeliest chains"


def verified(head: str, shape: Growth, verifier: str, temperature: float = 1.0) -> str:
    """The name of a verifier, "token-level" or "traversal", on a head's trees of a shape, in tables of verifiers.

    >>> from specnb.growth import chain
    >>> verified("hass", chain(5), "traversal")
    'hass on chain(5), traversal, T = 1.0'
    """
    return _verified(head, methods.label(shape), verifier, temperature)


def _replayed(head: str, rule: str, tokens: int | None, softened: float) -> str:
    """The name that ``replayed`` makes, of a rule as recordings spell it."""
    if rule == CHAINS:
        return chains_of(head, softened)
    name = f"{_softened(head, softened)} by {rule}"
    if tokens is None:
        return name
    return f"{name}, {tokens} tokens"


def _softened(head: str, by: float) -> str:
    """A head's name, with the number by which its logits were divided unless that is 1."""
    if by == 1.0:
        return head
    return f"{head} softened {by}"


def _verified(head: str, shape: str, verifier: str, temperature: float) -> str:
    """The name that ``verified`` makes, of a shape as recordings spell it."""
    return f"{head} on {shape}, {verifier}, T = {float(temperature)}"


# ---- tables -------------------------------------------------------------------------------------------------------


def quantities(recording: Experiment | Heads) -> pd.DataFrame:
    """A recording's rows with columns added. attrs["stale"] says why the recording is stale; "" if it is not.

    recording: an experiment, or HEADS. Rows that failed are left out. "Per step" means divided by the number of steps.
    The columns added depend on what was measured.

    Races:
        tau: tokens per step.
        speed, "log speed": tokens per second, and its logarithm.
        hits: the share of steps with a candidate, a node that may be accepted.
        length: tokens of a step with a candidate, the bonus token included.
        auxiliary, drafted, forwards: auxiliary nodes, other nodes, and draft forwards, per step.
        depth: of the tree, per step.
        acceptance: tokens over drafted nodes.
        "draft ms", "target ms", "verify ms", "commit ms": milliseconds per step, without the first step.
        outside: the share of these steps' seconds that is not the target's.
        rouge: see ``rouge``.
    Replays, whose methods are named by ``replayed``:
        tau, drafted, forwards, acceptance: as for races.
        fed: nodes fed to the draft, per step.
        everywhere: accepted tokens, averaged over all positions of the text.
        first: the share of nodes that are first children.
        share1 to share5: nodes by rank among their siblings, in per cent; the last one includes all lower ranks.
        "correlation of nodes and tau": each prompt's share of this correlation.
        ece, "ece of paths": for the rows of ``chains_of``, see ``errors``.
    Verifiers, whose methods are named by ``verified``:
        tau: as for races.
        lift: by how many per cent traversal's tau is larger than token-level's.
    Heads:
        tau: as for races, of greedy chains of five tokens.
        depth1 to depth5: accuracy at each depth, given that the tokens before it are those of the text.
        rank1 to rank5: accuracy after the draft's own first to fifth choice.
        over1 to over5: the draft's confidence there, less this accuracy.
        lower: the mean of rank2 to rank5.
    """
    if isinstance(recording, Heads):
        table = recording.table
        return of_heads(table[table["set"] != "tuning"])
    table = experiments.recorded(recording)
    stale = table.attrs.get("stale", "")
    good = table[table["status"] == "ok"]
    with_quantities = _of_cell(recording, good)
    with_quantities.attrs["stale"] = stale
    return with_quantities


def complete(recording: Experiment | Heads) -> pd.DataFrame | None:
    """A recording's ``quantities``, or None until every block is recorded and no part of it failed.

    A stale recording counts as complete; its attrs say that it is stale. HEADS is complete if any heads were counted.
    """
    if isinstance(recording, Heads):
        is_complete = bool(recording.hashes)
    else:
        blocks = recording.blocks_in(experiments.RESULTS / f"{recording.name}.jsonl")
        good_blocks = [block for block in blocks if not block.failed]
        is_complete = len(good_blocks) == len(recording.blocks())
    if not is_complete:
        return None
    return quantities(recording)


def _of_cell(experiment: Experiment, table: pd.DataFrame) -> pd.DataFrame:
    """Rows that did not fail, with the columns that belong to their cell."""
    cell = experiment.cell.name
    if cell == "race":
        return of_race(table)
    if cell == "rules":
        return of_rules(table, by_length="lengths" in experiment.settings)
    if cell == "verifiers":
        return of_verifiers(table)
    return table


def of_heads(table: pd.DataFrame) -> pd.DataFrame:
    """Counts of heads with the columns of ``quantities`` added, one row per head and prompt."""
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
    """Races with the columns of ``quantities`` added, one row per run."""
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
    """(rows,) how like plain decoding's texts each text is.

    It is the mean of ROUGE-1 F against the texts of plain decoding on the same prompt with other seeds. nan if the race
    kept no tokens.
    """
    if not any(len(ids) > 0 for ids in table["ids"]):
        return [float("nan")] * len(table)
    counts = [Counter(ids) for ids in table["ids"]]
    is_plain = table["method"] == "generate"
    means = []
    for row, row_counts in zip(table.itertuples(), counts, strict=True):
        is_same_prompt = table["prompt"] == row.prompt
        is_other_seed = table["repetition"] != row.repetition
        references = np.flatnonzero(is_plain & is_same_prompt & is_other_seed)
        scores = [rouge_1(row_counts, counts[index]) for index in references]
        means.append(np.mean(scores))
    return means


def rouge_1(text: Counter, reference: Counter) -> float:
    """ROUGE-1 F of a text and a reference, given how often each token occurs: 2 · shared / (sum of both lengths).

    >>> rouge_1(Counter("abb"), Counter("bbbc"))  # two b's are shared: 2 · 2 / (3 + 4)
    0.5714285714285714
    """
    shared = text & reference
    return 2 * shared.total() / (text.total() + reference.total())


def of_rules(table: pd.DataFrame, by_length: bool) -> pd.DataFrame:
    """Replays with the columns of ``quantities`` added, one row per rule and prompt (and length, if by_length)."""
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
    """The names of the methods of replays, one per row."""
    lengths = table["length"] if by_length else [None] * len(table)
    softened = table["softened"] if "softened" in table else [1.0] * len(table)
    names = []
    for head, rule, tokens, by in zip(table["head"], table["rule"], lengths, softened, strict=True):
        names.append(_replayed(head, rule, tokens, by))
    return names


def _shares_by_rank(ranks: pd.Series) -> dict[str, pd.Series]:
    """The columns first and share1 to share5.

    Example: of [6, 2, 1, 0, 0, 1, 0, 0, 0, 0] first is .6, share1 is 60 and share5, with all lower ranks, is 10.

    ranks: for each row the number of nodes of each rank among their siblings; empty for the likeliest chains.
    """
    counts = pd.DataFrame(list(ranks), ranks.index).reindex(columns=range(RANKS))  # (rows, RANKS)
    shares = counts.div(counts.sum(axis=1), axis=0)
    shares[4] = shares[range(4, RANKS)].sum(axis=1, min_count=1)
    columns = {"first": shares[0]}
    for rank in range(1, 6):
        columns[f"share{rank}"] = 100 * shares[rank - 1]
    return columns


def _standardised(numbers: pd.Series) -> pd.Series:
    """Distances from the mean in standard deviations. The mean product of two such columns is their correlation."""
    return (numbers - numbers.mean()) / numbers.std(ddof=0)


def errors(chained: pd.DataFrame) -> pd.DataFrame:
    """Each prompt's share of a head's expected calibration error. The mean over prompts is ``heads.ece``.

    The error has absolute values in it, which biases it upwards. Because shares are averaged, resampling prompts does
    not add to this bias.

    chained: rows of the likeliest chains, one per prompt. The columns of the result are
    ece:            for tokens whose predecessors were all accepted.
    "ece of paths": for the path's probability, at all nodes that PCT would draft at EDD's price with 7B.
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
    """Two verifiers on the same trees, with lift added; one row per verifier, head, shape and prompt."""
    key = ["prompt", "head", "shape", "temperature"]
    by_verifier = table.pivot_table(index=key, columns="verifier", values="tau")
    lift = 100 * (by_verifier["traversal"] / by_verifier["token-level"] - 1)
    names = []
    for head, shape, verifier, heat in zip(
        table["head"], table["shape"], table["verifier"], table["temperature"], strict=True
    ):
        names.append(_verified(head, shape, verifier, heat))
    return table.join(lift.rename("lift"), on=key).assign(method=names)
