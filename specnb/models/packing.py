"""Packing: weights laid out once for the CPU's bfloat16 matrix kernels, which otherwise do it at every call."""

import platform

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """A Linear layer with a second copy of its weight, laid out as oneDNN wants it: the same bits come out, sooner."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.laid_out = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.laid_out, self.bias, "none", [], "")


def possible() -> bool:
    """Whether this machine's CPU and torch have bfloat16 matrix kernels that take packed weights.

    On a CPU with AVX512 but no instructions for bfloat16, oneDNN says yes and emulates them; we say no.
    """
    kernels = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return kernels and (torch.cpu._is_avx512_bf16_supported() or platform.machine() == "aarch64")


@torch.no_grad()
def pack(model: nn.Module) -> nn.Module:
    """Replace every Linear layer of a model by a packed one, in place; returns the model. For inference only.

    Takes the memory of the Linear weights once more; what is done to the plain weights afterwards goes unnoticed.
    Packing twice is packing once. Raises ValueError unless the layers are bfloat16 on a CPU that has the kernels.
    """
    layers = [(parent, name, layer) for parent in model.modules() for name, layer in parent.named_children()]
    layers = [(parent, name, layer) for parent, name, layer in layers if isinstance(layer, nn.Linear)]
    if odd := [layer.weight for *_, layer in layers if layer.weight.dtype != torch.bfloat16 or layer.weight.is_cuda]:
        raise ValueError(f"only bfloat16 weights on the CPU can be packed, got {odd[0].dtype} on {odd[0].device}")
    if not possible():
        raise ValueError("this CPU, or this torch, has no bfloat16 matrix kernels (oneDNN) to pack weights for")
    for parent, name, layer in layers:
        setattr(parent, name, PackedLinear(layer))
    return model
