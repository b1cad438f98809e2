"""Anybody's sampler under every coin: inside ``randomness(coins)`` random functions return numbers that are not drawn.

torch's, numpy's and Python's random functions are listed here one by one. What they return holds expressions of
undecided numbers (``symbols``): a comparison with one becomes a coin, ``multinomial`` a choice, an argmax over noise a
choice, too. So ``exact.law`` enumerates code that knows nothing of coins. A random function that is not listed raises,
and so does everything that is done with an undecided number and is not listed: its memory, which a kernel would read,
holds no number.

An undecided tensor is an ordinary one, filled with NaN. Beside its storage lies a *shadow* of the same size, which
holds for each place the index of an expression, −1 for a plain number. Views share storage and so need nothing; what
moves numbers (clone, gather, cat, …) moves the shadow in the same way.
"""

import math
import operator
import random as python_random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from types import ModuleType

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from specnb.exact.symbols import (
    ARRIVAL,
    GUMBEL,
    LARGEST_WINS,
    NEGATIVE_GUMBEL,
    REFUSALS,
    SCORE,
    Cell,
    Election,
    Expression,
    Noise,
    NotJudged,
    RandomnessError,
    Spent,
    Uniform,
    certain,
    elect,
    partial_products,
    raised_at,
)
from specnb.sampling import Coins

