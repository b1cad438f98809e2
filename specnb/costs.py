"""What things cost: a draft's and a target's forward, a verification, the phases of whole runs.

``python -m specnb.bench`` records these; they take turns, so that a slow minute of the machine hits all alike.
"""

import ctypes
import gc
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeVar

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from specnb import assets, growth, head_drafts, models, verifiers
from specnb.decode import decode, steps
from specnb.draft_models import DraftModel
from specnb.drafters import Drafter, TreeDrafter
from specnb.sampling import RandomCoins, Warp
from specnb.target import Target
from specnb.traversal import traversal
from specnb.tree import Drawn, TokenTree

T = TypeVar("T")
FORGET = "/proc/self/clear_refs"


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """What a call returns and its wall-clock seconds, the device's queue emptied before and after."""
    began = now()
    result = call()
    return result, now() - began


def timing(owner: object, name: str) -> list[float]:
    """The list that from now on gets the seconds of each call of an object's method, ``timed``."""
    call, seconds = getattr(owner, name), []

    def run(*args):
        result, taken = timed(partial(call, *args))
        seconds.append(taken)
        return result

    setattr(owner, name, run)
    return seconds


def rotated(items: Sequence[T], by: int) -> list[T]:
    """The items beginning with another one: methods take turns, so that none always comes first."""
    return [*items[by % len(items) :], *items[: by % len(items)]]


def shuffled(items: Sequence[T], seed: int) -> list[T]:
    """The items in an order of the seed's: methods take turns, so that none always follows another either."""
    return random.Random(seed).sample(list(items), len(items))


def now() -> float:
    """Seconds on the wall clock once the device's queue is empty."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def resident() -> float:
    """MB in use now: of the GPU's memory, else of the process (nan but on Linux); ``peak`` counts from here."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 1e6
    if os.access(FORGET, os.W_OK):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what the allocator kept of earlier runs would hide this one
        Path(FORGET).write_text("5")  # Linux: the process' highest resident size starts anew
    return _status("VmRSS")


def peak() -> float:
    """The most MB in use since ``resident`` was called."""
    return torch.cuda.max_memory_allocated() / 1e6 if torch.cuda.is_available() else _status("VmHWM")


def _status(name: str) -> float:
    if not os.access(FORGET, os.W_OK):
        return float("nan")
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[1]) * 1024 / 1e6


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
    pair: models.Pair, names: Sequence[str], *, sizes: Sequence[int], prefix: int = 300, repetitions: int = 15
) -> pd.DataFrame:
    """Seconds of a target forward over a tree of n nodes, and of draft forwards over a frontier of n, for each n.

    Behind a prefix of so many tokens; sizes take turns. Columns: model ("target" or the draft's name), nodes, and
    seconds as median and quartiles. This is what ``replay.Costs`` is made of.
    """
    tokens = [int(t) for t in torch.randint(1000, 2000, (prefix,), generator=torch.Generator().manual_seed(0))]
    drafts, rows = {name: head_drafts.load(name, pair.target) for name in names}, []
    layers = sorted({layer for draft in drafts.values() for layer in draft.hidden_layers})
    for _ in tqdm(range(repetitions), desc="cost curves", disable=assets.QUIET):
        target = Target(pair.target, hidden_layers=layers)
        hidden = target.prefill(tokens[:-1])
        for n in sizes:
            tree = TokenTree([tokens[-1], *range(1000, 1000 + n)], [-1] + [0] * n)
            for name, draft in drafts.items():
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


class Watched:
    """A draft model whose forwards are timed: their seconds, and the nodes each expanded, since the last ``take``."""

    def __init__(self, draft_model: DraftModel):
        self.inner, self.seconds, self.sizes = draft_model, 0.0, []
        self.hidden_layers, self.ids, self.max_depth = draft_model.hidden_layers, draft_model.ids, draft_model.max_depth
        self.begin, self.commit = draft_model.begin, draft_model.commit

    def expand(self, tree: TokenTree, nodes: Sequence[int]) -> Tensor:
        logits, seconds = timed(partial(self.inner.expand, tree, nodes))
        self.seconds += seconds
        self.sizes.append(len(nodes))
        return logits

    def take(self) -> tuple[float, list[int]]:
        taken = self.seconds, self.sizes
        self.seconds, self.sizes = 0.0, []
        return taken


def building_costs(
    pair: models.Pair,
    name: str,
    rules: Mapping[str, growth.Growth],
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int,
) -> pd.DataFrame:
    """Milliseconds of building trees outside the draft model's forwards, by rule, on the steps of real decoding.

    One row per rule: forwards a step, and medians over steps of what a forward takes in the draft model ("draft")
    and around it ("building": laws, children, scores, the rule's own choices). First steps hold the prefill and are
    left out, and so is the end of a text, where nothing is drafted.
    """
    rows, target = [], Target(pair.target)
    watched = Watched(head_drafts.load(name, pair.target))
    for prompt, (rule, growing) in tqdm(list(product(prompts, rules.items())), disable=assets.QUIET):
        drafter = TreeDrafter(watched, growing)
        for step in steps(target, drafter, verifiers.greedy, prompt, max_new_tokens=max_new_tokens):
            seconds, sizes = watched.take()
            forwards = len(sizes)
            if step.index and forwards:
                rows.append(
                    (rule, forwards, 1000 * seconds / forwards, 1000 * (step.seconds["draft"] - seconds) / forwards)
                )
    table = pd.DataFrame(rows, columns=["rule", "forwards", "draft", "building"]).groupby("rule", sort=False)
    return table.agg({"forwards": "mean", "draft": "median", "building": "median"}).reset_index()


def memory(
    pair: models.Pair, drafters: Mapping[str, Drafter], prompt: Sequence[int], *, max_new_tokens: int, every: int = 50
) -> pd.DataFrame:
    """MB in use while long texts are written, one drafter after the other: what grows, and what the KV cache has of it.

    One row per (method, tokens written): resident, and cache, the KV cache's own buffers. End tokens are text.
    """
    rows, target = [], Target(pair.target)
    for name, drafter in drafters.items():
        written, options = 0, {"max_new_tokens": max_new_tokens, "eos": ()}
        for step in tqdm(steps(target, drafter, verifiers.greedy, prompt, **options), desc=name, disable=assets.QUIET):
            written += len(step.tokens)
            if written // every > (written - len(step.tokens)) // every:
                rows.append((name, written, resident(), target.cache.nbytes / 1e6))
    return pd.DataFrame(rows, columns=["method", "tokens", "resident", "cache"])
