"""Captured forwards: scores and texts as without, none of the model's Python in between, and a clean way back."""

import pytest
import torch
from rounding import same
from tiny import FAMILIES, llama, near_copy

from specnb import growth, masks, verifiers
from specnb.cache import TreeLayer
from specnb.decode import PlainDrafter, decode
from specnb.drafters import CausalLMDraft, NgramDrafter, TreeDrafter
from specnb.exact.gallery import Unpositioned
from specnb.models import Window
from specnb.models.graphs import SIZES, Graphs, as_cuda_graph, as_operations
from specnb.target import Target
from specnb.tree import Drawn, TokenTree

PROMPT = [1, 2, 3, 1, 2]
SMALL = TokenTree([4, 5, 6, 7, 8], [-1, 0, 0, 1, 2])


def at_once(call):
    """Captures nothing: the same fixed shapes, run each time."""
    return call


def frozen(call):
    """Negative control: a replay that answers what it answered when it was captured."""
    results = call()
    return lambda: results


def text(model, graphs=None, drafter=None, *, tokens=40, prompt=PROMPT, **options):
    target = Target(model, forwards=graphs)
    return decode(
        target, drafter or NgramDrafter(), verifiers.by_draw, prompt, max_new_tokens=tokens, eos=(), **options
    )


def counted(model, monkeypatch):
    """The list that grows by one with every forward of the model."""
    calls, forward = [], model.forward
    monkeypatch.setattr(model, "forward", lambda *args, **kwargs: (calls.append(1), forward(*args, **kwargs))[1])
    return calls


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("capture", [at_once, as_operations])
def test_scores_are_those_without_graphs(family, capture):
    model = FAMILIES[family]()
    plain = Target(model, hidden_layers=(0, -1))
    in_graphs = Target(model, hidden_layers=(0, -1), forwards=Graphs(model, capacity=64, capture=capture))
    for prefix in ([1, 2, 3], [], list(range(9))):  # after the first one also with nothing but the tree
        for target in (plain, in_graphs):
            target.prefill(prefix)
        for tree in (SMALL, TokenTree([9], [-1]), TokenTree(list(range(8)), [-1, 0, 0, 1, 1, 2, 2, 2])):
            ours, theirs = in_graphs.forward(tree), plain.forward(tree)
            assert same(ours.logits, theirs.logits)
            assert set(ours.hidden) == {0, -1}
            for layer in ours.hidden:
                assert same(ours.hidden[layer], theirs.hidden[layer])
            for target in (plain, in_graphs):
                target.commit(tree.path(len(tree) - 1))
    assert {size for size, _ in in_graphs.forwards.forwards} == {1, 8}


@pytest.mark.parametrize("wrong", [lambda mask: mask.zero_(), lambda mask: mask.fill_(-1e9)])
def test_a_wrong_mask_is_noticed(wrong, monkeypatch):
    """Negative control: all see all, or nobody sees anything, and the comparison above must fail."""
    model, right = llama(), masks.tree_mask
    scores = []
    for graphs in (None, Graphs(model, capacity=64)):
        target = Target(model, forwards=graphs)
        target.prefill([1, 2, 3])
        scores.append(target.forward(SMALL).logits)
        monkeypatch.setattr(masks, "tree_mask", lambda *args, **kwargs: wrong(right(*args, **kwargs)))
    assert (scores[0] - scores[1]).abs().max() > 1e-2


@pytest.mark.parametrize("heat", [0.0, 1.0])
@pytest.mark.parametrize("capture", [at_once, as_operations, frozen])
def test_texts_are_those_without_graphs(capture, heat):
    model = llama()
    sampled = {"drawn": Drawn.IID} if heat else {}
    drafters = [NgramDrafter(), TreeDrafter(CausalLMDraft(near_copy(model)), growth.kary(2, 3), **sampled)]
    graphs = Graphs(model, capacity=128, capture=capture)
    same = []
    for drafter in (*drafters, PlainDrafter()):
        with_graphs, without = (text(model, g, drafter, temperature=heat, seed=3) for g in (graphs, None))
        same.append(with_graphs.tokens == without.tokens)
    assert not graphs.failed
    assert all(same) is (capture is not frozen)


