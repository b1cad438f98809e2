"""Methods: what is raced, swept and shown, as one table of Python objects under short names.

A method is transformers' own ``generate`` with some options, a tree that a trained head (or the pair's own draft
model) grows by a rule, or a drafter that needs no trained draft. ``METHODS`` has all that was ever recorded, and all
that the documentation speaks of; a method of one's own is one more entry:

    METHODS["mine"] = Method(head="edd", grow=Pct(0.06))

Commands, recordings and notebooks name methods by their keys in the table. Growth rules are objects of
``specnb.growth``; ``label`` is how recordings spell them, and nothing ever reads such a spelling back.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache

from specnb import drafters, heads, models, verifiers
from specnb.decode import Drafter, PlainDrafter, Verifier
from specnb.drafters import AutoDrafter, DraftModel, MergedDrafter, TreeDrafter
from specnb.drafters.seconds import ForwardSeconds
from specnb.exact import gallery
from specnb.growth import EAGLE_25, DynaTree, Eagle2, Growth, Pct, Salf, Static, chain, kary
from specnb.models import Window, prompts
from specnb.target import output_rows
from specnb.tree import Drawn
from study.paper import EDD_PRICE_7B

Build = Callable[[models.Pair], Drafter]  # a drafter that needs no trained draft, for a pair


# How the target's forwards are run: as transformers runs them; recorded once and replayed, those of the draft, too
# (models.Graphs); with the same bits on any tree (models.Invariant).
USUAL = "usual"
IN_GRAPHS = "in graphs"
INVARIANT = "invariant"


@dataclass(frozen=True)
class Auto:
    """In place of a growth rule: sizes follow this machine's prices and experience (``drafters.AutoDrafter``)."""


@dataclass(frozen=True)
class Method:
    """One way to write a text. It has ``generate``, a ``head`` with ``grow``, or a ``drafter``.

    generate: options of transformers' own generate.
    assistant: whether that drafts with the pair's draft model or, where there is none, with the trained vdm.
    head: a committed head's name, the path of another, or "pair" for the pair's own draft model.
    grow: its growth rule, or Auto().
    temperature: what the head's logits are divided by.
    drawn: how children come about.
    verifier: of drafts at temperatures above 0; at 0 it is the greedy one.
    drafter: what builds a drafter that needs no trained draft.
    look_up: what builds the n-grams or the retrieval whose paths are merged into the head's tree.
    window: of the target's cache.
    forwards: how the target's are run, one of the three above.
    Raises ValueError on parts that do not go together.
    """

    generate: Mapping[str, object] | None = None
    assistant: bool = False
    head: str | None = None
    grow: Growth | Auto | None = None
    temperature: float = 1.0
    drawn: Drawn = Drawn.POINT
    verifier: Verifier = verifiers.by_draw
    drafter: Build | None = None
    look_up: Build | None = None
    window: Window | None = None
    forwards: str = USUAL

    def __post_init__(self):
        sources = [source for source in (self.generate, self.head, self.drafter) if source is not None]
        if len(sources) != 1:
            raise ValueError(f"a method has one of generate, head and drafter, got {self}")
        if isinstance(self.drafter, type):
            name = self.drafter.__name__
            raise ValueError(f"drafter is a function of the pair: Alone({name}), or lambda pair: {name}(…)")
        if self.forwards not in (USUAL, IN_GRAPHS, INVARIANT):
            raise ValueError(f"forwards are {USUAL}, {IN_GRAPHS} or {INVARIANT}, got {self.forwards!r}")
        if not self.temperature > 0:
            raise ValueError(f"a head's temperature is above 0, got {self.temperature}")
        self._check_theirs()
        self._check_head()

    def _check_theirs(self) -> None:
        """ValueError on what transformers' generate cannot have, or it alone."""
        if self.assistant and self.generate is None:
            raise ValueError(f"assistant belongs to generate, got {self}")
        if self.generate is None:
            return
        if self.forwards != USUAL:
            raise ValueError(f"forwards of transformers' own methods are run as transformers runs them, got {self}")
        if self.window is not None:
            raise ValueError(f"window belongs to methods of ours, got {self}")

    def _check_head(self) -> None:
        """ValueError on what only a head's tree can have."""
        if (self.head is None) != (self.grow is None):
            raise ValueError(f"a head needs a growth rule, and a growth rule a head, got {self}")
        if self.head is not None:
            self._check_tree()
            return
        if self.look_up is not None:
            raise ValueError(f"look_up is merged into a head's tree: without a head it is a drafter, got {self}")
        if self.drawn is not Drawn.POINT or self.temperature != 1.0:
            raise ValueError(f"drawn and temperature belong to a head's tree, got {self}")

    def _check_tree(self) -> None:
        """ValueError unless a tree may grow so, be drawn so, and take what is looked up."""
        if isinstance(self.grow, Auto):
            if self.drawn is not Drawn.POINT:
                raise ValueError(f"Auto chooses nodes, it does not draw them: drawn must be POINT, got {self}")
            return
        without_model = TreeDrafter(drafters.TableDraft(None), self.grow, self.drawn)
        if self.look_up is not None:
            MergedDrafter(without_model)

    @property
    def ours(self) -> bool:
        """Whether it runs in our loop, and not in transformers' generate."""
        return self.generate is None


