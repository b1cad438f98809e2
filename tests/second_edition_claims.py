"""The second edition's claims, frozen: how a row of data/claims/PAPER.csv was evaluated.

The recordings were rewritten since; ``Edition`` reads them as they are now, under the columns that they had. Names of
methods and rules go through data/claims/names.csv, from the old to the new, never through the study's own functions.
Nothing of this file changes with the study.
"""

from collections import Counter
from functools import cache, cached_property

import numpy as np
import pandas as pd
import second_edition

PHASES = ("draft", "target", "verify", "commit")
PRICE = 0.0369
STATISTICS = {
    "mean": lambda x: x.mean(),
    "mean, %": lambda x: 100 * x.mean(),
    "ratio": lambda x: np.median(x[:, 0] / x[:, 1]),
    "per cent": lambda x: 100 * (np.median(x[:, 0] / x[:, 1]) - 1),
    "difference": lambda x: (x[:, 0] - x[:, 1]).mean(),
    "share": lambda x: (x[:, 0] > x[:, 1]).mean(),
    "lead": lambda x: (x[:, :1] - x[:, 1:]).mean(0).min(),
    "gain": lambda x: (x[:, 0] - x[:, 1] - x[:, 2] + x[:, 3]).mean(),
}


@cache
def claims(paper: str) -> pd.DataFrame:
    """The rows of a paper, all columns texts."""
    return pd.read_csv(second_edition.FROZEN / f"{paper}.csv", dtype=str, keep_default_na=False).set_index(
        "claim", drop=False
    )


# ---- names ------------------------------------------------------------------------------------------------------


def spelt(method: str, experiment: str) -> str:
    """A method of an old row as ``Edition`` spells it: its parts under their new names, put together as of old."""
    cell = "heads" if experiment == "heads" else second_edition.table()[experiment]["cell"]
    if cell == "heads":
        return method
    new = second_edition.names()
    if cell == "rules":
        method, at, length = method.partition(" at ")
        head, _, rule = method.partition(":")
        return f"{head}:{'chain' if rule == 'chain' else new['rule', rule]}{at}{length}"
    if cell == "verifiers":
        method, _, heat = method.rpartition(" at ")
        method, _, verifier = method.rpartition(" ")
        head, _, shape = method.partition(":")
        return f"{head}:{new['rule', shape]} {verifier} at {heat}"
    return new["method", method]


# ---- the old values, and an old row's array -----------------------------------------------------------------------


class Edition:
    """A recording's rows with what was compared, under the old columns. recorded: its rows as they are read now."""

    def __init__(self, experiment: str, recorded: pd.DataFrame):
        self.experiment, self.recorded = experiment, recorded

    @cached_property
    def values(self) -> pd.DataFrame:
        if self.experiment == "heads":
            return _heads(self.recorded.query("set != 'tuning'"))
        wanted, table = second_edition.table()[self.experiment], self.recorded[self.recorded["status"] == "ok"]
        if wanted["cell"] == "rules":
            return _rules(table, many="lengths" in wanted["settings"])
        return {"race": _race, "verifiers": _verifiers}.get(wanted["cell"], lambda table: table)(table)

    def compared(self, row) -> tuple[list[str], pd.Series, np.ndarray]:
        """What a row compares: the methods, the values of the rows it chose, and the (prompts, methods) array."""
        table = self.values.query(row.rows) if row.rows else self.values
        names = [spelt(name, row.experiment) for name in row.methods.split(" ; ")]
        value = _priced(table, row.value) if row.value.startswith("speed at ") else table[row.value]
        table = table.assign(value=value.astype(float))
        wide = table.pivot_table(index="prompt", columns="method", values="value", aggfunc="median")
        return names, table["value"], wide[names].dropna().to_numpy()


def statistic(row, wide: np.ndarray) -> float:
    """The number by which a row was judged."""
    if row.statistic == "slope":
        return np.polyfit([float(x) for x in row["at"].split()], wide.mean(0), 1)[0]
    return STATISTICS[row.statistic](wide)


def _priced(table: pd.DataFrame, value: str) -> pd.Series:
    given = [*map(float, value.removeprefix("speed at ").split(","))]
    call, node, fed, target = given + [0.0, 1.0][len(given) - 2 :]
    nodes = table["drafted"] + table["auxiliary"]
    drafting = call * table["forwards"] + (fed * table["fed"] if fed else 0.0)
    return table["tau"] / (target + 1.0 * drafting + node * nodes)


def _heads(table: pd.DataFrame) -> pd.DataFrame:
    more, roots = {f"depth{d}": table[f"hits{d}"] / table[f"seen{d}"] for d in range(1, 6)}, table["roots"]
    for r in range(1, 6):
        more |= {f"rank{r}": table[f"rank{r}"] / roots, f"over{r}": (table[f"sure{r}"] - table[f"rank{r}"]) / roots}
    lower = sum(more[f"rank{r}"] for r in range(2, 6)) / 4
    return table.assign(method=table["head"], tau=table["tokens"] / table["steps"], lower=lower, **more)


