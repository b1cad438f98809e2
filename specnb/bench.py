"""Side-by-side timing: every method on the same prompts in the same run, next to transformers' own.

A method is a function of a prompt's token ids that returns the new tokens. Methods take turns on each prompt,
so that a slow minute of the machine hits all of them alike; ratios are paired by prompt. On the command line:

    python -m specnb.bench --prompts own:4 humaneval:12 gsm100:12 --out data/results/race_cpu
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TypeVar

import pandas as pd
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specnb import assets, growth, head_drafts, metrics, models, records, verifiers
from specnb import prompts as prompt_sets
from specnb.decode import decode, steps
from specnb.draft_models import CausalLMDraft
from specnb.drafters import Drafter, NgramDrafter, TreeDrafter
from specnb.sampling import RandomCoins, Warp
from specnb.target import Target
from specnb.traversal import traversal
from specnb.tree import Drawn, TokenTree
from specnb.verifiers import Verifier

T = TypeVar("T")
Method = Callable[[list[int]], list[int]]
NEAR_TIE = 1e-3  # logits; float32 noise over 30 layers is a hundredth of that, ordinary gaps are tenths and more


def generate(model: PreTrainedModel, *, max_new_tokens: int, **options) -> Method:
    """transformers' own ``generate``, greedy unless options say otherwise (prompt_lookup_num_tokens=10, …)."""

    @torch.no_grad()
    def run(prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt], device=model.device)
        settings = {"do_sample": False, "max_new_tokens": max_new_tokens, **options}
        return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(prompt) :].tolist()

    return run


def speculative(model: PreTrainedModel, drafter: Drafter, verifier: Verifier, **options) -> Method:
    """specnb's own loop; options are those of ``decode.steps``."""
    target = Target(model)

    def run(prompt: list[int]) -> list[int]:
        return list(decode(target, drafter, verifier, prompt, trace="none", **options).tokens)

    return run


def race(
    methods: Mapping[str, Method], prompts: Sequence[list[int]], *, repetitions: int = 1, warm_up: bool = True
) -> pd.DataFrame:
    """Time all methods on all prompts: one row per (repetition, prompt, method) with seconds, tokens, token/s.

    The order of the methods rotates from prompt to prompt. warm_up runs each method once, untimed, first.
    """
    names, rows = list(methods), []
    if warm_up:
        for name in names:
            methods[name](prompts[0])
    turns = [(r, i) for r in range(repetitions) for i in range(len(prompts))]
    for repetition, i in tqdm(turns, desc="race", unit="prompt", disable=assets.QUIET):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            tokens, seconds = timed(partial(methods[name], prompts[i]))
            rows.append((repetition, i, name, seconds, len(tokens), len(tokens) / seconds))
    return pd.DataFrame(rows, columns=["repetition", "prompt", "method", "seconds", "tokens", "token/s"])


