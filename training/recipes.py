"""How each draft head is trained: ``TABLE`` has one recipe per name.

``named("eagle")`` returns a recipe, ``named("eagle-1")`` the same recipe with seed 1. To train a head of your own, add
an entry to TABLE and run ``python -m training train NAME``.

A draft head is a small network that drafts tokens for a large language model, the target. The target's own weights
are never trained. Hidden states are counted from the end, as in ``heads.Spec``: −1 is the target's last state. The
names in the table begin with the method:

vdm     VDM, the "vanilla draft model" of the EDD paper (the idea: Leviathan et al. 2023): a small Llama of its own
        that reads tokens only
medusa  Medusa (Cai et al. 2024): one small block per future token, all on the target's last state
eagle   EAGLE (Li et al. 2024): one decoder layer that predicts the next last state from a token and the state before
        it
hass    HASS (Zhang et al. 2025): an eagle that is also trained on states that it predicted itself
talf    TALF (the SALF & TALF paper): an eagle that is trained on small trees of the target's likely tokens
eagle3  EAGLE-3 (Li et al. 2025): one decoder layer that reads three states of the target at once and is trained on
        what it predicted itself
edd     EDD, the "effective draft decoder" (Zheng and Wang 2025): one decoder layer that attends to the target's states
        of the text and to the tokens drafted since
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
    """How one head is trained: which module, with which loss, on how much text, for how long.

    The training text consists of dialogues: a question and an answer each, both written by the target. Some losses
    draft only after a few randomly chosen tokens of each answer, the roots. Recipes with the same ``tokens`` and the
    same ``roots`` draft after the same tokens, with any seed, so that their heads can be compared.
    """

    # The module and its loss
    kind: str  # the module's class in ``heads.MODULES``: "vdm", "medusa", "eagle", "eagle3" or "edd"
    loss_function: Callable[..., Tensor]  # a function of ``losses``, of the type ``losses.Loss``
    loss_options: Mapping[str, object] = field(default_factory=dict)  # that function's keyword arguments
    hidden_layer: int | None = None  # which of the target's states the head reads; None: none, or those of ``fused``
    fused: Sequence[float] = ()  # eagle3: the depths of the states that it reads; 0.5 is after half of the layers
    count: int = 1  # vdm: number of decoder layers; medusa: number of blocks, which is how many tokens it drafts
    parent: str | None = None  # the name of the trained head whose weights training begins with

    # The schedule
    epochs: int = 3  # at most: training stops early when the validation loss no longer falls
    lr: float = Schedule.lr  # the highest learning rate
    batch: int = Schedule.batch_tokens  # tokens per training step at most, padding included

    # The text
    tokens: int = 0  # take dialogues until their answers have this many tokens together; 0: take all dialogues

    # What is drafted in training
    roots: int = 0  # number of roots per dialogue; 0: draft after every token of the answer
    trees: int = 0  # nodes on each of the two levels of the tree that the target builds below a root; 0: no trees
    seed: int = 0  # of the first weights, the order of the batches and the noise

    def loss(self, *parts: object) -> Tensor:
        """The loss of a batch. parts: head, frozen weights, batch and generator, as ``losses.Loss`` takes them."""
        return self.loss_function(*parts, **self.loss_options)

    def terms(self) -> dict[str, object]:
        """The recipe as the head's card records it: every field by name, and the loss with its options as "by"."""
        terms = {"kind": self.kind, "by": {"loss": self.loss_function.__name__, **self.loss_options}}
        for name, value in asdict(self).items():
            if name not in ("kind", "loss_function", "loss_options"):
                terms[name] = value
        return terms

    def layers(self, model: PreTrainedModel) -> set[int]:
        """Which of the target's states training needs: those that the head reads, and the last, which it predicts."""
        if self.kind == "vdm":
            return set()  # it reads tokens only, and its loss needs the target's distributions but not its states
        read = self.spec(model).layers
        return {*read, -1}

    def spec(self, model: PreTrainedModel) -> Spec:
        """The sizes of the head for this target, and which states it reads.

        Example: for a target of 30 layers, a depth of 0.5 in ``fused`` means the state after layer 15. Of the 31
        states, the first of which is the embedding, it is number 16, or −16 from the end.
        """
        depth = model.config.get_text_config().num_hidden_layers
        layer = self.hidden_layer
        if layer is not None:
            layer = max(layer, -depth)  # a shallower target: the state after its first layer
        fused = []
        for share in self.fused:
            layers_below = round(share * depth)
            fused.append(layers_below - depth - 1)  # hidden_states has depth + 1 entries
        return Spec.like(model, self.kind, hidden_layer=layer, count=self.count, fused=tuple(fused))

    @property
    def schedule(self) -> Schedule:
        """The part of the recipe that the training loop needs."""
        return Schedule(epochs=self.epochs, lr=self.lr, batch_tokens=self.batch, seed=self.seed)

    def text(self, dialogues: Sequence[Dialogue]) -> Sequence[Dialogue]:
        """The dialogues that are used: the first ones, until their answers have ``tokens`` tokens together.

        Example: the answers have 5, 3 and 4 tokens. A recipe of 7 tokens takes the first two, which have 8.
        """
        if self.tokens == 0:
            return dialogues
        answer_lengths = [len(dialogue.answer) for dialogue in dialogues]
        totals = np.cumsum(answer_lengths)  # [i]: answer tokens in the dialogues 0 to i
        last = int(np.searchsorted(totals, self.tokens))  # the first i with totals[i] >= tokens
        return dialogues[: last + 1]


