"""Trained heads at work: cached drafting equals the training pass, and no head sees what it must not see."""

import math
from copy import deepcopy
from functools import partial

import pytest
import torch
from rounding import PRODUCTS, rounding, same
from tiny import VOCABULARY, any_path, gpt_neox, llama, qwen2
from tiny_heads import IDS, KINDS, Compared, make, trained_logits

from specnb import growth, heads, masks, verifiers
from specnb.decode import decode
from specnb.drafters import CausalLMDraft, TreeDrafter
from specnb.models import PackedLinear, packing
from specnb.target import Target
from training import losses, starts

# Of the largest number: four forwards one after the other, each at most as long as a tiny model's.
ALLOWED = rounding(torch.ones(()), products=4 * PRODUCTS)


@torch.no_grad()
def test_edd_begins_as_the_targets_last_layer():
    """Untrained, over the states before it, an edd is that layer, though it shares no key heads; later it is not."""
    model, ids = llama(num_key_value_heads=1), torch.arange(9)[None]
    spec = heads.Spec.like(model, "edd", hidden_layer=-2)
    assert spec.key_heads == spec.attention_heads > model.config.num_key_value_heads
    head, states, places = heads.Edd(spec), model(ids, output_hidden_states=True).hidden_states, torch.arange(9)

    def last() -> torch.Tensor:
        return heads.final_norm(model)(head.layer(states[-2], *head.layer.project(states[-2], places), None))

    assert not torch.allclose(last(), states[-1], atol=1e-2)
    starts.from_target(head, model)
    assert same(last(), states[-1], products=9)


@torch.no_grad()
def test_a_vdm_begins_with_the_longest_units_of_the_targets_first_and_last_layer():
    """Where half of an MLP's units add nothing, the vdm's half of them is the whole layer; else it is not."""
    model, ids = llama(num_key_value_heads=1), torch.arange(9)[None]
    head = heads.Vdm(heads.Spec.like(model, "vdm", count=2))
    states, position = model.get_input_embeddings()(ids), torch.arange(9)[None]
    rotation = model.base_model.rotary_emb(states, position)

    def far_apart() -> list[float]:
        starts.from_target(head, model)
        theirs = [model.base_model.layers[0], model.base_model.layers[-1]]
        return [
            float((a(states, position_embeddings=rotation) - b(states, position_embeddings=rotation)).abs().max())
            for a, b in zip(head.model.layers, theirs, strict=True)
        ]

    assert min(far_apart()) > 1e-3
    for layer in model.base_model.layers:
        layer.mlp.down_proj.weight[:, 1::2] = 0
    assert max(far_apart()) < rounding(states, products=9)


@pytest.mark.parametrize(("kind", "mlp"), [("vdm", 33), ("eagle3", 44), ("eagle", 67), ("medusa", 67)])
def test_a_heads_inner_width_is_a_share_of_the_targets(kind, mlp):
    assert heads.Spec.like(llama(intermediate_size=67), kind).mlp == mlp


def test_a_pair_of_a_heads_entries_is_turned_by_its_position():
    """The worked example: one pair, one radian a position."""
    spec = heads.Spec.like(llama(hidden_size=8, num_attention_heads=4), "edd", hidden_layer=-2)
    turned = heads.Edd(spec).layer._rotate(torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([3]))
    assert same(turned, torch.tensor([[[[math.cos(3), math.sin(3)]]]]), products=3)


UNEVEN = growth.Static(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0), (0, 0, 0, 0)))


def drafted(
    kind: str, model=None, poison: float = 0.0, break_it=lambda inner: None, prompt=(3, 1, 4, 1, 5), **options
) -> Compared:
    """Decode 28 tokens with a checked head of this kind over an uneven tree; options: of draft_model."""
    model = model or llama()
    parts = make(model, *KINDS[kind])
    inner = heads.draft_model(deepcopy(parts[0]), *parts[1:], **options)
    compared = Compared(inner, partial(trained_logits, *parts, model, poison=poison))
    break_it(inner)
    shape = growth.kary(2, 3) if kind == "medusa" else UNEVEN
    text = decode(Target(model), TreeDrafter(compared, shape), any_path, list(prompt), max_new_tokens=28)
    paths = [step.verdict.path for step in text.steps]
    assert any(path != tuple(range(1, 1 + len(path))) for path in paths)  # a node's row is not its depth
    return compared


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", [(3, 1, 4, 1, 5), (7,)], ids=["prompt", "one token"])
def test_cached_drafting_equals_the_training_pass(kind, prompt):
    """Bar 3: positions, masks and features of the incremental form are those of training."""
    compared = drafted(kind, prompt=prompt)
    assert compared.nodes > 20
    assert compared.worst < ALLOWED