# torch functions, by name without underscores, that only ask what a tensor is
ASKS = {
    "size", "dim", "numel", "nelement", "len", "stride", "get", "element_size", "is_floating_point",
    "storage_offset", "is_contiguous", "shape", "ndimension", "is_complex", "is_cuda", "get_device", "empty_like",
    "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros", "new_ones", "new_full", "new_tensor",
    "is_inference", "requires_grad", "result_type",
}  # fmt: skip
# that lead to a tensor's memory, as a kernel asks for it (Triton, ctypes): an undecided number has no bits
MEMORY = {"data_ptr", "untyped_storage", "storage", "typed_storage", "dlpack"}
# that move numbers and change none
MOVES = {
    "view", "reshape", "squeeze", "unsqueeze", "flatten", "unflatten", "expand", "expand_as", "permute", "transpose",
    "t", "contiguous", "clone", "detach", "to", "cpu", "cuda", "float", "double", "half", "bfloat16", "type", "type_as",
    "getitem", "index_select", "gather", "take_along_dim", "narrow", "select", "chunk", "split", "unbind", "repeat",
    "repeat_interleave", "flip", "roll", "movedim", "swapaxes", "cat", "concat", "stack", "where", "broadcast_to",
    "masked_select", "take", "view_as", "reshape_as", "tile", "hstack", "vstack", "unfold", "diagonal", "atleast_1d",
    "atleast_2d", "ravel", "alias", "data", "iter", "concatenate", "moveaxis", "swapdims", "split_with_sizes",
}  # fmt: skip
BINARY: dict[str, Callable] = {
    "add": operator.add, "sub": operator.sub, "subtract": operator.sub, "mul": operator.mul, "multiply": operator.mul,
    "div": operator.truediv, "divide": operator.truediv, "truediv": operator.truediv, "true_divide": operator.truediv,
    "lt": operator.lt, "less": operator.lt, "le": operator.le, "less_equal": operator.le, "gt": operator.gt,
    "greater": operator.gt, "ge": operator.ge, "greater_equal": operator.ge, "iadd": operator.add,
    "isub": operator.sub, "imul": operator.mul, "itruediv": operator.truediv, "idiv": operator.truediv,
    "eq": operator.eq, "ne": operator.ne, "not_equal": operator.ne,
}  # fmt: skip
SWAPPED = {"radd": "add", "rsub": "sub", "rmul": "mul", "rdiv": "div", "rtruediv": "div"}
UNARY: dict[str, Callable] = {
    "neg": operator.neg, "negative": operator.neg, "log": lambda x: x.log(), "exp": lambda x: x.exp(),
    "reciprocal": lambda x: 1 / x, "positive": lambda x: x,
    "isinf": lambda x: math.isinf(certain(x)), "isnan": lambda x: math.isnan(certain(x)),
    "isfinite": lambda x: math.isfinite(certain(x)),
}  # fmt: skip
INPLACE = {
    "add_", "sub_", "mul_", "div_", "neg_", "log_", "exp_", "reciprocal_", "clamp_", "clamp_min_", "clip_", "__iadd__",
    "__isub__", "__imul__", "__itruediv__", "__idiv__",
}  # fmt: skip
BOUNDS = {"clamp", "clip", "clamp_min", "clamp_max"}
LARGEST_FIRST = {"argmax", "max", "topk"}
SMALLEST_FIRST = {"argmin", "min"}
# the arguments that a function may be given by name, in their order; ("input", "other") for any other function
PARAMETERS = {
    "where": ("condition", "input", "other"), "cat": ("tensors",), "concat": ("tensors",), "concatenate": ("tensors",),
    "stack": ("tensors",), "hstack": ("tensors",), "vstack": ("tensors",), "searchsorted": ("sorted_sequence", "input"),
    "bernoulli": ("input",), "multinomial": ("input", "num_samples", "replacement"),
}  # fmt: skip
CONCATENATIONS = {"cat", "concat", "concatenate", "stack", "hstack", "vstack"}
NOBODY = -(2**40)  # stands in a tensor where no place has been elected
CASTS = {"to", "type", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda"}  # of MOVES: only the numbers
LARGEST_RANGE = 1_000  # of a whole random number
READS = {"item", "tolist", "__float__", "__int__", "__bool__", "__index__", "numpy"}  # by their full names
STORES = {"setitem", "copy", "fill"}
# random functions of torch that are not enumerated
REFUSED = {
    "randn", "randn_like", "randperm", "randint_like", "normal", "normal_", "poisson", "dropout", "dropout_",
    "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "native_dropout", "random_", "cauchy_", "log_normal_",
    "geometric_", "rrelu", "rrelu_", "binomial", "gumbel_softmax", "fractional_max_pool2d", "dropout1d", "dropout2d",
    "dropout3d",
}  # fmt: skip


class Shadowed(TorchFunctionMode):
    """torch's part of ``randomness``."""

    def __init__(self, coins: Coins):
        super().__init__()
        self.coins = coins
        self.expressions: list[Expression] = []
        self.open_elections = False  # whether an argmax has left any
        self.generators: dict[int, bytes] = {}  # by id, the state of generators that were handed over
        self.shadows: dict[int, tuple[Tensor, object]] = {}  # where a storage begins → its shadow, and the storage

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in REFUSED and not _is_off(name, args, kwargs or {}):
            raise RandomnessError(
                f"{name} is random and is not enumerated; rand, multinomial, exponential_ and an argmax over them are"
            )
        args, kwargs = _bound(name, args, kwargs or {})
        self._check_generator(kwargs.get("generator"))
        drawn = self._drawn(name, args, kwargs)
        if drawn is not None:
            if kwargs.get("out") is not None:
                raise RandomnessError(f"{name} with out= is not enumerated")
            return drawn
        if not self._has_symbols((args, kwargs)):
            return function(*args, **kwargs)
        return self._symbolic(function, name, args, kwargs)

    def _check_generator(self, generator: "torch.Generator | None") -> None:
        """RandomnessError if a generator that is handed over was seeded since it was last used here."""
        if generator is None:
            return
        state = generator.get_state().numpy().tobytes()
        if self.generators.setdefault(id(generator), state) != state:
            raise RandomnessError(SEEDED.format("a generator"))

    def only_decided(self, call: Callable) -> Callable:
        """A call that torch functions are not seen in, refused if an undecided number is handed over."""

        def called(function, *args, **kwargs):
            if self._has_symbols((args, kwargs)):
                raise RandomnessError("an undecided random number is handed to a function that torch.jit has compiled")
            return call(function, *args, **kwargs)

        return called

    # --- random functions

    def _drawn(self, name: str, args, kwargs):
        """What a random function returns; None for any other function."""
        if name == "rand":
            return self._filled(_empty(args, kwargs), lambda: Uniform(Cell(self.coins)))
        if name == "rand_like":
            return self._filled(_empty_like(args[0], kwargs), lambda: Uniform(Cell(self.coins)))
        if name == "uniform_":
            low, high = _two(args, kwargs, ("from", "to"), (0.0, 1.0))
            return self._filled(args[0], lambda: Uniform(Cell(self.coins)) * (high - low) + low)
        if name == "exponential_":
            (rate,) = _two(args, kwargs, ("lambd",), (1.0,))
            return self._filled(args[0], lambda: Noise(Cell(self.coins), float(np.log(rate)), ARRIVAL))
        if name == "bernoulli":
            of_all = args[1] if len(args) > 1 else kwargs.get("p")
            probabilities = args[0] if of_all is None else torch.as_tensor(of_all)
            return self._bernoulli(torch.empty_like(args[0]), probabilities)
        if name == "bernoulli_":
            probability = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
            return self._bernoulli(args[0], torch.as_tensor(probability))
        if name == "multinomial":
            return self._multinomial(*args, **kwargs)
        if name == "randint":
            return self._randint(*args, **kwargs)
        if name == "searchsorted" and self._has_symbols((args, kwargs)):
            return self._searchsorted(*args, **kwargs)
        return None

    def _filled(self, tensor: Tensor, make: Callable[[], Expression]) -> Tensor:
        """The tensor with a new expression in each place."""
        made = [make() for _ in range(tensor.numel())]
        self._put(tensor, made)
        return tensor

    def _bernoulli(self, tensor: Tensor, probabilities: Tensor) -> Tensor:
        self._forget(tensor)
        values = [float(self.coins.accept(p)) for p in probabilities.expand(tensor.shape).flatten().tolist()]
        return tensor.copy_(torch.tensor(values).reshape(tensor.shape))

    def _multinomial(self, input, num_samples=1, replacement=False, *, generator=None, out=None) -> Tensor:
        rows = input.reshape(-1, input.shape[-1]).double()
        drawn = []
        for row in rows:
            remaining = row.clone()
            for _ in range(num_samples):
                token = self.coins.choose(remaining)
                drawn.append(token)
                if not replacement:
                    remaining[token] = 0
        return torch.tensor(drawn, device=input.device).reshape(*input.shape[:-1], num_samples)

    def _randint(self, *args, low=0, high=None, size=None, dtype=torch.int64, device=None, **_) -> Tensor:
        numbers = list(args)
        if size is None:
            size = numbers.pop()
        if high is None:
            high = numbers.pop()
        if numbers:
            low = numbers.pop()
        _check_range(high - low)
        law = torch.ones(high - low, dtype=torch.float64)
        count = int(np.prod(size))
        drawn = [low + self.coins.choose(law) for _ in range(count)]
        return torch.tensor(drawn, dtype=dtype).reshape(tuple(size))

    def _searchsorted(self, edges: Tensor, values, *, right=False, sorter=None, **_) -> Tensor:
        """The place of undecided numbers among rising edges: asked from the left, a coin an edge."""
        if sorter is not None:
            raise RandomnessError("searchsorted with a sorter is not enumerated")
        wanted = self._elements(values)
        shape = values.shape if isinstance(values, Tensor) else ()
        rows = edges.expand(*shape[:-1], edges.shape[-1]).reshape(-1, edges.shape[-1]).tolist()
        per_row = len(wanted) // len(rows)
        places = []
        for index, number in enumerate(wanted):
            places.append(_place(rows[index // per_row], number))
        return torch.tensor(places).reshape(shape)

    # --- what is done with undecided numbers

    def _symbolic(self, function, name: str, args, kwargs):
        base = name.strip("_")
        self._settle(_indices_of(base, args, kwargs))
        if not self._has_symbols((args, kwargs)):
            return function(*args, **kwargs)
        _check_memory(name, base, kwargs)
        if name in READS:
            return self._read(name, args[0])
        if base in ASKS and not self._has_symbols((args[1:], kwargs)):
            return function(*args, **kwargs)
        if base in MOVES:
            return self._moved(function, base, args, kwargs)
        if base in STORES:
            return self._stored(function, args, kwargs)
        if base in ("argmax", "argmin"):
            return self._first(function, base, args, kwargs)
        if base in LARGEST_FIRST or base in SMALLEST_FIRST:
            return self._elected(function, base, args, kwargs)
        special = {"cumprod": self._cumprod, "masked_fill": self._masked_fill, "masked_fill_": self._masked_fill_}
        if name in special:
            return special[name](*args, **kwargs)
        result = self._computed(name, base, args, kwargs)
        if name in INPLACE:
            self._put(args[0], self._elements(result, args[0].shape))
            return args[0]
        return result

    def _computed(self, name: str, base: str, args, kwargs) -> Tensor:
        """Arithmetic and comparisons, element by element."""
        changes_its_tensor = name.endswith("_") and not name.startswith("_")
        if changes_its_tensor and name not in INPLACE:
            raise RandomnessError(f"{name} of an undecided random number is not enumerated")
        if kwargs and base not in BOUNDS:
            raise RandomnessError(f"{name} of an undecided random number with {', '.join(kwargs)}= is not enumerated")
        if base in SWAPPED:
            return self._elementwise(BINARY[SWAPPED[base]], (args[1], args[0]))
        if base in BINARY:
            return self._elementwise(BINARY[base], args[:2])
        if base in UNARY:
            return self._elementwise(UNARY[base], args[:1])
        if base in BOUNDS:
            low, high = _bounds(base, args, kwargs)
            return self._elementwise(lambda number: number.bounded(low, high), args[:1])
        raise RandomnessError(f"{name} of an undecided random number is not enumerated")

    def _elementwise(self, change: Callable, operands: Sequence):
        """A function of each element, of tensors and numbers broadcast together."""
        sizes = [one.shape if isinstance(one, Tensor) else () for one in operands]
        shape = torch.broadcast_shapes(*sizes)
        columns = [self._elements(one, shape) for one in operands]
        values = [change(*row) for row in zip(*columns, strict=True)]
        return self._tensor(values, shape, operands)

    def _elements(self, operand, shape: Sequence[int] | None = None) -> list:
        """The numbers and expressions of a tensor or of a number, flat, broadcast to a shape."""
        if not isinstance(operand, Tensor):
            return [operand] * int(np.prod(shape or (1,)))
        shape = operand.shape if shape is None else shape
        numbers = operand.detach().expand(shape).flatten().tolist()
        shadow = self._shadow(operand)
        if shadow is None:
            return numbers
        places = shadow.expand(shape).flatten().tolist()
        return [
            self.expressions[place] if place >= 0 else number for place, number in zip(places, numbers, strict=True)
        ]

    def _tensor(self, values: list, shape, operands) -> Tensor:
        """A tensor of numbers, truths or expressions."""
        device = next(one.device for one in operands if isinstance(one, Tensor))
        if all(isinstance(value, bool) for value in values):
            return torch.tensor(values, dtype=torch.bool, device=device).reshape(shape)
        dtypes = [one.dtype for one in operands if isinstance(one, Tensor) and one.is_floating_point()]
        tensor = torch.empty(shape, dtype=max(dtypes, key=lambda kind: kind.itemsize), device=device)
        self._put(tensor, values)
        return tensor

    def _moved(self, function, base: str, args, kwargs):
        """The same move of the numbers and of their shadow."""
        if base == "view" and any(isinstance(one, torch.dtype) for one in (*args[1:], *kwargs.values())):
            raise RandomnessError("the bits of an undecided random number are asked for; it has none")
        result = function(*args, **kwargs)
        if base in CASTS:
            moved = self._shadow_or_plain(args[0])
        else:
            moved = function(*self._shadow_arguments(base, args), **kwargs)
        for part, shadow in zip(_parts(result), _parts(moved), strict=True):
            if part.numel() and not self._is_shadowed(part):  # a view of what has a shadow shares it
                self._check_may_hold(part, self._expressions_at(shadow))
                self._own(part).copy_(shadow)
        return result

    def _shadow_arguments(self, base: str, args) -> list:
        """The arguments with shadows in place of the tensors that hold numbers."""
        if base in CONCATENATIONS:
            return [[self._shadow_or_plain(one) for one in args[0]], *args[1:]]
        if base == "where":
            return [args[0], *(self._shadow_or_plain(one) for one in args[1:])]
        return [self._shadow_or_plain(args[0]), *args[1:]]

    def _shadow_or_plain(self, operand):
        shadow = self._shadow(operand) if isinstance(operand, Tensor) else None
        if shadow is not None:
            return shadow
        if isinstance(operand, Tensor):
            return torch.full(operand.shape, -1)
        return -1

    def _stored(self, function, args, kwargs):
        """An assignment of, or into, undecided numbers: the same in the shadow."""
        target = args[0]
        own = self._own(target)
        stored = torch.as_tensor(self._shadow_or_plain(args[-1]))
        self._check_may_hold(target, self._expressions_at(stored))
        if function.__name__ == "__setitem__":
            own[args[1]] = stored
        else:  # copy_ and fill_
            own.copy_(stored)
        return function(*args, **kwargs)

    def _read(self, name: str, tensor: Tensor):
        """A tensor as Python's or numpy's objects, or one number of it."""
        values = self._elements(tensor)
        if name in ("numpy", "tolist"):
            array = np.array(values, dtype=object).reshape(tensor.shape)
            return array if name == "numpy" else array.tolist()
        if name == "item":
            return values[0]
        convert = {"__float__": float, "__int__": int, "__bool__": bool, "__index__": operator.index}[name]
        return convert(values[0])  # which an undecided number refuses

    def _cumprod(self, tensor: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
        """Partial products of rows of uniform numbers."""
        products = []
        for numbers in self._rows(tensor, dim):
            products += partial_products(numbers)
        shape = tensor.movedim(dim, -1).shape
        return self._tensor(products, shape, [tensor]).movedim(-1, dim).to(dtype or tensor.dtype)

    def _masked_fill(self, tensor: Tensor, mask: Tensor, value) -> Tensor:
        """Another number where a mask is true."""
        number = torch.as_tensor(value, dtype=tensor.dtype, device=tensor.device)
        return self._moved(torch.where, "where", (mask, number, tensor), {})

    def _masked_fill_(self, tensor: Tensor, mask: Tensor, value) -> Tensor:
        """The same, in place."""
        return self._stored(Tensor.copy_, (tensor, self._masked_fill(tensor, mask, value)), {})

    def _first(self, function, base: str, args, kwargs) -> Tensor:
        """An argmax or argmin of rows of noise: each place is elected when it is asked for."""
        tensor = args[0]
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        elections = []
        for scores in self._rows(tensor, dim):
            elections.append(Election(self.coins, self._checked(scores, base == "argmin")))
        places = function(torch.zeros(tensor.shape), *args[1:], **kwargs)
        self._put(places, elections)
        self.open_elections = True
        return places

    def _elected(self, function, base: str, args, kwargs):
        """A maximum or the largest k of rows of noise: the first ones are elected one after the other.

        The function itself is then asked for the largest of ranks, whose order is the one that was elected. So what it
        returns has its usual form. Its values are spent: who asks for them is refused.
        """
        tensor = args[0]
        settings = list(args[1:])
        wanted = 1
        dim = None
        if base == "topk":
            if not (kwargs.get("largest", True) and (len(settings) < 3 or settings[2])):
                raise RandomnessError("topk of the smallest of undecided random numbers is not enumerated")
            wanted = kwargs["k"] if "k" in kwargs else settings.pop(0)
            dim = -1
        if settings:
            dim = settings[0]
        dim = kwargs.get("dim", dim)
        ranks = []
        for scores in self._rows(tensor, dim):
            of_row = [0.0] * len(scores)
            for place, winner in enumerate(self._order(scores, wanted, base in SMALLEST_FIRST)):
                of_row[winner] = len(scores) - place
            ranks.append(of_row)
        table = torch.tensor(ranks, dtype=torch.float64)  # (rows, width)
        if dim is None:
            table = table.reshape(tensor.shape)
        else:
            table = table.reshape(tensor.movedim(dim, -1).shape).movedim(-1, dim)
        if base in SMALLEST_FIRST:
            table = -table
        result = function(table, *args[1:], **kwargs)
        for part in _parts(result):
            if part.is_floating_point():
                self._put(part, [Spent()] * part.numel())
        return result

    def _rows(self, tensor: Tensor, dim: int | None) -> list[list]:
        """What stands along a dimension of a tensor, row by row; all of it as one row for None."""
        rows = tensor.reshape(1, -1) if dim is None else tensor.movedim(dim, -1)
        numbers = self._elements(rows)
        width = rows.shape[-1]
        return [numbers[start : start + width] for start in range(0, len(numbers), width)]

    def _order(self, scores: list, wanted: int, smallest: bool) -> list[int]:
        """The places of the first of a row of noisy scores, in their order."""
        scores = self._checked(scores, smallest)
        if wanted == 1:
            return [elect(self.coins, scores)]
        if not all(score.cell.is_fresh for score in scores):
            raise RandomnessError("noise that is raced for several places was used before")
        logs = np.array([score.log_weight for score in scores])
        remaining = torch.from_numpy(np.exp(logs - logs.max()))
        order = []
        for _ in range(min(wanted, int(remaining.count_nonzero()))):
            order.append(self.coins.choose(remaining))
            remaining[order[-1]] = 0
        for score in scores:
            score.cell.low = 0.5  # used up: whoever asks it again is refused
        return order

    def _checked(self, scores: list, smallest: bool) -> list[Noise]:
        """A row of scores, if they are such that their order is enumerated; RandomnessError otherwise."""
        forms = (ARRIVAL, NEGATIVE_GUMBEL) if smallest else LARGEST_WINS
        scores = self._with_losers(scores, math.inf if smallest else -math.inf)
        if not all(isinstance(score, Noise) and score.form in forms for score in scores):
            raise RandomnessError(
                "the largest or smallest of undecided numbers is enumerated for p / e and log p + g (e exponential, "
                "g Gumbel noise), and for the smallest e / p, only"
            )
        return scores

    def _with_losers(self, scores: list, never: float) -> list:
        """Scores in which a plain number that can never be the first, such as a mask's −∞, is noise of weight 0."""
        noisy = [score for score in scores if isinstance(score, Noise)]
        if not noisy:
            return scores
        form = noisy[0].form
        with_losers = []
        for score in scores:
            is_loser = _loses(score, form, never)
            with_losers.append(Noise(Cell(self.coins), -math.inf, form) if is_loser else score)
        return with_losers

    # --- places that an argmax has not elected yet

    def _settle(self, something) -> None:
        """Hold the elections whose winners stand in these tensors, and write the winners down."""
        if not self.open_elections:
            return
        if isinstance(something, list | tuple):
            for one in something:
                self._settle(one)
        if isinstance(something, dict):
            self._settle(list(something.values()))
        if not isinstance(something, Tensor):
            return
        shadow = self._shadow(something)
        if shadow is None:
            return
        for place in shadow[shadow >= 0].unique().tolist():
            if isinstance(self.expressions[place], Election):
                self._write(something, place, self.expressions[place].winner)

    def _write(self, tensor: Tensor, place: int, number: int) -> None:
        """A decided number in place of an expression, wherever it stands in a tensor's storage."""
        shadow, storage = self.shadows[tensor.untyped_storage().data_ptr()]
        numbers = tensor.new_empty(0).set_(storage, 0, (len(shadow),))
        numbers[shadow == place] = number
        shadow[shadow == place] = -1

    # --- shadows

    def _has_symbols(self, something) -> bool:
        if isinstance(something, Tensor):
            shadow = self._shadow(something)
            return shadow is not None and bool((shadow >= 0).any())
        if isinstance(something, Expression):
            return True
        if isinstance(something, dict):
            return any(self._has_symbols(one) for one in something.values())
        if isinstance(something, list | tuple):
            return any(self._has_symbols(one) for one in something)
        return False

    def _is_shadowed(self, tensor: Tensor) -> bool:
        return tensor.layout == torch.strided and tensor.untyped_storage().data_ptr() in self.shadows

    def _shadow(self, tensor: Tensor) -> Tensor | None:
        """The part of a shadow that lies beside a tensor, or None."""
        if not self._is_shadowed(tensor):
            return None
        shadow, _ = self.shadows[tensor.untyped_storage().data_ptr()]
        return shadow.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _own(self, tensor: Tensor) -> Tensor:
        """The same, after making a shadow if there is none."""
        if not self._is_shadowed(tensor):
            storage = tensor.untyped_storage()  # kept, so that its place in memory is not given to another
            numbers = storage.nbytes() // tensor.element_size()
            self.shadows[storage.data_ptr()] = (torch.full((numbers,), -1), storage)
        return self._shadow(tensor)

    def _put(self, tensor: Tensor, values: Sequence) -> None:
        """Write numbers and expressions into a tensor."""
        self._check_may_hold(tensor, values)
        blank = math.nan if tensor.is_floating_point() else NOBODY
        plain = [blank if isinstance(one, Expression) else one for one in values]
        numbers = torch.tensor(plain, dtype=torch.float64)
        places = []
        for value in values:
            is_symbol = isinstance(value, Expression)
            places.append(len(self.expressions) if is_symbol else -1)
            if is_symbol:
                self.expressions.append(value)
        tensor.detach().copy_(numbers.reshape(tensor.shape))
        self._own(tensor).copy_(torch.tensor(places, dtype=torch.int64).reshape(tensor.shape))

    def _check_may_hold(self, tensor: Tensor, expressions: Sequence) -> None:
        """RandomnessError for undecided numbers, but for places, in a tensor of whole numbers: it would round them."""
        if tensor.is_floating_point():
            return
        if any(isinstance(one, Expression) and not isinstance(one, Election) for one in expressions):
            raise RandomnessError(f"an undecided random number is turned into {tensor.dtype}")

    def _expressions_at(self, shadow: Tensor) -> list[Expression]:
        """The expressions that a shadow refers to."""
        return [self.expressions[place] for place in shadow[shadow >= 0].unique().tolist()]

    def _forget(self, tensor: Tensor) -> None:
        if self._is_shadowed(tensor):
            self._own(tensor).fill_(-1)


# functions of random and numpy.random that draw nothing, or are replaced apart
DRAW_NOTHING = {"getstate", "setstate", "get_state", "set_state", "test", "default_rng", "get_bit_generator"}


def _empty(args, kwargs) -> Tensor:
    """An empty tensor as torch.rand would make it."""
    options = {name: value for name, value in kwargs.items() if name in ("dtype", "device")}
    size = kwargs.get("size", args)
    if len(args) == 1 and not isinstance(args[0], int):
        size = args[0]
    return torch.empty(tuple(size), **options)


def _empty_like(tensor: Tensor, kwargs) -> Tensor:
    """An empty tensor as torch.rand_like would make it."""
    options = {name: value for name, value in kwargs.items() if name in ("dtype", "device")}
    return torch.empty_like(tensor, **options)


def _two(args, kwargs, names: Sequence[str], defaults: Sequence[float]) -> list[float]:
    """The settings of a random function that fills a tensor, given by position or by name."""
    values = list(defaults)
    for index, name in enumerate(names):
        if len(args) > 1 + index:
            values[index] = float(args[1 + index])
        if name in kwargs:
            values[index] = float(kwargs[name])
    return values


def _bounds(base: str, args, kwargs) -> tuple[float | None, float | None]:
    """The lower and the upper bound of a clamp."""
    given = list(args[1:])
    low = kwargs.get("min")
    high = kwargs.get("max")
    if base == "clamp_max":
        return low, (given[0] if given else high)
    if given:
        low = given[0]
    if len(given) > 1:
        high = given[1]
    return low, high


def _check_memory(name: str, base: str, kwargs) -> None:
    """RandomnessError for functions that read or write the memory of an undecided number."""
    if kwargs.get("out") is not None:
        raise RandomnessError(f"{name} of an undecided random number with out= is not enumerated")
    if base in MEMORY:
        raise RandomnessError(
            f"{name}: the memory of an undecided random number is asked for, as by a kernel; it holds no number"
        )


def _indices_of(base: str, args, kwargs):
    """The arguments whose places have to be known: all of them, but for what is only moved or stored."""
    if base in ASKS:
        return ()
    if base in CONCATENATIONS:
        return args[1:]
    if base == "where":
        return args[:1]
    if base in MOVES:
        return (args[1:], kwargs)
    if base == "setitem":
        return args[1:2]
    if base in STORES:
        return ()
    return (args, kwargs)


def _loses(score, form: str, never: float) -> bool:
    """Whether a plain number is never the first beside noise of this form. Example: 0 beside p / e, which is larger."""
    if isinstance(score, Expression):
        return False
    return score == never or (form == SCORE and score == 0)


def _bound(name: str, args, kwargs) -> tuple[tuple, dict]:
    """Arguments that were given by name, in their places. Example: lt(u, other=x) is lt(u, x)."""
    base = name.strip("_")
    names = PARAMETERS.get(base, ("input", "other"))
    values = list(args)
    named = dict(kwargs)
    for parameter in names[len(values) :]:
        if parameter not in named:
            break
        values.append(named.pop(parameter))
    return tuple(values), named


def _is_off(name: str, args, kwargs) -> bool:
    """Whether dropout is called, as in evaluation, so that it changes nothing."""
    if "dropout" not in name:
        return False
    probability = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    training = args[2] if len(args) > 2 else kwargs.get("training", True)
    return not training or probability == 0


def _check_range(width: int) -> None:
    """RandomnessError for a random whole number of too many values, such as a seed."""
    if width > LARGEST_RANGE:
        raise RandomnessError(f"a whole random number of {width} values is not enumerated: {LARGEST_RANGE} at most")


def _parts(result) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def _place(edges: Sequence[float], number) -> int:
    """How many of the rising edges lie below a number: an undecided one is asked edge by edge."""
    place = 0
    while place < len(edges) and number > edges[place]:
        place += 1
    return place


# --- numpy and random


class SymbolicGenerator:
    """numpy's Generator, RandomState and legacy functions, as far as they are enumerated; any other raises."""

    def __init__(self, coins: Coins):
        self._coins = coins

    def _shaped(self, size, make: Callable[[], object]):
        if size is None:
            return make()
        count = int(np.prod(size))
        made = np.empty(count, dtype=object)
        for index in range(count):
            made[index] = make()
        return made.reshape(size)

    def random(self, size=None, dtype=None, out=None):
        if out is not None:
            raise RandomnessError("random with out= is not enumerated")
        return self._shaped(size, lambda: Uniform(Cell(self._coins)))

    random_sample = sample = ranf = random

    def rand(self, *shape):
        return self.random(shape or None)

    def uniform(self, low=0.0, high=1.0, size=None):
        return self._shaped(size, lambda: Uniform(Cell(self._coins)) * (high - low) + low)

    def exponential(self, scale=1.0, size=None):
        return self._shaped(size, lambda: Noise(Cell(self._coins), -float(np.log(scale)), ARRIVAL))

    def standard_exponential(self, size=None, **_):
        return self.exponential(1.0, size)

    def gumbel(self, loc=0.0, scale=1.0, size=None):
        if scale != 1.0:
            raise RandomnessError(f"gumbel noise of scale {scale} is not enumerated: only of scale 1")
        return self._shaped(size, lambda: Noise(Cell(self._coins), float(loc), GUMBEL))

    def integers(self, low, high=None, size=None, endpoint=False, **_):
        if high is None:
            low, high = 0, low
        _check_range(high - low + int(endpoint))
        law = torch.ones(high - low + int(endpoint), dtype=torch.float64)
        made = self._shaped(size, lambda: low + self._coins.choose(law))
        return made if size is None else made.astype(np.int64)

    def randint(self, low, high=None, size=None, **_):
        return self.integers(low, high, size)

    def choice(self, a, size=None, replace=True, p=None, **_):
        values = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
        law = np.ones(len(values)) if p is None else np.asarray(p, dtype=float)
        remaining = torch.from_numpy(law.copy())

        def draw():
            place = self._coins.choose(remaining)
            if not replace:
                remaining[place] = 0
            return values[place]

        made = self._shaped(size, draw)
        return made if size is None else made.astype(values.dtype)

    def multinomial(self, n, pvals, size=None):
        if n != 1 or size is not None:
            raise RandomnessError(f"multinomial is enumerated for one draw only, got n = {n}, size = {size}")
        drawn = np.zeros(len(pvals), dtype=np.int64)
        drawn[self._coins.choose(torch.as_tensor(pvals))] = 1
        return drawn

    def binomial(self, n, p, size=None):
        if n != 1:
            raise RandomnessError(f"binomial is enumerated for n = 1 only, got {n}")
        made = self._shaped(size, lambda: int(self._coins.accept(float(p))))
        return made if size is None else made.astype(np.int64)

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        raise RandomnessError(f"numpy's {name} is random and is not enumerated")


class SymbolicRandom:
    """Python's random module, as far as it is enumerated."""

    def __init__(self, coins: Coins):
        self._coins = coins
        self._generator = SymbolicGenerator(coins)

    def random(self):
        return Uniform(Cell(self._coins))

    def uniform(self, a, b):
        return Uniform(Cell(self._coins)) * (b - a) + a

    def randrange(self, start, stop=None, step=1):
        values = range(start) if stop is None else range(start, stop, step)
        return values[self._generator.integers(len(values))]

    def randint(self, a, b):
        return self.randrange(a, b + 1)

    def choice(self, seq):
        return seq[self.randrange(len(seq))]

    def choices(self, population, weights=None, *, cum_weights=None, k=1):
        if cum_weights is not None:
            weights = np.diff([0.0, *map(float, cum_weights)])
        if weights is None:
            weights = [1.0] * len(population)
        law = torch.tensor([float(weight) for weight in weights], dtype=torch.float64)
        return [population[self._coins.choose(law)] for _ in range(k)]


SEEDED = "{} is seeded within the sampler: if so at every call, its numbers repeat. Seed outside, or judge it without"


def _seeding(name: str, result=None) -> Callable:
    """In place of a function that seeds a generator, or makes one: refused with a seed, which makes numbers repeat."""

    def seeded(seed=None, *_, **__):
        if isinstance(seed, SymbolicGenerator):
            return seed
        if seed is not None:
            raise RandomnessError(SEEDED.format(name))
        return result

    return seeded


def _refused_state(name: str) -> Callable:
    """In place of a function that sets the state of a generator, so that numbers repeat."""

    def refused(*_, **__):
        raise RandomnessError(f"{name} sets a random state, so that numbers repeat")

    return refused


def _made_generator(*_, **__):
    """In place of torch.Generator, which begins with the same seed each time it is made."""
    raise RandomnessError(SEEDED.format("a torch.Generator that is made"))


def _searched(original: Callable) -> Callable:
    """searchsorted or bisect, for undecided numbers, too."""

    def searched(edges, number, *args, **kwargs):
        if isinstance(number, Expression):
            return _place([float(edge) for edge in edges], number)
        return original(edges, number, *args, **kwargs)

    return searched


@contextmanager
def _replaced(module: ModuleType, functions: Mapping[str, Callable]) -> Iterator[None]:
    """Other functions in a module for a while."""
    originals = {name: getattr(module, name) for name in functions}
    try:
        for name, function in functions.items():
            setattr(module, name, function)
        yield
    finally:
        for name, function in originals.items():
            setattr(module, name, function)


def _instead(module: ModuleType, symbolic: object) -> dict[str, Callable]:
    """For each random function of a module the one that is enumerated, or one that refuses."""
    functions = {}
    for name in _random_names(module):
        if name in vars(type(symbolic)):
            functions[name] = getattr(symbolic, name)
        else:
            functions[name] = _refusal(f"{module.__name__}.{name}")
    return functions


@cache
def _random_names(module: ModuleType) -> list[str]:
    """The names of a module's functions, but for those that draw nothing."""
    names = []
    for name in dir(module):
        is_function = callable(getattr(module, name)) and not name.startswith("_") and not name[0].isupper()
        if is_function and name not in DRAW_NOTHING:
            names.append(name)
    return names


def _refusal(name: str) -> Callable:
    def refused(*args, **kwargs):
        raise RandomnessError(f"{name} is random and is not enumerated")

    return refused


ONE_AT_A_TIME = threading.RLock()  # the functions of modules are replaced for all threads


@contextmanager
def randomness(coins: Coins) -> Iterator[None]:
    """Inside, random functions of torch, numpy and ``random`` return numbers that only coins decide.

    >>> with exact.randomness(coins):
    ...     accepted = torch.rand(1) < p / q   # tosses a coin of probability min(1, p / q)

    Raises RandomnessError, with the sampler's line, where something random is not enumerated, and where the global
    random states of torch, numpy or ``random`` have changed at the end: something was drawn behind our back.
    """
    generator = SymbolicGenerator(coins)
    before = _states()
    refused_before = len(REFUSALS)
    made_before = Cell.made
    with ExitStack() as stack:
        stack.enter_context(ONE_AT_A_TIME)
        for_python = _instead(python_random, SymbolicRandom(coins))
        for_python["seed"] = _seeding("random")
        for_python["setstate"] = _refused_state("random.setstate")
        stack.enter_context(_replaced(python_random, for_python))
        for_numpy = _instead(np.random, generator)
        for_numpy["seed"] = _seeding("numpy.random")
        for_numpy["default_rng"] = _seeding("numpy's default_rng", generator)
        for_numpy["RandomState"] = _seeding("numpy's RandomState", generator)
        for_numpy["set_state"] = _refused_state("numpy.random.set_state")
        stack.enter_context(_replaced(np.random, for_numpy))
        stack.enter_context(_replaced(np, {"searchsorted": _searched(np.searchsorted)}))
        for_torch = {
            "manual_seed": _seeding("torch"),
            "set_rng_state": _refused_state("torch.set_rng_state"),
            "Generator": _made_generator,
        }
        stack.enter_context(_replaced(torch, for_torch))
        shadowed = Shadowed(coins)
        for compiled in (torch.jit.ScriptFunction, torch.ScriptMethod):
            stack.enter_context(_replaced(compiled, {"__call__": shadowed.only_decided(compiled.__call__)}))
        stack.enter_context(shadowed)
        try:
            yield
        except NotJudged:
            raise
        except Exception as error:  # of the sampler
            asked = raised_at(error)
            nothing_is_undecided = Cell.made == made_before
            if not asked or nothing_is_undecided:  # of a convention, such as what the sampler returned; or its own
                raise
            raise NotJudged(f"the sampler raised {type(error).__name__}: {error}{asked}") from error
    swallowed = REFUSALS[refused_before:]
    del REFUSALS[refused_before:]
    if swallowed:
        raise swallowed[0]
    for name, after in _states().items():
        if after != before[name]:
            raise RandomnessError(
                f"something was drawn from {name}'s global random state in a way that is not enumerated: a function "
                f"imported by name before, or one that is compiled"
            )


def _states() -> dict[str, object]:
    """The global random states of torch, numpy and random, to be compared."""
    numpy_state = np.random.get_state()  # noqa: NPY002 (samplers use it)
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (numpy_state[0], numpy_state[1].tobytes(), *numpy_state[2:]),
        "random": python_random.getstate(),
    }
