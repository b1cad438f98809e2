"""Notebook 01's cells: real runs of methods that need no trained draft, by PTD's measures, and how alike branches are.

A method is a name with settings, as in "ptd children=2 expand=topk", "lookahead window=7" or "self_draft corpus=own"
(``methods.named``).
"""

from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import pandas as pd

from specnb import costs, growth, measures, methods, metrics, racing, verifiers
from specnb.drafters import Drafter, ProgressiveDrafter, SelfDrafter, TreeDrafter
from specnb.tree import Draft, Drawn

RETRIEVAL = ("DE", "HR", "AL", "Dft", "Ver")
METHODS_RESULTS = (*measures.DECODED, *RETRIEVAL, "ids")
SIMILARITIES = {"aligned": metrics.aligned, "overlap": metrics.overlap}
NAMES = {
    "plain": "generate",
    "spede": "SpeDe (VDM)",
    "lookahead window=15 level=5 guesses=15": "lookahead 15",
    "lookahead window=7 level=5 guesses=7": "lookahead 7",
    "self_draft": "Self-Draft",
    "self_draft corpus=own": "Self-Draft, corpus",
    "ptd chained=False": "PTD",
    "ptd chained=True": "PTD, chained",
}
ROUGE = {"Rouge-1": "rouge1", "Rouge-2": "rouge2", "Rouge-L": "rougeL"}
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
BRANCHES_RESULTS = (
    "branches",
    "repeated",
    *(f"{kind} {name} {least}" for name in SIMILARITIES for kind in ("steps", "share") for least in THRESHOLDS),
)


def run(method: str, prompt: str, temperature: float, length: int, seed: int) -> dict[str, object]:
    """One real timed run: "plain" (transformers' generate), "spede" (VDM, chains of 5) or a self-drafter.

    Results: those of ``measures.decoded``, PTD's measures (``metrics.retrieval``; none for plain) and the ids.
    """
    if method == "plain":
        tokens, times = measures.plain_run(prompt, temperature, length, seed)
        return {**dict.fromkeys(RETRIEVAL), **times, "ids": " ".join(map(str, tokens))}
    _warm(method)
    verifier = verifiers.greedy if not temperature else verifiers.rrs if method == "spede" else verifiers.one_hot
    out, times = measures.timed_run(_drafter(method, temperature), verifier, prompt, temperature, length, seed)
    return {**times, **metrics.retrieval(out.steps), "ids": " ".join(map(str, out.tokens))}


def _drafter(method: str, temperature: float) -> Drafter:
    if method != "spede":
        return methods.named(method, measures.pair("bfloat16"))
    draft = measures.draft("vdm", "bfloat16")
    return TreeDrafter(draft, growth.chain(5), Drawn.IID if temperature else Drawn.POINT)


@cache
def _warm(method: str) -> None:
    """A first short run, whose forwards are slow."""
    measures.timed_run(_drafter(method, 0.0), verifiers.greedy, "conversation-01", 0.0, 12)


def alike(method: str, prompt: str, length: int) -> dict[str, float]:
    """How alike a greedy run's branches are, step by step (PTD's Figure 1b), by two similarities.

    Per similarity and threshold: "steps", the share of steps in which at least two branches are that similar, and
    "share", that of branches with such a partner. Self-Draft's branches are looked at without their prefixes. PTD's
    share beginnings, which are computed once and yet alike: "repeated" is the share of draft nodes whose token has
    been drafted behind the same token in the same step before. Steps in which the window or tree may still fill are
    left out. ValueError on drafters without branches.
    """
    drafter = methods.named(method, measures.pair("bfloat16"))
    if not isinstance(drafter, ProgressiveDrafter | SelfDrafter):
        raise ValueError(f"{method!r} has no branches to compare: alike looks at ptd and self_draft")
    out, _ = measures.timed_run(drafter, verifiers.greedy, prompt, 0.0, length)
    tail, full = (drafter.levels if isinstance(drafter, SelfDrafter) else None), out.steps[drafter.reach :]
    found = [metrics.branches(step.draft, tail) for step in full]
    row = {"branches": float(np.mean([len(step) for step in found]))}
    row["repeated"] = float(np.mean([metrics.repeated(step.draft) for step in full]))
    for name, similarity in SIMILARITIES.items():
        best = [metrics.likeness(step, similarity) for step in found]
        for least in THRESHOLDS:
            high = [values >= least - 1e-9 for values in best]
            row[f"steps {name} {least}"] = float(np.mean([values.any() for values in high]))
            row[f"share {name} {least}"] = float(np.mean(np.concatenate(high)))
    return row


