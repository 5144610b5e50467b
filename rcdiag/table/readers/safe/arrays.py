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

from rcdiag.table.readers.safe.inert import Foreign, Name, Pair, Unfinished, names_of

ELEMENTS = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|[US]\d{1,9}|O8?")
# Rows of an array whose elements take no bytes, such as empty texts, have nothing to check.
MOST_EMPTY_ELEMENTS = 1 << 24


def shape_of(size: Any) -> tuple[int, ...]:
    """Return a shape that consists of whole numbers from 0 on, at most eight of them."""
    shape = tuple(size) if isinstance(size, (list, tuple)) else (size,)
    if len(shape) > 8:
        raise ValueError("a shape that is none")
    for count in shape:
        if type(count) is not int or count < 0:
            raise ValueError("a shape that is none")
    return shape


class ElementType(Unfinished):
    """A numpy type before its byte order is known."""

    def __init__(self, code: str, align: bool = False, copy: bool = True) -> None:
        super().__init__()
        self.code = code

    def finish(self, state: Any) -> np.dtype[Any] | Foreign:
        order = state[1]
        if not ELEMENTS.fullmatch(self.code) or order not in "<>|=":
            return Foreign(f"numpy.dtype {self.code[:20]}")
        return np.dtype(self.code) if self.code[0] == "O" else np.dtype(order + self.code)


class UnfinishedArray(Unfinished):
    """A numpy array before its shape, type and bytes are known."""

    def finish(self, state: Any) -> NDArray[Any] | Foreign:
        _, size, element, by_columns, content = state
        if isinstance(content, list):
            return object_array(size, content)
        return array(content, element, size, "F" if by_columns else "C")


def object_array(size: Any, items: list[Any]) -> NDArray[Any]:
    shape = shape_of(size)
    if math.prod(shape) != len(items):
        raise ValueError("an array of another length than its items")
    values = np.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        values[index] = item
    return values.reshape(shape)


def array(content: Any, element: Any, size: Any, order: Any = "C") -> NDArray[Any] | Foreign:
    """Return an array that looks at its bytes; a type that rcdiag does not read is kept inert."""
    shape = shape_of(size)
    if isinstance(element, Foreign):
        return element
    if not isinstance(element, np.dtype) or element.hasobject or order not in ("C", "F"):
        raise TypeError("an array of no plain type")
    count = math.prod(shape)
    if element.itemsize == 0:
        if count > MOST_EMPTY_ELEMENTS:
            raise ValueError("an array of more elements than bytes")
        return np.zeros(shape, element.kind + "1")
    if count * element.itemsize != memoryview(content).nbytes:
        raise ValueError("an array of another size than its bytes")
    if element.kind == "b":  # a byte that is neither 0 nor 1 is no bool of numpy's
        return (np.frombuffer(content, np.uint8) != 0).reshape(shape, order=order)
    return np.frombuffer(content, element).reshape(shape, order=order)


def _reconstruct(kind: Any, size: Any, code: Any) -> UnfinishedArray:
    return UnfinishedArray()


def _scalar(element: Any, content: Any = b"") -> Any:
    if isinstance(element, np.dtype) and element.hasobject:
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
