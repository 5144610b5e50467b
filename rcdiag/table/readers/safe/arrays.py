"""numpy arrays in a pickle are built from their bytes, after shape and type are checked.

Layout: https://github.com/numpy/numpy/blob/v2.3.5/numpy/_core/src/multiarray/methods.c
(`array_reduce`, `array_setstate`) and `descriptor.c` (`arraydescr_reduce`).
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rcdiag.table.readers.safe.stand_ins import Foreign, Name, Pair, names_of

ELEMENTS = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|[US]\d{1,9}|O8?")


def shape_of(size: Any) -> tuple[int, ...]:
    """Return a shape that consists of whole numbers from 0 on, at most eight of them."""
    shape = tuple(size) if isinstance(size, (list, tuple)) else (size,)
    if len(shape) > 8:
        raise ValueError("a shape that is none")
    for count in shape:
        if type(count) is not int or count < 0:
            raise ValueError("a shape that is none")
    return shape


class ElementType:
    """A numpy type in a pickle: its code, `f4`, and after `__setstate__` its byte order.

    No `numpy.dtype` is handed to the unpickler, as with one a state could change an array at will.
    """

    __slots__ = ("code", "dtype")

    def __init__(self, code: str, align: bool = False, copy: bool = True) -> None:
        self.code = code
        self.dtype: np.dtype[Any] | Foreign | None = None

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        if self.dtype is not None:
            raise ValueError("a type that has its byte order already")
        if not ELEMENTS.fullmatch(self.code) or order not in ("<", ">", "|", "="):
            self.dtype = Foreign(f"numpy.dtype {self.code[:20]}")
        elif self.code[0] == "O":
            self.dtype = np.dtype(object)
        else:
            self.dtype = np.dtype(order + self.code)


class PickledArray(np.ndarray):
    """A numpy array, which a pickle makes empty and gives shape, type and bytes later, once.

    An array of a type that rcdiag does not read is an object array without dimensions that holds a
    `Foreign`.
    """

    filled: bool

    def __setstate__(self, state: Any) -> None:
        if getattr(self, "filled", False):
            raise ValueError("an array that is filled twice")
        self.filled = True
        _, size, element, by_columns, content = state
        shape = shape_of(size)
        items: Any
        if isinstance(content, list):
            if math.prod(shape) != len(content):
                raise ValueError("an array of another length than its items")
            kind, items = np.dtype(object), content
        else:
            made = array(content, element, shape, "F" if by_columns else "C")
            if isinstance(made, Foreign):
                shape, kind, items = (), np.dtype(object), [made]
            else:
                kind = made.dtype
                items = content if kind.kind != "b" and kind.itemsize else made.tobytes("A")
        whole: Any = (1, shape, kind, bool(by_columns), items)
        super().__setstate__(whole)


def array(content: Any, element: Any, size: Any, order: Any = "C") -> NDArray[Any] | Foreign:
    """Return an array that looks at its bytes; a type that rcdiag does not read is kept inert."""
    shape = shape_of(size)
    if not isinstance(element, ElementType):
        raise TypeError("an array of no type")
    kind = element.dtype
    if isinstance(kind, Foreign):
        return kind
    if kind is None or kind.hasobject or order not in ("C", "F"):
        raise TypeError("an array of no plain type")
    count = math.prod(shape)
    if kind.itemsize == 0:  # numpy itself makes texts of at least one character
        if count:
            raise ValueError("an array whose elements take no bytes")
        return np.zeros(shape, kind.kind + "1")
    if not isinstance(content, (bytes, bytearray)) or count * kind.itemsize != len(content):
        raise ValueError("an array of another size than its bytes")
    if kind.kind == "b":  # a byte that is neither 0 nor 1 is no bool of numpy's
        flags: NDArray[np.bool_] = np.frombuffer(content, np.uint8) != 0
        return flags.reshape(shape, order=order)
    return np.frombuffer(content, kind).reshape(shape, order=order)


def _reconstruct(kind: Any, size: Any, code: Any) -> PickledArray:
    return np.ndarray.__new__(PickledArray, 0, np.uint8)


def _scalar(element: Any, content: Any = b"") -> Any:
    kind = element.dtype if isinstance(element, ElementType) else None
    if isinstance(kind, np.dtype) and kind.hasobject:
        return content
    value = array(content, element, ())
    return value if isinstance(value, Foreign) else value.item()


ARRAY_NAMES: dict[Pair, Name] = names_of(
    [(("numpy", "ndarray"), None), (("numpy", "dtype"), ElementType)]
    + [
        ((f"numpy.{core}.{module}", name), call)
        for core in ("core", "_core")
        for module, name, call in (
            ("multiarray", "_reconstruct", _reconstruct),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", array),
        )
    ]
)
