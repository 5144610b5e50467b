"""Tensors and arrays of any library become arrays of numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# Types of half precision, which become float32: Arrow and numpy know one of them or none.
HALF = ("float16", "bfloat16")


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
        return [on_cpu(row) for row in value] if has_arrays else list(value)
    if hasattr(value, "__array__") and not isinstance(value, np.generic):
        return on_cpu(np.asarray(value))
    return value
