"""Methods: what is raced, swept and shown, as one table of Python objects under short names.

A method is one of three things: transformers' own ``generate`` with some options; a tree that a trained draft head (or
the pair's own draft model) grows by a rule; or a drafter that needs no trained draft. A pair is a target model with,
for some targets, a draft model. ``METHODS`` has every method that was ever recorded and every method that the
documentation mentions. A method of your own is one more entry:

    METHODS["mine"] = Method(head="edd", grow=Pct(0.06))

Commands, recordings and notebooks name methods by their keys in the table.

The trained heads are small networks that draft tokens for the target (``training.recipes`` has their papers):

    vdm     the "vanilla draft model": a small Llama of its own that reads tokens only
    medusa  one small block per future token, all on the target's last hidden state
    eagle   one decoder layer that predicts the target's next state from a token and the state before it
    hass    an eagle that was also trained on states that it predicted itself
    talf    an eagle that was trained on small trees of the target's likely tokens
    edd     one decoder layer that attends to the target's states of the text and to the tokens drafted since

The growth rules are objects of ``specnb.growth``. A rule decides which nodes the tree of a head gets:

    chain, kary  fixed shapes: a single path; a full tree of k children per node. EAGLE_25 is EAGLE's fixed tree
    Eagle2       a beam search of which the likeliest nodes are kept ("eagle2" and "beam" in the names)
    DynaTree     a fixed number of children for every node whose path is likely enough
    Pct          children for every node whose path probability is worth the price of a draft forward
    Salf         a best-first search that stops when little more can be found; it never stops early with threshold 0,
                 where it finds the likeliest tree ("optimal" in the names)

``label`` is how recordings spell a growth rule, and nothing ever reads such a spelling back.
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
from study.weights import PAIR

Build = Callable[[models.Pair], Drafter]  # a drafter that needs no trained draft, for a pair


# The three ways to run the target's forwards:
USUAL = "usual"  # as transformers runs them
IN_GRAPHS = "in graphs"  # captured once and replayed, like the draft model's (models.Graphs)
INVARIANT = "invariant"  # slower, but a token's logits have the same bits on any tree (models.Invariant)


@dataclass(frozen=True)
class Auto:
    """Used in place of a growth rule: each tree's size is chosen while decoding (``drafters.AutoDrafter``).

    The choice weighs what forwards cost on this machine against how often earlier drafts were accepted.
    """


@dataclass(frozen=True)
class Method:
    """One way to generate a text. It has ``generate``, a ``head`` with ``grow``, or a ``drafter``.

    generate:   options of transformers' own generate.
    assistant:  whether generate drafts with the pair's draft model or, where there is none, with the trained vdm.
    head:       a committed head's name, the path of another head, a head in a published format (its folder, or its
                name on the hub), or "pair" for the pair's own draft model. See ``study.weights``.
    grow:       the growth rule of the head's tree, or Auto().
    head_temperature: the number by which the head's logits are divided. Recordings and the command line call it
                "softened"; it is not the temperature at which the text is sampled.
    drawn:      how a node gets its children: the likeliest tokens (POINT), or tokens sampled from the draft's
                distribution with (IID) or without (SWOR) replacement.
    verifier:   the rule that accepts drafted tokens at temperatures above 0; at 0 the greedy rule is used.
    drafter:    a function from the pair to a drafter that needs no trained draft.
    look_up:    a function from the pair to a drafter (n-grams or retrieval) whose paths are merged into the head's
                tree.
    window:     which tokens the target's cache keeps; all if None.
    forwards:   how the target's forwards are run: USUAL, IN_GRAPHS or INVARIANT.
    Raises ValueError on parts that do not go together.
    """

    generate: Mapping[str, object] | None = None
    assistant: bool = False
    head: str | None = None
    grow: Growth | Auto | None = None
    head_temperature: float = 1.0
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
            raise ValueError(f"drafter is a function of the pair: FromSettings({name}), or lambda pair: {name}(…)")
        if self.forwards not in (USUAL, IN_GRAPHS, INVARIANT):
            raise ValueError(f"forwards are {USUAL}, {IN_GRAPHS} or {INVARIANT}, got {self.forwards!r}")
        if not self.head_temperature > 0:
            raise ValueError(f"a head's temperature is above 0, got {self.head_temperature}")
        self._check_theirs()
        self._check_head()

    def _check_theirs(self) -> None:
        """Raise ValueError on parts that only transformers' generate can have, and on parts that it cannot have."""
        if self.assistant and self.generate is None:
            raise ValueError(f"assistant belongs to generate, got {self}")
        if self.generate is None:
            return
        if self.forwards != USUAL:
            raise ValueError(f"forwards of transformers' own methods are run as transformers runs them, got {self}")
        if self.window is not None:
            raise ValueError(f"window belongs to methods of ours, got {self}")

    def _check_head(self) -> None:
        """Raise ValueError on parts that only a head's tree can have, where there is no head."""
        if (self.head is None) != (self.grow is None):
            raise ValueError(f"a head needs a growth rule, and a growth rule a head, got {self}")
        if self.head is not None:
            self._check_tree()
            return
        if self.look_up is not None:
            raise ValueError(f"look_up is merged into a head's tree: without a head it is a drafter, got {self}")
        if self.drawn is not Drawn.POINT or self.head_temperature != 1.0:
            raise ValueError(f"drawn and head_temperature belong to a head's tree, got {self}")

    def _check_tree(self) -> None:
        """Raise ValueError unless grow, drawn and look_up go together."""
        if isinstance(self.grow, Auto):
            if self.drawn is not Drawn.POINT:
                raise ValueError(f"Auto chooses nodes, it does not draw them: drawn must be POINT, got {self}")
            return
        # Both constructors are called only for their checks, so the draft model is a stand-in without a table.
        without_model = TreeDrafter(drafters.TableDraft(None), self.grow, self.drawn)
        if self.look_up is not None:
            MergedDrafter(without_model)

    @property
    def ours(self) -> bool:
        """Whether the method runs in our loop (``decode.steps``), and not in transformers' generate."""
        return self.generate is None


