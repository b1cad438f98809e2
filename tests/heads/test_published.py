"""Published heads: what their own code computed, greedy texts, and files that do not fit."""

import copy
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from references import apart
from safetensors.torch import load_file, save_file
from tiny import COMMON, any_path, generated, llama, qwen2, randomise
from tiny_heads import Compared
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from specnb import growth, heads, verifiers
from specnb.decode import decode
from specnb.drafters import TreeDrafter
from specnb.models import packing
from specnb.target import Target
from specnb.tree import TokenTree

REFERENCES = Path(__file__).parent / "references"
ALLOWED = 1e-4  # of the largest number


SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 9, "max_position_embeddings": 256}


def qwen3(**changes) -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(**{**COMMON, "num_key_value_heads": 2, "head_dim": 8, **changes})
    return Qwen3ForCausalLM(config).eval()


FAMILY = {"llama": lambda: llama(**SIZES), "qwen2": lambda: qwen2(**SIZES), "qwen3": lambda: qwen3(**SIZES)}


def target(rows: torch.Tensor | None = None, **changes) -> PreTrainedModel:
    """The target that the references were made for: its sizes count, and of an EAGLE head its output rows."""
    model = llama(**{**SIZES, **changes})
    if rows is not None:
        model.lm_head.weight.data = rows
    return model


# --- against the code of those who published the formats

EAGLES = ["eagle", "eagle-biased", "eagle3", "eagle3-wide"]


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


@pytest.mark.parametrize("name", EAGLES)
def test_drafting_is_that_of_eagles_own_code(name):
    assert replayed(name) < ALLOWED


@pytest.mark.parametrize("name", EAGLES)
def test_a_first_row_or_another_rope_is_noticed(name):
    def with_first_row(draft):
        draft.first_row = True

    def other_rope(draft):
        layer = draft.forwards.model.head.layer
        object.__setattr__(layer.spec, "theta", 1e6)

    assert replayed(name, with_first_row) > 3 * ALLOWED
    assert replayed(name, other_rope) > 10 * ALLOWED


@pytest.mark.parametrize("name", EAGLES)
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


@pytest.mark.parametrize("name", ["speculators", "speculators-normed", "speculators-qwen3", "exported"])
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
    tree = TokenTree.chain([tokens[-1], 1, 2])
    logits = torch.cat([draft.expand(tree, [node]) for node in range(3)])
    assert apart(logits, outputs["logits"][-1]) < ALLOWED
    assert apart(logits.flip(0), outputs["logits"][-1]) > 10 * ALLOWED


