"""Self-Draft's branches: how they fill and slide, what enters the pool, and its corpus."""

import torch
from tiny import llama

from specnb import verifiers
from specnb.decode import decode
from specnb.drafters import Corpus, SelfDrafter
from specnb.drafters.self_draft import Column
from specnb.sampling import Warp
from specnb.target import Target

TINY = llama(0, max_position_embeddings=512)


def test_the_corpus_prefers_the_longest_ending_and_the_commonest_continuation():
    corpus = Corpus([[1, 2, 3, 4], [9, 2, 5, 6], [8, 2, 5, 6]], length=2)
    assert corpus.get([1, 2]) == {3: {4: {}}}
    assert list(corpus.get([7, 2])) == [5, 3]
    assert corpus.get([7]) == {}
    assert Corpus([[1, 2, 3], [1, 4, 3], [1, 5, 3], [1, 6, 3]], most=3).get([1]).keys() == {2, 4, 5}


def test_the_corpus_sees_as_much_of_the_text_as_its_keys_are_long():
    corpus = Corpus([[1, 2, 3, 4, 5], [9, 2, 3, 4, 6], [9, 2, 3, 4, 6]], most=1)
    drafter = SelfDrafter(length=3, corpus=corpus)  # whose own grams are shorter
    drafter.begin([1, 2, 3, 4], Warp(), {})
    assert 5 in drafter.propose(None, 9).tree.token_list


def test_self_draft_fills_and_then_slides():
    drafter = SelfDrafter(branches=3, length=4)
    drafter.begin([7, 8, 9], Warp(), {})
    prefixes = [list(prefix) for prefix, _ in drafter.columns]
    assert [len(prefix) for prefix in prefixes[:2]] == [1, 1]
    assert len(prefixes) == 4
    seen = []
    for turn in range(4):
        draft = drafter.propose(None, 4)
        logits = torch.zeros(len(draft.tree), 50)
        logits[drafter.last, [10 * turn + i for i in range(len(drafter.last))]] = 1
        drafter.observe(draft, (), 5, {}, logits)
        seen.append([(list(prefix), list(levels)) for prefix, levels in drafter.columns])
    two, three = prefixes[2:]
    assert seen[0] == [([], [0]), (prefixes[1], [1]), (two, [2]), (three, [3])]
    assert seen[1] == [([], [1, 11]), (two, [2, 12]), (three, [3, 13])]
    whole = [[*two, 2, 12, 21, 31], [*three, 3, 13, 22, 32]]
    assert seen[2] == [([], [11, 20]), *(_slid(*pair, 1) for pair in zip(whole, (two, three), strict=True))]
    assert seen[3] == [([], [20, 30]), *(_slid(*pair, 2) for pair in zip(whole, (two, three), strict=True))]


def _slid(whole, prefix, by):
    """A column that has lost its first tokens: prefix and levels as long as before."""
    return whole[by : by + len(prefix)], whole[by + len(prefix) : by + len(prefix) + 2]


def test_self_draft_pools_every_gram_of_columns_and_text():
    drafter = SelfDrafter(branches=2, length=4, gram=2)
    drafter.begin([7, 8, 9], Warp(), {})
    assert {key: list(grams) for key, grams in drafter.pool.lists.items()} == {7: [(8, 9)]}
    drafter.columns = [Column([], [1, 2]), Column([30, 31], [3, 4])]
    draft = drafter.propose(None, 4)
    logits = torch.zeros(len(draft.tree), 50)
    logits[drafter.last, [5, 6]] = 1
    drafter.observe(draft, (), 10, {}, logits)
    pooled = {key: list(grams) for key, grams in drafter.pool.lists.items()}
    assert pooled == {7: [(8, 9)], 9: [(1, 2)], 1: [(2, 5)], 30: [(31, 3)], 31: [(3, 4)], 3: [(4, 6)], 8: [(9, 10)]}
    assert drafter.columns == [([], [2, 5]), ([31, 3], [4, 6])]


def test_self_draft_rides_about_thirty_nodes():
    out = decode(Target(TINY), SelfDrafter(), verifiers.greedy, [3, 1, 4, 1, 5], max_new_tokens=40)
    riding = {int(step.draft.auxiliary.sum()) for step in out.steps[4:]}
    assert len(riding) == 1
    assert 24 + 5 <= riding.pop() <= 24 + 10