def test_a_replay_runs_nothing_of_the_model(monkeypatch):
    model = llama()
    graphs = Graphs(model, capacity=128)
    calls = counted(model, monkeypatch)
    graphs.prepare()
    assert [size for size, _ in graphs.forwards] == list(SIZES)
    assert len(calls) == 1 + len(graphs.forwards)
    del calls[:]
    out = text(model, graphs)
    assert len(calls) == 1  # the prompt
    assert len(out.steps) > 5
    del calls[:]
    text(model)
    assert len(calls) == 1 + len(out.steps)


def test_what_does_not_fit_is_scored_without(monkeypatch):
    """Trees above the largest size, texts beyond the capacity; the next text finds the captured forwards it left."""
    model = llama()
    wide = TreeDrafter(CausalLMDraft(near_copy(model)), growth.kary(3, 2))  # 13 nodes
    graphs = Graphs(model, capacity=40, sizes=(1, 2, 4))
    assert text(model, graphs, wide).tokens == text(model, None, wide).tokens
    assert {size for size, _ in graphs.forwards} <= {1, 2, 4}
    calls = counted(model, monkeypatch)
    expected = text(model, None, tokens=90).tokens
    for _ in range(2):
        del calls[:]
        out = text(model, graphs, tokens=90)
        assert out.tokens == expected
        assert 1 < len(calls) < len(out.steps)  # some of both
    before = dict(graphs.forwards)
    assert text(model, graphs, tokens=20).tokens == expected[:20]
    assert before
    assert all(graphs.forwards[key] is captured for key, captured in before.items())


def test_padding_is_written_over_by_the_next_tree():
    """The worked example: a tree of three nodes in a forward of four, behind three committed tokens."""
    model = llama()
    graphs = Graphs(model, capacity=8, sizes=(2, 4))
    target = Target(model, forwards=graphs)
    target.prefill([1, 2, 3])
    target.forward(TokenTree([4, 5, 6], [-1, 0, 0]))
    forward = graphs.forwards[4, ()]
    assert forward.ids_positions_slots[2].tolist() == [3, 4, 5, 6]
    (mask,) = forward.mask_of_kind.values()
    shown = [row.nonzero().flatten().tolist() for row in mask[0, 0] == 0]
    assert shown == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 5], [6]]
    assert target.cache.length + target.cache.pending == 6


def test_forwards_are_replayed_until_the_buffers_are_full(monkeypatch):
    """The cache once moved its buffers when a third tree would no longer fit: graphs were dropped without a word."""
    model = llama()
    wide = TreeDrafter(CausalLMDraft(near_copy(model)), growth.kary(3, 2))  # 13 nodes
    graphs, missed = Graphs(model, capacity=64, sizes=(16,), capture=at_once), []
    score = graphs.score
    monkeypatch.setattr(graphs, "score", lambda cache, *rest: score(cache, *rest) or missed.append(cache.length))
    out = text(model, graphs, wide, tokens=70)
    assert out.tokens == text(model, None, wide, tokens=70).tokens
    assert missed
    assert min(missed) + 16 > 64


def test_a_model_that_cannot_be_captured_still_runs(monkeypatch):
    model, expected = llama(), text(llama()).tokens
    forward = model.forward

    def reading(input_ids, **kwargs):
        if int(input_ids.sum()) >= 0:  # reads a number off a tensor
            return forward(input_ids=input_ids, **kwargs)

    monkeypatch.setattr(model, "forward", reading)
    graphs = Graphs(model, capacity=128)
    with pytest.warns(UserWarning, match="no graphs for LlamaForCausalLM: .*"):
        assert text(model, graphs).tokens == expected
    assert graphs.failed
    assert not graphs.forwards


def test_without_a_gpu_there_is_no_cuda_graph():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    model = llama()
    with pytest.warns(UserWarning, match="no graphs for LlamaForCausalLM"):
        assert text(model, Graphs(model, capacity=128, capture=as_cuda_graph)).tokens == text(model).tokens


