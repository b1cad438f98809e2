"""Methods: a table of Python objects under short names; what makes no sense is refused before anything is loaded."""

from dataclasses import replace

import pytest

from specnb import models, verifiers
from specnb.decode import PlainDrafter
from specnb.drafters import (
    AutoDrafter,
    LookaheadDrafter,
    MergedDrafter,
    NgramDrafter,
    ProgressiveDrafter,
    SelfDrafter,
    TreeDrafter,
)  # fmt: skip
from specnb.drafters.seconds import ForwardSeconds
from specnb.exact import gallery
from specnb.growth import EAGLE_25, MEDUSA_63, DynaTree, Eagle2, Pct, Salf, Static, chain, kary
from specnb.models import Window
from specnb.sampling import Warp
from specnb.tree import Drawn
from study import methods
from study.methods import (
    IN_GRAPHS,
    INVARIANT,
    METHODS,
    USUAL,
    Auto,
    FromSettings,
    Method,
    Retrieval,
    SelfDraft,
    label,
    ngrams,
    ptd,
)


def test_a_method_says_what_it_is():
    tuned = {"prompt_lookup_num_tokens": 5, "max_matching_ngram_size": 2}
    assert METHODS["prompt lookup"].generate == tuned
    other = {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 3}
    assert METHODS["prompt lookup, 10 after 3"].generate == other
    assert METHODS["ptd, 2 children"].drafter == ptd(children=2)
    drawn = METHODS["vdm-binary-3 swor, traversal"]
    assert (drawn.head, drawn.grow, drawn.drawn, drawn.verifier) == (
        "vdm", kary(2, 3), Drawn.SWOR, verifiers.traversal,
    )  # fmt: skip
    assert METHODS["edd-pct"].verifier is verifiers.by_draw
    merged = METHODS["hass-salf-6 + n-grams 8"]
    assert (merged.head, merged.grow, merged.look_up) == ("hass", Salf(6, 3, 0.8, width=10), ngrams(budget=8))
    assert METHODS["vdm-chain-6, window 256"].window == Window(4, 252)
    assert METHODS["ptd as printed"].verifier is gallery.ptd_as_printed


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_ours_drafts_and_theirs_has_options(name):
    made = METHODS[name]
    assert made.ours == (made.generate is None)
    assert made.head is None or made.grow is not None
    if not made.ours:
        assert made.forwards == USUAL


def test_names_are_told_apart_by_what_they_name():
    """Two names of one method would be two rows of the same race."""
    seen = {}
    for name, made in METHODS.items():
        assert seen.setdefault(repr(made), name) in (name, "prompt lookup"), name  # 5 after 2 stands in a family, too


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "a method has one of generate, head and drafter"),
        ({"generate": {}, "head": "edd", "grow": chain(3)}, "a method has one of generate, head and drafter"),
        ({"drafter": ProgressiveDrafter}, r"drafter is a function of the pair: FromSettings\(ProgressiveDrafter\)"),
        ({"head": "edd"}, "a head needs a growth rule, and a growth rule a head"),
        ({"head": "edd", "grow": chain(3), "assistant": True}, "assistant belongs to generate"),
        ({"generate": {}, "window": Window(4, 252)}, "window belongs to methods of ours"),
        ({"drafter": ptd(), "drawn": Drawn.IID}, "drawn and head_temperature belong to a head's tree"),
        ({"drafter": ptd(), "head_temperature": 2.0}, "drawn and head_temperature belong to a head's tree"),
        ({"drafter": ptd(), "grow": chain(3)}, "a head needs a growth rule, and a growth rule a head"),
        ({"drafter": ptd(), "look_up": ngrams()}, "look_up is merged into a head's tree"),
        ({"generate": {}, "forwards": IN_GRAPHS}, "forwards of transformers' own methods are run as"),
        ({"head": "edd", "grow": chain(3), "head_temperature": 0.0}, "a head's temperature is above 0, got 0.0"),
        ({"head": "edd", "grow": Pct(0.06), "drawn": Drawn.SWOR}, "Pct drops nodes by their value"),
        ({"head": "edd", "grow": chain(3), "drawn": Drawn.SWOR, "look_up": ngrams()}, "must be POINT, got SWOR"),
        ({"head": "vdm", "grow": Auto(), "drawn": Drawn.SWOR}, "Auto chooses nodes, it does not draw them"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        Method(**parts)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Auto", "auto"),
        ("genrate", "generate"),
        ("prompt-lookup", "prompt lookup"),
        ("n-gramm tree", "n-gram tree"),
        ("retreival", "retrieval"),
        ("hass-salv", "hass-salf"),
        ("edd pct", "edd-pct"),
    ],
)
def test_the_close_match_of_a_mistyped_name_is_said_first(name, meant):
    with pytest.raises(ValueError, match=f"unknown method '{name}': did you mean '{meant}'"):
        methods.method(name)


def test_what_is_like_nothing_gets_no_hint():
    with pytest.raises(ValueError, match="unknown method 'xyzzy': `python -m study methods` lists all"):
        methods.method("xyzzy")


