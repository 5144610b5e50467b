"""Frozen dataclasses are what the standard library's decorator makes of the same class."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any, ClassVar

import pytest

from rcdiag import frozen


def made(decorator: Any, **options: Any) -> Any:
    @decorator(frozen=True, **options)
    class Point:
        """A point."""

        x: int
        y: float = 0.5
        names: list[str] = dataclasses.field(default_factory=list)
        hidden: str = dataclasses.field(default="", compare=False, repr=False)
        last: int = dataclasses.field(default=3, kw_only=True)
        count: ClassVar[int] = 7

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("below 0")

    return Point


OPTIONS: list[dict[str, bool]] = [{}, {"slots": True}, {"kw_only": True}, {"eq": False}]


@pytest.fixture(params=OPTIONS, ids=str)
def pair(request) -> tuple[Any, Any]:
    """The same class, made here and by the standard library."""
    return made(frozen.dataclass, **request.param), made(dataclasses.dataclass, **request.param)


def test_objects_look_and_compare_alike(pair):
    arguments: tuple[dict[str, Any], ...] = (
        {"x": 1},
        {"x": 1, "hidden": "h"},
        {"x": 1, "y": 2.0, "names": ["a"], "last": 4},
    )
    ours, theirs = ([kind(**each) for each in arguments] for kind in pair)
    assert [repr(each) for each in ours] == [repr(each) for each in theirs]
    assert [dataclasses.asdict(each) for each in ours] == [dataclasses.asdict(e) for e in theirs]
    for some in (ours, theirs):
        assert (some[0] == some[1]) == (pair[0].__eq__ is not object.__eq__)
        assert some[0] != some[2]
        assert some[0] != (1, 0.5)
    assert ours[0].names is not ours[1].names
    assert str(inspect.signature(pair[0])) == str(inspect.signature(pair[1]))
    assert pair[0].__match_args__ == pair[1].__match_args__
    assert pair[0].__doc__ == "A point."


def test_they_are_frozen_and_checked(pair):
    point = pair[0](x=1)
    for change in (
        lambda: setattr(point, "x", 2),
        lambda: setattr(point, "other", 2),
        lambda: delattr(point, "x"),
    ):
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
            change()
    with pytest.raises(ValueError, match="below 0"):
        dataclasses.replace(point, x=-1)
    with pytest.raises(TypeError, match="missing 1 required"):
        pair[0]()
    assert hasattr(point, "__dict__") == hasattr(pair[1](x=1), "__dict__")


@frozen.dataclass(frozen=True, slots=True)
class Slotted:
    """An object without a `__dict__`."""

    a: tuple[int, ...]
    b: str = "b"


@frozen.dataclass(frozen=True)
class Base:
    """What others inherit from."""

    a: int


@dataclasses.dataclass(frozen=True)
class Inherits(Base):
    """A class of the standard library's decorator below one of ours."""

    b: int = 2


@frozen.dataclass(frozen=True, slots=True)
class Nothing:
    """An object without fields."""


def test_they_are_keys_and_travel():
    one = Slotted((1, 2))
    assert {one: 1}[Slotted((1, 2))] == 1
    for other in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
        assert other == one
        assert other.b == "b"
    assert Nothing() == Nothing()
    assert {Nothing(), Nothing()} == {Nothing()}
    assert repr(Nothing()) == "Nothing()"


def test_classes_below_them_have_all_fields():
    below = Inherits(1)
    assert (below.a, below.b) == (1, 2)
    assert below == Inherits(1, 2)
    assert below != Base(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        below.a = 2  # type: ignore[misc]


def test_one_that_holds_itself_is_shown():
    loop: list[Any] = []
    holder = Slotted(loop)  # type: ignore[arg-type]
    loop.append(holder)
    assert "..." in repr(holder)