def _race(table: pd.DataFrame) -> pd.DataFrame:
    steps, tokens = table["steps"], table["tokens"]
    drafted, later = table["nodes"] - table["auxiliary"], table[list(PHASES)].sum(axis=1)
    forwards = [sum(times for _, times in sizes) for sizes in table["frontiers"]]
    more = {"tau": tokens / steps, "speed": tokens / table["seconds"], "length": 1 + (tokens - steps) / table["hits"]}
    more |= {"drafted": drafted / steps, "forwards": forwards / steps, "acceptance": tokens / drafted}
    more |= {f"{phase} ms": 1000 * table[phase] / (steps - 1) for phase in PHASES}
    more |= {"outside": 1 - table["target"] / later}
    ids = [" ".join(map(str, tokens)) for tokens in table["ids"]]
    more |= {"log speed": np.log(more["speed"]), "rouge": _rouge(table.assign(ids=ids)) if any(ids) else np.nan}
    return table.assign(**more, **{name: table[name] / steps for name in ("hits", "auxiliary", "depth")})


def _rouge(table: pd.DataFrame) -> list[float]:
    bags, found = [Counter(ids.split()) for ids in table["ids"]], []
    plain = table["method"] == "generate"
    for row, bag in zip(table.itertuples(), bags, strict=True):
        other = np.flatnonzero(plain & (table["prompt"] == row.prompt) & (table["repetition"] != row.repetition))
        found.append(np.mean([2 * (bag & bags[i]).total() / (bag.total() + bags[i].total()) for i in other]))
    return found


def _rules(table: pd.DataFrame, many: bool) -> pd.DataFrame:
    named = table["head"] + ":" + table["rule"] + (" at " + table["length"].astype(str) if many else "")
    steps = table["steps"].replace(0, np.nan)
    more = {"tau": table["length"] / steps, "drafted": table["nodes"] / steps, "forwards": table["forwards"] / steps}
    more |= {"auxiliary": 0, "acceptance": table["length"] / table["nodes"].replace(0, np.nan)}
    more |= {"fed": table["fed"] / steps, "everywhere": table["everywhere"] / table["length"]}
    ranks = pd.DataFrame([*table["ranks"]], table.index).reindex(columns=range(10))
    shares = ranks.div(ranks.sum(axis=1), axis=0)
    shares[4] = shares[range(4, 10)].sum(axis=1, min_count=1)
    more |= {"first": shares[0], **{f"share{rank}": 100 * shares[rank - 1] for rank in range(1, 6)}}
    table = table.assign(method=named, **more)
    spread = table.groupby("method")[["drafted", "tau"]].transform(lambda x: (x - x.mean()) / x.std(ddof=0))
    table["nodes with tau"] = spread["drafted"] * spread["tau"]
    chained = table[table["chains"].str.len() > 0]
    if len(chained):
        table = table.join(pd.concat([_errors(part) for _, part in chained.groupby("head")]))
    return table


def _errors(chained: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for prompt, places in zip(chained["prompt"], chained["chains"], strict=True):
        for place, (accepted, *confidences) in enumerate(places):
            path = 1.0
            for depth, confidence in enumerate(confidences, start=1):
                path *= confidence / 10_000
                rows.append((prompt, place, confidence / 10_000, path, depth <= accepted + 1, depth <= accepted))
    chains = pd.DataFrame(rows, columns=["prompt", "place", "confidence", "path", "alive", "hit"])
    above = chains.groupby(["prompt", "place"])["path"].shift(fill_value=1.0)
    kinds = {"ece": (chains[chains["alive"]], "confidence"), "path ece": (chains[above >= PRICE], "path")}
    found = {}
    for name, (rows, of) in kinds.items():
        gap, place = rows["hit"] - rows[of], (10 * rows[of]).astype(int).clip(upper=9)
        signed = (gap * np.sign(gap.groupby(place).transform("sum"))).groupby(rows["prompt"]).sum()
        found[name] = chained["prompt"].map(signed * len(signed) / len(rows))
    return pd.DataFrame(found)


def _verifiers(table: pd.DataFrame) -> pd.DataFrame:
    table = table.assign(method=table["head"] + ":" + table["shape"], rule=table["verifier"])
    key = ["prompt", "method", "temperature"]
    wide = table.pivot_table(index=key, columns="rule", values="tau")
    lift = 100 * (wide["traversal"] / wide["token-level"] - 1)
    named = table["method"] + " " + table["rule"] + " at " + table["temperature"].astype(str)
    return table.join(lift.rename("lift"), on=key).assign(method=named)
