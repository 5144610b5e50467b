"""LocalRunner: engines and worker processes on one machine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from rcdiag.engines import BACKENDS
from rcdiag.engines.gpus import VISIBLE, gpus_here
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, setting
from rcdiag.formats import plural
from rcdiag.registry import has_definitions_of_script
from rcdiag.runners.processes import map_in_processes
from rcdiag.runners.runner import OUTSIDE, Devices, Made, Part, RunnerKind, cores_here, cores_to_use

if TYPE_CHECKING:
    from rcdiag.engines.process import Job
    from rcdiag.engines.schedule import RunningEngine


# Workers are used for passes over at least this many tokens, since they must start and import.
# `score` with all presets on two cores: 6 M tokens take 6.6 to 7.6 s in one process and 7.3 to
# 7.6 s with two workers; 12 M take 10.5 to 10.6 s and 9.7 s.
WORTH_WORKERS = 10_000_000


class LocalRunner(Struct, frozen=True):
    """Processes on this machine; without `devices`, one engine uses the whole machine."""

    devices: Devices | None
    gpus: tuple[str, ...]  # GPUs that engines may use; empty: engines share the CPU cores
    cores: int = 1  # processes for a pass over a large table

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def workers(self, tokens: int) -> int:
        """Return how many processes, this one included, share a pass; 0 for a table of few tokens.

        Definitions that a script has added exist only in its own process, which then does all.
        """
        if self.cores < 2 or tokens < WORTH_WORKERS or has_definitions_of_script():
            return 0
        return self.cores

    def place(self, tokens: int) -> str:
        """Return a text that says how many processes do a pass."""
        workers = self.workers(tokens)
        return f"by {workers} processes" if workers else "in this process"

    def map(self, function: Callable[[Part], Made], parts: Iterable[Part]) -> Generator[Made]:
        """Call a function for every part, in this and worker processes."""
        return map_in_processes(function, parts, self.cores)

    def engines(self, spec: PolicySpec) -> int:
        """Return the number of sets of GPUs, or of shares of the CPU cores."""
        if self.devices is None or BACKENDS[spec.backend].runs_outside:
            return 1
        size = self._set_size(spec)
        if size > self.devices.count:
            raise RcdiagError(
                f"policy `{spec.name}` takes {size} GPUs, {setting('devices')} allows "
                f"{self.devices.count}",
                hint="allow more GPUs, or spread the model over fewer",
            )
        return self.devices.count // size

    def start(self, job: Job, number: int) -> RunningEngine:
        """Start an engine that sees only its own set of GPUs, or has its own cores."""
        from rcdiag.engines.process import EngineProcess

        log = f"engine{number or ''}.log"
        job = replace(job, log=log)
        if self.devices is None or BACKENDS[job.spec.backend].runs_outside:
            return EngineProcess(job)
        if self.gpus:
            size = self._set_size(job.spec)
            own = self.gpus[number * size : (number + 1) * size]
            return EngineProcess(job, {VISIBLE: ",".join(own)})
        cores = cores_here()
        share = len(cores) // self.devices.count
        own_cores = cores[number * share : (number + 1) * share]
        threads = str(share)
        return EngineProcess(job, {"OMP_NUM_THREADS": threads}, own_cores)

    def plan(self, spec: PolicySpec, parts: int) -> str:
        """Say how many engines would score so many parts, and on what."""
        if BACKENDS[spec.backend].runs_outside:
            return OUTSIDE
        if self.devices is None:
            return "; ".join(
                filter(None, ["one engine on this machine", self.lacking(spec), self.idle(spec)])
            )
        engines = min(self.engines(spec), parts)
        each = plural(self._set_size(spec), "GPU") if self.gpus else "its own cores"
        if engines == 1:
            return f"one engine on this machine, with {each}"
        return f"{engines} engines side by side on this machine, each with {each}"

    def lacking(self, spec: PolicySpec) -> str:
        """Return a text that says which GPUs a policy asks for and this machine lacks.

        It is not an error: a dry run may be on a login node, and the run where the GPUs are.
        """
        asked = {key: spec.options[key] for key in ("device", "gpus") if key in spec.options}
        size, gpus = int(asked.get("gpus", 1)), len(gpus_here())
        on_gpus = "gpus" in asked or str(asked.get("device", "")).startswith("cuda")
        if not on_gpus or gpus >= size:
            return ""
        options = ",".join(f"{key}={value}" for key, value in asked.items())
        return f"{options} would stop here, where {plural(gpus, 'CUDA GPU')} can be seen"

    def idle(self, spec: PolicySpec) -> str:
        """Return a text that says how many GPUs stay idle, if the user gave no number of them."""
        size, gpus = BACKENDS[spec.backend].gpus(spec.options), len(gpus_here())
        if self.devices is not None or BACKENDS[spec.backend].runs_outside or gpus < 2 * size:
            return ""
        return f"{gpus - size} of {gpus} GPUs stay idle; {setting('devices', gpus)} uses all"

    def _set_size(self, spec: PolicySpec) -> int:
        return BACKENDS[spec.backend].gpus(spec.options) if self.gpus else 1


def _choose(address: str, devices: Devices | None, workers: int | None) -> LocalRunner:
    """Return a runner, after checking that this machine has the devices that the user allows."""
    cores = cores_to_use() if workers is None else workers
    if devices is None:
        return LocalRunner(None, (), cores)
    gpus = gpus_here()
    chosen = devices.of(gpus)
    if gpus:
        return LocalRunner(devices, chosen, cores)
    if devices.count > len(cores_here()):
        raise RcdiagError(
            f"{setting('devices', devices.count)}: no GPU here, and {len(cores_here())} cores",
            hint=f"a number up to {len(cores_here())}: that many engines then share the cores",
        )
    return LocalRunner(devices, (), cores)


LOCAL = RunnerKind(
    name="local",
    says="This machine. One engine uses all of it; with --devices there is one engine for each set "
    "of GPUs, or without a GPU for each share of the cores. A large table is read by --workers "
    "processes.",
    choose=_choose,
)
