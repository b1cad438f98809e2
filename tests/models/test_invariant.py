"""Invariant forwards: logits of a tree are to the bit those of one node at a time; each control differs."""

import math
import random

import pytest
import torch
from rounding import same
from tiny import FAMILIES, VOCABULARY, llama, near_copy
from transformers import MixtralConfig, MixtralForCausalLM

from specnb import decode, growth, verifiers
from specnb.drafters import CausalLMDraft, NgramDrafter, TreeDrafter
from specnb.models import Invariant, invariant
from specnb.target import Target
from specnb.tree import TokenTree

BITS = pytest.mark.bits(
    "invariant forwards give the same bits by every kernel that treats rows alike; this noise does not"
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def tree(draws: random.Random, root: int, size: int, vocabulary: int) -> TokenTree:
    """A random tree whose siblings differ."""
    paths = [()]
    while len(paths) < size:
        path = (*draws.choice(paths), draws.randrange(vocabulary))
        if path not in paths:
            paths.append(path)
    return TokenTree.from_paths(paths[1:], root=root) if size > 1 else TokenTree([root], [-1])


def one_by_one(model, forwards, prefix: list[int], path: list[int]) -> torch.Tensor:
    """(nodes, V) logits after each token of a path, fed one at a time behind a prefix that was read at once."""
    target = Target(model, forwards=forwards)
    target.prefill(prefix)
    rows = []
    for token in path:
        rows.append(target.forward(TokenTree([token], [-1])).logits[0])
        target.commit([])
    return torch.stack(rows)


def differing(model, prompt: int, sizes: list[int], *, seed: int = 0, make=Invariant, plain=Invariant) -> int:
    """How many nodes of random trees, a path of each committed, get other bits than one node at a time."""
    draws, found = random.Random(seed), 0
    vocabulary = model.config.vocab_size
    prefix = [draws.randrange(vocabulary) for _ in range(prompt)]
    target, text = Target(model, forwards=make(model)), []
    target.prefill(prefix)
    for size in sizes:
        drafted = tree(draws, draws.randrange(vocabulary), size, vocabulary)
        logits = target.forward(drafted).logits
        for leaf in drafted.leaves:
            path = [0, *drafted.path(leaf)] if leaf else [0]
            right = one_by_one(model, plain(model), prefix, [*text, *drafted.tokens[path].tolist()])[len(text) :]
            found += int((logits[path] != right).any(-1).sum())
        target.commit(path[1:])
        text += drafted.tokens[path].tolist()
    return found


@BITS
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "prompt", [pytest.param(0, marks=pytest.mark.slow), 3, pytest.param(40, marks=pytest.mark.slow), 70]
)
def test_every_node_has_the_bits_of_one_node_at_a_time(family, dtype, prompt):
    assert differing(FAMILIES[family]().to(dtype), prompt, [1, 5, 8, 13, 21], seed=prompt) == 0


