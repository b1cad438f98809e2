"""MTP modules in published formats: drafting equals transformers' own module run over the whole text, path by path."""

import json
from functools import cache

import mtp_checkpoints
import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError
from mtp_checkpoints import FAMILIES, tensors
from references import apart, given_ends, recorded
from rounding import PRODUCTS, rounding
from safetensors.torch import load_file, save_file
from tiny import generated
from tiny_heads import Compared
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, modeling_layers

from specnb import growth, verifiers
from specnb.cache import ARGUMENT
from specnb.decode import decode
from specnb.drafters import TreeDrafter
from specnb.heads import folders
from specnb.heads.modules import final_norm
from specnb.heads.mtp import layer_config, mtp
from specnb.sampling import RandomCoins, Warp
from specnb.target import Target
from specnb.tree import TokenTree

UNEVEN = growth.Static(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0), (0, 0, 0, 0)))
ALLOWED = rounding(torch.ones(()), products=4 * PRODUCTS)
reference_exists = pytest.mark.skipif(
    not hasattr(modeling_layers, "MtpModel"), reason="this version of transformers has no MtpModel"
)


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


class Reference:
    """transformers' MtpLayer over a whole text, without a cache: row i is token i + 1 and the state before it."""

    def __init__(self, family, target, published: dict[str, Tensor]):
        base = target.get_decoder()
        config = layer_config(target, sparse=any(".experts." in key for key in published))
        norm = type(final_norm(target))
        self.layer = modeling_layers.MtpLayer(config, type(base.layers[0]), norm, 0).eval()
        self.rotary, self.embedding, self.output = base.rotary_emb, base.embed_tokens, target.lm_head
        weights = {}
        fc, embedding_norm, hidden_norm, last_norm = family.parts
        names = {fc: "eh_proj", embedding_norm: "enorm", hidden_norm: "hnorm", last_norm: "post_norm"}
        for theirs, ours in names.items():
            weights[f"{ours}.weight"] = published[f"{theirs}.weight"]
        if not family.embedding_first:
            weights["eh_proj.weight"] = weights["eh_proj.weight"].roll(mtp_checkpoints.WIDTH, 1)
        own = {key for key in self.layer.state_dict() if key.startswith("mtp_block.")}
        for key in own:
            weights[key] = self._of_the_block(key.removeprefix("mtp_block."), family.layer, published)
        self.layer.load_state_dict(weights)

    def _of_the_block(self, key: str, start: str, published: dict[str, Tensor]) -> Tensor:
        if start + key in published:
            return published[start + key]

        def of_all_experts(part: str) -> Tensor:
            count = mtp_checkpoints.EXPERTS
            return torch.stack([published[f"{start}mlp.experts.{index}.{part}_proj.weight"] for index in range(count)])

        if key == "mlp.experts.down_proj":
            return of_all_experts("down")
        assert key == "mlp.experts.gate_up_proj"
        return torch.cat([of_all_experts("gate"), of_all_experts("up")], 1)

    @torch.no_grad()
    def logits(self, tokens: list[int], states: Tensor, root: int) -> Tensor:
        """(V,) after the last token; states (root, W): the target's before the root, the module's own after it."""
        for last in range(root, len(tokens)):
            embedded = self.embedding(torch.tensor([tokens[1 : last + 1]]))
            places = torch.arange(1, last + 1)[None]  # of the tokens, as transformers counts them
            axes = torch.stack([places] * 3) if hasattr(self.rotary, "mrope_section") else places
            out = self.layer(
                embedded, states[None], position_embeddings=self.rotary(embedded, axes),
                attention_mask=causal(last), position_ids=places, **{ARGUMENT: None},
            )  # fmt: skip
            states = torch.cat([states, out[0, -1:]])
        return self.output(states[-1])


def causal(n: int) -> Tensor:
    return torch.zeros(1, 1, n, n).masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), torch.finfo().min)


@torch.no_grad()
def states_of(target, tokens: list[int], *, before_the_norm: bool = False) -> Tensor:
    """(n, W): the last states of a plain forward, so that any target can be used, also one that takes no trees."""
    before = []
    hook = final_norm(target).register_forward_pre_hook(lambda _, inputs: before.append(inputs[0]))
    after = target(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1]
    hook.remove()
    return before[0][0] if before_the_norm else after[0]


