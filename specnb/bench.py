"""Side-by-side timing: every method on the same prompts in the same run, next to transformers' own.

A method is a function of a prompt's token ids that returns the new tokens. Methods take turns on each prompt,
so that a slow minute of the machine hits all of them alike; ratios are paired by prompt. On the command line:

    python -m specnb.bench --prompts own:4 humaneval:12 gsm100:12 --out data/results/race_cpu
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature

import pandas as pd
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specnb import assets, costs, growth, head_drafts, heads, metrics, models, records, search, verifiers
from specnb import prompts as prompt_sets
from specnb.adaptive import AdaptiveDrafter
from specnb.decode import decode
from specnb.draft_models import CausalLMDraft, DraftModel
from specnb.drafters import Drafter, NgramDrafter, TreeDrafter
from specnb.streaming import Window
from specnb.target import Target
from specnb.verifiers import Verifier

Method = Callable[[list[int]], list[int]]
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # nodes at which cost curves are measured
NEAR_TIE = 1e-3  # logits; float32 noise over 30 layers is a hundredth of that, ordinary gaps are tenths and more


def generate(model: PreTrainedModel, *, max_new_tokens: int, **options) -> Method:
    """transformers' own ``generate``, greedy unless options say otherwise (prompt_lookup_num_tokens=10, …)."""

    @torch.no_grad()
    def run(prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt], device=model.device)
        settings = {"do_sample": False, "max_new_tokens": max_new_tokens, **options}
        return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(prompt) :].tolist()

    return run


def speculative(
    model: PreTrainedModel, drafter: Drafter, verifier: Verifier, *, window: Window | None = None, **options
) -> Method:
    """specnb's own loop; window: that of ``Target``; options are those of ``decode.steps``."""
    target = Target(model, window=window)

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
        for name in costs.rotated(names, i):
            tokens, seconds = costs.timed(partial(methods[name], prompts[i]))
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


def choose(name: str, count: int | None = None) -> pd.DataFrame:
    """The first prompts of a set: count of each task (of each domain, for the own set); all without a count."""
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


def drafted(
    pair: models.Pair, names: Sequence[str], *, max_new_tokens: int, draft: str = "vdm", whole: bool = False
) -> dict[str, Method]:
    """Greedy methods by name around one trained draft, next to transformers' own; DynaTree's Table 1 and more.

    names: of METHODS ("assistant" needs the vdm), or one of RULES with settings of its own: "dynatree 4,2,0.1,128".
    whole: write max_new_tokens, whatever ends the text before. Raises ValueError on a name that is not known.
    """
    known = {**METHODS, **{name: (rule(name), None) for name in names if name.partition(" ")[0] in RULES}}
    if unknown := [name for name in names if name not in known]:
        settings = ", ".join(f"'{name} …'" for name in RULES)
        raise ValueError(f"unknown method {unknown[0]!r}: known are {', '.join(METHODS)}, and with settings {settings}")
    model, loaded = pair.target, head_drafts.load(draft, pair.target)
    theirs = {"max_new_tokens": max_new_tokens, **({"eos_token_id": len(pair.tokenizer)} if whole else {})}
    ours = {"max_new_tokens": max_new_tokens, **({"eos": ()} if whole else {})}
    found = {}
    for name in names:
        options = known[name]
        if callable(options):
            found[name] = generate(model, **theirs, **options(model))
        else:
            growing, window = options
            drafting = NgramDrafter() if growing is None else drafter(name, loaded, growing)
            found[name] = speculative(model, drafting, verifiers.greedy, window=window, **ours)
    return found


def _assistant(model: PreTrainedModel) -> dict:
    return {"assistant_model": heads.as_causal_lm(*heads.load(heads.FOLDER / "vdm", model))}


RULES = {
    "chain": growth.chain,
    "dynatree": growth.DynaTree,
    "eagle2": growth.Eagle2,
    "pct": growth.Pct,
    "layer": growth.LayerGain,
    "salf": search.Salf,
    "adaptive": search.Salf,
    "ongoing": search.Salf,
    "specexec": search.SpecExec,
    "opt": search.OptTree,
}


def rule(name: str) -> growth.Growth:
    """A growth rule by its name among METHODS, or of RULES with its first settings, if any: "pct 0.07,5,10"."""
    kind, _, numbers = name.partition(" ")
    if not numbers and isinstance(METHODS.get(name), tuple) and METHODS[name][0] is not None:
        return METHODS[name][0]
    if kind not in RULES:
        raise ValueError(f"unknown growth rule {name!r}: those with settings are {', '.join(RULES)}")
    try:
        return RULES[kind](*(float(text) if "." in text else int(text) for text in numbers.split(",") if numbers))
    except (ValueError, TypeError) as error:
        settings = ", ".join(signature(RULES[kind]).parameters)
        raise ValueError(
            f"{name!r}: {kind} takes numbers with commas between, in the order of {settings}: {error}"
        ) from error


