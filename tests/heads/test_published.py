"""Published heads: what their own code computed, greedy texts, and files that do not fit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import llama
from transformers import PreTrainedModel

from specnb import growth, heads
from specnb.drafters import TreeDrafter
from specnb.tree import TokenTree

REFERENCES = Path(__file__).parent / "references"
ALLOWED = 1e-4  # of the largest number


def target(rows: torch.Tensor | None = None, **changes) -> PreTrainedModel:
    """The target that the references were made for: its sizes count, and of an EAGLE head its output rows."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 9, "max_position_embeddings": 256, **changes}
    model = llama(**sizes)
    if rows is not None:
        model.lm_head.weight.data = rows
    return model


def apart(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


# --- against the code of those who published the formats


def by_layer(draft, states: torch.Tensor) -> dict[int, torch.Tensor]:
    """A reference's states (n, layers · h) as the target would hand them over."""
    return dict(zip(draft.hidden_layers, states.chunk(len(draft.hidden_layers), -1), strict=True))


class Replay:
    """One step of EAGLE's own drafting, repeated: its tree, level by level."""

    def __init__(self, draft, outputs: dict, step: int, root: int):
        self.differences = []
        tree, frontier = TokenTree([root], [-1]), [0]
        for depth in range(3):
            if depth:
                tokens, parents = (outputs[f"{step}.{depth}.{name}"] for name in ("tokens", "parents"))
                before = len(tree)
                tree = tree.grow(tokens, torch.tensor(frontier)[parents])
                frontier = list(range(before, len(tree)))
            logits = draft.expand(tree, frontier)
            self.differences.append(apart(logits, outputs[f"{step}.{depth}.logits"]))
            features = torch.stack([draft.predicted[node] for node in frontier])
            self.differences.append(apart(features, outputs[f"{step}.{depth}.features"]))
        self.tree = tree


def replayed(name: str, change: Callable[[object], None] = lambda draft: None) -> float:
    """The largest difference over two steps of EAGLE's own drafting, three depths each."""
    outputs = load_file(REFERENCES / name / "outputs.safetensors")
    draft = heads.load_draft(REFERENCES / name, target(outputs["target_rows"]))
    change(draft)
    tokens = outputs["tokens"].tolist()
    draft.begin(tokens, by_layer(draft, outputs["0.states"]))
    first = Replay(draft, outputs, 0, tokens[-1])
    accepted = int(outputs["0.drafted"][1])
    (node,) = [child for child in first.tree.children[0] if first.tree.token_list[child] == accepted]
    draft.commit(first.tree, [node], 11, by_layer(draft, outputs["1.states"]))
    second = Replay(draft, outputs, 1, 11)
    return max(first.differences + second.differences)


@pytest.mark.parametrize("name", ["eagle", "eagle3", "eagle3-wide"])
def test_drafting_is_that_of_eagles_own_code(name):
    assert replayed(name) < ALLOWED


@pytest.mark.parametrize("name", ["eagle", "eagle3", "eagle3-wide"])
def test_a_first_row_or_another_rope_is_noticed(name):
    def with_first_row(draft):
        draft.first_row = True

    def other_rope(draft):
        layer = draft.forwards.model.head.layer
        object.__setattr__(layer.spec, "theta", 1e6)

    assert replayed(name, with_first_row) > 10 * ALLOWED
    assert replayed(name, other_rope) > 10 * ALLOWED


@pytest.mark.parametrize("name", ["eagle", "eagle3", "eagle3-wide"])
def test_the_tree_is_that_of_eagles_own_code(name):
    """EAGLE-2's tree: three levels of three nodes, and the best twelve of all."""
    outputs = load_file(REFERENCES / name / "outputs.safetensors")
    draft = heads.load_draft(REFERENCES / name, target(outputs["target_rows"]))
    drafter = TreeDrafter(draft, growth.Eagle2(total=12, depth=3, k=3))
    tokens = outputs["tokens"].tolist()
    drafter.begin(tokens, None, by_layer(draft, outputs["0.states"]))
    ours = drafter.propose(None, 10).tree
    theirs = set()
    drafted, mask = outputs["0.drafted"].tolist(), outputs["0.drafted_mask"]
    for node in range(1, len(drafted)):
        above = mask[node].nonzero()[:, 0].tolist()  # EAGLE numbers parents before their children
        theirs.add(tuple(drafted[other] for other in above))
    assert {ours.path_tokens(node) for node in range(1, len(ours))} == {path[1:] for path in theirs}
    assert len(theirs) == 12


@pytest.mark.parametrize("name", ["speculators", "speculators-normed", "speculators-qwen3"])
def test_drafting_is_that_of_speculators_own_forward(name):
    """Row t of its pass at depth k is a chain of k drafted tokens below the root t + 1."""
    outputs = load_file(REFERENCES / name / "outputs.safetensors")
    draft = heads.load_draft(REFERENCES / name, target())
    tokens = outputs["tokens"].tolist()
    for row in range(len(tokens) - 3):
        draft.begin(tokens[: row + 2], by_layer(draft, outputs["states"][: row + 1]))
        tree = TokenTree([tokens[row + 1]], [-1])
        for depth in range(3):
            assert apart(draft.expand(tree, [depth])[0], outputs[f"{depth}.logits"][row]) < ALLOWED
            if depth < 2:
                tree = tree.grow(torch.tensor([tokens[row + 2 + depth]]), torch.tensor([depth]))


@pytest.mark.parametrize("option", heads.published.FLAGS)
def test_each_option_of_speculators_counts(option, tmp_path):
    """With one option of the config turned round, the file is refused or the drafts differ."""
    name = "speculators-qwen3" if option in ("fc_norm", "norm_output") else "speculators-normed"
    folder = copied(name, tmp_path, lambda config, tensors: config.update({option: not config[option]}))
    outputs = load_file(REFERENCES / name / "outputs.safetensors")
    if option in ("fc_norm", "norm_before_fc"):
        with pytest.raises(ValueError, match="left over"):
            heads.load(folder, target())
        return
    draft = heads.load_draft(folder, target())
    tokens = outputs["tokens"].tolist()
    draft.begin(tokens[:4], by_layer(draft, outputs["states"][:3]))
    tree = TokenTree([tokens[3], tokens[4]], [-1, 0])
    logits = [draft.expand(tree, [depth])[0] for depth in range(2)]
    assert max(apart(logits[depth], outputs[f"{depth}.logits"][2]) for depth in range(2)) > 10 * ALLOWED


def test_drafting_is_that_of_medusas_own_blocks():
    outputs = load_file(REFERENCES / "medusa" / "outputs.safetensors")
    draft = heads.load_draft(REFERENCES / "medusa", target())
    tokens = outputs["tokens"].tolist()
    draft.begin(tokens, {-1: outputs["states"]})
    assert draft.max_depth == 3  # its config says two heads, the file has three
    tree = TokenTree.chain(tokens[-1:] + [1, 2])
    logits = torch.cat([draft.expand(tree, [node]) for node in range(3)])
    assert apart(logits, outputs["logits"][-1]) < ALLOWED
    assert apart(logits.flip(0), outputs["logits"][-1]) > 10 * ALLOWED


# --- files that do not fit


def copied(name: str, tmp_path: Path, change: Callable[[dict, dict], object]) -> Path:
    """A copy of a reference whose config and tensors were changed, weights as safetensors."""
    folder = tmp_path / "copy"
    folder.mkdir()
    config = json.loads((REFERENCES / name / "config.json").read_text(encoding="utf-8"))
    tensors = heads.published.read(REFERENCES / name).tensors
    change(config, tensors)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / "model.safetensors")
    return folder
