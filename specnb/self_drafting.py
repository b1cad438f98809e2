"""Notebook 01's cells: real runs of methods that need no trained draft, by PTD's measures, and how alike branches are.

A method is a name with settings, as in "ptd children=2 expand=topk", "lookahead window=7" or "self_draft corpus=own".
"""

from functools import cache
from inspect import signature

import numpy as np

from specnb import growth, measures, metrics, prompts, verifiers
from specnb.drafters import (
    Corpus,
    Drafter,
    LookaheadDrafter,
    NgramDrafter,
    ProgressiveDrafter,
    SelfDrafter,
    TreeDrafter,
)
from specnb.tree import Drawn

DRAFTERS = {
    "ptd": ProgressiveDrafter,
    "self_draft": SelfDrafter,
    "lookahead": LookaheadDrafter,
    "ngram": NgramDrafter,
}
RETRIEVAL = ("DE", "HR", "AL", "Dft", "Ver")
METHODS_RESULTS = (*measures.DECODED, *RETRIEVAL, "ids")
SIMILARITIES = {"aligned": metrics.aligned, "overlap": metrics.overlap}
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
BRANCHES_RESULTS = (
    "branches",
    *(f"{kind} {name} {least}" for name in SIMILARITIES for kind in ("steps", "share") for least in THRESHOLDS),
)


def named(method: str) -> Drafter:
    """A drafter by its name and settings; ValueError on names and settings without sense.

    "self_draft corpus=own" reads the own prompts, all but their answers, as its corpus.
    """
    kind, *words = method.split()
    if kind not in DRAFTERS:
        raise ValueError(f"unknown drafter {kind!r}: known are {', '.join(DRAFTERS)}")
    known = set(signature(DRAFTERS[kind]).parameters)
    settings: dict[str, object] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if name not in known or not equals:
            raise ValueError(f"{method!r}: {word!r} is no setting of {kind}, which has {', '.join(sorted(known))}")
        settings[name] = _value(text)
    if settings.get("corpus") == "own":
        settings["corpus"] = own_texts()
    return DRAFTERS[kind](**settings)


def _value(text: str) -> object:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.lstrip("-").isdigit() else text


@cache
def own_texts() -> Corpus:
    """The own prompt set's texts as a corpus: the one Self-Draft's authors used was not published."""
    return Corpus(measures.pair("bfloat16").encode(text) for text in prompts.load("own")["text"])


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
        return named(method)
    draft = measures.draft("vdm", "bfloat16")
    return TreeDrafter(draft, growth.chain(5), Drawn.IID if temperature else Drawn.POINT)


@cache
def _warm(method: str) -> None:
    """A first short run, whose forwards are slow."""
    measures.timed_run(_drafter(method, 0.0), verifiers.greedy, "conversation-01", 0.0, 12)


def alike(method: str, prompt: str, length: int) -> dict[str, float]:
    """How alike a greedy run's branches are, step by step (PTD's Figure 1b), by two similarities.

    Per similarity and threshold: "steps", the share of steps in which at least two branches are that similar, and
    "share", that of branches with such a partner. Self-Draft's branches are looked at without their random prefixes.
    Steps in which the window or tree still fills, the first four, are left out.
    """
    out, _ = measures.timed_run(named(method), verifiers.greedy, prompt, 0.0, length)
    tail = 4 if method.startswith("self_draft") else None
    found = [metrics.branches(step.draft, tail) for step in out.steps[4:]]
    row = {"branches": float(np.mean([len(step) for step in found]))}
    for name, similarity in SIMILARITIES.items():
        best = [metrics.likeness(step, similarity) for step in found]
        for least in THRESHOLDS:
            high = [values >= least - 1e-9 for values in best]
            row[f"steps {name} {least}"] = float(np.mean([values.any() for values in high]))
            row[f"share {name} {least}"] = float(np.mean(np.concatenate(high)))
    return row


def same_text(method: str, prompt: str, length: int, positions: bool) -> dict[str, object]:
    """The greedy float32 text of a self-drafter beside plain decoding's: see ``measures.compare_text``."""
    return measures.compare_text(method, named(method), prompt, length, positions)