@pytest.mark.skipif(not torch.cuda.is_available(), reason="NO CUDA GRAPH WAS CAPTURED: this machine has no GPU")
def test_a_cuda_graph_writes_the_same_text():
    model = llama().cuda()
    graphs = Graphs(model, capacity=128)
    assert graphs.capture is as_cuda_graph
    assert text(model, graphs).tokens == text(model).tokens
    assert graphs.forwards
    assert not graphs.failed


def test_nothing_is_read_off_the_device():
    """On tensors without content: to capture and to score must not wait for a number. The control does, and fails."""
    with torch.device("meta"):
        model = llama()
        graphs = Graphs(model, capacity=64, capture=at_once)
        graphs.prepare((-1,))
    assert not graphs.failed
    logits, hidden = graphs.score(graphs.cache, SMALL.tokens[None], SMALL.depth[None], None, (-1,))
    assert (logits.device.type, len(logits), len(hidden[-1])) == ("meta", 5, 5)
    with pytest.raises(RuntimeError, match="meta"):
        int(logits[0].argmax())


def test_one_generation_at_a_time():
    model = llama()
    graphs = Graphs(model, capacity=64)
    first, second = Target(model, forwards=graphs), Target(model, forwards=graphs)
    first.prefill([1, 2])
    second.prefill([3])
    second.forward(SMALL)
    with pytest.raises(RuntimeError, match="serve another generation by now"):
        first.forward(SMALL)


@pytest.mark.parametrize("layers_done", [0, 1, 2])
def test_a_first_prompt_may_be_interrupted(layers_done, monkeypatch):
    """The cache of the interrupted forward has only some of the model's layers: the next generation begins anew."""
    model = llama(num_hidden_layers=3)
    graphs, update = Graphs(model, capacity=128), TreeLayer.update
    updated = []

    def interrupted(layer, *args, **kwargs):
        if len(updated) == layers_done:
            raise KeyboardInterrupt
        updated.append(layer)
        return update(layer, *args, **kwargs)

    monkeypatch.setattr(TreeLayer, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Target(model, forwards=graphs).prefill(PROMPT)
    monkeypatch.setattr(TreeLayer, "update", update)
    expected = text(model).tokens
    for _ in range(3):
        assert text(model, graphs).tokens == expected
    assert graphs.forwards


def test_a_window_slides_in_graphs_too():
    model, window = llama(), Window(2, 10)
    options = {"max_new_tokens": 40, "eos": ()}
    texts = [
        decode(
            Target(model, window=window, forwards=graphs), PlainDrafter(), verifiers.greedy, PROMPT, **options
        ).tokens
        for graphs in (None, Graphs(model, capacity=64))
    ]
    assert texts[0] == texts[1] != text(model, None, PlainDrafter()).tokens


def test_the_control_without_positions_works_in_graphs_too():
    model = llama()
    drafter, options = NgramDrafter(), {"max_new_tokens": 60, "eos": ()}
    bent = decode(
        Unpositioned(model, forwards=Graphs(model, capacity=128)), drafter, verifiers.greedy, PROMPT, **options
    )
    assert bent.tokens == decode(Unpositioned(model), drafter, verifiers.greedy, PROMPT, **options).tokens


@pytest.mark.parametrize("settings", [{"capacity": 0}, {"sizes": ()}, {"sizes": (0, 2)}])
def test_settings_without_sense_are_refused(settings):
    with pytest.raises(ValueError, match="capacity and sizes must be at least 1"):
        Graphs(llama(), **settings)


def test_a_model_in_training_is_captured_without_dropout():
    model = llama(attention_dropout=0.5)
    right = text(model).tokens
    graphs = Graphs(model.train(), capacity=128, sizes=(1, 8, 32))
    graphs.prepare()
    assert text(model, graphs).tokens == right


def test_graphs_of_another_model_are_refused():
    graphs = Graphs(llama(1))
    with pytest.raises(ValueError, match="these forwards are of another LlamaForCausalLM"):
        Target(llama(), forwards=graphs)
    with pytest.raises(ValueError, match="these forwards are of another LlamaForCausalLM"):
        CausalLMDraft(llama(), graphs=graphs)
