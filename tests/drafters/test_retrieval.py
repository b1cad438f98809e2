"""Retrieval: counts are what a plain search finds, the law is the formula, the tree is its best paths, texts stay."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import generated, llama, near_copy

from specnb import growth, verifiers
from specnb.decode import decode
from specnb.drafters import CausalLMDraft, Datastore, MergedDrafter, RetrievalDrafter, TreeDrafter, retrieval
from specnb.exact import engine_law, in_float64, joint, total_variation
from specnb.sampling import Warp
from specnb.target import Target

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1]


def searched(tokens: list[int], context: tuple[int, ...]) -> Counter:
    """What followed a context, by looking at every place."""
    n = len(context)
    return Counter(tokens[i + n] for i in range(len(tokens) - n) if tuple(tokens[i : i + n]) == context)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=40), st.integers(1, 4), st.data())
def test_counts_are_what_a_search_finds(tokens, length, data):
    store = Datastore(np.array([token + 1 for token in tokens]))  # token 0 is used by no text here: see below
    tokens = [token + 1 for token in tokens]
    start = data.draw(st.integers(0, len(tokens) - 1))
    context = tuple(tokens[start : start + length])
    found, places = store.counts(context)
    assert dict(found) == searched(tokens, context)
    assert places == sum(searched(tokens, context).values())
    assert [count for _, count in found] == sorted((count for _, count in found), reverse=True)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2), min_size=2, max_size=30), st.integers(1, 4), st.data())
def test_token_zero_is_a_token_like_others(tokens, length, data):
    """Before the run there is nothing, which must not be taken for zeros."""
    context = tuple(data.draw(st.lists(st.integers(0, 2), min_size=length, max_size=length)))
    assert dict(Datastore(np.array(tokens)).counts(context)[0]) == searched(tokens, context)


def test_many_places_are_sampled_evenly():
    """A context with more places than are counted: both halves of the store have their say."""
    tokens = [1, 2] * 300 + [1, 3] * 300
    found, places = Datastore(np.array(tokens)).counts((1,))
    assert 0.4 < dict(found)[2] / places < 0.6
    assert places <= retrieval.MOST


@pytest.mark.parametrize(
    ("largest", "longest", "bytes_"),
    [(65_535, 4, 2), (65_536, 3, 4), (151_935, 3, 4), (2**21, 2, 4), (2**32 - 1, 2, 4)],
)
def test_large_token_ids_fit_in_shorter_contexts(largest, longest, bytes_):
    """Memory stays what it is for small vocabularies; what is counted is what a search finds, the ends included."""
    text = [largest, 3, largest, largest, largest, largest, 7, largest - 1, largest, 3, 0, largest, largest, 7]
    store = Datastore(np.array(text))
    assert (store.longest, store.tokens.itemsize) == (longest, bytes_)
    for length in range(1, longest + 1):
        for start in range(len(text)):
            context = tuple(text[start : start + length])
            assert dict(store.counts(context)[0]) == searched(text, context)


def test_what_is_no_run_of_token_ids_is_refused():
    for tokens in ([2**32], [-1], []):
        with pytest.raises(ValueError, match=r"a run of token ids below 2\*\*32, got int64"):
            Datastore(np.array(tokens, np.int64))


def test_a_context_larger_than_any_stored_token_has_no_counts():
    store = Datastore(np.array([0, 1, 2, 0, 1]))
    for context in ((65_536,), (0, 65_536), (65_536, 0, 1), (1 << 40, 1)):
        assert store.counts(context) == ([], 0)


def test_a_target_with_many_tokens_may_have_a_store_with_few():
    """Texts whose tokens the store cannot hold: greedy text is plain decoding's, large tokens are drafted too."""
    model = llama(vocab_size=66_000)
    with torch.no_grad():
        model.lm_head.weight[:65_600] = 0
    prompt, text = [3, 1, 65_990, 4], generated(model, [3, 1, 65_990, 4], 30)
    assert max(text) > 65_600
    for store in (Datastore(np.array([3, 1, 4, 1, 5])), Datastore(np.array([3, 1, *text]))):
        out = decode(Target(model), RetrievalDrafter(store), verifiers.one_hot, prompt, max_new_tokens=30)
        assert list(out.tokens) == text
    assert len(out.steps) < 15


def begun(store=None, prompt=PROMPT, **settings_) -> RetrievalDrafter:
    drafter = RetrievalDrafter(store, **settings_)
    drafter.begin(prompt, Warp(), {})
    return drafter