@pytest.mark.parametrize(
    ("kind", "of_the_prompt"), {"vdm": 1, "eagle": 1, "eagle3": 1, "edd": 0, "edd without encoding": 0}.items()
)
def test_captured_drafting_equals_the_training_pass(kind, of_the_prompt, monkeypatch):
    """Nothing of the model runs then but the prompt's forward; EDD's soft prompt is made of keys and values alone."""
    calls = []

    def watched(inner):
        """On the class: a model that is given another forward is captured anew."""
        model = inner.forwards.model
        forward = type(model).forward

        def counted(self, *args, **kwargs):
            if self is model:
                calls.append(1)
            return forward(self, *args, **kwargs)

        monkeypatch.setattr(type(model), "forward", counted)

    compared = drafted(kind, capacity=64, break_it=watched)
    assert compared.nodes > 20
    assert compared.worst < ALLOWED
    assert len(calls) == of_the_prompt
    del calls[:]
    drafted(kind, break_it=watched)
    assert len(calls) > 10


def swapped(inner):
    """A joined product whose halves have changed places."""
    layer = inner.forwards.model.head.layer
    layer.gate_up.weight = torch.nn.Parameter(layer.gate_up.weight.roll(layer.spec.mlp, 0))
    layer.gate_up = PackedLinear(layer.gate_up)


@pytest.mark.skipif(not packing.possible(torch.float32), reason="this machine is no x86 with oneDNN")
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "edd"])
def test_a_packed_heads_joined_products_say_the_same(kind):
    joined = drafted(kind, packed=True)
    assert joined.nodes > 20
    assert joined.worst < ALLOWED
    assert drafted(kind, packed=True, break_it=swapped).worst > 1e-3


def stuck(inner):
    """Replays that answer what they answered first."""
    graphs, kept = inner.forwards.graphs, {}
    score = graphs.score
    graphs.score = lambda cache, rows, *rest: kept.setdefault(rows.shape[1], score(cache, rows, *rest))


@pytest.mark.parametrize("kind", ["vdm", "eagle", "eagle3", "edd"])
def test_replays_that_do_not_change_are_noticed(kind):
    assert drafted(kind, capacity=64, break_it=stuck).worst > 1e-3


@pytest.mark.parametrize("family", [qwen2, gpt_neox])
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "edd"])
def test_heads_stand_beside_any_family(kind, family):
    assert drafted(kind, family()).worst < ALLOWED


def shift_positions(inner):
    """One position off: the classic fault between training and inference."""
    layer = inner.forwards.model.head.layer
    rotate = layer._rotate
    layer._rotate = lambda x, positions: rotate(x, positions + (positions.numel() < 4))


def root_feature(inner):
    """Every drafted node fed the root's predicted feature in place of its parent's."""
    expand = inner.expand

    def broken(tree, frontier):
        kept = dict(inner.predicted)
        inner.predicted.update({node: kept[0] for node in kept})
        logits = expand(tree, frontier)
        return logits

    inner.expand = broken


@pytest.mark.parametrize(
    ("kind", "fault"), [("edd", shift_positions), ("eagle", root_feature), ("eagle3", root_feature)]
)
def test_the_comparison_catches_faults(kind, fault):
    assert drafted(kind, break_it=fault).worst > 1e-3


@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle3", "edd"])
def test_states_that_do_not_exist_yet_are_not_looked_at(kind):
    """Bar 4: target states from the root on may be anything, in training as in drafting."""
    assert drafted(kind, poison=100.0).worst < ALLOWED


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_at_or_after_the_predicted_token_is_seen(kind):
    """Bar 4: row t predicts token t + 1, so tokens and states from t + 1 on must not move it."""
    model = llama()
    head, spec, frozen = make(model, *KINDS[kind])
    ids = torch.randint(VOCABULARY, (1, 12), generator=torch.Generator().manual_seed(0))
    states = torch.randn(1, 12, spec.width, generator=torch.Generator().manual_seed(1))
    block = torch.arange(12) // 4 * 4

    def outputs(ids, states) -> list[torch.Tensor]:
        embedded = frozen.embedding[ids]
        if kind == "vdm":
            return [losses.vdm_pass(head, frozen, embedded)]
        if kind == "medusa":
            return list(head(states).unbind(2))
        if kind in ("eagle", "eagle3"):
            return losses.eagle_pass(head, embedded, head.fuse([states] * len(spec.layers)), 3)
        return [losses.edd_pass(head, frozen, embedded, states if spec.hidden_layer else None, block)]

    before = outputs(ids, states)
    for row in range(11):
        other, moved = ids.clone(), states.clone()
        other[:, row + 1 :] = (other[:, row + 1 :] + 1) % VOCABULARY
        moved[:, row + 1 :] += 5
        if kind in ("eagle", "eagle3"):
            moved[:, row] += 5  # the feature at t already holds the target's law of token t + 1
        if kind == "edd":
            moved[:, int(block[row]) :] += 5  # no state of the current block
        for a, b in zip(before, outputs(other, moved), strict=True):
            assert same(a[:, : row + 1], b[:, : row + 1])


