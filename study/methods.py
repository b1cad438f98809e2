"""Methods by name: what is raced and swept, as commands, cells and figures spell it.

``generate``, ``prompt lookup``, ``assistant``: transformers' own; the assistant is the pair's draft model or the vdm;
``prompt lookup 5 3``: with up to five tokens after a match of up to three, in place of what was best on tuning prompts
``generate as shipped``: generate with unpacked weights where all others are raced with packed ones
``undrafted``: our loop without drafts
``n-gram tree``, ``retrieval store=own``, ``ptd children=2``, ``self_draft corpus=own``, ``lookahead window=7``:
drafters without a trained draft, with settings
``edd:pct 0.06``, ``pair:eagle2 50,6,10``: a trained head (or the pair's own draft model) and a growth rule
``my/drafts/edd:pct 0.06``: a head of one's own, by its path without suffix
``vdm:vct swor traversal``: how its children come about (point, iid, swor) and who verifies them
``talf:salf 6,3,0.8,10 + retrieval store=own``: paths that were looked up (or ``ngram …``) merged into its tree
``hass:auto + retrieval store=own``: sizes by this machine's prices and by experience (``drafters.AutoDrafter``), also
merged with a look-up; ``auto`` is short for this one, ``pair:auto + retrieval`` is the like for other pairs
``vdm:linear``, ``vdm:streaming 256``, ``vdm:dynatree``: DynaTree's Table 1
``edd:pct 0.06 in graphs``: any of ours, the forwards of target and draft recorded (``models.Graphs``)
``edd:pct 0.06 invariant``: any of ours, the target's forwards by the same bits on any tree (``models.Invariant``)
``ptd as printed``, ``ptd as coded``: negative controls, drafts of tokens verified by a broken rule (LOSSY)
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from inspect import signature
from itertools import product

from specnb import drafters, growth, heads, models, verifiers
from specnb.decode import Drafter, PlainDrafter, Verifier
from specnb.drafters import AutoDrafter, DraftModel, MergedDrafter, TreeDrafter
from specnb.exact import gallery
from specnb.models import Window, prompts
from specnb.tree import Drawn
from study import names
from study.names import AUTO, FORWARDS, LOOKUP, PATTERN, THEIRS

GROWTH = {
    "chain": growth.chain,
    "kary": growth.kary,
    "dynatree": growth.DynaTree,
    "eagle2": growth.Eagle2,
    "pct": growth.Pct,
    "salf": growth.Salf,
    "specexec": growth.SpecExec,
    "opt": growth.OptTree,
}
NAMED = {
    "linear": growth.chain(6),
    "dynatree": growth.DynaTree(),
    "vct": growth.kary(3, 5),
    "cape": growth.Cape(),
    "eagle2": growth.Eagle2(50, 6, 10),
    "eagle_25": growth.EAGLE_25,
    "medusa_63": growth.MEDUSA_63,
}  # rules whose name says it all
WINDOWS = {"streaming 1024": Window(4, 1020), "streaming 256": Window(4, 252)}  # with linear drafts
TUNED = {"prompt_lookup_num_tokens": 5, "max_matching_ngram_size": 2}  # by the experiment lookup; 5 3 does as well
DRAFTERS = {
    "undrafted": PlainDrafter,
    "ptd": drafters.ProgressiveDrafter,
    "self_draft": drafters.SelfDrafter,
    "lookahead": drafters.LookaheadDrafter,
    "ngram": drafters.NgramDrafter,
    "retrieval": drafters.RetrievalDrafter,
}
MERGEABLE = ("ngram", "retrieval")  # looked up, not computed: paths without auxiliary nodes
LOSSY = {"as printed": gallery.ptd_as_printed, "as coded": gallery.ptd_as_coded}  # controls: the law is not kept


@dataclass(frozen=True)
class Method:
    """A method as its name says it. options: those of transformers' generate (None: it is a drafter of ours).

    head: the trained head, or "pair" for the pair's own draft model. alone: a drafter that needs none, by name and
    settings. merged: what is looked up and goes into the head's tree. verifier: at temperature > 0; greedy otherwise.
    forwards: one of FORWARDS, or None.
    """

    name: str
    options: dict | None = None
    head: str | None = None
    rule: str | None = None
    drawn: Drawn = Drawn.POINT
    verifier: Verifier = verifiers.by_draw
    alone: str | None = None
    merged: str | None = None
    window: Window | None = None
    forwards: str | None = None


def method(name: str) -> Method:
    """A method by its full name; ValueError on names and settings without sense, before anything is loaded."""
    names.check(name, _tables())
    for how in (*FORWARDS, *LOSSY):
        if name.endswith(f" {how}"):
            return _run_as(method(name.removesuffix(f" {how}")), how)
    lookup = LOOKUP.fullmatch(name)
    if lookup:
        return Method(name, {setting: int(text or TUNED[setting]) for setting, text in lookup.groupdict().items()})
    if name in THEIRS:
        return Method(name, {})
    if name == "n-gram tree":
        return Method(name, alone="ngram")
    if name.split()[0] in DRAFTERS:
        named(name, None)  # raises if its settings have no sense
        return Method(name, alone=name)
    return _with_a_draft(name)


def _tables() -> names.Tables:
    """The names that methods are made of, as they are now."""
    return {table: globals()[table] for table in names.TABLES}


def _run_as(plain: Method, how: str) -> Method:
    """A method whose forwards are run in one of FORWARDS, or whose drafts are verified by one of LOSSY."""
    name = f"{plain.name} {how}"
    if how in LOSSY and plain.alone is None:
        raise ValueError(f"{name!r}: only drafters without a trained draft are verified {how}")
    if plain.options is not None:
        raise ValueError(f"{name!r}: forwards of transformers' own methods are not run {how}, only ours")
    if how in FORWARDS:
        if plain.forwards:
            raise ValueError(f"{name!r}: one of {' and '.join(FORWARDS)}, not both")
        return replace(plain, name=name, forwards=how)
    if plain.verifier in LOSSY.values():
        raise ValueError(f"{name!r}: one of {' and '.join(LOSSY)}, not both")
    return replace(plain, name=name, verifier=LOSSY[how])


def _with_a_draft(name: str) -> Method:
    """HEAD:RULE, how its children come about and who verifies them, and what is merged into its tree."""
    own, _, merged = (AUTO if name == "auto" else name).partition(" + ")
    parts = PATTERN.fullmatch(own)
    head = parts["head"]
    verifier = parts["verifier"] or "by_draw"
    if verifier not in verifiers.BY_NAME:
        raise ValueError(f"{name!r}: unknown verifier {verifier!r}: {names.told(verifier, verifiers.BY_NAME)}")
    drawn = Drawn[(parts["drawn"] or "point").upper()]
    window = WINDOWS.get(parts["rule"])
    shape = "linear" if window else parts["rule"]
    _check_tree(name, shape, drawn, merged)
    return Method(name, None, head, shape, drawn, verifiers.BY_NAME[verifier], merged=merged or None, window=window)


def _check_tree(name: str, shape: str, drawn: Drawn, merged: str) -> None:
    """ValueError unless a tree may grow so, be drawn so, and take what is looked up."""
    looked_up = merged.split()[0] if merged else None
    if shape == "auto":
        if drawn is not Drawn.POINT or looked_up not in (None, "retrieval"):
            raise ValueError(
                f"{name!r}: auto chooses nodes, it does not draw them, and takes only retrieval beside them"
            )
        named(merged or "retrieval", None)
        return
    drafting = TreeDrafter(drafters.TableDraft(None), rule(shape), drawn)  # raises if a drawn tree may not grow so
    if merged:
        if looked_up not in MERGEABLE:
            raise ValueError(f"{name!r}: only {' and '.join(MERGEABLE)} can be merged into a tree")
        MergedDrafter(drafting, named(merged, None))


def draft_model(head: str, pair: models.Pair, capacity: int) -> DraftModel:
    """A trained head or the pair's own draft model; "edd@1.3" is edd with its logits divided by 1.3.

    capacity: if above 0 its forwards are recorded, for so many tokens.
    """
    name, at, temperature = head.partition("@")
    if name == "pair":
        if pair.draft is None:
            raise ValueError(f"the pair {pair.name} has no draft model of its own: name a trained head")
        graphs = models.Graphs(pair.draft, capacity=capacity) if capacity else None
        vocabulary = pair.target.get_output_embeddings().weight.shape[0]
        found = drafters.CausalLMDraft(pair.draft, vocabulary=vocabulary, graphs=graphs)
    else:
        found = heads.load_draft(name, pair.target, capacity=capacity)
    return drafters.Tempered(found, float(temperature)) if at else found


def build(
    made: Method, pair: models.Pair, loaded: DraftModel | None = None, prices: tuple[Sequence, float] | None = None
) -> Drafter:
    """The drafter of a method of ours. loaded: its draft model, if it is there already; prices: auto's."""
    if made.alone:
        return named(made.alone, pair)
    draft, other = loaded or draft_model(made.head, pair, 0), named(made.merged, pair) if made.merged else None
    if made.rule == "auto":
        return AutoDrafter(draft, *prices, other)
    own = TreeDrafter(draft, rule(made.rule), made.drawn)
    return MergedDrafter(own, other) if other else own


