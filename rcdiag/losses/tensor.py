"""A small reverse-mode autograd on numpy arrays, with the methods of torch's tensors.

`replay` on recorded log-probs needs no torch: it may not be installed, and importing it takes
longer than the update of a table. Where libraries differ (the derivative at the bounds of a clamp,
of the larger of two equal numbers, at NaN) this one follows torch, since trainers' gradients do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Number = float | int | bool
Array = NDArray[Any]  # float64, int64 or bool, as the numbers of a torch tensor would be
Back = Callable[[Array], Array]  # d loss / d result -> d loss / d operand

_numbers = itertools.count()


class Tensor:
    """An array that remembers the operands it was computed from, if one of them needs a gradient.

    Operations return new tensors. Only constants can be assigned to.
    """

    __slots__ = ("_data", "_followed", "_number", "_sources")
    __array_ufunc__ = None  # numpy's arrays leave operators with a tensor to it
    __hash__ = None  # type: ignore[assignment]
    _followed: bool

    def __init__(self, data: ArrayLike, *sources: tuple[Tensor, Back], followed: bool = False):
        self._data = np.asarray(data)
        self._sources = tuple(each for each in sources if each[0]._followed)
        self._followed = followed or bool(self._sources)
        self._number = next(_numbers)

    def followed(self) -> Tensor:
        """Return the same numbers as a leaf that `derivative` can differentiate by."""
        return Tensor(self._data, followed=True)

    def detach(self) -> Tensor:
        """Return the same numbers as a constant."""
        return Tensor(self._data)

    @np.errstate(all="ignore")
    def derivative(self, of: Tensor) -> Array:
        """Return d self / d of, with the shape of `of`; self is a scalar, `of` a leaf (`followed`).

        Tensors are visited in the reverse order of their creation, so that the derivative by each
        is complete before it is passed on to its operands.
        """
        waiting = {self._number: (self, np.ones(self.shape))}
        while waiting:
            result, pull = waiting.pop(max(waiting))
            if result is of:
                return pull
            for source, back in result._sources:
                part = _shaped(back(pull), source.shape)
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
        """Return the array; ValueError where it needs a gradient, as in torch."""
        if self._followed:
            raise ValueError("numbers that a derivative is taken of; detach() gives them")
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

        def back(pull: Array) -> Array:
            out = np.zeros(self.shape)
            np.add.at(out, at, pull)
            return out

        return Tensor(self._data[at], (self, back))

    def __setitem__(self, at: Any, values: Any) -> None:
        if self._followed:
            raise ValueError("numbers that a derivative is taken of are not written to")
        self._data[_data(at)] = _data(values)

    # New tensors, copies, other dtypes.

    def new_full(self, shape: int | tuple[int, ...], value: Number) -> Tensor:
        return Tensor(np.full(shape, value, self._data.dtype))

    def new_zeros(self, shape: int | tuple[int, ...]) -> Tensor:
        return self.new_full(shape, 0)

    def new_ones(self, shape: int | tuple[int, ...]) -> Tensor:
        return self.new_full(shape, 1)

    def clone(self) -> Tensor:
        return Tensor(self._data.copy(), (self, _as_it_is))

    def double(self) -> Tensor:
        return Tensor(self._data.astype(np.float64, copy=False), (self, _as_it_is))

    def long(self) -> Tensor:
        return Tensor(self._data.astype(np.int64))

    # Operators.

    def __add__(self, other: Tensor | Number) -> Tensor:
        return self._with(other, np.add, _as_it_is, _as_it_is)

    def __sub__(self, other: Tensor | Number) -> Tensor:
        return self._with(other, np.subtract, _as_it_is, np.negative)

    def __rsub__(self, other: Number) -> Tensor:
        return Tensor(other) - self

    def __mul__(self, other: Tensor | Number) -> Tensor:
        mine, theirs = self._data, _data(other)
        return self._with(other, np.multiply, lambda pull: pull * theirs, lambda pull: pull * mine)

    def __truediv__(self, other: Tensor | Number) -> Tensor:
        mine, theirs = self._data, _data(other)
        return self._with(
            other,
            np.divide,
            lambda pull: pull / theirs,
            lambda pull: -pull * (mine / theirs) / theirs,
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
        return self._of(np.exp, lambda pull, made: pull * made)

    def expm1(self) -> Tensor:
        return self._of(np.expm1, lambda pull, made: pull * (made + 1.0))

    def log(self) -> Tensor:
        return self._of(np.log, lambda pull, _: pull / self._data)

    def abs(self) -> Tensor:
        return self._of(np.abs, lambda pull, _: pull * _sign(self._data))

    def sign(self) -> Tensor:
        return Tensor(_sign(self._data))

    def square(self) -> Tensor:
        return self._of(np.square, lambda pull, _: pull * 2.0 * self._data)

    def sqrt(self) -> Tensor:
        return self._of(np.sqrt, lambda pull, made: pull / (2.0 * made))

    def sigmoid(self) -> Tensor:
        return self._of(
            lambda data: 1.0 / (1.0 + np.exp(-data)), lambda pull, made: pull * (1.0 - made) * made
        )

    def isnan(self) -> Tensor:
        return Tensor(np.isnan(self._data))

    def isfinite(self) -> Tensor:
        return Tensor(np.isfinite(self._data))

    def nan_to_num(
        self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
    ) -> Tensor:
        """Replace NaN and infinities, where the derivative is 0."""
        return self._of(
            lambda data: np.nan_to_num(data, nan=nan, posinf=posinf, neginf=neginf),
            lambda pull, _: pull * np.isfinite(self._data),
        )

    def clamp(self, min: Number | None = None, max: Number | None = None) -> Tensor:
        """Clip to the bounds; outside of them the derivative is 0, at a bound it is 1."""

        def back(pull: Array, _: Array) -> Array:
            inside = np.ones(self.shape, np.bool_)
            if min is not None:
                inside &= self._data >= min
            if max is not None:
                inside &= self._data <= max
            return np.where(inside, pull, 0.0)

        return self._of(lambda data: np.clip(data, min, max), back)

    # Elementwise functions of two tensors.

    def maximum(self, other: Tensor) -> Tensor:
        """Return the elementwise maximum; where both are equal each gets half of the derivative."""
        return self._larger(other, np.maximum, 1.0)

    def minimum(self, other: Tensor) -> Tensor:
        """Return the elementwise minimum; where both are equal each gets half of the derivative."""
        return self._larger(other, np.minimum, -1.0)

    def where(self, condition: Tensor, other: Tensor | Number) -> Tensor:
        """Return self where the condition holds, `other` elsewhere."""
        holds = condition._data
        return self._with(
            other,
            lambda mine, theirs: np.where(holds, mine, theirs),
            lambda pull: np.where(holds, pull, 0.0),
            lambda pull: np.where(holds, 0.0, pull),
        )

    # Reductions, gathers and scatters.

    def sum(self) -> Tensor:
        return self._of(np.sum, lambda pull, _: np.broadcast_to(pull, self.shape))

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
        return self._of(
            lambda data: data.cumsum(dim),
            lambda pull, _: np.flip(np.flip(pull, dim).cumsum(dim), dim),
        )

    def repeat_interleave(self, counts: Tensor) -> Tensor:
        """Repeat element i counts[i] times: [rows] -> [sum of counts]."""
        at = np.repeat(np.arange(len(self)), counts._data)
        return self[at]

    def index_add(self, dim: int, at: Tensor, values: Tensor) -> Tensor:
        """Return a copy with values[i] added at at[i] of the first dimension, in order of i."""
        if dim != 0:
            raise ValueError(f"index_add: dim is {dim}, not 0")
        out = self._data.copy()
        with np.errstate(all="ignore"):
            np.add.at(out, at._data, values._data)
        return Tensor(out, (self, _as_it_is), (values, lambda pull: pull[at._data]))

    def scatter_reduce(self, dim: int, at: Tensor, values: Tensor, reduce: str) -> Tensor:
        """Return the maximum of each element and the values scattered to it; constants only."""
        if dim != 0 or reduce != "amax":
            raise ValueError(f"scatter_reduce: dim {dim} and {reduce}, not 0 and amax")
        out = self.numpy().copy()
        np.maximum.at(out, at._data, values.numpy())
        return Tensor(out)

    def topk(self, count: int) -> Largest:
        """Return the largest values and their indices, in descending order; ties in index order."""
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
            raise TypeError(f"torch.{name}: losses are computed by numpy, which has no such method")
        result: Tensor = method(*others, **(options or {}))
        return result

    # Helpers: a result with the backward function of each operand.

    def _of(
        self, function: Callable[[Array], Array], back: Callable[[Array, Array], Array]
    ) -> Tensor:
        with np.errstate(all="ignore"):
            made = function(self._data)
        return Tensor(made, (self, lambda pull: back(pull, made)))

    def _with(
        self,
        other: Tensor | Number,
        function: Callable[[Any, Any], Array],
        mine: Back,
        theirs: Back,
    ) -> Tensor:
        with np.errstate(all="ignore"):
            made = function(self._data, _data(other))
        return Tensor(made, (self, mine), *([(other, theirs)] if isinstance(other, Tensor) else []))

    def _larger(self, other: Tensor, function: Callable[..., Array], sign: float) -> Tensor:
        one, two = sign * self._data, sign * other._data
        share = np.where(one == two, 0.5, 1.0)
        return self._with(
            other,
            function,
            lambda pull: np.where(one < two, 0.0, pull * share),
            lambda pull: np.where(two < one, 0.0, pull * share),
        )

    def _extreme(self, number: Array) -> Tensor:
        reached = self._data == number
        return Tensor(number, (self, lambda pull: pull * reached / reached.sum()))


class Largest(NamedTuple):
    """The largest values of a tensor and their indices."""

    values: Tensor
    indices: Tensor


def _data(value: Any) -> Any:
    return value._data if isinstance(value, Tensor) else value


def _as_it_is(pull: Array) -> Array:
    return pull


def _sign(data: Array) -> Array:
    """Return 1, 0 or -1 for each number; 0 for NaN, as torch does."""
    return (data > 0) * 1.0 - (data < 0)


def _shaped(pull: Array, shape: tuple[int, ...]) -> Array:
    """Undo broadcasting: sum a derivative over the axes along which an operand was broadcast."""
    if pull.shape == shape:
        return pull
    extra = pull.ndim - len(shape)
    summed = pull.sum(axis=tuple(range(extra)))
    spread = tuple(at for at, size in enumerate(shape) if size == 1 and summed.shape[at] != 1)
    shaped: Array = summed.sum(axis=spread, keepdims=True)
    return shaped
