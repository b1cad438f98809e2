"""The rounding of another processor, on purpose: ``SPECNB_NOISE=1 pytest tests`` and the same for notebooks.

Other processors have other kernels: they add the terms of a product or of a sum in another order and round
differently at the end. A test that holds only for the order of this processor is a test of this processor.
Under noise torch computes

- matrix products in two parts, cut at a place that the seed chooses, which are then added,
- sums, means and normalisations over their terms in another order,
- and moves two thirds of the elements of each result, of attention and softmax, too, by half a unit in the last
  place of their dtype, up or down.

Like a real kernel this is deterministic: the same operation on the same shapes gets the same noise, and one row
gets another than sixteen. What every kernel computes exactly stays exact: a product of whole numbers comes out the
same in parts, and an element with less than half of its significand in use (0, 1, 0.5, 12) is not moved.

Tests whose very subject is bits say so, ``@pytest.mark.bits("reason")``, and are skipped; cells have the reason in
their metadata, ``"bits": "reason"``, run, and are not compared.
"""

import zlib
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Generator = torch.Generator  # kept: ``exact.randomness`` refuses one that is made inside a sampler

SIGNS = 1 << 20  # how many numbers of -1, 0 and 1 are drawn once; an operation reads them from a place of its own

# Operations by their names in torch's dispatcher, without a final underscore.
SPLIT = {"mm", "addmm", "bmm", "baddbmm"}
REORDERED = {"sum", "mean", "logsumexp", "linalg_vector_norm", "var", "std"}
PRODUCTS = {"mv", "addmv", "dot", "linear", "_linear_pointwise", "_mkl_linear", "_grouped_mm", "convolution"}
ATTENTION = {"_scaled_dot_product_flash_attention_for_cpu", "_softmax", "_log_softmax", "_safe_softmax"}
NORMS = {"native_layer_norm", "_fused_rms_norm"}
ADD = {
    "aten::mm": torch.ops.aten.addmm.default,
    "aten::addmm": torch.ops.aten.addmm.default,
    "aten::bmm": torch.ops.aten.baddbmm.default,
    "aten::baddbmm": torch.ops.aten.baddbmm.default,
}
NOISY = SPLIT | REORDERED | PRODUCTS | ATTENTION | NORMS

# The lower half of the significand's bits, and the integer as wide as the dtype.
LOWER_HALF = {
    torch.float64: (torch.int64, (1 << 26) - 1),
    torch.float32: (torch.int32, (1 << 12) - 1),
    torch.float16: (torch.int16, (1 << 5) - 1),
    torch.bfloat16: (torch.int16, (1 << 4) - 1),
}


class Noise(TorchDispatchMode):
    """While it is active, torch rounds like another processor; ``counts`` says how often, by operation."""

    def __init__(self, seed: int):
        super().__init__()
        self.seed = seed
        self.counts: dict[str, int] = {}
        generator = Generator().manual_seed(seed)  # torch's own random state is not touched
        self.signs = torch.randint(-1, 2, (SIGNS,), generator=generator, dtype=torch.int8)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.name().split("::")[-1].split(".")[0].rstrip("_")
        if name not in NOISY:
            return func(*args, **kwargs)
        shapes = [tuple(x.shape) for x in args if isinstance(x, torch.Tensor)]
        place = zlib.crc32(f"{self.seed} {name} {shapes}".encode())
        if name in ("mm", "bmm") and args[0].shape[-1] == 1:
            return func(*args, **kwargs)  # one product and no sum: every processor rounds it alike
        if name in SPLIT:
            result = _in_two_parts(func, args, kwargs, place)
        elif name in REORDERED:
            result = func(_reordered(func, args, kwargs, place), *args[1:], **kwargs)
        else:
            result = func(*args, **kwargs)
        for x in result if isinstance(result, tuple | list) else [result]:
            if isinstance(x, torch.Tensor) and x.dtype in LOWER_HALF and x.device.type == "cpu":
                self._move(x, place)
        self.counts[name] = self.counts.get(name, 0) + 1
        return result

    def _move(self, x: torch.Tensor, place: int) -> None:
        """Half a unit in the last place up or down, in place, except where x would be exact on every processor."""
        count = x.numel()
        start = place % (SIGNS // 2)
        signs = self.signs if start + count <= SIGNS else self.signs.repeat(2 + count // SIGNS)
        signs = signs[start : start + count].view(x.shape).to(x.dtype)
        integer, lower_half = LOWER_HALF[x.dtype]
        exact = (x.view(integer) & lower_half) == 0
        moved = x + x * signs * (0.5 * torch.finfo(x.dtype).eps)
        x.copy_(torch.where(exact, x, moved))


def _in_two_parts(func, args: tuple, kwargs: dict, place: int) -> torch.Tensor:
    """A matrix product as the sum of two products, over the first and over the last of its terms."""
    *given, a, b = args  # (..., M, K), (..., K, N)
    terms = a.shape[-1]
    if terms < 2 or func.overloadpacket._qualified_op_name not in ADD or "out" in kwargs:
        return func(*args, **kwargs)
    cut = 1 + place % (terms - 1)
    first = func(*given, a[..., :cut], b[..., :cut, :], **kwargs)
    add = ADD[func.overloadpacket._qualified_op_name]
    return add(first, a[..., cut:], b[..., cut:, :], alpha=kwargs.get("alpha", 1))


def _reordered(func, args: tuple, kwargs: dict, place: int) -> torch.Tensor:
    """The first argument with its elements in another order along the dimensions that are reduced."""
    names = [argument.name for argument in func._schema.arguments]
    dims = {**dict(zip(names, args, strict=False)), **kwargs}.get("dim")
    x = args[0]
    if isinstance(dims, int):
        dims = [dims]
    for dim in dims or range(x.ndim):
        order = torch.randperm(x.shape[dim], generator=Generator().manual_seed(place))
        x = x.index_select(dim, order.to(x.device))
    return x


def start(seed: int) -> Noise:
    """Noise in this process from now on, for the thread that calls."""
    active = Noise(seed)
    active.__enter__()
    return active


def kernel_folder(folder: Path, seed: int) -> Path:
    """A folder for $IPYTHONDIR: notebooks' kernels that find it start with noise."""
    startup = folder / "profile_default" / "startup"
    startup.mkdir(parents=True)
    lines = [
        f"__import__('sys').path.insert(0, {str(Path(__file__).parent)!r})",
        f"__import__('noise').start({seed})",  # binds no name in the notebook
    ]
    (startup / "noise.py").write_text("\n".join(lines), encoding="utf-8")
    return folder