# ---- the heads that are used for drafting -------------------------------------------------------------------------

VDM = Recipe("vdm", losses.vdm_loss, count=2, epochs=2, batch=1024, lr=7e-4)
MEDUSA = Recipe("medusa", losses.medusa_loss, hidden_layer=-1, count=4, epochs=2)
EAGLE = Recipe("eagle", losses.eagle_loss, hidden_layer=-1)
HASS = Recipe("eagle", losses.hass_loss, hidden_layer=-1, parent="eagle", epochs=1, batch=1024, lr=3e-4)
EDD = Recipe("edd", losses.edd_loss, hidden_layer=-4, batch=1024, lr=7e-4)

# No paper here is about EAGLE-3. It is trained on four of its own predictions in a row, where its authors take seven.
EAGLE_3 = Recipe(
    "eagle3", losses.eagle3_loss, loss_options={"depth": 4}, fused=[0.1, 0.5, 0.9], epochs=2, tokens=1_000_000
)

# ---- EAGLE, HASS and TALF on equal terms --------------------------------------------------------------------------
# All three begin with the weights of "eagle" and see the same text and roots: eagle_roots, hass_roots and talf differ
# in their loss alone. The head that is used as HASS, above, sees all text, and drafts after every token of an answer.

HASS_ROOTS = replace(HASS, batch=512, lr=2e-4, tokens=1_000_000, roots=16)
EAGLE_ROOTS = replace(HASS_ROOTS, loss_function=losses.eagle_loss)
TALF = replace(HASS_ROOTS, loss_function=losses.talf_loss, trees=4)

# ---- controls of EDD ----------------------------------------------------------------------------------------------
# All see the same smaller text. Each differs from EDD_SMALL in one thing, except "vdm_one": a VDM with one layer, as an
# edd has.

EDD_SMALL = replace(EDD, batch=512, lr=5e-4, tokens=1_000_000)

TABLE: dict[str, Recipe] = {
    "vdm": VDM,
    "medusa": MEDUSA,
    "eagle": EAGLE,
    "edd": EDD,
    "eagle3": EAGLE_3,
    "hass": HASS,
    "hass_roots": HASS_ROOTS,
    "eagle_roots": EAGLE_ROOTS,
    # The width of TALF's trees, k in the paper. "talf" has k = 4 and is the one that is used for drafting.
    "talf": TALF,
    "talf_k2": replace(TALF, trees=2),
    "talf_k1": replace(TALF, trees=1),
    # How much more text helps: EAGLE on 200 thousand to a million answer tokens. Less text gets more epochs.
    "eagle_200k": replace(EAGLE, epochs=8, tokens=200_000),
    "eagle_600k": replace(EAGLE, epochs=8, tokens=600_000),
    "eagle_1000k": replace(EAGLE, tokens=1_000_000),
    # The paper's ablations of EDD's training.
    "edd_small": EDD_SMALL,
    "edd_no_kl": replace(EDD_SMALL, loss_options={"labels": True}),  # learns the text's next token, not p
    "edd_no_random": replace(EDD_SMALL, loss_options={"lengths": [5, 5]}),  # every block has 5 tokens, not 5 to 10
    "edd_no_encoding": replace(EDD_SMALL, hidden_layer=None),  # reads tokens, no states of the target
    "vdm_one": replace(VDM, epochs=3, batch=512, lr=5e-4, count=1, tokens=1_000_000),
    # Which state EDD reads, counted from the end: edd_layer8 reads state −8. (EDD itself reads −4.)
    "edd_layer1": replace(EDD_SMALL, hidden_layer=-1),
    "edd_layer8": replace(EDD_SMALL, hidden_layer=-8),
    "edd_layer15": replace(EDD_SMALL, hidden_layer=-15),
    "edd_layer22": replace(EDD_SMALL, hidden_layer=-22),
}


def named(name: str) -> Recipe:
    """The recipe of this name. "edd_no_kl-1" is "edd_no_kl" with seed 1; without a number the seed is 0.

    Raises ValueError if the table has no such name or if the seed is not a number.
    """
    bare_name, dash, seed = name.partition("-")
    seed_is_readable = not dash or seed.isdigit()
    if bare_name not in TABLE or not seed_is_readable:
        raise ValueError(f"unknown head {name!r}: known are {', '.join(TABLE)}, another seed is NAME-1, as in vdm-1")
    return replace(TABLE[bare_name], seed=int(seed or 0))
