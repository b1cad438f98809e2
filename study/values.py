"""What claims compare: per experiment a table with one row a prompt and method (and repetition), see ``values``."""

import json
from collections import Counter

import numpy as np
import pandas as pd

from specnb.models import files
from study import experiments, prices, replay, run

PRICE = 0.0369  # of a draft forward in target calls, where EDD's reliability by path is asked


def values(experiment: str) -> pd.DataFrame:
    """A recording's rows with what claims compare; "heads" is data/results/heads_by_prompt.csv. Others as recorded.

    Races: tau (tokens a step), speed (tokens a second), "log speed", hits (share of steps with a candidate), length
    (tokens of such steps, bonus included), auxiliary, drafted and forwards (auxiliary nodes, others and draft forwards
    a step), depth (of the tree), acceptance (tokens over drafted nodes), "draft ms", "target ms", "verify ms", "commit
    ms" (a later step), outside (share of such steps' seconds that is not the target's), rouge (see there).
    Rules ("HEAD:RULE", with lengths "HEAD:RULE at LENGTH"): tau, drafted, forwards, acceptance, everywhere (accepted at
    every place of the text), first (share of nodes that are first children), share1 to share5 (nodes by rank among
    their siblings in per cent, the last with all lower ones), "nodes with tau" (their product in units
    of their spread over prompts: its mean is the correlation); of HEAD:chain also ece and "path ece", see ``errors``.
    Verifiers ("HEAD:SHAPE RULE at TEMPERATURE"): tau, and lift, what traversal adds to token-level's in per cent.
    Heads: tau, depth1 to depth5, rank1 to rank5 (accuracy), over1 to over5 (confidence less that), lower (mean
    accuracy over ranks 2 to 5).
    """
    if experiment == "heads":
        table = pd.read_csv(files.in_checkout(files.DATA / "results" / "heads_by_prompt.csv"))
        return _heads(table.query("set != 'tuning'"))
    table, wanted = experiments.recorded(experiment), experiments.EXPERIMENTS[experiment]
    table = table[table["status"] == "ok"]
    if wanted.cell == "rules":
        return _rules(table, many="lengths" in wanted.settings)
    return {"race": _race, "verifiers": _verifiers}.get(wanted.cell, lambda table: table)(table)


def priced(table: pd.DataFrame, value: str) -> pd.Series:
    """ "speed at c,n": tau over 1 + c · draft forwards + n · nodes, with prices in target calls; "speed at c,n,f,t":
    over t + … + f · nodes fed, of a loop that feeds them to the draft one by one and runs the target t times a step."""
    given = [*map(float, value.removeprefix("speed at ").split(","))]
    call, node, fed, target = given + [0.0, 1.0][len(given) - 2 :]
    nodes = table["drafted"] + table["auxiliary"]
    drafting = call * table["forwards"] + (fed * table["fed"] if fed else 0.0)
    return prices.speed(table["tau"], drafting, nodes, call=1.0, node=node, target=target)


def _heads(table: pd.DataFrame) -> pd.DataFrame:
    more, roots = {f"depth{d}": table[f"hits{d}"] / table[f"seen{d}"] for d in range(1, 6)}, table["roots"]
    for r in range(1, 6):
        more |= {f"rank{r}": table[f"rank{r}"] / roots, f"over{r}": (table[f"sure{r}"] - table[f"rank{r}"]) / roots}
    lower = sum(more[f"rank{r}"] for r in range(2, 6)) / 4
    return table.assign(method=table["head"], tau=table["tokens"] / table["steps"], lower=lower, **more)


def _race(table: pd.DataFrame) -> pd.DataFrame:
    steps, tokens = table["steps"], table["tokens"]
    drafted, later = table["nodes"] - table["auxiliary"], table[list(run.PHASES)].sum(axis=1)
    forwards = [sum(prices.counted(spelt).values()) for spelt in table["frontiers"]]
    more = {"tau": tokens / steps, "speed": tokens / table["seconds"], "length": 1 + (tokens - steps) / table["hits"]}
    more |= {"drafted": drafted / steps, "forwards": forwards / steps, "acceptance": tokens / drafted}
    more |= {f"{phase} ms": 1000 * table[phase] / (steps - 1) for phase in run.PHASES}
    more |= {"outside": 1 - table["target"] / later}
    more |= {"log speed": np.log(more["speed"]), "rouge": rouge(table) if table["ids"].any() else np.nan}
    return table.assign(**more, **{name: table[name] / steps for name in ("hits", "auxiliary", "depth")})