# ---- drafters without a trained draft: functions from the pair to the drafter -------------------------------------


@cache
def corpus(pair: models.Pair) -> drafters.Corpus:
    """Self-Draft's corpus: texts whose n-grams it drafts from. The authors' corpus is not public.

    In its place stand this project's own prompts, the prompt that is being answered among them. Built once per pair.
    """
    return drafters.Corpus(pair.encode(text) for text in prompts.load("own")["text"])


@cache
def datastore(pair: models.Pair) -> drafters.Datastore:
    """The texts that retrieval looks up: what the embedded target wrote to train the heads. Built once per process.

    Raises ValueError for another target, whose texts these are not.
    """
    if pair.name != models.EMBEDDED:
        raise ValueError(f"the corpus was written by {models.EMBEDDED}: it says nothing about {pair.name}")
    return drafters.Datastore.of_corpus()


@dataclass(frozen=True)
class FromSettings:
    """A function from a pair to a drafter that ignores the pair: it calls the class ``kind`` with the settings.

    ``FromSettings(NgramDrafter, {"length": 4})(pair)`` is ``NgramDrafter(length=4)``, for any pair.
    """

    kind: type
    settings: Mapping[str, object] = field(default_factory=dict)

    def __call__(self, pair: models.Pair) -> Drafter:
        return self.kind(**self.settings)


def ngrams(**settings: object) -> FromSettings:
    """Drafts from n-grams of the text so far (``drafters.NgramDrafter``)."""
    return FromSettings(drafters.NgramDrafter, settings)


def ptd(**settings: object) -> FromSettings:
    """Drafts by Progressive Tree Drafting, PTD (``drafters.ProgressiveDrafter``)."""
    return FromSettings(drafters.ProgressiveDrafter, settings)


def lookahead(window: int = 15, **settings: object) -> FromSettings:
    """Drafts by lookahead decoding (``drafters.LookaheadDrafter``).

    Its pool keeps at most ``window`` n-grams per first token. The defaults, a window of 15 and n-grams of five tokens
    ("level"), are the settings of Table 4 in PTD's paper.
    """
    return FromSettings(drafters.LookaheadDrafter, {"window": window, "level": 5, "guesses": window, **settings})


@dataclass(frozen=True)
class Retrieval:
    """A function from a pair to a drafter that looks paths up in ``datastore`` (``drafters.RetrievalDrafter``).

    budget: the number of nodes per step, at most.
    """

    budget: int = 15

    def __call__(self, pair: models.Pair) -> Drafter:
        return drafters.RetrievalDrafter(datastore(pair), budget=self.budget)


