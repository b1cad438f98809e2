"""What a step reads off the device, counted on the CPU: a handful of numbers, never a row of the vocabulary.

Whatever a model puts out is marked, as is all that is computed from it; a read is what a GPU would have to wait for.
"""

import pytest
import tiny_heads
import torch
from tiny import any_path, llama, near_copy
from torch import Tensor

from specnb import decode as loop
from specnb import growth, heads, verifiers
from specnb.drafters import (
    AutoDrafter,
    CausalLMDraft,
    LookaheadDrafter,
    MergedDrafter,
    NgramDrafter,
    ProgressiveDrafter,
    RetrievalDrafter,
    SelfDrafter,
    TreeDrafter,
)
from specnb.sampling import Warp
from specnb.target import Target
from specnb.tree import Draft, Drawn

V, REDUCED = 512, 256  # tokens of the target, of heads
PROMPT = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
TAKEN = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__", "__array__")
TAKEN = {getattr(Tensor, name) for name in TAKEN} | {torch.nonzero}
BESIDE = ("index_fill", "index_fill_", "index_select", "gather", "scatter", "index_copy_", "index_add_", "take")
BESIDE = {getattr(Tensor, name) for name in BESIDE}


class Marked(Tensor):
    """A tensor that would live on the device. Reading it is noted: (bytes, elements) of each read.

    An index of the host's is refused by the functions that a GPU gives only indices of its own.
    """

    reads: list[tuple[int, int]] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        index = args[1] if func is Tensor.__getitem__ else None
        taken = args[0] if func in TAKEN else index if type(args[0]) is Tensor and isinstance(index, Marked) else None
        if taken is not None:
            cls.reads.append((taken.nbytes, taken.numel()))
            with torch._C.DisableTorchFunctionSubclass():
                args = [arg.as_subclass(Tensor) if isinstance(arg, Marked) else arg for arg in args]
                return func(*args, **(kwargs or {}))
        if func in BESIDE and any(type(arg) is Tensor for arg in args):
            raise RuntimeError(f"{func.__name__} of a tensor on the device by an index on the host")
        return super().__torch_function__(func, types, args, kwargs or {})


def mark(value):
    return value.as_subclass(Marked)


class MarkedTarget(Target):
    """A Target whose scores are marked."""

    def _run(self, *args, **kwargs):
        scores = super()._run(*args, **kwargs)
        return type(scores)(mark(scores.logits), {layer: mark(rows) for layer, rows in scores.hidden.items()})


def marked(draft):
    """The draft model with marked logits; each call is a level."""
    draft.levels, expand = 0, draft.expand

    def counted(tree, frontier):
        draft.levels += 1
        return mark(expand(tree, frontier))

    draft.expand = counted
    return draft


TARGET = llama(vocab_size=V)
OTHER = near_copy(TARGET)


