"""Verifiers compared on the very same drafts, without a coin: expected accepted length from tree, p and q.

Differences of a few per cent drown in the noise of sampled runs. Here each step's drafted tree and laws go through
both verifiers, and probabilities replace coin flips, given the tree (``exact.accepted_given``) or, with still less
noise, given no more of it than must be (``traversal.chances``). On the command line:

python -m specnb.paired --drafts vdm eagle --out data/results/traversal_trees
"""

import argparse
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from torch import Tensor

from specnb import growth, heads, measures, prompts, records, sweep
from specnb.decode import steps
from specnb.drafters import Drafter, TreeDrafter
from specnb.exact import accepted_given, expectation
from specnb.target import Target
from specnb.traversal import chances, traversal
from specnb.tree import Draft, Drawn
from specnb.verifiers import Verifier, rrsw

SHAPES = {
    **{f"chain {d}": growth.chain(d) for d in (2, 4, 5, 6, 8)},
    **{f"binary {d}": growth.kary(2, d) for d in (2, 3, 4, 5)},
    "EAGLE sparse": growth.EAGLE_25,
}
ROOM = 9  # new tokens left below which a step is not counted: the deepest shape and the bonus
RULES: dict[str, Verifier] = {"token-level": rrsw, "traversal": traversal}


def untempered_bonus(
    draft: Draft, p: Tensor, temperature: float, accepted_paths: Mapping[tuple[int, ...], float]
) -> float:
    """Expected total variation of a step's last token if the bonus is drawn at temperature 1 (a public harness's bug).

    Only where the accepted path ends at a leaf; elsewhere the recovered token is drawn rightly. p is at the
    temperature, without top-k or top-p.
    """
    total = 0.0
    for path, mass in accepted_paths.items():
        end = path[-1] if path else 0
        if not draft.candidates[end] and mass > 0:
            law = p[end].double()
            plain = law**temperature
            total += mass * float((law - plain / plain.sum()).abs().sum() / 2)
    return total


def compare(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    seed: int = 0,
) -> pd.DataFrame:
    """Decode a prompt at a temperature above 0 and put every step's draft to both rules; one row per step and rule.

    Columns: step; rule; tau, expected tokens per step (bonus included) by ``chances``; given, the same given the
    whole tree; nodes; bug, see ``untempered_bonus`` (token-level only). Text is decoded with the token-level rule,
    so steps begin where its steps begin. Steps whose tree the end of the text would cut are left out.
    """
    if temperature <= 0 or max_new_tokens <= ROOM:
        raise ValueError(
            f"temperature must be above 0 and max_new_tokens above {ROOM}, got {temperature}, {max_new_tokens}"
        )
    rows = []
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    for step in steps(target, drafter, rrsw, prompt, **options):
        if max_new_tokens - (step.start - len(prompt)) <= ROOM:
            break
        for name, rule in RULES.items():
            tau = sum(chances(step.draft, step.p, token_level=rule is rrsw))
            paths = accepted_given(step.draft, step.p, rule)
            bug = untempered_bonus(step.draft, step.p, temperature, paths) if rule is rrsw else float("nan")
            facts = {"given": 1 + expectation(paths, len), "nodes": len(step.draft.tree) - 1, "bug": bug}
            rows.append({"step": step.index, "rule": name, "tau": tau, **facts})
    return pd.DataFrame(rows)


def gains(table: pd.DataFrame, cells: Sequence[str], *, resamples: int = 2000, seed: int = 0) -> pd.DataFrame:
    """Traversal against token-level in each cell: tau of both, gain in per cent with a paired 95 % interval.

    table: rows with prompt, steps and both rules' mean tau (the sweep's file); cells: columns that name a cell, in
    which a prompt may have several rows. The interval is a bootstrap over prompts, whose steps are not independent.
    """
    rng, rows = np.random.default_rng(seed), []
    for cell, part in table.groupby(list(cells), sort=False):
        sums = part[list(RULES)].mul(part["steps"], axis=0).groupby(part["prompt"]).sum()
        total = sums.to_numpy()  # (prompts, 2)
        pick = rng.integers(len(total), size=(resamples, len(total)))
        ratio = total[pick, 1].sum(1) / total[pick, 0].sum(1)
        low, high = 100 * np.quantile(ratio, [0.025, 0.975]) - 100
        tau = dict(zip(RULES, total.sum(0) / part["steps"].sum(), strict=True))
        gain = 100 * (tau["traversal"] / tau["token-level"] - 1)
        rows.append({**dict(zip(cells, cell, strict=True)), **tau, "gain %": gain, "low": low, "high": high})
    return pd.DataFrame(rows)


def measure(draft: str, shape: str, temperature: float, prompt: str, seed: int, task: str, tokens: int) -> dict:
    """One cell of the sweep: ``compare`` on one of the own prompts (task: its domain), as means over its steps."""
    drafter = TreeDrafter(measures.draft(draft, "bfloat16"), SHAPES[shape], Drawn.SWOR)
    options = {"max_new_tokens": tokens, "temperature": temperature, "seed": seed}
    return summary(
        compare(Target(measures.pair("bfloat16").target), drafter, measures.encoded(prompt, "bfloat16"), **options)
    )


def summary(found: pd.DataFrame) -> dict:
    """``compare``'s rows as one: steps, mean tau of each rule, the same given whole trees, mean nodes and bug."""
    mean = found.groupby("rule")[["tau", "given"]].mean()
    given = {f"{rule} given": mean.loc[rule, "given"] for rule in RULES}
    taus = {rule: mean.loc[rule, "tau"] for rule in RULES}
    return {
        "steps": found["step"].nunique(),
        **taus,
        **given,
        "nodes": found["nodes"].mean(),
        "bug": found["bug"].mean(),
    }


RESULTS = ("steps", *RULES, *(f"{rule} given" for rule in RULES), "nodes", "bug")


def main() -> None:
    """Run all cells on the embedded model and record them; goes on where a killed run stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafts", nargs="+", default=["vdm", "eagle"], help="trained heads")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--prompts", type=int, default=3, help="of each domain")
    parser.add_argument("--domains", nargs="+", default=prompts.DOMAINS, choices=prompts.DOMAINS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="texts sampled from each prompt")
    parser.add_argument("--tokens", type=int, default=48, help="new tokens per prompt")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[1.0])
    parser.add_argument("--retry", action="store_true", help="measure again what failed")
    parser.add_argument("--out", required=True, help="writes OUT.csv and OUT.json")
    options = parser.parse_args()
    chosen = prompts.own().groupby("task", sort=False).head(options.prompts)
    chosen = chosen[chosen["task"].isin(options.domains)]
    axes = {"draft": options.drafts, "shape": options.shapes, "temperature": options.temperatures}
    grid = sweep.grid(**axes, prompt=chosen["id"], seed=options.seeds)
    task = dict(zip(chosen["id"], chosen["task"], strict=True))
    cells = [{**cell, "task": task[cell["prompt"]], "tokens": options.tokens} for cell in grid]
    sweep.run(measure, cells, f"{options.out}.csv", results=RESULTS, retry=options.retry)
    command = records.command("specnb.paired")
    facts = {"pair": measures.pair("bfloat16").name, "dtype": "bfloat16", "head_sha256": heads.hashes(options.drafts)}
    records.add_run(f"{options.out}.json", command, **facts)


if __name__ == "__main__":
    main()
