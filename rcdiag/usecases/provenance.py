"""The provenance of a result: command, versions, machine, data and time."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rcdiag.table.table import Table
from rcdiag.url_secrets import without_own_secrets

LIBRARIES = ("rcdiag", "numpy", "scipy", "pyarrow", "polars")
ENGINES = ("torch", "transformers")  # only if a model ran
PROCESSORS = Path("/proc/cpuinfo")


def provenance(dump: Table, seed: int, device: str | None = None) -> dict[str, Any]:
    """Return command line, versions, machine, the table as given, fingerprint, seed and time.

    `columns_read_as` maps rcdiag's column names to those in the files, if some differ; `rows_drawn`
    is the number of drawn rows, if rows were drawn. `device` is where a model ran; by default the
    processor.
    """
    given = dump.as_given
    source = given.drawn_from or given
    names = {**source.naming.taken, **source.renames}
    drawn = {} if given.drawn_from is None else {"rows_drawn": given.num_rows}
    return {
        **_of_run(device),
        "dump": [file.name for file in source.sources],
        "rows": source.num_rows,
        **drawn,
        **({"columns_read_as": names} if names else {}),
        "fingerprint": given.fingerprint,
        "seed": seed,
        "time": _now(),
    }


def provenance_of_files(paths: Sequence[Path], seed: int) -> dict[str, Any]:
    """Return the provenance of a result that was read from training logs, not from a table."""
    return {
        **_of_run(None),
        "dump": [str(path) for path in paths],
        "rows": 0,
        "fingerprint": hashed_files(paths),
        "seed": seed,
        "time": _now(),
    }


def hashed_files(paths: Sequence[Path]) -> str:
    """Return a hash of the contents of files, and of all files in folders."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in files:
            if file.is_file():
                digest.update(file.read_bytes())
    return digest.hexdigest()


def _of_run(device: str | None) -> dict[str, Any]:
    known = commit()
    libraries = LIBRARIES if device is None else (*LIBRARIES, *ENGINES)
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *map(without_own_secrets, sys.argv[1:])]),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in libraries},
        },
        "host": socket.gethostname(),
        "device": device or processor(),
        **({"commit": known} if known else {}),
    }


version = cache(importlib.metadata.version)  # it parses a file of the package


@cache
def processor() -> str:
    """Return the processor with its cores: `AMD EPYC 9654, 2 cores`."""
    lines = PROCESSORS.read_text().splitlines() if PROCESSORS.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(named, "") or platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@cache
def commit() -> str | None:
    """Return the commit of rcdiag's source, from its clone or pip's direct_url.json, or None."""
    clone = Path(__file__).parents[2] / ".git"
    if clone.exists():
        return commit_of_clone(clone)
    try:
        written = importlib.metadata.distribution("rcdiag").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    facts = json.loads(written) if written else {}
    known: str | None = facts.get("vcs_info", {}).get("commit_id")
    return known


def commit_of_clone(git: Path) -> str | None:
    """Return the commit that is checked out; `git` is the `.git` of a clone or of a worktree.

    None if git is not installed, or finds no commit there.
    """
    command = ["git", f"--git-dir={git}", "rev-parse", "--verify", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
