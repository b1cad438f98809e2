"""Recipes: how each head is trained, by name, from the table data/heads.toml, which says what the fields mean."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from transformers import PreTrainedModel

from specnb.heads import Spec
from specnb.models import files
from training import losses
from training.loop import Schedule
from training.writing import Dialogue

TABLE = tomllib.loads(files.in_checkout(files.DATA / "heads.toml").read_text("utf-8"))


@dataclass(frozen=True)
class Recipe:
    """One row of the table, with a seed."""

    kind: str
    by: Mapping[str, object]
    hidden_layer: int | None = None
    fused: Sequence[float] = ()
    count: int = 1
    parent: str | None = None
    epochs: int = 3
    lr: float = Schedule.lr
    batch: int = Schedule.batch_tokens
    tokens: int = 0
    roots: int = 0
    trees: int = 0
    seed: int = 0

    @property
    def loss(self) -> losses.Loss:
        return partial(getattr(losses, self.by["loss"]), **{name: v for name, v in self.by.items() if name != "loss"})

    def layers(self, model: PreTrainedModel) -> set[int]:
        """The target's states that training takes: those that are read, and the last, which is to be predicted."""
        return set() if self.kind == "vdm" else {*self.spec(model).layers, -1}

    def spec(self, model: PreTrainedModel) -> Spec:
        """What its head is made of, beside this target: it reads no deeper layer than there are."""
        depth = model.config.get_text_config().num_hidden_layers
        layer = self.hidden_layer and max(self.hidden_layer, -depth)
        fused = tuple(round(share * depth) - depth - 1 for share in self.fused)
        return Spec.like(model, self.kind, hidden_layer=layer, count=self.count, fused=fused)

    @property
    def schedule(self) -> Schedule:
        return Schedule(epochs=self.epochs, lr=self.lr, batch_tokens=self.batch, seed=self.seed)

    def text(self, dialogues: Sequence[Dialogue]) -> Sequence[Dialogue]:
        """The first of these dialogues, as many as the recipe takes."""
        ends = np.cumsum([len(dialogue.answer) for dialogue in dialogues])
        return dialogues[: 1 + int(np.searchsorted(ends, self.tokens))] if self.tokens else dialogues


def named(name: str) -> Recipe:
    """A recipe by name, "edd_no_kl", or with another seed than 0, "edd_no_kl-1"; ValueError if there is none."""
    bare, dash, seed = name.partition("-")
    if bare not in TABLE or (dash and not seed.isdigit()):
        raise ValueError(f"unknown head {name!r}: known are {', '.join(TABLE)}, and each with a seed, {bare}-1")
    return Recipe(**_row(bare), seed=int(seed or 0))


def _row(name: str) -> dict[str, object]:
    """A row of the table on top of the one it is like."""
    row = dict(TABLE[name])
    return _row(row.pop("like")) | row if "like" in row else row
