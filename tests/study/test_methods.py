"""Methods by name: what a name says, and which names are refused before anything is loaded."""

import pytest

from specnb import models, verifiers
from specnb.drafters import AutoDrafter, MergedDrafter, NgramDrafter, ProgressiveDrafter, TreeDrafter
from specnb.exact import gallery
from specnb.models import Window
from specnb.sampling import Warp
from specnb.tree import Drawn
from study import methods


def test_a_method_is_what_its_name_says():
    tuned = {"prompt_lookup_num_tokens": 5, "max_matching_ngram_size": 2}
    assert methods.method("prompt lookup").options == tuned
    other = {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 3}
    assert methods.method("prompt lookup 10 3").options == other
    assert methods.method("ptd children=2").alone == "ptd children=2"
    drawn = methods.method("vdm:kary 2,3 swor traversal")
    assert (drawn.head, drawn.rule, drawn.drawn, drawn.verifier) == ("vdm", "kary 2,3", Drawn.SWOR, verifiers.traversal)
    assert methods.method("edd:pct 0.06").verifier is verifiers.by_draw
    merged = methods.method("talf:salf 6,3,0.8,10 + ngram budget=8")
    assert (merged.head, merged.rule, merged.merged) == ("talf", "salf 6,3,0.8,10", "ngram budget=8")
    warm = methods.method("edd@1.3:dynatree 4,2,0.1,128")
    assert (warm.head, warm.rule) == ("edd@1.3", "dynatree 4,2,0.1,128")
    assert methods.method("vdm:streaming 256").window == Window(4, 252)
    broken = methods.method("ptd children=2 as printed")
    assert (broken.alone, broken.verifier) == ("ptd children=2", gallery.ptd_as_printed)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("magic", "unknown method 'magic': known are auto, generate, generate as shipped, prompt lookup, assistant"),
        ("ptd width=3", "'width=3' is no setting of ptd"),
        ("medusae:chain 3", "there is no trained head 'medusae': did you mean 'medusa'. known are pair, eagle, edd"),
        ("edd:blossom 3", "unknown growth rule 'blossom 3'"),
        ("vdm:pct 3", "'pct 3': pct takes numbers with commas between: cost, k, dep"),
        ("edd:chain 3 swor nobody", "unknown verifier 'nobody': known are greedy"),
        ("edd:pct 0.06 swor", "Pct drops nodes by their value"),
        ("edd:chain 3 swor + ngram", "must be POINT, got SWOR"),
        ("edd@hot:chain 3", "a head's temperature is a number above 0, got 'hot'"),
        ("edd@0:chain 3", "a head's temperature is a number above 0, got '0'"),
        ("edd:chain 3 in graphs invariant", "one of in graphs and invariant, not both"),
        ("ptd as printed as coded", "one of as printed and as coded, not both"),
        ("edd:chain 3 + ", "a method has no name"),
        ("edd:chain 3 + ptd", "only ngram and retrieval can be merged"),
        ("edd:chain 3 as coded", "only drafters without a trained draft are verified as coded"),
        ("edd:auto + ngram", "auto chooses nodes, it does not draw them, and takes only retrieval beside them"),
        ("vdm:auto swor", "'vdm:auto swor': auto chooses nodes, it does not draw them"),
        ("vdm:auto + retrieval places=3", "'places=3' is no setting of retrieval"),
    ],
)
def test_names_without_sense_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        methods.method(name)


@pytest.mark.model
def test_built_methods(smollm2):
    kinds = {
        "n-gram tree": NgramDrafter,
        "ptd children=2": ProgressiveDrafter,
        "edd:pct 0.06": TreeDrafter,
        "edd:chain 3 + ngram budget=8": MergedDrafter,
    }
    for name, kind in kinds.items():
        assert type(methods.build(methods.method(name), smollm2)) is kind
    found = methods.build(methods.method("edd:auto + retrieval"), smollm2, prices=(range(1, 33), [0.1, 0.2]))
    assert (type(found), found.call.tolist(), type(found.inner)) == (AutoDrafter, [0.1, 0.2], MergedDrafter)
    with pytest.raises(ValueError, match="the pair smollm2-135m has no draft model of its own"):
        methods.build(methods.method("pair:chain 3"), smollm2)
    own = models.Pair("own", smollm2.target, smollm2.target, smollm2.tokenizer)
    assert methods.build(methods.method("pair:chain 3"), own).draft_model.model is smollm2.target


def test_methods_in_graphs():
    made = methods.method("vdm:chain 3 in graphs")
    assert (made.forwards, made.head, made.rule, made.name) == ("in graphs", "vdm", "chain 3", "vdm:chain 3 in graphs")
    assert methods.method("undrafted in graphs").alone == "undrafted"
    assert methods.method("vdm:chain 3").forwards is None
    assert methods.method("vdm:chain 3 invariant").forwards == "invariant"
    with pytest.raises(ValueError, match="transformers' own methods are not run in graphs"):
        methods.method("generate in graphs")


@pytest.mark.model
def test_the_targets_own_texts_as_a_store(smollm2):
    made = methods.build(methods.method("retrieval store=own budget=8"), smollm2)
    assert len(made.store.tokens) > 1_000_000
    made.begin(smollm2.encode("What is the capital of France?"), Warp(), {})
    assert len(made.propose(None, 8).tree) == 9
    with pytest.raises(ValueError, match="written by smollm2-135m: it says nothing about other"):
        methods.build(methods.method("retrieval store=own"), models.Pair("other", None, None, None))


def test_drafters_by_name():
    drafter = methods.named("ptd children=2 depth=3 chained=False expand=topk", None)
    assert (drafter.children, drafter.depth, drafter.chained, drafter.expand) == (2, 3, False, "topk")
    assert methods.named("lookahead window=3", None).window == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("medusa", "unknown drafter 'medusa': known are undrafted, ptd, self_draft, lookahead, ngram"),
        ("ptd width=3", "'width=3' is no setting of ptd, which has chained, children, depth"),
        ("ptd depth", "'depth' is no setting of ptd"),
        ("ptd depth=0", "depth must be at least 1, got 0"),
        ("ptd chained=no", "'chained=no' should be chained=False or so"),
        ("ptd depth=six", "'depth=six' should be depth=6 or so"),
        ("self_draft corpus=oanc", "'corpus=oanc' should be corpus='own' or so"),
    ],
)
def test_settings_without_sense_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        methods.named(name, None)
