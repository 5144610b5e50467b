"""Replacements for the classes and functions that a pickle names.

The unpickler calls whatever its look-up of a name returns, and sets the state of objects that it
built. Therefore all of these are classes of this package: a call runs a function of rcdiag, and a
state changes only its own object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

# (module, name), as in a pickle.
Pair = tuple[str, str]
# The function that a call of the name runs; None for a name that cannot be called.
Call = Callable[..., Any] | None


class Name(type):
    """A name in a pickle, such as `torch.float32`; calling it runs the function given for it.

    It is a class without instances, because pickle can only build objects from classes.
    """

    name: str

    def __new__(mcs, name: str, build: Call) -> Name:
        def call(cls: Name, *arguments: Any) -> Any:
            if build is None:
                raise TypeError(f"{name} is not a function")
            return build(*arguments)

        return super().__new__(mcs, name, (), {"__new__": call, "name": name})

    def __init__(cls, name: str, build: Call) -> None:
        super().__init__(name, (), {})

    def __setstate__(cls, state: Any) -> None:
        raise TypeError("a name cannot have a state")


class Foreign:
    """An object of a class that rcdiag does not load: only its name, arguments and state."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...] = (), state: Any = None) -> None:
        self.name = name
        self.arguments = arguments
        self.state = state

    def __setstate__(self, state: Any) -> None:
        self.state = state

    # Items of subclasses of list or dict are dropped.
    def append(self, item: Any) -> None:
        pass

    def extend(self, items: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


class Buffer:
    """The bytes of an `io.BytesIO`; its position is dropped."""

    __slots__ = ("content",)

    def __init__(self) -> None:
        self.content = b""

    def __setstate__(self, state: Any) -> None:
        content = state[0]
        if not isinstance(content, bytes):
            raise TypeError("a BytesIO without bytes")
        self.content = content


class Attributed(dict[Any, Any]):
    """A dict of a class that may have attributes, which are dropped: torch gives some to
    OrderedDicts.
    """

    def __setstate__(self, state: Any) -> None:
        pass


def refuse_state(self: Any, state: Any) -> None:
    """Refuse any state: the `__setstate__` of values that are complete once they are built."""
    raise TypeError(f"a {type(self).__name__} cannot have a state")


def names_of(calls: Iterable[tuple[Pair, Call]]) -> dict[Pair, Name]:
    """Return a table of names from (module, name) pairs and what each builds."""
    return {pair: Name(".".join(pair), call) for pair, call in calls}


def foreign(pairs: Iterable[Pair]) -> dict[Pair, Name]:
    """Return a table of names whose objects are kept as `Foreign`, such as a trainer's classes."""

    def keeps(name: str) -> Callable[..., Foreign]:
        return lambda *arguments: Foreign(name, arguments)

    return names_of((pair, keeps(".".join(pair))) for pair in pairs)


def hashable(key: Any) -> Any:
    """Return a dict or set key that is cheap to hash; hashing nested tuples may take forever."""
    if type(key) is str:  # nearly all keys
        return key
    parts = key if isinstance(key, tuple) else (key,)
    if not all(
        part is None or isinstance(part, (str, bytes, int, float, Foreign, Name)) for part in parts
    ):
        raise TypeError("a key that is neither text nor a number")
    return key
