"""The papers' verifiers line by line have the same laws as the fast forms, under every coin."""

import pytest
from toy import BINARY, IID, SWOR, UNEVEN, WORLDS, tree_drafter

from specnb.exact import accepted_law, gallery, law, output_law, total_variation, verify_once
from specnb.growth import chain, kary
from specnb.verifiers import block, rrs, rrsw, textbook, token_level, traversal

FORKED = kary(3, 1)
PAIRS = {  # textbook form, fast form, how the tree is drawn, shapes with their depths
    "token_level": (textbook.token_level, token_level, IID, ((chain(1), 1), (chain(2), 2), (chain(3), 3))),
    "block": (textbook.block, block, IID, ((chain(1), 1), (chain(2), 2), (chain(3), 3))),
    "rrs": (textbook.rrs, rrs, IID, ((chain(2), 2), (UNEVEN, 2), (FORKED, 1))),
    "rrsw": (textbook.rrsw, rrsw, SWOR, ((chain(2), 2), (UNEVEN, 2), (FORKED, 1))),
    "traversal": (textbook.traversal, traversal, SWOR, ((chain(3), 3), (UNEVEN, 2), (FORKED, 1))),
}


def verdicts(q, shape, drawn, verifier, p, depth) -> dict:
    """The exact law of one step: the drafted tree, the accepted path and the next token."""
    drafter = tree_drafter(q, shape, drawn)

    def step(coins):
        draft, verdict = verify_once(drafter, verifier, p, coins, depth=depth)
        return tuple(draft.tree.token_list), tuple(draft.tree.parent_list), verdict.path, verdict.next_token

    return law(step)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", PAIRS)
def test_the_textbook_form_has_the_law_of_the_fast_form(name, world):
    """Tree by tree, path by path, token by token; and so for the text."""
    printed, fast, drawn, shapes = PAIRS[name]
    p, q = WORLDS[world]
    for shape, depth in shapes:
        ours, theirs = (verdicts(q, shape, drawn, verifier, p, depth) for verifier in (printed, fast))
        assert sum(ours.values()) == pytest.approx(1, abs=1e-12)
        assert total_variation(ours, theirs) < 1e-12, shape


@pytest.mark.parametrize("name", PAIRS)
def test_and_so_for_the_text(name):
    printed, fast, drawn, shapes = PAIRS[name]
    p, q = WORLDS["zeros in both"]
    for shape, depth in shapes:
        texts = [output_law(tree_drafter(q, shape, drawn), verifier, p, depth=depth) for verifier in (printed, fast)]
        assert total_variation(*texts) < 1e-12, shape


@pytest.mark.parametrize(("name", "world"), [("rrsw", "random 0"), ("traversal", "zeros in q")])
def test_on_the_binary_tree_of_two_levels(name, world):
    printed, fast, drawn, _ = PAIRS[name]
    p, q = WORLDS[world]
    lengths = [accepted_law(tree_drafter(q, BINARY, drawn), verifier, p, depth=2) for verifier in (printed, fast)]
    assert total_variation(*lengths) < 1e-12


# ---- negative controls: one piece of the source replaced, and the laws part -------------------------------------

SPOILED = {
    "token_level, bonus from q": ("token_level", ("coins.choose(M_b[-1])", "coins.choose(M_s[0])")),
    "token_level, recovered from p": ("token_level", ("norm(rest, M_b[v])", "M_b[v]")),
    "rrs, p kept": ("rrs", ("p = norm((p - q).clamp(min=0), p)", "pass")),
    "rrsw, q kept": ("rrsw", ("q = norm(struck(q, x), q)", "pass")),
    "block, first rejection ends it": (
        "block",
        ("tau = i  # the last acceptance counts, whatever came before it", "tau = i\n        else:\n            break"),
    ),
    "block, h is p": ("block", ("h = Z / (Z + 1 - p[i]) if Z + 1 - p[i] > 0 else 1.0", "pass")),
    "traversal, survivals kept": ("traversal", ("descend(v)  # every p below v again", "# every p below v again")),
    "traversal, q kept": ("traversal", ("M_s[v] = norm(struck(M_s[v], x), M_s[v])", "pass")),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_form_has_another_law(name):
    which, change = SPOILED[name]
    printed, fast, drawn, shapes = PAIRS[which]
    shape, depth = shapes[1]
    wrong = gallery.spoiled(printed, change)
    apart = []
    for world in ("random 0", "random 1", "random 2"):
        p, q = WORLDS[world]
        apart.append(total_variation(*(verdicts(q, shape, drawn, v, p, depth) for v in (wrong, fast))))
    assert max(apart) > 0.01
