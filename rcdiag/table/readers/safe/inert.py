"""What a pickle's names stand for: a function of rcdiag, an inert object, or one half built."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

# Module and name, as a pickle gives them.
Pair = tuple[str, str]
# The function that builds what a name's call builds; None for a name that is no function.
Call = Callable[..., Any] | None


class Name(Struct, frozen=True):
    """A name in a pickle, and what its call builds; the call of a name without one is refused."""

    name: str
    call: Call = None

    def build(self, *arguments: Any) -> Any:
        if self.call is None:
            raise TypeError(f"{self.name} is no function")
        return self.call(*arguments)


@dataclass(eq=False, slots=True)
class Foreign:
    """An object of a class that rcdiag does not load: its name, arguments and state, inert."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None


class Unfinished:
    """A value that a pickle builds in two steps: first it exists, then it gets its state.

    It is no abstract base class: the machine asks for every value whether it is unfinished.
    """

    def __init__(self) -> None:
        self.memo_keys: list[int] = []  # where the machine's memo holds it

    def finish(self, state: Any) -> Any:
        """Return the value itself, which takes the place of the unfinished one."""
        raise NotImplementedError


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
