"""Tensors and arrays of any library become arrays of numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rcdiag.errors import RcdiagError

# Types of half precision, which become float32: Arrow and numpy know one of them or none.
HALF = ("float16", "bfloat16")


def column_on_cpu(value: Any, where: str) -> Any:
    """Return a column as `on_cpu` does; one whose values cannot be had is refused as `where`."""
    try:
        return on_cpu(value)
    except (TypeError, ValueError, RuntimeError) as error:  # a meta tensor's error is the last
        reason = (str(error) or repr(error)).splitlines()[0]
        raise RcdiagError(
            f"{where}: its values cannot be read ({reason})",
            hint="give dense tensors that hold values (`.to_dense()`, not of device `meta`), "
            "arrays, or lists",
        ) from error


def on_cpu(value: Any) -> Any:
    """Return tensors and arrays as numpy arrays, and lists with such rows in them.

    Half precision becomes float32. The result may share memory with `value`.
    """
    if hasattr(value, "detach"):  # torch, which is not imported here
        if getattr(value, "is_nested", False):
            return [on_cpu(row) for row in value.unbind()]
        tensor = value.detach().cpu()
        if tensor.is_floating_point() and tensor.element_size() < 4:
            tensor = tensor.float()
        return tensor.numpy()
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return on_cpu(list(value))
        return value.astype(np.float32) if value.dtype.name in HALF else value
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        has_arrays = any(hasattr(row, "__array__") for row in value)
        return _of_one_type([on_cpu(row) for row in value]) if has_arrays else list(value)
    if hasattr(value, "__array__") and not isinstance(value, np.generic):
        return on_cpu(np.asarray(value))
    return value


def _of_one_type(rows: list[Any]) -> list[Any]:
    """Return arrays of floats, or of whole numbers, in the one type that holds all their values."""
    kinds = {row.dtype for row in rows if isinstance(row, np.ndarray) and row.dtype.kind in "iuf"}
    if len(kinds) < 2 or len({kind.kind == "f" for kind in kinds}) > 1:
        return rows
    common = np.result_type(*kinds)
    if common.kind == "f" and not any(kind.kind == "f" for kind in kinds):
        return rows  # int64 and uint64 have none
    return [row.astype(common) if isinstance(row, np.ndarray) else row for row in rows]