ROPES = {
    "plain": {"rope_theta": 500.0},
    "linear": {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("rope", ROPES)
def test_ropes_are_those_of_transformers(rope, tmp_path):
    sizes = {"max_position_embeddings": 256}
    folder = copied("eagle3", tmp_path, lambda config, tensors: config.update(sizes | ROPES[rope]))
    head, _, _ = heads.load(folder, target())
    vectors = torch.randn(1, 4, 9, 8, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(90, 180, 10)
    settings = LlamaConfig(hidden_size=32, num_attention_heads=4, **sizes, **ROPES[rope])
    cos, sin = LlamaRotaryEmbedding(settings)(vectors, positions[None])
    theirs, _ = apply_rotary_pos_emb(vectors, vectors, cos, sin)
    assert apart(head.layer._rotate(vectors, positions), theirs) < 1e-5
    plain, _, _ = heads.load(REFERENCES / "eagle3", target())
    assert apart(plain.layer._rotate(vectors, positions), theirs) > 1e-2


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


def without(key: str):
    return lambda config, tensors: tensors.pop(key)


def setting(**settings):
    return lambda config, tensors: config.update(settings)


def resized(key: str, *shape: int):
    return lambda config, tensors: tensors.update({key: torch.zeros(shape, dtype=tensors[key].dtype)})


def in_layer(**settings):
    return lambda config, tensors: config["transformer_layer_config"].update(settings)


def other_table(config, tensors):
    tensors["t2d"] = tensors["t2d"].roll(1)


def falling_table(config, tensors):
    tensors["d2t"][3] -= 50


def verifier(config, tensors):
    config["speculators_config"]["verifier"]["architectures"] = ["Qwen3ForCausalLM"]


def silent_about_the_residual(config, tensors):
    del config["norm_before_residual"]


def never_filled(config, tensors):
    tensors["lm_head.weight"][0, 0] = torch.nan


def of_dflash(config, tensors):
    tensors["hidden_norm.weight"] = tensors.pop("norm.weight")


def of_mtp(config, tensors):
    tensors["mtp.fc.weight"] = tensors.pop("fc.weight")


MISFITS = {
    "a missing norm": ("eagle3", without("midlayer.hidden_norm.weight"), r"missing are midlayer\.hidden_norm\.weight"),
    "no final norm": ("speculators", without("norm.weight"), r"missing are norm\.weight"),
    "no output rows": ("eagle3", without("lm_head.weight"), r"missing are lm_head\.weight"),
    "no table": ("eagle3", without("d2t"), r"missing are d2t"),
    "no fc": ("eagle", without("fc.weight"), "no format that is known here"),
    "a layer count": ("eagle3", setting(num_hidden_layers=2), "one decoder layer, config.json says 2"),
    "a width": ("eagle3", setting(hidden_size=64), "reads states of 64 numbers, those of LlamaForCausalLM have 32"),
    "key heads": ("eagle", setting(num_key_value_heads=4), r"k_proj\.weight has shape \(16, 32\)"),
    "a vocabulary": ("eagle3", setting(vocab_size=65), "a vocabulary of 65, LlamaForCausalLM has 64"),
    "a reduced vocabulary": ("eagle3", setting(draft_vocab_size=25), r"has shape \(24,"),
    "half of q_proj": ("eagle3", resized("midlayer.self_attn.q_proj.weight", 32, 32), r"has shape \(32, 32\)"),
    "a table that disagrees": ("eagle3", other_table, "t2d other ones"),
    "a table that falls": ("eagle3", falling_table, "must give rising token ids"),
    "a table of floats": ("eagle3", lambda c, t: t.update(d2t=t["d2t"].float()), "d2t is torch.float32"),
    "a bias that is lost": ("eagle", lambda c, t: t.pop("fc.bias"), "there is no fc.bias"),
    "a bias that is not there": ("eagle", lambda c, t: (c.update(bias=True), t.pop("fc.bias")), "says bias True"),
    "an extra key": ("eagle", lambda c, t: t.update(extra=torch.zeros(1)), "left over are extra"),
    "names of another format": ("eagle", setting(architectures=["LlamaForCausalLMEagle3"]), "names a head of EAGLE-3"),
    "Medusa's config": ("eagle3", setting(medusa_num_heads=3), "names a head of Medusa"),
    "another activation": ("eagle3", setting(hidden_act="gelu"), "must be silu"),
    "an unknown rope": ("eagle3", setting(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), "rotary angles"),
    "another layer": ("eagle3", setting(model_type="deepseek_v3"), "model_type 'deepseek_v3'"),
    "layers that two engines read apart": (
        "eagle3", setting(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 4, 6]}), "say which by layers=",
    ),
    "layers that the target lacks": (
        "speculators", setting(eagle_aux_hidden_state_layer_ids=[2, 4, 9]), r"must rise within 0\.\.8",
    ),
    "another verifier": ("speculators", verifier, "was made for Qwen3ForCausalLM"),
    "nothing about the residual": ("speculators", silent_about_the_residual, "does not say norm_before_residual"),
    "another kind of speculators": ("speculators", setting(speculators_model_type="peagle"), "speculators' peagle"),
    "sliding attention": ("speculators-qwen3", in_layer(layer_types=["sliding_attention"]), "sliding attention"),
    "weights that were never filled": ("speculators", never_filled, "not finite"),
    "a DFlash block": ("eagle3", of_dflash, "DFlash"),
    "an MTP module": ("eagle3", of_mtp, "MTP"),
    "more heads than there are": ("medusa", setting(medusa_num_heads=4), "4 Medusa heads, and the file has 3"),
    "deeper heads": ("medusa", setting(medusa_num_layers=2), "2 blocks"),
    "a head without rows": ("medusa", without("1.1.weight"), r"missing are 1\.1\.weight"),
}  # fmt: skip


@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_is_refused(misfit, tmp_path):
    name, change, message = MISFITS[misfit]
    unchanged = copied(name, tmp_path, lambda config, tensors: None)
    heads.load(unchanged, target())
    shutil.rmtree(unchanged)
    with pytest.raises(ValueError, match=message):
        heads.load(copied(name, tmp_path, change), target())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 6}, "the states"),
        ({"hidden_size": 64}, "reads states of 32"),
        ({"vocab_size": 80}, "has 80"),
    ],
)
def test_another_target_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        heads.load(REFERENCES / "eagle3", target(**change))


