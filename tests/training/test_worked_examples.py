"""The examples that docstrings of training work out by hand, as the functions compute them."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from specnb import heads
from specnb.heads.modules import Layer
from training import branches, evaluation, features, loop, losses, recipes, starts, writing

SPEC = heads.Spec("edd", width=8, attention_heads=4, key_heads=4, head_width=64, mlp=8, theta=10_000.0, epsilon=1e-5)


def dialogue(question: tuple[int, ...], answer: tuple[int, ...]) -> writing.Dialogue:
    return writing.Dialogue(question, answer, greedy=True)


# ---- starts


def test_a_ridge_falls_a_little_short():
    weight = starts._ridge(torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [6.0]]))
    assert float(weight) == pytest.approx(10 / 5.05)


def test_rows_of_two_kinds_are_told_apart():
    kinds = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])]
    weights = starts._indicator_weights(kinds, 0)
    assert weights.tolist() == pytest.approx([1.0, 0.0], abs=0.02)


def test_what_entered_the_norm_is_known_up_to_its_length():
    norm = nn.RMSNorm(2, eps=0.0)
    norm.weight.data = torch.tensor([2.0, 3.0])
    frozen = SimpleNamespace(norm=norm, rows=torch.zeros(1, 2))
    entered = starts._before_norm(frozen, torch.tensor([[4.0, 3.0]]))
    assert entered[0].tolist() == pytest.approx([2.0, 1.0])


def test_rows_with_three_before_them_can_be_drawn():
    data = SimpleNamespace(tokens=torch.zeros(9), start=torch.tensor([0, 5, 9]))
    assert starts._sample(data).tolist() == [3, 4, 8]


def test_the_longest_units_are_kept():
    layer = {
        "mlp.gate_proj.weight": torch.diag(torch.tensor([1.0, 2.0])),
        "mlp.up_proj.weight": torch.diag(torch.tensor([1.0, 2.0])),
        "mlp.down_proj.weight": torch.diag(torch.tensor([5.0, 1.0])),
    }
    narrowed = starts._narrowed(layer, 1)
    assert narrowed["mlp.gate_proj.weight"].tolist() == [[1.0, 0.0]]
    assert narrowed["mlp.down_proj.weight"].tolist() == [[5.0], [0.0]]


def test_shared_key_heads_become_copies():
    layer = Layer(SPEC)
    theirs = {f"self_attn.{name}": weight for name, weight in layer.state_dict().items()}
    a, b = torch.ones(64, 8), torch.zeros(64, 8)
    theirs["self_attn.k_proj.weight"] = torch.cat([a, b])
    theirs["self_attn.v_proj.weight"] = torch.cat([a, b])
    starts._copy_into_edd(layer, theirs)
    assert torch.equal(layer.k_proj.weight, torch.cat([a, a, b, b]))


@torch.no_grad()
def test_scores_fall_with_the_distance():
    layer = Layer(SPEC)
    query = starts._falling(SPEC, slope=3.0, steep=6, first=0)
    key = (torch.arange(64) < 32).float()
    distance = torch.arange(60)
    queries = layer._rotate(query.expand(1, 1, 60, 64), distance)
    keys = layer._rotate(key.expand(1, 1, 1, 64), torch.tensor([0]))
    scores = (queries * keys).sum(-1).flatten() / 64**0.5
    less = scores[0] - scores[[1, 6, 11]]
    assert less.tolist() == pytest.approx([2.8, 16.8, 21.0], abs=0.06)


# ---- losses


def test_a_cross_entropy_by_hand():
    frozen = SimpleNamespace(rows=torch.tensor([[2.0], [0.0]]))
    loss = losses.cross_entropy(torch.tensor([[1.0]]), frozen, torch.tensor([[1.0]]))
    assert float(loss) == pytest.approx(1.127, abs=5e-4)


def test_a_row_two_places_below_its_root_sees_three_depths():
    seen = losses.chain_mask(torch.arange(7), 3)[5].view(3, 7)
    assert [row.nonzero().flatten().tolist() for row in seen] == [[0, 1, 2, 3], [4], [5]]


def test_nodes_see_the_text_their_parent_and_themselves():
    parents = torch.tensor([[[1, 1]]])
    trees = features.Branches(torch.tensor([0]), torch.tensor([[1]]), torch.zeros(1, 2, 1, 2), parents, None)
    first, second = losses.tree_masks(trees, torch.arange(3))
    assert [row.nonzero().flatten().tolist() for row in first[0]] == [[0, 1, 3], [0, 1, 4]]
    assert [row.nonzero().flatten().tolist() for row in second[0]] == [[0, 1, 4, 5], [0, 1, 4, 6]]


def test_rows_below_roots_end_with_the_answer():
    answers = torch.tensor([[True] * 8 + [False]])
    trees = SimpleNamespace(roots=torch.tensor([[3, 7]]))
    batch = losses.Batch(torch.zeros(1, 9), answers, {}, None, None, None, trees)
    assert batch.below_roots(1)[0].nonzero().flatten().tolist() == [4]


def test_blocks_begin_where_they_begin():
    assert losses.block_starts(torch.arange(7), length=3, offset=1).tolist() == [0, 0, 2, 2, 2, 5, 5]


# ---- text, trees and schedules


def test_the_commonest_tokens_are_the_vocabulary():
    assert features.vocabulary([dialogue((5, 2), (2, 7))], 2).tolist() == [2, 5]


def test_pieces_are_read_as_one():
    pieces = features.Pieces([torch.arange(4), torch.arange(4, 10)])
    assert pieces[5:8].tolist() == [5, 6, 7]
    assert pieces[torch.tensor([3, 4])].tolist() == [3, 4]


def test_pairs_by_joint_probability():
    p_next = torch.tensor([[[0.5, 0.4], [0.9, 0.1]]])
    columns = torch.tensor([[[10, 11], [12, 13]]])
    chosen, parents = branches._likeliest_pairs(torch.tensor([[0.6, 0.4]]), p_next, columns)
    assert chosen.tolist() == [[12, 10]]
    assert parents.tolist() == [[1, 0]]


def test_roots_stand_before_the_tokens_of_the_answer():
    nothing = torch.zeros(0)
    data = features.Features(torch.zeros(10), torch.tensor([0, 10]), torch.tensor([6]), {}, nothing, nothing, nothing)
    _, roots = branches.choose_roots(data, [0], 4, seed=0)
    assert roots.tolist() == [[5, 6, 7, 8]]


def test_batches_are_filled_with_the_longest_first():
    nothing = torch.zeros(0)
    start = torch.tensor([0, 5, 8, 12, 21])
    data = features.Features(torch.zeros(21), start, start[1:], {}, nothing, nothing, nothing)
    schedule = loop.Schedule(epochs=1, batch_tokens=10)
    assert list(loop.batches(data, [0, 1, 2, 3], schedule, None)) == [[3], [0, 2], [1]]


def test_new_nodes_are_numbered_after_the_text(monkeypatch):
    monkeypatch.setattr(branches.GrowingTree, "_score_new_nodes", lambda tree: torch.zeros(len(tree), 8))
    tree = branches.GrowingTree(None, torch.arange(5))
    states = tree.add(torch.tensor([[7, 8]]), torch.tensor([[2, 2]]))
    assert states.shape == (1, 2, 8)
    assert tree.tree.parents[5:].tolist() == [2, 2]
    assert tree.tree.tokens[5:].tolist() == [7, 8]


def test_the_lowest_loss_was_two_epochs_ago():
    curve = [{"validation_loss": value} for value in (3.0, 2.0, 2.5, 2.2)]
    assert loop._epochs_since_best(curve) == 2
    assert loop._epochs_since_best([]) == -1


def test_a_share_of_the_layers_is_a_state_from_the_end():
    config = SimpleNamespace(num_hidden_layers=30, hidden_size=8, num_attention_heads=2)
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: config))
    recipe = recipes.Recipe("eagle3", losses.eagle3_loss, fused=[0.5])
    assert recipe.spec(model).fused == (-16,)


def test_the_rate_rises_and_falls():
    rates = [loop._rate(step, 300, 100) for step in (49, 100, 200, 299)]
    assert rates == pytest.approx([0.5, 1.0, 0.505, 0.01], abs=1e-4)


def test_a_recipe_takes_dialogues_until_there_are_enough():
    dialogues = [dialogue((1,), (2,) * length) for length in (5, 3, 4)]
    recipe = recipes.Recipe("eagle", losses.eagle_loss, tokens=7)
    assert recipe.text(dialogues) == dialogues[:2]


def test_every_row_of_an_edd_stands_at_every_depth_once(monkeypatch):
    """With depth 2 the blocks are rows 0–1, 2–3, … in one pass and 1–2, 3–4, … in the other."""
    blocks = []

    def edd_pass(head, frozen, embedded, prompt, block):
        blocks.append(block.tolist())
        return embedded

    monkeypatch.setattr(losses, "edd_pass", edd_pass)
    frozen = SimpleNamespace(embedding=torch.zeros(3, 1))
    batch = losses.Batch(torch.zeros(1, 5, dtype=torch.int64), None, {}, None, None, None)
    evaluation._drafted_by_edd(None, SimpleNamespace(hidden_layer=None), frozen, batch, depth=2)
    assert blocks == [[0, 0, 2, 2, 4], [0, 1, 1, 3, 3]]