@dataclass(frozen=True)
class SelfDraft:
    """A function from a pair to Self-Draft (``drafters.SelfDrafter``).

    own_corpus: whether it drafts from ``corpus``, too.
    bonus:      whether a bonus token may follow a completely accepted n-gram, as it may not in the public code.
    """

    own_corpus: bool = False
    bonus: bool = True

    def __call__(self, pair: models.Pair) -> Drafter:
        texts = corpus(pair) if self.own_corpus else None
        return drafters.SelfDrafter(corpus=texts, bonus=self.bonus)


# ---- the table ----------------------------------------------------------------------------------------------------


def prompt_lookup(tokens: int, match: int) -> Method:
    """transformers' prompt lookup.

    It looks for the last ``match`` tokens (or fewer) earlier in the text, and drafts the ``tokens`` tokens after them.
    """
    return Method(generate={"prompt_lookup_num_tokens": tokens, "max_matching_ngram_size": match})


def sampled(head: str, shape: Static, drawn: Drawn, verifier: Verifier) -> Method:
    """A tree of a fixed shape whose tokens are sampled from the draft's distribution q, for temperatures above 0."""
    return Method(head=head, grow=shape, drawn=drawn, verifier=verifier)


METHODS: dict[str, Method] = {
    # transformers' own. For prompt lookup, "5 after 2" and "5 after 3" were the best settings on the tuning prompts
    # (the experiment lookup); this is "5 after 2": five tokens are drafted after a match of up to two.
    "generate": Method(generate={}),
    "prompt lookup": prompt_lookup(5, 2),
    "assistant": Method(generate={}, assistant=True),
    # Without a trained draft.
    "undrafted": Method(drafter=FromSettings(PlainDrafter)),
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
    # Negative controls: a broken verifier, whose texts do not follow the target's distribution.
    "ptd as printed": Method(drafter=ptd(), verifier=gallery.ptd_as_printed),
    "ptd as coded": Method(drafter=ptd(), verifier=gallery.ptd_as_coded),
    # Trained heads with trees of likely tokens. The number after a rule's name is the rule's own limit on nodes: Salf's
    # counts the root, Eagle2's and DynaTree's do not. After "chain" it is the number of drafted tokens.
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
    # Looked-up paths (n-grams or retrieval, up to budget nodes) merged into a head's tree. The fastest on our CPUs.
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
    # Sampled trees, for temperatures above 0. A name says how children are drawn (iid: with replacement, swor:
    # without) and which verifier is used (rrsw: recursive rejection sampling, token by token; traversal: leaf to root).
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
    """Methods of which one setting varies, or two.

    The 60 in the names of SALF's Table 2 counts nodes with the root, the number in "hass-beam-7" without it.
    """
    family = {}
    for tokens, match in ((3, 2), (5, 2), (10, 2), (20, 2), (5, 3), (10, 3)):
        family[f"prompt lookup, {tokens} after {match}"] = prompt_lookup(tokens, match)
    for children in (1, 2, 3, 6, 8):
        family[f"ptd, {children} children"] = Method(drafter=ptd(children=children))
    for depth in (3, 4, 5, 8):
        family[f"ptd, depth {depth}"] = Method(drafter=ptd(depth=depth))
    # SALF's Table 2: trees of sixty nodes by three rules. Salf counts the root as a node, Eagle2 does not: hence 59.
    for head in ("eagle", "hass", "talf"):
        family[f"{head}-beam-60"] = Method(head=head, grow=Eagle2(59, depth=8, k=10))
        family[f"{head}-optimal-60"] = Method(head=head, grow=Salf(60, 10, 0.0, width=10))
        family[f"{head}-salf-60"] = Method(head=head, grow=Salf(60, 10, 0.6, width=10))
    for nodes, depth, k in ((7, 4, 8), (15, 4, 8), (31, 6, 10), (63, 6, 10), (127, 8, 16)):
        family[f"hass-beam-{nodes}"] = Method(head="hass", grow=Eagle2(nodes, depth, k))
    return family


def _run(forwards: str, names: Iterable[str]) -> dict[str, Method]:
    """Methods of the table, with the target's forwards run in this way and its name added: "ptd, in graphs"."""
    return {f"{name}, {forwards}": replace(METHODS[name], forwards=forwards) for name in names}


METHODS |= _families()  # before the next two: they name methods of the families
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
    """The method of the table with this name, with some of its fields replaced.

    An option that a method cannot have is ignored, so that one command can change many methods at once.

    name:     a key of METHODS.
    head:     another head, which takes the place of the method's trained head; ignored if it has none. A method that
              drafts with the pair's own draft model keeps it: so the two can race each other.
    softened: the head_temperature, by which the head's logits are divided; ignored if the method has no head.
    forwards: USUAL, IN_GRAPHS or INVARIANT; ignored for transformers' own methods.
    Raises ValueError with the closest names if the table has no such name.
    """
    check_name(name)
    wanted = METHODS[name]
    if wanted.head not in (None, PAIR) and head:
        wanted = replace(wanted, head=head)
    if wanted.head is not None and softened != 1.0:
        wanted = replace(wanted, head_temperature=softened)
    if wanted.ours and forwards != USUAL:
        wanted = replace(wanted, forwards=forwards)
    return wanted


def check_name(name: str) -> None:
    """Raise ValueError, with the closest names, unless the table has a method of this name."""
    if name in METHODS:
        return
    all_of_them = f"`python -m study methods` lists all {len(METHODS)}"
    close = get_close_matches(name.lower(), METHODS, n=3, cutoff=0.4)
    if close:
        meant = " or ".join(map(repr, close))
        raise ValueError(f"unknown method {name!r}: did you mean {meant}? {all_of_them}")
    raise ValueError(f"unknown method {name!r}: {all_of_them}")


def label(rule: Growth) -> str:
    """How recordings spell a growth rule: the Python call that makes it, without settings that have their default.

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


def draft_model(head: str, pair: models.Pair, capacity: int, head_temperature: float = 1.0) -> DraftModel:
    """Load a trained head, or wrap the pair's own draft model.

    head:             the name of a head (``study.weights``), or "pair" for the pair's draft model.
    pair:             the target, to whose states and output matrix a head belongs, and its draft model.
    capacity:         if above 0, forwards are captured and replayed (models.Graphs), for texts of this many tokens.
    head_temperature: the number by which the logits are divided.
    Raises ValueError on "pair" if the pair has no draft model.
    """
    if head != PAIR:
        model = heads.load_draft(head, pair.target, capacity=capacity)
    elif pair.draft is None:
        raise ValueError(f"the pair {pair.name} has no draft model of its own: name a trained head")
    else:
        graphs = models.Graphs(pair.draft, capacity=capacity) if capacity else None
        vocabulary = output_rows(pair.target)
        model = drafters.CausalLMDraft(pair.draft, vocabulary=vocabulary, graphs=graphs)
    if head_temperature == 1.0:
        return model
    return drafters.Tempered(model, head_temperature)


def build(
    made: Method, pair: models.Pair, draft: DraftModel | None = None, prices: ForwardSeconds | None = None
) -> Drafter:
    """The drafter of a method of ours. It honours head, grow, head_temperature, drawn, drafter and look_up.

    The method's verifier, window and forwards are the caller's to use: see ``measure.loading.built``.

    made:   the method.
    pair:   the target and its draft model.
    draft:  the method's draft model, if the caller has loaded it already. Its head_temperature is then the caller's.
    prices: seconds of forwards on this machine, which Auto needs and other growth rules ignore.
    Raises ValueError on a method of transformers, and on Auto without prices.
    """
    if not made.ours:
        raise ValueError(f"build makes drafters of methods of ours, got {made}")
    if made.drafter is not None:
        return made.drafter(pair)
    if isinstance(made.grow, Auto) and prices is None:
        raise ValueError("Auto needs prices, seconds of forwards: study.measure.loading.machine measures them")
    if draft is None:
        draft = draft_model(made.head, pair, 0, made.head_temperature)
    look_up = made.look_up(pair) if made.look_up is not None else None
    if isinstance(made.grow, Auto):
        return AutoDrafter(draft, prices.target, prices.draft, look_up)
    tree_drafter = TreeDrafter(draft, made.grow, made.drawn)
    if look_up is None:
        return tree_drafter
    return MergedDrafter(tree_drafter, look_up)