def rouge(table: pd.DataFrame) -> list[float]:
    """ROUGE-1 F of each text's tokens against plain decoding of the same prompt with other seeds: their mean."""
    bags, found = [Counter(ids.split()) for ids in table["ids"]], []
    plain = table["method"] == "generate"
    for row, bag in zip(table.itertuples(), bags, strict=True):
        other = np.flatnonzero(plain & (table["prompt"] == row.prompt) & (table["repetition"] != row.repetition))
        found.append(np.mean([2 * (bag & bags[i]).total() / (bag.total() + bags[i].total()) for i in other]))
    return found


def _rules(table: pd.DataFrame, many: bool) -> pd.DataFrame:
    named = table["head"] + ":" + table["rule"] + (" at " + table["length"].astype(str) if many else "")
    ranks = [json.loads(spelt or "[]") for spelt in table["ranks"]]
    steps = table["steps"].replace(0, np.nan)  # the row "chain" has none
    more = {"tau": table["length"] / steps, "drafted": table["nodes"] / steps, "forwards": table["forwards"] / steps}
    more |= {"auxiliary": 0, "acceptance": table["length"] / table["nodes"].replace(0, np.nan)}
    more |= {"fed": table["fed"] / steps, "everywhere": table["everywhere"] / table["length"]}
    ranks = pd.DataFrame(ranks, table.index).reindex(columns=range(10))
    shares = ranks.div(ranks.sum(axis=1), axis=0)
    shares[4] = shares[range(4, 10)].sum(axis=1, min_count=1)
    more |= {"first": shares[0], **{f"share{rank}": 100 * shares[rank - 1] for rank in range(1, 6)}}
    table = table.assign(method=named, **more)
    spread = table.groupby("method")[["drafted", "tau"]].transform(lambda x: (x - x.mean()) / x.std(ddof=0))
    table["nodes with tau"] = spread["drafted"] * spread["tau"]
    chained = table[table["chains"] != ""]
    if len(chained):
        table = table.join(pd.concat([errors(part) for _, part in chained.groupby("head")]))
    return table


def errors(chained: pd.DataFrame) -> pd.DataFrame:
    """Each prompt's share of a head's expected calibration error: their mean over prompts is ``heads.ece``.

    So resampling prompts adds nothing to the bias upwards that absolute gaps have. ece: of tokens whose predecessors
    were accepted; "path ece": of the path's probability at all nodes that PCT would draft at PRICE.
    """
    chains = replay.chain_table(dict(zip(chained["prompt"], chained["chains"], strict=True)))
    above = chains.groupby(["prompt", "place"])["path"].shift(fill_value=1.0)  # path probability of the parent
    kinds = {"ece": (chains[chains["alive"]], "confidence"), "path ece": (chains[above >= PRICE], "path")}
    found = {}
    for name, (rows, of) in kinds.items():
        gap, place = rows["hit"] - rows[of], (10 * rows[of]).astype(int).clip(upper=9)
        signed = (gap * np.sign(gap.groupby(place).transform("sum"))).groupby(rows["prompt"]).sum()
        found[name] = chained["prompt"].map(signed * len(signed) / len(rows))
    return pd.DataFrame(found)


def _verifiers(table: pd.DataFrame) -> pd.DataFrame:
    key = ["prompt", "method", "temperature"]
    wide = table.pivot_table(index=key, columns="rule", values="tau")
    lift = 100 * (wide["traversal"] / wide["token-level"] - 1)
    named = table["method"] + " " + table["rule"] + " at " + table["temperature"].astype(str)
    return table.join(lift.rename("lift"), on=key).assign(method=named)