def worst(draft, reference, target, before_the_norm: bool = False) -> float:
    """The largest difference from the reference, over three steps with uneven trees and accepted paths of 0 to 3 nodes.

    before_the_norm: whether the draft model, but not the reference, is given the states before the final norm.
    """
    committed_states = cache(lambda prefix: states_of(target, list(prefix)))

    def expected(tokens, root):
        return reference.logits(tokens, committed_states(tuple(tokens[: root + 1]))[:-1], root)

    checked = Compared(draft, expected)
    drafter = TreeDrafter(checked, UNEVEN)
    prefix = [3, 1, 4, 1, 5]
    drafter.begin(prefix, Warp(), {-1: states_of(target, prefix[:-1], before_the_norm=before_the_norm)})
    for node, next_token in [(7, 0), (0, 7), (5, 14)]:
        drafted = drafter.propose(RandomCoins(0), 9)
        assert max(drafted.tree.depth_list) == 4
        path = drafted.tree.path(node)
        committed = prefix + [drafted.tree.token_list[accepted] for accepted in path]
        hidden = states_of(target, committed, before_the_norm=before_the_norm)
        drafter.observe(drafted, path, next_token, {-1: hidden[len(prefix) - 1 :]}, None)
        prefix = [*committed, next_token]
    assert checked.nodes > 15
    return checked.worst


def parts_of(family) -> tuple:
    target = family.target()
    published = tensors(family.shapes(), target)
    return target, published, Reference(family, target, published)


@reference_exists
def test_cached_trees_equal_transformers_module_over_the_whole_text(family):
    target, published, reference = parts_of(family)
    assert worst(mtp(target, published), reference, target) < ALLOWED


def swapped_halves(published, family):
    key = f"{family.parts[0]}.weight"
    return {**published, key: published[key].roll(mtp_checkpoints.WIDTH, 1)}


@reference_exists
def test_swapped_halves_of_the_matrix_are_noticed(family):
    target, published, reference = parts_of(family)
    assert worst(mtp(target, swapped_halves(published, family)), reference, target) > 1e-2


@reference_exists
def test_a_state_before_the_final_norm_is_noticed(family):
    target, published, reference = parts_of(family)
    assert worst(mtp(target, published), reference, target, before_the_norm=True) > 1e-2


@reference_exists
def test_positions_off_by_one_are_noticed(family):
    """Rows of the tree one position further than they are; rotary angles only know differences of positions."""
    target, published, reference = parts_of(family)
    draft = mtp(target, published)
    tree = draft.forwards.tree
    draft.forwards.tree = lambda grown, frontier, rows, root: tree(grown, frontier, rows, root + 1)
    assert worst(draft, reference, target) > 1e-3


@reference_exists
def test_the_targets_state_of_another_token_is_noticed(family):
    """Each row with the state of the row before it."""
    target, published, reference = parts_of(family)
    draft = mtp(target, published)
    rows = draft._rows
    draft._rows = lambda tokens, states: rows(tokens, states.roll(1, 0))
    assert worst(draft, reference, target) > 1e-2


@reference_exists
def test_norms_that_change_places_are_noticed(family):
    target, published, reference = parts_of(family)
    _, first, second, _ = (f"{part}.weight" for part in family.parts)
    exchanged = {**published, first: published[second], second: published[first]}
    assert worst(mtp(target, exchanged), reference, target) > 1e-3


def test_greedy_text_is_plain_decoding(family):
    target = family.target()
    if not family.takes_trees:
        with pytest.raises(ValueError, match="keep a state beside keys and values"):
            Target(target)
        return
    draft = mtp(target, tensors(family.shapes(), target))
    prompt = [3, 1, 4, 1, 5]
    text = decode(Target(target), TreeDrafter(draft, UNEVEN), verifiers.greedy, prompt, max_new_tokens=24)
    assert list(text.tokens) == generated(target, prompt, 24)


def test_a_module_that_is_right_is_accepted():
    """Its logits are overwritten by those of a module that knows the text: rows of accepted drafts, too, go well."""
    target = FAMILIES["mimo"].target()
    draft = mtp(target, tensors(mtp_checkpoints.mimo_shapes(), target))
    prompt = [3, 1, 4, 1, 5]
    plain = generated(target, prompt, 24)

    def told(tree, frontier):
        """Logits that name the next token of the plain text."""
        logits = expand(tree, frontier)
        for row, node in enumerate(frontier):
            place = len(told.prefix) - len(prompt) + int(tree.depth[node])
            logits[row, plain[min(place, 23)]] = 1e6
        return logits

    expand, begin, commit = draft.expand, draft.begin, draft.commit

    def began(prefix, hidden):
        told.prefix = list(prefix)
        begin(prefix, hidden)

    def committed(tree, path, next_token, hidden):
        told.prefix += [*(tree.token_list[node] for node in path), next_token]
        commit(tree, path, next_token, hidden)

    draft.expand, draft.begin, draft.commit = told, began, committed
    text = decode(Target(target), TreeDrafter(draft, growth.chain(3)), verifiers.greedy, prompt, max_new_tokens=24)
    assert list(text.tokens) == plain
    assert max(len(step.verdict.path) for step in text.steps) == 3


