"""Lazy attributes of a package: names that are imported on first access."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from inspect import ismodule
from typing import Any


def attributes(
    package: str, homes: Mapping[str, Collection[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__`, which import a name on first access.

    `homes` maps each module to the names of the package that it defines.
    """
    home = {name: module for module, names in homes.items() for name in names}

    def of_module(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        here = vars(sys.modules[package])
        shown = (name for name, value in here.items() if name[:2] == "__" or ismodule(value))
        return sorted({*shown, *home})

    return of_module, names
