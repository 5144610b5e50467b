"""Where a result comes from: what every result document says about itself."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import socket
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

from rcdiag.errors import without_secrets
from rcdiag.table.table import Table
from rcdiag.usecases.commit import commit

LIBRARIES = ("rcdiag", "numpy", "scipy", "pyarrow", "polars")
ENGINES = ("torch", "transformers")  # they compute where a model runs, and are not loaded elsewhere
PROCESSORS = Path("/proc/cpuinfo")


def provenance(dump: Table, seed: int, device: str | None = None) -> dict[str, Any]:
    """Command line, versions, machine, table, fingerprint, seed, time; of drawn rows how many.

    `columns_read_as` maps rcdiag's names to those in the files, where columns have others there.
    `device` is where a model ran; by default the processor.
    """
    source = dump.drawn_from or dump
    names = {**source.naming.taken, **source.renames}
    drawn = {} if dump.drawn_from is None else {"rows_drawn": dump.num_rows}
    known = commit()
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *map(without_secrets, sys.argv[1:])]),
        "versions": _versions(with_engines=device is not None),
        "host": socket.gethostname(),
        "device": device or _processor(),
        **({"commit": known} if known else {}),
        "dump": [file.name for file in source.sources],
        "rows": source.num_rows,
        **drawn,
        **({"columns_read_as": names} if names else {}),
        "fingerprint": dump.fingerprint,
        "seed": seed,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _versions(*, with_engines: bool) -> dict[str, str]:
    """Return the installed versions of Python and of the libraries that compute."""
    libraries = (*LIBRARIES, *ENGINES) if with_engines else LIBRARIES
    return {"python": platform.python_version(), **{name: _version(name) for name in libraries}}


@cache
def _version(library: str) -> str:
    return importlib.metadata.version(library)


@cache
def _processor() -> str:
    """Name the processor and count its cores: `AMD EPYC 9654, 2 cores`."""
    lines = PROCESSORS.read_text().splitlines() if PROCESSORS.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = next(iter(named), "") or platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"
