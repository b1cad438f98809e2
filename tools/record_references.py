"""Record what other projects' own modules compute: inputs and outputs as small files in data/references.

    export PYTHONPATH=.:tests
    python tools/record_references.py transformers  # 5.24 or newer
    python tools/record_references.py speculators   # where speculators is installed
    python tools/record_references.py zlab FOLDER   # with dflash/model.py of z-lab/dflash in FOLDER

Nothing of those projects is imported by the package or its tests. Each file has the weights by their published names
(rounded to bfloat16, so that it is small), the inputs and the logits in float32, and its origin in its metadata.
"""

import importlib.metadata
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

FOLDER = Path(__file__).resolve().parents[1] / "data" / "references"
WIDTH, VOCABULARY, LENGTH = 64, 50, 12
ROOTS = (5, 8, 11)  # positions of the roots of three blocks; between them one to three tokens are accepted


def rounded(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights with the values that bfloat16 has, in float32."""
    return {name: weight.bfloat16().float() for name, weight in weights.items()}


def random(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(states: int) -> dict[str, Tensor]:
    """A text, the target's states at its tokens (as many per token as are read), its embedding and output rows."""
    return {
        "tokens": torch.randint(VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(4)),
        "states": random(states, LENGTH, WIDTH, seed=5),
        "embedding": random(VOCABULARY, WIDTH, seed=6, scale=0.5),
        "rows": random(VOCABULARY, WIDTH, seed=7, scale=0.5),
    }


def write(name: str, origin: str, weights: dict[str, Tensor], given: dict[str, Tensor], **outputs: Tensor) -> None:
    content = {f"weights.{key}": weight.bfloat16() for key, weight in weights.items()}
    content |= {**given, **outputs}
    content = {key: tensor.detach().contiguous() for key, tensor in content.items()}
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / f"{name}.safetensors"
    save_file(content, file, {"origin": origin, "recorded_by": "tools/record_references.py"})
    print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB")


@torch.no_grad()
def zlab(folder: str) -> None:
    """Three blocks, one after the other, as z-lab's own loop calls its module: its cache is cropped after each."""
    import dflash_checkpoints
    from transformers import DynamicCache, Qwen3Config

    sys.path.insert(0, folder)
    import model as theirs

    config = Qwen3Config(**dflash_checkpoints.ZLAB)
    config._attn_implementation = "eager"
    module = theirs.DFlashDraftModel(config).eval()
    weights = rounded(dflash_checkpoints.tensors())
    module.load_state_dict(weights)
    given = inputs(states=len(dflash_checkpoints.IDS))
    size = module.block_size
    places = torch.arange(LENGTH + size)[None]
    cache = DynamicCache()
    blocks = []
    for root in ROOTS:
        seen = cache.get_seq_length()
        ids = torch.full((1, size), module.mask_token_id)
        ids[0, 0] = given["tokens"][root]
        features = torch.cat(list(given["states"][:, seen:root]), -1)[None]
        states = module(
            target_hidden=features,
            noise_embedding=given["embedding"][ids],
            position_ids=places[:, seen : root + size],
            past_key_values=cache,
            use_cache=True,
            is_causal=False,
        )
        cache.crop(root)
        blocks.append(states[0, 1 - size :] @ given["rows"].T)
    origin = "z-lab/dflash at commit 44947fbf71114e241c96de194f4b382b5dd330d0, dflash/model.py, DFlashDraftModel"
    write("dflash_zlab", f"{origin}, {versions()}", weights, given, logits=torch.stack(blocks))


@torch.no_grad()
def speculators() -> None:
    of_dflash()
    of_mtp()


def of_dflash() -> None:
    """The training pass of speculators' DFlash: blocks behind three tokens of one text."""
    import dflash_checkpoints
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
    from speculators.models.dflash import core as theirs

    settings = {key: value for key, value in dflash_checkpoints.SPECULATORS.items() if key != "architectures"}
    config = DFlashSpeculatorConfig(**settings)
    config.transformer_layer_config._attn_implementation = "eager"
    theirs.resolve_verifier_norm_class = lambda _: theirs.Qwen3RMSNorm  # there is no verifier to look it up in
    theirs.select_anchors = lambda *_: (torch.tensor(ROOTS), torch.ones(3, dtype=torch.bool))
    module = DFlashDraftModel(config).eval()
    weights = rounded(dflash_checkpoints.tensors())
    given = inputs(states=len(dflash_checkpoints.IDS))
    module.load_state_dict({**module.state_dict(), **weights})
    module.embed_tokens.weight.copy_(given["embedding"])
    module.lm_head.weight.copy_(given["rows"])
    # The text is made longer than all blocks: their module looks up what each row of a block should have predicted.
    more = config.block_size
    _, logits, _, _, _ = module._backbone_forward(
        torch.nn.functional.pad(torch.cat(list(given["states"]), -1), (0, 0, 0, more))[None],
        torch.nn.functional.pad(given["tokens"], (0, more))[None],
        torch.ones(1, LENGTH + more),
        torch.zeros(1, LENGTH + more, WIDTH),
        torch.zeros(1, LENGTH + more, dtype=torch.long),
        max_anchors=len(ROOTS),
    )
    blocks = logits[0].unflatten(0, (len(ROOTS), -1))[:, 1:]
    origin = f"speculators {importlib.metadata.version('speculators')}, models/dflash, DFlashDraftModel"
    write("dflash_speculators", f"{origin}, {versions()}", weights, given, logits=blocks)


def of_mtp() -> None:
    """The training pass of speculators' MTP module of a Qwen3-Next: three steps, each fed the output of the last.

    The published tensors are read and renamed by speculators' own converter.
    """
    import mtp_checkpoints
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.convert.mtp.converter import MTPConverter
    from speculators.models.mtp import MTPDraftModel, MTPSpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    target = mtp_checkpoints.qwen3_next()
    weights = rounded(mtp_checkpoints.tensors(mtp_checkpoints.qwen3_next_shapes(), target))
    proposal = GreedyTokenProposalConfig(speculative_tokens=3)
    verifier = VerifierConfig(name_or_path=None, architectures=[])
    proposals = SpeculatorsConfig(
        algorithm="mtp", proposal_methods=[proposal], default_proposal_method="greedy", verifier=verifier
    )
    target.config._attn_implementation = "sdpa"
    module = MTPDraftModel(MTPSpeculatorConfig(transformer_layer_config=target.config, speculators_config=proposals))
    with tempfile.TemporaryDirectory() as folder:
        save_file(weights, Path(folder) / "model.safetensors")
        converted = MTPConverter().convert_to_state_dict(folder)
    found = module.load_state_dict(converted, strict=False)
    assert not found.unexpected_keys
    assert not any("mtp_layers" in key for key in found.missing_keys)
    given = inputs(states=1)
    module.embed_tokens.weight.copy_(given["embedding"])
    module.lm_head.weight.copy_(given["rows"])
    steps, _, _ = module.eval()(given["tokens"][None], given["states"])
    origin = f"speculators {importlib.metadata.version('speculators')}, models/mtp, MTPDraftModel"
    write("mtp_qwen3_next_speculators", f"{origin}, {versions()}", weights, given, logits=torch.cat(steps))


@torch.no_grad()
def transformers() -> None:
    """transformers' MTP module of a DeepSeek-V3: three tokens drafted one after the other, with its own cache."""
    import mtp_checkpoints
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel

    target = mtp_checkpoints.deepseek()
    target.config.num_mtp_layers = 1
    given = inputs(states=1)
    target.model.embed_tokens.weight.copy_(given["embedding"])
    target.lm_head.weight.copy_(given["rows"])
    weights = rounded(mtp_checkpoints.tensors(mtp_checkpoints.deepseek_shapes(), target))
    weights = {key: weight for key, weight in weights.items() if "embed_tokens" not in key and "head.head" not in key}
    target.model._keys_to_ignore_on_load_unexpected = target._keys_to_ignore_on_load_unexpected = [r"layers\.3\."]
    with tempfile.TemporaryDirectory() as folder:
        save_file(weights, Path(folder) / "model.safetensors")
        target.config.name_or_path = folder
        target.config.dtype = torch.float32
        module = MtpModel.from_pretrained(target).eval()

    cache = MtpCache(config=target.config.get_mtp_config())
    tokens, states = given["tokens"][None], given["states"][:, :-1]
    rows, places = tokens[:, 1:], torch.arange(1, LENGTH)[None]
    drafted, logits = [], []
    for _ in range(3):
        states = module.forward_layer(0, states, places, cache, input_ids=rows)[:, -1:]
        logits.append(module._project_to_logits(states)[0, 0])
        rows = logits[-1].argmax()[None, None]
        drafted.append(rows[0, 0])
        places = places[:, -1:] + 1
    origin = f"transformers {importlib.metadata.version('transformers')}, modeling_layers, MtpModel of DeepSeek-V3"
    outputs = {"logits": torch.stack(logits), "drafted": torch.stack(drafted)}
    write("mtp_deepseek_transformers", origin, weights, given, **outputs)


def versions() -> str:
    return f"transformers {importlib.metadata.version('transformers')}, torch {torch.__version__}"


if __name__ == "__main__":
    {"zlab": zlab, "speculators": speculators, "transformers": transformers}[sys.argv[1]](*sys.argv[2:])
