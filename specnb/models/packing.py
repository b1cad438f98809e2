"""Packing: weights laid out once as the CPU's matrix kernels want them, which otherwise do it at every call."""

import platform

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# For how many rows float32 weights are laid out. Milliseconds of SmolLM2 over 1, 4, 16 rows, packed for 16:
# 42, 50, 68; as loaded: 62, 102, 123.
ROWS = 16


class PackedLinear(nn.Module):
    """A Linear layer with a second copy of its weight, laid out as oneDNN wants it: the same comes out, sooner.

    In bfloat16 the same bits; in float32 the sums are taken in another order, as other kernels take them, too. A weight
    that has been changed or replaced is laid out again; torch does not tell of changes through ``weight.data``.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self._lay_out()

    def _lay_out(self) -> None:
        """Make the second copy, of the weight as it is now; none where no kernel takes it."""
        self.laid_out: Tensor | None = None
        if self.weight.device.type == "cpu" and possible(self.weight.dtype):
            rows = ROWS if self.weight.dtype == torch.float32 else None
            self.laid_out = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), rows)
        self.laid_out_of = self._version_and_place()

    def _version_and_place(self) -> tuple[int, int]:
        """Two numbers of which one is another once the weight has been changed in place, or replaced."""
        version = 0 if self.weight.is_inference() else self.weight._version
        return version, self.weight.data_ptr()

    def __getstate__(self) -> dict:
        """For copies and files: without what was laid out, which cannot be copied."""
        state = self.__dict__.copy()
        del state["laid_out"], state["laid_out_of"]
        return state

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._lay_out()

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != self.weight.dtype or torch.is_autocast_enabled("cpu"):
            return F.linear(x, self.weight, self.bias)  # torch.autocast has other kernels
        if self._version_and_place() != self.laid_out_of:
            self._lay_out()
        if self.laid_out is None:  # moved to where no kernel takes packed weights
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.laid_out, self.bias, "none", [], "")


def possible(dtype: torch.dtype = torch.bfloat16) -> bool:
    """Whether this machine's CPU and torch have matrix kernels of a dtype that take packed weights.

    float32: those of x86. bfloat16: on a CPU with AVX512 but no instructions for it, oneDNN emulates them; we say no.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    machine = platform.machine()
    if dtype == torch.float32:
        return machine in ("x86_64", "AMD64")
    if dtype != torch.bfloat16 or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return torch.cpu._is_avx512_bf16_supported() or machine == "aarch64"


@torch.no_grad()
def pack(model: nn.Module) -> nn.Module:
    """Replace every Linear layer of a model by a packed one, in place; returns the model. For inference only.

    Takes the memory of the Linear weights once more. Packing twice is packing once. Raises ValueError unless the
    layers lie on a CPU that has kernels for their dtype.
    """
    layers: list[tuple[nn.Module, str, nn.Linear]] = []  # each with the module that holds it, and its name there
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear):
                layers.append((parent, name, child))
    for _, _, layer in layers:
        weight = layer.weight
        if weight.device.type != "cpu" or not possible(weight.dtype):
            raise ValueError(f"no matrix kernels here take packed {weight.dtype} weights on {weight.device}")
    for parent, name, layer in layers:
        setattr(parent, name, PackedLinear(layer))
    return model
