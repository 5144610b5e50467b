"""Arrays and tensors in a pickle: views of the file's bytes, after type, shape and index checks.

numpy arrays: https://github.com/numpy/numpy/blob/v2.3.5/numpy/_core/src/multiarray/methods.c
(`array_reduce`, `array_setstate`) and `descriptor.c` (`arraydescr_reduce`).

The functions that a torch file names, and their arguments:
https://github.com/pytorch/pytorch/blob/v2.8.0/torch/_utils.py, and for jagged tensors
https://github.com/pytorch/pytorch/blob/v2.8.0/torch/nested/_internal/nested_tensor.py
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from rcdiag.table.readers.safe.stand_ins import Foreign, Name, Pair, foreign, names_of, refuse_state

ELEMENTS = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|[US]\d{1,9}|O8?")


def shape_of(size: Any) -> tuple[int, ...]:
    """Return a shape as a tuple of integers >= 0; ValueError if it has more than 8 dimensions."""
    shape = tuple(size) if isinstance(size, (list, tuple)) else (size,)
    if len(shape) > 8:
        raise ValueError("a shape of more than 8 dimensions")
    for count in shape:
        if type(count) is not int or count < 0:
            raise ValueError("a shape with a size that is not an integer >= 0")
    return shape


class ElementType:
    """A numpy type in a pickle: its code, such as `f4`; `__setstate__` adds the byte order.

    The unpickler never gets a real `numpy.dtype`, whose state could change an array arbitrarily.
    """

    __slots__ = ("code", "dtype")

    def __init__(self, code: str, align: bool = False, copy: bool = True) -> None:
        self.code = code
        self.dtype: np.dtype[Any] | Foreign | None = None

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        if self.dtype is not None:
            raise ValueError("a type whose byte order is set twice")
        if not ELEMENTS.fullmatch(self.code) or order not in ("<", ">", "|", "="):
            self.dtype = Foreign(f"numpy.dtype {self.code[:20]}")
        elif self.code[0] == "O":
            self.dtype = np.dtype(object)
        else:
            self.dtype = np.dtype(order + self.code)


class PickledArray(np.ndarray):
    """A numpy array that a pickle creates empty; its shape, type and bytes are set once, later.

    If rcdiag does not support the type, the array becomes a 0-dimensional object array that holds
    a `Foreign`.
    """

    filled: bool

    def __setstate__(self, state: Any) -> None:
        if getattr(self, "filled", False):
            raise ValueError("an array whose content is set twice")
        self.filled = True
        _, size, element, by_columns, content = state
        shape = shape_of(size)
        items: Any
        if isinstance(content, list):
            if math.prod(shape) != len(content):
                raise ValueError("an array whose shape does not match its number of items")
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
    """Return an array as a view of its bytes; a `Foreign` if rcdiag does not support the type."""
    shape = shape_of(size)
    if not isinstance(element, ElementType):
        raise TypeError("an array without a type")
    kind = element.dtype
    if isinstance(kind, Foreign):
        return kind
    if kind is None or kind.hasobject or order not in ("C", "F"):
        raise TypeError("an array whose type or order is not plain")
    count = math.prod(shape)
    if kind.itemsize == 0:  # numpy itself gives text types at least one character
        if count:
            raise ValueError("an array whose elements have a size of 0 bytes")
        return np.zeros(shape, kind.kind + "1")
    if not isinstance(content, (bytes, bytearray)) or count * kind.itemsize != len(content):
        raise ValueError("an array whose shape does not match its number of bytes")
    if kind.kind == "b":  # a byte other than 0 and 1 is not a valid numpy bool
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


# torch's names of element types, and the numpy types as which their bytes are viewed.
KINDS = {
    "float64": "f8",
    "float32": "f4",
    "float16": "f2",
    "bfloat16": "u2",
    "int64": "i8",
    "int32": "i4",
    "int16": "i2",
    "int8": "i1",
    "uint64": "u8",
    "uint32": "u4",
    "uint16": "u2",
    "uint8": "u1",
    "bool": "u1",
    "float8_e4m3fn": "u1",
    "float8_e5m2": "u1",
    "float8_e4m3fnuz": "u1",
    "float8_e5m2fnuz": "u1",
}
_LAYOUTS = {(order, kind): np.dtype(order + KINDS[kind]) for order in "<>" for kind in KINDS}
STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
UNTYPED = "UntypedStorage"
# A tensor with stride 0 may have more elements than its storage, up to this number.
MOST_REPEATED_ELEMENTS = 1 << 26


class Storage(Struct, frozen=True, eq=False):
    """The bytes of a torch storage, and their byte order."""

    kind: str
    view: memoryview
    order: str  # "<" or ">"

    __setstate__ = refuse_state


class StoredTensor(Struct, frozen=True, eq=False):
    """A tensor as it is stored in the file; `numpy` converts it, or some of its rows."""

    stored: NDArray[Any]
    kind: str

    __setstate__ = refuse_state

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index: Any) -> StoredTensor:
        return StoredTensor(self.stored[index], self.kind)

    def numpy(self) -> NDArray[Any]:
        """Return an array in this machine's byte order; bfloat16 is widened to float32 exactly."""
        if self.kind.startswith("float8"):
            raise ValueError(f"a tensor of {self.kind}, which rcdiag does not read")
        if self.kind == "bool":
            flags: NDArray[np.bool_] = self.stored != 0
            return flags
        if self.kind == "bfloat16":
            bits: NDArray[np.uint32] = np.left_shift(self.stored, 16, dtype=np.uint32)
            return bits.view(np.float32)
        return self.stored.astype(self.stored.dtype.newbyteorder("="), copy=False)