def rule(name: str) -> growth.Growth:
    """A growth rule: one of NAMED, or of GROWTH with its first settings: "pct 0.07,5,10"."""
    if name in NAMED:
        return NAMED[name]
    names.check_rule(name, _tables())
    kind, _, numbers = name.partition(" ")
    try:
        return GROWTH[kind](*(float(text) if "." in text else int(text) for text in numbers.split(",") if numbers))
    except (ValueError, TypeError) as error:
        settings = ", ".join(signature(GROWTH[kind]).parameters)
        raise ValueError(f"{name!r}: {kind} takes numbers with commas between: {settings} ({error})") from error


def rules(spellings: Sequence[str]) -> dict[str, growth.Growth]:
    """Growth rules by name, "chain {1 6}" being short for "chain 1" and "chain 6"."""
    found = {}
    for spelling in spellings:
        parts = re.split(r"[{}]", spelling)  # every second one stood in braces
        choices = [part.split() if place % 2 else [part] for place, part in enumerate(parts)]
        for chosen in product(*choices):
            found["".join(chosen)] = rule("".join(chosen))
    return found


def named(name: str, pair: models.Pair | None) -> Drafter:
    """A drafter without a trained draft, by its name and settings; ValueError on those without sense.

    "self_draft corpus=own": see ``corpus``; "retrieval store=own": see ``datastore``. pair: None only checks the name.
    """
    kind, *words = name.split()
    if kind not in DRAFTERS:
        raise ValueError(f"unknown drafter {kind!r}: {names.told(kind, DRAFTERS)}")
    known = signature(DRAFTERS[kind]).parameters
    settings: dict[str, object] = {}
    for word in words:
        setting, equals, text = word.partition("=")
        if setting not in known or not equals:
            raise ValueError(f"{name!r}: {word!r} is no setting of {kind}, which has {', '.join(sorted(known))}")
        like = known[setting].default
        if text == "own" and setting in OWN:
            settings[setting] = pair and OWN[setting](pair)
            continue
        try:
            settings[setting] = _read(text, like)
        except (ValueError, KeyError) as error:
            like = "own" if like is None else like
            raise ValueError(f"{name!r}: {word!r} should be {setting}={like!r} or so") from error
    return DRAFTERS[kind](**settings)


def _read(text: str, like: object) -> object:
    """A setting in the type of its default; KeyError or ValueError if it is none."""
    return {"True": True, "False": False}[text] if isinstance(like, bool) else {int: int, str: str}[type(like)](text)


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


OWN = {"corpus": corpus, "store": datastore}