# ---- what builds drafters without a trained draft -----------------------------------------------------------------


@cache
def corpus(pair: models.Pair) -> drafters.Corpus:
    """The own prompts, the one at hand among them, as Self-Draft's corpus: the authors' own is not shipped. Kept."""
    return drafters.Corpus(pair.encode(text) for text in prompts.load("own")["text"])


@cache
def datastore(pair: models.Pair) -> drafters.Datastore:
    """What the embedded target wrote for the training of the heads; once per process."""
    if pair.name != models.EMBEDDED:
        raise ValueError(f"the corpus was written by {models.EMBEDDED}: it says nothing about {pair.name}")
    return drafters.Datastore.of_corpus()


@dataclass(frozen=True)
class Alone:
    """Builds a drafter of this class with these settings, whatever the pair."""

    kind: type
    settings: Mapping[str, object] = field(default_factory=dict)

    def __call__(self, pair: models.Pair) -> Drafter:
        return self.kind(**self.settings)


def ngrams(**settings: object) -> Alone:
    """n-grams of the text so far (``drafters.NgramDrafter``)."""
    return Alone(drafters.NgramDrafter, settings)


def ptd(**settings: object) -> Alone:
    """Progressive Tree Drafting (``drafters.ProgressiveDrafter``)."""
    return Alone(drafters.ProgressiveDrafter, settings)


def lookahead(window: int = 15, **settings: object) -> Alone:
    """Lookahead decoding with as many guesses as its window is wide (``drafters.LookaheadDrafter``).

    15 and n-grams of five tokens are the settings of PTD's Table 4.
    """
    return Alone(drafters.LookaheadDrafter, {"window": window, "level": 5, "guesses": window, **settings})


@dataclass(frozen=True)
class Retrieval:
    """Builds a look-up in what the embedded target wrote (``drafters.RetrievalDrafter``). budget: nodes a step."""

    budget: int = 15

    def __call__(self, pair: models.Pair) -> Drafter:
        return drafters.RetrievalDrafter(datastore(pair), budget=self.budget)


@dataclass(frozen=True)
class SelfDraft:
    """Builds Self-Draft (``drafters.SelfDrafter``). own_corpus: whether it also looks texts of our prompts up."""

    own_corpus: bool = False
    bonus: bool = True

    def __call__(self, pair: models.Pair) -> Drafter:
        texts = corpus(pair) if self.own_corpus else None
        return drafters.SelfDrafter(corpus=texts, bonus=self.bonus)


# ---- the table ----------------------------------------------------------------------------------------------------


def looked_up(tokens: int, behind: int) -> Method:
    """transformers' prompt lookup: it drafts so many tokens behind a match of up to so many tokens."""
    return Method(generate={"prompt_lookup_num_tokens": tokens, "max_matching_ngram_size": behind})


def sampled(head: str, shape: Static, drawn: Drawn, verifier: Verifier) -> Method:
    """A tree of a fixed shape that is drawn from q, for temperatures above 0."""
    return Method(head=head, grow=shape, drawn=drawn, verifier=verifier)