@BITS
@pytest.mark.parametrize("heads", [(4, 2), (7, 1)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_depend_neither_on_a_nodes_row_nor_on_other_nodes_blocks(dtype, heads):
    """A chain over the end of a shared block: its first nodes see one, its last ones two; fed alone all stand first."""
    model = llama(num_attention_heads=heads[0], num_key_value_heads=heads[1], hidden_size=16 * heads[0]).to(dtype)
    prefix, chain, target = list(range(20)) * 4, list(range(16)), Target(model, forwards=Invariant(model))
    target.prefill(prefix[:72])
    places = invariant._places(torch.ones(16, 88, dtype=torch.bool).tril(72), torch.arange(72, 88), 16)
    assert places.beyond.flatten(1).sum(1).tolist() == [0, 7]  # a block that seven nodes do not see
    logits = target.forward(TokenTree(chain, range(-1, 15))).logits
    assert torch.equal(logits, one_by_one(model, Invariant(model), prefix[:72], chain))


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_the_models(family):
    model, draws = FAMILIES[family](), random.Random(1)
    targets = Target(model, hidden_layers=(0, -1)), Target(model, hidden_layers=(0, -1), forwards=Invariant(model))
    for target in targets:
        target.prefill(list(range(45)))
    for size in (7, 20, 1):
        drafted = tree(draws, 5, size, VOCABULARY)
        usual, ours = (target.forward(drafted) for target in targets)
        assert same(ours.logits, usual.logits)
        for layer in (0, -1):
            assert same(ours.hidden[layer], usual.hidden[layer])
        for target in targets:
            target.commit(drafted.path(size - 1))
    assert model.config._attn_implementation == "sdpa"


@BITS
@pytest.mark.parametrize("heads", [(4, 2), (7, 1)], ids=str)
def test_a_single_row_is_invariant_too(heads):
    """Forwards of one node have one shape in every tree, so they need no second own row."""
    model = llama(num_attention_heads=heads[0], num_key_value_heads=heads[1], hidden_size=16 * heads[0])

    def single(model):
        return Invariant(model, rows=1)

    assert differing(model, 70, [1, 5, 8, 13], make=single, plain=single) == 0


def physical(visible, last, depth):
    """Control: keys are read as they lie, other branches' hidden among them."""
    places = right(visible, last, depth)
    columns = (last + 1 - depth).clamp_min(0)[:, None] // invariant.BLOCK * invariant.BLOCK
    columns = columns + torch.arange(invariant.BLOCK + 3 * depth)
    slots = columns.clamp_max(visible.shape[1] - 1)
    hidden = ~visible.gather(1, slots) | (columns >= visible.shape[1])
    return invariant.Places(places.beyond, 0, slots, hidden[:, None])


right = invariant._places


@BITS
@pytest.mark.model
def test_the_real_model(smollm2):
    """And the control that a reader meets: with ordinary forwards bits differ."""
    assert differing(smollm2.target, 40, [6]) == 0
    assert differing(smollm2.target, 40, [6], make=lambda model: None, plain=lambda model: None) > 0


@BITS
@pytest.mark.slow
@pytest.mark.model
def test_the_real_model_and_each_control(smollm2, monkeypatch):
    """With ordinary forwards, other numbers of rows, or keys in the order in which they lie, bits differ."""
    model = smollm2.target
    assert differing(model, 50, [12]) == 0
    assert differing(model, 700, [8]) == 0  # so many blocks that threads share an exponential
    assert differing(model, 50, [12], make=lambda model: None, plain=lambda model: None) > 0
    assert differing(model, 50, [12], plain=lambda model: Invariant(model, rows=1)) > 0
    monkeypatch.setattr(invariant, "_places", physical)
    assert differing(model, 50, [12]) > 0


def test_a_block_and_a_gathered_key_by_hand():
    """The worked example of attention: a block of 32 keys of score 0, and one key of score ln 32, weigh the same."""
    keys = torch.tensor([0.0] * 32 + [math.log(32)]).view(1, 1, 33, 1)
    values = torch.tensor([1.0] * 32 + [3.0]).view(1, 1, 33, 1)
    places = invariant.Places(
        beyond=torch.zeros(1, 1, 1, 1, dtype=torch.bool),
        start=32,
        slots=torch.tensor([[0]]),
        hidden=torch.zeros(1, 1, 1, dtype=torch.bool),
    )
    out, _ = invariant.attention(None, torch.ones(1, 1, 2, 1), keys, values, None, 1.0, places)
    assert out.shape == (1, 2, 1, 1)  # one own row, and a copy
    assert same(out, torch.full_like(out, 2.0), products=34)


def test_places_by_hand():
    """The worked example of places: the second child of a root behind 40 committed tokens."""
    visible = torch.ones(3, 43, dtype=torch.bool).tril(40)
    visible[2, 41] = False
    places = invariant._places(visible, torch.tensor([40, 41, 41]), depth=4)
    assert places.start == 32
    assert not places.beyond.any()
    seen = (places.start + places.slots[2])[~places.hidden[2, 0]]
    assert seen.tolist() == [*range(32, 41), 42]
    assert places.hidden[2].sum() == 26


def test_experts_are_refused():
    sizes = {"num_local_experts": 2, "num_experts_per_tok": 1, "vocab_size": 20, "num_hidden_layers": 1}
    with pytest.raises(ValueError, match="a mixtral is not dense"):
        Invariant(MixtralForCausalLM(MixtralConfig(**sizes, hidden_size=32, intermediate_size=16, sliding_window=None)))


def test_a_tree_that_is_too_deep_is_refused():
    model = llama()
    target = Target(model, forwards=Invariant(model, depth=3))
    target.prefill([1, 2])
    with pytest.raises(ValueError, match="a tree of 4 levels: Invariant"):
        target.forward(TokenTree([5, 6, 7, 8], [-1, 0, 1, 2]))


@BITS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heat", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["chain", "tree", "n-gram"])
def test_texts_are_plain_decodings(dtype, heat, kind):
    """At temperature 0, and above it with the same coins, if tokens are drawn and matched."""
    model = llama().to(dtype)
    draft = CausalLMDraft(near_copy(llama()).to(dtype))
    drafter = {
        "chain": lambda: TreeDrafter(draft, growth.chain(4)),
        "tree": lambda: TreeDrafter(draft, growth.Eagle2(20, 5, 4)),
        "n-gram": NgramDrafter,
    }[kind]()
    verifier = verifiers.sample_and_match if heat else verifiers.greedy
    prompt, options = [7, 8, 9, 7, 8], {"max_new_tokens": 60, "temperature": heat, "eos": ()}
    texts = [
        decode.decode(Target(model, forwards=Invariant(model)), one, verifier, prompt, **options)
        for one in (decode.PlainDrafter(), drafter)
    ]
    assert texts[0].tokens == texts[1].tokens
    assert len(texts[1].steps) < len(texts[0].steps)
