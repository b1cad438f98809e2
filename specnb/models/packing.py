"""Packing: weights laid out once as the CPU's matrix kernels want them, which otherwise do it at every call."""

import platform

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 16  # what float32 is laid out for; SmolLM2 over 1, 4, 16 rows: 62, 102, 123 ms as loaded, 42, 50, 68 so


class PackedLinear(nn.Module):
    """A Linear layer with a second copy of its weight, laid out as oneDNN wants it: the same comes out, sooner.

    In bfloat16 the same bits; in float32 the sums are taken in another order, as other kernels take them, too. A weight
    that has been changed or replaced is laid out again; torch does not tell of changes through ``weight.data``.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self._lay_out()

    def _lay_out(self) -> None:
        self.laid_out = None
        if self.weight.device.type == "cpu" and possible(self.weight.dtype):
            rows = ROWS if self.weight.dtype == torch.float32 else None
            self.laid_out = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), rows)
        self.seen = self._state()

    def _state(self) -> tuple[int, int]:
        """What is another number once the weight has been changed in place, or replaced."""
        version = 0 if self.weight.is_inference() else self.weight._version
        return version, self.weight.data_ptr()

    def __getstate__(self) -> dict:
        """For copies and files: without what was laid out, which cannot be copied."""
        return {name: value for name, value in self.__dict__.items() if name not in ("laid_out", "seen")}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._lay_out()

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != self.weight.dtype or torch.is_autocast_enabled("cpu"):
            return F.linear(x, self.weight, self.bias)  # torch.autocast has other kernels
        if self._state() != self.seen:
            self._lay_out()
        if self.laid_out is None:  # moved to where no kernel takes packed weights
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.laid_out, self.bias, "none", [], "")


def possible(dtype: torch.dtype = torch.bfloat16) -> bool:
    """Whether this machine's CPU and torch have matrix kernels of a dtype that take packed weights.

    float32: those of x86. bfloat16: on a CPU with AVX512 but no instructions for it, oneDNN emulates them; we say no.
    """
    if dtype != torch.bfloat16:
        x86 = platform.machine() in ("x86_64", "AMD64")
        return dtype == torch.float32 and x86 and torch.backends.mkldnn.is_available()
    kernels = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return kernels and (torch.cpu._is_avx512_bf16_supported() or platform.machine() == "aarch64")


@torch.no_grad()
def pack(model: nn.Module) -> nn.Module:
    """Replace every Linear layer of a model by a packed one, in place; returns the model. For inference only.

    Takes the memory of the Linear weights once more. Packing twice is packing once. Raises ValueError unless the
    layers lie on a CPU that has kernels for their dtype.
    """
    layers = [(parent, name, layer) for parent in model.modules() for name, layer in parent.named_children()]
    layers = [(parent, name, layer) for parent, name, layer in layers if isinstance(layer, nn.Linear)]
    for weight in (layer.weight for *_, layer in layers):
        if weight.device.type != "cpu" or not possible(weight.dtype):
            raise ValueError(f"no matrix kernels here take packed {weight.dtype} weights on {weight.device}")
    for parent, name, layer in layers:
        setattr(parent, name, PackedLinear(layer))
    return model