METHODS: dict[str, Method] = {
    # transformers' own. Of prompt lookup the best settings on tuning prompts (the experiment lookup), with 5 after 3.
    "generate": Method(generate={}),
    "prompt lookup": looked_up(5, 2),
    "assistant": Method(generate={}, assistant=True),
    # Without a trained draft.
    "undrafted": Method(drafter=Alone(PlainDrafter)),
    "n-gram tree": Method(drafter=ngrams()),
    "retrieval": Method(drafter=Retrieval()),
    "retrieval, 7 nodes": Method(drafter=Retrieval(budget=7)),
    "self-draft": Method(drafter=SelfDraft()),
    "self-draft, no bonus": Method(drafter=SelfDraft(bonus=False)),
    "self-draft, corpus, no bonus": Method(drafter=SelfDraft(own_corpus=True, bonus=False)),
    "lookahead": Method(drafter=lookahead()),
    "lookahead, no bonus": Method(drafter=lookahead(bonus=False)),
    "lookahead, window 3": Method(drafter=lookahead(window=3)),
    "lookahead, window 7": Method(drafter=lookahead(window=7)),
    "ptd": Method(drafter=ptd()),
    "ptd, 2 children, depth 4": Method(drafter=ptd(children=2, depth=4)),
    "ptd, chained": Method(drafter=ptd(chained=True)),
    "ptd, no feedback": Method(drafter=ptd(feedback=False)),
    "ptd, no refill": Method(drafter=ptd(refill=False)),
    "ptd, no refill, no feedback": Method(drafter=ptd(refill=False, feedback=False)),
    "ptd, from prompt": Method(drafter=ptd(from_prompt=True)),
    "ptd, top-k": Method(drafter=ptd(expand="topk")),
    "ptd, top-p": Method(drafter=ptd(expand="topp")),
    # Negative controls: drafts of tokens verified by a broken rule, whose law is not the target's.
    "ptd as printed": Method(drafter=ptd(), verifier=gallery.ptd_as_printed),
    "ptd as coded": Method(drafter=ptd(), verifier=gallery.ptd_as_coded),
    # Trained heads, chosen trees. The numbers behind a rule's name are nodes.
    "vdm-chain-3": Method(head="vdm", grow=chain(3)),
    "vdm-chain-5": Method(head="vdm", grow=chain(5)),
    "vdm-chain-6": Method(head="vdm", grow=chain(6)),
    "vdm-chain-6, window 1024": Method(head="vdm", grow=chain(6), window=Window(4, 1020)),
    "vdm-chain-6, window 256": Method(head="vdm", grow=chain(6), window=Window(4, 252)),
    "vdm-dynatree": Method(head="vdm", grow=DynaTree()),
    "vdm-dynatree, depth 4": Method(head="vdm", grow=DynaTree(depth=4, threshold=0.01)),
    "vdm-dynatree, depth 3": Method(head="vdm", grow=DynaTree(depth=3, threshold=0.1)),
    "vdm-dynatree-32": Method(head="vdm", grow=DynaTree(depth=4, branch=2, threshold=0.1, budget=32)),
    "medusa-chain-4": Method(head="medusa", grow=chain(4)),
    "medusa-eagle2-12": Method(head="medusa", grow=Eagle2(12, depth=4, k=4)),
    "eagle-chain-5": Method(head="eagle", grow=chain(5)),
    "eagle-eagle2-16": Method(head="eagle", grow=Eagle2(16, depth=4, k=4)),
    "edd-chain-5": Method(head="edd", grow=chain(5)),
    "edd-eagle2-50": Method(head="edd", grow=Eagle2(50)),
    "edd-pct": Method(head="edd", grow=Pct(0.1, leaf=0.04)),
    "edd-pct at .0369": Method(head="edd", grow=Pct(EDD_PRICE_7B)),
    "edd-pct at .061": Method(head="edd", grow=Pct(0.061)),
    "edd-pct at .061, leaves kept": Method(head="edd", grow=Pct(0.061, leaf=0.0)),
    "talf-salf-6": Method(head="talf", grow=Salf(6, 3, 0.8, width=10)),
    "hass-salf": Method(head="hass", grow=Salf(10, 4, 0.6, width=10)),
    "hass-salf-6": Method(head="hass", grow=Salf(6, 3, 0.8, width=10)),
    "hass-eagle2-24": Method(head="hass", grow=Eagle2(24, depth=5, k=8)),
    # What is looked up beside a head's tree. The fastest on this project's CPUs.
    "auto": Method(head="hass", grow=Auto(), look_up=Retrieval()),
    "hass-salf + n-grams": Method(head="hass", grow=Salf(10, 4, 0.6, width=10), look_up=ngrams(budget=4)),
    "hass-salf-6 + n-grams 2": Method(head="hass", grow=Salf(6, 3, 0.8, width=10), look_up=ngrams(budget=2)),
    "hass-salf-6 + n-grams 4": Method(head="hass", grow=Salf(6, 3, 0.8, width=10), look_up=ngrams(budget=4)),
    "hass-salf-6 + n-grams 8": Method(head="hass", grow=Salf(6, 3, 0.8, width=10), look_up=ngrams(budget=8)),
    "hass-salf-8 + n-grams 4": Method(head="hass", grow=Salf(8, 4, 0.7, width=10), look_up=ngrams(budget=4)),
    "hass-salf-8 + n-grams 8": Method(head="hass", grow=Salf(8, 4, 0.7, width=10), look_up=ngrams(budget=8)),
    "hass-salf-14 + n-grams 2": Method(head="hass", grow=Salf(14, 4, 0.5, width=10), look_up=ngrams(budget=2)),
    "hass-eagle2-10 + n-grams 4": Method(head="hass", grow=Eagle2(10, depth=4, k=4), look_up=ngrams(budget=4)),
    "hass-salf-8 + retrieval": Method(head="hass", grow=Salf(8, 4, 0.7, width=10), look_up=Retrieval(budget=8)),
    "hass-salf-4 + retrieval 12": Method(head="hass", grow=Salf(4, 3, 0.8, width=10), look_up=Retrieval(budget=12)),
    "hass-salf-6 + retrieval 8": Method(head="hass", grow=Salf(6, 3, 0.8, width=10), look_up=Retrieval(budget=8)),
    # The pair's own draft model, for pairs that have one (--pair qwen2.5-7b).
    "pair-auto": Method(head="pair", grow=Auto()),
    "pair-chain-5": Method(head="pair", grow=chain(5)),
    "pair-eagle2-50": Method(head="pair", grow=Eagle2(50)),
    # Sampled trees, for temperatures above 0: drawn how, verified by what.
    "vdm-chain-5 iid": sampled("vdm", chain(5), Drawn.IID, verifiers.by_draw),
    "vdm-binary-2 swor, traversal": sampled("vdm", kary(2, 2), Drawn.SWOR, verifiers.traversal),
    "vdm-binary-3 swor, traversal": sampled("vdm", kary(2, 3), Drawn.SWOR, verifiers.traversal),
    "hass-binary-2 swor, rrsw": sampled("hass", kary(2, 2), Drawn.SWOR, verifiers.rrsw),
    "hass-binary-3 swor, traversal": sampled("hass", kary(2, 3), Drawn.SWOR, verifiers.traversal),
    "hass-chain-5 iid, token-level": sampled("hass", chain(5), Drawn.IID, verifiers.token_level),
    "hass-chain-5 iid, traversal": sampled("hass", chain(5), Drawn.IID, verifiers.traversal),
    "hass-binary-5 swor, rrsw": sampled("hass", kary(2, 5), Drawn.SWOR, verifiers.rrsw),
    "hass-binary-5 swor, traversal": sampled("hass", kary(2, 5), Drawn.SWOR, verifiers.traversal),
    "hass-sparse swor, rrsw": sampled("hass", EAGLE_25, Drawn.SWOR, verifiers.rrsw),
    "hass-sparse swor, traversal": sampled("hass", EAGLE_25, Drawn.SWOR, verifiers.traversal),
}