def test_a_prompt_of_one_token_begins_undrafted():
    target = FAMILIES["mimo"].target()
    draft = mtp(target, tensors(mtp_checkpoints.mimo_shapes(), target))
    text = decode(Target(target), TreeDrafter(draft, growth.chain(3)), verifiers.greedy, [7], max_new_tokens=12)
    assert list(text.tokens) == generated(target, [7], 12)
    lengths = [len(step.draft.tree) for step in text.steps]
    assert lengths[0] == 1
    assert max(lengths) == 4


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_every_attention_is_causal(attention):
    family = FAMILIES["deepseek"]
    target = family.target()
    target.set_attn_implementation(attention)
    draft = mtp(target, tensors(family.shapes(), target))
    states = torch.randn(4, mtp_checkpoints.WIDTH, generator=torch.Generator().manual_seed(0))

    def features(tokens):
        draft.begin([0, *tokens], {-1: states})
        rows = draft._rows(draft.unseen, draft.unseen_features)
        return draft.forwards._run(rows, torch.arange(4), None)[0]

    before, after = features([1, 2, 3, 4]), features([1, 2, 3, 9])
    torch.testing.assert_close(before[:3], after[:3])
    assert (before[3] - after[3]).abs().max() > 1e-3


def test_in_bfloat16_the_router_stays_exact():
    family = FAMILIES["deepseek"]
    target = family.target().to(torch.bfloat16)
    module = mtp(target, tensors(family.shapes(), target)).forwards.model
    kept = {name for name, tensor in module.state_dict().items() if tensor.dtype == torch.float32}
    assert "layer.mlp.gate.e_score_correction_bias" in kept
    assert module.fc.weight.dtype == torch.bfloat16


# --- files


