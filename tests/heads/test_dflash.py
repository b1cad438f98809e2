"""DFlash blocks in published formats: cached drafting equals straight arithmetic over the whole text."""

import sys
from functools import cache
from itertools import product

import dflash_checkpoints
import pytest
import torch
from dflash_checkpoints import HEAD, HEADS, KEY_HEADS, LAYERS, MASK, SIZE, SPECULATORS, TARGETS, ZLAB, tensors, written
from references import apart, given_ends, recorded
from rounding import PRODUCTS, rounding
from tiny import VOCABULARY, any_path, generated
from tiny_heads import Compared
from torch import Tensor

from specnb import growth, verifiers
from specnb.decode import decode
from specnb.drafters import TreeDrafter
from specnb.heads.dflash import dflash
from specnb.heads.modules import final_norm
from specnb.target import Target
from specnb.tree import TokenTree

ALLOWED = rounding(torch.ones(()), products=4 * PRODUCTS)
PROMPT = [3, 1, 4, 1, 5]


@torch.no_grad()
def straight(weights: dict[str, Tensor], target, tokens: list[int]) -> Tensor:
    """(B - 1, V) logits of the block behind these tokens, of which the last is the root: its arithmetic at a stretch.

    There is no cache, and attention is written out: scores over all features and the whole block, in both directions.
    """
    states = target(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    read = torch.cat([states[index + 1][0, :-1] for index in dflash_checkpoints.IDS], -1)  # before the root
    features = normed(read @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    block = [tokens[-1], *[MASK] * (SIZE - 1)]
    x = target.get_input_embeddings()(torch.tensor(block))
    text = len(features)
    for layer in range(LAYERS):
        of = {key.removeprefix(f"layers.{layer}."): value for key, value in weights.items()}
        rows = normed(x, of["input_layernorm.weight"])
        seen = torch.cat([features, rows])
        query = (rows @ of["self_attn.q_proj.weight"].T).view(-1, HEADS, HEAD)
        keys = (seen @ of["self_attn.k_proj.weight"].T).view(-1, KEY_HEADS, HEAD)
        values = (seen @ of["self_attn.v_proj.weight"].T).view(-1, KEY_HEADS, HEAD)
        query = turned(normed(query, of["self_attn.q_norm.weight"]), text)
        keys = turned(normed(keys, of["self_attn.k_norm.weight"]), 0)
        attended = []
        for head in range(HEADS):
            shared = head // (HEADS // KEY_HEADS)
            scores = query[:, head] @ keys[:, shared].T / HEAD**0.5
            attended.append(scores.softmax(-1) @ values[:, shared])
        x = x + torch.cat(attended, -1) @ of["self_attn.o_proj.weight"].T
        rows = normed(x, of["post_attention_layernorm.weight"])
        gate = rows @ of["mlp.gate_proj.weight"].T
        up = rows @ of["mlp.up_proj.weight"].T
        x = x + (gate.sigmoid() * gate * up) @ of["mlp.down_proj.weight"].T
    return target.lm_head(normed(x, weights["norm.weight"])[1:])


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def turned(x: Tensor, start: int) -> Tensor:
    """(n, heads, HEAD) at the positions from start on: entry i and entry i + HEAD / 2 are a pair."""
    half = HEAD // 2
    frequencies = ZLAB["rope_theta"] ** -(torch.arange(half) / half)
    angles = (start + torch.arange(len(x)))[:, None, None] * frequencies
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


@pytest.fixture(params=TARGETS)
def target(request):
    return TARGETS[request.param]()


@pytest.fixture
def folder(tmp_path):
    return written(tmp_path / "dflash", tensors(), ZLAB)


def worst(draft, target, break_it=lambda draft: None, prompt=PROMPT) -> float:
    """The largest difference while 28 tokens are decoded over trees with accepted paths of any length."""
    break_it(draft)
    block = cache(lambda prefix: straight(tensors(), target, list(prefix)))

    def expected(tokens, root):
        return block(tuple(tokens[: root + 1]))[len(tokens) - 1 - root]

    checked = Compared(draft, expected)
    drafter = TreeDrafter(checked, growth.kary(2, 4))
    text = decode(Target(target), drafter, any_path, prompt, max_new_tokens=28)
    assert max(len(step.verdict.path) for step in text.steps) > 2
    assert checked.depths == {0, 1, 2, 3}
    return checked.worst


@pytest.mark.parametrize("prompt", [PROMPT, [7]], ids=["prompt", "one token"])
def test_cached_drafting_equals_the_straight_arithmetic(target, folder, prompt):
    assert worst(dflash(target, folder), target, prompt=prompt) < ALLOWED


def test_newer_files_have_the_block_size_further_in(target, tmp_path):
    inside = {**ZLAB["dflash_config"], "block_size": SIZE}
    config = {name: value for name, value in ZLAB.items() if name != "block_size"} | {"dflash_config": inside}
    assert worst(dflash(target, written(tmp_path / "new", tensors(), config)), target) < ALLOWED


def test_speculators_format_is_the_same_block(target, tmp_path):
    weights = {**tensors(), "verifier_norm.weight": final_norm(target).weight.detach().clone()}
    assert worst(dflash(target, written(tmp_path / "speculators", weights, SPECULATORS)), target) < ALLOWED


def test_a_reduced_vocabulary_keeps_its_own_rows(target, tmp_path):
    ids = torch.arange(0, VOCABULARY, 3)
    rows = torch.randn(len(ids), dflash_checkpoints.WIDTH, generator=torch.Generator().manual_seed(0))
    known = torch.zeros(VOCABULARY, dtype=torch.bool)
    known[ids] = True
    more = {"lm_head.weight": rows, "d2t": ids - torch.arange(len(ids)), "t2d": known}
    config = {**SPECULATORS, "draft_vocab_size": len(ids)}
    draft = dflash(target, written(tmp_path / "reduced", {**tensors(), **more}, config))
    assert torch.equal(draft.ids, ids)
    full = dflash(target, written(tmp_path / "full", tensors(), ZLAB))
    for one in (draft, full):
        states = target(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
        one.begin(PROMPT, {layer: states[layer][0, :-1].detach() for layer in one.hidden_layers})
    full.output = draft.output
    with torch.no_grad():
        assert torch.equal(draft._block(), full._block())
    tree = TreeDrafter(draft, growth.kary(2, 4))
    text = decode(Target(target), tree, verifiers.greedy, PROMPT, max_new_tokens=20)
    assert list(text.tokens) == generated(target, PROMPT, 20)
    shift = {**more, "d2t": more["d2t"] - 1}
    with pytest.raises(ValueError, match="must rise within"):
        dflash(target, written(tmp_path / "low", {**tensors(), **shift}, config))
    with pytest.raises(ValueError, match="name different tokens"):
        dflash(target, written(tmp_path / "other", {**tensors(), **more, "t2d": known.roll(1)}, config))
    with pytest.raises(ValueError, match=r"lacks d2t or lm_head\.weight"):
        dflash(target, written(tmp_path / "none", tensors(), config))


def test_greedy_text_is_plain_decoding(target, folder):
    drafter = TreeDrafter(dflash(target, folder), growth.kary(2, 4))
    text = decode(Target(target), drafter, verifiers.greedy, PROMPT, max_new_tokens=24)
    assert list(text.tokens) == generated(target, PROMPT, 24)


def test_nodes_of_a_depth_share_a_law_and_one_forward_drafts_them_all(folder):
    target = TARGETS["qwen3"]()
    draft = dflash(target, folder)
    calls = []
    draft.module.register_forward_hook(lambda *_: calls.append(1))
    seen = {}
    expand = draft.expand

    def watched(tree, frontier):
        logits = expand(tree, frontier)
        for node, row in zip(frontier, logits, strict=True):
            assert torch.equal(seen.setdefault((len(calls), tree.depth_list[node]), row), row)
        return logits

    draft.expand = watched
    text = decode(Target(target), TreeDrafter(draft, growth.kary(2, 4)), any_path, PROMPT, max_new_tokens=12)
    assert len(calls) == len(text.steps)
    laws = [seen[1, depth] for depth in range(4)]
    assert all((a - b).abs().max() > 1e-3 for a, b in product(laws, laws) if a is not b)


def test_trees_deeper_than_a_block_are_not_drafted(folder):
    target = TARGETS["qwen3"]()
    text = decode(
        Target(target), TreeDrafter(dflash(target, folder), growth.chain(9)), any_path, PROMPT, max_new_tokens=12
    )
    assert max(max(step.draft.tree.depth_list) for step in text.steps) == SIZE - 1


# --- faults that the comparison must notice


def test_attention_in_one_direction_is_noticed(target, folder, monkeypatch):
    attention = torch.nn.functional.scaled_dot_product_attention

    class OneWay:
        @staticmethod
        def scaled_dot_product_attention(query, keys, values, **options):
            rows, columns = query.shape[-2], keys.shape[-2]
            mask = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
            return attention(query, keys, values, attn_mask=mask, **options)

    monkeypatch.setattr(sys.modules["specnb.heads.dflash"], "F", OneWay)
    assert worst(dflash(target, folder), target) > 1e-3


def other_layers(draft):
    """The states of one layer before: hidden_states[id] in place of hidden_states[id + 1]."""
    fuse = draft.module.fuse
    draft.hidden_layers = tuple(layer - 1 for layer in draft.hidden_layers)
    draft.module.fuse = lambda states: fuse(states)


def swapped_states(draft):
    fuse = draft.module.fuse
    draft.module.fuse = lambda states: fuse(states[::-1])


def shifted(draft):
    """The block one position further than it is."""
    angles = draft.module._angles
    draft.module._angles = lambda start, x: angles(start + (x.shape[1] == SIZE), x)


def later_row(draft):
    """Each depth reads the row before its own, as an autoregressive model would."""
    output = draft.output
    draft.output = lambda states: output(states.roll(1, 0))


def kept_block(draft):
    """Keys and values of masks stay in the cache as if they were text."""
    block = draft._block

    def keeping():
        logits = block()
        for layer in draft.cache.layers:
            layer.used += 1
        draft.cache.length += 1
        return logits

    draft._block = keeping


@pytest.mark.parametrize("fault", [other_layers, swapped_states, shifted, later_row, kept_block])
def test_the_comparison_notices_faults(target, folder, fault):
    assert worst(dflash(target, folder), target, fault) > 1e-3


# --- what is refused


def test_what_does_not_fit_is_refused(tmp_path):
    target = TARGETS["qwen3"]()

    def refused(match, config=None, weights=None):
        folder = written(tmp_path / "refused", tensors() if weights is None else weights, config or ZLAB)
        with pytest.raises(ValueError, match=match):
            dflash(target, folder)

    def zlab(**changes):
        return {**ZLAB, **changes}

    def inside(**changes):
        return zlab(dflash_config={**ZLAB["dflash_config"], **changes})

    refused("no DFlash checkpoint: its config.json has architectures", {"architectures": ["LlamaForCausalLMEagle3"]})
    refused("speculators_model_type 'eagle3'", {**SPECULATORS, "speculators_model_type": "eagle3"})
    refused("sample_from_anchor", {**SPECULATORS, "sample_from_anchor": True})
    refused("does not say its block_size", {name: value for name, value in ZLAB.items() if name != "block_size"})
    refused("does not say its mask_token_id", inside(mask_token_id=None))
    refused("which of the target's layers", inside(target_layer_ids=None))
    refused("layers of the kind llama", zlab(model_type="llama"))
    refused("full_attention, sliding_attention", zlab(layer_types=["full_attention", "sliding_attention"]))
    refused("states of width 32", zlab(hidden_size=32))
    refused("a target with 5 layers, this one has 4", zlab(num_target_layers=5))
    refused("indices below 4", inside(target_layer_ids=[0, 3]))
    refused("mask token 50", inside(mask_token_id=50))
    refused("vocabulary of 51", zlab(vocab_size=51))
    refused("blocks of 1", zlab(block_size=1))
    refused(r"fc\.weight of shape \(64, 128\), expected \(64, 192\)", inside(target_layer_ids=[0, 1, 2]))
    refused(r"lacks layers\.2", zlab(num_hidden_layers=3, layer_types=["full_attention"] * 3))
    refused(r"has layers\.1", zlab(num_hidden_layers=1, layer_types=["full_attention"]))

    weights = tensors()
    refused(r"lacks hidden_norm\.weight", weights={key: weights[key] for key in weights if key != "hidden_norm.weight"})
    refused(r"has midlayer\.weight", weights={**weights, "midlayer.weight": torch.ones(1)})
    halved = {**weights, "layers.0.self_attn.q_proj.weight": weights["layers.0.self_attn.q_proj.weight"][:48]}
    refused(r"q_proj\.weight of shape \(48, 64\), expected \(96, 64\)", weights=halved)
    refused("another target", weights={**weights, "embed_tokens.weight": torch.ones(50, 64)})


# --- other projects' modules

ROOTS = (5, 8, 11)  # of the three blocks in a recording


@torch.no_grad()
def blocks(draft, others) -> Tensor:
    """(3, B - 1, V): the draft model's logits behind three roots of a recording's text, as in a generation."""
    tokens = others["tokens"].tolist()
    hidden = dict(zip(draft.hidden_layers, others["states"], strict=True))
    draft.begin(tokens[: ROOTS[0] + 1], {layer: states[: ROOTS[0]] for layer, states in hidden.items()})
    drafted = []
    for root, following in zip(ROOTS, [*ROOTS[1:], None], strict=True):
        tree = TokenTree.chain([tokens[root], *tokens[root + 1 : following], *[0] * SIZE][:SIZE])
        drafted.append(torch.cat([draft.expand(tree, [node]) for node in range(SIZE - 1)]))
        if following:
            path = range(1, following - root)
            accepted = {layer: states[root:following] for layer, states in hidden.items()}
            draft.commit(tree, path, tokens[following], accepted)
    return torch.stack(drafted)


def test_three_blocks_are_those_of_z_labs_module(tmp_path):
    weights, others = recorded("dflash_zlab")
    target = given_ends(TARGETS["qwen3"](), others)
    folder = written(tmp_path / "zlab", weights, ZLAB)
    assert apart(blocks(dflash(target, folder), others), others["logits"]) < 1e-4
    for fault in (swapped_states, shifted, later_row, kept_block):
        draft = dflash(target, folder)
        fault(draft)
        assert apart(blocks(draft, others), others["logits"]) > 1e-3


def test_three_blocks_are_those_of_speculators_module(tmp_path):
    weights, others = recorded("dflash_speculators")
    target = given_ends(TARGETS["qwen3"](), others)
    draft = dflash(target, written(tmp_path / "speculators", weights, SPECULATORS))
    assert apart(blocks(draft, others), others["logits"]) < 1e-4