def _families() -> dict[str, Method]:
    """Methods of which one setting varies, or two."""
    family = {}
    for tokens, behind in ((3, 2), (5, 2), (10, 2), (20, 2), (5, 3), (10, 3)):
        family[f"prompt lookup, {tokens} after {behind}"] = looked_up(tokens, behind)
    for children in (1, 2, 3, 6, 8):
        family[f"ptd, {children} children"] = Method(drafter=ptd(children=children))
    for depth in (3, 4, 5, 8):
        family[f"ptd, depth {depth}"] = Method(drafter=ptd(depth=depth))
    for head in ("eagle", "hass", "talf"):  # SALF's Table 2: sixty nodes by three rules
        family[f"{head}-beam-60"] = Method(head=head, grow=Eagle2(59, depth=8, k=10))
        family[f"{head}-optimal-60"] = Method(head=head, grow=Salf(60, 10, 0.0, width=10))
        family[f"{head}-salf-60"] = Method(head=head, grow=Salf(60, 10, 0.6, width=10))
    for nodes, depth, k in ((7, 4, 8), (15, 4, 8), (31, 6, 10), (63, 6, 10), (127, 8, 16)):
        family[f"hass-beam-{nodes}"] = Method(head="hass", grow=Eagle2(nodes, depth, k))
    return family


def _run(forwards: str, names: Iterable[str]) -> dict[str, Method]:
    """Methods of the table with the target's forwards run in this way, which stands behind their names."""
    return {f"{name}, {forwards}": replace(METHODS[name], forwards=forwards) for name in names}


