"""Packing: weights are laid out once in the order that the CPU's matrix kernels need.

Without it the kernels change the order at every call.
"""

import platform

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# oneDNN chooses the layout of float32 weights for an expected number of rows (tokens per forward). A forward of SmolLM2
# over 1, 4 and 16 rows took 42, 50 and 68 ms when packed for 16 rows, and 62, 102 and 123 ms as loaded.
ROWS = 16


class PackedLinear(nn.Module):
    """A Linear layer with a second copy of its weight in the order that oneDNN needs: same result, less time.

    In bfloat16 the bits are the same. In float32 the sums are taken in another order, so that the result is rounded
    differently. A weight that has been changed or replaced is laid out again; changes through ``weight.data`` are not
    noticed, because torch does not count them.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self._lay_out()

    def _lay_out(self) -> None:
        """Copy the weight as it is now into the order that oneDNN needs; no copy where no kernel takes it."""
        self.laid_out: Tensor | None = None
        if self.weight.device.type == "cpu" and possible(self.weight.dtype):
            rows = ROWS if self.weight.dtype == torch.float32 else None
            self.laid_out = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), rows)
        self.laid_out_of = self._version_and_address()

    def _version_and_address(self) -> tuple[int, int]:
        """Two numbers for the weight: its version changes when it is changed in place, its address when replaced."""
        version = 0 if self.weight.is_inference() else self.weight._version
        return version, self.weight.data_ptr()

    def __getstate__(self) -> dict:
        """The state for copies and pickles, without the second copy of the weight, which cannot be copied."""
        state = self.__dict__.copy()
        del state["laid_out"], state["laid_out_of"]
        return state

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._lay_out()

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != self.weight.dtype or torch.is_autocast_enabled("cpu"):
            return F.linear(x, self.weight, self.bias)  # torch.autocast casts, which the packed kernels do not
        if self._version_and_address() != self.laid_out_of:
            self._lay_out()
        if self.laid_out is None:  # the layer was moved to a device or dtype without such a kernel
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.laid_out, self.bias, "none", [], "")


def possible(dtype: torch.dtype = torch.bfloat16) -> bool:
    """Whether this machine's CPU and torch have matrix kernels for a dtype that take packed weights.

    In float32 x86 CPUs have them. In bfloat16 the answer is no for a CPU with AVX512 but without bfloat16 instructions:
    oneDNN only emulates them there, which is slow.
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

    The Linear weights take twice their memory afterwards. A model that is packed already is not changed. Raises
    ValueError unless the layers are on a CPU that has kernels for their dtype.
    """
    layers: list[tuple[nn.Module, str, nn.Linear]] = []  # a layer's parent module, its name there, and the layer
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