def test_a_method_is_changed_by_options():
    own = methods.method("hass-salf", head="drafts/mine", softened=1.3, forwards="in graphs")
    assert own == replace(METHODS["hass-salf"], head="drafts/mine", head_temperature=1.3, forwards=IN_GRAPHS)
    assert methods.method("ptd", head="drafts/mine", softened=1.3) == METHODS["ptd"]  # it has no head
    assert methods.method("generate", head="drafts/mine", forwards="invariant") == METHODS["generate"]
    with pytest.raises(ValueError, match="forwards are usual, in graphs or invariant, got 'sideways'"):
        methods.method("ptd", forwards="sideways")


def test_variants_by_the_way_their_forwards_are_run():
    for name, made in METHODS.items():
        for suffix, forwards in ((", in graphs", IN_GRAPHS), (", invariant", INVARIANT)):
            if name.endswith(suffix):
                assert made == replace(METHODS[name.removesuffix(suffix)], forwards=forwards)
    assert METHODS["vdm-chain-3"].forwards == USUAL


@pytest.mark.parametrize(
    ("rule", "spelt"),
    [
        (chain(6), "chain(6)"),
        (kary(2, 5), "kary(2, 5)"),
        (EAGLE_25, "EAGLE_25"),
        (MEDUSA_63, "MEDUSA_63"),
        (DynaTree(), "DynaTree()"),
        (DynaTree(8, 3, 0.1), "DynaTree(threshold=0.1)"),
        (Salf(60, 10, 0.0, width=10), "Salf(threshold=0.0, width=10)"),
        (Eagle2(12, 4, 4), "Eagle2(total=12, depth=4, k=4)"),
    ],
)
def test_rules_are_spelt_as_python_would_make_them(rule, spelt):
    assert label(rule) == spelt
    names = {"chain": chain, "kary": kary, "EAGLE_25": EAGLE_25, "MEDUSA_63": MEDUSA_63}
    names |= {kind.__name__: kind for kind in (DynaTree, Salf, Eagle2, Static)}
    assert eval(spelt, names) == rule


@pytest.mark.model
def test_built_methods(smollm2):
    kinds = {
        "undrafted": PlainDrafter,
        "n-gram tree": NgramDrafter,
        "ptd, 2 children": ProgressiveDrafter,
        "lookahead, window 3": LookaheadDrafter,
        "edd-pct": TreeDrafter,
        "hass-salf-6 + n-grams 8": MergedDrafter,
    }
    built = {name: methods.build(METHODS[name], smollm2) for name in kinds}
    assert {name: type(drafter) for name, drafter in built.items()} == kinds
    assert built["ptd, 2 children"].children == 2
    assert built["lookahead, window 3"].window == 3
    sized = Method(head="edd", grow=Auto(), look_up=Retrieval())
    drafter = methods.build(sized, smollm2, prices=ForwardSeconds(tuple(range(1, 33)), (0.1, 0.2)))
    assert type(drafter) is AutoDrafter
    assert drafter.draft_seconds.tolist() == [0.1, 0.2]
    assert type(drafter.inner) is MergedDrafter
    with pytest.raises(ValueError, match="the pair smollm2-135m has no draft model of its own"):
        methods.build(METHODS["pair-chain-5"], smollm2)
    own = models.Pair("own", smollm2.target, smollm2.target, smollm2.tokenizer)
    assert methods.build(METHODS["pair-chain-5"], own).draft_model.model is smollm2.target


@pytest.mark.model
def test_the_targets_own_texts_as_a_store(smollm2):
    made = Retrieval(budget=8)(smollm2)
    assert len(made.store.tokens) > 1_000_000
    made.begin(smollm2.encode("What is the capital of France?"), Warp(), {})
    assert len(made.propose(None, 8).tree) == 9
    with pytest.raises(ValueError, match="written by smollm2-135m: it says nothing about other"):
        Retrieval()(models.Pair("other", None, None, None))


def test_drafters_without_a_head_get_their_settings():
    drafter = ptd(children=2, depth=3, chained=False, expand="topk")(None)
    assert (drafter.children, drafter.depth, drafter.chained, drafter.expand) == (2, 3, False, "topk")
    assert type(SelfDraft(bonus=False)(None)) is SelfDrafter
    assert not SelfDraft(bonus=False)(None).bonus


@pytest.mark.parametrize(
    ("build", "message"),
    [(ptd(depth=0), "depth must be at least 1, got 0"), (ptd(expand="best"), "expand must be one of argmax")],
)
def test_settings_without_sense_are_refused_by_the_drafter(build, message):
    with pytest.raises(ValueError, match=message):
        build(None)


def test_a_setting_that_a_drafter_has_not_is_refused():
    with pytest.raises(TypeError, match="width"):
        FromSettings(ProgressiveDrafter, {"width": 3})(None)


def test_what_cannot_be_built_says_so():
    with pytest.raises(ValueError, match="build makes drafters of methods of ours"):
        methods.build(METHODS["generate"], None)
    with pytest.raises(ValueError, match="Auto needs prices, seconds of forwards"):
        methods.build(METHODS["auto"], None)