@pytest.fixture(autouse=True)
def _reduced(monkeypatch):
    monkeypatch.setattr(tiny_heads, "IDS", torch.arange(0, V, V // REDUCED))
    monkeypatch.setattr(Draft, "ids_there", property(lambda draft: mark(draft.ids)))


def head(kind: str):
    return heads.draft_model(*tiny_heads.make(TARGET, *tiny_heads.KINDS[kind]))


MODELS = {kind: (lambda kind=kind: head(kind)) for kind in tiny_heads.KINDS}
MODELS["causal"] = lambda: CausalLMDraft(OTHER)
LEARNERS = {"ptd": ProgressiveDrafter, "lookahead": LookaheadDrafter, "self_draft": SelfDrafter}
LOOKED_UP = {"plain": loop.PlainDrafter, "ngram": NgramDrafter, "retrieval": RetrievalDrafter}
RULES = {
    "chain": growth.chain(3), "kary": growth.kary(2, 3), "dynatree": growth.DynaTree(4, 2, 0.01),
    "cape": growth.Cape(3), "eagle2": growth.Eagle2(8, 3, 3), "pct": growth.Pct(0.05, 3, 4),
    "paying": growth.Paying(growth.Eagle2(8, 4, 3), (0.1, 0.15, 0.2)), "salf": growth.Salf(6, 3, 0.1, 5, depth=4),
    "specexec": growth.SpecExec(6, 3, 3), "opt": growth.OptTree(6, 0.1, 3, 5),
}  # fmt: skip


def counted(drafter, model, verifier, temperature: float, tokens: int = 24) -> list[dict]:
    """Reads, bytes and largest read of each step; drawn: children drawn; rejected: those the verifier rejected."""
    Marked.reads, found, levels = [], [], 0
    options = {"max_new_tokens": tokens, "temperature": temperature, "eos": ()}
    for step in loop.steps(MarkedTarget(TARGET), drafter, verifier, PROMPT, **options):
        reads, Marked.reads = Marked.reads, []
        level, levels = (model.levels - levels, model.levels) if model else (0, 0)
        bytes_read, largest = sum(size for size, _ in reads), max((count for _, count in reads), default=0)
        row = {"reads": len(reads), "bytes": bytes_read, "largest": largest, "levels": level}
        drawn = 0 if step.draft.drawn is Drawn.POINT else len(step.draft.tree) - 1
        found.append(
            row
            | {
                "drawn": drawn,
                "rejected": sum(not trial.accepted for trial in step.verdict.trials),
                "accepted": len(step.verdict.path),
                "of": len(step.draft.tree),
            }
        )
    return found


@pytest.mark.parametrize("verifier", ["greedy", "by_draw"])
@pytest.mark.parametrize("name", [*MODELS, *LEARNERS, *LOOKED_UP, *RULES, "merged", "auto"])
def test_greedy_steps_read_two_tensors_and_one_a_level(name, verifier):
    """One more for drafters that learn from the target's logits, where the verifier takes two (by_draw: one_hot)."""
    model = None
    if name == "auto":
        model = marked(CausalLMDraft(OTHER))
        drafter = AutoDrafter(model, [1.0 + 0.05 * n for n in range(12)], [0.1] * 4, RetrievalDrafter())
    elif name in MODELS or name in RULES or name == "merged":
        model = marked(MODELS.get(name, MODELS["causal"])())
        drafter = TreeDrafter(model, RULES.get(name, growth.kary(2, 3)))
        drafter = MergedDrafter(drafter, NgramDrafter()) if name == "merged" else drafter
    else:
        drafter = (LEARNERS | LOOKED_UP)[name]()
    steps = counted(drafter, model, verifiers.BY_NAME[verifier], 0.0)
    more = name in LEARNERS and verifier == "by_draw"
    for step in steps:
        assert step["reads"] <= 2 + more + step["levels"]
        assert step["bytes"] < 64 * 1024
        assert step["largest"] < REDUCED
    assert all(step["reads"] for step in steps)  # the counter counts


SAMPLED = {
    "rrs": Drawn.IID, "rrsw": Drawn.SWOR, "traversal": Drawn.SWOR, "block": Drawn.IID, "one_hot": Drawn.POINT,
    "sample_and_match": Drawn.POINT, "token_level": Drawn.IID,
}  # fmt: skip


@pytest.mark.parametrize("verifier", SAMPLED)
@pytest.mark.parametrize("name", MODELS)
def test_sampled_steps_read_two_scalars_more_for_what_is_drawn_or_rejected(name, verifier):
    """Beside these two tensors and one a level, as in greedy steps."""
    model = marked(MODELS[name]())
    shape = growth.chain(3) if verifier in ("block", "token_level") else growth.kary(2, 2)
    drafter = TreeDrafter(model, shape, SAMPLED[verifier])
    for step in counted(drafter, model, verifiers.BY_NAME[verifier], 1.0):
        assert step["reads"] <= 2 + step["levels"] + 2 * (step["drawn"] + step["rejected"])
        assert step["bytes"] < 64 * 1024
        assert step["largest"] < REDUCED  # no row, not even of the reduced vocabulary


@pytest.mark.parametrize("name", MODELS)
def test_of_an_accepted_path_nothing_more_is_read(name):
    """Neither its tokens nor the states that a head takes over."""
    model = marked(MODELS[name]())
    steps = counted(TreeDrafter(model, growth.kary(2, 3)), model, any_path, 1.0)
    for step in steps:
        assert step["reads"] <= 2 + step["levels"]
    assert sum(step["accepted"] for step in steps) > len(steps)


@pytest.mark.parametrize("name", [*LEARNERS, "ptd that samples"])
def test_drafters_that_learn_draw_on_the_device(name):
    """Two reads to verify, one for what the target's logits teach, and one more where that is drawn."""
    drafter = LEARNERS[name]() if name in LEARNERS else ProgressiveDrafter(expand="sample")
    for step in counted(drafter, None, verifiers.by_draw, 1.0):
        assert step["reads"] <= 3 + (name not in LEARNERS)
        assert step["largest"] <= step["of"]


def test_a_table_that_is_moved_is_noticed(monkeypatch):
    """Negative control: the first edition copied p to the host, and every level's law."""
    warp = Warp.__call__
    monkeypatch.setattr(Warp, "__call__", lambda self, logits: warp(self, logits).cpu())
    steps = counted(NgramDrafter(), None, verifiers.greedy, 0.0)
    assert any(step["largest"] >= step["of"] * V for step in steps)


def test_an_index_of_the_host_s_is_refused(monkeypatch):
    """Negative control: the first form of traversal, which ran on CPUs only."""
    fill = lambda law, column: law.index_fill(0, torch.tensor(column), 0.0)  # noqa: E731
    monkeypatch.setattr(verifiers.bottom_up, "struck", fill)
    with pytest.raises(RuntimeError, match="index_fill of a tensor on the device"):
        counted(
            TreeDrafter(marked(CausalLMDraft(OTHER)), growth.kary(3, 2), Drawn.SWOR), None, verifiers.traversal, 1.0
        )


@pytest.mark.parametrize("profile", [False, True])
def test_a_gpu_is_waited_for_only_when_asked(profile, monkeypatch):
    waits = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    out = loop.decode(Target(TARGET), NgramDrafter(), verifiers.greedy, PROMPT, max_new_tokens=6, profile=profile)
    assert len(waits) == (2 * (1 + 4 * len(out.steps)) if profile else 0)


def test_the_counter_counts_every_kind_of_read():
    x, Marked.reads = mark(torch.arange(3.0)), []
    bool(x[1]), int(x[1]), float(x[1]), [5, 6, 7][x.long()[1]]
    x.tolist(), x.cpu(), x.numpy(), x[0].item(), x.nonzero(), torch.arange(9)[x.long()]
    assert len(Marked.reads) == 10
    assert type(x + 1) is Marked
    assert type(x.cpu()) is Tensor