class Watched:
    """A drafter whose milliseconds are noted step by step, as (propose, observe)."""

    def __init__(self, drafter: Drafter):
        self.inner, self.hidden_layers, self.begin = drafter, (), drafter.begin
        self.reach = getattr(drafter, "reach", 0)
        self.milliseconds: list[tuple[float, float]] = []

    def propose(self, *args) -> Draft:
        draft, self.seconds = costs.timed(partial(self.inner.propose, *args))
        return draft

    def observe(self, *args) -> None:
        after = costs.timed(partial(self.inner.observe, *args))[1]
        self.milliseconds.append((1000 * self.seconds, 1000 * after))


def bookkeeping(method: str, prompt: str, length: int) -> dict[str, float]:
    """What a greedy run spends beside the model, in ms: medians over the steps after the first four.

    propose: retrieving the candidates and laying out the tree. observe: reading the draft tokens off the logits,
    growing and pruning the draft tree or window, merging into the pool. forward: the target's own.
    """
    drafter = Watched(methods.named(method, measures.pair("bfloat16")))
    out, _ = measures.timed_run(drafter, verifiers.greedy, prompt, 0.0, length)
    propose, observe = np.median(drafter.milliseconds[4:], axis=0)
    forward = np.median([1000 * step.seconds["target"] for step in out.steps[4:]])
    return {"propose": float(propose), "observe": float(observe), "forward": float(forward)}


LOOKS = {"alike": (alike, BRANCHES_RESULTS), "bookkeeping": (bookkeeping, ("propose", "observe", "forward"))}


def resemblance(texts: Sequence[str], others: Sequence[str]) -> dict[str, float]:
    """ROUGE-1, -2, -L (F1, rouge-score) and BLEU (sacrebleu, corpus) of texts against others, in percent (Table 2)."""
    from rouge_score.rouge_scorer import RougeScorer  # of the extra "lab": only notebook 01 asks for them
    from sacrebleu import corpus_bleu

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])
    scores = [scorer.score(other, text) for text, other in zip(texts, others, strict=True)]
    found = {name: 100 * float(np.mean([score[key].fmeasure for score in scores])) for name, key in ROUGE.items()}
    return {**found, "BLEU": corpus_bleu(list(texts), [list(others)]).score}


# ---- reading what was recorded ------------------------------------------------------------------------------


def load(name: str) -> pd.DataFrame:
    """A recorded sweep of ``run``: methods by the names of NAMES, and columns domain and token/s.

    Raises ValueError if a cell failed: a mean over the rest would hide it.
    """
    table = racing.load(name)
    if failed := int((table["status"] != "ok").sum()):
        raise ValueError(f"{failed} cells of {name} failed: measure them again with --retry")
    return table.assign(method=table["method"].replace(NAMES))


def speed_ups(table: pd.DataFrame, baseline: str = "generate") -> pd.DataFrame:
    """Per method: median token/s, and the median speed-up paired by prompt with its bootstrap interval."""
    wide, rows = table.pivot_table(index="prompt", columns="method", values="token/s"), {}
    for name in wide:
        ratio = (wide[name] / wide[baseline]).rename("ratio").reset_index()
        low, high = metrics.interval(lambda part: part["ratio"].median(), ratio, "prompt")
        rows[name] = {"token/s": wide[name].median(), "speed-up": ratio["ratio"].median(), "low": low, "high": high}
    return pd.DataFrame(rows).T.sort_values("speed-up", ascending=False)


def difference(table: pd.DataFrame, measure: str, first: str, second: str) -> tuple[float, float, float]:
    """Mean difference of two methods over the prompts that both have, and its bootstrap interval."""
    wide = table.pivot_table(index="prompt", columns="method", values=measure)
    apart = (wide[first] - wide[second]).dropna().rename("d").reset_index()
    return (float(apart["d"].mean()), *metrics.interval(lambda part: part["d"].mean(), apart, "prompt"))


def budget_for(points: pd.DataFrame, efficiency: float) -> float:
    """Tokens per step (column budget) that buy a DE, between measured sizes; nan if none of them gets there."""
    best = points.sort_values("budget").assign(DE=lambda table: table["DE"].cummax()).drop_duplicates("DE")
    return float(np.interp(efficiency, best["DE"], best["budget"], left=best["budget"].iloc[0], right=np.nan))


def same_text(method: str, prompt: str, length: int, positions: bool) -> dict[str, object]:
    """The greedy float32 text of a self-drafter beside plain decoding's: see ``measures.compare_text``."""
    return measures.compare_text(method, methods.named(method, measures.pair("float32")), prompt, length, positions)
