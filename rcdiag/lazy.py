"""Values that are computed, and names that are imported, when they are first asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from inspect import ismodule
from typing import TYPE_CHECKING, Any


def attributes(
    package: str, homes: Mapping[str, Collection[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__`, which import a name when it is asked for.

    `homes` maps a module to the names of the package that it defines.
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


if TYPE_CHECKING:
    from functools import cached_property as lazy
else:

    class lazy:
        """`functools.cached_property` without its lock: for objects that threads work on.

        Until Python 3.12 `cached_property` holds one lock for all objects of a class while it
        computes, so that threads which compute the same property of different blocks of tokens
        would wait for each other. Without it two threads that ask the same object at the same time
        may both compute the value, and the values are equal.
        """

        def __init__(self, compute):
            self._compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner, name):
            self._name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._compute(instance)
            return value
