"""A runner starts engines somewhere, for as long as a `with` block lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct

from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, setting
from rcdiag.registry import Registry
from rcdiag.runners.devices import Devices

if TYPE_CHECKING:
    from rcdiag.engines.process import Job
    from rcdiag.engines.schedule import RunningEngine

Part = TypeVar("Part")
Made = TypeVar("Made")


class Runner(AbstractContextManager["Runner"], Protocol):
    """A runner that a user chose; inside `with` it has what it needs, a connection or nothing."""

    @property
    def elsewhere(self) -> bool:
        """Tell whether other processes do the work of `map`."""
        ...

    def place(self) -> str:
        """Say where `map` does its work, for a dry run."""
        ...

    def everywhere(self, function: Callable[[], Made]) -> list[Made]:
        """Call a function once on every machine, and return what it gives there."""
        ...

    def map(self, function: Callable[[Part], Made], parts: Iterable[Part]) -> Iterator[Made]:
        """Call a function with every part, side by side, and yield what it gives in their order.

        Parts are taken when they are due. What a lost process or machine had is done again. What
        travels are the function, the parts and what it gives, which are rcdiag's own.
        """
        ...

    def engines(self, spec: PolicySpec) -> int:
        """Return how many engines of a policy work side by side."""
        ...

    def start(self, job: Job, number: int) -> RunningEngine:
        """Start one of these engines, `number` counted from 0."""
        ...

    def plan(self, spec: PolicySpec) -> str:
        """Say how many engines of a policy would run and on what, for a dry run."""
        ...

    def idle(self, spec: PolicySpec) -> str:
        """Say how many GPUs no engine uses and what would use them; nothing where all work."""
        ...


class RunnerKind(Struct, frozen=True, kw_only=True):
    """A kind of runner, before it is chosen."""

    name: str  # in --on NAME[:ADDRESS]
    says: str
    # Makes the runner of an address, which is empty where none is given.
    choose: Callable[[str, Devices | None], Runner]
    has_address: bool = False


def run_on(kinds: Registry[RunnerKind], where: str, devices: str | None) -> Runner:
    """Return the runner of `NAME[:ADDRESS]`."""
    name, colon, address = where.partition(":")
    kind = kinds.find(name, "--on")
    if colon and not (kind.has_address and address):
        raise RcdiagError(
            f"{setting('on', where)}: `{name}` takes "
            f"{'an address after the colon' if kind.has_address else 'no address'}",
            hint=kind.says,
        )
    return kind.choose(address, None if devices is None else Devices.parse(devices))
