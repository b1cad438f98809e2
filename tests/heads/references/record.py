"""Writes the checkpoints and outputs in this folder: small random heads, run by the code of those who published them.

It needs that code, which is no part of this repository (README.md beside this file says which versions were used):

    PYTHONPATH=EAGLE/eagle/model python record.py eagle   (also: eagle-biased, eagle3, eagle3-wide)
    python record.py speculators   (with speculators; also: speculators-normed, speculators-qwen3, exported)
    PYTHONPATH=Medusa python record.py medusa

A checkpoint is a folder as one would publish it. Its outputs.safetensors has what the code was given and what it gave.
Weights are random numbers that bfloat16 holds exactly, so that files may have either dtype.
"""

import json
import sys
import types
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

HERE = Path(__file__).parent
V, V_DRAFT, H, LAYERS = 64, 24, 32, 9  # the target: vocabulary, width, decoder layers
SIZES = {
    "hidden_size": H,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": V,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}
TOKENS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32]  # a text; the last one is the root
TOP, DEPTH = 3, 3


def randomised(module: nn.Module) -> nn.Module:
    """The module with random weights; norms are near 1."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            drawn = 0.3 * torch.randn(weight.shape, generator=generator)
            if "norm" in name:
                drawn = 1 + drawn
            weight.copy_(drawn.bfloat16())
    return module.eval()


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


def draft_ids() -> Tensor:
    """(V_DRAFT,) rising token ids, not evenly spaced."""
    return torch.randperm(V, generator=torch.Generator().manual_seed(1))[:V_DRAFT].sort().values


def write(name: str, outputs: dict[str, Tensor], config: dict | None = None, tensors: dict | None = None) -> None:
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    if tensors is not None:
        half = {key: value.bfloat16() if value.is_floating_point() else value for key, value in tensors.items()}
        if name == "eagle":
            torch.save(half, folder / "pytorch_model.bin")
        elif name == "medusa":
            torch.save(half, folder / "medusa_lm_head.pt")
        else:
            save_file({key: value.contiguous() for key, value in half.items()}, folder / "model.safetensors")
    save_file({key: value.clone() for key, value in outputs.items()}, folder / "outputs.safetensors")


def eagle(name: str) -> None:
    """Two steps of drafting with EAGLE's own ``topK_genrate``: what each of its forwards was given and returned."""
    first_kind = not name.startswith("eagle3")
    if first_kind:
        from cnets1 import Model
    else:
        from cnets import Model

    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "pad_token_id": 0, **SIZES}
    width = H
    if not first_kind:
        config["draft_vocab_size"] = V_DRAFT
    if name == "eagle-biased":  # biases of attention, and none of fc
        config |= {"qkv_bias": True, "bias": False}
    if name == "eagle3-wide":  # a head wider than its target, with a rotary base of its own and as many key heads
        width = 48
        config |= {"hidden_size": width, "target_hidden_size": H, "rope_theta": 500.0, "num_key_value_heads": 4}
    count = 1 if first_kind else 3
    # Not their EConfig: in transformers 5 its rope_scaling is never None, as their modules expect it to be.
    settings = types.SimpleNamespace(rope_scaling=None, pretraining_tp=1, **config)
    model = Model(settings, bias=config.get("bias", True), total_tokens=13, depth=DEPTH - 1, top_k=TOP)
    randomised(model)
    target_rows = nn.Linear(H, V, bias=False)
    target_rows.weight.data = 0.3 * random(V, H, seed=2)
    if not first_kind:
        ids = draft_ids()
        model.d2t.copy_(ids - torch.arange(V_DRAFT))
        model.t2d[ids] = True
    model.init_tree()
    model.reset_kv()

    outputs = {"tokens": torch.tensor(TOKENS), "target_rows": target_rows.weight.data}
    calls = []
    forward = model.forward

    def watched(hidden_states, input_ids, **options):
        out = forward(hidden_states, input_ids=input_ids, **options)
        calls.append((hidden_states[0], input_ids[0], out[0][0]))
        return out

    model.forward = watched
    states = random(len(TOKENS) + 1, count * H, seed=3)
    text = list(TOKENS)
    given = states[: len(TOKENS) - 1]
    for step in range(2):
        del calls[:]
        with torch.no_grad():
            drafted, _, mask, _ = model.topK_genrate(given[None], torch.tensor([text]), target_rows, None)
        outputs[f"{step}.states"] = given
        outputs[f"{step}.rows"] = calls[0][2]
        outputs[f"{step}.drafted"] = drafted[0]
        outputs[f"{step}.drafted_mask"] = mask[0, 0].bool()
        before = calls[0][2][-1:].expand(TOP, width)  # the features that the first level may have been given
        for depth, (fed, tokens, out) in enumerate(calls):
            predicted = out[-1:] if depth == 0 else out
            with torch.no_grad():
                logits = target_rows(predicted) if first_kind else model.lm_head(model.norm(predicted))
            outputs[f"{step}.{depth}.logits"] = logits
            outputs[f"{step}.{depth}.features"] = predicted
            if depth:
                outputs[f"{step}.{depth}.tokens"] = tokens
                outputs[f"{step}.{depth}.parents"] = torch.stack([(before == x).all(1).nonzero()[0, 0] for x in fed])
                before = out
        # The second step: the first draft token is accepted, and another token follows.
        text += [int(drafted[0, 1]), 11]
        given = states[len(TOKENS) - 1 :]
    write(name, outputs, config, model.state_dict())