def drafter(name: str, draft_model: DraftModel, growing: growth.Growth | None = None) -> Drafter:
    """A drafter with the growth rule of that name; "adaptive …" and "ongoing …" are salf with a learnt threshold."""
    learns = name.startswith(("adaptive", "ongoing"))
    return (AdaptiveDrafter if learns else TreeDrafter)(draft_model, growing or rule(name))


# transformers' own by the options of generate; ours by growth rule (None: n-gram tree) and cache window
METHODS = {
    "generate": lambda model: {},
    "prompt lookup": lambda model: {"prompt_lookup_num_tokens": 10},
    "assistant": _assistant,
    "n-gram tree": (None, None),
    "linear": (growth.chain(6), None),
    "streaming 1024": (growth.chain(6), Window(4, 1020)),
    "streaming 256": (growth.chain(6), Window(4, 252)),
    "dynatree": (growth.DynaTree(), None),
    "vct": (growth.kary(3, 5), None),
    "cape": (growth.Cape(), None),
    "eagle2": (growth.Eagle2(50, 6, 10), None),
}


def overhead(pair: models.Pair, prompts: Sequence[list[int]], *, max_new_tokens: int) -> float:
    """Share of a step that our loop spends outside the model's forward (n-gram tree, median over steps)."""
    target, rows = Target(pair.target), []
    for prompt in prompts:
        out = decode(target, NgramDrafter(), verifiers.greedy, prompt, max_new_tokens=max_new_tokens)
        rows += [1 - s.seconds["target"] / sum(s.seconds.values()) for s in metrics.all_steps(out) if s.index > 0]
    return float(pd.Series(rows).median())


def main() -> None:
    """Time the peers on chosen prompts, or compare their texts, and record the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", default=models.EMBEDDED)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompts", nargs="+", default=["own:4"], help="SET:COUNT per task, e.g. own:4 gsm100:12")
    parser.add_argument("--tokens", type=int, default=96, help="new tokens per prompt")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--methods", nargs="+", metavar="NAME", help=f"race these instead: {', '.join(METHODS)}")
    parser.add_argument("--draft", default="vdm", help="the trained head of --methods")
    parser.add_argument("--whole", action="store_true", help="write all new tokens, whatever ends the text before")
    parser.add_argument("--texts", action="store_true", help="compare greedy texts instead of speed")
    parser.add_argument("--heads", nargs="+", metavar="NAME", help="time trained heads' draft forwards instead")
    parser.add_argument("--curves", metavar="NAME", help="time a head's and the target's forward by number of nodes")
    parser.add_argument("--prefix", type=int, default=300, help="tokens behind which --curves are measured")
    parser.add_argument("--building", metavar="NAME", help="time a head's tree building outside its forwards instead")
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
    chosen_methods = None
    if options.methods:
        chosen_methods = drafted(pair, options.methods, **length, draft=options.draft, whole=options.whole)
        facts |= {"draft": options.draft, "whole": options.whole}
    if options.heads:
        frame = costs.draft_costs(pair, options.heads)
        facts |= {"frontier": 8, "prefix": 200}
        shown = frame
    elif options.curves:
        shown = frame = costs.cost_curves(pair, options.curves, sizes=SIZES, prefix=options.prefix)
        facts |= {"prefix": options.prefix}
    elif options.building:
        rules = {
            name: rule(name) for name in ("eagle2 59,8,10", "salf 60,10,0.0", "salf 60,10,0.6", "salf 60,10,0.6,10")
        }
        shown = frame = costs.building_costs(pair, options.building, rules, ids, **length)
    elif options.verify:
        frame = costs.verification_costs(pair, options.verify, ids, **length)
        facts |= {"tree": "binary, 31 nodes", "new_tokens": options.tokens}
        shown = frame
    elif options.sampled:
        frame = costs.sampled(pair, options.sampled, ids, **length)
        facts |= {"new_tokens": options.tokens}
        shown = frame.groupby(["draft", "shape", "rule"], sort=False).sum(numeric_only=True).reset_index()
    elif options.texts:
        methods = chosen_methods or peers(pair, **length, self_draft=True)
        methods.pop("prompt lookup", None)  # transformers' own affair
        frame = same_text(pair.target, methods, ids)
        facts |= {"new_tokens": options.tokens}
        shown = frame.groupby("method", sort=False)[["equal", "same"]].agg(["sum", "size"]).reset_index()
    else:
        frame = race(chosen_methods or peers(pair, **length), ids, repetitions=options.repetitions)
        facts |= {"new_tokens": options.tokens, "loop_overhead": overhead(pair, ids[:6], **length)}
        shown = ratios(frame, frame["method"].iloc[0]).reset_index()
    if "prompt" in frame:
        frame[["task", "id"]] = chosen[["task", "id"]].iloc[frame["prompt"]].to_numpy()
    records.write_table(options.out, frame, command, **facts)
    print(shown.round(2).to_string(index=False))


if __name__ == "__main__":
    main()
