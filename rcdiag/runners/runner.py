"""Runner: where engines and workers run, for the duration of a `with` block.

`--devices 4` and `--devices 0,1,2,3` set the GPUs, or shares of the CPU, that engines use.
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

# Where a backend runs that rcdiag does not start, for a dry run.
OUTSIDE = "outside of rcdiag, by one process on this machine that speaks to it"


class Devices(Struct, frozen=True):
    """The devices that a user allows: a number of them, or their names."""

    count: int
    names: tuple[str, ...] = ()  # GPUs as CUDA_VISIBLE_DEVICES has them; empty: any of them

    @classmethod
    def parse(cls, text: str) -> Devices:
        """Parse a number of devices, or GPU numbers separated by commas (`3,` is GPU 3)."""
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        if "," not in text and text.strip().isdecimal() and int(text) > 0:
            return cls(int(text))
        bad = [name for name in names if not name.isdecimal()]
        if "," not in text or not names or bad or len(set(names)) < len(names):
            raise RcdiagError(
                f"{setting('devices', text)}: neither a number of devices nor different GPUs",
                hint="4 takes four GPUs; 0,1,2,3 takes these four; 3, takes only number 3",
            )
        return cls(len(names), names)

    def of(self, gpus: Sequence[str]) -> tuple[str, ...]:
        """Return the selected GPUs, as CUDA_VISIBLE_DEVICES names them.

        A number is looked up as a name in that list. If the list has UUIDs, as a scheduler sets
        them, the number is an index into it, as in CUDA.
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


# The file has two numbers: the microseconds of CPU time that a container may use, or `max`, and the
# length of the period in which it may use them.
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def cores_to_use() -> int:
    """Return how many cores this process may keep busy, at most a container's quota.

    A quota of 1.5 cores counts as two.
    """
    cores = len(cores_here())
    try:
        quota, period = CPU_QUOTA.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no container, or one without a quota: `max`
        return cores


def cores_here() -> list[int]:
    """Return the CPU cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


class Runner(AbstractContextManager["Runner"], Protocol):
    """A chosen runner; the `with` block opens and closes its connection, if it has one."""

    def workers(self, tokens: int) -> int:
        """Return how many processes share a pass; 0: this process does it alone."""
        ...

    def place(self, tokens: int) -> str:
        """Return a text that says where a pass over `tokens` tokens runs, for a dry run."""
        ...

    def map(self, function: Callable[[Part], Made], parts: Iterable[Part]) -> Generator[Made]:
        """Call a function for every part in the workers, and yield the results in order.

        The function, parts and results are pickled. Parts are read only when they are needed.
        Closing the iterator stops the remaining work.
        """
        ...

    def engines(self, spec: PolicySpec) -> int:
        """Return how many engines of a policy run in parallel."""
        ...

    def start(self, job: Job, number: int) -> RunningEngine:
        """Start one of these engines; `number` counts from 0."""
        ...

    def plan(self, spec: PolicySpec, parts: int) -> str:
        """Say how many engines would score so many parts, and on what, for a dry run."""
        ...

    def idle(self, spec: PolicySpec) -> str:
        """Return a text that says how many GPUs stay idle and how to use them; "" if none do."""
        ...


class RunnerKind(Struct, frozen=True, kw_only=True):
    """A kind of runner, before it is chosen."""

    name: str  # in --on NAME[:ADDRESS]
    says: str
    # Returns the runner for an address ("" if none is given), for the devices that engines may
    # use, and for the number of workers.
    choose: Callable[[str, Devices | None, int | None], Runner]
    has_address: bool = False