def written(folder, family, target, shards: int = 1, config=None):
    """The target's checkpoint as transformers saves it, with the module's tensors added to it; the last shard's."""
    target.save_pretrained(folder)
    extra = tensors(family.shapes(), target)
    main = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if shards == 1:
        save_file({**main, **extra}, folder / "model.safetensors")
    else:
        save_file(main, folder / "model-00001-of-00002.safetensors")
        save_file(extra, folder / "model-00002-of-00002.safetensors")
        places = dict.fromkeys(main, "model-00001-of-00002.safetensors")
        places |= dict.fromkeys(extra, "model-00002-of-00002.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    if config:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return folder


@pytest.mark.parametrize("name", ["deepseek", "glm", "qwen3-next", "qwen3.5"])
@pytest.mark.parametrize("shards", [1, 2])
def test_the_module_is_found_in_the_targets_own_checkpoint(name, shards, tmp_path):
    """transformers loads the target from the folder and drops the module; ``mtp`` reads it from there by itself."""
    family = FAMILIES[name]
    folder = written(tmp_path, family, family.target(), shards)
    target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = mtp(target).forwards.model.state_dict()
    for key, tensor in mtp(target, tensors(family.shapes(), target)).forwards.model.state_dict().items():
        assert torch.equal(theirs[key], tensor)


def test_a_name_on_the_hub_is_a_folder_elsewhere(tmp_path, monkeypatch):
    """Files are fetched by name, and where there is an index, only those with the keys that are read."""
    family = FAMILIES["deepseek"]
    folder = written(tmp_path, family, family.target(), shards=2)
    fetched = []

    def download(name, file):
        assert name == "someone/model"
        if not (folder / file).exists():
            raise EntryNotFoundError(file)
        fetched.append(file)
        return str(folder / file)

    monkeypatch.setattr(folders, "hf_hub_download", download)
    target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert mtp(target, "someone/model").columns == target.config.vocab_size
    assert set(fetched) >= {"config.json", "model.safetensors.index.json", "model-00002-of-00002.safetensors"}
    with pytest.raises(ValueError, match="of another target"):
        mtp(FAMILIES["mimo"].target(), "someone/model")


def refused(source, target, match: str):
    with pytest.raises(ValueError, match=match):
        mtp(target, source)


def test_what_does_not_fit_is_refused(tmp_path):
    family = FAMILIES["deepseek"]
    target = family.target()
    right = tensors(family.shapes(), target)
    fc = "model.layers.3.eh_proj.weight"

    def without(*keys):
        return {key: tensor for key, tensor in right.items() if key not in keys}

    refused({}, target, "no MTP module")
    refused(tensors(mtp_checkpoints.deepseek_shapes("model.layers.5."), target), target, "another number of layers")
    refused({**right, "model.layers.4.eh_proj.weight": right[fc]}, target, "several MTP modules")
    refused(without("model.layers.3.enorm.weight"), target, "lacks embedding_norm.weight")
    refused(without("model.layers.3.mlp.experts.2.up_proj.weight"), target, "expert 2 of 4 has no up_proj")
    refused({**right, fc: right[fc][:, :64]}, target, r"fc.weight of shape \(64, 64\), expected \(64, 128\)")
    refused({**right, f"{fc}_scale_inv": torch.ones(1)}, target, "quantised")
    refused({**right, "model.layers.3.embed_tokens.weight": right[fc][:50, :64]}, target, "of another target")
    refused({**right, "model.norm.weight": torch.ones(64)}, target, "of another target: its model.norm.weight")
    refused({**right, **tensors(mtp_checkpoints.mimo_shapes(), target)}, target, "formats of DeepSeek-V3 and MiMo")
    refused(str(tmp_path / "nosuch"), target, "is no folder here")
    refused(tmp_path, target, "neither model.safetensors nor")
    refused(None, target, "where it was loaded from")


def test_a_layer_has_experts_if_the_keys_have():
    family = FAMILIES["glm"]
    target = family.target()
    published = tensors(family.shapes(), target)
    thin = {key: tensor for key, tensor in published.items() if ".mlp." not in key}
    thin |= tensors(mtp_checkpoints.dense(mtp_checkpoints.WIDTH, mtp_checkpoints.MLP, "model.layers.3.mlp."), target)
    assert hasattr(mtp(target, published).forwards.model.layer.mlp, "experts")
    assert not hasattr(mtp(target, thin).forwards.model.layer.mlp, "experts")


def test_a_config_that_says_otherwise_is_refused(tmp_path):
    family = FAMILIES["qwen3-next"]
    target = family.target()
    faults = {
        "num_hidden_layers": (7, "a model with 7 layers"),
        "num_nextn_predict_layers": (2, "exactly one MTP module"),
    }
    for name, (value, message) in faults.items():
        folder = tmp_path / name
        folder.mkdir()
        refused(written(folder, family, target, config={name: value}), target, message)


def test_nothing_of_the_module_is_the_targets_to_move():
    """The target's angles and output matrix are used, and neither copied nor registered."""
    target = FAMILIES["mimo"].target()
    module = mtp(target, tensors(mtp_checkpoints.mimo_shapes(), target)).forwards.model
    assert not any(isinstance(part, nn.Embedding) for part in module.modules())
    assert not any("lm_head" in name or "rotary" in name for name, _ in module.named_modules())


# --- other projects' modules


def test_three_drafted_tokens_are_those_of_transformers():
    """DeepSeek-V3, of a recording: so that versions of transformers without its own module are held to it, too."""
    weights, others = recorded("mtp_deepseek_transformers")
    draft = mtp(given_ends(mtp_checkpoints.deepseek(), others), weights)
    tokens, drafted = others["tokens"].tolist(), others["drafted"].tolist()
    tree = TokenTree.chain([tokens[-1], *drafted])
    draft.begin(tokens, {-1: others["states"][0, :-1]})
    ours = torch.cat([draft.expand(tree, [node]) for node in range(3)])
    assert apart(ours, others["logits"]) < 1e-4
    assert ours.argmax(-1).tolist() == drafted
    draft.begin(tokens, {-1: others["states"][0, 1:]})  # each token with its own state, which does not exist yet
    assert apart(draft.expand(tree, [0]), others["logits"][:1]) > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("swapped", [False, True])
def test_three_steps_of_speculators_training(swapped):
    """Qwen3-Next: step k feeds rows of tokens k + 1 further on, and its own output of the step before."""
    weights, others = recorded("mtp_qwen3_next_speculators")
    if swapped:
        weights["mtp.fc.weight"] = weights["mtp.fc.weight"].roll(mtp_checkpoints.WIDTH, 1)
    draft = mtp(given_ends(mtp_checkpoints.qwen3_next(), others), weights)
    count = others["logits"].shape[1]
    states = others["states"][0, :count]
    for step, expected in enumerate(others["logits"]):
        tokens = others["tokens"][step + 1 : step + 1 + count].tolist()
        draft.forwards.begin()
        out = draft.forwards.model(
            draft._rows(tokens, states)[None], torch.arange(count)[None], None, **{ARGUMENT: draft.forwards.cache}
        )
        states = out.hidden_states[0][0]
        assert (apart(out.logits[0], expected) < 1e-4) is not swapped


@torch.no_grad()
def test_a_first_draft_at_each_token_is_that_of_speculators():
    """The same recording's first step by the draft model, text by text."""
    weights, others = recorded("mtp_qwen3_next_speculators")
    draft = mtp(given_ends(mtp_checkpoints.qwen3_next(), others), weights)
    for row, expected in enumerate(others["logits"][0]):
        tokens = others["tokens"][: row + 2].tolist()
        draft.begin(tokens, {-1: others["states"][0, : row + 1]})
        assert apart(draft.expand(TokenTree([tokens[-1]], [-1]), [0])[0], expected) < 1e-4