def ratios(frame: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Per method: median token/s, and the speed-up over the baseline paired by prompt, as median and quartiles."""
    table = frame.pivot_table(index=["repetition", "prompt"], columns="method", values="token/s", sort=False)
    paired = table.div(table[baseline], axis=0)
    return pd.DataFrame(
        {
            "token/s": table.median(),
            "speed-up": paired.median(),
            "from": paired.quantile(0.25),
            "to": paired.quantile(0.75),
        }
    ).loc[frame["method"].drop_duplicates()]


def same_text(model: PreTrainedModel, methods: Mapping[str, Method], prompts: Sequence[list[int]]) -> pd.DataFrame:
    """Compare every method's greedy text with the first method's, by the near-tie rule.

    One row per (prompt, method): equal; else the first differing place and the gap there between the two largest
    logits of a plain forward. same: equal, or that gap is below float32's rounding noise (NEAR_TIE).
    """
    reference, *others = methods
    rows = []
    for i, prompt in enumerate(tqdm(prompts, desc="same text", unit="prompt", disable=assets.QUIET)):
        right = methods[reference](prompt)
        for name in others:
            text = methods[name](prompt)
            first = next((j for j, (a, b) in enumerate(zip(right, text, strict=False)) if a != b), None)
            gap = float("inf") if first is None else _gap(model, [*prompt, *right[:first]])
            rows.append((i, name, text == right, first, gap, text == right or gap < NEAR_TIE))
    return pd.DataFrame(rows, columns=["prompt", "method", "equal", "first", "gap", "same"])


@torch.no_grad()
def _gap(model: PreTrainedModel, tokens: list[int]) -> float:
    top = model(torch.tensor([tokens], device=model.device)).logits[0, -1].float().topk(2).values
    return float(top[0] - top[1])


def choose(name: str, count: int) -> pd.DataFrame:
    """The first prompts of a set: count of each task (of each domain, for the own set)."""
    return prompt_sets.load(name).groupby("task", sort=False).head(count)


def peers(pair: models.Pair, *, max_new_tokens: int, self_draft: bool = False) -> dict[str, Method]:
    """The methods that need no trained draft: transformers' generate and prompt lookup, our n-gram tree.

    self_draft adds the target as its own draft (chain of 7): no speed-up, but it must accept everything.
    """
    model = pair.target
    chain = TreeDrafter(CausalLMDraft(model), growth.chain(7))
    own = {"self draft": speculative(model, chain, verifiers.greedy, max_new_tokens=max_new_tokens)}
    return {
        "generate": generate(model, max_new_tokens=max_new_tokens),
        "prompt lookup": generate(model, max_new_tokens=max_new_tokens, prompt_lookup_num_tokens=10),
        "n-gram tree": speculative(model, NgramDrafter(), verifiers.greedy, max_new_tokens=max_new_tokens),
        **(own if self_draft else {}),
    }


def overhead(pair: models.Pair, prompts: Sequence[list[int]], *, max_new_tokens: int) -> float:
    """Share of a step that our loop spends outside the model's forward (n-gram tree, median over steps)."""
    target, rows = Target(pair.target), []
    for prompt in prompts:
        out = decode(target, NgramDrafter(), verifiers.greedy, prompt, max_new_tokens=max_new_tokens)
        rows += [1 - s.seconds["target"] / sum(s.seconds.values()) for s in metrics.all_steps(out) if s.index > 0]
    return float(pd.Series(rows).median())


def draft_costs(
    pair: models.Pair, names: Sequence[str], *, nodes: int = 8, length: int = 200, repetitions: int = 40
) -> pd.DataFrame:
    """Milliseconds of one draft forward for a frontier of so many nodes behind a prefix, median and quartiles.

    names: trained heads. The row "target" is the target's forward for one token, in the same run.
    """
    prefix = [int(t) for t in torch.randint(1000, 2000, (length,), generator=torch.Generator().manual_seed(0))]
    tree = TokenTree([prefix[-1], *range(1000, 1000 + nodes)], [-1] + [0] * nodes)
    seconds: dict[str, list[float]] = {name: [] for name in (*names, "target")}
    drafts = {name: head_drafts.load(name, pair.target) for name in names}
    for _ in tqdm(range(repetitions), disable=assets.QUIET):  # heads take turns, as methods do in a race
        for name, draft in drafts.items():
            target = Target(pair.target, hidden_layers=draft.hidden_layers)
            draft.begin(prefix, target.prefill(prefix[:-1]))
            draft.expand(tree, [0])
            seconds[name].append(timed(partial(draft.expand, tree, range(1, nodes + 1)))[1])
        target = Target(pair.target)
        target.prefill(prefix[:-1])
        seconds["target"].append(timed(partial(target.forward, TokenTree([prefix[-1]], [-1])))[1])
    table = pd.DataFrame(seconds).mul(1000).quantile([0.25, 0.5, 0.75]).T
    return table.set_axis(["quartile", "median", "third quartile"], axis=1).rename_axis("head").reset_index()


def cost_curves(
    pair: models.Pair, name: str, *, sizes: Sequence[int], prefix: int = 300, repetitions: int = 15
) -> pd.DataFrame:
    """Seconds of a target forward over a tree of n nodes, and of a draft forward over a frontier of n, for each n.

    Behind a prefix of so many tokens; sizes take turns. Columns: model ("target" or the draft's name), nodes, and
    seconds as median and quartiles. This is what ``replay.Costs`` is made of.
    """
    tokens = [int(t) for t in torch.randint(1000, 2000, (prefix,), generator=torch.Generator().manual_seed(0))]
    draft, rows = head_drafts.load(name, pair.target), []
    for _ in tqdm(range(repetitions), desc="cost curves", disable=assets.QUIET):
        target = Target(pair.target, hidden_layers=draft.hidden_layers)
        hidden = target.prefill(tokens[:-1])
        for n in sizes:
            tree = TokenTree([tokens[-1], *range(1000, 1000 + n)], [-1] + [0] * n)
            draft.begin(tokens, hidden)
            draft.expand(tree, [0])
            rows.append((name, n, timed(partial(draft.expand, tree, range(1, n + 1)))[1]))
            scored = TokenTree(tree.tokens[:n], tree.parents[:n])
            rows.append(("target", n, timed(partial(target.forward, scored))[1]))
            target.cache.commit([])  # the same prefix for the next size
            target.tree = None
    spread = pd.DataFrame(rows, columns=["model", "nodes", "seconds"]).groupby(["model", "nodes"], sort=False)[
        "seconds"
    ]
    table = spread.quantile([0.25, 0.5, 0.75]).unstack()
    return table.set_axis(["quartile", "median", "third quartile"], axis=1).reset_index()


RULES = {"token-level": verifiers.rrsw, "traversal": traversal}
SHAPES = {"chain 5": growth.chain(5), "binary 5": growth.kary(2, 5), "EAGLE sparse": growth.EAGLE_25}


def verification_costs(
    pair: models.Pair, names: Sequence[str], prompts: Sequence[list[int]], *, max_new_tokens: int
) -> pd.DataFrame:
    """Milliseconds of verifying sampled binary trees of 31 nodes by rule, on the steps of real decoding at T = 1.

    Each step's tree and laws are put to every rule ten times, with other coins. The rule "softmax" is none: it is
    the step from the target's logits to its laws. Columns: draft, rule, and ms as median and quartiles.
    """
    rows, rules = [], {**RULES, "softmax": lambda draft, p, coins: Warp(1.0)(p.log())}
    for name in names:
        drafter = TreeDrafter(head_drafts.load(name, pair.target), growth.kary(2, 4), Drawn.SWOR)
        options = {"max_new_tokens": max_new_tokens, "temperature": 1.0}
        for prompt in tqdm(prompts, desc=name, unit="prompt", disable=assets.QUIET):
            for step in steps(Target(pair.target), drafter, verifiers.rrsw, prompt, **options):
                if len(step.draft.tree) == 31:  # the end of a text cuts trees
                    for turn, (rule, verify) in product(range(10), rules.items()):
                        call = partial(verify, step.draft, step.p, RandomCoins(turn, 2))
                        rows.append((name, rule, 1000 * timed(call)[1]))
    table = pd.DataFrame(rows, columns=["draft", "rule", "ms"])
    spread = table.groupby(["draft", "rule"], sort=False)["ms"].quantile([0.25, 0.5, 0.75]).unstack()
    return spread.set_axis(["quartile", "median", "third quartile"], axis=1).reset_index()


def sampled(
    pair: models.Pair, names: Sequence[str], prompts: Sequence[list[int]], *, max_new_tokens: int
) -> pd.DataFrame:
    """Decoding at T = 1 by every rule and shape: tokens, steps and seconds by phase, rules in turns on each prompt.

    One row per (draft, shape, rule, prompt); a generation's first step, which holds the prefill, is left out.
    """
    rows, target = [], Target(pair.target)
    drafts = {name: head_drafts.load(name, pair.target) for name in names}
    cells = list(product(names, SHAPES, range(len(prompts))))
    for name, shape, i in tqdm(cells, desc="sampled", disable=assets.QUIET):
        for rule in list(RULES)[:: 1 if i % 2 else -1]:
            drafter = TreeDrafter(drafts[name], SHAPES[shape], Drawn.SWOR)
            options = {"max_new_tokens": max_new_tokens, "temperature": 1.0, "seed": i}
            later = decode(target, drafter, RULES[rule], prompts[i], **options).steps[1:]
            seconds = pd.DataFrame([step.seconds for step in later]).sum().add_suffix(" s")
            counts = {"tokens": sum(len(step.tokens) for step in later), "steps": len(later)}
            rows.append({"draft": name, "shape": shape, "rule": rule, "prompt": i, **counts, **seconds})
    return pd.DataFrame(rows)


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """What a call returns and its wall-clock seconds, the device's queue emptied before and after."""
    _wait()
    began = time.perf_counter()
    result = call()
    _wait()
    return result, time.perf_counter() - began


def main() -> None:
    """Time the peers on chosen prompts, or compare their texts, and record the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", default=models.EMBEDDED)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompts", nargs="+", default=["own:4"], help="SET:COUNT per task, e.g. own:4 gsm100:12")
    parser.add_argument("--tokens", type=int, default=96, help="new tokens per prompt")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--texts", action="store_true", help="compare greedy texts instead of speed")
    parser.add_argument("--heads", nargs="+", metavar="NAME", help="time trained heads' draft forwards instead")
    parser.add_argument("--verify", nargs="+", metavar="NAME", help="time verification of trained heads' trees instead")
    parser.add_argument(
        "--sampled", nargs="+", metavar="NAME", help="time decoding at temperature 1 by every rule instead"
    )
    parser.add_argument("--out", required=True, help="writes OUT.csv and OUT.json")
    options = parser.parse_args()
    command = shlex.join(["python", "-m", "specnb.bench", *sys.argv[1:]])
    facts = {"pair": options.pair, "dtype": options.dtype}
    pair = models.load_pair(options.pair, dtype=options.dtype)
    chosen = pd.concat([choose(name, int(count)) for name, count in (p.split(":") for p in options.prompts)])
    ids = [pair.encode(text) for text in chosen["text"]]
    length = {"max_new_tokens": options.tokens}
    if options.heads:
        frame = draft_costs(pair, options.heads)
        facts |= {"frontier": 8, "prefix": 200}
        shown = frame
    elif options.verify:
        frame = verification_costs(pair, options.verify, ids, **length)
        facts |= {"tree": "binary, 31 nodes", "new_tokens": options.tokens}
        shown = frame
    elif options.sampled:
        frame = sampled(pair, options.sampled, ids, **length)
        facts |= {"new_tokens": options.tokens}
        shown = frame.groupby(["draft", "shape", "rule"], sort=False).sum(numeric_only=True).reset_index()
    elif options.texts:
        methods = peers(pair, **length, self_draft=True)
        del methods["prompt lookup"]  # transformers' own affair
        frame = same_text(pair.target, methods, ids)
        facts |= {"new_tokens": options.tokens}
        shown = frame.groupby("method", sort=False)[["equal", "same"]].agg(["sum", "size"]).reset_index()
    else:
        frame = race(peers(pair, **length), ids, repetitions=options.repetitions)
        facts |= {"new_tokens": options.tokens, "loop_overhead": overhead(pair, ids[:6], **length)}
        shown = ratios(frame, "generate").reset_index()
    if "prompt" in frame:
        frame[["task", "id"]] = chosen[["task", "id"]].iloc[frame["prompt"]].to_numpy()
    records.write_table(options.out, frame, command, **facts)
    print(shown.round(2).to_string(index=False))


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
