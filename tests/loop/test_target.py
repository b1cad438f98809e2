"""The engine: a tree forward says what path-by-path forwards say, and the cache holds what it should."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import rounding, same
from tiny import FAMILIES, VOCABULARY, llama, trees
from transformers import DynamicCache

from specnb import masks
from specnb.cache import ARGUMENT, TreeCache
from specnb.target import Target
from specnb.tree import TokenTree

MODELS = {name: make() for name, make in FAMILIES.items()}


@torch.no_grad()
def path_by_path(model, prefix, tree):
    """(n, V) logits after each node, from plain forwards over prefix + path: no cache, no tree mask."""
    rows = {}
    for leaf in tree.leaves:
        logits = model(torch.tensor([[*prefix, tree.token_list[0], *tree.path_tokens(leaf)]])).logits[0]
        rows.update(zip((0, *tree.path(leaf)), logits[len(prefix) :], strict=True))
    return torch.stack([rows[node] for node in range(len(tree))])


@torch.no_grad()
def check_cache(target, committed):
    """The cache holds exactly the keys and values that plain decoding of these tokens leaves behind."""
    assert target.cache.length == len(committed)
    assert target.cache.pending == 0
    if committed:
        plain = DynamicCache()
        target.model(torch.tensor([committed]), use_cache=True, **{ARGUMENT: plain})
        for ours, theirs in zip(target.cache.layers, plain.layers, strict=True):
            assert same(ours.keys, theirs.keys)
            assert same(ours.values, theirs.values)


def check_engine(model, prefix, forest, picks):
    """Score and commit several trees one after the other, checking logits and cache at every turn."""
    target = Target(model)
    target.prefill(prefix)
    committed = list(prefix)
    for tree, pick in zip(forest, picks, strict=True):
        logits = target.forward(tree).logits
        assert same(logits, path_by_path(model, committed, tree))
        path = tree.path(pick % len(tree))
        target.commit(path)
        committed += [tree.token_list[node] for node in (0, *path)]
        check_cache(target, committed)


@pytest.mark.parametrize("family", MODELS)
@given(
    prefix=st.lists(st.integers(0, VOCABULARY - 1), max_size=6),
    forest=st.lists(trees(), min_size=1, max_size=3),
    picks=st.lists(st.integers(0, 99), min_size=3, max_size=3),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_tree_forward_equals_path_by_path(family, prefix, forest, picks):
    check_engine(MODELS[family], prefix, forest, picks[: len(forest)])


@pytest.mark.model
@pytest.mark.parametrize("prefix_length", [0, 9])
def test_tree_forward_of_the_real_model(smollm2, prefix_length):
    generator = torch.Generator().manual_seed(prefix_length)
    prefix = torch.randint(49152, (prefix_length,), generator=generator).tolist()
    forest = []
    for n in (9, 1, 6):
        parents = [-1] + [int(torch.randint(i, (), generator=generator)) for i in range(1, n)]
        forest.append(TokenTree(torch.randint(49152, (n,), generator=generator).tolist(), parents))
    target = Target(smollm2.target)
    target.prefill(prefix)
    committed = list(prefix)
    for tree in forest:
        logits = target.forward(tree).logits
        expected = path_by_path(smollm2.target, committed, tree)
        # Logits reach 20: 1e-5 of that scale is what float32 resolves over 30 layers.
        assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()
        path = tree.path(len(tree) - 1)
        target.commit(path)
        committed += [tree.token_list[node] for node in (0, *path)]


def test_a_wrong_mask_is_noticed(monkeypatch):
    """Negative control: let every node see all others, and the comparison above must fail."""
    everything = lambda tree, length, **kind: torch.zeros(1, 1, len(tree), length + len(tree), **kind)  # noqa: E731
    monkeypatch.setattr(masks, "tree_mask", everything)
    with pytest.raises(AssertionError):
        check_engine(llama(), [1, 2, 3], [TokenTree([4, 5, 6, 7], [-1, 0, 0, 1])], [3])


def test_wrong_positions_are_noticed(monkeypatch):
    """Negative control: consecutive position ids (DynaTree's published code) must fail too."""
    monkeypatch.setattr(masks, "positions", lambda tree, length: (length + torch.arange(len(tree)))[None])
    with pytest.raises(AssertionError):
        check_engine(llama(), [1, 2, 3], [TokenTree([4, 5, 6, 7], [-1, 0, 0, 1])], [3])


def test_a_wrong_gather_is_noticed(monkeypatch):
    """Negative control: keep the first slots instead of the path's, and the cache check must fail."""
    from specnb.cache import TreeCache

    right = TreeCache.commit
    monkeypatch.setattr(TreeCache, "commit", lambda self, slots: right(self, range(len(slots))))
    with pytest.raises(AssertionError):
        check_engine(llama(), [1, 2, 3], [TokenTree([4, 5, 6, 7], [-1, 0, 0, 2])], [3])


def test_hidden_states_ride_along():
    target = Target(llama(), hidden_layers=(1, -1))
    hidden = target.prefill([3, 1, 4])
    assert {layer: tuple(rows.shape) for layer, rows in hidden.items()} == {1: (3, 32), -1: (3, 32)}
    scores = target.forward(TokenTree([1, 5, 9], [-1, 0, 0]))
    assert {layer: tuple(rows.shape) for layer, rows in scores.hidden.items()} == {1: (3, 32), -1: (3, 32)}
    torch.testing.assert_close(target.model.lm_head(scores.hidden[-1]), scores.logits)


def test_a_model_without_a_head_is_refused():
    with pytest.raises(ValueError, match="it has no language-model head: load it with AutoModelForCausalLM"):
        Target(llama().model)


def test_bad_input_is_refused_before_any_forward():
    target = Target(llama())
    with pytest.raises(ValueError, match="token id 50 is outside the model's vocabulary of 50"):
        target.prefill([1, 50])
    with pytest.raises(ValueError, match="do not fit the context of 128"):
        target.prefill([1] * 128)
    target.prefill([1] * 126)
    with pytest.raises(ValueError, match="126 committed tokens and a tree of depth 2 do not fit"):
        target.forward(TokenTree.chain([1, 2, 3]))
    with pytest.raises(ValueError, match="token id 70 is outside"):
        target.forward(TokenTree.chain([1, 70]))
    with pytest.raises(RuntimeError, match="nothing to commit"):
        target.commit([])
    target.forward(TokenTree([1, 2, 3], [-1, 0, 0]))
    with pytest.raises(ValueError, match=r"\(1, 2\) is not a path"):
        target.commit([1, 2])
    with pytest.raises(RuntimeError, match="has not been committed"):
        target.forward(TokenTree([1], [-1]))


@pytest.mark.parametrize("stale", [False, True])
def test_slots_move_in_all_layers_also_after_the_buffers_have_grown(stale):
    """Layers of two shapes, steps until their buffers have doubled twice. stale: negative control, moved elsewhere."""
    generator, cache = torch.Generator().manual_seed(0), TreeCache()
    shared = cache.shared
    if stale:
        cache.shared = lambda: [store.clone() for store in shared()]
    kept = [torch.empty(1, heads, 0, 4) for heads in (1, 1, 3)]  # the layers' keys; values are their negatives
    for step in range(90):
        fed = [torch.randn(1, len(rows[0]), 12, 4, generator=generator) for rows in kept]
        for layer, new in enumerate(fed):
            cache.update(new, -new, layer)
        slots = sorted(torch.randperm(12, generator=generator)[: 1 + step % 12].tolist())
        cache.commit(slots)
        kept = [torch.cat([rows, new[..., slots, :]], -2) for rows, new in zip(kept, fed, strict=True)]
    assert cache.length == len(kept[0][0, 0]) > 512
    pairs = [(layer.keys, layer.values, rows) for layer, rows in zip(cache.layers, kept, strict=True)]
    assert all(torch.equal(keys, rows) and torch.equal(values, -rows) for keys, values, rows in pairs) is not stale


def test_outgrown_buffers_are_let_go():
    """A tree too large for the buffers, of which nothing has to move: no second set of them stays behind."""
    cache = TreeCache()
    for count, slots in ((200, range(200)), (12, [0, 2]), (60, [0, 1]), (3, [0])):
        for layer in range(2):
            cache.update(torch.ones(1, 2, count, 4), torch.ones(1, 2, count, 4), layer)
        cache.commit(slots)
        held = sum(buffer.nbytes for layer in cache.layers for buffer in layer.buffers)
        assert sum(store.nbytes for store in cache.stores) in (0, held)
    assert cache.capacity > 256


def test_check_refuses_what_is_not_a_number():
    model = llama()
    model.lm_head.weight.data[3] = float("nan")
    with pytest.raises(ValueError, match="logits differ by nan%"):
        Target(model).check()


def test_check_says_how_exact_a_model_is_and_refuses_a_wrong_mask(monkeypatch):
    assert 0 < Target(llama()).check() < rounding(torch.ones(()))  # of the largest logit
    monkeypatch.setattr(masks, "positions", lambda tree, length: (length + torch.arange(len(tree)))[None])
    with pytest.raises(
        ValueError, match=r"a llama model .* scores a tree unlike the tree's paths: logits differ by [\d.]+%"
    ):
        Target(llama()).check()


class Called:
    """Forwards that are the model's own, for trees of up to two nodes: larger ones do not fit."""

    def __init__(self, model):
        self.model, self.sizes = model, []

    def empty(self):
        return TreeCache()

    def score(self, cache, rows, positions, mask, hidden_layers):
        if rows.shape[1] > 2:
            return None
        self.sizes.append(rows.shape[1])
        inputs = {"input_ids": rows, "position_ids": positions, "attention_mask": mask, ARGUMENT: cache}
        with torch.no_grad():
            return self.model(**inputs, use_cache=True).logits[0], {}


def test_forwards_are_handed_in_and_asked_first():
    model, sizes = MODELS["llama"], (1, 2, 3, 2)
    plain, other = Target(model), Target(model, forwards=Called(model))
    for target in (plain, other):
        target.prefill([4, 5, 6])
    for size in sizes:
        tree = TokenTree(list(range(size)), [-1] + [0] * (size - 1))
        assert same(*(target.forward(tree).logits for target in (plain, other)))
        for target in (plain, other):
            target.commit(())
    assert other.forwards.sizes == [size for size in sizes if size <= 2]
    assert plain.forwards is None


def test_forwards_of_another_model_and_their_former_name_are_refused():
    model = MODELS["llama"]
    with pytest.raises(ValueError, match="these forwards are of another LlamaForCausalLM: make them of the very model"):
        Target(model, forwards=Called(llama(1)))
    with pytest.raises(TypeError, match="unexpected keyword argument 'graphs'"):
        Target(model, graphs=Called(model))


def test_a_target_serves_no_generation_before_the_first():
    assert Target(MODELS["llama"]).serving is None
