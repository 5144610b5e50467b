"""A runner starts engines somewhere, for as long as a `with` block lasts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
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

    def workers(self, tokens: int) -> int:
        """Return how many processes share a pass over so many tokens; 0: this one does it alone."""
        ...

    def place(self, tokens: int) -> str:
        """Say where a pass over so many tokens is done, for a dry run."""
        ...

    def map(self, function: Callable[[Part], Made], parts: Iterable[Part]) -> Generator[Made]:
        """Call a function with every part in the workers, and yield the results in order.

        Function, parts and results are pickled. Parts are taken when they are due. Closing the
        iterator ends what is still going on.
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
    # Makes the runner of an address, which is empty where none is given, with the devices for
    # engines and the number of workers for passes that a user allows.
    choose: Callable[[str, Devices | None, int | None], Runner]
    has_address: bool = False


def run_on(
    kinds: Registry[RunnerKind], where: str, devices: str | None, workers: int | None
) -> Runner:
    """Return the runner of `NAME[:ADDRESS]`."""
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise RcdiagError(
            f"{setting('workers', workers)}: no number of processes",
            hint="1 reads the table in this process; without it all cores are used",
        )
    name, colon, address = where.partition(":")
    kind = kinds.find(name, "--on")
    if colon and not (kind.has_address and address):
        raise RcdiagError(
            f"{setting('on', where)}: `{name}` takes "
            f"{'an address after the colon' if kind.has_address else 'no address'}",
            hint=kind.says,
        )
    return kind.choose(address, None if devices is None else Devices.parse(devices), workers)