class Jagged(Struct, frozen=True, eq=False):
    """Rows of different lengths in one tensor: row i is `values[starts[i]:starts[i] + lengths[i]]`.

    The further dimensions of `values` are the same for all rows.
    """

    values: StoredTensor
    starts: NDArray[np.int64]  # [rows]
    lengths: NDArray[np.int64]  # [rows]

    __setstate__ = refuse_state

    def __post_init__(self) -> None:
        ends = self.starts + self.lengths
        if self.starts.shape != self.lengths.shape or self.starts.ndim != 1:
            raise ValueError("a jagged tensor without one start and one length per row")
        if len(ends) and (
            self.starts.min() < 0 or self.lengths.min() < 0 or ends.max() > len(self.values)
        ):
            raise ValueError("a jagged tensor with a row outside of its values")
        if self.lengths.sum() > len(self.values):
            raise ValueError("a jagged tensor whose rows overlap")

    def __len__(self) -> int:
        return len(self.lengths)

    def row(self, index: int) -> StoredTensor:
        start = int(self.starts[index])
        return self.values[start : start + int(self.lengths[index])]

    def numpy(self, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
        """Return the concatenated values of some rows."""
        starts, lengths = self.starts[rows], self.lengths[rows]
        if not len(starts):
            return self.values[:0].numpy()
        if np.array_equal(starts[1:], (starts + lengths)[:-1]):
            return self.values[int(starts[0]) : int(starts[-1] + lengths[-1])].numpy()
        return np.concatenate([self.row(i).numpy() for i in np.arange(len(self))[rows]])


def view_bytes(view: memoryview, kind: str, order: str = "<") -> NDArray[Any]:
    """Return bytes as an array of elements, [elements]."""
    layout = _LAYOUTS.get((order, kind))
    if layout is None:
        raise ValueError(f"elements of an unknown kind {kind[:40]!r}")
    return np.frombuffer(view, layout)


def tensor_of_bytes(content: Any, kind: str, size: Any) -> StoredTensor:
    """Return a contiguous tensor whose elements are exactly these bytes."""
    flat, shape = view_bytes(memoryview(content).cast("B"), kind), shape_of(size)
    if math.prod(shape) != len(flat):
        raise ValueError("a tensor whose shape does not match its number of bytes")
    return StoredTensor(flat.reshape(shape), kind)


def storage_tensor(
    storage: Any, offset: Any, size: Any, stride: Any, *rest: Any, kind: str | None = None
) -> StoredTensor | Foreign:
    """Return a tensor as a view of a storage; `offset`, `size` and `stride` count elements.

    If the storage is a separate file, as in a plain pickle, the tensor is kept as a `Foreign`.
    """
    if isinstance(storage, Foreign):
        return storage
    if not isinstance(storage, Storage):
        raise TypeError("a tensor without a storage")
    kind = kind or storage.kind
    flat = view_bytes(storage.view, kind, storage.order)
    shape, steps = shape_of(size), shape_of(stride)
    if len(shape) != len(steps) or type(offset) is not int or offset < 0:
        raise ValueError("a tensor with an invalid shape, stride or offset")
    if steps == (1,) and offset + shape[0] <= len(flat):  # one dimension without gaps
        return StoredTensor(flat[offset : offset + shape[0]], kind)
    count = math.prod(shape)
    if count == 0:
        return StoredTensor(np.empty(shape, flat.dtype), kind)
    last = offset + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    if last >= len(flat):
        raise ValueError("a tensor that is larger than its storage")
    if count > max(len(flat), MOST_REPEATED_ELEMENTS):
        raise ValueError("a tensor that repeats its elements too often")
    strides = tuple(step * flat.itemsize for step in steps)
    return StoredTensor(as_strided(flat[offset:], shape, strides, writeable=False), kind)


def typed_storage_tensor(
    storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, kind: Any, *rest: Any
) -> StoredTensor | Foreign:
    """Return a tensor of element type `kind` as a view of an untyped storage."""
    name = kind.name.removeprefix("torch.") if isinstance(kind, Name) else None
    if name not in KINDS:
        raise TypeError("a tensor of an unknown element type")
    return storage_tensor(storage, offset, size, stride, kind=name)


def _parameter(data: Any, *rest: Any) -> Any:
    return data


def _of_type(build: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """Return what a function builds; attributes that torch attached to it are dropped."""
    if not isinstance(build, Name) or not isinstance(arguments, tuple):
        raise TypeError("a tensor that is not built by a function")
    return build(*arguments)


def jagged_tensor(parts: Any) -> Jagged | Foreign:
    """Return a nested tensor in torch's jagged layout, from its constructor's arguments."""
    if parts.get("_ragged_idx", 1) != 1:
        return Foreign("torch.nested (the ragged dimension is not the second)")
    return jagged(parts["values"], parts["offsets"], parts.get("lengths"))


def jagged(values: Any, offsets: Any, lengths: Any = None) -> Jagged:
    """Return jagged rows; a row ends where the next begins, or after its length if given."""
    if not isinstance(values, StoredTensor) or not values.shape:
        raise TypeError("a jagged tensor without values")
    bounds = _whole_numbers(offsets)
    counts = np.diff(bounds) if lengths is None else _whole_numbers(lengths)
    return Jagged(values, bounds[:-1], counts)


def nested_tensor(buffer: Any, sizes: Any, strides: Any, offsets: Any) -> Jagged | Foreign:
    """Return a nested tensor in torch's strided layout if its rows differ only in their length."""
    if not isinstance(buffer, StoredTensor) or len(buffer.shape) != 1:
        raise TypeError("a nested tensor without values")
    shapes, starts = _whole_numbers(sizes, 2), _whole_numbers(offsets)
    inner = tuple(int(count) for count in shapes[0, 1:]) if len(shapes) else ()
    width = math.prod(inner)
    contiguous = np.ones_like(shapes)
    contiguous[:, :-1] = np.cumprod(shapes[:, :0:-1], 1)[:, ::-1]
    if (
        (shapes[:, 1:] != inner).any()
        or not np.array_equal(_whole_numbers(strides, 2), contiguous)
        or not width
        or (starts % width).any()
        or len(buffer) % width
    ):
        return Foreign("torch.nested (rows that differ in more than their length)")
    values = StoredTensor(buffer.stored.reshape(-1, *inner), buffer.kind)
    return Jagged(values, starts // width, shapes[:, 0])


def _whole_numbers(tensor: Any, dimensions: int = 1) -> NDArray[np.int64]:
    if not isinstance(tensor, StoredTensor) or not tensor.kind.startswith("int"):
        raise TypeError("offsets, lengths or sizes that are not integers")
    if len(tensor.shape) != dimensions or 0 in tensor.shape:
        raise ValueError("offsets, lengths or sizes of a wrong shape")
    return tensor.numpy().astype(np.int64)


TENSOR_NAMES: dict[Pair, Name] = names_of(
    [
        (("torch", "Size"), shape_of),
        (("torch", "Tensor"), None),
        (("torch.storage", UNTYPED), None),
        (("torch._utils", "_rebuild_tensor"), storage_tensor),
        (("torch._utils", "_rebuild_tensor_v2"), storage_tensor),
        (("torch._utils", "_rebuild_tensor_v3"), typed_storage_tensor),
        (("torch._utils", "_rebuild_parameter"), _parameter),
        (("torch._utils", "_rebuild_parameter_with_state"), _parameter),
        (("torch._utils", "_rebuild_nested_tensor"), nested_tensor),
        (("torch._tensor", "_rebuild_from_type_v2"), _of_type),
        (("torch.nn.parameter", "Parameter"), None),
        (("torch.nested._internal.nested_tensor", "NestedTensor"), None),
        (("torch.nested._internal.nested_tensor", "_rebuild_njt"), jagged_tensor),
        *((("torch", kind), None) for kind in KINDS),
        *((("torch", storage), None) for storage in STORAGES),
    ]
) | foreign(
    [
        ("torch", "device"),
        ("torch._dynamo.decorators", "_DimRange"),
        ("torch.serialization", "_get_layout"),
        ("torch.storage", "_load_from_bytes"),
        ("torch._utils", "_rebuild_sparse_tensor"),
        ("torch._utils", "_rebuild_qtensor"),
    ]
)
