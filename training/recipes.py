"""Recipes: how each head is trained, by name. ``named`` gives one, also with another seed than 0.

A head of one's own is one more entry of ``TABLE``; ``python -m training train NAME`` trains it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from specnb.heads import Spec
from training import losses
from training.loop import Schedule
from training.writing import Dialogue


@dataclass(frozen=True)
class Recipe:
    """How a head is trained: what module, by which loss, on how much text, how fast.

    Heads with the same number of ``roots`` draft at the same rows of a dialogue. What kind, hidden_layer and count
    mean says ``heads.Spec``.
    """

    # The module, and the loss
    kind: str
    loss_function: Callable[..., Tensor]  # one of ``losses``
    loss_options: Mapping[str, object] = field(default_factory=dict)
    hidden_layer: int | None = None
    fused: Sequence[float] = ()  # the states that an eagle3 reads: their depths, as shares of the target's
    count: int = 1
    parent: str | None = None  # the head that training goes on from
    # The schedule
    epochs: int = 3  # at most
    lr: float = Schedule.lr  # the peak of the learning rate
    batch: int = Schedule.batch_tokens  # padded tokens a step, at most
    # The text: dialogues of both corpora in turns
    tokens: int = 0  # until they hold at least so many answer tokens; 0: all
    # Drafts in training
    roots: int = 0  # so many rows of a dialogue carry what is drafted below them; 0: every row
    trees: int = 0  # the width of the trees that the target builds at the roots
    seed: int = 0

    def loss(self, *parts: object) -> Tensor:
        """The loss of a batch: parts are a head, the frozen weights, the batch and a generator."""
        return self.loss_function(*parts, **self.loss_options)

    def terms(self) -> dict[str, object]:
        """What a card says of the recipe: the loss by its name, all else as it is."""
        terms = {"kind": self.kind, "by": {"loss": self.loss_function.__name__, **self.loss_options}}
        for name, value in asdict(self).items():
            if name not in ("kind", "loss_function", "loss_options"):
                terms[name] = value
        return terms

    def layers(self, model: PreTrainedModel) -> set[int]:
        """The target's states that training takes: those that are read, and the last, which is to be predicted."""
        if self.kind == "vdm":
            return set()
        read = self.spec(model).layers
        return {*read, -1}

    def spec(self, model: PreTrainedModel) -> Spec:
        """What its head is made of, beside this target: it reads no deeper layer than there are."""
        depth = model.config.get_text_config().num_hidden_layers
        layer = self.hidden_layer
        if layer is not None:
            layer = max(layer, -depth)
        fused = tuple(round(share * depth) - depth - 1 for share in self.fused)  # half of 30 layers deep is state −16
        return Spec.like(model, self.kind, hidden_layer=layer, count=self.count, fused=fused)

    @property
    def schedule(self) -> Schedule:
        return Schedule(epochs=self.epochs, lr=self.lr, batch_tokens=self.batch, seed=self.seed)

    def text(self, dialogues: Sequence[Dialogue]) -> Sequence[Dialogue]:
        """The first of these dialogues, as many as the recipe takes.

        Example: of answers of 5, 3 and 4 tokens, a recipe of 7 tokens takes the first two, which hold 8.
        """
        if self.tokens == 0:
            return dialogues
        totals = np.cumsum([len(dialogue.answer) for dialogue in dialogues])
        last = int(np.searchsorted(totals, self.tokens))  # the first dialogue with which there are enough
        return dialogues[: last + 1]


# ---- the heads that are trained -----------------------------------------------------------------------------------

VDM = Recipe("vdm", losses.vdm_loss, count=2, epochs=2, batch=1024, lr=7e-4)
MEDUSA = Recipe("medusa", losses.medusa_loss, hidden_layer=-1, count=4, epochs=2)
EAGLE = Recipe("eagle", losses.eagle_loss, hidden_layer=-1)
EDD = Recipe("edd", losses.edd_loss, hidden_layer=-4, batch=1024, lr=7e-4)
# Beyond the papers: EAGLE-3, four forwards deep where its authors train seven, on the text of eagle_1000k.
EAGLE_3 = Recipe(
    "eagle3", losses.eagle3_loss, {"depth": 4}, fused=[0.1, 0.5, 0.9], epochs=2, tokens=1_000_000
)  # fmt: skip
# What is shipped as HASS sees all text at every place; EAGLE, HASS and TALF on the same terms are eagle_roots,
# hass_roots and talf (k = 4, the one that is shipped; 2; 1).
HASS = Recipe("eagle", losses.hass_loss, hidden_layer=-1, parent="eagle", epochs=1, batch=1024, lr=3e-4)
HASS_ROOTS = replace(HASS, batch=512, lr=2e-4, tokens=1_000_000, roots=16)
TALF = replace(HASS_ROOTS, trees=4, loss_function=losses.talf_loss)
# Controls of EDD, all on one smaller text: as it is, its ablations, a language model of one layer, other layers.
EDD_SMALL = replace(EDD, batch=512, lr=5e-4, tokens=1_000_000)

TABLE: dict[str, Recipe] = {
    "vdm": VDM,
    "medusa": MEDUSA,
    "eagle": EAGLE,
    "edd": EDD,
    "eagle3": EAGLE_3,
    "hass": HASS,
    "hass_roots": HASS_ROOTS,
    "eagle_roots": replace(HASS_ROOTS, loss_function=losses.eagle_loss),
    "talf": TALF,
    "talf_k2": replace(TALF, trees=2),
    "talf_k1": replace(TALF, trees=1),
    # What more text buys, beside eagle.
    "eagle_200k": replace(EAGLE, epochs=8, tokens=200_000),
    "eagle_600k": replace(EAGLE, epochs=8, tokens=600_000),
    "eagle_1000k": replace(EAGLE, tokens=1_000_000),
    "edd_small": EDD_SMALL,
    "edd_no_kl": replace(EDD_SMALL, loss_options={"labels": True}),
    "edd_no_random": replace(EDD_SMALL, loss_options={"lengths": [5, 5]}),
    "edd_no_encoding": Recipe("edd", losses.edd_loss, tokens=1_000_000),
    "vdm_one": replace(VDM, epochs=3, batch=512, lr=5e-4, count=1, tokens=1_000_000),
    "edd_layer1": replace(EDD_SMALL, hidden_layer=-1),
    "edd_layer8": replace(EDD_SMALL, hidden_layer=-8),
    "edd_layer15": replace(EDD_SMALL, hidden_layer=-15),
    "edd_layer22": replace(EDD_SMALL, hidden_layer=-22),
}


def named(name: str) -> Recipe:
    """A recipe by name, "edd_no_kl", or with another seed than 0, "edd_no_kl-1"; ValueError if there is none."""
    bare, dash, seed = name.partition("-")
    names_no_seed = dash and not seed.isdigit()
    if bare not in TABLE or names_no_seed:
        raise ValueError(f"unknown head {name!r}: known are {', '.join(TABLE)}, another seed is NAME-1, as in vdm-1")
    return replace(TABLE[bare], seed=int(seed or 0))
