"""Attributes that are computed when they are first asked for, from several threads at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
