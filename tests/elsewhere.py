"""A device beside this machine's memory, played on the CPU: what a GPU refuses is refused, all else is computed.

Tensors of the device are ordinary ones of a class of their own, ``Elsewhere``, whose ``device`` is ``DEVICE``; what is
computed from them is of that class, too. What a GPU refuses raises here, in nearly the same words:

    reading         ``.numpy()``, and whatever turns a tensor into an array
    mixing          an operation on tensors of both devices, but for single numbers, copies, and indices of the host's
    a host's index  to the functions that take only indices of the device's own, such as ``gather``: that is mixing
    an index from the device into an ordinary tensor

What this cannot show: a GPU's rounding, its speed, and operations that it does not have.

    with elsewhere.on():
        model = elsewhere.moved(model)  # or model.to(elsewhere.DEVICE)
        decode(Target(model), …)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("maia")  # one that torch has a name for, and no build of it here knows
READ = (Tensor.numpy, Tensor.__array__)
ALLOWED = (Tensor.copy_, Tensor.type_as, Tensor.view_as, Tensor.expand_as, Tensor.reshape_as)  # of both devices
MIXED = "Expected all tensors to be on the same device, but found at least two devices, elsewhere and cpu!"
FOREIGN = "indices should be either on cpu or on the same device as the indexed tensor (cpu)"


class Elsewhere(Tensor):
    """A tensor of the device."""

    def __deepcopy__(self, memo):
        copied = self.detach().clone()
        return nn.Parameter(copied, self.requires_grad) if isinstance(self, nn.Parameter) else copied

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function == Tensor.device.__get__:  # another object each time
            return DEVICE
        if function in READ:
            raise TypeError("can't convert elsewhere device type tensor to numpy. Use Tensor.cpu() first.")
        if function is Tensor.to:
            return sent(*args, **kwargs)
        if function is Tensor.cpu:
            return args[0].as_subclass(Tensor)
        check(function, args, kwargs)
        return computed(function, args, kwargs, there="device" not in kwargs or is_device(kwargs["device"]))


def is_device(asked) -> bool:
    """Whether a device, or the word for one, is this one."""
    return asked is not None and torch.device(asked) == DEVICE


def check(function, args, kwargs) -> None:
    """Raise RuntimeError where tensors of both devices stand in one operation."""
    if function is Tensor.__getitem__ or function is Tensor.__setitem__:
        tensor, index, *value = args
        if not isinstance(tensor, Elsewhere) and any(isinstance(part, Elsewhere) for part in tree_flatten(index)[0]):
            raise RuntimeError(FOREIGN)
        by_tensors = any(isinstance(part, Tensor) for part in tree_flatten(index)[0])
        if function is Tensor.__getitem__ or not by_tensors:  # what is assigned to a slice is copied
            return
        args = (tensor, *value)
    if function in ALLOWED:
        return
    for value in tree_flatten((args, kwargs))[0]:
        if isinstance(value, Tensor) and not isinstance(value, Elsewhere) and value.dim():
            raise RuntimeError(f"{MIXED} ({getattr(function, '__name__', function)})")


def computed(function, args, kwargs, there: bool):
    """The result of a function on the CPU; there: whether its tensors are on the device."""
    if is_device(kwargs.get("device")):
        kwargs = {**kwargs, "device": "cpu"}
    with torch._C.DisableTorchFunctionSubclass():
        result = function(*args, **kwargs)
    kind = Elsewhere if there else Tensor
    return tree_map(lambda value: of_class(value, kind), result)


def of_class(value, kind: type):
    if not isinstance(value, Tensor) or isinstance(value, Elsewhere) == (kind is Elsewhere):
        return value
    return value.as_subclass(kind)


def sent(tensor: Tensor, *args, **kwargs) -> Tensor:
    """tensor.to(…), which may name a device, a dtype, both, or a tensor that has them."""
    given = [*args, *(kwargs[name] for name in ("device", "other", "dtype") if name in kwargs)]
    goal = tensor.device
    dtype = tensor.dtype
    for value in given:
        if isinstance(value, Tensor):
            goal, dtype = value.device, value.dtype
        elif isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, str | torch.device):
            goal = torch.device(value)
    with torch._C.DisableTorchFunctionSubclass():
        result = tensor.to(dtype=dtype, copy=kwargs.get("copy", False) or goal != tensor.device)
    return of_class(result, Elsewhere if goal == DEVICE else Tensor)


class Asked(TorchFunctionMode):
    """Calls that name the device: functions that make tensors, and ``to``."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is Tensor.to:
            return sent(*args, **kwargs)
        if is_device(kwargs.get("device")):
            check(function, [value for value in args if isinstance(value, Elsewhere)], {})
            return computed(function, args, kwargs, there=True)
        return function(*args, **kwargs)


GENERATOR = torch.Generator
TO = nn.Module.to


def generator(device="cpu") -> torch.Generator:
    """A generator for the device: the draws of the CPU's stand for its own."""
    return GENERATOR("cpu" if is_device(device) else device)


def module_to(module: nn.Module, *args, **kwargs) -> nn.Module:
    """module.to(…): to the device, or to a dtype there."""
    args = [value.device if isinstance(value, Elsewhere) else value for value in args]
    rest = [value for value in args if not isinstance(value, str | torch.device) or not is_device(value)]
    if len(rest) == len(args) and not is_device(kwargs.get("device")):
        return TO(module, *args, **kwargs)
    TO(module, *rest, **{name: value for name, value in kwargs.items() if name != "device"})
    return moved(module)


@contextmanager
def on() -> Iterator[None]:
    """In this context there is the device."""
    torch.Generator, nn.Module.to = generator, module_to
    try:
        with Asked():
            yield
    finally:
        torch.Generator, nn.Module.to = GENERATOR, TO


def moved(model: nn.Module) -> nn.Module:
    """The model with its weights and buffers on the device; the model itself is changed."""
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                there = weight.detach().as_subclass(Elsewhere)
                module._parameters[name] = nn.Parameter(there, requires_grad=weight.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.as_subclass(Elsewhere)
    return model


KEPT = []  # the context of ``start``, which would end when nobody holds it


def start() -> None:
    """From now on this process has the device, and models are loaded there, as on a GPU: for notebooks' kernels."""
    from specnb.models import pairs

    pairs.best_device = lambda: DEVICE
    pairs.fastest_dtype = lambda where: ("float32", False)
    KEPT.append(on())
    KEPT[0].__enter__()


def kernel_folder(folder: Path) -> Path:
    """A folder for $IPYTHONDIR: notebooks' kernels that find it start on the device."""
    startup = folder / "profile_default" / "startup"
    startup.mkdir(parents=True)
    here = str(Path(__file__).parent)
    lines = [f"__import__('sys').path.insert(0, {here!r})", "__import__('elsewhere').start()"]  # binds no name
    (startup / "elsewhere.py").write_text("\n".join(lines), encoding="utf-8")
    return folder