METHODS |= _families()
METHODS |= _run(INVARIANT, [
    "undrafted", "n-gram tree", "ptd", "medusa-eagle2-12", "edd-pct", "hass-salf-6", "hass-eagle2-24",
    "hass-salf-6 + n-grams 2", "hass-salf-6 + n-grams 8",
])  # fmt: skip
METHODS |= _run(IN_GRAPHS, [
    "undrafted", "n-gram tree", "retrieval", "ptd", "vdm-chain-3", "medusa-eagle2-12", "edd-pct", "hass-salf-6",
    "hass-salf-6 + n-grams 8", "hass-beam-7", "hass-beam-15", "hass-beam-31", "hass-beam-63", "hass-beam-127",
    "vdm-binary-2 swor, traversal", "vdm-binary-3 swor, traversal", "hass-binary-2 swor, rrsw",
    "hass-binary-3 swor, traversal",
])  # fmt: skip


def method(name: str, *, head: str = "", softened: float = 1.0, forwards: str = USUAL) -> Method:
    """A method of the table; ValueError with the closest names if there is none.

    head: the path of a head of one's own, in place of the method's, if it has one; softened: what a head's logits are
    divided by; forwards: USUAL, IN_GRAPHS or INVARIANT, for methods of ours.
    """
    check(name)
    chosen = METHODS[name]
    if chosen.head is not None and head:
        chosen = replace(chosen, head=head)
    if chosen.head is not None and softened != 1.0:
        chosen = replace(chosen, temperature=softened)
    if chosen.ours and forwards != USUAL:
        chosen = replace(chosen, forwards=forwards)
    return chosen


def check(name: str) -> None:
    """ValueError unless a name is a method's."""
    if name in METHODS:
        return
    all_of_them = f"`python -m study methods` lists all {len(METHODS)}"
    close = get_close_matches(name.lower(), METHODS, n=3, cutoff=0.4)
    if close:
        meant = " or ".join(map(repr, close))
        raise ValueError(f"unknown method {name!r}: did you mean {meant}? {all_of_them}")
    raise ValueError(f"unknown method {name!r}: {all_of_them}")


def label(rule: Growth) -> str:
    """How recordings spell a growth rule: as Python would make it, without the settings that are the default.

    >>> label(DynaTree(depth=4)), label(chain(6)), label(EAGLE_25)
    ('DynaTree(depth=4)', 'chain(6)', 'EAGLE_25')
    """
    if isinstance(rule, Static):
        return rule.name
    changed = []
    for setting in fields(rule):
        value = getattr(rule, setting.name)
        if value != setting.default:
            changed.append(f"{setting.name}={value!r}")
    return f"{type(rule).__name__}({', '.join(changed)})"


# ---- from a method to what runs it --------------------------------------------------------------------------------


def draft_model(head: str, pair: models.Pair, capacity: int, temperature: float = 1.0) -> DraftModel:
    """A trained head or the pair's own draft model ("pair"). temperature: what its logits are divided by.

    capacity: if above 0 its forwards are recorded, for so many tokens.
    """
    if head != "pair":
        model = heads.load_draft(head, pair.target, capacity=capacity)
    elif pair.draft is None:
        raise ValueError(f"the pair {pair.name} has no draft model of its own: name a trained head")
    else:
        graphs = models.Graphs(pair.draft, capacity=capacity) if capacity else None
        vocabulary = output_rows(pair.target)
        model = drafters.CausalLMDraft(pair.draft, vocabulary=vocabulary, graphs=graphs)
    if temperature == 1.0:
        return model
    return drafters.Tempered(model, temperature)


def build(
    made: Method, pair: models.Pair, draft: DraftModel | None = None, prices: ForwardSeconds | None = None
) -> Drafter:
    """The drafter of a method of ours. draft: its draft model, if it is loaded already; prices: what Auto is told."""
    if not made.ours:
        raise ValueError(f"build makes drafters of methods of ours, got {made}")
    if made.drafter is not None:
        return made.drafter(pair)
    if isinstance(made.grow, Auto) and prices is None:
        raise ValueError("Auto needs prices, seconds of forwards: study.measure.loading.machine measures them")
    if draft is None:
        draft = draft_model(made.head, pair, 0, made.temperature)
    other = made.look_up(pair) if made.look_up is not None else None
    if isinstance(made.grow, Auto):
        return AutoDrafter(draft, prices.target, prices.draft, other)
    own = TreeDrafter(draft, made.grow, made.drawn)
    if other is None:
        return own
    return MergedDrafter(own, other)