def test_the_law_by_hand():
    """Behind (3, 1) the text says 4 once; behind (1,) 4 and 5, the store 5 twice. Prior 2, weight 3."""
    drafter = begun(Datastore(np.array([1, 5, 1, 5])), [3, 1, 4, 1, 5, 3, 1], longest=2, prior=2, weight=3)
    first = {4: 3 / (3 + 2)}
    left = 2 / (3 + 2)
    below = {4: left * 3 / (8 + 2), 5: left * (3 + 2) / (8 + 2)}
    assert drafter.law((3, 1)) == pytest.approx({4: first[4] + below[4], 5: below[5]})


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_a_law_is_never_more_than_one_and_the_tree_takes_its_best_paths(stored, prompt):
    drafter = begun(Datastore(np.array(stored)), prompt, budget=6, depth=3, prior=1)
    draft = drafter.propose(None, 5)
    tree, scores = draft.tree, draft.scores.tolist()
    assert len(tree) <= 7
    assert max(tree.depth_list) <= 3
    assert scores == sorted(scores, reverse=True)
    tail = tuple(prompt)[-6:]
    below = {}
    for node in range(len(tree)):
        law = drafter.law((*tail, *tree.path_tokens(node))[-6:])
        assert sum(law.values()) <= 1 + 1e-12
        kept = {tree.token_list[child] for child in tree.children[node]}
        assert len(kept) == len(tree.children[node])
        below |= {(node, token): scores[node] * chance for token, chance in law.items() if token not in kept}
        for child in tree.children[node]:
            assert scores[child] == pytest.approx(scores[node] * law[tree.token_list[child]])
    left_out = [score for (node, _), score in below.items() if tree.depth_list[node] < 3]
    if len(tree) == 7:  # nothing better was left out
        assert max(left_out, default=0) <= scores[-1] + 1e-12
    else:
        assert not left_out


def test_a_store_takes_whole_numbers():
    with pytest.raises(ValueError, match="a datastore takes a run of token ids"):
        Datastore(np.array([1.5, 2.7]))


def test_bounds_are_checked():
    with pytest.raises(ValueError, match="budget must be at least 1, got 0"):
        RetrievalDrafter(budget=0)


# ---- through the engine --------------------------------------------------------------------------------------

TINY = llama(0, max_position_embeddings=512)


def written(model, count: int) -> list[int]:
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count)
    return out[0].tolist()


def helped() -> RetrievalDrafter:
    """With a store that holds what the target will write, and other things."""
    text = written(TINY, 60)
    return RetrievalDrafter(Datastore(np.array([*text[20:], 7, 8, 9, *text[5:40]])), budget=8)


@pytest.mark.parametrize("merged", [False, True])
def test_greedy_text_is_plain_decodings_in_fewer_steps(merged):
    drafter = helped()
    if merged:
        drafter = MergedDrafter(TreeDrafter(CausalLMDraft(near_copy(TINY)), growth.kary(2, 2)), drafter)
    out = decode(Target(TINY), drafter, verifiers.greedy, PROMPT, max_new_tokens=60)
    assert [*PROMPT, *out.tokens] == written(TINY, 60)
    assert len(out.steps) < 30


SIZES = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
SMALL = in_float64(llama(3, vocab_size=3, num_hidden_layers=1, **SIZES))


@torch.no_grad()
def small_law(prefix):
    return SMALL(torch.tensor([[0, 1, 2, 0, *prefix]])).logits[0, -1].softmax(-1)


def test_sampling_is_exact_and_an_impatient_verifier_is_caught():
    store = Datastore(np.array([0, 1, 2, 0, 2, 1, 0, 0, 2]))
    right = engine_law(Target(SMALL), RetrievalDrafter(store, budget=4, depth=3), verifiers.one_hot, [0, 1, 2, 0], 3)
    assert total_variation(right, joint(small_law, 3)) < 1e-12

    class Moody(RetrievalDrafter):
        """Tosses a coin of its own whether to draft at all."""

        def propose(self, coins, max_depth):
            draft = super().propose(coins, max_depth)
            return draft if coins.accept(0.5) else super().propose(coins, 0)

    def impatient(draft, p, coins):
        """A broken verifier: the first candidate is taken whenever p gives it anything."""
        child = draft.candidates[0][0] if draft.candidates[0] else None
        return verifiers.Verdict((child,), coins.choose(p[child])) if child else verifiers.one_hot(draft, p, coins)

    allowed = engine_law(Target(SMALL), Moody(store, budget=4, depth=3), verifiers.one_hot, [0, 1, 2, 0], 3)
    assert total_variation(allowed, joint(small_law, 3)) < 1e-12  # coins for drafting are no harm
    wrong = engine_law(Target(SMALL), RetrievalDrafter(store, budget=4), impatient, [0, 1, 2, 0], 3)
    assert total_variation(wrong, joint(small_law, 3)) > 0.01