def test_layers_are_those_of_the_config_or_of_the_caller(tmp_path):
    """Of 9 layers: 2, 4 and 6, counted from the end of ten hidden states."""
    assert heads.load(REFERENCES / "eagle3", target())[1].fused == (-8, -6, -4)
    assert heads.load(REFERENCES / "speculators-qwen3", target())[1].fused == (-9, -6, -3, -2)
    assert heads.load(REFERENCES / "eagle3", target(), layers=[1, 2, 8])[1].fused == (-9, -8, -2)
    nested = copied("eagle3", tmp_path, setting(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}))
    assert heads.load(nested, target())[1].fused == (-8, -6, -4)  # layers whose output is the next state
    with pytest.raises(ValueError, match="layers is for EAGLE-3 heads"):
        heads.load(REFERENCES / "eagle", target(), layers=[1, 2, 3])


def test_a_pickle_with_code_is_not_run(tmp_path):
    class Harmful:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    shutil.copy(REFERENCES / "eagle" / "config.json", tmp_path)
    torch.save({"fc.weight": Harmful()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="cannot be read"):
        heads.load(tmp_path, target())
    assert not (tmp_path / "ran").exists()


def test_a_name_of_the_hub_is_fetched(monkeypatch):
    asked = []

    def download(name, allow_patterns):
        asked.append(name)
        return str(REFERENCES / "eagle3")

    monkeypatch.setattr(heads.published, "snapshot_download", download)
    assert heads.load("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", target())[1].kind == "eagle3"
    assert asked == ["yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"]

    def offline(name, allow_patterns):
        raise ConnectionError

    monkeypatch.setattr(heads.published, "snapshot_download", offline)
    with pytest.raises(OSError, match="the Hugging Face hub does not give it"):
        heads.load("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", target())


def test_a_name_of_our_own_files_is_not_looked_up_elsewhere(tmp_path, monkeypatch):
    """A folder "eagle" in the working directory does not take the place of data/drafts/eagle."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(REFERENCES / "eagle", tmp_path / "eagle")
    shutil.copytree(REFERENCES / "eagle", tmp_path / "another")
    with pytest.raises(ValueError, match="was trained for a target with fingerprint"):
        heads.load("eagle", target())
    assert not heads.load("another", target())[1].first_row


def test_a_recording_names_a_published_heads_weights():
    folder = REFERENCES / "eagle"
    digests = heads.hashes([str(folder)])
    assert digests == {str(folder): hashlib.sha256((folder / "pytorch_model.bin").read_bytes()).hexdigest()}


def test_no_weights_are_named(tmp_path):
    shutil.copy(REFERENCES / "eagle" / "config.json", tmp_path)
    with pytest.raises(ValueError, match="no weights of a draft head"):
        heads.load(tmp_path, target())


# --- drafting


@torch.no_grad()
def uncached(head, spec, frozen, model, tokens: list[int], root: int) -> torch.Tensor:
    """(V_d,) logits after the last of the tokens, with no cache: tokens[:root + 1] are committed, then a path."""
    ids = torch.tensor([tokens])
    states = model.base_model(ids, output_hidden_states=True).hidden_states
    if spec.kind == "medusa":
        state = head(states[-1][0, root - 1])[len(tokens) - root - 1]
        return frozen.rows[len(tokens) - root - 1] @ state
    before = head.fuse([states[layer] for layer in spec.layers])[:, :root]  # the features that exist at the root
    embedded = torch.nn.functional.embedding(ids, frozen.embedding)
    norm = frozen.before_rows(spec.kind)
    for count in range(root, len(tokens)):
        rows = head.rows(embedded[:, 1 : count + 1], before)
        state = head.layer(rows, *head.layer.project(rows, torch.arange(count)), None)[:, -1:]
        before = torch.cat([before, norm(state) if spec.norm_output else state], 1)
    return (norm(state) @ frozen.rows.T)[0, 0]


NAMES = sorted(folder.name for folder in REFERENCES.iterdir() if folder.is_dir())


def checked(name: str, prompt=(3, 1, 4, 1, 5), break_it=lambda inner: None, **options) -> Compared:
    model = target()
    parts = heads.load(REFERENCES / name, model)
    inner = heads.draft_model(copy.deepcopy(parts[0]), *parts[1:], **options)
    draft = Compared(inner, partial(uncached, *parts, model))
    break_it(inner)
    decode(Target(model), TreeDrafter(draft, growth.kary(2, 3)), any_path, list(prompt), max_new_tokens=24)
    return draft


@pytest.mark.parametrize("prompt", [(3, 1, 4, 1, 5), (7,)], ids=["prompt", "one token"])
@pytest.mark.parametrize("name", NAMES)
def test_cached_drafting_equals_a_pass_without_cache(name, prompt):
    draft = checked(name, prompt)
    assert draft.nodes > 20
    assert draft.worst < ALLOWED


@pytest.mark.parametrize("name", [name for name in NAMES if name != "medusa"])
def test_captured_drafting_equals_a_pass_without_cache(name):
    assert checked(name, capacity=64).worst < ALLOWED


@pytest.mark.skipif(not packing.possible(torch.float32), reason="this machine is no x86 with oneDNN")
@pytest.mark.parametrize("name", NAMES)
def test_packed_drafting_equals_a_pass_without_cache(name):
    assert checked(name, packed=True).worst < ALLOWED


def test_the_comparison_catches_a_parents_feature():
    def root_feature(inner):
        expand = inner.expand

        def broken(tree, frontier):
            inner.predicted.update({node: inner.predicted[0] for node in inner.predicted})
            return expand(tree, frontier)

        inner.expand = broken

    assert checked("eagle3", break_it=root_feature).worst > 1e-3


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_is_that_of_plain_decoding(name, family, tmp_path):
    """Whatever a head drafts, the text is the target's."""
    model = FAMILY[family]()
    folder = copied(name, tmp_path, lambda config, tensors: config.pop("speculators_config", None))
    drafter = TreeDrafter(heads.load_draft(folder, model), growth.kary(2, 3))
    for prompt in ([3, 1, 4, 1, 5], [7]):
        text = decode(Target(model), drafter, verifiers.greedy, prompt, max_new_tokens=24)
        assert list(text.tokens) == generated(model, prompt, 24)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_heads_take_their_targets_dtype(name, dtype):
    model = target().to(dtype)
    head, _, frozen = heads.load(REFERENCES / name, model)
    dtypes = {weight.dtype for weight in [*head.parameters(), frozen.embedding, frozen.rows]}
    assert dtypes | {next(frozen.norm.parameters()).dtype} == {dtype}
    draft = heads.load_draft(REFERENCES / name, model)
    decode(Target(model), TreeDrafter(draft, growth.kary(2, 3)), verifiers.greedy, [3, 1, 4], max_new_tokens=8)


def test_a_head_of_a_real_width(tmp_path):
    """Shapes of a public EAGLE-3 head for a Qwen3 target 1,024 wide, written from the format's description."""
    d, heads_wide, keys_wide, mlp, v, v_draft = 1024, 16 * 128, 8 * 128, 3072, 512, 200
    shapes = {
        "fc.weight": (d, 3 * d),
        "midlayer.hidden_norm.weight": (d,),
        "midlayer.input_layernorm.weight": (d,),
        "midlayer.post_attention_layernorm.weight": (d,),
        "midlayer.self_attn.q_proj.weight": (heads_wide, 2 * d),
        "midlayer.self_attn.k_proj.weight": (keys_wide, 2 * d),
        "midlayer.self_attn.v_proj.weight": (keys_wide, 2 * d),
        "midlayer.self_attn.o_proj.weight": (d, heads_wide),
        "midlayer.mlp.gate_proj.weight": (mlp, d),
        "midlayer.mlp.up_proj.weight": (mlp, d),
        "midlayer.mlp.down_proj.weight": (d, mlp),
        "norm.weight": (d,),
        "lm_head.weight": (v_draft, d),
    }
    torch.manual_seed(0)
    tensors = {key: 0.02 * torch.randn(shape).bfloat16() for key, shape in shapes.items()}
    ids = torch.arange(0, 2 * v_draft, 2)
    tensors |= {"d2t": ids - torch.arange(v_draft), "t2d": torch.isin(torch.arange(v), ids)}
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": d, "head_dim": 128}
    config |= {"intermediate_size": mlp, "num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": 1}
    config |= {"vocab_size": v, "draft_vocab_size": v_draft, "rms_norm_eps": 1e-6, "rope_theta": 1e6}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")

    sizes = {"vocab_size": v, "hidden_size": d, "intermediate_size": mlp, "num_hidden_layers": 7, "head_dim": 128}
    model = qwen3(**sizes, num_attention_heads=16, num_key_value_heads=8, initializer_range=0.02)
    head, spec, frozen = heads.load(tmp_path, model)
    assert spec.fused == (-6, -5, -4)  # the states 2, 3 and 4 of eight
    assert torch.equal(frozen.ids, ids)
    assert frozen.embedding.data_ptr() == model.get_input_embeddings().weight.data_ptr()  # the file has none
    drafter = TreeDrafter(heads.draft_model(head, spec, frozen), growth.kary(2, 2))
    text = decode(Target(model), drafter, verifiers.greedy, [3, 1, 4], max_new_tokens=12)
    assert list(text.tokens) == generated(model, [3, 1, 4], 12)


# --- exports


def first_logits(parts, model, tokens=(3, 1, 4, 1, 5, 9)) -> torch.Tensor:
    """Logits of three levels that a head drafts below a text."""
    head, spec, frozen = parts
    draft = heads.draft_model(copy.deepcopy(head), spec, frozen)
    states = model.base_model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    draft.begin(tokens, {layer: states[layer][0, :-1] for layer in draft.hidden_layers})
    tree = TokenTree([tokens[-1], 2, 6, 8], [-1, 0, 0, 1])
    return torch.cat([draft.expand(tree, level) for level in ([0], [1, 2], [3])])


EXPORTS = [
    ("eagle", "eagle"),
    ("eagle-biased", "eagle"),
    ("eagle3", "eagle3"),
    ("eagle3", "speculators"),
    ("eagle3-wide", "eagle3"),
    ("speculators", "eagle3"),
    ("speculators-qwen3", "speculators"),
]


@pytest.mark.parametrize(("name", "format"), EXPORTS)
@torch.no_grad()
def test_an_exported_head_comes_back(name, format, tmp_path):
    model = target()
    parts = heads.load(REFERENCES / name, model)
    heads.export(parts, model, tmp_path, format=format, verifier="a/target")
    again = heads.load(tmp_path, model)
    assert again[1] == parts[1]
    for key, weight in parts[0].state_dict().items():
        assert torch.equal(again[0].state_dict()[key], weight)
    assert apart(first_logits(again, model), first_logits(parts, model)) < 1e-6


def test_the_export_is_the_file_that_speculators_own_loader_has_read(tmp_path):
    """references/exported was loaded and run by speculators: what is written now is that file."""
    model = target().to(torch.bfloat16)
    folder = REFERENCES / "exported"
    heads.export(heads.load(folder, model), model, tmp_path, format="speculators", embedding=True, verifier="target")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / file).read_bytes() == (folder / file).read_bytes()