def speculators(name: str) -> None:
    """speculators' training forward over a text: three depths at every row."""
    from speculators import SpeculatorsConfig
    from speculators.config import VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig, Qwen3Config

    layer = LlamaConfig(**SIZES)
    options = {"draft_vocab_size": V_DRAFT}
    if name == "speculators-normed":
        scaled = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0}
        scaled |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
        layer = LlamaConfig(**SIZES, attention_bias=True, rope_parameters=scaled)
        options |= {"norm_before_residual": True, "norm_before_fc": True}
    if name == "speculators-qwen3":
        layer = Qwen3Config(**SIZES, head_dim=12)
        options = {"draft_vocab_size": V, "fc_norm": True, "norm_output": True}
        options["eagle_aux_hidden_state_layer_ids"] = [1, 4, 7, 8]
    layer._attn_implementation = "eager"
    verifier = VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])
    about = SpeculatorsConfig(
        algorithm="eagle3",
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
        default_proposal_method="greedy",
        verifier=verifier,
    )
    config = Eagle3SpeculatorConfig(transformer_layer_config=layer, speculators_config=about, **options)
    model = Eagle3DraftModel(config)
    randomised(model)
    if config.draft_vocab_size != V:
        ids = draft_ids()
        table = torch.zeros(V, dtype=torch.bool)
        table[ids] = True
        model.load_vocab_mappings(table, ids - torch.arange(V_DRAFT))

    speculators_outputs(name, model, len(config.eagle_aux_hidden_state_layer_ids or (0, 0, 0)))
    model.to(torch.bfloat16).save_pretrained(HERE / name)
    (HERE / name / "config.py").unlink()  # their code, which save_pretrained copies beside the weights


def speculators_outputs(name: str, model: nn.Module, count: int) -> None:
    """Run speculators' forward on random states of ``count`` layers, and write its logits."""
    states = random(len(TOKENS) - 1, count * H, seed=3)
    tokens = torch.tensor(TOKENS)
    logits = []
    hook = model.lm_head.register_forward_hook(lambda _module, _args, out: logits.append(out[0]))
    with torch.no_grad():
        model(states[None], tokens[None, 1:], torch.zeros(1, len(TOKENS) - 1, dtype=torch.long), ttt_steps=DEPTH)
    hook.remove()
    outputs = {"tokens": tokens, "states": states}
    for depth in range(DEPTH):
        outputs[f"{depth}.logits"] = logits[depth]
    write(name, outputs)


def exported(name: str) -> None:
    """speculators' own loader and forward on the head that ``heads.export`` wrote to this folder.

    The folder "target" that its config names has to lie in the working directory, as ``save_pretrained`` writes it.
    """
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    config = Eagle3SpeculatorConfig.from_pretrained(HERE / name)
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel.from_pretrained(HERE / name, config=config).eval().float()
    speculators_outputs(name, model, len(config.eagle_aux_hidden_state_layer_ids))


def medusa(name: str) -> None:
    """Medusa's heads over states, two blocks of the repository's ``ResBlock`` and output rows each."""
    for module in ("modeling_llama_kv", "modeling_mistral_kv"):  # they need an old transformers, and are not used here
        stub = types.ModuleType(f"medusa.model.{module}")
        stub.LlamaForCausalLM = stub.MistralForCausalLM = nn.Module
        sys.modules[stub.__name__] = stub
    from medusa.model.medusa_model import ResBlock

    heads = nn.ModuleList(nn.Sequential(ResBlock(H), nn.Linear(H, V, bias=False)) for _ in range(3))
    randomised(heads)
    states = random(len(TOKENS) - 1, H, seed=3)
    with torch.no_grad():
        logits = torch.stack([head(states) for head in heads], 1)  # (n, 3, V)
    config = {
        "medusa_num_heads": 2,
        "medusa_num_layers": 1,
        "base_model_name_or_path": "a-target",
        "model_type": "llama",
    }
    outputs = {"tokens": torch.tensor(TOKENS), "states": states, "logits": logits}
    write(name, outputs, config, heads.state_dict())


if __name__ == "__main__":
    for name in sys.argv[1:]:
        recorders = {"eagle": eagle, "speculators": speculators, "medusa": medusa, "exported": exported}
        recorders[name.split("-")[0].rstrip("3")](name)
