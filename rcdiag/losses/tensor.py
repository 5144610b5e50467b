"""A small reverse-mode autograd on numpy arrays, with the methods of torch's tensors.

`replay` on recorded log-probs needs no torch, which may not be installed and takes longer to import
than the update of a table. Where libraries differ (the derivative at the bounds of a clamp, at a
tie of a maximum, at NaN) this one follows torch, since trainers' gradients do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Number = float | int | bool
Array = NDArray[Any]  # float64, int64 or bool, as the numbers of a torch tensor would be
Backward = Callable[[Array], Array]  # d loss / d result -> d loss / d operand

_numbers = itertools.count()


class Tensor:
    """An array that keeps the operands it was computed from if one of them needs a gradient.

    Operations return new tensors. Only tensors without gradient can be assigned to.
    """

    __slots__ = ("_data", "_needs_grad", "_number", "_sources")
    __array_ufunc__ = None  # lets this class handle operators between numpy arrays and tensors
    __hash__ = None  # type: ignore[assignment]
    _needs_grad: bool

    def __init__(
        self, data: ArrayLike, *sources: tuple[Tensor, Backward], needs_grad: bool = False
    ):
        self._data = np.asarray(data)
        self._sources = tuple(each for each in sources if each[0]._needs_grad)
        self._needs_grad = needs_grad or bool(self._sources)
        self._number = next(_numbers)

    def leaf(self) -> Tensor:
        """Return the same values as a leaf that `derivative` can differentiate with respect to."""
        return Tensor(self._data, needs_grad=True)

    def detach(self) -> Tensor:
        """Return the same values as a constant."""
        return Tensor(self._data)

    @np.errstate(all="ignore")
    def derivative(self, of: Tensor) -> Array:
        """Return d self / d of, with the shape of `of`; self is a scalar, `of` a `leaf`.

        Tensors are visited in the reverse order of their creation, so that the derivative with
        respect to each is complete before it is passed on to its operands.
        """
        waiting = {self._number: (self, np.ones(self.shape))}
        while waiting:
            result, grad = waiting.pop(max(waiting))
            if result is of:
                return grad
            for source, backward in result._sources:
                part = _sum_to_shape(backward(grad), source.shape)
                if source._number in waiting:
                    part = part + waiting[source._number][1]
                waiting[source._number] = source, part
        return np.zeros(of.shape)

    # Shape and values.

    @property
    def shape(self) -> tuple[int, ...]:
        return self._data.shape

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"Tensor({self._data!r})"

    def numpy(self) -> Array:
        """Return the array; ValueError if the tensor needs a gradient, as in torch."""
        if self._needs_grad:
            raise ValueError("the tensor needs a gradient; use detach() first")
        return self._data

    def tolist(self) -> list[Any]:
        numbers: list[Any] = self._data.tolist()
        return numbers

    def item(self) -> Any:
        return self._data.item()

    def __bool__(self) -> bool:
        return bool(self._data)

    def __int__(self) -> int:
        return int(self._data)

    def __float__(self) -> float:
        return float(self._data)

    def __getitem__(self, at: Any) -> Tensor:
        at = _data(at)

        def backward(grad: Array) -> Array:
            out = np.zeros(self.shape)
            np.add.at(out, at, grad)
            return out

        return Tensor(self._data[at], (self, backward))

    def __setitem__(self, at: Any, values: Any) -> None:
        if self._needs_grad:
            raise ValueError("a tensor that needs a gradient cannot be assigned to")
        self._data[_data(at)] = _data(values)

    # New tensors, copies, other dtypes.

    def new_full(self, shape: int | tuple[int, ...], value: Number) -> Tensor:
        return Tensor(np.full(shape, value, self._data.dtype))

    def new_zeros(self, shape: int | tuple[int, ...]) -> Tensor:
        return self.new_full(shape, 0)

    def new_ones(self, shape: int | tuple[int, ...]) -> Tensor:
        return self.new_full(shape, 1)

    def clone(self) -> Tensor:
        return Tensor(self._data.copy(), (self, _identity))

    def double(self) -> Tensor:
        return Tensor(self._data.astype(np.float64, copy=False), (self, _identity))

    def long(self) -> Tensor:
        return Tensor(self._data.astype(np.int64))

    # Operators.

    def __add__(self, other: Tensor | Number) -> Tensor:
        return self._binary(other, np.add, _identity, _identity)

    def __sub__(self, other: Tensor | Number) -> Tensor:
        return self._binary(other, np.subtract, _identity, np.negative)

    def __rsub__(self, other: Number) -> Tensor:
        return Tensor(other) - self

    def __mul__(self, other: Tensor | Number) -> Tensor:
        mine, theirs = self._data, _data(other)
        return self._binary(
            other, np.multiply, lambda grad: grad * theirs, lambda grad: grad * mine
        )

    def __truediv__(self, other: Tensor | Number) -> Tensor:
        mine, theirs = self._data, _data(other)
        return self._binary(
            other,
            np.divide,
            lambda grad: grad / theirs,
            lambda grad: -grad * (mine / theirs) / theirs,
        )

    def __rtruediv__(self, other: Number) -> Tensor:
        return Tensor(other) / self

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Tensor:
        return Tensor(-self._data, (self, np.negative))

    def __invert__(self) -> Tensor:
        return Tensor(~self._data)

    def __and__(self, other: Tensor) -> Tensor:
        return Tensor(self._data & _data(other))

    def __or__(self, other: Tensor) -> Tensor:
        return Tensor(self._data | _data(other))

    def __lt__(self, other: Tensor | Number) -> Tensor:
        return Tensor(self._data < _data(other))

    def __le__(self, other: Tensor | Number) -> Tensor:
        return Tensor(self._data <= _data(other))

    def __gt__(self, other: Tensor | Number) -> Tensor:
        return Tensor(self._data > _data(other))

    def __ge__(self, other: Tensor | Number) -> Tensor:
        return Tensor(self._data >= _data(other))

    def __eq__(self, other: Tensor | Number) -> Tensor:  # type: ignore[override]
        return Tensor(self._data == _data(other))

    def __ne__(self, other: Tensor | Number) -> Tensor:  # type: ignore[override]
        return Tensor(self._data != _data(other))

    # Elementwise functions.

    def exp(self) -> Tensor:
        return self._unary(np.exp, lambda grad, made: grad * made)

    def expm1(self) -> Tensor:
        return self._unary(np.expm1, lambda grad, made: grad * (made + 1.0))

    def log(self) -> Tensor:
        return self._unary(np.log, lambda grad, _: grad / self._data)

    def abs(self) -> Tensor:
        return self._unary(np.abs, lambda grad, _: grad * _sign(self._data))

    def sign(self) -> Tensor:
        return Tensor(_sign(self._data))

    def square(self) -> Tensor:
        return self._unary(np.square, lambda grad, _: grad * 2.0 * self._data)

    def sqrt(self) -> Tensor:
        return self._unary(np.sqrt, lambda grad, made: grad / (2.0 * made))

    def sigmoid(self) -> Tensor:
        return self._unary(
            lambda data: 1.0 / (1.0 + np.exp(-data)), lambda grad, made: grad * (1.0 - made) * made
        )

    def isnan(self) -> Tensor:
        return Tensor(np.isnan(self._data))

    def isfinite(self) -> Tensor:
        return Tensor(np.isfinite(self._data))

    def nan_to_num(
        self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
    ) -> Tensor:
        """Replace NaN and infinities; their derivative is 0."""
        return self._unary(
            lambda data: np.nan_to_num(data, nan=nan, posinf=posinf, neginf=neginf),
            lambda grad, _: grad * np.isfinite(self._data),
        )

    def clamp(self, min: Number | None = None, max: Number | None = None) -> Tensor:
        """Clip to the bounds; the derivative is 0 outside of them and 1 at a bound."""

        def backward(grad: Array, _: Array) -> Array:
            inside = np.ones(self.shape, np.bool_)
            if min is not None:
                inside &= self._data >= min
            if max is not None:
                inside &= self._data <= max
            return np.where(inside, grad, 0.0)

        return self._unary(lambda data: np.clip(data, min, max), backward)

    # Elementwise functions of two tensors.

    def maximum(self, other: Tensor) -> Tensor:
        """Return the elementwise maximum; at a tie each operand gets half of the derivative."""
        return self._larger_of_both(other, np.maximum, 1.0)

    def minimum(self, other: Tensor) -> Tensor:
        """Return the elementwise minimum; at a tie each operand gets half of the derivative."""
        return self._larger_of_both(other, np.minimum, -1.0)

    def where(self, condition: Tensor, other: Tensor | Number) -> Tensor:
        """Return self where the condition holds, `other` elsewhere."""
        holds = condition._data
        return self._binary(
            other,
            lambda mine, theirs: np.where(holds, mine, theirs),
            lambda grad: np.where(holds, grad, 0.0),
            lambda grad: np.where(holds, 0.0, grad),
        )

    # Reductions, gathers and scatters.

    def sum(self) -> Tensor:
        return self._unary(np.sum, lambda grad, _: np.broadcast_to(grad, self.shape))

    def mean(self) -> Tensor:
        return self.sum() / self._data.size

    def min(self) -> Tensor:
        return self.amin()

    def max(self) -> Tensor:
        return self.amax()

    def amin(self) -> Tensor:
        return self._extreme(self._data.min())

    def amax(self) -> Tensor:
        return self._extreme(self._data.max())

    def any(self) -> Tensor:
        return Tensor(self._data.any())

    def all(self) -> Tensor:
        return Tensor(self._data.all())

    def unique(self) -> Tensor:
        return Tensor(np.unique(self._data))

    def cumsum(self, dim: int) -> Tensor:
        return self._unary(
            lambda data: data.cumsum(dim),
            lambda grad, _: np.flip(np.flip(grad, dim).cumsum(dim), dim),
        )

    def repeat_interleave(self, counts: Tensor) -> Tensor:
        """Repeat element i counts[i] times: [rows] -> [sum of counts]."""
        at = np.repeat(np.arange(len(self)), counts._data)
        return self[at]

    def index_add(self, dim: int, at: Tensor, values: Tensor) -> Tensor:
        """Return a copy with values[i] added at index at[i] of the first dimension."""
        if dim != 0:
            raise ValueError(f"index_add: dim is {dim}, not 0")
        out = self._data.copy()
        with np.errstate(all="ignore"):
            np.add.at(out, at._data, values._data)
        return Tensor(out, (self, _identity), (values, lambda grad: grad[at._data]))

    def scatter_reduce(self, dim: int, at: Tensor, values: Tensor, reduce: str) -> Tensor:
        """Return the elementwise maximum with the values scattered to `at`; constants only."""
        if dim != 0 or reduce != "amax":
            raise ValueError(f"scatter_reduce: dim {dim} and {reduce}, not 0 and amax")
        out = self.numpy().copy()
        np.maximum.at(out, at._data, values.numpy())
        return Tensor(out)

    def topk(self, count: int) -> Largest:
        """Return the `count` largest values and their indices, in descending order."""
        places = np.argsort(-self._data, kind="stable")[:count]
        return Largest(self[places], Tensor(places))

    # `torch.f(tensor)`.

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        _: Any,
        given: tuple[Any, ...] = (),
        options: dict[str, Any] | None = None,
    ) -> Tensor:
        """Let torch's functions accept this class: `torch.exp(ratio)` is `ratio.exp()`."""
        name, first, *others = function.__name__, *given
        if name == "where":
            condition, first, others = first, others[0], others[1:]
            others = [condition, *others]
        if name in ("min", "max") and others:
            name = f"{name}imum"
        if name in ("zeros_like", "ones_like"):
            name, others = f"new_{name.removesuffix('_like')}", [first.shape]
        method = getattr(first if isinstance(first, cls) else cls(first), name, None)
        if method is None or name.startswith("_"):
            raise TypeError(f"torch.{name}: losses use numpy tensors, which have no such method")
        result: Tensor = method(*others, **(options or {}))
        return result

    # Helpers: a result with the backward function of each operand.

    def _unary(
        self, function: Callable[[Array], Array], backward: Callable[[Array, Array], Array]
    ) -> Tensor:
        """Return function(self); `backward` takes the gradient and the function's result."""
        with np.errstate(all="ignore"):
            made = function(self._data)
        return Tensor(made, (self, lambda grad: backward(grad, made)))

    def _binary(
        self,
        other: Tensor | Number,
        function: Callable[[Any, Any], Array],
        mine: Backward,
        theirs: Backward,
    ) -> Tensor:
        """Return function(self, other); `mine`, `theirs`: backward functions of the operands."""
        with np.errstate(all="ignore"):
            made = function(self._data, _data(other))
        return Tensor(made, (self, mine), *([(other, theirs)] if isinstance(other, Tensor) else []))

    def _larger_of_both(self, other: Tensor, function: Callable[..., Array], sign: float) -> Tensor:
        """Return the maximum, or with sign -1 the minimum; ties share the gradient."""
        one, two = sign * self._data, sign * other._data
        share = np.where(one == two, 0.5, 1.0)
        return self._binary(
            other,
            function,
            lambda grad: np.where(one < two, 0.0, grad * share),
            lambda grad: np.where(two < one, 0.0, grad * share),
        )

    def _extreme(self, number: Array) -> Tensor:
        reached = self._data == number
        return Tensor(number, (self, lambda grad: grad * reached / reached.sum()))


class Largest(NamedTuple):
    """The largest values of a tensor and their indices."""

    values: Tensor
    indices: Tensor


def _data(value: Any) -> Any:
    return value._data if isinstance(value, Tensor) else value


def _identity(grad: Array) -> Array:
    return grad


def _sign(data: Array) -> Array:
    """Return the sign, 1, 0 or -1, of each value; 0 for NaN, as in torch."""
    return (data > 0) * 1.0 - (data < 0)


def _sum_to_shape(grad: Array, shape: tuple[int, ...]) -> Array:
    """Undo broadcasting: sum a derivative over the axes along which an operand was broadcast."""
    if grad.shape == shape:
        return grad
    extra = grad.ndim - len(shape)
    summed = grad.sum(axis=tuple(range(extra)))
    spread = tuple(at for at, size in enumerate(shape) if size == 1 and summed.shape[at] != 1)
    shaped: Array = summed.sum(axis=spread, keepdims=True)
    return shaped