@pytest.mark.parametrize("format", ["eagle", "eagle3", "speculators"])
@torch.no_grad()
def test_an_own_head_comes_back_without_its_first_row(format, tmp_path):
    model = target()
    kind = "eagle" if format == "eagle" else "eagle3"
    reads = {"hidden_layer": -1} if kind == "eagle" else {"fused": (-8, -5, -2)}
    spec = heads.Spec.like(model, kind, **reads)
    ids = torch.arange(64) if kind == "eagle" else torch.arange(0, 64, 3)  # EAGLE's format has no reduced vocabulary
    torch.manual_seed(0)
    parts = randomise(heads.MODULES[kind](spec), 0.2).eval(), spec, heads.Frozen.of(model, ids)
    heads.export(parts, model, tmp_path, format=format, verifier="a/target")
    again = heads.load(tmp_path, model)
    assert again[1].layers == spec.layers
    assert torch.equal(again[2].ids, ids)
    without_first = (parts[0], dataclasses.replace(spec, first_row=False), parts[2])
    assert apart(first_logits(again, model), first_logits(without_first, model)) < 1e-6
    assert apart(first_logits(parts, model), first_logits(without_first, model)) > 1e-6


def test_an_exported_file_says_what_the_engines_read(tmp_path):
    """Layers as vLLM and as SGLang count them, the reduced vocabulary, and names that both engines know."""
    model = target()
    spec = heads.Spec.like(model, "eagle3", fused=(-8, -5, -2))
    parts = heads.Eagle3(spec).eval(), spec, heads.Frozen.of(model, torch.tensor([1, 2, 40]))
    heads.export(parts, model, tmp_path, format="eagle3")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 5, 8]
    assert config["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [1, 4, 7]}
    assert config["draft_vocab_size"] == 3
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["d2t"].tolist() == [1, 1, 38]
    assert tensors["t2d"].nonzero()[:, 0].tolist() == [1, 2, 40]
    assert torch.equal(tensors["lm_head.weight"], model.lm_head.weight[[1, 2, 40]])
    assert torch.equal(tensors["norm.weight"], model.model.norm.weight)
    assert not {"embed_tokens.weight", "fc.bias"} & tensors.keys()
    heads.export(parts, model, tmp_path, format="eagle3", embedding=True)
    assert torch.equal(
        load_file(tmp_path / "model.safetensors")["embed_tokens.weight"], model.model.embed_tokens.weight
    )


@torch.no_grad()
def test_a_folded_bias_changes_nothing(tmp_path):
    model = target()
    parts = heads.load(REFERENCES / "eagle", model)
    heads.export(parts, model, tmp_path, format="eagle", fold_bias=True)
    again = heads.load(tmp_path, model)
    assert not again[1].fc_bias
    assert apart(first_logits(again, model), first_logits(parts, model)) < 1e-5
    parts[0].fc.bias.zero_()
    assert apart(first_logits(again, model), first_logits(parts, model)) > 1e-2
    with pytest.raises(ValueError, match="a bias to fold"):
        heads.export(again, model, tmp_path, format="eagle", fold_bias=True)


@pytest.mark.parametrize(
    ("name", "format", "change", "message"),
    [
        ("eagle", "eagle3", {}, "holds heads of the kind eagle3"),
        ("eagle3", "medusa", {}, "formats are"),
        ("eagle", "eagle", {"hidden_layer": -2}, "reads the target's last state"),
        ("eagle3", "eagle3", {"fused": (-4, -8, -6)}, "in rising order"),
        ("eagle3", "eagle3", {"fused": (-4, -2, -1)}, "before the final norm"),
        ("eagle3", "eagle3", {"epsilon": 1e-3}, "no RMSNorm with the head's epsilon"),
        ("speculators-normed", "speculators", {}, "scaled rotary angles"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(name, format, change, message, tmp_path):
    model = target()
    head, spec, frozen = heads.load(REFERENCES / name, model)
    with pytest.raises(ValueError, match=message):
        heads.export(
            (head, dataclasses.replace(spec, **change), frozen), model, tmp_path, format=format, verifier="a/target"
        )


# --- a head of another target


def test_a_head_that_never_agrees_is_noticed():
    model = target()
    drafter = TreeDrafter(heads.load_draft(REFERENCES / "eagle3", model), growth.chain(1))
    with pytest.warns(UserWarning, match="likeliest token was the target's in"):
        decode(Target(model), drafter, verifiers.greedy, [3, 1, 4], max_new_tokens=80)


def test_a_head_that_agrees_is_not(recwarn):
    watch = heads.drafts.Watch()
    for step in range(watch.STEPS):
        watch.drafted(torch.eye(3)[step % 3])
        watch.taken(5 if step % 9 == 0 else 7, torch.tensor([5, 6, 8]))  # right in every ninth step
    assert watch.hits == 8
    assert not recwarn.list


def test_what_check_cannot_take_is_said_before_anything_is_computed(tmp_path):
    parts = (None, None, None)
    for given, texts, reason in [
        ("hass", [[1] * 200], "parts must be what heads.load returned, got a str"),
        (parts, ["a text"], "texts must be sequences of token ids"),
        (parts, [1, 2, 3], "texts must be sequences of token ids"),
        (parts, [[1] * 10], "10 tokens are too few to judge a head"),
    ]:
        with pytest.raises(ValueError, match=reason):
            heads.check(given, None, texts)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", "{", "config.json is no JSON"),
        ("config.json", "[]", "config.json must be a JSON object, it is a list"),
        ("config.json", '{"quantization_config": {}}', "says that the weights are quantised"),
        ("model.safetensors", "version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
    ],
)
def test_a_file_that_is_something_else_is_named(tmp_path, name, content, reason):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("nothing")
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=reason):
        heads.published.read(tmp_path)


def test_a_folder_without_a_config_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json, which a published head has"):
        heads.load(tmp_path, llama())
    with pytest.raises(ValueError, match="named by its folder, or as OWNER/NAME on the hub"):
        heads.load(tmp_path / "nothing", llama())


def test_quantised_weights_are_called_so(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    save_file({"fc.weight": torch.zeros(2, 2).to(torch.float8_e4m3fn)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="so the file is quantised"):
        heads.published.read(tmp_path)
