"""What takes the place of the classes and functions that a pickle names.

The unpickler calls what its look-up of a name returns, and gives states to what it has built. So
both are classes of this package: a call runs a function of rcdiag, and a state changes nothing but
the object that it is meant for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

# Module and name, as a pickle gives them.
Pair = tuple[str, str]
# The function that builds what a name's call builds; None for a name that is no function.
Call = Callable[..., Any] | None


class Name(type):
    """A name in a pickle, `torch.float32` say; calling it runs the function given for it.

    It is a class, since pickle makes objects of nothing else, but it has no instances.
    """

    name: str

    def __new__(mcs, name: str, build: Call) -> Name:
        def call(cls: Name, *arguments: Any) -> Any:
            if build is None:
                raise TypeError(f"{name} is no function")
            return build(*arguments)

        return super().__new__(mcs, name, (), {"__new__": call, "name": name})

    def __init__(cls, name: str, build: Call) -> None:
        super().__init__(name, (), {})

    def __setstate__(cls, state: Any) -> None:
        raise TypeError("a state for a name")


class Foreign:
    """An object of a class that rcdiag does not load: its name, arguments and state, inert."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...] = (), state: Any = None) -> None:
        self.name = name
        self.arguments = arguments
        self.state = state

    def __setstate__(self, state: Any) -> None:
        self.state = state

    # Items of classes that derive from list or dict are left out.
    def append(self, item: Any) -> None:
        pass

    def extend(self, items: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


class Buffer:
    """The bytes of an `io.BytesIO`; the place it was read to is left out."""

    __slots__ = ("content",)

    def __init__(self) -> None:
        self.content = b""

    def __setstate__(self, state: Any) -> None:
        content = state[0]
        if not isinstance(content, bytes):
            raise TypeError("a BytesIO of no bytes")
        self.content = content


class Attributed(dict[Any, Any]):
    """A dict of a class that may have attributes, which are left out: torch gives some to
    OrderedDicts.
    """

    def __setstate__(self, state: Any) -> None:
        pass


def refuse_state(self: Any, state: Any) -> None:
    """Take no state: the `__setstate__` of values that are whole once they are built."""
    raise TypeError(f"a state for a {type(self).__name__}, which has none")


def names_of(calls: Iterable[tuple[Pair, Call]]) -> dict[Pair, Name]:
    """Return a table of names from pairs and what each builds."""
    return {pair: Name(".".join(pair), call) for pair, call in calls}


def foreign(pairs: Iterable[Pair]) -> dict[Pair, Name]:
    """Return a table of names whose objects are kept as `Foreign`: classes of a trainer."""

    def keeps(name: str) -> Callable[..., Foreign]:
        return lambda *arguments: Foreign(name, arguments)

    return names_of((pair, keeps(".".join(pair))) for pair in pairs)


def hashable(key: Any) -> Any:
    """Return a key of a dict or set that is cheap to hash; nested tuples may take forever."""
    if type(key) is str:  # the names of nearly all fields
        return key
    parts = key if isinstance(key, tuple) else (key,)
    if not all(
        part is None or isinstance(part, (str, bytes, int, float, Foreign, Name)) for part in parts
    ):
        raise TypeError("a key that is neither text nor a number")
    return key