def test_a_leaking_mask_is_caught(monkeypatch):
    """Eq. 3 read literally, h_{≤jL}: the root's own state, which does not exist yet, moves the prediction."""
    literal = masks.dual_block

    def leaking(block):
        mask = literal(block).clone()
        rows = torch.arange(len(block))
        mask[:, : len(block)] |= rows[None, :] == block[:, None]
        return mask

    monkeypatch.setattr(masks, "dual_block", leaking)
    assert drafted("edd", poison=100.0).worst > 1e-3


def test_dual_block_mask_of_the_papers_figure():
    """Figure 3a, block length 2: rows see states of earlier blocks and the tokens of their own."""
    mask = masks.dual_block(torch.tensor([0, 0, 2, 2, 4, 4])).int()
    hidden, tokens = mask[:, :6], mask[:, 6:]
    assert hidden.sum(1).tolist() == [0, 0, 2, 2, 4, 4]
    assert tokens.sum(1).tolist() == [1, 2, 1, 2, 1, 2]
    assert (mask.sum(1) == torch.arange(6) + 1).all()  # each row sees exactly its past and itself, once


def test_medusa_refuses_trees_deeper_than_its_heads():
    model = llama()
    inner = heads.draft_model(*make(model, *KINDS["medusa"]))
    deep = TreeDrafter(inner, growth.chain(9))
    generation = decode(Target(model), deep, verifiers.greedy, [1, 2, 3], max_new_tokens=8)
    assert max(max(step.draft.tree.depth_list) for step in generation.steps) == 4


def test_vdm_is_a_plain_causal_lm():
    """HF's assistant sees the same logits as our reduced drafting, and never prefers a token outside the table."""
    model = llama()
    head, spec, frozen = make(model, *KINDS["vdm"])
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        full = heads.as_causal_lm(head, spec, frozen)(ids).logits
        reduced = heads.as_causal_lm(head, spec, frozen, reduced=True)(ids).logits
    torch.testing.assert_close(full[..., IDS], reduced)
    assert full.shape[-1] == VOCABULARY
    outside = torch.ones(VOCABULARY, dtype=torch.bool)
    outside[IDS] = False
    assert (full.softmax(-1)[..., outside] == 0).all()


# --- files


@pytest.fixture
def saved(tmp_path):
    model = llama()
    head, spec, frozen = make(model, "eagle", -1)
    heads.save(head, spec, frozen.ids, {"target": heads.fingerprint(model)}, tmp_path / "eagle")
    return tmp_path / "eagle", model, head


def test_saved_heads_come_back(saved):
    path, model, head = saved
    again, spec, frozen = heads.load(path, model)
    for name, weight in head.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight.bfloat16().float())
    assert spec.kind == "eagle"
    assert torch.equal(frozen.ids, IDS)
    assert heads.load_draft(path, model).hidden_layers == (-1,)


def test_a_head_for_another_target_is_refused(saved):
    path, _, _ = saved
    with pytest.raises(ValueError, match="trained for a target with fingerprint"):
        heads.load(path, llama(seed=1))


def test_a_target_in_float16_is_taken(saved):
    path, model, _ = saved
    assert heads.fingerprint(model.half()) != heads.fingerprint(llama())
    assert next(heads.load(path, model)[0].parameters()).dtype == torch.float16


def test_a_truncated_head_is_refused(saved):
    path, model, _ = saved
    file = path.with_suffix(".safetensors")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="truncated or damaged"):
        heads.load(path, model)


def test_an_unknown_head_is_named(tmp_path):
    with pytest.raises(ValueError, match="no trained head 'nosuch'"):
        heads.load(tmp_path / "nosuch", llama())


def test_a_wrong_vocabulary_table_is_refused():
    model = llama()
    for ids in ([0, 5, 5], [3, 2], [0, VOCABULARY], []):
        with pytest.raises(ValueError, match="reduced vocabulary"):
            heads.Frozen.of(model, torch.tensor(ids, dtype=torch.int64))
    inner = make(model, *KINDS["vdm"])
    with pytest.raises(ValueError, match="output rows"):
        CausalLMDraft(heads.as_causal_lm(*inner, reduced=True), ids=IDS[:-1])


def test_fingerprints_survive_the_dtype_and_tell_targets_apart():
    model = llama()
    name = heads.fingerprint(model)
    assert heads.fingerprint(model.to(torch.bfloat16)) == name
    assert heads.fingerprint(llama(seed=1)) != name
