"""Frozen dataclasses that are made quickly.

`dataclasses.dataclass(frozen=True)` compiles six functions for every class, .4 ms of it, and a
command defines 200 classes before it begins. Here a frozen class gets one function of its own,
`__init__`, and shares the others; everything else is the standard library's: fields, defaults,
slots, `replace`, `fields`, `asdict`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, **options):
        """Make a class a dataclass: `@dataclass`, or `@dataclass(frozen=True, slots=True)`."""
        if cls is None:
            return lambda made: dataclass(made, **options)
        plain = options.keys() <= {"frozen", "slots", "kw_only", "eq"} and options.get("frozen")
        if not plain or any(map(dataclasses.is_dataclass, cls.__bases__)):
            return dataclasses.dataclass(cls, **options)
        return _frozen(cls, **options)


class _Made:
    """The argument that is not given, for a field whose value is made for each object."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Made()


def _frozen(cls: type, *, frozen: bool, eq: bool = True, **options: Any) -> type:
    """Make a frozen dataclass that inherits from no other dataclass."""
    own = vars(cls).keys()
    made: Any = dataclasses.dataclass(cls, init=False, repr=False, eq=False, **options)
    fields = dataclasses.fields(made)
    methods: dict[str, Any] = {
        "__init__": _init(made, fields),
        "__setattr__": _refuse,
        "__delattr__": _refuse,
        "__repr__": _repr,
    }
    if options.get("slots"):  # objects without a `__dict__` are unpickled by assignment
        methods |= {"__getstate__": _state, "__setstate__": _restore}
    if eq:
        methods |= {"__eq__": _equal, "__hash__": _hash}
        names = [field.name for field in fields if field.compare]
        made.__compared__ = staticmethod(attrgetter(*names) if names else _nothing)
    for name, method in methods.items():
        inherited = name == "__repr__" and made.__repr__ is not object.__repr__
        if name not in own and not inherited:
            setattr(made, name, method)
    made.__dataclass_params__.frozen = frozen  # what inherits from it asks
    return made


def _init(made: type, fields: tuple[dataclasses.Field[Any], ...]) -> Callable[..., None]:
    """Compile the function that sets the fields of an object from arguments."""
    space: dict[str, Any] = {"_set": object.__setattr__, "_MADE": _MADE}
    positional, by_name, body = ["self"], ["*"], []
    for field in fields:
        name = field.name
        argument, value = name, name
        if field.default is not dataclasses.MISSING:
            space[f"_default_{name}"] = field.default
            argument += f"=_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            space[f"_make_{name}"] = field.default_factory
            argument += "=_MADE"
            value = f"_make_{name}() if {name} is _MADE else {name}"
        (by_name if field.kw_only else positional).append(argument)
        body.append(f" _set(self, {name!r}, {value})")
    if hasattr(made, "__post_init__"):
        body.append(" self.__post_init__()")
    arguments = ", ".join(positional + (by_name if len(by_name) > 1 else []))
    exec(f"def __init__({arguments}):\n" + ("\n".join(body) or " pass"), space)
    init: Callable[..., None] = space["__init__"]
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__annotations__ = {field.name: field.type for field in fields} | {"return": None}
    return init


def _refuse(self: Any, name: str, *value: object) -> None:
    verb = "assign to" if value else "delete"
    raise dataclasses.FrozenInstanceError(f"cannot {verb} field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


def _nothing(self: Any) -> tuple[()]:
    return ()


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self.__compared__(self) == self.__compared__(other)


def _hash(self: Any) -> int:
    return hash(self.__compared__(self))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (field.name for field in dataclasses.fields(self) if field.repr)
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
    return f"{type(self).__qualname__}({values})"
