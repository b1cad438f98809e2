"""What other projects' modules computed (data/references): weights by their published names, inputs and logits."""

from safetensors.torch import load_file
from torch import Tensor

from specnb.models.files import DATA


def recorded(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights in float32, by published name, and all else that a file contains."""
    weights, others = {}, {}
    for key, tensor in load_file(DATA / "references" / f"{name}.safetensors").items():
        if key.startswith("weights."):
            weights[key.removeprefix("weights.")] = tensor.float()
        else:
            others[key] = tensor
    return weights, others


def given_ends(target, others: dict[str, Tensor]):
    """The target with the embedding and the output rows of a recording."""
    target.get_input_embeddings().weight.data.copy_(others["embedding"])
    target.get_output_embeddings().weight.data.copy_(others["rows"])
    return target


def apart(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, as a share of the largest logit."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())
