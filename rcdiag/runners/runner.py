"""A runner starts engines somewhere, for as long as a `with` block lasts.

`--devices 4` and `--devices 0,1,2,3` are the GPUs, or shares of a processor, that engines use.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import Struct

from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, setting

if TYPE_CHECKING:
    from rcdiag.engines.process import Job
    from rcdiag.engines.schedule import RunningEngine

Part = TypeVar("Part")
Made = TypeVar("Made")

# Where an engine runs that rcdiag does not start itself, for a dry run.
OUTSIDE = "outside of rcdiag, by one process on this machine that speaks to it"


class Devices(Struct, frozen=True):
    """The devices that a user allows: a number of them, or their names."""

    count: int
    names: tuple[str, ...] = ()  # GPUs as CUDA_VISIBLE_DEVICES has them; empty: any of them

    @classmethod
    def parse(cls, text: str) -> Devices:
        """Read a number of devices, or the numbers of GPUs with commas between (`3,` is one)."""
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        if "," not in text and text.strip().isdecimal() and int(text) > 0:
            return cls(int(text))
        bad = [name for name in names if not name.isdecimal()]
        if "," not in text or not names or bad or len(set(names)) < len(names):
            raise RcdiagError(
                f"{setting('devices', text)}: neither a number of devices nor different GPUs",
                hint="4 takes four of them; 0,1,2,3 takes these; 3, takes the one of number 3",
            )
        return cls(len(names), names)

    def of(self, gpus: Sequence[str]) -> tuple[str, ...]:
        """Return those of the GPUs here that are meant, as CUDA_VISIBLE_DEVICES names them.

        A number is a name in that list. Where the list holds UUIDs (a scheduler's), it is a place
        in it, as in CUDA.
        """
        numbered = all(name.isdecimal() for name in gpus)
        by_number = {name if numbered else str(place): name for place, name in enumerate(gpus)}
        chosen = tuple(by_number.get(name, name) for name in self.names) or tuple(gpus)
        if lacking := [name for name in chosen if name not in gpus]:
            there = f"there are {', '.join(gpus)}" if gpus else "there is none here"
            raise RcdiagError(f"{setting('devices')}: no GPU {lacking[0]}", hint=there)
        if gpus and self.count > len(gpus):
            raise RcdiagError(
                f"{setting('devices', self.count)}: there are {len(gpus)} GPUs here",
                hint=f"a number up to {len(gpus)}",
            )
        return chosen[: self.count]


# Two numbers: the microseconds of processor time that a container may use, or `max`, and the length
# of the period in which it may use them.
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def cores_to_use() -> int:
    """Return how many cores this process keeps busy: those it may use, within a container's quota.

    A quota of 1.5 cores makes two.
    """
    cores = len(cores_here())
    try:
        quota, period = CPU_QUOTA.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no container, or one without a quota: `max`
        return cores


def cores_here() -> list[int]:
    """Return the cores of the processor that this process may use."""
    return sorted(os.sched_getaffinity(0))


class Runner(AbstractContextManager["Runner"], Protocol):
    """A runner that a user chose; inside `with` it has what it needs, a connection or nothing."""

    def workers(self, tokens: int) -> int:
        """Return how many processes share a pass; 0: this one does it alone."""
        ...

    def place(self, tokens: int) -> str:
        """Say where a pass over a table of this size is done, for a dry run."""
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

    def plan(self, spec: PolicySpec, parts: int) -> str:
        """Say how many engines would score so many parts, and on what, for a dry run."""
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
