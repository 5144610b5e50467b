"""What is computed or imported when it is first asked for, from several threads at once."""

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
        """A property whose value is computed once and kept in the object's `__dict__`.

        `functools.cached_property` of Python 3.11 holds one lock for all objects of a class while
        it computes, so that threads which work on different objects wait for each other. Here two
        threads that ask the same object at the same time may both compute; the values are equal.
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
